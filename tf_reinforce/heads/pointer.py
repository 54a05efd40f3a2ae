"""`Pointer`, for one action among the rows of an observation."""

import math
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import categorical
from tf_reinforce.support import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class Pointer(categorical.ChoiceHead):
    """One of `N` entities, such as units, jobs or nodes, by attention to their keys.

        π(n|s) = softmax(z)[n],    zₙ = q · kₙ / √d

    The policy returns a query q of `d` numbers, followed by the keys k₁, …, k_N of `d`
    numbers each. If the policy computes each key from one row of the observation, and
    all with the same layer, the head works for any order of the rows.

    `N` is the maximum. For fewer entities, fill the observation with rows of zeros, and
    pass an action mask with zeros for these rows, for example as a part of the
    observation (`action_mask="observation/present"`).

    The outputs under a mask are followed by its N entries.

    Args:
        size: Positive int, `N`, the largest number of entities.
        key_dim: Positive int, `d`.
        start: Int, the environment's lowest action, as in `Discrete(N, start=start)`.

    Example:

    >>> rows = keras.Input((5, 3))  # up to 5 units with 3 numbers each
    >>> encoded = keras.layers.Dense(16, "tanh")(rows)
    >>> query = keras.layers.Dense(8)(keras.layers.GlobalAveragePooling1D()(encoded))
    >>> keys = keras.layers.Flatten()(keras.layers.Dense(8)(encoded))
    >>> policy = keras.Model(rows, keras.layers.Concatenate()([query, keys]))
    >>> head = Pointer(5, key_dim=8)
    >>> policy.output_shape, head.outputs_size
    ((None, 48), 48)

    Reference:
        Vinyals, Fortunato & Jaitly (2015), Pointer networks. arXiv:1506.03134
    """

    argument_names = ("size", "key_dim", "start")

    def __init__(self, size: int, key_dim: int, *, start: int = 0, **kwargs: Any) -> None:
        super().__init__(size, start=start, **kwargs)
        self.key_dim = self.features_size = validation.size("key_dim", key_dim)
        self.outputs_size = self.key_dim * (1 + self.size)
        self.appended_size = self.size
        self.conditioned_size = self.key_dim  # the query; keys keep the order of rows

    @property
    def _last_layer(self) -> str:
        return (
            f"keras.layers.Concatenate of a query [{self.key_dim}] and the flattened "
            f"keys [{self.size}, {self.key_dim}]"
        )

    def action_features(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        _, keys, _ = self._split(outputs)
        one_hot = tf.one_hot(actions, self.size, dtype=outputs.dtype)
        return tf.reduce_sum(one_hot[..., None] * keys, axis=-2)

    def logits(self, outputs: tf.Tensor) -> tf.Tensor:
        query, keys, mask = self._split(outputs)
        query /= base.constant(math.sqrt(self.key_dim), query)  # less likely overflows
        scores = tf.reduce_sum(query[..., None, :] * keys, axis=-1)
        limit = scores.dtype.max / 4  # finite, and above the scores of absent rows
        scores = tf.clip_by_value(scores, -limit, limit)
        if mask.shape[-1] != 0:
            scores = categorical.mask_logits(scores, mask < 0.5)
        return scores

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        query, keys, mask = self._split(outputs)
        errors = eligibility.categorical_logits(self.logits(outputs), actions)
        errors = errors[..., None] / math.sqrt(self.key_dim)
        of_query = tf.reduce_sum(errors * keys, axis=-2)
        of_keys = tf.unstack(errors * query[..., None, :], axis=-2)
        return tf.concat([of_query, *of_keys, tf.zeros_like(mask)], axis=-1)

    def is_logit(self) -> np.ndarray:
        return np.zeros(self.outputs_size, bool)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        flags = tf.cast(tf.not_equal(mask, 0), outputs.dtype)
        return tf.concat([outputs, flags], axis=-1)

    def check_space(self, space: Any) -> None:
        if isinstance(space, gym.spaces.Discrete) and space.n > self.size:
            raise ValueError(
                f"`size` is the largest number of entities. Received: {self!r} for the "
                f"{space.n} entities of {space!r}"
            )
        super().check_space(space)

    def _split(self, outputs: Any) -> Any:
        """Returns the query `[..., d]`, the keys `[..., N, d]` and the mask `[..., N]`.

        Without an action mask, the mask has no entries.
        """
        query, end = outputs[..., : self.key_dim], self.outputs_size
        keys, mask = outputs[..., self.key_dim : end], outputs[..., end:]
        shape = tf.concat([tf.shape(outputs)[:-1], [self.size, self.key_dim]], axis=0)
        return query, tf.reshape(keys, shape), mask
