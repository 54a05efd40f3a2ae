"""Tests which episodes start and which are used, for a number of steps."""

import random

import pytest

from tf_reinforce.engine.collect import host_loop


def total_steps(episodes, row):
    """Returns the steps of all episodes before step `row`, also of running ones."""
    return sum(x.length or row - x.start_row for x in episodes)


def first_episodes(episodes, steps):
    """Returns the first episodes with enough steps, or `None` until they have ended."""
    total = 0
    for number, episode in enumerate(episodes):
        total += episode.length
        if not episode.length:
            return None
        if total >= steps:
            return episodes[: number + 1]
    return None


@pytest.mark.parametrize("steps", [1, 7, 60, 300])
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_running_totals_equal_the_sums_over_all_episodes(steps, num_envs, seed):
    episode_scheduler = host_loop.EpisodeScheduler(None, steps)
    rng, row, result = random.Random(seed), 0, None
    active, idle = {}, set(range(num_envs))
    while result is None:
        for env_index in sorted(idle):
            expected = total_steps(episode_scheduler.episodes, row) < steps
            episode = episode_scheduler.start_next(row, env_index)
            assert (episode is not None) is expected
            if expected:
                idle.remove(env_index)
                active[env_index] = episode
        row += 1
        for env_index in [i for i in active if rng.random() < 0.2]:
            active.pop(env_index).finish(None, row, [])
            idle.add(env_index)
        result = episode_scheduler.result()
        assert result == first_episodes(episode_scheduler.episodes, steps)
    assert episode_scheduler.result() == result
    assert [x.number for x in result] == list(range(len(result)))
