"""Tests that videos during training show the policy, and do not change the training."""

import keras
import numpy as np
import pytest
import rendered_counter
import sweeps

import tf_reinforce as tfr
from tf_reinforce.experiments import recording
from tf_reinforce.experiments import video_recorder


def weights(agent):
    return np.concatenate([np.ravel(x) for x in agent.get_weights()])


def train(*callbacks):
    """Trains for five updates; returns the weights before each update and at the end."""
    agent = tfr.Reinforce.for_env(
        rendered_counter.Counter, hidden=(4,), normalize_observations=True, seed=0
    )
    history = [weights(agent)]
    append = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: history.append(weights(agent))
    )
    options = dict(epochs=5, episodes_per_epoch=4, num_envs=3, seed=1, verbose=0)
    agent.fit(rendered_counter.Counter, callbacks=[*callbacks, append], **options)
    return np.array(history)


def recorder(folder, **options):
    options = {"every": 2, **options}
    return video_recorder.VideoRecorder(rendered_counter.Counter, folder, **options)


@pytest.fixture(scope="module")
def without_videos():
    return train()


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [True, sweeps.rare(False)])
def test_videos_show_the_current_policy_and_do_not_change_the_training(
    without_videos, tmp_path, monkeypatch, deterministic
):
    """Training is equal to the bit. The first video shows the policy before training."""
    original, recorded = recording.record, {}

    def record(agent, env, path, **options):
        recorded[path.name] = weights(agent)
        return original(agent, env, path, **options)

    monkeypatch.setattr(recording, "record", record)
    folder = tmp_path / "new" / "videos"
    options = dict(deterministic=deterministic, seed=2)
    np.testing.assert_array_equal(train(recorder(folder, **options)), without_videos)
    names = [f"update_00000{update}.mp4" for update in (0, 2, 4)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(recorded) == names
    for update, name in zip((0, 2, 4), names):
        np.testing.assert_array_equal(recorded[name], without_videos[update])
    assert not np.array_equal(recorded[names[0]], recorded[names[1]])


def test_name_of_a_video_contains_the_number_of_updates(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        recording,
        "record",
        lambda agent, _, path, **__: made.append((path, agent.updates)),
    )
    train(recorder(tmp_path))
    assert made == [(tmp_path / f"update_00000{n}.mp4", n) for n in (0, 2, 4)]


def test_environment_without_pictures_fails_before_the_first_update(tmp_path):
    agent = tfr.Reinforce.for_env(rendered_counter.Counter, hidden=())

    def make(render_mode="ansi"):
        return rendered_counter.Counter("ansi")

    videos = video_recorder.VideoRecorder(make, tmp_path)
    with pytest.raises(ValueError, match="render_mode='rgb_array'"):
        agent.fit(make, epochs=3, callbacks=videos, verbose=0)
    assert agent.updates == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "name"), [({"every": 0}, "every"), ({"colour": 1}, "colour")]
)
def test_invalid_argument_is_refused_at_once(tmp_path, wrong, name):
    with pytest.raises((ValueError, TypeError), match=name):
        recorder(tmp_path, **wrong)


def test_each_video_shows_its_update_with_several_updates_per_call(tmp_path, monkeypatch):
    updates = []
    monkeypatch.setattr(
        recording, "record", lambda agent, *_, **options: updates.append(agent.updates)
    )
    env = tfr.envs.Bandit([0.0, 1.0])
    agent = tfr.Reinforce.for_env(env, hidden=(), steps_per_execution=4)
    agent.fit(env, epochs=7, callbacks=[recorder(tmp_path, every=3)], verbose=0)
    assert updates == [0, 3, 6]
