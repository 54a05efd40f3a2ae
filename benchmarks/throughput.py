"""How near training comes to the speed of stepping alone.

    python benchmarks/throughput.py [--repeats 7] [--env CartPole-v1] [--steps 100000]
        [--preset HalfCheetah-v5] [--threads 1]

Three loops over the same episodes, interleaved, after everything is made, traced and
converted, in a process of its own for each number of environments:

* stepping alone: plain environments of `gymnasium.make`, in turn and with the wrappers
  these come with, nothing but `reset` and `step` with the seeds and actions of the
  training below, written down beforehand;
* recording: our collector with these actions instead of a policy; every answer checked
  and recorded;
* training: `fit` from the same first weights for `--steps` steps, from the first
  episodes, often short, to the last; acting, recording, returns, baseline, gradient and
  callbacks included.

The training is the same to the bit in every round: the three make the same steps. A share
is the ratio of steps per second to stepping alone in the same round.
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
from tf_reinforce.collect import host_loop
from tf_reinforce.data import seeding


class Setting:
    """One number of environments: an agent, its first state, and what it will do."""

    def __init__(self, env, preset, steps, envs, episodes):
        self.env, self.envs, self.episodes = env, envs, episodes
        self.num_envs = envs.size
        self.budget = steps
        self.agent = tfr.Reinforce.for_env(env, seed=0, preset=preset)
        self.agent._rates = []  # the training by hand below has none that change
        self.agent.collect(env, 1)
        self._record()

    def _state(self):
        own = getattr(self.agent.baseline, "optimizer", None)
        optimizers = [x for x in (self.agent.optimizer, own) if x is not None]
        variables = [x for optimizer in optimizers for x in optimizer.variables]
        return [*self.agent.variables, *variables]

    def reset(self):
        for variable, value in zip(self._state(), self.first, strict=True):
            variable.assign(value)

    def _record(self):
        """Trains once, by hand, and writes down each answer of the acting program."""
        agent, self.batches = self.agent, []
        agent._build_optimizer()
        self.first = [v.numpy() for v in self._state()]
        while agent.env_steps < self.budget:
            rows = agent._collector.programs[False].rows(self.num_envs)
            answers = []

            def act(inputs, rows=rows, answers=answers):
                answers.append(rows(inputs))
                return answers[-1]

            episodes = self._collect(act, agent.updates).episodes
            agent.update(episodes)
            self.batches.append((answers, self._script(answers, episodes)))
        self.steps = agent.env_steps

    def _collect(self, act, update):
        self.envs.prepare("float32")
        return host_loop.collect(
            self.envs,
            self.agent._collector.decision,
            act,
            seed=0,
            purpose="training",
            update=update,
            episodes=self.episodes,
            steps=None,
        )

    def _script(self, answers, episodes):
        """`(slot, seed or None, action)` for each step, in the order it was made."""
        seeds = seeding.EpisodeSeeds(0, "training", self.agent.updates - 1)
        lengths, script = episodes.lengths.tolist(), []
        started = iter(range(len(lengths)))
        running = dict(zip(range(self.num_envs), started))
        left = {slot: lengths[number] for slot, number in running.items()}
        fresh = set(running)
        for _, (sent,), _, _ in answers:
            for slot in list(running):
                seed = seeds.environment(running[slot]) if slot in fresh else None
                script.append((slot, seed, sent[slot]))
                fresh.discard(slot)
                left[slot] -= 1
            for slot in sorted(slot for slot in running if left[slot] == 0):
                del running[slot]
                number = next(started, None)
                if number is not None:
                    running[slot], left[slot] = number, lengths[number]
                    fresh.add(slot)
        return script

    def stepping_alone(self):
        environments = [gym.make(self.env) for _ in range(self.num_envs)]
        steps = [environment.step for environment in environments]
        resets = [environment.reset for environment in environments]
        began, ended = time.perf_counter(), 0
        for _, script in self.batches:
            for slot, seed, action in script:
                if seed is not None:
                    resets[slot](seed=seed)
                _, _, terminated, truncated, _ = steps[slot](action)
                if terminated or truncated:
                    ended += 1
        seconds = time.perf_counter() - began
        assert ended == self.episodes * len(self.batches), "these are other episodes"
        return self.steps / seconds

    def recording(self):
        began = time.perf_counter()
        for update, (answers, _) in enumerate(self.batches):
            given = iter(answers)
            self._collect(lambda *_, given=given: next(given), update)
        return self.steps / (time.perf_counter() - began)

    def training(self):
        self.reset()
        began = time.perf_counter()
        self.agent.fit(
            self.envs,
            steps=self.budget,
            episodes_per_epoch=self.episodes,
            verbose=0,
        )
        seconds = time.perf_counter() - began
        assert self.agent.env_steps == self.steps, "this is another training"
        return self.steps / seconds


def measure(env, preset, steps, num_envs, episodes, repeats):
    """One line of the table."""
    with tfr.collect.open_envs(env, num_envs) as envs:
        setting = Setting(env, preset, steps, envs, episodes)
        setting.training()  # traced now
        gc.freeze()  # what was written down is large, and no garbage
        measured = [
            (setting.stepping_alone(), setting.recording(), setting.training())
            for _ in range(repeats)
        ]
    alone, recorded, trained = map(statistics.median, zip(*measured, strict=True))
    low, middle, high = np.percentile([t / a for a, _, t in measured], (25, 50, 75))
    share = statistics.median(r / a for a, r, _ in measured)
    learning = statistics.median(t / r for _, r, t in measured)
    print(
        f"| {num_envs}, {episodes} | {alone:,.0f} steps/s | {recorded:,.0f} | "
        f"{trained:,.0f} | {share:.0%} | {middle:.1%} ({low:.1%} to {high:.1%}) | "
        f"{learning:.0%} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--preset", help="with its environment, batches and networks")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=0, help="TensorFlow's; 0: its own")
    parser.add_argument("--size", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = (1, 16), (8, 16), (64, 64)
    if arguments.preset:
        settings = presets.read(arguments.preset)
        arguments.env, fit = settings["env"], settings["fit"]
        if "episodes_per_epoch" not in fit:
            parser.error(f"{arguments.preset} says no number of episodes per update")
        sizes = [(fit.get("num_envs", 8), fit["episodes_per_epoch"])]
    if arguments.size:
        tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
        tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
        given = arguments.env, arguments.preset, arguments.steps
        measure(*given, *arguments.size, arguments.repeats)
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
