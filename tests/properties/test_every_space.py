"""Tests every space end to end, and compares the rows of docs/spaces.md.

PYTHONPATH=tests/support python tests/properties/test_every_space.py    prints the table
"""

import pathlib
import sys
import tempfile

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
from gymnasium.spaces import Box
from gymnasium.spaces import Dict
from gymnasium.spaces import Discrete
from gymnasium.spaces import MultiBinary
from gymnasium.spaces import MultiDiscrete
from gymnasium.spaces import Tuple

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import spaces
from tf_reinforce.export import policy_functions

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "spaces.md"
INF = float("inf")

# Heads that are not the default of their space.
OTHER_HEADS = [
    name
    for name, example in parts.HEADS.items()
    if type(heads.for_space(example.space)) is not example.kind
]
PAIRS = {
    "numbers": (Box(-1, 1, (3,)), Discrete(3)),
    "one_number": (Box(-INF, INF, ()), Discrete(1)),
    "half_infinite": (Box(0, INF, (2, 2), np.float64), Discrete(4, start=-2)),
    "half": (Box(-2, 2, (3,), np.float16), MultiDiscrete([3, 2, 4])),
    "whole": (Box(-5, 5, (4,), np.int32), MultiDiscrete([[2, 3], [4, 1]])),
    "wide": (
        Box(-(2**62), 2**62, (2,), np.int64),
        MultiDiscrete([3, 3], start=[-1, 5]),
    ),
    "bytes": (Box(0, 255, (6,), np.uint8), MultiBinary(5)),
    "gray": (Box(0, 255, (20, 20), np.uint8), MultiBinary((2, 3))),
    "image": (Box(0, 255, (36, 40, 3), np.uint8), Box(-1, 1, (2,))),
    "channels_first": (Box(0, 255, (4, 36, 36), np.uint8), Box(-3, 5, (2, 2))),
    "choice": (Discrete(7), Box(-2, 2, ())),
    "choice_from": (Discrete(5, start=-3), Box(0, INF, (2,))),
    "choices": (MultiDiscrete([3, 5]), Box(-INF, INF, (3,), np.float64)),
    "choices_2d": (
        MultiDiscrete([[2, 3], [4, 2]]),
        Box(np.array([-1, 0, -INF], "f"), np.array([1, INF, 3], "f")),
    ),
    "choices_from": (MultiDiscrete([4, 2], start=[2, -1]), Box(-1, 1, (2,), np.float16)),
    "bits": (MultiBinary(6), Box(0, 10, (3,), np.int64)),
    "bits_2d": (MultiBinary((2, 2)), Box(0, 255, (2, 2), np.uint8)),
    "unsigned": (
        Tuple([Discrete(32), Discrete(11), Discrete(2)]),
        Box(0, 2**64 - 1, (2,), np.uint64),
    ),
    "dict": (
        Dict(position=Box(-1, 1, (2,)), gear=Discrete(5)),
        Dict(steer=Box(-1, 1, ()), gear=Discrete(5, start=-1)),
    ),
    "tuple": (
        Tuple([Box(0, 255, (12, 12), np.uint8), MultiBinary(3)]),
        Tuple([Discrete(3), MultiBinary(2), Box(-1, 1, (2,))]),
    ),
    "deep": (
        Dict(a=Tuple([Box(-1, 1, (2,)), Dict(b=Discrete(3))]), c=MultiDiscrete([2, 2])),
        Dict(
            {"z a": Tuple([Discrete(2), Dict(b=MultiDiscrete([2, 3]))]), "c": Box(0, 9)}
        ),
    ),
    **{name: (Box(-1, 1, (2,)), parts.HEADS[name].space) for name in OTHER_HEADS},
}


class Anything(gym.Env):
    """Random observations and masks; raises on actions outside of its action space.

    Episodes take 2 to `longest` steps. Masks and their observations are among 200 that
    the first reset draws, because drawing takes longer than a step.
    """

    def __init__(self, observation_space, action_space, masked=False, longest=8):
        self.observation_space, self.action_space = observation_space, action_space
        self.masked = masked
        self.longest = longest
        self.steps, self.mask = 0, None
        self.drawn = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.left = int(self.np_random.integers(2, self.longest + 1))
        if self.masked and not self.drawn:
            observed, acted = self.observation_space, self.action_space
            self.drawn = [
                (observed.sample(), random_mask(acted, self.np_random))
                for _ in range(200)
            ]
        return self._answer()

    def step(self, action):
        assert self.action_space.contains(action), action
        assert_legal(self.action_space, action, self.mask)
        self.left -= 1
        self.steps += 1
        reward = float(self.np_random.normal())
        observation, info = self._answer()
        return observation, reward, self.left == 0, False, info

    def _answer(self):
        if not self.masked:
            return self.observation_space.sample(), {}
        observation, self.mask = self.drawn[self.np_random.integers(200)]
        return observation, {"action_mask": self.mask}


def random_mask(space, rng):
    """Returns a mask as for `Space.sample(mask=…)`, with at least one legal choice."""

    def some_legal(size):
        mask = rng.integers(0, 2, size).astype("int8")
        mask[rng.integers(size)] = 1
        return mask

    def nested(sizes):
        return some_legal(sizes) if np.ndim(sizes) == 0 else tuple(map(nested, sizes))

    def mask_of(leaf):
        if isinstance(leaf, MultiBinary):
            return rng.integers(0, 3, leaf.shape).astype("int8")
        if isinstance(leaf, Box):
            return None
        return nested(leaf.nvec if isinstance(leaf, MultiDiscrete) else leaf.n)

    return keras.tree.map_structure(mask_of, spaces.to_nest(space))


