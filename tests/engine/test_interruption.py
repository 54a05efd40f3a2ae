"""Tests what the signals SIGINT and SIGTERM do, once and more often."""

import signal
import subprocess
import sys

import pytest

from tf_reinforce.engine import interruption


def test_only_a_second_sigint_breaks_off_an_update():
    numbers = [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
    with interruption.GracefulStop(grace_seconds=600) as stop:
        for index, number in enumerate(numbers):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                pytest.fail(f"signal {index} breaks off")  # pytest itself would end
        assert stop.received == numbers
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        stop.raise_if_received()
    assert ended.type is interruption.Terminated and ended.value.code == 143


def test_process_ends_when_the_grace_period_is_over():
    """The main thread waits, as for an update that never ends."""
    code = """
import signal, threading
from tf_reinforce.engine import interruption
with interruption.GracefulStop(grace_seconds=0.1):
    signal.raise_signal(signal.SIGTERM)
    threading.Event().wait()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 143
