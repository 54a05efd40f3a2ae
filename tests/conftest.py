"""The suite lives in a stricter world than its users: warnings are errors."""

import gc
import os
import random
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

# Programs and their lists, not tests.
collect_ignore = ["mutants", "mutation", "properties/golden_digests.py"]

SEEDED = random.Random(0).getstate()  # what TensorFlow draws the seeds of operations from


def pytest_collection_finish():
    """What was imported stays; to look through it for garbage is a 20th of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # most of what a trace makes lives on: look rarely
    tf.random.set_seed(0)


@pytest.fixture(autouse=True)
def fresh_world():
    """Every test starts from the same numbers and leaves no global setting behind."""
    seed_all()
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    tf.config.run_functions_eagerly(False)


def seed_all():
    """Seeds every generator with zero; TensorFlow's only if something drew from it.

    With a new seed TensorFlow drops all kernels and the optimized graphs of all
    functions. To make them again took a seventh of the time of the suite.
    """
    if context.context()._rng.getstate() != SEEDED:
        tf.random.set_seed(0)
    with mock.patch.object(tf.random, "set_seed"):
        keras.utils.set_random_seed(0)
