"""Tests single steps of recurrent policies against Keras on the whole sequence."""

import threading

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.policies import recurrent

VECTOR = tf.TensorSpec((4,), "float32")
layers = keras.layers


def sequential(*parts, shape=(4,)):
    inputs = keras.Input((None, *shape))
    return keras.Sequential([inputs, *parts, layers.Dense(2)])


def sequences(kind, units=8, **kwargs):
    return kind(units, return_sequences=True, **kwargs)


@keras.saving.register_keras_serializable("tests")
class Leaky(keras.Layer):
    """A cell whose initial state is a weight."""

    state_size = output_size = 3

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")
        self.first = self.add_weight(shape=(3,), initializer="ones", name="first")

    def call(self, inputs, states):
        new = 0.5 * states[0] + keras.ops.matmul(inputs, self.kernel)
        return keras.ops.tanh(new), [new]

    def get_initial_state(self, batch_size=None):
        return keras.ops.broadcast_to(self.first, (batch_size, 3))


class Plain(layers.SimpleRNNCell):
    """A cell without `get_initial_state`, which returns its state as an array."""

    get_initial_state = None

    def call(self, inputs, states, training=False):
        return super().call(inputs, states[0])


def named():
    """Returns a policy with values, and two inputs, one of them an image per step."""
    image = keras.Input((None, 6, 6, 1), name="image")
    speed = keras.Input((None, 2), name="speed")
    x = layers.TimeDistributed(layers.Conv2D(3, 3, strides=2, activation="relu"))(image)
    x = layers.TimeDistributed(layers.Flatten())(x)
    x = layers.Concatenate()([x, speed])
    y = sequences(layers.GRU)(x)
    x = sequences(layers.LSTM, 5)(layers.Concatenate()([x, y]))
    outputs = {"outputs": layers.Dense(2)(x), "values": layers.Dense(1)(y)}
    return keras.Model({"image": image, "speed": speed}, outputs)


NAMED = {
    "image": tf.TensorSpec((6, 6, 1), "float32"),
    "speed": tf.TensorSpec((2,), "float32"),
}


def nested():
    """Returns a policy with nested models, an operation and a layer normalization."""
    core = keras.Sequential([sequences(layers.LSTM), layers.LayerNormalization()])
    inputs = keras.Input((None, 4))
    inner = keras.Model(inputs, core(layers.Dense(6, "tanh")(inputs)) * 2.0)
    x = keras.Input((None, 4))
    y = layers.Dense(8)(x) + inner(x)
    return keras.Model(x, layers.Dense(2)(sequences(layers.SimpleRNN, 3)(y)))


def shared():
    """Returns a policy that uses a layer and a model twice, with four states in all."""
    once = sequences(layers.GRU, 4)
    model = keras.Sequential([keras.Input((None, 4)), sequences(layers.SimpleRNN, 4)])
    x = keras.Input((None, 4))
    y = layers.Concatenate()([once(x), model(once(x) + 1.0), model(x)])
    return keras.Model(x, layers.Dense(2)(y))


def with_state():
    """Returns a policy that ignores the states which a layer returns."""
    x = keras.Input((None, 4))
    y, *_ = sequences(layers.LSTM, return_state=True)(x)
    return keras.Model(x, layers.Dense(2)(y))


def stack(*cells):
    return layers.RNN(list(cells), return_sequences=True)


