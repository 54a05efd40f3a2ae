"""Tests that a release is complete, and that its wheel works without the repository."""

import configparser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
    "file, pattern",
    [
        ("CHANGELOG.md", r"\A# Changelog\n\n## (\S+)"),
        ("CITATION.cff", r"^version: (.+)$"),
        ("docs/install.md", r"tf_reinforce-(.+?)-py3"),
    ],
)
def test_file_states_the_version_of_the_package(file, pattern):
    found = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert set(found) == {tfr.__version__}


def test_page_about_installation_lists_every_extra():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    page = (ROOT / "docs" / "install.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(setup["options.extras_require"])


@pytest.fixture
def tracked():
    """Returns the names of the files in the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    names = run("git", "ls-files", cwd=ROOT).splitlines()
    return {name for name in names if (ROOT / name).exists()}


@pytest.fixture
def clone(tracked, tmp_path):
    """Returns a folder with a copy of these files."""
    for name in tracked:
        copy = tmp_path / "clone" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    return tmp_path / "clone"


def run(*command, cwd):
    """Returns what a command prints that does not find the package of this process."""
    environment = {k: x for k, x in os.environ.items() if k != "PYTHONPATH"}
    bin = pathlib.Path(sys.executable).parent  # its Python is the first on the path
    environment["PATH"] = f"{bin}{os.pathsep}{environment['PATH']}"
    options = dict(cwd=cwd, env=environment, capture_output=True, text=True)
    result = subprocess.run(command, **options)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
def test_distributions_contain_the_files_of_the_repository(tracked, clone):
    """The wheel has those of the package only."""
    run("make", "dist", cwd=clone)
    (archive,) = clone.glob("dist/*.tar.gz")
    with tarfile.open(archive) as opened:
        files = [x.name.partition("/")[2] for x in opened.getmembers() if x.isfile()]
    metadata = {"PKG-INFO"} | {x for x in files if x.startswith("tf_reinforce.egg-info/")}
    assert set(files) - metadata == tracked
    (wheel,) = clone.glob("dist/*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    own = {
        x for x in names if not x.startswith(f"tf_reinforce-{tfr.__version__}.dist-info")
    }
    assert own == {name for name in tracked if name.startswith("tf_reinforce/")}


@pytest.mark.slow
def test_commands_of_the_installation_page_and_the_readme_run_in_a_clone(clone, tmp_path):
    """The code of the README runs outside the clone, with the installed wheel."""
    page = (ROOT / "docs" / "install.md").read_text()
    lines = "".join(blocks(page, "console")).replace("\\\n", "").splitlines()
    commands = [x.removeprefix("$ ") for x in lines if not x.startswith("$ podman ")]
    run("bash", "-e", "-c", "\n".join(commands), cwd=clone)
    python = clone / ".venv-wheel" / "bin" / "python"
    run(python, "-m", "pip", "check", cwd=tmp_path)
    code = "\n".join(blocks((ROOT / "README.md").read_text(), "python"))
    code += "print(agent.evaluate('CartPole-v1')['episode_return'], tfr.__file__)"
    episode_return, file = run(python, "-c", code, cwd=tmp_path).splitlines()[-1].split()
    assert float(episode_return) > 400
    assert file.startswith(str(clone / ".venv-wheel"))


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
