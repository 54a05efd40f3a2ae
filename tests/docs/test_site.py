"""Tests the documentation site: its lists of pages, links, reference and search."""

import fnmatch
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tf_reinforce.cli import entry

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_each_page_is_in_one_list_of_the_index():
    entries = []
    index = (DOCS / "index.md").read_text()
    for block in re.findall(r"```{toctree}\n(.*?)```", index, re.DOTALL):
        entries += [x for x in block.splitlines() if x and not x.startswith(":")]
    for path in DOCS.glob("*.md"):
        matches = [x for x in entries if fnmatch.fnmatch(path.stem, x)]
        assert len(matches) == (path.stem != "index"), f"{path.name}: {matches}"


def test_there_are_20_questions_of_other_users():
    questions = load_check_search().read_questions()
    assert len({x.source for x in questions}) == len({x.query for x in questions}) == 20
    for question in questions:
        assert re.fullmatch(r"https://github\.com/.+/issues/\d+", question.source)
        assert (DOCS / f"{question.page}.md").exists(), question.page


def load_check_search():
    """Returns the module of the program docs/check_search.py."""
    path = DOCS / "check_search.py"
    spec = importlib.util.spec_from_file_location("check_search", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site as `make docs` does, and returns its folder."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q"]
    command += ["-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return folder / "html"


@pytest.mark.slow
def test_site_shows_every_page_command_and_public_name_without_a_network(site):
    import tf_reinforce as tfr

    index = (site / "index.html").read_text()
    for path in DOCS.glob("*.md"):
        assert f'href="{path.stem}.html"' in index or path.stem == "index", path.name
    text = (site / "reference_command_line.html").read_text()
    for name in entry.make_parser()._subparsers._group_actions[0].choices:
        assert f"usage: tf-reinforce {name}" in text, name
    reference = "".join(x.read_text() for x in site.glob("reference_*.html"))
    for name in set(tfr.__all__) - {"__version__"}:
        assert f'id="tf_reinforce.{name}' in reference or name in reference, name
    for module in (tfr.heads, tfr.baselines, tfr.envs, tfr.callbacks, tfr.testing):
        for name in set(module.__all__) - {"TWINS", "NoiseSpec"}:
            assert f'id="{module.__name__}.{name}"' in reference, name
    for path in site.glob("*.html"):
        for address in re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', path.read_text()):
            assert not address.startswith(("http:", "https:", "//")), (path.name, address)


@pytest.mark.slow
def test_search_of_the_site_answers_the_questions(site, capsys):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    pytest.importorskip("playwright", reason="the extra docs is not installed")
    failed = load_check_search().check(site, chromium, sys.stdout)
    assert failed == [], capsys.readouterr().out
