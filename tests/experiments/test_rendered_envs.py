"""Tests which pictures the episodes of rendered environments show."""

import functools
import os
import sys

import gymnasium as gym
import keras
import numpy as np
import pytest
import rendered_counter

import tf_reinforce as tfr
from tf_reinforce.collect import environments
from tf_reinforce.collect import in_process
from tf_reinforce.data import seeding
from tf_reinforce.experiments import rendered_envs


def play(agent, request, num_envs, max_episode_steps=None, env_type=None):
    """Plays episodes; returns their record, and the arguments of each call of `show`.

    A restart begins a new list of calls.
    """
    calls = []
    envs = rendered_envs.make(env_type or rendered_counter.Counter, num_envs)
    batch = rendered_envs.RenderedEnvs(
        envs,
        max_episode_steps,
        show=lambda tiles, is_end: calls[-1].append((list(tiles), is_end)),
        restart=lambda: calls.append([]),
    )
    opened = in_process.InProcessEnvironments(batch)
    agent.build_for_env(opened)
    episodes = agent.trainer.collector.collect(opened, request).episodes
    return episodes, *calls


@pytest.fixture(scope="module")
def agents():
    inputs = keras.Input((None, 1))
    states = keras.layers.GRU(4, return_sequences=True, seed=0)(inputs)
    outputs = keras.layers.Dense(3, kernel_initializer="ones")(states)
    recurrent = tfr.Reinforce(keras.Model(inputs, outputs))
    recurrent.compile("sgd")
    return {
        "plain": tfr.Reinforce.for_env(rendered_counter.Counter, hidden=(), seed=0),
        "recurrent": recurrent,
    }


def request(episodes, deterministic=False, seed=3):
    key = seeding.StreamKey(seed, "evaluation", 0)
    return environments.CollectionRequest(key, episodes, deterministic=deterministic)


@pytest.mark.parametrize("kind", ["plain", "recurrent"])
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_pictures_show_the_episodes_of_an_evaluation(agents, kind, num_envs):
    """
    picture                    0      1      2      3      4      5
    environment 0, episode 0   reset  step   step   end    end    end
    environment 1, episode 1   reset  step   step   step   step   end   then the next two
    """
    agent = agents[kind]
    _, pictures = play(agent, request(5), num_envs)
    with tfr.collect.open_envs(rendered_counter.Counter, 2) as envs:
        agent.build_for_env(envs)
        episodes = agent.trainer.collector.collect(envs, request(5)).episodes
    expected = []
    for first in range(0, 5, num_envs):
        group = range(first, min(first + num_envs, 5))
        longest = int(max(episodes.lengths[e] for e in group))
        expected += [(group, t, t == longest) for t in range(longest + 1)]
    assert len(pictures) == len(expected)
    for (tiles, is_end), (group, time, ends) in zip(pictures, expected, strict=True):
        assert is_end == ends and len(tiles) == num_envs
        assert tiles[len(group) :] == [None] * (num_envs - len(group))
        for tile, episode in zip(tiles, group):
            length = int(episodes.lengths[episode])
            step = min(time, length)
            assert tile.episode == episode and tile.step == step
            assert tile.episode_return == sum(episodes.rewards[:step, episode])
            assert tile.end == ("terminated" if time >= length else "")
            action = episodes.actions[step - 1, episode] if step else 0
            correct = rendered_counter.picture(step, action)
            np.testing.assert_array_equal(tile.picture, correct)


def test_time_limit_is_shown_as_truncation(agents):
    episodes, pictures = play(agents["plain"], request(2), 2, max_episode_steps=2)
    tiles, is_end = pictures[-1]
    assert is_end and [tile.step for tile in tiles] == [2, 2]
    for tile, terminated in zip(tiles, episodes.terminated):
        assert tile.end == ("terminated" if terminated else "truncated")
    assert not all(episodes.terminated)


