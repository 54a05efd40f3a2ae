"""Collects episodes from environments."""

import importlib

_OBJECTS = {
    "EnvironmentFault": "engine.collect.host_loop",
    "RayWorkers": "settings.config",
    "open_envs": "engine.collect.make_envs",
}

__all__ = [*_OBJECTS]


def __getattr__(name: str) -> object:
    # Worker processes import modules of this package, and must not import TensorFlow.
    if name in _OBJECTS:
        module = importlib.import_module(f"tf_reinforce.{_OBJECTS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = __all__.copy  # what tab completion shows
