"""Tests tensor environments against Gymnasium, and toy environments by their optimum."""

import math

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
from toy_worlds import Walk

from tf_reinforce import envs
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.envs import checks

# The twins of physical systems, and states in which they start a step;
# `test_tabular.py` and `test_blackjack.py` test the others.
EDGES = {
    "Acrobot-v1": ([-3, -3, -9, -9], [3, 3, 9, 9]),
    "CartPole-v1": ([-2.5, -2, -0.25, -2], [2.5, 2, 0.25, 2]),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "Pendulum-v1": ([-3.1, -8], [3.1, 8]),
}


def state_of(original, id):
    """Returns the state of a Gymnasium environment in float64 for its twin."""
    state = np.array(original.unwrapped.state, "float64")
    if id == "Pendulum-v1":
        state[0] = (state[0] + math.pi) % (2 * math.pi) - math.pi
    return state


@pytest.mark.parametrize("id", envs.TWINS)
def test_twin_has_the_spaces_limit_and_threshold_of_gymnasium(id):
    twin, spec, original = envs.make(id), gym.spec(id), gym.make(id)
    assert twin.max_episode_steps == spec.max_episode_steps
    assert twin.reward_threshold == spec.reward_threshold
    assert twin.observation_space == original.observation_space
    assert twin.action_space == original.action_space


@pytest.mark.parametrize("id", EDGES)
def test_twin_terminates_in_the_same_states_as_gymnasium(id):
    """The states are random, because a random policy rarely reaches a goal or wall.

    Also observations and rewards of a step are equal.
    """
    original, twin, rng = gym.make(id).unwrapped, envs.make(id), np.random.default_rng(0)
    original.action_space.seed(0)
    single = id == "MountainCarContinuous-v0"  # Gymnasium uses float32 here
    states = rng.uniform(*EDGES[id], (2000, len(EDGES[id][0]))).astype("float32")
    actions, truths = [original.action_space.sample() for _ in states], []
    for seed, (state, action) in enumerate(zip(states, actions, strict=True)):
        original.reset(seed=seed)
        original.state = state if single else state.astype("float64")
        truths.append(original.step(action)[:3])
    seen, rewards, ended = map(np.array, zip(*truths, strict=True))
    before, actions = tf.constant(states), tf.constant(np.array(actions))
    after = twin.transition(before, actions, None)
    np.testing.assert_allclose(twin.observation(after), seen, rtol=0, atol=1e-5)
    earned = twin.reward(before, actions, after)
    np.testing.assert_allclose(earned, rewards, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(twin.terminal(after), ended)
    assert 50 < ended.sum() < 1900 or id == "Pendulum-v1"


@pytest.mark.parametrize("id", EDGES)
def test_initial_states_have_the_distribution_of_gymnasium(id):
    """The test compares minimum, maximum and mean of uniform distributions."""
    twin, original, count = envs.make(id), gym.make(id), 2000
    key = seeding.rollout_keys(0, "training", 0)[0]
    episodes = tf.range(count)
    noise = tensor_noise.counter_noise(
        key, [twin.initial_noise], episodes, 0, twin.dtype
    )[0]
    ours, theirs = twin.initial(noise).numpy(), []
    for seed in range(count):
        original.reset(seed=seed)
        theirs.append(state_of(original, id))
    theirs = np.array(theirs)
    width = np.ptp(theirs, axis=0)
    for least in (np.min, lambda x, axis: -np.max(x, axis)):
        assert (np.abs(least(ours, 0) - least(theirs, 0)) <= 0.01 * width).all()
    error = 6 * width * math.sqrt(2 / 12 / count)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) <= error).all()


