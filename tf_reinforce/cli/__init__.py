"""Defines the command line: `tf-reinforce`, also `python -m tf_reinforce`.

The function `main` parses the arguments (`parsers.py`), and calls the function `run` of
the command. Each command has a file of its own, for example `train.py`. Modules that
import TensorFlow are imported inside functions, so that `--help` is fast.
"""

from tf_reinforce.cli.entry import main

__all__ = ["main"]
