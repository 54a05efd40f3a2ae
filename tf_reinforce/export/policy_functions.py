"""Defines the exported functions, such as act, sample, distribution and log_prob."""

import functools
import inspect
import keyword

import keras
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces


class PolicyFunctions:
    """The exported functions of a policy, and what they compute.

    `functions` is a dict of `tf.function`s, traced for any batch size, that return dicts
    of tensors for N observations:

    - `act(observation)` returns `action`, the most likely action, in environment units.
    - `sample(observation, seed)` returns a random `action`, and `raw_action`, the head's
      sample before its conversion to environment units. Equal observations and seeds give
      equal actions.
    - `distribution(observation)` returns the parameters of the action distribution by
      name.
    - `log_prob(observation, raw_action)` returns `log_prob`, `[N]` float, the
      log-probability of each raw action.
    - `initial_state(count)` returns the recurrent states for `count` new episodes. Only
      recurrent policies have it.

    If the policy reads action masks from `info`, all functions of `observation` also take
    an argument `action_mask`, `[N, M]` int8. If the policy is recurrent, the last
    argument of these functions is `state`, a dict of the states `state_0`, `state_1`, …,
    and the functions return the next states as well. If the policy reads earlier actions
    or rewards, `previous_action` and `previous_reward` are states too. The functions
    return the raw action that they select, but no reward, which only the caller knows.

    Parts of a nested action are returned by name, for example `action_arm` for the part
    `arm`. The parts of a nested observation are passed by name as well. The prefix
    `observation_` is added to a name if it is already taken, as in `observation_seed`, or
    if TensorFlow refuses or changes it, as in `observation_self`.

    Only a SavedModel can draw random numbers. In other formats, the function
    `sample(observation, noise)` receives the noise instead of a seed, and `log_prob` and
    `initial_state` are missing. The noise is nested like `head.noise`, and each part is
    an argument, for example `noise_arm`, a float array `[N, …]`. The noise that a seed
    would draw gives the same actions as the seed.

    The arguments and results of an ONNX file need different names. For this reason, all
    formats other than a SavedModel return the next states as `next_state_0`, …. In
    LiteRT, which cannot subtract in float64, observations are rounded to float32 before
    they are normalized.

    Args:
        actor: `actor.ActorPolicy`.
        action_dtypes: Number type of the environment's actions, or a structure of them.
        format_name: String, the format of the export.
    """

    def __init__(self, actor, action_dtypes, format_name):
        self.actor, self._action_dtypes = actor, action_dtypes
        self._takes_noise = format_name != "tf_saved_model"
        source = actor.mask_source
        self.mask_is_input = source is not None and not source.observed
        extra_specs = {}
        if self.mask_is_input:
            shape = (None, actor.mask_size)
            extra_specs["action_mask"] = tf.TensorSpec(shape, tf.int8, "action_mask")
        if actor.memory is not None:
            extra_specs["state"] = _batch_specs({x.name: x for x in actor.state_spec})
        seed = tf.TensorSpec((), tf.int64, "seed")
        raw_action = _batch_specs(actor.action_spec, "raw_action")
        noise = keras.tree.map_structure(
            lambda part: tf.TensorSpec(part.shape, actor.dtype), actor.head.noise
        )
        noise = _batch_specs(noise, "noise")
        others = keras.tree.flatten([extra_specs, seed, raw_action, noise])
        is_litert = format_name == "litert"
        is_rounded = [is_litert and bool(centers) for centers in actor.centers]
        flat = keras.tree.flatten(actor.observation_spec)
        is_float = [x and y.dtype.is_floating for x, y in zip(is_rounded, flat)]
        names = {spec.name for spec in others} | self._result_names()
        observation = records.with_floats(actor.observation_spec, is_float, actor.dtype)
        observation = _observation_specs(observation, names)
        computed = records.with_floats(actor.observation_spec, is_rounded, actor.dtype)
        self._observation_dtypes = keras.tree.map_structure(lambda x: x.dtype, computed)
        random = {"noise": noise} if self._takes_noise else {"seed": seed}
        own_specs = {"act": {}, "sample": random, "distribution": {}}
        if not self._takes_noise:
            own_specs["log_prob"] = {"raw_action": raw_action}
        self.functions = {
            name: self._traced(name, {"observation": observation, **own, **extra_specs})
            for name, own in own_specs.items()
        }
        if actor.memory is not None and not self._takes_noise:
            self.functions["initial_state"] = tf.function(
                lambda count: actor.named_states(actor.initial_state(count)),
                input_signature=[tf.TensorSpec((), tf.int32, "count")],
                autograph=False,
            )

    def _traced(self, name, specs):
        # A partial for each policy. TensorFlow counts traces per function, and would warn
        # of retracing if many policies shared one.
        function = functools.partial(self._results, name)
        # A loaded SavedModel accepts its arguments by these names.
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(x, kind) for x in specs]
        function.__signature__ = inspect.Signature(parameters)
        return tf.function(function, list(specs.values()), autograph=False)

    def _result_names(self):
        outputs = tf.zeros([1, self.actor.head.outputs_size], self.actor.dtype)
        names = keras.tree.flatten(signature_names(self.actor.action_spec, "action"))
        next_states = [f"next_{spec.name}" for spec in self.actor.state_spec]
        return {"log_prob", *names, *next_states, *self.actor.head.parameters(outputs)}

    def _results(self, name, observation, *inputs):
        """Returns the results of the exported function with the given name."""
        own, more = None, inputs
        if name in ("sample", "log_prob"):
            own, *more = inputs
        outputs, states = self.outputs(observation, more)
        if name == "distribution":
            results = self.actor.head.parameters(outputs)
        elif name == "log_prob":
            log_probs = self.actor.head.distribution(outputs).log_prob(own)
            results, states = {"log_prob": log_probs}, self.actor.remember(states, own)
        else:
            noise = None
            if name == "sample":
                noise = keras.tree.flatten(own)
                if not self._takes_noise:
                    noise = self.actor.sample_noise(own, tf.shape(outputs)[0])
            raw_actions = self.actor.select_actions(outputs, noise)
            results = self.actions(raw_actions, with_raw=noise is not None)
            states = self.actor.remember(states, raw_actions)
        states = self.actor.named_states(states)
        states.pop("previous_reward", None)
        if self._takes_noise:
            states = {f"next_{key}": state for key, state in states.items()}
        return {**results, **states}

    def outputs(self, observation, extra_inputs):
        """Returns the masked policy outputs, and a list of the next recurrent states."""
        source, mask, states = self.actor.mask_source, None, []
        if self.mask_is_input:
            mask = extra_inputs[0]
        elif source is not None:
            mask = masks_in_batch(source, observation)
        if self.actor.memory is not None:
            states = [extra_inputs[-1][spec.name] for spec in self.actor.state_spec]
        dtypes = self._observation_dtypes
        observation = keras.tree.map_structure(tf.cast, observation, dtypes)
        _, outputs, states = self.actor.outputs(observation, mask, states)
        return outputs, states

    def actions(self, raw_actions, with_raw=False):
        """Returns actions by name, in the environment's units and number types.

        Args:
            raw_actions: `N` raw actions, `[N, …]`.
            with_raw: Bool, whether to return the raw actions too.
        """
        actions = self.actor.head.to_environment(raw_actions)
        actions = keras.tree.map_structure(tf.cast, actions, self._action_dtypes)
        results = flatten_by_name("action", actions)
        if with_raw:
            results.update(flatten_by_name("raw_action", raw_actions))
        return results


