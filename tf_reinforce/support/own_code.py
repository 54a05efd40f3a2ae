"""Functions in modules of the user, named `MODULE:FUNCTION` on the command line."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback

from tf_reinforce.support import startup
from tf_reinforce.support import validation


def expect_module(module):
    """Raises `ValueError` unless Python can find a module, which is not imported.

    A file in the current folder is a module too.
    """
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # a console script, unlike `python -m`, omits it
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise ValueError(
            f"There is no module {module!r} in the current folder, {folder}, or among "
            "the installed packages."
        )


def expect_name(option, name):
    """Raises `ValueError` unless a name is `MODULE:FUNCTION` with an existing module.

    Args:
        option: String, the option for the message, for example `"--agent"`.
        name: String.
    """
    module, _, function = name.rpartition(":")
    if not module or not function.isidentifier():
        raise ValueError(
            f"`{option}` must be MODULE:FUNCTION, for example my_module:make_agent. "
            f"Received: {name}"
        )
    expect_module(module)


def load(option, name):
    """Imports a module, and returns its function.

    Raises:
        ValueError: If the module cannot be imported, or has no such function.
    """
    expect_name(option, name)
    module, _, attribute = name.rpartition(":")
    startup.import_tensorflow()  # the module may import it
    try:
        content = importlib.import_module(module)
    except Exception as error:  # of the user's code
        raise ValueError(f"The module {module} fails: {describe(error)}") from error
    function = getattr(content, attribute, None)
    if not callable(function):
        names = [x for x, value in vars(content).items() if inspect.isfunction(value)]
        similar = validation.similar(attribute, names)
        raise ValueError(
            f"`{option}` names no function of {module}.{similar} Received: {name}"
        )
    return function


def defaults(option, name):
    """Returns the defaults of a function's arguments as a dict."""
    parameters = inspect.signature(load(option, name)).parameters.values()
    return {x.name: x.default for x in parameters if x.default is not x.empty}


def call(option, name, *args, **kwargs):
    """Calls a function of the user, and returns its result.

    Raises:
        ValueError: If the function raises an error.
    """
    function = load(option, name)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise ValueError(f"{name} fails: {describe(error)}") from error


def describe(error):
    """Returns type, text and place of an error in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [x for x in frames if "site-packages" not in x.filename and x.line]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {validation.one_line(error)[:500]}{place}"
