"""Writes that fail as on a full disk."""

import contextlib
import resource

import pytest


@contextlib.contextmanager
def disk_with(free):
    """Makes the system refuse to write more than `free` bytes to a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def expect_old_files_kept(model, folder):
    """Saves a model and its weights, makes both saves fail, and compares the files."""
    names = {"save": "model.keras", "save_weights": "model.weights.h5"}
    for verb, name in names.items():
        getattr(model, verb)(folder / name)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for verb, name in names.items():
        for target in (folder / name, folder / f"new.{name}"):
            message = f"{target.name} could not be written: File too large"
            with pytest.raises(OSError, match=message), disk_with(4096):
                getattr(model, verb)(target)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in before} == set(names.values())
