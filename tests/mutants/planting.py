"""Finds functions of the package by their qualified names, and plants bugs in them."""

import ast
import difflib
import functools
import pathlib
from typing import NamedTuple

PACKAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "tf_reinforce"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class EntryError(ValueError):
    """Reports an entry of the catalogue that does not fit the package."""


class Location(NamedTuple):
    """The source of a function, as whole lines of a module."""

    module: str  # path inside the package
    start: int  # index of the first character, a decorator included
    end: int


@functools.lru_cache
def spans(source):
    """Returns `{qualified name: [(start, end)]}` of a module; the module itself is ""."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    result = {"": [(0, len(source))]}

    def add(node, prefix):
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, DEFINITIONS):
                name = (*prefix, child.name)
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                span = starts[first - 1], starts[child.end_lineno]
                result.setdefault(".".join(name), []).append(span)
            add(child, name)

    add(ast.parse(source), ())
    return result


def find_function(function, package=PACKAGE):
    """Returns the `Location` of `"folder/module.py::Class.method"`.

    If the module does not define the name, and exactly one other module does, the result
    is the function of the other module. `"folder/module.py"` is the whole module.

    Raises:
        EntryError: if no module defines the name, or if several definitions have it.
    """
    module, _, name = function.partition("::")
    path = package / module
    found = spans(path.read_text()).get(name, []) if path.is_file() else []
    modules = [module] * len(found)
    if not found and name:
        sources = {path: path.read_text() for path in sorted(package.rglob("*.py"))}
        for path, source in sources.items():
            found += spans(source).get(name, [])
            modules += [path.relative_to(package).as_posix()] * (
                len(found) - len(modules)
            )
        if not found:
            known = {name for source in sources.values() for name in spans(source)}
            similar = difflib.get_close_matches(name, known, 3, 0.7)
            advice = f" Similar names: {', '.join(similar)}." if similar else ""
            raise EntryError(f"{function}: no module of the package has {name}.{advice}")
    if len(found) != 1:
        places = (
            f"{len(found)} definitions in {', '.join(modules)}" if found else "no file"
        )
        raise EntryError(f"{function}: expected one definition, found {places}.")
    return Location(modules[0], *found[0])


def planted(mutant, package=PACKAGE):
    """Returns the module of a mutant, and the source of this module with the bug.

    Raises:
        EntryError: if the function is not found, or does not contain `before` once.
    """
    module, start, end = find_function(mutant.function, package)
    source = (package / module).read_text()
    count = source[start:end].count(mutant.before)
    if count != 1:
        raise EntryError(
            f"{mutant.function}: expected `before` of {mutant.name} once, found "
            f"{count} occurrences of {mutant.before!r}."
        )
    changed = source[start:end].replace(mutant.before, mutant.after)
    return module, source[:start] + changed + source[end:]
