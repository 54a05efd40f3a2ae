"""Several processes play the same episodes as one, and leave nothing behind."""

import functools
import gc
import itertools
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys

import gymnasium as gym
import keras
import masked_agents
import numpy as np
import pytest
import recurrent_agents
import repeatable_runs
import sweeps
import toy_layers
import toys

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.collect import worker_pool


def same_bits(one, other):
    """Two records, to the last bit, padding, type and nesting included."""
    keras.tree.assert_same_structure(one, other)
    for a, b in zip(*map(keras.tree.flatten, (one, other)), strict=True):
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.fixture(autouse=True)
def nobody_left():
    yield
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def agent():
    agent = tfr.Reinforce.for_env(toys.Lengths, hidden=(4,))
    agent.collect(toys.Lengths, 1)
    return agent


# Who plays what


def masked(place):
    env = functools.partial(masked_agents.Riddle, place)
    return lambda: masked_agents.learner(place), env


def made(env, **options):
    return lambda: tfr.Reinforce.for_env(env, hidden=(8,), **options), env


AGENTS = {
    "memory": (recurrent_agents.ready, toys.Lengths),
    "Gaussian": made("Pendulum-v1"),
    "group_size": made(toys.Lengths, baseline=tfr.baselines.LeaveOneOut(group_size=2)),
    **{place: masked(place) for place in masked_agents.PLACES},
}


OFTEN = ["memory", "Gaussian", "group_size", "info/action_mask"]


@pytest.mark.parametrize("name", sweeps.some(AGENTS, always=OFTEN))
def test_the_number_of_processes_changes_no_bit_of_a_record(name):
    make, env = AGENTS[name]
    agent = make()
    one = agent.collect(env, 10, num_envs=1)
    for workers, num_envs in ((2, 3), (3, 8)):
        same_bits(one, agent.collect(env, 10, num_envs=num_envs, workers=workers))


@pytest.mark.parametrize("episodes", sweeps.some([1, 2, 5, 40], always=[1, 40]))
def test_few_episodes_or_many_are_the_same(agent, episodes):
    one = agent.collect(toys.Lengths, episodes)
    same_bits(one, agent.collect(toys.Lengths, episodes, num_envs=6, workers=4))


@pytest.mark.parametrize(
    "steps", sweeps.some([1, 12, 13, 100, 1000], always=[1, 13, 100])
)
def test_a_number_of_steps_takes_the_same_episodes(agent, steps):
    """From the first update on, and when the lengths of the last one are known."""
    with tfr.collect.open_envs(toys.Lengths, 4, workers=2) as crew:
        for seed in range(3):
            one = agent.collect(toys.Lengths, steps=steps, seed=seed)
            same_bits(one, agent.collect(crew, steps=steps, seed=seed))


@pytest.mark.parametrize("name", repeatable_runs.NAMES)
def test_the_number_of_processes_changes_no_bit_of_a_training(name):
    agent = repeatable_runs.renewed(name)
    budget = dict(epochs=4, num_envs=4, workers=2, **repeatable_runs.BATCH)
    history = agent.fit(name, **budget)
    assert repeatable_runs.weights(agent) == repeatable_runs.reference(name)[0]
    logs = repeatable_runs.logs(history)
    assert logs == repeatable_runs.reference(name)[1]


def test_workers_begin_episodes_from_the_learned_state_of_this_update():
    """The state before the first observation is a weight: every update changes it."""

    def train(**options):
        agent = tfr.Reinforce(toys.with_learned_start(3, 1))
        agent.compile(keras.optimizers.SGD(0.5))
        budget = dict(epochs=3, episodes_per_epoch=4, num_envs=2, max_episode_steps=4)
        agent.fit("Pendulum-v1", verbose=0, **budget, **options)
        return agent.get_weights()

    same_bits(train(), train(workers=2))


def test_there_are_no_more_processes_than_environments(agent):
    one = agent.collect(toys.Lengths, 5)
    with tfr.collect.open_envs(toys.Lengths, 2, workers=4) as pool:
        same_bits(one, agent.collect(pool, 5))
        assert len(multiprocessing.active_children()) == 2


