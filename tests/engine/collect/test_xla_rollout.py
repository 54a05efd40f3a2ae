"""Tests the compiled engine against a definition that runs one step at a time."""

import functools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from toy_worlds import Gates
from toy_worlds import Walk
from toys import rewinding

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.envs import checks


def agent_for(env, steps_per_execution=1, learning_rate=1e-2, **kwargs):
    agent = tfr.Reinforce.for_env(env, hidden=(8,), seed=1, **kwargs)
    optimizer = keras.optimizers.SGD(learning_rate, momentum=0.9)
    agent.compile(optimizer, steps_per_execution=steps_per_execution)
    return agent


def fit(agent, env, epochs=1, episodes_per_epoch=4, **options):
    return agent.fit(
        env, epochs=epochs, episodes_per_epoch=episodes_per_epoch, verbose=0, **options
    ).history


def weights(agent):
    return np.concatenate([np.ravel(x).astype("float64") for x in agent.get_weights()])


class RecordingCallback(tfr.callbacks.EpisodeCallback):
    def __init__(self):
        super().__init__()
        self.records, self.ended = [], []

    def on_episodes_collected(self, episodes, logs=None):
        self.records.append((episodes, logs))

    def on_episode_end(self, episode, logs=None):
        self.ended.append((episode, logs))


def recurrent_agent(env):
    layers = [keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(2)]
    agent = tfr.Reinforce(keras.Sequential([keras.Input((None, 4)), *layers]))
    agent.compile(keras.optimizers.SGD(1e-2))
    return agent


@pytest.fixture
def cartpole():
    """Returns a fresh agent, its environment, and a function that restores the agent."""
    agent, env, rewind = cached_cartpole_agent()
    rewind()
    return agent, env, rewind


@functools.cache
def cached_cartpole_agent():
    """Returns an agent that many tests share, so that its programs are compiled once."""
    env = envs.CartPole()
    agent = agent_for(env)
    return agent, env, rewinding(agent, env)


WORLDS = {
    "discrete actions": (lambda: envs.CartPole(), agent_for),
    "real actions, time limit": (lambda: envs.Pendulum(), agent_for),
    "float64": (lambda: envs.Acrobot("float64"), agent_for),
    "random transitions, nested spaces": (Walk, agent_for),
    "pixels": (lambda: envs.Catch(), agent_for),
    "integer observations": (lambda: envs.Corridor(3), agent_for),
    "recurrent policy": (lambda: envs.CartPole(), recurrent_agent),
    "action masks": (
        Gates,
        functools.partial(agent_for, action_mask="info/action_mask"),
    ),
    "observation normalizer": (
        lambda: envs.MountainCarContinuous(),
        functools.partial(agent_for, normalize_observations=True),
    ),
}


GROUPED = "discrete actions", "random transitions, nested spaces"


