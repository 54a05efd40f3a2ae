"""Tests EpisodeLogger, StopAtReturn and ProgressLine."""

import csv
import io
import itertools
import re
import sys
import types
import warnings

import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import callbacks

HEADER = ["episode", "update", "episode_return", "episode_length", "terminated"]


def train(callback, epochs=1, first=0, episodes=2):
    """Calls a callback as the training loop does. Episode n has a return of n + 0.5."""
    callback.on_train_begin()
    for epoch in range(first, first + epochs):
        for episode in range(epoch * episodes, (epoch + 1) * episodes):
            callback.on_episode_end(
                episode,
                {
                    "episode_return": episode + 0.5,
                    "episode_length": episode + 1,
                    "terminated": episode % 2 == 0,
                    "update": epoch,
                },
            )
        callback.on_epoch_end(epoch, {})
    callback.on_train_end({})


def rows(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def row(episode, update):
    ended = "1" if episode % 2 == 0 else "0"
    return [str(episode), str(update), f"{episode}.5", str(episode + 1), ended]


@pytest.mark.parametrize("append", [False, True])
def test_episode_logger_replaces_or_appends_to_its_file(tmp_path, append):
    path = tmp_path / "episodes.csv"
    train(callbacks.EpisodeLogger(str(path)))
    train(callbacks.EpisodeLogger(str(path), append=append), first=1)
    earlier_rows = [row(0, 0), row(1, 0)] if append else []
    assert rows(path) == [HEADER, *earlier_rows, row(2, 1), row(3, 1)]


@pytest.mark.parametrize("empty", [False, True])
def test_episode_logger_appending_to_empty_file_writes_the_header(tmp_path, empty):
    """A killed process or `tempfile` may have created an empty file."""
    path = tmp_path / "episodes.csv"
    if empty:
        path.touch()
    train(callbacks.EpisodeLogger(path, append=True))
    assert rows(path) == [HEADER, row(0, 0), row(1, 0)]


@pytest.mark.parametrize(
    "monitor, logs, stop",
    [
        ("episode_return", {"episode_return": 9.9}, False),
        ("episode_return", {"episode_return": 10.0, "val_episode_return": 0.0}, True),
        ("episode_return", {"episode_return": float("nan")}, False),
        ("val_episode_return", {"episode_return": 10.0}, False),
        ("val_episode_return", {"episode_return": 0.0, "val_episode_return": 10.0}, True),
    ],
)
def test_stop_at_return_stops_when_the_return_reaches_the_target(monitor, logs, stop):
    callback = callbacks.StopAtReturn(10.0, monitor=monitor)
    callback.set_model(types.SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, logs)
    assert callback.model.stop_training is stop


@pytest.mark.parametrize(
    "monitor, validates, warns",
    [
        ("episode_retrun", True, True),
        ("val_episode_retrun", True, True),
        ("val_episode_return", False, True),
        ("val_success", False, True),
        ("val_episode_return", True, False),
        ("success", False, False),
        ("val_success", True, False),
    ],
)
def test_stop_at_return_warns_once_of_a_key_that_cannot_come(monitor, validates, warns):
    """A validation and a first success may come later."""
    callback = callbacks.StopAtReturn(10.0, monitor=monitor)
    callback.set_params({"validates": validates})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch in range(2):
            callback.on_epoch_end(epoch, {"loss": 1.0, "episode_return": 0.0})
    assert [str(x.message).rpartition("Received: ")[2] for x in caught] == [
        "episode_return, loss."
    ] * warns


# ProgressLine


LOGS = {
    "episode_return": 12.34,
    "episode_length": 56.7,
    "entropy": 0.69315,
    "env_steps": 12345.0,
    "steps_per_second": 6789.4,
}
LINE = "return 12.3 · length 57 · entropy 0.693 · 12,345 steps · 6,789 steps/s"


@pytest.fixture
def clock(monkeypatch):
    """Advances the clock by 30 seconds at each reading."""
    now = iter(range(0, 10**6, 30))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))


def progress(stream, epochs, every=1.0, first=0, total="same", logs=LOGS):
    line = callbacks.ProgressLine(every=every, stream=stream)
    line.set_params({"epochs": first + epochs if total == "same" else total})
    line.on_train_begin()
    for epoch in range(first, first + epochs):
        line.on_epoch_end(epoch, logs)
    line.on_train_end()
    return stream.getvalue()


