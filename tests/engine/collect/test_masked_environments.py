"""Tests action masks in environments: reading, acting, recording, learning and export."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
from masked_agents import PLACES
from masked_agents import Riddle
from masked_agents import learner

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import action_masks
from tf_reinforce.export import policy_functions

MODES = [None, *gym.vector.AutoresetMode]


def built_learner(place="info/action_mask", **settings):
    """Returns a `learner` that is built for its environment."""
    agent = learner(place, **settings)
    agent.build_for_spaces(Riddle(place).observation_space, Riddle.action_space)
    return agent


def environment(place, mode, count=3):
    if mode is None:
        return lambda: Riddle(place)
    makers = [lambda: Riddle(place)] * count
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)


BOTH = list(itertools.product(MODES, PLACES))


@pytest.mark.parametrize("mode, place", sweeps.some(BOTH, always=BOTH[::3]))
def test_collected_actions_are_legal_and_every_mask_is_recorded(mode, place):
    agent = learner(place)
    with_masks = agent.collect(environment(place, mode), 40, num_envs=3)
    np.testing.assert_array_equal(with_masks.lengths, 5)
    assert with_masks.masks.shape == (5, 40, 4)
    mask_of_action = np.take_along_axis(
        with_masks.masks, with_masks.actions[..., None], -1
    )
    assert mask_of_action.all()  # the environment also raises for an illegal action
    assert set(with_masks.masks.sum(-1).ravel()) == {1, 2}


def test_deterministic_action_is_the_legal_action_with_the_largest_logit():
    agent = built_learner()
    agent.policy.set_weights([np.zeros((1, 4)), np.array([1.0, 4.0, 3.0, 2.0])])
    masks = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 1]], "int8")
    zeros = np.zeros((4, 1), "float32")
    actions = agent.act(zeros, deterministic=True, action_mask=masks)
    assert actions.tolist() == [3, 4, 2, 5]


# Invalid and missing masks


@pytest.mark.parametrize("place", ["info/action_mask", "observation/action_mask"])
def test_act_names_the_first_observation_without_a_legal_action(place):
    agent = built_learner(place)
    masks = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], "int8")
    zeros = np.zeros((3, 1), "float32")
    inputs = [zeros, masks]
    if place.startswith("observation/"):
        inputs = [{"x": zeros, "action_mask": masks}, None]
    with pytest.raises(
        ValueError, match=r"of observation 1 has no legal.*\[0, 0, 0, 0\]"
    ):
        agent.act(inputs[0], action_mask=inputs[1])


def test_act_says_that_the_agent_reads_masks():
    with pytest.raises(ValueError, match="reads masks from `info`.*Received: .*None"):
        built_learner().act(np.zeros((1, 1), "float32"))


def at(number, wrong):
    """Returns a function that changes the mask of one step."""
    return lambda now, legal: wrong if now == number else legal


WRONG = {
    "nothing_legal": (at(3, np.zeros(4, np.int8)), "step 3: .*no legal action"),
    "too_long": (at(3, np.ones(5, np.int8)), "step 2: .*must have 4 .*Received: array"),
    "fractions": (lambda now, legal: legal / 2, "must have 4"),
    "missing": (at(2, None), "step 1: there is no action mask in 'info/action_mask'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_or_missing_mask_error_names_the_step(name):
    mask, message = WRONG[name]
    message = f"Environment 0, episode 0.*{message}"
    with pytest.raises(tfr.collect.EnvironmentFault, match=message):
        learner().fit(lambda: Riddle(mask=mask), epochs=1, num_envs=1, verbose=0)


class MaskedSteps(gym.Env):
    """Runs four steps in any action space, under `mask(now)`.

    `None` means no mask in the info.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, action_space, mask):
        self.action_space = action_space
        self.mask = mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._answer()

    def step(self, action):
        self.now += 1
        observation, info = self._answer()
        return observation, 1.0, self.now == 4, False, info

    def _answer(self):
        mask = self.mask(self.now)
        info = {} if mask is None else {"action_mask": mask}
        return np.array([self.now], np.float32), info


