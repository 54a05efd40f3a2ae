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
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except ValueError:  # of `__main__`
        spec = None
    if spec is None:
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
    if module.endswith(".py"):
        path = os.path.normpath(module.removesuffix(".py"))
        raise ValueError(
            f"`{option}` names a module, and no file: write "
            f"{path.replace(os.sep, '.')}:{function}. Received: {name}"
        )
    expect_module(module)


def import_module(module):
    """Imports a module of the user.

    Raises:
        ValueError: If there is none, or it raises an error or ends the process.
    """
    expect_module(module)
    startup.import_tensorflow()  # the module may import it
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # of the user's code
        raise ValueError(f"The module {module} fails: {describe(error)}") from error


def load(option, name):
    """Imports a module, and returns its function.

    Raises:
        ValueError: If the module cannot be imported, or has no such function.
    """
    expect_name(option, name)
    module, _, attribute = name.rpartition(":")
    content = import_module(module)
    function = getattr(content, attribute, None)
    if not callable(function):
        names = [x for x, value in vars(content).items() if inspect.isfunction(value)]
        similar = validation.similar(attribute, names)
        # It may be another file than that of the current folder.
        file = getattr(content, "__file__", None) or "which has no file"
        raise ValueError(
            f"`{option}` names no function of the module {module} ({file}).{similar} "
            f"Received: {name}"
        )
    return function


def parameters(option, name):
    """Returns the `inspect.Parameter`s of a function of the user, a list."""
    function = load(option, name)
    try:
        return [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # of some functions that are written in C
        raise ValueError(
            f"`{option}` must name a function that states its arguments. Received: {name}"
        ) from None


def defaults(option, name):
    """Returns the defaults of a function's arguments as a dict."""
    found = parameters(option, name)
    return {x.name: x.default for x in found if x.default is not x.empty}


def call(option, name, /, *args, **kwargs):
    """Calls a function of the user, and returns its result.

    Raises:
        ValueError: If the function raises an error or ends the process.
    """
    function = load(option, name)
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} fails: {describe(error)}") from error


def describe(error):
    """Returns type, text and place of an error in one line."""
    frames = [x for x in traceback.extract_tb(error.__traceback__) if x.line]
    own = [x for x in frames if not x.filename.startswith(validation.LIBRARIES)]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {validation.one_line(error)[:500]}{place}"
