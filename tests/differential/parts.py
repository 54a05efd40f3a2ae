"""Builds the parts of a combination: policy, head, baseline, agent and records."""

import contextlib
import types
import warnings

import gymnasium as gym
import keras
import numpy as np
import scores

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads

layers = keras.layers
INFINITY = float("inf")
HIDDEN = 3

# Arguments of Gaussian heads, and of their definitions in `scores`, by name.
NORMAL = dict(
    gaussian=dict(low=-1.0, high=1.0),
    gaussian_state=dict(low=-INFINITY, high=INFINITY, state_dependent_scale=True),
    gaussian_whole=dict(low=-2, high=3, integer=True),
    tanh=dict(low=-2.0, high=[0.5, 1.0]),
    tanh_state=dict(low=-1.0, high=1.0, state_dependent_scale=True),
    clipped=dict(low=[-1.0, -0.5], high=0.75),
    clipped_half=dict(low=-0.5, high=INFINITY),
    clipped_state=dict(low=-1.0, high=1.0, state_dependent_scale=True),
    clipped_whole=dict(low=-1, high=2, integer=True),
)
NESTED = {
    "composite": {"grip": "categorical", "arm": "gaussian"},
    "nested": ("multi", {"b": "clipped", "a": ("bernoulli", "tanh_state")}, "beta"),
}


def head_of(name, dtype):
    """Returns the head of the package; `dtype` may be `None`."""
    nested = NESTED.get(name)
    if nested is not None:
        leaves = [head_of(part, dtype) for part in scores.leaves(nested)]
        return heads.Composite(scores.pack(nested, iter(leaves)), dtype=dtype)
    if name in NORMAL:
        kinds = heads.Gaussian, heads.TanhGaussian, heads.ClippedGaussian
        kind = kinds[["gaussian", "tanh", "clipped"].index(name.split("_")[0])]
        return kind(2, initial_scale=[0.5, 1.25], dtype=dtype, **NORMAL[name])
    return {
        "categorical": lambda: heads.Categorical(3, start=2, dtype=dtype),
        "multi": lambda: heads.MultiCategorical([2, 3], start=[0, 5], dtype=dtype),
        "bernoulli": lambda: heads.Bernoulli(2, dtype=dtype),
        "multinomial": lambda: heads.Multinomial(3, trials=3, dtype=dtype),
        "beta": lambda: heads.Beta(2, -1.0, [0.5, 2.0], dtype=dtype),
        "beta_whole": lambda: heads.Beta(1, 0, 4, integer=True, dtype=dtype),
    }[name]()


def score_of(name):
    """Returns the same distribution in NumPy; see `scores`."""
    nested = NESTED.get(name)
    if nested is not None:
        parts = [score_of(part) for part in scores.leaves(nested)]
        return scores.Composite(scores.pack(nested, iter(parts)))
    if name in NORMAL:
        kinds = scores.Gaussian, scores.TanhGaussian, scores.ClippedGaussian
        kind = kinds[["gaussian", "tanh", "clipped"].index(name.split("_")[0])]
        options = NORMAL[name]
        dependent = options.get("state_dependent_scale", False)
        return kind(2, options["low"], options["high"], [0.5, 1.25], dependent)
    return {
        "categorical": lambda: scores.Categorical(3),
        "multi": lambda: scores.MultiCategorical([2, 3]),
        "bernoulli": lambda: scores.Bernoulli(2),
        "multinomial": lambda: scores.Multinomial(3, 3),
        "beta": lambda: scores.Beta(2),
        "beta_whole": lambda: scores.Beta(1),
    }[name]()


