"""Tests the end of a process after a second SIGINT."""

import subprocess
import sys

PROGRAM = """
import signal, threading
from tf_reinforce.training import interruption

signal.signal(signal.SIGINT, signal.default_int_handler)
with interruption.GracefulStop(grace_seconds=60, last_words="to continue: again"):
    signal.raise_signal(signal.SIGINT)
    print("finishing", flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        pass
    threading.Event().wait()
"""


def run(program, **options):
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, stderr=subprocess.PIPE, text=True, timeout=60, **options
    )


def test_second_interrupt_ends_a_process_that_waits_and_prints_its_last_words():
    ran = run(PROGRAM, stdout=subprocess.PIPE)
    assert ran.returncode == 130, ran.stderr
    assert ran.stdout.splitlines() == ["finishing", "", "to continue: again"]


def test_second_interrupt_ends_a_process_whose_output_is_closed():
    """A path that is not UTF-8 ends the process too."""
    closed = PROGRAM.replace('print("finishing", flush=True)', "os.close(1)")
    for program in (closed, PROGRAM.replace("again", "\\udcff")):
        ran = run(f"import os\n{program}", stdout=subprocess.DEVNULL)
        assert ran.returncode == 130 and "Traceback" not in ran.stderr
