"""Solves CartPole-v1 with REINFORCE in NumPy, without automatic differentiation.

    python examples/numpy_reinforce.py [--epochs 60] [--seed 0]

A test checks that the gradient of this example equals that of `tf_reinforce`, to 1e-12.
docs/eligibility.md explains the variable `eligibility` in the function `gradients`.
"""

import argparse

import gymnasium as gym
import numpy as np


def initial_weights(sizes, rng):
    """Returns the matrix and the bias of each layer of a fully connected network."""
    weights = []
    for fan_in, fan_out in zip(sizes[:-1], sizes[1:]):
        limit = np.sqrt(6 / (fan_in + fan_out))  # Glorot & Bengio (2010)
        weights += [rng.uniform(-limit, limit, (fan_in, fan_out)), np.zeros(fan_out)]
    return weights


def forward(weights, observations):
    """Returns the inputs of all layers and, last, the probabilities of all actions."""
    layers = [observations]
    for matrix, bias in zip(weights[:-2:2], weights[1:-2:2]):
        layers.append(np.tanh(layers[-1] @ matrix + bias))
    logits = layers[-1] @ weights[-2] + weights[-1]
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return [*layers, exponentials / exponentials.sum(axis=-1, keepdims=True)]


def advantages(episodes, gamma):
    """Returns each step's return minus the other episodes' mean return at that step."""
    returns = np.zeros((len(episodes), max(len(e["rewards"]) for e in episodes)))
    valid = np.zeros_like(returns)
    for row, episode in enumerate(episodes):
        next_return = 0.0
        for t in reversed(range(len(episode["rewards"]))):
            next_return = returns[row, t] = episode["rewards"][t] + gamma * next_return
            valid[row, t] = 1
    others = np.maximum(valid.sum(axis=0) - valid, 1)
    baselines = (returns.sum(axis=0) - returns) / others
    return (returns - baselines)[valid > 0]  # shape [N], one episode after another


def gradients(weights, episodes, gamma):
    """Returns the policy gradient, one array for each of `weights`."""
    observations = np.concatenate([e["observations"] for e in episodes])
    actions = np.concatenate([e["actions"] for e in episodes])
    *layers, probs = forward(weights, observations)
    eligibility = np.eye(probs.shape[1])[actions] - probs  # d ln π / d logits
    error = advantages(episodes, gamma)[:, None] * eligibility / len(episodes)
    results = []
    for layer, matrix in zip(layers[::-1], weights[-2::-2]):
        results = [layer.T @ error, error.sum(axis=0), *results]
        error = error @ matrix.T * (1 - layer**2)  # the derivative of tanh
    return results


class Adam:
    """Implements the optimizer Adam for gradient ascent."""

    def __init__(self, weights, learning_rate=1e-2):
        self.learning_rate, self.steps = learning_rate, 0
        self.means = [np.zeros_like(w) for w in weights]
        self.squares = [np.zeros_like(w) for w in weights]

    def apply(self, gradients, weights):
        self.steps += 1
        rate = self.learning_rate * np.sqrt(1 - 0.999**self.steps)
        rate /= 1 - 0.9**self.steps  # corrects the bias of averages that start at zero
        for w, g, mean, square in zip(weights, gradients, self.means, self.squares):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g**2 - square)
            w += rate * mean / (np.sqrt(square) + 1e-7)


def collect_episode(weights, env, rng=None):
    """Returns one whole episode; the actions are the most likely if `rng` is `None`."""
    episode = {"observations": [], "actions": [], "rewards": []}
    observation, _ = env.reset()
    finished = False
    while not finished:
        probs = forward(weights, observation)[-1]
        action = probs.argmax() if rng is None else (rng.random() > probs.cumsum()).sum()
        action = min(int(action), len(probs) - 1)  # `probs` may sum to less than 1
        episode["observations"].append(observation)
        episode["actions"].append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        episode["rewards"].append(reward)
        finished = terminated or truncated
    return episode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Two seeds: actions and environment must not use equal random numbers.
    seeds = np.random.SeedSequence(options.seed).spawn(2)
    rng, env = np.random.default_rng(seeds[0]), gym.make("CartPole-v1")
    env.reset(seed=int(seeds[1].generate_state(1)[0]))
    weights = initial_weights([4, 64, 2], rng)
    adam, steps = Adam(weights), 0
    for epoch in range(options.epochs):
        episodes = [collect_episode(weights, env, rng) for _ in range(16)]
        adam.learning_rate = 1e-2 * (1 - epoch / options.epochs)  # linear decay
        adam.apply(gradients(weights, episodes, gamma=0.99), weights)
        lengths = [len(e["rewards"]) for e in episodes]
        steps += sum(lengths)
        print(f"update {epoch}: return {np.mean(lengths):.1f}, {steps} steps")
    returns = [sum(collect_episode(weights, env)["rewards"]) for _ in range(100)]
    print(f"100 new episodes: return {np.mean(returns):.1f} ± {np.std(returns):.1f}")


if __name__ == "__main__":
    main()
