"""Defines the exported functions, such as act, sample, distribution and log_prob."""

import functools
import inspect
import keyword

import keras
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces


def exported_functions(policy, takes_noise=False):
    """Returns a policy's exported functions, traced for any batch size.

    Args:
        policy: `PolicyFunctions`.
        takes_noise: Bool, whether `sample` takes its noise as an argument, for formats
            that cannot draw random numbers.

    Returns:
        Dict of `tf.function`s that return dicts of tensors, for N observations:

        - `act(observation)` returns `action`, the most likely action, in environment
          units.
        - `sample(observation, seed)` returns a random `action`, and `raw_action`, the
          head's sample before its conversion to environment units. Equal observations
          and seeds give equal actions.
        - `distribution(observation)` returns the parameters of the action distribution
          by name.
        - `log_prob(observation, raw_action)` returns `log_prob`, `[N]` float, the
          log-probability of each raw action.
        - `initial_state(count)` returns the recurrent states for `count` new episodes.
          Only recurrent policies have it.

        If the policy reads action masks from `info`, all functions of `observation` also
        take `action_mask`, `[N, M]` int8. If the policy is recurrent, their last argument
        is `state`, a dict of the states `state_0`, `state_1`, …, and they return the next
        states as well.

        Parts of a nested action are returned by name, for example `action_arm` for the
        part `arm`. A part of the observation gets the prefix `observation_` if its name
        is taken by another argument or a result (`observation_seed`), or if TensorFlow
        refuses or changes it (`observation_self`).

        With `takes_noise`, the function `sample(observation, noise)` replaces the one
        with a seed, and `log_prob` and `initial_state` are missing. The noise is nested
        like `head.noise`, and each part is an argument, for example `noise_arm`, a float
        array `[N, …]`. The noise that a seed would draw gives the same actions as the
        seed. The next states are returned as `next_state_0`, …, because the arguments and
        results of an ONNX file need different names.
    """
    random = {"noise": policy.noise_spec} if takes_noise else {"seed": policy.seed_spec}
    own_specs = {"act": {}, "sample": random, "distribution": {}}
    if not takes_noise:
        own_specs["log_prob"] = {"raw_action": policy.raw_action_spec}
    functions = {}
    for name, own in own_specs.items():
        specs = {"observation": policy.observation_spec, **own, **policy.extra_specs}
        # A partial for each policy. TensorFlow counts traces per function, and would warn
        # of retracing if many policies shared one.
        function = functools.partial(policy.results, name, takes_noise)
        # A loaded SavedModel accepts its arguments by these names.
        function.__signature__ = inspect.Signature(
            [inspect.Parameter(x, _POSITIONAL_OR_KEYWORD) for x in specs]
        )
        functions[name] = tf.function(function, list(specs.values()), autograph=False)
    if policy.actor.recurrent is not None and not takes_noise:
        functions["initial_state"] = tf.function(
            lambda count: state_dict(policy.actor.initial_state(count)),
            input_signature=[tf.TensorSpec((), tf.int32, "count")],
            autograph=False,
        )
    return functions


_POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


