"""How near training comes to the speed of stepping alone.

    python benchmarks/throughput.py [--repeats 7] [--env CartPole-v1]

Three loops, interleaved, in one process, after everything is traced and converted:

* stepping alone: plain Gymnasium environments in turn, random actions drawn
  beforehand, nothing recorded;
* random policy: our collector with an acting program that answers random actions at
  once, everything checked and recorded;
* training: `fit` from the same first weights for 100,000 steps, from the first short
  episodes to the long ones; acting, returns, baseline, gradient and callbacks included.

A share is the ratio of steps per second to stepping alone in the same round.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr
from tf_reinforce.collect import fleets, host

STEPS = 100_000


def stepping_alone(env, num_envs, steps):
    environments = [gym.make(env) for _ in range(num_envs)]
    for number, environment in enumerate(environments):
        environment.reset(seed=number)
        environment.action_space.seed(number)
    space = environments[0].action_space
    actions = [space.sample() for _ in range(steps)]
    calls = [(environment.step, environment.reset) for environment in environments]
    began, taken = time.perf_counter(), 0
    while taken < steps:
        for step, reset in calls:
            _, _, terminated, truncated, _ = step(actions[taken % steps])
            if terminated or truncated:
                reset()
            taken += 1
    return taken / (time.perf_counter() - began)


def random_policy(env, num_envs, episodes):
    rng = np.random.default_rng(0)
    with fleets.open_fleet(env, num_envs) as fleet:
        structure = fleet.prepare("float32")
        head = tfr.heads.for_space(fleet.action_space)
        shape = (num_envs, *head.action_shape)
        raw = rng.integers(0, 2, (1024, *shape)).astype(head.action_dtype or "float32")
        sent = raw.astype(fleet.action_space.dtype).reshape(
            1024, num_envs, *fleet.action_space.shape
        )
        turn = iter(range(10**9))

        def act(observations, noise):
            at = next(turn) % 1024
            return raw[at], sent[at], True

        began = time.perf_counter()
        collected = host.collect(
            fleet,
            structure,
            act,
            head,
            "float32",
            seed=0,
            purpose="training",
            update=0,
            episodes=episodes,
            steps=None,
        )
    return collected.episodes.lengths.sum() / (time.perf_counter() - began)


def training(env, num_envs, episodes, agent, first):
    agent.set_weights(first)
    for variable in agent.optimizer.variables[2:]:
        variable.assign(np.zeros(variable.shape))
    began, before = time.perf_counter(), int(agent.env_steps)
    agent.fit(env, steps=STEPS, episodes_per_epoch=episodes, num_envs=num_envs, verbose=0)
    return (int(agent.env_steps) - before) / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    settings = ((1, 16), (8, 16), (64, 64))
    agents = {}
    for num_envs, episodes in settings:
        agent = tfr.Reinforce.for_env(arguments.env, seed=0)
        first = agent.get_weights()
        agent.fit(
            arguments.env,
            epochs=1,
            num_envs=num_envs,
            episodes_per_epoch=episodes,
            verbose=0,
        )
        agents[num_envs] = agent, first
    measured = {setting: [] for setting in settings}
    for _ in range(arguments.repeats):
        for num_envs, episodes in settings:
            measured[num_envs, episodes].append(
                (
                    stepping_alone(arguments.env, num_envs, 50_000),
                    random_policy(arguments.env, num_envs, 40 * episodes),
                    training(arguments.env, num_envs, episodes, *agents[num_envs]),
                )
            )
    print(f"{arguments.env}, median of {arguments.repeats} interleaved rounds")
    print(f"load average {os.getloadavg()[0]:.2f}, Keras {keras.__version__}\n")
    print("| environments, episodes per update | stepping alone | random policy | "
          "training | share of stepping (quartiles) |")  # fmt: skip
    print("|---|---|---|---|---|")
    for (num_envs, episodes), rounds in measured.items():
        alone, recorded, trained = map(statistics.median, zip(*rounds, strict=True))
        shares = [trained / alone for alone, _, trained in rounds]
        low, middle, high = statistics.quantiles(shares, n=4)
        print(
            f"| {num_envs}, {episodes} | {alone:,.0f} steps/s | {recorded:,.0f} | "
            f"{trained:,.0f} | {middle:.0%} ({low:.0%} to {high:.0%}) |"
        )


if __name__ == "__main__":
    main()
