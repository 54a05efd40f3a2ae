"""Tests that workers on a Ray cluster collect the episodes of one process.

The cluster has two nodes on this machine, which listen on 127.0.0.1 only.
"""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import cloudpickle
import pytest
import ray_cluster
import toy_envs
from nested_arrays import assert_identical

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.engine.collect import ray_connection
from tf_reinforce.engine.collect import ray_host
from tf_reinforce.engine.collect import ray_launcher

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
    uses = "cluster" in request.fixturenames
    cluster = request.getfixturevalue("cluster") if uses else None
    yield
    for _ in range(200 * uses):
        if not (left := worker_processes(cluster)):
            return
        threading.Event().wait(0.05)
    assert not uses, f"processes are left: {left}"


@pytest.fixture
def make_workers(cluster):
    """Returns a function that makes `RayWorkers` of the cluster."""

    def make(num_workers=3, **options):
        options = {"address": cluster.address, **options}
        return tfr.collect.RayWorkers(num_workers, **options)

    return make


@pytest.fixture(scope="module")
def agent():
    agent = tfr.Reinforce.for_env(toy_envs.Lengths, hidden=(4,))
    agent.collect(toy_envs.Lengths, 1)
    return agent


def worker_processes(cluster):
    """Returns the process numbers of the worker processes of this file's environments.

    They inherit an environment variable of the processes of their cluster.
    """
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # the process has ended
            continue
        names = {variable.partition(b"=")[0] for variable in variables}
        if b"TF_REINFORCE_WORKER" in names and b"RAY_JOB_ID" in names:
            found.append(int(path.parent.name))
    return found


# Equal results


@pytest.mark.slow
def test_training_with_ray_equals_training_in_one_process(make_workers):
    def train(**options):
        agent = tfr.Reinforce.for_env(
            "Pendulum-v1",
            hidden=(4,),
            baseline={"kind": "value"},
            normalize_observations=True,
        )
        budget = dict(epochs=3, episodes_per_epoch=5, max_episode_steps=9)
        history = agent.fit("Pendulum-v1", **budget, **options, verbose=0).history
        logs = {key: x for key, x in history.items() if "seconds" not in key}
        logs = {key: x for key, x in logs.items() if not key.endswith("_share")}
        return agent.get_weights(), logs, agent.evaluate("Pendulum-v1", 3, **options)

    one, other = train(), train(workers=make_workers(), num_envs=5)
    assert_identical(one[0], other[0])
    assert other[1].pop("worker_restarts") == [0, 0, 0]
    assert one[1].keys() == other[1].keys()
    times = {"steps_per_second", "env_steps_per_second", "fps"}
    for key in one[1].keys() - times:
        assert one[1][key] == other[1][key], key
    assert other[2].pop("worker_restarts") == 0
    assert one[2] == other[2]


@pytest.mark.slow
def test_one_worker_is_a_worker_on_the_cluster(agent, make_workers):
    class Process(toy_envs.Lengths):
        def __init__(self):
            super().__init__()
            self.parent = os.getppid()

        def reset(self, **kwargs):
            assert os.environ.get("TF_REINFORCE_WORKER") == "0"
            return super().reset(**kwargs)

    assert_identical(
        agent.collect(Process, 4, workers=make_workers(1)),
        agent.collect(toy_envs.Lengths, 4),
    )


@pytest.mark.slow
def test_pools_share_the_connection_and_the_last_one_ends_it(agent, make_workers):
    import ray

    def handle(*_):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with tfr.collect.open_envs(toy_envs.Lengths, 1, workers=make_workers(1)) as pool:
            first = agent.collect(pool, 3)
            agent.collect(toy_envs.Lengths, 3, workers=make_workers(1))
            assert ray.is_initialized()
            assert_identical(agent.collect(pool, 3), first)
        assert not ray.is_initialized()
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_held_connection_remains_between_pools(agent, cluster, make_workers):
    import ray

    with ray_connection.hold(cluster.address):
        agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))
        assert ray.is_initialized()
        agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))
    assert not ray.is_initialized()


# Faults


class Once(toy_envs.Lengths):
    """An environment that calls `fail` in a step of worker 1, but only once in all."""

    def __init__(self, file, fail):
        super().__init__()
        self.file, self.fail = pathlib.Path(file), fail

    def step(self, action):
        is_first = os.environ.get("TF_REINFORCE_WORKER") == "1"
        if is_first and not self.file.exists():
            self.file.touch()
            self.fail()
        return super().step(action)


def kill_process():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_actor():
    """Kills the parent of the worker process, the process of the actor."""
    os.kill(os.getppid(), signal.SIGKILL)
    threading.Event().wait(60)


def hang():
    threading.Event().wait(60)


def stop_actor():
    os.kill(os.getppid(), signal.SIGSTOP)


