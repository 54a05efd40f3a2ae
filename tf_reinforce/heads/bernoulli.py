"""`Bernoulli`, for independent binary actions."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import categorical
from tf_reinforce.support import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class Bernoulli(categorical.LogitsHead):
    """`n` binary actions, each 0 or 1, from `n` policy outputs (the logits).

        π(a|s) = Πₖ pₖ^aₖ (1 - pₖ)^(1 - aₖ),    p = 1 / (1 + exp(-z))

    Given the observation, the actions are independent of each other. An action mask has
    one entry for each action: 0 allows only the action 0, 1 allows only the action 1, and
    2 allows both.

    Args:
        n: Positive int, the number of binary actions.
        shape: Shape of the environment's action, by default `(n,)`.

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

    argument_names = ("n", "shape")

    def __init__(
        self, n: int, *, shape: Sequence[int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.n = validation.size("n", n)
        self.shape = base.env_shape(shape, self.n)
        self.outputs_size = self.mask_size = self.n
        self.action_shape = (self.n,)
        self.noise = seeding.NoiseSpec("uniform", (self.n,))

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> "Bernoulli":
        return cls(math.prod(space.shape), shape=space.shape, **options)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        each = tfp.distributions.Bernoulli(logits=outputs, dtype=tf.int64)
        return tfp.distributions.Independent(each, 1)

    def category_log_probs(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.math.log_sigmoid(tf.stack([-outputs, outputs], axis=-1))

    def from_vectors(self, vectors: tf.Tensor) -> tf.Tensor:
        return vectors[..., 1]

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        return eligibility.bernoulli_logits(outputs, actions)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        # Noise of zero represents all numbers below the smallest positive number that the
        # generator draws. Without a lower bound of the noise, p = 1e-30 would give the
        # action 1 whenever the noise is zero. Noise is always below one, so that p = 0
        # always gives the action 0, and p = 1 always gives the action 1.
        noise = tf.maximum(noise, np.finfo(outputs.dtype.as_numpy_dtype).eps / 4)
        return tf.cast(noise < _sigmoid(outputs), tf.int64)

    def mode(self, outputs: tf.Tensor) -> Any:
        return tf.cast(outputs > 0, tf.int64)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        large = tf.constant(outputs.dtype.max / 2, outputs.dtype)
        outputs = tf.where(tf.equal(mask, action_masks.OFF), -large, outputs)
        return tf.where(tf.equal(mask, action_masks.ON), large, outputs)

    @property
    def mask_layout(self) -> action_masks.MaskLayout:
        return action_masks.MaskLayout(repr(self), self.n, is_flags=True)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        return ((mask == action_masks.FREE) | (actions == mask)).all(axis=-1)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        return {"logits": outputs, "probs": _sigmoid(outputs)}

    def to_environment(self, actions: Any) -> Any:
        return actions if len(self.shape) == 1 else tf.reshape(actions, [-1, *self.shape])

    def matches_space(self, space: gym.Space) -> bool:
        return isinstance(space, gym.spaces.MultiBinary) and space.shape == self.shape

    def is_valid(self, actions: Any) -> Any:
        return (actions == 0) | (actions == 1)


def _sigmoid(logits: Any) -> Any:
    """Returns the sigmoid of logits, clipped to ±1e4, where it is 0 or 1 in any type.

    LiteRT returns NaN for some of the logits ±1.7e38 of masked actions.
    """
    return tf.sigmoid(tf.clip_by_value(logits, -1e4, 1e4))
