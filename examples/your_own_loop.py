"""Trains with a loop of your own, which collects whole episodes and updates the agent.

    python examples/your_own_loop.py [updates]

Unlike this loop, the method `fit` also calls callbacks, validates and writes logs.
"""

import sys

import tf_reinforce as tfr

updates = int(sys.argv[1]) if len(sys.argv) > 1 else 20
agent = tfr.Reinforce.for_env("CartPole-v1", seed=0)

with tfr.collect.open_envs("CartPole-v1", num_envs=8) as envs:
    for update in range(updates):
        episodes = agent.collect(envs, episodes=16, seed=0)
        logs = agent.update(episodes)
        print(
            f"update {update}: "
            f"return {logs['episode_return']:.1f}, entropy {logs['entropy']:.3f}, "
            f"{int(logs['env_steps'])} steps"
        )
