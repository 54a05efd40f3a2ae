"""Tests that training many seeds in one program equals separate runs."""

import contextlib
import functools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from toy_layers import Spelling
from toy_worlds import Lucky

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.engine import trainer
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.experiments import multi_seed as training_of_many

OPTIONS = {
    "everything": (
        envs.CartPole,
        dict(
            baseline={"kind": "value"},
            gae_lambda=0.9,
            normalize_observations=True,
            scale_rewards=True,
            minibatch_size=50,
            passes=2,
        ),
    ),
    "a deviation, groups": (
        envs.MountainCarContinuous,
        dict(
            baseline=tfr.baselines.LeaveOneOut(group_size=2), scale_advantages="running"
        ),
    ),
}


def maker(world, updates=1, **options):
    def make(seed):
        agent = tfr.Reinforce.for_env(world, hidden=(8,), seed=seed, **options)
        agent.compile(keras.optimizers.SGD(0.01), steps_per_execution=updates)
        return agent

    return make


def close(ours, theirs):
    for x, y in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def optimizer_state(agent):
    """Returns the optimizer variables of policy and value baseline."""
    baseline_optimizer = getattr(agent.baseline, "optimizer", None)
    return [*agent.optimizer.variables, *getattr(baseline_optimizer, "variables", [])]


@pytest.mark.parametrize("kind", sweeps.some(OPTIONS, always=["a deviation, groups"]))
def test_train_seeds_equals_separate_runs(kind, monkeypatch):
    """Only the gradient of many seeds is summed in blocks."""
    monkeypatch.setattr(trainer, "_SMALL_MICROBATCH", 50)
    make_world, options = OPTIONS[kind]
    world, seeds = make_world(), [3, 8]
    make = maker(world, 2, **options)
    limit = dict(episodes_per_epoch=4, max_episode_steps=60)
    population = tfr.train_seeds(make, world, seeds, epochs=2, **limit)
    assert population.seeds == seeds and population.failures == {}
    place, seed = 1, 8  # the graphs of the first agent are used for all
    alone = make(seed)
    history = alone.fit(world, epochs=2, seed=seed, verbose=0, **limit).history
    history.pop("steps_per_second")
    assert set(population.history) == set(history)
    for name, figures in history.items():
        mine = population.history[name][:, place]
        np.testing.assert_allclose(mine, figures, rtol=1e-4, atol=1e-5, err_msg=name)
    ours = population.agent(seed)
    close(ours, alone)
    for x, y in zip(optimizer_state(ours), optimizer_state(alone), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"one of \[3, 8\].*4"):
        population.agent(4)


@pytest.mark.slow
def test_train_seeds_keeps_a_learned_initial_state_per_seed():
    world = envs.CartPole()

    def make(seed):
        agent = tfr.Reinforce(toys.with_learned_start(4, 2, seed))
        agent.compile(keras.optimizers.SGD(0.1))
        agent.build_for_env(world)
        start = agent.policy.layers[0].cell.start
        start.assign(start * (3.0 * seed - 4.0))
        return agent

    budget = dict(epochs=3, episodes_per_epoch=3, max_episode_steps=20)
    population = tfr.train_seeds(make, world, [1, 2], **budget)
    alone = make(2)
    alone.fit(world, seed=2, verbose=0, **budget)
    close(population.agent(2), alone)


@pytest.mark.parametrize("compares", [False, sweeps.rare(True)])
def test_failed_seed_keeps_the_weights_of_its_last_update(compares):
    """Not the averages, because the next update begins with the weights."""
    world, seeds = Lucky(dtype="float64"), [3, 1, 9]

    def make(seed):
        agent = tfr.Reinforce.for_env(world, hidden=(), seed=seed)
        rate = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5)
        agent.compile(rate, steps_per_execution=3)
        return agent

    budget = dict(epochs=8, episodes_per_epoch=4)
    population = tfr.train_seeds(make, world, seeds, **budget)
    returns = population.history["episode_return"]
    assert np.isfinite(returns).sum(axis=0).tolist() == [8, 1, 5]
    assert population.env_steps == 4 * (8 + 1 + 5)
    assert population.failures == {1: 1, 9: 5}
    if not compares:
        return
    ends, alone = [], make(seeds[0])  # one agent, so that its program is compiled once
    rewind = toys.rewinding(alone, world)
    for seed in seeds:
        rewind(3)
        alone.policy.set_weights(make(seed).policy.get_weights())
        with contextlib.suppress(FloatingPointError):
            alone.fit(world, seed=seed, verbose=0, **budget)
        ends.append(alone.updates)
        close(population.agent(seed), alone)
    assert ends == [8, 1, 5]


