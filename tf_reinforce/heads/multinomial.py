"""How often each of several categories was chosen."""

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import arguments, eligibility
from tf_reinforce.heads import base, categorical


@keras.saving.register_keras_serializable("tf_reinforce")
class Multinomial(base.Head):
    """Counts of `N` independent choices among `K`; the policy puts out `[..., K]` logits.

        π(n|s) = N! Πₖ pₖ^nₖ / nₖ!,    p = softmax(z)

    For environments whose action says how much of each: where N units go, how a budget
    is split. The environment receives the counts.

    Args:
        categories: Positive int, `K`.
        trials: Positive int, `N`.

    Example:

    >>> head = Multinomial(3, trials=5)
    >>> logits = tf.math.log([[0.6, 0.3, 0.1]])
    >>> head.mode(logits).numpy().tolist()
    [[3, 2, 0]]
    >>> head.eligibility(logits, tf.constant([[3, 2, 0]])).numpy().round(4).tolist()
    [[0.0, 0.5, -0.5]]
    """

    action_dtype = "int64"

    def __init__(self, categories, trials, **kwargs):
        super().__init__(**kwargs)
        self.categories = arguments.positive_int("categories", categories)
        self.trials = arguments.positive_int("trials", trials)
        self.outputs_size = self.categories
        self.action_shape = (self.categories,)
        self.noise = base.Noise("uniform", (self.trials, self.categories))

    def distribution(self, outputs):
        return _Counts(self.trials, outputs)

    def eligibility(self, outputs, actions):
        return eligibility.multinomial_logits(outputs, actions, self.trials)

    def sample(self, outputs, noise):
        logits = categorical.centred(outputs)[..., None, :]
        chosen = tf.argmax(logits + categorical.gumbel(noise), axis=-1)
        return self._count(chosen)

    def mode(self, outputs):
        # One more of category k multiplies the probability by N pₖ / (nₖ + 1): the most
        # likely counts are those of the N largest quotients pₖ / j.
        steps = tf.math.log(tf.range(1.0, self.trials + 1.0))
        gains = outputs[..., None, :] - tf.cast(steps, outputs.dtype)[:, None]
        shape = tf.concat(
            [tf.shape(outputs)[:-1], [self.trials * self.categories]], axis=0
        )
        _, largest = tf.math.top_k(tf.reshape(gains, shape), self.trials)
        return self._count(largest % self.categories)

    def _count(self, chosen):
        """`[..., N]` categories to `[..., K]` counts."""
        return tf.reduce_sum(tf.one_hot(chosen, self.categories, dtype=tf.int64), axis=-2)

    def parameters(self, outputs):
        return {"logits": outputs, "probs": tf.nn.softmax(outputs)}

    def to_environment(self, actions):
        return actions

    def fits(self, space):
        if isinstance(space, gym.spaces.MultiDiscrete):
            low, high = np.asarray(space.start), space.start + space.nvec - 1
        elif isinstance(space, gym.spaces.Box) and space.dtype.kind in "iu":
            low, high = space.low, space.high
        else:
            return False
        enough = np.all(low <= 0) and np.all(high >= self.trials)
        return space.shape == (self.categories,) and bool(enough)

    def possible(self, actions):
        whole = np.sum(actions, axis=-1, keepdims=True) == self.trials
        return (actions >= 0) & whole

    def get_config(self):
        return {
            **super().get_config(),
            "categories": self.categories,
            "trials": self.trials,
        }

    def __repr__(self):
        return f"Multinomial({self.categories}, trials={self.trials})"


class _Counts(tfp.distributions.Multinomial):
    """TFP's, which scores whole numbers too and knows its entropy.

    TFP leaves the entropy out. Every count is binomial by itself, so that
    H = -ln N! - N Σ p ln p + Σₖ E[ln nₖ!] takes N + 1 terms per category.
    """

    def __init__(self, trials, logits):
        super().__init__(tf.cast(trials, logits.dtype), logits=logits)
        self._trials = trials

    def _log_prob(self, counts):
        return super()._log_prob(tf.cast(counts, self.dtype))

    def _entropy(self):
        log_p = tf.nn.log_softmax(self.logits)
        n = tf.range(self._trials + 1)
        n = tf.cast(n, self.dtype)
        log_factorial = tf.math.lgamma(n + 1.0)
        choices = log_factorial[-1] - log_factorial - log_factorial[::-1]
        p = tf.exp(log_p)[..., None]
        ways = tf.math.xlogy(n, p) + tf.math.xlog1py(n[::-1], -p)
        expected = tf.reduce_sum(tf.exp(choices + ways) * log_factorial, axis=[-1, -2])
        spread = tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        return expected - log_factorial[-1] - n[-1] * spread
