"""Tests how an actor is called, with an imitation of Ray."""

import types

import pytest

from tf_reinforce.engine.collect import ray_handle
from tf_reinforce.engine.collect import ray_launcher


class RayError(Exception):
    pass


class FakeRay:
    """Records the calls of an actor; the test sets their results."""

    exceptions = types.SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.calls, self.results, self.num_kills = [], {}, 0
        self.actor = types.SimpleNamespace(
            **{name: self._method(name) for name in ("ping", "exchange", "send", "close")}
        )

    def _method(self, name):
        def remote(*args):
            self.calls.append((name, *args))
            return name, len(self.calls)

        return types.SimpleNamespace(remote=remote)

    def names(self):
        return [name for name, *_ in self.calls]

    def wait(self, references, timeout, num_returns=1):
        return [one for one in references if one in self.results], []

    def get(self, reference, timeout=None):
        result = self.results[reference]
        if isinstance(result, Exception):
            raise result
        return result

    def kill(self, actor):
        self.num_kills += 1


@pytest.fixture
def ray():
    return FakeRay()


@pytest.fixture
def now(monkeypatch):
    """A clock that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(ray_handle.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def launcher(ray):
    options = types.SimpleNamespace(worker_health_probe_timeout_s=30.0)
    return types.SimpleNamespace(ray=ray, options=options, is_connected=True, silence=9.0)


@pytest.fixture
def handle(ray, launcher, now):
    return ray_handle.ActorHandle(launcher, ray.actor, "node")


@pytest.fixture
def workers(handle, launcher):
    """Two workers with the numbers 0 and 1 and the keys 10 and 11."""
    workers = [ray_launcher.RayWorker(launcher, 10 + n, n, 1, n) for n in range(2)]
    for one in workers:
        one.send("factory")
        handle.add(one)
    return workers


def start(ray, handle, now):
    """Lets the actor answer the first ping and the first call."""
    ray.results["ping", 1] = 1
    handle.request([10, 11])
    ready = {"kind": "ready"}, []
    ray.results[handle.reply] = [(10, ready), (11, ready)]
    handle.take_reply()
    handle.probe()


def test_message_for_several_workers_is_sent_once(ray, handle, workers):
    handle.request([10, 11])
    orders = [
        *(("start", 10, 0, 1, 0), ("send", 10, 0)),
        *(("start", 11, 1, 1, 1), ("send", 11, 0)),
    ]
    assert ray.calls[1:] == [("exchange", [10, 11], orders, "factory")]


def test_message_of_a_waiting_call_is_brought_by_another_call(ray, handle, workers, now):
    start(ray, handle, now)
    for one in workers:
        one.receive()
    workers[0].send("weights")
    handle.request([10])
    handle.request([10])
    workers[1].send("weights")
    handle.request([10, 11])
    assert ray.calls[2:] == [
        ("exchange", [10], [("send", 10, 0)], "weights"),
        ("send", [("send", 11, 0)], "weights"),
    ]


def test_next_call_waits_until_all_messages_are_read(ray, handle, workers, now):
    start(ray, handle, now)
    workers[0].receive()
    handle.request([10, 11])
    assert ray.names() == ["ping", "exchange"]
    workers[1].receive()
    handle.request([10, 11])
    assert ray.names() == ["ping", "exchange", "exchange"]


def test_events_of_a_predecessor_are_dropped(ray, handle, workers, launcher, now):
    start(ray, handle, now)
    for one in workers:
        one.receive()
    handle.request([10])
    ray.results[handle.reply] = [(10, "was killed")]
    handle.add(successor := ray_launcher.RayWorker(launcher, 12, 0, 1, 0))
    handle.take_reply()
    assert not successor.has_message
    assert handle.num_workers == 2


def test_failed_call_makes_all_workers_lost_and_kills_the_actor(ray, handle, workers):
    """The actor may live, for example if Ray reports it as temporarily unavailable."""
    handle.request([10, 11])
    ray.results[handle.reply] = RayError("\x1b[31mnot reached\x1b[0m\nip: 10.0.0.1\n.")
    handle.take_reply()
    assert ray.num_kills == 1
    for one in workers:
        assert one.has_message
        with pytest.raises(ray_launcher.local_worker.HostLost, match="10.0.0.1.: not r"):
            one.send("episodes")
    handle.request([10, 11])
    assert ray.names() == ["ping", "exchange"]


def test_actor_that_answers_no_ping_is_lost(ray, handle, workers, launcher, now):
    start(ray, handle, now)
    assert launcher.silence == 0.0
    now[0] += 5.1
    handle.probe()
    assert ray.names()[-1] == "ping"
    now[0] += 29.9
    handle.probe()
    assert handle.lost is None
    now[0] += 0.2
    handle.probe()
    assert "worker_health_probe_timeout_s=30 s" in handle.lost
    assert ray.num_kills == 1 and handle.was_lost_in(15.0)


def test_actor_that_waits_for_a_machine_is_not_lost(ray, handle, workers, now):
    handle.request([10, 11])
    now[0] += 1e6
    handle.probe()
    assert handle.lost is None and not handle.has_started


def test_call_that_does_not_begin_is_an_error(ray, handle, workers, now):
    """Ray waits without a limit for the arguments of a call."""
    ray.results["ping", 1] = 0  # the actor lives, and has begun no call
    handle.request([10, 11])
    handle.probe()
    now[0] += 301.0
    handle.probe()
    ray.results["ping", 3] = 0
    handle.probe()
    assert "has not received the environment, the program or the weights" in handle.lost


def test_workers_of_an_actor_that_has_not_started_can_be_placed_again(
    ray, handle, workers, launcher, now
):
    handle.request([10, 11])
    assert not handle.is_unstarted_after(20.0)
    now[0] += 20.0
    assert handle.is_unstarted_after(20.0)
    assert handle.release() == workers and ray.num_kills == 1
    other = ray_handle.ActorHandle(launcher, ray.actor, "node")
    other.add(workers[1])
    other.request([11])
    orders = [("start", 11, 1, 1, 1), ("send", 11, 0)]
    assert ray.calls[-1] == ("exchange", [11], orders, "factory")
