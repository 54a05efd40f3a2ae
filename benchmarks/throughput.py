"""Compares the speed of training with the speed of stepping the environment alone.

    python benchmarks/throughput.py [--repeats 7] [--env CartPole-v1] [--steps 100000]
        [--preset HalfCheetah-v5-one-pass] [--threads 1]

The rounds of two loops over equal episodes are interleaved, and start after all programs
are built, traced and converted. One process measures each number of environments.

* The loop "stepping alone" steps environments of `gymnasium.make` with their default
  wrappers, one after another. This loop calls only `reset` and `step`, with the recorded
  seeds and actions of the training.
* The loop "training" runs `fit` from the initial weights for `--steps` steps. Training
  includes acting, recording, returns, baseline, gradient and callbacks.

Every round trains an agent equally to the bit, so the loops make equal steps. The share
of training is the ratio of its steps per second to those of stepping alone in one round.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import numpy as np
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.data import seeding
from tf_reinforce.engine import agent_state


class Recorder(tfr.callbacks.EpisodeCallback):
    """Keeps the episodes of each update in the list `batches`."""

    def on_train_begin(self, logs=None):
        self.batches = []

    def on_episodes_collected(self, episodes, logs=None):
        self.batches.append(episodes)


class Benchmark:
    """Runs the two loops for one number of environments."""

    def __init__(self, env, preset, steps, envs, num_envs, episodes):
        self.env, self.envs, self.num_envs = env, envs, num_envs
        self.episodes, self.budget = episodes, steps
        self.agent = tfr.Reinforce.for_env(env, seed=0, preset=preset)
        self.agent.build_for_env(envs)
        variables = agent_state.variables(self.agent)
        self.initial_state = [variable.numpy() for variable in variables]
        recorder = Recorder()
        self.training(recorder)
        self.steps = self.agent.env_steps
        self.scripts = [self._script(*item) for item in enumerate(recorder.batches)]

    def _script(self, update, episodes):
        """Returns `(env_index, seed, action)` per step; `None` as seed means no reset."""
        seeds = seeding.EpisodeSeeds(0, "training", update)
        actions = tf.convert_to_tensor(episodes.actions)
        actions = np.asarray(self.agent.head.to_environment(actions))
        waiting, script = iter(enumerate(episodes.lengths.tolist())), []
        playing = {}  # from env index to episode number, its length, and its step
        while True:
            for index in range(self.num_envs):
                if index not in playing and (episode := next(waiting, None)) is not None:
                    playing[index] = [*episode, 0]
            if not playing:
                return script
            for index, (number, length, step) in list(playing.items()):
                seed = None if step else seeds.reset_seed(number)
                script.append((index, seed, actions[step, number]))
                playing[index][2] += 1
                if step + 1 == length:
                    del playing[index]

    def stepping_alone(self):
        """Returns the steps per second of stepping the recorded episodes."""
        envs = [gym.make(self.env) for _ in range(self.num_envs)]
        steps, resets = [env.step for env in envs], [env.reset for env in envs]
        start, finished = time.perf_counter(), 0
        for script in self.scripts:
            for index, seed, action in script:
                if seed is not None:
                    resets[index](seed=seed)
                _, _, terminated, truncated, _ = steps[index](action)
                if terminated or truncated:
                    finished += 1
        seconds = time.perf_counter() - start
        assert finished == self.episodes * len(self.scripts), "the episodes differ"
        return self.steps / seconds

    def training(self, *callbacks):
        """Returns the steps per second of training from the initial weights."""
        variables = agent_state.variables(self.agent)
        for variable, value in zip(variables, self.initial_state, strict=True):
            variable.assign(value)
        options = dict(episodes_per_epoch=self.episodes, seed=0, verbose=0)
        start = time.perf_counter()
        self.agent.fit(self.envs, steps=self.budget, callbacks=[*callbacks], **options)
        return self.agent.env_steps / (time.perf_counter() - start)


def measure(env, preset, steps, num_envs, episodes, repeats):
    """Prints the row for one number of environments of the table of speeds."""
    with tfr.collect.open_envs(env, num_envs) as envs:
        benchmark = Benchmark(env, preset, steps, envs, num_envs, episodes)
        gc.freeze()  # keeps the recorded arrays out of garbage collection
        rounds = []
        for _ in range(repeats):
            rounds.append((benchmark.stepping_alone(), benchmark.training()))
            assert benchmark.agent.env_steps == benchmark.steps, "the steps differ"
    stepping, training = map(statistics.median, zip(*rounds, strict=True))
    low, median, high = np.percentile([t / s for s, t in rounds], (25, 50, 75))
    print(
        f"| {num_envs}, {episodes} | {stepping:,.0f} steps/s | {training:,.0f} | "
        f"{median:.1%} ({low:.1%} to {high:.1%}) |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--preset", help="a preset, instead of --env and defaults")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument(
        "--threads", type=int, default=0, help="of TensorFlow; 0: default"
    )
    parser.add_argument("--size", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = (1, 16), (8, 16), (64, 64)
    if arguments.preset:
        settings = presets.read(arguments.preset)
        arguments.env, fit = settings["env"], settings["fit"]
        if "episodes_per_epoch" not in fit:
            parser.error(f"{arguments.preset} must contain `episodes_per_epoch`")
        sizes = [(fit.get("num_envs", 8), fit["episodes_per_epoch"])]
    if arguments.size:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
        tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
        options = arguments.env, arguments.preset, arguments.steps
        measure(*options, *arguments.size, arguments.repeats)
        return
    print(
        f"{arguments.env}, median of {arguments.repeats} interleaved rounds, load "
        f"{os.getloadavg()[0]:.1f}\n\n"
        "| environments, episodes per update | stepping alone | training | "
        "share (quartiles) |\n|---|---|---|---|",
        flush=True,
    )
    for size in sizes:
        command = [sys.executable, *sys.argv, "--size", *map(str, size)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
