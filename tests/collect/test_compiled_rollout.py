"""The compiled engine plays and learns what its definition, step by step, says."""

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
from toy_worlds import Walk
from toys import rewinding

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.collect import batched_tensor_env
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.data import seeding
from tf_reinforce.envs import checks
from tf_reinforce.training import collector


def agent_for(env, steps_per_execution=1, learning_rate=1e-2, **kwargs):
    agent = tfr.Reinforce.for_env(env, hidden=(8,), seed=1, **kwargs)
    optimizer = keras.optimizers.Adam(learning_rate)
    agent.compile(optimizer, steps_per_execution=steps_per_execution)
    return agent


def weights(agent):
    return np.concatenate([np.ravel(x).astype("float64") for x in agent.get_weights()])


class Listener(tfr.callbacks.EpisodeCallback):
    def __init__(self):
        super().__init__()
        self.records, self.ended = [], []

    def on_episodes_collected(self, episodes, logs=None):
        self.records.append((episodes, logs))

    def on_episode_end(self, episode, logs=None):
        self.ended.append((episode, logs))


def recurrent(env):
    layers = [keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(2)]
    agent = tfr.Reinforce(keras.Sequential([keras.Input((None, 4)), *layers]))
    agent.compile(keras.optimizers.Adam(1e-2))
    return agent


@pytest.fixture
def cartpole():
    """An agent as new and its environment, and what makes it new again."""
    agent, env, rewind = traced()
    rewind()
    return agent, env, rewind


@functools.cache
def traced():
    """One for many tests: its programs are compiled once."""
    env = envs.CartPole()
    agent = agent_for(env)
    return agent, env, rewinding(agent, env)


WORLDS = {
    "a choice": (lambda: envs.CartPole(), agent_for),
    "a real action, a limit": (lambda: envs.Pendulum(), agent_for),
    "float64": (lambda: envs.Acrobot("float64"), agent_for),
    "chance in the world, nested spaces": (Walk, agent_for),
    "pixels": (lambda: envs.Catch(), agent_for),
    "whole numbers seen": (lambda: envs.Corridor(3), agent_for),
    "memory": (lambda: envs.CartPole(), recurrent),
    "a normalizer": (
        lambda: envs.MountainCarContinuous(),
        functools.partial(agent_for, normalize_observations=True),
    ),
}


SIBLINGS = "a choice", "chance in the world, nested spaces"


