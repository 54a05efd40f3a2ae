"""Trains Keras policies with REINFORCE, the Monte Carlo policy gradient.

>>> import tf_reinforce as tfr
>>> agent = tfr.Reinforce.for_env("CartPole-v1")
"""

import importlib
import sys

from tf_reinforce.support import startup
from tf_reinforce.support.version import VERSION as __version__

# The package imports its modules on first use, because `--help` and `__version__` do not
# need TensorFlow.
_PATHS = {
    "Checkpoints": "engine.checkpoints",
    "Reinforce": "agent",
    "ScoreFunction": "sampling.model",
    "check_env": "testing.environments",
    "learner_strategy": "engine.learner_processes",
    "load": "saving",
    "Episodes": "data.episodes",
    "SeedResults": "experiments.multi_seed",
    "train_seeds": "experiments.multi_seed",
    # modules
    "baselines": "baselines",
    "callbacks": "callbacks",
    "collect": "engine.collect",
    "eligibility": "functional.eligibility",
    "envs": "envs",
    "estimators": "sampling.estimators",
    "heads": "heads",
    "layers": "sampling.layers",
    "losses": "functional.losses",
    "normalization": "policies.normalization",
    "presets": "settings.presets",
    "returns": "functional.returns",
    "sequences": "sequences",
    "testing": "testing",
}

__all__ = ["__version__", *_PATHS]


def __getattr__(name):
    if name not in _PATHS:
        raise AttributeError(f"module 'tf_reinforce' has no attribute {name!r}")
    with startup.quiet_first_import():
        module = importlib.import_module(f"tf_reinforce.{_PATHS[name]}")
    return getattr(module, name, module)


__dir__ = __all__.copy  # what tab completion shows


# `keras.saving.load_model` loads only classes that have been registered with Keras, which
# the import of their modules does.
if sys.modules.get("keras") is not None:
    importlib.import_module("tf_reinforce.sequences")  # imports all other classes, too