def started_again(caplog):
    """Returns the numbers of the workers that were replaced according to the log."""
    texts = [record.getMessage() for record in caplog.records]
    return [int(x.split()[1]) for x in texts if x.endswith("It is started again.")]


PLACE = r"\(step of environment \d+, episode \d+, step \d+\) on \S+"


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (kill_process, rf"Worker 1 was killed by the signal SIGKILL {PLACE}\."),
        (hang, rf"Worker 1 did not .* step_timeout=0.5 s, and was ended {PLACE}\."),
    ],
)
@pytest.mark.slow
def test_lost_process_is_named_with_its_place(
    agent, make_workers, tmp_path, fail, message
):
    env = functools.partial(Once, tmp_path / "failed", fail)
    workers = make_workers()
    options = {"workers": workers, "step_timeout": 0.5}
    expected = pytest.raises(tfr.collect.EnvironmentFault, match=f"^{message}")
    with tfr.collect.open_envs(env, 3, **options) as pool, expected:
        agent.collect(pool, 12)


@pytest.mark.slow
def test_error_of_an_environment_is_that_of_a_local_worker(agent, make_workers, tmp_path):
    env = functools.partial(Once, tmp_path / "failed", lambda: [].pop())
    message = r"Worker 1: Environment \d, episode \d, step \d: step raised IndexError"
    with pytest.raises(tfr.collect.EnvironmentFault, match=message) as caught:
        agent.collect(env, 12, workers=make_workers())
    assert "in <lambda>" in str(caught.value.__cause__)


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
    agent, make_workers, tmp_path, caplog, fail, options
):
    env = functools.partial(Once, tmp_path / "failed", fail)
    probe = {"worker_health_probe_timeout_s": 4} if fail == stop_actor else {}
    workers = make_workers(**probe)
    with tfr.collect.open_envs(env, 3, workers=workers, **options) as pool:
        assert_identical(agent.collect(pool, 12), agent.collect(toy_envs.Lengths, 12))
    assert (tmp_path / "failed").exists()
    lost = started_again(caplog)
    assert 1 in lost
    assert len(lost) == 1 or fail != kill_process  # an actor may hold two workers


@pytest.mark.slow
def test_log_counts_workers_that_were_replaced(make_workers, tmp_path, caplog):
    env = functools.partial(Once, tmp_path / "failed", kill_actor)
    agent = tfr.Reinforce.for_env(toy_envs.Lengths, hidden=(4,))
    budget = dict(epochs=2, episodes_per_epoch=6, num_envs=2, verbose=0)
    history = agent.fit(env, **budget, workers=make_workers(2)).history
    assert history["worker_restarts"] == [len(started_again(caplog)), 0]
    assert 1 in started_again(caplog)


@pytest.mark.slow
def test_processes_of_an_environment_end_with_its_actor(agent, make_workers, tmp_path):
    """The fixture finds remaining processes, which inherit the variables of workers."""

    class Starting(Once):
        def reset(self, **kwargs):
            subprocess.Popen(["sleep", "1000"])
            return super().reset(**kwargs)

    env = functools.partial(Starting, tmp_path / "failed", kill_actor)
    collected = agent.collect(env, 4, workers=make_workers(2))
    assert_identical(collected, agent.collect(toy_envs.Lengths, 4))


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
    with tfr.collect.open_envs(Waiting, 8, workers=make_workers(8)) as pool:
        collected = agent.collect(pool, 8)
    killer.join()
    cluster.add_node()
    assert_identical(collected, agent.collect(toy_envs.Lengths, 8))


# Bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "`num_workers` must be a whole number of at least 1"),
        ({"num_workers": 1.5}, "`num_workers` must be a whole number of at least 1"),
        ({"address": "nowhere"}, "must be the address `host:port`.*'nowhere'"),
        ({"address": "ray://127.0.0.1:1"}, "Ray Client is not supported"),
        ({"num_cpus_per_worker": -1}, "num_cpus_per_worker"),
        ({"worker_health_probe_timeout_s": 0}, "worker_health_probe_timeout_s"),
        ({"restart_failed_workers": 2}, "restart_failed_workers"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tfr.collect.RayWorkers(**{"num_workers": 2, **options})


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "auto", "256.256.256.256:6379", "127.0.0.1:99999"]
)
def test_address_without_a_cluster_is_named(agent, address, monkeypatch):
    if address == "auto":
        from ray._private import services

        monkeypatch.setattr(services, "find_gcs_addresses", lambda: set())
        monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    message = f"connection to the Ray cluster failed.*address='{re.escape(address)}'"
    with pytest.raises(ValueError, match=message):
        agent.collect(toy_envs.Lengths, 2, workers=tfr.collect.RayWorkers(2, address))


