"""Defines the command line: `tf-reinforce`, also `python -m tf_reinforce`.

`entry.py` parses the arguments and calls the function of the command. Modules that import
TensorFlow are imported inside functions, so that `--help` is fast.
"""

from tf_reinforce.cli.entry import main

__all__ = ["main"]
