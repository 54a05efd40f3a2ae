"""Plants each bug of the catalogue in a copy of the package, and runs the test that
detects the bug.

    python tests/mutants/run.py [--only NAME …] [--jobs 2] [--find]
    python tests/mutants/run.py --table

`killers.tsv` stores the test that detects each bug. If `killers.tsv` has no test for a
bug, or the test no longer exists, or the test passes, the run searches for a test that
fails with the bug and passes without it, and stores this test. The search runs the tests
of the module first, then the tests of its folder, then the default suite.

Exits with 1 unless a test detects every bug, and every stored test passes without a bug.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mutants import catalogue
from mutants import killers
from mutants import planting
from support import own_tests

ROOT = planting.PACKAGE.parent
CAUGHT = "caught"
COPIED = [
    "tf_reinforce",
    "tests",
    "docs",
    "examples",
    "benchmarks",
    "stress",
    "README.md",
    "CONTRIBUTING.md",
    "setup.cfg",
    "pyproject.toml",
]
# These tests read the source text. An edit can fail them without a wrong result.
SOURCE_TESTS = ["tests/test_house.py", "tests/test_mutants.py", "tests/test_mutation.py"]
ALL_TESTS = ["-o", "addopts=-p no:cacheprovider --doctest-modules"]  # also slow tests
TIMEOUT = 3600.0  # seconds


class Outcome(NamedTuple):
    """The result of one mutant."""

    mutant: catalogue.Mutant
    verdict: str
    seconds: float
    killer: str  # the test that failed
    message: str  # how the test failed, or why no test could run


@contextlib.contextmanager
def package_copy(mutant=None):
    """Makes a folder with a copy of the package and its tests, and plants a bug."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, folder / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, folder)
        if mutant is not None:
            module, source = planting.planted(mutant, folder / "tf_reinforce")
            (folder / "tf_reinforce" / module).write_text(source)
        yield folder


def path(node):
    """Returns the path of a stored test; a doctest has the path of its module."""
    return node if node.startswith("tf_reinforce/") else f"tests/{node}"


