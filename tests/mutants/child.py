"""Runs tests in a copy of the package, and writes a report; `run.py` starts this program.

The argument is a JSON object:

- `module` is imported first, and must be in the copy.
- `arguments` are those of pytest.
- `nodes` are the selected tests, or null to run all tests.
- `stop` ends the run at the first failure.

The report is `report.json`. `failed` maps each failed test to its message, and `missing`
is the list of selected tests that do not exist.
"""

import gc
import importlib
import json
import pathlib
import sys

import pytest

gc.set_threshold(100_000)  # most imported objects live until the end


class Recorder:
    """A pytest plugin that selects tests and records their failures.

    A failure of a fixture counts only if `stop` is False.
    """

    def __init__(self, nodes, stop):
        self.nodes, self.stop = nodes, stop
        self.failed, self.missing = {}, []

    def pytest_collection_modifyitems(self, session, items):
        self.session = session
        if self.nodes is None:
            return
        ids = {name for item in items for name in _names(item)}
        self.missing = [node for node in self.nodes if node not in ids]
        items[:] = [item for item in items if _names(item) & set(self.nodes)]

    def pytest_runtest_logreport(self, report):
        if report.failed and (report.when == "call" or not self.stop):
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)[-200:]
            self.failed[report.nodeid] = " ".join(message.split())
            if self.stop:
                self.session.shouldstop = "a test failed"


def _names(item):
    """Returns the node of a test with and without its parameters."""
    return {item.nodeid, item.nodeid.split("[")[0]}


def run(module, arguments, nodes, stop):
    """Returns the report of one run."""
    here = pathlib.Path.cwd().resolve()
    try:
        file = importlib.import_module(module).__file__
    except Exception as error:
        return {"error": f"{module} cannot be imported: {error}"}
    if not pathlib.Path(file).resolve().is_relative_to(here):
        return {"error": f"{file} is not in the copy of the package"}
    recorder = Recorder(nodes, stop)
    code = pytest.main(["-q", *arguments], [recorder])
    return {"code": code, "failed": recorder.failed, "missing": recorder.missing}


if __name__ == "__main__":
    report = run(**json.loads(sys.argv[1]))
    pathlib.Path("report.json").write_text(json.dumps(report))
