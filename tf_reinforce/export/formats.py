"""Lists the formats of `Reinforce.export`, and writes an export."""

import re

import keras
import numpy as np

from tf_reinforce.export import litert_files
from tf_reinforce.export import onnx_files
from tf_reinforce.export import policy_functions
from tf_reinforce.export import policy_metadata
from tf_reinforce.export import runtimes
from tf_reinforce.export import saved_model
from tf_reinforce.support import files
from tf_reinforce.support import startup
from tf_reinforce.support import user_warnings

# A writer takes a new folder, the dict of functions, and the layers whose weights they
# read.
WRITERS = {
    "tf_saved_model": saved_model.write,
    "onnx": onnx_files.write,
    "litert": litert_files.write,
}


def write(name, path, policy, layers, observation_space):
    """Writes a policy in one of the formats of `WRITERS`, and replaces the old export.

    Args:
        name: String, the format, a key of `WRITERS`.
        path: Path of the folder of the export.
        policy: `live_policy.LivePolicy`, the policy.
        layers: List of the Keras layers whose weights the exported functions read, and of
            `None`s, which are ignored.
        observation_space: The observation space, or `None` if it is unknown.

    Raises:
        ValueError: If two arguments of an exported function have the same name, the
            folder at `path` cannot be replaced, or the format cannot express a function.
            TensorFlow cannot load a SavedModel from a path with `*`, `?`, `[` or a
            backslash.
        ImportError: If a package that the format needs is not installed.
    """
    is_saved_model = name == "tf_saved_model"
    if is_saved_model:
        files.expect_no_pattern(path)
    functions = policy.functions_for(name)
    if name == "litert":
        _warn_of_rounding(policy.actor)
    for function in functions.values():
        arguments = keras.tree.flatten(function.input_signature)
        names = [spec.name for spec in arguments]
        # TensorFlow, which also writes LiteRT files, does not distinguish `A` from `a`.
        is_exact = name == "onnx"
        policy_functions.check_distinct_names(
            names if is_exact else map(str.lower, names)
        )
    layers = [layer for layer in layers if layer is not None and layer.variables]
    with files.atomic_replace_folder(path) as temporary:
        try:
            WRITERS[name](temporary, functions, layers)
            policy_metadata.write(temporary, name, functions, policy, observation_space)
            if not is_saved_model:
                _run_once(temporary, functions)
        except (OSError, ImportError):
            raise
        # The converters and the runtimes raise many types of errors.
        except Exception as error:
            if is_saved_model:
                raise
            raise _not_expressible(name, policy.actor, error) from error


def _warn_of_rounding(actor):
    """Warns if rounding to float32 changes normalized observations by over 0.01."""
    for weights in filter(None, actor.centers):
        shift, factor = (np.abs(weight.numpy()) for weight in weights[2:])
        change = float(np.max(shift * factor, initial=0.0)) * 2.0**-24
        if change > 0.01:
            user_warnings.warn(
                "LiteRT computes in float32, which rounds the observations by up to "
                f"{change:.2g} of their standard deviation before they are normalized. "
                "Export to the format 'tf_saved_model' or 'onnx' instead."
            )


def _run_once(folder, functions):
    """Runs each exported function on a batch of two zeros; raises the runtime's error.

    A converter can write a file that the runtime does not accept.
    """
    with startup.without_messages():
        runners = runtimes.load(folder)
        for name, function in functions.items():
            specs = keras.tree.flatten(function.input_signature)
            runners[name]({x.name: _zeros(x) for x in specs})


def _zeros(spec):
    shape = [2 if size is None else size for size in spec.shape]
    return np.zeros(shape, spec.dtype.as_numpy_dtype)


def _not_expressible(name, actor, error):
    text = str(error)
    operation = re.search(r"'tf\.(\w+)' op is neither", text)
    reason = (
        f"LiteRT has no operation {operation[1]} for its number types"
        if operation
        else next((line for line in text.splitlines() if line.strip()), repr(error))
    )
    return ValueError(
        "`format` must be a format that can express the policy. Received: "
        f"format={name!r} for a policy that computes in {actor.dtype}, with the head "
        f"{actor.head!r} (the reason is: {reason[:300]}). Use format='tf_saved_model', "
        "which can express every policy, or replace the layer or head of the operation."
    )