def test_optimal_policies_reach_the_optimum_of_toy_environments():
    def play(env, policy, noise):
        state, total = env.initial(tf.constant(noise)), 0.0
        alive = tf.ones([len(noise)], tf.bool)
        for _ in range(env.max_episode_steps or 1):
            actions = policy(state)
            following = env.transition(state, actions, None)
            total += tf.where(alive, env.reward(state, actions, following), 0.0)
            alive &= ~env.terminal(following)
            state = following
        assert not tf.reduce_any(alive)
        return total.numpy().tolist()

    def follow(state):
        return tf.sign(state["column"] - state["paddle"])

    noise = np.linspace(0, 1, 8, endpoint=False, dtype="float32")
    bandit, corridor, catch = envs.Bandit([0.25, 1.0]), envs.Corridor(5), envs.Catch()
    assert play(bandit, lambda state: [1] * 8, noise) == [bandit.optimum] * 8 == [1.0] * 8
    assert play(corridor, lambda state: [1] * 8, noise) == [corridor.optimum] * 8
    assert corridor.optimum == -4.0
    assert play(catch, follow, noise) == [catch.optimum] * 8
    assert play(catch, lambda state: [-1], noise[:1]) == [1.0]
    assert play(catch, lambda state: [1], noise[:1]) == [-1.0]


def random_steps(num_envs, seed, steps=40):
    worlds = Walk().as_gymnasium(num_envs)
    worlds.action_space.seed(0)
    answers = [(*worlds.reset(seed=seed), None, None, None)]
    for _ in range(steps):
        answers.append(worlds.step(worlds.action_space.sample()))
    return answers


class Loud(Walk):
    """A `Walk` whose initial state takes more noise than a step."""

    initial_noise = envs.NoiseSpec("normal", (10,))
    transition_noise = envs.NoiseSpec("normal", (1,))

    def initial(self, noise):
        return noise[:, 3]

    def transition(self, state, action, noise):
        return noise[:, 0]

    def terminal(self, state):
        return tf.zeros_like(state, tf.bool)


def test_initial_and_transition_noise_use_different_keys():
    """With one key for both, step 3 would draw the fourth number of the initial noise."""
    worlds = Loud().as_gymnasium(4)
    first = worlds.reset(seed=0)[0]["place"]
    actions = worlds.action_space.sample()
    later = [worlds.step(actions)[0]["place"] for _ in range(8)]
    assert not np.isin(first, later).any()


def test_vector_env_resets_in_the_step_after_an_end():
    """An episode that ends in step 2 is reset in step 3, which has reward 0.

    t             0    1    2     3     4
    termination   .    .    X     .     .
    reward        .    .    .     0     .
    observation   s1   s2   end   s0'   s1'
    """
    ends, lengths = 0, np.zeros(5, int)
    before = None
    for observations, rewards, terminations, truncations, _ in random_steps(5, 0)[1:]:
        place = observations["place"][:, 0]
        assert (observations["side"] == (place > 0)).all()
        lengths += 1
        if before is not None:
            over, last = before
            assert (rewards[over] == 0).all() and not terminations[over].any()
            assert ((place[over] >= 0) & (place[over] < 1)).all()  # Walk.initial
            np.testing.assert_allclose((last + rewards)[~over], place[~over], atol=1e-6)
            lengths[over] = 0
        assert (terminations == ((abs(place) > 3) & (lengths > 0))).all()
        assert (truncations == (lengths == Walk.max_episode_steps)).all()
        before = terminations | truncations, place
        ends += before[0].sum()
    assert ends > 10


def test_each_environment_of_a_vector_env_has_its_own_seed():
    """Environment i uses seed + i, for any number of environments."""
    alone, beside = random_steps(1, 12), random_steps(3, 10)
    listed = random_steps(3, [1, 12, 0])
    for one, three, list_ in zip(alone, beside, listed, strict=True):
        assert one[0]["place"][0] == three[0]["place"][2] == list_[0]["place"][1]
    assert len({x for x in beside[0][0]["place"][:, 0]}) == 3


@pytest.mark.parametrize(
    "actions",
    [[0, 2], [0], [0.5, 0.5], [[0], [1]], {"a": 0}, [None, 1]],
    ids=str,
)
def test_step_raises_if_actions_are_invalid(actions):
    worlds = envs.CartPole().as_gymnasium(2)
    worlds.reset(seed=0)
    with pytest.raises(ValueError, match="must be actions of MultiDiscrete"):
        worlds.step(actions)


