"""Runs the commands of the documents, and compares their output with the documents."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DONE = "<the command has ended>"
# These commands install packages, need other programs, or do not end.
SKIPPED = r"pip |make |docker |tensorboard |tf-reinforce .*(HalfCheetah|MiniGrid|cheetah)"
PAGES = [
    "README",
    "docs/tutorial_first_agent",
    "docs/tutorial_own_environment",
    "docs/tutorial_many_seeds",
    "docs/export",
    "docs/pictures",
    "docs/runs",
    "docs/command_line",
    "docs/howto_evaluate",
    "docs/howto_resume",
    "docs/howto_tensorboard",
    "docs/tuning",
]


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def session(text):
    """Returns the commands of a document, each with the list of its printed lines."""
    found = []
    for line in "\n".join(blocks(text, "console")).replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def pattern(lines):
    """Returns a regular expression for lines, with any numbers and any rows of `…`."""
    number = r"-?\d[\d,.:]*(?:e[+-]?\d+)?"
    texts = []
    for line in lines:
        words = [re.escape(x) for x in re.split(rf"(?:{number})| +", line)]
        gaps = re.findall(rf"{number}| +", line)
        gaps = [r" +" if x.isspace() else number for x in gaps] + [""]
        texts.append("".join(a + b for a, b in zip(words, gaps, strict=True)) + " *\n")
    return "".join(r"(?:.*\n)*?" if x == "… *\n" else x for x in texts)


class Shell:
    """A shell with the commands of this environment in a folder."""

    def __init__(self, folder):
        scripts = pathlib.Path(sys.executable).parent
        path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
        self._errors = folder / "errors.txt"
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**os.environ, "PATH": path, "COLUMNS": "200", "TERM": "dumb"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process.stdin.write("exec 2> errors.txt\n")

    def run(self, command, count):
        """Returns the exit code and the printed lines of a command.

        For a command that ends in `&`, these are its first `count` lines.
        """
        printed, code = [], None
        self._process.stdin.write(f'{command}\necho "{DONE} $?"\n')
        self._process.stdin.flush()
        while code is None or (command.endswith("&") and len(printed) < count):
            line = self._process.stdout.readline()
            assert line, "the shell has ended"
            if DONE in line:
                rest, _, number = line.partition(DONE)
                printed += [rest + "\n"] if rest else []  # a last line without its end
                code = int(number)
            else:
                printed.append(line)
        return code, printed

    def errors(self):
        return self._errors.read_text()

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def shell(tmp_path):
    opened = Shell(tmp_path)
    yield opened
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_document_shows(page, shell, tmp_path):
    text = (ROOT / f"{page}.md").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if page == "docs/tutorial_own_environment":
        code = blocks(text, "python")
        parts = code[0], next(x for x in code if x.startswith("gym.register"))
        (tmp_path / "warehouse.py").write_text("\n\n".join(parts))
    if page == "docs/howto_evaluate":  # continues the run of a tutorial
        shell.run("tf-reinforce train CartPole-v1 --run-dir runs/first", 0)
        shutil.copy(tmp_path / "runs" / "first" / "agent.keras", tmp_path)
    commands = [x for x in session(text) if not re.match(SKIPPED, x[0])]
    assert commands
    for command, expected in commands:
        code, printed = shell.run(command, len(expected))
        assert code == 0, f"{command}\n{''.join(printed)}\n{shell.errors()}"
        if expected:
            rows = "".join(line for line in printed if line.strip())
            assert re.fullmatch(pattern(expected), rows), f"{command}\n{rows}"


def test_pattern_ignores_numbers_and_rows_that_are_left_out():
    lines = ["a 1,234 s (0:12)", "…", "end  -1.5e-07"]
    assert re.fullmatch(pattern(lines), "a 9.5 s (1:00)\nb\nc\nend 2\n")
    assert re.fullmatch(pattern(lines), "a 9.5 s (1:00)\nend    -2e+08 \n")
    assert not re.fullmatch(pattern(lines), "a 9.5 s (1:00)\nb\nthe end 2\nc\n")
