"""REINFORCE in the style of the Keras tutorials: eager, one step at a time.

The style uses one environment, so that `num_envs` is ignored.
"""

import gymnasium as gym
import keras
import numpy as np
import protocol
import tensorflow as tf

EPISODES, GAMMA, LEARNING_RATE = 16, 0.99, 1e-2
# Of 8 or 16 episodes and rates 3e-3, 1e-2 or 2e-2: the fewest steps, by the median of
# 8 seeds.
SOLVE_EPISODES, SOLVE_LEARNING_RATE = 8, 3e-3
EPISODE_STEPS = 500  # steps of an episode in `learn`


def policy_for(inputs, outputs):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(outputs, activation="softmax"),
        ]
    )


def sample(policy, states):
    """Samples the actions for `states` one by one."""
    rows = np.asarray(policy(states))
    return np.array([np.random.choice(len(row), p=row) for row in rows])


def episode_of(env, policy):
    """Runs one episode, and returns lists of states, actions and rewards."""
    states, actions, rewards = [], [], []
    (state, _), ended = env.reset(), False
    while not ended:
        [action] = sample(policy, state[None])
        states.append(state)
        actions.append(action)
        state, reward, terminated, truncated, _ = env.step(action)
        rewards.append(reward)
        ended = terminated or truncated
    return states, actions, rewards


def returns_of(rewards):
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + GAMMA * total
        returns.append(total)
    return returns[::-1]


def gradients_of(policy, episodes, standardize=True):
    """Returns the gradient of the sum over all steps."""
    states = np.concatenate([states for states, _, _ in episodes])
    actions = np.concatenate([actions for _, actions, _ in episodes])
    returns = np.concatenate([returns_of(rewards) for _, _, rewards in episodes])
    if standardize:
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
    with tf.GradientTape() as tape:
        action_probs = tf.gather(policy(states), actions, batch_dims=1)
        loss = -tf.reduce_sum(tf.math.log(action_probs) * returns.astype("float32"))
    return tape.gradient(loss, policy.trainable_variables)


class Learner:
    """A policy, its optimizer and an environment."""

    def __init__(self, env, seed, episodes, learning_rate):
        keras.utils.set_random_seed(seed)
        self.env, self.episodes = gym.make(env), episodes
        self.env.reset(seed=seed)
        space = self.env.observation_space
        self.policy = policy_for(space.shape[0], int(self.env.action_space.n))
        self.optimizer = keras.optimizers.Adam(learning_rate)

    def update(self):
        """Collects episodes, makes one update, and returns the number of steps."""
        episodes = [episode_of(self.env, self.policy) for _ in range(self.episodes)]
        self.learn(episodes)
        return sum(len(rewards) for _, _, rewards in episodes)

    def learn(self, episodes):
        gradients = gradients_of(self.policy, episodes)
        self.optimizer.apply_gradients(zip(gradients, self.policy.trainable_variables))

    def greedy(self, states):
        return np.argmax(self.policy(states), -1)


def train(env, num_envs, steps, seed):
    """Trains from the initial weights for at least `steps` steps."""
    return protocol.time_training(
        Learner(env, seed, EPISODES, LEARNING_RATE).update, steps
    )


def solve(num_envs, seed, limit):
    learner = Learner("CartPole-v1", seed, SOLVE_EPISODES, SOLVE_LEARNING_RATE)
    return protocol.train_until_solved(learner.update, learner.greedy, limit)


def gradient(weights, observations, actions, lengths):
    """Returns the gradient per episode; the loss is a sum over all episodes."""
    policy = policy_for(4, 2)
    policy.set_weights([np.array(value, "float32") for value in weights])
    observations, actions = np.array(observations, "float32"), np.array(actions)
    episodes = [
        (observations[:length, number], actions[:length, number], [1.0] * length)
        for number, length in enumerate(lengths)
    ]
    gradients = gradients_of(policy, episodes, standardize=False)
    return {"gradients": [(part.numpy() / len(lengths)).tolist() for part in gradients]}


if __name__ == "__main__":
    operations = {"train": train, "solve": solve}
    protocol.serve({**operations, "gradient": gradient})
