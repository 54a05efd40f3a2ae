"""Recurrent policies, which learn from whole episodes and act step by step.

A recurrent policy is a Keras model that converts sequences of observations to sequences
of outputs. In an update, the agent calls the model on whole episodes. To act, the agent
runs it on one observation at a time and passes the recurrent state from step to step. The
same layers and weights are used for learning and acting.
"""

import contextvars
import functools

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.data import seeding
from tf_reinforce.policies import attention

# The recurrent states that the current step reads and writes, separate in each thread.
_STEP: contextvars.ContextVar = contextvars.ContextVar("step")

# Accepted relative and absolute differences between whole sequences and single steps,
# which sum in another order. Half precision has three digits.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}

_RECURRENT = keras.layers.RNN, attention.CausalSelfAttention
# Layers that mix no steps, or else all of them, as short episodes show.
_SIMPLE = keras.layers.InputLayer, keras.layers.Dense, keras.layers.LayerNormalization
_SIMPLE += keras.layers.Dropout, keras.layers.Embedding, keras.layers.Activation
_SIMPLE += keras.layers.Add, keras.layers.Concatenate
# The lengths of the episodes in `RecurrentPolicy.check`: those played step by step, and
# those in which each layer without a memory runs step by step.
_CHECK_STEPS, _LONG_CHECK_STEPS = 5, 64


def is_recurrent(policy, observation_spec):
    """Returns whether a policy's outputs depend on earlier observations.

    A policy is recurrent if it contains a `keras.layers.RNN` or a `CausalSelfAttention`
    that runs over time. A layer that runs along an axis of the observation itself, for
    example over a stack of frames, does not count. The layer is assumed to be of this
    kind if the inputs have only the batch axis and at least two observation axes.

    Args:
        policy: Keras model.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.

    Example:

    >>> layers = [keras.layers.LSTM(8, return_sequences=True), keras.layers.Dense(2)]
    >>> policy = keras.Sequential([keras.Input((None, 4)), *layers])
    >>> is_recurrent(policy, tf.TensorSpec((4,)))
    True
    """
    if not _contains(policy):
        return False
    ranks = [leaf.shape.rank for leaf in keras.tree.flatten(observation_spec)]
    return max(ranks) < 2 or _input_ranks(policy) != sorted(rank + 1 for rank in ranks)


def remove_time_axis(spec, policy):
    """Returns the spec of one observation, given that of an observation or a sequence.

    Args:
        spec: `tf.TensorSpec` without batch axis, or a structure of them.
        policy: Keras model.

    Returns:
        The spec without its first axis, if that is the time axis (`None`) of a policy
        with recurrent layers, else the spec itself.
    """
    ranks = [leaf.shape.rank + 1 for leaf in keras.tree.flatten(spec)]
    is_sequence = _contains(policy) and _input_ranks(policy) == sorted(ranks)
    if not is_sequence or any(x.shape[1] is not None for x in policy.inputs):
        return spec
    return keras.tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), spec
    )


