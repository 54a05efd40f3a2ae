"""Builds the default policy network for an observation space."""

import itertools

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces

_PLACES = 100_000  # a one-hot choice of more is a job for an embedding


_SMALLEST_IMAGE = 7  # rows and columns: what an agent of MiniGrid sees around it


@keras.saving.register_keras_serializable("tf_reinforce")
class OneHot(keras.layers.Layer):
    """Choices as zeros and ones: each has a place for every value it can take.

    Args:
        sizes: List of positive ints, how many values each choice has.
        starts: List of ints, the first value of each.

    Example:

    >>> OneHot([3, 2], starts=[0, 7])(np.array([[2, 7]])).numpy().tolist()
    [[0.0, 0.0, 1.0, 1.0, 0.0]]
    """

    def __init__(self, sizes, starts, **kwargs):
        super().__init__(**kwargs)
        self.sizes = list(sizes)
        self.starts = list(starts)
        # Place p is one where choice `owners[p]` takes the value `values[p]`.
        self._owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        runs = [np.arange(n) + start for n, start in zip(self.sizes, self.starts)]
        self._values = np.concatenate(runs)

    def call(self, choices):
        choices = keras.ops.cast(choices, "int64")
        choices = keras.ops.reshape(choices, (-1, len(self.sizes)))
        taken = keras.ops.take(choices, self._owners, axis=1)
        return keras.ops.cast(taken == self._values, self.compute_dtype)

    def compute_output_shape(self, choices_shape):
        return choices_shape[0], sum(self.sizes)

    def get_config(self):
        return {**super().get_config(), "sizes": self.sizes, "starts": self.starts}


def default_policy(space, hidden, outputs_size, seed, units=None):
    """A branch for each array of an observation, and tanh layers on all of them.

    | array | what the tanh layers see of it |
    |---|---|
    | `Box` of reals | its numbers as they are |
    | `Discrete`, `MultiDiscrete` | one-hot: a place for each value |
    | `MultiBinary`, `Box` of bools | zeros and ones |
    | `Box` of uint8 or bools that is an image | in [0, 1], through convolutions |
    | any other `Box` of whole numbers | from its bounds to [-1, 1] |

    Layers of tanh learn best from numbers around zero; an image keeps its zero, which is
    what borders and empty cells are. Where bounds are infinite or more than 1e7 apart,
    numbers are taken as they are: bounds as wide as the type say nothing.

    An image has two large axes (7 or more): `[H, W]`, `[H, W, C]`, `[C, H, W]` (also
    frames, as Gymnasium's FrameStackObservation stacks them) or `[S, H, W, C]`, frames of
    at most four channels. Of three axes, channels are the one beside two equal ones,
    else the smaller of first and last. Strides of two follow the first convolution until
    fewer than six rows or columns are left.

    Args:
        space: An observation space.
        hidden: Positive ints, sizes of the hidden layers.
        outputs_size: Positive int, `P`.
        seed: Int; the weights are a function of it.
        units: Offsets and scales of the outputs; see `heads.Head.output_scaling`. The
            last layer multiplies by the scales and adds the offsets.

    Returns:
        Keras model from `[N, …]` to `[N, P]`, orthogonal weights; those of the last
        layer are scaled by 0.01, so that the first policy is nearly even. Its inputs
        are named by the keys of the observation.

    Raises:
        ValueError: when a choice has too many values to be written one-hot.

    Example:

    >>> default_policy(gym.spaces.Box(-1, 1, (4,)), (64, 64), 2, seed=0).count_params()
    4610
    """
    hidden = validation.positive_ints("hidden", hidden)
    rng = seeding.generator(seed, "weights")

    def orthogonal(gain):
        return keras.initializers.Orthogonal(gain, seed=int(rng.integers(2**31)))

    structure = spaces.observation_spec(space, keras.config.floatx())
    inputs = keras.tree.map_structure(
        lambda leaf, name: keras.Input(leaf.shape, dtype=leaf.dtype.name, name=name),
        structure,
        spaces.names(structure),
    )
    leaves = keras.tree.flatten(spaces.to_nest(space))
    parts = [
        _branch(leaf, x, orthogonal)
        for leaf, x in zip(leaves, keras.tree.flatten(inputs), strict=True)
    ]
    x = keras.layers.Concatenate(name=".all")(parts) if len(parts) > 1 else parts[0]
    dense = keras.layers.Dense
    for i, size in enumerate(hidden):
        weights = orthogonal(np.sqrt(2.0))
        x = dense(size, "tanh", kernel_initializer=weights, name=f".hidden_{i}")(x)
    last = dense(outputs_size, kernel_initializer=orthogonal(0.01), name=".outputs")
    outputs = last(x)
    offsets, scales = (list(map(float, part)) for part in units or ((), ()))
    if any(offsets) or any(scale != 1.0 for scale in scales):
        outputs = keras.layers.Rescaling(scales, offsets, name=".units")(outputs)
    return keras.Model(inputs, outputs, name="policy")