@pytest.mark.slow
def test_train_seeds_supports_weight_averages_and_trained_agents(tmp_path):
    world = envs.Corridor(4)

    def fresh(seed):
        agent = tfr.Reinforce.for_env(world, hidden=(4,), seed=seed)
        rate = 0.05 / (1 + seed)  # rates may differ, because they are variables
        agent.compile(keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9))
        return agent

    trained = fresh(2)
    trained.fit(world, epochs=2, episodes_per_epoch=4, seed=9, verbose=0)
    trained.save(tmp_path / "trained.keras")

    def make(seed):
        return tfr.load(tmp_path / "trained.keras") if seed else fresh(seed)

    population = tfr.train_seeds(make, world, [0, 2], epochs=3, episodes_per_epoch=4)
    alone = make(2)
    alone.fit(world, epochs=3, episodes_per_epoch=4, seed=2, verbose=0)
    close(population.agent(2), alone)
    assert [population.agent(seed).updates for seed in (0, 2)] == [3, 5]


@pytest.fixture(params=["one_program", sweeps.rare("two_programs")])
def programs(request, monkeypatch):
    """Puts two seeds into one program, or each into its own."""
    if request.param == "two_programs":
        monkeypatch.setattr(training_of_many, "_MIN_SEEDS", 1)
        threads = "get_inter_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, threads, lambda: 2)


@pytest.mark.parametrize(
    "one, other, name",
    [
        (dict(gamma=1.0), dict(gamma=0.5), "gamma"),
        sweeps.rare(dict(entropy_coef=0.1), dict(), "entropy_coef"),
        (dict(baseline="mean"), dict(), "baseline"),
        (dict(hidden=(3,)), dict(hidden=(4,)), "weights"),
    ],
    ids=str,
)
def test_train_seeds_raises_if_agents_differ(one, other, name, programs):
    world = envs.Corridor(3)
    made = functools.partial(tfr.Reinforce.for_env, world)
    with pytest.raises(
        ValueError, match=f"only in their weights.*differ in {name}"
    ) as error:
        tfr.train_seeds(lambda seed: made(**(one, other)[seed]), world, [0, 1], epochs=1)
    if name == "gamma":
        assert "for the first seed: 1.0. Received: 0.5" in str(error.value)


def test_train_seeds_raises_on_invalid_arguments():
    world = envs.Corridor(3)
    make = maker(world)
    train = functools.partial(tfr.train_seeds, epochs=1)
    with pytest.raises(ValueError, match="a `TensorEnv`"):
        train(make, gym.make("CartPole-v1"), [1, 2])
    with pytest.raises(TypeError, match="make"):
        train(lambda seed: None, world, [1])
    linear = functools.partial(tfr.Reinforce.for_env, world)
    with pytest.raises(ValueError, match="keras.optimizers.schedules"):
        train(lambda seed: linear(learning_rate={"first": 1, "last": 0}), world, [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("programs", ["two_programs"], indirect=True)
def test_train_seeds_raises_if_two_agents_share_a_model(programs):
    world = envs.Corridor(3)
    model = tfr.Reinforce.for_env(world).policy

    def make(seed):
        agent = tfr.Reinforce(model)
        agent.compile("adam")
        return agent

    with pytest.raises(ValueError, match="new models.*share the variable.*kernel"):
        tfr.train_seeds(make, world, [1, 2], epochs=1)


def test_train_seeds_error_names_the_layer_that_cannot_be_stacked():
    world = envs.CartPole()

    def make(seed):
        layers = [keras.layers.Dense(8), Spelling(name="spelling"), keras.layers.Dense(2)]
        agent = tfr.Reinforce(keras.Sequential([keras.Input((4,)), *layers]))
        agent.compile("adam")
        return agent

    with pytest.raises(ValueError, match="spelling.*AsString` cannot be compiled"):
        tfr.train_seeds(make, world, [1, 2], epochs=1)


@pytest.mark.slow
def test_number_of_threads_does_not_change_the_history(monkeypatch):
    world, found = envs.Corridor(4), []
    monkeypatch.setattr(training_of_many, "_MIN_SEEDS", 2)
    # Threads divide the seeds. They never divide the episodes of a seed into shards.
    monkeypatch.setattr(xla_rollout, "_MIN_SHARD_EPISODES", 1)
    for threads in (1, 2):
        asked = "get_inter_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, asked, lambda threads=threads: threads)
        options = dict(epochs=4, episodes_per_epoch=4)
        found.append(tfr.train_seeds(maker(world, 2), world, range(5), **options))
        assert len(found[-1].programs) == threads
    alone, dealt = found
    np.testing.assert_equal(dealt.history, alone.history)
    assert dealt.seeds == alone.seeds == list(range(5))
    for seed in (1, 4):  # one seed of each thread
        close(dealt.agent(seed), alone.agent(seed))
    assert dealt.env_steps == alone.env_steps


@pytest.mark.slow
def test_seeds_without_a_valid_step_keep_their_weights():
    """All episodes are truncated and dropped, so weight averages are still zero."""
    world = envs.CartPole()

    def make(seed):
        agent = tfr.Reinforce.for_env(world, hidden=(2,), seed=seed, on_truncation="drop")
        agent.compile(keras.optimizers.SGD(0.1, use_ema=True))
        return agent

    budget = dict(epochs=1, episodes_per_epoch=2, max_episode_steps=2)
    population = tfr.train_seeds(make, world, [1, 2], **budget)
    agent, fresh = population.agent(2), make(2)
    for ours, theirs in zip(agent.policy_variables, fresh.policy_variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
