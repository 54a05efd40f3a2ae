"""A functional policy with two named inputs for a Dict observation.

    python examples/your_own_model.py [epochs]

Any structure of named inputs will do.
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr


def make_env():
    """CartPole whose observation is told apart into places and speeds."""
    env = gym.make("CartPole-v1")
    low, high = env.observation_space.low, env.observation_space.high
    return gym.wrappers.TransformObservation(
        env,
        lambda x: {"place": x[::2], "speed": x[1::2]},
        gym.spaces.Dict(
            place=gym.spaces.Box(low[::2], high[::2], dtype=np.float32),
            speed=gym.spaces.Box(low[1::2], high[1::2], dtype=np.float32),
        ),
    )


keras.utils.set_random_seed(0)
place = keras.Input((2,), name="place")
speed = keras.Input((2,), name="speed")
branches = [keras.layers.Dense(32, "tanh")(x) for x in (place, speed)]
joined = keras.layers.Dense(64, "tanh")(keras.layers.Concatenate()(branches))
policy = keras.Model({"place": place, "speed": speed}, keras.layers.Dense(2)(joined))

agent = tfr.Reinforce(policy)
agent.compile(optimizer=keras.optimizers.Adam(1e-2))
agent.fit(make_env, epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 20, seed=0)
print(agent.evaluate(make_env, episodes=20)["episode_return"])
