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
        action_space: The environment's action space. If it is unknown (`None`), actions
            keep the number types in which the head samples them.
    """

    def __init__(self, actor, action_space):
        self.actor = actor
        self.action_space = action_space
        spec = actor.action_spec if action_space is None else spaces.to_nest(action_space)
        self._action_spec = spec
        dtypes = keras.tree.map_structure(lambda x: x.dtype, spec)
        make_functions = policy_functions.PolicyFunctions
        self._functions_of = functools.partial(make_functions, actor, dtypes)
        self.policy_functions = self._functions_of("tf_saved_model")
        self.functions = self.policy_functions.functions
        self._checked = {}  # functions with a finite check, by name

    def functions_for(self, format_name):
        """Returns the functions that an export in the given format contains."""
        is_own = format_name == "tf_saved_model"
        return self.functions if is_own else self._functions_of(format_name).functions

    def act(self, observations, deterministic, seed, action_mask, state):
        """Returns actions, or `(actions, state)` for a recurrent policy.

        The arguments are those of `Reinforce.act`.
        """
        deterministic = validation.boolean("deterministic", deterministic)
        observations = _nested(self.actor.observation_spec, observations)
        count, *others = map(len, keras.tree.flatten(observations))
        if set(others) - {count}:
            raise ValueError(
                "All parts of `observations` must have the same number of rows. "
                f"Received: {[count, *others]} rows"
            )
        inputs = self._mask(observations, count, action_mask)
        inputs += self._state(count, state)
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

    def _mask(self, observations, count, action_mask):
        """Returns `[action_mask]`, or `[]` if the exported functions take no mask."""
        source, head = self.actor.mask_source, self.actor.head
        if self.policy_functions.mask_is_input:
            masks = self._flat_masks(count, action_mask)
        elif action_mask is not None:
            raise ValueError(
                "`action_mask` must be None, because the agent does not read masks from "
                f"`info`. Received: action_mask={action_mask!r}"
            )
        elif source is None:
            return []
        else:
            masks = policy_functions.masks_in_batch(source, observations)
        legal = head.has_legal_action(masks.numpy())
        if not legal.all():
            row = int(np.argmin(legal))
            mask = masks.numpy()[row]
            place = head.mask_layout.illegal_part(mask)
            raise ValueError(
                f"The action mask of observation {row} has no legal action{place}. "
                f"Received: {mask.tolist()}"
            )
        return [masks] if self.policy_functions.mask_is_input else []

    def _flat_masks(self, count, action_mask):
        """Returns `[count, M]` int8, from flat or nested masks, or a list of them."""
        masks = action_mask
        if isinstance(masks, (dict, tuple)):
            arrays = [x for x in spaces.flatten(masks) if x is not None]
            if all(np.shape(x)[:1] == (count,) for x in arrays):
                masks = [spaces.row_of_leaves(masks, i) for i in range(count)]
        if isinstance(masks, list) and any(isinstance(x, (dict, tuple)) for x in masks):
            masks = np.stack([*map(self.actor.head.flatten_mask, masks)])
        if not isinstance(masks, (dict, tuple, type(None))):
            spec = tf.TensorSpec((self.actor.mask_size,), tf.int8)
            masks = _batch("action_mask", spec, masks)
            if len(masks) == count:
                return masks
        raise ValueError(
            "The agent reads masks from `info`, so `action_mask` must be masks of shape "
            f"{(count, self.actor.mask_size)}, or nested like the actions, with {count} "
            "rows in each array, or a list of nested masks, such as `[mask]`. Received: "
            f"action_mask={action_mask!r}"
        )

    def _state(self, count, state):
        """Returns `[state]`, or `[]` for a policy without a memory."""
        initial_state = self.actor.named_states(self.actor.initial_state(count))
        if state is None:
            return [initial_state] if initial_state else []
        if not initial_state:
            raise ValueError("`state` must be None, because this policy has no memory.")
        expected = {name: tuple(x.shape) for name, x in initial_state.items()}
        received = state
        if isinstance(state, dict):
            received = {name: np.shape(x) for name, x in state.items()}
            if expected.keys() - received.keys() == {"previous_reward"}:
                raise ValueError(
                    "The policy reads rewards, which only the environment knows. Before "
                    'each call, set state["previous_reward"] to the rewards for the last '
                    f"actions, an array of {count} numbers."
                )
        if received != expected:
            raise ValueError(
                "`state` must be what the previous call of `act` returned, with one row "
                f"for each observation: a dict of the shapes {expected}. "
                f"Received: {received!r}"
            )
        return [state]

    def _with_finite_check(self, name):
        """Returns `act` or `sample` with a bool, whether outputs and weights are finite.

        The outputs are the parameters of the action distribution.
        """
        if name not in self._checked:
            num_seeds = int(name == "sample")  # the second argument of `sample`

            def checked(observation, *inputs):
                distribution = self.functions["distribution"]
                parameters = distribution(observation, *inputs[num_seeds:])
                values = *parameters.values(), *(v.value for v in self.actor.variables)
                tensors = map(tf.convert_to_tensor, values)
                finite = shapes.all_finite([x for x in tensors if x.dtype.is_floating])
                return self.functions[name](observation, *inputs), finite

            signature = self.functions[name].input_signature
            graph = tf.function(checked, input_signature=signature, autograph=False)
            # The lookup of a program takes a third of a call.
            self._checked[name] = graph.get_concrete_function()
        return self._checked[name]

    def _actions(self, results):
        """Returns nested actions, or `(actions, state)` for a policy with a memory."""
        results = {name: x.numpy() for name, x in results.items()}
        names = policy_functions.signature_names(self._action_spec, "action")
        actions = keras.tree.map_structure(results.get, names)
        if self.actor.memory is None:
            return actions
        states = [x.name for x in self.actor.state_spec]
        return actions, {name: results[name] for name in states if name in results}


def _nested(spec, batch):
    """Returns a batch of N rows as tensors `[N, …]`, nested like the spec of one row."""
    if not isinstance(spec, (dict, tuple)):
        return _batch("observations", spec, batch)
    if isinstance(spec, dict):
        if isinstance(batch, Mapping) and set(batch) == set(spec):
            return {key: _nested(spec[key], batch[key]) for key in spec}
    elif isinstance(batch, (tuple, list)) and len(batch) == len(spec):
        return tuple(map(_nested, spec, batch))
    received = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
    raise ValueError(
        "`observations` must be nested like the observation space, with a batch in place "
        f"of each array. Expected: {spec}. Received: {received}"
    )


def _batch(name, spec, array):
    """Returns an array of N rows as a tensor, whose rows have a spec's shape and type."""
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
    if numbers is None or not (spec.dtype.is_floating or np.array_equal(numbers, array)):
        raise ValueError(
            f"`{name}` must be numbers of type {spec.dtype.name}. Received: "
            f"{array.tolist()} of type {array.dtype}. Convert `{name}` first, because "
            "`act` does not round numbers."
        )
    return tf.constant(numbers)
