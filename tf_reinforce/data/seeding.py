"""Derives every random number from a seed, a stream, an update and an episode.

Streams never overlap. No global generator is seeded, and no generator outlives its
episode or its call, so a run is resumed from its counters alone.
"""

import dataclasses
import math
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
    "training/tensors",
    "validation/tensors",
    "evaluation/tensors",
    "vector/tensors",
)

# Environments written in C read their seed as a signed 32-bit integer.
_ENVIRONMENT_SEEDS = 2**31
_BLOCK = 16  # episodes whose words are made at once


@dataclasses.dataclass(frozen=True)
class NoiseSpec:
    """What is drawn for one action or one step of the world: its kind and its shape."""

    kind: str  # "uniform" on [0, 1), zero included, or "normal"
    shape: tuple


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


def seed_sequence(seed, stream, *counters):
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
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, stream, *counters)))


class EpisodeSeeds:
    """The randomness of every episode of one collection, addressed by its number.

    Words are made for many episodes at once: a seed sequence of its own for each
    would cost as much as three steps of CartPole.

    Args:
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"` or `"evaluation"`.
        update: Int.
        group_size: Int, how many episodes in a row begin with the same seed of the
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

    def __init__(self, seed, purpose, update, group_size=1):
        self._group_size = group_size
        self._addresses = {
            kind: (seed, f"{purpose}/{kind}", update)
            for kind in ("environment", "action")
        }
        self._blocks = {}

    def environment(self, episode):
        """The int that `env.reset(seed=…)` receives, below 2**31."""
        words = self._words("environment", episode // self._group_size)
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
            words = seed_sequence(*self._addresses[kind], block)
            state = words.generate_state(_BLOCK * 4, np.uint64)
            self._blocks[kind, block] = state.reshape(_BLOCK, 4)
        return self._blocks[kind, block][row]


class _Words(np.random.bit_generator.ISeedSequence):
    """Four words made beforehand, for a PCG64, which asks for four."""

    def __init__(self, words):
        self._words = words

    def generate_state(self, n_words, dtype=np.uint32):
        return self._words


def stateless_noise(seed, kind, shape, dtype, part=0):
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


def rollout_keys(seed, purpose, update):
    """Keys for `noise_at`: for how episodes begin, how they go on, actions, minibatches.

    Args:
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"`, `"evaluation"` or `"vector"`.
        update: Int.

    Returns:
        `[4, 2]` uint32 array.
    """
    words = seed_sequence(seed, f"{purpose}/tensors", update).generate_state(8, np.uint32)
    return words.reshape(4, 2)


def counter_noise(key, parts, episodes, step, dtype):
    """Noise of some episodes at one step, as a function of key, episode and step alone.

    The same for any number of episodes side by side, and in eager mode, in a graph and
    under XLA: uniform numbers to the bit, normal ones but for the last bits of `erfinv`.
    TensorFlow's own generators give other numbers under XLA (philox) or none outside of
    it (threefry).

    Args:
        key: `[2]` uint32, or `[B, 2]`: one for each episode.
        parts: List of `NoiseSpec`.
        episodes: `[B]` int tensor, numbers of episodes below 2**32.
        step: Scalar int tensor, or `[B]`. Steps times numbers stay below 2**32.
        dtype: Float type.

    Returns:
        A list of tensors `[B, *shape]`, one for each part.

    Example:

    >>> key, coin = rollout_keys(0, "training", 3)[0], [NoiseSpec("uniform", (2,))]
    >>> both = counter_noise(key, coin, tf.constant([4, 7]), 0, "float32")[0]
    >>> alone = counter_noise(key, coin, tf.constant([7]), 0, "float32")[0]
    >>> both.shape, bool(tf.reduce_all(both[1] == alone[0]))
    (TensorShape([2, 2]), True)

    Reference:
        Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3
        (Threefry-2x32, 20 rounds). doi:10.1145/2063384.2063405
    """
    dtype = tf.as_dtype(dtype)
    sizes = [math.prod(part.shape) for part in parts]
    total, wide = sum(sizes), dtype.size == 8
    blocks = total if wide else -(-total // 2)  # of two words each
    place = tf.cast(tf.reshape(step, [-1, 1]), tf.uint32) * np.uint32(blocks)
    place += np.arange(blocks, dtype="uint32")
    high, low = _threefry(key, tf.cast(episodes, tf.uint32)[:, None], place)
    if not wide:
        high, low = tf.concat([high, low], axis=-1)[:, :total], None
    drawn, begin = [], 0
    for part, size in zip(parts, sizes, strict=True):
        mine = [x if x is None else x[:, begin : begin + size] for x in (high, low)]
        numbers = tf.reshape(_DRAW[part.kind](*mine, dtype), [-1, *part.shape])
        drawn.append(numbers)
        begin += size
    return drawn


def _uniform(high, low, dtype):
    """Numbers k / 2ⁿ with the n bits of a significand, from words of 32 bits."""
    if low is None:
        return tf.cast(_shifted(high, 8), dtype) * 2.0**-24
    high, low = tf.cast(_shifted(high, 5), dtype), tf.cast(_shifted(low, 6), dtype)
    return (high * 2.0**26 + low) * 2.0**-53


def _normal(high, low, dtype):
    """The inverse of the distribution function, at (k + 1/2) / 2ⁿ⁻¹: never infinite."""
    if low is None:
        middle = (tf.cast(_shifted(high, 9), dtype) + 0.5) * 2.0**-22
    else:
        high, low = tf.cast(_shifted(high, 6), dtype), tf.cast(_shifted(low, 6), dtype)
        middle = (high * 2.0**26 + low + 0.5) * 2.0**-51
    return math.sqrt(2) * tf.math.erfinv(middle - 1.0)


_DRAW = {"uniform": _uniform, "normal": _normal}
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def _threefry(key, first, second):
    """Two words for each pair of counters: Threefry-2x32 with 20 rounds.

    Args:
        key: `[2]` or `[B, 2]` uint32.
        first, second: `[B, 1]` and `[B or 1, N]` uint32.

    Returns:
        Two tensors `[B, N]` uint32.
    """
    key = tf.convert_to_tensor(key)
    keys = [key[..., 0, None], key[..., 1, None]]
    keys.append(_xor(_xor(*keys), np.uint32(0x1BD11BDA)))
    x = [first + keys[0] + tf.zeros_like(second), second + keys[1]]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x[0] += x[1]
            left = tf.bitwise.left_shift(x[1], np.uint32(distance))
            turned = tf.bitwise.bitwise_or(left, _shifted(x[1], 32 - distance))
            x[1] = _xor(x[0], turned)
        x[0] += keys[(group + 1) % 3]
        x[1] += keys[(group + 2) % 3] + np.uint32(group + 1)
    return x


def _shifted(words, bits):
    return tf.bitwise.right_shift(words, np.uint32(bits))


_xor = tf.bitwise.bitwise_xor
