"""Tests what the signals SIGINT and SIGTERM do, once and more often."""

import asyncio
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
        stop.raise_if_received("text")
    assert ended.type is interruption.Terminated and ended.value.code == 143


def test_handler_of_another_language_is_replaced_by_the_default():
    """Python cannot install it again, and returns `None` for it."""
    kept = {number: signal.getsignal(number) for number in interruption.SIGNALS}
    try:
        with interruption.GracefulStop(grace_seconds=600) as stop:
            stop._handlers = dict.fromkeys(interruption.SIGNALS)
        found = [signal.getsignal(number) for number in interruption.SIGNALS]
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    assert found == [signal.SIG_DFL] * 2


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


def test_only_an_interrupt_that_nobody_catches_changes_how_errors_are_shown(
    monkeypatch, capsys
):
    """A program may catch any number of interrupts, and install hooks of its own."""
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: shown.append(args))
    own = sys.excepthook
    for text in ("first", "second"):
        error = interruption.interrupted(text)
    other = ValueError("other"), None
    sys.excepthook(KeyboardInterrupt, error, None)
    assert capsys.readouterr().err == "second\n" and sys.excepthook is own
    interruption.interrupted("third")
    sys.excepthook(ValueError, *other)
    assert shown == [(ValueError, *other)] and sys.excepthook is own
    interruption.interrupted("fourth")
    with interruption.GracefulStop(grace_seconds=600):
        assert sys.excepthook is own
    interruption.interrupted("fifth")
    sys.excepthook = later = lambda *args: None
    with interruption.GracefulStop(grace_seconds=600):
        assert sys.excepthook is later


def test_process_ends_when_the_grace_period_is_over():
    """The main thread is in a call that runs no handler, as for a long update."""
    code = """
import hashlib, os, signal, threading
from tf_reinforce.engine import interruption
with interruption.GracefulStop(grace_seconds=0.1):
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    hashlib.pbkdf2_hmac("sha1", b"a", b"b", 2**31 - 1)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 143