def test_seconds_in_environments_are_those_of_a_process(agent, monkeypatch):
    """On clocks that only steps move; in the mean of two processes, over all rounds."""
    now, steps = [0.0], multiprocessing.get_context("fork").Value("q")

    class Slow(toys.Lengths):
        def step(self, action):
            now[0] += 1
            with steps.get_lock():
                steps.value += 1
            return super().step(action)

    plays = []
    play = worker_pool.WorkerPool._collect_round
    monkeypatch.setattr(
        worker_pool.WorkerPool, "_collect_round", lambda *x: plays.append(1) or play(*x)
    )
    monkeypatch.setattr(worker_pool.time, "perf_counter", lambda: now[0])
    with tfr.collect.open_envs(Slow, 2, workers=2) as crew:
        played = agent.trainer.collector.collect(crew, toys.request(steps=100))
    assert len(plays) > 1
    assert played.seconds == {"stepping": steps.value / 2, "acting": -steps.value / 2}


def test_an_evaluation_has_the_same_figures(agent):
    one = agent.evaluate(toys.Lengths, 20)
    assert agent.evaluate(toys.Lengths, 20, workers=2) == one


def test_every_worker_gets_its_part():
    """Four episodes of six environments in two processes: two for each.

    One process begins all that it may before the other begins its first, and none goes
    on before both have begun theirs.
    """
    fork = multiprocessing.get_context("fork")
    both, first, begun = fork.Barrier(2), fork.Value("l", 0), fork.Event()

    class Signed(toys.Clock):
        waited = False

        def reset(self, **given):
            with first.get_lock():
                first.value = first.value or os.getpid()
            if first.value != os.getpid():
                begun.wait()
            return super().reset(**given)

        def step(self, action):
            if not Signed.waited:
                begun.set()
                both.wait()
                Signed.waited = True
            return super().step(action)

        def _observation(self):
            return np.array([os.getpid()], np.float32)

    agent = tfr.Reinforce.for_env(Signed, hidden=())
    episodes = agent.collect(Signed, 4, num_envs=6, workers=2)
    who, often = np.unique(episodes.observations[0], return_counts=True)
    assert os.getpid() not in who
    np.testing.assert_array_equal(often, [2, 2])


# What goes wrong


class Failing(toys.Clock):
    """A `Clock` that does something at step 2 of the processes that play it."""

    def __init__(self, fail):
        super().__init__()
        self.fail = fail

    def step(self, action):
        if self.now == 1:
            self.fail()
        return super().step(action)


def raising():
    raise OSError("no more ink")


def fit(agent, fail, **options):
    options = {"epochs": 1, "verbose": 0, "num_envs": 2, "workers": 2, **options}
    agent.fit(lambda: Failing(fail), **options)


@pytest.fixture(scope="module")
def learned():
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=(4,))
    agent.fit(toys.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
    return agent


@pytest.fixture
def clock(learned):
    """An agent that none of the tests may change."""
    agent = learned
    before = [variable.numpy() for variable in agent.variables]
    yield agent
    for variable, value in zip(agent.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_an_environment_that_raises_is_named(clock):
    message = (
        r"Worker \d: Environment 0, episode \d, step 1: step raised OSError: no more"
    )
    with pytest.raises(tfr.collect.EnvironmentFault, match=message) as caught:
        fit(clock, raising)
    assert "in raising" in str(caught.value.__cause__)  # where it happened


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, LookupError])
def test_what_an_environment_raises_at_its_making_is_named(clock, error):
    parent = os.getpid()

    def make():
        if os.getpid() != parent:
            raise error(3)
        return toys.Clock()

    with pytest.raises(RuntimeError, match=rf"Worker \d: {error.__name__}: 3"):
        clock.collect(make, 4, workers=2)


@pytest.fixture
def closing(tmp_path):
    """A `Failing`, local to this test; how many were made, and how many closed."""
    numbers = itertools.count()

    class Closing(Failing):
        def __init__(self, fail):
            super().__init__(fail)
            self.name = f"{os.getpid()}-{next(numbers)}"
            (tmp_path / f"{self.name}-made").touch()

        def close(self):
            (tmp_path / f"{self.name}-closed").touch()

    def counted():
        return tuple(len([*tmp_path.glob(f"*-{x}")]) for x in ("made", "closed"))

    return Closing, counted


def test_all_environments_are_closed(clock, closing):
    """Five, and the one that was looked at; a lambda cannot be pickled."""
    env, counted = closing
    with tfr.collect.open_envs(lambda: env(int), 5, workers=2) as crew:
        for _ in range(2):  # they are made once
            clock.collect(crew, 8)
        assert counted() == (6, 1)
    assert counted() == (6, 6)


