"""Writes each function of a policy as a LiteRT file."""

import contextlib
import logging
import os
import tempfile
import warnings

import tensorflow as tf

from tf_reinforce.export import saved_model
from tf_reinforce.support import files
from tf_reinforce.support import startup


def write(folder, functions, layers):
    """Writes a file `NAME.tflite` with the signature NAME for each function.

    LiteRT's converter keeps the names of only one signature of a SavedModel. Therefore
    each function has a file of its own.

    Args:
        folder: Path of the folder of the files, which does not exist.
        functions: Dict of functions from `policy_functions.noise_functions`.
        layers: Keras layers whose weights the exported functions read.

    Raises:
        Exception: One of many types, if the converter does not support an operation.
    """
    os.makedirs(folder)
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "policy")
        with files.explain_failed_write(temporary):
            saved_model.write(path, functions, layers)
        for name in functions:
            with _quiet():
                model = tf.lite.TFLiteConverter.from_saved_model(
                    path, signature_keys=[name]
                ).convert()
            with open(os.path.join(folder, f"{name}.tflite"), "wb") as file:
                file.write(model)


@contextlib.contextmanager
def _quiet():
    """Removes messages of a conversion that are no errors.

    The converter warns that TensorFlow's own interpreter is deprecated, which is not
    used. The converter also prints the reason of a failed conversion, and raises an error
    with the same reason.
    """
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), startup.without_messages(startup.ANY_MESSAGE):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