class RecurrentPolicy:
    """Runs a recurrent policy as a function of one observation and a state.

    The recurrent state is a list of arrays from all recurrent layers, in the order in
    which the layers are called. A layer that is called twice in a step has two states.

    All layers run in inference mode, so dropout and recurrent dropout are off. Keras
    masks are not supported.

    Args:
        policy: Functional or Sequential Keras model from B sequences of T observations,
            `[B, T, …]`, to P outputs each, `[B, T, P]`, or to a dict of outputs.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.

    Attributes:
        state_spec: List of `tf.TensorSpec`, the recurrent state of one episode, without
            batch axis.
        sequence_model: Keras model that applies the policy to sequences of any number and
            length.

    Raises:
        ValueError: If the policy cannot run one step at a time.

    Example:

    >>> layers = [keras.layers.LSTM(8, return_sequences=True), keras.layers.Dense(2)]
    >>> policy = keras.Sequential([keras.Input((None, 4)), *layers])
    >>> recurrent_policy = RecurrentPolicy(policy, tf.TensorSpec((4,)))
    >>> [(spec.name, tuple(spec.shape)) for spec in recurrent_policy.state_spec]
    [('state_0', (8,)), ('state_1', (8,))]
    >>> states = recurrent_policy.initial_state(3)
    >>> outputs, states = recurrent_policy.step(tf.zeros([3, 4]), states)
    >>> outputs.shape, len(states)
    (TensorShape([3, 2]), 2)
    """

    def __init__(self, policy, observation_spec):
        _check_shapes(policy, observation_spec)
        self._policy = policy
        self._observation_spec = observation_spec
        # The clone shares the policy's layers; only recurrent ones are wrapped.
        self._step_model = keras.models.clone_model(
            policy, clone_function=_to_single_step, recursive=True
        )
        # In Keras 3.15, a TimeDistributed layer confuses the batch and the time axis if
        # the number of steps is unknown, as it is in an update.
        self.sequence_model = policy
        if _contains(policy, keras.layers.TimeDistributed):
            self.sequence_model = _in_single_steps(
                policy, lambda layer: isinstance(layer, keras.layers.TimeDistributed)
            )
        self._layers = self._trace_layers()
        states = enumerate(self.initial_state(1))
        specs = [(state.shape[1:], state.dtype, f"state_{i}") for i, state in states]
        self.state_spec = [tf.TensorSpec(*spec) for spec in specs]

    def initial_state(self, batch_size):
        """Returns the recurrent state before the first observation of an episode.

        The initial state is zero for Keras' own cells. A custom cell may instead take its
        initial state from a weight, so call this method again after an update of the
        agent, which may have changed the weight.

        Args:
            batch_size: Int or scalar int tensor, the number of episodes.

        Returns:
            List of tensors `[batch_size, …]`, one for each of `state_spec`.
        """
        initial = [layer.initial_state(batch_size) for layer in self._layers]
        return keras.tree.flatten(initial)

    def step(self, observations, states):
        """Returns the policy outputs for one observation per episode, and new states.

        The method contains no loop, so it can be traced, converted to LiteRT, and run
        under a `keras.StatelessScope`.

        Args:
            observations: Array `[N, …]`, or a structure of arrays, from N episodes.
            states: List of tensors `[N, …]`, from `initial_state` or the previous step.

        Returns:
            The policy outputs, `[N, P]`, or a dict of outputs as the policy returns it;
            and the list of new states.
        """
        return self._run(observations, _StepStates(states))

    def outputs_at(self, inputs, steps, every_step):
        """Returns the policy outputs at N steps of time-major inputs `[T, B, …]`.

        Args:
            inputs: Structure of arrays.
            steps: `records.ValidSteps`, the N steps.
            every_step: `records.ValidSteps`, all valid steps. The policy reads those of
                the episodes that contain one of the N steps, up to the last row of these.
        """
        inputs, steps, every_step = _only_read(inputs, steps, every_step)
        # Zeros instead of padding, through which no gradient passes.
        sequences = _swap_axes(every_step.zero_padding(inputs))
        return steps.gather(_swap_axes(self.sequence_model(sequences, training=False)))

    def check(self):
        """Raises an error if single steps and whole sequences give different outputs.

        The policy runs step by step and on whole sequences, for two random episodes of
        five steps. A single step knows only the observation and the state, so if the
        outputs agree, no output depends on a later observation. Episodes of 64 steps
        show layers without a memory that mix distant steps, such as a dilated
        convolution: only these layers run step by step there. Noise is added to the
        weights for this check, because with zeros in the last layer all outputs would
        agree.

        Raises:
            ValueError: If the outputs differ.
        """
        rng = seeding.generator(0, "engine_comparison")
        short, long = (self._random(rng, x) for x in (_CHECK_STEPS, _LONG_CHECK_STEPS))
        noisy = [(v, _add_noise(v, rng)) for v in self._policy.trainable_variables]
        with keras.StatelessScope(state_mapping=noisy):
            states, steps = self.initial_state(2), []
            for t in range(_CHECK_STEPS):
                row = keras.tree.map_structure(lambda x, t=t: x[:, t], short)
                outputs, states = self.step(row, states)
                steps.append(outputs)
            single = keras.tree.map_structure(lambda *x: np.stack(x, axis=1), *steps)
            expected = self._policy(short, training=False)
            _compare(expected, single)
            _compare(expected, self.sequence_model(short, training=False))
            alone = _in_single_steps(self._policy, _may_mix_distant_steps)
            if _contains(alone, _PerStep):
                expected = self.sequence_model(long, training=False)
                _compare(expected, alone(long, training=False))

    def _random(self, rng, steps):
        """Returns the random observations of two episodes."""

        def draw(leaf):
            size, is_float = (2, steps, *leaf.shape), leaf.dtype.is_floating
            numbers = rng.standard_normal(size) if is_float else rng.integers(0, 2, size)
            return tf.constant(numbers.astype(leaf.dtype.as_numpy_dtype))

        return keras.tree.map_structure(draw, self._observation_spec)

    def _trace_layers(self):
        """Returns the recurrent layers in the order of their calls."""
        zeros = keras.tree.map_structure(
            lambda leaf: tf.zeros([1, *leaf.shape], leaf.dtype), self._observation_spec
        )
        step = _StepStates(None)
        try:
            self._run(zeros, step)
        except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
            shapes = records.shapes_with_axes(self._observation_spec, None, None)
            raise ValueError(
                "The policy or value model does not take the observations of this "
                f"environment. Expected: an input of shape {shapes}, for any length. "
                f"Received: {self._policy!r}, which raises: {error}"
            ) from error
        return step.layers

    def _run(self, observations, step):
        sequences = keras.tree.map_structure(lambda x: tf.expand_dims(x, 1), observations)
        token = _STEP.set(step)
        try:
            outputs = self._step_model(sequences, training=False)
        finally:
            _STEP.reset(token)
        return keras.tree.map_structure(lambda x: x[:, 0], outputs), step.new_states


