"""Tests what pictures of policies contain, and how distributions are described."""

import itertools
import math

import gymnasium as gym
import keras
import matplotlib.collections
import matplotlib.colors
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toy_heads
import toys
from gymnasium.spaces import Box
from gymnasium.spaces import Dict
from gymnasium.spaces import Discrete
from gymnasium.spaces import MultiBinary
from gymnasium.spaces import MultiDiscrete
from matplotlib import text

import tf_reinforce as tfr
from tf_reinforce.data import tensor_noise
from tf_reinforce.experiments import plots
from tf_reinforce.experiments import policy_plots

VISITED = np.array([[0.0, 5.0], [2.0, 5.0]], np.float32)


class Plain(gym.Env):
    """Episodes of six steps, with random observations of the given space.

    If it is masked, action 0 is illegal after an odd number of steps.
    """

    def __init__(self, observation_space, action_space, masked=False):
        self.observation_space, self.action_space = observation_space, action_space
        self.masked = masked
        observation_space.seed(0)

    def _outputs(self):
        mask = {"action_mask": np.int8([self.steps % 2 == 0, 1, 1])}
        return self.observation_space.sample(), mask if self.masked else {}

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self._outputs()

    def step(self, action):
        self.steps += 1
        observation, info = self._outputs()
        return observation, 1.0 * self.steps, self.steps == 6, False, info


def texts(figure):
    """Returns all texts in a figure as one."""
    return "\n".join(one.get_text() for one in figure.findobj(text.Text))


def mesh(panel):
    """Returns the values or the colors of a map."""
    [image] = panel.findobj(matplotlib.collections.QuadMesh)
    return np.asarray(image.get_array())


def box(*shape):
    return Box(-1.0, 1.0, shape, np.float32)


@pytest.mark.parametrize(
    ("space", "points"),
    [
        (Discrete(4, start=2), [[2, 3, 4, 5]]),
        (Box(np.array([0, 7]), np.array([1, 9]), dtype=np.int8), [[0, 1], [7, 8, 9]]),
    ],
)
def test_grid_contains_all_members_of_small_discrete_spaces(space, points):
    axes = policy_plots.find_axes(space, np.zeros([1, len(points)]))
    assert [axis.tolist() for axis in axes] == points
    grid = policy_plots.make_grid(space, axes)
    assert all(map(space.contains, grid))
    assert len({str(row) for row in grid}) == len(grid) == math.prod(map(len, points))


def test_first_axis_varies_fastest():
    space = Box(0, 1, (2,), np.float32)
    axes = policy_plots.find_axes(space, VISITED)
    grid = policy_plots.make_grid(space, axes)
    rows = grid.reshape(*map(len, axes), 2)
    np.testing.assert_allclose(rows[0, :, 0], axes[0])
    np.testing.assert_allclose(rows[:, 0, 1], axes[1])
    assert grid.dtype == np.float32


def test_map_shows_the_most_likely_action_and_its_probability():
    """The logit of action 1 is ten times the first number, so 0 is likely on the left."""
    env = Plain(box(2), Discrete(2))
    agent = tfr.Reinforce.for_env(env, hidden=())
    agent.policy.set_weights([np.float32([[0, 10], [0, 0]]), np.zeros(2, "float32")])
    [panel] = policy_plots.draw(agent, env).axes
    colors = mesh(panel)
    left, right = (matplotlib.colors.to_rgb(color) for color in plots.COLORS[:2])
    np.testing.assert_allclose(colors[:, 0, :3], [left] * len(colors))
    np.testing.assert_allclose(colors[:, -1, :3], [right] * len(colors))
    probs = 1 / (1 + np.exp(-10 * np.linspace(-1, 1, colors.shape[1])))
    opacity = 0.3 + 0.7 * (2 * np.maximum(probs, 1 - probs) - 1)
    np.testing.assert_allclose(colors[7, :, 3], opacity, atol=1e-5)
    labels = panel.get_xlabel(), panel.get_ylabel()
    assert labels == ("observation[0]", "observation[1]")


