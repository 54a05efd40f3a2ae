"""Baselines, which are subtracted from returns to reduce the gradient's variance.

Subtracting a baseline does not change the expected gradient, provided that the baseline
of a step does not depend on the actions and rewards from that step on.

`Baseline.estimate` returns the values to subtract. A baseline that learns also
implements `apply_gradients`. If it learns by minimizing a loss, it implements `gradients`
as well.
"""

from tf_reinforce.baselines.base import Baseline
from tf_reinforce.baselines.base import BaselineBatch
from tf_reinforce.baselines.base import LeaveOneOut
from tf_reinforce.baselines.base import Mean
from tf_reinforce.baselines.base import MovingAverage
from tf_reinforce.baselines.base import TimeStep
from tf_reinforce.baselines.base import Zero
from tf_reinforce.baselines.value import Value
from tf_reinforce.settings import config

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

__dir__ = __all__.copy  # what tab completion shows


def get(identifier: str | Baseline | None) -> Baseline:
    """Returns the baseline for an agent's `baseline` argument.

    Args:
        identifier: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, a
            `Baseline`, or `None` for `Zero`.

    Raises:
        ValueError: If it is none of these.

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
