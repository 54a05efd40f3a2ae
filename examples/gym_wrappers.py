"""Trains and records an environment with wrappers of Gymnasium.

    pip install moviepy "gymnasium[classic-control]"
    python examples/gym_wrappers.py [epochs]

The observations of this CartPole contain positions only. Two positions in a row show the
velocity, so that a policy can learn from a stack of two observations.
"""

import sys

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

import tf_reinforce as tfr


def make_env(render_mode=None):
    """Returns CartPole, observed through the last two positions of cart and pole."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    bound = env.observation_space.high[[0, 2]]
    positions = gym.spaces.Box(-bound, bound, dtype=np.float32)
    env = wrappers.TransformObservation(env, lambda x: x[[0, 2]], positions)
    return wrappers.FrameStackObservation(env, stack_size=2)


def make_normalized_env():
    """Returns the environment with rewards that a wrapper divides by a running scale."""
    return wrappers.NormalizeReward(make_env(), gamma=0.99)


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
agent = tfr.Reinforce.for_env(make_env)
agent.fit(make_env, epochs=epochs, verbose=0)
print("episode return:", agent.evaluate(make_env, episodes=20)["episode_return"])

# `NormalizeReward` changes the rewards that the agent receives, so that the logs do not
# contain the returns of the game. With `scale_rewards=True`, the agent scales rewards in
# its updates only, logs the returns of the game, and saves the scale in its file.
scaled = tfr.Reinforce.for_env(make_env, scale_rewards=True)
for env in (make_normalized_env, make_env):
    history = scaled.fit(env, epochs=1, verbose=0).history
    print(f"logged with {env.__name__}: {history['episode_return'][0]:.2f}")

video = wrappers.RecordVideo(make_env("rgb_array"), "videos", lambda episode: True)
with video:
    agent.evaluate(video, episodes=1)
print("recorded: videos/rl-video-episode-0.mp4")
