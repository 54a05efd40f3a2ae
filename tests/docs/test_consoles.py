"""Runs the commands of the documents, and compares their output with the documents."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
END = "<the command has ended>"
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
RUN = "tf-reinforce train CartPole-v1 --run-dir runs/first && cp runs/first/agent.keras ."


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
    return [x for x in found if not re.match(SKIPPED, x[0])]


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


def script(commands):
    """Returns a script that marks the end of each command, and stops at a failure."""
    lines = ["trap 'kill $(jobs -p) 2> kill.txt' EXIT"]
    for command in commands:
        lines.append(command)
        if command.endswith("&"):  # a server: waits until it answers
            port = (re.findall(r" (\d{4})\b", command) or ["8501"])[0]
            lines.append(
                f"curl -s --retry 99 --retry-connrefused http://127.0.0.1:{port}"
            )
            lines[-1] += " > curl.txt"
        lines.append(f'code=$?; echo; echo "{END}"; [ $code = 0 ] || exit $code')
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_document_shows(page, tmp_path):
    text = (ROOT / f"{page}.md").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if page == "docs/tutorial_own_environment":
        code = blocks(text, "python")
        parts = code[0], next(x for x in code if x.startswith("gym.register"))
        (tmp_path / "warehouse.py").write_text("\n\n".join(parts))
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = dict(cwd=tmp_path, capture_output=True, text=True)
    options["env"] = {**os.environ, "PATH": path, "COLUMNS": "200", "TERM": "dumb"}
    if page == "docs/howto_evaluate":  # continues the run of a tutorial
        subprocess.run(["bash", "-c", RUN], check=True, **options)
    commands, expected = zip(*session(text), strict=True)
    bash = [shutil.which("bash"), "--norc", "-c", script(commands)]
    result = subprocess.run(bash, **options)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    outputs = result.stdout.split(f"{END}\n")[:-1]
    for command, lines, printed in zip(commands, expected, outputs, strict=True):
        rows = "".join(f"{line}\n" for line in printed.splitlines() if line.strip())
        assert not lines or re.fullmatch(pattern(lines), rows), f"{command}\n{rows}"


def test_pattern_ignores_numbers_and_rows_that_are_left_out():
    lines = ["a 1,234 s (0:12)", "…", "end  -1.5e-07"]
    assert re.fullmatch(pattern(lines), "a 9.5 s (1:00)\nb\nc\nend 2\n")
    assert not re.fullmatch(pattern(lines), "a 9.5 s (1:00)\nb\nthe end 2\nc\n")
