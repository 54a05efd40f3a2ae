"""Training of several seeds in parallel processes, each in its own run directory."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from tf_reinforce.settings import run_config
from tf_reinforce.support import files
from tf_reinforce.support import version

OUTPUT = "output.txt"  # what a process prints, in its run directory
_POLL_SECONDS = 0.2
_TAIL_BYTES = 4096
_SIGNALS = signal.SIGINT, signal.SIGTERM


def prepare(directory, config, seeds, command=None):
    """Creates the run directories `seed_N`, each with the configuration of its training.

    The folder appears as a whole, so if the process is killed, either all trainings can
    be continued or none.

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
    versions = version.installed()
    with files.atomic_folder(directory) as temporary:
        for seed in seeds:
            folder = pathlib.Path(temporary) / f"seed_{seed}"
            folder.mkdir(parents=True)
            run_config.write(folder, {**config, "seed": seed}, command, versions)


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


def run(commands, folders, jobs, report):
    """Runs the trainings of several seeds, at most `jobs` at the same time.

    SIGINT and SIGTERM are passed on to the trainings. Each of them finishes its current
    update, writes a last checkpoint and ends, and no further training starts.

    Args:
        commands: Dict from seeds to arguments of `tf-reinforce`, lists of strings.
        folders: Dict from seeds to the `pathlib.Path`s of run directories.
        jobs: Positive int.
        report: Function that prints a line of text.

    Returns:
        130 after SIGINT, 143 after SIGTERM, else the first exit code that is not 0, or 0.
    """
    waiting, running, received, result = dict(commands), {}, [], 0
    # `running` may miss a process that starts when a signal arrives.
    receive = lambda number, _: received.append(number)  # noqa: E731
    previous = {number: signal.signal(number, receive) for number in _SIGNALS}
    try:
        while waiting or running:
            while waiting and len(running) < jobs and not received:
                seed = next(iter(waiting))
                running[seed] = _start(waiting.pop(seed), folders[seed])
            while received:
                number, waiting = received.pop(0), {}
                result = 128 + number
                for process in running.values():
                    process.send_signal(number)
            time.sleep(_POLL_SECONDS)
            for seed in [
                x for x, process in running.items() if process.poll() is not None
            ]:
                code = running.pop(seed).returncode
                result = result or code
                report(f"seed {seed}: {_outcome(code, folders[seed])}")
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for process in running.values():  # only after an error
            process.terminate()
    return result


def _start(arguments, folder):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(folder / OUTPUT, flags, 0o644), "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tf_reinforce", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"TF_NUM_INTRAOP_THREADS": "1", **os.environ},
            process_group=0,  # Ctrl-C reaches the training once, from this process
        )


def _outcome(code, folder):
    """Describes how a training has ended, from its exit code and its last lines."""
    if code in {x for number in _SIGNALS for x in (128 + number, -number)}:
        return "interrupted"
    text = (folder / OUTPUT).read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if code:
        return f"exit code {code}: {lines[-1] if lines else 'no output'}"
    return next((line for line in lines if "mean return" in line), "trained")
