"""Records which tests run which lines of the package.

As a pytest plugin (`-p coverage_map`), it measures every test in a context of its own.
The context is the node id of the test, or the name of a fixture that several tests share.
As a module, it runs the test suite with the plugin and stores the result in a JSON file.

    python tests/mutation/coverage_map.py tests/heads/test_new.py -k behaviour

measures the tests that these pytest arguments select, and adds them to the map.
"""

import collections
import contextlib
import fcntl
import json
import multiprocessing.util
import os
import pathlib
import shutil
import subprocess
import sys
import time

import coverage
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / ".mutation"
MAP = FOLDER / "map.json"
IMPORT = "import"  # the context of lines that run while the package is imported


def shared_fixtures(item):
    """Returns the contexts of the fixtures that the test shares with other tests."""
    definitions = getattr(item, "_fixtureinfo", None)
    indices = getattr(getattr(item, "callspec", None), "indices", {})
    names = definitions.name2fixturedefs if definitions else {}
    return [
        fixture_context(fixtures[-1], indices.get(name, 0))
        for name, fixtures in names.items()
        if fixtures[-1].scope != "function"
    ]


def fixture_context(fixture, index):
    return f"fixture {fixture.baseid}::{fixture.argname}[{index}]"


def disable_autograph():
    """Makes AutoGraph call the functions of the package without conversion.

    AutoGraph reads the text of a function from its file and runs a copy. A changed code
    object would have no effect, and coverage could not record lines. The package needs
    no conversion.
    """
    from tensorflow.python.autograph.core import config as autograph

    do_not_convert = autograph.DoNotConvert("tf_reinforce")
    autograph.CONVERSION_RULES = (do_not_convert, *autograph.CONVERSION_RULES)


class Contexts:
    """Switches the context of `coverage` for each test and each shared fixture."""

    def __init__(self, folder):
        self.folder = folder
        self.worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.coverage = coverage.Coverage(
            data_file=str(folder / f"coverage.{self.worker}"),
            data_suffix=True,
            source=[str(ROOT / "tf_reinforce")],
            config_file=False,
            messages=False,
        )
        self.coverage.set_option("run:core", "ctrace")
        self.coverage.start()
        self.coverage.switch_context(IMPORT)
        self.seconds = collections.Counter()
        self.fixtures = {}
        multiprocessing.util.register_after_fork(self, Contexts.after_fork)

    def after_fork(self):
        """Makes a forked worker save its data before it ends with `os._exit`."""
        multiprocessing.util.Finalize(None, self.save, exitpriority=100)

    def save(self):
        self.coverage.stop()
        self.coverage.save()

    @contextlib.contextmanager
    def measured(self, context, after):
        start = time.process_time()
        self.coverage.switch_context(context)
        yield
        self.coverage.switch_context(after)
        self.seconds[context] += time.process_time() - start

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.fixtures[item.nodeid] = shared_fixtures(item)
        self.item = item.nodeid
        with self.measured(item.nodeid, IMPORT):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if fixturedef.scope == "function":
            return (yield)
        context = fixture_context(fixturedef, getattr(request, "param_index", 0))
        with self.measured(context, self.item):
            return (yield)

    def pytest_sessionfinish(self):
        self.save()
        tests = {"seconds": self.seconds, "fixtures": self.fixtures}
        path = self.folder / f"tests.{self.worker}.json"
        path.write_text(json.dumps(tests))


def pytest_configure(config):
    folder = os.environ.get("COVERAGE_MAP")
    shares = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if folder and not shares:
        disable_autograph()
        config.pluginmanager.register(Contexts(pathlib.Path(folder)), "contexts")


def measure(arguments):
    """Runs pytest with these arguments and returns the map; see `collect_results`."""
    folder = FOLDER / f"measured.{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {
        **os.environ,
        "COVERAGE_MAP": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(pathlib.Path(__file__).parent)]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "coverage_map", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    return collect_results(folder)


def collect_results(folder):
    """Returns a dict of the tests, and of the tests that run each line of each file.

    `tests` maps a node id to its seconds and its number of lines. `lines` maps a path to
    a dict from line to a list of node ids. `IMPORT` in such a list means all tests.
    """
    seconds, fixtures = collections.Counter(), {}
    for path in folder.glob("tests.*.json"):
        tests = json.loads(path.read_text())
        seconds.update(tests["seconds"])
        fixtures |= tests["fixtures"]
    users = collections.defaultdict(set)
    for node, contexts in fixtures.items():
        for context in (node, *contexts):
            users[context].add(node)
    users[IMPORT] = {IMPORT}
    lines, sizes = {}, collections.Counter()
    for name, contexts in measured_contexts(folder).items():
        module = lines.setdefault(name, {})
        for line, contexts_of_line in contexts.items():
            nodes = set().union(*(users[context] for context in contexts_of_line))
            module[line] = sorted(nodes)
            sizes.update(nodes)
    tests = {
        node: {
            "seconds": round(seconds[node], 3),
            "shared": round(sum(seconds[name] for name in contexts), 3),
            "lines": sizes[node],
        }
        for node, contexts in fixtures.items()
    }
    return {"tests": tests, "lines": lines}


def measured_contexts(folder):
    """Returns `{path: {line: set of contexts}}` from all data files of one run."""
    result = collections.defaultdict(lambda: collections.defaultdict(set))
    for path in folder.glob("coverage.*"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = str(pathlib.Path(file).relative_to(ROOT))
            for line, contexts in data.contexts_by_lineno(file).items():
                result[name][line] |= {context for context in contexts if context}
    return result


def merge(old, new):
    """Returns the old map, in which the tests of the new map replace equal names."""
    replaced = new["tests"].keys()
    lines = {}
    for path in sorted(old["lines"].keys() | new["lines"].keys()):
        old_nodes = old["lines"].get(path, {})
        lines[path] = {
            line: [node for node in nodes if node not in replaced]
            for line, nodes in old_nodes.items()
        }
        for line, nodes in new["lines"].get(path, {}).items():
            lines[path][line] = sorted({*lines[path].get(line, ()), *nodes})
    return {"tests": old["tests"] | new["tests"], "lines": lines}


def load(jobs=2):
    """Loads the map of an earlier run, or makes one if there is none."""
    if not MAP.exists():
        measurements = measure(["-n", str(jobs), "--dist", "worksteal"])
        MAP.write_text(json.dumps(measurements))
    return json.loads(MAP.read_text())


def add(arguments):
    """Measures the tests that these pytest arguments select; others stay unchanged."""
    new = json.loads(json.dumps(measure(arguments)))
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = json.loads(MAP.read_text()) if MAP.exists() else {"tests": {}, "lines": {}}
        MAP.write_text(json.dumps(merge(old, new)))


if __name__ == "__main__":
    add(sys.argv[1:])
