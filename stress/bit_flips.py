"""Flips bits of agent files and checkpoints, truncates them, and compares the results.

    python stress/bit_flips.py [--flips N] [--out FILE.json]

A file with one flipped bit must be refused with a reason, or be loaded with exactly the
numbers and settings of the whole file. A truncated file must be refused as damaged,
unless its content is still whole. The flips are spread evenly over all bits of each file.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import sys
import tempfile
import warnings

import numpy as np

import tf_reinforce as tfr
from tf_reinforce import saving
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints

DAMAGE = re.compile("truncat|damaged|empty", re.IGNORECASE)


def make_files(folder):
    """Trains a small agent with checkpoints; returns the paths of its files."""
    value = {"kind": "value", "hidden": [4]}
    agent = tfr.Reinforce.for_env(
        "Pendulum-v1", hidden=(4,), baseline=value, normalize_observations=True
    )
    options = dict(episodes_per_epoch=2, max_episode_steps=20, verbose=0)
    resume = tfr.Checkpoints(folder, every_updates=1)
    agent.fit("Pendulum-v1", epochs=2, resume=resume, **options)
    agent.save(folder / "agent.keras")
    newest = max((folder / "checkpoints").iterdir())
    return [folder / "agent.keras", *sorted(newest.iterdir())]


def loaded(path):
    """Returns all numbers and settings in an agent file or a checkpoint."""
    if path.suffix != ".keras":
        return repr_of(checkpoints.read(path.parent))
    agent = tfr.load(path)
    config = json.dumps({**agent.get_config(), "compile": agent.get_compile_config()})
    config = re.sub(r'"shared_object_id": \d+', "", config)
    return repr_of([agent_state.variables(agent), config])


def repr_of(value):
    """Returns nested content as a text, with all bytes of its arrays."""
    if isinstance(value, dict):
        return repr([(key, repr_of(value[key])) for key in sorted(value)])
    if isinstance(value, (list, tuple)):
        return repr([repr_of(part) for part in value])
    if hasattr(value, "shape"):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
    return repr(value)


def stored(path):
    """Returns the bytes on which the content of a file depends, faster than `loaded`."""
    is_agent = path.suffix == ".keras"
    return repr_of(saving.read(str(path))) if is_agent else loaded(path)


def refusal(read, path):
    """Returns the reason for which a file is refused, or `None`, and its content."""
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as null:
            warnings.simplefilter("error")
            with contextlib.redirect_stderr(null):
                return None, read(path)
    except (ValueError, OSError) as error:
        return str(error), None


def flip_bits(path, count, counts, failures):
    """Flips bits of a file, one at a time, and counts the results."""
    data, whole, parts = path.read_bytes(), loaded(path), stored(path)
    step = 8 * len(data) // count | 1  # odd, so that every bit of a byte is flipped
    for bit in range(0, 8 * len(data), step):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        reason, found = refusal(stored, path)
        # The first flips that pass, and all with other bytes, are loaded wholly.
        if reason is None and (found != parts or counts["loaded"] < 50):
            counts["loaded"] += 1
            reason, found = refusal(loaded, path)
            if reason is None and found != whole:
                failures.append(f"{path.name}, bit {bit}: other content")
        counts["accepted" if reason is None else "refused"] += 1
        if reason is not None and not reason.strip():
            failures.append(f"{path.name}, bit {bit}: no reason")
    path.write_bytes(data)


def truncate(path, counts, failures):
    """Truncates a file at many sizes, and checks that each refusal calls it damaged."""
    data, whole = path.read_bytes(), loaded(path)
    sizes = {*range(100), *range(0, len(data), max(1, len(data) // 400))}
    sizes |= {len(data) - lost for lost in range(1, 100)}
    for size in sorted(size for size in sizes if 0 <= size < len(data)):
        path.write_bytes(data[:size])
        reason, found = refusal(loaded, path)
        counts["truncations"] += 1
        is_right = found == whole if reason is None else DAMAGE.search(reason)
        if not is_right:
            failures.append(f"{path.name}, truncated to {size} bytes: {reason}")
    path.write_bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--flips", type=int, default=70_000, help="for each file")
    options = parser.parse_args()
    counts, failures = {}, []
    with tempfile.TemporaryDirectory() as name:
        for path in make_files(pathlib.Path(name)):
            counts[path.name] = collections.Counter()
            flip_bits(path, options.flips, counts[path.name], failures)
            truncate(path, counts[path.name], failures)
            print(f"{path.name}: {dict(counts[path.name])}", flush=True)
    result = {"counts": counts, "failures": failures}
    print(json.dumps({**result, "failures": failures[:20]}, indent=2))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