def test_vector_env_raises_on_invalid_calls():
    worlds = envs.CartPole().as_gymnasium(2)
    with pytest.raises(gym.error.ResetNeeded, match="Call `reset`"):
        worlds.step([0, 1])
    with pytest.raises(ValueError, match="list with one seed for each of 2"):
        worlds.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="num_envs"):
        envs.CartPole().as_gymnasium(0)


class Broken(envs.CartPole):
    """A CartPole in which one method returns an invalid result."""

    def __init__(self, name, answer):
        super().__init__()
        original = getattr(self, name)
        setattr(self, name, lambda *given: answer(original(*given)))


@pytest.mark.parametrize(
    "name, answer, message",
    [
        ("observation", lambda x: x[:, :3], r"float \(7, 4\).*float \(7, 3\)"),
        ("observation", lambda x: {"x": x}, r"must return float \(7, 4\) for"),
        ("observation", lambda x: tf.cast(x, tf.int32), "must return float .*int32"),
        ("reward", lambda x: x[:, None], r"float \(7,\).*float \(7, 1\)"),
        ("reward", lambda x: tf.cast(x, tf.int32), "must return float .*int32"),
        ("reward", lambda x: tf.reduce_sum(x), r"float \(7,\).*float \(\)"),
        ("terminal", lambda x: tf.cast(x, tf.float32), "must return bool .*float"),
        ("transition", lambda x: (x, x), "must return float32 "),
        ("transition", lambda x: tf.cast(x, tf.float64), "must return float32 "),
        ("transition", lambda x: tf.boolean_mask(x, x[:, 0] > 0), "tf.where"),
        ("initial", lambda x: x[0], r"a row for each of 7.*\(4,\)"),
        ("action_mask", lambda _: tf.ones([7, 2]), "must return bool or int .*float"),
        ("action_mask", lambda _: tf.ones([7], tf.int64), r"must return .*\(7,\)"),
        ("action_mask", lambda _: tf.ones([7, 3], tf.bool), r"must return .*\(7, 3\)"),
        ("action_mask", lambda _: {"a": tf.ones([7, 2], tf.bool)}, "must return .*'a'"),
        ("action_mask", lambda _: tf.ones([2, 2], tf.bool), r"must return .*\(2, 2\)"),
    ],
)
def test_error_names_the_method_with_an_invalid_result(name, answer, message):
    with pytest.raises(ValueError, match=rf"(?s)`Broken\.{name}`.*{message}"):
        Broken(name, answer).as_gymnasium(2)


def test_check_raises_if_transition_changes_its_arguments():
    """Otherwise the reward would be computed from the changed state."""

    class Careless(Walk):
        def initial(self, noise):
            return {"x": super().initial(noise)}

        def observation(self, state):
            return super().observation(state["x"])

        def transition(self, state, action, noise):
            state["x"] = state["x"] + 1
            return state

    with pytest.raises(ValueError, match="Careless.transition` must not change its arg"):
        checks.check(Careless())


@pytest.mark.parametrize(
    "noise", [envs.NoiseSpec("Normal", ()), envs.NoiseSpec("uniform", (None,))], ids=str
)
def test_check_raises_if_the_noise_spec_is_invalid(noise):
    world = Walk()
    world.transition_noise = noise
    with pytest.raises(ValueError, match="`Walk.transition_noise` must be one `NoiseSp"):
        checks.check(world)


def test_reset_within_an_episode_restarts_the_step_count():
    class Short(envs.CartPole):
        max_episode_steps = 5

    worlds = Short().as_gymnasium(1)
    worlds.reset(seed=0)
    for _ in range(3):
        worlds.step(np.array([0]))
    worlds.reset(seed=0)
    ended = [bool(worlds.step(np.array([t % 2]))[3][0]) for t in range(5)]
    assert ended == [False] * 4 + [True]
