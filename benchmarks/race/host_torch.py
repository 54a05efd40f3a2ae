"""REINFORCE by hand in PyTorch, which asks its policy once for all environments.

An update is one gradient step on whole episodes, with no critic: 16 of CartPole-v1, or 4
of HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard deviation).
"""

import gymnasium as gym
import numpy as np
import protocol
import torch

GAMMA = 0.99
EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
SOLVE_EPISODES, SOLVE_RATE = 8, 5e-3  # 1e-2 is as fast, but not for all seeds
torch.set_num_threads(1)  # faster than two for networks this small


class Categorical:
    """Two tanh layers of 64, then logits; acts by Gumbel's trick."""

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
        scores = torch.log_softmax(self.outputs(observations), -1)
        return scores.gather(-1, actions[:, None])[:, 0]


class Gaussian(Categorical):
    """Two tanh layers of 64, then means; one free log standard deviation each."""

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


def policy_for(world):
    inputs, space = world.observation_space.shape[0], world.action_space
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(inputs, int(space.n))
    return Gaussian(inputs, space.shape[0])


def whole_episodes(worlds, policy, count, rng):
    """`count` episodes, started in turn.

    Returns:
        Arrays `[T, B, ...]` of observations, actions and rewards, and which of it are the
        episodes: triples of a slot, a first step and the step after the last.
    """
    slots = range(min(count, len(worlds)))
    begun, running, spans = len(slots), dict.fromkeys(slots, 0), []
    seen = np.stack([world.reset()[0] for world in worlds]).astype("float32")
    record = [], [], []
    while running:
        actions = policy.sample(seen, rng)
        rewards = np.zeros(len(worlds), "float32")
        for part, values in zip(record, (seen.copy(), actions, rewards), strict=True):
            part.append(values)
        played = actions.tolist() if actions.ndim == 1 else actions
        for slot in list(running):
            world = worlds[slot]
            seen[slot], rewards[slot], terminated, truncated, _ = world.step(played[slot])
            if not (terminated or truncated):
                continue
            spans.append((slot, running.pop(slot), len(record[0])))
            if begun < count:
                begun += 1
                running[slot] = len(record[0])
                seen[slot], _ = world.reset()
    return *map(np.stack, record), spans


def returns_of(rewards, spans):
    """Discounted returns to go, one episode after the other."""
    lengths = np.array([end - begin for _, begin, end in spans])
    returns = np.zeros((max(lengths), len(spans)), "float32")
    for column, (slot, begin, end) in enumerate(spans):
        returns[: end - begin, column] = rewards[begin:end, slot]
    for step in reversed(range(len(returns) - 1)):
        returns[step] += GAMMA * returns[step + 1]
    happened = np.arange(len(returns))[:, None] < lengths
    return returns.T[happened.T]


def loss_of(policy, episodes, baseline=True):
    """The loss `-(1/E) sum (G - b) log pi(a|s)`, where b is the mean of all returns."""
    observations, actions, rewards, spans = episodes
    advantages = returns_of(rewards, spans)
    if baseline:
        advantages -= advantages.mean()

    def joined(values):
        pieces = [values[begin:end, slot] for slot, begin, end in spans]
        return torch.from_numpy(np.concatenate(pieces))

    taken = policy.log_probs(joined(observations), joined(actions))
    return -(taken @ torch.from_numpy(advantages)) / len(spans)


class Learner:
    """A policy from scratch, the worlds it plays in and its optimizer."""

    def __init__(self, env, envs, seed, count, rate):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.worlds = [gym.make(env, disable_env_checker=True) for _ in range(envs)]
        for slot, world in enumerate(self.worlds):
            world.reset(seed=seed * envs + slot)
        self.policy = policy_for(self.worlds[0])
        self.optimizer = torch.optim.Adam(self.policy.weights, rate)
        self.count = count

    def update(self):
        """Plays and learns; returns the number of steps."""
        episodes = whole_episodes(self.worlds, self.policy, self.count, self.rng)
        self.learn(episodes)
        return sum(end - begin for _, begin, end in episodes[-1])

    def learn(self, episodes):
        loss = loss_of(self.policy, episodes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def greedy(self, observations):
        with torch.inference_mode():
            logits = self.policy.outputs(torch.from_numpy(observations))
        return logits.argmax(-1).numpy()


def train(env, envs, steps, seed):
    learner = Learner(env, envs, seed, EPISODES[env], RATES[env])
    return protocol.trained(learner.update, steps)


def solve(envs, seed, limit):
    """With the mean of all as the baseline: leaving one out took as long."""
    learner = Learner("CartPole-v1", envs, seed, SOLVE_EPISODES, SOLVE_RATE)
    return protocol.until_solved(learner.update, learner.greedy, limit)


def act(batch):
    policy, rng = Categorical(4, 2), np.random.default_rng(0)
    observations = rng.normal(size=(batch, 4)).astype("float32")
    return protocol.latency(lambda: policy.sample(observations, rng))


def learn(rows):
    learner = Learner("CartPole-v1", 1, 0, EPISODES["CartPole-v1"], 1e-2)
    shape, rng = (500, rows // 500), np.random.default_rng(0)
    observations = rng.normal(size=(*shape, 4)).astype("float32")
    rewards = rng.normal(size=shape).astype("float32")
    spans = [(slot, 0, 500) for slot in range(shape[1])]
    episodes = observations, rng.integers(2, size=shape), rewards, spans
    return protocol.learned(lambda: learner.learn(episodes), rows)


def gradient(weights, observations, actions, lengths):
    policy = Categorical(4, 2)
    for mine, given in zip(policy.weights, weights, strict=True):
        mine.data = torch.tensor(np.transpose(given), dtype=torch.float32)
    seen, done = np.array(observations, "float32")[:-1], np.array(actions)
    spans = [(slot, 0, length) for slot, length in enumerate(lengths)]
    episodes = seen, done, np.ones(done.shape, "float32"), spans
    loss_of(policy, episodes, baseline=False).backward()
    return {"gradients": [weight.grad.numpy().T.tolist() for weight in policy.weights]}


if __name__ == "__main__":
    operations = train, solve, act, learn, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
