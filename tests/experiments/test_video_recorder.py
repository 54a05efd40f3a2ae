"""Tests that videos during training show the current policy and do not affect it."""

import keras
import numpy as np
import pytest
import rendered_counter

import tf_reinforce as tfr
from tf_reinforce.experiments import recording
from tf_reinforce.experiments import video_recorder


def weights(agent):
    return np.concatenate([np.ravel(x) for x in agent.get_weights()])


def train(*callbacks):
    """Trains for five updates; returns the weights before each, and at the end."""
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


def recorder(folder, every=2, **options):
    return video_recorder.VideoRecorder(
        rendered_counter.Counter, folder, every, **options
    )


@pytest.mark.slow
def test_videos_show_the_current_policy_and_do_not_change_the_training(
    tmp_path, monkeypatch
):
    """Training is equal to the bit. The first video precedes it."""
    original, recorded = recording.record, {}

    def record(agent, env, path, **options):
        recorded[path.name] = weights(agent)
        return original(agent, env, path, **options)

    without_videos = train()
    monkeypatch.setattr(recording, "record", record)
    folder = tmp_path / "new" / "videos"
    np.testing.assert_array_equal(train(recorder(folder, seed=2)), without_videos)
    names = [f"update_00000{update}.mp4" for update in (0, 2, 4)]
    assert sorted(path.name for path in folder.iterdir()) == sorted(recorded) == names
    for update, name in zip((0, 2, 4), names):
        np.testing.assert_array_equal(recorded[name], without_videos[update])
    assert not np.array_equal(recorded[names[0]], recorded[names[1]])


@pytest.fixture
def made(monkeypatch):
    """Replaces recording; returns the names of videos with their numbers of updates."""
    calls = []
    record = lambda agent, _, path, **__: calls.append((path.name, agent.updates))  # noqa: E731
    monkeypatch.setattr(recording, "record", record)
    return calls


def test_name_of_a_video_contains_the_number_of_updates(tmp_path, made):
    train(recorder(tmp_path))
    assert made == [(f"update_00000{n}.mp4", n) for n in (0, 2, 4)]


def test_each_video_shows_its_update_with_several_updates_per_call(tmp_path, made):
    env = tfr.envs.Bandit([0.0, 1.0])
    agent = tfr.Reinforce.for_env(env, hidden=(), steps_per_execution=4)
    agent.fit(env, epochs=7, callbacks=[recorder(tmp_path, every=3)], verbose=0)
    assert [update for _, update in made] == [0, 3, 6]


@pytest.mark.parametrize(
    ("wrong", "name"), [({"every": 0}, "every"), ({"colour": 1}, "colour")]
)
def test_invalid_argument_is_refused_at_once(tmp_path, wrong, name):
    with pytest.raises((ValueError, TypeError), match=name):
        recorder(tmp_path, **wrong)
