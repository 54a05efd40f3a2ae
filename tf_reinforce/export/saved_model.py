"""Writes the functions of a policy as a SavedModel."""

import contextlib
import io

import keras


def write(folder, functions, layers):
    """Writes functions as a SavedModel, with a signature for each function.

    Args:
        folder: Path of the folder of the SavedModel, which does not exist.
        functions: Dict of functions from `policy_functions.seed_functions`.
        layers: Keras layers whose weights the exported functions read.
    """
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # Silences the description of the functions that Keras and TensorFlow print.
    with contextlib.redirect_stdout(io.StringIO()):
        archive.write_out(folder, verbose=False)
