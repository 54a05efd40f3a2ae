"""Configures the tests: warnings are errors, and each test starts with the same seeds."""

import gc
import os
import random
import signal
from unittest import mock

import pytest

# TensorFlow is imported where it is used: the process that hands out the tests to
# others does not need it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# This folder contains a program and its list, no tests.
collect_ignore = ["mutants"]

SEEDED = random.Random(0).getstate()  # what TensorFlow draws the seeds of operations from


def pytest_collection_finish():
    """Freezes imported objects. Garbage collection of them would take 5 % of the time."""
    import tensorflow as tf

    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # traces make objects that stay alive
    tf.random.set_seed(0)


@pytest.fixture(autouse=True)
def fresh_world():
    """Seeds all generators before each test, and restores global settings after it."""
    import keras
    import tensorflow as tf

    seed_all()
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    tf.config.run_functions_eagerly(False)
    # Iterators of tf.data in the traceback of an error: deleting one that is older than
    # ten seconds waits up to eight seconds for its thread.
    gc.collect(1)


@pytest.fixture
def hears_ctrl_c():
    """Lets SIGINT interrupt this process; a process in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def seed_all():
    """Seeds every generator with zero; seeds TensorFlow only if it has drawn a seed.

    A new seed makes TensorFlow drop all kernels and the optimized graphs of all
    functions. Making them again takes a seventh of the time of the suite.
    """
    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context()._rng.getstate() != SEEDED:
        tf.random.set_seed(0)
    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(0)
