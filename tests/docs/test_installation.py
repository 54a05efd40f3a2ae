"""Tests that every documented installation imports the package of the clone."""

import pathlib
import re
import shutil
import subprocess
import sysconfig
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = "README.md", "CONTRIBUTING.md", "Makefile", "docs/*.md", "benchmarks/*.md"
PAGES = (*PAGES, "examples/*.py", "examples/*.ipynb", "docs/*.ipynb")


def commands():
    """Yields the page and the options of each installation of the clone."""
    for pattern in PAGES:
        for page in sorted(ROOT.glob(pattern)):
            text = page.read_text().replace('\\"', '"')
            for found in re.finditer(r'pip install ([^`\n#]*?)("\.\[|\.(\s|`|$))', text):
                yield page.name, found[1].split()


def test_documented_commands_keep_an_editable_installation():
    """`pip install .` would replace it by a copy, which ignores changes of the clone."""
    found = list(commands())
    assert {"README.md", "Makefile", "index.md", "tuning.md"} <= {
        name for name, _ in found
    }
    for name, words in found:
        assert {"-e", "--editable"} & set(words), name


@pytest.fixture
def beside_the_clone(tmp_path):
    """Returns a function that installs the clone, and one that runs a script beside it.

    The other packages are those of this Python, so nothing is downloaded.
    """
    clone = tmp_path / "tf_reinforce"
    clone.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tf_reinforce", clone / "tf_reinforce", ignore=ignored)
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    [site] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "script.py").write_text(
        "import importlib.util\nprint(importlib.util.find_spec('tf_reinforce').origin)"
    )

    def install(*words):
        offline = "--no-deps", "--no-build-isolation", "--ignore-installed"
        command = [python, "-E", "-m", "pip", "install", "--quiet", *offline, *words]
        subprocess.run(command, cwd=clone, check=True, capture_output=True)

    def run(folder):
        command = [python, "-E", tmp_path / "script.py"]
        output = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert output.returncode == 0, output.stderr
        return output.stdout.strip()

    return install, run


@pytest.mark.slow
def test_script_beside_the_clone_imports_the_package(beside_the_clone, tmp_path):
    """Without a package in its folder, Python imports the clone as an empty package."""
    install, run = beside_the_clone
    for words in (["--editable", "."], ["-e", ".[plot]"]):
        install(*words)
        for folder in (tmp_path, tmp_path / "tf_reinforce", tmp_path.parent):
            package = tmp_path / "tf_reinforce" / "tf_reinforce"
            assert run(folder) == str(package / "__init__.py")
