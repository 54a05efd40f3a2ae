"""Small float64 models with `Sample` layers, whose samples can be enumerated."""

import keras
import numpy as np

import tf_reinforce as tfr
from tf_reinforce import heads

DTYPE = "float64"


def sample(head, **kwargs):
    head = type(head).from_config({**head.get_config(), "dtype": DTYPE})
    return tfr.layers.Sample(head, dtype=DTYPE, **kwargs)


def dense(size, **kwargs):
    initializer = keras.initializers.RandomNormal(0.7, seed=size)
    return keras.layers.Dense(size, dtype=DTYPE, kernel_initializer=initializer, **kwargs)


def one_hot(choices, size):
    return keras.ops.one_hot(choices, size, dtype=DTYPE)


def concatenate(*parts):
    return keras.ops.concatenate([keras.ops.cast(x, DTYPE) for x in parts], axis=-1)


def policy(head):
    """One sample, which is the output of the model."""
    inputs = keras.Input((2,), dtype=DTYPE)
    return keras.Model(inputs, sample(head)(dense(head.outputs_size)(inputs)))


def chain():
    """The second sample depends on the first, and the output on both."""
    inputs = keras.Input((2,), dtype=DTYPE)
    first = one_hot(sample(heads.Categorical(3))(dense(3)(inputs)), 3)
    second = sample(heads.Categorical(2))(dense(2)(concatenate(inputs, first)))
    outputs = dense(1)(concatenate(inputs, first, one_hot(second, 2)))
    return keras.Model(inputs, outputs)


def latent_bits():
    """Two independent binary samples between two layers."""
    inputs = keras.Input((2,), dtype=DTYPE)
    bits = sample(heads.Bernoulli(2))(dense(2)(inputs))
    return keras.Model(inputs, dense(1, activation="tanh")(concatenate(bits)))


def sequence():
    """Three samples of one call, along a time axis."""
    inputs = keras.Input((3, 2), dtype=DTYPE)
    choices = sample(heads.Categorical(2))(dense(2)(inputs))
    hidden = keras.ops.reshape(one_hot(choices, 2), (-1, 6))
    return keras.Model(inputs, dense(1)(hidden))


class Loop(keras.Model):
    """A recurrent model that draws a sample in each step of a Python loop."""

    def __init__(self, steps=3):
        super().__init__(dtype=DTYPE)
        self.steps = steps
        self.logits, self.state = dense(2), dense(3, activation="tanh")
        self.choice, self.score = sample(heads.Categorical(2)), dense(1)

    def call(self, inputs, training=False):
        state = keras.ops.zeros((keras.ops.shape(inputs)[0], 3), DTYPE)
        for _ in range(self.steps):
            logits = self.logits(concatenate(inputs, state))
            choice = one_hot(self.choice(logits, training=training), 2)
            state = self.state(concatenate(inputs, state, choice))
        return self.score(state)


class Cell(keras.layers.Layer):
    """A recurrent cell whose next state is a sample."""

    def __init__(self, **kwargs):
        super().__init__(dtype=DTYPE, **kwargs)
        self.logits, self.choice = dense(2), sample(heads.Categorical(2))
        self.state_size = self.output_size = 2

    def build(self, inputs_shape):
        self.logits.build((None, inputs_shape[-1] + 2))
        self.choice.build((None, 2))

    def call(self, inputs, states, training=False):
        logits = self.logits(concatenate(inputs, states[0]))
        state = one_hot(self.choice(logits, training=training), 2)
        return state, [state]


def recurrent(unroll=True):
    """A `keras.layers.RNN` whose cell draws samples."""
    inputs = keras.Input((3, 2), dtype=DTYPE)
    state = keras.layers.RNN(Cell(), unroll=unroll, dtype=DTYPE)(inputs)
    return keras.Model(inputs, dense(1)(state))


def padded():
    """A sequence of three words, of which the mask excludes the padding."""
    inputs = keras.Input((3,), dtype="int32")
    words = keras.layers.Embedding(5, 2, mask_zero=True, dtype=DTYPE)(inputs)
    return keras.Model(inputs, sample(heads.Categorical(2))(words))


def masked():
    """A sample among the legal choices of an action mask."""
    inputs = keras.Input((2,), dtype=DTYPE)
    legal = keras.Input((3,), dtype="int8")
    choice = sample(heads.Categorical(3))(dense(3)(inputs), action_mask=legal)
    return keras.Model([inputs, legal], choice)


def examples(count, *shape, seed=0):
    return np.random.default_rng(seed).normal(size=(count, *shape))
