"""Configurations of agents that are broken or would do harm."""

import copy
import zipfile

CANARY = "canary"  # a file that an attack would write


def read(path):
    """Returns the files in an archive as a dict from names to bytes."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, members, compression=zipfile.ZIP_STORED):
    """Writes an archive from pairs of names and bytes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, data)


def layers(config):
    return config["config"]["policy"]["config"]["layers"]


def dense(config):
    return next(x for x in layers(config) if x["class_name"] == "Dense")


def option(name, value):
    return lambda config: config["config"].update({name: value})


def part(name, **values):
    """Returns a function that changes an entry of the agent, such as its head."""
    return lambda config: config["config"][name]["config"].update(values)


def argument(name, value):
    return lambda config: dense(config)["config"].update({name: value})


def layer(class_name, config, module="keras.layers", registered_name=None, **names):
    names |= {"module": module, "registered_name": registered_name}
    return lambda whole: dense(whole).update(
        {"class_name": class_name, "config": config, **names}
    )


def scale(**array):
    """Returns a function that makes an array the argument of a layer."""
    return layer("Rescaling", {"scale": {"class_name": "__numpy__", **array}})


def many_layers(config):
    known = layers(config)
    last = known[-1]
    for number in range(3000):
        extra = copy.deepcopy(last)
        extra["name"] = extra["config"]["name"] = f"extra_{number}"
        known.append(extra)


def many_calls(config):
    last = layers(config)[-1]
    last["inbound_nodes"] = last["inbound_nodes"] * 20_000


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


TOUCH = f"touch {CANARY}"
SPACE = {"kind": "Box", "low": -1.0, "high": 1.0, "shape": [4], "dtype": "float32"}
LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wAAAA=="}}

CONFIGS = {
    # Code and other files
    "os.system": layer("system", {"command": TOUCH}, module="os"),
    "builtins exec": layer("exec", {"object": TOUCH}, module="builtins"),
    "function of os": argument(
        "activation",
        {"class_name": "function", "config": "system", "module": "os"},
    ),
    "unknown class of this package": layer(
        "Evil", {}, module="tf_reinforce.evil", registered_name="tf_reinforce>Evil"
    ),
    "Lambda": layer("Lambda", {"function": LAMBDA}),
    "lambda as activation": argument("activation", LAMBDA),
    "TFSMLayer": layer("TFSMLayer", {"filepath": "/tmp"}),
    "TorchModuleWrapper": layer("TorchModuleWrapper", {"module": "gASVAAAA"}),
    "typespec": layer("__typespec__", ["x"], module="os", spec_name="system"),
    "unsafe deserialization": layer(
        "enable_unsafe_deserialization", {}, module="keras.config"
    ),
    "load_model": layer("load_model", {"filepath": "a.keras"}, module="keras.models"),
    "get_file": layer("get_file", {"origin": "file:///a"}, module="keras.utils"),
    "private module of Keras": layer(
        "ZipFile", {"file": CANARY, "mode": "w"}, module="keras.src.saving.saving_lib"
    ),
    "keras_hub": layer("Backbone", {}, module="keras_hub.models"),
    "vocabulary file": layer("StringLookup", {"vocabulary": "/etc/passwd"}),
    "tensorflow function": layer("write_file", {}, module="tensorflow.io"),
    "environment id in env_kwargs": option(
        "fit_defaults", {"env_kwargs": {"xml_file": "/etc/passwd"}}
    ),
    "dotted name of a layer": argument("name", "../../canary"),
    # Sizes
    "200 million units": argument("units", 200_000_000),
    "a chain of large layers": argument("units", 300),
    "units of 50 digits": argument("units", 10**50),
    "huge input": lambda config: layers(config)[0]["config"].update(
        batch_shape=[None, 10**6, 10**6]
    ),
    "RepeatVector": layer("RepeatVector", {"n": 10**12}),
    "Embedding": layer("Embedding", {"input_dim": 10**9, "output_dim": 64}),
    "unrolled layer": layer("LSTM", {"units": 4, "unroll": True}),
    "3,000 layers": many_layers,
    "20,000 calls of a layer": many_calls,
    "array without a type": scale(config=5),
    "object array": scale(config={"value": [1], "dtype": "S1000000000"}),
    "huge seed": argument(
        "kernel_initializer",
        {
            "class_name": "GlorotUniform",
            "config": {"seed": 2**63},
            "module": "keras.initializers",
            "registered_name": None,
        },
    ),
    "unknown argument of a layer": argument("evil", 1),
    "shared object id as a list": lambda config: dense(config).update(
        shared_object_id=[1]
    ),
    "policy as text": option("policy", "policy"),
    "policy is a layer": lambda config: config["config"].update(policy=dense(config)),
    "head is a layer": lambda config: config["config"].update(head=dense(config)),
    "baseline is a number": option("baseline", 3),
    "head with 10^12 actions": part("head", size=10**12),
    "head with unknown argument": part("head", evil=1),
    # Options of the agent
    "gamma is 2": option("gamma", 2),
    "unknown option": option("evil", 1),
    "60 workers": option("fit_defaults", {"workers": 60, "env_kwargs": {}}),
    "a million environments": option(
        "fit_defaults", {"num_envs": 10**6, "env_kwargs": {}}
    ),
    "learning rate without an end": option("learning_rates", [["optimizer", 0.1]]),
    "learning rate of __class__": option("learning_rates", [["__class__", 0.1, 0.01]]),
    "learning rate of a missing baseline": option(
        "learning_rates", [["baseline.optimizer", 0.1, 0.01]]
    ),
    "space with huge shape": option("observation_space", {**SPACE, "shape": [10**9]}),
    "space of objects": option("observation_space", {**SPACE, "dtype": "O"}),
    "space of arrays": option("observation_space", {**SPACE, "dtype": "(9999999,)f8"}),
    "Discrete of 10^30": option(
        "action_space", {"kind": "Discrete", "n": 10**19, "start": 0, "dtype": "int64"}
    ),
    "MultiBinary of 10^10": option("action_space", {"kind": "MultiBinary", "n": 10**10}),
    "deep space": option("action_space", {"kind": "Tuple", "parts": nested(500)}),
    "optimizer of os": lambda config: config["compile_config"].update(
        optimizer={"class_name": "system", "module": "os", "config": {"command": TOUCH}}
    ),
    "loss in compile": lambda config: config["compile_config"].update(loss="mse"),
    "build_config with huge shape": lambda config: config["build_config"].update(
        input_shape=[None, 10**12]
    ),
    "module is a list": lambda config: dense(config).update(module=["os"]),
    "agent of another class": lambda config: config.update(
        class_name="Agent", module="evil", registered_name="evil>Agent"
    ),
    "config is missing": lambda config: config.pop("config"),
}
