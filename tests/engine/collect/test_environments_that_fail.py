"""Tests that faulty environments raise precise errors, and that the agent does not
change.
"""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr

Fault = tfr.collect.EnvironmentFault
MODES = list(gym.vector.AutoresetMode)
BATCH = {"epochs": 1, "episodes_per_epoch": 3, "num_envs": 3, "verbose": 0}


def state(agent):
    """Returns the bytes of all weights, counters, normalizer and optimizer variables."""
    variables = [*agent.variables, *agent.optimizer.variables]
    return [variable.numpy().tobytes() for variable in variables]


@pytest.fixture(scope="module")
def agent():
    """Returns an agent after two updates, whose counters and optimizer state are not
    zero.
    """
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "tanh")])
    agent = tfr.Reinforce(policy, normalize_observations=True)
    agent.compile(keras.optimizers.SGD(0.1))
    agent.fit(toys.Clock, **{**BATCH, "epochs": 2})
    assert agent.updates == 2
    return agent


@pytest.fixture(autouse=True)
def unchanged(agent):
    """Asserts that no test of this file changes the agent."""
    before = state(agent)
    yield
    assert state(agent) == before


def second_of_three(env):
    """Returns a function that creates environments. Only environment 1 is `env()`."""
    makers = itertools.chain([toys.Clock, env], itertools.repeat(toys.Clock))
    return lambda: next(makers)()


def step_result(**changes):
    """Returns a function that replaces fields of the result of a step."""

    names = "observation", "reward", "terminated", "truncated", "info"
    return lambda *result: tuple({**dict(zip(names, result)), **changes}.values())


def message_id(value):
    """Returns the id of a case, which is its error message."""
    return value if isinstance(value, str) else ""


def raising(*_):
    raise ZeroDivisionError("no gravity")


REWARDS = [
    (np.nan, "the reward is not finite: nan"),
    (np.inf, "the reward is not finite: inf"),
    (-np.inf, "the reward is not finite: -inf"),
    (None, "the reward is a NoneType: None"),
    ("1.5", "the reward is a str: '1.5'"),
    (np.ones(1), r"the reward is a ndarray: array"),
    (1j, "the reward is a complex: 1j"),
    (np.ma.masked_array(1.0, True), "the reward is a MaskedConstant"),
]
OBSERVATIONS = [
    (None, "the observation is a NoneType"),
    ([1.0], "the observation is a list"),
    (1.0, "the observation is a float"),
    (np.float32(1), r"observation has the shape \(\) instead of \(1,\)"),
    (np.ones((1, 1), "f"), r"the observation has the shape \(1, 1\)"),
    (np.ones(1, complex), "the observation is of type complex128"),
    (np.array(["1"]), "the observation is of type <U1"),
    (np.ma.masked_array(np.ones(1, "f"), True), "the observation has masked entries"),
    ({"a": np.ones(1, "f")}, "the observation is a dict"),
]
NOT_FINITE = [np.nan, np.inf, -np.inf]
FLAGS = [None, "False", 2, 1.0, np.ones(2, bool)]
ANSWERS = [
    *((step_result(reward=value), message) for value, message in REWARDS),
    *((step_result(observation=value), message) for value, message in OBSERVATIONS),
    *((step_result(terminated=flag), "`terminated` of a step is a ") for flag in FLAGS),
    *((step_result(truncated=flag), "`truncated` of a step is a ") for flag in FLAGS),
    (lambda *fields: fields[:4], "step did not return 5 values .*old Gym with shimmy"),
    (lambda *fields: None, "step did not return 5 values .*shimmy"),
    (raising, "step raised ZeroDivisionError: no gravity"),
    (lambda *fields: int("many"), "step raised ValueError: invalid literal"),
]


@pytest.mark.parametrize("at", [1, 50])
@pytest.mark.parametrize("wrong, message", ANSWERS, ids=message_id)
def test_invalid_step_result_error_names_environment_episode_and_step(
    agent, wrong, message, at
):
    """Steps count from 0, as the rows of `Episodes` do."""
    env = second_of_three(lambda: toys.Misbehaving(at, wrong))
    place = f"Environment 1, episode 1, step {at - 1}: "
    with pytest.raises(Fault, match=place + f".*{message}") as caught:
        agent.fit(env, **BATCH)
    if wrong is raising:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


class ReplacesReset(toys.Clock):
    """Returns `answer(observation, info)` from its reset number `at`."""

    def __init__(self, answer, at=1):
        super().__init__()
        self.answer, self.resets, self.at = answer, 0, at

    def reset(self, **kwargs):
        result = super().reset(**kwargs)
        self.resets += 1
        return self.answer(*result) if self.resets == self.at else result


RESETS = [
    *((lambda o, i, x=x: (x, i), message) for x, message in OBSERVATIONS),
    *((lambda o, i, x=x: (np.full(1, x, "f"), i), "not finite") for x in NOT_FINITE),
    (lambda o, i: o, "reset did not return 2 values .*shimmy"),
    (lambda o, i: (o, o), "the info is a ndarray"),
    (raising, "reset raised ZeroDivisionError: no gravity"),
]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("wrong, message", RESETS, ids=message_id)
def test_invalid_reset_result_error_names_environment_and_episode(
    agent, wrong, message, at
):
    """Two environments alternate, so the second reset of environment 1 begins episode
    3.
    """
    env = second_of_three(lambda: ReplacesReset(wrong, at))
    place = f"Environment 1, episode {2 * at - 1}, step 0: "
    with pytest.raises(Fault, match=place + f".*{message}"):
        agent.fit(env, **{**BATCH, "num_envs": 2, "episodes_per_epoch": 6})