def test_progress_line_in_a_plain_stream_writes_one_line_per_report(clock):
    text = progress(io.StringIO(), epochs=2)
    line = LINE.replace("length 57 · ", "")
    assert text.splitlines() == [
        f"update 1/2 · {line}",
        f"update 2/2 · {line.rpartition(' · ')[0]} · left 0:00:00",
    ]
    assert "\x1b" not in text and "\r" not in text


@pytest.mark.parametrize(
    "epochs, every, total, updates", [(6, 100.0, 6, ["4/6", "6/6"]), (2, 1e9, 9, ["2/9"])]
)
def test_progress_line_reports_every_n_seconds_and_at_the_end(
    clock, epochs, every, total, updates
):
    """With `every=100`, the fourth reading of the clock is the first report."""
    text = progress(io.StringIO(), epochs, every, total=total)
    found = [line.split(" · ")[0] for line in text.splitlines()]
    assert found == [f"update {update}" for update in updates]


@pytest.mark.parametrize("verbose, lines", [sweeps.rare(0, 0), sweeps.rare(1, 1), (2, 3)])
def test_verbosity_two_prints_a_line_for_each_epoch(verbose, lines, capsys, monkeypatch):
    """Verbosity 1 prints at most one line in a second; here, no second passes."""
    now = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: 1e-6 * next(now))
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    agent.fit(toys.Bandit, epochs=3, episodes_per_epoch=2, verbose=verbose)
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_remaining_time_with_several_updates_per_call(monkeypatch):
    """The updates of a call are reported together when it ends."""

    class Model:
        env_steps = 0

    monkeypatch.setattr("time.perf_counter", iter([0, 100, 100, 110, 110]).__next__)
    line = callbacks.ProgressLine(every=0.0, stream=io.StringIO())
    line.set_params({"epochs": 8})
    line.set_model(Model())
    line.on_train_begin()
    for epoch in range(4):
        line.model.env_steps = 20 * (epoch // 2 + 1)
        line.on_epoch_end(epoch, {**LOGS, "env_steps": 10.0 * (epoch + 1)})
    lines = line.stream.getvalue().splitlines()
    assert ["left" in line for line in lines] == [False, False, False, True]
    assert lines[3].endswith("left 0:00:20")


def test_budget_in_steps_has_a_total_and_a_remaining_time(monkeypatch):
    monkeypatch.setattr("time.perf_counter", iter([0, 50, 60, 70]).__next__)
    line = callbacks.ProgressLine(stream=io.StringIO())
    line.set_params({"epochs": None, "end_env_steps": 13000})
    line.on_train_begin()
    for epoch, steps in enumerate((11000.0, 12000.0, 13001.0)):
        line.on_epoch_end(epoch, {**LOGS, "env_steps": steps})
    counts = [line.split(" · ", 3)[3] for line in line.stream.getvalue().splitlines()]
    assert counts == [
        "11,000/13,000 steps · 6,789 steps/s",
        "12,000/13,000 steps · left 0:00:10",
        "13,001/13,000 steps · left 0:00:00",
    ]


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e9])
def test_line_of_progress_fits_into_80_columns(size, clock):
    """It keeps the returns, and all other facts for which there is room."""
    logs = {name: size * x for name, x in LOGS.items()}
    logs["val_episode_return"] = -99.9 * size
    text = progress(io.StringIO(), epochs=2, first=10**6, logs=logs)
    for line in text.splitlines():
        assert len(line) <= 80 and f"return {logs['episode_return']:.1f}" in line
    assert len(text.splitlines()) == 2
    assert ("steps" in text) == (size < 1e6)


