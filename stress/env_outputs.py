"""Collects episodes from environments that return bad values, and checks the rules.

    python stress/env_outputs.py [--out FILE.json]

One of two environments returns a bad value at its first or at its fiftieth step, in this
process or in a worker process. `CASES` contains one rule for each bad value: the
collection is refused with an error that names the environment, or the value is accepted
and recorded as the rule states. The table of docs/environments.md is `table()`.
"""

import argparse
import collections
import decimal
import fractions
import json
import os
import pathlib
import sys
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

LENGTH = 60
STEPS = (1, 50)
KINDS = ("plain", "two workers")
REWARD = 0.25  # of all other steps
REFUSED = "refused"


class Case(NamedTuple):
    """A bad value, and the rule for it.

    A rule is `REFUSED`, or the text that states what an accepted value becomes.
    """

    text: str
    field: str | None  # "observation", "reward", …; `None`: `value` replaces the result
    value: Any
    rule: str = REFUSED
    becomes: Any = None  # the accepted value in the record


def seven(*shape, dtype="float32"):
    return np.full(shape, 7, dtype)


def raise_error(*_):
    raise ZeroDivisionError("no gravity")


SEVENS = [7.0, 7.0, 7.0]
FLAGS = {"terminated": True, "truncated": True}
AS_FLOAT = "accepted as a float"
REPEATED, AN_ARRAY = "repeated for each component", "an array of floats"


def converted(text, value, rule):
    """Returns the case of an observation that NumPy would convert."""
    return Case(text, "observation", value)


def accepted(text, field, value, rule, becomes):
    """Returns the case of a value that all kinds of environments accept."""
    return Case(text, field, value, rule, becomes=becomes)


CASES = [
    Case("NaN", "reward", np.nan),
    Case("infinity", "reward", np.inf),
    Case("minus infinity", "reward", -np.inf),
    Case("`None`", "reward", None),
    Case('text, `"1.5"`', "reward", "1.5"),
    accepted("bool, `True`", "reward", True, "accepted as 1.0", 1.0),
    Case("complex number", "reward", 1 + 2j),
    Case("array of shape (1,)", "reward", np.ones(1)),
    Case("array of shape (2,)", "reward", np.ones(2)),
    accepted(
        *("array of shape () with an object", "reward", np.array(1.5, object)),
        *(AS_FLOAT, 1.5),
    ),
    accepted("`fractions.Fraction`", "reward", fractions.Fraction(3, 2), AS_FLOAT, 1.5),
    Case("`decimal.Decimal`", "reward", decimal.Decimal("1.5")),
    Case("int outside the range of float64", "reward", 10**400),
    Case("one NaN", "observation", np.array([7, np.nan, 7], "f")),
    Case("one infinity", "observation", np.array([7, np.inf, 7], "f")),
    Case("`None`", "observation", None),
    converted("list", SEVENS, "an array"),
    accepted(
        *("float64 for a float32 space", "observation", seven(3, dtype="float64")),
        *("accepted, rounded to the float type of the policy", SEVENS),
    ),
    Case("float64 outside the range of float32", "observation", np.full(3, 1e40)),
    accepted(
        *("integers for a float space", "observation", seven(3, dtype="int64")),
        *("accepted as floats", SEVENS),
    ),
    converted("array of objects", seven(3, dtype=object), AN_ARRAY),
    converted("array of texts", np.array(["7", "7", "7"]), AN_ARRAY),
    converted("complex array", seven(3, dtype=complex) + 1j, "the real parts"),
    converted("NumPy scalar", np.float32(7), REPEATED),
    converted("array of shape (1,)", seven(1), REPEATED),
    converted("array of shape (1, 3)", seven(1, 3), "without the first axis"),
    Case("array of shape (2,)", "observation", seven(2)),
    Case("array of shape (4,)", "observation", seven(4)),
    Case("dict for a `Box`", "observation", {"a": seven(3)}),
    accepted(
        *("outside the bounds of a `Box`", "observation", np.array([7, 500, 7], "f")),
        *("accepted", [7.0, 500.0, 7.0]),
    ),
    Case("int, `2`", "terminated", 2),
    Case("`None`", "terminated", None),
    Case('text, `"False"`', "terminated", "False"),
    Case("NaN", "terminated", np.nan),
    Case("array of shape (2,)", "terminated", np.array([True, False])),
    Case("int, `2`", "truncated", 2),
    accepted(
        *("both `True`", "terminated and truncated", FLAGS),
        *("accepted as terminated", True),
    ),
    Case("`None`", "info", None),
    Case("four values, as in the old Gym", None, lambda *fields: fields[:4]),
    Case("`None` instead of five values", None, lambda *fields: None),
    Case("an exception", None, raise_error),
]