def _branch(space, x, orthogonal):
    """`[N, …]` as the space has it to `[N, F]` floats."""
    # No key of an observation is the name of a layer: a point stands between.
    name = spaces.safe_name(x.name)
    flatten = keras.layers.Flatten(name=f"{name}.flat")
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return _one_hot(space, f"{name}.one_hot")(x)
    if np.issubdtype(space.dtype, np.floating):
        return flatten(x)
    if isinstance(space, gym.spaces.Box) and space.dtype in (np.uint8, np.bool_):
        axes = _image_axes(space.shape)
        if axes is not None:
            return flatten(_convolved(space, x, axes, orthogonal))
    scale, offset = _to_unit(space)
    return keras.layers.Rescaling(scale, offset, name=f"{name}.scaled")(flatten(x))


def _one_hot(space, name):
    discrete = isinstance(space, gym.spaces.Discrete)
    sizes = np.ravel(space.n if discrete else space.nvec).tolist()
    if sum(sizes) > _PLACES:
        raise ValueError(
            f"The default policy writes choices one-hot, with at most {_PLACES:,} places "
            f"in all. Received: {space!r}. Give a policy of your own, for example with "
            "keras.layers.Embedding."
        )
    return OneHot(sizes, np.ravel(space.start).tolist(), name=name)


def _to_unit(space):
    """`scale` and `offset` that bring whole numbers from their bounds to [-1, 1]."""
    if isinstance(space, gym.spaces.MultiBinary) or space.dtype == np.bool_:
        return 1.0, 0.0
    middle, half = spaces.middle_and_half(np.ravel(space.low), np.ravel(space.high))
    both = 1.0 / half, 0.0 - middle / half
    same = all(np.all(x == x[0]) for x in both)
    return tuple(x[0].item() if same else x.tolist() for x in both)


def _image_axes(shape):
    """The axes of an image, channels last, counted behind the batch; `None` if none."""
    if len(shape) == 2:
        axes = (1, 2)
    elif len(shape) == 3:
        first, middle, last = shape
        ends = first == middle or (middle != last and last <= first)
        axes = (1, 2, 3) if ends else (2, 3, 1)
    elif len(shape) == 4 and shape[3] <= 4:
        axes = (2, 3, 1, 4)
    else:
        return None
    large = all(shape[axis - 1] >= _SMALLEST_IMAGE for axis in axes[:2])
    return axes if large else None


def _convolved(space, x, axes, orthogonal):
    """`[N, …]` of an image to `[N, H', W', F]` with few weights.

    Each decision hands the weights over anew, and images are seen one by one: the dense
    layer on what is left would cost more than the convolutions.
    """
    name, layers = spaces.safe_name(x.name), keras.layers
    height, width = (space.shape[axis - 1] for axis in axes[:2])
    if axes != tuple(sorted(axes)):
        x = layers.Permute(axes, name=f"{name}.channels_last")(x)
    if len(axes) != 3:
        x = layers.Reshape((height, width, -1), name=f"{name}.image")(x)
    scale = 1.0 / max(float(space.high.max()), 1.0)
    x = layers.Rescaling(scale, name=f"{name}.scaled")(x)
    size = min(height, width)
    filters, kernel, stride = (
        (16, 4, 4 if size >= 36 else 2) if size >= 12 else (16, 3, 1)
    )
    for i in itertools.count():
        x = layers.Conv2D(
            filters,
            kernel,
            stride,
            activation="relu",
            kernel_initializer=orthogonal(np.sqrt(2.0)),
            name=f"{name}.conv_{i}",
        )(x)
        if min(x.shape[1:3]) < 6:
            return x
        filters, kernel, stride = 32, 3, 2
