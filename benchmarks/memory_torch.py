"""The PyTorch side of memory.py: a gated block of attention, with a cache to act.

The program reads lines `collect` or `update`, and answers each with the seconds taken.
"""

import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional

EPISODES, STEPS, WIDTH, WINDOW, HEADS = 16, 200, 64, 64, 4


class Block(torch.nn.Module):
    """Attends to the last `WINDOW` steps, and mixes the result with a gate (GTrXL)."""

    def __init__(self):
        super().__init__()
        linear = torch.nn.Linear
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.project, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.gate_y = linear(WIDTH, 3 * WIDTH, bias=False)
        self.gate_x = linear(WIDTH, 2 * WIDTH, bias=False)
        self.gate_rx = linear(WIDTH, WIDTH, bias=False)
        self.gate_bias = torch.nn.Parameter(torch.full((WIDTH,), 2.0))
        self.position = torch.nn.Parameter(torch.zeros(HEADS, WINDOW))  # by age

    def projected(self, x):
        parts = self.project(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        return [part.transpose(-3, -2) for part in parts.unbind(-3)]

    def gated(self, x, mixed):
        y = functional.relu(self.out(mixed.transpose(-3, -2).flatten(-2)))
        (ry, zy, hy), (rx, zx) = self.gate_y(y).chunk(3, -1), self.gate_x(x).chunk(2, -1)
        reset, share = torch.sigmoid(ry + rx), torch.sigmoid(zy + zx - self.gate_bias)
        return x + share * (torch.tanh(hy + self.gate_rx(reset * x)) - x)

    def forward(self, x):
        query, keys, values = self.projected(x)
        steps = torch.arange(x.shape[1])
        ages = steps[:, None] - steps
        bias = self.position[:, ages.clamp(0, WINDOW - 1)]
        bias = bias.masked_fill((ages < 0) | (ages >= WINDOW), -torch.inf)
        attend = functional.scaled_dot_product_attention
        return self.gated(x, attend(query, keys, values, attn_mask=bias))

    def step(self, x, cache, count):
        """Appends one step to the cache `[2, N, heads, WINDOW, d]`."""
        query, keys, values = self.projected(x[:, None])
        cache = torch.cat([cache[..., 1:, :], torch.stack([keys, values])], -2)
        ages = torch.arange(WINDOW - 1, -1, -1)
        bias = self.position.flip(-1).masked_fill(ages > count, -torch.inf)[:, None]
        attend = functional.scaled_dot_product_attention
        mixed = attend(query, *cache, attn_mask=bias)
        return self.gated(x[:, None], mixed)[:, 0], cache


torch.set_num_threads(1 if "--two" not in sys.argv else 2)
torch.manual_seed(0)
first, block, last = torch.nn.Linear(2, WIDTH), Block(), torch.nn.Linear(WIDTH, 1)
log_std = torch.nn.Parameter(torch.zeros(1))
modules = torch.nn.ModuleList([first, block, last])
optimizer = torch.optim.Adam([*modules.parameters(), log_std], 1e-3)
envs = [gym.make("Pendulum-v1") for _ in range(EPISODES)]
rng = np.random.default_rng(0)


def collect():
    observations = np.zeros((EPISODES, STEPS, 2), "float32")
    actions = np.zeros((EPISODES, STEPS, 1), "float32")
    rewards = np.zeros((EPISODES, STEPS), "float32")
    current = np.stack([env.reset(seed=i)[0][:2] for i, env in enumerate(envs)])
    cache = torch.zeros(2, EPISODES, HEADS, WINDOW, WIDTH // HEADS)
    std = log_std.exp().detach().numpy()
    for t in range(STEPS):
        observations[:, t] = current
        with torch.inference_mode():
            x = functional.relu(first(torch.from_numpy(current)))
            x, cache = block.step(x, cache, t)
            means = last(x).numpy()
        actions[:, t] = means + std * rng.standard_normal(means.shape, "float32")
        clipped = np.clip(actions[:, t], -2, 2)
        steps = [env.step(a) for env, a in zip(envs, clipped, strict=True)]
        rewards[:, t] = [x[1] for x in steps]
        current = np.stack([x[0][:2] for x in steps])
    return observations, actions, rewards


def update(observations, actions, rewards):
    returns = np.zeros_like(rewards)
    total = np.zeros(EPISODES)
    for t in reversed(range(STEPS)):
        total = returns[:, t] = rewards[:, t] + 0.95 * total
    others = (returns.sum(0) - returns) / (EPISODES - 1)
    advantages = torch.from_numpy(returns - others)
    means = last(block(functional.relu(first(torch.from_numpy(observations)))))
    errors = (torch.from_numpy(actions) - means) * torch.exp(-log_std)
    log_probs = -(0.5 * errors**2 + log_std).sum(-1)
    loss = -(log_probs * advantages).sum() / EPISODES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


record = collect()
for line in sys.stdin:
    began = time.perf_counter()
    collect() if line.strip() == "collect" else update(*record)
    print(json.dumps(time.perf_counter() - began), flush=True)