KINDS = {
    "lstm": lambda: sequential(sequences(layers.LSTM)),
    "gru": lambda: sequential(sequences(layers.GRU)),
    "gru_v1": lambda: sequential(sequences(layers.GRU, reset_after=False)),
    "simple": lambda: sequential(sequences(layers.SimpleRNN)),
    "stacked": lambda: sequential(
        stack(layers.LSTMCell(5), layers.GRUCell(3), layers.LSTMCell(2))
    ),
    "several": lambda: sequential(
        layers.Dense(6, "relu"),
        sequences(layers.LSTM, 5),
        layers.Dropout(0.5),
        sequences(layers.GRU, 5),
        sequences(layers.LSTM, 5),
    ),
    "cell": lambda: sequential(layers.RNN(Plain(8), return_sequences=True)),
    "learned_start": lambda: sequential(layers.RNN(Leaky(), return_sequences=True)),
    "bare": lambda: keras.Sequential([keras.Input((None, 4)), sequences(layers.GRU, 2)]),
    "dropout": lambda: sequential(
        sequences(layers.LSTM, dropout=0.5, recurrent_dropout=0.5),
        layers.BatchNormalization(),
    ),
    "conv_lstm": lambda: sequential(
        sequences(layers.ConvLSTM2D, 2, kernel_size=3),
        layers.TimeDistributed(layers.Flatten()),
        shape=(5, 5, 1),
    ),
    "frames_within_a_step": lambda: sequential(
        layers.TimeDistributed(layers.LSTM(3)), sequences(layers.LSTM), shape=(3, 4)
    ),
    "named": named,
    "nested": nested,
    "shared": shared,
    "with_state": with_state,
}


def structure_of(policy):
    if len(policy.inputs) == 2:
        return NAMED
    (x,) = policy.inputs
    return tf.TensorSpec(tuple(x.shape[2:]), "float32")


def episode(structure, steps, count=3):
    """Returns random observations `[T, B, …]`."""
    rng = np.random.default_rng(0)

    def draw(leaf):
        shape = (steps, count, *leaf.shape)
        return tf.constant(rng.standard_normal(shape), leaf.dtype)

    return keras.tree.map_structure(draw, structure)


def by_episode(columns):
    """Swaps the time and the episode axis."""
    return keras.tree.map_structure(lambda x: np.swapaxes(x, 0, 1), columns)


def row(columns, now):
    return keras.tree.map_structure(lambda x: x[now], columns)


def step_by_step(memory, observations, steps):
    states, outputs = memory.initial_state(3), []
    for now in range(steps):
        single, states = memory.step(row(observations, now), states)
        outputs.append(single)
    return keras.tree.map_structure(lambda *rows: np.stack(rows), *outputs)


def assert_close(ours, theirs, tolerance):
    keras.tree.assert_same_structure(ours, theirs)
    pairs = zip(keras.tree.flatten(ours), keras.tree.flatten(theirs), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def policy_and_memory(kind, dtype="float32"):
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    policy = KINDS[kind]()
    structure = keras.tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, dtype), structure_of(policy)
    )
    return policy, recurrent.RecurrentPolicy(policy, structure), structure


OFTEN = ["lstm", "gru", "several", "learned_start", "named", "shared", "with_state"]


@pytest.mark.parametrize("kind", sweeps.some(KINDS, always=OFTEN))
def test_single_steps_equal_the_whole_sequence(kind):
    """Also the check, which each recurrent policy has to pass, finds no difference."""
    policy, memory, structure = policy_and_memory(kind, "float64")
    memory.check()
    observations = episode(structure, 7)
    whole = by_episode(policy(by_episode(observations), training=False))
    assert_close(step_by_step(memory, observations, 7), whole, 1e-12)


@pytest.mark.parametrize(
    "kind, shapes",
    [
        ("lstm", [(8,), (8,)]),
        ("gru", [(8,)]),
        ("stacked", [(5,), (5,), (3,), (2,), (2,)]),
        ("conv_lstm", [(3, 3, 2)] * 2),
        ("shared", [(4,)] * 4),
    ],
)
def test_state_spec_has_an_array_for_each_state_of_each_layer_call(kind, shapes):
    _, memory, _ = policy_and_memory(kind)
    assert [tuple(spec.shape) for spec in memory.state_spec] == shapes
    names = [f"state_{i}" for i in range(len(shapes))]
    assert [spec.name for spec in memory.state_spec] == names
    for spec, state in zip(memory.state_spec, memory.initial_state(6), strict=True):
        assert state.shape == (6, *spec.shape) and state.dtype == spec.dtype
        np.testing.assert_array_equal(state, np.zeros(state.shape))


# Weights shared with the policy


