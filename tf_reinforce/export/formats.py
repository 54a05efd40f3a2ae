"""Writes and loads exports: a SavedModel, or one ONNX or LiteRT file per function."""

import contextlib
import io
import json
import logging
import math
import os
import pathlib
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter as litert

from tf_reinforce.data import spaces
from tf_reinforce.export import policy_functions
from tf_reinforce.support import extras
from tf_reinforce.support import files
from tf_reinforce.support import startup
from tf_reinforce.support import validation
from tf_reinforce.support import version

FILE_NAME = "policy.json"


def _write_saved_model(folder, functions, layers):
    archive = keras.export.ExportArchive()
    for layer in layers:
        archive.track(layer)
    for name, function in functions.items():
        archive.add_endpoint(name, function)
    # Silences the description of the functions that Keras and TensorFlow print.
    with contextlib.redirect_stdout(io.StringIO()):
        archive.write_out(folder, verbose=False)


def _write_onnx(folder, functions, layers):
    with warnings.catch_warnings(action="ignore"):
        extras.load("onnxruntime", "export")  # `_run_once` needs it
        tf2onnx = extras.load("tf2onnx", "export")
    os.makedirs(folder)
    for name, function in functions.items():
        # tf2onnx logs an operation that it cannot convert, and writes an invalid file,
        # which the runtime refuses.
        with _quiet():
            model, _ = tf2onnx.convert.from_function(function, function.input_signature)
        pathlib.Path(folder, f"{name}.onnx").write_bytes(model.SerializeToString())


def _write_litert(folder, functions, layers):
    os.makedirs(folder)
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "policy")
        with files.explain_failed_write(temporary):
            _write_saved_model(path, functions, layers)
        # The converter keeps the names of only one signature, so each has its own file.
        for name in functions:
            # It prints the reason of a failure, and raises an error with the same reason.
            with _quiet(), startup.without_messages(startup.ANY_MESSAGE):
                read = tf.lite.TFLiteConverter.from_saved_model
                model = read(path, signature_keys=[name]).convert()
            pathlib.Path(folder, f"{name}.tflite").write_bytes(model)


