"""REINFORCE with nothing but `model.compile` and `model.fit`.

    python examples/keras_loss.py [updates]

The log-probability of the taken action is minus the loss, the advantage is the
`sample_weight`. One-hot labels multiplied by the return would not do: that loss has
the right value and the wrong gradient.
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
    observations, actions, returns, totals = [], [], [], []
    for episode in range(8):
        observation, _ = env.reset(seed=1000 * update + episode)
        rewards, ended = [], False
        while not ended:
            logits = policy.predict_on_batch(observation[None])[0]
            action = np.argmax(logits + rng.gumbel(size=2))
            observations.append(observation)
            actions.append(action)
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            ended = terminated or truncated
        to_go = np.cumsum(rewards[::-1])[::-1]  # undiscounted: gamma is 1
        returns.extend(to_go)
        totals.append(to_go[0])
    advantages = np.array(returns) - np.mean(returns)
    policy.fit(
        np.array(observations),
        np.array(actions),
        sample_weight=advantages,
        batch_size=len(actions),  # one batch, one step
        verbose=0,
    )
    print(f"update {update}: return {np.mean(totals):.1f}")
