"""The command line: `tf-reinforce`, also `python -m tf_reinforce`.

The module `entry` parses the arguments and calls the function of the command. Importing
TensorFlow takes seconds, so it is imported only inside the functions that need it, which
keeps `--help` fast.
"""

from tf_reinforce.cli.entry import main

__all__ = ["main"]