@pytest.mark.parametrize(
    "kind, group_size",
    sweeps.some(
        [*((kind, 1) for kind in WORLDS), *((kind, 2) for kind in SIBLINGS)],
        always=[("a choice", 1), ("a real action, a limit", 1), ("memory", 1)]
        + [("chance in the world, nested spaces", 2)],
    ),
)
def test_an_episode_is_what_its_definition_says(kind, group_size):
    """Each by itself, in eager mode, from the noise at its own address.

        sₜ₊₁ = transition(sₜ, aₜ, noise),   aₜ = sample(π(observation(sₜ)), noise)

    To the record's own states it is held step by step, so that chaos has no time.
    """
    make, build = WORLDS[kind]
    env = make()
    agent = build(env)
    limit = min(env.max_episode_steps or 30, 30)
    agent.build_for_env(env)
    world, actor = (
        batched_tensor_env.BatchedTensorEnv(env, limit),
        agent.trainer.collector.actor,
    )
    rollout = compiled_rollout.Rollout(world, actor, 4, group_size=group_size)
    keys = seeding.rollout_keys(5, "training", 7)[:3]
    episodes = compiled_rollout.validate_result(rollout, rollout(keys))
    for b in range(4):
        begin, memory = tf.constant([b // group_size]), actor.initial_state(1)
        noise = seeding.counter_noise(keys[0], [env.initial_noise], begin, 0, env.dtype)[
            0
        ]
        chances = noises(keys[1], env.transition_noise, begin[0], limit, env.dtype)
        draws = noises(keys[2], actor.noise_specs, b, limit, actor.dtype)
        state, step, over = env.initial(noise), 0, False
        while step < limit and not over:
            seen = env.observation(state)
            same(seen, episodes.observations, step, b)
            seen = keras.tree.map_structure(
                lambda leaf, x: tf.cast(x, leaf.dtype), actor.observation_spec, seen
            )
            outputs, _, memory = actor.outputs(seen, None, memory)
            raw = actor.select_actions(outputs, [draw[step, None] for draw in draws])
            same(raw, episodes.actions, step, b)
            chance = chances[0][step, None] if chances else None
            action = checks.cast_actions(env, actor.head.to_environment(raw))
            following = env.transition(state, action, chance)
            same(env.reward(state, action, following), episodes.rewards, step, b)
            over, state, step = bool(env.terminal(following)[0]), following, step + 1
        same(env.observation(state), episodes.observations, step, b)
        assert (episodes.lengths[b], episodes.terminated[b]) == (step, over)


def noises(key, parts, episode, steps, dtype):
    """The noise of all steps of one episode, each at its own address."""
    if parts is None:
        return []
    episodes, steps = tf.fill([steps], episode), tf.range(steps)
    return seeding.counter_noise(key, keras.tree.flatten(parts), episodes, steps, dtype)


def same(one, columns, step, b):
    def close(x, column):
        tolerance = 1e-5 if column.dtype.kind == "f" else 0
        given = column[step, b].astype("float64")
        np.testing.assert_allclose(given, x[0], rtol=tolerance, atol=20 * tolerance)

    keras.tree.map_structure(close, one, columns)


def test_an_episode_does_not_know_how_many_run_beside_it(cartpole):
    agent, env, _ = cartpole
    few, many = (agent.collect(env, count, seed=3) for count in (3, 40))
    rows = len(few.rewards)
    np.testing.assert_array_equal(few.lengths, many.lengths[:3])
    np.testing.assert_array_equal(few.actions, many.actions[:rows, :3])
    seen = many.observations[: rows + 1, :3]
    np.testing.assert_allclose(few.observations, seen, atol=1e-5)


@pytest.mark.parametrize("several", [[4], sweeps.rare([2, 4])], ids=["four", "each"])
def test_parts_of_a_batch_are_the_batch(several, monkeypatch):
    """Dealt to one, two or four threads; one's episodes stand after the other's."""
    env, found = envs.CartPole(), []
    for threads in (1, *several):
        threading = tf.config.threading
        told = dict(get_inter_op_parallelism_threads=lambda threads=threads: threads)
        for name, answer in told.items():
            monkeypatch.setattr(threading, name, answer)
        agent = agent_for(env, baseline=tfr.baselines.LeaveOneOut(group_size=2))
        found.append((agent, agent.collect(env, 64), agent.evaluate(env, episodes=64)))
        (rollout, _) = toys.rollouts(agent)
        assert rollout.num_shards == threads
        agent.fit(env, epochs=2, episodes_per_epoch=64, verbose=0)
    (one, record, figures), *others = found
    for agent, other, same_figures in others:
        np.testing.assert_array_equal(other.lengths, record.lengths)
        close = functools.partial(np.testing.assert_allclose, atol=1e-4)
        happened = np.arange(len(record.actions))[:, None] < record.lengths
        for ours, theirs in zip(other[:2], record[:2], strict=True):
            rows = slice(len(happened))
            close(ours[rows][happened], theirs[rows][happened])
        assert same_figures == figures
        np.testing.assert_allclose(weights(agent), weights(one), atol=1e-5)


def test_groups_of_siblings_begin_alike():
    env = envs.CartPole()
    agent = agent_for(env, baseline=tfr.baselines.LeaveOneOut(group_size=2))
    first = agent.collect(env, 6).observations[0]
    np.testing.assert_array_equal(first[::2], first[1::2])
    assert len(np.unique(first)) == 3 * 4
    agent.fit(env, epochs=1, episodes_per_epoch=4, verbose=0)
    with pytest.raises(ValueError, match="groups of 2 episodes"):
        agent.fit(env, epochs=2, episodes_per_epoch=5, verbose=0)


OPTIONS = {
    "plain": {},
    "everything": dict(
        baseline="value",
        gae_lambda=0.9,
        normalize_observations=True,
        scale_rewards=True,
        on_truncation="drop",
        minibatch_size=50,
        passes=2,
        entropy_coef=keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
    ),
}


@pytest.mark.parametrize("kind", sweeps.some(OPTIONS, always=["everything"]))
def test_how_many_updates_a_call_makes_changes_no_bit(kind):
    """Nor does a callback that hears of the episodes, and gets each update by itself."""
    env, found, histories = envs.CartPole(), [], []
    agent = agent_for(env, **OPTIONS[kind])
    rewind = rewinding(agent, env)
    for updates, listeners in ((1, []), (3, []), (1, [Listener()])):
        rewind(updates)
        history = agent.fit(
            env, epochs=4, episodes_per_epoch=6, callbacks=listeners, verbose=0
        ).history
        found.append(weights(agent))
        history.pop("steps_per_second")
        histories.append(history)
    for other, history in zip(found[1:], histories[1:], strict=True):
        np.testing.assert_array_equal(other, found[0])
        np.testing.assert_equal(history, histories[0])  # NaN is NaN


def test_the_engines_make_the_same_update_from_the_same_episodes(cartpole):
    compiled_, env, _ = cartpole
    host = agent_for(env)
    for _ in range(3):
        record = compiled_.collect(env, 4, seed=2)
        logs = host.update(record)
        epochs = compiled_.updates + 1
        history = compiled_.fit(
            env, epochs=epochs, initial_epoch=epochs - 1, episodes_per_epoch=4, seed=2,
            verbose=0,
        ).history  # fmt: skip
        np.testing.assert_allclose(weights(compiled_), weights(host), atol=1e-6)
        for name, figure in logs.items():
            np.testing.assert_allclose(history[name], [figure], rtol=1e-4, err_msg=name)
        host.set_weights(compiled_.get_weights())


def test_callbacks_hear_of_every_episode_and_every_update(cartpole):
    (agent, env, _), ears = cartpole, Listener()
    history = agent.fit(env, epochs=3, episodes_per_epoch=4, callbacks=[ears], verbose=0)
    assert [number for number, _ in ears.ended] == list(range(12))
    returns = [logs["episode_return"] for _, logs in ears.ended]
    for update, (episodes, logs) in enumerate(ears.records):
        mine = returns[4 * update : 4 * update + 4]
        assert mine == episodes.rewards.sum(0).tolist() == episodes.lengths.tolist()
        assert history.history["episode_return"][update] == np.mean(mine)
        assert logs["update"] == update and logs["stepping_seconds"] == 0
    assert history.history["env_steps"][-1] == agent.env_steps
    assert agent.env_steps == sum(logs["episode_length"] for _, logs in ears.ended)


def test_linear_rates_are_set_before_every_update():
    """They are a callback of ours: no bit depends on how many updates a call may make."""
    env, found = envs.CartPole(), []
    rates = {"first": 0.1, "last": 0.0}
    agent = agent_for(env, baseline={"kind": "value", "learning_rate": rates})
    rewind = rewinding(agent, env)
    for updates in (1, 3):
        rewind(updates)
        agent.fit(env, epochs=4, episodes_per_epoch=4, verbose=0)
        found.append(weights(agent))
    np.testing.assert_array_equal(*found)


def test_a_budget_of_steps_ends_at_the_same_update_whatever_a_call_makes(cartpole):
    (agent, env, rewind), ends = cartpole, []
    for updates in (1, 4):
        rewind(updates)
        agent.fit(env, steps=500, episodes_per_epoch=4, verbose=0)
        ends.append((agent.updates, agent.env_steps, weights(agent).tolist()))
    assert ends[0] == ends[1] and ends[0][1] >= 500


def test_a_call_ends_where_a_validation_is_due(cartpole):
    (agent, env, rewind), histories = cartpole, []
    for updates in (1, 4):
        rewind(updates)
        history = agent.fit(
            env, epochs=7, episodes_per_epoch=4, validation_env="CartPole-v1",
            validation_freq=3, validation_episodes=2, verbose=0,
        ).history  # fmt: skip
        histories.append(history["val_episode_return"])
    assert histories[0] == histories[1] and len(histories[0]) == 2


def test_a_run_is_compiled_once():
    env = envs.CartPole()
    agent = agent_for(env, steps_per_execution=3)
    for epochs in (1, 7, 9):
        agent.fit(
            env, epochs=epochs, initial_epoch=agent.updates, episodes_per_epoch=4,
            verbose=0,
        )  # fmt: skip
    agent.fit(env, steps=100, episodes_per_epoch=4, verbose=0)
    agent.fit(env, epochs=agent.updates + 2, episodes_per_epoch=64, verbose=0)
    for rollout in toys.rollouts(agent):
        assert rollout.graph.experimental_get_tracing_count() == 1
    assert toys.rollouts(agent)[0].num_shards == 1
    assert list(agent.trainer.learner._graphs) == ["train"]


def test_no_generator_of_tensorflow_draws_inside_the_program():
    env = Walk()
    agent = agent_for(env)
    agent.fit(env, epochs=1, episodes_per_epoch=2, verbose=0)
    (rollout,) = toys.rollouts(agent)
    graph = rollout.graph.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    names = {node.op for node in nodes}
    assert "While" in names or "StatelessWhile" in names
    assert not [name for name in names if "Random" in name or "Multinomial" in name]


def test_an_evaluation_changes_nothing_and_is_repeated():
    env = envs.Catch()
    agent = agent_for(env, normalize_observations=False)
    before = weights(agent)
    figures = agent.evaluate(env, episodes=20, seed=4)
    assert agent.evaluate(env, episodes=20, seed=4) == figures
    assert figures["episodes"] == 20 and figures["episode_length"] == 6
    np.testing.assert_array_equal(weights(agent), before)


def test_training_on_the_twin_solves_the_original():
    env = envs.CartPole()
    agent = tfr.Reinforce.for_env(env)
    agent.compile(keras.optimizers.Adam(1e-2), steps_per_execution=5)
    agent.fit(env, epochs=30, episodes_per_epoch=32, verbose=0)
    assert agent.evaluate("CartPole-v1", episodes=20)["episode_return"] > 400


def test_learning_stops_at_a_target_between_calls():
    env = envs.Bandit([0.0, 1.0])
    agent = agent_for(env, 4, learning_rate=0.3)
    stop = tfr.callbacks.StopAtReturn(0.9)
    options = dict(episodes_per_epoch=32, callbacks=[stop], verbose=0)
    history = agent.fit(env, epochs=400, **options)
    reached = np.argmax(np.array(history.history["episode_return"]) >= 0.9)
    made = len(history.epoch)
    assert made < 400 and made % 4 == 0 and reached >= made - 4


class Last(envs.Corridor):
    """A corridor whose last observation is `last`, which is none."""

    def __init__(self, last):
        super().__init__(3)
        self.last = last
        if last != 5:
            self.observation_space = gym.spaces.Box(0, 9, ())

    def observation(self, state):
        wrong = tf.constant(self.last, tf.float32 if self.last != 5 else tf.int64)
        return tf.where(self.terminal(state), wrong, tf.cast(state, wrong.dtype))


@functools.cache
def seeing_last(last):
    """An environment and its agent, which learns nothing."""
    env = Last(last)
    return env, agent_for(env)


@pytest.mark.parametrize("listening", [[], [Listener()]], ids=["alone", "heard"])
@pytest.mark.parametrize("last", [np.nan, 5])
def test_what_is_seen_last_is_looked_at_too(last, listening):
    """It never goes through the policy; a choice that is none would be all zeros."""
    env, agent = seeing_last(last)
    before = weights(agent)
    said = "not finite: nan" if last != 5 else r"not in Discrete\(3\): 5"
    with pytest.raises(tfr.collect.EnvironmentFault, match=f"observation is {said}"):
        agent.fit(env, epochs=1, callbacks=listening, verbose=0)
    with pytest.raises(tfr.collect.EnvironmentFault, match=f"observation is {said}"):
        agent.evaluate(env, deterministic=False)
    np.testing.assert_array_equal(weights(agent), before)


def test_actions_arrive_in_the_types_of_the_world():
    """The same from a policy in float32, in float64, and through `as_gymnasium`."""

    class Typed(envs.Corridor):
        action_space = gym.spaces.Dict(
            way=gym.spaces.Discrete(2, dtype=np.int32),
            push=gym.spaces.Box(-1, 1, (1,), np.float64),
            gear=gym.spaces.Box(0, 3, (), np.int16),
        )

        def transition(self, state, action, noise):
            assert action["way"].dtype == tf.int32 and action["gear"].dtype == tf.int16
            assert action["push"].dtype == self.dtype
            return super().transition(state, action["way"], noise)

        def reward(self, state, action, next_state):
            return -tf.ones_like(action["push"][:, 0])

    env = Typed()
    for dtype in ("float32", "float64"):
        seen = keras.Input((), dtype="int64")
        hidden = keras.layers.Embedding(6, 4, dtype=dtype)(seen)
        policy = keras.Model(seen, keras.layers.Dense(4, dtype=dtype)(hidden))
        agent = tfr.Reinforce(policy)
        agent.compile("adam")
        agent.fit(env, epochs=1, episodes_per_epoch=2, verbose=0)
    agent_for(env.as_gymnasium(2)).evaluate(env.as_gymnasium(2), episodes=2)


def test_a_world_may_hold_tensors_and_what_changes_in_a_variable():
    class Held(envs.Bandit):
        def __init__(self):
            super().__init__([0.0, 0.0])
            self.table = tf.constant([1.0, 1.0])
            self.factor = tf.Variable(1.0)

        def reward(self, state, action, next_state):
            return self.factor * tf.gather(self.table, action)

    env = Held()
    agent = agent_for(env)
    assert agent.evaluate(env, episodes=3)["episode_return"] == 1.0
    env.factor.assign(2.0)
    assert agent.evaluate(env, episodes=3)["episode_return"] == 2.0


def test_programs_are_kept_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(collector, "_PROGRAMS", 2)
    env = envs.Corridor(3)
    agent = agent_for(env)
    agent.fit(env, epochs=1, episodes_per_epoch=2, verbose=0)
    agent.collect(env, 2)
    (kept,) = toys.rollouts(agent)
    for count in (3, 4, 5):
        agent.evaluate(env, episodes=count)
    assert len(toys.rollouts(agent)) == 2
    assert kept not in toys.rollouts(agent)
    # A function that makes one is as good.
    agent.fit(lambda: envs.Corridor(3), epochs=2, initial_epoch=1, verbose=0)


class Faulty(envs.CartPole):
    """A CartPole in which something is not finite from step 3 on."""

    def __init__(self):
        super().__init__()
        self.lost = {part: tf.Variable(False) for part in ("observation", "reward")}

    def initial(self, noise):
        return {"pole": super().initial(noise), "clock": tf.zeros_like(noise[:, 0])}

    def observation(self, state):
        wrong = (state["clock"] > 3) & self.lost["observation"]
        return tf.where(wrong[:, None], np.nan, state["pole"])

    def transition(self, state, action, noise):
        pole = super().transition(state["pole"], action, noise)
        return {"pole": pole, "clock": state["clock"] + 1}

    def reward(self, state, action, next_state):
        wrong = (state["clock"] >= 3) & self.lost["reward"]
        return tf.where(wrong, np.nan, 1.0)

    def terminal(self, state):
        return super().terminal(state["pole"])


@pytest.fixture(scope="module")
def faulty():
    """One agent for both: it learns nothing."""
    env = Faulty()
    return env, agent_for(env)


@pytest.mark.parametrize("where", ["observation", "reward"])
def test_a_world_that_is_not_finite_is_named_and_nothing_is_learned(where, faulty):
    env, agent = faulty
    for part, lost in env.lost.items():
        lost.assign(part == where)
    before = weights(agent)
    for act in (agent.fit, agent.evaluate, agent.collect):
        budget = dict(epochs=1, verbose=0) if act == agent.fit else {}
        with pytest.raises(
            tfr.collect.EnvironmentFault, match=f"Episode 0, step 3: the {where} is not"
        ):
            act(env, **budget)
    np.testing.assert_array_equal(weights(agent), before)


def test_an_update_that_is_not_finite_ends_the_call_and_is_told_at_the_next():
    """The third update of a call of five meets rewards that overflow."""

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.where(tf.cast(step, tf.int32) < 2, 0.1, np.inf)

        def get_config(self):
            return {}

    env, ears = envs.CartPole(), Listener()
    healthy = agent_for(env, entropy_coef=0.1)
    healthy.fit(env, epochs=2, episodes_per_epoch=4, verbose=0)
    agent = agent_for(env, 5, entropy_coef=Schedule())
    epochs = []
    heard = keras.callbacks.LambdaCallback(on_epoch_end=lambda *x: epochs.append(x[0]))
    with pytest.raises(FloatingPointError, match="Update 2 would not be finite"):
        agent.fit(env, epochs=9, episodes_per_epoch=4, callbacks=[heard], verbose=0)
    assert epochs == [0, 1] and agent.updates == 2
    np.testing.assert_array_equal(weights(agent), weights(healthy))
    with pytest.raises(FloatingPointError, match="Update 2 would not be finite"):
        agent.fit(env, epochs=9, episodes_per_epoch=4, callbacks=[ears], verbose=0)
    np.testing.assert_array_equal(weights(agent), weights(healthy))


class Beyond(envs.Bandit):
    """One to four steps; one sees the root of how many are left."""

    max_episode_steps = 6

    def initial(self, noise):
        return tf.floor(4 * noise) + 1

    def observation(self, state):
        return tf.sqrt(state)[:, None]

    def transition(self, state, action, noise):
        return state - 1

    def terminal(self, state):
        return state <= 0


def test_what_comes_after_the_end_of_an_episode_does_no_harm():
    agent = tfr.Reinforce.for_env(Beyond(), hidden=())
    episodes = agent.collect(Beyond(), 12)
    assert sorted(set(episodes.lengths.tolist())) == [1, 2, 3, 4]
    for column, length in enumerate(episodes.lengths):
        seen = episodes.observations[: length + 1, column, 0]
        np.testing.assert_allclose(seen**2, np.arange(length, -1, -1), atol=1e-6)


def test_no_update_follows_in_a_call_where_one_was_not_finite():
    """Later episodes would do no harm: each update has its own."""
    ends, said = [], []
    for several in (1, 12):
        agent = tfr.Reinforce.for_env(Lucky(dtype="float64"), hidden=(), seed=1)
        agent.compile(keras.optimizers.SGD(0.5), steps_per_execution=several)
        with pytest.raises(FloatingPointError, match="would not be finite") as caught:
            agent.fit(
                Lucky(dtype="float64"), epochs=12, episodes_per_epoch=4, seed=7, verbose=0
            )
        said.append(str(caught.value))
        ends.append((agent.counters.numpy().tolist(), weights(agent)))
    assert said[0] == said[1] and ends[0][0] == [4, 16, 16]
    assert ends[0][0] == ends[1][0]
    np.testing.assert_array_equal(ends[0][1], ends[1][1])
    fresh = tfr.Reinforce.for_env(Lucky(dtype="float64"), hidden=(), seed=1)
    fresh.counters.assign([5, 0, 0])
    assert fresh.collect(Lucky(dtype="float64"), 4, seed=7).rewards.max() < 2


def test_a_policy_that_overflows_is_told(cartpole):
    """Finite weights whose outputs are not: nothing is learned, nothing returned."""
    agent, env, _ = cartpole
    huge = [np.full_like(weight, 3e38) for weight in agent.policy.get_weights()]
    agent.policy.set_weights(huge)
    for act in (agent.evaluate, agent.collect):
        with pytest.raises(FloatingPointError, match="outputs are not finite"):
            act(env, 3)
    with pytest.raises(FloatingPointError, match="outputs are not finite"):
        agent.fit(env, epochs=1, episodes_per_epoch=4, verbose=0)
    for ours, given in zip(agent.policy.get_weights(), huge, strict=True):
        np.testing.assert_array_equal(ours, given)


def test_a_policy_that_is_lost_is_told(cartpole):
    agent, env, _ = cartpole
    lost = [np.full_like(weight, np.nan) for weight in agent.policy.get_weights()]
    agent.policy.set_weights(lost)
    for act in (agent.evaluate, agent.collect):
        with pytest.raises(FloatingPointError, match="weights .* are not finite"):
            act(env)
    with pytest.raises(FloatingPointError, match="weights .* are not finite"):
        agent.fit(env, epochs=1, verbose=0)


def test_a_layer_that_cannot_be_compiled_is_named():
    layers = [keras.layers.Dense(8), Spelling(name="spelling"), keras.layers.Dense(2)]
    agent = tfr.Reinforce(keras.Sequential([keras.Input((4,)), *layers]))
    agent.compile("adam")
    with pytest.raises(ValueError, match="layer `spelling.*be compiled.*'AsString'"):
        agent.fit(envs.CartPole(), epochs=1, verbose=0)


class Endless(envs.Pendulum):
    max_episode_steps = None


def test_what_the_compiled_engine_cannot_do_is_said():
    env = envs.CartPole()
    agent = agent_for(env)
    with pytest.raises(ValueError, match="fixed number of episodes at once"):
        agent.collect(env, steps=100)
    with pytest.raises(ValueError, match="episodes_per_epoch"):
        agent.fit(env, epochs=1, steps_per_epoch=100, verbose=0)
    with pytest.raises(ValueError, match="env_kwargs"):
        agent.fit(env, epochs=1, env_kwargs={"g": 3}, verbose=0)
    other = agent_for(Endless())
    with pytest.raises(ValueError, match="states no time limit.*max_episode_steps"):
        other.fit(Endless(), epochs=1, verbose=0)
    assert len(other.collect(Endless(), 2, max_episode_steps=7).rewards) == 7
    group_size = agent_for(env, baseline=tfr.baselines.LeaveOneOut(group_size=2))
    with pytest.raises(ValueError, match="groups of 2 episodes"):
        group_size.fit(env, epochs=1, steps_per_epoch=100, verbose=0)
    with pytest.raises(ValueError, match="steps_per_execution.*at least 1"):
        agent.compile("adam", steps_per_execution=0)
    with pytest.raises(ValueError, match="space"):
        agent.fit(envs.Pendulum(), epochs=1, verbose=0)


class Marked(envs.Corridor):
    """A corridor that says which ways are open."""

    def __init__(self):
        super().__init__(4)
        self.observation_space = gym.spaces.Dict(
            cell=gym.spaces.Discrete(4), open=gym.spaces.MultiBinary(2)
        )

    def observation(self, state):
        open_ = tf.stack([state > 0, tf.ones_like(state, tf.bool)], axis=-1)
        return {"cell": state, "open": tf.cast(open_, tf.int8)}


def test_masks_are_for_the_host():
    env = Marked()
    with pytest.raises(ValueError, match="does not support masks.*as_gymnasium"):
        agent_for(env, action_mask="observation/open").collect(env, 2)
    agent = agent_for(env.as_gymnasium(2), action_mask="observation/open")
    agent.fit(env.as_gymnasium(2), epochs=1, episodes_per_epoch=2, verbose=0)


@pytest.mark.parametrize("what", ["rate", "best"])
def test_callbacks_that_work_on_the_agent_meet_every_update(what):
    """Many updates per call or one: each is made with what Keras set, and is kept."""
    env, found = envs.Corridor(4), []
    agent = agent_for(env)
    rewind = rewinding(agent, env)
    for updates in (1, 4):
        rewind(updates)
        rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.02 * (epoch % 2))
        best = keras.callbacks.EarlyStopping(
            "entropy", mode="max", patience=9, restore_best_weights=True
        )
        callback = {"rate": rate, "best": best}[what]
        options = dict(epochs=4, episodes_per_epoch=4, callbacks=[callback], verbose=0)
        agent.fit(env, **options)
        found.append(agent.policy.get_weights())
    for one, four in zip(*found, strict=True):
        np.testing.assert_array_equal(one, four)


def test_a_number_of_steps_is_reached_by_the_fewest_updates():
    """Also if a single step is left for the last one."""
    agent = tfr.Reinforce.for_env(envs.Bandit(), hidden=())
    agent.compile(keras.optimizers.SGD(0.1), steps_per_execution=2)
    agent.fit(envs.Bandit(), steps=9, episodes_per_epoch=4, verbose=0)
    assert agent.counters.numpy().tolist() == [3, 12, 12]


def test_a_call_makes_all_its_updates_however_long_they_are():
    """A callback hears of them afterwards, and can only end the training."""

    class Enough(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True

    agent = tfr.Reinforce.for_env(envs.CartPole(), hidden=())
    agent.compile(keras.optimizers.SGD(0.0), steps_per_execution=3)
    options = dict(episodes_per_epoch=16, callbacks=[Enough()], verbose=0)
    agent.fit(envs.CartPole(), epochs=9, **options)
    assert agent.updates == 3 and agent.counters.numpy()[2] > 500


def test_an_evaluation_takes_the_most_likely_actions_unless_told_otherwise():
    agent = tfr.Reinforce.for_env(envs.Bandit([0.0, 1.0]), hidden=())
    agent.policy.set_weights([np.zeros((1, 2)), np.array([0.0, 0.1])])
    world = envs.Bandit([0.0, 1.0])
    assert agent.evaluate(world, 64)["episode_return"] == 1.0
    assert agent.evaluate(world, 64, deterministic=False)["episode_return"] < 1.0


def test_each_evaluation_has_the_time_limit_of_its_call():
    world = envs.CartPole()
    agent = tfr.Reinforce.for_env(world, hidden=(2,))
    for limit in (3, 5, 3):
        length = agent.evaluate(world, 4, max_episode_steps=limit)["episode_length"]
        assert length == limit


def test_a_call_ends_where_one_of_several_validations_is_due():
    found = []
    for updates in (1, 4):
        world, seen = envs.Bandit(), []
        agent = tfr.Reinforce.for_env(world, hidden=())
        agent.compile(keras.optimizers.SGD(0.5), steps_per_execution=updates)

        class Hears(keras.callbacks.Callback):
            def on_test_begin(self, logs=None, seen=seen):
                seen.append(self.model.updates)

        options = dict(episodes_per_epoch=2, validation_freq=[2, 3], verbose=0)
        options |= dict(validation_env=world, validation_episodes=2, epochs=6)
        agent.fit(world, callbacks=[Hears()], **options)
        found.append(seen)
    assert found == [[2, 3], [2, 3]]


WORKING_ON_THE_AGENT = {
    "BackupAndRestore": lambda folder: dict(backup_dir=folder),
    "EarlyStopping": lambda _: dict(monitor="episode_return", patience=9),
    "LearningRateScheduler": lambda _: dict(schedule=lambda epoch: 0.1),
    "ModelCheckpoint": lambda folder: dict(filepath=folder / "agent.keras"),
    "ReduceLROnPlateau": lambda _: dict(monitor="episode_return", patience=9),
    "SwapEMAWeights": lambda _: dict(swap_on_epoch=True),
}


@pytest.mark.parametrize("name", WORKING_ON_THE_AGENT)
def test_every_callback_of_keras_that_works_on_the_agent_meets_every_update(
    name, tmp_path
):
    callback = getattr(keras.callbacks, name)(**WORKING_ON_THE_AGENT[name](tmp_path))
    seen = []

    class Hears(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(self.model.updates)

    world = envs.Bandit()
    agent = tfr.Reinforce.for_env(world, hidden=())
    rate = keras.optimizers.SGD(0.5, use_ema=True)
    agent.compile(rate, steps_per_execution=3)
    both = [callback, Hears()]
    agent.fit(world, epochs=3, episodes_per_epoch=2, callbacks=both, verbose=0)
    assert seen == [1, 2, 3]