@pytest.mark.slow
def test_connection_of_the_program_is_used_and_remains(agent, cluster, make_workers):
    import ray

    ray.init(address=cluster.address, logging_level="ERROR")
    try:
        agent.collect(toy_envs.Lengths, 2, workers=make_workers(1, address="auto"))
        with pytest.raises(ValueError, match='connected to another.*address="auto"'):
            agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_pool_closes_although_the_program_has_ended_the_connection(agent, make_workers):
    import ray

    with tfr.collect.open_envs(toy_envs.Lengths, 1, workers=make_workers(1)) as pool:
        agent.collect(pool, 2)
        ray.shutdown()
    assert not ray.is_initialized()
    agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))


@pytest.mark.slow
def test_cluster_with_another_version_of_ray_is_refused(agent, make_workers, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "__version__", "2.0.0")
    with pytest.raises(ValueError, match=r"same versions of Ray.*2\.0\.0"):
        agent.collect(toy_envs.Lengths, 2, workers=make_workers())


@pytest.mark.parametrize("package", ["numpy", "cloudpickle"])
@pytest.mark.slow
def test_machine_with_another_version_is_refused_unless_allowed(
    agent, make_workers, monkeypatch, package
):
    """NumPy is compared before the environment is made, and other packages if the
    environment has imported them.
    """
    own, number = (
        ray_host.own_versions(sys.path),
        ray_host.own_versions(sys.path)[package],
    )
    monkeypatch.setattr(ray_host, "own_versions", lambda _: {**own, package: "0.0.1"})
    message = rf"other versions of packages.*{package} {number} \(expected 0\.0\.1\)"
    with pytest.raises(ValueError, match=message):
        agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))
    assert_identical(
        agent.collect(
            toy_envs.Lengths, 2, workers=make_workers(1, allow_other_versions=True)
        ),
        agent.collect(toy_envs.Lengths, 2),
    )


@pytest.mark.slow
def test_versions_of_packages_that_the_environment_does_not_use_do_not_matter(
    agent, make_workers, monkeypatch
):
    own = ray_host.own_versions(sys.path)
    monkeypatch.setattr(ray_host, "own_versions", lambda _: {**own, "keras": "0.0.1"})
    collected = agent.collect(toy_envs.Lengths, 2, workers=make_workers(1))
    assert_identical(collected, agent.collect(toy_envs.Lengths, 2))


@pytest.mark.slow
def test_workers_that_no_machine_can_start_are_named(
    agent, make_workers, monkeypatch, caplog
):
    monkeypatch.setattr(ray_launcher, "_START_SECONDS", 1.0)
    workers = make_workers(2, num_cpus_per_worker=99)
    message = r"Worker 0 has not started within 1 s.* The Ray cluster has \d+ cores"
    with pytest.raises(TimeoutError, match=message):
        agent.collect(toy_envs.Lengths, 2, workers=workers)
    assert "wait for further machines" in caplog.text


@pytest.mark.slow
def test_training_starts_with_the_workers_that_find_a_machine(
    agent, make_workers, caplog
):
    """Each machine has four cores, and room for one worker with three.

    There are two machines, and perhaps one that an earlier test has killed.
    """
    workers = make_workers(4, num_cpus_per_worker=3)
    with tfr.collect.open_envs(toy_envs.Lengths, 4, workers=workers) as pool:
        collected = agent.collect(pool, 6)
        assert 1 <= sum(one.ready for one in pool._workers) <= 2
    assert_identical(collected, agent.collect(toy_envs.Lengths, 6))
    assert re.search("room for [23] of 4 workers", caplog.text)


def test_missing_ray_names_the_extra(agent, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"tf-reinforce\[ray\]"):
        agent.collect(toy_envs.Lengths, 2, workers=tfr.collect.RayWorkers(2))


# The command line


@pytest.mark.slow
def test_command_on_a_cluster_writes_the_files_of_one_process(cluster, tmp_path):
    train = ["train", "CartPole-v1", "--engine", "host", "--epochs", "2", "--hidden", "4"]
    ray = ["--ray", cluster.address, "--workers", "4"]
    assert cli.main([*train, "--run-dir", str(tmp_path / "one")]) == 0
    assert cli.main([*train, *ray, "--run-dir", str(tmp_path / "ray")]) == 0
    for name in ("episodes.csv", "config.json"):
        one, other = ((tmp_path / run / name).read_text() for run in ("one", "ray"))
        assert one == other
    files = (tmp_path / run / "evaluation.json" for run in ("one", "ray"))
    one, other = (json.loads(file.read_text()) for file in files)
    assert other == {**one, "worker_restarts": 0}
    one, other = (tfr.load(tmp_path / run / "agent.keras") for run in ("one", "ray"))
    assert_identical(one.get_weights(), other.get_weights())
