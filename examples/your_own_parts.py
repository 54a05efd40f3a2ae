"""Defines a head and a baseline, and checks both with `tfr.testing`.

    python examples/your_own_parts.py [updates]

The head `Binomial` turns five switches on or off, with one logit for all switches. The
action is the number of switches that are on. The baseline `MovingAverage` is an average
of past returns.
"""

import sys

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tf_reinforce as tfr


class Binomial(tfr.heads.Head):
    outputs_size, action_shape, action_dtype = 1, (), "int64"
    noise = tfr.heads.NoiseSpec("uniform", (5,))

    def distribution(self, outputs):
        return tfp.distributions.FiniteDiscrete(np.arange(6), logits=self.logits(outputs))

    def logits(self, outputs):
        """Returns `[..., 6]` logits, one for each number of switches that are on."""
        counts = tf.range(6, dtype=outputs.dtype)
        log_binomials = -tf.math.lgamma(counts + 1.0) - tf.math.lgamma(6.0 - counts)
        return log_binomials + counts * outputs

    def sample(self, outputs, noise):
        switches = noise < tf.sigmoid(outputs)
        return tf.reduce_sum(tf.cast(switches, tf.int64), axis=-1)

    def mode(self, outputs):
        return tf.argmax(self.logits(outputs), axis=-1)

    def parameters(self, outputs):
        return {"logit": outputs}

    def to_environment(self, actions):
        return actions

    def is_valid(self, actions):
        return (actions >= 0) & (actions <= 5)


class MovingAverage(tfr.baselines.Baseline):
    def build(self, observations_shape):
        self.average = self.add_weight(name="average", initializer="zeros")

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.cast(self.average, returns.dtype), 0.0)

    def gradients(self, baseline_batch):
        mean = tf.reduce_mean(baseline_batch.returns)
        error = tf.cast(self.average, mean.dtype) - mean
        return error**2 / 2, [error]

    def apply_gradients(self, gradients, baseline_batch):
        self.average.assign_sub(0.2 * tf.cast(gradients[0], self.average.dtype))


class Guess(gym.Env):
    """An environment with one step, whose reward is highest if three switches are on."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, "float32"), {}

    def step(self, action):
        return np.ones(1, "float32"), -abs(float(action) - 3), True, False, {}


print("head:", tfr.testing.check_head(Binomial()))
result = tfr.testing.check_gradient(Binomial(), MovingAverage(), batch_size=1)
print(f"update: error {result.error:.0e}, {result.batches} batches")
agent = tfr.Reinforce(
    keras.Sequential([keras.layers.Dense(1)]), Binomial(), MovingAverage()
)
agent.compile(optimizer=keras.optimizers.Adam(0.1))
agent.fit(Guess, epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 30, verbose=0)
print("greedy return:", agent.evaluate(Guess, episodes=1)["episode_return"])
