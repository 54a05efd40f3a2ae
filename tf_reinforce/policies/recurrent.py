"""Runs recurrent policies over sequences to learn, and step by step to act.

A user writes a Keras model from sequences to sequences. An update feeds it whole
episodes. Acting feeds it one observation at a time and carries the recurrent state. Both
use the same layers and the same weights; nothing is copied.
"""

import contextvars

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding

# What one step reads and writes, while it runs: threads do not see each other's.
_STEP: contextvars.ContextVar = contextvars.ContextVar("step")

# How far a whole sequence and its single steps may lie apart. They add up in another
# order; half precision is off in its third digit.
_TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def is_recurrent(policy, structure):
    """Whether a policy remembers earlier observations.

    Args:
        policy: Keras model.
        structure: `tf.TensorSpec`, or a structure of them: one observation.

    Returns:
        Bool: whether there is a `keras.layers.RNN` in it. The exception are layers that
        run along an axis of the observation itself, as over a stack of frames: the
        inputs then have the observation's own axes, of which there are several.

    Example:

    >>> layers = [keras.layers.LSTM(8, return_sequences=True), keras.layers.Dense(2)]
    >>> policy = keras.Sequential([keras.Input((None, 4)), *layers])
    >>> is_recurrent(policy, tf.TensorSpec((4,)))
    True
    """
    if not _remembers(policy):
        return False
    ranks = [leaf.shape.rank for leaf in keras.tree.flatten(structure)]
    return max(ranks) < 2 or _ranks(policy) != sorted(rank + 1 for rank in ranks)


def one_observation(structure, policy):
    """The structure of one observation, where that of a sequence may have been given.

    Args:
        structure: `tf.TensorSpec`, or a structure of them, without the batch axis.
        policy: Keras model.

    Returns:
        The structure, without its first axis where that is the open time axis of a
        policy with recurrent layers.
    """
    ranks = [leaf.shape.rank + 1 for leaf in keras.tree.flatten(structure)]
    if (
        not _remembers(policy)
        or _ranks(policy) != sorted(ranks)
        or any(x.shape[1] is not None for x in policy.inputs)
    ):
        return structure
    return keras.tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), structure
    )


