"""Tests that workers are reported which make the other workers wait."""

import toy_envs

import tf_reinforce as tfr
from tf_reinforce.engine.collect import stragglers


def played(monkeypatch, events, num_workers, end):
    """Returns the description of a collection from events at given times.

    Args:
        events: List of tuples of a time, the arguments of `IdleTimes.finish`, and the
            list of all idle workers.
        num_workers: Int.
        end: Float, the time of the description.
    """
    now = [0.0]
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: now[0])
    idle_times = stragglers.IdleTimes(num_workers)
    for now[0], *event, idle in events:
        idle_times.finish(*event)
        idle_times.set_idle(idle)
    now[0] = end
    return idle_times.describe()


def test_idle_share_of_a_long_episode(monkeypatch):
    """Worker 1 has nothing to play for 8 of 10 s, and worker 2 for 10 of 10 s: 60 %."""
    events = [
        (0.0, 1, [], [], 0.0, [2]),
        (1.0, 1, [1], [20], 1.0, [2]),
        (2.0, 1, [2], [20], 1.0, [1, 2]),
        (10.0, 0, [0, 3], [100, 900], 10.0, [0, 1, 2]),
    ]
    assert played(monkeypatch, events, 3, 10.0) == (
        "In a collection of 10.0 s, the workers had no episode to play for 60% of their "
        "time. The last to finish was worker 0, with episode 3 of 900 steps. Use more "
        "episodes for each update, or fewer workers."
    )


def test_a_worker_that_plays_again_is_not_idle(monkeypatch):
    events = [
        (2.0, 0, [0], [20], 2.0, [0]),
        (3.0, 1, [1], [20], 3.0, []),  # worker 0 plays episodes of a lost worker
        (10.0, 1, [2], [20], 7.0, [0, 1]),
    ]
    assert played(monkeypatch, events, 2, 10.0) is None


def test_a_slow_machine_is_named_with_its_speed(monkeypatch):
    events = [
        (1.0, 0, [0], [100], 1.0, [0]),
        (1.0, 1, [1], [100], 1.0, [0, 1]),
        (10.0, 2, [2], [100], 10.0, [0, 1, 2]),
    ]
    text = played(monkeypatch, events, 3, 10.0)
    assert text.endswith(
        "Environments of worker 2 make 10 steps/s; the median of the workers is 100 "
        "steps/s."
    )


def test_short_collections_and_busy_workers_are_not_reported(monkeypatch):
    events = [(0.1, 0, [0], [1], 0.1, [0]), (0.9, 1, [1], [9], 0.8, [0, 1])]
    assert played(monkeypatch, events, 9, 0.9) is None
    events = [(6.0, 0, [0], [1], 6.0, [0]), (9.0, 1, [1], [9], 9.0, [0, 1])]
    assert played(monkeypatch, events, 2, 9.0) is None


def test_pool_reports_stragglers_once(monkeypatch, caplog):
    """Three of four workers have no episode."""
    monkeypatch.setattr(stragglers, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(stragglers, "IDLE_SHARE", 0.0)  # a short collection is no measure
    agent = tfr.Reinforce.for_env(toy_envs.Clock, hidden=(4,))
    with tfr.collect.open_envs(toy_envs.Clock, 4, workers=4) as pool:
        for _ in range(2):
            agent.collect(pool, 1)
    lines = [x for x in caplog.messages if "no episode to play" in x]
    assert len(lines) == 1
    assert "with episode 0 of 3 steps" in lines[0]
