"""Environments that fail: named, with what was wrong, and nothing is learned."""

import functools
import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.collect import env_outputs
from tf_reinforce.collect import results

MODES = list(gym.vector.AutoresetMode)
BATCH = {"epochs": 1, "episodes_per_epoch": 3, "num_envs": 3, "verbose": 0}


def state(agent):
    """Every bit of the agent: weights, counters, normalizer and both optimizers."""
    variables = [*agent.variables, *agent.optimizer.variables]
    return [variable.numpy().tobytes() for variable in variables]


@pytest.fixture(scope="module")
def agent():
    """Trained a little, so that counters and optimizer state are not zero."""
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "tanh")])
    agent = tfr.Reinforce(policy, normalize_observations=True)
    agent.compile(keras.optimizers.Adam(0.1))
    agent.fit(toys.Clock, **{**BATCH, "epochs": 2})
    assert agent.updates == 2
    return agent


@pytest.fixture(autouse=True)
def unchanged(agent):
    """Whatever happens in this file, not one bit of the agent changes."""
    before = state(agent)
    yield
    assert state(agent) == before


def second_of_three(env):
    """Environments of which number 1 is `env()`, and the others are sound."""
    makers = itertools.chain([toys.Clock, env], itertools.repeat(toys.Clock))
    return lambda: next(makers)()