@pytest.mark.parametrize(
    "kind, group_size",
    sweeps.some(
        [*((kind, 1) for kind in WORLDS), *((kind, 2) for kind in GROUPED)],
        always=[("random transitions, nested spaces", 2)],
    ),
)
def test_compiled_episodes_equal_an_eager_step_by_step_definition(kind, group_size):
    """Each episode runs alone in eager mode, with the noise of its episode and step.

        sₜ₊₁ = transition(sₜ, aₜ, noise),   aₜ = sample(π(observation(sₜ)), noise)

    The comparison is made at every step, before rounding errors can grow. The program
    contains no random operations of TensorFlow.
    """
    make, build = WORLDS[kind]
    env = make()
    agent = build(env)
    limit = min(env.max_episode_steps or 30, 30)
    agent.build_for_env(env)
    world, actor = xla_rollout.BatchedTensorEnv(env, limit), agent.trainer.actor
    rollout = xla_rollout.Rollout(world, actor, 4, group_size=group_size)
    keys = seeding.rollout_keys(5, "training", 7)[:3]
    episodes = xla_rollout.check_result(rollout, rollout(keys))
    graph = rollout.program.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    names = {node.op for node in nodes}
    assert "While" in names or "StatelessWhile" in names
    assert not [name for name in names if "Random" in name or "Multinomial" in name]
    for b in range(4):
        group, policy_state = tf.constant([b // group_size]), actor.initial_state(1)
        draw = tensor_noise.counter_noise
        (noise,) = draw(keys[0], [env.initial_noise], group, 0, env.dtype)
        arguments = env.transition_noise, group[0], limit, env.dtype
        transition_noise = noises(keys[1], *arguments)
        draws = noises(keys[2], actor.noise_specs, b, limit, actor.dtype)
        state, step, terminated = env.initial(noise), 0, False
        while step < limit and not terminated:
            observation = env.observation(state)
            same(observation, episodes.observations, step, b)
            observation = keras.tree.map_structure(
                lambda x, leaf: tf.cast(x, leaf.dtype),
                observation,
                actor.observation_spec,
            )
            mask = mask_of(actor, env, state)
            if mask is not None:
                same(mask, episodes.masks, step, b)
            _, outputs, policy_state = actor.outputs(observation, mask, policy_state)
            raw = actor.select_actions(outputs, [draw[step, None] for draw in draws])
            same(raw, episodes.actions, step, b)
            step_noise = transition_noise[0][step, None] if transition_noise else None
            action = checks.cast_actions(env, actor.head.to_environment(raw))
            next_state = env.transition(state, action, step_noise)
            same(env.reward(state, action, next_state), episodes.rewards, step, b)
            terminated = bool(env.terminal(next_state)[0])
            state, step = next_state, step + 1
        same(env.observation(state), episodes.observations, step, b)
        assert (episodes.lengths[b], episodes.terminated[b]) == (step, terminated)


def mask_of(actor, env, state):
    """Returns the flat mask `[1, M]` of one state as the host engine flattens it."""
    if actor.mask_source is None:
        return None
    mask = keras.tree.map_structure(
        lambda x: None if x is None else x[0].numpy(), env.action_mask(state)
    )
    return actor.head.flatten_mask(mask)[None]


def noises(key, parts, episode, steps, dtype):
    """Returns the noise of all steps of one episode."""
    if parts is None:
        return []
    parts, episodes = keras.tree.flatten(parts), tf.fill([steps], episode)
    return tensor_noise.counter_noise(key, parts, episodes, tf.range(steps), dtype)


def same(one, columns, step, b):
    def close(x, column):
        tolerance = 1e-5 if column.dtype.kind == "f" else 0
        given = column[step, b].astype("float64")
        np.testing.assert_allclose(given, x[0], rtol=tolerance, atol=20 * tolerance)

    keras.tree.map_structure(close, one, columns)


@pytest.mark.slow
@pytest.mark.parametrize("several", [[4], sweeps.rare([2, 4])], ids=["four", "each"])
def test_rollout_in_parallel_shards_equals_rollout_in_one_shard(several, monkeypatch):
    """The shards run in one, two or four threads, and their episodes are concatenated
    in order.
    """
    env, runs = envs.CartPole(), []
    for threads in (1, *several):
        threading = tf.config.threading
        settings = dict(get_inter_op_parallelism_threads=lambda threads=threads: threads)
        for name, getter in settings.items():
            monkeypatch.setattr(threading, name, getter)
        agent = agent_for(env, baseline=tfr.baselines.LeaveOneOut(group_size=2))
        runs.append((agent, agent.collect(env, 64), agent.evaluate(env, episodes=64)))
        (rollout, _) = toys.rollouts(agent)
        assert rollout.num_shards == threads
        fit(agent, env, 2, 64)
    (first_agent, record, metrics), *others = runs
    for agent, other, other_metrics in others:
        np.testing.assert_array_equal(other.lengths, record.lengths)
        close = functools.partial(np.testing.assert_allclose, atol=1e-4)
        is_step = np.arange(len(record.actions))[:, None] < record.lengths
        for ours, theirs in zip(other[:2], record[:2], strict=True):
            rows = slice(len(is_step))
            close(ours[rows][is_step], theirs[rows][is_step])
        assert other_metrics == metrics
        np.testing.assert_allclose(weights(agent), weights(first_agent), atol=1e-5)


OPTIONS = {
    "plain": {},
    "everything": dict(
        baseline={"kind": "value"},
        gae_lambda=0.9,
        normalize_observations=True,
        scale_rewards=True,
        on_truncation="drop",
        minibatch_size=50,
        passes=3,
        max_kl=1e-4,
        entropy_coef=keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    ),
}


@pytest.mark.parametrize("kind", sweeps.some(OPTIONS, always=["everything"]))
def test_training_does_not_depend_on_steps_per_execution(kind):
    """A callback with `on_episodes_collected` limits a call to one update, with equal
    results.
    """
    env, final_weights, histories = envs.CartPole(), [], []
    agent = agent_for(env, **OPTIONS[kind])
    rewind = rewinding(agent, env)
    for updates, callbacks in ((3, []), (1, [RecordingCallback()])):
        rewind(updates)
        history = fit(agent, env, 4, 6, callbacks=callbacks)
        final_weights.append(weights(agent))
        history.pop("steps_per_second")
        histories.append(history)
    np.testing.assert_array_equal(*final_weights)
    np.testing.assert_equal(*histories)  # NaN is NaN
    if "max_kl" in OPTIONS[kind]:  # some updates end before the third pass
        assert any(steps % 3 for steps in histories[0]["gradient_steps"])


def test_compiled_and_host_updates_of_the_same_episodes_are_equal(cartpole):
    compiled, env, _ = cartpole
    host = agent_for(env)
    for _ in range(3):
        record = compiled.collect(env, 4, seed=2)
        logs = host.update(record)
        epochs = compiled.updates + 1
        history = fit(compiled, env, epochs, initial_epoch=epochs - 1, seed=2)
        np.testing.assert_allclose(weights(compiled), weights(host), atol=1e-6)
        for name, metric in logs.items():
            np.testing.assert_allclose(history[name], [metric], rtol=1e-4, err_msg=name)
        host.set_weights(compiled.get_weights())


def test_callbacks_are_notified_of_every_episode_and_every_update(cartpole):
    (agent, env, _), callback = cartpole, RecordingCallback()
    history = fit(agent, env, 3, callbacks=[callback])
    assert [number for number, _ in callback.ended] == list(range(12))
    returns = [logs["episode_return"] for _, logs in callback.ended]
    for update, (episodes, logs) in enumerate(callback.records):
        expected = returns[4 * update : 4 * update + 4]
        assert episodes.rewards.sum(0).tolist() == episodes.lengths.tolist() == expected
        assert history["episode_return"][update] == np.mean(expected)
        assert logs == {"update": update}
    assert history["env_steps"][-1] == agent.env_steps
    assert agent.env_steps == sum(logs["episode_length"] for _, logs in callback.ended)


LINEAR = {"first": 0.03, "last": 0.001}, {"first": 0.1, "last": 0.0}


@pytest.fixture(scope="module")
def linear():
    """Returns an agent with two linear learning rates, its environment, and `rewind`."""
    env, value = envs.CartPole(), {"kind": "value", "learning_rate": LINEAR[1]}
    options = dict(learning_rate=LINEAR[0], baseline=value, hidden=(8,))
    agent = tfr.Reinforce.for_env(env, steps_per_execution=2, **options)
    assert agent.steps_per_execution == 2
    return agent, env, rewinding(agent, env)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"epochs": 8}, {"steps": 600}], ids=str)
