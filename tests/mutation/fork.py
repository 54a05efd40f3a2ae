"""Runs tests on one changed module in a forked process, and reports to its parent.

Two processes fork. The first has imported the package and collected the tests. In its
children, the changed functions receive new code objects. The second has imported
TensorFlow only. Its children import the package with the changed text, which a change
outside functions requires. Neither process has run an operation, because TensorFlow's
threads do not survive a fork.
"""

import ast
import gc
import importlib.abc
import importlib.util
import json
import os
import pathlib
import signal
import socket
import sys
import time
import types

import pytest
from mutation import mutations
from tensorflow.python.eager import context

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "tf_reinforce"


def initialized():
    """Returns whether TensorFlow has run an operation in this process."""
    return context.context()._initialized


# Replacing one module with its changed text.


class ChangedModuleImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A pytest plugin that imports one module of the package from a changed text."""

    def __init__(self, path, source):
        parts = path.relative_to(ROOT).with_suffix("").parts
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.path, self.source = path, source

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name:
            return None
        folder = [str(self.path.parent)] if self.path.stem == "__init__" else None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=self, submodule_search_locations=folder
        )

    def pytest_collection(self):
        """Inserts the importer before that of pytest, which rewrites test files."""
        sys.meta_path.insert(0, self)

    def exec_module(self, module):
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def live_functions():
    """Returns `{file: [function]}`, all functions of the package in this process."""
    gc.unfreeze()
    functions = {}
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType):
            file = function.__code__.co_filename
            if file.startswith(str(PACKAGE)):
                functions.setdefault(file, []).append(function)
    gc.freeze()
    return functions


def replace_code(functions, path, before, after):
    """Replaces the code of the live functions of a module with that of another text.

    Raises:
        ValueError: If the texts define different functions, or no live function has
            code that changes.
    """
    pairs = {}
    _pair(*(compile(text, str(path), "exec") for text in (before, after)), pairs)
    changed = [f for f in functions if f.__code__ in pairs]
    for function in changed:
        function.__code__ = pairs[function.__code__]
    if not changed:
        raise ValueError("no live function has the code that changes")


def _pair(old, new, pairs):
    """Maps the code objects of one text to those of the other, if they differ."""
    inner, other = (
        [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for code in (old, new)
    )
    names = [[(c.co_qualname, c.co_firstlineno) for c in x] for x in (inner, other)]
    if names[0] != names[1]:
        raise ValueError("the change adds or removes a function")
    for left, right in zip(inner, other):
        if left != right:
            pairs[left] = right
        _pair(left, right, pairs)


def replace_defaults(functions, path, unit, after):
    """Replaces the defaults of the live functions that start at line `unit`."""
    node = next(
        node
        for node in ast.walk(ast.parse(after))
        if isinstance(node, ast.FunctionDef)
        and min([node.lineno, *(d.lineno for d in node.decorator_list)]) == unit
    )
    key = (unit, node.name)
    selected = [f for f in functions if (f.__code__.co_firstlineno, f.__name__) == key]
    for function in selected:

        def evaluate(expression, names=function.__globals__):
            return eval(compile(ast.Expression(expression), str(path), "eval"), names)

        if node.args.defaults:
            function.__defaults__ = tuple(map(evaluate, node.args.defaults))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults):
            if default is not None:
                function.__kwdefaults__[argument.arg] = evaluate(default)
    if not selected:
        raise ValueError("no live function has these defaults")


def apply_change(functions, mutant):
    """Applies a change to the imported package of this process."""
    path = PACKAGE / mutant.module
    before = path.read_text()
    after = mutations.apply(mutant, before)
    live = functions.get(str(path), [])
    if mutant.place == "body":
        replace_code(live, path, before, after)
    elif mutant.place == "default":
        replace_defaults(live, path, mutant.unit, after)
    else:
        raise ValueError("the change is outside of functions")


# In the forked process.


class Reports:
    """Writes the start, the failure and the end of tests to a pipe, as JSON lines."""

    def __init__(self, pipe, budget):
        self.pipe, self.budget = pipe, budget
        self.start_time = time.process_time()
        self.failed = False

    def send(self, **message):
        os.write(self.pipe, (json.dumps(message) + "\n").encode())

    def pytest_runtest_logstart(self, nodeid):
        self.send(begin=nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.failed:
            self.failed = True
            crash = getattr(report.longrepr, "reprcrash", None)
            message = " ".join(str(getattr(crash, "message", report.longrepr)).split())
            self.send(failed=report.nodeid, why=message[:200])

    def should_stop(self):
        return self.failed or time.process_time() - self.start_time > self.budget

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """Skips the test if one has failed or the budget is spent."""
        return True if self.should_stop() else None


def run_collected(session, items, functions, task, pipe):
    """Runs tests of a session in this process and exits; see `Reports`.

    Args:
        session: `pytest.Session` after collection.
        items: Dict from node id to item.
        functions: See `living_functions`.
        task: Dict with `mutant` (`None`: no change), `plan` (node ids), `budget`.
        pipe: File descriptor.
    """
    os.setsid()
    gc.disable()
    reports = Reports(pipe, task["budget"])
    session.config.pluginmanager.register(reports)
    try:
        if task["mutant"] is not None:
            apply_change(functions, task["mutant"])
    except ValueError as error:
        reports.send(unfit=str(error))
        os._exit(0)
    tests = _items(session, items, task["plan"])
    for item, next_test in zip(tests, [*tests[1:], None]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_test)
        if reports.should_stop():
            break
    reports.send(done=True)
    os._exit(0)


def _items(session, items, plan):
    """Returns the tests of a plan; collects files that run operations when imported."""
    missing = sorted({node.split("::")[0] for node in plan if node not in items})
    if missing:
        session.perform_collect([str(ROOT / path) for path in missing])
        items = items | {item.nodeid: item for item in session.items}
    return [items[node] for node in plan if node in items]


def run_imported(task, pipe):
    """Imports the changed package, runs tests in this process, and exits."""
    os.setsid()
    gc.disable()
    reports = Reports(pipe, task["budget"])
    reports.send(pid=os.getpid())
    path = PACKAGE / task["mutant"].module
    source = mutations.apply(task["mutant"], path.read_text())
    plugins = [reports, ChangedModuleImporter(path, source)]
    code = pytest.main(["-x", "-q", *task["plan"]], plugins=plugins)
    if code not in (0, 1, 5) and not reports.failed:
        reports.send(failed="import", why=f"pytest exits with {int(code)}")
    reports.send(done=True)
    os._exit(0)


class ForkServer:
    """A process that has imported TensorFlow only, and forks for each task."""

    def __init__(self):
        kind = socket.SOCK_SEQPACKET
        self.socket, server_socket = socket.socketpair(socket.AF_UNIX, kind)
        if os.fork() == 0:
            self.socket.close()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            self._serve(server_socket)
        server_socket.close()

    def _serve(self, server_socket):
        while True:
            message, pipes, _, _ = socket.recv_fds(server_socket, 1 << 20, 1)
            if not message:
                os._exit(0)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server_socket.close()
                task = json.loads(message)
                task["mutant"] = mutations.Mutant(*task["mutant"])
                run_imported(task, pipes[0])
            os.close(pipes[0])

    def start(self, task, pipe):
        """Runs a task in a new process, which writes to the pipe."""
        socket.send_fds(self.socket, [json.dumps(task).encode()], [pipe])