class RecurrentPolicy:
    """A recurrent policy as a function of one observation and a state.

    The state is a list of arrays, those of each recurrent layer in the order in which
    the layers are called. A layer that is called twice has two states. A layer behind
    a mask also remembers its last output, which it repeats at a step that is masked.

    Training mode does not exist here: dropout, recurrent dropout included, is off.

    Args:
        policy: Functional or Sequential Keras model from sequences `[B, T, …]` to
            `[B, T, P]`, or to a dict of such outputs.
        structure: `tf.TensorSpec`, or a structure of them: one observation.

    Attributes:
        state: List of `tf.TensorSpec`, the state of one episode; without a batch axis.
        whole: Keras model, the policy on whole sequences, of any number and length.

    Raises:
        ValueError: when such a policy cannot be run one step at a time, with the layer
            or the shape in its way, and the remedy.

    Example:

    >>> layers = [keras.layers.LSTM(8, return_sequences=True), keras.layers.Dense(2)]
    >>> policy = keras.Sequential([keras.Input((None, 4)), *layers])
    >>> memory = RecurrentPolicy(policy, tf.TensorSpec((4,)))
    >>> [(spec.name, tuple(spec.shape)) for spec in memory.state]
    [('state_0', (8,)), ('state_1', (8,))]
    >>> outputs, states = memory.step(tf.zeros([3, 4]), memory.initial(3))
    >>> outputs.shape, len(states)
    (TensorShape([3, 2]), 2)
    """

    def __init__(self, policy, structure):
        _check_inputs(policy, structure)
        self._policy = policy
        self._structure = structure
        # The layers themselves are kept, but for the recurrent ones, which are wrapped.
        self._model = keras.models.clone_model(
            policy, clone_function=_one_step, recursive=True
        )
        # Keras 3.15 takes the batch for the time inside a TimeDistributed layer wherever
        # the number of steps is open, as it is in an update.
        self.whole = policy
        if _holds(policy, keras.layers.TimeDistributed):
            self.whole = keras.models.clone_model(
                policy, clone_function=_folded, recursive=True
            )
        _check_outputs(policy)
        self._calls = self._try_out()
        self.state = [
            tf.TensorSpec(state.shape[1:], state.dtype, f"state_{i}")
            for i, state in enumerate(self.initial(1))
        ]

    def initial(self, batch_size):
        """The state before the first observation, as the cells themselves begin.

        Zeros for the cells of Keras. A cell may have learned its first state: call this
        anew after an update.

        Args:
            batch_size: Int, or scalar int tensor.

        Returns:
            List of tensors `[batch_size, …]`, one for each of `state`.
        """
        states = []
        for layer, repeated in self._calls:
            states += keras.tree.flatten(layer.first_state(batch_size))
            if repeated is not None:
                states.append(tf.zeros([batch_size, *repeated.shape], repeated.dtype))
        return states

    def step(self, observations, states):
        """Outputs for one observation per row, and what is remembered of it.

        Plain operations without a loop: it can be traced, converted to LiteRT, and run
        under a `keras.StatelessScope`.

        Args:
            observations: Structure of arrays `[N, …]`.
            states: List of tensors `[N, …]`, from `initial` or from the step before.

        Returns:
            Outputs `[N, P]`, or a dict of them as the policy has; and the new states.

        Raises:
            ValueError: when the number of states is another.
        """
        if len(states) != len(self.state):
            raise ValueError(
                f"`states` must be a list of {len(self.state)} arrays, one for each of "
                f"`state`. Received: {len(states)}. Begin an episode with `initial`."
            )
        return self._run(observations, _Step(states))

    def check(self):
        """Refuses a policy whose single steps are not those of the whole sequence.

        Two random episodes of five steps are run both ways. A single step knows nothing
        but its observation and the state: where it agrees with the whole sequence, no
        later observation has had a part in an earlier output. The weights are disturbed
        for the comparison, since a last layer of zeros would hide everything.

        Raises:
            ValueError: with the step and both outputs.
        """
        rng = seeding.generator(0, "parity")

        def draw(leaf):
            shape = (2, 5, *leaf.shape)
            if leaf.dtype.is_floating:
                numbers = rng.standard_normal(shape)
                numbers[0, 2] = 0.0  # a step that a Masking layer leaves out
            else:
                numbers = rng.integers(0, 2, shape)
            return tf.constant(numbers.astype(leaf.dtype.as_numpy_dtype))

        observations = keras.tree.map_structure(draw, self._structure)
        disturbed = [
            (variable, _disturbed(variable, rng))
            for variable in self._policy.trainable_variables
        ]
        with keras.StatelessScope(state_mapping=disturbed):
            given = keras.tree.flatten(self._policy(observations, training=False))
            whole = keras.tree.flatten(self.whole(observations, training=False))
            states, single = self.initial(2), []
            for now in range(5):
                row = keras.tree.map_structure(lambda x, now=now: x[:, now], observations)
                outputs, states = self.step(row, states)
                single.append(keras.tree.flatten(outputs))
        for expected, folded, *received in zip(given, whole, *single, strict=True):
            _compare(np.asarray(expected), np.stack(received, axis=1))
            _compare(np.asarray(expected), np.asarray(folded))

    def _try_out(self):
        """One step of zeros: shows which layers remember, and in which order."""
        zeros = keras.tree.map_structure(
            lambda leaf: tf.zeros([1, *leaf.shape], leaf.dtype), self._structure
        )
        first = _Step(None)
        try:
            self._run(zeros, first)
        except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                "The policy does not take the observations of this environment one step "
                f"at a time. Expected: an input of shape {_shapes(self._structure)}, for "
                f"any number of steps. Received: {self._policy!r}, which says: {error}"
            ) from error
        return first.calls

    def _run(self, observations, step):
        sequences = keras.tree.map_structure(
            lambda array: tf.expand_dims(array, 1), observations
        )
        token = _STEP.set(step)
        try:
            outputs = self._model(sequences, training=False)
        finally:
            _STEP.reset(token)
        return keras.tree.map_structure(lambda x: x[:, 0], outputs), step.after


class _Step:
    """The states of one step: handed out, and taken back, in the order of the calls."""

    def __init__(self, states):
        self.first = states is None
        self.before = list(states or [])
        self.after = []
        self.calls = []  # recurrent layer, and the output it may have to repeat

    def take(self, count):
        """The next states that are due."""
        taken, self.before = self.before[:count], self.before[count:]
        return taken


