"""Errors for arguments that users know from Keras and other libraries."""

import functools
import inspect
import reprlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tf_reinforce.support import startup
from tf_reinforce.support import validation

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Arguments of Keras and other libraries, and what an agent uses instead.
_INSTEAD = {
    **dict.fromkeys(("x", "y"), "pass an environment to `fit`, which plays the episodes"),
    "batch_size": "pass `episodes_per_epoch` or `steps_per_epoch` to `fit`, the size of "
    "the batch of an update, or `minibatch_size` to `Reinforce`, that of a gradient step",
    **dict.fromkeys(
        ("validation_data", "validation_split"), "pass `validation_env` to `fit`"
    ),
    **dict.fromkeys(
        ("validation_steps", "validation_batch_size"),
        "pass `validation_episodes` to `fit`",
    ),
    **dict.fromkeys(("total_timesteps", "timesteps"), "pass `steps` to `fit`"),
    **dict.fromkeys(("steps_per_execution", "jit_compile"), "pass it to `compile`"),
    **dict.fromkeys(
        ("learning_rate", "optimizer"),
        "pass `compile(optimizer=keras.optimizers.Adam(…))`, or make the agent with "
        "`Reinforce.for_env(env, learning_rate=…)`",
    ),
    **dict.fromkeys(
        ("policy_kwargs", "net_arch"),
        "pass the sizes of the layers: `Reinforce.for_env(env, hidden=…)`",
    ),
    "n_steps": "pass `steps_per_epoch` to `fit`",
    "n_epochs": "pass `passes` to `Reinforce`",
    "clip_range": "pass `ratio_clip` to `Reinforce`, for example (0.2, 0.2)",
    "target_kl": "pass `max_kl` to `Reinforce`",
    "verbose": "pass `verbose` to `fit`",
    "seed": "pass `seed` to `fit` or to `Reinforce.for_env`",
    "device": "use the scope of a `tf.distribute` strategy, or `tf.device`",
}


def explained(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes a method's `TypeError` name what to use instead of a wrong argument."""
    signature = inspect.signature(method)
    names = list(signature.parameters)[1:]

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        env = args[1] if len(args) > 1 else kwargs.get("env")
        if "env" in names and _is_data(env):
            raise TypeError(
                "`env` must be an environment id or another environment, because an "
                "agent learns from episodes, and not from data. Received: "
                f"env={reprlib.repr(env)} of type {type(env).__name__}"
            )
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            for name in kwargs.keys() - signature.parameters:
                raise unknown(method.__name__, name, kwargs[name], names) from None
            raise TypeError(
                f"`{method.__name__}`: {error}. Expected: {method.__name__}({names[0]}, "
                "…), with all other arguments by name."
            ) from None
        with startup.kept():
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
    instead = _INSTEAD.get(name)
    hint = f" Instead, {instead}." if instead else validation.similar(name, names)
    return TypeError(
        f"`{owner}` got an unexpected keyword argument {name!r}.{hint} Its help lists "
        f"all. Received: {name}={reprlib.repr(value)} of type {type(value).__name__}"
    )


def _is_data(value):
    """Returns whether a value is data for Keras: an array, a tensor or a data set."""
    is_array = hasattr(value, "__array__") or hasattr(value, "element_spec")
    return is_array or isinstance(value, (list, tuple, dict))
