"""Tests that the documents are complete, and their commands, links and examples valid."""

import pathlib
import re
import runpy
import shlex
import sys
import warnings

import pytest
import sweeps
from gymnasium.envs import registration

from tf_reinforce.cli import entry

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
ONE_EPOCH = {
    "adding": ["--updates", "1"],
    "eligibility": [],
    "numpy_reinforce": ["--epochs", "1"],
    "structured_actions": ["--updates", "1"],
}
# These examples need packages of the extras `examples`, `video` or `atari`.
OPTIONAL = {
    "atari",
    "gym_wrappers",
    "hub",
    "keras_tuner_search",
    "minari_off_policy",
    "pettingzoo_single",
    "track_with_mlflow",
    "track_with_wandb",
}
# These examples need an exported policy: `test_consoles.py` runs them.
DEPLOYED = {"serve", "serve_client", "litert_policy"}
EXAMPLES = sorted({path.stem for path in ROOT.glob("examples/*.py")} - DEPLOYED)


def text_of(page):
    return (ROOT / page).read_text()


def test_readme_is_short_and_shows_code_early():
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 100
    assert lines.index("```python") < 30


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_and_links_of_a_document_are_valid(path):
    text = path.read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in re.findall(r"^\$ tf-reinforce (.*)$", block, re.MULTILINE):
            words = shlex.split(line, comments=True)
            assert entry.make_parser().parse_args(words).command
    for line in re.findall(r"pip install [^`\n#]*?(?:\"\.\[|\.(?:\s|`|$))", text):
        # `pip install .` would replace an editable installation by a copy.
        assert re.search(r" (-e|--editable) ", line), line
    prose = re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert target.startswith("http") or (path.parent / target).exists(), target


def test_page_of_the_command_line_lists_every_command():
    text = text_of("docs/command_line.md")
    for command in entry.make_parser()._subparsers._group_actions[0].choices:
        assert f"`{command} " in text or f"`{command}`" in text, command


def test_page_about_the_ecosystem_lists_every_example_with_other_libraries():
    for name in OPTIONAL:
        assert f"](../examples/{name}.py)" in text_of("docs/ecosystem.md")


def test_documentation_explains_every_logged_key():
    import tf_reinforce as tfr

    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    logs = agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0).history
    explained = text_of("docs/logs.md")
    for key in logs:
        short = key.replace("episode_return", "")
        assert f"`{key}`" in explained or f"`{short}`" in explained, key


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sweeps.some(EXAMPLES, always=[x for x in EXAMPLES if x not in OPTIONAL])
)
def test_every_example_runs_for_one_epoch(name, tmp_path, monkeypatch, capsys):
    path = ROOT / "examples" / f"{name}.py"
    arguments = ONE_EPOCH.get(path.stem, ["1"])
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    monkeypatch.syspath_prepend(path.parent)  # Python does the same for a script
    monkeypatch.chdir(tmp_path)
    known = {**registration.registry}
    known.pop("Catch-v0", None)  # other tests import that example too
    if name not in OPTIONAL:  # a module of the package registers its ids only once
        monkeypatch.setattr(registration, "registry", known)
    with warnings.catch_warnings():
        if name in OPTIONAL:  # of the libraries, not of the examples
            warnings.simplefilter("ignore", DeprecationWarning)
        runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