def action_space_of(name):
    """Returns the action space of the head."""
    nested = NESTED.get(name)
    if nested is not None:
        spaces = [action_space_of(part) for part in scores.leaves(nested)]
        return space_of(scores.pack(nested, iter(spaces)))
    if name in NORMAL:
        options = NORMAL[name]
        bounds = (np.broadcast_to(options[bound], 2) for bound in ("low", "high"))
        return gym.spaces.Box(*box(*bounds, options.get("integer", False)))
    return {
        "categorical": lambda: gym.spaces.Discrete(3, start=2),
        "multi": lambda: gym.spaces.MultiDiscrete([2, 3], start=[0, 5]),
        "bernoulli": lambda: gym.spaces.MultiBinary(2),
        "multinomial": lambda: gym.spaces.MultiDiscrete([4, 4, 4]),
        "beta": lambda: gym.spaces.Box(*box([-1.0, -1.0], [0.5, 2.0], False)),
        "beta_whole": lambda: gym.spaces.Box(*box([0], [4], True)),
    }[name]()


def box(low, high, integer):
    dtype = "int32" if integer else "float32"
    return np.array(low, dtype), np.array(high, dtype), np.shape(low), np.dtype(dtype)


def space_of(nested):
    """Converts tuples and dicts of spaces to `Tuple` and `Dict` spaces."""
    if isinstance(nested, dict):
        return gym.spaces.Dict({key: space_of(part) for key, part in nested.items()})
    if isinstance(nested, tuple):
        return gym.spaces.Tuple([space_of(part) for part in nested])
    return nested


def observation_specs(c):
    """Returns the nested observation of the policy, `(shape, dtype)` for each array."""
    real = "float32"
    policy_specs = {
        "dict": {"near": ((1,), real), "far": ((2,), real), "gear": ((), "int64")},
        "dict_gru": {"near": ((1,), real), "far": ((2,), real), "gear": ((), "int64")},
        "tuple": (((2,), real), ((2, 2), real)),
        "pixels": ((6, 6, 1), "uint8"),
        "choices": ((), "int64"),
    }.get(c.policy, ((3,), real))
    if c.action_mask != "observation":
        return policy_specs
    return {"seen": policy_specs, "legal": ((score_of(c.head).mask_size,), "int8")}


def specs(nested):
    """Returns the `(shape, dtype)` leaves of a structure, in the order of dict keys."""
    if isinstance(nested, dict):
        return [leaf for key in sorted(nested) for leaf in specs(nested[key])]
    if isinstance(nested[0], tuple) and not is_spec(nested):
        return [leaf for part in nested for leaf in specs(part)]
    return [nested]


def is_spec(nested):
    return isinstance(nested, tuple) and isinstance(nested[1], str)


def map_structure(function, nested, path=()):
    """Applies `function(spec, path)` to every leaf of the structure of observations."""
    if isinstance(nested, dict):
        return {
            key: map_structure(function, x, (*path, key)) for key, x in nested.items()
        }
    if not is_spec(nested):
        return tuple(
            map_structure(function, x, (*path, str(i))) for i, x in enumerate(nested)
        )
    return function(nested, path)


def observation_space_of(c):
    def leaf(spec, path):
        shape, dtype = spec
        if path[-1:] == ("legal",):
            return gym.spaces.Box(0, 2, shape, np.int8)
        if dtype == "int64":
            return gym.spaces.Discrete(4)
        if dtype == "uint8":
            return gym.spaces.Box(0, 255, shape, np.uint8)
        return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)

    return space_of(map_structure(leaf, observation_specs(c)))


# Models


