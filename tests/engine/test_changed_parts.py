"""Tests changes of parts after their programs were traced: they apply or raise."""

import dataclasses

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
from tf_reinforce.engine.collect import results
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


def test_changed_entropy_schedule_gives_the_next_coefficient():
    coefficient = schedule_from(0.0)
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)])
    agent = tfr.Reinforce(policy, entropy_coef=coefficient)
    agent.compile(keras.optimizers.SGD(0.0))
    record = agent.collect(envs.Bandit(), 4)
    plain = agent.update(record)["loss"]
    coefficient.initial_learning_rate = 100.0
    expected = float(agent.gradients(record)[2]["loss"])
    assert agent.update(record)["loss"] == pytest.approx(expected, rel=1e-5)
    assert expected < plain - 50


@dataclasses.dataclass
class Gain:
    factor: float
    parts: set


def test_changed_objects_in_a_tensor_env_apply_to_the_next_rollout():
    class Gained(envs.Bandit):
        def __init__(self):
            super().__init__([1.0, 1.0, 1.0])
            self.gain = Gain(1.0, {1.0})
            self.gain.owner = self  # a reference cycle

        def reward(self, state, action, next_state):
            factor = self.gain.factor * max(self.gain.parts)
            return factor * super().reward(state, action, next_state)

    agent, world = learner(), Gained()
    assert agent.evaluate(world, 2)["episode_return"] == 1.0
    world.gain.factor = 5.0
    assert agent.evaluate(world, 2)["episode_return"] == 5.0
    world.gain.parts.add(2.0)
    assert agent.evaluate(world, 2)["episode_return"] == 10.0
    assert agent.evaluate(world, 2)["episode_return"] == 10.0
    assert len(toys.rollouts(agent)) == 3


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
    for in_place in (True, False):
        if in_place:
            world.values[:] = [float("nan")] * 3
        else:
            world.values = [float("nan")] * 3
        with pytest.raises(results.EnvironmentFault, match="reward is not finite"):
            agent.collect(world, 2)
        world.values = [1.0] * 3


def rewards_of(stepped):
    stepped.reset(seed=0)
    return float(stepped.step(np.zeros(1, "int64"))[1][0])


def test_unchanged_tensor_env_is_not_traced_again():
    """Copies of arrays, tensors and NaN are equal.

    A variable is read by the traced program.
    """

    class Scaled(envs.Bandit):
        def __init__(self):
            super().__init__([1.0, 1.0, 1.0])
            self.table = np.array([1.0, np.nan])
            self.parts = {"unused": (float("nan"), tf.constant([3.0]))}
            self.scale = tf.Variable(1.0)

        def reward(self, state, action, next_state):
            return self.scale * super().reward(state, action, next_state)

    agent, world = learner(), Scaled()
    assert agent.evaluate(world, 2)["episode_return"] == 1.0
    world.scale.assign(3.0)
    world.table, world.parts = world.table.copy(), dict(world.parts)
    assert agent.evaluate(world, 2)["episode_return"] == 3.0
    assert len(toys.rollouts(agent)) == 1


def test_equal_tensor_envs_share_the_programs_of_an_agent():
    """TensorFlow frees no compiled program, so that each one stays in memory."""
    agent = learner()
    for _ in range(3):
        world = envs.Bandit([1.0, 2.0, 3.0])
        agent.fit(world, epochs=1, episodes_per_epoch=2, verbose=0)
        world.action_space.seed(0)  # the generator of a space is not a constant
    assert len(toys.rollouts(agent)) == 1


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


@pytest.mark.slow
def test_loaded_statistics_of_a_normalization_layer_apply_everywhere(tmp_path):
    """`load_weights` replaces constants of the layer that were traced."""
    first, other = agent_with_normalization(0.0), agent_with_normalization(50.0)
    seen = np.array([[3.0]], "float32")
    for agent in (first, other):
        agent.fit(Real, epochs=1, verbose=0)
        agent.evaluate(Real, 2)
        agent.act(seen, deterministic=True)
    first.save_weights(tmp_path / "first.weights.h5")
    other.load_weights(tmp_path / "first.weights.h5")
    np.testing.assert_array_equal(other(seen), first(seen))
    expected = first.act(seen, deterministic=True)
    np.testing.assert_array_equal(other.act(seen, deterministic=True), expected)
    assert other.evaluate(Real, 2) == first.evaluate(Real, 2)
    record = other.collect(Real, 6, seed=3)
    again = first.collect(Real, 6, seed=3)
    np.testing.assert_array_equal(record.actions, again.actions)
    loss = float(other.gradients(record)[2]["policy_loss"])
    assert other.update(record)["policy_loss"] == pytest.approx(loss, rel=1e-5)


def test_lora_variables_added_after_fit_are_trained_and_used():
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)]
    policy = keras.Sequential([keras.Input((1,)), *layers])
    agent = tfr.Reinforce(policy, baseline=None)
    agent.compile(keras.optimizers.SGD(0.1))
    agent.fit(toys.Clock, epochs=1, verbose=0)
    layers[0].enable_lora(2)
    agent.compile(keras.optimizers.SGD(0.1))
    agent.fit(toys.Clock, epochs=1, verbose=0)
    assert np.abs(layers[0].lora_kernel_b).max() > 0
    layers[0].lora_kernel_b.assign(np.full((2, 4), 5.0))
    seen = np.linspace(-2, 2, 9, dtype="float32")[:, None]
    greedy = np.argmax(agent(seen), axis=-1)
    np.testing.assert_array_equal(agent.act(seen, deterministic=True), greedy)
    record = agent.collect(toys.Clock, 400, seed=1)
    for step in range(3):
        chance = float(tf.nn.softmax(agent(record.observations[step, :1]))[0, 1])
        error = np.sqrt(chance * (1 - chance) / 400)
        assert abs(record.actions[step].mean() - chance) < 6 * error


@pytest.mark.parametrize("part", ["policy", "critic"])
def test_train_seeds_raises_if_layers_adapted_to_different_data(part):
    world = envs.Bandit([0.0, 1.0])

    def make(seed):
        layer = keras.layers.Normalization()
        layer.adapt(np.random.default_rng(seed).normal(size=(9, 1)).astype("float32"))
        inner = {"policy": [], "critic": [], part: [layer]}
        policy, critic = (
            keras.Sequential([keras.Input((1,)), *inner[name], keras.layers.Dense(size)])
            for name, size in {"policy": 2, "critic": 1}.items()
        )
        agent = tfr.Reinforce(policy, baseline=baselines.Value(critic))
        agent.compile("adam")
        return agent

    with pytest.raises(
        ValueError, match="only in their weights.*differ in statistics of `adapt`"
    ):
        tfr.train_seeds(make, world, [0, 1], epochs=1)
