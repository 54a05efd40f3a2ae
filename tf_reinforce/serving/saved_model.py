"""Writes the functions of a policy as a SavedModel."""

import contextlib
import io

import keras

from tf_reinforce import files


def write(path, functions, layers):
    """Writes functions to a SavedModel, and replaces an earlier export atomically.

    Args:
        path: Path of the folder of the SavedModel.
        functions: Dict of functions from `policy_functions.policy_functions`.
        layers: Keras layers whose weights the exported functions read.

    Raises:
        ValueError: If `path` is a file, or a folder with files that no earlier export
            has written.
    """
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # Silences the description of the functions that Keras and TensorFlow print.
    silence = contextlib.redirect_stdout(io.StringIO())
    with files.atomic_replace_folder(path) as temporary, silence:
        archive.write_out(temporary, verbose=False)
