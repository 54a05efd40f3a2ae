"""Tests the layout rules of the package: imports, public names, sizes and folders."""

import ast
import graphlib
import inspect
import pathlib

import pytest
from mutants import run as mutants

import tf_reinforce as tfr

PACKAGE = pathlib.Path(__file__).parent.parent / "tf_reinforce"
TESTS = pathlib.Path(__file__).parent
FLOORS = [
    ("support", "functional", "atari"),
    ("data", "settings"),
    ("heads", "baselines", "policies", "envs", "callbacks", "export"),
    ("engine",),
    ("cluster",),
    ("agent",),
    ("saving", "sampling"),
    ("sequences", "experiments"),
    ("testing",),
    ("cli",),
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(PACKAGE.rglob("*.py"))


DOCUMENT = PACKAGE.parent / "docs" / "architecture.md"


def tree():
    """Returns a line for each room of the package, with its first docstring line."""
    lines = []
    for name in [room for floor in FLOORS for room in floor]:
        folders = sorted(PACKAGE.glob(f"{name}/**/__init__.py"))
        for path in folders or [PACKAGE / f"{name}.py"]:
            shown = path.relative_to(PACKAGE).as_posix().replace("__init__.py", "")
            first = ast.get_docstring(ast.parse(path.read_text())).split("\n")[0]
            lines.append(f"{shown:20}{first}")
    return lines


def test_architecture_document_shows_the_rooms_of_the_package():
    """The rooms are in the order of the floors."""
    assert "\n".join(tree()) in DOCUMENT.read_text()


def room(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def arrows(path):
    """Yields `(line, folder, whether inside a function)` for imports of the package."""
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
    for room in ("baselines", "callbacks", "cli", "envs", "heads", "settings/presets")
]


@pytest.mark.parametrize("path", INSIDE, ids=lambda path: path.stem)
def test_imports_point_to_lower_floors(path):
    for line, used, _ in arrows(path):
        here = room(path)
        assert used in FLOOR, f"{path.name}:{line} imports the root or a stranger"
        assert here == used or FLOOR[used] < FLOOR[here], f"{here} -> {used}, line {line}"


def file_of(dotted):
    """Returns the file of an imported name: a module, or the package that contains it."""
    path = PACKAGE.parent.joinpath(*dotted.split("."))
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found
    return file_of(dotted.rpartition(".")[0])


def test_imports_have_no_cycles():
    """The test includes files of one folder, and excludes `__init__` files as sources."""
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


# These modules import inside functions, so that `--help` does not import TensorFlow.
DEFERRED_IMPORTS = {
    "cli/commands.py",
    "cli/plans.py",
    "cli/train.py",
    "cli/tune.py",
    "saving.py",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_inside_functions_are_in_the_listed_modules_only(path):
    lines = [line for line, _, hidden in arrows(path) if hidden]
    is_listed = path.relative_to(PACKAGE).as_posix() in DEFERRED_IMPORTS
    assert bool(lines) == is_listed, f"{path.name}: imports in lines {lines}"


def test_every_folder_has_a_floor():
    rooms = {room(path) for path in MODULES} - {"__init__", "__main__"}
    assert rooms == set(FLOOR)


PUBLIC = [
    "baselines", "callbacks", "collect", "eligibility", "envs", "estimators", "heads",
    "layers", "losses", "normalization", "presets", "returns", "sequences", "testing",
]  # fmt: skip
CONSTANTS = {"TWINS"}
TWINS = {"blackjack", "classic_control", "tabular", "toys"}


def test_package_exports_exactly_its_public_names():
    objects = {
        "Checkpoints",
        "Episodes",
        "Reinforce",
        "ScoreFunction",
        "SeedResults",
        "check_env",
        "learner_strategy",
        "load",
        "train_seeds",
    }
    assert sorted(tfr.__all__) == sorted({"__version__", *objects, *PUBLIC})
    assert dir(tfr) == sorted(tfr.__all__)
    assert all(getattr(tfr, name).__doc__ for name in objects)
    assert tfr.Reinforce.__init__.__doc__


@pytest.mark.parametrize("name", PUBLIC)
def test_public_module_exports_exactly_its_public_names(name):
    """A module exports no imported modules, and only the constants in `CONSTANTS`."""
    module = getattr(tfr, name)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
        if getattr(value, "__module__", "").startswith("tf_reinforce.")
    }
    own |= vars(module).get("_OBJECTS", {}).keys()  # imported on first use
    assert set(module.__all__) - CONSTANTS == own
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name).__doc__ for name in own)


def methods(value):
    """Yields a public function, or the public methods that a class defines."""
    if inspect.isfunction(value):
        yield value
    elif inspect.isclass(value):
        for name, method in vars(value).items():
            is_public = not name.startswith("_") or name == "__init__"
            if getattr(method, "__module__", "").startswith("keras."):
                continue  # a method of Keras, decorated
            if is_public and inspect.isfunction(method) and value not in RECORDS:
                yield method


RECORDS = (tfr.SeedResults, tfr.collect.EnvironmentFault)  # users do not construct them


@pytest.mark.parametrize("name", ["", *PUBLIC])
def test_public_functions_have_annotations(name):
    """Editors and type checkers use the annotations because `py.typed` exists."""
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
def test_function_bodies_have_at_most_45_lines(path):
    """The docstring does not count."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 45, f"{path.name}: {node.name} has {lines} lines"


def test_package_uses_no_pickle_eval_or_exec():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names}
                if path.stem in ("worker", "local_worker", "worker_pool"):  # of one pool
                    names -= {"pickle", "cloudpickle"}
                assert not {"pickle", "cloudpickle", "dill"} & names, path


def test_one_module_draws_the_random_numbers_of_tensorflow():
    users = [path for path in MODULES if "tf.random." in path.read_text()]
    assert users == [PACKAGE / "data" / "tensor_noise.py"]


def test_no_test_imports_another():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                whole = [getattr(node, "module", None) or ""]
                whole += [alias.name for alias in node.names]
                parts = [part for name in whole for part in name.split(".")]
                tests = [x for x in parts if x.startswith("test_") or x == "conftest"]
                assert tests == [], f"{path.name}:{node.lineno}"


def test_planted_bugs_fit_the_package_and_their_tests_exist():
    """`make mutants` plants them, and sees that each test fails."""
    for bug in mutants.BUGS:
        ast.parse(mutants.planted(bug)[1])
        file, _, name = mutants.node(bug).partition("::")
        if not file.startswith("tf_reinforce"):
            text = (PACKAGE.parent / file).read_text()
            assert f"def {name.partition('[')[0]}(" in text, bug["name"]
