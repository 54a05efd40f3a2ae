"""Makes one small change at a time in the modules of mathematics and data flow, and runs
the tests that execute the change until one fails.

    python tests/mutation/run.py [--only MODULE …] [--jobs N] [--budget SECONDS]
    python tests/mutation/run.py --rerun survived --budget 120
    python tests/mutation/run.py --report [--only MODULE …]
    python tests/mutation/run.py --explain ID CLASS REASON

`results.tsv` stores the results: a later run tests only new and edited functions. Two
existing programs do not fit. `mutmut` 3 changes functions only, and runs the tests before
it tries changes; TensorFlow's threads do not survive a fork after that. `cosmic-ray` runs
one test command in a new process for each change, and importing TensorFlow takes longer
than most tests.

Exits with 1 if a change is neither caught nor explained.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import random
import select
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from mutation import coverage_map
from mutation import table
from support import own_tests

ROOT = table.HERE.parent.parent
MEMORY = 5 << 30  # bytes of one process
# Importing these files runs operations, so that they are collected after the fork.
LATE = {
    "tests/baselines/test_baselines.py",
    "tests/callbacks/test_diagnostics.py",
    "tests/envs/test_checks.py",
    "tests/functional/test_eligibility.py",
    "tests/functional/test_off_policy.py",
    "tests/policies/test_recurrent.py",
    "tests/properties/test_saved_arguments.py",
    "tests/score_function/test_example_losses.py",
    "tests/test_tracing.py",
    "tests/training/test_changed_parts.py",
}
TIMEOUT = 60.0  # least number of seconds after which a test times out


class Outcome:
    """The reports of the processes of one task."""

    def __init__(self):
        self.passed = 0
        self.test = ""  # the running test, or the test that failed
        self.verdict = ""
        self.why = ""
        self.unfit = False


class Plans:
    """Selects the tests that execute a change, and orders them by likely success."""

    def __init__(self, coverage_data, first=()):
        self.tests = coverage_data["tests"]
        self.lines = {
            path: {int(line): nodes for line, nodes in lines.items()}
            for path, lines in coverage_data["lines"].items()
        }
        self.first = first
        self.killers = collections.defaultdict(list)
        self.failing = set()  # tests that fail in the unchanged package

    def reaching_tests(self, mutant):
        """Returns the tests that run a change, and whether the import runs it."""
        lines = self.lines.get(f"tf_reinforce/{mutant.module}", {})
        for first, last in (mutant.lines, mutant.header):
            nodes = {n for x in range(first, last + 1) for n in lines.get(x, ())}
            if nodes:
                break
        imported = coverage_map.IMPORT in nodes
        if mutant.place != "body":
            nodes = {n for known in lines.values() for n in known}
        return (nodes & self.tests.keys()) - self.failing, imported

    def prioritize(self, mutant, nodes):
        """Orders tests: first those that caught a near change, then by cost."""
        score = {node: self._score(mutant, node) for node in nodes}
        counts = collections.Counter()
        for node in sorted(nodes, key=lambda n: (score[n], n)):
            counts[node.split("[")[0]] += 1
            score[node] *= counts[node.split("[")[0]]
        first = [node for node in sorted(nodes) if any(x in node for x in self.first)]
        likely = [*first, *self.killers[mutant.module, mutant.function][:6]]
        likely += [n for n in self.killers[mutant.module][:6] if n not in likely]
        likely = [node for node in dict.fromkeys(likely) if node in nodes]
        rest = sorted(nodes - set(likely), key=lambda n: (score[n], n))
        return likely + rest

    def _score(self, mutant, node):
        test = self.tests[node]
        files = own_tests.own_tests(mutant.module)
        is_own = node.startswith((*files, f"tf_reinforce/{mutant.module}"))
        cost = 0.05 + test["seconds"] + test["shared"]
        return cost * math.sqrt(20 + test["lines"]) * (0.05 if is_own else 1.0)

    def within_budget(self, nodes, budget):
        """Returns the first tests whose measured seconds fit a multiple of the budget."""
        plan, seconds = [], 0.0
        for node in nodes:
            seconds += self.tests[node]["seconds"]
            if plan and seconds > 6 * budget:
                continue
            plan.append(node)
        return plan[:400]

    def add_killer(self, mutant, node):
        """Puts a test first for later changes of the same function and module."""
        for key in ((mutant.module, mutant.function), mutant.module):
            killers = self.killers[key]
            if node in killers:
                killers.remove(node)
            killers.insert(0, node)


class Campaign:
    """A pytest plugin that runs the campaign instead of the collected tests."""

    def __init__(self, todo, plans, fork_server, options, log):
        self.todo, self.plans, self.fork_server = todo, plans, fork_server
        self.options, self.log = options, log
        self.passing = set()

    def pytest_ignore_collect(self, collection_path):
        late = {ROOT / path for path in LATE}
        return True if collection_path in late and self.is_child is False else None

    is_child = False

    def pytest_internalerror(self, excrepr):
        self.log(str(excrepr))

    def pytest_runtestloop(self, session):
        from mutation import fork

        if fork.initialized():
            self.log("Importing a test file ran an operation; add the file to LATE.")
            os._exit(2)
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self.functions = fork.live_functions()
        self.log(f"{len(self.items)} tests, {len(self.todo)} changes")
        children = []
        for job in range(1, self.options.jobs):
            child = os.fork()
            if child == 0:
                self._run(job)
                os._exit(0)
            children.append(child)
        self._run(0)
        for child in children:
            os.waitpid(child, 0)
        return True

    def _run(self, job):
        for number, mutant in enumerate(self.todo):
            if number % self.options.jobs == job:
                result = self.judge(mutant)
                table.append(result)
                self.log(
                    f"{number + 1:5} {result.verdict:9} {float(result.seconds):5.1f} s  "
                    f"{mutant.module} {mutant.function}: {mutant.before[:60]} -> "
                    f"{mutant.after[:60]}  [{result.test[-70:]}]"
                )

    def judge(self, mutant):
        """Runs the tests of one change; ignores tests that fail without the change."""
        start_time = time.perf_counter()
        while True:
            nodes, imported = self.plans.reaching_tests(mutant)
            plan = self.plans.within_budget(
                self.plans.prioritize(mutant, nodes), self.options.budget
            )
            outcome = self._run_mutant(mutant, plan, imported)
            if outcome.verdict != "caught" or self._passes_unchanged(outcome.test):
                break
            self.plans.failing.add(outcome.test)
            self.log(f"{outcome.test} fails without a change and is ignored.")
        if outcome.verdict == "caught":
            self.plans.add_killer(mutant, outcome.test)
        test = outcome.test
        if outcome.verdict == "survived":
            test = f"{outcome.passed} of {len(nodes)} tests"
        seconds = f"{time.perf_counter() - start_time:.1f}"
        return table.Result(*mutant[:7], outcome.verdict, " ".join(test.split()), seconds)

    def _run_mutant(self, mutant, plan, imported):
        if not plan:
            outcome = Outcome()
            outcome.verdict = "unreached"
            return outcome
        outcome = self.run_plan(mutant, plan) if mutant.place != "module" else Outcome()
        if mutant.place == "module" or outcome.unfit:
            return self.run_plan(mutant, plan, changed_import=True)
        if outcome.verdict == "survived" and imported:
            return self.run_plan(mutant, plan, changed_import=True)
        return outcome

    def _passes_unchanged(self, node):
        if node not in self.passing and node in self.plans.tests:
            outcome = self.run_plan(None, [node])
            if outcome.verdict == "survived":
                self.passing.add(node)
        return node in self.passing or node not in self.plans.tests

    def run_plan(self, mutant, plan, changed_import=False):
        """Runs a plan in a forked process and waits for it; returns an `Outcome`."""
        from mutation import fork

        task = {"mutant": mutant, "plan": plan, "budget": self.options.budget}
        read, write = os.pipe()
        pid = None
        if changed_import:
            self.fork_server.start(task, write)
        else:
            pid = os.fork()
            if pid == 0:
                os.close(read)
                self.is_child = True
                with contextlib.suppress(BaseException):
                    fork.run_collected(
                        self.session, self.items, self.functions, task, write
                    )
                os._exit(1)
        os.close(write)
        try:
            return self._read_reports(read, pid)
        finally:
            os.close(read)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _read_reports(self, read, pid):
        outcome, rest, done = Outcome(), b"", False
        limit = time.monotonic() + TIMEOUT + 120 * (pid is None)
        while not done and not outcome.verdict:
            if select.select([read], [], [], 0.5)[0]:
                data = os.read(read, 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    pid = message.get("pid", pid)
                    done |= self._process_message(message, outcome)
                    if "begin" in message:
                        limit = time.monotonic() + self._timeout(message["begin"])
                if not data and not done and not outcome.verdict:
                    outcome.verdict = "crash"
            elif time.monotonic() > limit:
                outcome.verdict = "timeout"
            elif pid is not None and _memory(pid) > MEMORY:
                outcome.verdict = "memory"
        if outcome.verdict in ("timeout", "memory") and pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        outcome.verdict = outcome.verdict or "survived"
        return outcome

    def _process_message(self, message, outcome):
        """Processes one message; returns whether it was the last."""
        if "begin" in message:
            outcome.passed += bool(outcome.test)
            outcome.test = message["begin"]
        if "failed" in message:
            outcome.verdict, outcome.test = "caught", message["failed"]
            outcome.why = message["why"]
        if "unfit" in message:
            outcome.unfit = True
        if "done" in message:
            outcome.passed += bool(outcome.test)
        return "done" in message or "unfit" in message

    def _timeout(self, node):
        test = self.plans.tests.get(node, {"seconds": 0.0, "shared": 0.0})
        return TIMEOUT + 10 * (test["seconds"] + test["shared"])


def _memory(pid):
    try:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def pending(mutants, options):
    """Returns the changes without a valid result, and those to run again."""
    rows, reasons = table.results(), table.explanations()
    todo = []
    for mutant in mutants:
        row = rows.get(mutant.id)
        fresh = row is not None and row.fingerprint == mutant.fingerprint
        rerun = fresh and row.verdict in options.rerun and mutant.id not in reasons
        selected = not options.ids or mutant.id in options.ids
        if selected and (options.ids or rerun or not (fresh or mutant.id in reasons)):
            todo.append(mutant)
    return todo


def start(todo, options):
    """Imports libraries, starts the fork server, and runs the campaign in pytest."""
    output = os.fdopen(os.dup(1), "w", buffering=1)

    def log(text):
        print(text, file=output)

    plans = Plans(coverage_map.load(2), options.first)
    for row in table.results().values():
        if row.verdict == "caught" and row.test in plans.tests:
            plans.add_killer(row, row.test)
    files_needed = set()
    for mutant in todo:
        nodes = plans.prioritize(mutant, plans.reaching_tests(mutant)[0])
        files_needed |= {
            node.split("::")[0] for node in plans.within_budget(nodes, options.budget)
        }
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    log(f"{len(todo)} changes, tests of {len(files_needed)} files")
    import ai_edge_litert.interpreter  # noqa: F401
    import gymnasium  # noqa: F401
    import keras  # noqa: F401
    import pytest
    import tensorflow_probability as tfp
    from mutation import fork

    tfp.distributions  # noqa: B018  (a lazy import)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    if fork.initialized():
        log("Importing the libraries ran an operation.")
        return 2
    coverage_map.disable_autograph()
    campaign = Campaign(todo, plans, fork.ForkServer(), options, log)
    files = [path for path in sorted(files_needed - LATE) if (ROOT / path).exists()]
    code = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[campaign])
    if code not in (0, 5):
        log(f"Pytest exits with {int(code)}.")
    return int(code)


def report(options):
    """Prints the table; returns 1 if a change is neither caught nor explained."""
    mutants = table.mutants(options.only, options.share)
    counts, unexplained = table.summary(mutants)
    print("\n".join(table.format_summary(counts)))
    lines = {mutant.id: mutant.lines[0] for mutant in mutants}
    for row in unexplained:
        place = f"{row.module}:{lines[row.id]} {row.function}"
        print(f"{row.id} {place} [{row.operator}; {row.verdict}, {row.test}]")
        print(f"    {row.before}\n    {row.after}")
    return 1 if unexplained else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="returns, heads/*")
    parser.add_argument("--ids", nargs="+", default=[], help="run these changes again")
    parser.add_argument(
        "--all", action="store_true", help="all changes instead of a sample"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per change")
    parser.add_argument("--rerun", nargs="+", default=[], help="verdicts to run again")
    parser.add_argument(
        "--first",
        nargs="+",
        default=[],
        help="run tests with these parts in their names first",
    )
    parser.add_argument("--report", action="store_true", help="only print the table")
    parser.add_argument("--explain", nargs=3, metavar=("ID", "CLASS", "REASON"))
    options = parser.parse_args()
    options.share = 1.0 if options.all else table.SHARE
    return options


def main():
    options = arguments()
    mutants = table.mutants(options.only, options.share)
    if options.explain:
        identity, kind, reason = options.explain
        mutant = {m.id: m for m in mutants}[identity]
        if kind not in table.CLASSES:
            raise SystemExit(
                f"The class of an explanation must be one of {', '.join(table.CLASSES)}"
            )
        table.explain(mutant, kind, reason)
        return 0
    if not options.report:
        todo = pending(mutants, options)
        if todo and start(todo, options) not in (0, 5):
            return 2
    return report(options)


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
