"""Several choices, each among finitely many."""

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
from tf_reinforce.heads import categorical


@keras.saving.register_keras_serializable("tf_reinforce")
class MultiCategorical(base.Head):
    """`D` choices at once, the d-th one of `sizes[d]`; the policy puts out all logits.

        π(a|s) = Π_d softmax(z_d)[a_d],    z = (z_1, …, z_D) one after another

    Given the observation the choices are independent of each other.

    Args:
        sizes: `D` positive ints, how many there are to choose from.
        start: Int or `D` ints, the environment's names of the first ones, as in
            `MultiDiscrete(sizes, start=start)`. Raw actions always count from 0.
        shape: Shape of the environment's action. Defaults to `(D,)`.

    Example:

    >>> head = MultiCategorical([2, 3], start=[0, 5])
    >>> logits = tf.constant([[9.0, 0.0, 0.0, 0.0, 9.0]])
    >>> raw = head.mode(logits)
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[0, 2]], [[0, 7]])
    """

    action_dtype = "int64"

    def __init__(self, sizes, *, start=0, shape=None, **kwargs):
        super().__init__(**kwargs)
        self.sizes = tuple(validation.positive_int("sizes", size) for size in sizes)
        count = len(self.sizes)
        self.start = np.asarray(start).tolist()
        self.shape = (count,) if shape is None else tuple(shape)
        if not count or math.prod(self.shape) != count:
            raise ValueError(
                f"An action of shape {self.shape} does not hold {count} choices, or "
                f"there are none. Received: sizes={self.sizes}, shape={shape}"
            )
        whole = np.asarray(start).dtype.kind in "iu"
        if not whole or np.shape(start) not in ((), (count,)):
            raise ValueError(
                f"`start` must be one whole number or {count} of them. "
                f"Received: start={start!r}"
            )
        self.outputs_size = sum(self.sizes)
        self.action_shape = (count,)
        self.noise = seeding.NoiseSpec("uniform", (self.outputs_size,))
        self.mask_size = self.outputs_size
        # Choices of different sizes become one block `[D, K]`: the place of each of its
        # entries among the logits, and which of its entries lie beyond their choice.
        sizes, columns = np.array(self.sizes)[:, None], np.arange(max(self.sizes))
        self._first = np.cumsum(self.sizes) - self.sizes
        self._places = self._first[:, None] + np.minimum(columns, sizes - 1)
        self._beyond = columns >= sizes

    def distribution(self, outputs):
        choices = tfp.distributions.Categorical(logits=self._block(outputs))
        return tfp.distributions.Independent(choices, 1)

    def eligibility(self, outputs, actions):
        slopes = eligibility.categorical_logits(self._block(outputs), actions)
        return self._flat(slopes)

    def sample(self, outputs, noise):
        noise = tf.gather(noise, self._places, axis=-1)
        logits = categorical.centred(self._block(outputs))
        return tf.argmax(logits + categorical.gumbel(noise), axis=-1)

    def mode(self, outputs):
        return tf.argmax(self._block(outputs), axis=-1)

    def mask_outputs(self, outputs, mask):
        return categorical.without(outputs, base.marked(mask, 0))

    def flatten_mask(self, mask):
        sizes = tuple(np.size(part) for part in _parts(mask))
        if len(sizes) > 1 and sizes != self.sizes:
            raise ValueError(
                f"a mask of {self!r} must have a part for each choice, of the sizes "
                f"{self.sizes}. Received: parts of the sizes {sizes}"
            )
        return super().flatten_mask(mask)

    def has_legal_action(self, mask):
        return np.logical_or.reduceat(mask != 0, self._first, axis=-1).all(axis=-1)

    def is_legal(self, actions, mask):
        places = self._first + np.clip(actions, 0, np.array(self.sizes) - 1)
        return (np.take_along_axis(mask, places, axis=-1) != 0).all(axis=-1)

    def parameters(self, outputs):
        probs = self._flat(tf.nn.softmax(self._block(outputs)))
        return {"logits": outputs, "probs": probs}

    def to_environment(self, actions):
        if np.any(self.start):
            actions += base.constant(self.start, actions)
        return actions if len(self.shape) == 1 else tf.reshape(actions, [-1, *self.shape])

    def matches_space(self, space):
        same = isinstance(space, gym.spaces.MultiDiscrete) and space.shape == self.shape
        if not same:
            return False
        first = np.broadcast_to(self.start, len(self.sizes))
        sizes, start = np.ravel(space.nvec), np.ravel(space.start)
        return np.array_equal(sizes, self.sizes) and np.array_equal(start, first)

    def is_valid(self, actions):
        return (actions >= 0) & (actions < np.array(self.sizes))

    def _block(self, logits):
        """`[..., P]` to `[..., D, K]`; what is beyond a choice has no probability."""
        block = tf.gather(logits, self._places, axis=-1)
        return categorical.without(block, self._beyond)

    def _flat(self, block):
        """`[..., D, K]` back to `[..., P]`."""
        inside = np.flatnonzero(~self._beyond)
        shape = tf.concat([tf.shape(block)[:-2], [self._beyond.size]], axis=0)
        return tf.gather(tf.reshape(block, shape), inside, axis=-1)

    def get_config(self):
        return {
            **super().get_config(),
            "sizes": list(self.sizes),
            "start": self.start,
            "shape": list(self.shape),
        }

    def __repr__(self):
        return f"MultiCategorical({list(self.sizes)}, start={self.start})"


def _parts(mask):
    """The masks in tuples and lists, one for each choice; a flat mask is one part."""
    nested = isinstance(mask, (tuple, list)) and any(
        isinstance(part, (tuple, list, np.ndarray)) for part in mask
    )
    return [inner for part in mask for inner in _parts(part)] if nested else [mask]
