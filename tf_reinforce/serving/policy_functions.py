"""Defines the exported functions: act, sample, distribution and log_prob."""

import functools

import keras
import tensorflow as tf

from tf_reinforce.data import spaces
from tf_reinforce.serving import saved_model


def policy_functions(decision, action_dtypes):
    """The functions of a policy that others call, traced for any batch size.

    Args:
        decision: `actor.ActorPolicy`.
        action_dtypes: Type in which the environment takes its actions, or a structure.

    Returns:
        Dict of `tf.function`s that return dicts of tensors:

        `act(observation)`: `action`, the most likely one, in environment units.
        `sample(observation, seed)`: `action`, and `raw_action` as it is scored; the
        same seed draws the same actions.
        `distribution(observation)`: its parameters by name.
        `log_prob(observation, raw_action)`: `log_prob`, `[N]`.

        Where `info` carries the masks, each takes `action_mask`, `[N, M]` int8, as a
        further argument. A policy that remembers takes its states last, a dict from
        `state_0`, … to `[N, …]`, and returns the next ones beside the rest;
        `initial_state(count)` begins episodes. Parts of a nested action are returned
        by name, `action_arm` for the part `arm`. A part of the observation that is
        called as another argument is, enters as `observation_seed`.
    """
    endpoints = _PolicyFunctions(decision, action_dtypes)
    more, seed = endpoints.more, tf.TensorSpec((), tf.int64, "seed")
    raw = _specs(decision.action_spec, "raw_action")
    observation = _apart_from(
        keras.tree.flatten([more, seed, raw]), decision.observation_spec
    )
    signatures = {
        "act": [observation, *more],
        "sample": [observation, seed, *more],
        "distribution": [observation, *more],
        "log_prob": [observation, raw, *more],
    }
    if decision.memory is not None:
        signatures["initial_state"] = [tf.TensorSpec((), tf.int32)]
    # Partials of their own, lest TensorFlow take each policy for a retracing.
    functions = {name: functools.partial(getattr(endpoints, name)) for name in signatures}
    return {
        name: tf.function(function, input_signature=signatures[name], autograph=False)
        for name, function in functions.items()
    }


def with_finite_check(functions, name, variables):
    """One of the endpoints, which also says whether all that decided was finite.

    Args:
        functions: See `endpoints`.
        name: `"act"` or `"sample"`.
        variables: The Keras variables that decide.

    Returns:
        A function of the same arguments; the same results, and a scalar bool.
    """
    signature = functions[name].input_signature
    drawn = int(name == "sample")  # its second argument is the seed

    def answer(observation, *given):
        parameters = functions["distribution"](observation, *given[drawn:])
        deciding = [*parameters.values(), *(v.value for v in variables)]
        finite = [
            tf.reduce_all(tf.math.is_finite(numbers))
            for numbers in map(tf.convert_to_tensor, deciding)
            if numbers.dtype.is_floating
        ]
        return functions[name](observation, *given), tf.reduce_all(finite)

    answering = tf.function(answer, input_signature=signature, autograph=False)
    return answering.get_concrete_function()  # to find it takes a third of a call


class _PolicyFunctions:
    """The functions; `more` are the arguments that only some decisions have."""

    def __init__(self, decision, action_dtypes):
        self._decision = decision
        self._dtypes = action_dtypes
        self._told = (
            decision.mask_source is not None and not decision.mask_source.observed
        )
        self.more = []
        if self._told:
            shape = (None, decision.mask_size)
            self.more.append(tf.TensorSpec(shape, tf.int8, "action_mask"))
        if decision.memory is not None:
            self.more.append(state_dict(_specs(tuple(decision.state), "state")))

    def act(self, observation, *more):
        outputs, states = self._outputs(observation, more)
        return {**self._sent(self._decision.select_actions(outputs)), **states}

    def sample(self, observation, seed, *more):
        outputs, states = self._outputs(observation, more)
        noise = self._decision.sample_noise(seed, tf.shape(outputs)[0])
        raw = self._decision.select_actions(outputs, noise)
        return {**self._sent(raw), **flatten_by_name("raw_action", raw), **states}

    def distribution(self, observation, *more):
        outputs, states = self._outputs(observation, more)
        return {**self._decision.head.parameters(outputs), **states}

    def log_prob(self, observation, raw_action, *more):
        outputs, states = self._outputs(observation, more)
        scores = self._decision.head.distribution(outputs).log_prob(raw_action)
        return {"log_prob": scores, **states}

    def initial_state(self, count):
        return state_dict(self._decision.initial_state(count))

    def _outputs(self, observation, more):
        """The outputs under the mask, and the next states by name."""
        source, mask = self._decision.mask_source, None
        if source is not None:
            mask = more[0] if self._told else source.of(observation)
        states = list(more[-1].values()) if self._decision.memory is not None else []
        _, outputs, states = self._decision.outputs(observation, mask, states)
        return outputs, state_dict(states)

    def _sent(self, raw):
        actions = self._decision.head.to_environment(raw)
        cast = keras.tree.map_structure(tf.cast, actions, self._dtypes)
        return flatten_by_name("action", cast)


def _specs(structure, *path):
    """A batch of what the structure describes, its parts by name."""
    return keras.tree.map_structure(
        lambda leaf, name: tf.TensorSpec((None, *leaf.shape), leaf.dtype, name),
        structure,
        signature_names(structure, *path),
    )


def _apart_from(others, structure):
    """The same for observations, whose keys may be any words, also those of others."""
    taken = {spec.name for spec in others}

    def rename(spec):
        name = f"observation_{spec.name}" if spec.name in taken else spec.name
        return tf.TensorSpec(spec.shape, spec.dtype, name)

    return keras.tree.map_structure(rename, _specs(structure))


def signature_names(structure, *path):
    """The name of each part in a signature: letters, digits, `_` and `.`.

    Raises:
        ValueError: when two parts get the same name.

    Example:

    >>> signature_names({"a b": 1, "c": (2, 3)}, "action")
    {'a b': 'action_a_b', 'c': ('action_c_0', 'action_c_1')}
    """
    found = keras.tree.map_structure(spaces.safe_name, spaces.names(structure, path))
    saved_model._expect_distinct_names(keras.tree.flatten(found))
    return found


def flatten_by_name(name, structure):
    """A flat dict from a name for each part of a structure to its tensor.

    Example:

    >>> flatten_by_name("action", {"arm": 1, "legs": (2, 3)})
    {'action_arm': 1, 'action_legs_0': 2, 'action_legs_1': 3}
    """
    flat = keras.tree.flatten(signature_names(structure, name))
    return dict(zip(flat, keras.tree.flatten(structure), strict=True))


def state_dict(states):
    """States as a dict, by the names under which they enter and leave."""
    return {f"state_{i}": state for i, state in enumerate(states)}
