"""Checks the classes and sizes in the configuration of an agent, before it is built."""

import inspect
import math
import sys
from typing import Any, NamedTuple

import keras

from tf_reinforce import agent as agents
from tf_reinforce import config as options
from tf_reinforce import version
from tf_reinforce.loading import archive

MAX_SIZE = 10**7  # the largest number of elements on an axis or in a shape
_MAX_SEED = 2**63 - 1

# Keras serializes its parts by the names of these modules.
_PARTS_WITHOUT_SIZES = (
    "keras.activations",
    "keras.constraints",
    "keras.dtype_policies",
    "keras.initializers",
    "keras.losses",
    "keras.metrics",
    "keras.optimizers",
    "keras.optimizers.schedules",
    "keras.quantizers",
    "keras.random",
    "keras.regularizers",
)
_PUBLIC_MODULES = ("keras", "keras.layers", "keras.models", *_PARTS_WITHOUT_SIZES)
# The operations of functional models are classes of Keras without a public name.
_PRIVATE_MODULES = ("keras.src.layers.", "keras.src.models.", "keras.src.ops.")
_FUNCTION_MODULES = ("builtins", "keras.activations", "keras.losses", "keras.metrics")
_PYTHON_CODE = ("Lambda", "__lambda__", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")
_VALUES = (  # serialized values that are neither classes nor functions
    "__keras_tensor__",
    "__numpy__",
    "__tensor__",
    "__bytes__",
    "__ellipsis__",
    "__slice__",
)
_NUMBER_TYPES = ("bool", "float16", "bfloat16", "float32", "float64") + tuple(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
)

# Keras takes about as long to build one of these layers as 16 dense layers.
_SLOW_LAYERS = (
    keras.layers.RNN,
    keras.layers.Bidirectional,
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
)
_SLOW_LAYER_COUNT = 16

# Each unit has at least one weight.
_UNITS = ("units", "filters", "output_dim", "key_dim", "value_dim")
_SHAPES = ("shape", "batch_shape", "input_shape", "target_shape")
# Keys below which integers are not sizes.
_NOT_SIZES = (
    "shared_object_id",
    "seed",
    "low",
    "high",
    "start",
    "learning_rates",
    "fit_defaults",
    "minibatch_size",
    "passes",
    "steps_per_execution",
    "bin_boundaries",
    "mask_value",
    "salt",
    "vocabulary",
)
# The parts of an agent, and the options, which have defaults.
_AGENT_PARTS = {"policy", "head", "baseline", "observation_space", "action_space"}
_AGENT_KEYS = {
    "name",
    "trainable",
    "dtype",
    *_AGENT_PARTS,
    *options.AGENT_OPTIONS,
    "learning_rates",
    "fit_defaults",
    version.CONFIG_KEY,
}


class _Checker(NamedTuple):
    """Checks the entries of a configuration.

    Attributes:
        custom_objects: Dict from names to classes of the caller.
        stored_bytes: Number of bytes of all arrays in the file of the weights.
    """

    custom_objects: dict
    stored_bytes: int

    def expect_agent(self, config):
        """Raises `ValueError` unless an object is an agent with valid options."""
        _check_names(config, "agent")
        kind = self.registered(config)
        if not (inspect.isclass(kind) and issubclass(kind, agents.Reinforce)):
            if kind is None and not str(config.get("module")).startswith("keras"):
                _refuse_class(config, "agent")
            raise ValueError(
                f"The file contains a {config['class_name']}, not an agent. Load another "
                "Keras model with keras.saving.load_model. If it is a policy, make an "
                "agent: tfr.Reinforce(policy)."
            )
        if kind is agents.Reinforce:
            _check_agent_keys(config["config"])

    def registered(self, part):
        """Returns the class that the caller has registered or passed, or `None`."""
        name = part.get("registered_name", part["class_name"])
        if part["class_name"] == "function":
            name = part["config"]
        return name and keras.saving.get_registered_object(name, self.custom_objects)

    def check_object(self, part, path):
        """Returns a pair of properties of an object.

        Returns:
            Bool, whether integers in the config of the object are array sizes, which are
            limited; and the number of layers that the object counts as.

        Raises:
            ValueError: If the class or the function of the object is not allowed.
        """
        _check_names(part, path)
        name, module = part["class_name"], part.get("module") or ""
        if name in _PYTHON_CODE:
            raise ValueError(
                f"The object {path} ({name}) contains Python code, and `tfr.load` runs "
                "no code from a file. Replace the object by a layer of Keras or by a "
                "class of your own, and save the agent again."
            )
        if name == "TFSMLayer":
            raise ValueError(
                f"The layer {path} ({name}) would read a SavedModel, and `tfr.load` "
                "reads no other file. Save an agent whose layers contain their weights."
            )
        if name in _VALUES:
            _check_value(part, path)
            return name == "__keras_tensor__", 0
        kind = self.registered(part)
        if kind is not None:
            return kind.__module__.startswith("tf_reinforce."), _layer_count(kind)
        if name == "function" and module in _FUNCTION_MODULES:
            return False, 0
        if module in _PUBLIC_MODULES:
            kind = getattr(sys.modules.get(module), name, None)
        elif module.startswith(_PRIVATE_MODULES):
            kind = vars(sys.modules.get(module, keras)).get(name)
            kind = kind if _is_operation(kind) else None
        else:
            _refuse_class(part, path)
        if not inspect.isclass(kind):
            raise ValueError(
                f"The object {path} names {_shorten(f'{module}.{name}')}, which is not "
                "a class of Keras for models. Expected: a class of the installed version "
                f"of Keras, {keras.__version__}."
            )
        return module not in _PARTS_WITHOUT_SIZES, _layer_count(kind)

    def check_entry(self, key, value, path):
        """Raises `ValueError` if an argument would read a file, or is too large."""
        path = f"{path}.{key}"
        is_int = isinstance(value, int) and not isinstance(value, bool)
        if key == "seed" and is_int and not 0 <= value <= _MAX_SEED:
            raise ValueError(
                f"The seed {path} must lie in [0, 2**63). Received: {_shorten(value)}"
            )
        if key == "vocabulary" and isinstance(value, str):
            raise ValueError(
                f"The argument {path} names the file {_shorten(value)}, and `tfr.load` "
                "reads no other file. Expected: a list of the vocabulary."
            )
        if key == "unroll" and value:
            raise ValueError(
                f"The argument {path} of a recurrent layer is true. The length of an "
                "episode varies, so that an agent has no unrolled layer. Expected: "
                "unroll=False."
            )
        if key in _UNITS and is_int and value > self.stored_bytes:
            raise ValueError(
                f"The layer argument {path} is {_shorten(value)}, and the file contains "
                f"only {self.stored_bytes:,} bytes of weights. Expected: a layer whose "
                "weights are in the file."
            )
        if key in _SHAPES and isinstance(value, list):
            sizes = [size for size in value if isinstance(size, int)]
            if math.prod(sizes) > MAX_SIZE:
                raise ValueError(
                    f"The shape {path} has more than {MAX_SIZE:,} elements. Received: "
                    f"{_shorten(value)}"
                )


def check(
    config: Any, custom_objects: Any, stored_bytes: int, limits: archive.LoadLimits
) -> None:
    """Raises an error unless a configuration describes an agent of allowed parts.

    A class is allowed if it is an agent, a part of an agent, a layer or another part of a
    model of Keras, or a class that the caller has registered or passed. The function
    imports no module that the configuration names.

    Args:
        config: Content of the file `config.json`.
        custom_objects: Dict from names to classes of the caller, or `None`.
        stored_bytes: Number of bytes of all arrays in the file of the weights.
        limits: `LoadLimits`.

    Raises:
        ValueError: If the configuration contains a class that is not allowed, a number
            that is too large, or invalid options of the agent.
    """
    if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
        raise ValueError(
            f"{archive.CONFIG} does not contain the configuration of an agent. Expected: "
            'an object with "class_name" and "config". Received: '
            f"{_shorten(config)}"
        )
    checker = _Checker(dict(custom_objects or {}), stored_bytes)
    checker.expect_agent(config)
    calls, parts = 0, [(config, "agent", False)]
    while parts:
        part, path, has_sizes = parts.pop()
        if isinstance(part, list):
            parts += [(x, f"{path}[{i}]", has_sizes) for i, x in enumerate(part)]
        elif isinstance(part, dict):
            if "class_name" in part:
                has_sizes, count = checker.check_object(part, path)
                calls += count * max(1, _length(part, "inbound_nodes"))
                if part["class_name"] == "Sequential":
                    # Keras builds a sequential model anew for each layer.
                    calls += _length(part.get("config"), "layers") ** 2 // 16
            for key, value in part.items():
                checker.check_entry(key, value, path)
                inner = path if key == "config" else f"{path}.{key}"
                parts.append((value, inner, has_sizes and key not in _NOT_SIZES))
        elif has_sizes and isinstance(part, int) and abs(part) > MAX_SIZE:
            raise ValueError(
                f"The argument {path} is {_shorten(part)}. Expected: at most "
                f"{MAX_SIZE:,}, because a larger layer would fill the memory."
            )
        if calls > limits.max_layers:
            raise ValueError(
                "The models of the agent have more layers and calls of layers than the "
                f"limit of {limits.max_layers}. To load an agent of more layers, raise "
                "the limit: tfr.load(path, limits=tfr.LoadLimits(max_layers=…)), or "
                "`--max-layers N` on the command line."
            )


def _check_agent_keys(arguments):
    """Raises `ValueError` if a part is missing, or an option is unknown or invalid.

    A missing option takes its default, because an earlier version may not have had it.
    """
    version.expect_not_newer("The agent", arguments.get(version.CONFIG_KEY))
    missing = sorted(_AGENT_PARTS - arguments.keys())
    if missing:
        raise ValueError(
            f"The configuration of the agent lacks {', '.join(missing[:3])}. Expected: "
            "all parts, as `agent.save` writes them."
        )
    unknown = sorted(arguments.keys() - _AGENT_KEYS)
    if unknown:
        raise ValueError(
            f"The configuration of the agent has the unknown key {_shorten(unknown[0])}. "
            f"Expected: the options of the installed tf_reinforce {version.VERSION}. A "
            "newer version may have written the file."
        )
    for name in ("policy", "head", "baseline"):
        part = arguments[name]
        if not isinstance(part, dict) or "class_name" not in part:
            raise ValueError(
                f"The {name} of the agent must be an object with a class name. Received: "
                f"{_shorten(part)}"
            )
    values = {x: arguments[x] for x in options.AGENT_OPTIONS if x in arguments}
    if isinstance(values.get("entropy_coef"), dict):  # a schedule of Keras
        values["entropy_coef"] = 0.0
    options.AgentOptions(**values)


def _check_names(part, path):
    """Raises `ValueError` unless the names of class and module of an object are text."""
    names = [part.get("class_name"), part.get("module"), part.get("registered_name")]
    is_text = [isinstance(name, str) for name in names]
    if not is_text[0] or not all(
        text or name is None for text, name in zip(is_text, names, strict=True)
    ):
        raise ValueError(
            f"The names of class and module of the object {path} must be text. Received: "
            f"{_shorten(names)}"
        )
    if names[0] == "function" and not isinstance(part.get("config"), str):
        raise ValueError(
            f"The function {path} has no name. Expected: the name of a function of Keras "
            f"as text. Received: {_shorten(part.get('config'))}"
        )


def _check_value(part, path):
    config = part.get("config")
    dtype = config.get("dtype", "bool") if isinstance(config, dict) else "bool"
    if dtype not in _NUMBER_TYPES:
        raise ValueError(
            f"The value {path} has the type {_shorten(dtype)}. Expected: a number type, "
            "for example float32."
        )


def _length(part, key):
    """Returns the length of a list in an object; zero if there is no list."""
    value = part.get(key) if isinstance(part, dict) else None
    return len(value) if isinstance(value, list) else 0


def _layer_count(kind):
    """Returns the number of layers as which a class counts in `LoadLimits.max_layers`."""
    if not _is_operation(kind):
        return 0
    return _SLOW_LAYER_COUNT if issubclass(kind, _SLOW_LAYERS) else 1


def _is_operation(kind):
    return inspect.isclass(kind) and issubclass(kind, keras.Operation)


def _refuse_class(part, path):
    """Raises `ValueError` for a class that neither Keras nor the caller defines."""
    name, module = part["class_name"], part.get("module") or ""
    shown = _shorten(f"{module}.{name}" if module else name)
    registered_name = part.get("registered_name")
    if str(registered_name).startswith("tf_reinforce>"):
        raise ValueError(
            f"The object {path} needs the class {shown}, which the installed version of "
            "tf_reinforce does not have. Install the version that saved the agent."
        )
    package = module.split(".")[0]
    is_foreign = package in sys.stdlib_module_names or package in _OTHER_PACKAGES
    # Keras stores no module of a class that the main program defines.
    is_named = ">" in str(registered_name) if not module else registered_name
    if name == "function" or name.startswith("__") or is_foreign or not is_named:
        raise ValueError(
            f"The object {path} names {shown}, which is not a part of a Keras model. "
            "Expected: classes of Keras and of tf_reinforce. Nothing that the file names "
            f"was imported or called.{_own_class_hint(name, module)}"
        )
    raise ValueError(
        f"The object {path} needs the custom class {shown}, which is neither a class of "
        "Keras nor of tf_reinforce. Commands load no classes of your own. In Python, "
        f"pass the class: tfr.load(path, custom_objects={{{_shorten(registered_name)}: "
        "…}), or decorate it with keras.saving.register_keras_serializable before "
        "saving, and import its module before loading."
    )


def _own_class_hint(name, module):
    """Returns how to load a class that a main program has defined, as text."""
    if module or not name.isidentifier() or name == "function" or name.startswith("__"):
        return ""
    return (
        " If it is a class of your own, load the agent in Python, because commands load "
        f"no such classes: tfr.load(path, custom_objects={{{_shorten(name)}: …}})."
    )


_OTHER_PACKAGES = ("keras", "tf_reinforce", "tensorflow", "numpy", "gymnasium")


def _shorten(value):
    """Returns the representation of a value of a file, with at most 100 characters."""
    if isinstance(value, int) and abs(value) > 10**100:
        return "an integer of more than 100 digits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