def test_linear_learning_rates_do_not_depend_on_steps_per_execution(linear, budget):
    """One update per call: a callback sets the rates. More updates: the program does."""
    (agent, env, rewind), results = linear, []
    optimizers = agent.optimizer, agent.baseline.optimizer
    for updates in (1, 3):
        rewind(updates)
        history = fit(agent, env, **{"epochs": None, **budget})
        last = [float(optimizer.learning_rate) for optimizer in optimizers]
        counts = agent.updates, agent.env_steps
        results.append((weights(agent).tolist(), history["learning_rate"], last, counts))
    assert results[0] == results[1] and len(set(results[0][1])) == agent.updates > 4


def test_callback_sets_the_learning_rate_of_the_first_update_of_a_program(linear):
    agent, env, rewind = linear
    rewind(2)
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: setattr(agent.optimizer, "learning_rate", 0.5)
    )
    history = fit(agent, env, 4, callbacks=[begin])
    first, last = LINEAR[0].values()
    rates = [0.5, first + (last - first) / 4, 0.5, first + (last - first) * 3 / 4]
    np.testing.assert_array_equal(history["learning_rate"], np.float32(rates))


def test_budget_of_steps_ends_at_same_update_for_any_steps_per_execution(cartpole):
    """Also if the steps of the second update of a call spend the budget exactly."""
    (agent, env, rewind), ends = cartpole, []
    for updates in (1, 4):
        rewind(updates)
        history = fit(agent, env, None, steps=500)
        ends.append((agent.updates, agent.env_steps, weights(agent).tolist()))
        rewind(updates)
        exact = int(history["env_steps"][1])
        fit(agent, env, None, steps=exact)
        assert (agent.updates, agent.env_steps) == (2, exact)
    assert ends[0] == ends[1] and ends[0][1] >= 500


