"""Tests that bad outputs of environments follow the rules of docs/environments.md."""

import importlib.util
import pathlib
import re

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).parents[3]
_SPEC = importlib.util.spec_from_file_location(
    "env_outputs", ROOT / "stress" / "env_outputs.py"
)
env_outputs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(env_outputs)
CASES = env_outputs.CASES
NAMES = [re.sub(r"\W+", "_", f"{case.field} {case.text}") for case in CASES]
CASE = dict(zip(NAMES, CASES, strict=True))


@pytest.fixture(scope="module")
def agent():
    policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    return tfr.Reinforce(policy, normalize_observations=True)


def test_environment_document_contains_the_table_of_rules():
    assert len(CASE) == len(CASES) == 41
    assert env_outputs.table() in (ROOT / "docs" / "environments.md").read_text()


@pytest.mark.parametrize("kind", ["plain", "SyncVectorEnv"])
@pytest.mark.parametrize("name", CASE)
def test_bad_output_follows_its_rule(agent, kind, name):
    """`outcome` also checks the environment in the error and the accepted value."""
    result = env_outputs.outcome(agent, kind, CASE[name], at=1)
    assert result == ("refused" if CASE[name].rule == "refused" else "accepted")


SOME = ["reward_text_1_5_", "reward_bool_True_", "info_None_", "None_an_exception"]


@pytest.mark.parametrize("kind", ["AsyncVectorEnv", "two workers"])
@pytest.mark.parametrize("name", SOME)
def test_bad_output_of_another_process_follows_its_rule(agent, kind, name):
    with pytest.MonkeyPatch.context() as context:
        context.setattr(gym.logger, "min_level", 50)  # no warning for each traceback
        result = env_outputs.outcome(agent, kind, CASE[name], at=1)
    assert result == ("refused" if CASE[name].rule == "refused" else "accepted")


def test_outcome_detects_a_rule_that_is_not_followed(agent):
    """A script that could not fail would prove nothing."""
    accepted, refused = CASE["reward_bool_True_"], CASE["reward_text_1_5_"]
    for case, text in [
        (accepted._replace(rule="refused"), "accepted against the rule"),
        (accepted._replace(becomes=2.0), "does not contain the value"),
        (refused._replace(rule="accepted"), "refused against the rule"),
    ]:
        assert text in env_outputs.outcome(agent, "plain", case, at=1)


class Late(toys.Clock):
    """Returns invalid results from its second reset on."""

    resets = 0

    def reset(self, **kwargs):
        self.resets += 1
        observation, info = super().reset(**kwargs)
        return observation, info if self.resets == 1 else None


MODES = list(gym.vector.AutoresetMode)


@pytest.mark.parametrize("mode", MODES)
def test_invalid_reset_inside_a_sync_vector_env_names_the_environment(mode):
    env = gym.vector.SyncVectorEnv([toys.Clock, Late], autoreset_mode=mode)
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match="Environment 1.*the info is"):
        agent.collect(env, 6)


@pytest.mark.parametrize("reward", [1.0, None])
def test_wrappers_are_removed_after_a_collection(reward):
    """Also after a collection that failed."""

    def change(observation, _, *rest):
        return observation, reward, *rest

    env = gym.vector.SyncVectorEnv([toys.Clock, lambda: toys.Misbehaving(2, change, 3)])
    before = list(env.envs)
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    if reward is None:
        with pytest.raises(tfr.collect.EnvironmentFault, match="Environment 1"):
            agent.collect(env, 2)
    else:
        agent.collect(env, 2)
    assert env.envs == before


def test_async_vector_env_can_be_closed_after_an_invalid_info():
    """Gymnasium alone would stop inside a step, and `close` would not return."""

    def change(*result):
        return *result[:4], None

    makers = [lambda: toys.Misbehaving(2, change), toys.Clock]
    env = gym.vector.AsyncVectorEnv(makers)
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match="Environment 0.*the info is"):
        agent.collect(env, 2)
    env.close(timeout=60)
    assert [process.exitcode for process in env.processes] == [0, 0]


def test_observations_in_another_process_are_checked_without_shared_memory(agent):
    case = CASE["observation_list"]
    makers = [lambda: env_outputs.BadClock(case, 1, lambda: True)]
    env = gym.vector.AsyncVectorEnv(makers, shared_memory=False)
    with pytest.raises(tfr.collect.EnvironmentFault, match="Environment 0.*is a list"):
        agent.collect(env, 1)
    env.close(timeout=60)


def test_observations_that_a_vector_wrapper_replaces_may_be_of_any_space():
    """The observations of the environments are text, which no policy accepts."""

    class Text(toys.Clock):
        observation_space = gym.spaces.Text(5)

        def _observation(self):
            return "a" * self.now

    class Measured(gym.vector.VectorObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.single_observation_space = gym.spaces.Box(0, 5, (1,))
            self.observation_space = gym.spaces.Box(0, 5, (1, 1))

        def observations(self, observations):
            return np.array([[len(text)] for text in observations], np.float32)

    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    agent = tfr.Reinforce(agent.policy)
    episodes = agent.collect(Measured(gym.vector.SyncVectorEnv([Text])), 1)
    assert episodes.observations[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_wrong_array_of_a_vector_env_names_no_environment():
    class Short(gym.vector.VectorWrapper):
        def step(self, actions):
            observations, *rest = self.env.step(actions)
            return observations[:1], *rest

    env = Short(gym.vector.SyncVectorEnv([toys.Clock] * 2))
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match="^The VectorEnv: .*shape"):
        agent.collect(env, 2)