class PolicyFunctions:
    """Computes the results of a policy's exported functions.

    Its specs have a batch axis. `extra_specs` describes the arguments that only some
    policies have: `action_mask` and the recurrent `state`.

    Args:
        actor: `actor.ActorPolicy`.
        action_dtypes: Number type of the environment's actions, or a structure of them.
        with_float64: Bool. If false, observations are rounded to float32 before they are
            normalized, because LiteRT cannot subtract in float64.
    """

    def __init__(self, actor, action_dtypes, with_float64=True):
        self.actor = actor
        self._rounded = [not with_float64 and bool(x) for x in actor.centers]
        self._action_dtypes = action_dtypes
        source = actor.mask_source
        self.mask_is_input = source is not None and not source.observed
        self.extra_specs = {}
        if self.mask_is_input:
            shape = (None, actor.mask_size)
            mask_spec = tf.TensorSpec(shape, tf.int8, "action_mask")
            self.extra_specs["action_mask"] = mask_spec
        if actor.recurrent is not None:
            states = _batch_specs(tuple(actor.state_spec), "state")
            self.extra_specs["state"] = state_dict(states)
        self.seed_spec = tf.TensorSpec((), tf.int64, "seed")
        self.raw_action_spec = _batch_specs(actor.action_spec, "raw_action")
        self.noise_spec = keras.tree.map_structure(
            lambda part, name: tf.TensorSpec((None, *part.shape), actor.dtype, name),
            actor.head.noise,
            signature_names(actor.head.noise, "noise"),
        )
        others = [self.extra_specs, self.seed_spec, self.raw_action_spec, self.noise_spec]
        other_names = {spec.name for spec in keras.tree.flatten(others)}
        flat = keras.tree.flatten(actor.observation_spec)
        is_rounded = [x and y.dtype.is_floating for x, y in zip(self._rounded, flat)]
        self.observation_spec = _observation_specs(
            records.with_floats(actor.observation_spec, is_rounded, actor.dtype),
            other_names | self._result_names(),
        )

    def _result_names(self):
        outputs = tf.zeros([1, self.actor.head.outputs_size], self.actor.dtype)
        names = keras.tree.flatten(signature_names(self.actor.action_spec, "action"))
        next_states = [f"next_{name}" for name in state_dict(self.actor.state_spec)]
        parameters = self.actor.head.parameters(outputs)
        return {"log_prob", *names, *next_states, *parameters}

    def results(self, name, takes_noise, observation, *inputs):
        """Returns the results of the exported function with the given name."""
        own, more = None, inputs
        if name in ("sample", "log_prob"):
            own, *more = inputs
        outputs, states = self.outputs(observation, more)
        if takes_noise:
            states = {f"next_{key}": state for key, state in states.items()}
        if name == "distribution":
            return {**self.actor.head.parameters(outputs), **states}
        if name == "log_prob":
            log_probs = self.actor.head.distribution(outputs).log_prob(own)
            return {"log_prob": log_probs, **states}
        noise = None
        if name == "sample":
            noise = keras.tree.flatten(own)
            if not takes_noise:
                noise = self.actor.sample_noise(own, tf.shape(outputs)[0])
        return {**self.actions(outputs, noise), **states}

    def outputs(self, observation, extra_inputs):
        """Returns the masked policy outputs, and a dict of the next recurrent states."""
        source, mask = self.actor.mask_source, None
        if source is not None:
            mask = (
                extra_inputs[0]
                if self.mask_is_input
                else masks_in_batch(source, observation)
            )
        states = []
        if self.actor.recurrent is not None:
            states = list(extra_inputs[-1].values())
        if any(self._rounded):
            flags = keras.tree.pack_sequence_as(observation, self._rounded)
            observation = keras.tree.map_structure(
                lambda x, flag: tf.cast(x, self.actor.dtype) if flag else x,
                observation,
                flags,
            )
        _, outputs, states = self.actor.outputs(observation, mask, states)
        return outputs, state_dict(states)

    def actions(self, outputs, noise=None):
        """Returns actions by name, in the environment's units and number types.

        Args:
            outputs: `[N, P]` float tensor, the masked policy outputs.
            noise: List of tensors to sample from, which adds the raw actions to the
                result; or `None` to select the most likely actions.
        """
        raw_actions = self.actor.select_actions(outputs, noise)
        actions = self.actor.head.to_environment(raw_actions)
        actions = keras.tree.map_structure(tf.cast, actions, self._action_dtypes)
        results = flatten_by_name("action", actions)
        if noise is not None:
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


def state_dict(states):
    """Returns recurrent states as a dict with the keys `state_0`, `state_1`, …."""
    return {f"state_{i}": state for i, state in enumerate(states)}


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