class RecordsUpdates(keras.callbacks.Callback):
    """Records how many updates the agent has made at validations and ends of epochs."""

    def __init__(self):
        super().__init__()
        self.validations, self.epochs = [], []

    def on_test_begin(self, logs=None):
        self.validations.append(self.model.updates)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.model.updates)


@pytest.mark.parametrize(
    "first, epochs, freq, expected",
    [(0, 7, 3, [3, 6]), (1, 5, 2, [1, 3]), (0, 5, [3, 4], [3, 4])],
)
def test_validation_runs_at_same_updates_for_any_steps_per_execution(
    cartpole, first, epochs, freq, expected
):
    (agent, env, rewind), histories = cartpole, []
    options = dict(
        initial_epoch=first, validation_env="CartPole-v1", validation_freq=freq
    )
    for updates in (1, 2):  # a call of two updates ends at a validation
        rewind(updates)
        record = RecordsUpdates()
        options |= dict(callbacks=[record], validation_episodes=2)
        histories.append(fit(agent, env, epochs, **options)["val_episode_return"])
        assert record.validations == expected
    assert histories[0] == histories[1] and len(histories[0]) == 2


class Last(envs.Corridor):
    """A corridor whose final observation is `last`, which is invalid."""

    def __init__(self, last):
        super().__init__(3)
        self.last = last
        if last != 5:
            self.observation_space = gym.spaces.Box(0, 9, ())

    def observation(self, state):
        wrong = tf.constant(self.last, tf.float32 if self.last != 5 else tf.int64)
        return tf.where(self.terminal(state), wrong, tf.cast(state, wrong.dtype))


class Lost(envs.Bandit):
    """A bandit whose reward is NaN."""

    def reward(self, state, action, next_state):
        return np.nan * super().reward(state, action, next_state)


@pytest.mark.parametrize(
    "env, message",
    [
        sweeps.rare(Last(np.nan), "observation is not finite. Received: nan"),
        sweeps.rare(Last(5), r"observation is not in Discrete\(3\). Received: 5"),
        (Lost(), "^Episode 0, step 0: the reward is not finite"),
    ],
    ids=["nan", "outside", "reward"],
)
def test_invalid_values_raise_and_weights_are_unchanged(env, message):
    """The policy never receives the final observation of `Last`."""
    agent = agent_for(env)
    agent.build_for_env(env)
    before = weights(agent)
    for call in (
        lambda: fit(agent, env),
        lambda: fit(agent, env, callbacks=[RecordingCallback()]),
        lambda: agent.evaluate(env, 4, deterministic=False),
        lambda: agent.collect(env, 4),
    ):
        with pytest.raises(tfr.collect.EnvironmentFault, match=message):
            call()
    np.testing.assert_array_equal(weights(agent), before)


def test_last_observation_is_checked_as_well():
    env = Last(np.nan)
    with pytest.raises(tfr.collect.EnvironmentFault, match="observation is not finite"):
        agent_for(env).collect(env, 4)


def test_nonfinite_update_is_not_applied_and_raises_with_its_number():
    """A call makes five updates. The third update has an infinite entropy coefficient."""

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.where(tf.cast(step, tf.int32) < 2, 0.1, np.inf)

        def get_config(self):
            return {}

    env, failed, record = envs.CartPole(), [], RecordsUpdates()
    agent = agent_for(env, entropy_coef=Schedule())
    rewind = rewinding(agent, env)
    fit(agent, env, 2)
    healthy = weights(agent)
    rewind(5)
    for callback in (record, RecordingCallback()):
        with pytest.raises(FloatingPointError, match="Update 2 would not be") as error:
            fit(agent, env, 9, callbacks=[callback])
        np.testing.assert_array_equal(weights(agent), healthy)
        failed.append(error.value.episodes)
    assert record.epochs[-1] == agent.updates == 2
    for one, other in zip(*failed, strict=True):
        np.testing.assert_array_equal(one, other)
    assert failed[0].rewards.shape[1] == 4


