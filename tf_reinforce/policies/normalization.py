"""Normalizes observations and scales with running statistics."""

import keras
import tensorflow as tf

from tf_reinforce import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class RunningNormalization(keras.layers.Layer):
    """Subtracts the running mean and divides by the running deviation.

        x' = clip((x - m) / √(v + ε), -c, c)

    The statistics are weights: they travel in the agent's file and in its export.
    They change in `update` alone, which the agent calls once at the end of each of its
    own, so that one of those is made under one normalisation. Before the first update the
    layer passes observations through, unclipped.

    Every real array of a nested observation has its own statistics. Whole numbers
    (choices, counts, images) pass through untouched; where the layer is built with an
    empty shape in their place, without even a batch axis, nothing is kept for them.

    Args:
        epsilon: Positive float, added to the variance.
        clip: Positive float, the bound of the result, in deviations.

    Example:

    >>> layer = RunningNormalization()
    >>> layer.build((None, 1))
    >>> layer.update(tf.constant([[1.0], [3.0]]))
    >>> layer(tf.constant([[2.0], [3.0]])).numpy().round(4).tolist()
    [[0.0], [1.0]]

    Reference:
        Chan, Golub & LeVeque (1983), Algorithms for computing the sample variance.
        doi:10.1080/00031305.1983.10483115
    """

    def __init__(self, *, epsilon=1e-8, clip=10.0, **kwargs):
        super().__init__(**kwargs)
        if not epsilon > 0 or not clip > 0:
            raise ValueError(
                "`epsilon` and `clip` must be positive. "
                f"Received: epsilon={epsilon}, clip={clip}"
            )
        self.epsilon = epsilon
        self.clip = clip

    def __setattr__(self, name, value):
        validation.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    def build(self, observations_shape):
        every = _flatten_shapes(observations_shape)
        self._kept = [shape != () for shape in every]
        shapes = [shape[1:] for shape in every if shape]
        make = self.add_weight
        frozen = {"trainable": False, "autocast": False}
        self.count = make((), "zeros", dtype="float64", name="count", **frozen)
        # Sums in float64 are right to the last digits however the data is split ...
        self.origins = [
            make(s, "zeros", dtype="float64", name="origin", **frozen) for s in shapes
        ]
        self.means = [
            make(s, "zeros", dtype="float64", name="mean", **frozen) for s in shapes
        ]
        self.squares = [
            make(s, "zeros", dtype="float64", name="squares", **frozen) for s in shapes
        ]
        # ... and what acting reads is derived from them, in the type it computes in.
        self.shifts = [make(s, "zeros", name="shift", **frozen) for s in shapes]
        self.factors = [make(s, "ones", name="factor", **frozen) for s in shapes]
        self.bound = make((), _no_bound, name="bound", **frozen)

    def call(self, observations):
        def normalize(leaf, shift, factor):
            if not leaf.dtype.is_floating:
                return leaf
            shift, factor, bound = (
                tf.cast(x, leaf.dtype) for x in (shift, factor, self.bound)
            )
            return tf.maximum(-bound, tf.minimum(bound, (leaf - shift) * factor))

        flat = [tf.convert_to_tensor(x) for x in keras.tree.flatten(observations)]
        statistics = zip(self.shifts, self.factors, strict=True)
        normalized = [
            normalize(leaf, *next(statistics)) if kept else leaf
            for leaf, kept in zip(flat, self._kept, strict=True)
        ]
        return keras.tree.pack_sequence_as(observations, normalized)

    @property
    def acting_variables(self):
        """The weights that `call` reads."""
        return [*self.shifts, *self.factors, self.bound]

    def update(self, observations):
        """Takes in a batch of `[N, …]` observations, all of equal weight."""
        flat = keras.tree.flatten(observations)
        new = tf.cast(tf.shape(flat[0])[0], tf.float64)
        old = tf.convert_to_tensor(self.count)
        total = old + new
        kept = [leaf for leaf, kept in zip(flat, self._kept, strict=True) if kept]
        for index, leaf in enumerate(kept):
            leaf = tf.cast(leaf, tf.float64)
            origin = tf.where(old > 0, self.origins[index], leaf[0])
            leaf -= origin
            center = tf.reduce_mean(leaf, axis=0)
            spread = tf.reduce_sum(tf.square(leaf - center), axis=0)
            gap = center - self.means[index]
            mean = self.means[index] + gap * (new / total)
            squares = self.squares[index] + spread + tf.square(gap) * (old * new / total)
            deviation = tf.sqrt(squares / total + self.epsilon)
            self.origins[index].assign(origin)
            self.means[index].assign(mean)
            self.squares[index].assign(squares)
            self.shifts[index].assign(tf.cast(origin + mean, self.variable_dtype))
            self.factors[index].assign(tf.cast(1.0 / deviation, self.variable_dtype))
        self.count.assign(total)
        self.bound.assign(self.clip)

    def compute_output_shape(self, observations_shape):
        return observations_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon, "clip": self.clip}