def _only_read(inputs, steps, every_step):
    """Removes what `RecurrentPolicy.outputs_at` need not read from its arguments."""
    # Not all layers can read a batch of zero episodes.
    is_empty = tf.cast(tf.equal(tf.size(steps.indices), 0), tf.int32)
    rows, columns = tf.unstack(minibatches.pad_rows(steps.indices, 0, is_empty), axis=1)
    rows = tf.minimum(tf.reduce_max(rows) + 1, every_step.shape[0])
    columns = tf.sort(tf.unique(columns)[0])
    lengths = tf.math.bincount(every_step.indices[:, 1], minlength=every_step.shape[1])
    lengths = tf.minimum(tf.gather(lengths, columns), rows)
    inputs = keras.tree.map_structure(
        lambda x: tf.gather(x[:rows], columns, axis=1), inputs
    )
    numbers = tf.searchsorted(columns, steps.indices[:, 1])
    indices = tf.stack([steps.indices[:, 0], numbers], axis=1)
    every_step = records.valid_steps(lengths, rows)
    return inputs, steps._replace(indices=indices, shape=every_step.shape), every_step


class _StepStates:
    """The recurrent states of one step, in the order in which layers are called.

    Args:
        states: List of tensors, the states before the step, or `None` to start every
            layer from its initial state.
    """

    def __init__(self, states):
        self.old_states = None if states is None else iter(states)
        self.new_states = []
        self.layers = []  # the recurrent layer of each call


