"""Tests videos of episodes, as a user records them."""

import functools
import os
import re
import subprocess
import sys

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import rendered_counter
import sweeps

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.experiments import recording

FOUR_STEPS = functools.partial(rendered_counter.Counter, length=4)


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env(rendered_counter.Counter, hidden=(), seed=0)


@pytest.fixture
def path(tmp_path):
    """Path of an earlier video, which a failure must not change."""
    (tmp_path / "a.mp4").write_bytes(b"earlier")
    return tmp_path / "a.mp4"


def is_unchanged(path):
    return path.read_bytes() == b"earlier" and list(path.parent.iterdir()) == [path]


def read(path):
    """Returns the pictures of a video, `[N, H, W, 3]`."""
    size = re.search(rb"yuv420p.*, (\d+)x(\d+)", ffmpeg(path, "null").stderr)
    width, height = map(int, size.groups())
    pictures = np.frombuffer(ffmpeg(path, "rawvideo").stdout, np.uint8)
    return pictures.reshape(-1, height, width, 3).astype(int)


def ffmpeg(path, kind):
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-pix_fmt", "rgb24"]
    return subprocess.run([*command, "-f", kind, "-"], capture_output=True, check=True)


@pytest.mark.parametrize(
    ("workers", "deterministic", "limit"), [sweeps.rare(1, True, None), (2, False, 3)]
)
def test_videos_show_the_episodes_of_an_evaluation(
    agent, tmp_path, workers, deterministic, limit
):
    """An episode has two to five steps without a time limit."""
    env, path = rendered_counter.Counter, tmp_path / "a.mp4"
    options = dict(seed=3, deterministic=deterministic, max_episode_steps=limit)
    metrics = recording.record(agent, env, path, 4, workers=workers, **options)
    assert metrics == agent.evaluate(env, 4, **options)
    key = seeding.StreamKey(3, "evaluation", 0)
    request = environments.CollectionRequest(key, 4, deterministic=deterministic)
    with tfr.collect.open_envs(env, 2, max_episode_steps=limit) as envs:
        episodes = agent.trainer.play(envs, request).episodes
    assert len(list(tmp_path.iterdir())) == 4
    for number in range(4):
        pictures = read(tmp_path / f"a_{number + 1}.mp4")
        actions = [0, *episodes.actions[: int(episodes.lengths[number]), number]]
        expected = [rendered_counter.picture(i, x) for i, x in enumerate(actions)]
        np.testing.assert_allclose(pictures[:, ::99], np.array(expected)[:, ::99], atol=9)


@pytest.mark.parametrize(
    ("env", "options", "text"),
    [
        (tfr.envs.CartPole(), {}, "Received: .*CartPole"),
        (tfr.envs.CartPole, {}, "unexpected keyword argument 'render_mode'"),
        (lambda render_mode: rendered_counter.Counter("human"), {}, "'rgb_array'"),
        (FOUR_STEPS, {"episodes": 0}, "`episodes`"),
        (FOUR_STEPS, {"workers": 1.5}, "`workers`"),
        (FOUR_STEPS, {"seed": -1}, "`seed`"),
        (FOUR_STEPS, {"env_kwargs": 3}, "`env_kwargs`.*must be arguments"),
    ],
)
def test_invalid_argument_is_refused_and_keeps_the_file(agent, path, env, options, text):
    with pytest.raises((ValueError, TypeError), match=text):
        recording.record(agent, env, path, **options)
    assert is_unchanged(path)


@pytest.mark.parametrize(
    ("picture", "text"),
    [
        (np.zeros((4, 4), np.uint8), r"shape \(H, W, 3\).*shape \(4, 4\)"),
        (np.zeros((4, 4, 3)), "type float64"),
    ],
)
def test_invalid_picture_is_a_fault_of_the_environment(agent, path, picture, text):
    class Faulty(rendered_counter.Counter):
        def render(self):
            return picture

    with pytest.raises(tfr.collect.EnvironmentFault, match=text):
        recording.record(agent, Faulty, path, workers=1)
    assert is_unchanged(path)


def test_process_that_dies_keeps_an_earlier_file(agent, path, monkeypatch):
    with pytest.raises(tfr.collect.EnvironmentFault, match="killed by the signal SIGSE"):
        recording.record(agent, rendered_counter.Dying, path)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"tf-reinforce\[video\]"):
        recording.record(agent, FOUR_STEPS, path)
    assert is_unchanged(path)


def test_headless_variables_are_set_without_a_display_only(agent, path, monkeypatch):
    names = "SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "MUJOCO_GL"
    for name in (*names, "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    recording.record(agent, FOUR_STEPS, path, workers=1)
    assert not os.environ.keys() & set(names)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    recording.record(agent, FOUR_STEPS, path, workers=1)
    assert [os.environ[name] for name in names] == ["dummy", "dummy", "osmesa"]


@pytest.fixture
def agent_file(agent, tmp_path):
    agent.save(tmp_path / "agent.keras")
    return str(tmp_path / "agent.keras")


OWN_ENV = """
import functools
import gymnasium as gym
import rendered_counter
gym.register("Own-v2", functools.partial(rendered_counter.Counter, length={}))
"""


def test_command_records_an_environment_of_an_own_module(
    agent_file, tmp_path, monkeypatch, capsys
):
    (tmp_path / "recorded_env.py").write_text(OWN_ENV.format(4))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["--env", "recorded_env:Own-v2", "--out", f"{tmp_path}/a.mp4"]
    assert cli.main(["record", agent_file, *words, "--episodes", "2"]) == 0
    monkeypatch.delitem(gym.registry, "Own-v2")
    monkeypatch.delitem(sys.modules, "recorded_env")
    first, last = (f"{tmp_path}/a_{number}.mp4" for number in (1, 2))
    text = f"recorded {first}, {last}: mean return 6, mean length 4"
    assert capsys.readouterr().out.strip() == text
    assert imageio_ffmpeg.count_frames_and_secs(last) == (1 + 4, 0.5)
