"""Plants the bugs of bugs.toml in a copy of the package, one at a time, and runs the test
that catches each bug.

    python tests/mutants/run.py [--only NAME …] [--jobs 2]

Exits with 1 unless each test passes without a bug, and fails with its bug.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import functools
import io
import itertools
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUGS = tomllib.loads(pathlib.Path(__file__).with_name("bugs.toml").read_text())["bugs"]
FOLDERS = "tf_reinforce", "tests", "docs", "examples", "benchmarks", "stress"
FILES = "README.md", "CONTRIBUTING.md", "setup.cfg", "pyproject.toml"


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def lines_of(function):
    """Returns the module of `"folder/module.py::Class.method"`, its first and last line.

    Without a name, the lines are those of the whole module.
    """
    module, _, name = function.partition("::")
    node = parsed(ROOT / "tf_reinforce" / module)
    first, last = 1, sys.maxsize
    for part in name.split(".") if name else ():
        inner = itertools.chain(node.body, ast.walk(node))
        node = next(x for x in inner if getattr(x, "name", None) == part)
        first = min(x.lineno for x in [node, *node.decorator_list])
        last = node.end_lineno
    return module, first, last


def planted(bug):
    """Returns the path of the module of a bug, and its source with the bug."""
    module, first, last = lines_of(bug["function"])
    path = ROOT / "tf_reinforce" / module
    lines = path.read_text().splitlines(keepends=True)
    above, inside, below = lines[: first - 1], lines[first - 1 : last], lines[last:]
    inside, below = "".join(inside), "".join(below)
    if inside.count(bug["before"]) != 1:
        raise ValueError(f"{bug['name']}: `before` must stand once in {bug['function']}")
    changed = inside.replace(bug["before"], bug["after"])
    return f"tf_reinforce/{module}", "".join(above) + changed + below


def node(bug):
    """Returns the pytest node of the test that catches a bug."""
    is_doctest = bug["killer"].startswith("tf_reinforce/")
    return bug["killer"] if is_doctest else f"tests/{bug['killer']}"


@contextlib.contextmanager
def copy():
    with tempfile.TemporaryDirectory() as folder:
        for name in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, pathlib.Path(folder, name), ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        yield pathlib.Path(folder)


def run_tests(folder, nodes):
    """Runs tests in a copy; returns the exit code of pytest, and its last lines.

    This process must be new: it imports the package from the copy.
    """
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    words = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "--doctest-modules"]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main([*words, "-o", "addopts=", *nodes])
    return code, output.getvalue()[-600:]


def run_bug(bug):
    """Plants a bug; returns the exit code of its test, and the last lines of it."""
    with copy() as folder:
        path, source = planted(bug)
        (folder / path).write_text(source)
        return run_tests(folder, [node(bug)])


def run_without_bugs(bugs):
    with copy() as folder:
        return run_tests(folder, sorted({node(bug) for bug in bugs}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    bugs = [x for x in BUGS if not options.only or x["name"] in options.only]
    processes = multiprocessing.get_context("forkserver")  # which imports TensorFlow once
    processes.set_forkserver_preload(["keras", "tensorflow_probability", "gymnasium"])
    survivors = []
    with concurrent.futures.ProcessPoolExecutor(
        options.jobs, processes, max_tasks_per_child=1
    ) as pool:
        code, output = pool.submit(run_without_bugs, bugs).result()
        if code:
            sys.exit(f"A test fails without a bug:\n{output}")
        for bug, (code, output) in zip(bugs, pool.map(run_bug, bugs), strict=True):
            verdict = {0: "SURVIVED", 1: "caught"}.get(code, "BROKEN")
            print(f"{verdict:8} {bug['name']}: {bug['bug']}", flush=True)
            if code != 1:
                survivors.append(bug)
                print(output, flush=True)
    print(f"{len(bugs) - len(survivors)} of {len(bugs)} planted bugs were caught.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
