"""Describes an exported policy in the file `policy.json`."""

import json
import math
import os

import keras

from tf_reinforce.data import spaces
from tf_reinforce.export import policy_functions
from tf_reinforce.export import runtimes
from tf_reinforce.support import version


def write(folder, name, functions, policy, observation_space):
    """Writes the file `policy.json` to the folder of an export.

    Args:
        folder: Path of the folder of the export.
        name: String, the format.
        functions: Dict of the exported functions.
        policy: `live_policy.LivePolicy`, the policy.
        observation_space: The observation space, or `None` if it is unknown.
    """
    actor = policy.actor
    metadata = {
        "format": name,
        "tf_reinforce": version.VERSION,
        "head": repr(actor.head),
        "functions": {
            name: {"inputs": _inputs(function, actor), "results": _results(function)}
            for name, function in functions.items()
        },
        "initial_state": {
            name: array.numpy()[0].tolist()
            for name, array in policy_functions.state_dict(actor.initial_state(1)).items()
        },
        "observation_space": spaces.to_config(observation_space),
        "action_space": spaces.to_config(policy.action_space),
    }
    # JavaScript reads no infinite numbers.
    text = json.dumps(_without_infinity(metadata), indent=2, allow_nan=False)
    with open(os.path.join(folder, runtimes.FILE_NAME), "w") as file:
        file.write(text + "\n")


def _inputs(function, actor):
    """Returns a list with a description of each argument of an exported function."""
    kinds = [part.kind for part in actor.noise_specs]
    inputs = []
    for position, argument in enumerate(function.input_signature):
        for spec in keras.tree.flatten(argument):
            is_observation = position == 0 and spec.shape.rank > 0
            role = "observation" if is_observation else _role(spec.name)
            inputs.append({**_array(spec.name, spec), "role": role})
            if role == "noise":
                inputs[-1]["distribution"] = kinds.pop(0)
    return inputs


def _role(name):
    """Returns the role of an argument that is no observation.

    Example:

    >>> _role("noise_arm"), _role("state_0"), _role("seed")
    ('noise', 'state', 'seed')
    """
    roles = "action_mask", "raw_action", "noise", "state", "seed", "count"
    return next(role for role in roles if name.startswith(role))


def _results(function):
    results = function.get_concrete_function().structured_outputs
    return [_array(name, tensor) for name, tensor in results.items()]


def _array(name, tensor):
    shape = tensor.shape.as_list()
    return {"name": name, "shape": shape, "dtype": tensor.dtype.name}


def _without_infinity(value):
    """Returns nested dicts and lists with `None` in place of infinite numbers."""
    if isinstance(value, dict):
        return {key: _without_infinity(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_infinity(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value
