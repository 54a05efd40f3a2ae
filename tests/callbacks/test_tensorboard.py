"""Tests the callback that writes logs for TensorBoard."""

import math
import shutil

import keras
import pytest
import toys
from tensorboard.backend.event_processing import event_file_loader
from tensorboard.util import tensor_util

import tf_reinforce as tfr
from tf_reinforce import callbacks

RETURNS = ["episode_return", "episode_return_max", "episode_return_min"]
EPISODE = {*RETURNS, "episode_return_std", "success", "cost"}
TIME = {"env_steps", "episode_length", "steps_per_second"}


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
        if not tag.startswith(("update/actions", "weights")):
            assert step not in result.setdefault(tag, {})
            result[tag][step] = tensor_util.make_ndarray(tensor).item()
    return result


def tag(name):
    if name.startswith("val_"):
        return f"validation/{name[4:]}"
    group = "episode" if name in EPISODE else "time" if name in TIME else "update"
    return f"{group}/{name}"


def assert_written(folder, logs):
    """Compares all scalars in the event files of a folder with the logs of a training."""
    written = scalars(folder)
    logs = {name: x for name, x in logs.items() if math.isfinite(sum(x))}
    tags = {name: tag(name) for name in logs}
    assert set(written) == set(tags.values()) and "value_loss" not in logs
    for name, values in logs.items():
        expected = dict(zip(logs["env_steps"], values, strict=True))
        assert written[tags[name]] == pytest.approx(expected, rel=1e-6)
    return written


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


class Winning(toys.Reporting):
    def step(self, action):
        *answer, info = super().step(action)
        return *answer, {**info, "is_success": True}


def test_scalars_are_the_logs_at_environment_steps(tmp_path):
    """TensorBoard sorts the tags, so that the mean return is the first chart."""
    agent = tfr.Reinforce.for_env(Winning, hidden=())
    options = dict(epochs=3, episodes_per_epoch=2, verbose=0, info_keys=["cost"])
    options.update(validation_env=Winning, validation_episodes=2)
    logger = callbacks.TensorBoardLogger(tmp_path)
    logs = agent.fit(Winning, callbacks=[logger], **options).history
    written = sorted(assert_written(tmp_path, logs))
    assert written[:4] == ["episode/cost", *(f"episode/{name}" for name in RETURNS)]


def test_training_that_fails_ends_its_file_of_events(tmp_path):
    """The next training writes another file, also if the folder was emptied."""
    seen = {}

    def fail(epoch, logs):
        seen.update({name: [value] for name, value in logs.items()})
        raise RuntimeError("the second callback fails")

    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    listed = [callbacks.TensorBoardLogger(tmp_path / "events")]
    failing = keras.callbacks.LambdaCallback(on_epoch_end=fail)
    with pytest.raises(RuntimeError, match="second callback"):
        agent.fit(toys.Bandit, epochs=1, callbacks=[*listed, failing], verbose=0)
    assert_written(tmp_path / "events", seen)
    shutil.rmtree(tmp_path / "events")
    logs = agent.fit(toys.Bandit, epochs=1, callbacks=listed, verbose=0).history
    assert_written(tmp_path / "events", logs)


def test_histograms_count_the_actions_and_the_weights(tmp_path):
    agent, logs = train(tmp_path, 3, histograms=True, every=2)
    found = {}
    for step, tag, tensor in events(tmp_path):
        if tag.startswith(("update/actions", "weights")):
            buckets = tensor_util.make_ndarray(tensor)
            found.setdefault(tag, {})[step] = buckets[:, 2].sum()
    steps = [logs["env_steps"][0], logs["env_steps"][2]]
    lengths = [logs["env_steps"][0], logs["env_steps"][2] - logs["env_steps"][1]]
    assert found["update/actions"] == dict(zip(steps, lengths, strict=True))
    for variable in agent.weights:
        if variable.dtype == "float32":
            counts = found[f"weights/{variable.path}"]
            assert counts == dict.fromkeys(steps, math.prod(variable.shape))


@pytest.mark.slow
def test_resumed_training_writes_the_updates_after_the_checkpoint_again(tmp_path):
    """Its events are equal, so the curve stays the same."""
    folder, run = tmp_path / "events", tmp_path / "run"
    resume = tfr.Checkpoints(run, every_updates=2)
    train(folder, 4, resume=resume)
    _, logs = train(folder, 6, resume=resume)
    assert_written(folder, logs)
    assert len(logs["env_steps"]) == 6
