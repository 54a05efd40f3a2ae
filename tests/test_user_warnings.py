"""Tests that warnings appear at a line of the user's program."""

import pathlib
import subprocess
import sys
import warnings

import keras
import pytest

import tf_reinforce as tfr


def test_warning_of_fit_has_the_line_that_calls_fit():
    outputs = keras.layers.Dense(2, "softmax")
    agent = tfr.Reinforce(keras.Sequential([keras.Input((4,)), outputs]))
    agent.compile(optimizer="adam")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=1, verbose=0)
    [warning] = [x for x in caught if "logits" in str(x.message)]
    line = pathlib.Path(__file__).read_text().split("\n")[warning.lineno - 1]
    assert warning.filename == __file__ and "agent.fit(" in line


@pytest.mark.parametrize("path", ["m", "/nowhere/folder"])
def test_warning_outside_of_any_program_is_raised_too(path):
    """All frames may belong to libraries, for example on the command line."""
    code = (
        "import warnings; from tf_reinforce import user_warnings\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always'); user_warnings.warn('text')\n"
        "print(caught[0].message)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "text", ran.stderr
