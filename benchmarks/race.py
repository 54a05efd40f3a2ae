"""The race: implementations side by side, each in a process of its own.

    python benchmarks/race.py all           # make bench: every race
    python benchmarks/race.py host solve    # some of them
    python benchmarks/race.py report        # benchmarks/RESULTS.md from what is there

Workers are warm (compiled, and asked once) before the first round; in each round they
are asked one after the other, in an order drawn anew, and only one works at a time.
Beforehand all that have a gradient must say the same, from the same episodes at the same
weights. Figures are medians over rounds of ratios within a round, with a bootstrap
interval. `make bench-setup` makes an environment for each.
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

STORE = HERE / "results" / "race.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = ["all", "report", *races.RACES]
    parser.add_argument("races", nargs="+", choices=names, metavar="RACE", help=names)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=10, help="of the races to a goal")
    parser.add_argument("--venvs", default=".venv-race", help="of their Pythons")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    asked = options.races
    chosen = list(races.RACES) if "all" in asked else [x for x in asked if x != "report"]
    found = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in chosen:
        print(f"{name}, load {os.getloadavg()[0]:.1f}", flush=True)
        found[name] = {**races.RACES[name](options), "machine": report.machine()}
        STORE.parent.mkdir(exist_ok=True)
        STORE.write_text(json.dumps(found))
    report.write(found, options.out)


if __name__ == "__main__":
    main()
