"""Tests that worker processes collect the episodes of one process, and always end."""

import contextlib
import functools
import gc
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import threading
import weakref

import cloudpickle
import masked_agents
import numpy as np
import pytest
import recurrent_agents
import repeatable_runs
import sweeps
import toy_envs
import toys
from nested_arrays import assert_identical

import tf_reinforce as tfr
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import worker
from tf_reinforce.engine.collect import worker_pool

# Workers receive the environments of this file, which imports TensorFlow, without it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(autouse=True)
def started(monkeypatch):
    """Returns the worker processes that a test starts, and checks that all have ended."""
    processes, popen = [], local_worker.subprocess.Popen

    def start(*args, **kwargs):
        processes.append(popen(*args, **kwargs))
        return processes[-1]

    monkeypatch.setattr(local_worker.subprocess, "Popen", start)
    yield processes
    for process in processes:
        assert process.returncode is not None


@pytest.fixture(scope="module")
def agent():
    agent = tfr.Reinforce.for_env(toy_envs.Lengths, hidden=(4,))
    agent.collect(toy_envs.Lengths, 1)
    return agent


# Equal results for any number of processes


def masked_agent(place):
    env = functools.partial(masked_agents.Riddle, place)
    return lambda: masked_agents.learner(place), env


def agent_for(env, **options):
    return lambda: tfr.Reinforce.for_env(env, hidden=(8,), **options), env


AGENTS = {
    "recurrent": (recurrent_agents.ready, toy_envs.Lengths),
    "Gaussian": agent_for("Pendulum-v1"),
    "group_size": agent_for(
        toy_envs.Lengths, baseline=tfr.baselines.LeaveOneOut(group_size=2)
    ),
    **{place: masked_agent(place) for place in masked_agents.PLACES},
}


def assert_plays(agent, env, episodes=10, expected=toy_envs.Lengths, **options):
    """Asserts that workers collect the episodes of one process."""
    options = {"num_envs": 4, "workers": 2, **options}
    one = agent.collect(expected, episodes)
    assert_identical(one, agent.collect(env, episodes, **options))


@pytest.mark.parametrize("name", sweeps.some(AGENTS, always=["info/action_mask"]))
def test_episodes_do_not_depend_on_the_number_of_processes(name):
    make, env = AGENTS[name]
    agent = make()
    one = agent.collect(env, 10, num_envs=1)
    for workers, num_envs in ((2, 3), (3, 8)):
        assert_identical(one, agent.collect(env, 10, num_envs=num_envs, workers=workers))


@pytest.mark.parametrize("episodes", sweeps.some([1, 2, 5, 40], always=[1]))
def test_worker_episodes_are_identical_for_any_number_of_episodes(agent, episodes):
    assert_plays(agent, toy_envs.Lengths, episodes=episodes, num_envs=6, workers=4)


@pytest.mark.parametrize(
    "steps", sweeps.some([1, 12, 13, 100, 1000], always=[1, 13, 100])
)
def test_worker_episodes_are_identical_for_a_number_of_steps(agent, steps):
    """The first collection has no estimate of the episode length.

    Later collections have one.
    """
    with tfr.collect.open_envs(toy_envs.Lengths, 4, workers=2) as pool:
        for seed in range(3):
            one = agent.collect(toy_envs.Lengths, steps=steps, seed=seed)
            assert_identical(one, agent.collect(pool, steps=steps, seed=seed))


@pytest.mark.parametrize(
    "name", sweeps.some(repeatable_runs.NAMES, always=["CartPole-v1"])
)
def test_training_does_not_depend_on_the_number_of_processes(name):
    agent = repeatable_runs.renewed(name)
    budget = dict(epochs=4, num_envs=4, workers=2, **repeatable_runs.BATCH)
    history = agent.fit(name, **budget)
    assert repeatable_runs.weights(agent) == repeatable_runs.reference(name)[0]
    logs = repeatable_runs.logs(history)
    assert logs == repeatable_runs.reference(name)[1]


def test_episodes_are_distributed_evenly_over_workers():
    """Two processes collect four episodes in six environments, two episodes each."""

    class ReturnsPid(toy_envs.Clock):
        def _observation(self):
            return np.array([os.getpid()], np.float32)

    agent = tfr.Reinforce.for_env(ReturnsPid, hidden=())
    episodes = agent.collect(ReturnsPid, 4, num_envs=6, workers=2)
    pids, counts = np.unique(episodes.observations[0], return_counts=True)
    assert os.getpid() not in pids
    np.testing.assert_array_equal(counts, [2, 2])


