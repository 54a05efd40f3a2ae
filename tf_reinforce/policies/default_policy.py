"""The default policy network for an observation space."""

import itertools

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.policies import attention
from tf_reinforce.support import validation

_MAX_ONE_HOT = 100_000  # most entries of a one-hot vector; use an embedding for more
_HEADS = 4  # of attention over time
_MIN_IMAGE_SIZE = 7  # rows and columns; the size of MiniGrid's observations


@keras.saving.register_keras_serializable("tf_reinforce")
class OneHot(keras.layers.Layer):
    """Encodes discrete numbers one-hot, with an entry for each possible value.

    Args:
        sizes: List of positive ints, the number of values of each discrete number.
        starts: List of ints, the smallest of these values.

    Example:

    >>> OneHot([3, 2], starts=[0, 7])(np.array([[2, 7]])).numpy().tolist()
    [[0.0, 0.0, 1.0, 1.0, 0.0]]
    """

    def __init__(self, sizes, starts, **kwargs):
        super().__init__(**kwargs)
        self.sizes = list(sizes)
        self.starts = list(starts)
        # Entry i of the output is one if input `_indices[i]` equals `_values[i]`.
        self._indices = np.repeat(np.arange(len(self.sizes)), self.sizes)
        ranges = [np.arange(n) + start for n, start in zip(self.sizes, self.starts)]
        self._values = np.concatenate(ranges)

    def call(self, inputs):
        inputs = keras.ops.cast(inputs, "int64")
        inputs = keras.ops.reshape(inputs, (-1, len(self.sizes)))
        repeated = keras.ops.take(inputs, self._indices, axis=1)
        return keras.ops.cast(repeated == self._values, self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return inputs_shape[0], sum(self.sizes)

    def get_config(self):
        return {**super().get_config(), "sizes": self.sizes, "starts": self.starts}


def default_policy(
    space,
    hidden,
    outputs_size,
    seed,
    output_scaling=None,
    name="policy",
    is_normalized=False,
    memory=None,
    window=None,
):
    """Builds a network of dense tanh layers for any observation space.

    Each array of an observation is first turned into features, depending on its space;
    the dense layers receive all of them concatenated.

    - `Box` of reals: the numbers.
    - `Discrete`, `MultiDiscrete`: one-hot, with an entry for each value.
    - `MultiBinary`, `Box` of bools: zeros and ones.
    - `Box` of uint8 or bools that is an image: scaled to [0, 1], then convolutions.
    - any other `Box` of integers: scaled from the bounds to [-1, 1].

    Integers are scaled because tanh layers learn best from inputs around zero. Images are
    scaled to [0, 1] instead, where zero is usually the value of borders and empty cells.
    Integers with infinite bounds, or with bounds at least 1e7 apart, are not scaled,
    because these bounds are usually only the limits of the number type.

    A `Box` of uint8 or bools counts as an image if its height H and width W are at least
    7. Its shape may be `[H, W]`, `[H, W, C]` or `[C, H, W]` with C channels. A stack of S
    images `[S, H, W, C]` is accepted too if each has at most four channels. The gray
    frames of Gymnasium's FrameStackObservation count as channels.

    If an image has three axes, their sizes show which of them holds the channels. If two
    adjacent axes are equal, the third one holds the channels. Otherwise, the smaller of
    the first and the last axis does.

    Args:
        space: A Gymnasium observation space.
        hidden: Positive ints, the sizes of the hidden layers.
        outputs_size: Positive int, `P`, the number of policy outputs.
        seed: Int that determines the initial weights.
        output_scaling: Pair of offsets and scales, from `heads.Head.output_scaling`. The
            last layer multiplies the outputs by the scales and adds the offsets.
        name: String, the name of the model.
        is_normalized: Bool, whether the agent normalizes observations. A `Box` of
            integers other than an image is then treated as reals.
        memory: `None`; an int K for windows of K steps, whose features are concatenated;
            or for sequences of any length, `"gru"` or `"attention"`. The latter replaces
            the last hidden layer by a GRU, or follows it by causal self-attention with a
            residual connection.
        window: Int, how many steps the attention reaches back.

    Returns:
        Keras model from observations `[N, …]` to policy outputs `[N, P]`, with orthogonal
        initial weights. Those of the last dense layer are scaled by 0.01, so the initial
        policy hardly depends on the observation. For a dict of observations, the inputs
        are named after its keys.

    Raises:
        ValueError: If a one-hot encoding would have more than 100,000 entries.

    Example:

    >>> default_policy(gym.spaces.Box(-1, 1, (4,)), (64, 64), 2, seed=0).count_params()
    4610
    """
    validation.layer_sizes("hidden", hidden)
    rng = seeding.generator(seed, "weights")

    def orthogonal(gain):
        return keras.initializers.Orthogonal(gain, seed=int(rng.integers(2**31)))

    is_sequence = isinstance(memory, str)
    time = () if memory is None else (None if is_sequence else memory,)
    inputs, features = _features(space, time, is_normalized, orthogonal)
    concatenate = keras.layers.Concatenate(name=f"{name}.all")
    x = concatenate(features) if len(features) > 1 else features[0]
    if memory is not None and not is_sequence:
        x = keras.layers.Flatten(name=f"{name}.window")(x)
    hidden = validation.layer_sizes("hidden", hidden, x.shape[-1], outputs_size)
    if is_sequence and not hidden:
        raise ValueError(
            f"`memory={memory!r}` needs at least one hidden layer, whose size is that of "
            "the memory. Received: hidden=()"
        )

    def dense(x, size, activation, gain, layer_name, **options):
        options["kernel_initializer"] = orthogonal(gain)
        return keras.layers.Dense(size, activation, name=layer_name, **options)(x)

    bias = {}
    if memory == "attention":
        # Without a bias, its normalization loses the features' size.
        normal = keras.initializers.RandomNormal(0.0, 1.0, int(rng.integers(2**31)))
        bias["bias_initializer"] = normal
    for i, size in enumerate(hidden[: -1 if memory == "gru" else None]):
        x = dense(x, size, "tanh", np.sqrt(2.0), f"{name}.hidden_{i}", **bias)
    if is_sequence:
        seeds = [int(x) for x in rng.integers(2**31, size=2)]
        x = _remember(x, memory, hidden[-1], window, seeds, name)
    outputs = dense(x, outputs_size, None, 0.01, f"{name}.outputs")
    offsets, scales = (np.asarray(x).tolist() for x in output_scaling or ((), ()))
    if any(offsets) or any(scale != 1.0 for scale in scales):
        outputs = keras.layers.Rescaling(scales, offsets, name=f"{name}.units")(outputs)
    return keras.Model(inputs, outputs, name=name)


def _features(space, time, is_normalized, orthogonal):
    """Returns the inputs of a policy, and a list with the features of each.

    Args:
        space, is_normalized: As in `default_policy`.
        time: Shape of the time axis, or `()` for single observations.
        orthogonal: Function from a gain to an initializer.
    """
    leaves = keras.tree.flatten(spaces.to_nest(space))
    flags = [is_normalized and spaces.is_quantity(leaf) for leaf in leaves]
    float_type = keras.config.dtype_policy().variable_dtype
    spec = records.observation_spec(space, float_type)
    spec = records.with_floats(spec, flags, float_type)

    def make_input(leaf, name):
        return keras.Input((*time, *leaf.shape), dtype=leaf.dtype.name, name=name)

    inputs = keras.tree.map_structure(make_input, spec, spaces.names(spec))
    branch = _branch_over_time if time else _branch
    pairs = zip(leaves, keras.tree.flatten(inputs), strict=True)
    return inputs, [branch(leaf, x, orthogonal) for leaf, x in pairs]


def _remember(x, memory, size, window, seeds, name):
    """Applies a recurrent layer to sequences of features `[B, T, F]`."""
    layers = keras.layers
    if memory == "gru":
        return layers.GRU(
            size,
            return_sequences=True,
            kernel_initializer=keras.initializers.GlorotUniform(seeds[0]),
            recurrent_initializer=keras.initializers.Orthogonal(seed=seeds[1]),
            name=f"{name}.gru",
        )(x)
    key_dim = max(2 * (size // (2 * _HEADS)), 2)
    normalized = layers.LayerNormalization(name=f"{name}.norm_0")(x)
    attended = attention.CausalSelfAttention(
        _HEADS, key_dim, window=window, seed=seeds[0], name=f"{name}.attention"
    )(normalized)
    x = layers.Add(name=f"{name}.add")([x, attended])
    return layers.LayerNormalization(name=f"{name}.norm_1")(x)


def _branch_over_time(space, x, orthogonal):
    """Converts sequences of one array, `[N, T, …]`, to features `[N, T, F]`."""
    if "float" in x.dtype and len(x.shape) == 3:
        return x
    single = keras.Input(x.shape[2:] or (1,), dtype=x.dtype, name=x.name)
    x = x if len(x.shape) > 2 else keras.ops.expand_dims(x, -1)
    model = keras.Model(single, _branch(space, single, orthogonal))
    name = f"{spaces.safe_name(x.name)}.steps"
    return keras.layers.TimeDistributed(model, name=name)(x)


def _branch(space, x, orthogonal):
    """Converts one array of N observations, `[N, …]`, to F features each, `[N, F]`."""
    # A dot in the layers' names keeps them different from the observation's keys.
    name = spaces.safe_name(x.name)
    flatten = keras.layers.Flatten(name=f"{name}.flat")
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return _one_hot(space, f"{name}.one_hot")(x)
    if "float" in x.dtype:
        return flatten(x)
    if isinstance(space, gym.spaces.Box) and space.dtype in (np.uint8, np.bool_):
        axes = _image_axes(space.shape)
        if axes is not None:
            return flatten(_convolutions(space, x, axes, orthogonal))
    scale, offset = _to_unit(space)
    return keras.layers.Rescaling(scale, offset, name=f"{name}.scaled")(flatten(x))


def _one_hot(space, name):
    discrete = isinstance(space, gym.spaces.Discrete)
    sizes = np.ravel(space.n if discrete else space.nvec).tolist()
    if sum(sizes) > _MAX_ONE_HOT:
        raise ValueError(
            "The default policy encodes discrete observations one-hot, with at most "
            f"{_MAX_ONE_HOT:,} entries. Received: {space!r}. Pass a policy of your own, "
            "for example with keras.layers.Embedding."
        )
    return OneHot(sizes, np.ravel(space.start).tolist(), name=name)


def _to_unit(space):
    """Returns scale and offset that map integers from their bounds to [-1, 1]."""
    if isinstance(space, gym.spaces.MultiBinary) or space.dtype == np.bool_:
        return 1.0, 0.0
    middle, half = spaces.middle_and_half(np.ravel(space.low), np.ravel(space.high))
    scale_and_offset = 1.0 / half, 0.0 - middle / half
    uniform = all(np.all(x == x[0]) for x in scale_and_offset)
    return tuple(x[0].item() if uniform else x.tolist() for x in scale_and_offset)


def _image_axes(shape):
    """Returns the axes of an image with the channels last, or `None` for other shapes.

    They count from 1, as axis 0 is the batch.
    """
    if len(shape) == 2:
        axes = (1, 2)
    elif len(shape) == 3:
        first, middle, last = shape
        channels_last = first == middle or (middle != last and last <= first)
        axes = (1, 2, 3) if channels_last else (2, 3, 1)
    elif len(shape) == 4 and shape[3] <= 4:
        axes = (2, 3, 1, 4)
    else:
        return None
    is_large = min(shape[axis - 1] for axis in axes[:2]) >= _MIN_IMAGE_SIZE
    return axes if is_large else None


def _convolutions(space, x, axes, orthogonal):
    """Applies convolutions to N images until fewer than six rows or columns remain.

    LiteRT selects actions one image at a time and reads all weights for each image. If
    the outputs were larger, the following dense layer would take LiteRT longer than the
    convolutions.
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
