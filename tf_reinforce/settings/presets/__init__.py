"""Provides presets, TOML files with the settings to train an agent on an environment.

A preset file contains the environment, the arguments of `Reinforce.for_env` in `[agent]`,
the arguments of `fit` in `[fit]`, and the settings of the evaluation in `[evaluation]`.
All settings of a preset can also be passed as Python arguments. A preset file and
`Reinforce.for_env` accept the following values for a baseline, a head and a learning
rate:

    baseline       "leave_one_out", "mean", "moving_average", "time_step", "none", or a
                   value network:
                   {kind = "value", hidden = [64, 64], learning_rate = 0.005}
    head           the name of a head for a Box, or {kind = "Gaussian", …} with arguments;
                   the bounds are those of the environment
    learning_rate  a number, or {first = 0.01, last = 0.001}: changes linearly over the
                   budget of `fit`

The table `[agent]` may also contain `steps_per_execution`, an argument of `compile`.
"""

from tf_reinforce.settings.toml_files import names
from tf_reinforce.settings.toml_files import read

__all__ = ["names", "read"]


def __dir__() -> list[str]:
    return __all__
