"""Acts on batches of observations, with the functions that `export` writes."""

import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import spaces
from tf_reinforce.export import policy_functions
from tf_reinforce.functional import shapes
from tf_reinforce.support import validation


class LivePolicy:
    """Selects actions for batches of observations that a caller passes.

    Args:
        actor: `actor.ActorPolicy` that computes the actions.
        action_space: The action space of the environment, or `None` if the action space
            is unknown. With `action_space=None`, actions have the number types in which
            the head samples actions.
    """

    def __init__(self, actor, action_space):
        self.actor = actor
        self.action_space = action_space
        self._action_spec = (
            actor.action_spec if action_space is None else spaces.to_nest(action_space)
        )
        self._dtypes = keras.tree.map_structure(lambda x: x.dtype, self._action_spec)
        self.policy_functions = policy_functions.PolicyFunctions(actor, self._dtypes)
        self.functions = policy_functions.seed_functions(self.policy_functions)
        self._checked = {}  # functions with a finite check, by name

    @functools.cached_property
    def noise_functions(self):
        """Returns the exported functions for formats that draw no random numbers."""
        return policy_functions.noise_functions(self.policy_functions)

    @functools.cached_property
    def litert_functions(self):
        """Returns `noise_functions` without operations in float64."""
        policy = policy_functions.PolicyFunctions(self.actor, self._dtypes, False)
        return policy_functions.noise_functions(policy)

    def functions_for(self, format_name):
        """Returns the functions that an export in a format of `formats` contains."""
        if format_name == "tf_saved_model":
            return self.functions
        return self.litert_functions if format_name == "litert" else self.noise_functions

    def act(self, observations, deterministic, seed, action_mask, state):
        """Returns actions, or `(actions, state)` for a policy with recurrent layers.

        `Reinforce.act` explains the arguments.
        """
        deterministic = validation.boolean("deterministic", deterministic)
        observations = self._observations(observations)
        count = len(keras.tree.flatten(observations)[0])
        inputs = [
            *self._mask(count, action_mask),
            *self._state(count, state),
        ]
        if not deterministic:
            if seed is None:
                seed = np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1
            inputs.insert(0, tf.constant(validation.check_seed(seed), tf.int64))
        function = self._with_finite_check("act" if deterministic else "sample")
        results, finite = function(observations, *inputs)
        if not finite:
            raise FloatingPointError(
                "The outputs or the weights of the policy are not finite, so no action "
                "can be selected. Check that the observations are finite, or load an "
                "earlier agent file. If the model sets logits to -inf to exclude "
                "actions, pass `action_mask` to the agent instead."
            )
        return self._actions(results)

    def _observations(self, observations):
        """Returns N observations as tensors `[N, …]`, or raises `ValueError`."""
        batch = _nested("observations", self.actor.observation_spec, observations)
        counts = [len(array) for array in keras.tree.flatten(batch)]
        if len(set(counts)) > 1:
            raise ValueError(
                "All parts of `observations` must have the same number of rows. "
                f"Received: {counts} rows"
            )
        return batch

    def _mask(self, count, action_mask):
        """Returns `[action_mask]`, or `[]` if exported functions take no action mask."""
        actor = self.actor
        if not self.policy_functions.mask_is_input and action_mask is None:
            return []
        if not self.policy_functions.mask_is_input or action_mask is None:
            expected = "must be None, because the agent reads no action mask from `info`"
            if self.policy_functions.mask_is_input:
                expected = f"is missing: masks of shape {(count, actor.mask_size)}"
            raise ValueError(
                f"`action_mask` {expected}. Received: action_mask={action_mask!r}. Only "
                "an agent with action_mask='info/…' takes masks."
            )
        mask = _batch(
            "action_mask", tf.TensorSpec((actor.mask_size,), tf.int8), action_mask
        )
        if len(mask) != count or not actor.head.has_legal_action(mask.numpy()).all():
            raise ValueError(
                f"`action_mask` must have one row for each of {count} observations, and "
                "at least one legal action in every row. Received: "
                f"{mask.numpy().tolist()}"
            )
        return [mask]

    def _state(self, count, state):
        """Returns `[state]`, or `[]` for a policy without recurrent layers."""
        if self.actor.recurrent is None and state is None:
            return []
        initial_state = policy_functions.state_dict(self.actor.initial_state(count))
        if state is None:
            return [initial_state]
        expected, received = (
            {k: tuple(np.shape(x)) for k, x in one.items()}
            if isinstance(one, dict)
            else one
            for one in (initial_state, state)
        )
        if self.actor.recurrent is None or received != expected:
            raise ValueError(
                "`state` must be None without recurrent layers, and else the state that "
                "the previous call of `act` returned, with one row for each observation: "
                f"a dict of the shapes {expected}. Received: {received!r}"
            )
        return [state]

    def _with_finite_check(self, name):
        if name not in self._checked:
            self._checked[name] = policy_functions.with_finite_check(
                self.functions, name, self.actor.variables
            )
        return self._checked[name]

    def _actions(self, results):
        """Returns nested actions, or `(actions, state)` for a recurrent policy."""
        names = policy_functions.signature_names(self._action_spec, "action")
        actions = keras.tree.map_structure(lambda name: results[name].numpy(), names)
        if self.actor.recurrent is None:
            return actions
        state = policy_functions.state_dict([None] * len(self.actor.state_spec))
        return actions, {name: results[name] for name in state}


def _nested(name, spec, batch):
    """Returns a batch of N rows as tensors `[N, …]`, nested like the spec of one row."""
    if isinstance(spec, dict):
        expected = f"a dict with the keys {list(spec)}"
        if isinstance(batch, Mapping) and set(batch) == set(spec):
            return {key: _nested(name, spec[key], batch[key]) for key in spec}
    elif isinstance(spec, tuple):
        expected = f"a tuple of {len(spec)} parts"
        if isinstance(batch, (tuple, list)) and len(batch) == len(spec):
            return tuple(
                _nested(name, part, array)
                for part, array in zip(spec, batch, strict=True)
            )
    else:
        return _batch(name, spec, batch)
    keys = f" with the keys {list(batch)}" if isinstance(batch, Mapping) else ""
    raise ValueError(
        f"`{name}` must be nested like the observation space, with a batch in place of "
        f"each array. Expected: {expected}. Received: {type(batch).__name__}{keys}"
    )


def _batch(name, spec, array):
    """Returns an array of N rows as a tensor with the row shape and type of a spec."""
    array = shapes.unmasked(name, array)
    if array.shape[1:] != tuple(spec.shape) or array.ndim != len(spec.shape) + 1:
        single = name.removesuffix("s")
        hint = f" Pass a single {single} as `{single}[None]`."
        raise ValueError(
            f"`{name}` must be a batch of shape {(None, *spec.shape)}. Received: shape "
            f"{array.shape}.{hint * (array.shape == tuple(spec.shape))}"
        )
    dtype = spec.dtype.as_numpy_dtype
    with np.errstate(invalid="ignore", over="ignore"):  # compared below
        numbers = array.astype(dtype) if array.dtype.kind in "fiub" else None
    real = spec.dtype.is_floating
    if numbers is None or not (real or np.array_equal(numbers, array)):
        raise ValueError(
            f"`{name}` must be numbers of type {spec.dtype.name}. Received: "
            f"{array.tolist()} of type {array.dtype}. Convert `{name}` first, because "
            "`act` does not round numbers."
        )
    return tf.constant(numbers)