def model_of(c, output_sizes, seed, recurrent):
    """Returns a network with random weights and biases, and one output for each name.

    Args:
        c: `Combination`.
        output_sizes: Dict from names to sizes. With one name, the model returns an array.
        seed: Int.
        recurrent: Bool, whether the network reads sequences.
    """
    keras.utils.set_random_seed(seed)
    if c.policy == "subclassed":
        model = Subclassed(output_sizes, output_type(c), dtype=c.dtype)
        model(np.zeros((1, 3)))
        return model
    dense = dict(bias_initializer="normal", dtype=c.dtype)
    inputs, x = encode_inputs(c, recurrent)
    if recurrent:
        x = recurrent_layer(c, x)
    if c.policy == "normed":
        options = dict(moving_mean_initializer="normal", dtype=c.dtype)
        x = layers.BatchNormalization(beta_initializer="normal", **options)(x)
        x = layers.Dropout(0.5, dtype=c.dtype)(x)
    if c.policy == "frozen":
        x = layers.Dense(HIDDEN, "tanh", trainable=False, **dense)(x)
    if c.policy in ("functional", "tuple"):
        y = layers.Dense(HIDDEN, "tanh", **dense)(x)
        x = layers.Concatenate(dtype=c.dtype)([x, y])
    dense["dtype"] = output_type(c)
    outputs = {
        name: layers.Dense(size, name=name, **dense)(x)
        for name, size in output_sizes.items()
    }
    if c.policy == "sequential":
        model = keras.Sequential(keras.Model(inputs, outputs["outputs"]).layers)
        return model
    return keras.Model(
        inputs, outputs if len(outputs) > 1 else next(iter(outputs.values()))
    )


def output_type(c):
    return "float32" if c.dtype == "bfloat16" else c.dtype


@keras.saving.register_keras_serializable("differential")
class Subclassed(keras.Model):
    """A subclass of `keras.Model` with two layers and any number of outputs."""

    def __init__(self, output_sizes, output_dtype, **kwargs):
        super().__init__(**kwargs)
        options = dict(bias_initializer="normal")
        self.output_sizes, self.output_dtype = dict(output_sizes), output_dtype
        self.hidden = layers.Dense(HIDDEN, "tanh", dtype=self.dtype_policy, **options)
        options["dtype"] = output_dtype
        self.output_layers = {
            name: layers.Dense(n, **options) for name, n in output_sizes.items()
        }

    def call(self, observations):
        hidden = self.hidden(observations)
        outputs = {name: layer(hidden) for name, layer in self.output_layers.items()}
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    def get_config(self):
        config = {"output_sizes": self.output_sizes, "output_dtype": self.output_dtype}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable("differential")
