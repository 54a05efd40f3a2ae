"""Tests environments that use threads, processes, output or TensorFlow in workers."""

import concurrent.futures
import os
import sys
import textwrap
import threading

import cloudpickle
import keras
import numpy as np
import pytest
import toy_envs

import tf_reinforce as tfr

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
