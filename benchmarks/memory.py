"""Compares attention with a cache to a GRU of the same width, and to GTrXL in PyTorch.

    python benchmarks/memory.py [--repeats 7] [--torch PYTHON]

The task is Pendulum-v1 without velocity, whose episodes all have 200 steps. An update
collects 16 episodes in 16 environments and makes one gradient step. Each policy has a
dense layer of 64, then a GRU of 64 or a block of attention with 4 heads of 16, the gate
of GTrXL and a window of 64 steps. The rounds of all programs are interleaved. `--torch`
names the Python of an environment with PyTorch and Gymnasium, in which memory_torch.py
trains the same block with a cache of keys and values.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

EPISODES, STEPS, WIDTH, WINDOW = 16, 200, 64, 64


def make_env():
    space = gym.spaces.Box(-1, 1, (2,))
    env = gym.make("Pendulum-v1")
    return gym.wrappers.TransformObservation(env, lambda x: x[:2], space)


class Pendulum(tfr.envs.Pendulum):
    observation_space = gym.spaces.Box(-1, 1, (2,))

    def observation(self, state):
        return super().observation(state)[:, :2]


def make_agent(kind):
    keras.utils.set_random_seed(0)
    if kind == "gru":
        layer = keras.layers.GRU(WIDTH, return_sequences=True)
    else:
        options = dict(window=WINDOW, gate="gru")
        layer = tfr.layers.CausalSelfAttention(4, WIDTH // 4, **options)
    dense = keras.layers.Dense(WIDTH, "relu")
    layers = [keras.Input((None, 2)), dense, layer, keras.layers.Dense(1)]
    agent = tfr.Reinforce(keras.Sequential(layers), gamma=0.95)
    agent.compile(keras.optimizers.Adam(1e-3))
    return agent


def seconds(function, *arguments, **options):
    began = time.perf_counter()
    function(*arguments, **options)
    return time.perf_counter() - began


def parts_of(kind):
    """Returns functions that collect or update once, by name."""
    agent, env = make_agent(kind), Pendulum()
    record = agent.collect(make_env, episodes=EPISODES, num_envs=EPISODES)
    host = dict(episodes=EPISODES, num_envs=EPISODES)
    return {
        f"{kind}, collect, host": lambda: agent.collect(make_env, **host),
        f"{kind}, collect, XLA": lambda: agent.collect(env, episodes=EPISODES),
        f"{kind}, update": lambda: agent.update(record),
    }


def torch_parts(python):
    """Returns the same for PyTorch, which runs in a process of its own."""
    path = pathlib.Path(__file__).with_name("memory_torch.py")
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen([python, path], **pipes)

    def run(part):
        process.stdin.write(part + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return {f"torch, {x}": lambda x=x: run(x) for x in ("collect", "update")}


def main(repeats, python):
    parts = {**parts_of("gru"), **parts_of("attention")}
    others = torch_parts(python) if python else {}
    for function in (*parts.values(), *others.values()):  # builds, traces, converts
        function()
        function()
    times = {name: [] for name in (*parts, *others)}
    for _ in range(repeats):
        for name, function in parts.items():
            times[name].append(seconds(function))
        for name, function in others.items():
            times[name].append(function())
    for name, values in times.items():
        rates = sorted(EPISODES * STEPS / np.array(values))
        middle = statistics.median(rates)
        print(f"{name:<26} {middle:9,.0f} steps/s [{rates[0]:,.0f}, {rates[-1]:,.0f}]")
    for part in ("collect, host", "collect, XLA", "update"):
        pairs = zip(times[f"attention, {part}"], times[f"gru, {part}"], strict=True)
        ratio = statistics.median(x / y for x, y in pairs)
        print(f"{part}: attention takes {ratio:.2f} times as long as the GRU")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--torch", metavar="PYTHON", help="a Python with PyTorch")
    options = parser.parse_args()
    main(options.repeats, options.torch)
