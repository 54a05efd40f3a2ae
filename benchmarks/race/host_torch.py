"""REINFORCE by hand in PyTorch: one call of the policy for all environments.

An update is one gradient step on whole episodes, with no critic: 16 of CartPole-v1, or 4
of HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard deviation).
"""

import gymnasium as gym
import numpy as np
import protocol
import torch

GAMMA = 0.99
EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
LEARNING_RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
SOLVE_EPISODES, SOLVE_LEARNING_RATE = 8, 5e-3  # 1e-2 is as fast, but some seeds fail
torch.set_num_threads(1)  # faster than two for networks this small


class Categorical:
    """Two tanh layers of 64, then logits; samples with Gumbel noise."""

    def __init__(self, inputs, outputs):
        sizes = (inputs, 64), (64, 64), (64, outputs)
        layers = [torch.nn.Linear(*size) for size in sizes]
        self.weights = [weight for layer in layers for weight in layer.parameters()]

    def outputs(self, observations):
        linear, weights = torch.nn.functional.linear, self.weights
        x = linear(observations, *weights[:2]).tanh_()
        x = linear(x, *weights[2:4]).tanh_()
        return linear(x, *weights[4:6])

    def sample(self, observations, rng):
        with torch.inference_mode():
            logits = self.outputs(torch.from_numpy(observations)).numpy()
        return (logits + rng.gumbel(size=logits.shape)).argmax(-1)

    def log_probs(self, observations, actions):
        log_probs = torch.log_softmax(self.outputs(observations), -1)
        return log_probs.gather(-1, actions[:, None])[:, 0]


class Gaussian(Categorical):
    """Two tanh layers of 64, then means; one free log standard deviation for each."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.weights.append(torch.zeros(outputs, requires_grad=True))

    def sample(self, observations, rng):
        with torch.inference_mode():
            means = self.outputs(torch.from_numpy(observations)).numpy()
            deviations = self.weights[6].exp().numpy()
        noise = rng.standard_normal(means.shape, "float32")
        return means + deviations * noise

    def log_probs(self, observations, actions):
        log_std = self.weights[6]
        errors = (actions - self.outputs(observations)) * torch.exp(-log_std)
        return -(0.5 * errors**2 + log_std + 0.5 * np.log(2 * np.pi)).sum(-1)


def policy_for(env):
    inputs, space = env.observation_space.shape[0], env.action_space
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(inputs, int(space.n))
    return Gaussian(inputs, space.shape[0])


def whole_episodes(envs, policy, num_episodes, rng):
    """Collects `num_episodes` episodes.

    Returns:
        Arrays `[T, B, ...]` of observations, actions and rewards, and the spans of the
        episodes: triples of environment index, first step and the step after the last.
    """
    env_indices = range(min(num_episodes, len(envs)))
    num_started, active, spans = len(env_indices), dict.fromkeys(env_indices, 0), []
    observations = np.stack([env.reset()[0] for env in envs]).astype("float32")
    record = [], [], []
    while active:
        actions = policy.sample(observations, rng)
        rewards = np.zeros(len(envs), "float32")
        for buffer, values in zip(
            record, (observations.copy(), actions, rewards), strict=True
        ):
            buffer.append(values)
        env_actions = actions.tolist() if actions.ndim == 1 else actions
        for env_index in list(active):
            env = envs[env_index]
            observations[env_index], rewards[env_index], terminated, truncated, _ = (
                env.step(env_actions[env_index])
            )
            if not (terminated or truncated):
                continue
            spans.append((env_index, active.pop(env_index), len(record[0])))
            if num_started < num_episodes:
                num_started += 1
                active[env_index] = len(record[0])
                observations[env_index], _ = env.reset()
    return *map(np.stack, record), spans


def returns_of(rewards, spans):
    """Returns the discounted returns to go, one episode after the other."""
    lengths = np.array([end - start for _, start, end in spans])
    returns = np.zeros((max(lengths), len(spans)), "float32")
    for column, (env_index, start, end) in enumerate(spans):
        returns[: end - start, column] = rewards[start:end, env_index]
    for step in reversed(range(len(returns) - 1)):
        returns[step] += GAMMA * returns[step + 1]
    valid = np.arange(len(returns))[:, None] < lengths
    return returns.T[valid.T]


def loss_of(policy, episodes, baseline=True):
    """Returns `-(1/E) sum (G - b) log pi(a|s)`, where b is the mean of all returns."""
    observations, actions, rewards, spans = episodes
    advantages = returns_of(rewards, spans)
    if baseline:
        advantages -= advantages.mean()

    def concatenate(values):
        parts = [values[start:end, env_index] for env_index, start, end in spans]
        return torch.from_numpy(np.concatenate(parts))

    action_log_probs = policy.log_probs(concatenate(observations), concatenate(actions))
    return -(action_log_probs @ torch.from_numpy(advantages)) / len(spans)


class Learner:
    """An untrained policy, its environments and its optimizer."""

    def __init__(self, env, num_envs, seed, num_episodes, learning_rate):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.envs = [gym.make(env, disable_env_checker=True) for _ in range(num_envs)]
        for env_index, single_env in enumerate(self.envs):
            single_env.reset(seed=seed * num_envs + env_index)
        self.policy = policy_for(self.envs[0])
        self.optimizer = torch.optim.Adam(self.policy.weights, learning_rate)
        self.num_episodes = num_episodes

    def update(self):
        """Collects episodes, makes one update, and returns the number of steps."""
        episodes = whole_episodes(self.envs, self.policy, self.num_episodes, self.rng)
        self.learn(episodes)
        return sum(end - start for _, start, end in episodes[-1])

    def learn(self, episodes):
        loss = loss_of(self.policy, episodes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def greedy(self, observations):
        with torch.inference_mode():
            logits = self.policy.outputs(torch.from_numpy(observations))
        return logits.argmax(-1).numpy()


def train(env, num_envs, steps, seed):
    learner = Learner(env, num_envs, seed, EPISODES[env], LEARNING_RATES[env])
    return protocol.time_training(learner.update, steps)


def solve(num_envs, seed, limit):
    """Trains with the mean of all returns as baseline; leave-one-out took as long."""
    learner = Learner("CartPole-v1", num_envs, seed, SOLVE_EPISODES, SOLVE_LEARNING_RATE)
    return protocol.train_until_solved(learner.update, learner.greedy, limit)


def gradient(weights, observations, actions, lengths):
    policy = Categorical(4, 2)
    for parameter, weight in zip(policy.weights, weights, strict=True):
        parameter.data = torch.tensor(np.transpose(weight), dtype=torch.float32)
    observations, actions = np.array(observations, "float32")[:-1], np.array(actions)
    spans = [(column, 0, length) for column, length in enumerate(lengths)]
    episodes = observations, actions, np.ones(actions.shape, "float32"), spans
    loss_of(policy, episodes, baseline=False).backward()
    return {"gradients": [weight.grad.numpy().T.tolist() for weight in policy.weights]}


if __name__ == "__main__":
    operations = train, solve, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
