"""Presets: settings to train an environment with, one TOML file each.

A file holds nothing that Python could not say: the environment, the keywords of
`Reinforce.for_env` in `[agent]`, of `fit` in `[fit]`, and how to evaluate in
`[evaluation]`. What takes an object may be named, here and in `for_env`:

    baseline       "leave_one_out", "mean", "moving_average", "time_step", "none", or a
                   value network:
                   {kind = "value", hidden = [64, 64], learning_rate = 0.005}
    head           the name of a head for a Box, or {kind = "Gaussian", …} with keywords;
                   the bounds are those of the environment
    learning_rate  a number, or {first = 0.01, last = 0.001}: linear over the budget,
                   however long that is
"""

from tf_reinforce.presets.toml_files import names
from tf_reinforce.presets.toml_files import read

__all__ = ["names", "read"]