def test_map_of_real_actions_shows_their_means():
    env = Plain(box(2), Box(-np.inf, np.inf, (1,), np.float32))
    agent = tfr.Reinforce.for_env(env, hidden=(), head="Gaussian")
    kernel, *others = agent.policy.get_weights()
    agent.policy.set_weights([np.float32([[0.0], [0.5]]), *map(np.zeros_like, others)])
    figure = policy_plots.draw(agent, env)
    mean = mesh(figure.axes[0])
    expected = agent.act(np.float32([[0.3, -1], [0.3, 1]]), deterministic=True)
    np.testing.assert_allclose(mean[[0, -1], 5], expected[:, 0], atol=6 / 16)
    np.testing.assert_allclose(np.ptp(mean[:, 5]), 1.0, rtol=1e-5)
    assert figure.axes[1].get_ylabel() == "mean action"


def area(panel, length):
    """Returns the probability of action 0 at the steps of an episode."""
    vertices = panel.collections[0].get_paths()[0].vertices
    return [vertices[vertices[:, 0] == time, 1].max() for time in range(length)]


def test_illegal_actions_have_no_probability_above_rewards_and_return():
    """Without masks, the three actions are equally likely."""
    env = Plain(box(2), Discrete(3), masked=True)
    agent = tfr.Reinforce.for_env(env, hidden=(), action_mask="info/action_mask")
    agent.policy.set_weights([np.zeros((2, 3), "float32"), np.zeros(3, "float32")])
    figure = policy_plots.draw(agent, env)
    policy, reward, total = figure.axes
    np.testing.assert_allclose(area(policy, 6), [1 / 3, 0] * 3, atol=1e-6)
    assert reward.lines[0].get_ydata().tolist() == [1, 2, 3, 4, 5, 6]
    assert total.lines[0].get_ydata().tolist() == [1, 3, 6, 10, 15, 21]
    assert "terminated after 6 steps" in texts(figure)


SPACES = {
    "two numbers, two flags": (box(2), MultiBinary(2)),
    "one number, choices": (box(1), MultiDiscrete([2, 9])),
    "one number, real": (box(1), box(2)),
    "unbounded": (Box(-np.inf, np.inf, (2,), np.float32), box(1)),
    "states": (Discrete(5, start=2), Discrete(12)),
    "pairs": (MultiDiscrete([3, 4]), Discrete(2)),
    "dict": (Dict(a=Discrete(3), b=box(1)), Dict(x=Discrete(2), y=box(2))),
    "image": (Box(0, 255, (8, 8, 1), np.uint8), Discrete(40)),
    "many numbers": (box(30), box(30)),
    "many states": (Discrete(10**5), Discrete(2)),
}


@pytest.mark.parametrize("name", sweeps.some(SPACES, always=["states"]))
def test_all_kinds_of_spaces_are_drawn(name, tmp_path):
    env = Plain(*SPACES[name])
    agent = tfr.Reinforce.for_env(env, hidden=(4,), seed=0)
    figure = policy_plots.draw(agent, env)
    plots.save(figure, tmp_path / "a.svg")
    drawn = texts(figure)
    is_map = name not in ("pairs", "dict", "image", "many numbers", "many states")
    assert ("over its observations" in drawn) == is_map
    assert ("return so far" in drawn) == (not is_map)
    assert name != "many numbers" or len(figure.axes) == 24 + 2


@pytest.mark.slow
def test_recurrent_policy_is_drawn_along_an_episode():
    inputs = keras.Input((None, 1))
    states = keras.layers.GRU(4, return_sequences=True, seed=0)(inputs)
    agent = tfr.Reinforce(keras.Model(inputs, keras.layers.Dense(2)(states)))
    agent.compile("sgd")
    assert "one episode with" in texts(policy_plots.draw(agent, toys.Clock))


