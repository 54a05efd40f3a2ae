"""Trains a functional policy with two named inputs for a Dict observation.

    python examples/your_own_model.py [epochs]

The named inputs of a functional policy may have any nested structure.
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr


def make_env():
    """Returns CartPole with a Dict of positions and velocities as the observation."""
    env = gym.make("CartPole-v1")
    low, high = env.observation_space.low, env.observation_space.high
    return gym.wrappers.TransformObservation(
        env,
        lambda x: {"position": x[::2], "velocity": x[1::2]},
        gym.spaces.Dict(
            position=gym.spaces.Box(low[::2], high[::2], dtype=np.float32),
            velocity=gym.spaces.Box(low[1::2], high[1::2], dtype=np.float32),
        ),
    )


keras.utils.set_random_seed(0)
position = keras.Input((2,), name="position")
velocity = keras.Input((2,), name="velocity")
branches = [keras.layers.Dense(32, "tanh")(x) for x in (position, velocity)]
features = keras.layers.Dense(64, "tanh")(keras.layers.Concatenate()(branches))
policy = keras.Model(
    {"position": position, "velocity": velocity}, keras.layers.Dense(2)(features)
)

agent = tfr.Reinforce(policy)
agent.compile(optimizer=keras.optimizers.Adam(1e-2))
agent.fit(make_env, epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 20, seed=0)
print(agent.evaluate(make_env, episodes=20)["episode_return"])
