"""Normalization of observations, and scaling of numbers, by running statistics."""

import math
from typing import Any

import keras
import tensorflow as tf

from tf_reinforce.support import compilation
from tf_reinforce.support import validation

__all__ = [
    "RunningNormalization",
    "RunningScale",
]

__dir__ = __all__.copy  # what tab completion shows


@keras.saving.register_keras_serializable("tf_reinforce")
class RunningNormalization(compilation.FixedArguments, keras.layers.Layer):
    """Subtracts the running mean and divides by the running standard deviation.

        x' = clip((x - m) / √(v + ε), -c, c)

    Each number of an observation has its own mean m and variance v, while ε is `epsilon`
    and c is `clip`. The mean and the variance are weights, so they are saved and exported
    with the layer.

    The statistics are changed only by `update`, which the agent calls at the end of each
    of its own updates. The normalization is therefore constant within an update of the
    agent. Before the first call of `update`, observations are returned unchanged.

    Float64 numbers and integers are rounded to the layer's float type only after the mean
    has been subtracted, so small differences between large numbers remain. To exclude an
    array from the normalization, for example an image, build the layer with the empty
    shape `()` for this array.

    Args:
        epsilon: Positive float that is added to the variance.
        clip: Positive float, the largest absolute value of a normalized number, in
            standard deviations.

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

    argument_names = ("epsilon", "clip")

    def __init__(
        self, *, epsilon: float = 1e-8, clip: float = 10.0, **kwargs: Any
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.epsilon = validation.within("epsilon", epsilon, 1e-300, 1e300)
        self.clip = clip
        if clip != math.inf:
            self.clip = validation.within("clip", clip, 1e-300, 1e300)

    def build(self, observations_shape: Any) -> None:
        all_shapes: list = []
        keras.tree.map_shape_structure(all_shapes.append, observations_shape)
        self._has_statistics = [bool(shape) for shape in all_shapes]
        shapes = [tuple(shape)[1:] for shape in all_shapes if shape]
        add = self.add_weight
        frozen = {"trainable": False, "autocast": False}
        # Sums in float64 are accurate to the last digits for every split into batches.
        # In mixed precision, all float weights of a Keras layer have the variable type.
        is_mixed = self.compute_dtype != self.variable_dtype
        dtype = self.variable_dtype if is_mixed else "float64"
        self.count = add((), "zeros", dtype=dtype, name="count", **frozen)
        # Means are stored relative to `origins`, the first observations.
        self.origins, self.means, self.squares = (
            [add(s, "zeros", dtype=dtype, name=name, **frozen) for s in shapes]
            for name in ("origin", "mean", "squares")
        )
        # `call` reads the following weights in the number type of the computation.
        self.shifts = [add(s, "zeros", name="shift", **frozen) for s in shapes]
        self.factors = [add(s, "ones", name="factor", **frozen) for s in shapes]
        self.bound = add((), _largest_float, name="bound", **frozen)

    def call(self, observations: Any) -> Any:
        dtype = tf.as_dtype(self.compute_dtype)

        def normalize(leaf: tf.Tensor, index: int) -> tf.Tensor:
            if self._is_wide(leaf):
                origin, mean = self._statistics(index)[:2]
                centered = tf.cast(tf.cast(leaf, tf.float64) - (origin + mean), dtype)
            else:
                centered = tf.cast(leaf, dtype) - tf.cast(self.shifts[index], dtype)
            factor, bound = (tf.cast(x, dtype) for x in (self.factors[index], self.bound))
            return tf.maximum(-bound, tf.minimum(bound, centered * factor))

        flat = [tf.convert_to_tensor(x) for x in keras.tree.flatten(observations)]
        places = [place for place, has in enumerate(self._has_statistics) if has]
        for index, place in enumerate(places):
            flat[place] = normalize(flat[place], index)
        return keras.tree.pack_sequence_as(observations, flat)

    def _statistics(self, index: int) -> list[tf.Tensor]:
        """Returns origin, mean and sum of squares of an array, in float64."""
        weights = self.origins[index], self.means[index], self.squares[index]
        return [tf.cast(weight, tf.float64) for weight in weights]

    @property
    def acting_variables(self) -> list[keras.Variable]:
        """The weights that `call` reads."""
        return [*self.shifts, *self.factors, self.bound]

    def centers(self, observation_spec: Any) -> list:
        """Returns the weights for each array that `call` centers in float64, else `None`.

        They are origin, mean, shift and factor. Origin plus mean is subtracted in
        float64; the shift is what `call` subtracts from float32 arrays.

        Args:
            observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        """
        weights = zip(self.origins, self.means, self.shifts, self.factors, strict=True)
        leaves = keras.tree.flatten(observation_spec)
        entries = zip(leaves, self._has_statistics, strict=True)
        entries = [(leaf, next(weights) if has else None) for leaf, has in entries]
        return [entry if self._is_wide(leaf) else None for leaf, entry in entries]

    def _is_wide(self, leaf: Any) -> bool:
        """Returns whether the layer's float type would round an array's numbers."""
        size = tf.as_dtype(self.compute_dtype).size
        return leaf.dtype.is_integer or leaf.dtype.size > size

    def update(self, observations: Any) -> None:
        """Updates the running mean and variance with N more observations, `[N, …]`."""
        flat = keras.tree.flatten(observations)
        new_count = tf.cast(tf.shape(flat[0])[0], tf.float64)
        old_count = tf.cast(self.count, tf.float64)
        count = old_count + new_count
        real = [x for x, used in zip(flat, self._has_statistics, strict=True) if used]
        for index, leaf in enumerate(real):
            origin, old_mean, old_squares = self._statistics(index)
            leaf = tf.cast(leaf, tf.float64)
            origin = tf.where(old_count > 0, origin, leaf[0])
            leaf -= origin
            new_mean = tf.reduce_mean(leaf, axis=0)
            new_squares = tf.reduce_sum(tf.square(leaf - new_mean), axis=0)
            difference = new_mean - old_mean
            mean = old_mean + difference * (new_count / count)
            between = tf.square(difference) * (old_count * new_count / count)
            squares = old_squares + new_squares + between
            deviation = tf.sqrt(squares / count + self.epsilon)
            self.origins[index].assign(origin)
            self.means[index].assign(mean)
            self.squares[index].assign(squares)
            self.shifts[index].assign(tf.cast(origin + mean, self.variable_dtype))
            self.factors[index].assign(tf.cast(1.0 / deviation, self.variable_dtype))
        self.count.assign(count)
        self.bound.assign(self.clip)

    def compute_output_shape(self, observations_shape: Any) -> Any:
        return observations_shape


@keras.saving.register_keras_serializable("tf_reinforce")
class RunningScale(compilation.FixedArguments, keras.layers.Layer):
    """Divides numbers by a running standard deviation or root mean square.

        x' = x / √(1/n Σᵢ (xᵢ - c)²),    c the mean, or zero

    The samples xᵢ are all n numbers that `update` has received. The agent calls `update`
    at the end of each of its own updates, so the divisor is constant within an update.
    Before the first call, the divisor is computed from the argument `samples`.

    If all samples are equal or zero, the divisor would be zero. In this case, the values
    are returned unchanged.

    Args:
        centered: Bool, whether to divide by the standard deviation instead of the root
            mean square.
        epsilon: Positive float. A divisor of at most `epsilon` times the absolute mean of
            the samples is a rounding error, and counts as zero.

    Example:

    >>> layer = RunningScale()
    >>> layer.build(())
    >>> layer.update(tf.constant([3.0, -3.0]))
    >>> layer(tf.constant([1.5, 6.0]), samples=None).numpy().round(6).tolist()
    [0.5, 2.0]
    """

    argument_names = ("centered", "epsilon")

    def __init__(
        self, *, centered: bool = False, epsilon: float = 1e-8, **kwargs: Any
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.centered = validation.boolean("centered", centered)
        self.epsilon = validation.within("epsilon", epsilon, 1e-300, 1e300)

    def build(self, shape: Any = None) -> None:
        scalar = dict(shape=(), dtype="float64", trainable=False, autocast=False)
        self.count, self.mean, self.squares = (
            self.add_weight(name=name, initializer="zeros", **scalar)
            for name in ("count", "mean", "squares")
        )

    def call(self, values: tf.Tensor, samples: tf.Tensor) -> Any:
        """Returns the values divided by the running scale.

        Args:
            values: Float tensor of any shape.
            samples: `[N]` float, the samples for the next `update`, whose scale is used
                if there has been none yet. With `None`, the stored statistics are always
                used.
        """

        def running_scale() -> tf.Tensor:
            return self._scale(self.count.value, self.mean.value, self.squares.value)

        def scale_of_samples() -> tf.Tensor:
            return self._scale(*self._statistics_with(samples))

        if samples is None:
            scale = running_scale()
        else:
            scale = tf.cond(self.count > 0, running_scale, scale_of_samples)
        return values / tf.cast(scale, values.dtype)

    def update(self, samples: tf.Tensor) -> None:
        """Updates the statistics with N more samples, `[N]` float."""
        new = self._statistics_with(samples)
        for weight, value in zip((self.count, self.mean, self.squares), new, strict=True):
            weight.assign(value)

    def _statistics_with(self, samples: tf.Tensor) -> Any:
        """Returns count, mean and sum of squared deviations of old and new samples."""
        samples = tf.cast(samples, tf.float64)
        new_count = tf.cast(tf.size(samples), tf.float64)
        old_count = self.count.value
        count = old_count + new_count
        new_mean = tf.math.divide_no_nan(tf.reduce_sum(samples), new_count)
        new_squares = tf.reduce_sum(tf.square(samples - new_mean))
        difference = new_mean - self.mean.value
        fraction = tf.math.divide_no_nan(new_count, count)
        between = tf.square(difference) * old_count * fraction
        squares = self.squares.value + new_squares + between
        return count, self.mean.value + difference * fraction, squares

    def _scale(self, count: tf.Tensor, mean: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
        """Returns the divisor, or 1 where it would be zero."""
        variance = tf.math.divide_no_nan(squares, count)
        scale = tf.sqrt(variance if self.centered else variance + mean * mean)
        return tf.where(scale > self.epsilon * tf.abs(mean), scale, 1.0)


def _largest_float(shape: Any, dtype: Any) -> Any:
    return tf.fill(shape, tf.as_dtype(dtype).max)
