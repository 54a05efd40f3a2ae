"""`MultiCategorical`, for several categorical actions."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from numpy.typing import ArrayLike

from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import categorical
from tf_reinforce.support import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class MultiCategorical(categorical.LogitsHead):
    """`D` categorical actions, the d-th with `sizes[d]` categories, from their logits.

        π(a|s) = Π_d softmax(z_d)[a_d],    z = (z_1, …, z_D), concatenated

    Given the observation, the actions are independent of each other.

    Args:
        sizes: `D` positive ints, the number of categories of each action.
        start: Int or `D` ints, the environment's lowest categories, as in Gymnasium's
            `MultiDiscrete(sizes, start=start)`. Raw actions always count from 0.
        shape: Shape of the environment's action, by default `(D,)`.

    Example:

    >>> head = MultiCategorical([2, 3], start=[0, 5])
    >>> logits = tf.constant([[9.0, 0.0, 0.0, 0.0, 9.0]])
    >>> raw = head.mode(logits)
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[0, 2]], [[0, 7]])
    """

    argument_names = ("sizes", "start", "shape")

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        start: ArrayLike = 0,
        shape: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sizes = self.choices = tuple(validation.positive_ints("sizes", sizes))
        count = len(self.sizes)
        validation.size("sum(sizes)", sum(self.sizes))
        self.shape = base.env_shape(shape, count)
        self.start = base.one_or_each("start", start, count, "iu").tolist()
        self.outputs_size = self.mask_size = self.features_size = sum(self.sizes)
        self.action_shape = (count,)
        self.noise = seeding.NoiseSpec("uniform", (self.outputs_size,))
        # Logits of categorical actions with different sizes are padded to one block
        # `[D, K]`. `_indices` contains the index of each block entry among the logits,
        # and `_is_padding` marks the padding of the block.
        sizes, columns = np.array(self.sizes)[:, None], np.arange(max(self.sizes))
        self._offsets = np.cumsum(self.sizes) - self.sizes
        self._indices = self._offsets[:, None] + np.minimum(columns, sizes - 1)
        self._is_padding = columns >= sizes

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> "MultiCategorical":
        sizes, starts = (np.ravel(x).tolist() for x in (space.nvec, space.start))
        return cls(sizes, start=base.one_if_equal(starts), shape=space.shape, **options)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        choices = tfp.distributions.Categorical(logits=self.logits(outputs))
        return tfp.distributions.Independent(choices, 1)

    def category_log_probs(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(self.logits(outputs))

    def from_vectors(self, vectors: tf.Tensor) -> tf.Tensor:
        return self._from_block(vectors)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        slopes = eligibility.categorical_logits(self.logits(outputs), actions)
        return self._from_block(slopes)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        noise = tf.gather(noise, self._indices, axis=-1)
        logits = categorical.center_logits(self.logits(outputs))
        return tf.argmax(logits + categorical.gumbel(noise), axis=-1)

    def action_features(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        columns = self._is_padding.shape[1]
        return self._from_block(tf.one_hot(actions, columns, dtype=outputs.dtype))

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        indices = self._offsets + np.clip(actions, 0, np.array(self.sizes) - 1)
        return (np.take_along_axis(mask, indices, axis=-1) != 0).all(axis=-1)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        probs = self._from_block(tf.nn.softmax(self.logits(outputs)))
        return {"logits": outputs, "probs": probs}

    def to_environment(self, actions: Any) -> Any:
        if np.any(self.start):
            actions += base.constant(self.start, actions)
        return actions if len(self.shape) == 1 else tf.reshape(actions, [-1, *self.shape])

    def matches_space(self, space: gym.Space) -> bool:
        if not isinstance(space, gym.spaces.MultiDiscrete) or space.shape != self.shape:
            return False
        expected = np.broadcast_to(self.start, len(self.sizes))
        sizes, start = np.ravel(space.nvec), np.ravel(space.start)
        return np.array_equal(sizes, self.sizes) and np.array_equal(start, expected)

    def is_valid(self, actions: Any) -> Any:
        return (actions >= 0) & (actions < np.array(self.sizes))

    def logits(self, outputs: tf.Tensor) -> tf.Tensor:
        """Pads flat logits `[..., P]` to a block `[..., D, K]`, a row for each action.

        K is the largest number of categories.
        """
        block = tf.gather(outputs, self._indices, axis=-1)
        return categorical.mask_logits(block, self._is_padding)

    def _from_block(self, block: Any) -> Any:
        """Converts a block of `logits` to a flat array `[..., outputs_size]`."""
        indices = np.flatnonzero(~self._is_padding)
        shape = tf.concat([tf.shape(block)[:-2], [self._is_padding.size]], axis=0)
        return tf.gather(tf.reshape(block, shape), indices, axis=-1)
