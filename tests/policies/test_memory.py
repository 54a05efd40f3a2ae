"""Tests that acting and learning read the same earlier steps: those of a NumPy loop."""

import itertools
import json

import gymnasium as gym
import keras
import memory_agents
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toy_envs
import toy_worlds
import toys
from memory_agents import ALL
from memory_agents import KINDS
from memory_agents import model
from nested_arrays import assert_identical

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.engine import trainer
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.export import formats
from tf_reinforce.policies import memory as memories
from tf_reinforce.testing import export_report

layers, tree = keras.layers, keras.tree
WINDOWED = [name for name, options in KINDS.items() if options.get("context")]


def play(agent, num_envs=4, episodes=20, env=toy_envs.Recall, **options):
    """Returns episodes whose actions are the policy's outputs."""
    with tfr.collect.open_envs(env, num_envs, **options) as envs:
        request = toys.request(episodes, stream="evaluation", deterministic=True)
        return agent.trainer.play(envs, request).episodes


def tensors(episodes):
    return keras.tree.map_structure(
        lambda x: x if x is None else tf.constant(x), episodes
    )


def every_row(agent, episodes):
    """Returns the outputs of the estimator at each step, and after the last."""
    episodes = tensors(episodes)
    steps = records.valid_steps(episodes.lengths + 1, len(episodes.observations))
    outputs, _ = agent.trainer.estimator.outputs_at(steps, episodes, steps)
    return steps.scatter(outputs[:, 0]).numpy()


