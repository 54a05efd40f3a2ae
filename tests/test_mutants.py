"""The list of planted bugs does not rot; `make mutants` plants them."""

import ast
import pathlib

import pytest
from mutants import catalogue

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "correctness.md").read_text()
TESTS = {
    path.name: {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    for path in ROOT.glob("tests/test_*.py")
}


def rows(title):
    """The lines of the table below a heading of the document."""
    section = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fits_into_its_module_and_its_test_exists(mutant):
    source = (ROOT / "tf_reinforce" / mutant.module).read_text()
    assert source.count(mutant.before) == 1
    changed = catalogue.planted(mutant, source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    file, name = mutant.test.split("[")[0].split("::")
    assert name in TESTS[file]


def test_every_bug_is_planted():
    """B1 to B50, whatever its number of forms."""
    names = [mutant.name for mutant in catalogue.MUTANTS]
    assert len(set(names)) == len(names)
    planted = {catalogue.number(mutant.bug) for mutant in catalogue.MUTANTS}
    assert planted == {"own", *(f"B{n}" for n in range(1, 51))}


def test_the_published_tables_are_the_catalogue():
    assert rows("Planted bugs") == catalogue.table()
    assert f"{len(catalogue.MUTANTS)} bugs, planted" in (ROOT / "README.md").read_text()