def test_episodes_that_are_collected_again_start_the_video_again(agents, monkeypatch):
    """The collector plays all episodes again if LiteRT turns out to round too much."""
    agent = agents["plain"]
    _, pictures = play(agent, request(3), 2)
    program = agent.trainer.collector.programs["acting", False]
    monkeypatch.setattr(program, "leave_litert_if_different", lambda *arguments: True)
    _, first, second = play(agent, request(3), 2)
    ends = [is_end for _, is_end in pictures]
    assert [x for _, x in first] == [x for _, x in second] == ends


def test_render_modes_are_named_if_there_are_no_pictures():
    class Text(rendered_counter.Counter):
        metadata = {"render_modes": ["ansi", "human"]}

    class Without(rendered_counter.Counter):
        metadata = {"render_modes": []}

    for env_type, modes in ((Text, r"\['ansi', 'human'\]"), (Without, "none")):
        spec = gym.envs.registration.EnvSpec("Rendered-v0", env_type)
        with pytest.raises(ValueError, match=f"'rgb_array'.*render modes {modes}"):
            rendered_envs.make(spec, 1)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (tfr.envs.CartPole(), "Received: CartPole. For a tensor environment"),
        (tfr.envs.CartPole, "Received: CartPole. For a tensor environment"),
        (3, "Received: int"),
        (lambda: gym.make("CartPole-v1"), "render_mode='rgb_array'. Received: .*None"),
    ],
)
def test_other_environments_are_refused(env, text):
    with pytest.raises(ValueError, match=text):
        rendered_envs.make(rendered_envs.check(env, 1), 1)


def test_arguments_of_the_environment_are_checked():
    with pytest.raises(ValueError, match="Omit `render_mode`"):
        rendered_envs.check("CartPole-v1", 1, {"render_mode": "human"})
    with pytest.raises(ValueError, match="unexpected keyword argument 'color'"):
        rendered_envs.make(gym.spec("CartPole-v1"), 1, {"color": 1})
    with pytest.raises(ValueError, match="`num_envs` and `env_kwargs` require"):
        rendered_envs.check(rendered_counter.Counter(), 2)
    kwargs = {"length": 4, "render_mode": "rgb_array"}
    [env] = rendered_envs.make(rendered_counter.Counter, 1, kwargs)
    assert env.length == 4


def test_class_and_function_with_a_render_mode_receive_it():
    class Quiet(rendered_counter.Counter):
        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

    for maker in (
        Quiet,
        functools.partial(Quiet, render_mode=None),
        lambda: Quiet(rendered_envs.MODE),
    ):
        [env] = rendered_envs.make(rendered_envs.check(maker, 1), 1)
        assert env.render_mode == rendered_envs.MODE


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, r"shape \(\) and type object"),
        (np.zeros((4, 4), np.uint8), r"\(H, W, 3\).*shape \(4, 4\)"),
        (np.zeros((4, 4, 3)), "type float64"),
        (OSError("no GPU"), "`render` raised OSError: no GPU.*MUJOCO_GL"),
    ],
)
def test_invalid_picture_is_a_fault_of_the_environment(agents, result, text):
    class Faulty(rendered_counter.Counter):
        def render(self):
            if isinstance(result, Exception):
                raise result
            return result

    with pytest.raises(tfr.collect.EnvironmentFault, match=text):
        play(agents["plain"], request(1), 1, env_type=Faulty)


def test_missing_package_of_an_environment_keeps_its_own_message(agents):
    class Missing(rendered_counter.Counter):
        def render(self):
            raise gym.error.DependencyNotInstalled("install pygame")

    with pytest.raises(gym.error.DependencyNotInstalled, match="install pygame"):
        play(agents["plain"], request(1), 1, env_type=Missing)


def test_headless_variables_are_set_without_a_display_only(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in rendered_envs._HEADLESS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    rendered_envs._select_headless_rendering()
    assert not os.environ.keys() & rendered_envs._HEADLESS.keys()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    rendered_envs._select_headless_rendering()
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"
    assert os.environ["MUJOCO_GL"] == "osmesa"  # the choice of the user remains
