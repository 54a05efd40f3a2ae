"""Checks the parameters of a distribution and its sampled action, without TensorFlow."""

import numpy as np

# The names of the arguments that belong together, in alphabetical order.
COMBINATIONS = (
    ("action", "probs"),
    ("action", "logits"),
    ("counts",),
    ("counts", "probs"),
    ("counts", "logits"),
    ("mean", "sample", "std"),
)


def check(**arguments):
    """Returns the arguments of `explanation.text` as finite arrays, or raises an error.

    Returns:
        Dict of float64 vectors, in which `action` is one number.

    Raises:
        ValueError: If the arguments do not belong together, or a value is invalid.
    """
    if tuple(sorted(arguments)) not in COMBINATIONS:
        received = ", ".join(sorted(arguments)) or "nothing"
        raise ValueError(
            "Pass `probs` or `logits` with `action` or `counts`, or pass `mean`, `std` "
            "and `sample`. On the command line, for example: --probs 0.2 0.8 --action "
            f"1. Received: {received}."
        )
    arrays = {name: _numbers(name, values) for name, values in arguments.items()}
    vectors = {name: x for name, x in arrays.items() if name != "action"}
    if len({x.size for x in vectors.values()}) > 1:
        sizes = ", ".join(f"{x.size} {name}" for name, x in vectors.items())
        raise ValueError(
            f"{_quoted(vectors)} must have equally many numbers. Received: {sizes}"
        )
    for name in vectors.keys() & {"probs", "counts"}:
        _expect(name, vectors[name] >= 0, "must not be negative", vectors[name])
    if "std" in vectors:
        _expect("std", vectors["std"] > 0, "must be above zero", vectors["std"])
    for name in arrays.keys() & {"action", "counts"}:
        is_whole = arrays[name] == np.round(arrays[name])
        _expect(name, is_whole, "must be whole numbers", arrays[name])
    _check_sampled(arrays)
    return arrays


def _numbers(name, values):
    """Returns finite numbers as a float64 vector, and the argument `action` unchanged."""
    values = np.asarray(values)
    ranks = (0,) if name == "action" else (0, 1)
    if values.dtype.kind not in "fiu" or values.ndim not in ranks or not values.size:
        shape = "one number" if name == "action" else "a row of one or more numbers"
        raise ValueError(f"`{name}` must be {shape}. Received: {values.tolist()!r}")
    _expect(name, np.isfinite(values), "must be finite", values)
    return values if name == "action" else np.atleast_1d(values).astype("float64")


def _check_sampled(arrays):
    """Raises `ValueError` unless the sampled categories exist and are possible."""
    if "counts" in arrays:
        counts = arrays["counts"]
        _expect("counts", counts.sum() >= 1, "must have a sum of at least 1", counts)
    elif "action" in arrays:
        action, size = arrays["action"], len(arrays.get("probs", arrays.get("logits")))
        in_range = (action >= 0) & (action < size)
        _expect("action", in_range, f"must lie in 0 to {size - 1}", action)
        counts = np.eye(size)[int(action)]
    if "probs" in arrays:
        possible = (arrays["probs"] > 0) | (counts == 0)
        requirement = "must be above zero for every sampled category"
        _expect("probs", possible, requirement, arrays["probs"])


def _expect(name, valid, requirement, values):
    if not np.all(valid):
        raise ValueError(f"`{name}` {requirement}. Received: {name}={values.tolist()!r}")


def _quoted(names):
    return ", ".join(f"`{name}`" for name in names)
