"""Tests which worker plays which episodes."""

import random

import pytest

from tf_reinforce.engine.collect import worker_pool


def dispatch(sizes, episodes):
    return worker_pool.EpisodeDispatcher(sizes, episodes, None, None)


def play(one, lengths, rng, lose=0.0):
    """Plays all episodes in a random order; returns how often each one was finished."""
    finished, count = {}, len(one._sizes)
    running = [one.take(w, count - w) for w in range(count)]
    while not one.complete:
        w = rng.choice([w for w in range(count) if running[w]])
        if rng.random() < lose:
            one.lose(w)
            running[w] = one.take(w)
            continue
        number = running[w].pop(rng.randrange(len(running[w])))
        finished[number] = finished.get(number, 0) + 1
        one.finish(w, [number], [lengths(number)])
        for other in range(count):
            running[other] += one.take(other)
    return finished


@pytest.mark.parametrize("lose", [0.0, 0.3])
@pytest.mark.parametrize("sizes", [[1], [3, 2], [1] * 8])
@pytest.mark.parametrize("episodes", [1, 5, 40])
def test_every_episode_is_finished_once(sizes, episodes, lose):
    one = dispatch(sizes, episodes)
    finished = play(one, lambda n: 1 + n, random.Random(episodes), lose)
    assert finished == dict.fromkeys(range(episodes), 1)


@pytest.mark.parametrize("lose", [0.0, 0.3])
@pytest.mark.parametrize("mean_length", [None, 1.0, 50.0])
@pytest.mark.parametrize("steps", [1, 12, 300])
def test_first_episodes_have_the_requested_steps(steps, mean_length, lose):
    one = worker_pool.EpisodeDispatcher([2, 3], None, steps, mean_length)
    finished = play(one, lambda n: 1 + n % 7, random.Random(steps), lose)
    assert sorted(finished) == list(range(len(finished)))  # none is missing
    assert sum(1 + n % 7 for n in finished) >= steps


def test_last_episodes_are_handed_out_one_at_a_time():
    one = dispatch([1, 1], 5)
    first, second = one.take(0, 2), one.take(1, 1)
    assert [first, second] == [[0, 1], [2]]  # 5 // 4 = 1 in advance, then none
    one.finish(0, [0], [1])
    assert one.take(0) == []  # it still plays episode 1
    one.finish(0, [1], [1])
    assert one.take(0) == [3]