class _OneStep(keras.layers.Layer):
    """A recurrent layer on sequences of one step: its cell, called once."""

    def __init__(self, rnn):
        super().__init__(name=rnn.name, dtype=rnn.dtype_policy)
        self.rnn = rnn
        self.supports_masking = True

    def build(self, sequences_shape, initial_state_shape=None):
        if initial_state_shape is not None:
            raise ValueError(
                f"The recurrent layer {self.name!r} is called with `initial_state`. That "
                "would begin anew at every step. Leave it out; for another first state, "
                "write a cell with `get_initial_state` and use keras.layers.RNN(cell)."
            )

    def call(self, sequences, initial_state=None, mask=None, training=False):
        step, first = _STEP.get(), self.first_state(tf.shape(sequences)[0])
        flat = keras.tree.flatten(first)
        before = flat if step.first else step.take(len(flat))
        output, after = self.rnn.cell(
            sequences[:, 0], keras.tree.pack_sequence_as(first, before)
        )
        after, repeated = keras.tree.flatten(after), None
        if mask is not None:
            present = keras.tree.flatten(mask)[0][:, 0]
            after = [_where(present, new, old) for new, old in zip(after, before)]
            last = tf.zeros_like(output)
            if not self.rnn.zero_output_for_mask:
                repeated = tf.TensorSpec(output.shape[1:], output.dtype)
                last = last if step.first else step.take(1)[0]
            output = _where(present, output, last)
        step.after += after if repeated is None else [*after, output]
        step.calls.append((self, repeated))
        sequence = tf.expand_dims(tf.cast(output, self.compute_dtype), 1)
        if self.rnn.return_state:
            return sequence, *keras.tree.pack_sequence_as(first, after)
        return sequence

    def first_state(self, batch_size):
        """What the layer begins with, nested as its cell nests it."""
        return keras.tree.map_structure(
            lambda state: tf.cast(state, self.rnn.cell.compute_dtype),
            self.rnn.get_initial_state(batch_size),
        )

    def compute_mask(self, inputs, mask):
        return self.rnn.compute_mask(inputs, mask)

    def compute_output_shape(self, sequences_shape):
        return self.rnn.compute_output_shape(sequences_shape)


class _Folded(keras.layers.Layer):
    """A layer for each step of sequences, as one call with the steps in the batch."""

    def __init__(self, distributed):
        super().__init__(name=distributed.name, dtype=distributed.dtype_policy)
        self.distributed = distributed
        self.supports_masking = True

    def call(self, sequences, mask=None, training=False):
        leading = tf.shape(sequences)[:2]
        rows = tf.reshape(sequences, [-1, *sequences.shape[2:]])
        results = self.distributed.layer(rows, training=training)
        shape = tf.concat([leading, tf.shape(results)[1:]], axis=0)
        folded = tf.reshape(results, shape)
        folded.set_shape([*sequences.shape[:2], *results.shape[1:]])
        return folded

    def compute_output_shape(self, sequences_shape):
        return self.distributed.compute_output_shape(sequences_shape)


def _folded(layer):
    """The layer itself, or what stands for it where it is distributed over time."""
    distributed = isinstance(layer, keras.layers.TimeDistributed)
    return _Folded(layer) if distributed else layer


def _one_step(layer):
    """The layer itself, or what stands for it where it remembers."""
    if isinstance(layer, keras.layers.Bidirectional):
        raise ValueError(
            f"The layer {layer.name!r} is Bidirectional: it reads an episode also from "
            "its end, which has not happened when the policy acts. Use the layer inside "
            "it alone, with return_sequences=True."
        )
    if isinstance(layer, keras.layers.RNN):
        _check_layer(layer)
        return _OneStep(layer)
    if isinstance(layer, keras.Model) and _remembers(layer):
        raise ValueError(
            f"The model {layer.name!r} inside the policy is a subclass of keras.Model "
            "with recurrent layers, and Keras cannot run it again step by step. Build it "
            "as a Functional or Sequential model."
        )
    return layer


def _check_layer(layer):
    """Refuses a recurrent layer that makes no sequence, or not from left to right."""
    name = f"The recurrent layer {layer.name!r}"
    if not layer.return_sequences:
        raise ValueError(
            f"{name} puts out its last step only; a policy needs an output at every "
            "step. Received: return_sequences=False. Set return_sequences=True."
        )
    if layer.go_backwards:
        raise ValueError(
            f"{name} reads an episode from its end, which has not happened when the "
            "policy acts. Received: go_backwards=True. Set go_backwards=False."
        )
    if layer.stateful:
        raise ValueError(
            f"{name} keeps its state from one batch to the next; here every episode "
            "begins anew, and the state between two steps is carried for you. "
            "Received: stateful=True. Set stateful=False."
        )
    if layer.unroll:
        raise ValueError(
            f"{name} is unrolled, for which the number of steps must be fixed; episodes "
            "have any. Received: unroll=True. Set unroll=False."
        )