def test_overflowing_policy_outputs_raise_and_weights_are_unchanged(cartpole):
    """The weights are finite, but the outputs are not. The methods return no result."""
    agent, env, _ = cartpole
    huge = [np.full_like(weight, 3e38) for weight in agent.policy.get_weights()]
    agent.policy.set_weights(huge)
    for method in (agent.evaluate, agent.collect):
        with pytest.raises(FloatingPointError, match="outputs are not finite"):
            method(env, 3)
    with pytest.raises(FloatingPointError, match="not finite.*`action_mask`"):
        fit(agent, env)
    for weight, huge_weight in zip(agent.policy.get_weights(), huge, strict=True):
        np.testing.assert_array_equal(weight, huge_weight)


class Endless(envs.Pendulum):
    max_episode_steps = None


def grouped(env):
    return agent_for(env, baseline=tfr.baselines.LeaveOneOut(group_size=2))


@pytest.mark.parametrize(
    "make, env, options, message",
    [
        (agent_for, envs.CartPole(), {"steps_per_epoch": 100}, "fixed number.*episodes_"),
        (agent_for, envs.CartPole(), {"env_kwargs": {"g": 3}}, "env_kwargs"),
        (agent_for, Endless(), {}, "states no time limit.*max_episode_steps"),
        (grouped, envs.CartPole(), {"steps_per_epoch": 100}, "groups of 2 episodes"),
        (grouped, envs.CartPole(), {"episodes_per_epoch": 5}, "groups of 2 episodes"),
    ],
)
def test_unsupported_options_of_compiled_engine_raise(make, env, options, message):
    with pytest.raises(ValueError, match=message):
        make(env).fit(env, epochs=1, verbose=0, **options)


def test_compiled_evaluation_is_deterministic_by_default_and_keeps_the_weights():
    agent = tfr.Reinforce.for_env(envs.Bandit([0.0, 1.0]), hidden=())
    agent.policy.set_weights([np.zeros((1, 2)), np.array([0.0, 0.1])])
    env = envs.Bandit([0.0, 1.0])
    before = weights(agent)
    assert agent.evaluate(env, 64)["episode_return"] == 1.0
    drawn, again = (agent.evaluate(env, 64, False, 4) for _ in range(2))
    assert drawn == again and drawn["episode_return"] < 1.0
    assert (drawn["episodes"], drawn["episode_length"]) == (64, 1)
    np.testing.assert_array_equal(weights(agent), before)


def test_evaluation_uses_the_time_limit_of_its_call_in_every_environment():
    env, name = envs.CartPole(), "CartPole-v1"
    agent = tfr.Reinforce.for_env(env, hidden=(2,))
    worlds = [name, gym.spec(name), gym.make(name), lambda: gym.make(name), lambda: env]
    for limit, world in [(3, env), (5, env), *((3, world) for world in worlds)]:
        length = agent.evaluate(world, 4, max_episode_steps=limit)["episode_length"]
        assert length == limit


CALLBACKS_THAT_CHANGE_THE_AGENT = {
    "LearningRateScheduler": lambda _: dict(schedule=lambda epoch: 0.02 * (epoch % 2)),
    "ModelCheckpoint": lambda folder: dict(filepath=folder / "agent.keras"),
    "SwapEMAWeights": lambda _: dict(swap_on_epoch=True),
}


@functools.cache
def averaging_agent():
    """Returns one agent for all callbacks, so that its program is compiled once."""
    env = envs.Bandit()
    agent = tfr.Reinforce.for_env(env, hidden=())
    agent.compile(keras.optimizers.SGD(0.5, use_ema=True))
    return agent, env, rewinding(agent, env)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLBACKS_THAT_CHANGE_THE_AGENT)
def test_keras_callback_limits_each_call_to_one_update(name, tmp_path):
    (agent, env, rewind), final_weights = averaging_agent(), []
    for updates in (1, 3):
        rewind(updates)
        options = CALLBACKS_THAT_CHANGE_THE_AGENT[name](tmp_path / str(updates))
        callback, record = getattr(keras.callbacks, name)(**options), RecordsUpdates()
        fit(agent, env, 3, 2, callbacks=[callback, record])
        assert record.epochs == [1, 2, 3]
        final_weights.append(agent.policy.get_weights())
    for one, three in zip(*final_weights, strict=True):
        np.testing.assert_array_equal(one, three)
