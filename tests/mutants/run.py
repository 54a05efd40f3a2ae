"""Plants each bug of the catalogue in a copy of the package, and runs its test.

    python tests/mutants/run.py [--only NAME …] [--jobs 2]
    python tests/mutants/run.py --table

Exits with 1 unless every named test passes on the unchanged package, and every bug makes
its test fail.
"""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import catalogue

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CAUGHT = "caught"
BROKEN = 70  # exit code of a child that imported another package, or failed to import

# Pytest exits with 1 if a test failed, and also if a fixture failed. Only the first case
# counts as caught, and only if the test imported the copy of the package.
CHILD = f"""
import gc, importlib, pathlib, sys
import pytest

gc.set_threshold(100_000)  # most imported objects live until the end

class FailureRecorder:
    failed = ""

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.failed:
            self.failed = " ".join(report.longrepr.reprcrash.message.split())

module, *nodes = sys.argv[1:]
try:
    file = importlib.import_module(module).__file__
except Exception as error:
    print(f"{{module}} cannot be imported: {{error}}")
    sys.exit({BROKEN})
if not pathlib.Path(file).resolve().is_relative_to(pathlib.Path.cwd().resolve()):
    print(f"{{file}} is not in the copy of the package")
    sys.exit({BROKEN})
recorder = FailureRecorder()
code = pytest.main([*nodes, "-x", "-q", "-o", "addopts=-p no:cacheprovider"], [recorder])
print(recorder.failed)
sys.exit({BROKEN} if code == 1 and not recorder.failed else code)
"""


class Outcome(NamedTuple):
    """The result of one mutant."""

    mutant: catalogue.Mutant
    verdict: str
    seconds: float
    message: str  # how the test failed, or why it could not run


@contextlib.contextmanager
def package_copy():
    """Makes a folder with a copy of the package, its tests and their settings."""
    with tempfile.TemporaryDirectory() as folder:
        ignore = shutil.ignore_patterns("__pycache__")
        for name in ("tf_reinforce", "tests"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name), ignore=ignore)
        shutil.copy(ROOT / "setup.cfg", folder)
        yield pathlib.Path(folder)


def run(folder, module, tests):
    """Runs tests in a folder, and returns the exit code and the output of pytest."""
    dotted = "tf_reinforce." + module.removesuffix(".py").replace("/", ".")
    nodes = [f"tests/{test}" for test in tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    completed = subprocess.run(
        [sys.executable, "-c", CHILD, dotted, *nodes],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return completed.returncode, completed.stdout


def run_mutant(mutant):
    """Plants one bug, runs its test, and returns an `Outcome`."""
    start = time.perf_counter()
    with package_copy() as folder:
        path = folder / "tf_reinforce" / mutant.module
        source = catalogue.planted(mutant, path.read_text())
        if source is None:
            return Outcome(
                mutant, "ROTTEN", 0.0, "the module must contain `before` exactly once"
            )
        path.write_text(source)
        code, output = run(folder, mutant.module, [mutant.test])
    message = (output.strip().splitlines() or [""])[-1]
    verdict = {0: "SURVIVED", 1: CAUGHT}.get(code, "BROKEN")
    message = message if code in (1, BROKEN) else f"exit code {code}"
    return Outcome(mutant, verdict, time.perf_counter() - start, message)


def check_without_bugs(mutants):
    """Returns whether every named test passes on the unchanged package."""
    tests = sorted({mutant.test for mutant in mutants})
    start = time.perf_counter()
    with package_copy() as folder:
        code, output = run(folder, "version.py", tests)
    if code:
        print(output)
    seconds = time.perf_counter() - start
    verdict = "pass" if code == 0 else "FAIL"
    print(f"Without a bug the {len(tests)} tests {verdict} ({seconds:.0f} s).")
    return code == 0


def print_outcome(outcome):
    mutant = outcome.mutant
    print(
        f"{outcome.verdict:8} {outcome.seconds:5.1f} s  {mutant.name:34} "
        f"{mutant.module:20} {mutant.test}\n"
        f"{'':19}{mutant.bug}\n"
        f"{'':19}-> {outcome.message[:120]}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--table", action="store_true", help="print the table for the documents"
    )
    options = parser.parse_args()
    if options.table:
        print("\n".join(catalogue.table()))
        return 0
    mutants = [
        m for m in catalogue.MUTANTS if options.only is None or m.name in options.only
    ]
    if unknown := set(options.only or ()) - {m.name for m in mutants}:
        parser.error(f"unknown mutants: {', '.join(sorted(unknown))}")
    start = time.perf_counter()
    all_pass = check_without_bugs(mutants)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(run_mutant, mutants):
            print_outcome(outcome)
            outcomes.append(outcome)
    caught = sum(outcome.verdict == CAUGHT for outcome in outcomes)
    seconds = time.perf_counter() - start
    print(f"{caught} of {len(mutants)} planted bugs were caught in {seconds:.0f} s.")
    return 0 if all_pass and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
