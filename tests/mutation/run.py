"""Changes the modules of mathematics and data flow, one small thing at a time, and runs
the tests that reach the change until one fails.

    python tests/mutation/run.py [--only MODULE …] [--jobs N] [--budget SECONDS]
    python tests/mutation/run.py --rerun survived --budget 120
    python tests/mutation/run.py --report [--only MODULE …]
    python tests/mutation/run.py --explain ID CLASS REASON

`results.tsv` is kept: a further run does only what is new or stale. `mutmut` 3 changes
functions only and runs the tests before it tries changes; TensorFlow's threads do not
outlive a fork after that. `cosmic-ray` runs one test command in a new process for each
change, and importing TensorFlow costs more than most tests. Hence a program of our own.

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

ROOT = table.HERE.parent.parent
MEMORY = 5 << 30  # bytes of one process
# Importing these files runs operations: they are collected after the fork.
LATE = {
    f"tests/test_{name}.py"
    for name in ["baselines", "changed_parts", "diagnostics", "eligibility", "recurrence"]
}
# Tests of a module that do not have its name.
OWN = {
    "updating": ["minibatches", "update_options", "agent_input", "truth_updates"],
    "learning": ["update_options", "minibatches", "streams", "compiled"],
    "inspection": ["diagnostics", "update_options", "agent_input"],
    "decision": ["acting", "export", "masks"],
    "host": ["collecting", "environments_that_fail"],
    "fleets": ["collecting", "environments_that_fail", "masked_environments"],
    "opening": ["collecting", "environments_that_fail", "agent_input"],
    "crews": ["workers"],
    "worlds": ["compiled", "envs"],
}
TIMEOUT = 60.0  # seconds, at least, before one test counts as endless


class Outcome:
    """What the processes of one task reported."""

    def __init__(self):
        self.passed = 0
        self.test = ""  # the one that runs, or that failed
        self.verdict = ""
        self.why = ""
        self.unfit = False


class Plans:
    """Chooses the tests for a change: those that reach it, likely ones first."""

    def __init__(self, measured, first=()):
        self.tests = measured["tests"]
        self.lines = {
            path: {int(line): nodes for line, nodes in lines.items()}
            for path, lines in measured["lines"].items()
        }
        self.first = first
        self.killers = collections.defaultdict(list)
        self.unsound = set()  # tests that fail without a change

    def reached(self, mutant):
        """Node ids of the tests that run the changed lines; is it run by the import?"""
        lines = self.lines.get(f"tf_reinforce/{mutant.module}", {})
        for first, last in (mutant.lines, mutant.header):
            nodes = {n for x in range(first, last + 1) for n in lines.get(x, ())}
            if nodes:
                break
        imported = coverage_map.IMPORT in nodes
        if mutant.place != "body":
            nodes = {n for known in lines.values() for n in known}
        return (nodes & self.tests.keys()) - self.unsound, imported

    def ordered(self, mutant, nodes):
        """First the tests that caught a neighbour, then the cheap and specific ones."""
        score = {node: self._score(mutant, node) for node in nodes}
        alike = collections.Counter()
        for node in sorted(nodes, key=lambda n: (score[n], n)):
            alike[node.split("[")[0]] += 1
            score[node] *= alike[node.split("[")[0]]
        first = [node for node in sorted(nodes) if any(x in node for x in self.first)]
        near = [*first, *self.killers[mutant.module, mutant.function][:6]]
        near += [n for n in self.killers[mutant.module][:6] if n not in near]
        near = [node for node in dict.fromkeys(near) if node in nodes]
        rest = sorted(nodes - set(near), key=lambda n: (score[n], n))
        return near + rest

    def _score(self, mutant, node):
        test = self.tests[node]
        stem = pathlib.Path(mutant.module).stem
        files = tuple(f"tests/test_{name}" for name in [stem, *OWN.get(stem, ())])
        own = node.startswith((*files, f"tf_reinforce/{mutant.module}"))
        cost = 0.05 + test["seconds"] + test["shared"]
        return cost * math.sqrt(20 + test["lines"]) * (0.05 if own else 1.0)

    def within(self, nodes, budget):
        """The first tests whose measured seconds fit a multiple of the budget."""
        plan, seconds = [], 0.0
        for node in nodes:
            seconds += self.tests[node]["seconds"]
            if plan and seconds > 6 * budget:
                continue
            plan.append(node)
        return plan[:400]

    def remember(self, mutant, node):
        """Puts a test in front for the neighbours of a change."""
        for key in ((mutant.module, mutant.function), mutant.module):
            known = self.killers[key]
            if node in known:
                known.remove(node)
            known.insert(0, node)


class Campaign:
    """A plugin that runs the campaign in place of the collected tests."""

    def __init__(self, todo, plans, bare, options, say):
        self.todo, self.plans, self.bare = todo, plans, bare
        self.options, self.say = options, say
        self.sound = set()

    def pytest_ignore_collect(self, collection_path):
        late = {ROOT / path for path in LATE}
        return True if collection_path in late and self.forked is False else None

    forked = False

    def pytest_internalerror(self, excrepr):
        self.say(str(excrepr))

    def pytest_runtestloop(self, session):
        from mutation import fork

        if fork.initialized():
            self.say("An import of a test ran an operation; see LATE.")
            os._exit(2)
        self.session = session
        self.items = {item.nodeid: item for item in session.items}
        self.functions = fork.living_functions()
        self.say(f"{len(self.items)} tests, {len(self.todo)} changes")
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
                self.say(
                    f"{number + 1:5} {result.verdict:9} {float(result.seconds):5.1f} s  "
                    f"{mutant.module} {mutant.function}: {mutant.before[:60]} -> "
                    f"{mutant.after[:60]}  [{result.test[-70:]}]"
                )

    def judge(self, mutant):
        """Runs the tests of one change; a test counts if it passes without the change."""
        began = time.perf_counter()
        while True:
            nodes, imported = self.plans.reached(mutant)
            plan = self.plans.within(
                self.plans.ordered(mutant, nodes), self.options.budget
            )
            outcome = self._tried(mutant, plan, imported)
            if outcome.verdict != "caught" or self._is_sound(outcome.test):
                break
            self.plans.unsound.add(outcome.test)
            self.say(f"{outcome.test} fails without a change and is left out.")
        if outcome.verdict == "caught":
            self.plans.remember(mutant, outcome.test)
        test = outcome.test
        if outcome.verdict == "survived":
            test = f"{outcome.passed} of {len(nodes)} tests"
        seconds = f"{time.perf_counter() - began:.1f}"
        return table.Result(*mutant[:7], outcome.verdict, " ".join(test.split()), seconds)

    def _tried(self, mutant, plan, imported):
        if not plan:
            outcome = Outcome()
            outcome.verdict = "unreached"
            return outcome
        outcome = self.play(mutant, plan) if mutant.place != "module" else Outcome()
        if mutant.place == "module" or outcome.unfit:
            return self.play(mutant, plan, bare=True)
        if outcome.verdict == "survived" and imported:
            return self.play(mutant, plan, bare=True)
        return outcome

    def _is_sound(self, node):
        if node not in self.sound and node in self.plans.tests:
            outcome = self.play(None, [node])
            if outcome.verdict == "survived":
                self.sound.add(node)
        return node in self.sound or node not in self.plans.tests

    def play(self, mutant, plan, bare=False):
        """Runs a plan in a forked process and waits for it; returns an `Outcome`."""
        from mutation import fork

        task = {"mutant": mutant, "plan": plan, "budget": self.options.budget}
        read, write = os.pipe()
        pid = None
        if bare:
            self.bare.start(task, write)
        else:
            pid = os.fork()
            if pid == 0:
                os.close(read)
                self.forked = True
                with contextlib.suppress(BaseException):
                    fork.play_collected(
                        self.session, self.items, self.functions, task, write
                    )
                os._exit(1)
        os.close(write)
        try:
            return self._watched(read, pid)
        finally:
            os.close(read)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _watched(self, read, pid):
        outcome, rest, done = Outcome(), b"", False
        limit = time.monotonic() + TIMEOUT + 120 * (pid is None)
        while not done and not outcome.verdict:
            if select.select([read], [], [], 0.5)[0]:
                data = os.read(read, 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    pid = message.get("pid", pid)
                    done |= self._noted(message, outcome)
                    if "begin" in message:
                        limit = time.monotonic() + self._patience(message["begin"])
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

    def _noted(self, message, outcome):
        """Takes in one message of a process; returns whether it was the last."""
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

    def _patience(self, node):
        test = self.plans.tests.get(node, {"seconds": 0.0, "shared": 0.0})
        return TIMEOUT + 10 * (test["seconds"] + test["shared"])


def _memory(pid):
    try:
        pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def unfinished(found, options):
    """The changes that have no fresh result, or one that is to be tried again."""
    rows, reasons = table.results(), table.explanations()
    todo = []
    for mutant in found:
        row = rows.get(mutant.id)
        fresh = row is not None and row.fingerprint == mutant.fingerprint
        again = fresh and row.verdict in options.rerun and mutant.id not in reasons
        chosen = not options.ids or mutant.id in options.ids
        if chosen and (options.ids or again or not (fresh or mutant.id in reasons)):
            todo.append(mutant)
    return todo


def start(todo, options):
    """Imports, forks, collects, and runs the campaign in pytest's place."""
    voice = os.fdopen(os.dup(1), "w", buffering=1)

    def say(text):
        print(text, file=voice)

    plans = Plans(coverage_map.load(2), options.first)
    for row in table.results().values():
        if row.verdict == "caught" and row.test in plans.tests:
            plans.remember(row, row.test)
    needed = set()
    for mutant in todo:
        nodes = plans.ordered(mutant, plans.reached(mutant)[0])
        needed |= {node.split("::")[0] for node in plans.within(nodes, options.budget)}
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    say(f"{len(todo)} changes, tests of {len(needed)} files")
    import ai_edge_litert.interpreter  # noqa: F401
    import gymnasium  # noqa: F401
    import keras  # noqa: F401
    import pytest
    import tensorflow_probability as tfp
    from mutation import fork

    tfp.distributions  # noqa: B018  (imported when it is first asked for)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    if fork.initialized():
        say("Importing the libraries ran an operation.")
        return 2
    coverage_map.keep_from_autograph()
    campaign = Campaign(todo, plans, fork.Bare(), options, say)
    files = [path for path in sorted(needed - LATE) if (ROOT / path).exists()]
    code = pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[campaign])
    if code not in (0, 5):
        say(f"Pytest exits with {int(code)}.")
    return int(code)


