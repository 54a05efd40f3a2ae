"""Independent binary actions."""

import math

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base

_OFF, _ON, _FREE = 0, 1, 2  # marks of a mask, as Gymnasium's MultiBinary has them


@keras.saving.register_keras_serializable("tf_reinforce")
class Bernoulli(base.Head):
    """`n` switches, each 0 or 1; the policy puts out `[..., n]` logits.

        π(a|s) = Πₖ pₖ^aₖ (1 - pₖ)^(1 - aₖ),    p = 1 / (1 + exp(-z))

    Given the observation the switches are independent of each other. A mask has one mark
    per switch: 0 must be off, 1 must be on, 2 is free.

    Args:
        n: Positive int, how many switches there are.
        shape: Shape of the environment's action. Defaults to `(n,)`.

    Example:

    >>> head = Bernoulli(3)
    >>> logits = tf.constant([[2.0, -2.0, 0.0]])
    >>> head.mode(logits).numpy().tolist()
    [[1, 0, 0]]
    >>> mask = head.flatten_mask([0, 2, 1])
    >>> head.mode(head.mask_outputs(logits, mask)).numpy().tolist()
    [[0, 0, 1]]

    Reference:
        Williams (1992), section 4, Bernoulli-logistic units. doi:10.1007/BF00992696
    """

    action_dtype = "int64"

    def __init__(self, n, *, shape=None, **kwargs):
        super().__init__(**kwargs)
        self.n = validation.positive_int("n", n)
        self.shape = (self.n,) if shape is None else tuple(shape)
        if math.prod(self.shape) != self.n:
            raise ValueError(
                f"An action of shape {self.shape} does not hold {self.n} switches. "
                f"Received: n={n}, shape={shape}"
            )
        self.outputs_size = self.n
        self.action_shape = (self.n,)
        self.noise = seeding.NoiseSpec("uniform", (self.n,))
        self.mask_size = self.n

    def distribution(self, outputs):
        switches = tfp.distributions.Bernoulli(logits=outputs, dtype=tf.int64)
        return tfp.distributions.Independent(switches, 1)

    def eligibility(self, outputs, actions):
        return eligibility.bernoulli_logits(outputs, actions)

    def sample(self, outputs, noise):
        # Beyond these p is 0 or 1 in any type, and LiteRT knows no sigmoid of 1e30.
        logits = tf.clip_by_value(outputs, -1e4, 1e4)
        # Zero stands for the numbers below the least that the generator draws: else a
        # switch with p = 1e-30 would be on as often as noise is zero. As u is below one,
        # p = 0 is never on and p = 1 always.
        noise = tf.maximum(noise, np.finfo(logits.dtype.as_numpy_dtype).eps / 4)
        return tf.cast(noise < tf.sigmoid(logits), tf.int64)

    def mode(self, outputs):
        return tf.cast(outputs > 0, tf.int64)

    def mask_outputs(self, outputs, mask):
        sure = tf.constant(outputs.dtype.max / 2, outputs.dtype)
        outputs = tf.where(base.marked(mask, _OFF), -sure, outputs)
        return tf.where(base.marked(mask, _ON), sure, outputs)

    def flatten_mask(self, mask):
        if mask is None:
            return np.full(self.n, _FREE, "int8")
        marks = np.ravel(mask)
        if marks.shape != (self.n,) or not np.isin(marks, (_OFF, _ON, _FREE)).all():
            raise ValueError(
                f"a mask of {self!r} must have {self.n} marks: 0 for a switch that must "
                f"be off, 1 for one that must be on, 2 for a free one. Received: {mask!r}"
            )
        return marks.astype("int8")

    def has_legal_action(self, mask):
        return np.isin(mask, (_OFF, _ON, _FREE)).all(axis=-1)

    def is_legal(self, actions, mask):
        return ((mask == _FREE) | (actions == mask)).all(axis=-1)

    def parameters(self, outputs):
        return {"logits": outputs, "probs": tf.sigmoid(outputs)}

    def to_environment(self, actions):
        return actions if len(self.shape) == 1 else tf.reshape(actions, [-1, *self.shape])

    def matches_space(self, space):
        same = isinstance(space, gym.spaces.MultiBinary)
        return same and space.shape == self.shape

    def is_valid(self, actions):
        return (actions == 0) | (actions == 1)

    def get_config(self):
        return {**super().get_config(), "n": self.n, "shape": list(self.shape)}

    def __repr__(self):
        return f"Bernoulli({self.n})"
