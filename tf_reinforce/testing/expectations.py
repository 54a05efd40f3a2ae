"""Compares expected gradients, as sums over all batches, with exact gradients."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

_MAX_BATCHES = 20_000


class GradientReport(NamedTuple):
    """The result of a check of `W` weights.

    The gradients of `check_gradient` and `check_logged_gradient` point in the direction
    of ascent, those of the other checks in the direction of descent.
    """

    expected: np.ndarray  # [W] float64, expectation of the update over all batches
    exact: np.ndarray  # [W] float64, gradient of the objective
    error: float  # largest difference between `expected` and `exact`
    relative_error: float  # norm of the difference over the norm of `exact`
    cosine: float  # cosine of the angle between both gradients, or NaN
    trajectories: int  # number of different samples, for example of trajectories
    batches: int  # number of enumerated batches, one update each


def compare(
    expected: np.ndarray,
    exact: np.ndarray,
    tolerance: float | None,
    message: tuple[str, str],
    **counts: int,
) -> GradientReport:
    """Returns the report; raises `AssertionError` if its error exceeds the tolerance.

    Args:
        expected, exact: `[W]` float, both gradients.
        tolerance: Float, the largest accepted error, or `None` for any.
        message: What the exact gradient is the gradient of, and a sentence about causes.
        **counts: The fields `trajectories` and `batches`.
    """
    difference, norm = expected - exact, np.linalg.norm
    report = GradientReport(
        expected,
        exact,
        error=float(np.abs(difference).max()),
        relative_error=_ratio(norm(difference), norm(exact)),
        cosine=_ratio(expected @ exact, norm(expected) * norm(exact)),
        **counts,
    )
    if tolerance is None or report.error <= tolerance:
        return report
    worst = int(np.argmax(np.abs(difference)))
    raise AssertionError(
        f"The expected update is not the gradient of {message[0]}. Expected: "
        f"{exact[worst]} for weight {worst}, within {tolerance}. Received: "
        f"{expected[worst]}. Over all {exact.size} weights the relative error is "
        f"{report.relative_error:.3g} and the cosine {report.cosine:.6f}. {message[1]}"
    )


def _ratio(numerator, denominator):
    return float(numerator / denominator) if denominator else math.nan


def batches(choices: Any, factor: int = 1) -> Iterator[tuple]:
    """Returns an iterator over all batches, with one of the `choices` in each place.

    Args:
        choices: List of sequences, what can stand in each place of a batch.
        factor: Int, the number of gradients that each batch needs.
    """
    check_count(factor * math.prod(map(len, choices)))
    return itertools.product(*choices)


def check_count(count: int) -> None:
    """Raises an error if there are too many batches or samples to enumerate."""
    if count > _MAX_BATCHES:
        raise ValueError(
            f"At most {_MAX_BATCHES} batches are enumerated. Received: {count}. Use a "
            "smaller batch, or a smaller head or model of the same kind."
        )


def check_probabilities(sums: np.ndarray, samples: str, hint: str) -> None:
    """Raises an error unless the probabilities of all samples sum to one.

    Args:
        sums: Array of sums.
        samples: What was summed, for the message.
        hint: A sentence about causes.
    """
    if not np.abs(sums - 1).max() < 1e-9:
        raise AssertionError(
            f"The probabilities of all {samples} must sum to 1. Received: "
            f"{sums.tolist()}. {hint}"
        )


def flat(values: Any) -> np.ndarray:
    """Returns a list of gradients as one float64 vector."""
    return np.concatenate([np.ravel(value) for value in values]).astype("float64")
