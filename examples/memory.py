"""Memory: what was seen at the first step must be told twenty steps later.

    python examples/memory.py [epochs]

The policy is a Keras model from sequences to sequences. While it acts, its state is
carried from step to step; an update reads whole episodes.
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr


class Recall(gym.Env):
    """One of four signs is shown, then nothing for twenty steps; then it is asked for.

    The observation is the sign (zeros when there is none) and whether the question is
    asked. The answer earns 1 if it is right; nothing else earns anything.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = gym.spaces.Discrete(4)
    wait = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.sign = 0, int(self.np_random.integers(4))
        return self._observation(), {}

    def step(self, action):
        asked = self.now == self.wait
        self.now += 1
        reward = float(asked and action == self.sign)
        return self._observation(), reward, asked, False, {}

    def _observation(self):
        shown = np.zeros(5, np.float32)
        if self.now == 0:
            shown[self.sign] = 1.0
        shown[4] = self.now == self.wait
        return shown


def policy(memory):
    """A policy that remembers, or one that only sees the present."""
    layers = [keras.layers.LSTM(32, return_sequences=True)] if memory else []
    inputs = keras.Input((None, 5) if memory else (5,))
    return keras.Sequential([inputs, *layers, keras.layers.Dense(4)])


def trained(memory, epochs, **kwargs):
    """An agent that has learned for so many epochs of 32 episodes."""
    keras.utils.set_random_seed(0)
    # An answer changes no later reward: gamma=0 gives it the credit for its own
    # alone. What to remember is learned through the network, not through returns.
    agent = tfr.Reinforce(policy(memory), gamma=0.0, entropy_coef=0.05)
    agent.compile(keras.optimizers.Adam(1e-2))
    agent.fit(Recall, epochs=epochs, episodes_per_epoch=32, **kwargs)
    return agent


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for memory in (False, True):
        agent = trained(memory, epochs)
        print(f"memory: {memory}:", agent.evaluate(Recall, episodes=1000))