def test_all_environments_are_closed_after_a_failure_too(clock, closing):
    env, counted = closing
    with pytest.raises(tfr.collect.EnvironmentFault):
        clock.collect(lambda: env(raising), 8, num_envs=5, workers=2)
    made, closed = counted()  # the one looked at, and those of the worker that failed
    assert made == closed >= 3  # the other one may not have begun


def test_crews_end_in_any_order(clock, closing):
    """A process forked later holds what was open then: nobody waits for that."""
    env, counted = closing
    opened = [tfr.collect.open_envs(lambda: env(int), 2, workers=2) for _ in range(2)]
    for crew in [one.__enter__() for one in opened]:
        clock.collect(crew, 4)
    for one in opened:  # the first one first
        one.__exit__(None, None, None)
    assert counted() == (6, 6)


def test_processes_do_not_draw_alike_where_a_seed_is_ignored(clock):
    class Global(toys.Clock):
        def reset(self, **given):
            super().reset(**given)
            return np.array([np.random.uniform()], np.float32), {}

    episodes = clock.collect(Global, 8, num_envs=4, workers=4)
    assert len(np.unique(episodes.observations[0])) == 8


def test_a_process_that_does_not_end_is_killed_and_told(agent, monkeypatch):
    class Stuck(toys.Lengths):
        def close(self):
            while os.getpid() != parent:
                signal.pause()

    parent = os.getpid()
    monkeypatch.setattr(worker_pool, "_CLOSE_TIMEOUT", 0)
    with pytest.warns(UserWarning, match=r"workers \[0, 1\] did not close their"):
        agent.collect(Stuck, 2, num_envs=2, workers=2)