def run_tests(folder, module, arguments, *, nodes=None, stop=True):
    """Runs tests in a folder, and returns the report of `child.py`."""
    dotted = "tf_reinforce." + module.removesuffix(".py").replace("/", ".")
    dotted = dotted.removesuffix(".__init__")
    task = {"module": dotted, "arguments": arguments, "nodes": nodes, "stop": stop}
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    try:
        completed = subprocess.run(
            [sys.executable, "-P", "tests/mutants/child.py", json.dumps(task)],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {TIMEOUT:.0f} s"}
    if not report.exists():
        return {"error": f"exit code {completed.returncode}"}
    return json.loads(report.read_text())


def search_stages(module):
    """Returns the arguments of pytest for each stage of a search."""
    own = [file for file in own_tests.own_tests(module) if (ROOT / file).exists()]
    parent = module.rpartition("/")[0]
    folder = [f"tests/{parent}"] if parent and (ROOT / "tests" / parent).exists() else []
    stages, done = [], list(SOURCE_TESTS)
    for stage in (own, folder, ["tests", "tf_reinforce"]):
        if stage:
            stages.append([*stage, *(f"--ignore={name}" for name in done)])
            done += stage
    return stages


def search(folder, module):
    """Returns the report of the first test that fails with a bug and passes without it.

    A test that fails only after other tests, or that also fails without the bug, is
    skipped. If no test is left, `failed` is empty.
    """
    deselected = ["--continue-on-collection-errors"]
    for stage in search_stages(module):
        while True:
            report = run_tests(folder, module, [*stage, *deselected])
            if report.get("error"):
                return report
            if not report["failed"]:
                break
            node = next(iter(report["failed"]))
            alone = [*ALL_TESTS, node]
            if run_tests(folder, module, alone).get("failed"):
                with package_copy() as unchanged:
                    check = run_tests(unchanged, "version.py", alone, stop=False)
                if check.get("code") == 0:
                    return report
            deselected.append(f"--deselect={node}")
    return report


def run_mutant(mutant, killer):
    """Plants one bug, and runs its stored test or searches; returns an `Outcome`."""
    start = time.perf_counter()
    with package_copy(mutant) as folder:
        module = planting.find_function(mutant.function).module
        report = {}
        if killer is not None:
            report = run_tests(folder, module, [*ALL_TESTS, path(killer)])
        if not report.get("failed") and not report.get("error"):
            report = search(folder, module)
            killer = next(iter(report.get("failed", ())), "").removeprefix("tests/")
    verdict, message = "SURVIVED", "no test failed"
    if report.get("failed"):
        verdict, message = CAUGHT, next(iter(report["failed"].values()))
    elif report.get("error"):
        verdict, message = "BROKEN", report["error"]
    return Outcome(mutant, verdict, time.perf_counter() - start, killer, message)


def check_without_bugs(tests):
    """Runs stored tests on the unchanged package.

    Returns the tests that do not exist, and whether the other tests pass.
    """
    start = time.perf_counter()
    nodes = sorted({path(test) for test in tests})
    files = sorted({node.split("::")[0] for node in nodes})
    files = [name for name in files if (ROOT / name).exists()]
    report = {"missing": nodes, "failed": {}}
    if files:
        with package_copy() as folder:
            arguments = [*ALL_TESTS, *files]
            report = run_tests(folder, "version.py", arguments, nodes=nodes, stop=False)
    if report.get("error"):
        raise SystemExit(f"The tests cannot run: {report['error']}")
    for node, message in report["failed"].items():
        print(f"Without a bug {node} fails: {message[:120]}")
    count = len(nodes) - len(report["missing"])
    verdict = "FAIL" if report["failed"] else "pass"
    seconds = time.perf_counter() - start
    print(f"Without a bug the {count} tests {verdict} ({seconds:.0f} s).", flush=True)
    return {test for test in tests if path(test) in report["missing"]}, verdict == "pass"


def print_outcome(outcome, stored):
    mutant = outcome.mutant
    print(
        f"{outcome.verdict:8} {outcome.seconds:5.1f} s  {mutant.name:34} "
        f"{mutant.function}\n{'':19}{mutant.bug}\n"
        f"{'':19}{outcome.killer}{' (stored in killers.tsv)' if stored else ''}\n"
        f"{'':19}-> {outcome.message[:120]}",
        flush=True,
    )


def run_all(mutants, jobs, find):
    """Runs mutants and stores the tests that were found; returns the exit code."""
    start = time.perf_counter()
    tests = dict(killers.read())
    stored = {m.name: tests[m.name] for m in mutants if m.name in tests and not find}
    missing, all_pass = check_without_bugs(stored.values()) if stored else ((), True)
    stored = {name: test for name, test in stored.items() if test not in missing}
    caught = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        names = [stored.get(mutant.name) for mutant in mutants]
        for outcome in pool.map(run_mutant, mutants, names):
            name, is_caught = outcome.mutant.name, outcome.verdict == CAUGHT
            is_new = is_caught and tests.get(name) != outcome.killer
            if is_new:
                tests[name] = outcome.killer
                killers.write(tests)
            caught += is_caught
            print_outcome(outcome, is_new)
    seconds = time.perf_counter() - start
    print(f"{caught} of {len(mutants)} planted bugs were caught in {seconds:.0f} s.")
    return 0 if all_pass and caught == len(mutants) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes")
    parser.add_argument(
        "--find", action="store_true", help="search for a test even if one is stored"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the table for the documents"
    )
    options = parser.parse_args()
    if options.table:
        print("\n".join(killers.example_table()))
        return 0
    names = {m.name for m in catalogue.MUTANTS}
    if unknown := set(options.only or ()) - names:
        parser.error(f"unknown mutants: {', '.join(sorted(unknown))}")
    selected = names if options.only is None else options.only
    mutants = [m for m in catalogue.MUTANTS if m.name in selected]
    errors = []
    for mutant in mutants:
        try:
            planting.planted(mutant)
        except planting.EntryError as error:
            errors.append(f"{mutant.name}: {error}")
    if errors:
        print("\n".join(errors))
        return 1
    return run_all(mutants, options.jobs, options.find)


if __name__ == "__main__":
    sys.exit(main())
