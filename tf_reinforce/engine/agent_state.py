"""All variables of an agent, and the properties that equal agents share."""

import keras

from tf_reinforce.policies import actor
from tf_reinforce.settings import config


def variables(agent):
    """Returns every Keras variable of an agent that an update reads or changes."""
    found = [*agent.variables]
    for optimizer in optimizers(agent):
        found += optimizer.variables
    return list({id(variable): variable for variable in found}.values())


def optimizers(agent):
    """Returns a model's optimizer, and that of its baseline if it has one."""
    baseline = getattr(agent, "baseline", None)
    both = agent.optimizer, getattr(baseline, "optimizer", None)
    return [optimizer for optimizer in both if optimizer is not None]


def signature(agent):
    """Returns the properties of an agent that do not change in training, as a dict.

    If two agents have equal signatures, they differ at most in the values of their
    variables, in names, and in the seeds and initializers of layers.
    """
    parts = {"policy": agent.policy, "head": agent.head, "baseline": agent.baseline}
    settings = {name: getattr(agent, name) for name in config.AGENT_OPTIONS}
    settings["entropy_coef"] = keras.saving.serialize_keras_object(agent.entropy_coef)
    settings["steps_per_execution"] = agent.steps_per_execution
    if agent.jit_compile != "auto":  # the checkpoints of earlier versions have no entry
        settings["jit_compile"] = agent.jit_compile
    adapted = actor.adapted_layers(*agent._models)
    settings["statistics of `adapt`"] = [(name, x.tolist()) for name, x in adapted]
    settings["weights"] = [(tuple(v.shape), v.dtype) for v in variables(agent)]
    return {**settings, **configs(agent, parts)}


def configs(model, parts):
    """Returns the configs of a model's layers, part by part, and of its optimizers.

    Args:
        model: Compiled Keras model.
        parts: Dict of Keras layers and models.
    """
    named = {
        f"{name}, layer {number}": layer
        for name, part in parts.items()
        for number, layer in enumerate(part._flatten_layers())
        if not isinstance(layer, keras.Model)
    }
    named |= {f"optimizer {n}": x for n, x in enumerate(optimizers(model))}
    return {
        name: (type(x).__name__, _comparable(x.get_config())) for name, x in named.items()
    }


def _comparable(layer_config):
    """Drops the entries of a Keras config in which equal agents may differ."""
    if isinstance(layer_config, dict):
        if layer_config.get("class_name") == "__lambda__":
            return "__lambda__"  # the code contains the path of its file
        return {
            key: _comparable(value)
            for key, value in layer_config.items()
            if key not in ("name", "seed", "model", "layer", "layers")
            and not key.endswith("initializer")
            and not (key == "learning_rate" and isinstance(value, float))
        }
    if isinstance(layer_config, (list, tuple)):
        return [_comparable(value) for value in layer_config]
    return layer_config
