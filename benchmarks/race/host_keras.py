"""REINFORCE as Keras' tutorials write such things: eagerly, one step at a time.

One environment at a time is part of the style: `envs` is ignored.
"""

import gymnasium as gym
import keras
import numpy as np
import protocol
import tensorflow as tf

EPISODES, GAMMA, RATE = 16, 0.99, 1e-2
# Fewest steps in the median of 8 seeds, of 8 or 16 episodes and 3e-3, 1e-2 or 2e-2.
SOLVE_EPISODES, SOLVE_RATE = 8, 3e-3
PIECE = 500  # steps of an episode in `learn`


def policy_for(inputs, outputs):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(outputs, activation="softmax"),
        ]
    )


def sampled(policy, states):
    """Actions for `states`, drawn one by one."""
    rows = np.asarray(policy(states))
    return np.array([np.random.choice(len(row), p=row) for row in rows])


def episode_of(world, policy):
    """Lists of states, actions and rewards."""
    states, actions, rewards = [], [], []
    (state, _), ended = world.reset(), False
    while not ended:
        [action] = sampled(policy, state[None])
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = world.step(action)
        rewards.append(reward)
        ended = terminated or truncated
    return states, actions, rewards


def returns_of(rewards):
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + GAMMA * total
        returns.append(total)
    return returns[::-1]


def gradients_of(policy, episodes, standardise=True):
    """The gradient of the sum over all steps."""
    states = np.concatenate([states for states, _, _ in episodes])
    actions = np.concatenate([actions for _, actions, _ in episodes])
    returns = np.concatenate([returns_of(rewards) for _, _, rewards in episodes])
    if standardise:
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
    with tf.GradientTape() as tape:
        taken = tf.gather(policy(states), actions, batch_dims=1)
        loss = -tf.reduce_sum(tf.math.log(taken) * returns.astype("float32"))
    return tape.gradient(loss, policy.trainable_variables)


class Learner:
    """A policy, its optimizer and an environment."""

    def __init__(self, env, seed, episodes, rate):
        keras.utils.set_random_seed(seed)
        self.world, self.episodes = gym.make(env), episodes
        self.world.reset(seed=seed)
        space = self.world.observation_space
        self.policy = policy_for(space.shape[0], int(self.world.action_space.n))
        self.optimizer = keras.optimizers.Adam(rate)

    def update(self):
        """Collects and learns; returns the steps of the environment."""
        episodes = [episode_of(self.world, self.policy) for _ in range(self.episodes)]
        self.learn(episodes)
        return sum(len(rewards) for _, _, rewards in episodes)

    def learn(self, episodes):
        gradients = gradients_of(self.policy, episodes)
        self.optimizer.apply_gradients(zip(gradients, self.policy.trainable_variables))

    def greedy(self, states):
        return np.argmax(self.policy(states), -1)


def train(env, envs, steps, seed):
    """Learns from about so many steps, from scratch."""
    return protocol.trained(Learner(env, seed, EPISODES, RATE).update, steps)


def solve(envs, seed, limit):
    one = Learner("CartPole-v1", seed, SOLVE_EPISODES, SOLVE_RATE)
    return protocol.until_solved(one.update, one.greedy, limit)


def act(batch):
    states = np.random.default_rng(0).normal(size=(batch, 4)).astype("float32")
    policy = policy_for(4, 2)
    return protocol.latency(lambda: sampled(policy, states))


def learn(rows):
    """The time of an update from whole episodes of 500 steps."""
    rng, one = np.random.default_rng(0), Learner("CartPole-v1", 0, EPISODES, RATE)
    states = rng.normal(size=(rows // PIECE, PIECE, 4)).astype("float32")
    actions, rewards = rng.integers(2, size=states.shape[:2]), [1.0] * PIECE
    episodes = [(list(s), list(a), rewards) for s, a in zip(states, actions)]
    return protocol.learned(lambda: one.learn(episodes), rows)


def gradient(weights, observations, actions, lengths):
    """Divided by the number of episodes, as the loss is a sum over all of them."""
    policy = policy_for(4, 2)
    policy.set_weights([np.array(value, "float32") for value in weights])
    observations, actions = np.array(observations, "float32"), np.array(actions)
    episodes = [
        (observations[:length, number], actions[:length, number], [1.0] * length)
        for number, length in enumerate(lengths)
    ]
    gradients = gradients_of(policy, episodes, standardise=False)
    return {"gradients": [(part.numpy() / len(lengths)).tolist() for part in gradients]}


if __name__ == "__main__":
    operations = {"train": train, "solve": solve, "act": act, "learn": learn}
    protocol.serve({**operations, "gradient": gradient})