def test_steps_use_the_current_weights_of_the_policy():
    policy, memory, structure = policy_and_memory("nested")
    observations = episode(structure, 4)
    for variable in policy.trainable_variables:
        variable.assign(variable + 0.1)
    whole = by_episode(policy(by_episode(observations)))
    assert_close(step_by_step(memory, observations, 4), whole, 1e-5)


def test_steps_in_two_threads_do_not_influence_each_other():
    """One thread waits in the middle of a step, while another thread makes a step."""
    gate, inside = threading.Event(), threading.Event()

    class Stop(keras.Layer):
        def call(self, inputs):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                gate.wait(60)
            return inputs

    lstm, gru = sequences(layers.LSTM), sequences(layers.GRU, 3)
    memory = recurrent.RecurrentPolicy(sequential(lstm, Stop(), gru), VECTOR)
    x, states, found = tf.ones([2, 4]), memory.initial_state(2), []
    thread = threading.Thread(
        target=lambda: found.append(memory.step(x, [state + 1.0 for state in states]))
    )
    thread.start()
    assert inside.wait(60)
    _, here = memory.step(x, states)
    gate.set()
    thread.join()
    _, there = found[0]
    _, alone = memory.step(x, [state + 1.0 for state in states])
    for a, b in zip(there, alone, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(here) == 3 and not np.allclose(here[0], there[0])


# Padding


@pytest.mark.parametrize("kind", ["lstm", "stacked"])
def test_gradient_does_not_depend_on_padding(kind):
    """The padding follows the last step of its episode, so that no step depends on it.

    episode 0    o o o . . .     o step, . padding
    episode 1    o o o o o .
    """
    policy, _, structure = policy_and_memory(kind, "float64")
    observations, lengths = episode(structure, 6, 2).numpy(), [3, 5]
    observations[3:, 0] = observations[5:, 1] = np.nan

    def alone(column, length):
        outputs = policy(observations[None, :length, column], training=False)
        return tf.reduce_sum(outputs**2)

    def together():
        steps = records.valid_steps(lengths, 6)
        columns = by_episode(steps.zero_padding(tf.constant(observations)))
        outputs = tf.transpose(policy(columns, training=False), [1, 0, 2])
        return tf.reduce_sum(steps.gather(outputs) ** 2)

    weights = [variable.value for variable in policy.trainable_variables]
    with tf.GradientTape() as tape:
        truth = alone(0, 3) + alone(1, 5)
    truth = tape.gradient(truth, weights)
    with tf.GradientTape() as tape:
        loss = together()
    for ours, theirs in zip(tape.gradient(loss, weights), truth, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


# is_recurrent


@pytest.mark.parametrize("time", [None, 8])
def test_is_recurrent_is_false_for_a_layer_over_frames_of_one_observation(time):
    policy = keras.Sequential([keras.Input((time, 4)), layers.LSTM(3), layers.Dense(2)])
    assert not recurrent.is_recurrent(policy, tf.TensorSpec((8, 4)))
    assert recurrent.is_recurrent(policy, VECTOR)


# Errors


class Subclass(keras.Model):
    """A subclassed model, in which Keras does not know the order of the layers."""

    def __init__(self):
        super().__init__()
        self.memory, self.last = sequences(layers.LSTM), layers.Dense(2)

    def call(self, inputs):
        return self.last(self.memory(inputs))


def around(build):
    """Returns a functional policy with a given part between two dense layers."""
    x = keras.Input((None, 4))
    return keras.Model(x, layers.Dense(2)(build(layers.Dense(4)(x))))


def begun_elsewhere():
    x = keras.Input((None, 4))
    first = layers.Dense(8)(layers.GlobalMaxPooling1D()(x))
    return keras.Model(x, sequences(layers.GRU)(x, initial_state=first))


def feedforward(*parts, shape=(4,)):
    return keras.Sequential([keras.Input(shape), *parts, layers.Dense(2)])


def wrong(**options):
    return lambda: sequential(sequences(layers.LSTM, **options))


def of_batches():
    inputs = keras.Input(batch_shape=(2, None, 4))
    return keras.Sequential([inputs, sequences(layers.LSTM, stateful=True)])


FIRST = r"Start it with keras.Input\(\(None, 4\)\)"
REFUSED = {
    "last_output_only": (
        lambda: sequential(layers.LSTM(8, name="mine")),
        r"outputs of shape \[\(None, 2\)\]. Set return_sequences=True",
    ),
    "backwards": (wrong(go_backwards=True), "order of time.*Set go_backwards=False"),
    "stateful": (of_batches, "every episode.*Set stateful=False"),
    "unrolled": (wrong(unroll=True), "any length.*Set unroll=False"),
    "bidirectional": (
        lambda: sequential(layers.Bidirectional(sequences(layers.LSTM))),
        "is Bidirectional.*is unknown",
    ),
    "subclass": (Subclass, f"Functional or Sequential.*unknown shapes. {FIRST}"),
    "subclass_inside": (
        lambda: around(Subclass()),
        "inside the policy is a subclass of keras.Model.*as a Functional",
    ),
    "no_time_axis": (
        lambda: feedforward(layers.Reshape((1, 4)), sequences(layers.LSTM)),
        rf"of any length .*Received: .* of \[\(None, 4\)\]. {FIRST}",
    ),
    "fixed_time_axis": (
        lambda: feedforward(sequences(layers.LSTM), shape=(10, 4)),
        rf"of any length.* of \[\(None, 10, 4\)\]. {FIRST}",
    ),
    "another_width": (
        lambda: sequential(sequences(layers.LSTM), shape=(3,)),
        r"does not take the observations.*Expected: an input of shape \(None, None, 4\)",
    ),
    "pooled": (
        lambda: sequential(sequences(layers.LSTM), layers.GlobalAveragePooling1D()),
        r"one row of numbers per step.*Received: outputs of shape \[\(None, 2\)\]",
    ),
    "begun_elsewhere": (begun_elsewhere, "is called with `initial_state`"),
    "masked": (
        lambda: sequential(layers.Masking(), sequences(layers.LSTM)),
        "receives a mask. Remove `Masking`",
    ),
}


@pytest.mark.parametrize("make, message", REFUSED.values(), ids=REFUSED.keys())
def test_recurrent_policy_raises_if_it_cannot_act_step_by_step(make, message):
    policy = make()
    assert recurrent.is_recurrent(policy, VECTOR)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        recurrent.RecurrentPolicy(policy, VECTOR)


class Hidden(keras.Layer):
    """A recurrent layer inside a layer; only its weights are visible."""

    def __init__(self):
        super().__init__()
        self.memory = sequences(layers.GRU)

    def build(self, shape):
        self.memory.build(shape)

    def call(self, inputs):
        return self.memory(inputs)


def future(x):
    """Adds the final output of a recurrent layer to the output of every step."""
    y, last = sequences(layers.GRU, return_state=True)(x)
    return y + keras.ops.expand_dims(last, 1)


def attended(x):
    return layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)


MIXED = {
    "convolution": layers.Conv1D(4, 3, padding="same"),
    "distant_steps": layers.Conv1D(4, 2, dilation_rate=9, padding="causal"),
    "causal_attention": attended,
    "mean_over_time": lambda x: x - keras.ops.mean(x, axis=1, keepdims=True),
    "clock": lambda x: keras.ops.cumsum(keras.ops.ones_like(x), axis=1),
    "another_length": layers.UpSampling1D(2),
    "hidden": Hidden(),
    "future": future,
}


@pytest.mark.parametrize(
    "kind, last", [*((kind, "zeros") for kind in MIXED), ("clock", "glorot_uniform")]
)
def test_check_raises_if_a_layer_mixes_time_steps(kind, last):
    """The check also raises if the last layer is zero, so that all outputs are equal."""
    x = keras.Input((None, 4))
    y = MIXED[kind](sequences(layers.LSTM, 4)(x))
    policy = keras.Model(x, layers.Dense(2, kernel_initializer=last)(y))
    memory = recurrent.RecurrentPolicy(policy, VECTOR)
    with pytest.raises(
        ValueError, match="(?s)mixes time steps in other ways.*Received: "
    ):
        memory.check()
