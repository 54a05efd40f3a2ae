"""Imports the libraries that optional features need."""

import importlib
from typing import Any


def load(module: str, extra: str) -> Any:
    """Imports a module; an `ImportError` names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f'This needs {name}: `pip install "tf-reinforce[{extra}]"`. Received: {error}'
        ) from error
