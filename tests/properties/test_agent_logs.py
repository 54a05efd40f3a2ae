"""Recomputes the logs of collections from the episodes that the environment has played.

Episodes and updates have unequal sizes, so a mean over the wrong things is another
number. The logs of gradient steps are recomputed in tests/engine/update and by
tests/differential.
"""

import collections
import functools
import math
import time
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import sweeps

import tf_reinforce as tfr
from tf_reinforce.engine.update import train_step
from tf_reinforce.settings import config

LENGTHS, TERMINATED = [3, 1, 5, 2, 6, 2, 4], [True, False, True, True, False]


class Episode(NamedTuple):
    rewards: list
    terminated: bool
    success: bool | None  # `None` if the end of the episode reports nothing


class World(gym.Env):
    """Episodes of a fixed sequence of lengths and ends, each step of one second.

    Success is reported in odd epochs only, by the last step of two of three episodes.
    Earlier steps report it always, which does not count. Each fifth episode is faulty if
    the world `has_faults`.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(3, start=3)

    def __init__(self, story, has_faults=False):
        self.story, self.has_faults = story, has_faults

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.story.resets += 1
        number = self.story.resets
        self.length, self.rewards = LENGTHS[number % len(LENGTHS)], []
        self.fault = self.has_faults and number % 5 == 4 and number % 3
        return self._observation(), {}

    def _observation(self):
        return self.np_random.normal(size=2).astype("float32")

    def step(self, action):
        story, number = self.story, len(self.story.episodes)
        story.seconds += 1.0
        self.rewards.append(float(self.np_random.normal() + action))
        is_end = len(self.rewards) == self.length
        if is_end and self.fault:
            story.faults["dropped_episodes"] += 1
            story.faults["env_restarts"] += self.fault == 1
            if self.fault == 1:
                raise RuntimeError("The world ends.")
            return self._observation(), np.nan, True, False, {}
        success, terminated = None if is_end else True, False
        if is_end:
            terminated = TERMINATED[number % len(TERMINATED)]
            success = [True, None, False][number % 3] if story.epoch % 2 else None
            story.episodes.append(Episode(self.rewards, terminated, success))
        info = {} if success is None else {"is_success": success}
        return self._observation(), self.rewards[-1], terminated, is_end, info


class Story(tfr.callbacks.EpisodeCallback):
    """The episodes that ended, faults, the time, and the logs of each epoch."""

    def __init__(self):
        super().__init__()
        self.episodes, self.faults, self.seconds = [], collections.Counter(), 0.0
        self.resets = self.epoch = 0
        self.epochs, self.ended = [], []

    def mark(self, *_, **__):
        """Forgets episodes, faults and seconds, at the begin of a collection."""
        self.episodes, self.faults, self.seconds = [], collections.Counter(), 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.stages = epoch, []

    on_train_batch_begin = on_test_begin = mark

    def on_episodes_collected(self, episodes, logs):
        self.collected = dict(logs), self.seconds
        self.seconds += 100.0  # the time of callbacks does not count

    def on_episode_end(self, episode, logs):
        self.ended.append((episode, dict(logs)))

    def on_train_batch_end(self, batch, logs=None):
        self.stages.append((self.episodes, self.faults))

    on_test_end = functools.partialmethod(on_train_batch_end, 0)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append((self.stages, dict(logs), *self.collected))


def expected_logs(episodes, faults, options, knows_success):
    """Returns the logs of a collection by their definitions."""
    returns = [sum(x.rewards) for x in episodes]
    lengths = [len(x.rewards) for x in episodes]
    mean = sum(returns) / len(returns)
    squares = sum((x - mean) ** 2 for x in returns) / len(returns)
    logs = {
        "episode_return": mean,
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_return_std": math.sqrt(squares),
        "episode_length": sum(lengths) / len(lengths),
        "episodes": len(returns),
        "env_steps": sum(lengths),
    }
    reports = [x.success for x in episodes]
    if knows_success or set(reports) != {None}:
        logs["success"] = reports.count(True) / len(reports)
    if options:
        for key in ("dropped_episodes", "worker_restarts", "env_restarts"):
            logs[key] = faults[key]
    return logs


def assert_logs(logs, expected):
    """Compares all logs; fails for a log key that is not recomputed."""
    assert set(logs) == set(expected)
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, rel=1e-6), name


@pytest.mark.filterwarnings("ignore:An episode was dropped")
@pytest.mark.parametrize("size", [{"episodes_per_epoch": 5}, {"steps_per_epoch": 9}])
@pytest.mark.parametrize("has_faults", [sweeps.rare(False), True])
def test_logs_equal_their_definitions(size, has_faults, monkeypatch):
    story = Story()
    monkeypatch.setattr(time, "perf_counter", lambda: story.seconds)
    world = functools.partial(World, story, has_faults)
    options = {}
    if has_faults:
        options = dict(on_bad_env="drop_episode", on_env_error="restart")
    agent = tfr.Reinforce.for_env(world, hidden=())
    validation = dict(validation_env=world, validation_episodes=4, validation_freq=[2, 4])
    own = dict(callbacks=[story], num_envs=1, verbose=0, epochs=4)
    agent.fit(world, **own, **size, **validation, **options)
    known, steps, ended = [False, False], 0, []
    for epoch, (stages, logs, collected, seconds) in enumerate(story.epochs):
        learned = set(train_step.METRICS) - {"env_steps"}
        assert logs.keys() >= learned
        assert {name.removeprefix("val_") for name in logs} <= {*config.LOG_KEYS}
        logs = {k: x for k, x in logs.items() if k not in learned}
        expected = expected_logs(*stages[0], options, known[0])
        expected["steps_per_second"] = expected["env_steps"] / seconds
        ended += [(epoch, x) for x in stages[0][0]]
        steps = expected["env_steps"] = steps + expected["env_steps"]
        assert len(stages) == 1 + (epoch in (1, 3))
        if len(stages) > 1:
            validated = expected_logs(*stages[1], options, known[1])
            expected |= {f"val_{key}": x for key, x in validated.items()}
        assert_logs(logs, expected)
        known = [x or y in expected for x, y in zip(known, ("success", "val_success"))]
        assert collected == {"update": epoch}
    assert known == [True, True]
    assert [number for number, _ in story.ended] == list(range(len(ended)))
    for (update, episode), (_, logs) in zip(ended, story.ended, strict=True):
        expected = {"episode_return": sum(episode.rewards), "update": update}
        expected["episode_length"] = len(episode.rewards)
        if update:  # the first epoch of success
            expected["success"] = float(episode.success is True)
        assert_logs(logs, {**expected, "terminated": episode.terminated})
    for story.epoch in (0, 1):
        story.mark()
        logs = agent.evaluate(world, 5, num_envs=1, **options)
        assert_logs(logs, expected_logs(story.episodes, story.faults, options, False))
