"""Tests the text of the line in which an environment raised an exception."""

import inspect

import gymnasium as gym
import numpy as np
import pytest

import tf_reinforce as tfr


class Raises(gym.Env):
    """Raises an exception in `step`, directly or in an installed package."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, info=None, installed=False):
        self.info, self.installed = info or {}, installed

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), self.info

    def step(self, action):
        if self.installed:
            return gym.make("NoSuchEnv-v7")
        raise ValueError("illegal action")


def message(env, **options):
    agent = tfr.Reinforce.for_env(env, hidden=(), **options)
    with pytest.raises(tfr.collect.EnvironmentFault) as caught:
        agent.collect(env, 2)
    return str(caught.value)


def test_error_names_file_line_function_and_source():
    lines, start = inspect.getsourcelines(Raises.step)
    line = start + next(i for i, text in enumerate(lines) if "raise" in text)
    assert message(Raises()) == (
        "Environment 0, episode 0, step 0: step raised ValueError: illegal action "
        f"(test_error_places.py, line {line}, in step: "
        'raise ValueError("illegal action")).'
    )


class Deep(Raises):
    def step(self, action):
        return super().step(action)


def test_innermost_line_is_named():
    """It belongs to the environment, also if an installed package raises."""
    assert 'in step: raise ValueError("illegal action"))' in message(Deep())
    assert 'in step: return gym.make("NoSuchEnv-v7"))' in message(Deep(installed=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_error_names_an_action_mask_that_the_agent_does_not_use(workers):
    info = {"action_mask": np.ones(2, np.int8)}
    agent = tfr.Reinforce.for_env(Raises, hidden=())
    with pytest.raises(
        tfr.collect.EnvironmentFault, match="which the agent does not use"
    ):
        agent.collect(Raises, 4, workers=workers, num_envs=2, env_kwargs={"info": info})
    assert "--action-mask info/action_mask." in message(Raises(info))
    assert "mask" not in message(Raises(info), action_mask="info/action_mask")
    assert "mask" not in message(Raises({"other": 1}))
