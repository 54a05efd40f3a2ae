"""Tests that neither workers nor their deaths change a training."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def run_program(name, *arguments):
    command = [sys.executable, str(ROOT / "stress" / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"env": environment, "capture_output": True, "timeout": 1800}
    process = subprocess.run(command, text=True, **options)
    assert process.returncode == 0, process.stdout + process.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "ray"])
def test_training_with_killed_workers_gives_the_bits_of_one_without_kills(kind):
    run_program("worker_kills.py", "--kinds", kind, "--kills", "12")