class _SingleStep(keras.layers.Layer):
    """Runs a recurrent layer on sequences of one step, by calling its cell once."""

    def __init__(self, rnn):
        super().__init__(name=rnn.name, dtype=rnn.dtype_policy)
        self.rnn = rnn
        self.supports_masking = True

    def build(self, sequences_shape, initial_state_shape=None):
        if initial_state_shape is not None:
            raise ValueError(
                f"The recurrent layer {self.name!r} is called with `initial_state`. For "
                "another initial state, write a cell with `get_initial_state`."
            )

    def call(self, sequences, initial_state=None, mask=None, training=False):
        if mask is not None:
            raise ValueError(
                f"The recurrent layer {self.name!r} receives a mask. Remove `Masking` "
                "and `mask_zero=True`: updates ignore padding without them."
            )
        step_states, initial = _STEP.get(), self.initial_state(tf.shape(sequences)[0])
        old = keras.tree.flatten(initial)
        if step_states.old_states is not None:
            old = [next(step_states.old_states) for _ in old]
        is_attention = isinstance(self.rnn, attention.CausalSelfAttention)
        step = self.rnn.step if is_attention else self.rnn.cell
        output, new = step(sequences[:, 0], keras.tree.pack_sequence_as(initial, old))
        new = keras.tree.flatten(new)
        step_states.new_states += new
        step_states.layers.append(self)
        sequence = tf.expand_dims(tf.cast(output, self.compute_dtype), 1)
        if not is_attention and self.rnn.return_state:
            return sequence, *keras.tree.pack_sequence_as(initial, new)
        return sequence

    def initial_state(self, batch_size):
        """Returns the layer's initial state, nested like that of its cell."""
        initial = self.rnn.get_initial_state(batch_size)
        if isinstance(self.rnn, attention.CausalSelfAttention):
            return initial
        dtype = self.rnn.cell.compute_dtype
        return keras.tree.map_structure(lambda state: tf.cast(state, dtype), initial)

    def compute_output_shape(self, sequences_shape):
        return self.rnn.compute_output_shape(sequences_shape)


class _PerStep(keras.layers.Layer):
    """Applies a layer to the T steps of B sequences, as B T sequences of one step."""

    def __init__(self, layer):
        super().__init__(name=layer.name, dtype=layer.dtype_policy)
        self.layer = layer
        self.supports_masking = True

    def call(self, inputs, *others, **options):
        leading = tf.shape(keras.tree.flatten(inputs)[0])[:2]

        def one_step(x):
            if not hasattr(x, "shape"):
                return x
            x = tf.convert_to_tensor(x)
            return tf.reshape(x, tf.concat([[-1, 1], tf.shape(x)[2:]], axis=0))

        def all_steps(x):
            shape = tf.concat([leading, tf.shape(x)[2:]], axis=0)
            return tf.ensure_shape(tf.reshape(x, shape), (None, None, *x.shape[2:]))

        inputs, others = keras.tree.map_structure(one_step, (inputs, others))
        results = self.layer(inputs, *others, **options)
        return keras.tree.map_structure(all_steps, results)


# What the attributes of a recurrent layer must be, and why.
_NEEDED = {
    "return_sequences": (True, "an output at every step"),
    "go_backwards": (False, "steps in the order of time"),
    "stateful": (False, "a new state for every episode"),
    "unroll": (False, "episodes of any length"),
}


def _to_single_step(layer):
    """Returns a `_SingleStep` in place of a recurrent layer, and others unchanged."""
    if isinstance(layer, keras.layers.Bidirectional):
        raise ValueError(
            f"The layer {layer.name!r} is Bidirectional. It also reads an episode from "
            "its end, which is unknown when the policy acts. Use only the layer inside."
        )
    if isinstance(layer, keras.Model) and _contains(layer):
        raise ValueError(
            f"The model {layer.name!r} inside the policy is a subclass of keras.Model "
            "with recurrent layers, which Keras cannot run step by step. Build it as a "
            "Functional or Sequential model."
        )
    if not isinstance(layer, _RECURRENT):
        return layer
    for name, (needed, reason) in _NEEDED.items():
        if getattr(layer, name, needed) != needed:
            raise ValueError(
                f"A policy needs {reason}. Received: the recurrent layer {layer.name!r} "
                f"with {name}={not needed}. Set {name}={needed}."
            )
    return _SingleStep(layer)


def _may_mix_distant_steps(layer):
    """Returns whether short episodes may not show that a layer mixes steps."""
    known = *_RECURRENT, *_SIMPLE
    return isinstance(layer, keras.layers.Layer) and not isinstance(layer, known)


def _in_single_steps(policy, condition):
    """Returns a model whose layers of a kind process each step alone."""

    def replace(layer):
        return _PerStep(layer) if condition(layer) else layer

    return keras.models.clone_model(policy, clone_function=replace, recursive=True)


