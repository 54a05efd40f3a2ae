"""Tests that workers on a Ray cluster collect the episodes of one process.

The cluster has two nodes on this machine, which listen on 127.0.0.1 only.
"""

import contextlib
import functools
import os
import pathlib
import re
import signal
import sys
import threading

import cloudpickle
import pytest
import ray_cluster
import repeatable_runs
import toy_envs
from nested_arrays import assert_identical

import tf_reinforce as tfr
from tf_reinforce.cluster import ray_workers
from tf_reinforce.engine.collect import local_worker

# Workers receive the environments of this file, which imports TensorFlow, without it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.filterwarnings(
    # Ray 2.60 leaves files of its connection to the garbage collector.
    "ignore:unclosed:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(scope="module")
def cluster():
    with ray_cluster.running(nodes=2, cores=4) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def check_that_workers_end(request):
    yield
    if "cluster" in request.fixturenames:
        for _ in range(200):
            if not (left := worker_processes()):
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"processes are left: {left}")


def worker_processes():
    """Returns the process numbers of the worker processes of Ray actors."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # the process has ended
            variables = path.read_bytes()
            if b"TF_REINFORCE_WORKER=" in variables and b"RAY_JOB_ID=" in variables:
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def make_workers(cluster):
    """Returns a function that makes `RayWorkers` of the cluster."""

    return functools.partial(
        tfr.collect.RayWorkers, num_workers=3, address=cluster.address
    )


@pytest.fixture(scope="module")
def agent():
    agent = tfr.Reinforce.for_env(toy_envs.Lengths, hidden=(4,))
    agent.collect(toy_envs.Lengths, 1)
    return agent


# Equal results


@pytest.mark.slow
def test_training_with_ray_equals_training_in_one_process(make_workers):
    name = "Pendulum-v1"
    agent = repeatable_runs.renewed(name)
    budget = dict(epochs=4, num_envs=5, workers=make_workers(), **repeatable_runs.BATCH)
    logs = repeatable_runs.logs(agent.fit(name, **budget))
    assert logs.pop("worker_restarts") == [(0.0).hex()] * 4
    weights, expected, _ = repeatable_runs.reference(name)
    assert repeatable_runs.weights(agent) == weights
    assert logs == expected


@pytest.mark.slow
def test_connection_remains_and_the_handler_of_sigterm_too(agent, make_workers):
    import ray  # after `ray_cluster` has set environment variables that it reads

    def handle(*_):
        raise AssertionError

    ray.shutdown()
    before = signal.signal(signal.SIGTERM, handle)
    try:
        workers = make_workers(num_workers=1)
        with tfr.collect.open_envs(toy_envs.Lengths, 1, workers=workers) as pool:
            first = agent.collect(pool, 3)
            agent.collect(toy_envs.Lengths, 3, workers=workers)
            assert_identical(agent.collect(pool, 3), first)
        assert ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


# Faults


class Once(toy_envs.Lengths):
    """An environment that calls `fail` in a step of a worker, but only once in all."""

    def __init__(self, folder, fail):
        super().__init__()
        self.folder, self.fail = pathlib.Path(folder), fail

    def step(self, action):
        if "TF_REINFORCE_WORKER" in os.environ:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir()
                self.fail()
        return super().step(action)


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_actor():
    """Kills the parent of the worker process, the process of the actor."""
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait(60)


def stop_actor():
    os.kill(os.getppid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("fail", "options"),
    [
        (kill_process, {"on_env_error": "restart"}),
        (kill_actor, {}),
        (stop_actor, {}),
    ],
)
@pytest.mark.slow
def test_lost_worker_is_replaced_without_any_effect(
    agent, make_workers, tmp_path, caplog, monkeypatch, fail, options
):
    env = functools.partial(Once, tmp_path / "failed", fail)
    monkeypatch.setattr(local_worker, "START_TIMEOUT", 10.0)
    probe = {"worker_health_probe_timeout_s": 8} if fail == stop_actor else {}
    workers = make_workers(**probe)
    with tfr.collect.open_envs(env, 3, workers=workers, **options) as pool:
        assert_identical(agent.collect(pool, 12), agent.collect(toy_envs.Lengths, 12))
    assert (tmp_path / "failed").exists()
    assert caplog.text.count("It is started again.") == 1


@pytest.mark.slow
def test_lost_actor_is_an_error_if_workers_are_not_restarted(
    agent, make_workers, tmp_path
):
    env = functools.partial(Once, tmp_path / "failed", kill_actor)
    workers = make_workers(restart_failed_workers=False)
    with pytest.raises(tfr.collect.EnvironmentFault, match=r"Worker \d is lost with its"):
        agent.collect(env, 12, workers=workers)


@pytest.mark.slow
def test_node_that_dies_costs_only_the_episodes_that_it_was_playing(
    agent, cluster, make_workers, tmp_path
):
    """Four of eight workers die in their first episode, and there are no free cores."""
    go = tmp_path / "go"

    class Waiting(toy_envs.Lengths):
        def step(self, action):
            (tmp_path / f"playing-{os.environ['TF_REINFORCE_WORKER']}").touch()
            for _ in range(1_000):
                if go.exists():
                    break
                threading.Event().wait(0.01)
            return super().step(action)

    def kill():
        while len([*tmp_path.glob("playing-*")]) < 8:
            threading.Event().wait(0.01)
        cluster.kill_node()
        go.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with tfr.collect.open_envs(Waiting, 8, workers=make_workers(num_workers=8)) as pool:
        collected = agent.collect(pool, 8)
    killer.join()
    cluster.add_node()
    assert_identical(collected, agent.collect(toy_envs.Lengths, 8))


# Bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "`num_workers` must be a whole number of at least 1"),
        ({"address": "nowhere"}, "must be the address `host:port`.*'nowhere'"),
        ({"address": "ray://127.0.0.1:1"}, "must be the address"),
        ({"num_cpus_per_worker": -1}, "num_cpus_per_worker"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tfr.collect.RayWorkers(**{"num_workers": 2, **options})


@pytest.mark.parametrize("address", ["127.0.0.1:9", "256.256.256.256:6379", "a:99999"])
def test_address_without_a_cluster_is_named(agent, address):
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()  # an earlier test may have connected
    message = f"connection to the Ray cluster failed.*address='{re.escape(address)}'"
    with pytest.raises(ValueError, match=message):
        agent.collect(toy_envs.Lengths, 2, workers=tfr.collect.RayWorkers(2, address))


@pytest.mark.slow
def test_connection_to_another_cluster_is_refused(agent, make_workers):
    agent.collect(toy_envs.Lengths, 2, workers=make_workers(num_workers=1))
    auto = make_workers(num_workers=1, address="auto")
    agent.collect(toy_envs.Lengths, 2, workers=auto)
    with pytest.raises(ValueError, match="connected to another.*Expected: "):
        agent.collect(toy_envs.Lengths, 2, workers=make_workers(address="10.0.0.1:1"))


@pytest.mark.parametrize(("package", "is_used"), [("numpy", True), ("keras", False)])
@pytest.mark.slow
def test_machine_with_other_versions_is_refused_unless_allowed(
    agent, make_workers, monkeypatch, package, is_used
):
    """Packages that the environment has not imported do not matter."""
    versions = ray_workers.package_versions
    number = versions(["numpy"])["numpy"]
    monkeypatch.setattr(
        ray_workers, "package_versions", lambda x: {**versions(x), package: "0.0.1"}
    )
    allowed = make_workers(num_workers=1, allow_other_versions=is_used)
    assert_identical(
        agent.collect(toy_envs.Lengths, 2, workers=allowed),
        agent.collect(toy_envs.Lengths, 2),
    )
    if is_used:
        message = rf"other versions of packages.*numpy {number} \(expected 0\.0\.1\)"
        with pytest.raises(ValueError, match=message):
            agent.collect(toy_envs.Lengths, 2, workers=make_workers(num_workers=1))


@pytest.mark.slow
def test_workers_that_no_machine_can_start_are_named(agent, make_workers, monkeypatch):
    monkeypatch.setattr(ray_workers, "_START_SECONDS", 1.0)
    workers = make_workers(num_workers=2, num_cpus_per_worker=99)
    message = "Worker 0 has not started within 1 s.* waits for 99 free cores"
    with pytest.raises(TimeoutError, match=message):
        agent.collect(toy_envs.Lengths, 2, workers=workers)


@pytest.mark.slow
def test_training_starts_with_the_workers_that_find_a_machine(agent, make_workers):
    """Each of the two machines has four cores, and room for one worker with three."""
    workers = make_workers(num_workers=4, num_cpus_per_worker=3)
    with tfr.collect.open_envs(toy_envs.Lengths, 4, workers=workers) as pool:
        collected = agent.collect(pool, 6)
        assert 1 <= sum(one.ready for one in pool._workers) <= 2
    assert_identical(collected, agent.collect(toy_envs.Lengths, 6))


def test_missing_ray_names_the_extra(agent, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"tf-reinforce\[ray\]"):
        agent.collect(toy_envs.Lengths, 2, workers=tfr.collect.RayWorkers(2))
