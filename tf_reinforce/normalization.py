"""Observations brought to mean zero and deviation one, by what was seen so far."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tf_reinforce")
class RunningNormalization(keras.layers.Layer):
    """Subtracts the running mean and divides by the running deviation.

        x' = clip((x - m) / √(v + ε), -c, c)

    The statistics are weights: they travel in the agent's file and in its export.
    They change in `update` alone, which the agent calls after each gradient step, so
    that one update is made under one normalisation. Before the first update the
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


def _no_bound(shape, dtype):
    return tf.fill(shape, tf.as_dtype(dtype).max)


def _flatten_shapes(shape):
    """The shapes in a structure of shapes, in the order of `keras.tree.flatten`."""
    if isinstance(shape, dict):
        return [s for key in sorted(shape) for s in _flatten_shapes(shape[key])]
    if all(size is None or isinstance(size, int) for size in shape):
        return [tuple(shape)]
    return [s for child in shape for s in _flatten_shapes(child)]
