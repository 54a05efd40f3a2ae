"""Finds the line of an environment's code in which an exception was raised."""

import pathlib
import traceback

_PACKAGE = pathlib.Path(__file__).parents[1]


def place(error):
    """Returns where an environment raised an exception, or an empty string.

    The place is the innermost line outside of this package and of installed packages. If
    only an installed package has raised the exception, the result is empty.

    Args:
        error: The exception, with its traceback.

    Returns:
        String, for example `" (my_env.py, line 12, in step: assert action > 0)"`.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and _PACKAGE not in pathlib.Path(frame.filename).parents
    ]
    if not frames:
        return ""
    last = frames[-1]
    name = pathlib.Path(last.filename).name
    source = f": {last.line}" if last.line else ""
    return f" ({name}, line {last.lineno}, in {last.name}{source})"
