"""Calls everything with wrong arguments, and checks that each error is clear.

    python stress/wrong_arguments.py [--out FILE.json]

The tables are in `tests/support/wrong_values.py` (constructors, methods, functions,
presets, configurations) and in `tests/support/wrong_commands.py` (command line). An error
is clear if it names the argument, shows the received value, comes from the package, and
has at most four lines. A call must not change weights, optimizers or files. A command
must exit with code 2, within one second, and must not import TensorFlow.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
MIN_CASES, MAX_SECONDS = 250, 1.0
PROCESSES = (
    ["train"],
    ["train", "NoSuch-v0"],
    ["train", "CartPole-v1", "--epochs", "0"],
    ["train", "CartPole-v1", "--hidden", "1000000000000"],
    ["train", "CartPole-v1", "--head", "Gaussian"],
    ["train", "FrozenLake-v1", "--seeds", "2", "--epochs", "1"],
    ["train", "--resume", "missing"],
    ["evaluate", "missing"],
    ["export", "missing", "--out", "new"],
    ["explain", "--probs", "-1", "2", "--action", "0"],
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", metavar="FILE.json")
    options = parser.parse_args()
    results = {
        "commands": check_commands(),
        "processes": time_processes(),
        "calls": check_calls(),
    }
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=2) + "\n")
    calls, commands, processes = (results[x] for x in ("calls", "commands", "processes"))
    print(
        f"wrong arguments: {calls['clear']} of {calls['cases']} calls and "
        f"{commands['clear']} of {commands['cases']} commands have a clear error; "
        f"a command takes {processes['median_seconds']:.2f} s (median of "
        f"{processes['count']} processes), at most {processes['max_seconds']:.2f} s"
    )
    cases = calls["cases"] + commands["cases"]
    unclear = cases - calls["clear"] - commands["clear"]
    return int(unclear > 0 or cases < MIN_CASES or processes["slow"] > 0)


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}


def check_commands():
    """Returns the counts of commands with a clear error, in processes without TensorFlow.

    The seconds of a command do not include the start of Python and the imports.
    """
    program = [sys.executable, str(SUPPORT / "wrong_commands.py")]
    run = subprocess.run(program, stdout=subprocess.PIPE, env=environment(), check=True)
    answers = json.loads(run.stdout)
    unclear = {name: x for name, x in answers.items() if x["faults"]}
    return {
        "cases": len(answers),
        "clear": len(answers) - len(unclear),
        "max_seconds": max(x["seconds"] for x in answers.values()),
        "unclear": unclear,
    }


def time_processes():
    """Returns the wall time of whole commands. The exit code of each command must be 2.

    Each command runs three times, and its fastest run counts, because other programs may
    use the computer.
    """
    seconds = [min(time_process(arguments) for _ in range(3)) for arguments in PROCESSES]
    return {
        "count": len(seconds),
        "median_seconds": statistics.median(seconds),
        "max_seconds": max(seconds),
        "slow": sum(x > MAX_SECONDS for x in seconds),
    }


def time_process(arguments):
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [sys.executable, "-m", "tf_reinforce", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            cwd=folder,
        )
    assert run.returncode == 2, (arguments, run.returncode)
    return time.perf_counter() - start


def check_calls():
    """Returns the counts of calls of the Python interface with a clear error."""
    sys.path[:0] = [str(ROOT), str(SUPPORT)]
    import wrong_values

    cases = wrong_values.all_cases()
    with tempfile.TemporaryDirectory() as folder:
        world = wrong_values.World(pathlib.Path(folder))
        answers = [(str(case), *wrong_values.fault(world, case)) for case in cases]
    unclear = [answer for answer in answers if answer[2]]
    return {
        "cases": len(cases),
        "clear": len(cases) - len(unclear),
        "subjects": len({case.subject for case in cases}),
        "unclear": unclear,
    }


if __name__ == "__main__":
    sys.exit(main())
