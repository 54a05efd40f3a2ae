"""Imports the libraries that optional parts of the package need."""

import importlib
from typing import Any


def load(module: str, extra: str) -> Any:
    """Returns a module, or raises `ImportError` that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f'This needs {name}: `pip install "tf-reinforce[{extra}]"`. Received: {error}'
        ) from error
