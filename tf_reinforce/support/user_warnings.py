"""Warns at the line of the user's program that has called the package."""

import os
import pathlib
import site
import sys
import sysconfig
import warnings

# Folders of the package, of installed packages and of Python's own modules.
LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(pathlib.Path(__file__).parents[1]),
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
    }
)


def warn(text):
    """Warns with a `UserWarning` at the innermost line outside of libraries.

    A warning at a line of Keras or of this package would show this line to the user.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
