"""Tests that checkpoints are complete, kept, and refused if they are damaged."""

import collections
import errno
import json
import logging
import math
import os

import ml_dtypes
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.engine import checkpoints
from tf_reinforce.support import files
from tf_reinforce.support import version

HEADER = {"settings": {"seed": 0}}


def states():
    """Yields different states, with all kinds of values."""
    for number in range(5):
        yield {
            "number": number,
            "weights": [np.full([2, 3], number, "float32"), np.int64(number)],
            "half": np.array([0.5, number], ml_dtypes.bfloat16),
            "empty": np.zeros([0, 2]),
            "best": -math.inf,
            "text": ["a", None, True, 1.5],
            "collections": [(1, "a"), {2, 1}, {0: {"b": 1}}, [0.5, math.inf]],
            "last": collections.deque([1, 2], maxlen=2),
        }


def same(state, other):
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(
            same(state[key], other[key]) for key in state
        )
    if isinstance(state, (list, tuple)):
        return len(state) == len(other) and all(map(same, state, other))
    if isinstance(state, (np.ndarray, np.generic)):
        return state.dtype == other.dtype and np.array_equal(state, other)
    return state == other


@pytest.fixture
def folder(tmp_path):
    with tfr.Checkpoints(tmp_path, keep=3).open() as opened:
        for epoch, state in enumerate(states()):
            opened.write(epoch, HEADER, state)
        yield opened


def names(folder):
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def test_newest_checkpoint_contains_the_last_state(folder):
    checkpoint = folder.newest()
    assert same(checkpoint.state, list(states())[-1])
    assert checkpoint.header["settings"] == HEADER["settings"]


def test_checkpoints_keeps_the_newest_and_no_other_file(folder):
    assert names(folder) == ["00000002", "00000003", "00000004"]
    for path in (folder.path / "checkpoints").iterdir():
        assert sorted(os.listdir(path)) == ["arrays.bin", "manifest.json"]
    assert sorted(os.listdir(folder.path)) == [".lock", "checkpoints"]


def test_checkpoint_of_the_same_epoch_stays_if_its_replacement_fails(folder, monkeypatch):
    """A callback that stops training at a checkpoint makes such a replacement."""
    monkeypatch.setattr(files, "_flush", lambda path: fail_with(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        folder.write(4, HEADER, {"other": 1})
    assert same(folder.newest().state, list(states())[-1])


def fail_with(number):
    raise OSError(number, os.strerror(number))


def test_new_checkpoint_is_kept_beside_damaged_ones_with_larger_numbers(folder):
    """Training has continued from an older checkpoint than the damaged ones."""
    for name in ("00000003", "00000004"):
        flip(folder.path / "checkpoints" / name / "arrays.bin")
    assert folder.newest().path.name == "00000002"
    folder.write(3, HEADER, {"new": 1})
    assert names(folder) == ["00000002", "00000003"]
    assert folder.newest().state == {"new": 1}


@pytest.mark.parametrize("value", [object(), np.array(["a"]), len])
def test_state_of_an_unsupported_type_is_named(folder, value):
    with pytest.raises(TypeError, match="state of a callback must consist of"):
        folder.write(9, HEADER, {"state": [value]})


def damages():
    """Yields functions that damage the files of a checkpoint."""
    yield lambda path: (path / "arrays.bin").unlink(), "There is no file"
    yield lambda path: (path / "manifest.json").unlink(), "There is no file"
    yield lambda path: os.truncate(path / "arrays.bin", 20), "20 bytes"
    yield lambda path: os.truncate(path / "manifest.json", 20), "damaged"
    yield lambda path: flip(path / "arrays.bin"), "SHA-256"
    yield lambda path: edit(path, sha256="0"), "SHA-256"
    yield lambda path: (path / "manifest.json").write_text("[]\n"), "no JSON object"
    deep = "[" * 10**5 + "\n"
    yield lambda path: (path / "manifest.json").write_text(deep), "damaged"


def flip(path):
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def edit(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}) + "\n")


@pytest.mark.parametrize("number", range(len(list(damages()))))
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(folder, number, caplog):
    damage, message = list(damages())[number]
    damage(folder.path / "checkpoints" / "00000004")
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        checkpoint = folder.newest()
    assert same(checkpoint.state, list(states())[3])
    assert message in caplog.text and "Training continues from" in caplog.text
    assert ".." not in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": version.FORMAT + 1},
        {"versions": {"tf-reinforce": "999.0"}},
    ],
)
def test_checkpoint_of_a_newer_version_is_not_skipped(folder, change):
    """Training would continue from the checkpoint before, and lose updates."""
    edit(folder.path / "checkpoints" / "00000004", **change)
    with pytest.raises(ValueError, match="Install .* newer"):
        folder.newest()


def test_linked_checkpoint_folder_is_refused(tmp_path):
    """A run directory of a stranger could link to a folder of the user."""
    (tmp_path / "other").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "other")
    with (
        pytest.raises(ValueError, match="symbolic link"),
        tfr.Checkpoints(tmp_path / "run").open(),
    ):
        pass


def test_opening_removes_leftovers_of_killed_processes(tmp_path):
    (tmp_path / "checkpoints" / ".00000003.abcd1234.tmp" / "new").mkdir(parents=True)
    (tmp_path / ".agent.keras.abcd1234.tmp").mkdir()
    with tfr.Checkpoints(tmp_path).open():
        assert not [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")]


def test_checkpoint_is_due_every_n_updates_or_seconds(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    by_updates = tfr.Checkpoints(tmp_path, every_updates=3)
    assert [by_updates.is_due(epoch) for epoch in (1, 2, 3, 4)] == [0, 0, 1, 1]
    by_updates.write(4, HEADER, {})
    assert [by_updates.is_due(epoch) for epoch in (5, 6)] == [False, True]
    with tfr.Checkpoints(tmp_path, every_updates=3).open() as continued:
        assert continued.newest().path.name == "00000004"
        assert [continued.is_due(epoch) for epoch in (5, 6)] == [False, True]
    by_seconds = tfr.Checkpoints(tmp_path, every_seconds=10)
    assert not by_seconds.is_due(99)
    clock[0] += 10
    assert by_seconds.is_due(1)
    with by_seconds.open():
        assert not by_seconds.is_due(1)
        clock[0] += 10
        by_seconds.write(1, HEADER, {})
        assert not by_seconds.is_due(2)