@contextlib.contextmanager
def _quiet():
    """Hides warnings and the messages of all loggers."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


# A writer takes a new folder, the dict of functions, and the layers whose weights they
# read.
WRITERS = {
    "tf_saved_model": _write_saved_model,
    "onnx": _write_onnx,
    "litert": _write_litert,
}


def write(name, path, policy, layers, observation_space):
    """Writes a policy in one of the formats of `WRITERS`, replacing an older export.

    Args:
        name: String, the format, a key of `WRITERS`.
        path: Path of the folder to write.
        policy: `live_policy.LivePolicy`.
        layers: List of the Keras layers whose weights the functions read. Entries that
            are `None` are ignored.
        observation_space: The observation space, or `None` if it is unknown.

    Raises:
        ValueError: If two arguments of a function have the same name, the folder at
            `path` cannot be replaced, or the format cannot express the policy. For a
            SavedModel, also if `path` contains `*`, `?`, `[` or a backslash, which
            TensorFlow cannot load.
        ImportError: If a package that the format needs is not installed.
    """
    is_saved_model = name == "tf_saved_model"
    if is_saved_model:
        files.expect_no_pattern(path)
    functions = policy.functions_for(name)
    if name == "litert":
        _warn_of_rounding(policy.actor)
    for function in functions.values():
        names = [spec.name for spec in keras.tree.flatten(function.input_signature)]
        # TensorFlow, which also writes LiteRT files, does not distinguish `A` from `a`.
        names = names if name == "onnx" else [x.lower() for x in names]
        policy_functions.check_distinct_names(names)
    layers = [layer for layer in layers if layer is not None and layer.variables]
    with files.atomic_replace_folder(path) as temporary:
        try:
            WRITERS[name](temporary, functions, layers)
            _write_metadata(temporary, name, functions, policy, observation_space)
            if not is_saved_model:
                _run_once(temporary, functions)
        except (OSError, ImportError):
            raise
        # The converters and the runtimes raise many types of errors.
        except Exception as error:
            if is_saved_model:
                raise
            reason = (str(error).strip() or repr(error)).splitlines()[0][:300]
            raise ValueError(
                "`format` must be a format that can express the policy. Received: "
                f"format={name!r} for a policy that computes in {policy.actor.dtype}, "
                f"with the head {policy.actor.head!r} ({reason}). Use "
                "format='tf_saved_model', or replace the layer or head."
            ) from error


def _warn_of_rounding(actor):
    """Warns if rounding to float32 changes normalized observations by more than 0.01."""
    for weights in filter(None, actor.centers):
        shift, factor = (np.abs(weight.numpy()) for weight in weights[2:])
        change = float(np.max(shift * factor, initial=0.0)) * 2.0**-24
        if change > 0.01:
            validation.warn(
                "LiteRT computes in float32, which rounds the observations by up to "
                f"{change:.2g} of their standard deviation before they are normalized. "
                "Export to the format 'tf_saved_model' or 'onnx' instead."
            )


def _run_once(folder, functions):
    """Runs each exported function on a batch of two zeros; raises the runtime's error.

    A converter can write a file that the runtime does not accept.
    """
    with startup.without_messages():
        runners = load(folder)
        for name, function in functions.items():
            zeros = {}
            for spec in keras.tree.flatten(function.input_signature):
                shape = [2 if size is None else size for size in spec.shape]
                zeros[spec.name] = np.zeros(shape, spec.dtype.as_numpy_dtype)
            runners[name](zeros)


def _write_metadata(folder, name, functions, policy, observation_space):
    """Writes `policy.json`, which describes the exported policy."""
    actor, described = policy.actor, {}
    for key, function in functions.items():
        results = function.get_concrete_function().structured_outputs
        arrays = [_array(*result) for result in results.items()]
        described[key] = {"inputs": _inputs(function, actor), "results": arrays}
    states = actor.named_states(actor.initial_state(1))
    metadata = {
        "format": name,
        **version.stamp(),
        "head": repr(actor.head),
        "functions": described,
        "initial_state": {key: x.numpy()[0].tolist() for key, x in states.items()},
        "observation_space": spaces.to_config(observation_space),
        "action_space": spaces.to_config(policy.action_space),
    }
    # JavaScript reads no infinite numbers.
    metadata = keras.tree.map_structure(
        lambda x: None if isinstance(x, float) and math.isinf(x) else x, metadata
    )
    text = json.dumps(metadata, indent=2, allow_nan=False) + "\n"
    pathlib.Path(folder, FILE_NAME).write_text(text)


_ROLES = "action_mask", "raw_action", "noise", "state", "previous", "seed", "count"


def _inputs(function, actor):
    """Describes each argument of an exported function for `policy.json`."""
    kinds = iter(part.kind for part in actor.noise_specs)
    inputs = []
    for position, argument in enumerate(function.input_signature):
        for spec in keras.tree.flatten(argument):
            role = "observation"
            if position or not spec.shape.rank:
                role = next(x for x in _ROLES if spec.name.startswith(x))
                role = "state" if role == "previous" else role
            more = {"distribution": next(kinds)} if role == "noise" else {}
            inputs.append({**_array(spec.name, spec), "role": role, **more})
    return inputs


def _array(name, tensor):
    return {"name": name, "shape": tensor.shape.as_list(), "dtype": tensor.dtype.name}


def read_metadata(folder):
    """Returns the content of an export's `policy.json`."""
    return json.loads(pathlib.Path(folder, FILE_NAME).read_text())


def load(folder):
    """Loads the functions of an exported policy.

    Args:
        folder: Path that was passed to `Reinforce.export`.

    Returns:
        Dict of Python functions by name. Each takes and returns a dict of NumPy arrays by
        name. Arguments that the exported function does not have are ignored.

    Raises:
        ImportError: If the format's runtime is not installed.
        OSError, ValueError: If the folder is not an export.
    """

    def function(names, run):
        def call(inputs):
            results = run(**{name: inputs[name] for name in inputs.keys() & names})
            return {name: np.array(array) for name, array in results.items()}

        return call

    metadata = read_metadata(folder)
    loaded = _LOADERS[metadata["format"]](os.fspath(folder))
    return {name: function(*loaded(name)) for name in metadata["functions"]}


# A loader takes a folder, and returns a function from the name of an exported function to
# the names of its arguments, and a function that takes and returns arrays by name.


def _load_saved_model(folder):
    signatures = tf.saved_model.load(folder).signatures

    def loaded(name):
        run = signatures[name]

        def run_on_arrays(**inputs):
            return run(**{key: tf.constant(array) for key, array in inputs.items()})

        return run.structured_input_signature[1].keys(), run_on_arrays

    return loaded


def _load_onnx(folder):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # policies are small

    def loaded(name):
        path, providers = os.path.join(folder, f"{name}.onnx"), ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, options, providers)
        results = [x.name for x in session.get_outputs()]

        def run(**inputs):
            return dict(zip(results, session.run(results, inputs), strict=True))

        return {x.name for x in session.get_inputs()}, run

    return loaded


def _load_litert(folder):
    def loaded(name):
        path = os.path.join(folder, f"{name}.tflite")
        interpreter = litert.Interpreter(path, num_threads=1)
        # The runner resizes the arguments of the model to the size of the batch.
        runner = interpreter.get_signature_runner(name)
        return runner.get_input_details().keys(), runner

    return loaded


_LOADERS = {
    "tf_saved_model": _load_saved_model,
    "onnx": _load_onnx,
    "litert": _load_litert,
}
