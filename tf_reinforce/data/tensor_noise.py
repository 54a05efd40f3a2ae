"""Random numbers as tensors, from keys and counters."""

import math

import numpy as np
import tensorflow as tf


def stateless_noise(seed, kind, shape, dtype, part=0):
    """Returns noise that depends only on the arguments.

    Args:
        seed: Scalar int tensor.
        kind: `"uniform"` on [0, 1), or `"normal"`.
        shape: Int vector tensor.
        dtype: Float type of the result.
        part: Int, the index of a part of an action; each has its own noise.
    """
    sample = {
        "uniform": tf.random.stateless_uniform,
        "normal": tf.random.stateless_normal,
    }[kind]
    pair = tf.stack([tf.cast(seed, tf.int64), tf.constant(part, tf.int64)])
    return sample(shape, seed=pair, dtype=dtype, alg="philox")


def counter_noise(key, parts, episodes, step, dtype):
    """Returns the noise of episodes at one step, from keys and episode numbers.

    The noise of an episode does not depend on the other episodes in the batch. Uniform
    noise has the same bits in eager mode, in a graph and under XLA, while normal noise
    may differ in the last bits under XLA.

    TensorFlow's own generators are not used because they depend on XLA. The philox
    generator returns other numbers under XLA than in eager mode, and the threefry
    generator exists only under XLA.

    Args:
        key: `[2]` uint32 for all episodes, or `[B, 2]` with one key for each.
        parts: List of `NoiseSpec`, one for each part of the noise.
        episodes: `[B]` int tensor, numbers below 2**32.
        step: Scalar or `[B]` int tensor, the number of the step. The number of steps,
            times the random numbers per step, must be below 2**32.
        dtype: Float type of the noise.

    Returns:
        List of tensors `[B, *shape]`, one for each of `parts`.

    Example:

    >>> from tf_reinforce.data import seeding
    >>> key = seeding.rollout_keys(0, "training", 3)[0]
    >>> specs = [seeding.NoiseSpec("uniform", (2,))]
    >>> both = counter_noise(key, specs, tf.constant([4, 7]), 0, "float32")[0]
    >>> alone = counter_noise(key, specs, tf.constant([7]), 0, "float32")[0]
    >>> both.shape, bool(tf.reduce_all(both[1] == alone[0]))
    (TensorShape([2, 2]), True)

    Reference:
        Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3
        (Threefry-2x32, 20 rounds). doi:10.1145/2063384.2063405
    """
    dtype = tf.as_dtype(dtype)
    sizes = [math.prod(part.shape) for part in parts]
    total, is_float64 = sum(sizes), dtype.size == 8
    blocks = total if is_float64 else -(-total // 2)  # a block has two words
    counters = tf.cast(tf.reshape(step, [-1, 1]), tf.uint32) * np.uint32(blocks)
    counters += np.arange(blocks, dtype="uint32")
    high, low = threefry(key, tf.cast(episodes, tf.uint32)[:, None], counters)
    if not is_float64:
        high, low = tf.concat([high, low], axis=-1)[:, :total], None
    noise, begin = [], 0
    for part, size in zip(parts, sizes, strict=True):
        words = [x if x is None else x[:, begin : begin + size] for x in (high, low)]
        values = _FROM_WORDS[part.kind](*words, dtype)
        noise.append(tf.reshape(values, [-1, *part.shape]))
        begin += size
    return noise


def uniform_from_words(high, low, dtype):
    """Returns k / 2ⁿ in [0, 1), with random integers k of n bits.

    The number n of bits is that of the significand, which is 24 for 32-bit floats and 53
    for 64-bit floats.

    Args:
        high: uint32 tensor, random words with the higher bits of k.
        low: uint32 tensor with the lower bits, or `None` for 32-bit floats.
        dtype: Float type of the result.
    """
    if low is None:
        return tf.cast(_right_shift(high, 8), dtype) * 2.0**-24
    high = tf.cast(_right_shift(high, 5), dtype)
    low = tf.cast(_right_shift(low, 6), dtype)
    return (high * 2.0**26 + low) * 2.0**-53


def normal_from_words(high, low, dtype):
    """Returns standard normal numbers; takes the arguments of `uniform_from_words`.

    Each number is the inverse distribution function at p = (k + 1/2) / 2ⁿ⁻¹, where k is a
    random integer of n - 1 bits. The number is always finite, because p is never 0 or 1.
    """
    if low is None:
        doubled = (tf.cast(_right_shift(high, 9), dtype) + 0.5) * 2.0**-22
    else:
        high = tf.cast(_right_shift(high, 6), dtype)
        low = tf.cast(_right_shift(low, 6), dtype)
        doubled = (high * 2.0**26 + low + 0.5) * 2.0**-51
    return math.sqrt(2) * tf.math.erfinv(doubled - 1.0)


_FROM_WORDS = {"uniform": uniform_from_words, "normal": normal_from_words}
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def threefry(key, first, second):
    """Returns two random words for each pair of counters (Threefry-2x32).

    Args:
        key: `[2]` uint32, or `[B, 2]` with one key for each of B rows.
        first: `[B, 1]` uint32, the first counter of each row.
        second: `[B, N]` or `[1, N]` uint32, the second counters.

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
            rotated = tf.bitwise.bitwise_or(left, _right_shift(x[1], 32 - distance))
            x[1] = _xor(x[0], rotated)
        x[0] += keys[(group + 1) % 3]
        x[1] += keys[(group + 2) % 3] + np.uint32(group + 1)
    return x


def _right_shift(words, bits):
    return tf.bitwise.right_shift(words, np.uint32(bits))


_xor = tf.bitwise.bitwise_xor