def assert_legal(space, action, mask):
    """Raises unless an action has the structure and types of its space and is legal."""
    nest = spaces.to_nest(space)
    keras.tree.assert_same_structure(nest, action)

    def check(leaf, part, own=None):
        assert part.dtype == leaf.dtype
        if own is not None and isinstance(leaf, MultiBinary):
            assert np.all((own == 2) | (own == part))
        elif own is not None:
            choices = np.ravel(part - leaf.start)
            masks = keras.tree.flatten(own)
            assert all(x[choice] for x, choice in zip(masks, choices, strict=True))

    if mask is None:
        keras.tree.map_structure(check, nest, action)
    else:
        keras.tree.map_structure_up_to(nest, check, nest, action, mask)


def flat(tree):
    return keras.tree.flatten(tree)


def assert_same(one, other):
    for a, b in zip(flat(one), flat(other), strict=True):
        np.testing.assert_array_equal(a, b)


def check_space(name, folder):
    """Trains, evaluates, saves and exports an agent; returns its row of the table."""
    observed, acted = PAIRS[name]
    agent = tfr.Reinforce.for_env(
        lambda: Anything(observed, acted),
        hidden=(8,),
        head=parts.HEADS[name].make() if name in OTHER_HEADS else None,
    )
    options = {"num_envs": 2, "verbose": 0, "seed": 3}
    before = [weight.copy() for weight in agent.policy.get_weights()]
    history = agent.fit(
        lambda: Anything(observed, acted), epochs=1, episodes_per_epoch=4, **options
    )
    assert np.isfinite(history.history["gradient_norm"]).all()
    after = agent.policy.get_weights()
    single = acted == PAIRS["one_number"][1]  # the gradient of one choice is zero
    assert single or any(not np.array_equal(a, b) for a, b in zip(before, after))
    agent.evaluate(lambda: Anything(observed, acted), episodes=4, num_envs=2)
    agent.save(folder / "agent.keras")
    loaded = tfr.load(folder / "agent.keras")
    assert loaded.action_space == acted and loaded.observation_space == observed
    batch = spaces.sample_observations(observed, "float32", 5, np.random.default_rng(0))
    agent.export(folder / "policy")
    exported = tf.saved_model.load(folder / "policy")
    tensors = keras.tree.map_structure(tf.constant, batch)
    for theirs, ours in (
        (exported.act(tensors), agent.act(batch, deterministic=True)),
        (exported.sample(tensors, tf.constant(7, tf.int64)), agent.act(batch, seed=7)),
    ):
        names = flat(policy_functions.signature_names(ours, "action"))
        assert_same([theirs[name] for name in names], ours)
    assert_same(loaded.act(batch, seed=7), agent.act(batch, seed=7))
    engines = {made.runtime for made in agent.trainer.programs.values()}
    return row(name, agent, engines)


def row(name, agent, engines):
    observed, acted = (" ".join(repr(space).split()) for space in PAIRS[name])
    layers = [
        type(layer).__name__
        for layer in agent.policy.layers
        # Scale 1 is for flags; a name with ".units" scales the actions.
        if getattr(layer, "scale", None) != 1.0 and not layer.name.endswith(".units")
    ]
    words = {"OneHot": "one-hot", "Rescaling": "scaled", "Conv2D": "convolutions"}
    seen = ", ".join(words[kind] for kind in words if kind in layers) or "as it is"
    head = type(agent.head).__name__
    masks = agent.head.mask_size or "none"
    (engine,) = engines
    return f"| `{observed}` | {seen} | `{acted}` | `{head}` | {masks} | {engine} |"


OFTEN = ["channels_first"]  # its default policy has convolutions


@pytest.mark.parametrize("name", sweeps.some(PAIRS, always=OFTEN))
def test_agent_trains_acts_saves_and_exports_in_every_space(name, tmp_path):
    assert check_space(name, tmp_path) in DOCUMENT.read_text().splitlines()


MASKED = [
    name
    for name, (_, acted) in PAIRS.items()
    if name not in OTHER_HEADS and heads.for_space(acted).mask_size
]


OFTEN_MASKED = ["half_infinite"]


@pytest.mark.parametrize("name", sweeps.some(MASKED, always=OFTEN_MASKED))
def test_masked_actions_never_occur_in_ten_thousand_steps(name):
    acted = PAIRS[name][1]
    made = []

    def make():
        made.append(Anything(Box(-1, 1, (2,)), acted, masked=True, longest=200))
        return made[-1]

    where = "info/action_mask"
    agent = tfr.Reinforce.for_env(make, hidden=(), action_mask=where)
    for weight in agent.policy.weights:  # high probabilities, also of illegal actions
        weight.assign(30 * np.random.default_rng(1).normal(size=weight.shape))
    episodes = agent.collect(make, steps=5_000)
    agent.update(episodes)
    agent.collect(make, steps=5_000)
    assert sum(env.steps for env in made) >= 10_000
    assert episodes.masks.shape[-1] == agent.head.mask_size


if __name__ == "__main__":
    for name in sys.argv[1:] or PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            print(check_space(name, pathlib.Path(folder)), flush=True)
