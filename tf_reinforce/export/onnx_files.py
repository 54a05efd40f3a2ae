"""Writes each function of a policy as an ONNX file."""

import contextlib
import logging
import os
import warnings


def write(folder, functions, layers):
    """Writes a file `NAME.onnx` for each function.

    Args:
        folder: Path of the folder of the files, which does not exist.
        functions: Dict of functions from `policy_functions.noise_functions`.
        layers: Keras layers whose weights the exported functions read. ONNX files contain
            the weights as constants, so the layers are not used.

    Raises:
        ImportError: If tf2onnx is not installed.
        ValueError: If tf2onnx does not support an operation.
    """
    convert = _tf2onnx().convert
    os.makedirs(folder)
    for name, function in functions.items():
        with _quiet() as errors:
            model, _ = convert.from_function(function, function.input_signature)
        if errors:
            raise ValueError(errors[0])
        with open(os.path.join(folder, f"{name}.onnx"), "wb") as file:
            file.write(model.SerializeToString())


@contextlib.contextmanager
def _quiet():
    """Yields a list, and appends the errors that tf2onnx logs to the list.

    tf2onnx logs an operation that it cannot convert, and then writes an invalid file. The
    warnings of tf2onnx concern its own code.
    """
    errors, logger = [], logging.getLogger("tf2onnx")
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield errors
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _tf2onnx():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import onnxruntime  # noqa: F401  (the export is run once)
            import tf2onnx
    except ImportError as error:
        raise ImportError(
            "An export to ONNX needs tf2onnx and onnxruntime. Install them with "
            '`pip install "tf-reinforce[export]"`.'
        ) from error
    return tf2onnx
