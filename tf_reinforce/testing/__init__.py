"""Checks heads, baselines and exported policies against expected values.

Use these checks to test your own parts. `check_gradient` compares an agent's expected
update with the exact gradient, which reveals a biased baseline. `check_head` tests
whether a head follows the definition of a distribution, and `check_export` compares an
exported policy with the agent that wrote it.
"""

from tf_reinforce.testing.distributions import check_head
from tf_reinforce.testing.expectations import GradientReport
from tf_reinforce.testing.export_report import ExportReport
from tf_reinforce.testing.export_report import check_export
from tf_reinforce.testing.gradients import check_gradient
from tf_reinforce.testing.sample_paths import check_logged_gradient
from tf_reinforce.testing.sample_paths import check_score_function
from tf_reinforce.testing.token_sequences import check_sequence_gradient

__all__ = [
    "ExportReport",
    "GradientReport",
    "check_export",
    "check_gradient",
    "check_head",
    "check_logged_gradient",
    "check_score_function",
    "check_sequence_gradient",
]

__dir__ = __all__.copy  # what tab completion shows
