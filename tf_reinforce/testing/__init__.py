"""Checks custom heads and baselines against exact expected values.

`check_gradient` compares the expected update of an agent with the gradient of the
expected return. `check_head` compares a head with the definition of a distribution.
"""

from tf_reinforce.testing.distributions import check_head
from tf_reinforce.testing.gradients import GradientReport
from tf_reinforce.testing.gradients import check_gradient

__all__ = ["GradientReport", "check_gradient", "check_head"]


def __dir__() -> list[str]:
    return __all__
