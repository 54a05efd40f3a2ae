"""Tests that each wrong argument is refused with one clear reason, before any change."""

import json
import pathlib
import subprocess
import sys

import pytest
import sweeps
import wrong_commands
import wrong_values

CASES = wrong_values.all_cases()
SUBJECTS = list(dict.fromkeys(case.subject for case in CASES))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return wrong_values.World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("step", [3, sweeps.rare(1)])
def test_error_names_the_argument_and_shows_the_value(subject, step, world):
    """An error that is not ours, too long or of another type fails, and so does a change
    of weights, optimizers or files.
    """
    cases = [case for case in CASES if case.subject == subject][::step]
    faults = {str(case): wrong_values.fault(world, case) for case in cases}
    assert {case: fault for case, fault in faults.items() if fault[1]} == {}


@pytest.mark.parametrize("step", [9, sweeps.rare(1)])
def test_command_line_answers_without_traceback_and_tensorflow(step):
    """The exit code is 2. Each command runs in a fork of a process without TensorFlow."""
    program = pathlib.Path(wrong_commands.__file__)
    result = subprocess.run(
        [sys.executable, str(program), str(step)], stdout=subprocess.PIPE, check=True
    )
    answers = json.loads(result.stdout)
    assert len(answers) >= 250 // step
    assert {name: x for name, x in answers.items() if x["faults"]} == {}


def test_wrong_arguments_that_are_accepted_or_unclear_are_found(world):
    """The judge of errors accepts no other errors."""
    unclear = {
        "accepted": lambda _: None,
        "wrong type of error": lambda _: {}["size"],
        "does not name size": lambda _: wrong_values.tfr.heads.Bernoulli(0),
        "raised by another library": lambda _: int("size 0"),
        "something changed": _change,
    }
    for fault, call in unclear.items():
        case = wrong_values.Wrong("Head", "size", 0, call)
        assert fault in wrong_values.fault(world, case)[1]


def _change(world):
    (world.folder / "new.txt").touch()
    raise ValueError("size 0")
