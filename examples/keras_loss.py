"""Trains with REINFORCE, using only `compile` and `fit` of a Keras model.

    python examples/keras_loss.py [updates]

The loss `tfr.losses.Reinforce` is minus the log-probability of the sampled action. The
advantage of each step is passed as `sample_weight`. Do not use a cross-entropy with
one-hot labels that are multiplied by the return: that loss has the right value, but a
wrong gradient.
"""

import sys

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

keras.utils.set_random_seed(0)
policy = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(2)]
)
policy.compile(optimizer=keras.optimizers.Adam(1e-2), loss=tfr.losses.Reinforce())
env, rng = gym.make("CartPole-v1"), np.random.default_rng(0)

for update in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
    observations, actions, returns, episode_returns = [], [], [], []
    for episode in range(8):
        observation, _ = env.reset(seed=1000 * update + episode)
        rewards, finished = [], False
        while not finished:
            logits = policy.predict_on_batch(observation[None])[0]
            action = np.argmax(logits + rng.gumbel(size=2))
            observations.append(observation)
            actions.append(action)
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            finished = terminated or truncated
        returns_to_go = np.cumsum(rewards[::-1])[::-1]  # undiscounted returns: gamma is 1
        returns.extend(returns_to_go)
        episode_returns.append(returns_to_go[0])
    advantages = np.array(returns) - np.mean(returns)
    policy.fit(
        np.array(observations),
        np.array(actions),
        sample_weight=advantages,
        batch_size=len(actions),  # `fit` makes one gradient step
        verbose=0,
    )
    print(f"update {update}: return {np.mean(episode_returns):.1f}")
