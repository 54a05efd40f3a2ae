"""Tests that episodes with faults are replaced, counted and bounded."""

import itertools
import sys
import warnings

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce.data import seeding

# Workers import no module of tests, which would import TensorFlow.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DROP = {"on_bad_env": "drop_episode"}
RESTART = {"on_env_error": "restart"}
pytestmark = pytest.mark.filterwarnings("ignore:An episode was dropped")


class Faulty(gym.Env):
    """Episodes of 1 to 6 steps; 60 % of the reset seeds have a fault, at a random step.

    The observation is (reset seed, step). The kind of the fault is an attribute.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)
    kind = "nan"
    made = closed = 0

    def __init__(self):
        type(self).made += 1

    def close(self):
        type(self).closed += 1

    @staticmethod
    def plan(seed):
        """Returns the length of an episode, and the step of its fault or `None`."""
        rng = np.random.default_rng(seed)
        length = int(rng.integers(1, 7))
        return length, int(rng.integers(0, length + 1)) if rng.random() < 0.6 else None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.now = seed % 2**20, 0  # exact in float32
        self.length, self.fault = self.plan(seed)
        return self._result(self._observation(), {})

    def step(self, action):
        self.now += 1
        ended = self.now == self.length
        return self._result(self._observation(), float(action), ended, False, {})

    def _observation(self):
        return np.array([self.seed, self.now], np.float64)

    def _result(self, observation, *rest):
        if self.now != self.fault:
            return observation, *rest
        if self.kind == "raise":
            raise RuntimeError("simulator lost")
        return (observation * np.nan if self.kind == "nan" else None), *rest


def faulty(kind):
    return type("Faulty", (Faulty,), {"kind": kind, "made": 0, "closed": 0})


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env(Faulty, hidden=(), normalize_observations=True)


def attempts(number):
    """Returns the seeds of an episode and of its replacements, until one has no fault."""
    seeds = seeding.EpisodeSeeds(0, "training", 0)
    for replacement in itertools.count():
        seed = seeds.reset_seed(number + replacement * 2**32)
        yield seed
        if Faulty.plan(seed)[1] is None:
            return


def collect(agent, env, *, num_envs=3, workers=1, **options):
    with tfr.collect.open_envs(env, num_envs, workers=workers, **options) as envs:
        return agent.collect(envs, 20)


KINDS = [("nan", DROP), ("none", DROP), ("raise", RESTART)]


@pytest.mark.parametrize("kind, options", KINDS)
@pytest.mark.parametrize(
    "num_envs, workers", sweeps.some([(1, 1), (3, 1), (20, 1), (4, 2)], always=[(3, 1)])
)
def test_each_faulty_episode_is_replaced_by_its_first_replacement_without_fault(
    agent, kind, options, num_envs, workers
):
    """The definition is a loop over replacements; no other episode changes."""
    env = faulty(kind)
    episodes = collect(agent, env, num_envs=num_envs, workers=workers, **options)
    expected = [list(attempts(number)) for number in range(20)]
    assert max(map(len, expected)) > 2
    seeds = [seeds[-1] for seeds in expected]
    assert episodes.observations[0, :, 0].tolist() == [x % 2**20 for x in seeds]
    assert episodes.lengths.tolist() == [Faulty.plan(seed)[0] for seed in seeds]
    assert np.isfinite(episodes.observations).all() and episodes.terminated.all()
    if workers == 1:
        restarts = sum(map(len, expected)) - 20
        assert env.made == env.closed == num_envs + restarts * (kind == "raise")


@pytest.mark.parametrize(
    "workers, budget",
    [
        sweeps.rare(1, {"episodes_per_epoch": 20}),
        sweeps.rare(2, {"episodes_per_epoch": 20}),
        sweeps.rare(1, {"steps_per_epoch": 40}),
        (2, {"steps_per_epoch": 40}),
    ],
)
def test_logs_count_dropped_episodes_and_restarts_from_the_first_epoch(workers, budget):
    """Replacements of episodes that are not in the batch do not count."""
    agent = tfr.Reinforce.for_env(Faulty, hidden=(), normalize_observations=True)
    options = dict(epochs=1, num_envs=4, workers=workers, verbose=0, **budget)
    history = agent.fit(faulty("raise"), **options, **RESTART).history
    count = int(history["episodes"][0])
    dropped = float(sum(len(list(attempts(n))) - 1 for n in range(count)))
    assert history["dropped_episodes"] == history["env_restarts"] == [dropped]
    if workers > 1 and "steps_per_epoch" in budget:
        return  # starting further processes would take seconds
    metrics = agent.evaluate(faulty("nan"), 20, workers=workers, **DROP)
    assert metrics["dropped_episodes"] > 0 and "env_restarts" not in metrics


def test_first_dropped_episode_raises_a_warning_with_the_fault():
    agent = tfr.Reinforce.for_env(Faulty, hidden=(), normalize_observations=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.fit(faulty("raise"), epochs=3, num_envs=1, verbose=0, **RESTART)
    (text,) = [str(one.message) for one in caught]
    assert "Environment 0, episode " in text and "simulator lost" in text


@pytest.mark.parametrize("kind, options", [("raise", DROP), ("nan", RESTART)])
def test_each_option_replaces_only_its_own_kind_of_fault(agent, kind, options):
    with pytest.raises(tfr.collect.EnvironmentFault, match="lost|not finite"):
        collect(agent, faulty(kind), **options)


class Trapped(toys.Clock):
    """Has no legal action in the first step, or in step 2, of every second episode."""

    at, episode = 0, -1

    def reset(self, **kwargs):
        self.episode += 1
        observation, _ = super().reset(**kwargs)
        return observation, self._info()

    def step(self, action):
        *result, _ = super().step(action)
        return *result, self._info()

    def _info(self):
        is_trap = self.now == self.at and self.episode % 2 == 0
        return {"legal": np.array([not is_trap, not is_trap], np.int8)}


@pytest.mark.parametrize("at", [0, 2])
def test_episode_without_legal_action_is_dropped(at):
    agent = tfr.Reinforce.for_env(Trapped, hidden=(), action_mask="info/legal")
    env = type("Trap", (Trapped,), {"at": at})
    with tfr.collect.open_envs(env, 2, **DROP) as envs:
        episodes = agent.collect(envs, 4)
    assert episodes.lengths.tolist() == [3] * 4 and (episodes.masks == 1).all()
    with pytest.raises(tfr.collect.EnvironmentFault, match="no legal action"):
        agent.collect(env, 4)


FIXED = {
    "vector": lambda: gym.vector.SyncVectorEnv([Faulty]),
    "tensor": lambda: tfr.envs.CartPole(),
    "callable of tensor": lambda: tfr.envs.CartPole,
    "object": Faulty,
}


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("name, value", [*DROP.items(), *RESTART.items()])
def test_environments_that_cannot_replace_episodes_refuse_the_option(kind, name, value):
    env, options = FIXED[kind](), {name: value}
    if kind == "object" and name == "on_bad_env":
        with tfr.collect.open_envs(env, 1, **options) as envs:
            assert envs.fault_keys == ("dropped_episodes",)
        return
    match = f"`{name}` requires an environment id.*Received: .*{value}"
    with pytest.raises(ValueError, match=match), tfr.collect.open_envs(env, 1, **options):
        pass


def test_groups_with_equal_reset_seeds_refuse_replacements():
    baseline = baselines.LeaveOneOut(group_size=2)
    agent = tfr.Reinforce.for_env(Faulty, hidden=(), baseline=baseline)
    with pytest.raises(ValueError, match='on_bad_env="raise"'):
        agent.fit(Faulty, epochs=1, verbose=0, **DROP)