def test_worker_plays_where_importing_tensorflow_is_an_error(agent, monkeypatch):
    """A module that is `None` in `sys.modules` raises an error when it is imported."""
    names = ["tensorflow", "keras", "tf_keras", "tensorflow_probability"]
    block = f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
    monkeypatch.setattr(local_worker, "_CODE", block + local_worker._CODE)

    class Blocked(toy_envs.Lengths):
        def __init__(self):
            super().__init__()
            if os.getpid() != parent:
                assert not any(sys.modules.get(name) for name in names)

    parent = os.getpid()
    assert_plays(agent, Blocked)


# Errors


class Failing(toy_envs.Clock):
    """A `Clock` that calls `fail` at step 2."""

    def __init__(self, fail):
        super().__init__()
        self.fail = fail

    def step(self, action):
        if self.now == 1:
            self.fail()
        return super().step(action)


def raise_os_error():
    raise OSError("no more ink")


def fit(agent, fail, **options):
    options = {"epochs": 1, "verbose": 0, "num_envs": 2, "workers": 2, **options}
    agent.fit(lambda: Failing(fail), **options)


@pytest.fixture(scope="module")
def learned():
    """Returns an agent after one update."""
    agent = tfr.Reinforce.for_env(toy_envs.Clock, hidden=(4,))
    agent.fit(toy_envs.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
    return agent


@pytest.fixture
def clock(learned):
    """Returns an agent that no test may change."""
    agent = learned
    before = [variable.numpy() for variable in agent.variables]
    yield agent
    for variable, value in zip(agent.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_worker_error_names_worker_environment_episode_and_step(clock):
    message = (
        r"Worker \d: Environment \d, episode \d, step 1: step raised OSError: no more"
    )
    with pytest.raises(tfr.collect.EnvironmentFault, match=message) as caught:
        fit(clock, raise_os_error)
    assert "in raise_os_error" in str(caught.value.__cause__)  # of the worker


def end_process(how):
    """Ends or blocks the current process."""
    if how == "waits":
        threading.Event().wait()
    if how == "exits":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


ENDS = {
    "exits": "ended with the exit code 7",
    "is killed": "was killed by the signal SIGKILL",
    "waits": "did not answer within step_timeout=1 s, and was ended",
}


LIMIT = {"exits": 300.0, "is killed": 300.0, "waits": 1.0}


@pytest.mark.parametrize("how", sweeps.some(ENDS, always=["exits", "waits"]))
def test_error_for_a_lost_worker_names_reason_environment_episode_and_step(clock, how):
    place = r"\(step of environment \d, episode \d, step 1\)"
    with pytest.raises(
        tfr.collect.EnvironmentFault, match=rf"Worker \d {ENDS[how]} {place}\. .*restart"
    ):
        fit(clock, functools.partial(end_process, how), step_timeout=LIMIT[how])


class Once(toy_envs.Lengths):
    """An environment that fails once: the first of all its copies that makes a step."""

    def __init__(self, folder, fail):
        super().__init__()
        self.folder, self.fail = folder, fail

    def step(self, action):
        with contextlib.suppress(FileExistsError):
            (self.folder / "failed").mkdir()
            self.fail()
        return super().step(action)


@pytest.mark.parametrize("how", sweeps.some(ENDS, always=["is killed"]))
def test_episodes_of_a_lost_worker_are_played_again(agent, tmp_path, how):
    make = functools.partial(Once, tmp_path, functools.partial(end_process, how))
    options = dict(on_env_error="restart", step_timeout=LIMIT[how])
    with tfr.collect.open_envs(make, 4, workers=2, **options) as pool:
        collected, again = (
            agent.trainer.play(pool, toys.request(episodes=12)) for _ in range(2)
        )
    none = {"dropped_episodes": 0.0, "env_restarts": 0.0, "worker_restarts": 0.0}
    assert collected.faults == {**none, "worker_restarts": 1.0} and again.faults == none
    assert_identical(collected.episodes, agent.collect(toy_envs.Lengths, 12))


def test_worker_that_is_lost_again_and_again_raises(agent, monkeypatch):
    monkeypatch.setattr(worker_pool, "_MAX_LOSSES", 1)
    fail = functools.partial(end_process, "exits")
    with (
        pytest.raises(tfr.collect.EnvironmentFault, match="replaced up to 1 times"),
        tfr.collect.open_envs(
            lambda: Failing(fail), 2, workers=2, on_env_error="restart"
        ) as pool,
    ):
        agent.trainer.play(pool, toys.request(episodes=2))


class Stubborn(toy_envs.Lengths):
    """An environment whose method `close` fails in a worker."""

    def __init__(self, parent, fail):
        super().__init__()
        self.parent, self.fail = parent, fail

    def close(self):
        if os.getpid() != self.parent:
            self.fail()


CLOSING = {
    "waits": r"did not end in time, and was killed \(close of environment",
    "exits": "ended with the exit code 7",
    "raises": "environment [01]: close raised OSError: no more ink",
}


@pytest.mark.parametrize("how", sweeps.some(CLOSING, always=["raises"]))
def test_failing_close_warns_with_the_number_of_the_worker(agent, monkeypatch, how):
    monkeypatch.setattr(local_worker, "CLOSE_TIMEOUT", 0.5)
    fail = raise_os_error if how == "raises" else functools.partial(end_process, how)
    make = functools.partial(Stubborn, os.getpid(), fail)
    with pytest.warns(UserWarning, match="Worker [01]: ") as caught:
        agent.collect(make, 2, num_envs=2, workers=2)
    assert len(caught) == 2
    for warning in caught:
        assert re.search(CLOSING[how], str(warning.message))


def test_what_an_environment_leaves_behind_ends_with_its_worker(agent, tmp_path):
    """A worker that does not end by itself causes a warning, an error in tests.

    The forked process holds a copy of the connection to the pool.
    """

    class Leaving(toy_envs.Lengths):
        def __init__(self):
            super().__init__()
            if os.getpid() == parent:
                return
            if not (pid := os.fork()):
                signal.pause()
            (tmp_path / str(pid)).touch()
            threading.Thread(target=threading.Event().wait, daemon=False).start()

    parent = os.getpid()
    assert_plays(agent, Leaving, num_envs=2)
    for path in tmp_path.iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended and was waited for
            handle = os.pidfd_open(int(path.name))
            ended, _, _ = select.select([handle], [], [], 30.0)
            os.close(handle)
            assert ended
    assert len([*tmp_path.iterdir()]) == 2


def test_pool_collects_correct_episodes_after_a_failure(agent, tmp_path):
    """Late messages of the other workers must not be read as answers to the next
    request.
    """
    make = functools.partial(Once, tmp_path, raise_os_error)
    with tfr.collect.open_envs(make, 4, workers=2) as pool:
        with pytest.raises(tfr.collect.EnvironmentFault, match="no more ink"):
            agent.collect(pool, 8)
        assert_identical(
            agent.collect(pool, 8, seed=3), agent.collect(toy_envs.Lengths, 8, seed=3)
        )


@pytest.fixture
def heard():
    """Enables Ctrl-C, also if a shell started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_keyboard_interrupt_ends_all_workers(clock, heard):
    """The signal reaches the parent while the parent waits for a worker that never
    answers.
    """

    def interrupt():
        while True:  # repeat, as a user does
            os.kill(os.getppid(), signal.SIGINT)
            signal.sigtimedwait([signal.SIGUSR1], 3)  # which never comes

    with pytest.raises(KeyboardInterrupt):
        fit(clock, interrupt, episodes_per_epoch=2)


# Separate processes

KILLED = """
import os
import threading
import tf_reinforce as tfr
import toy_envs

class Waiting(toy_envs.Clock):
    def step(self, action):
        os.write(1, b"playing")
        threading.Event().wait()

agent = tfr.Reinforce.for_env(toy_envs.Clock, hidden=())
agent.fit(Waiting, epochs=1, num_envs=2, workers=2, verbose=0)
"""


@pytest.mark.slow
def test_workers_end_when_the_parent_is_killed():
    """The shared output pipe is closed only after the last process has ended."""
    helpers = str(pathlib.Path(toys.__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "PYTHONPATH": helpers},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout.read(14) == b"playing" * 2
    parent.kill()
    parent.communicate()  # returns after all processes have closed the pipe


def test_worker_frees_the_steps_of_a_collection_at_once(monkeypatch):
    """In a reference cycle, they would fill the memory until Python finds the cycle."""
    loops = []

    class Loop:
        def __init__(self, envs, specs, scheduler, *_):
            self.scheduler = scheduler
            loops.append(weakref.ref(self))

        def play(self, act):
            self.scheduler._numbers.clear()

    monkeypatch.setattr(worker.host_loop, "CollectionLoop", Loop)
    one = worker.EpisodeWorker(None, None, 1, 0)
    one._numbers.extend([0])
    one._collection = None, None, [], (0, "training", 0), 1, True
    gc.disable()
    try:
        one._play()
        [loop] = loops
        assert loop() is None
    finally:
        gc.enable()
