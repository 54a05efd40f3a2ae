"""Continuous actions: Pendulum-v1 with a Gaussian head and a value baseline.

    python examples/continuous.py [epochs]

A hard task for REINFORCE: one gradient step from 1,600 steps, and seeds differ much.
"""

import sys

import keras

import tf_reinforce as tfr


def network(units, name):
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dense(64, "tanh"),
            keras.layers.Dense(units),
        ],
        name=name,
    )


keras.utils.set_random_seed(0)
agent = tfr.Reinforce(
    network(1, "policy"),  # means; the head learns the deviation
    baseline=tfr.baselines.Value(network(1, "critic"), keras.optimizers.Adam(1e-2)),
    gamma=0.9,
    gae_lambda=0.9,
    normalize_observations=True,
)
agent.compile(optimizer=keras.optimizers.Adam(5e-3))
agent.fit(
    "Pendulum-v1",
    epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 800,
    episodes_per_epoch=8,
    seed=0,
)
print(agent.evaluate("Pendulum-v1", episodes=100))