BITS, HALF = np.array([1, 2, 2], np.int8), np.array([1, 0], np.int8)
NESTED = gym.spaces.Dict(
    gear=gym.spaces.MultiBinary(3),
    more=gym.spaces.Tuple([gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Box(0, 1)]),
)
MASK = {"gear": BITS, "more": ((HALF, 1 - HALF), None)}


@pytest.mark.parametrize("mode", MODES)
def test_missing_mask_raises_unless_the_episode_has_ended(mode):
    """A mask of zeros would turn off every switch without an error."""

    def masks_without(missing):
        def make():
            return MaskedSteps(NESTED, lambda now: None if now == missing else MASK)

        vector = mode and gym.vector.SyncVectorEnv([make] * 3, autoreset_mode=mode)
        return agent.collect(vector or make, 5, num_envs=3).masks

    env = MaskedSteps(NESTED, lambda now: MASK)
    agent = tfr.Reinforce.for_env(env, hidden=(), action_mask="info/action_mask")
    # The last observation needs no mask.
    assert masks_without(4).any(axis=-1).all()
    for missing, step in ((0, 0), (2, 1)):
        place = "" if mode and missing == 0 else f"step {step}: "
        message = f"{place}there is no action mask in 'info/action_mask'"
        with pytest.raises(tfr.collect.EnvironmentFault, match=message):
            masks_without(missing)


def test_int64_mask_of_the_observation_forbids_only_zeros():
    """In int8, 256 becomes zero.

    The exported functions read the mask from the observation.
    """
    marks = tf.constant([[256, 0, -1, 1000], [0, 2, 512, 0]], tf.int64)
    path = action_masks.MaskPath("observation/m")
    masks = policy_functions.masks_in_batch(path, {"m": marks})
    assert (masks.numpy() != 0).tolist() == (marks.numpy() != 0).tolist()


def test_update_raises_if_masks_do_not_fit_the_agent_or_the_actions():
    agent = built_learner()
    masked = agent.collect(Riddle, 4)
    illegal = masked.masks.copy()
    illegal[2, 1, masked.actions[2, 1]] = 0
    for masks, message in (
        (None, "have `masks` if and only if.*Received: None"),
        (masked.masks[..., :3], r"`masks` must have the shape \(5, 4, 4\)"),
        (illegal, "must be legal actions.* step 2 of episode 1"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.update(masked._replace(masks=masks))
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4)])
    other = tfr.Reinforce(policy, heads.Categorical(4))
    other.compile()
    with pytest.raises(ValueError, match="have `masks` if and only if"):
        other.update(masked)
    with pytest.raises(ValueError, match="`action_mask` must be None"):
        other.act(np.zeros((1, 1), "float32"), action_mask=np.ones((1, 4)))


# Files


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [sweeps.rare("info/action_mask"), "observation/action_mask"]
)
def test_saved_and_exported_agents_sample_legal_actions(tmp_path, place):
    agent = learner(place)
    agent.fit(lambda: Riddle(place), epochs=2, verbose=0)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    loaded.fit(lambda: Riddle(place), epochs=1, verbose=0)
    agent.export(tmp_path / "policy")
    policy = tf.saved_model.load(tmp_path / "policy")
    rng = np.random.default_rng(0)
    masks = np.eye(4, dtype="int8")[rng.integers(4, size=500)]
    masks |= np.eye(4, dtype="int8")[rng.integers(4, size=500)]
    numbers = rng.normal(size=(500, 1)).astype("float32")
    nested = place.startswith("observation")
    observation = {"x": numbers, "action_mask": masks} if nested else numbers
    more = [] if nested else [tf.constant(masks)]
    observation = keras.tree.map_structure(tf.constant, observation)
    greedy = policy.act(observation, *more)["action"].numpy()
    samples = policy.sample(observation, tf.constant(3, tf.int64), *more)
    for actions in (greedy, samples["action"].numpy()):
        assert np.take_along_axis(masks, actions[:, None] - 2, -1).all()
    mask_options = {} if nested else {"action_mask": masks}
    actions_of_agent = agent.act(observation, seed=3, **mask_options)
    np.testing.assert_array_equal(actions_of_agent, samples["action"])
    scores = policy.log_prob(observation, samples["raw_action"], *more)["log_prob"]
    assert np.all(scores.numpy() <= 0) and np.all(np.isfinite(scores))
