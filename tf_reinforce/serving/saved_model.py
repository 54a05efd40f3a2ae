"""Writes the functions of a policy as a SavedModel."""

import contextlib
import io

import keras

from tf_reinforce import files

_FOLDER_CONTENTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")


def check_distinct_names(names):
    """Raises `ValueError` if two names of a signature are equal."""
    if len(set(names)) < len(names):
        raise ValueError(
            "In a signature every part needs a name of its own, of letters, digits, '_' "
            f"and '.'. Received: {names}. Rename a key of the space with "
            "gymnasium.wrappers.TransformObservation or TransformAction."
        )


def write(path, functions, layers):
    """Writes functions as a SavedModel; an existing folder is replaced atomically.

    Args:
        path: Path of the folder.
        functions: Dict of functions, see `policy_functions.policy_functions`.
        layers: Keras layers whose weights the functions read.

    Raises:
        ValueError: if two arguments of a function have the same name.
    """
    for function in functions.values():
        arguments = keras.tree.flatten(function.input_signature)
        check_distinct_names([spec.name for spec in arguments])
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # Silences the description of the functions that Keras and TensorFlow print.
    silence = contextlib.redirect_stdout(io.StringIO())
    with files.atomic_replace_folder(path, _FOLDER_CONTENTS) as temporary, silence:
        archive.write_out(temporary, verbose=False)