def _batch_specs(specs, *path):
    """Returns a structure of specs with a name and a batch axis added to each."""
    return keras.tree.map_structure(
        lambda leaf, name: tf.TensorSpec((None, *leaf.shape), leaf.dtype, name),
        specs,
        signature_names(specs, *path),
    )


def _observation_specs(specs, other_names):
    """Returns batched observation specs whose names are not in `other_names`.

    TensorFlow turns each name into an argument of a Python method, which already
    has `self`. A name such as `0` would become `arg_0`.
    """

    def rename(spec):
        is_argument = spec.name.isidentifier() and not keyword.iskeyword(spec.name)
        keeps_name = is_argument and spec.name not in {"self", *other_names}
        name = spec.name if keeps_name else f"observation_{spec.name}"
        return tf.TensorSpec(spec.shape, spec.dtype, name)

    return keras.tree.map_structure(rename, _batch_specs(specs))


def signature_names(structure, *path):
    """Returns a name of letters, digits and `_` for each part of a structure.

    A `.` becomes `_`, because TensorFlow would change it in the name of an argument.

    Raises:
        ValueError: If two parts get the same name.

    Example:

    >>> signature_names({"a.b": 1, "c": (2, 3)}, "action")
    {'a.b': 'action_a_b', 'c': ('action_c_0', 'action_c_1')}
    """
    names = keras.tree.map_structure(
        lambda name: spaces.safe_name(name).replace(".", "_"),
        spaces.names(structure, path),
    )
    check_distinct_names(keras.tree.flatten(names))
    return names


def check_distinct_names(names):
    """Raises `ValueError` if two names in an exported signature are equal."""
    names = list(names)
    if len(set(names)) < len(names):
        raise ValueError(
            "Every argument of an exported signature needs a different name of "
            "letters, digits and '_'. A SavedModel and LiteRT do not distinguish upper "
            f"from lower case. Received: {names}. Rename a key of the space with "
            " gymnasium.wrappers.TransformObservation or TransformAction."
        )


def flatten_by_name(name, structure):
    """Returns a flat dict of a structure's parts by name.

    Example:

    >>> flatten_by_name("action", {"arm": 1, "legs": (2, 3)})
    {'action_arm': 1, 'action_legs_0': 2, 'action_legs_1': 3}
    """
    names = keras.tree.flatten(signature_names(structure, name))
    return dict(zip(names, keras.tree.flatten(structure), strict=True))


def masks_in_batch(path, observations):
    """Returns the masks in a batch of N observations, `[N, M]` int8.

    Args:
        path: `action_masks.MaskPath` of a mask in the observation.
        observations: Structure of tensors `[N, …]`.
    """
    parts = keras.tree.flatten(path.lookup(observations, None))
    # Entries must be 0, 1 or 2. Others become 3, so that none wraps to 0 in int8. LiteRT
    # has no `tf.abs` of integers.
    parts = [tf.cast(part, tf.int64) for part in parts]
    parts = [tf.minimum(tf.maximum(part, -part), 3) for part in parts]
    flat = [tf.reshape(part, [tf.shape(part)[0], -1]) for part in parts]
    return tf.cast(tf.concat(flat, axis=-1), tf.int8)
