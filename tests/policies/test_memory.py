"""Tests that acting and learning read the same earlier steps, those of a loop in NumPy."""

import keras
import memory_agents
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toy_envs
import toys
from memory_agents import ALL
from memory_agents import KINDS
from memory_agents import model
from nested_arrays import assert_identical

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce.data import episodes as records
from tf_reinforce.policies import memory as memories

layers = keras.layers
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
def test_windows_of_steps_and_records_are_those_of_a_loop(size):
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
    states = runner.initial_state(3)
    for t in range(9):
        row = {name: tf.constant(x[t]) for name, x in record.items()}
        single, states = runner.step(row, states)
        for b in np.flatnonzero(lengths > t):
            (place,) = np.flatnonzero((steps.indices.numpy() == [t, b]).all(axis=1))
            for name, array in record.items():
                expected = np.zeros((size, np.prod(array.shape[2:], dtype=int) + 1))
                for age in range(min(size, t + 1)):
                    expected[-1 - age] = [*array[t - age, b].ravel(), 1.0]
                np.testing.assert_array_equal(found[name][place], expected)
                np.testing.assert_array_equal(single[name][b], expected)
    assert len(runner.state_spec) == (3 if size > 1 else 0)


# Acting and learning


@pytest.mark.parametrize("normalizes", [False, sweeps.rare(True)])
@pytest.mark.parametrize(
    "name", sweeps.some(KINDS, ["dense", "masked attention", "gru", "attention"])
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


@pytest.mark.parametrize(
    "name", sweeps.some(KINDS, ["dense", "masked attention", "attention"])
)
def test_episodes_do_not_depend_on_the_number_of_environments(name):
    agent = memory_agents.agent(name)
    one = agent.collect(toy_envs.Recall, 24, num_envs=1)
    for num_envs in (4, 16):
        assert_identical(one, agent.collect(toy_envs.Recall, 24, num_envs=num_envs))


@pytest.mark.parametrize(
    "name", sweeps.some(KINDS, ["dense"])
)
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
            assert_near(actions[0], episodes.actions[t, b])
            if "rewards" in agent.context_inputs:
                state["previous_reward"] = episodes.rewards[t, b][None].astype("float32")
