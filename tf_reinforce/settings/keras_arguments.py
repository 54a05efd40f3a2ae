"""Errors for arguments that users know from Keras and other libraries."""

import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tf_reinforce.support import locks
from tf_reinforce.support import validation

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Arguments of Keras and other libraries, and what to pass instead.
_INSTEAD = {
    **dict.fromkeys("xy", "an environment, which plays the episodes, to `fit`"),
    "batch_size": "`episodes_per_epoch` to `fit`, or `minibatch_size` to `Reinforce`",
    **dict.fromkeys(("validation_data", "validation_split"), "`validation_env` to `fit`"),
    "validation_steps": "`validation_episodes` to `fit`",
    "total_timesteps": "`steps` to `fit`",
    **dict.fromkeys(("steps_per_execution", "jit_compile"), "it to `compile`"),
    "optimizer": "it to `compile`",
    "learning_rate": "it to `Reinforce.for_env`, or an optimizer to `compile`",
    "net_arch": "`hidden` to `Reinforce.for_env`",
    "memory": "it to `Reinforce.for_env`, or `context` for windows of an own policy",
    "n_steps": "`steps_per_epoch` to `fit`",
    "n_epochs": "`passes` to `Reinforce`",
    "clip_range": "`ratio_clip` to `Reinforce`, for example (0.2, 0.2)",
    "target_kl": "`max_kl` to `Reinforce`",
    "verbose": "it to `fit`",
    "seed": "it to `fit` or to `Reinforce.for_env`",
}


# By method, arguments that have a new name, and this name. An old name is accepted, with
# a warning, for at least one minor version (docs/compatibility.md).
RENAMED: dict[str, dict[str, str]] = {}


def renamed(owner, arguments):
    """Returns keyword arguments by their present names; warns of each old name.

    Raises:
        TypeError: If an argument is given by both names.
    """
    names = RENAMED.get(owner, {})
    for old in arguments.keys() & names:
        if names[old] in arguments:
            raise TypeError(
                f"`{owner}` got both `{names[old]}` and its old name `{old}`."
            )
        text = f"`{old}` of `{owner}` is now `{names[old]}`, and will be refused."
        validation.warn(text, DeprecationWarning)
    return {names.get(name, name): value for name, value in arguments.items()}


def explained(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes a method's `TypeError` name what to use instead of a wrong argument."""
    signature = inspect.signature(method)
    names = list(signature.parameters)[1:]

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        owner = method.__name__
        kwargs = renamed(owner, kwargs)
        for name in kwargs.keys() - signature.parameters:
            raise unknown(owner, name, kwargs[name], names)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            text = f"`{owner}`: {error}. Expected: {owner}({names[0]}, …)"
            raise TypeError(f"{text}, with all other arguments by name.") from None
        with locks.kept():
            return method(*args, **kwargs)

    return call


def unknown(owner, name, value, names):
    """Returns the `TypeError` for an unknown argument.

    Args:
        owner: String, the class or the method.
        name: String, the unknown argument.
        value: Its value.
        names: Strings, the arguments that exist.
    """
    hint = validation.similar(name, names)
    hint = f" Instead, pass {_INSTEAD[name]}." if name in _INSTEAD else hint
    return TypeError(
        f"`{owner}` got an unexpected keyword argument {name!r}.{hint} Its help lists "
        f"all. Received: {name}={reprlib.repr(value)} of type {type(value).__name__}"
    )
