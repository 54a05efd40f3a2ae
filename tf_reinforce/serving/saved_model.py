"""Writes the functions of a policy as a SavedModel."""

import contextlib
import io

import keras

from tf_reinforce import files

_NAMES = ("saved_model.pb", "fingerprint.pb", "variables", "assets")


def _expect_distinct_names(names):
    if len(set(names)) < len(names):
        raise ValueError(
            "In a signature every part needs a name of its own, of letters, digits, '_' "
            f"and '.'. Received: {names}. Rename a key of the space with "
            "gymnasium.wrappers.TransformObservation or TransformAction."
        )


def write(path, functions, layers):
    """Writes the endpoints as a SavedModel; a folder that was there is replaced whole.

    Args:
        path: Path of the folder.
        functions: See `endpoints`.
        layers: Keras layers whose weights the functions read.

    Raises:
        ValueError: when two arguments of a function have the same name.
    """
    for function in functions.values():
        arguments = keras.tree.flatten(function.input_signature)
        _expect_distinct_names([spec.name for spec in arguments])
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # TensorFlow prints a description of the endpoints; `endpoints` has a better one.
    quiet = contextlib.redirect_stdout(io.StringIO())
    with files.atomic_replace_folder(path, _NAMES) as aside, quiet:
        archive.write_out(aside, verbose=False)
