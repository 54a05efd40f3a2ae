"""Continuous actions: Pendulum-v1 with a Beta head and a value baseline.

    python examples/continuous.py [epochs]

The critic takes twenty steps per update and puts out values in units of 50; with one
step the pendulum is not swung up. Takes half a minute; one seed of three stays behind.
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
    network(2, "policy"),  # two numbers for the one action: its Beta distribution
    head=tfr.heads.Beta(1, low=-2.0, high=2.0),
    baseline=tfr.baselines.Value(
        network(1, "critic"), keras.optimizers.Adam(1e-2), passes=20, scale=50.0
    ),
    gamma=0.95,
    gae_lambda=0.95,
    scale_advantages="batch",
    normalize_observations=True,
)
agent.compile(optimizer=keras.optimizers.Adam(5e-3))
agent.fit(
    "Pendulum-v1",
    epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 800,
    episodes_per_epoch=4,
    seed=0,
)
print(agent.evaluate("Pendulum-v1", episodes=100))
