"""Compares the speed of training with the speed of stepping the environment alone.

    python benchmarks/throughput.py [--repeats 7] [--env CartPole-v1] [--steps 100000]
        [--preset HalfCheetah-v5-one-pass] [--threads 1]

This program runs three loops over equal episodes. The rounds of the three loops are
interleaved, and start after all programs are built, traced and converted. This program
uses one process for each number of environments.

* The loop "stepping alone" steps environments of `gymnasium.make` with their default
  wrappers, one after another. This loop calls only `reset` and `step`, with the recorded
  seeds and actions of the training.
* The loop "recording" runs the collector of `tf_reinforce` with the recorded actions
  instead of a policy. The collector checks and records every result of an environment.
* The loop "training" runs `fit` from the initial weights for `--steps` steps. Training
  includes acting, recording, returns, baseline, gradient and callbacks.

Every round trains an agent equally to the bit, so the three loops make equal steps. The
share of a loop is the ratio of its steps per second to those of stepping alone in one
round.
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
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import in_process


class Benchmark:
    """Runs the three loops for one number of environments."""

    def __init__(self, env, preset, steps, envs, episodes):
        self.env, self.envs, self.episodes = env, envs, episodes
        self.num_envs = envs.num_envs
        self.budget = steps
        self.agent = tfr.Reinforce.for_env(env, seed=0, preset=preset)
        self.agent._learning_rates = []  # `_record` below uses constant learning rates
        self.agent.collect(env, 1)
        self._record()

    def _state(self):
        baseline_optimizer = getattr(self.agent.baseline, "optimizer", None)
        optimizers = [self.agent.optimizer, baseline_optimizer]
        optimizers = [x for x in optimizers if x is not None]
        variables = [x for optimizer in optimizers for x in optimizer.variables]
        return [*self.agent.variables, *variables]

    def reset(self):
        for variable, value in zip(self._state(), self.initial_state, strict=True):
            variable.assign(value)

    def _record(self):
        """Trains the agent once without `fit`, and records all results of acting."""
        agent, self.batches = self.agent, []
        agent._build_optimizer()
        self.initial_state = [v.numpy() for v in self._state()]
        while agent.env_steps < self.budget:
            rows = agent.trainer.collector.programs["acting", False].for_batch(
                self.num_envs
            )
            outputs = []

            def act(inputs, rows=rows, outputs=outputs):
                outputs.append(rows(inputs))
                return outputs[-1]

            episodes = self._collect(act, agent.updates).episodes
            agent.update(episodes)
            self.batches.append((outputs, self._script(outputs, episodes)))
        self.steps = agent.env_steps

    def _collect(self, act, update):
        key = seeding.StreamKey(0, "training", update)
        actor = self.agent.trainer.collector.actor
        weights = acting_program.read_weights(actor)
        request = environments.CollectionRequest(key, self.episodes, weights=weights)
        return in_process.collect(self.envs.batch, actor, act, request)

    def _script(self, outputs, episodes):
        """Returns `(env_index, seed, action)` per step; `None` as seed means no reset."""
        seeds = seeding.EpisodeSeeds(0, "training", self.agent.updates - 1)
        lengths, script = episodes.lengths.tolist(), []
        waiting = iter(range(len(lengths)))
        active = dict(
            zip(range(self.num_envs), waiting)
        )  # from env index to episode number
        remaining = {index: lengths[episode] for index, episode in active.items()}
        to_reset = set(active)
        for _, (actions,), _, _ in outputs:
            for index in list(active):
                seed = seeds.reset_seed(active[index]) if index in to_reset else None
                script.append((index, seed, actions[index]))
                to_reset.discard(index)
                remaining[index] -= 1
            for index in sorted(index for index in active if remaining[index] == 0):
                del active[index]
                episode = next(waiting, None)
                if episode is not None:
                    active[index], remaining[index] = episode, lengths[episode]
                    to_reset.add(index)
        return script

    def stepping_alone(self):
        envs = [gym.make(self.env) for _ in range(self.num_envs)]
        steps = [env.step for env in envs]
        resets = [env.reset for env in envs]
        start, finished = time.perf_counter(), 0
        for _, script in self.batches:
            for index, seed, action in script:
                if seed is not None:
                    resets[index](seed=seed)
                _, _, terminated, truncated, _ = steps[index](action)
                if terminated or truncated:
                    finished += 1
        seconds = time.perf_counter() - start
        assert finished == self.episodes * len(self.batches), "the episodes differ"
        return self.steps / seconds

    def recording(self):
        start = time.perf_counter()
        for update, (outputs, _) in enumerate(self.batches):
            recorded = iter(outputs)
            self._collect(lambda *_, recorded=recorded: next(recorded), update)
        return self.steps / (time.perf_counter() - start)

    def training(self):
        self.reset()
        start = time.perf_counter()
        self.agent.fit(
            self.envs,
            steps=self.budget,
            episodes_per_epoch=self.episodes,
            verbose=0,
        )
        seconds = time.perf_counter() - start
        assert self.agent.env_steps == self.steps, "the number of steps differs"
        return self.steps / seconds


def measure(env, preset, steps, num_envs, episodes, repeats):
    """Prints the row for one number of environments of the table of speeds."""
    with tfr.collect.open_envs(env, num_envs) as envs:
        benchmark = Benchmark(env, preset, steps, envs, episodes)
        benchmark.training()  # traces the update
        gc.freeze()  # keeps the recorded arrays out of garbage collection
        rounds = [
            (benchmark.stepping_alone(), benchmark.recording(), benchmark.training())
            for _ in range(repeats)
        ]
    stepping, recording, training = map(statistics.median, zip(*rounds, strict=True))
    low, median, high = np.percentile([t / s for s, _, t in rounds], (25, 50, 75))
    recording_share = statistics.median(r / s for s, r, _ in rounds)
    training_to_recording = statistics.median(t / r for _, r, t in rounds)
    print(
        f"| {num_envs}, {episodes} | {stepping:,.0f} steps/s | {recording:,.0f} | "
        f"{training:,.0f} | {recording_share:.0%} | "
        f"{median:.1%} ({low:.1%} to {high:.1%}) | {training_to_recording:.0%} |"
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
        "| environments, episodes per update | stepping alone | recording | training | "
        "recording, share | training, share (quartiles) | training ÷ recording |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    for size in sizes:
        command = [sys.executable, *sys.argv, "--size", *map(str, size)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