def test_a_process_that_dies_is_named(clock):
    with pytest.raises(tfr.collect.EnvironmentFault, match=r"ended with the exit code 7"):
        fit(clock, lambda: os._exit(7))
    with pytest.raises(
        tfr.collect.EnvironmentFault, match=r"ended with the exit code -9"
    ):
        fit(clock, lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.fixture
def heard():
    """Ctrl-C is heard, also where a shell began the tests in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_the_processes(clock, heard):
    """It reaches the parent while all wait for a worker that would never answer."""

    def interrupt():
        while True:  # as people do
            os.kill(os.getppid(), signal.SIGINT)
            signal.sigtimedwait([signal.SIGUSR1], 3)  # which never comes

    with pytest.raises(KeyboardInterrupt):
        fit(clock, interrupt, episodes_per_epoch=1)


def test_a_process_does_not_hear_ctrl_c(clock, heard):
    """A terminal sends it to all; whoever asked for the episodes decides."""
    interrupted = functools.partial(Failing, lambda: os.kill(os.getpid(), signal.SIGINT))
    same_bits(
        clock.collect(interrupted, 4, num_envs=2, workers=2), clock.collect(toys.Clock, 4)
    )


def test_a_process_takes_nothing_down_that_it_inherited(clock, tmp_path):
    """What the parent no longer needs may hold files: they are not the worker's."""

    class Left:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            (tmp_path / str(os.getpid())).touch()

    class Tidy(toys.Clock):
        def step(self, action):
            gc.collect()
            return super().step(action)

    gc.disable()
    try:
        Left()
        clock.collect(Tidy, 2, num_envs=2, workers=2)
    finally:
        gc.enable()
    gc.collect()
    assert {path.name for path in tmp_path.iterdir()} <= {str(os.getpid())}


def test_an_environment_that_cannot_be_made_twice_is_an_error(clock):
    one = toys.Clock()
    with pytest.raises(ValueError, match=r"Worker \d: The callable returned the same"):
        clock.collect(lambda: one, 4, num_envs=4, workers=2)


def test_weights_that_are_lost_choose_no_action(agent):
    before = agent.policy.get_weights()
    with tfr.collect.open_envs(toys.Lengths, 2, workers=2) as crew:
        agent.collect(crew, 4)
        agent.policy.set_weights([np.full_like(weight, np.nan) for weight in before])
        with pytest.raises(FloatingPointError, match="weights .* are not finite"):
            agent.collect(crew, 4)
        agent.policy.set_weights(before)
        same_bits(agent.collect(crew, 4), agent.collect(toys.Lengths, 4))


def test_after_a_failure_a_crew_begins_afresh(agent):
    """What the others had still to tell is not taken for the next answer."""

    class Once(toys.Lengths):
        fail = multiprocessing.get_context("fork").Value("b", True)

        def step(self, action):
            with self.fail.get_lock():
                if self.fail.value:
                    self.fail.value = False
                    raising()
            return super().step(action)

    with tfr.collect.open_envs(Once, 4, workers=2) as crew:
        with pytest.raises(tfr.collect.EnvironmentFault, match="no more ink"):
            agent.collect(crew, 8)
        same_bits(agent.collect(crew, 8, seed=3), agent.collect(toys.Lengths, 8, seed=3))


def test_outputs_that_overflow_choose_no_action(agent):
    before = agent.policy.get_weights()
    agent.policy.set_weights([np.full_like(weight, 3e38) for weight in before])
    with pytest.raises(FloatingPointError, match=r"Worker \d: .*the policy overflows"):
        agent.collect(toys.Lengths, 4, num_envs=2, workers=2)
    agent.policy.set_weights(before)


def test_two_agents_may_take_turns(agent):
    other = tfr.Reinforce.for_env(toys.Lengths, hidden=(4,), seed=1)
    with tfr.collect.open_envs(toys.Lengths, 4, workers=2) as crew:
        for one in (agent, other, agent):
            same_bits(one.collect(crew, 6), one.collect(toys.Lengths, 6))


REFUSED = {
    "an environment": toys.Lengths,
    "a vector": lambda: gym.vector.SyncVectorEnv([toys.Lengths] * 2),
    "a world": tfr.envs.CartPole,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_made_already_is_played_here(agent, name):
    with pytest.raises(
        ValueError, match="`workers` requires an environment id, an EnvSpec"
    ):
        agent.collect(REFUSED[name](), 4, workers=2)


def test_a_tensor_environment_is_one_program(agent):
    with pytest.raises(ValueError, match="one program.*Leave `workers` out"):
        agent.collect(tfr.envs.CartPole, 4, workers=2)


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_a_number_of_workers_is_a_positive_int(agent, workers):
    for play in (agent.collect, agent.evaluate):
        with pytest.raises(
            ValueError, match="`workers` must be a whole number of at least 1"
        ):
            play(toys.Lengths, 4, workers=workers)
    with pytest.raises(
        ValueError, match="`workers` must be a whole number of at least 1"
    ):
        agent.fit(toys.Lengths, epochs=1, workers=workers)


def test_a_policy_that_litert_cannot_run_is_refused():
    policy = [keras.Input((1,)), toy_layers.Unconvertible(), keras.layers.Dense(2)]
    agent = tfr.Reinforce(keras.Sequential(policy))
    with pytest.raises(ValueError, match="acts through TensorFlow.*Use workers=1"):
        agent.collect(toys.Clock, 2, workers=2)


def test_a_system_that_cannot_fork_is_told(agent, monkeypatch):
    monkeypatch.setattr(
        worker_pool.multiprocessing, "get_all_start_methods", lambda: ["spawn"]
    )
    with pytest.raises(ValueError, match="this system does not offer"):
        agent.collect(toys.Lengths, 2, workers=2)


# Processes of their own

KILLED = """
import os
import tf_reinforce as tfr
import toys

class Waiting(toys.Clock):
    def step(self, action):
        os.write(1, b"playing")
        os.read(0, 1)
        return super().step(action)

agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
agent.fit(Waiting, epochs=1, num_envs=2, workers=2, verbose=0)
"""


def test_whoever_is_killed_leaves_no_process():
    """What all of them write to ends only with the last of them."""
    helpers = str(pathlib.Path(toys.__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "PYTHONPATH": helpers},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout.read(14) == b"playing" * 2
    parent.kill()
    parent.communicate()  # until nobody holds its other end


def test_the_command_line_hands_them_on(tmp_path, capsys):
    small = ["--epochs", "1", "--episodes-per-epoch", "4", "--hidden", "8"]
    command = ["train", "CartPole-v1", *small, "--workers", "2", "--run-dir"]
    assert cli.main([*command, str(tmp_path / "two")]) == 0
    assert "compiled twin" not in capsys.readouterr().out
    config = (tmp_path / "two" / "config.json").read_text()
    assert '"workers": 2' in config and '"engine": "host"' in config
    evaluate = ["evaluate", str(tmp_path / "two"), "--episodes", "20"]
    assert cli.main([*evaluate, "--workers", "2"]) == 0
    told = capsys.readouterr().out
    assert cli.main(evaluate) == 0
    assert capsys.readouterr().out == told