@keras.saving.register_keras_serializable("tf_reinforce")
class RunningScale(keras.layers.Layer):
    """Divides by the size of what was seen so far.

        x' = x / √(1/n Σᵢ (xᵢ - c)²),    c the mean, or zero

    The statistics are weights. They change in `update` alone, which the agent calls once
    at the end of each of its own, so that what is divided says nothing of its divisor.
    Only before the first update there is none: the samples then give their own. Where
    there is no size (all were alike, or all zero) values stay as they are.

    Args:
        centered: Bool. True: the deviation from the mean; False: the root mean square.
        epsilon: Positive float. A deviation below this share of the mean is rounding.

    Example:

    >>> layer = RunningScale()
    >>> layer.build(())
    >>> layer.update(tf.constant([3.0, -3.0]))
    >>> layer(tf.constant([1.5, 6.0]), samples=None).numpy().round(6).tolist()
    [0.5, 2.0]
    """

    def __init__(self, *, centered=False, epsilon=1e-8, **kwargs):
        super().__init__(**{"autocast": False, **kwargs})
        self.centered = bool(centered)
        self.epsilon = validation.within("epsilon", epsilon, 1e-300, 1e300)

    def __setattr__(self, name, value):
        validation.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    def build(self, shape=None):
        zero = dict(shape=(), dtype="float64", trainable=False, autocast=False)
        self.count = self.add_weight(name="count", initializer="zeros", **zero)
        self.mean = self.add_weight(name="mean", initializer="zeros", **zero)
        self.squares = self.add_weight(name="squares", initializer="zeros", **zero)

    def call(self, values, samples):
        """`values` of any shape, divided; `samples` as `update` will take them in."""

        def own():
            count, mean, squares = self._with(samples)
            return self._size(count, mean, squares)

        def seen():
            return self._size(self.count.value, self.mean.value, self.squares.value)

        size = seen() if samples is None else tf.cond(self.count > 0, seen, own)
        return values / tf.cast(size, values.dtype)

    def update(self, samples):
        """Takes in a batch of samples, `[N]`, all of equal weight."""
        count, mean, squares = self._with(samples)
        self.count.assign(count)
        self.mean.assign(mean)
        self.squares.assign(squares)

    def _with(self, samples):
        """The statistics with further samples among them."""
        samples = tf.cast(samples, tf.float64)
        new = tf.cast(tf.size(samples), tf.float64)
        old, center = self.count.value, tf.math.divide_no_nan(tf.reduce_sum(samples), new)
        spread = tf.reduce_sum(tf.square(samples - center))
        gap, total = center - self.mean.value, old + new
        share = tf.math.divide_no_nan(new, total)
        squares = self.squares.value + spread + tf.square(gap) * old * share
        return total, self.mean.value + gap * share, squares

    def _size(self, count, mean, squares):
        square = tf.math.divide_no_nan(squares, count)
        size = tf.sqrt(square if self.centered else square + mean * mean)
        return tf.where(size > self.epsilon * tf.abs(mean), size, 1.0)

    def get_config(self):
        config = {"centered": self.centered, "epsilon": self.epsilon}
        return {**super().get_config(), **config}


def _no_bound(shape, dtype):
    return tf.fill(shape, tf.as_dtype(dtype).max)


def _flatten_shapes(shape):
    """The shapes in a structure of shapes, in the order of `keras.tree.flatten`."""
    if isinstance(shape, dict):
        return [s for key in sorted(shape) for s in _flatten_shapes(shape[key])]
    if all(size is None or isinstance(size, int) for size in shape):
        return [tuple(shape)]
    return [s for child in shape for s in _flatten_shapes(child)]
