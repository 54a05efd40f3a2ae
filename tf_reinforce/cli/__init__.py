"""The command line: `tf-reinforce`, also `python -m tf_reinforce`.

`entry.py` parses the arguments and calls the command's function. TensorFlow is imported
inside functions only, which keeps `--help` fast.
"""

from tf_reinforce.cli.entry import main

__all__ = ["main"]
