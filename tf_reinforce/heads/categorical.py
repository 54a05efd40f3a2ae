"""One choice among finitely many."""

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base


@keras.saving.register_keras_serializable("tf_reinforce")
class Categorical(base.Head):
    """One of `K` actions; the policy puts out `[..., K]` logits.

        π(a|s) = exp(zₐ) / Σₖ exp(zₖ),    a = arg maxₖ [zₖ - log(-log uₖ)]

    Logits, never probabilities: their gradient, one-hot minus probabilities, is right
    however sure the policy is.

    Args:
        size: Positive int, `K`.
        start: Int, the environment's name for action 0, as in `Discrete(K, start)`.
            Raw actions always count from 0.

    Example:

    >>> head = Categorical(3, start=5)
    >>> logits = tf.constant([[0.0, 9.0, 0.0]])
    >>> raw = head.mode(logits)
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([1], [6])
    """

    action_shape = ()
    action_dtype = "int64"  # as Gymnasium's

    def __init__(self, size, *, start=0, **kwargs):
        super().__init__(**kwargs)
        self.size = validation.positive_int("size", size)
        self.start = int(start)
        self.outputs_size = self.size
        self.noise = seeding.NoiseSpec("uniform", (self.size,))
        self.mask_size = self.size

    def distribution(self, outputs):
        return tfp.distributions.Categorical(logits=outputs)

    def eligibility(self, outputs, actions):
        return eligibility.categorical_logits(outputs, actions)

    def sample(self, outputs, noise):
        # Gumbel's trick: the largest of logits plus -log(-log u) is a sample.
        return self.mode(centred(outputs) + gumbel(noise))

    def mode(self, outputs):
        return tf.argmax(outputs, axis=-1, output_type=tf.int64)

    def mask_outputs(self, outputs, mask):
        return without(outputs, base.marked(mask, 0))

    def has_legal_action(self, mask):
        return (mask != 0).any(axis=-1)

    def is_legal(self, actions, mask):
        places = np.clip(actions, 0, self.size - 1)[..., None]  # padding may be anything
        return np.take_along_axis(mask, places, axis=-1)[..., 0] != 0

    def parameters(self, outputs):
        return {"logits": outputs, "probs": tf.nn.softmax(outputs)}

    def to_environment(self, actions):
        return actions + self.start if self.start else actions

    def matches_space(self, space):
        same = isinstance(space, gym.spaces.Discrete)
        return same and (space.n, space.start) == (self.size, self.start)

    def is_valid(self, actions):
        return (actions >= 0) & (actions < self.size)

    def get_config(self):
        return {**super().get_config(), "size": self.size, "start": self.start}

    def __repr__(self):
        return f"Categorical({self.size}, start={self.start})"


def without(logits, illegal):
    """Logits by which what is illegal has the probability 0, finite all the same.

    The rest is as if there had never been more: no gradient reaches an illegal logit,
    and 0 ln 0 is 0 in the entropy.
    """
    return tf.where(illegal, tf.constant(logits.dtype.min / 2, logits.dtype), logits)


def centred(logits):
    """Logits whose largest is zero: large ones would swallow the noise."""
    return logits - tf.reduce_max(logits, axis=-1, keepdims=True)


def gumbel(noise):
    """Uniform numbers as Gumbel noise; u = 0 would rule out even a sure action."""
    tiny = np.finfo(tf.as_dtype(noise.dtype).as_numpy_dtype).tiny
    noise = tf.maximum(noise, tiny)
    return -tf.math.log(-tf.math.log(noise))
