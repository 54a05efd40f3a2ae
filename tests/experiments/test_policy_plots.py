"""Tests what the pictures of policies show."""

import gymnasium as gym
import keras
import matplotlib.colors
import numpy as np
import pytest
import rendered_counter
import sweeps
from matplotlib import text

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.experiments import plots
from tf_reinforce.experiments import policy_plots


class Plain(gym.Env):
    """An environment with given spaces, random observations and episodes of six steps."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        observation_space.seed(0)

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return (
            self.observation_space.sample(),
            1.0 * self.steps,
            self.steps == 6,
            False,
            {},
        )


def texts(figure):
    """Returns all texts of a figure as one text."""
    return "\n".join(one.get_text() for one in figure.findobj(text.Text))


def box(*shape):
    return gym.spaces.Box(-1.0, 1.0, shape, np.float32)


def test_map_shows_the_most_likely_action_and_its_probability():
    """The logit of action 1 is ten times the first number: 0 is likely on the left."""
    env = Plain(box(2), gym.spaces.Discrete(2))
    agent = tfr.Reinforce.for_env(env, hidden=())
    agent.policy.set_weights([np.float32([[0, 10], [0, 0]]), np.zeros(2, "float32")])
    figure = policy_plots.draw(agent, env)
    [panel] = figure.axes
    [image] = panel.images
    colors = np.asarray(image.get_array())
    left, right = (matplotlib.colors.to_rgb(color) for color in plots.COLORS[:2])
    np.testing.assert_allclose(colors[:, 0, :3], [left] * len(colors))
    np.testing.assert_allclose(colors[:, -1, :3], [right] * len(colors))
    probs = 1 / (1 + np.exp(-10 * np.linspace(-1, 1, colors.shape[1])))
    opacity = 0.3 + 0.7 * (2 * np.maximum(probs, 1 - probs) - 1)
    np.testing.assert_allclose(colors[7, :, 3], opacity, atol=1e-5)
    assert (panel.get_xlabel(), panel.get_ylabel()) == (
        "observation[0]",
        "observation[1]",
    )


def test_map_of_real_actions_shows_their_means():
    env = Plain(box(2), gym.spaces.Box(-np.inf, np.inf, (1,), np.float32))
    agent = tfr.Reinforce.for_env(env, hidden=(), head="Gaussian")
    weights = agent.policy.get_weights()
    agent.policy.set_weights(
        [np.float32([[0.0], [0.5]]), *map(np.zeros_like, weights[1:])]
    )
    figure = policy_plots.draw(agent, env)
    mean = np.asarray(figure.axes[0].images[0].get_array())
    expected = agent.act(np.float32([[0.3, -1], [0.3, 1]]), deterministic=True)
    np.testing.assert_allclose(mean[[0, -1], 5], expected[:, 0], rtol=1e-5)
    assert figure.axes[1].get_ylabel() == "mean action"


def test_episode_shows_probabilities_rewards_and_return():
    env = Plain(box(3), gym.spaces.Discrete(3))
    agent = tfr.Reinforce.for_env(env, hidden=(), seed=0)
    figure = policy_plots.draw(agent, env, seed=4)
    policy, reward, total = figure.axes
    assert reward.lines[0].get_ydata().tolist() == [1, 2, 3, 4, 5, 6]
    assert total.lines[0].get_ydata().tolist() == [1, 3, 6, 10, 15, 21]
    assert len(policy.collections) >= 3 and policy.get_ylim() == (0, 1)
    assert "terminated after 6 steps" in texts(figure)


def test_probabilities_along_an_episode_are_those_of_the_sampled_actions():
    """The area of action 0 is its probability at the observations of the episode."""
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(), seed=0)
    agent.policy.set_weights([np.ones((4, 2), "float32") * [0, 5], np.zeros(2)])
    figure = policy_plots.draw(agent, "CartPole-v1", seed=4, max_episode_steps=9)
    vertices = figure.axes[0].collections[0].get_paths()[0].vertices
    request = environments.CollectionRequest(seeding.StreamKey(4, "evaluation", 0), 1)
    with tfr.collect.open_envs("CartPole-v1", 1, max_episode_steps=9) as envs:
        episodes = agent.trainer.collector.collect(envs, request).episodes
    length = int(episodes.lengths[0])
    logits = agent.predict(np.asarray(episodes.observations)[:length, 0], verbose=0)
    expected = keras.ops.softmax(logits)[:, 0]
    shown = [vertices[vertices[:, 0] == time, 1].max() for time in range(length)]
    np.testing.assert_allclose(shown, expected, atol=1e-5)


class Masked(Plain):
    """Action 0 is illegal after an odd number of steps."""

    def reset(self, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"action_mask": np.int8([1, 1, 1])}

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"action_mask": np.int8([self.steps % 2 == 0, 1, 1])}


def test_illegal_actions_have_no_probability_along_an_episode():
    """Without masks, the three actions are equally likely."""
    env = Masked(box(2), gym.spaces.Discrete(3))
    agent = tfr.Reinforce.for_env(env, hidden=(), action_mask="info/action_mask")
    agent.policy.set_weights([np.zeros((2, 3), "float32"), np.zeros(3, "float32")])
    figure = policy_plots.draw(agent, env)
    vertices = figure.axes[0].collections[0].get_paths()[0].vertices
    shown = [vertices[vertices[:, 0] == time, 1].max() for time in range(6)]
    np.testing.assert_allclose(shown, [1 / 3, 0] * 3, atol=1e-6)


D, MB = gym.spaces.Discrete, gym.spaces.MultiBinary
SPACES = {
    "two numbers, two flags": (box(2), MB(2)),
    "one number, choices": (box(1), gym.spaces.MultiDiscrete([2, 9])),
    "one number, real": (box(1), box(2)),
    "scalar": (box(), D(3)),
    "unbounded": (gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), box(1)),
    "states": (D(5, start=2), D(12)),
    "states, real": (D(5), box(1)),
    "pairs": (gym.spaces.MultiDiscrete([3, 4]), D(2)),
    "dict": (gym.spaces.Dict(a=D(3), b=box(1)), gym.spaces.Dict(x=D(2), y=box(2))),
    "image": (gym.spaces.Box(0, 255, (8, 8, 1), np.uint8), D(40)),
    "many numbers": (box(30), box(30)),
}


@pytest.mark.parametrize("name", sweeps.some(SPACES, always=["states"]))
def test_all_kinds_of_spaces_are_drawn(name, tmp_path):
    env = Plain(*SPACES[name])
    agent = tfr.Reinforce.for_env(env, hidden=(4,), seed=0)
    figure = policy_plots.draw(agent, env)
    plots.save(figure, tmp_path / "a.svg")
    drawn = texts(figure)
    is_map = name not in ("image", "many numbers")
    assert ("over its observations" in drawn) == is_map
    assert ("return so far" in drawn) == (not is_map)
    assert ("first 24 of 30 parts" in drawn) == (name == "many numbers")


def test_cells_of_frozen_lake_show_letters_actions_and_probabilities():
    kwargs = {"desc": ["SFF", "FHG"]}
    agent = tfr.Reinforce.for_env("FrozenLake-v1", hidden=(), env_kwargs=kwargs)
    weights = agent.policy.get_weights()
    kernel = np.zeros_like(weights[0])
    kernel[4, 2] = 20.0
    agent.policy.set_weights([kernel, *map(np.zeros_like, weights[1:])])
    figure = policy_plots.draw(agent, "FrozenLake-v1", env_kwargs=kwargs)
    [panel] = figure.axes
    cells = {one.get_position(): one.get_text() for one in panel.texts}
    assert len(cells) == 6
    assert cells[1, 1] == "H\n2: 1.00" and cells[2, 1] == "G\n0: 0.25"


@pytest.mark.parametrize("env", ["Taxi-v4", "CliffWalking-v1", "CartPole-v1"])
def test_only_states_in_rows_and_columns_are_cells(env):
    cells = policy_plots._cells_of_states(env, None)
    assert (cells is not None) == (env == "CliffWalking-v1")
    assert cells is None or cells.shape == (4, 12)


@pytest.mark.slow
def test_recurrent_policy_is_drawn_along_an_episode():
    inputs = keras.Input((None, 1))
    states = keras.layers.GRU(4, return_sequences=True, seed=0)(inputs)
    agent = tfr.Reinforce(keras.Model(inputs, keras.layers.Dense(3)(states)))
    agent.compile("sgd")
    figure = policy_plots.draw(agent, rendered_counter.Counter)
    assert "one episode with sampled actions" in texts(figure)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b", "--policy"], "policy of one run. Received: 2 runs"),
        (["a", "--policy", "--key", "entropy"], "--key has no effect with --policy"),
        (["a", "--policy", "--x", "steps"], "--x has no effect with --policy"),
        (["a", "--seed", "3"], "--seed has no effect without --policy"),
        (["a", "--env-arg", "a=1"], "--env-arg has no effect without --policy"),
        (["a", "--policy"], "There is no file or folder a"),
        (["a", "--policy", "--out", "b.gif"], "one of the extensions .png"),
        (["a", "--policy", "--max-episode-steps", "0"], "max_episode_steps"),
    ],
)
def test_wrong_arguments_of_the_command_are_named(words, text, capsys):
    assert cli.main(["plot", *words]) == 2
    assert text in capsys.readouterr().err