REAL = {
    "custom": toy_heads.Logistic(),
    "Gaussian": tfr.heads.Gaussian(
        2, low=[-1.0, -5.0], high=[1.0, 5.0], initial_scale=0.5
    ),
    "ClippedGaussian": tfr.heads.ClippedGaussian(1, -0.3, 0.5, initial_scale=0.7),
    "TanhGaussian": tfr.heads.TanhGaussian(1, 0.0, 10.0, initial_scale=0.7),
    "Beta": tfr.heads.Beta(2, [0.0, -4.0], [1.0, 4.0]),
    "integer": tfr.heads.Gaussian(1, low=0, high=9, integer=True, initial_scale=2.0),
}


def outputs_of(head, rows=3):
    if not head.built:
        head.build((None, head.outputs_size))
    return tf.random.stateless_normal([rows, head.outputs_size], [1, 2])


@pytest.mark.parametrize("name", REAL)
def test_mean_and_deviation_equal_those_of_many_samples(name):
    """The tolerance of the mean is six standard errors of 256 numbers."""
    head, count = REAL[name], 10_000
    outputs = outputs_of(head)
    parts = policy_plots.describe(head, outputs)
    shape = [count, len(outputs), *head.noise.shape]
    noise = tensor_noise.stateless_noise(3, head.noise.kind, shape, outputs.dtype)
    raw = head.sample(tf.tile(outputs[None], [count, 1, 1]), noise)
    flat = tf.reshape(raw, [-1, *head.action_shape])
    samples = np.reshape(head.to_environment(flat), [count, len(outputs), len(parts)])
    for index, part in enumerate(parts):
        mean, deviation = samples[..., index].mean(0), samples[..., index].std(0)
        assert np.all(abs(part.mean - mean) < 6 / 16 * deviation)
        np.testing.assert_allclose(part.deviation, deviation, rtol=0.3)
        assert part.name == (f"action {index}" if len(parts) > 1 else "action")


def tempered():
    """Returns a `Categorical` subclass whose distribution differs from `parameters`."""
    head = toy_heads.built(toy_heads.Tempered(3))
    head.set_weights([np.full_like(x, 3.0) for x in head.get_weights()])
    return head


@pytest.mark.parametrize(
    ("head", "values"),
    [
        (tfr.heads.Categorical(3, start=5), ["567"]),
        (tfr.heads.MultiCategorical([2, 3], start=[0, 4]), ["01", "456"]),
        (tfr.heads.Bernoulli(2), ["01", "01"]),
        (tfr.heads.Multinomial(3, trials=1), ["012"]),
        (tempered(), ["012"]),
        (toy_heads.Switches(2), ["01", "01"]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_probabilities_are_those_of_the_distribution(head, values):
    """Products over the parts equal the probabilities of joint actions."""
    outputs = outputs_of(head)
    parts = policy_plots.describe(head, outputs)
    assert ["".join(part.values) for part in parts] == values
    for indices in itertools.product(*(range(len(part.values)) for part in parts)):
        columns = [part.probs[:, i] for i, part in zip(indices, parts)]
        action = np.eye(3)[indices] if "Multinomial" in repr(head) else indices
        action = np.reshape(action, head.action_shape)
        expected = head.distribution(outputs).prob([action] * len(outputs))
        np.testing.assert_allclose(np.prod(columns, axis=0), expected, rtol=1e-5)


def test_composite_has_the_parts_of_its_heads_by_name():
    head = tfr.heads.Composite({"gear": tfr.heads.Categorical(3), "arm": REAL["Beta"]})
    outputs = outputs_of(head)
    actions = {"gear": np.array([0, 1, 2]), "arm": tf.fill([3, 2], 0.5)}
    parts = policy_plots.describe(head, outputs, actions)
    assert [part.name for part in parts] == ["arm 0", "arm 1", "gear"]
    alone = policy_plots.describe(REAL["Beta"], outputs[:, :4])
    np.testing.assert_allclose(parts[1].mean, alone[1].mean)
    assert parts[1].taken.tolist() == [0.0] * 3