def assert_near(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


# Windows


class Window(layers.Layer):
    """Returns windows and their mask as they are, so a test can read them."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x, mask=None):
        x = keras.ops.reshape(x, (-1, x.shape[1], int(np.prod(x.shape[2:]))))
        mask = x[:, :, 0] if mask is None else keras.ops.cast(mask, x.dtype)
        return keras.ops.concatenate([x, keras.ops.expand_dims(mask, -1)], axis=-1)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 12])
def test_windows_of_steps_and_records_are_those_of_a_loop(size, monkeypatch):
    """The padding of the record is NaN, and row T is what a bootstrap reads."""
    spec = {"a": tf.TensorSpec((2, 3)), "b": tf.TensorSpec(())}
    inputs = {name: keras.Input((size, *x.shape), name=name) for name, x in spec.items()}
    runner = memories.WindowedModel(
        keras.Model(inputs, {name: Window()(x) for name, x in inputs.items()}), spec, size
    )
    rng, lengths = np.random.default_rng(0), np.array([9, 1, 4], "int32")
    record = {k: rng.normal(size=(9, 3, *x.shape)).astype("f") for k, x in spec.items()}
    padding = np.arange(9)[:, None] >= lengths
    padded = {name: np.array(x) for name, x in record.items()}
    for array in padded.values():
        array[padding] = np.nan
    steps = records.valid_steps(lengths, 9)
    found = runner.outputs_at(keras.tree.map_structure(tf.constant, padded), steps, steps)
    monkeypatch.setattr(memories, "_BLOCK", 5 * size)
    blocks = runner.outputs_in_blocks(padded, steps)
    assert all(len(x) == lengths.sum() for x in blocks.values())
    states = runner.initial_state(3)
    for t in range(9):
        row = {name: tf.constant(x[t]) for name, x in record.items()}
        single, states = runner.step(row, states)
        for b in np.flatnonzero(lengths > t):
            (place,) = np.flatnonzero((steps.indices.numpy() == [t, b]).all(axis=1))
            for name, array in record.items():
                np.testing.assert_array_equal(blocks[name][place], found[name][place])
                expected = np.zeros((size, np.prod(array.shape[2:], dtype=int) + 1))
                for age in range(min(size, t + 1)):
                    expected[-1 - age] = [*array[t - age, b].ravel(), 1.0]
                np.testing.assert_array_equal(found[name][place], expected)
                np.testing.assert_array_equal(single[name][b], expected)
    assert len(runner.state_spec) == (3 if size > 1 else 0)


# Acting and learning


@pytest.mark.parametrize(
    "name, normalizes",
    sweeps.some(
        itertools.product(KINDS, [False, True]),
        always=[("dense", True), ("attention", False)],
    ),
)
def test_each_action_and_output_is_that_of_the_history_of_its_episode(name, normalizes):
    """Actions are the outputs, so a state of another episode would change them."""
    agent = memory_agents.agent(name, normalize_observations=normalizes)
    episodes = play(agent)
    rows = every_row(agent, episodes)
    assert len(set(episodes.lengths)) > 5
    for b, length in enumerate(episodes.lengths):
        expected = memory_agents.outputs(agent, episodes, b)[:, 0]
        assert_near(episodes.actions[:length, b, 0], expected[:length])
        assert_near(rows[: length + 1, b], expected)


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["dense"]))
def test_episodes_do_not_depend_on_the_number_of_environments(name):
    agent = memory_agents.agent(name)
    one = agent.collect(toy_envs.Recall, 24, num_envs=1)
    for num_envs in (4, 16):
        assert_identical(one, agent.collect(toy_envs.Recall, 24, num_envs=num_envs))


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["dense"]))
def test_episodes_do_not_depend_on_the_number_of_workers(name):
    agent = memory_agents.agent(name)
    one = agent.collect(toy_envs.Recall, 24, num_envs=1)
    options = {"num_envs": 4, "workers": 2}
    assert_identical(one, agent.collect(toy_envs.Recall, 24, **options))


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["dense", "attention"]))
def test_act_with_the_state_repeats_the_actions(name):
    """The caller stores the reward, all else is in the state."""
    agent = memory_agents.agent(name)
    episodes = play(agent)
    for b in range(4):
        state = None
        for t in range(episodes.lengths[b]):
            row = episodes.observations[t, b][None]
            actions, state = agent.act(row, deterministic=True, state=state)
            assert_near(actions[0], np.clip(episodes.actions[t, b], -0.1, 0.1))
            if "rewards" in agent.context_inputs:
                state["previous_reward"] = episodes.rewards[t, b][None].astype("float32")


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["dense"]))
def test_compiled_episodes_read_the_history_of_their_episode(name):
    env = toy_worlds.Echo()
    agent = memory_agents.agent(name, lambda: env)
    world = xla_rollout.BatchedTensorEnv(env, env.max_episode_steps)
    rollout = xla_rollout.Rollout(world, agent.trainer.actor, 8, deterministic=True)
    keys = seeding.rollout_keys(5, "training", 7)[:3]
    episodes = xla_rollout.check_result(rollout, rollout(keys))
    assert len(set(episodes.lengths)) > 3
    for b, length in enumerate(episodes.lengths):
        expected = memory_agents.outputs(agent, episodes, b)[:length, 0]
        assert_near(episodes.actions[:length, b, 0], expected)


class Failing(toy_envs.Recall):
    """One of five rewards is NaN, so another episode replaces this one."""

    def step(self, action):
        observation, reward, *answer = super().step(action)
        if self.np_random.random() < 0.2:
            reward = np.nan
        return observation, reward, *answer


@pytest.mark.parametrize("name", sweeps.some(["dense", "attention"], ["dense"]))
def test_episode_that_replaces_another_begins_without_a_history(name):
    agent = memory_agents.agent(name)
    with pytest.warns(UserWarning, match="was dropped"):
        episodes = play(agent, env=Failing, episodes=12, on_bad_env="drop_episode")
    for b, length in enumerate(episodes.lengths):
        expected = memory_agents.outputs(agent, episodes, b)[:length, 0]
        assert_near(episodes.actions[:length, b, 0], expected)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_vector_env_with_any_autoreset_begins_without_a_history(mode):
    agent = memory_agents.agent("dense")
    env = gym.vector.SyncVectorEnv([toy_envs.Recall] * 3, autoreset_mode=mode)
    episodes = play(agent, env=env, num_envs=8)
    for b, length in enumerate(episodes.lengths):
        expected = memory_agents.outputs(agent, episodes, b)[:length, 0]
        assert_near(episodes.actions[:length, b, 0], expected)


@pytest.mark.parametrize(
    "name, format",
    sweeps.some(
        itertools.product(KINDS, ["tf_saved_model", "litert", "onnx"]),
        always=[("dense", "litert")],
    ),
)
def test_exports_repeat_whole_episodes_with_the_state_as_input(name, format, tmp_path):
    agent = memory_agents.agent(name)
    episodes = play(agent)
    agent.export(tmp_path / "policy", format=format)
    assert export_report.check_export(agent, tmp_path / "policy", observations=60).passed
    functions = formats.load(tmp_path / "policy")
    # The metadata say where an episode begins, and which arguments are states.
    metadata = json.loads((tmp_path / "policy" / "policy.json").read_text())
    specs = {x.name: x.dtype.as_numpy_dtype for x in agent.trainer.actor.state_spec}
    starts = metadata["initial_state"]
    inputs = metadata["functions"]["act"]["inputs"]
    assert {x["name"] for x in inputs if x["role"] == "state"} == starts.keys()
    state = {k: np.stack([starts[k]] * 4).astype(x) for k, x in specs.items()}
    prefix = "" if format == "tf_saved_model" else "next_"
    returned = starts.keys() - {"previous_reward"}  # only the caller knows it
    for t in range(min(episodes.lengths[:4])):
        inputs = {"observation": episodes.observations[t, :4], **state}
        results = functions["act"](inputs)
        assert_near(results["action"], np.clip(episodes.actions[t, :4], -0.1, 0.1))
        assert "previous_reward" not in results
        state = {name: results[prefix + name] for name in returned}
        if "previous_reward" in starts:
            state["previous_reward"] = episodes.rewards[t, :4].astype("float32")


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["dense"]))
def test_training_continues_to_the_bit_after_saving(name, tmp_path):
    """A saved agent has the same window and inputs."""
    agent = memory_agents.agent(name, passes=2, minibatch_size=9)
    options = dict(episodes_per_epoch=6, num_envs=4, verbose=0, seed=3)
    agent.fit(toy_envs.Recall, epochs=1, **options)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.context == agent.context
    assert loaded.context_inputs == agent.context_inputs
    for each in (agent, loaded):
        each.fit(toy_envs.Recall, epochs=2, initial_epoch=1, **options)
    pairs = zip(agent.policy_variables, loaded.policy_variables, strict=True)
    for one, other in pairs:  # Keras draws another seed for the dropout of a GRU
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", sweeps.some(KINDS, ["attention"]))
def test_interrupted_run_continues_to_the_bit(name, tmp_path):
    """No episode, and so no history, continues after a checkpoint."""

    def weights_after(folder, *epochs):
        for last in epochs:
            keras.utils.set_random_seed(0)
            agent = memory_agents.agent(name)
            options = dict(episodes_per_epoch=6, num_envs=4, verbose=0, seed=3)
            agent.fit(toy_envs.Recall, epochs=last, resume=tmp_path / folder, **options)
        return agent.policy_variables

    whole, in_parts = weights_after("whole", 3), weights_after("parts", 1, 3)
    for one, other in zip(whole, in_parts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_likelihood_ratios_are_one_before_the_first_gradient_step():
    """The log-probabilities of a record are those of the outputs that chose actions."""
    agent = memory_agents.agent("dense", passes=1, minibatch_size=10_000)
    episodes = agent.collect(toy_envs.Recall, 12)
    assert agent.update(episodes)["effective_sample_size"] == pytest.approx(1, abs=1e-6)


class Pair(toy_envs.Recall):
    """An action of two parts, of which the second begins at five."""

    action_space = gym.spaces.Dict(
        force=toy_envs.Recall.action_space, side=gym.spaces.Discrete(3, start=5)
    )

    def step(self, action):
        return super().step(action["force"])


def test_policy_reads_all_parts_of_the_raw_action_before():
    inputs = {
        "observations": keras.Input((2, 2), name="observations"),
        "actions": {
            "force": keras.Input((2, 1), name="force"),
            "side": keras.Input((2,), name="side", dtype="int32"),
        },
        "rewards": keras.Input((2,), name="rewards"),
    }
    parts = [layers.Flatten()(keras.ops.cast(x, "float32")) for x in tree.flatten(inputs)]
    policy = keras.Model(inputs, layers.Dense(4)(layers.Concatenate()(parts)))
    agent = tfr.Reinforce(policy, context=2, context_inputs=ALL)
    agent.build_for_spaces(Pair.observation_space, Pair.action_space)
    episodes = play(agent, env=Pair)
    sides = np.arange(3, dtype="int32")
    for b in range(4):
        window = tree.map_structure(
            lambda x: np.zeros((1, *x.shape[1:]), x.dtype), inputs
        )
        for t in range(episodes.lengths[b]):
            for x, new in (
                (window["observations"], episodes.observations[t, b]),
                (window["actions"]["force"], episodes.actions["force"][t - 1, b]),
                (window["actions"]["side"], episodes.actions["side"][t - 1, b]),
                (window["rewards"], episodes.rewards[t - 1, b]),
            ):
                x[:, 0] = x[:, 1]
                x[:, 1] = new if t or x is window["observations"] else 0
            outputs = policy(window)[0].numpy()
            assert_near(episodes.actions["force"][t, b], outputs[:1])
            assert episodes.actions["side"][t, b] == sides[outputs[1:].argmax()]


def test_log_prob_returns_the_given_action_as_the_next_previous_one():
    agent = memory_agents.agent("dense")
    functions = agent.trainer.live_policy().functions
    action = tf.constant([[0.3], [-0.7]])
    states = agent.trainer.actor.named_states(agent.trainer.actor.initial_state(2))
    results = functions["log_prob"](tf.ones([2, 2]), action, states)
    np.testing.assert_array_equal(results["previous_action"], action)
    assert set(results) == {"log_prob", *states} - {"previous_reward"}


def test_compiled_minibatches_of_windows_equal_others():
    weights = []
    for jit_compile in (True, False):
        keras.utils.set_random_seed(0)
        agent = memory_agents.agent("dense", passes=2, minibatch_size=9)
        agent.compile(keras.optimizers.SGD(0.01), jit_compile=jit_compile)
        agent.update(agent.collect(toy_envs.Recall, 8))
        weights.append(agent.policy_variables)
    for one, other in zip(*weights, strict=True):
        assert_near(one, other)


# Updates

OPTIONS = {
    "gamma": [1.0, 0.9],
    "gae_lambda": [1.0, 0.7, 0.0],
    "on_truncation": ["bootstrap", "terminal", "drop"],
    "minibatch_size": [None, 4, 7],
    "passes": [1, 2, 3],
    "ratio_clip": [2.0, (0.2, 0.2)],
    "max_kl": [None, 1e-2],
    "entropy_coef": [0.0, 0.3],
    "normalize_observations": [False, True],
    "action_mask": [None, "info/mask"],
}
MODELS = [("dense", 3), ("attention", 4), ("conv", 2), ("dense", 1), ("gru", 6)]
MODELS += [("gru", None), ("attention", None)]
RATE, CRITIC_RATE = 1 / 512, 1 / 512


def random_agent(seed):
    """Returns a built float64 agent with a memory, and the shape of its observations."""
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    options = {name: x[rng.integers(len(x))] for name, x in OPTIONS.items()}
    kind, context = MODELS[seed % len(MODELS)]
    count = int(rng.integers(4))
    names = [ALL[:1], ALL[:2], ALL, (ALL[0], ALL[2])][count]
    shapes = [memory_agents.VECTOR, memory_agents.NESTED][rng.integers(2)]
    kept = dict(names=names, context=context, observations=shapes, dtype="float64")
    kept["is_discrete"] = True
    baseline, sizes = None, 3
    if options["gae_lambda"] < 1 or rng.random() < 0.5:
        if rng.random() < 0.3:
            baseline, sizes = baselines.Value(), {"outputs": 3, "values": 1}
        else:
            kinds = ["gru", "attention"] if context is None else ["dense", "conv", "gru"]
            critic = model(kinds[rng.integers(len(kinds))], **kept)
            rate = keras.optimizers.SGD(CRITIC_RATE)
            size, passes = [None, 5][rng.integers(2)], int(rng.integers(1, 3))
            baseline = baselines.Value(critic, rate, passes=passes, minibatch_size=size)
    policy = model(kind, sizes=sizes, **kept)
    head = tfr.heads.Categorical(3, dtype="float64")
    options |= {"context": context, "context_inputs": names}
    agent = tfr.Reinforce(policy, head, baseline, **options)
    agent.compile(keras.optimizers.SGD(RATE))
    is_nested = isinstance(shapes, dict)
    nested = shapes if is_nested else {"all": shapes}
    own = {name: (None, *x) for name, x in nested.items()}
    agent.build(own if is_nested else own["all"])
    agent.optimizer.build(agent.policy_variables)
    return agent, shapes


def random_record(agent, shapes, seed):
    """Returns episodes of 1 to 6 steps, with NaN in the padding."""
    rng, rows, count = np.random.default_rng(seed), 6, 4
    lengths = rng.integers(1, rows + 1, count).astype("int32")
    padding = np.arange(rows + 1)[:, None] > lengths

    def numbers(shape):
        array = rng.normal(size=(rows + 1, count, *shape))
        array[padding] = np.nan
        return array

    masks, actions = None, rng.integers(3, size=(rows, count)).astype("int32")
    if agent.action_mask:
        masks = np.ones((rows, count, 3), "int8")
        illegal = (actions + rng.integers(1, 3, size=(rows, count))) % 3
        np.put_along_axis(masks, illegal[..., None], 0, axis=2)
    rewards = rng.normal(size=(rows, count))
    rewards[padding[1:]] = np.nan
    terminated = rng.random(count) < 0.6
    terminated[0] = True  # an update learns from at least one episode
    is_nested = isinstance(shapes, dict)
    observations = {k: numbers(x) for k, x in shapes.items()} if is_nested else None
    return tfr.Episodes(
        observations if is_nested else numbers(shapes),
        actions,
        rewards,
        lengths,
        terminated,
        masks,
    )


def assert_equal(actual, expected):
    size = max((np.max(np.abs(x)) for x in expected), default=1.0) + 1.0
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12 * size)


@pytest.mark.parametrize("seed", sweeps.some(range(70), always=[9, 18, 20]))
def test_gradient_and_updates_equal_a_loop_over_episodes_and_steps(seed):
    """The value models have memories, and minibatches consist of parts of episodes."""
    agent, shapes = random_agent(seed)
    truth = memory_agents.Oracle(random_agent(seed)[0].trainer.estimator)
    for number in range(2):
        episodes = random_record(agent, shapes, [seed, number])
        gradients, critic, _ = agent.gradients(episodes)
        expected, expected_critic = truth.gradients(episodes)
        assert_equal(gradients, expected)
        assert_equal(critic, expected_critic)
        checked = agent.trainer.check_episodes(episodes)
        permutations = agent.trainer.permutations(checked, seed=seed)
        step = agent.trainer.train_step()
        assert step(keras.tree.map_structure(tf.constant, checked), permutations)[0] == 1
        truth.update(episodes, permutations.numpy(), RATE, CRITIC_RATE)
        assert_equal(agent.policy_variables, truth.variables())
        if truth.critic is not None:
            assert_equal(agent.baseline.model.weights, truth.critic.weights)


@pytest.mark.parametrize("kind", ["gru", "attention"])
def test_gradient_step_reads_no_other_episodes_and_no_later_steps(kind):
    """NaN in what is not read has no effect; a weight of zero would not hide it."""
    critic = model(kind, names=ALL)
    agent = memory_agents.agent(kind, baseline=baselines.Value(critic, "sgd"))
    rule, episodes = agent.trainer.estimator, play(agent)
    batch = rule.batch(tensors(episodes))
    longest = np.argsort(-episodes.lengths)[:2]
    steps = [[1, longest[0]], [0, longest[1]]]
    assert np.all(episodes.lengths[longest] > 2)
    table = batch.steps.indices.numpy().tolist()
    indices = tf.constant([table.index(step) for step in steps])
    read = np.zeros(episodes.rewards.shape, bool)
    read[:2, longest] = True
    read = np.pad(read, [(0, 1), (0, 0)])[..., None]
    hidden = tf.where(read, batch.episodes.observations, np.nan)
    results = []
    for observations in (batch.episodes.observations, hidden):
        seen = batch._replace(episodes=batch.episodes._replace(observations=observations))
        gradients, _ = rule.policy_gradients(seen, indices)
        part = rule.baseline_step(seen).baseline_batch.minibatch(indices)
        results.append([*gradients, *rule.baseline.gradients(part)[1]])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(np.any(x) for x in results[0])


@pytest.mark.parametrize("name", ["dense", *map(sweeps.rare, ["gru", "attention"])])
def test_update_without_learned_steps_changes_no_weight(name):
    agent = memory_agents.agent(name, on_truncation="drop")
    episodes = play(agent)
    before = [w.numpy() for w in agent.policy_variables]
    agent.update(episodes._replace(terminated=np.zeros(len(episodes.lengths), bool)))
    for one, other in zip(before, agent.policy_variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradient_of_windows_in_microbatches_is_that_of_all_steps(monkeypatch):
    """A microbatch has fewer steps the longer the windows are."""
    agent = memory_agents.agent("dense")
    episodes = agent.trainer.check_episodes(play(agent))
    estimator, steps = agent.trainer.estimator, int(episodes.lengths.sum())
    batch = estimator.batch(tensors(episodes))
    expected, _ = estimator.policy_gradients(batch)
    assert agent.trainer.train_step(num_steps=steps).microbatch_size is None
    monkeypatch.setattr(trainer, "_MICROBATCH", 41)
    step = agent.trainer.train_step(num_steps=steps)
    assert step.microbatch_size == 41 // 3
    received, _ = step.gradients_by_microbatches(batch)
    for one, other in zip(received, expected, strict=True):
        assert_near(one, other)
    recurrent = memory_agents.agent("gru").trainer.train_step(num_steps=steps)
    assert recurrent.microbatch_size is None


# Errors


def built(policy, **options):
    agent = tfr.Reinforce(policy, **options)
    agent.build_for_spaces(
        toy_envs.Recall.observation_space, toy_envs.Recall.action_space
    )
    return agent


def sequence(*parts):
    return keras.Sequential([keras.Input((None, 2)), *parts, layers.Dense(1)])


def attended(causal, after=lambda x: x):
    x = keras.Input((None, 2))
    y = after(x)
    y = layers.MultiHeadAttention(1, 2)(y, y, use_causal_mask=causal)
    return keras.Model(x, layers.Dense(1)(y))


def attention():
    return tfr.layers.CausalSelfAttention(1, 2, window=2)


def gru(x):
    return layers.GRU(3, return_sequences=True)(x)


PAIR = ALL[:2]


def rounded():
    specs = zip(PAIR, (2, 1), ("float32", "int32"))
    inputs = {name: keras.Input((None, n), name=name, dtype=x) for name, n, x in specs}
    x = layers.Concatenate()(list(inputs.values()))
    return keras.Model(inputs, layers.Dense(1)(gru(x)))


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.memory, self.last = attention(), layers.Dense(1)

    def call(self, inputs):
        return self.last(self.memory(inputs))


WRONG = {
    **{
        f"context={value}": (
            lambda value=value: built(model("dense", context=3), context=value),
            rf"`context` must be a whole number.*Received: context={value}",
        )
        for value in (0, -1, True, 2.5)
    },
    **{
        f"inputs={value}": (
            lambda value=value: built(
                model("dense", context=3), context=3, context_inputs=value
            ),
            "`context_inputs` must be .*, in this order. Received: context_inputs=",
        )
        for value in (("actions",), PAIR[:1] * 2, PAIR[::-1], (*PAIR, "time"), "actions")
    },
    "another window": (
        lambda: built(model("dense", context=3), context=4),
        r"windows of 4 .*\(None, 4, 2\).*Received: .*\(None, 3, 2\).*keras.Input\(\(4, 2",
    ),
    "one input of two": (
        lambda: built(model("dense", context=3), context=3, context_inputs=PAIR),
        r"shapes \{'observations': .*\(None, 3, 1\)\}.*a dict .* for each name",
    ),
    "sequences instead of windows": (
        lambda: built(sequence(layers.GRU(3, return_sequences=True)), context=4),
        r"outputs have the shape \(2, 4, 1\).*return_sequences=False",
    ),
    "inputs that are not asked for": (
        lambda: built(model("gru", names=PAIR)),
        r"`context_inputs` for a model that reads actions or rewards",
    ),
    "integer input of real actions": (
        lambda: built(rounded(), context_inputs=PAIR),
        "input 'actions' of .* would round its numbers",
    ),
    "value model of another kind": (
        lambda: built(
            sequence(attention()),
            baseline=tfr.baselines.Value(model("dense", context=3), "sgd"),
        ),
        "The value model has a time axis, but no layer that remembers steps",
    ),
    "inputs without a memory": (
        lambda: built(keras.Sequential([layers.Dense(1)]), context_inputs=PAIR),
        "With `context_inputs`, .* need recurrent layers or .*, or windows",
    ),
    "attention over all steps": (
        lambda: built(attended(False)),
        r"CausalSelfAttention, or pass `context=K` .* of shape \[\(None, None, 2\)\]$",
    ),
    "causal attention without a cache": (
        lambda: built(attended(True)),
        "CausalSelfAttention, or pass `context=K` for windows of K steps",
    ),
    "attention after a memory": (
        lambda: built(attended(False, gru)),
        "mixes time steps.*For attention over time, use tfr.layers.CausalSelfAttention",
    ),
    "causal attention after a memory": (
        lambda: built(attended(True, gru)),
        "mixes time steps.*For attention over time, use tfr.layers.CausalSelfAttention",
    ),
    "masking": (
        lambda: built(sequence(layers.Masking(), attention())),
        "receives a mask. Remove `Masking`",
    ),
    "subclass": (lambda: built(Subclass()), "expected ndim=3, found ndim=2"),
    "subclass inside": (
        lambda: built(sequence(layers.Dense(2), Subclass())),
        "inside the policy is a subclass.*Build it as a Functional or Sequential model",
    ),
    **{
        f"memory={value}": (
            lambda value=value: tfr.Reinforce.for_env(toy_envs.Recall, memory=value),
            rf"`memory` must be one of .*Received: memory={value!r}",
        )
        for value in (0, -2, True, 1.5, "lstm")
    },
    "memory and context": (
        lambda: tfr.Reinforce.for_env(toy_envs.Recall, memory="gru", context=3),
        "`memory` of a default policy is one number.*Received: memory='gru', context=3",
    ),
    **{
        f"default policy, context={value}": (
            lambda value=value: tfr.Reinforce.for_env(toy_envs.Recall, context=value),
            "`context` must be a whole number.*Received: context=",
        )
        for value in (0, True, 2.5, [3])
    },
    "inputs of a default policy": (
        lambda: tfr.Reinforce.for_env(toy_envs.Recall, context_inputs=PAIR),
        "reads observations only.*Pass a policy of your own",
    ),
    "memory without a layer": (
        lambda: tfr.Reinforce.for_env(toy_envs.Recall, memory="gru", hidden=()),
        r"needs at least one hidden layer.*Received: hidden=\(\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_memory_raises_an_error_with_a_remedy(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make()


def test_window_longer_than_the_time_limit_raises_before_the_agent_is_built():
    policy = keras.Sequential([keras.Input((30, 3)), layers.Flatten(), layers.Dense(1)])
    agent = tfr.Reinforce(policy, context=30)
    agent.compile()
    with pytest.raises(ValueError, match="at most the time limit of 20.*context=30"):
        agent.fit("Pendulum-v1", max_episode_steps=20, epochs=1, verbose=0)
    assert agent.head is None and not agent.built
    with pytest.raises(ValueError, match="at most the time limit of 29.*context=30"):
        agent.fit(lambda: gym.wrappers.TimeLimit(toys.Clock(), 29), epochs=1, verbose=0)
    agent.fit("Pendulum-v1", max_episode_steps=30, epochs=1, verbose=0)


@pytest.mark.parametrize("kind", ["missing", "rows", "list", "reward"])
def test_act_raises_if_the_state_is_not_that_of_the_call_before(kind):
    agent, rows = memory_agents.agent("dense"), np.zeros((2, 2), "float32")
    _, state = agent.act(rows)
    with pytest.raises(ValueError, match=r'set state\["previous_reward"\] .* 2 numbers'):
        agent.act(rows, state=state)
    state["previous_reward"] = np.zeros(2, "float32")
    wrong = {
        "missing": {k: x for k, x in state.items() if k != "state_0"},
        "rows": {k: x[:1] for k, x in state.items()},
        "list": list(state.values()),
        "reward": {**state, "previous_reward": 0.5},
    }
    with pytest.raises(ValueError, match="`state` must be .* with one row "):
        agent.act(rows, state=wrong[kind])


def test_one_of_several_episodes_can_begin_anew():
    """The rows of a state belong to different episodes."""
    agent = memory_agents.agent("attention")
    rows = np.random.default_rng(0).normal(size=(3, 2, 2)).astype("float32")
    alone, _ = agent.act(rows[2, 1:], deterministic=True)
    state = None
    for t, row in enumerate(rows):
        if t == 2:
            for array in state.values():
                array[1] = 0
        actions, state = agent.act(row, deterministic=True, state=state)
        state["previous_reward"] = np.ones(2, "float32")
    assert_near(actions[1:], alone)


def test_value_network_for_a_policy_of_sequences_learns_from_whole_batches():
    """A small minibatch takes as long as its longest episode."""
    agent = tfr.Reinforce.for_env("CartPole-v1", memory="gru", baseline="value")
    assert any(isinstance(x, layers.GRU) for x in agent.baseline.model.layers)
    parts = agent, agent.baseline
    assert [(x.minibatch_size, x.passes) for x in parts] == [(None, 4), (None, 4)]
    agent = tfr.Reinforce.for_env("CartPole-v1", memory="gru", baseline="value", passes=2)
    assert (agent.passes, agent.ratio_clip) == (2, (0.2, 0.2))


def test_default_attention_normalizes_observations_and_learns_slowly():
    """Its layer normalization loses the size of small observations."""
    agent = tfr.Reinforce.for_env("CartPole-v1", memory="attention")
    rate = float(agent.optimizer.learning_rate.numpy())
    assert agent.normalize_observations and rate == pytest.approx(3e-3)
    assert not tfr.Reinforce.for_env("Taxi-v4", memory="attention").normalize_observations


def test_default_attention_is_that_of_its_description():
    """Its seed determines it, and twelve units have heads of an even size."""
    options = dict(hidden=(12,), memory="attention")
    pair = [tfr.Reinforce.for_env(toy_envs.Recall, seed=4, **options) for _ in range(2)]
    for one, other in zip(*(x.policy_variables for x in pair), strict=True):
        np.testing.assert_array_equal(one, other)
    dense, norm, attention, add, last_norm, last, units = pair[0].policy.layers[1:]
    x = np.random.default_rng(0).normal(size=(2, 5, 2)).astype("float32")
    assert dense.bias.numpy().std() > 0.3
    features = dense(x)
    mixed = last_norm(features + attention(norm(features)))
    assert_near(pair[0](x), units(last(mixed)))
    assert add.input[0] is dense.output
    limited = tfr.Reinforce.for_env("CartPole-v1", memory="attention").policy
    [window] = [x.window for x in limited.layers if hasattr(x, "window")]
    assert window == 256  # of a time limit of 500
