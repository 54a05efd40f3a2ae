"""Tests the display of a training in a terminal and in a notebook."""

import io
import re
import sys
import types

import numpy as np
import pytest

from tf_reinforce import callbacks
from tf_reinforce.callbacks import live_display


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live_display, "_SECONDS", 0.0)


def test_sparkline_rounds_means_of_about_equal_parts_to_eight_heights():
    assert live_display.sparkline(np.linspace(-3, 4, 8)) == "▁▂▃▄▅▆▇█"
    values = [0.0] * 41 + [7.0] * 40
    assert live_display.sparkline(values) == "▁" * 20 + "█" * 20


def screen(text):
    """Returns the lines that a terminal shows after a text with cursor movements."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part.endswith("K"):
            lines[row] = ""
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


LOGS = {
    "episode_return": 12.34,
    "episode_length": 56.7,
    "entropy": 0.69315,
    "env_steps": 12345.0,
    "steps_per_second": 6789.4,
}


def train(stream, printed=()):
    line = callbacks.ProgressLine(stream=stream)
    line.set_params({"epochs": 4})
    line.on_train_begin()
    for epoch in range(2):
        line.on_epoch_end(epoch, {**LOGS, "episode_return": float(epoch)})
        line.on_test_begin()
        line.on_test_end()
        for text in printed:
            print(text)
    return line


def test_terminal_shows_the_last_update_in_place():
    line = train(Terminal())
    assert screen(line.stream.getvalue())[0].endswith("evaluating …")
    line.on_epoch_end(2, {**LOGS, "episode_return": 1.0})
    assert "evaluating" not in screen(line.stream.getvalue())[0]
    line.on_test_begin()
    line.on_train_end()
    lines = screen(line.stream.getvalue())
    assert len(lines) == 3 and lines[0].startswith("update 3/4  ━━")
    assert " 75%  left " in lines[0] and "evaluating" not in lines[0]
    assert lines[1] == "▁██ return 1.0"
    assert lines[2] == "length 57 · entropy 0.693 · 12,345 steps · 6,789 steps/s"
    assert "\x1b[?25l" not in line.stream.getvalue()  # the cursor is not hidden


def test_text_that_callbacks_print_appears_above_the_display(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    train(stream, printed=["a finding"]).on_train_end()
    lines = screen(stream.getvalue())
    assert lines[:2] == ["a finding", "a finding"] and len(lines) == 5
    assert sys.stdout is stream


def test_notebook_output_is_replaced(monkeypatch):
    shown = []

    class Handle:
        def update(self, picture):
            shown[-1] = picture

    class ZMQInteractiveShell:
        pass

    def display(picture, display_id):
        shown.append(picture)
        return Handle()

    ipython = types.ModuleType("IPython")
    ipython.display = types.SimpleNamespace(display=display)
    ipython.get_ipython = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    train(None).on_train_end()
    assert len(shown) == 1
    assert "12,345 steps" in shown[0]._repr_mimebundle_([], [])["text/html"]
