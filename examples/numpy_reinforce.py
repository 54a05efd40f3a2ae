"""REINFORCE in NumPy alone: every derivative written by hand. It solves CartPole-v1.

    python examples/numpy_reinforce.py [--epochs 60] [--seed 0]

The agent of this library computes the same gradient, and a test compares the two to
1e-12. What the line with `eligibility` means: docs/eligibility.md.
"""

import argparse

import gymnasium as gym
import numpy as np


def first_weights(sizes, rng):
    """Matrices and biases of a fully connected network, in turn."""
    weights = []
    for fan_in, fan_out in zip(sizes[:-1], sizes[1:]):
        limit = np.sqrt(6 / (fan_in + fan_out))  # Glorot's
        weights += [rng.uniform(-limit, limit, (fan_in, fan_out)), np.zeros(fan_out)]
    return weights


def forward(weights, observations):
    """`[N, …]`: the inputs of every layer, and at the end the probabilities."""
    layers = [observations]
    for matrix, bias in zip(weights[:-2:2], weights[1:-2:2]):
        layers.append(np.tanh(layers[-1] @ matrix + bias))
    logits = layers[-1] @ weights[-2] + weights[-1]
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return [*layers, powers / powers.sum(axis=-1, keepdims=True)]


def advantages(episodes, gamma):
    """Each step's return minus the mean return of the others running at that step."""
    returns = np.zeros((len(episodes), max(len(e["rewards"]) for e in episodes)))
    running = np.zeros_like(returns)
    for row, episode in enumerate(episodes):
        later = 0.0
        for t in reversed(range(len(episode["rewards"]))):
            later = returns[row, t] = episode["rewards"][t] + gamma * later
            running[row, t] = 1
    others = np.maximum(running.sum(axis=0) - running, 1)
    baselines = (returns.sum(axis=0) - returns) / others
    return (returns - baselines)[running > 0]  # one episode after the other


def gradients(weights, episodes, gamma):
    """The direction in which every weight raises the expected return."""
    observations = np.concatenate([e["observations"] for e in episodes])
    actions = np.concatenate([e["actions"] for e in episodes])
    *layers, probs = forward(weights, observations)
    eligibility = np.eye(probs.shape[1])[actions] - probs  # d ln π / d logits
    back = advantages(episodes, gamma)[:, None] * eligibility / len(episodes)
    found = []
    for layer, matrix in zip(layers[::-1], weights[-2::-2]):
        found = [layer.T @ back, back.sum(axis=0), *found]
        back = back @ matrix.T * (1 - layer**2)  # the derivative of tanh
    return found


class Adam:
    """Steps of about the same size for every weight, whatever its gradient's."""

    def __init__(self, weights, rate=1e-2):
        self.rate, self.steps = rate, 0
        self.means = [np.zeros_like(w) for w in weights]
        self.squares = [np.zeros_like(w) for w in weights]

    def climb(self, weights, found):
        self.steps += 1  # both averages start from zero: the first ones are too small
        rate = self.rate * np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        for w, g, mean, square in zip(weights, found, self.means, self.squares):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g**2 - square)
            w += rate * mean / (np.sqrt(square) + 1e-7)


def play(weights, env, rng=None):
    """One whole episode; without `rng` the likeliest action is taken."""
    record = {"observations": [], "actions": [], "rewards": []}
    observation, _ = env.reset()
    ended = False
    while not ended:
        probs = forward(weights, observation)[-1]
        action = probs.argmax() if rng is None else (rng.random() > probs.cumsum()).sum()
        action = min(int(action), len(probs) - 1)  # cumsum may end below one
        record["observations"].append(observation)
        record["actions"].append(action)
        observation, reward, terminated, truncated, _ = env.step(action)
        record["rewards"].append(reward)
        ended = terminated or truncated
    return record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Streams of their own: an agent and an environment of one seed would draw alike.
    seeds = np.random.SeedSequence(options.seed).spawn(2)
    rng, env = np.random.default_rng(seeds[0]), gym.make("CartPole-v1")
    env.reset(seed=int(seeds[1].generate_state(1)[0]))
    weights = first_weights([4, 64, 2], rng)
    adam, steps = Adam(weights), 0
    for epoch in range(options.epochs):
        episodes = [play(weights, env, rng) for _ in range(16)]
        adam.rate = 1e-2 * (1 - epoch / options.epochs)  # ever more careful
        adam.climb(weights, gradients(weights, episodes, gamma=0.99))
        lengths = [len(e["rewards"]) for e in episodes]
        steps += sum(lengths)
        print(f"update {epoch}: return {np.mean(lengths):.1f}, {steps} steps")
    totals = [sum(play(weights, env)["rewards"]) for _ in range(100)]
    print(f"100 fresh episodes: return {np.mean(totals):.1f} ± {np.std(totals):.1f}")


if __name__ == "__main__":
    main()
