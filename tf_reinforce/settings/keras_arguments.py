"""Explains arguments of Keras and other libraries that an agent does not have."""

import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tf_reinforce.support import startup
from tf_reinforce.support import validation

_P = ParamSpec("_P")
_T = TypeVar("_T")

_OTHERS = "with all other arguments by name"
_DATA = "an agent learns from the episodes of an environment: pass an environment"
# Arguments of Keras, and what an agent uses instead.
_INSTEAD = {
    "x": _DATA,
    "y": _DATA,
    "batch_size": "pass `episodes_per_epoch` or `steps_per_epoch` to `fit`, the size of "
    "the batch of an update, or `minibatch_size` to `Reinforce`, that of a gradient step",
    "validation_data": "pass `validation_env`, an environment, to `fit`",
    "validation_split": "pass `validation_env`, an environment, to `fit`",
    "validation_steps": "pass `validation_episodes` to `fit`",
    "validation_batch_size": "pass `validation_episodes` to `fit`",
    "total_timesteps": "pass `steps` to `fit`",
    "timesteps": "pass `steps` to `fit`",
}


def explained(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Returns a method whose `TypeError` names what to use instead of a wrong argument.

    Args:
        method: Method of an agent.
    """
    signature = inspect.signature(method)
    needs_env = "env" in signature.parameters

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        env = args[1] if len(args) > 1 else kwargs.get("env")
        if needs_env and _is_data(env):
            raise TypeError(
                "`env` must be an environment id or another environment, because an "
                "agent learns from episodes, and not from data. Expected, for example: "
                f'{method.__name__}("CartPole-v1", …). Received: '
                f"env={reprlib.repr(env)} of type {type(env).__name__}"
            )
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            names = list(signature.parameters)[1:]
            raise TypeError(_text(method.__name__, names, kwargs, error)) from None
        with startup.kept():
            return method(*args, **kwargs)

    return call


def _is_data(value):
    """Returns whether a value is data for Keras: an array, a tensor or a data set."""
    is_array = hasattr(value, "__array__") or hasattr(value, "element_spec")
    return is_array or isinstance(value, (list, tuple, dict))


def _text(method, names, kwargs, error):
    """Returns the text of the error for a call that does not fit the signature."""
    unknown = [name for name in kwargs if name not in names]
    if not unknown:
        return f"`{method}`: {error}. Expected: {method}({names[0]}, …), {_OTHERS}."
    name = unknown[0]
    hint = validation.similar(name, names)
    if name in _INSTEAD and method == "fit":
        hint = f" Instead, {_INSTEAD[name]}."
    return (
        f"`{method}` of an agent has no argument {name!r}.{hint} "
        f"help(Reinforce.{method}) lists all arguments. Received: {name}=… of type "
        f"{type(kwargs[name]).__name__}"
    )
