"""Samples tokens from a language model that keeps a cache of keys and values."""

import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise

_NOISE = [seeding.NoiseSpec("uniform", ())]


class TokenSampler:
    """Continues rows of tokens, one token per row and step, until all rows have ended.

    The method `generate_step` of a KerasHub model calls its sampler once, with a function
    that computes the logits of the next token. A row ends with an end token, or with its
    last token at `limits`. After its end, a row contains padding. Other samplers end if
    the padding is the end token, or sample from another distribution than a softmax.

    Args:
        policy: `TokenPolicy`, whose distribution over tokens is sampled.
        choose: Function that returns the next token of each row, `[R]`. Its arguments are
            outputs `[R, V]` for V tokens, the index of the token in its row, a scalar,
            and the numbers of tokens that were sampled before, `[R]`.
        limits: `[R]` int, the largest number of tokens of each row. A row that already
            has this number of tokens does not grow.

    Attributes:
        result: Triple of token ids `[R, L]`, log-probabilities `[R, L]` and a mask of the
            sampled tokens `[R, L]`; or `None` before the call.
    """

    def __init__(self, policy, choose, limits):
        self.policy = policy
        self.choose = choose
        self.limits = limits
        self.result = None

    def __call__(self, next, prompt, cache=None, index=0, mask=None, **kwargs):
        rows, length = tf.unstack(tf.shape(prompt))
        columns = tf.range(length)[None]
        is_prompt = tf.cast(mask, tf.bool)
        used = _count(is_prompt)
        encoding = self.policy.encoding

        def is_unfinished(index, token_ids, log_probs, sampled, ended, cache):
            return ~tf.reduce_all(ended)

        def step(index, token_ids, log_probs, sampled, ended, cache):
            logits, _, cache = next(token_ids, cache, index)
            outputs = self.policy.outputs(logits)
            counts = _count(sampled)
            tokens = tf.cast(self.choose(outputs, index, counts), token_ids.dtype)
            is_new = ~ended & (index >= used)
            here = is_new[:, None] & (columns == index)
            token_ids = tf.where(here, tokens[:, None], token_ids)
            new = self.policy.distribution(outputs).log_prob(tokens)[:, None]
            log_probs = tf.where(here, new, log_probs)
            is_end = tf.reduce_any(tokens[:, None] == encoding.end_token_ids, axis=1)
            ended |= is_new & (is_end | (index + 1 >= self.limits))
            return index + 1, token_ids, log_probs, sampled | here, ended, cache

        padding = tf.cast(encoding.pad_token_id, prompt.dtype)
        token_ids = tf.where(is_prompt, prompt, padding)
        empty = tf.zeros([rows, length], self.policy.dtype), tf.zeros_like(is_prompt)
        ended = used >= self.limits
        start = tf.cast(index, tf.int32), token_ids, *empty, ended, cache
        end = tf.while_loop(is_unfinished, step, start, maximum_iterations=length)
        self.result = end[1:4]
        return end[1]


def inverse_cdf(probs, uniform):
    """Returns the tokens that uniform random numbers select, each with its probability.

        token = the number of tokens k with  p₀ + … + pₖ ≤ u

    Args:
        probs: `[R, V]` float64, the probabilities of V tokens. A token with probability
            zero is never selected.
        uniform: `[R]` float64 in [0, 1).

    Returns:
        `[R]` int32.
    """
    cdf = tf.cumsum(probs, axis=1)
    # The sum of all probabilities is 1 only up to rounding. The product of the sum and a
    # number below 1 is always smaller than the sum.
    return _count(cdf <= uniform[:, None] * cdf[:, -1:])


def _count(mask):
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)


def sample_tokens(outputs, key, index):
    """Returns a token for each row, sampled from the softmax of the outputs.

    The random number of a token depends on the key, the row and the index only.

    Args:
        outputs: `[R, V]` float, the logits of V tokens.
        key: `[2]` uint32, the key of the random numbers of an update.
        index: Scalar int, the index of the token in its row.
    """
    rows = tf.range(tf.shape(outputs)[0])
    uniform = tensor_noise.counter_noise(key, _NOISE, rows, index, tf.float64)[0]
    return inverse_cdf(tf.nn.softmax(tf.cast(outputs, tf.float64)), uniform)


def most_likely_tokens(outputs):
    """Returns the most likely token of each row; the first one of equally likely ones."""
    return tf.argmax(outputs, axis=1, output_type=tf.int32)
