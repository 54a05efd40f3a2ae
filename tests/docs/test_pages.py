"""Tests that the Python code of the documents runs, and prints what they show."""

import contextlib
import io
import pathlib
import re
import runpy
import subprocess
import sys

import pytest
from gymnasium.envs import registration

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
OTHERS = "README", "ecosystem", "eligibility", "estimator_choice", "export", "pictures"
OTHERS = *OTHERS, "replicated_learners", "spaces", "your_tensor_env"
PREFIXES = "tutorial_", "concept_", "howto_", "coming_from", "index"
FOUND = {p.stem for p in DOCS.glob("*.md") if p.stem.startswith(PREFIXES)}
PAGES = sorted({*OTHERS, *FOUND})
FAST = "README", "eligibility", "spaces"
PEER = re.compile(r"^from stable_baselines3\b", re.MULTILINE)


def blocks(page):
    """Yields the line, the code and the shown output of the Python blocks of a page."""
    text = ((ROOT if page == "README" else DOCS) / f"{page}.md").read_text()
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?"
    for found in re.finditer(pattern, text, re.DOTALL):
        yield text[: found.start(1)].count("\n"), found[1], found[2]


@pytest.mark.parametrize(
    "page",
    [x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in PAGES],
)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """The blocks of a page run in one namespace, without the program of a peer."""
    if page == "tutorial_discrete_vae":
        pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(registration, "registry", {**registration.registry})
    names = {"__name__": "__main__"}
    for line, code, shown in blocks(page):
        if PEER.search(code):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Blank lines make an error name the line of the page.
            exec(compile("\n" * line + code, f"{page}.md", "exec"), names)
        if shown is not None:
            assert printed.getvalue() == shown, f"line {line} of {page}.md"
    if page == "README":
        assert names["agent"].evaluate("CartPole-v1")["episode_return"] > 400


@pytest.mark.slow
def test_program_of_stable_baselines3_runs(tmp_path):
    """The budget is shortened: the test shows that the program is valid."""
    python = ROOT / ".venv-race" / "torch" / "bin" / "python"
    if not python.exists():
        pytest.skip("`make bench-setup` installs Stable-Baselines3")
    (program,) = [code for _, code, _ in blocks("coming_from") if PEER.search(code)]
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
