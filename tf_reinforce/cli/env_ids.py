"""Finds the environment of an id, and imports the module that an id names."""

import contextlib
import importlib
import importlib.util
import os
import sys


def find_env(env):
    """Imports the module of an environment id, and returns the id with a version.

    If the id has the form `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If the module does not exist, or an Atari environment is used without
            the package ale-py.
        gymnasium.error.Error: If no environment with this id is registered.
    """
    module, colon, name = env.rpartition(":")
    if module:
        _import_module(module)
    import gymnasium
    from gymnasium.envs import registration

    if name.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers the environments
    namespace, base, number = registration.parse_env_id(name)
    if name not in gymnasium.registry and number is None:
        number = registration.find_highest_version(namespace, base)
        if number is not None:
            latest = registration.get_env_id(namespace, base, number)
            # Gymnasium would warn once for each environment that is made.
            print(
                f"tf-reinforce: {name} means {latest}, its latest version",
                file=sys.stderr,
            )
            name = latest
    try:
        return module + colon + gymnasium.spec(name).id
    except gymnasium.error.NameNotFound as error:
        if module:
            raise gymnasium.error.NameNotFound(
                f"The module {module} registers no environment {name}. Expected in the "
                f'module: gymnasium.register("{name}", entry_point=…). Received: '
                f"{module}:{name}"
            ) from error
        raise gymnasium.error.NameNotFound(
            f"{error} If a module registers the environment, name the module: "
            f"MODULE:{name}"
        ) from error
    except gymnasium.error.NamespaceNotFound as error:
        if namespace != "ALE":
            raise
        raise ValueError(
            f"{error} Atari environments require ale-py: "
            'pip install "tf-reinforce[atari]".'
        ) from error


def resolve_env(env):
    """Returns an environment id with a version, without importing a module.

    The module of an id `module:Id` is not imported, because the module may import
    TensorFlow. The function returns such an id unchanged if the module exists.
    """
    module = env.rpartition(":")[0]
    if not module:
        return find_env(env)
    _add_current_folder()
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
        raise _missing_module(package, module)
    return env


def _import_module(module):
    _add_current_folder()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports a missing module
        raise _missing_module(error.name, module) from error


def _add_current_folder():
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # a console script, unlike `python -m`, omits the folder


def _missing_module(name, module):
    return ValueError(
        f"There is no module {name!r}. Expected: {name}.py in the current folder, "
        f"{os.getcwd()}, or an installed package. Received: {module}"
    )