@pytest.mark.parametrize("kind", [bool, int, np.int64, np.float16, np.bool_, np.array])
def test_reward_may_have_any_real_type(agent, kind):
    env = toys.Misbehaving(2, step_result(reward=kind(1)), length=3)
    assert agent.evaluate(env, episodes=1)["episode_return"] == 1 + 1 + 3


# Vector environments


class Wrapped(gym.vector.VectorWrapper):
    """Changes the result of step `at` of a vector environment."""

    def __init__(self, env, at, change):
        super().__init__(env)
        self.at, self.change, self.now = at, change, 0

    def step(self, actions):
        result = self.env.step(actions)
        self.now += 1
        return self.change(*result) if self.now == self.at else result


def with_number(number, slot=1):
    def change(observations, *rest):
        observations = observations.copy()
        observations[slot] = number
        return observations, *rest

    return change


def with_reward(number):
    return lambda o, r, *rest: (o, np.where([0, 1, 0], number, r), *rest)


VECTOR_ANSWERS = [
    *((with_number(x), "Environment 1, .*observation is not finite") for x in NOT_FINITE),
    *((with_reward(x), "Environment 1, .*the reward is not finite") for x in NOT_FINITE),
    (lambda o, *rest: (o[:2], *rest), r"shape \(2, 1\) instead of \(3, 1\)"),
    (lambda o, *rest: (o[:, 0], *rest), r"shape \(3,\) instead of \(3, 1\)"),
    (lambda o, r, *rest: (o, r[:1], *rest), r"rewards are of shape \(1,\)"),
    (lambda o, r, *rest: (o, r.astype(object), *rest), "type object"),
    (
        lambda o, r, *rest: (o, np.ma.masked_array(r, True), *rest),
        "rewards .* with masked",
    ),
    (lambda o, r, t, *rest: (o, r, False, *rest), r"terminations are of shape \(\)"),
    (lambda o, r, t, u, i: (o, r, t, u + np.nan, i), "truncations are .* type float64"),
    (raising, "step raised ZeroDivisionError: no gravity"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong, message", VECTOR_ANSWERS, ids=message_id)
def test_invalid_step_result_of_vector_env_raises(agent, wrong, message, mode):
    env = gym.vector.SyncVectorEnv([lambda: toys.Clock(60)] * 3, autoreset_mode=mode)
    for at in (1, 50):
        with pytest.raises(Fault, match=message):
            agent.fit(Wrapped(env, at, wrong), **BATCH)


def test_nan_of_an_idle_environment_is_ignored():
    """Two episodes are requested, so environment 2 is idle and its NaN is not an
    error.
    """
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)  # a normalizer would clip the NaN away
    for mode in MODES:
        env = gym.vector.SyncVectorEnv([toys.Clock] * 3, autoreset_mode=mode)
        env = Wrapped(env, 1, with_number(np.nan, slot=2))
        assert agent.evaluate(env, episodes=2)["episode_return"] == 6.0


@pytest.mark.parametrize("mode", MODES)
def test_vector_env_without_time_limit_error_names_time_limit_wrapper(agent, mode):
    env = gym.vector.SyncVectorEnv([lambda: toys.Clock(99)] * 2, autoreset_mode=mode)
    with pytest.raises(Fault, match="step 19: .*within 20 steps.*TimeLimit"):
        agent.fit(env, **BATCH, max_episode_steps=20)
    limited = [lambda: gym.wrappers.TimeLimit(toys.Clock(99), 20)] * 2
    env = gym.vector.SyncVectorEnv(limited, autoreset_mode=mode)
    metrics = agent.evaluate(env, episodes=3, max_episode_steps=20)
    assert metrics["episode_length"] == 20


def test_vector_env_without_autoreset_mode_raises(agent):
    env = gym.vector.SyncVectorEnv([toys.Clock])
    env.metadata = {}
    with pytest.raises(ValueError, match="must state how it resets.*Received: None"):
        agent.fit(env, **BATCH)


# Invalid environments and spaces


@pytest.mark.parametrize(
    "env, message",
    [
        *((env, "`env` must be an environment id") for env in (None, 3, object())),
        *((lambda x=x: x, "must return a gymnasium.Env.*shimmy") for x in (None, "Id")),
    ],
)
def test_fit_raises_type_error_if_there_is_no_environment(agent, env, message):
    with pytest.raises(TypeError, match=message):
        agent.fit(env, **BATCH)


def test_environment_with_other_spaces_raises(agent):
    wide = {"observation_space": gym.spaces.Box(-1, 1, (2,))}
    three = {"action_space": gym.spaces.Discrete(3)}
    for changed in (wide, three):
        other = type("Other", (toys.Clock,), changed)
        with pytest.raises(ValueError, match="The agent was made for another"):
            agent.fit(other, **BATCH)
        with pytest.raises(ValueError, match="space"):
            tfr.Reinforce.for_env(toys.Clock).fit(second_of_three(other), **BATCH)


class Wide(toys.Clock):
    """Returns int64 observations for an int8 space. Observation 2 is out of range."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.int8)

    def _observation(self):
        return np.array([self.now if self.now < 2 else 200])


@pytest.mark.parametrize("vector", [False, True], ids=["plain", "vector"])
def test_integer_observation_outside_its_dtype_raises(vector):
    """A cast to int8 would change 200 to -56."""
    agent = tfr.Reinforce.for_env(Wide, hidden=(2,))
    env = gym.vector.SyncVectorEnv([Wide, Wide]) if vector else Wide
    if vector:  # the int8 buffer of Gymnasium would wrap 200
        env._observations = np.zeros((2, 1), np.int64)
    message = r"Environment 0, .*observation is \[200\].*int8"  # the first of two
    with pytest.raises(tfr.collect.EnvironmentFault, match=message):
        agent.collect(env, 2)
