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


def test_second_interrupt_ends_a_process_that_waits_and_prints_its_last_words():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ran.returncode == 130, ran.stderr
    assert ran.stdout.splitlines() == ["finishing", "", "to continue: again"]
