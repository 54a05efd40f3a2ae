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
    written = scalars(tmp_path)
    logs = {name: x for name, x in logs.items() if math.isfinite(sum(x))}
    assert set(written) == set(logs) and "value_loss" not in logs
    for name, values in logs.items():
        expected = dict(zip(logs["env_steps"], values, strict=True))
        assert written[name] == pytest.approx(expected, rel=1e-6)


def test_values_that_are_not_finite_are_left_out(tmp_path):
    logger = callbacks.TensorBoardLogger(tmp_path)
    logger.on_epoch_end(0, {"env_steps": 5, "loss": 1.0, "val_episode_return": math.nan})
    logger.on_train_end()
    assert scalars(tmp_path) == {"env_steps": {5: 5.0}, "loss": {5: 1.0}}


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


def test_resumed_training_has_each_step_once(tmp_path):
    """Events after the checkpoint are removed, and files of a process that was killed."""
    folder, run = tmp_path / "events", tmp_path / "run"
    train(folder, 4, resume=tfr.Checkpoints(run, every_updates=2))
    (folder / "events.out.tfevents.1.host").write_bytes(b"another program")
    foreign = (folder / "events.out.tfevents.1.host").read_bytes()
    killed = next(path for path in folder.iterdir() if path.name.endswith("reinforce"))
    complete = killed.read_bytes()
    killed.write_bytes(complete + complete[-50:])  # a torn write after the checkpoint
    late = folder / killed.name.replace("events.out.tfevents.", "events.out.tfevents.9")
    late.write_bytes(complete)
    _, logs = train(folder, 6, resume=tfr.Checkpoints(run, every_updates=2))
    assert not late.exists()
    assert (folder / "events.out.tfevents.1.host").read_bytes() == foreign
    (folder / "events.out.tfevents.1.host").unlink()
    written = scalars(folder)["episode_return"]
    expected = dict(zip(logs["env_steps"], logs["episode_return"], strict=True))
    assert written == pytest.approx(expected, rel=1e-6) and len(written) == 6


def test_invalid_states_are_refused(tmp_path):
    logger = callbacks.TensorBoardLogger(tmp_path)
    with pytest.raises(TypeError, match="state"):
        logger.set_state([1])
    (tmp_path / "events.out.tfevents.1.tf_reinforce").write_bytes(b"12345")
    name = "events.out.tfevents.1.tf_reinforce"
    with pytest.raises((TypeError, ValueError), match="bytes"):
        logger.set_state({name: -1})
    assert (tmp_path / name).read_bytes() == b"12345"
    logger.set_state({name: 10**9})  # a file is never made longer
    assert (tmp_path / name).read_bytes() == b"12345"
