"""Plants each bug of the catalogue in a copy of the package and runs the test for it.

    python tests/mutants/run.py [--only NAME …] [--jobs 2]
    python tests/mutants/run.py --table

Exits with 1 unless every named test passes on the package as it is, and every bug
makes its test fail.
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
BROKEN = 70  # exit code of a child whose package is another one, or cannot be imported

# Pytest exits with 1 where a test failed and where its fixtures did. Only the first
# counts here, and only with the package that lies beside the test.
CHILD = f"""
import gc, importlib, pathlib, sys
import pytest

gc.set_threshold(100_000)  # most of what is imported lives to the end

class Watch:
    failed = ""

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.failed:
            self.failed = " ".join(report.longrepr.reprcrash.message.split())

module, *nodes = sys.argv[1:]
try:
    found = importlib.import_module(module).__file__
except Exception as error:
    print(f"{{module}} cannot be imported: {{error}}")
    sys.exit({BROKEN})
if not pathlib.Path(found).resolve().is_relative_to(pathlib.Path.cwd().resolve()):
    print(f"{{found}} is not the copy")
    sys.exit({BROKEN})
watch = Watch()
code = pytest.main([*nodes, "-x", "-q", "-o", "addopts=-p no:cacheprovider"], [watch])
print(watch.failed)
sys.exit({BROKEN} if code == 1 and not watch.failed else code)
"""


class Outcome(NamedTuple):
    """What became of one mutant."""

    mutant: catalogue.Mutant
    verdict: str
    seconds: float
    said: str  # how the test failed, or why nothing can be said


@contextlib.contextmanager
def copied():
    """A folder with nothing in it but the package, its tests and their settings."""
    with tempfile.TemporaryDirectory() as folder:
        nothing = shutil.ignore_patterns("__pycache__")
        for name in ("tf_reinforce", "tests"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name), ignore=nothing)
        shutil.copy(ROOT / "setup.cfg", folder)
        yield pathlib.Path(folder)


def run(folder, module, tests):
    """Exit code of pytest in a folder, and the last line it said."""
    dotted = "tf_reinforce." + module.removesuffix(".py").replace("/", ".")
    nodes = [f"tests/{test}" for test in tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, dotted, *nodes],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ran.returncode, ran.stdout


def judge(mutant):
    """Plants one bug and says whether its test saw it."""
    began = time.perf_counter()
    with copied() as folder:
        path = folder / "tf_reinforce" / mutant.module
        source = catalogue.planted(mutant, path.read_text())
        if source is None:
            return Outcome(mutant, "ROTTEN", 0.0, "the fragment is not there once")
        path.write_text(source)
        code, output = run(folder, mutant.module, [mutant.test])
    said = (output.strip().splitlines() or [""])[-1]
    verdict = {0: "SURVIVED", 1: CAUGHT}.get(code, "BROKEN")
    said = said if code in (1, BROKEN) else f"exit code {code}"
    return Outcome(mutant, verdict, time.perf_counter() - began, said)


def unplanted(mutants):
    """Whether every named test passes on the package as it is."""
    tests = sorted({mutant.test for mutant in mutants})
    began = time.perf_counter()
    with copied() as folder:
        code, output = run(folder, "version.py", tests)
    if code:
        print(output)
    seconds = time.perf_counter() - began
    verdict = "pass" if code == 0 else "FAIL"
    print(f"Without a bug the {len(tests)} tests {verdict} ({seconds:.0f} s).")
    return code == 0


def show(outcome):
    mutant = outcome.mutant
    print(
        f"{outcome.verdict:8} {outcome.seconds:5.1f} s  {mutant.name:34} "
        f"{mutant.module:20} {mutant.test}\n"
        f"{'':19}{mutant.bug}\n"
        f"{'':19}-> {outcome.said[:120]}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--table", action="store_true", help="the tables for the docs")
    options = parser.parse_args()
    if options.table:
        print("\n".join(catalogue.table()))
        return 0
    mutants = [
        m for m in catalogue.MUTANTS if options.only is None or m.name in options.only
    ]
    if unknown := set(options.only or ()) - {m.name for m in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    began = time.perf_counter()
    sound = unplanted(mutants)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(judge, mutants):
            show(outcome)
            outcomes.append(outcome)
    caught = sum(outcome.verdict == CAUGHT for outcome in outcomes)
    seconds = time.perf_counter() - began
    print(f"{caught} of {len(mutants)} planted bugs were caught in {seconds:.0f} s.")
    return 0 if sound and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
