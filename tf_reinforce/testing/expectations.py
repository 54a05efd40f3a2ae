"""Compares expected gradients, as sums over all batches, with exact gradients."""

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

_MAX_BATCHES = 20_000


class GradientReport(NamedTuple):
    """What a gradient check found, for `W` weights.

    The gradients of `check_gradient` and `check_logged_gradient` point in the
    direction of ascent, and those of the other checks in the direction of descent.
    """

    expected: np.ndarray  # [W] float64, expectation of the update over all batches
    exact: np.ndarray  # [W] float64, gradient of the objective
    error: float  # largest difference between `expected` and `exact`
    relative_error: float  # norm of the difference over the norm of `exact`
    cosine: float  # cosine of the angle between both gradients, or NaN
    trajectories: int  # number of different samples, for example of trajectories
    batches: int  # number of enumerated batches, one update each


def compare(
    expected: tuple[np.ndarray, int],
    exact: np.ndarray,
    trajectories: int,
    tolerance: float | None,
    objective: str,
) -> GradientReport:
    """Returns the report, or raises `AssertionError` if its error exceeds the tolerance.

    Args:
        expected: What `expected` returns, a gradient and the number of batches.
        exact: `[W]` float, the exact gradient.
        trajectories: Int, the number of different samples.
        tolerance: Float, the largest accepted error, or `None` to accept any.
        objective: String for the message, the quantity whose gradient `exact` is.
    """
    gradient, batches = expected
    difference, norm = gradient - exact, np.linalg.norm
    report = GradientReport(
        gradient,
        exact,
        error=float(np.abs(difference).max()),
        relative_error=_ratio(norm(difference), norm(exact)),
        cosine=_ratio(gradient @ exact, norm(gradient) * norm(exact)),
        trajectories=trajectories,
        batches=batches,
    )
    if tolerance is None or report.error <= tolerance:
        return report
    worst = int(np.argmax(np.abs(difference)))
    raise AssertionError(
        f"The expected update is not the gradient of {objective}. Expected: "
        f"{exact[worst]} for weight {worst}, within {tolerance}. Received: "
        f"{gradient[worst]}. Over all {exact.size} weights the relative error is "
        f"{report.relative_error:.3g} and the cosine {report.cosine:.6f}. Check whether "
        "the baseline depends on the return or loss from which it is subtracted, whether "
        "log_prob passes the complete gradient, and whether an option is biased "
        "(docs/correctness.md)."
    )


def _ratio(numerator, denominator):
    return float(numerator / denominator) if denominator else math.nan


def expected(
    probs: Sequence[np.ndarray] | np.ndarray,
    gradient: Callable[[np.ndarray], Any],
    all_batches: Iterator[tuple[int, np.ndarray]] | None = None,
) -> tuple[np.ndarray, int]:
    """Returns the expected gradient Σ P(batch) g(batch), and the number of batches.

    Args:
        probs: One vector for each place in a batch, the probabilities of all samples
            there.
        gradient: Function that computes a batch's gradient. It takes an array with the
            index of the sample in each place.
        all_batches: What `batches` returns. The default is all batches in all orders.
    """
    sums = [float(place.sum()) for place in probs]
    if not np.allclose(sums, 1.0, rtol=0.0, atol=1e-9):
        raise AssertionError(
            f"The probabilities of all samples must sum to 1. Received: {sums}. Check "
            "`log_prob`, whether `actions` is complete, and whether all is float64 and "
            "nothing else random."
        )
    total, count = np.zeros(1), 0
    for times, batch in all_batches or batches([np.flatnonzero(x) for x in probs]):
        chance = math.prod(place[x] for place, x in zip(probs, batch, strict=True))
        total = total + times * chance * flat(gradient(batch))
        count += 1
    return total, count


def batches(
    choices: Sequence[Any], any_order: bool = False, factor: int = 1
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields all batches, each as `(multiplicity, indices of its samples)`.

    Args:
        choices: List of sequences, the samples that can stand in each place.
        any_order: Bool, whether a batch has the same gradient in any order. Then only one
            order is yielded, and the multiplicity is the number of orders. It is 1
            otherwise.
        factor: Int, how many gradients each batch needs.
    """
    size = len(choices)
    if not any_order:
        check_count(factor * math.prod(map(len, choices)))
        yield from ((1, np.array(batch)) for batch in itertools.product(*choices))
        return
    check_count(factor * math.comb(len(choices[0]) + size - 1, size))
    for batch in itertools.combinations_with_replacement(choices[0], size):
        repeats = collections.Counter(batch).values()
        times = math.factorial(size) // math.prod(map(math.factorial, repeats))
        yield times, np.array(batch)


def check_count(count: int) -> None:
    """Raises `ValueError` if there are too many batches or samples to enumerate."""
    if count > _MAX_BATCHES:
        raise ValueError(
            f"At most {_MAX_BATCHES} batches are enumerated. Received: {count}. Use a "
            "smaller batch, or a smaller head or model of the same kind."
        )


def flat(values: Any) -> np.ndarray:
    """Joins a list of gradients or weights into one float64 vector."""
    return np.concatenate([np.ravel(value) for value in values]).astype("float64")