class DecayingCell(keras.layers.Layer):
    """A custom recurrent cell, with a state that decays."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units

    def build(self, shape):
        options = dict(initializer="glorot_uniform")
        self.kernel = self.add_weight(name="k", shape=(shape[-1], self.units), **options)
        self.recurrent_kernel = self.add_weight(
            name="t", shape=(self.units,) * 2, **options
        )

    def call(self, inputs, states):
        new = keras.ops.matmul(inputs, self.kernel)
        new = new + 0.5 * keras.ops.matmul(states[0], self.recurrent_kernel)
        return keras.ops.tanh(new), [keras.ops.tanh(new)]

    def get_initial_state(self, batch_size=None):
        return [keras.ops.zeros((batch_size, self.units), self.compute_dtype)]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("differential")
class LearnedStateCell(DecayingCell):
    """The same cell with a trainable initial state."""

    def build(self, shape):
        super().build(shape)
        self.initial_state = self.add_weight(
            name="first", shape=(self.units,), initializer="random_normal"
        )

    def get_initial_state(self, batch_size=None):
        initial_state = keras.ops.cast(self.initial_state, self.compute_dtype)
        return [keras.ops.broadcast_to(initial_state, (batch_size, self.units))]


def encode_inputs(c, recurrent):
    """Returns the inputs, nested as the observation, and one array of features."""
    real = real_type(c)
    time = (None,) if recurrent else ()

    def make_input(spec, path):
        shape, dtype = spec
        dtype = real if dtype == "float32" else dtype
        return keras.Input((*time, *shape), dtype=dtype, name="_".join(path) or "seen")

    inputs = map_structure(make_input, observation_specs(c))
    observation = inputs["seen"] if c.action_mask == "observation" else inputs
    parts = [encode_array(c, x, recurrent) for x in keras.tree.flatten(observation)]
    x = layers.Concatenate(dtype=c.dtype)(parts) if len(parts) > 1 else parts[0]
    decay = keras.regularizers.L2(1 / 16) if c.policy == "regularised" else None
    options = dict(bias_initializer="normal", dtype=c.dtype)
    return inputs, layers.Dense(HIDDEN, "tanh", kernel_regularizer=decay, **options)(x)


def encode_array(c, x, recurrent):
    if x.dtype == "uint8":
        x = layers.Rescaling(1 / 255, dtype=c.dtype)(x)
        x = layers.Conv2D(2, 3, strides=2, activation="tanh", dtype=c.dtype)(x)
        return layers.Flatten(dtype=c.dtype)(x)
    if x.dtype == "int64":
        return layers.Embedding(4, 2, dtype=c.dtype)(x)
    return layers.Flatten(dtype=c.dtype)(x) if len(x.shape) == 3 and not recurrent else x


def recurrent_layer(c, x):
    options = dict(return_sequences=True, dtype=c.dtype)
    kinds = {"lstm": layers.LSTM, "simple_rnn": layers.SimpleRNN}
    cells = {"cell": DecayingCell, "learned": LearnedStateCell}
    if c.policy in cells:
        return layers.RNN(cells[c.policy](HIDDEN, dtype=c.dtype), **options)(x)
    if c.policy == "stacked":
        cells = [layers.GRUCell(2, dtype=c.dtype), layers.LSTMCell(2, dtype=c.dtype)]
        cells = layers.StackedRNNCells(cells, dtype=c.dtype)
        return layers.RNN(cells, **options)(x)
    if c.policy == "masking":
        x = layers.Masking(dtype=c.dtype)(x)
    return kinds.get(c.policy, layers.GRU)(HIDDEN, **options)(x)


def policy_of(c):
    output_sizes = {"outputs": score_of(c.head).outputs_size}
    if c.baseline == "shared":
        output_sizes["values"] = 1
    return model_of(c, output_sizes, 2 * c.seed, c.recurrent)


def critic_of(c):
    return model_of(c, {"outputs": 1}, 2 * c.seed + 1, False)


# The agent


def optimizer_of(c, factor=1.0):
    rate = factor * c.learning_rate
    if c.optimizer == "adam":
        return keras.optimizers.Adam(rate)
    if c.optimizer == "loss_scaled" and factor == 1:
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate), 2.0**6)
    options = {"momentum": {"momentum": 0.5}, "clipped": {"global_clipnorm": 0.5}}
    return keras.optimizers.SGD(rate, **options.get(c.optimizer, {}))


def baseline_of(c):
    if c.baseline == "groups":
        return baselines.LeaveOneOut(group_size=2)
    if c.baseline == "moving_average":
        return baselines.MovingAverage(c.decay)
    if c.baseline == "time_step":
        return baselines.TimeStep(c.horizon, c.decay)
    if c.baseline == "shared":
        return baselines.Value(loss_weight=c.loss_weight)
    if c.baseline == "value":
        return baselines.Value(
            critic_of(c),
            optimizer_of(c, 0.25),
            passes=c.value_epochs,
            minibatch_size=c.value_minibatch,
            scale=c.value_scale,
        )
    return c.baseline


def entropy_of(c):
    """Returns a coefficient, or a schedule that changes it in each update."""
    if c.entropy_coef and c.entropy_schedule:
        return keras.optimizers.schedules.InverseTimeDecay(c.entropy_coef, 1, 0.5)
    return c.entropy_coef


def mask_path(c):
    places = {"info": "info/legal", "observation": "observation/legal"}
    return places.get(c.action_mask)


def real_type(c):
    """Returns the type of observations, outputs and actions."""
    return "float64" if c.dtype == "float64" else "float32"


OPTIONS = (
    "gamma",
    "gae_lambda",
    "returns",
    "discount_states",
    "scale_advantages",
    "scale_rewards",
    "mean_over",
    "on_truncation",
    "minibatch_size",
    "passes",
    "ratio_clip",
    "max_kl",
    "normalize_observations",
)


def agent_of(c):
    """Returns the agent, compiled and built."""
    agent = tfr.Reinforce(
        policy_of(c),
        head_of(c.head, real_type(c) if c.head_dtype else None),
        baseline_of(c),
        entropy_coef=entropy_of(c),
        action_mask=mask_path(c),
        **{name: getattr(c, name) for name in OPTIONS},
    )
    agent.compile(optimizer=optimizer_of(c))
    return build(agent, c)


@contextlib.contextmanager
def ignore_inference_warning():
    """Ignores the warning that dropout has no effect."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The layers .* run in inference mode")
        yield


