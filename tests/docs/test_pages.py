"""Tests the code of the pages of the documentation site."""

import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from gymnasium.envs import registration

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PREFIXES = "tutorial_", "concept_", "howto_", "coming_from", "index", "spaces"
PAGES = sorted(p.stem for p in DOCS.glob("*.md") if p.stem.startswith(PREFIXES))
FAST = "concept_update", "howto_nan"
PEER = re.compile(r"^from stable_baselines3\b", re.MULTILINE)


def blocks(page):
    """Returns the line numbers and the code of the Python blocks of a page."""
    text = (DOCS / f"{page}.md").read_text()
    found = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return [(text[: x.start(1)].count("\n"), x[1]) for x in found]


@pytest.mark.parametrize(
    "page",
    [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in PAGES],
)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """The blocks of a page run in one namespace, without the program of a peer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registration, "registry", {**registration.registry})
    names = {"__name__": "__main__"}
    for line, code in blocks(page):
        if not PEER.search(code):
            # Blank lines make an error name the line of the page.
            exec(compile("\n" * line + code, f"docs/{page}.md", "exec"), names)


@pytest.mark.slow
def test_program_of_stable_baselines3_runs(tmp_path):
    """The budget is shortened: the test shows that the program is valid."""
    python = ROOT / ".venv-race" / "torch" / "bin" / "python"
    if not python.exists():
        pytest.skip("`make bench-setup` installs Stable-Baselines3")
    (program,) = [code for _, code in blocks("coming_from") if PEER.search(code)]
    command = [str(python), "-c", program.replace("50_000", "2_000")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.slow
def test_pictures_of_the_concepts_are_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["draw_concepts.py", str(tmp_path)])
    runpy.run_path(str(DOCS / "draw_concepts.py"), run_name="__main__")
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {path.name for path in DOCS.glob("concept_*.png")}
    # The standard deviations that the page about baselines states.
    page = (DOCS / "concept_baselines.md").read_text()
    plain, reduced = re.search(
        r"deviations ([\d.]+) ([\d.]+)", capsys.readouterr().out
    ).groups()
    assert f"falls from {plain} to {reduced}" in " ".join(page.split())
