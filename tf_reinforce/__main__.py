"""Runs the command line as a process: `tf-reinforce`, also `python -m tf_reinforce`."""

import atexit
import gc
import sys

from tf_reinforce import cli


def main():
    """Runs the command line and returns its exit code.

    Most objects belong to TensorFlow and live as long as the process, so looking for
    garbage takes time and finds little. Garbage collection is therefore made rare, and
    skipped at the exit.
    """
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
