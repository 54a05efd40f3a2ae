"""Tests environments that render in a process of their own."""

import os
import threading

import gymnasium as gym
import numpy as np
import pytest
import rendered_counter

import tf_reinforce as tfr
from tf_reinforce.experiments import recording
from tf_reinforce.experiments import remote_envs


def test_steps_and_pictures_equal_those_of_the_current_process():
    with remote_envs.open_envs(rendered_counter.Counter, 2) as (envs, limit):
        assert limit is None and envs[0].metadata == rendered_counter.Counter.metadata
        for seed, env in enumerate(envs):
            same = rendered_counter.Counter()
            for remote, local in zip(env.reset(seed=seed), same.reset(seed=seed)):
                np.testing.assert_array_equal(remote, local)
            for action in (1, 2):
                for remote, local in zip(env.step(action), same.step(action)):
                    np.testing.assert_array_equal(remote, local)
                np.testing.assert_array_equal(env.render(), same.render())


def test_environment_runs_in_a_process_without_tensorflow_which_ends():
    """Objects in `info` that may be impossible to send are left out."""
    kwargs = {"kind": "reports"}
    with remote_envs.open_envs(rendered_counter.Faulty, 1, kwargs) as ([env], _):
        env.reset(seed=0)
        info = env.step(0)[-1]
        process = info.pop("pid")
        assert process != os.getpid()
        assert info == {"tensorflow": False, "lock": None, "nested": ([1], {"a": "b"})}
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_time_limit_is_that_of_the_spec_or_of_the_caller():
    with remote_envs.open_envs("FrozenLake-v1", 1) as (_, limit):
        assert limit == gym.spec("FrozenLake-v1").max_episode_steps
    with remote_envs.open_envs("FrozenLake-v1", 1, None, 7) as (_, limit):
        assert limit == 7


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("dies", "step 0: .*process of the environments was killed by .* SIGSEGV"),
        ("raises", "step 0: .*Unsendable: no luck"),
    ],
)
def test_failure_is_a_fault_of_the_environment_and_keeps_the_file(tmp_path, kind, text):
    agent = tfr.Reinforce.for_env(rendered_counter.Counter, hidden=())
    path = tmp_path / "a.gif"
    path.write_bytes(b"earlier")
    with pytest.raises(tfr.collect.EnvironmentFault, match=text):
        recording.record(agent, rendered_counter.Faulty, path, env_kwargs={"kind": kind})
    assert path.read_bytes() == b"earlier"


def test_errors_of_the_constructor_keep_their_type():
    with (
        pytest.raises(ValueError, match="unexpected keyword argument 'color'"),
        remote_envs.open_envs(rendered_counter.Counter, 1, {"color": 1}),
    ):
        pass
    with pytest.raises(gym.error.NameNotFound), remote_envs.open_envs("Nothing-v0", 1):
        pass
    lock = threading.Lock()
    with (
        pytest.raises(ValueError, match="can be sent to another process"),
        remote_envs.open_envs(lambda: lock, 1),
    ):
        pass


def test_environment_of_the_user_stays_in_the_process_and_open():
    env = rendered_counter.Counter()
    env.close = lambda: pytest.fail("closed")
    with remote_envs.open_envs(env, 1) as ([opened], limit):
        assert opened is env and limit is None
