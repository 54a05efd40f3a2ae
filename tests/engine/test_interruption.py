"""Tests what the signals SIGINT and SIGTERM do, once and more often."""

import asyncio
import signal
import subprocess
import sys

import pytest

from tf_reinforce.engine import interruption

PROGRAM = """
import signal, threading
from tf_reinforce.engine import interruption

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


def test_signals_reach_an_event_loop_after_a_training():
    async def train_then_wait():
        received = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, received.set)
        with interruption.GracefulStop(grace_seconds=600):
            pass
        signal.raise_signal(signal.SIGUSR1)
        return await asyncio.wait_for(received.wait(), 10)

    assert asyncio.run(train_then_wait())


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
