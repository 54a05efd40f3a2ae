"""Trains a Keras model of your own on CartPole-v1.

    python examples/cartpole.py [epochs]

The argument `epochs` is the number of updates. The default is 20 updates, which take a
few seconds.
"""

import sys

import keras

import tf_reinforce as tfr

keras.utils.set_random_seed(0)  # fixes the initial weights
policy = keras.Sequential(
    [
        keras.Input((4,)),
        keras.layers.Dense(64, "tanh"),
        keras.layers.Dense(64, "tanh"),
        keras.layers.Dense(2),  # one logit per action
    ]
)
agent = tfr.Reinforce(policy, gamma=0.99)
agent.compile(optimizer=keras.optimizers.Adam(1e-2))
agent.fit(
    "CartPole-v1",
    epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 20,
    episodes_per_epoch=16,
    seed=0,
    validation_env="CartPole-v1",
    validation_freq=5,
)
print(agent.evaluate("CartPole-v1", episodes=100))
