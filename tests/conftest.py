"""The suite lives in a stricter world than its users: warnings are errors."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import tensorflow as tf

collect_ignore = ["mutants"]  # a program and its list, not tests


def pytest_collection_finish():
    """What was imported stays; to look through it for garbage is a 20th of the time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh_world():
    """Every test starts from the same numbers and leaves no global setting behind."""
    keras.utils.set_random_seed(0)
    floatx, policy = keras.config.floatx(), keras.config.dtype_policy()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    tf.config.run_functions_eagerly(False)
