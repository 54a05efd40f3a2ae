"""Derives random numbers from a seed, a purpose, and the numbers of update and episode.

Every random number has a purpose, which is a name in `SUBSTREAMS` such as
`"training/action"`. The first part of the name is the stream (training, validation or
evaluation), and the second part says what the numbers are for. The number is determined
by the seed, the name of its purpose, and counters such as the update and the episode. If
any of these differ, the numbers are independent.

No global generator is seeded, and no generator lives longer than an episode or a call. A
resumed run therefore draws the same numbers as an uninterrupted run, because it needs
only the seed and the counters.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

# The position in this tuple is part of each key: append names, never reorder them.
SUBSTREAMS = (
    "weights",
    "training/environment",
    "training/action",
    "validation/environment",
    "validation/action",
    "evaluation/environment",
    "evaluation/action",
    "engine_comparison",
    "training/minibatches",
    "training/tensors",
    "validation/tensors",
    "evaluation/tensors",
    "vector/tensors",
    "tuning",
    "training/prompts",
)

# Environments written in C store their seed as a signed 32-bit integer.
_NUM_ENVIRONMENT_SEEDS = 2**31
_BLOCK_SIZE = 16  # episodes whose words are computed together


@dataclasses.dataclass(frozen=True)
class NoiseSpec:
    """Distribution and shape of the noise of one action or one environment step."""

    kind: str  # "uniform" on [0, 1), zero included, or "normal"
    shape: tuple


class StreamKey(NamedTuple):
    """What determines all random numbers of one update or one evaluation."""

    seed: int  # the master seed
    stream: str  # `"training"`, `"validation"` or `"evaluation"`
    update: int


def seed_sequence(seed, substream, *counters):
    """Returns the NumPy seed sequence for a seed, a substream and counters.

    Args:
        seed: Int, the agent's master seed.
        substream: One of `SUBSTREAMS`.
        *counters: Ints, for example the numbers of update and episode.
    """
    key = SUBSTREAMS.index(substream), *map(int, counters)
    return np.random.SeedSequence(seed, spawn_key=key)


def generator(seed, substream, *counters):
    """Returns a new NumPy generator with the seed sequence of the same arguments.

    Example:

    >>> first = generator(0, "training/action", 3, 1).random()
    >>> again = generator(0, "training/action", 3, 1).random()
    >>> other = generator(0, "training/action", 3, 2).random()
    >>> first == again, first == other
    (True, False)
    """
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, substream, *counters)))


class EpisodeSeeds:
    """Reset seeds and action noise for the episodes of one update or evaluation.

    The seeds of 16 episodes are computed together, because a separate seed sequence for
    each episode would be slow.

    Args:
        seed: Int, the agent's master seed.
        stream: `"training"`, `"validation"` or `"evaluation"`.
        update: Int, the number of the update.
        group_size: Int, how many consecutive episodes share a reset seed. Their actions
            have different noise.

    Example:

    >>> seeds, again = (EpisodeSeeds(0, "training", update=3) for _ in range(2))
    >>> seeds.reset_seed(100) == again.reset_seed(100)
    True
    >>> seeds.action_generator(100).random() == again.action_generator(100).random()
    True
    >>> seeds.reset_seed(100) == seeds.reset_seed(101)
    False
    """

    def __init__(self, seed, stream, update, group_size=1):
        self._group_size = group_size
        kinds = "environment", "action"
        self._keys = {kind: (seed, f"{stream}/{kind}", update) for kind in kinds}
        self._blocks = {}

    def reset_seed(self, episode):
        """Returns the reset seed of an episode, an int below 2**31."""
        words = self.seed_words("environment", episode // self._group_size)
        return int(words[0] % _NUM_ENVIRONMENT_SEEDS)

    def action_generator(self, episode, part=0):
        """Returns the `np.random.Generator` of the noise for one part of an action.

        All parts use one sequence of random numbers, each about 2.1e38 numbers after the
        part before.
        """
        bits = np.random.PCG64(_Words(self.seed_words("action", episode)))
        return np.random.Generator(bits.jumped(part) if part else bits)

    def seed_words(self, kind, episode):
        block, row = divmod(episode, _BLOCK_SIZE)
        if (kind, block) not in self._blocks:
            sequence = seed_sequence(*self._keys[kind], block)
            words = sequence.generate_state(_BLOCK_SIZE * 4, np.uint64)
            self._blocks[kind, block] = words.reshape(_BLOCK_SIZE, 4)
        return self._blocks[kind, block][row]


class _Words(np.random.bit_generator.ISeedSequence):
    """A seed sequence that gives `PCG64` four precomputed integers."""

    def __init__(self, words):
        self._words = words

    def generate_state(self, n_words, dtype=np.uint32):
        return self._words


def rollout_keys(seed, stream, update):
    """Returns the four keys that `counter_noise` needs for one update or evaluation.

    Args:
        seed: Int, the agent's master seed.
        stream: `"training"`, `"validation"`, `"evaluation"` or `"vector"`.
        update: Int, the number of the update.

    Returns:
        `[4, 2]` uint32 array, for resets, transitions, actions and minibatches.
    """
    words = seed_sequence(seed, f"{stream}/tensors", update).generate_state(8, np.uint32)
    return words.reshape(4, 2)


def episode_keys(keys):
    """Returns `[…, 3, 2]`, the `rollout_keys` for resets, transitions and actions."""
    return keys[..., :3, :]


def permutation_key(keys):
    """Returns `[…, 2]`, the fourth of the `rollout_keys`, which orders minibatches."""
    return keys[..., 3, :]
