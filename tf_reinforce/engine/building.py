"""Makes an agent's parts: from settings, and for the shapes of its observations."""

import math

import gymnasium as gym
import keras

from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import trainer
from tf_reinforce.heads import autoregressive
from tf_reinforce.policies import actor
from tf_reinforce.policies import default_policy
from tf_reinforce.policies import memory
from tf_reinforce.policies import models
from tf_reinforce.policies import recurrent
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import schema
from tf_reinforce.support import validation

_MAX_WINDOW = 256  # steps that the attention of a default policy reaches back

UNKNOWN_HEAD = (
    "Its head depends on the action space, which is not known yet. Pass a head "
    "(`Reinforce(policy, head=tfr.heads.Categorical(2))`), call `agent.fit(env, …)`, or "
    "make the agent with `Reinforce.for_env(env)`."
)


def parts_of_settings(settings, observation_space, action_space, seed, limit):
    """Makes the head, the baseline and the learning rates that settings describe.

    Args:
        settings: Dict of arguments of `Reinforce.for_env`. The values of `head`,
            `baseline` and `learning_rate` may be written as in a preset file.
        observation_space, action_space: `gymnasium.Space`.
        seed: Int, which determines the initial weights of a value network.
        limit: Int, the time limit of the environment, or `None`.

    Returns:
        A dict of the settings, in which `head`, `baseline` and `learning_rate` are values
        that the constructors of `Reinforce` and `Adam` accept; and a list with the tuple
        `(optimizer, first, last)` for each linear learning rate.

    Raises:
        ValueError, TypeError: If a setting is invalid.
    """
    settings = dict(settings)
    first = last = settings["learning_rate"]
    if not isinstance(first, keras.optimizers.schedules.LearningRateSchedule):
        config.check_option("agent", "learning_rate", first)
        first, last = map(float, config.learning_rates(first))
    settings["learning_rate"] = first
    schedules = [("optimizer", first, last)]
    options = default_settings.value_network(settings["baseline"])
    if options is not None:
        first, last = map(float, config.learning_rates(options["learning_rate"]))
        schedules.append(("baseline.optimizer", first, last))
        # The same architecture as the policy, with other initial weights.
        value_seed = int(seeding.generator(seed, "weights", 1).integers(2**31))
        network = {"name": "value_network", **network_options(settings, limit)}
        parts = observation_space, options["hidden"], 1, value_seed
        model = default_policy.default_policy(*parts, **network)
        names = options.keys() & {"passes", "minibatch_size", "scale"}
        optimizer, more = keras.optimizers.Adam(first), {x: options[x] for x in names}
        settings["baseline"] = baselines.Value(model, optimizer, **more)
    elif settings["baseline"] == "none":
        settings["baseline"] = None
    settings["head"] = _head(settings.get("head"), action_space)
    return settings, [schedule for schedule in schedules if schedule[1] != schedule[2]]


def network_options(settings, limit):
    """Returns arguments of `default_policy`, for an agent's memory and normalization.

    Args:
        settings: Dict of arguments of `Reinforce.for_env`.
        limit: Int, the time limit of the environment, or `None`.
    """
    for name in ("memory", "context"):
        config.check_option("agent", name, settings.get(name))
    choices = {settings[x] for x in ("memory", "context") if settings.get(x) is not None}
    if len(choices) > 1 or len(settings.get("context_inputs", "1")) > 1:
        raise ValueError(
            "`memory` of a default policy is one number of steps (the `context`), "
            '"attention" or "gru", and reads observations only. Received: '
            f"memory={settings.get('memory')!r}, context={settings.get('context')!r}, "
            f"context_inputs={settings.get('context_inputs')!r}. Pass a policy of your "
            "own to `Reinforce` for other inputs."
        )
    window = int(min(limit or _MAX_WINDOW, _MAX_WINDOW))
    is_normalized = settings.get("normalize_observations", False)
    memory = next(iter(choices), None)
    return {"memory": memory, "window": window, "is_normalized": is_normalized}


def _head(setting, action_space):
    """Returns the head that a setting describes, or the default head of the space."""
    if isinstance(setting, heads.Head):
        return setting
    if setting is None:
        return heads.for_space(action_space)
    kind, options = default_settings.head_settings(setting, action_space)
    head_class = getattr(heads, kind)
    schema.expect_keys(f"The head {kind}", options, head_class.setting_names)
    if kind == "Autoregressive":
        if isinstance(action_space, gym.spaces.MultiDiscrete):
            options["shape"] = action_space.shape
            action_space = autoregressive.choices_of(action_space)
        return head_class(heads.for_space(action_space).heads, **options)
    return head_class.from_space(action_space, **options)


