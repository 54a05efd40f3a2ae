"""Baselines, which are subtracted from returns to reduce the variance.

A baseline does not change the expected gradient if its value at a step does not depend on
the actions and rewards of the same episode from that step on. `Baseline.estimate` returns
the values that are subtracted. A baseline with weights also implements `gradients` and
`apply_gradients`.
"""

from tf_reinforce import config
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


def __dir__() -> list[str]:
    return __all__


def get(identifier: str | Baseline | None) -> Baseline:
    """Returns a baseline for a name, a baseline or `None`.

    Args:
        identifier: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, a
            `Baseline`, or `None` for no baseline (`Zero`).

    Returns:
        `Baseline`.

    Raises:
        ValueError: if the identifier is none of these.

    Example:

    >>> type(get("mean")).__name__
    'Mean'
    """
    if isinstance(identifier, Baseline):
        return identifier
    if identifier is None:
        return Zero()
    if not isinstance(identifier, str) or identifier not in config.BASELINES:
        raise ValueError(
            f"`baseline` must be {', '.join(map(repr, config.BASELINES))}, None or a "
            "baseline from tfr.baselines, for example Value(model). "
            f"Received: baseline={identifier!r}"
        )
    return globals()[config.BASELINES[identifier]]()
