"""The only door to randomness: every number is a function of its address.

An address is `(master seed, stream, counters …)`. Streams never overlap, nothing
global is seeded and no generator outlives the episode or the call it serves, so a
run is resumed from its counters alone.
"""

import numbers

import numpy as np
import tensorflow as tf

# The order is part of every seeded result: append, never reorder.
STREAMS = (
    "weights",
    "training/environment",
    "training/action",
    "validation/environment",
    "validation/action",
    "evaluation/environment",
    "evaluation/action",
    "parity",
    "training/minibatches",
)

# Environments written in C read their seed as a signed 32-bit integer.
_ENVIRONMENT_SEEDS = 2**31
_BLOCK = 16  # episodes whose words are made at once


def check_seed(seed):
    """Returns `seed` as a Python int, or says why it is none.

    Args:
        seed: A whole number, zero or larger, of Python or NumPy. Booleans are
            refused: they are whole numbers by accident.

    Returns:
        int.

    Raises:
        TypeError: when it is not a whole number.
        ValueError: when it is negative or needs more than 63 bits.

    Example:

    >>> import numpy as np
    >>> check_seed(np.int32(7))
    7
    """
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, numbers.Integral):
        raise TypeError(
            "`seed` must be a whole number, so that the run can be repeated. "
            f"Received: seed={seed!r} of type {type(seed).__name__}"
        )
    if not 0 <= seed < 2**63:
        raise ValueError(
            f"`seed` must lie in [0, 2**63). Received: seed={seed}. "
            "Use its absolute value."
        )
    return int(seed)


def sequence(seed, stream, *counters):
    """The NumPy seed sequence at one address.

    Args:
        seed: Int, the master seed.
        stream: One of `STREAMS`.
        *counters: Ints, for example the update and the episode.

    Returns:
        `np.random.SeedSequence`.

    Raises:
        ValueError: when the stream is unknown.
    """
    if stream not in STREAMS:
        raise ValueError(
            f"Unknown stream. Expected one of {STREAMS}. Received: stream={stream!r}"
        )
    return np.random.SeedSequence(
        seed, spawn_key=(STREAMS.index(stream), *map(int, counters))
    )


def generator(seed, stream, *counters):
    """A fresh NumPy generator at one address; see `sequence`.

    Example:

    >>> first = generator(0, "training/action", 3, 1).random()
    >>> again = generator(0, "training/action", 3, 1).random()
    >>> other = generator(0, "training/action", 3, 2).random()
    >>> first == again, first == other
    (True, False)
    """
    return np.random.Generator(np.random.PCG64(sequence(seed, stream, *counters)))


class EpisodeSeeds:
    """The randomness of every episode of one collection, addressed by its number.

    Words are made for many episodes at once: a seed sequence of its own for each
    would cost as much as three steps of CartPole.

    Args:
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"` or `"evaluation"`.
        update: Int.
        siblings: Int, how many episodes in a row begin with the same seed of the
            environment. Their actions are drawn apart.

    Example:

    >>> seeds, again = (EpisodeSeeds(0, "training", update=3) for _ in range(2))
    >>> seeds.environment(100) == again.environment(100)
    True
    >>> seeds.action(100).random() == again.action(100).random()
    True
    >>> seeds.environment(100) == seeds.environment(101)
    False
    """

    def __init__(self, seed, purpose, update, siblings=1):
        self._siblings = siblings
        self._addresses = {
            kind: (seed, f"{purpose}/{kind}", update)
            for kind in ("environment", "action")
        }
        self._blocks = {}

    def environment(self, episode):
        """The int that `env.reset(seed=…)` receives, below 2**31."""
        words = self._words("environment", episode // self._siblings)
        return int(words[0] % _ENVIRONMENT_SEEDS)

    def action(self, episode, part=0):
        """The generator of the noise for a part of the actions, `np.random.Generator`.

        Each part has a stream of its own, 2**127 numbers from the next.
        """
        bits = np.random.PCG64(_Words(self._words("action", episode)))
        return np.random.Generator(bits.jumped(part) if part else bits)

    def _words(self, kind, episode):
        block, row = divmod(episode, _BLOCK)
        if (kind, block) not in self._blocks:
            words = sequence(*self._addresses[kind], block)
            state = words.generate_state(_BLOCK * 4, np.uint64)
            self._blocks[kind, block] = state.reshape(_BLOCK, 4)
        return self._blocks[kind, block][row]


class _Words(np.random.bit_generator.ISeedSequence):
    """Words made beforehand, as the seed sequence of a bit generator."""

    def __init__(self, words):
        self._words = words

    def generate_state(self, n_words, dtype=np.uint32):
        return self._words[:n_words]


def noise(seed, kind, shape, dtype, part=0):
    """A tensor of noise that depends on nothing but its arguments.

    Args:
        seed: Scalar int tensor.
        kind: `"uniform"` on [0, 1) or `"normal"`, mean 0 and deviation 1.
        shape: Int vector tensor.
        dtype: Float dtype of the result.
        part: Int, which part of an action it is for.

    Returns:
        Float tensor of that shape.
    """
    draw = {
        "uniform": tf.random.stateless_uniform,
        "normal": tf.random.stateless_normal,
    }[kind]
    pair = tf.stack([tf.cast(seed, tf.int64), tf.constant(part, tf.int64)])
    return draw(shape, seed=pair, dtype=dtype, alg="philox")