def check_rates(schedules, baseline):
    """Returns the linear learning rates from a config, or raises `ValueError`."""
    names = ["optimizer", "baseline.optimizer"][: 1 + hasattr(baseline, "optimizer")]
    try:
        for name, first, last in schedules:
            validation.one_of("name", name, names)
            for rate in (first, last):
                validation.within(f"learning rate of {name}", rate, 0, math.inf)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`learning_rates` of the agent are invalid: {error}") from None
    return schedules


def build(agent, observations_shape):
    """Builds an agent for N observations `[N, …]`, and returns its `Trainer`.

    Everything is validated before anything changes, so a failed build can be tried again.

    Args:
        agent: `Reinforce`.
        observations_shape: Shape with the axis N first, or dicts and tuples of them.
    """
    if agent.head is None and agent.action_space is None:
        raise ValueError(f"The agent cannot be built. {UNKNOWN_HEAD}")
    flags = _normalized_arrays(agent)
    head = agent.head
    if head is None:
        head = heads.for_space(agent.action_space)
    _build_model(agent, agent.policy, observations_shape, "policy", flags, head)
    float_type = actor.float_type(agent.policy)
    if agent.observation_space is not None:
        spec = records.observation_spec(
            agent.observation_space, float_type, agent.normalize_observations
        )
    else:
        spec = records.specs_from_shapes(observations_shape, float_type)
        spec = recurrent.remove_time_axis(spec, agent.policy)
        flags = [agent.normalizer is not None] * len(keras.tree.flatten(spec))
    if agent._mask_source is not None:
        agent._mask_source.expect_in(spec)
    elif head.reads_tables:
        raise ValueError(
            "The rules `masks` of the head are for tables of masks, but the agent reads "
            'none. Say where they are, for example action_mask="info/action_mask".'
        )
    shapes = records.shapes_with_axes(spec, None)
    seen = records.with_floats(spec, flags, float_type)
    for value_model in agent._models[1:]:
        _build_model(agent, value_model, shapes, "value model", flags, head)
    memories = [
        models.make_memory(model, seen, agent._options, head, float_type)
        for model in agent._models
    ]
    models.check_model_shapes(agent.policy, head, agent.baseline, seen, memories[0])
    updating_layers = models.check_layers(agent._models, seen, memories)
    optimizer = getattr(agent.baseline, "optimizer", None)
    parts = {"policy": agent.policy, "head": head, "baseline": agent.baseline}
    parts |= {} if optimizer is None else {"optimizer of the baseline": optimizer}
    variables = {name: part.variables for name, part in parts.items()}
    learner_processes.check_same_scope(agent._distribute_strategy, variables)
    agent.head = head
    with learner_processes.scope(agent._distribute_strategy):
        _build_parts(agent, spec, float_type, flags)
    return trainer.Trainer(agent, spec, memories, updating_layers)


def _normalized_arrays(agent):
    """Returns, for each array of the observation space, whether to normalize it."""
    if agent.observation_space is None:
        return []
    if agent.normalizer is None:
        return [False] * len(keras.tree.flatten(spaces.to_nest(agent.observation_space)))
    return models.normalized_arrays(
        agent.observation_space, agent._models, agent._normalizes_integers
    )


def _build_model(agent, model, observations_shape, name, flags, head):
    """Builds the policy or the value model, unless it is built already."""
    if not model.built:
        spec = records.specs_from_shapes(observations_shape, "float32")
        if agent.observation_space is not None:
            spec = records.observation_spec(agent.observation_space, "float32")
            spec = records.with_floats(spec, flags, "float32")
        options = agent._options
        if options.context is not None:
            spec = memory.input_spec(spec, options, head, "float32")
            spec = records.with_axes(spec, options.context)
            observations_shape = records.shapes_with_axes(spec, None)
        with learner_processes.scope(agent._distribute_strategy):
            models.build(model, observations_shape, spec, name)


def _build_parts(agent, spec, float_type, flags):
    """Creates the weights of head, baseline, running statistics, and `counters`."""
    if not agent.head.built:
        agent.head.set_float_type(float_type)
        agent.head.build((None, agent.head.outputs_size))
    if not agent.baseline.built:
        agent.baseline.build(records.shapes_with_axes(spec, None))
    if agent.normalizer is not None:
        # In half precision, large numbers with small differences would be equal.
        agent.normalizer.dtype_policy = float_type
        agent.normalizer.build(records.normalized_shapes(spec, flags))
    for scale in (agent.reward_scale, agent.advantage_scale):
        if scale is not None:
            scale.build()
    options = dict(initializer="zeros", dtype="int64", trainable=False)
    agent.counters = agent.add_weight(name="counters", shape=(3,), **options)
