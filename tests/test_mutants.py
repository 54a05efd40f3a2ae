"""Checks the catalogue of planted bugs; `make mutants` plants the bugs."""

import ast
import builtins
import pathlib
import symtable

import pytest
from mutants import catalogue
from mutants import killers
from mutants import planting

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "correctness.md").read_text()
TOY = '''"""Has γ in a line above."""

LIMIT = 1


def outer(x):
    def inner(y):
        return y + 1

    return inner(x) + 1


class Part:
    @property
    def size(self):
        return 1

    @size.setter
    def size(self, value):
        self.value = value

    @staticmethod
    def half(x):
        return x / 2
'''


def rows(title):
    """Returns the lines of the table below a heading of the document."""
    section = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")]


@pytest.fixture
def package(tmp_path):
    """Makes a package with the modules `a/toy.py` and `b/empty.py`."""
    for name, source in (("a/toy.py", TOY), ("b/empty.py", "X = 1\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(source)
    return tmp_path


@pytest.mark.parametrize("mutant", catalogue.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_fits_its_function(mutant):
    module, changed = planting.planted(mutant)
    source = (planting.PACKAGE / module).read_text()
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    assert undefined_names(changed) == set()


def undefined_names(source):
    """Returns the names that a module reads and never defines.

    Every test fails for a bug that raises a `NameError`, so that such a bug proves
    nothing.
    """
    module = symtable.symtable(source, "module", "exec")
    tables, referenced = [module], set()
    defined = {s.get_name() for s in module.get_symbols() if not s.is_referenced()}
    defined |= {s.get_name() for s in module.get_symbols() if s.is_local()}
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = table.get_symbols()
        referenced |= {s.get_name() for s in symbols if s.is_global()}
    return referenced - defined - {"__file__", *dir(builtins)}


def test_a_bug_with_an_undefined_name_is_found():
    assert undefined_names("import a\n\ndef f(x):\n    return a.b(x, len(y))\n") == {"y"}


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("outer", "def outer(x):", "    return inner(x) + 1\n"),
        ("outer.inner", "    def inner(y):", "        return y + 1\n"),
        ("Part.half", "    @staticmethod", "        return x / 2\n"),
        ("Part", "class Part:", "        return x / 2\n"),
    ],
)
def test_find_function_returns_the_lines_of_a_qualified_name(package, name, first, last):
    module, start, end = planting.find_function(f"a/toy.py::{name}", package)
    assert module == "a/toy.py"
    assert TOY[start:end].startswith(first) and TOY[start:end].endswith(last)


def test_find_function_without_a_name_returns_the_module(package):
    assert planting.find_function("a/toy.py", package) == ("a/toy.py", 0, len(TOY))


@pytest.mark.parametrize("module", ["b/empty.py", "b/removed.py"])
def test_find_function_returns_a_function_that_moved_to_another_module(package, module):
    here = planting.find_function("a/toy.py::Part.half", package)
    assert planting.find_function(f"{module}::Part.half", package) == here


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("a/toy.py::Part.halve", r"no module of the package has Part.halve.*Part.half"),
        ("a/toy.py::Part.size", "found 2 definitions in a/toy.py, a/toy.py"),
        ("b/empty.py::outer", "found 2 definitions in a/toy.py, c.py"),
        ("b/removed.py", "found no file"),
    ],
)
def test_find_function_raises_if_the_definition_is_not_unique(package, function, message):
    (package / "c.py").write_text("def outer():\n    pass\n")
    with pytest.raises(planting.EntryError, match=message):
        planting.find_function(function, package)


def test_a_bug_changes_its_function_and_no_other_text(package):
    mutant = catalogue.Mutant("toy", "own: …", "a/toy.py::outer.inner", "+ 1", "- 1")
    changed = TOY.replace("y + 1", "y - 1")
    assert planting.planted(mutant, package) == ("a/toy.py", changed)
    with pytest.raises(planting.EntryError, match="toy once, found 2 occurrences"):
        planting.planted(mutant._replace(function="a/toy.py::outer"), package)


class CollectedNodes:
    """A pytest plugin that stores the collected nodes, with and without parameters."""

    def pytest_collection_finish(self, session):
        nodes = {item.nodeid.removeprefix("tests/") for item in session.items}
        self.nodes = nodes | {node.split("[")[0] for node in nodes}


def test_killers_name_each_bug_once_and_only_tests_that_exist():
    names, tests = zip(*killers.read(), strict=True)
    assert list(names) == [mutant.name for mutant in catalogue.MUTANTS]
    doctests = [test for test in tests if test.startswith("tf_reinforce/")]
    files = {str(ROOT / test.split("::")[0]) for test in doctests}
    others = set(tests) - set(doctests)
    files |= {str(ROOT / "tests" / test.split("::")[0]) for test in others}
    collected = CollectedNodes()
    quiet = ["-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-qq"]
    quiet += ["--doctest-modules"] if doctests else []
    options = [f"--rootdir={ROOT}", *quiet]
    assert pytest.main([*options, *sorted(files)], [collected]) == 0
    assert sorted(set(tests) - collected.nodes) == []


def test_catalogue_contains_all_numbers_and_no_name_twice():
    names = [mutant.name for mutant in catalogue.MUTANTS]
    assert len(set(names)) == len(names)
    numbers = {mutant.number for mutant in catalogue.MUTANTS}
    assert numbers == {"own", *(f"B{n}" for n in range(1, 51))}


def test_each_bug_is_described_by_one_short_sentence():
    for mutant in catalogue.MUTANTS:
        assert mutant.sentence.endswith(".") and ". " not in mutant.sentence, mutant
        assert len(mutant.sentence.split()) <= 25, mutant


def test_published_bugs_are_those_of_the_catalogue():
    assert len(catalogue.TELLING) == 10
    assert rows("Planted bugs") == killers.example_table()
    assert f"plants {len(catalogue.MUTANTS)} bugs" in " ".join(DOCUMENT.split())
    readme = (ROOT / "README.md").read_text()
    assert f"all {len(catalogue.MUTANTS)} planted bugs" in readme
