"""Tests the actor that holds worker processes, without a Ray cluster."""

import os
import signal
import sys
import threading

import cloudpickle
import numpy as np
import pytest

from tf_reinforce.engine.collect import channel
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import ray_host

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Envs:
    """What a worker process makes, in place of a batch of environments."""

    def __init__(self, count):
        self.count = count

    def close_all(self):
        return [f"environment {self.first_index}: no more ink"]


FACTORY = channel.encode(
    {"kind": "factory"}, [np.frombuffer(cloudpickle.dumps(Envs), np.uint8)]
)
MAKE = channel.encode({"kind": "environments", "count": 1, "first_index": 3})


@pytest.fixture
def host():
    host = ray_host.WorkerHost(300.0, [], None)
    yield host
    host.close(5.0, True)
    for one in host._workers.values():
        one.kill()
    host._guard.close()


def start(key, number=0):
    """Returns the orders that start a process with an environment."""
    return [("start", key, number, 1, 3), ("send", key, 0), ("send", key, 1)]


def exchange(host, busy, orders=(), messages=(), count=1):
    """Returns a dict from keys to contents, after at least `count` events."""
    events = [*host.exchange(busy, [*orders], *messages)]
    while len(events) < count:
        events += host.exchange(busy, [])
    return dict(events)


def in_thread(function, *args):
    """Calls a function in a thread; returns a function that waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()

    def wait():
        thread.join(30)
        assert results, "the call has not returned"
        return results[0]

    return wait


def test_one_call_returns_the_messages_of_several_processes(host):
    orders = [*start(10, number=0), *start(11, number=1)]
    events = exchange(host, [10, 11], orders, [FACTORY, MAKE], count=2)
    assert events == {key: ({"kind": "ready"}, []) for key in (10, 11)}
    assert host.ping() >= 1


def test_lost_process_is_named_and_the_others_go_on(host):
    exchange(host, [10], start(10), [FACTORY, MAKE])
    exchange(host, [11], start(11, number=1), [FACTORY, MAKE])
    os.kill(host._workers[10].pid, signal.SIGKILL)
    events = exchange(host, [10, 11])
    assert [*events] == [10]
    assert str(events[10]).startswith("was killed by the signal SIGKILL (")
    assert exchange(host, [11], [("send", 11, 0)], [MAKE]) == {
        11: ({"kind": "ready"}, [])
    }


def test_messages_for_a_lost_process_do_not_reach_its_successor(host):
    exchange(host, [10], start(10), [FACTORY, MAKE])
    os.kill(host._workers[10].pid, signal.SIGKILL)
    exchange(host, [10])
    unknown = channel.encode({"kind": "unknown"})
    host.send([("send", 10, 0)], unknown)
    events = exchange(host, [11], start(11), [FACTORY, MAKE])
    assert events == {11: ({"kind": "ready"}, [])}
    host.send([("send", 10, 0)], unknown)
    assert exchange(host, [11], [("send", 11, 0)], [MAKE]) == {
        11: ({"kind": "ready"}, [])
    }


def test_process_is_late_only_after_it_has_received_a_message(host, monkeypatch):
    """Ray may run `exchange` before the `send` that brings the message."""
    exchange(host, [10], start(10), [FACTORY, MAKE])
    exchange(host, [11], start(11, number=1), [FACTORY, MAKE])  # 10 is idle now
    monkeypatch.setattr(local_worker, "START_TIMEOUT", 0.0)
    for one in host._workers.values():
        one._step_timeout = 0.0  # a process that is looked at is late
    host._step_timeout, looks, looked = 0.01, iter(range(3)), threading.Event()
    receive = host._receive

    def count_looks():
        receive()
        if next(looks, None) is None:
            looked.set()

    monkeypatch.setattr(host, "_receive", count_looks)
    wait = in_thread(host.exchange, [10], [])
    assert looked.wait(30)
    for one in host._workers.values():
        one._step_timeout = 300.0
    host.send([("send", 10, 0)], MAKE)
    assert wait() == [(10, ({"kind": "ready"}, []))]


def test_process_that_cannot_start_is_lost(host, monkeypatch):
    def fail(*_):
        raise OSError("no more processes")

    monkeypatch.setattr(local_worker, "LocalWorker", fail)
    events = exchange(host, [10], start(10), [FACTORY, MAKE])
    assert str(events[10]).startswith("could not be started on ")
    assert str(events[10]).endswith(": no more processes")


@pytest.mark.parametrize("interrupted", [False, True])
def test_close_ends_a_waiting_call_and_names_failures_of_close(host, interrupted):
    exchange(host, [10], start(10), [FACTORY, MAKE])
    wait = in_thread(host.exchange, [10], [])
    problems = host.close(10.0, interrupted)
    assert problems == {10: ["worker 0: environment 3: no more ink"]}
    assert wait() == []
