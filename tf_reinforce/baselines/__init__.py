"""Baselines, which are subtracted from returns to reduce the variance.

The expected gradient stays the same if the baseline of a step depends on nothing that
its own episode does from that step on. `Baseline.estimate` returns what is subtracted.
A baseline with weights also implements `gradients` and `apply_gradients`.
"""

from tf_reinforce.baselines.averages import LeaveOneOut
from tf_reinforce.baselines.averages import Mean
from tf_reinforce.baselines.averages import MovingAverage
from tf_reinforce.baselines.averages import TimeStep
from tf_reinforce.baselines.base import Baseline
from tf_reinforce.baselines.base import BaselineBatch
from tf_reinforce.baselines.base import Zero
from tf_reinforce.baselines.value import Value

__all__ = [
    "Baseline",
    "BaselineBatch",
    "LeaveOneOut",
    "Mean",
    "MovingAverage",
    "TimeStep",
    "Value",
    "Zero",
    "get",
]


def get(identifier):
    """The baseline meant by a name, an object or `None`.

    Args:
        identifier: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, a
            `Baseline`, or `None` for nothing.

    Raises:
        ValueError: when it is none of these.

    Example:

    >>> type(get("mean")).__name__
    'Mean'
    """
    if isinstance(identifier, Baseline):
        return identifier
    named = {
        "leave_one_out": LeaveOneOut,
        "mean": Mean,
        "moving_average": MovingAverage,
        "time_step": TimeStep,
        None: Zero,
    }
    if not isinstance(identifier, str | None) or identifier not in named:
        raise ValueError(
            "`baseline` must be 'leave_one_out', 'mean', 'moving_average', 'time_step', "
            "None or an object from tfr.baselines, for example Value(model). "
            f"Received: baseline={identifier!r}"
        )
    return named[identifier]()
