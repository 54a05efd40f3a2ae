"""Tests the small Atari games: images, repeatability, and training through their id."""

import pathlib
import sys

import gymnasium as gym
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import atari
from tf_reinforce.cli import entry
from tf_reinforce.cli import plans
from tf_reinforce.settings import toml_files

PONG = "tf_reinforce.atari:SmallPong-v0"


@pytest.fixture(scope="module")
def pong():
    env = gym.make(PONG)
    yield env
    env.close()


def play(env, seed, steps=150):
    """Returns the images and rewards of the first steps, with fixed actions."""
    actions = np.random.default_rng(0).integers(env.action_space.n, size=steps)
    observation, _ = env.reset(seed=seed)
    images, rewards = [observation], []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(int(action))
        images.append(observation)
        rewards.append(reward)
        assert not terminated and not truncated
    return np.stack(images), rewards


def test_all_games_are_registered_with_names_of_their_own():
    """The names must not make ids of ale-py appear outdated, such as `Pong-v4`."""
    small = {spec.kwargs["game"] for spec in gym.registry.values() if is_small(spec)}
    games = [spec for spec in gym.registry.values() if spec.namespace == "ALE"]
    assert small == {spec.name for spec in games} and len(small) > 100


def is_small(spec):
    return spec.entry_point == "tf_reinforce.atari:make"


def test_observation_is_the_last_two_images(pong):
    images, _ = play(pong, seed=0)
    assert images.shape[1:] == pong.observation_space.shape == (2, 42, 42)
    np.testing.assert_array_equal(images[1:, 0], images[:-1, 1])
    assert (images[100, 0] != images[100, 1]).any()  # the ball moves


def test_scaled_observations_are_the_same_images_as_floats(pong):
    env = gym.make(PONG, scale_images=True)
    images, rewards = play(env, seed=0, steps=40)
    env.close()
    expected, expected_rewards = play(pong, seed=0, steps=40)
    assert images.dtype == np.float32 and env.observation_space.high.max() == 1
    np.testing.assert_allclose(images, expected / 255, rtol=1e-6)
    assert rewards == expected_rewards


def test_equal_seeds_give_equal_episodes_although_the_game_is_not_loaded_again(pong):
    """The new environment has another emulator, whose game was loaded just now."""
    first, _ = play(pong, seed=3)
    other, _ = play(pong, seed=4)
    again, _ = play(pong, seed=3)
    fresh, _ = play(gym.make(PONG), seed=3)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, fresh)
    assert (first != other).any()


def test_repeated_frames_of_an_action_are_as_frequent_as_stated():
    """The environment repeats an action with the stated probability for each frame."""
    env = gym.make(PONG, repeat_action_probability=0.25)
    executed = []
    inner = env.unwrapped
    step = inner.step
    inner.step = lambda action: executed.append(action) or step(action)
    env.reset(seed=0)
    executed.clear()
    for index in range(300):
        env.step(index % 2)
    # Actions alternate, so that a repeated action of the first frame differs.
    late = [executed[4 * index] != index % 2 for index in range(1, 300)]
    assert abs(np.mean(late) - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 299)


@pytest.mark.slow
def test_training_in_processes_equals_training_in_one():
    """An episode of Pong ends after the points that 60 steps allow."""

    def weights(workers):
        agent = tfr.Reinforce.for_env(PONG, hidden=(8,), env_kwargs={"screen_size": 20})
        options = dict(epochs=1, episodes_per_epoch=2, max_episode_steps=60, verbose=0)
        agent.fit(PONG, workers=workers, **options)
        return agent.get_weights()

    for ours, theirs in zip(weights(1), weights(2), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_command_finds_the_preset_of_the_game(tmp_path, monkeypatch, capsys):
    """The preset has the name of the environment without its module."""
    (tmp_path / "SmallPong-v0.toml").write_text(f'env = "{PONG}"\n[fit]\nepochs = 7\n')
    monkeypatch.setattr(toml_files, "FOLDER", tmp_path)
    options = entry.make_parser().parse_args(["train", PONG, "--preset"])
    settings = plans.make(options).settings
    assert settings["preset"] == "SmallPong-v0" and settings["fit"]["epochs"] == 7
    options = entry.make_parser().parse_args(["train", PONG])
    plans.make(options)
    line = "training with the preset SmallPong-v0 (--no-preset: default settings)\n"
    assert capsys.readouterr().out == line
    agent = tfr.Reinforce.for_env(PONG, preset="SmallPong-v0")
    assert agent.policy.input_shape == (None, 2, 42, 42)


def test_missing_ale_py_names_the_extra(monkeypatch):
    source = pathlib.Path(atari.__file__).read_text()
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ImportError, match=r'pip install "tf-reinforce\[atari\]"'):
        exec(compile(source, atari.__file__, "exec"), {"__name__": "atari"})