def _check_inputs(policy, structure):
    """Refuses inputs that are not sequences of any length."""
    expected = _shapes(structure)
    leaves = keras.tree.flatten(structure)
    remedy = ", ".join(f"keras.Input({(None, *leaf.shape)})" for leaf in leaves)
    ranks = _ranks(policy)
    if ranks is None:
        raise ValueError(
            "A policy with recurrent layers must be a Functional or Sequential model "
            "that begins with keras.Input, so that Keras can run it step by step. "
            f"Received: {policy!r}, whose inputs are not known. A subclass of "
            "keras.Model cannot be run again layer by layer: build it as a Functional "
            f"or Sequential model from {remedy}."
        )
    received = keras.tree.map_structure(lambda x: tuple(x.shape), policy.inputs)
    if ranks != sorted(leaf.shape.rank + 2 for leaf in leaves):
        raise ValueError(
            "A policy with recurrent layers takes sequences of observations: batch and "
            f"time come first. Expected: inputs of shape {expected}. Received: inputs of "
            f"shape {received}. Begin it with {remedy}."
        )
    if any(shape[1] is not None for shape in received):
        raise ValueError(
            "Episodes have any number of steps, so that the time axis of a policy must "
            f"be left open. Expected: inputs of shape {expected}. Received: inputs of "
            f"shape {received}. Begin it with {remedy}."
        )


def _check_outputs(policy):
    """Refuses outputs that are not one row of numbers per step."""
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), policy.outputs)
    if any(len(shape) != 3 for shape in shapes):
        raise ValueError(
            "A policy with recurrent layers must put out one row of numbers per step, "
            f"shape (None, None, P). Received: outputs of shape {shapes}. Leave out "
            "layers that take the time axis away, as Flatten and pooling over time do."
        )


def _compare(expected, received):
    """Refuses single steps `[B, T, P]` that are not those of the whole sequence."""
    if expected.shape != received.shape:
        difference = (
            f"a sequence gives outputs of the shape {expected.shape}, and its single "
            f"steps together {received.shape}"
        )
    else:
        tolerance = _TOLERANCES[expected.dtype.name]
        whole, single = expected.astype("float64"), received.astype("float64")
        close = np.isclose(single, whole, rtol=tolerance, atol=tolerance)
        if close.all():
            return
        episode, step, _ = np.argwhere(~close)[0]
        difference = (
            f"at step {step} of 5 the whole sequence gives {expected[episode, step]}, "
            f"and the single steps {received[episode, step]}"
        )
    raise ValueError(
        "The policy mixes time steps in other ways than through recurrent layers, so "
        f"that it cannot act step by step: for random numbers, {difference}. Expected: "
        "the same both ways. Leave out convolution, attention, pooling and normalisation "
        "over the time axis, and layers of your own with recurrent layers hidden inside; "
        "wrap what belongs to one step into keras.layers.TimeDistributed."
    )


def _disturbed(variable, rng):
    """The value of a variable, with noise that a layer neither drowns nor misses."""
    fan_in = variable.shape[0] if len(variable.shape) > 1 else 4
    noise = rng.standard_normal(tuple(variable.shape)) / np.sqrt(fan_in)
    return variable.value + tf.cast(noise, variable.dtype)


def _where(present, new, old):
    """Rows `[N, …]` of the new array where a step is present, else of the old one."""
    for _ in range(new.shape.rank - 1):
        present = tf.expand_dims(present, -1)
    return tf.where(present, new, old)


def _remembers(model):
    """Whether there is a recurrent layer anywhere in a model."""
    return _holds(model, keras.layers.RNN)


def _holds(model, kind):
    layers = model._flatten_layers(include_self=True, recursive=True)
    return any(isinstance(layer, kind) for layer in layers)


def _ranks(policy):
    """The sorted ranks of a policy's inputs, or `None` where they are not known."""
    inputs = getattr(policy, "inputs", None)
    return None if inputs is None else sorted(len(x.shape) for x in inputs)


def _shapes(structure):
    return keras.tree.map_structure(lambda leaf: (None, None, *leaf.shape), structure)
