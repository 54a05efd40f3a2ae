"""Tests environments that use threads, processes, output or TensorFlow in workers."""

import concurrent.futures
import os
import subprocess
import sys
import textwrap
import threading
import types

import cloudpickle
import keras
import numpy as np
import pytest
import toy_envs

import tf_reinforce as tfr
from tf_reinforce.engine.collect import env_factory

# Workers receive the environments of this file, which imports TensorFlow, without it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env(toy_envs.Lengths, hidden=(4,))


@pytest.fixture(scope="module")
def expected(agent):
    """Returns the episodes that one process collects, as a list of arrays."""
    return keras.tree.flatten(agent.collect(toy_envs.Lengths, 6))


def assert_plays(agent, env, expected):
    """Asserts that two workers collect the expected episodes.

    A worker that does not end by itself causes a warning, which is an error in tests.
    """
    episodes = keras.tree.flatten(agent.collect(env, 6, num_envs=2, workers=2))
    for one, other in zip(episodes, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Threads(toy_envs.Lengths):
    """An environment whose steps run in a thread, and that leaves a thread behind."""

    def __init__(self):
        super().__init__()
        self.is_worker = "TF_REINFORCE_WORKER" in os.environ
        if self.is_worker:
            self.threads = concurrent.futures.ThreadPoolExecutor(1)
            threading.Thread(target=threading.Event().wait, daemon=False).start()

    def step(self, action):
        if not self.is_worker:
            return super().step(action)
        return self.threads.submit(super().step, action).result()


def test_threads_of_an_environment_do_not_keep_a_worker_alive(agent, expected):
    assert_plays(agent, Threads, expected)


class Simulator(toy_envs.Lengths):
    """An environment that sends each observation through another process."""

    def __init__(self):
        super().__init__()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe)

    def _observation(self):
        observation = super()._observation()
        self.process.stdin.write(observation.tobytes())
        self.process.stdin.flush()
        received = self.process.stdout.read(observation.nbytes)
        return np.frombuffer(received, observation.dtype)

    def close(self):
        self.process.communicate()


def test_environment_may_exchange_data_with_a_process_of_its_own(agent, expected):
    assert_plays(agent, Simulator, expected)


class Prints(toy_envs.Lengths):
    """An environment that prints in each of its methods."""

    def __init__(self):
        super().__init__()
        self._print("made")

    def reset(self, **options):
        self._print("reset")
        return super().reset(**options)

    def step(self, action):
        self._print("step")
        return super().step(action)

    def close(self):
        self._print("closed")

    def _print(self, text):
        if "TF_REINFORCE_WORKER" in os.environ:
            # Whole lines, because two workers print at the same time.
            print(f"{text} {'out ' * 1_000}", flush=True)
            print(f"{text} {'error ' * 1_000}", file=sys.stderr, flush=True)
            os.write(1, b"\x00\x00\x00\x00\x00\x00\x00\x02{}")  # like a message


def test_output_of_an_environment_does_not_disturb_its_worker(agent, expected, capfd):
    assert_plays(agent, Prints, expected)
    for texts, word in zip(capfd.readouterr(), ("out", "error"), strict=True):
        for text, count in (("made", 2), ("reset", 6), ("closed", 2)):
            assert texts.count(f"{text} {word} ") == count


class Argument(toy_envs.Lengths):
    def __init__(self, argument):
        super().__init__()


def test_argument_of_a_constructor_that_cannot_be_sent_raises(agent):
    kwargs = {"argument": threading.Lock()}
    message = "cannot be sent to worker processes.*'argument'.*Let the callable make"
    with pytest.raises(ValueError, match=message):
        agent.collect(Argument, 2, workers=2, env_kwargs=kwargs)


def test_module_that_a_worker_cannot_import_raises(agent, monkeypatch):
    """A class of an imported module is sent by the name of the module."""
    module = types.ModuleType("only_here")
    module.Env = type("Env", (toy_envs.Lengths,), {"__module__": "only_here"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(RuntimeError, match=r"Worker \d: .*No module named 'only_here'"):
        agent.collect(module.Env, 2, num_envs=2, workers=2)


@pytest.mark.slow
def test_environment_may_use_tensorflow_in_a_worker(
    agent, expected, tmp_path, monkeypatch
):
    """The worker imports the module of the environment by its name."""
    code = """
        import tensorflow as tf
        import toy_envs

        class Computes(toy_envs.Lengths):
            def __init__(self):
                super().__init__()
                self.variable = tf.Variable([0.0, 0.0])

            def _observation(self):
                self.variable.assign(super()._observation())
                return tf.function(lambda: 1.0 * self.variable)().numpy()
    """
    (tmp_path / "computes.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    assert_plays(agent, __import__("computes").Computes, expected)


def test_warning_of_mujoco_is_logged_once_for_all_environments_and_workers(
    caplog, capfd, monkeypatch
):
    pytest.importorskip("mujoco")
    monkeypatch.setattr(env_factory, "_logged", set())
    agent = tfr.Reinforce.for_env("HalfCheetah-v5", hidden=(4,))
    for workers in (1, 2):
        options = dict(num_envs=2, workers=workers, max_episode_steps=2)
        agent.collect("HalfCheetah-v5", 2, **options)
    assert ["settotalmass" in x for x in caplog.messages if "MuJoCo" in x] == [True]
    assert "settotalmass" not in capfd.readouterr().err
