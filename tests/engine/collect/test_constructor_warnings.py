"""Tests that warnings of environments' constructors appear once, above a display."""

import subprocess
import sys
import threading
import types
import warnings

import gymnasium as gym
import pytest
import toy_envs

import tf_reinforce as tfr

MAKERS = [
    toy_envs.OldModel,
    lambda text: toy_envs.OldModel(text),
    gym.envs.registration.EnvSpec("OldModel-v0", "toy_envs:OldModel"),
]


@pytest.mark.parametrize("env", MAKERS, ids=["class", "function", "spec"])
def test_warning_of_a_constructor_appears_once(env, request):
    text = f"an old model in {request.node.name}"
    with warnings.catch_warnings(record=True, action="default") as caught:
        for _ in range(3):
            options = dict(num_envs=2, env_kwargs={"text": text})
            with tfr.collect.open_envs(env, **options):
                warnings.warn("another", stacklevel=1)
    texts = [str(one.message) for one in caught if one.category is UserWarning]
    assert texts == [text, *["another"] * 3]  # other warnings follow the filters


def test_workers_do_not_repeat_the_warnings_of_their_pool(capfd):
    options = dict(env_kwargs={"text": "an old model in a pool"})
    with pytest.warns(UserWarning, match="an old model in a pool"):
        agent = tfr.Reinforce.for_env(toy_envs.OldModel, hidden=(), **options)
        agent.collect(toy_envs.OldModel, 4, workers=2, **options)
    assert "an old model" not in capfd.readouterr().err


class MuJoCo(types.ModuleType):
    """Calls `user_warning` as MuJoCo does, or prints past `sys.stderr` without one."""

    user_warning = None

    def get_mju_user_warning(self):
        return self.user_warning

    def set_mju_user_warning(self, function):
        self.user_warning = function

    def warn(self, text):
        (self.user_warning or print)(text)


@pytest.fixture
def mujoco(monkeypatch):
    module = MuJoCo("mujoco")
    monkeypatch.setitem(sys.modules, "mujoco", module)
    return module


def test_warning_of_mujoco_appears_once_in_the_log(mujoco, caplog, capsys):
    def make():
        mujoco.warn("settotalmass is deprecated")
        return toy_envs.Clock()

    agent = tfr.Reinforce.for_env(make, hidden=())
    agent.evaluate(make, 4, num_envs=4)
    assert caplog.messages == ["MuJoCo: settotalmass is deprecated"]
    assert mujoco.user_warning is None and capsys.readouterr().out == ""
    texts = []
    mujoco.user_warning = texts.append  # a function of the user remains
    agent.evaluate(make, 2, num_envs=2)
    assert len(texts) >= 2 and mujoco.user_warning == texts.append


def test_threads_that_make_environments_leave_nothing_replaced():
    """The second constructor begins in the first one, and ends after it."""
    show, threads = warnings.showwarning, []

    def open_envs(began, leave):
        def make():
            began.set()
            leave.wait()
            return toy_envs.Clock()

        with tfr.collect.open_envs(make, 1):
            pass

    for _ in range(2):
        events = threading.Event(), threading.Event()
        thread = threading.Thread(target=open_envs, args=events)
        threads.append((thread, events[1]))
        thread.start()
        events[0].wait()
    for thread, leave in threads:
        leave.set()
        thread.join()
    assert warnings.showwarning is show


@pytest.mark.slow
def test_warning_of_the_real_mujoco_appears_once(tmp_path):
    """Its XML file for HalfCheetah has a deprecated attribute."""
    pytest.importorskip("mujoco")
    code = (
        "import tf_reinforce as tfr; id = 'HalfCheetah-v5'; "
        "agent = tfr.Reinforce.for_env(id, hidden=()); "
        "agent.fit(id, epochs=1, episodes_per_epoch=2, max_episode_steps=3, workers=2, "
        "validation_env=id, validation_episodes=2, verbose=0)"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("'settotalmass' is deprecated") == 1
