"""The list of planted bugs does not rot; `make mutants` plants them."""

import ast
import pathlib

import pytest
from mutants import catalogue

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "correctness.md").read_text()


def rows(title):
    """The lines of the table below a heading of the document."""
    section = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fits_into_its_module(mutant):
    source = (ROOT / "tf_reinforce" / mutant.module).read_text()
    assert source.count(mutant.before) == 1
    changed = catalogue.planted(mutant, source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


class Listed:
    """Notes what pytest collects."""

    def pytest_collection_finish(self, session):
        nodes = {item.nodeid.removeprefix("tests/") for item in session.items}
        self.nodes = nodes | {node.split("[")[0] for node in nodes}


def test_every_named_test_exists_with_its_parameters():
    named = {mutant.test for mutant in catalogue.MUTANTS}
    files = sorted({str(ROOT / "tests" / test.split("::")[0]) for test in named})
    listed = Listed()
    quiet = ["-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-qq"]
    assert pytest.main([f"--rootdir={ROOT}", *quiet, *files], [listed]) == 0
    assert sorted(named - listed.nodes) == []


def test_every_bug_is_planted():
    """B1 to B50, whatever its number of forms."""
    names = [mutant.name for mutant in catalogue.MUTANTS]
    assert len(set(names)) == len(names)
    planted = {catalogue.number(mutant.bug) for mutant in catalogue.MUTANTS}
    assert planted == {"own", *(f"B{n}" for n in range(1, 51))}


def test_the_published_bugs_are_of_the_catalogue():
    assert len(catalogue.TELLING) == 10
    assert rows("Planted bugs") == catalogue.table(catalogue.TELLING)
    assert f"plants {len(catalogue.MUTANTS)} bugs" in " ".join(DOCUMENT.split())
    readme = (ROOT / "README.md").read_text()
    assert f"all {len(catalogue.MUTANTS)} planted bugs" in readme
