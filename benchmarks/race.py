"""Compares the speed of implementations, each in its own process.

    python benchmarks/race.py all           # make bench: every comparison
    python benchmarks/race.py host solve    # the comparisons `host` and `solve`
    python benchmarks/race.py report        # only writes benchmarks/RESULTS.md

Each worker process compiles and answers one request before the first round. In each round
the worker processes run one after another, in a new random order, and only one worker
runs at a time. Before a race, all workers of REINFORCE must compute equal gradients for
equal episodes and equal weights. The results are medians over rounds of the speed ratios
within a round, with a bootstrap interval. The command `make bench-setup` makes the
virtual environments of the workers.
"""

import argparse
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "race"))
import races
import report

RESULTS = HERE / "results" / "race.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = ["all", "report", *races.RACES]
    parser.add_argument(
        "races", nargs="+", choices=names, metavar="RACE", help=", ".join(names)
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seeds", type=int, default=10, help="number of seeds of the races to a goal"
    )
    parser.add_argument(
        "--venvs", default=".venv-race", help="folder of the virtual environments"
    )
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    names = [name for name in options.races if name != "report"]
    if "all" in names:
        names = list(races.RACES)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        print(f"{name}, load {os.getloadavg()[0]:.1f}", flush=True)
        results[name] = {**races.RACES[name](options), "machine": report.machine()}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results))
    report.write(results, options.out)


if __name__ == "__main__":
    main()