def build(agent, c):
    """Builds the agent from its spaces or from the shapes of observations."""
    with ignore_inference_warning():
        if c.spaces:
            spaces = observation_space_of(c), action_space_of(c.head)
            agent.build_for_env(
                types.SimpleNamespace(observation_space=spaces[0], action_space=spaces[1])
            )
        else:
            agent.build(
                map_structure(lambda spec, _: (None, *spec[0]), observation_specs(c))
            )
            agent.optimizer.build(agent.policy_variables)
    return agent


# Records


def record_of(c, number):
    """Returns random episodes, terminated or truncated, with invalid padding."""
    rng = np.random.default_rng([c.seed, number])
    rows, count = c.rows + c.padding, c.episodes
    lengths = rng.integers(1, c.rows + 1, size=count)
    real = real_type(c)
    observations = map_structure(
        lambda spec, _: random_observations(
            rng, (rows + 1, count), spec, real, lengths + 1
        ),
        observation_specs(c),
    )
    head = score_of(c.head)
    samples = [[head.draw(rng, real) for _ in range(count)] for _ in range(rows)]
    actions = stack_actions([[action for action, _ in row] for row in samples])
    masks = np.array([[mask for _, mask in row] for row in samples]).astype("int8")
    padding = np.arange(rows)[:, None] >= lengths
    actions = keras.tree.map_structure(lambda x: spoil_padding(x, padding), actions)
    masks[padding] = 0
    if c.action_mask == "observation":
        legal = observations["legal"]
        legal[:rows] = masks
        legal[np.arange(rows + 1)[:, None] >= lengths] = 0
    return tfr.Episodes(
        observations,
        actions,
        spoil_padding(random_rewards(rng, c.reward_kind, (rows, count)), padding),
        lengths.astype("int32"),
        rng.random(count) < 0.6,
        masks if c.action_mask else None,
    )


def random_observations(rng, batch_shape, spec, real, lengths):
    shape, dtype = spec
    if dtype == "float32":
        array = (0.3 + rng.normal(size=(*batch_shape, *shape))).astype(real)
        array[rng.random(batch_shape) < 0.1] = 0.0  # a Masking layer skips these steps
    else:
        limit = {"uint8": 256, "int64": 4, "int8": 2}[dtype]
        array = rng.integers(limit, size=(*batch_shape, *shape)).astype(dtype)
    padding = np.arange(batch_shape[0])[:, None] >= lengths
    if dtype == "int64":
        array[padding] = 0  # other integers are errors of an Embedding
        return array
    return spoil_padding(array, padding)


def spoil_padding(array, padding):
    """Fills the padding with values that must not influence any result."""
    array[padding] = np.nan if array.dtype.kind == "f" else -99 % 100
    return array


def stack_actions(rows):
    """Stacks lists of lists of nested actions to arrays `[T, B, …]`."""
    first = rows[0][0]
    flat = [[list(scores.leaves(action)) for action in row] for row in rows]
    arrays = [np.array([[x[i] for x in row] for row in flat])
             for i in range(len(flat[0][0]))]  # fmt: skip
    return scores.pack(first, iter(arrays))


def random_rewards(rng, kind, shape):
    return {
        "normal": lambda: rng.normal(size=shape),
        "whole": lambda: rng.integers(-2, 3, size=shape).astype("float64"),
        "large": lambda: 100.0 + 300.0 * rng.normal(size=shape),
        "constant": lambda: np.ones(shape),
        "none": lambda: np.zeros(shape),
    }[kind]()
