"""Tests recordings of episodes, as a user makes them."""

import functools

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import rendered_counter
import sweeps
from PIL import Image
from PIL import ImageSequence

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.experiments import recording

FOUR_STEPS = functools.partial(rendered_counter.Counter, length=4)


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env(rendered_counter.Counter, hidden=(), seed=0)


def count_pictures(path, fps):
    """Returns the number of pictures of a GIF, whose durations are multiples of 1/fps."""
    with Image.open(path) as image:
        frames = ImageSequence.Iterator(image)
        return sum(round(frame.info["duration"] * fps / 1000) for frame in frames)


@pytest.mark.parametrize(("deterministic", "limit"), [(True, None), (False, 3)])
def test_recording_plays_the_first_episodes_of_evaluate(
    agent, tmp_path, deterministic, limit
):
    """An episode has two to five steps without a time limit."""
    options = dict(seed=3, deterministic=deterministic, max_episode_steps=limit)
    env, path = rendered_counter.Counter, tmp_path / "a.gif"
    metrics = recording.record(agent, env, path, 3, num_envs=8, **options)
    assert metrics == agent.evaluate(env, 3, **options)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fps", [None, 4])
def test_each_step_is_one_picture_and_the_last_one_stays(agent, tmp_path, fps):
    """The environment states ten pictures per second, and the last one stays for half a
    second.
    """
    path = tmp_path / "a.gif"
    recording.record(agent, FOUR_STEPS, path, 2, fps=fps)
    assert count_pictures(path, fps or 10) == 2 * (1 + 4 + (2 if fps else 5))


@pytest.mark.parametrize(("size", "width"), [(None, 300), (100, 100)])
def test_size_is_the_longer_side_of_a_tile(agent, tmp_path, size, width):
    recording.record(agent, FOUR_STEPS, tmp_path / "a.gif", size=size)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.width == width


def test_environment_of_the_user_stays_open(agent, tmp_path):
    env = rendered_counter.Counter()
    env.close = lambda: pytest.fail("closed")
    metrics = recording.record(agent, env, tmp_path / "a.gif", 2, num_envs=1)
    assert metrics["episodes"] == 2


@pytest.mark.parametrize(
    "wrong",
    [{"episodes": 0}, {"num_envs": 1.5}, {"seed": -1}, {"fps": 0}, {"size": 1}]
    + [{"max_episode_steps": 0}, {"deterministic": 1}],
)
def test_invalid_argument_is_named_and_keeps_the_file(agent, tmp_path, wrong):
    path = tmp_path / "a.gif"
    path.write_bytes(b"earlier")
    [name] = wrong
    with pytest.raises((ValueError, TypeError), match=f"`?{name}`?"):
        recording.record(agent, FOUR_STEPS, path, **wrong)
    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "env",
    sweeps.some(
        ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"]
        + ["MountainCar-v0", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3"]
        + ["HalfCheetah-v5", "ALE/Pong-v5"],
        always=["FrozenLake-v1"],
    ),
)
def test_environments_of_gymnasium_are_recorded_without_a_display(env, tmp_path):
    if env.startswith("ALE/"):
        gym.register_envs(pytest.importorskip("ale_py"))
    agent = tfr.Reinforce.for_env(env, hidden=())
    path = tmp_path / "a.mp4"
    options = dict(max_episode_steps=8, seed=1, deterministic=False)
    metrics = recording.record(agent, env, path, 2, num_envs=2, **options)
    assert metrics == agent.evaluate(env, 2, **options)
    assert path.stat().st_size > 1000
    assert np.isfinite(metrics["episode_return"])


@pytest.fixture
def agent_file(agent, tmp_path):
    agent.save(tmp_path / "agent.keras")
    return str(tmp_path / "agent.keras")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "no file"),
        (["agent"], "contains no environment id"),
        (["agent", "--out", "a.avi"], "extension .mp4 or .gif. Received: 'a.avi'"),
        (["agent", "--fps", "0"], "`fps` must be a finite number"),
        (["agent", "--size", "3"], "`size` must be a finite number"),
        (["agent", "--episodes", "0"], "`episodes` must be"),
        (["agent", "--num-envs", "-1"], "`num_envs` must be"),
        (["agent", "--env", "Nothing-v0"], "Nothing"),
    ],
)
def test_wrong_arguments_of_the_command_are_named(agent_file, words, text, capsys):
    words = [agent_file if word == "agent" else word for word in words]
    assert cli.main(["record", *words]) == 2
    assert text in capsys.readouterr().err


def test_command_writes_a_video(agent_file, tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "a.mp4")
    spec = gym.envs.registration.EnvSpec("Counter-v0", FOUR_STEPS)
    monkeypatch.setitem(gym.registry, "Counter-v0", spec)
    assert cli.main(["record", agent_file, "--env", "Counter-v0", "--out", path]) == 0
    expected = f"recorded 1 episode in {path}: mean return 6, mean length 4"
    assert capsys.readouterr().out.strip() == expected
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(path)
    assert frames == 1 + 4 + 5 and seconds == 1.0


OWN_ENV = """
import functools
import gymnasium as gym
import rendered_counter
gym.register("Own-v2", functools.partial(rendered_counter.Counter, length=4))
"""


def test_environment_of_an_own_module_is_recorded(agent, tmp_path, monkeypatch):
    (tmp_path / "recorded_env.py").write_text(OWN_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "a.gif"
    recording.record(agent, "recorded_env:Own-v2", path, fps=10)
    monkeypatch.delitem(gym.registry, "Own-v2")
    assert count_pictures(path, 10) >= 1 + 4