class BadClock(gym.Env):
    """An environment that returns the value of a case at step `at`, if it is the one."""

    observation_space = gym.spaces.Box(-10, 100, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, case, at, is_faulty):
        self.case, self.at, self.is_faulty = case, at, is_faulty

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.now += 1
        observation = np.full(3, self.now, np.float32)
        result = {
            "observation": observation,
            "reward": REWARD,
            "terminated": self.now == LENGTH,
            "truncated": False,
            "info": {},
        }
        if self.now == self.at and self.is_faulty():
            case = self.case
            if case.field is None:
                return case.value(*result.values())
            changes = case.value if case.value is FLAGS else {case.field: case.value}
            result = {**result, **changes}
        return tuple(result.values())


def is_second_worker():
    return os.environ.get("TF_REINFORCE_WORKER") == "1"


def open_kind(kind, case, at):
    """Returns an environment for `collect` and its keyword arguments."""
    if kind == "two workers":
        return lambda: BadClock(case, at, is_second_worker), {"workers": 2}
    made = iter([lambda i=i: BadClock(case, at, lambda: i == 1) for i in range(2)])
    return lambda: next(made)(), {}


def collect(agent, kind, case, at):
    """Returns the episodes or the error of a collection."""
    env, options = open_kind(kind, case, at)
    try:
        return agent.collect(env, 2, num_envs=2, **options)
    except tfr.collect.EnvironmentFault as error:
        return error


def is_recorded(case, at, episodes):
    """Returns whether an episode contains what an accepted value becomes."""
    columns = range(2)
    if case.field == "reward":
        return any(episodes.rewards[at - 1, b] == case.becomes for b in columns)
    if case.field == "observation":
        observations = episodes.observations[at]
        return any(observations[b].tolist() == case.becomes for b in columns)
    return any(episodes.lengths[b] == at and episodes.terminated[b] for b in columns)


def outcome(agent, kind, case, at):
    """Returns "refused", "accepted", or a text that describes a broken rule."""
    result = collect(agent, kind, case, at)
    if isinstance(result, Exception):
        if case.rule != REFUSED:
            return f"refused against the rule: {result}"
        worker = "Worker 1: " if kind == "two workers" else ""
        if not str(result).startswith(f"{worker}Environment 1"):
            return f"another environment is named: {result}"
        return "refused"
    if case.rule == REFUSED:
        return "accepted against the rule"
    if not is_recorded(case, at, result):
        return "the record does not contain the value of the rule"
    return "accepted"


def table():
    """Returns the rules as a table in Markdown."""
    lines = ["| field | value | rule |", "|---|---|---|"]
    for case in CASES:
        field = f"`{case.field}`" if case.field else "result of `step`"
        field = field.replace(" and ", "` and `") if case.field else field
        lines.append(f"| {field} | {case.text} | {case.rule} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, normalize_observations=True)
    counts, broken = {kind: collections.Counter() for kind in KINDS}, []
    for kind in KINDS:
        for case in CASES:
            for at in STEPS:
                result = outcome(agent, kind, case, at)
                if result not in ("refused", "accepted"):
                    broken.append([kind, case.field, case.text, at, result])
                    result = "broken"
                counts[kind][result] += 1
    total = sum(sum(count.values()) for count in counts.values())
    summary = {"total": total, "broken": len(broken), "kinds": counts, "list": broken}
    if options.out is not None:
        options.out.write_text(json.dumps(summary, indent=2) + "\n")
    for line in broken:
        print(*line)
    shares = ", ".join(f"{kind} {dict(count)}" for kind, count in counts.items())
    print(f"{total - len(broken)} of {total} bad outputs follow the rules: {shares}")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
