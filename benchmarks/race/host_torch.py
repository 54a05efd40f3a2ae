"""REINFORCE by hand in PyTorch, which asks its policy once for all environments."""

import time

import gymnasium as gym
import numpy as np
import protocol
import torch

EPISODES, GAMMA, RATE = 16, 0.99, 1e-2
torch.set_num_threads(1)  # faster than two for networks this small


def whole_episodes(worlds, policy, seed):
    """`EPISODES` episodes, started in turn: lists of observations, actions, rewards."""
    episodes, running = [], {}
    seen = np.zeros((len(worlds), *worlds[0].observation_space.shape), "float32")

    def begin(slot):
        if len(episodes) < EPISODES:
            running[slot] = [], [], []
            episodes.append(running[slot])
            seen[slot], _ = worlds[slot].reset(seed=seed + len(episodes))

    for slot in range(len(worlds)):
        begin(slot)
    while running:
        with torch.no_grad():
            logits = policy(torch.from_numpy(seen))
            noise = torch.rand_like(logits).log_().neg_().log_().neg_()
            actions = (logits + noise).argmax(-1).tolist()
        for slot in list(running):
            observations, taken, rewards = running[slot]
            observations.append(seen[slot].copy())
            taken.append(actions[slot])
            seen[slot], reward, terminated, truncated, _ = worlds[slot].step(
                actions[slot]
            )
            rewards.append(reward)
            if terminated or truncated:
                del running[slot]
                begin(slot)
    return episodes


def returns_of(rewards):
    returns, total = np.zeros(len(rewards), "float32"), 0.0
    for step in reversed(range(len(rewards))):
        total = returns[step] = rewards[step] + GAMMA * total
    return returns


def train(env, envs, steps, seed):
    torch.manual_seed(seed)
    worlds = [gym.make(env) for _ in range(envs)]
    inputs, outputs = worlds[0].observation_space.shape[0], int(worlds[0].action_space.n)
    sizes = (inputs, 64), (64, 64)
    hidden = [
        part for size in sizes for part in (torch.nn.Linear(*size), torch.nn.Tanh())
    ]
    policy = torch.nn.Sequential(*hidden, torch.nn.Linear(64, outputs))
    optimizer, done = torch.optim.Adam(policy.parameters(), RATE), 0
    began = time.perf_counter()
    while done < steps:
        episodes = whole_episodes(worlds, policy, seed + done)
        observations = torch.from_numpy(np.array([o for e in episodes for o in e[0]]))
        actions = torch.tensor([a for e in episodes for a in e[1]])
        returns = torch.from_numpy(np.concatenate([returns_of(e[2]) for e in episodes]))
        scores = torch.log_softmax(policy(observations), -1)
        taken = scores.gather(-1, actions[:, None])[:, 0]
        loss = -(taken * (returns - returns.mean())).sum() / EPISODES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += len(actions)
    return {"seconds": time.perf_counter() - began, "steps": done}


if __name__ == "__main__":
    protocol.serve({"train": train})
