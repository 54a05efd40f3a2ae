"""Collects episodes from environments."""

import importlib

_OBJECTS = {"EnvironmentFault": "results", "open_envs": "make_envs"}

__all__ = ["EnvironmentFault", "open_envs"]


def __getattr__(name: str) -> object:
    # Worker processes import modules of this package, and must not import TensorFlow.
    if name in _OBJECTS:
        module = importlib.import_module(f"tf_reinforce.collect.{_OBJECTS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
