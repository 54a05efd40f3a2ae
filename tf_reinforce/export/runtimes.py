"""Runs exported policies with NumPy and a runtime, without this package.

It is also a program, which can run in a process that does not import tf_reinforce:

    python runtimes.py FOLDER INPUTS.npz RESULTS.npz

In INPUTS, the array `act/observation` is the argument `observation` of `act`.
"""

import importlib
import json
import os
import sys

import numpy as np

FILE_NAME = "policy.json"


def read_metadata(folder):
    """Returns the content of an export's `policy.json`."""
    with open(os.path.join(folder, FILE_NAME)) as file:
        return json.loads(file.read())


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
    metadata = read_metadata(folder)
    module, load_functions = _RUNTIMES[metadata["format"]]
    return load_functions(importlib.import_module(module), folder, metadata["functions"])


def _load_saved_model(tensorflow, folder, functions):
    signatures = tensorflow.saved_model.load(os.fspath(folder)).signatures

    def function(signature):
        names = signature.structured_input_signature[1]

        def run(inputs):
            tensors = {
                name: tensorflow.constant(inputs[name])
                for name in inputs.keys() & names.keys()
            }
            return {name: array.numpy() for name, array in signature(**tensors).items()}

        return run

    return {name: function(signatures[name]) for name in functions}


def _load_onnx(onnxruntime, folder, functions):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # policies are small

    def function(name):
        session = onnxruntime.InferenceSession(
            os.path.join(folder, f"{name}.onnx"),
            options,
            providers=["CPUExecutionProvider"],
        )
        inputs_names = {x.name for x in session.get_inputs()}
        results_names = [x.name for x in session.get_outputs()]

        def run(inputs):
            inputs = {name: inputs[name] for name in inputs.keys() & inputs_names}
            results = session.run(results_names, inputs)
            return dict(zip(results_names, results, strict=True))

        return run

    return {name: function(name) for name in functions}


def _load_litert(litert, folder, functions):
    def function(name):
        path = os.path.join(folder, f"{name}.tflite")
        interpreter = litert.Interpreter(path, num_threads=1)
        # The runner resizes the arguments of the model to the size of the batch.
        runner = interpreter.get_signature_runner(name)
        names = runner.get_input_details()

        def run(inputs):
            results = runner(**{name: inputs[name] for name in inputs.keys() & names})
            return {name: np.array(array) for name, array in results.items()}

        return run

    return {name: function(name) for name in functions}


# The module that each format needs, and the function that reads the files of the format.
_RUNTIMES = {
    "tf_saved_model": ("tensorflow", _load_saved_model),
    "onnx": ("onnxruntime", _load_onnx),
    "litert": ("ai_edge_litert.interpreter", _load_litert),
}


def run(folder, arrays):
    """Loads an export, and calls its functions with the given arrays.

    Args:
        folder: Path of the export.
        arrays: Dict of arrays with the keys FUNCTION/ARGUMENT, for example
            `act/observation`.

    Returns:
        Dict of arrays with the keys FUNCTION/RESULT, for example `act/action`.
    """
    inputs, results = {}, {}
    for key, array in arrays.items():
        name, argument = key.split("/")
        inputs.setdefault(name, {})[argument] = array
    functions = load(folder)
    for name, arguments in inputs.items():
        for result, array in functions[name](arguments).items():
            results[f"{name}/{result}"] = array
    return results


def main(folder, inputs_path, results_path):
    """Runs the functions named in a file of arrays, and writes their results."""
    with np.load(inputs_path) as file:
        results = run(folder, dict(file))
    if "tf_reinforce" in sys.modules:
        raise SystemExit("the export imported tf_reinforce")
    np.savez(results_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