def report(options):
    """Prints the table; returns 1 if something is not explained."""
    found = table.mutants(options.only, options.share)
    counts, unexplained = table.summary(found)
    print("\n".join(table.shown(counts)))
    lines = {mutant.id: mutant.lines[0] for mutant in found}
    for row in unexplained:
        place = f"{row.module}:{lines[row.id]} {row.function}"
        print(f"{row.id} {place} [{row.operator}; {row.verdict}, {row.test}]")
        print(f"    {row.before}\n    {row.after}")
    return 1 if unexplained else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="returns, heads/*")
    parser.add_argument("--ids", nargs="+", default=[], help="these changes, once more")
    parser.add_argument("--all", action="store_true", help="all changes, no sample")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per change")
    parser.add_argument("--rerun", nargs="+", default=[], help="verdicts to try again")
    parser.add_argument("--first", nargs="+", default=[], help="parts of tests' names")
    parser.add_argument("--report", action="store_true", help="only the table")
    parser.add_argument("--explain", nargs=3, metavar=("ID", "CLASS", "REASON"))
    options = parser.parse_args()
    options.share = 1.0 if options.all else table.SHARE
    return options


def main():
    options = arguments()
    found = table.mutants(options.only, options.share)
    if options.explain:
        identity, kind, reason = options.explain
        mutant = {m.id: m for m in found}[identity]
        if kind not in table.CLASSES:
            raise SystemExit(f"a class is one of {', '.join(table.CLASSES)}")
        table.explain(mutant, kind, reason)
        return 0
    if not options.report:
        todo = unfinished(found, options)
        if todo and start(todo, options) not in (0, 5):
            return 2
    return report(options)


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
