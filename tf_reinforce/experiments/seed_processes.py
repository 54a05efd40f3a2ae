"""Training of several seeds in parallel processes, each in its own run directory."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from tf_reinforce.experiments import run_config
from tf_reinforce.support import files

OUTPUT = "output.txt"  # what a process prints, in its run directory
_POLL_SECONDS = 0.2
_REPORT_SECONDS = 10.0  # between two progress reports
_TAIL_BYTES = 4096
_SIGNALS = signal.SIGINT, signal.SIGTERM


def prepare(directory, config, seeds, command=None):
    """Creates the run directories `seed_N`, each with the configuration of its training.

    The folder appears as a whole. If the process is killed, there are either no trainings
    to continue, or all.

    Args:
        directory: `pathlib.Path` of a new or empty folder.
        config: Dict, the content of `config.json` without the seed.
        seeds: Ints.
        command: String for `command.txt`, the command that starts the trainings, or
            `None`.

    Raises:
        FileExistsError: If the folder exists and is not empty.
    """
    files.expect_empty_folder(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_folder(directory) as temporary:
        for seed in seeds:
            folder = pathlib.Path(temporary) / f"seed_{seed}"
            folder.mkdir(parents=True)
            run_config.write(folder, {**config, "seed": seed})
            if command is not None:
                text = f"{command}\n".encode(errors="surrogateescape")
                (folder / "command.txt").write_bytes(text)


def folders(directory):
    """Returns the run directories in a folder of several seeds as `{seed: path}`.

    The dict is empty if the folder is a run directory itself.
    """
    directory = pathlib.Path(directory)
    if (directory / run_config.FILE_NAME).exists():
        return {}
    found = {
        int(path.parent.name.removeprefix("seed_")): path.parent
        for path in directory.glob(f"seed_*/{run_config.FILE_NAME}")
        if re.fullmatch(r"seed_\d{1,19}", path.parent.name)
    }
    return dict(sorted(found.items()))


def has_ended(folder):
    """Returns whether a training has ended with an evaluation."""
    return (folder / "evaluation.json").is_file()


class Processes:
    """Runs the trainings of several seeds, at most `jobs` at the same time.

    It passes SIGINT and SIGTERM on to the trainings, which end after their current update
    and a last checkpoint. No further training starts then.

    Args:
        commands: Dict from seeds to arguments of `tf-reinforce`, lists of strings.
        folders: Dict from seeds to the `pathlib.Path`s of run directories.
        jobs: Positive int.
        report: Function that prints a line of text.
    """

    def __init__(self, commands, folders, jobs, report):
        self._waiting = list(commands.items())
        self._folders = folders
        self._jobs = jobs
        self._report = report
        self._running = {}
        self._signal, self._received = None, []
        self._last_lines = {}  # from seeds to the last lines reported
        self._starts = {}  # from seeds to the initial sizes of output files
        self.exit_codes = {}

    def run(self):
        """Runs all trainings.

        Returns:
            130 after SIGINT, 143 after SIGTERM, else the first exit code that is not 0,
            or 0.
        """
        # `_running` may miss a process that starts when a signal arrives.
        receive = lambda number, _: self._received.append(number)  # noqa: E731
        previous = {number: signal.signal(number, receive) for number in _SIGNALS}
        reported = time.monotonic()
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._jobs:
                    self._start(*self._waiting.pop(0))
                    self._send()
                self._send()
                self._collect()
                if time.monotonic() - reported >= _REPORT_SECONDS:
                    self._report_progress()
                    reported = time.monotonic()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            for process in self._running.values():  # only after an error
                process.terminate()
        if self._signal is not None:
            return 128 + self._signal
        return next((code for code in self.exit_codes.values() if code), 0)

    def _send(self):
        while self._received:
            self._signal, self._waiting = self._received.pop(0), []
            for process in self._running.values():
                process.send_signal(self._signal)

    def _start(self, seed, arguments):
        path = self._folders[seed] / OUTPUT
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(path, flags, 0o644), "ab") as output:
            self._starts[seed] = output.tell()
            self._running[seed] = subprocess.Popen(
                [sys.executable, "-m", "tf_reinforce", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"TF_NUM_INTRAOP_THREADS": "1", **os.environ},
                process_group=0,  # Ctrl-C reaches the training once, from this process
            )

    def _collect(self):
        """Waits briefly, then reports the trainings that have ended."""
        for process in list(self._running.values())[:1]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        for seed, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[seed]
                self.exit_codes[seed] = code = process.returncode
                lines = self._lines(seed)
                text = next((x for x in lines if "mean return" in x), "trained")
                if code:
                    text = f"exit code {code}: {lines[-1] if lines else 'no output'}"
                if code in {x for number in _SIGNALS for x in (128 + number, -number)}:
                    text = "interrupted"
                self._report(f"seed {seed}: {text}")

    def _report_progress(self):
        """Reports the last line that each training has printed, if it is new."""
        for seed in self._running:
            line = (self._lines(seed) or [""])[-1]
            if line and line != self._last_lines.get(seed):
                self._last_lines[seed] = line
                self._report(f"seed {seed}: {line}")

    def _lines(self, seed):
        """Returns the last lines printed by the process of a seed."""
        path = self._folders[seed] / OUTPUT
        with open(path, "rb") as file:
            file.seek(max(self._starts[seed], path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line for line in text.splitlines() if line.strip()]
