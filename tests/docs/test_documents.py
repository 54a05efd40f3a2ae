"""Tests that the code in the documents runs and that the documents are complete."""

import pathlib
import re
import runpy
import shlex
import sys
import warnings

import pytest
import sweeps
from gymnasium.envs import registration

from tf_reinforce.cli import parsers

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ONE_EPOCH = {"numpy_reinforce": ["--epochs", "1"], "eligibility": []}
LONGEST = {
    "numpy_reinforce": 120,
    "eligibility": 90,
    "your_own_parts": 90,
    "recurrent": 75,
    "catch": 70,
    "bandit": 88,
    "glimpses": 198,
    "hub": 91,
    "minari_off_policy": 105,
    "pettingzoo_single": 75,
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
# `tests/examples/test_deployed.py` runs these examples, which need an exported policy.
DEPLOYED = {"serve", "litert_policy"}
EXAMPLES = sorted({path.stem for path in ROOT.glob("examples/*.py")} - DEPLOYED)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_of_the_readme_run(tmp_path, monkeypatch):
    """The code is not shortened for the test."""
    monkeypatch.chdir(tmp_path)
    world = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), world)
    assert world["agent"].evaluate("CartPole-v1")["episode_return"] > 400


@pytest.mark.slow
def test_python_blocks_about_replicated_learners_run(tmp_path, monkeypatch):
    """With one device and one process, the strategies have one replica."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    text = (ROOT / "docs" / "replicated_learners.md").read_text()
    world, sources = {}, re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for block in sources:
        exec(compile(block, "replicated_learners.md", "exec"), world)
    assert world["agent"].updates == 5 and (tmp_path / "agent.keras").exists()


@pytest.mark.slow
def test_python_blocks_about_the_ecosystem_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "ecosystem.md").read_text()
    world, sources = {}, re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(sources) == 4
    for block in sources:
        exec(compile(block, "ecosystem.md", "exec"), world)
    printed = capsys.readouterr().out
    assert "value_network" in printed and "steps: return" in printed


def test_page_about_the_ecosystem_lists_every_example_with_other_libraries():
    text = (ROOT / "docs" / "ecosystem.md").read_text()
    for name in OPTIONAL:
        assert f"](../examples/{name}.py)" in text


@pytest.mark.slow
def test_python_blocks_about_videos_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "pictures.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "pictures.md", "exec"), {})
    names = sorted(path.name for path in tmp_path.rglob("*.mp4"))
    updates = ["update_000000.mp4", "update_000002.mp4"]
    assert names == ["lake_1.mp4", "lake_2.mp4", *updates]


@pytest.mark.slow
def test_documented_tensor_environment_is_learned(tmp_path, capsys):
    text = (ROOT / "docs" / "your_tensor_env.md").read_text()
    world, sources = {}, re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    written = sources[0].split("class Boat")[1].split("\n\n\nagent")[0]
    assert len(written.splitlines()) <= 40
    for block in sources:
        exec(compile(block, "your_tensor_env.md", "exec"), world)
    returned, shape = capsys.readouterr().out.splitlines()
    assert float(returned) > 60 and shape == "(10, 16)"
    assert world["observations"].shape == (8, 4)


def commands(path):
    """Returns the commands `tf-reinforce` in the console blocks of a document."""
    found = re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL)
    return [
        shlex.split(line.removeprefix("$ tf-reinforce "), comments=True)
        for block in found
        for line in block.splitlines()
        if line.startswith("$ tf-reinforce ")
    ]


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_of_the_documents_are_valid(path):
    for command in commands(path):
        assert parsers.make_parser().parse_args(command).command
    if path.stem == "README":
        assert len(commands(path)) >= 3


def test_page_of_the_command_line_lists_every_command():
    text = (ROOT / "docs" / "command_line.md").read_text()
    choices = parsers.make_parser()._subparsers._group_actions[0].choices
    for command in choices:
        assert f"`{command} " in text or f"`{command}`" in text, command


def test_readme_is_short_and_shows_code_early():
    lines = README.splitlines()
    assert len(lines) <= 100
    assert lines.index("```python") < 30


def test_links_of_the_documents_point_to_existing_files():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        for target in re.findall(
            r"\]\(([^)#]+)\)",
            re.sub(r"```.*?```|`[^`\n]*`(?!\])", "", path.read_text(), flags=re.DOTALL),
        ):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_documentation_explains_every_logged_key(tmp_path):
    import tf_reinforce as tfr

    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    logs = agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0).history
    explained = (ROOT / "docs" / "logs.md").read_text()
    for key in logs:
        short = key.replace("episode_return", "")
        assert f"`{key}`" in explained or f"`{short}`" in explained, key


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sweeps.some(EXAMPLES, always=[x for x in EXAMPLES if x not in OPTIONAL])
)
def test_every_example_runs_for_one_epoch(name, tmp_path, monkeypatch, capsys):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= LONGEST.get(path.stem, 60)
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
