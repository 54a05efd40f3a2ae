"""Tests that neither the kind of workers nor their deaths change a training."""

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
def test_workers_on_this_machine_and_of_ray_give_the_bits_of_one_process():
    kinds = "3 local workers", "Ray, 2 nodes"
    names = "nested spaces, random durations", "recurrent, steps_per_epoch"
    run_program("same_bits.py", "--kinds", *kinds, "--updates", "3", "--only", *names)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "ray"])
def test_training_with_killed_workers_gives_the_bits_of_one_without_kills(kind):
    run_program("worker_kills.py", "--kinds", kind, "--kills", "12")