def answer(**given):
    """A step's answer in which some of the fields are replaced."""

    def replace(observation, reward, terminated, truncated, info):
        fields = {
            "observation": observation,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        return tuple({**fields, **given}.values())

    return replace


def words(value):
    """The name of a case: what is said about it."""
    return value if isinstance(value, str) else ""


def raising(*_):
    raise ZeroDivisionError("no gravity")


REWARDS = [
    (np.nan, "the reward is not finite: nan"),
    (np.inf, "the reward is not finite: inf"),
    (-np.inf, "the reward is not finite: -inf"),
    (np.float32("nan"), "the reward is not finite: nan"),
    (None, "the reward is a NoneType: None"),
    ("1.5", "the reward is a str: '1.5'"),
    (np.ones(1), r"the reward is a ndarray of shape \(1,\)"),
    (1j, "the reward is a complex: 1j"),
    (np.complex64(1), "the reward is a complex64"),
]
OBSERVATIONS = [
    (None, "the observation is a NoneType"),
    ([1.0], "the observation is a list"),
    (1.0, "the observation is a float"),
    (np.float32(1), r"the observation has the shape \(\). Expected: \(1,\)"),
    (np.ones((1, 1), "f"), r"the observation has the shape \(1, 1\). Expected: \(1,\)"),
    (np.ones(2, "f"), r"the observation has the shape \(2,\). Expected: \(1,\)"),
    (np.ones(0, "f"), r"the observation has the shape \(0,\). Expected: \(1,\)"),
    (np.ones(1, complex), "the observation is of type complex128"),
    (np.ones(1, object), "the observation is of type object"),
    (np.array(["1"]), "the observation is of type <U1"),
    ({"a": np.ones(1, "f")}, "the observation is a dict"),
]
NOT_FINITE = [np.nan, np.inf, -np.inf]
FLAGS = [None, "False", 2, 1.0, np.ones(2, bool)]
ANSWERS = [
    *((answer(reward=value), said) for value, said in REWARDS),
    *((answer(observation=value), said) for value, said in OBSERVATIONS),
    *((answer(terminated=flag), "`terminated` is a ") for flag in FLAGS),
    *((answer(truncated=flag), "`truncated` is a ") for flag in FLAGS),
    (lambda *fields: fields[:4], "four values, as in the old Gym.*shimmy"),
    (lambda *fields: None, "step raised TypeError"),
    (raising, "step raised ZeroDivisionError: no gravity"),
]


@pytest.mark.parametrize("at", [1, 50])
@pytest.mark.parametrize("wrong, said", ANSWERS, ids=words)
def test_a_wrong_answer_is_named_with_its_place(agent, wrong, said, at):
    """Steps count from 0, as rows of the record do."""
    env = second_of_three(lambda: toys.Misbehaving(at, wrong))
    place = f"Environment 1, episode 1, step {at - 1}: "
    with pytest.raises(results.EnvironmentFault, match=place + f".*{said}"):
        agent.fit(env, **BATCH)


@pytest.mark.parametrize("at", [1, 50, 60])
@pytest.mark.parametrize("number", NOT_FINITE)
def test_an_observation_that_is_not_finite_is_named(agent, number, at):
    """Step t is the action whose answer was wrong. 60 is the last."""
    wrong = answer(observation=np.full(1, number, "f"))
    env = second_of_three(lambda: toys.Misbehaving(at, wrong))
    said = f"Environment 1, episode 1, step {at - 1}: the observation is not finite"
    with pytest.raises(results.EnvironmentFault, match=said):
        agent.fit(env, **BATCH)


@pytest.mark.parametrize("limit", [None, 5], ids=["ended", "cut"])
def test_an_info_that_is_none_is_named_when_it_is_read(agent, limit):
    """It is read at the end of an episode, whoever ends it."""
    env = toys.Misbehaving(5, answer(info=None), length=5 if limit is None else 60)
    with pytest.raises(results.EnvironmentFault, match="episode 0, step 4: .*info"):
        agent.fit(env, **BATCH, max_episode_steps=limit)


def successful(mode):
    env = functools.partial(toys.Misbehaving, 5, answer(info={"is_success": "yes"}), 5)
    if mode is None:
        return env
    return gym.vector.SyncVectorEnv([env] * 2, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [None, *gym.vector.AutoresetMode])
def test_a_success_that_is_no_flag_is_named(agent, mode):
    with pytest.raises(
        results.EnvironmentFault, match="`is_success` is .*'yes'.* a bool"
    ):
        agent.evaluate(successful(mode), episodes=2)


def test_the_cause_is_chained(agent):
    with pytest.raises(results.EnvironmentFault) as caught:
        agent.fit(lambda: toys.Misbehaving(2, raising), **BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class Resetting(toys.Clock):
    """Answers its reset number `at` with `answer(observation, info)`."""

    def __init__(self, answer, at=1):
        super().__init__()
        self.answer, self.resets, self.at = answer, 0, at

    def reset(self, **kwargs):
        given = super().reset(**kwargs)
        self.resets += 1
        return self.answer(*given) if self.resets == self.at else given


RESETS = [
    *((lambda o, i, x=x: (x, i), said) for x, said in OBSERVATIONS),
    *((lambda o, i, x=x: (np.full(1, x, "f"), i), "not finite") for x in NOT_FINITE),
    (lambda o, i: o, "reset returned a ndarray. Expected: a pair.*shimmy"),
    (lambda o, i: (o, i, i), "reset returned 3 values. Expected: a pair"),
    (lambda o, i: [o, i], "reset returned a list. Expected: a pair"),
    (lambda o, i: None, "reset returned a NoneType. Expected: a pair"),
    (raising, "reset raised ZeroDivisionError: no gravity"),
]


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("wrong, said", RESETS, ids=words)
def test_a_wrong_reset_is_named_with_its_episode(agent, wrong, said, at):
    """Two environments take turns: the second reset of number 1 is episode 3."""
    env = second_of_three(lambda: Resetting(wrong, at))
    place = f"Environment 1, episode {2 * at - 1}, step 0: "
    with pytest.raises(results.EnvironmentFault, match=place + f".*{said}"):
        agent.fit(env, **{**BATCH, "num_envs": 2, "episodes_per_epoch": 6})


def test_a_reset_that_raises_is_the_cause(agent):
    with pytest.raises(results.EnvironmentFault) as caught:
        agent.fit(lambda: Resetting(raising), **BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_old_reset_that_takes_no_seed_is_named(agent):
    class Old(toys.Clock):
        def reset(self):
            return super().reset()

    with pytest.raises(results.EnvironmentFault, match="reset raised TypeError.*seed"):
        agent.fit(Old, **BATCH)


def test_evaluation_names_faults_too(agent):
    env = second_of_three(lambda: toys.Misbehaving(2, answer(reward=None)))
    with pytest.raises(
        results.EnvironmentFault, match="Environment 1, episode 1, step 1"
    ):
        agent.evaluate(env, episodes=3)


def test_an_observation_that_does_not_nest_as_its_space_is_named():
    box = gym.spaces.Box(0, 1, (1,))
    space = gym.spaces.Dict(a=box, b=gym.spaces.Tuple([box, box]))
    one = np.ones(1, "f")
    for wrong in ({"a": one}, {"a": one, "b": (one,)}, one, {"a": one, "c": (one, one)}):
        read = env_outputs.ObservationReader(space, "float32")
        rows = [np.zeros((1, 1), "f") for _ in range(3)]
        with pytest.raises(env_outputs.IndexedFault, match="does not nest as its space"):
            read(0, wrong, rows)


@pytest.mark.parametrize("kind", [bool, int, np.int64, np.float16, np.float64, np.bool_])
def test_every_real_reward_is_welcome(agent, kind):
    env = toys.Misbehaving(2, answer(reward=kind(1)), length=3)
    assert agent.evaluate(env, episodes=1)["episode_return"] == 1 + 1 + 3
    env = toys.Misbehaving(2, answer(reward=np.array(1.0)), length=3)
    assert agent.evaluate(env, episodes=1)["episode_return"] == 1 + 1 + 3


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_flags_of_python_and_numpy_are_welcome(agent, kind):
    env = toys.Misbehaving(2, answer(truncated=kind(True)))
    assert agent.evaluate(env, episodes=1)["episode_length"] == 2


# Vector environments


class Wrapped(gym.vector.VectorWrapper):
    """Changes what a vector environment answers at step `at`."""

    def __init__(self, env, at, change):
        super().__init__(env)
        self.at, self.change, self.now = at, change, 0

    def step(self, actions):
        given = self.env.step(actions)
        self.now += 1
        return self.change(*given) if self.now == self.at else given


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
    (lambda o, *rest: (o[:2], *rest), r"shape \(2, 1\). Expected: \(3, 1\)"),
    (lambda o, *rest: (o[:1], *rest), r"shape \(1, 1\). Expected: \(3, 1\)"),
    (lambda o, *rest: (o[:, 0], *rest), r"shape \(3,\). Expected: \(3, 1\)"),
    (lambda o, r, *rest: (o, r[:1], *rest), r"rewards are of shape \(1,\)"),
    (lambda o, r, *rest: (o, 1.0, *rest), r"rewards are of shape \(\)"),
    (lambda o, r, *rest: (o, r.astype(object), *rest), "type object"),
    (
        lambda o, r, t, *rest: (o, r, t[:, None], *rest),
        r"terminations are of shape \(3, 1\).* Expected: bools of shape \(3,\)",
    ),
    (lambda o, r, t, *rest: (o, r, False, *rest), r"terminations are of shape \(\)"),
    (lambda o, r, t, u, i: (o, r, t, u + np.nan, i), "truncations are .nan, nan, nan"),
    (lambda *parts: parts[:4], "step returned 4 values. Expected: a tuple of 5"),
    (lambda *parts: [*parts], "step returned a list. Expected: a tuple of 5"),
    (lambda *parts: (*parts[:4], None), "infos of type NoneType. Expected: a dict"),
    (raising, "step raised ZeroDivisionError: no gravity"),
]


def without_final_observations(*answer):
    return *answer[:4], {}


def test_a_vector_env_that_keeps_the_last_observation_to_itself_is_named(agent):
    mode = gym.vector.AutoresetMode.SAME_STEP
    env = gym.vector.SyncVectorEnv([toys.Clock] * 2, autoreset_mode=mode)
    with pytest.raises(
        results.EnvironmentFault, match="SAME_STEP.*infos with 'final_obs'"
    ):
        agent.fit(Wrapped(env, 3, without_final_observations), **BATCH)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong, said", VECTOR_ANSWERS, ids=words)
def test_a_wrong_answer_of_a_vector_env_is_named(agent, wrong, said, mode):
    env = gym.vector.SyncVectorEnv([lambda: toys.Clock(60)] * 3, autoreset_mode=mode)
    for at in (1, 50):
        with pytest.raises(results.EnvironmentFault, match=said):
            agent.fit(Wrapped(env, at, wrong), **BATCH)


def test_a_vector_env_whose_step_raises_is_the_cause(agent):
    env = gym.vector.SyncVectorEnv([toys.Clock])
    with pytest.raises(results.EnvironmentFault) as caught:
        agent.fit(Wrapped(env, 2, raising), **BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_nobody_asked_a_vector_env_for_does_no_harm():
    """Only two episodes are wanted: slot 2 is idle, and its NaN is nobody's fault."""
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)  # a normalizer would clip the NaN away
    for mode in MODES:
        env = gym.vector.SyncVectorEnv([toys.Clock] * 3, autoreset_mode=mode)
        env = Wrapped(env, 1, with_number(np.nan, slot=2))
        assert agent.evaluate(env, episodes=2)["episode_return"] == 6.0


@pytest.mark.parametrize("mode", MODES)
def test_an_endless_vector_env_is_refused_with_the_remedy(agent, mode):
    env = gym.vector.SyncVectorEnv([lambda: toys.Clock(99)] * 2, autoreset_mode=mode)
    with pytest.raises(results.EnvironmentFault, match="within 20 steps.*TimeLimit"):
        agent.fit(env, **BATCH, max_episode_steps=20)
    limited = [lambda: gym.wrappers.TimeLimit(toys.Clock(99), 20)] * 2
    env = gym.vector.SyncVectorEnv(limited, autoreset_mode=mode)
    played = agent.evaluate(env, episodes=3, max_episode_steps=20)
    assert played["episode_length"] == 20


class Drawn(toys.Clock):
    def _observation(self):
        return self.np_random.normal(size=1).astype(np.float32)


class OneArray(gym.vector.VectorEnv):
    """A vector of its own kind: the last observations stand in the same array always."""

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}

    def __init__(self):
        mode = self.metadata["autoreset_mode"]
        self.inner = gym.vector.SyncVectorEnv([lambda: Drawn(1)], autoreset_mode=mode)
        self.num_envs = 1
        self.single_observation_space = self.inner.single_observation_space
        self.single_action_space = self.inner.single_action_space
        self.last = np.zeros((1, 1), np.float32)

    def reset(self, **given):
        return self.inner.reset(**given)

    def step(self, actions):
        *answer, infos = self.inner.step(actions)
        self.last[0] = infos["final_obs"][0]
        return *answer, {**infos, "final_obs": self.last}


def test_a_vector_env_may_keep_last_observations_where_no_reset_writes(agent):
    ours = agent.collect(OneArray(), 5)
    theirs = agent.collect(OneArray().inner, 5)
    np.testing.assert_array_equal(ours.observations, theirs.observations)


def test_a_vector_env_that_does_not_say_how_it_resets_is_refused(agent):
    env = gym.vector.SyncVectorEnv([toys.Clock])
    env.metadata = {}
    with pytest.raises(ValueError, match="must state how it resets.*Received: None"):
        agent.fit(env, **BATCH)


# What is no environment, or none for this agent


@pytest.mark.parametrize("env", [None, 3, ["CartPole-v1"], object()])
def test_what_is_no_environment_is_refused(agent, env):
    with pytest.raises(TypeError, match="`env` must be an environment id"):
        agent.fit(env, **BATCH)


@pytest.mark.parametrize("made", [None, toys.Clock, "CartPole-v1"])
def test_a_callable_that_makes_no_environment_is_refused(agent, made):
    with pytest.raises(TypeError, match="must return a gymnasium.Env.*shimmy"):
        agent.fit(lambda: made, **BATCH)


def test_a_callable_that_makes_one_environment_twice_is_refused():
    """Two slots that step one environment would record nonsense without a word."""
    agent, env = tfr.Reinforce.for_env(toys.Clock), toys.Clock()
    with pytest.raises(ValueError, match="the same environment"):
        agent.fit(lambda: env, **BATCH, max_episode_steps=9)


def test_environments_with_different_spaces_are_refused(agent):
    class Wide(toys.Clock):
        observation_space = gym.spaces.Box(-1, 1, (2,))

    class Three(toys.Clock):
        action_space = gym.spaces.Discrete(3)

    for other in (Wide, Three):
        with pytest.raises(ValueError, match="The agent was made for another"):
            agent.fit(other, **BATCH)
        with pytest.raises(ValueError, match="space"):
            tfr.Reinforce.for_env(toys.Clock).fit(second_of_three(other), **BATCH)


BOX = gym.spaces.Box(0, 1, (1,))
UNSEEN = [
    gym.spaces.Text(5),
    gym.spaces.Graph(BOX, None),
    gym.spaces.OneOf([BOX, gym.spaces.Discrete(3)]),
    gym.spaces.Dict(fine=BOX, wrong=gym.spaces.Text(5)),
    gym.spaces.Tuple([BOX, gym.spaces.Sequence(BOX)]),
]
UNDONE = [
    gym.spaces.Text(5),
    gym.spaces.OneOf([BOX, gym.spaces.Discrete(2)]),
    gym.spaces.Dict(fine=BOX, wrong=gym.spaces.Text(5)),
    gym.spaces.Tuple([BOX, gym.spaces.Sequence(BOX)]),
]


def with_spaces(observations=BOX, actions=toys.Clock.action_space):
    env = toys.Clock()
    env.observation_space, env.action_space = observations, actions
    return env


@pytest.mark.parametrize("space", UNSEEN, ids=lambda space: type(space).__name__)
def test_an_observation_space_that_is_not_understood_is_named(space):
    env = with_spaces(observations=space)
    with pytest.raises(ValueError, match="not supported. Supported: Box.*Wrap") as caught:
        tfr.Reinforce.for_env(env)
    assert repr(space) in str(caught.value)


@pytest.mark.parametrize("space", UNDONE, ids=lambda space: type(space).__name__)
def test_an_action_space_that_is_not_understood_is_named(space):
    env = with_spaces(actions=space)
    fresh = tfr.Reinforce(keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    fresh.compile()
    for attempt in (tfr.Reinforce.for_env, lambda env: fresh.fit(env, **BATCH)):
        with pytest.raises(ValueError, match="not supported. Supported: Disc") as caught:
            attempt(env)
        assert repr(space) in str(caught.value)


class Wide(toys.Clock):
    """Observations of a wider type than their space, in the second step one too large."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.int8)

    def _observation(self):
        return np.array([self.now if self.now < 2 else 200])


@pytest.mark.parametrize("vector", [False, True], ids=["plain", "vector"])
def test_a_whole_number_that_its_type_would_cut_is_named(vector):
    """200 would be seen as -56."""
    agent = tfr.Reinforce.for_env(Wide, hidden=(2,))
    env = gym.vector.SyncVectorEnv([Wide, Wide]) if vector else Wide
    if vector:  # Gymnasium's own buffer would cut it
        env._observations = np.zeros((2, 1), np.int64)
    said = r"Environment 0, .*\[200\] does not fit into int8"  # the first of two
    with pytest.raises(tfr.collect.EnvironmentFault, match=said):
        agent.collect(env, 2)
