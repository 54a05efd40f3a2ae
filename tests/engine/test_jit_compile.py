"""Tests which gradient steps XLA compiles, and that settings reach the choice."""

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr

MINIBATCH = 5  # of 20 steps; four gradient steps are a pass
IMAGE = (6, 6, 1)


class WithoutXLA(keras.layers.Layer):
    """Returns its inputs, by an operation that XLA cannot compile."""

    def call(self, x):
        zeros = tf.zeros_like(tf.strings.length(tf.strings.as_string(x)))
        return x + tf.cast(zeros, x.dtype)


class RawConvolution(keras.layers.Layer):
    """Calls an operation of TensorFlow instead of a layer of Keras."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(2, shape[-1], 2))

    def call(self, x):
        return tf.nn.conv1d(x, self.kernel, 1, "SAME")


def network(*layers, outputs=2):
    layers = *layers, keras.layers.Flatten(), keras.layers.Dense(outputs)
    return keras.Sequential([keras.Input(IMAGE), *layers])


def made(policy=(), value=None, passes=25, setting="auto", value_passes=25):
    """Returns an agent whose networks contain the given layers."""
    baseline = None
    if value is not None:
        model = network(*value, outputs=1)
        options = dict(passes=value_passes, minibatch_size=MINIBATCH)
        baseline = tfr.baselines.Value(model, keras.optimizers.SGD(0.01), **options)
    agent = tfr.Reinforce(
        network(*policy),
        tfr.heads.Categorical(2),
        baseline,
        passes=passes,
        minibatch_size=MINIBATCH if passes else None,
    )
    agent.compile(keras.optimizers.SGD(0.01), jit_compile=setting)
    return agent


def update(agent):
    """Makes an update from random episodes, without an environment."""
    rng, shape = np.random.default_rng(0), (5, 4)
    agent.update(
        tfr.Episodes(
            rng.random((6, 4, *IMAGE), np.float32),
            rng.integers(2, size=shape),
            rng.random(shape),
            np.full(4, 5, "int32"),
            np.ones(4, bool),
        )
    )


def sequence(layer):
    return keras.layers.Reshape((6, 6)), layer


LAYERS = keras.layers
CONVOLUTIONS = {
    "Conv1D": lambda: sequence(LAYERS.Conv1D(2, 3)),
    "Conv2DTranspose": lambda: [LAYERS.Conv2DTranspose(2, 3)],
    "Conv3D": lambda: [LAYERS.Reshape((6, 3, 2, 1)), LAYERS.Conv3D(2, 2)],
    "DepthwiseConv2D": lambda: [LAYERS.DepthwiseConv2D(3)],
    "SeparableConv1D": lambda: sequence(LAYERS.SeparableConv1D(2, 3)),
    "operation": lambda: sequence(RawConvolution()),
}
OTHERS = {
    "Dense": lambda: [LAYERS.Dense(3)],
    "GRU": lambda: sequence(LAYERS.GRU(3)),
    "LSTM": lambda: sequence(LAYERS.LSTM(3)),
    "MaxPooling2D": lambda: [LAYERS.MaxPooling2D(2)],
}


@pytest.mark.parametrize(
    "name",
    sweeps.some(CONVOLUTIONS, always=["operation"]),
)
def test_convolutions_are_not_compiled_unless_requested(name):
    """XLA would raise an error."""
    layers = [WithoutXLA(), *CONVOLUTIONS[name]()]
    update(made(layers, [WithoutXLA(), LAYERS.Conv2D(2, 3)]))
    with pytest.raises(ValueError, match="without_xla.*` cannot be.*jit_compile=False"):
        update(made(layers, passes=1, setting=True))


def test_nothing_is_compiled_if_jit_compile_is_false():
    """Of both networks, XLA would raise an error."""
    update(made([WithoutXLA()], [WithoutXLA()], setting=False))


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_value_network_alone_is_compiled_from_100_gradient_steps_on(name):
    """The policy makes one gradient step. XLA raises an error where it compiles."""
    layers = [WithoutXLA(), *OTHERS[name]()]
    update(made([WithoutXLA()], layers, passes=1, value_passes=24))
    with pytest.raises(ValueError, match="without_xla.*` cannot be.*jit_compile=False"):
        update(made([WithoutXLA()], layers, passes=1))
