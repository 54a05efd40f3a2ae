"""Presets: TOML files with the settings to train an agent on an environment.

A file names the environment. Its table `[agent]` contains arguments of
`Reinforce.for_env`, and its table `[fit]` contains arguments of `fit`. A third table,
`[evaluation]`, says how the agent is evaluated.

You can also pass the same settings as Python arguments. A preset and Python accept these
values for a baseline, a head and a learning rate:

    baseline       "leave_one_out", "mean", "moving_average", "time_step", "none", or a
                   value network:
                   {kind = "value", hidden = [64, 64], learning_rate = 0.005}
    head           the name of a head for a Box, or {kind = "Gaussian", …} with arguments;
                   the bounds are those of the environment
    learning_rate  a number, or {first = 0.01, last = 0.001}: changes linearly over the
                   budget of `fit`

`[agent]` may also contain `steps_per_execution`, an argument of `compile`.
"""

from tf_reinforce.settings.toml_files import names
from tf_reinforce.settings.toml_files import read

__all__ = ["names", "read"]

__dir__ = __all__.copy  # what tab completion shows
