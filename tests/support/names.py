"""Lists every name that the package defines once, with the files that define it.

    python tests/support/names.py

A name is a module, a class, a function, an argument, an attribute or a variable.
"""

import ast
import collections
import functools
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "tf_reinforce"


@functools.cache
def defined_names():
    """Returns a dict from each name to the sorted list of the files that define it."""
    files = collections.defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        file = str(path.relative_to(PACKAGE))
        files[path.stem].add(file)
        for node in ast.walk(ast.parse(path.read_text())):
            for name in _names_of(node):
                files[name].add(file)
    return {name: sorted(files[name]) for name in sorted(files, key=str.lower)}


def _names_of(node):
    """Yields the names that a node of the syntax tree defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    elif isinstance(node, ast.alias) and node.asname:
        yield node.asname


if __name__ == "__main__":
    for name, paths in defined_names().items():
        print(f"{name:34} {', '.join(paths)}")
