"""Trains a recurrent policy on a task that needs the first observation 20 steps later.

    python examples/recurrent.py [epochs]

The recurrent policy is a Keras model from sequences of observations to sequences of
outputs. During acting, the recurrent state of the policy is passed from step to step. An
update of the policy processes whole episodes.
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr


class Recall(gym.Env):
    """Shows one of four signs in the first step, and asks for the sign 20 steps later.

    The first observation contains the sign, encoded one-hot. Later observations contain
    zeros instead of the sign. Every observation also contains a flag that is 1 in the
    last step. The reward of the last step is 1 if the action equals the sign. All earlier
    rewards are 0.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = gym.spaces.Discrete(4)
    delay = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.sign = 0, int(self.np_random.integers(4))
        return self._observation(), {}

    def step(self, action):
        terminated = self.time == self.delay
        self.time += 1
        reward = float(terminated and action == self.sign)
        return self._observation(), reward, terminated, False, {}

    def _observation(self):
        observation = np.zeros(5, np.float32)
        if self.time == 0:
            observation[self.sign] = 1.0
        observation[4] = self.time == self.delay
        return observation


def make_policy(recurrent):
    """Returns a recurrent policy, or a policy that reads only the current observation."""
    layers = [keras.layers.LSTM(32, return_sequences=True)] if recurrent else []
    inputs = keras.Input((None, 5) if recurrent else (5,))
    return keras.Sequential([inputs, *layers, keras.layers.Dense(4)])


def train_agent(recurrent, epochs, **kwargs):
    """Returns an agent, trained for `epochs` updates of 32 episodes each."""
    keras.utils.set_random_seed(0)
    # An action changes no later reward, so gamma=0 weights each action by its reward.
    # Back-propagation through time trains the network to store the sign.
    agent = tfr.Reinforce(make_policy(recurrent), gamma=0.0, entropy_coef=0.05)
    agent.compile(keras.optimizers.Adam(1e-2))
    agent.fit(Recall, epochs=epochs, episodes_per_epoch=32, **kwargs)
    return agent


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for recurrent in (False, True):
        agent = train_agent(recurrent, epochs)
        print(f"recurrent: {recurrent}:", agent.evaluate(Recall, episodes=1000))
