"""Tests changes of parts after their programs were traced: they apply or raise."""

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import envs
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.policies import normalization

TABLES = *parts.HEADS.values(), *parts.BASELINES.values()
EXAMPLES = [example.make() for example in TABLES if example.cases()[0]]
OTHERS = [normalization.RunningNormalization(), normalization.RunningScale()]


@pytest.mark.parametrize("part", [*EXAMPLES, *OTHERS], ids=lambda x: type(x).__name__)
def test_arguments_of_a_part_raise_if_set_after_the_build(part):
    names = part.get_config().keys() - {
        "name",
        "trainable",
        "dtype",
        "optimizer",
        "heads",
        "parts",
    }
    for name in names:  # they may change before the build
        setattr(part, name, getattr(part, name))
    part.build((None, getattr(part, "outputs_size", 2)))
    for name in names:
        before = getattr(part, name)
        with pytest.raises(AttributeError, match=f"`{name}` of a .* is fixed once"):
            setattr(part, name, before)
    part.trainable = False
    assert not part.trainable_variables


def test_statistics_of_an_agent_are_fixed_but_not_a_subclass_argument():
    class Own(tfr.Reinforce):
        def __init__(self, *args, note="", **kwargs):
            super().__init__(*args, **kwargs)
            self.note = note

    agent = Own(keras.Sequential([keras.layers.Dense(2)]), tfr.heads.Categorical(2))
    agent.build((None, 1))
    agent.note = "changed"
    for name in ("normalizer", "reward_scale", "advantage_scale", "gamma", "head"):
        with pytest.raises(AttributeError, match=f"`{name}` of a Own is fixed"):
            setattr(agent, name, None)


def learner(**options):
    trunk = keras.Input((1,))
    hidden = keras.layers.Dense(3, "tanh", kernel_initializer="ones")(trunk)
    ends = {"outputs": 3, "values": 1}
    outputs = {
        name: keras.layers.Dense(size, name=name, kernel_initializer="ones")(hidden)
        for name, size in ends.items()
    }
    agent = tfr.Reinforce(keras.Model(trunk, outputs), baseline=baselines.Value())
    agent.compile(keras.optimizers.SGD(0.1, **options))
    return agent


@pytest.mark.parametrize("engine", ["host", sweeps.rare("compiled")])
def test_changed_optimizer_attributes_apply_to_the_next_update(engine):
    """Clipnorm 0.01 and learning rate 0.1 limit the update to a length of 0.001."""
    agent, world = learner(), envs.Bandit()
    env = world.as_gymnasium(2) if engine == "host" else world
    agent.fit(env, epochs=1, verbose=0)
    agent.optimizer.global_clipnorm = 0.01
    before = [variable.numpy() for variable in agent.policy_variables]
    agent.fit(env, epochs=1, verbose=0)
    moves = zip(agent.policy_variables, before, strict=True)
    length = np.sqrt(sum(np.sum((v.numpy() - old) ** 2) for v, old in moves))
    np.testing.assert_allclose(length, 0.001, rtol=1e-4)
    # The learning rate is a variable, so that no program is traced again.
    agent.optimizer.learning_rate = 0.0
    before = [variable.numpy() for variable in agent.policy_variables]
    agent.fit(env, epochs=1, verbose=0)
    np.testing.assert_equal([v.numpy() for v in agent.policy_variables], before)


def schedule_from(rate):
    return keras.optimizers.schedules.ExponentialDecay(rate, 1, 1.0)


@pytest.mark.parametrize("in_place", [sweeps.rare(True), False])
def test_changed_learning_rate_schedule_gives_the_next_rate(in_place):
    """A new schedule may have the `id` of a deleted one.

    The `id` alone is no valid key.
    """
    agent = learner()
    agent.compile(keras.optimizers.SGD(schedule_from(0.5)))
    env = envs.Bandit().as_gymnasium(2)
    for rate in (0.5, 0.25):
        if in_place:
            agent.optimizer._learning_rate.initial_learning_rate = rate
        else:
            agent.optimizer.learning_rate = schedule_from(0.75)
            agent.optimizer.learning_rate = schedule_from(rate)
        history = agent.fit(env, epochs=1, verbose=0).history
        assert history["learning_rate"] == [pytest.approx(rate)]


@pytest.mark.slow
def test_changed_tensor_env_applies_to_the_next_episodes():
    """The change applies in `evaluate`, in `collect`, in `fit` and in `step`."""
    agent, world = learner(), envs.Bandit([1.0, 1.0, 1.0])
    stepped = world.as_gymnasium(1)

    def played():
        history = agent.fit(world, epochs=1, episodes_per_epoch=2, verbose=0).history
        evaluated = agent.evaluate(world, 2)["episode_return"]
        return [*history["episode_return"], evaluated, rewards_of(stepped)]

    assert played() == [1.0] * 3
    world.values[:] = [2.0] * 3  # in place
    assert played() == [2.0] * 3
    world.values = [3.0] * 3  # by another list
    assert agent.evaluate(world, 2)["episode_return"] == 3.0
    world.values = [float("nan")] * 3
    with pytest.raises(host_loop.EnvironmentFault, match="reward is not finite"):
        agent.collect(world, 2)


def rewards_of(stepped):
    stepped.reset(seed=0)
    return float(stepped.step(np.zeros(1, "int64"))[1][0])


# Layers with state outside of variables, and variables that are added later


class Real(toys.Clock):
    """A `Clock` whose reward is the action, a real number."""

    action_space = gym.spaces.Box(-100, 100, (1,), np.float32)

    def step(self, action):
        seen, _, *rest = super().step(0)
        return seen, float(action[0]), *rest


def agent_with_normalization(mean):
    """Returns an agent whose action is its observation, standardized by a layer."""
    layer = keras.layers.Normalization()
    layer.adapt(np.random.default_rng(0).normal(mean, 10, (1000, 1)).astype("float32"))
    dense = keras.layers.Dense(1, kernel_initializer="ones")
    nested = keras.Sequential([keras.Input((1,)), layer])
    agent = tfr.Reinforce(keras.Sequential([keras.Input((1,)), nested, dense]))
    agent.compile(keras.optimizers.SGD(0.0))
    return agent


def test_act_and_export_follow_a_nested_layer_that_adapts_again(tmp_path):
    agent = agent_with_normalization(0.0)
    agent.build_for_env(Real())
    seen = np.array([[3.0]], "float32")
    before = agent.act(seen, deterministic=True)
    agent.policy.layers[0].layers[0].adapt(np.array([[1.0], [2.0]], "float32"))
    after = agent.act(seen, deterministic=True)
    np.testing.assert_allclose(after, [[3.0]], rtol=1e-5)  # mean 1.5, deviation 0.5
    assert abs(before - after) > 1
    agent.export(tmp_path / "policy")
    exported = tf.saved_model.load(str(tmp_path / "policy"))
    np.testing.assert_array_equal(exported.act(seen)["action"], after)
