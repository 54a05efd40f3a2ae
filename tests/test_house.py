"""The law of the house: imports point down, in full, and never to the root."""

import ast
import collections
import graphlib
import inspect
import pathlib

import pytest

import tf_reinforce as tfr

PACKAGE = pathlib.Path(__file__).parent.parent / "tf_reinforce"
TESTS = pathlib.Path(__file__).parent
# Beside those of the package.
OTHER_FOLDERS = {
    "benchmarks",
    "differential",
    "docs",
    "examples",
    "mutants",
    "mutation",
    "properties",
    "support",
}
FLOORS = [
    (
        "files",
        "fixed_arguments",
        "functional",
        "optimizers",
        "startup",
        "validation",
        "version",
    ),
    ("config", "data"),
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


PUBLIC = [
    "baselines", "callbacks", "collect", "eligibility", "envs", "heads", "losses",
    "normalization", "presets", "returns", "testing",
]  # fmt: skip
CONSTANTS = {"TWINS"}
TWINS = {"acrobot", "cartpole", "mountain_car", "pendulum", "toys"}


def test_the_package_offers_its_public_names_and_nothing_else():
    objects = {"Episodes", "Reinforce", "SeedResults", "load", "train_seeds"}
    assert sorted(tfr.__all__) == sorted({"__version__", *objects, *PUBLIC})
    assert dir(tfr) == sorted(tfr.__all__)
    assert all(getattr(tfr, name).__doc__ for name in objects)
    assert tfr.Reinforce.__init__.__doc__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_offers_its_public_names_and_nothing_else(name):
    """No modules that it imports, and no constants but those listed here."""
    module = getattr(tfr, name)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
        if getattr(value, "__module__", "").startswith("tf_reinforce.")
    }
    assert set(module.__all__) - CONSTANTS == own
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in own)


def methods(value):
    """A public function, or the public methods that a class of this library defines."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value):
        for name, method in vars(value).items():
            is_public = not name.startswith("_") or name == "__init__"
            if is_public and inspect.isfunction(method) and value not in RECORDS:
                yield method


RECORDS = (tfr.SeedResults, tfr.collect.EnvironmentFault)  # made by the library


@pytest.mark.parametrize("name", ["", *PUBLIC])
def test_public_functions_have_types(name):
    """For editors and type checkers; `py.typed` says that they exist."""
    module = getattr(tfr, name) if name else tfr
    for public in set(module.__all__) - {"__version__"}:
        value = getattr(module, public)
        if getattr(value, "__module__", "").split(".")[-1] in TWINS:
            continue  # the signatures of `TensorEnv`
        for function in methods(value):
            parameters = inspect.signature(function).parameters.values()
            wanted = {p.name for p in parameters} - {"self", "cls"} | {"return"}
            if "NoiseSpec" not in function.__qualname__:
                missing = wanted - set(function.__annotations__)
                assert not missing, f"{function.__qualname__}: {missing}"
    assert (PACKAGE / "py.typed").exists()


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


def test_the_folders_of_tests_are_those_of_the_package_and_a_few_more():
    folders = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("*.py")}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders - rooms == {".", *OTHER_FOLDERS}


def test_a_test_that_is_named_after_a_module_lies_in_its_folder():
    homes = {}
    for path in MODULES:
        folder = str(path.parent.relative_to(PACKAGE))
        homes.setdefault(f"test_{path.stem}", set()).add(folder)
    for path in TESTS.rglob("test_*.py"):
        folder = str(path.parent.relative_to(TESTS))
        if folder not in OTHER_FOLDERS and path.stem in homes:
            assert folder in homes[path.stem], path


def test_no_test_imports_another():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                whole = [getattr(node, "module", None) or ""]
                whole += [alias.name for alias in node.names]
                parts = [part for name in whole for part in name.split(".")]
                tests = [x for x in parts if x.startswith("test_") or x == "conftest"]
                assert tests == [], f"{path.name}:{node.lineno}"


def test_test_files_and_helpers_have_names_of_their_own():
    """Pytest imports them by their names, without their folders."""
    paths = [*TESTS.rglob("test_*.py"), *TESTS.glob("support/*.py")]
    counts = collections.Counter(path.name for path in paths)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_fine_tolerance_is_one():
    """`assert_allclose` allows 1e-7 of the number beside every `atol` without `rtol`."""
    for path in pathlib.Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "assert_allclose" in ast.unparse(node.func):
                given = {one.arg: ast.unparse(one.value) for one in node.keywords}
                fine = given.get("atol", "").startswith("1e-")
                if fine and float(given["atol"]) < 1e-6:
                    assert "rtol" in given, f"{path.name}:{node.lineno}"
