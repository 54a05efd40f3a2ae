"""Flips bits of agent files and checkpoints, truncates them, and compares the results.

    python stress/bit_flips.py [--flips N] [--out FILE.json]

A file with one flipped bit must be refused with a reason, or be loaded with exactly the
numbers of the whole file: weights, optimizer states and configuration. A truncated file
must be refused with a reason that says so. The flips are spread evenly over all bits of
each file: over every bit of a file that has at most N bits.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import sys
import tempfile
import warnings

MIN_FLIPS = 10_000
DAMAGE = re.compile("truncat|bytes, and|empty", re.IGNORECASE)


def make_agents(folder):
    """Writes three small agents, and yields the paths of their files."""
    import tf_reinforce as tfr

    rate = {"first": 0.01, "last": 0.001}
    value = {"kind": "value", "hidden": [4], "learning_rate": rate}
    settings = {
        "categorical": ("CartPole-v1", {}),
        "value": ("Pendulum-v1", {"baseline": value, "normalize_observations": True}),
        "scales": ("CartPole-v1", {"scale_rewards": True, "baseline": "time_step"}),
    }
    for name, (env, options) in settings.items():
        agent = tfr.Reinforce.for_env(env, hidden=(4,), **options)
        agent.fit(env, epochs=2, episodes_per_epoch=2, verbose=0)
        agent.save(folder / f"{name}.keras")
        yield folder / f"{name}.keras"


def make_checkpoints(folder):
    """Trains a small agent with checkpoints, and yields the files of the newest."""
    import tf_reinforce as tfr

    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    resume = tfr.Checkpoints(folder, every_updates=1)
    options = dict(episodes_per_epoch=2, resume=resume, verbose=0)
    agent.fit("CartPole-v1", epochs=2, **options)
    newest = max((folder / "checkpoints").iterdir())
    yield from sorted(path for path in newest.iterdir())


def digest(values):
    """Returns the SHA-256 digest of arrays, with their types and shapes."""
    state = hashlib.sha256()
    for value in values:
        state.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    return state.hexdigest()


def content_of_agent(path):
    """Returns a digest of all numbers in an agent file, and its configuration."""
    import numpy as np

    import tf_reinforce as tfr
    from tf_reinforce.engine import agent_state

    agent = tfr.load(path)
    config = {**agent.get_config(), "compile": agent.get_compile_config()}
    text = re.sub(r'"shared_object_id": \d+', "", json.dumps(config, sort_keys=True))
    return digest(map(np.asarray, agent_state.variables(agent))), text


def content_of_checkpoint(path):
    """Returns a digest of all arrays in a checkpoint, and its other content."""
    import numpy as np

    from tf_reinforce.engine import checkpoints

    checkpoint = checkpoints.read(path.parent)
    arrays = []
    text = checkpoints._encode(checkpoint.state, arrays)
    header = json.dumps([checkpoint.header, text], sort_keys=True, default=str)
    return digest(map(np.asarray, arrays)), header


def archive_of_agent(path):
    """Returns the files inside an agent file, as `tfr.load` reads them."""
    from tf_reinforce import saving

    return saving.read(str(path))


# The kinds of files: a function that writes files, a function that returns their whole
# content, and a faster function that reads the bytes on which the content depends.
KINDS = {
    "agent": (make_agents, content_of_agent, archive_of_agent),
    "checkpoint": (make_checkpoints, content_of_checkpoint, content_of_checkpoint),
}


def refusal(read, path):
    """Returns the reason for which a file is refused, or `None` and its content."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return None, read(path)
    except (ValueError, OSError) as error:
        return str(error), None


def flip_bits(path, data, count, contents, counts, failures):
    """Flips `count` bits of a file, one at a time, and counts the results."""
    load, read = contents
    whole, parts = load(path), read(path)
    step = 8 * len(data) // count | 1  # odd, so that every bit of a byte is flipped
    with open(path, "r+b") as file:
        for bit in range(0, 8 * len(data), step):
            flipped = bytes([data[bit // 8] ^ 1 << bit % 8])
            set_byte(file, bit // 8, flipped)
            reason, found = refusal(read, path)
            if reason is None and found == parts and counts["loaded"] >= 50:
                counts["equal bytes"] += 1
            elif reason is None:
                # The first flips that pass, and all with other bytes, are loaded wholly.
                reason, found = refusal(load, path)
                counts["loaded"] += 1
                if reason is None and found != whole:
                    failures.append(f"{path.name}, bit {bit}: other content")
            if reason is not None:
                counts["refused"] += 1
                if not reason.strip():
                    failures.append(f"{path.name}, bit {bit}: no reason")
            counts["flips"] += 1
            set_byte(file, bit // 8, data[bit // 8 : bit // 8 + 1])


def set_byte(file, position, byte):
    file.seek(position)
    file.write(byte)
    file.flush()


def truncate(path, data, load, counts, failures):
    """Truncates a file at many sizes, and checks that each refusal says so."""
    sizes = {*range(100), *range(0, len(data), max(1, len(data) // 400))}
    sizes |= {len(data) - lost for lost in range(1, 100)}
    for size in sorted(size for size in sizes if 0 <= size < len(data)):
        path.write_bytes(data[:size])
        reason, _ = refusal(load, path)
        counts["truncations"] += 1
        if reason is None or not DAMAGE.search(reason):
            failures.append(f"{path.name}, truncated to {size} bytes: {reason}")
    path.write_bytes(data)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--flips", type=int, default=70_000, help="for each file")
    options = parser.parse_args(arguments)
    counts, failures, files = collections.defaultdict(collections.Counter), [], {}
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as null:
        for kind, (make, load, read) in KINDS.items():
            folder = pathlib.Path(name, kind)
            folder.mkdir()
            for path in list(make(folder)):
                data = path.read_bytes()
                files[f"{kind}/{path.name}"] = len(data)
                with contextlib.redirect_stderr(null):
                    contents = load, read
                    flip_bits(path, data, options.flips, contents, counts[kind], failures)
                    truncate(path, data, load, counts[kind], failures)
                print(f"{kind}/{path.name}: {dict(counts[kind])}", flush=True)
    flips = sum(count["flips"] for count in counts.values())
    result = {"flips": flips, "counts": counts, "files": files, "failures": failures}
    print(json.dumps({**result, "failures": failures[:20]}, indent=2))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    return 1 if failures or flips < MIN_FLIPS else 0


if __name__ == "__main__":
    sys.exit(main())
