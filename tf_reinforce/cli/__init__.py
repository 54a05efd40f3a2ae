"""Defines the command line: `tf-reinforce`, also `python -m tf_reinforce`.

The function `main` parses the arguments (`parsers.py`), and calls the function of the
command (`train.py`, `commands.py`). Modules that import TensorFlow are imported inside
functions, so that `--help` is fast.
"""

from tf_reinforce.cli.entry import main

__all__ = ["main"]
