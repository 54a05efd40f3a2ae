"""Finds the line of an environment's code in which an exception was raised."""

import pathlib
import traceback

from tf_reinforce.support import user_warnings


def place(error):
    """Returns where an environment raised an exception, or an empty string.

    The place is the innermost line outside of this package, of installed packages and of
    Python's own modules. If there is no such line, the result is empty.

    Args:
        error: The exception, with its traceback.

    Returns:
        String, for example `" (my_env.py, line 12, in step: assert action > 0)"`.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*user_warnings.LIBRARIES, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    name = pathlib.Path(last.filename).name
    source = f": {last.line}" if last.line else ""
    return f" ({name}, line {last.lineno}, in {last.name}{source})"
