"""The law of the house: imports point down, in full, and never to the root."""

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "tf_reinforce"
FLOORS = [
    ("config", "data", "files", "functional", "optimizers", "validation", "version"),
    ("baselines", "callbacks", "envs", "heads", "policies", "serving"),
    ("algorithm", "collect", "presets"),
    ("training",),
    ("agent",),
    ("experiments", "testing"),
    ("cli",),
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))


DOCUMENT = PACKAGE.parent / "docs" / "architecture.md"


def tree():
    """Returns the files of the package by floors, each with its first line."""
    lines = []
    for floor in FLOORS:
        for name in floor:
            for path in [PACKAGE / f"{name}.py", *sorted(PACKAGE.glob(f"{name}/*.py"))]:
                if path.exists():
                    shown = path.relative_to(PACKAGE)
                    inside = len(shown.parts) > 1 and path.stem != "__init__"
                    shown = f"    {path.name}" if inside else str(shown)
                    shown = shown.replace("__init__.py", "")
                    first = ast.get_docstring(ast.parse(path.read_text())).split("\n")[0]
                    lines.append(f"{shown:28}{first}")
    return lines


def test_the_document_shows_the_files_of_the_package():
    """With the first line of each, in the order of the floors."""
    assert "\n".join(tree()) in DOCUMENT.read_text()


def room(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def arrows(path):
    """`(line, room used, is it inside a function)` for each import of our own."""
    tree = ast.parse(path.read_text())
    hidden = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.Lambda))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "tf_reinforce":
                yield node.lineno, parts[1] if len(parts) > 1 else "", node in hidden


INSIDE = [path for path in MODULES if path.stem not in ("__init__", "__main__")] + [
    PACKAGE / room / "__init__.py"
    for room in ("baselines", "callbacks", "envs", "heads", "presets")
]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.stem)
def test_every_arrow_points_down(path):
    for line, used, _ in arrows(path):
        here = room(path)
        assert used in FLOOR, f"{path.name}:{line} imports the root or a stranger"
        assert here == used or FLOOR[used] < FLOOR[here], f"{here} -> {used}, line {line}"


def file_of(dotted):
    """The file that defines an imported name: a module, or the package around a name."""
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found
    return file_of(dotted.rpartition(".")[0])


def test_no_files_import_each_other_in_a_circle():
    """Also not inside a folder. An `__init__` only collects what its folder offers."""
    graph = {}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        used = {
            file_of(f"{node.module}.{alias.name}")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            if node.module.split(".")[0] == "tf_reinforce"
            for alias in node.names
        }
        graph[path] = used
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_import_hides_in_a_function_but_for_the_command_line(path):
    if room(path) != "cli":
        assert not [line for line, _, hidden in arrows(path) if hidden]


def test_every_room_stands_on_a_floor():
    rooms = {room(path) for path in MODULES} - {"__init__", "__main__"}
    assert rooms == set(FLOOR)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_body_fits_a_screen(path):
    """The contract above the code does not count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 45, f"{path.name}: {node.name} has {lines} lines"


def test_the_library_traces_nothing_by_itself():
    """`tf.function` stands at the edges only, so that all else can be stepped."""
    edges = {
        "collect/acting_program.py",
        "collect/compiled_rollout.py",
        "envs/checks.py",
        "envs/vector.py",
        "experiments/multi_seed.py",
        "serving/policy_functions.py",
        "testing/gradients.py",  # reads weights and puts them back, and traces no update
        "training/learner.py",
    }
    for path in MODULES:
        if str(path.relative_to(PACKAGE)) not in edges:
            assert "tf.function(" not in path.read_text(), path


def test_nothing_is_pickled_or_evaluated():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names]
                assert not {"pickle", "cloudpickle", "dill"} & set(names), path


def test_a_fine_tolerance_is_one():
    """`assert_allclose` allows 1e-7 of the number beside every `atol` without `rtol`."""
    for path in pathlib.Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "assert_allclose" in ast.unparse(node.func):
                given = {one.arg: ast.unparse(one.value) for one in node.keywords}
                fine = given.get("atol", "").startswith("1e-")
                if fine and float(given["atol"]) < 1e-6:
                    assert "rtol" in given, f"{path.name}:{node.lineno}"