def expect_inputs(model, spec, size):
    """Raises an error unless the inputs of a model are sequences of the given steps.

    Of sequences of any length, it checks the ranks and that the length is unknown. Models
    of windows may be subclasses of `keras.Model`, whose inputs are unknown.

    Args:
        model: Keras model.
        spec: `tf.TensorSpec` of the input at one step, or a structure of them.
        size: Number of steps, or `None` for any number.
    """
    inputs = [tuple(x.shape) for x in getattr(model, "inputs", None) or ()]
    nested = records.shapes_with_axes(spec, None, size)
    expected = [(None, size, *leaf.shape) for leaf in keras.tree.flatten(spec)]
    axes = slice(1, 2 if size is None else None)

    def fits(shape, other):
        pairs = zip(shape[axes], other[axes])
        return len(shape) == len(other) and all(x is None or x == y for x, y in pairs)

    sort = functools.partial(sorted, key=lambda shape: (len(shape), str(shape)))
    is_unknown = size is not None and not inputs
    all_fit = len(inputs) == len(expected) and all(
        map(fits, sort(inputs), sort(expected))
    )
    if is_unknown or all_fit:
        return
    received = "unknown shapes"
    if inputs:
        given = getattr(model, "input", model.inputs)  # a Sequential has only the latter
        received = keras.tree.map_structure(lambda x: tuple(x.shape), given)
    start = f"Start it with keras.Input({expected[0][1:]})"
    if len(expected) > 1:
        start = "Start it with a dict that holds a keras.Input for each name"
    if len(inputs) > len(expected):
        start += ", or pass `context_inputs` for a model that reads actions or rewards"
    steps = "sequences of any length" if size is None else f"windows of {size} steps"
    raise ValueError(
        f"A policy or value model of {steps} must be a Functional or Sequential model "
        f"with inputs of the shapes {nested}. Received: {model!r} with inputs of "
        f"{received}. {start}."
    )


def _check_shapes(policy, observation_spec):
    """Raises an error unless a policy maps sequences of any length to rows of numbers."""
    expect_inputs(policy, observation_spec, None)
    shapes = [tuple(x.shape) for x in policy.outputs]
    if any(len(shape) != 3 for shape in shapes):
        raise ValueError(
            "A policy with recurrent layers must return one row of numbers per step, in "
            f"the shape (None, None, P). Received: outputs of shape {shapes}. Set "
            "return_sequences=True, and remove Flatten and pooling over time."
        )


def _swap_axes(structure):
    """Swaps the time and batch axes of every array of a structure."""
    return keras.tree.map_structure(
        lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), structure
    )


def _compare(expected, received):
    """Raises an error if `received` differs from the outputs of whole sequences."""
    for pair in zip(keras.tree.flatten(expected), keras.tree.flatten(received)):
        expected, received = map(np.asarray, pair)
        tolerance, place = _TOLERANCES[expected.dtype.name], "in their number"
        if expected.shape == received.shape:
            expected, received = (x.astype("float64") for x in (expected, received))
            is_near = np.isclose(received, expected, tolerance, tolerance).all((0, 2))
            if is_near.all():
                continue
            place = f"from step {int(np.argmin(is_near))} on"
        raise ValueError(
            "The policy mixes time steps in other ways than through recurrent layers, so "
            "it cannot act step by step. For attention over time, use tfr.layers."
            "CausalSelfAttention. Remove other attention, convolution, pooling and "
            "normalization over time, or pass `context=K` to the agent for a policy of "
            "the last K steps. Wrap layers that process each step alone in keras.layers."
            "TimeDistributed. Received: outputs of single steps and of whole sequences, "
            f"which differ {place}."
        )


def _add_noise(variable, rng):
    """Returns a variable's value plus noise as large as usual initial weights."""
    fan_in = variable.shape[0] if len(variable.shape) > 1 else 4
    noise = rng.standard_normal(tuple(variable.shape)) / np.sqrt(fan_in)
    return variable.value + tf.cast(noise, variable.dtype)


def _contains(model, layer_class=_RECURRENT):
    """Returns whether a model contains a layer of a class, at any depth."""
    layers = model._flatten_layers(include_self=True, recursive=True)
    return any(isinstance(layer, layer_class) for layer in layers)


def _input_ranks(policy):
    """Returns the sorted ranks of a policy's inputs, or `None` if they are unknown."""
    inputs = getattr(policy, "inputs", None)
    return None if inputs is None else sorted(len(x.shape) for x in inputs)
