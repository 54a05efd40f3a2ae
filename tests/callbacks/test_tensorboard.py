"""Tests the callback that writes logs for TensorBoard."""

import math

import pytest
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.util import tensor_util

import tf_reinforce as tfr
from tf_reinforce import callbacks


def events(folder):
    """Returns the list of `(step, tag, tensor)` in all event files of a folder."""
    return [
        (event.step, value.tag, value.tensor)
        for path in sorted(folder.iterdir())
        for event in event_file_loader.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def scalars(folder):
    """Returns the dict `{tag: {step: value}}` of scalars; a step must occur once."""
    result = {}
    for step, tag, tensor in events(folder):
        if not tag.startswith(("actions", "weights")):
            assert step not in result.setdefault(tag, {})
            result[tag][step] = tensor_util.make_ndarray(tensor).item()
    return result


def assert_written(folder, logs):
    """Compares all scalars in the event files of a folder with the logs of a training."""
    written = scalars(folder)
    logs = {name: x for name, x in logs.items() if math.isfinite(sum(x))}
    assert set(written) == set(logs) and "value_loss" not in logs
    for name, values in logs.items():
        expected = dict(zip(logs["env_steps"], values, strict=True))
        assert written[name] == pytest.approx(expected, rel=1e-6)


def train(folder, updates, *, resume=None, **options):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), seed=0)
    logger = callbacks.TensorBoardLogger(folder, **options)
    history = agent.fit(
        "CartPole-v1",
        epochs=updates,
        episodes_per_epoch=2,
        seed=0,
        callbacks=[logger],
        verbose=0,
        resume=resume,
    )
    return agent, history.history


def test_scalars_are_the_logs_at_environment_steps(tmp_path):
    _, logs = train(tmp_path, 3)
    assert_written(tmp_path, logs)


def test_histograms_count_the_actions_and_the_weights(tmp_path):
    agent, logs = train(tmp_path, 3, histograms=True, every=2)
    found = {}
    for step, tag, tensor in events(tmp_path):
        if tag.startswith(("actions", "weights")):
            buckets = tensor_util.make_ndarray(tensor)
            found.setdefault(tag, {})[step] = buckets[:, 2].sum()
    steps = [logs["env_steps"][0], logs["env_steps"][2]]
    lengths = [logs["env_steps"][0], logs["env_steps"][2] - logs["env_steps"][1]]
    assert found["actions"] == dict(zip(steps, lengths, strict=True))
    for variable in agent.weights:
        if variable.dtype == "float32":
            counts = found[f"weights/{variable.path}"]
            assert counts == dict.fromkeys(steps, math.prod(variable.shape))


def test_resumed_training_has_each_step_once_and_keeps_the_files_of_others(tmp_path):
    """Events after the checkpoint are removed, and files of a process that was killed."""
    folder, run = tmp_path / "events", tmp_path / "run"
    resume = tfr.Checkpoints(run, every_updates=2)
    train(folder, 4, resume=resume)
    [killed] = folder.iterdir()
    complete = killed.read_bytes()
    killed.write_bytes(complete + complete[-50:])  # a torn write after the checkpoint
    late = folder / killed.name.replace("events.out.tfevents.", "events.out.tfevents.9")
    late.write_bytes(complete)
    (folder / "events.out.tfevents.1.host").write_bytes(b"another program")
    train(folder, 1)  # another training with the same callback
    foreign = {x: x.read_bytes() for x in folder.iterdir() if x not in (killed, late)}
    _, logs = train(folder, 6, resume=resume)
    assert not late.exists() and len(foreign) == 2
    for path, content in foreign.items():
        assert path.read_bytes() == content
        path.unlink()
    assert_written(folder, logs)
    assert len(logs["env_steps"]) == 6


def test_invalid_states_are_refused(tmp_path):
    logger = callbacks.TensorBoardLogger(tmp_path)
    path = tmp_path / "events.out.tfevents.1.0123abcd.tf_reinforce"
    path.write_bytes(b"12345")
    state = {"training": "0123abcd"}
    for invalid in ([1], {**state, path.name: -1}, {"training": "*"}, {"training": 1}):
        with pytest.raises((TypeError, ValueError), match="state|bytes|training"):
            logger.set_state(invalid)
    logger.set_state({**state, path.name: 10**9})  # a file is never made longer
    earlier = callbacks.TensorBoardLogger(tmp_path)
    earlier.set_state({path.name: 2})  # a state of an earlier version, without an id
    assert path.read_bytes() == b"12345"