def test_facts_in_a_terminal_fill_its_width(terminal, monkeypatch):
    logs, lines = {**LOGS, "val_episode_return": -1234.5}, {}
    for columns in (40, 80, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        stream = Terminal()
        line = trained(stream)
        line.on_epoch_end(2, logs)
        line.on_train_end()
        lines[columns] = screen(stream.getvalue())[2:]
    assert [len(x) for x in lines.values()] == [1, 1, 1]
    assert lines[40] == ["return 12.3 · evaluation -1234.5"]
    assert lines[80] == [
        "return 12.3 · evaluation -1234.5 · entropy 0.693 · 12,345 steps · 6,789 steps/s"
    ]
    assert lines[100] == [LINE.replace(" · ", " · evaluation -1234.5 · ", 1)]


@pytest.mark.parametrize("budget", [sweeps.rare(dict(epochs=2)), dict(steps=4)])
def test_training_that_continues_says_where(budget, tmp_path, capsys):
    """The agent has made two steps before, which belong to no budget."""

    def fit(**more):
        agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
        options = dict(episodes_per_epoch=2, num_envs=1)
        agent.fit(toys.Bandit, epochs=1, verbose=0, **options)
        options["resume"] = tmp_path / "run"
        agent.fit(toys.Bandit, **{**budget, **options, **more})
        return capsys.readouterr().out

    assert "update 2" in fit()
    finished, *_, where = fit().splitlines()
    of_epochs = " of {}" if "epochs" in budget else ""
    assert finished == "finished after update 2" + of_epochs.format(2)
    assert where == f"saved in {tmp_path / 'run'}"
    [(name, number)] = budget.items()
    lines = fit(**{name: 2 * number}).splitlines()
    of_epochs = of_epochs or " (6 of 10 steps)"
    assert lines[0] == "continuing at update 3" + of_epochs.format(4)
    assert sum(line.startswith("update 4") for line in lines) == 1


def test_stream_without_a_character_receives_a_question_mark():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream.isatty = lambda: True  # a terminal that cannot show the live display
    line = trained(stream)
    line.on_train_end()
    assert b"update 2/4 ? return 1.0" in stream.buffer.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


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


def trained(stream, printed=(), returns=(0.0, 1.0), epochs=4):
    line = callbacks.ProgressLine(stream=stream)
    line.set_params({"epochs": epochs})
    line.on_train_begin()
    for epoch, mean_return in enumerate(returns):
        line.on_epoch_end(epoch, {**LOGS, "episode_return": mean_return})
        line.on_test_begin()
        line.on_test_end()
        for text in printed:
            print(text)
    return line


def test_terminal_shows_the_last_update_in_place(terminal):
    line = trained(terminal)
    assert screen(terminal.getvalue())[0].endswith("evaluating …")
    line.on_epoch_end(2, {**LOGS, "episode_return": 1.0})
    [head, *_] = screen(terminal.getvalue())
    assert head.startswith("update 3/4 ━━") and re.search(r" 75% left 0:00:\d\d$", head)
    line.on_test_begin()
    line.on_train_end()
    lines = screen(terminal.getvalue())
    assert len(lines) == 3 and lines[0].startswith("update 3/4 ━━")
    assert lines[0].endswith(" 75%")
    assert lines[1] == "▁██"
    assert lines[2] == LINE.replace("12.3", "1.0", 1)
    assert "\x1b[?25l" not in terminal.getvalue()  # the cursor is not hidden


def test_history_shows_means_over_about_equally_many_updates(terminal):
    trained(terminal, returns=[0.0] * 41 + [7.0] * 40, epochs=None).on_train_end()
    head, history, _ = screen(terminal.getvalue())
    assert history == "▁" * 20 + "█" * 20
    assert "%" not in head  # a training without a budget


def test_text_that_callbacks_print_appears_above_the_display(terminal, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal)
    trained(terminal, printed=["a finding"]).on_train_error()
    lines = screen(terminal.getvalue())
    assert lines[:2] == ["a finding", "a finding"] and len(lines) == 5
    assert sys.stdout is terminal


@pytest.mark.parametrize("stream", [None, "its own"])
def test_findings_appear_above_the_display(stream, terminal, monkeypatch):
    """The stream may be the one that the display uses."""
    monkeypatch.setattr(sys, "stdout", terminal)
    diagnostics = callbacks.Diagnostics(stream=stream and sys.stdout)
    diagnostics.history = [{}]
    line = trained(terminal)
    diagnostics.on_train_end()
    line.on_train_end()
    lines = screen(terminal.getvalue())
    assert lines[0] == "Diagnostics: found nothing in 1 reports." and len(lines) == 4


def test_notebook_output_is_replaced(monkeypatch, clock):
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
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr("builtins.get_ipython", ZMQInteractiveShell, raising=False)
    trained(None).on_train_end()
    assert len(shown) == 1
    assert "12,345 steps" in shown[0]._repr_mimebundle_([], [])["text/html"]
