"""Compares settings of a preset by successive halving over settings and seeds.

    python benchmarks/halving.py benchmarks/halving/HalfCheetah-v5.toml [--jobs 2]

The file names a preset, the rungs of the search, and candidates, which are lists of
overrides of the preset:

    preset = "HalfCheetah-v5"
    steps = 1_000_000
    every = 50_000
    rungs = [{until = 100_000, seeds = 1}, {until = 1_000_000, seeds = 3}]

    [candidates]
    preset = []
    ten_passes = ["passes=10", "ratio_clip=[0.2, 0.2]"]

Each candidate is trained until the first rung. The best third goes on to the next rung,
with more seeds, and so on. The learning rates of all runs decrease over `steps`. The
value of a candidate is the mean return of the last two evaluations before the rung, over
its seeds; the policies are evaluated after `every` steps. The seeds are 0, 1, 2, …;
results of a chosen candidate must come from other seeds.

The program trains `--jobs` runs at the same time, each on one thread, and continues after
an interruption. It writes a table of all candidates beside the file, with the suffix
`.md`.
"""

import argparse
import json
import math
import pathlib
import tomllib

import learning
import numpy as np

from tf_reinforce import presets
from tf_reinforce.settings import overrides
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files

SURVIVORS = 3  # one of so many candidates goes on to the next rung


def candidate_settings(preset, texts):
    """Returns the settings of a preset with overrides `NAME=VALUE`."""
    settings = presets.read(preset)
    for text in texts:
        settings = overrides.apply(settings, *overrides.parse(text))
    return {**settings, "result": None}


def value(records, until):
    """Returns the mean return of the last two evaluations until a rung, over seeds."""
    means = []
    for record in records:
        reached = next(i for i, x in enumerate(record["curve"]) if x[0] >= until)
        points = record["curve"][max(0, reached - 1) : reached + 1]
        means.append(np.mean([point[1] for point in points]))
    return float(np.mean(means))


def seed_text(count):
    """Returns the seeds from 0 as text, for example `seeds 0 to 2`."""
    return "seed 0" if count == 1 else f"seeds 0 to {count - 1}"


class Search:
    """A search whose runs are stored in a folder.

    Args:
        path: `pathlib.Path` of the TOML file of the search.
        results: `pathlib.Path` of the folder of the runs.
    """

    def __init__(self, path, results):
        self.path, self.results = path, results / path.stem
        self.plan = tomllib.loads(path.read_text())
        self.candidates = self.plan["candidates"]
        for name, texts in self.candidates.items():
            settings = candidate_settings(self.plan["preset"], texts)
            toml_files.write(self._preset(name), settings, f"{name} of {path.name}")

    def _preset(self, name):
        path = self.results / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _run(self, name, seed):
        """Returns the path of a run's JSON file."""
        steps = self.plan["steps"]
        return learning.record_path(self.results, self._preset(name), seed, steps)

    def records(self, name, seeds, until):
        """Returns the records of the seeds of a candidate that have reached a rung."""
        paths = [self._run(name, seed) for seed in range(seeds)]
        records = [json.loads(path.read_text()) for path in paths if path.exists()]
        return [x for x in records if x["curve"] and x["curve"][-1][0] >= until]

    def climb(self, jobs):
        """Trains all candidates rung by rung, and writes the table after each rung."""
        names = list(self.candidates)
        for rung in self.plan["rungs"]:
            commands = [
                learning.one_run(
                    self._preset(name),
                    self.results,
                    seeds=seed,
                    steps=self.plan["steps"],
                    every=self.plan["every"],
                    until=rung["until"],
                )
                for seed in range(rung["seeds"])
                for name in names
                if not self._is_trained(name, seed, rung["until"])
            ]
            learning.run_commands(commands, jobs)
            ranked = sorted(names, key=lambda name: -self._value(name, rung))
            names = ranked[: math.ceil(len(ranked) / SURVIVORS)]
            self.write_table()

    def _is_trained(self, name, seed, until):
        path = self._run(name, seed)
        return path.exists() and learning.is_trained(json.loads(path.read_text()), until)

    def _value(self, name, rung):
        records = self.records(name, rung["seeds"], rung["until"])
        complete = len(records) == rung["seeds"]
        return value(records, rung["until"]) if complete else -math.inf

    def write_table(self):
        """Writes the values of all candidates at all rungs, the best candidate first."""
        rungs, command = self.plan["rungs"], "python benchmarks/halving.py"
        rows = [
            (name, [self._value(name, rung) for rung in rungs])
            for name in self.candidates
        ]
        rows.sort(key=lambda row: row[1][::-1], reverse=True)
        title = [f"{x['until']:,} steps, {seed_text(x['seeds'])}" for x in rungs]
        lines = [
            f"# Candidates for {self.plan['preset']}",
            "",
            f"Written by `{command} benchmarks/halving/{self.path.name}`.",
            "",
            f"| candidate | {' | '.join(title)} | overrides |",
            "|---" * (len(rungs) + 2) + "|",
        ]
        for name, values in rows:
            cells = ["" if math.isinf(x) else f"{x:,.2f}" for x in values]
            texts = ", ".join(f"`{text}`" for text in self.candidates[name])
            lines.append(f"| {name} | {' | '.join(cells)} | {texts} |")
        with files.atomic_write(self.path.with_suffix(".md")) as temporary:
            pathlib.Path(temporary).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+", type=pathlib.Path, metavar="FILE.toml")
    parser.add_argument("--jobs", type=learning.positive_int, default=2)
    parser.add_argument(
        "--results", type=pathlib.Path, default=learning.HERE / "results" / "halving"
    )
    arguments = parser.parse_args()
    for path in arguments.plans:
        Search(path, arguments.results).climb(arguments.jobs)


if __name__ == "__main__":
    main()
