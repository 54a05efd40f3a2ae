"""Collects episodes with a policy, and caches the compiled acting programs."""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results
from tf_reinforce.collect import tensor_envs
from tf_reinforce.collect import worker_pool
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.envs import checks
from tf_reinforce.serving import policy_functions

_EXAMPLES = 8  # drawn rows on which LiteRT and Keras are compared
_COMPARED = 64  # rows of every collection on which they are compared again
_PROGRAMS = 8  # rollouts that are kept


class Collector:
    """Plays whole episodes with what decides an action: normalizer, policy and head.

    Programs are traced and converted when they are first needed, and kept.

    Args:
        decision: `actor.ActorPolicy`.
    """

    def __init__(self, decision):
        self.decision = decision
        self.programs = {}  # `acting_program.ActingProgram`, by whether it is greedy
        self._rollouts = {}  # the last few `compiled_rollout.Rollout`, by what they play
        self._functions = {}  # `policy_functions`, by whether the space is known
        self._checked = {}  # `policy_functions.with_finite_check`, by name as well

    def collect(
        self, envs, purpose, update, seed, *, episodes, steps, greedy=False, group_size=1
    ):
        """Collects whole episodes; see `host_loop.collect` for the arguments."""
        if isinstance(envs, tensor_envs.TensorEnvs):
            rollout = self.rollout(envs, episodes, greedy, group_size)
            address = dict(seed=seed, purpose=purpose, update=update)
            return compiled_rollout.collect(rollout, **address)[1]
        if greedy not in self.programs:
            self.programs[greedy] = self._program(envs.observation_space, greedy)
        program = self.programs[greedy]
        wanted = dict(
            seed=seed,
            purpose=purpose,
            update=update,
            episodes=episodes,
            steps=steps,
            deterministic=greedy,
            group_size=group_size,
        )
        try:
            played = self._collected(envs, program, wanted)
            # New weights may lead to where LiteRT departs from Keras.
            changed = program.compare(self._rows_of(played.episodes, greedy))
        except results.OutputsNotFinite as error:
            changed = program.compare(error.inputs)
            if not changed:
                raise
        # An episode is a function of its number: all are played again, by one engine.
        return self._collected(envs, program, wanted) if changed else played

    def _collected(self, envs, program, wanted):
        decision = self.decision
        if isinstance(envs, worker_pool.WorkerPool):
            return envs.collect(decision, program, **wanted)
        envs.prepare(decision.dtype, decision.mask_reader())
        return host_loop.collect(envs, decision, program.rows(envs.size), **wanted)

    def rollout(self, world, count, greedy=False, group_size=1, recorded=True):
        """The program that plays so many episodes; see `compiled_rollout.Rollout`."""
        acting_program.finite_weights(self.decision.variables)
        if count is None:
            raise ValueError(
                "A tensor environment plays a fixed number of episodes at once. Give "
                "`episodes_per_epoch`, or `episodes` to `collect`, instead of a number "
                "of steps."
            )
        given = dict(greedy=greedy, group_size=group_size, recorded=recorded)
        # The program keeps its world alive, and so the number of the world its own.
        key = id(world.env), checks.constants(world.env), world.limit, count
        key += (*given.values(),)
        kept = self._rollouts.pop(key, None)
        self._rollouts[key] = kept or compiled_rollout.Rollout(
            world, self.decision, count, **given
        )
        while len(self._rollouts) > _PROGRAMS:
            del self._rollouts[next(iter(self._rollouts))]
        return self._rollouts[key]

    def play(self, envs, purpose, update, seed, *, episodes, greedy):
        """The figures of so many episodes; see `episode_statistics.batch_metrics`."""
        if isinstance(envs, tensor_envs.TensorEnvs):
            rollout = self.rollout(envs, episodes, greedy, recorded=False)
            with compiled_rollout.explain_compile_errors():
                played = rollout(seeding.rollout_keys(seed, purpose, update)[:3])
            if tf.reduce_all(played.sound):
                lengths = played.episodes.lengths
                return episode_statistics.metrics(played.returns.numpy(), lengths.numpy())
        played = self.collect(
            envs, purpose, update, seed, episodes=episodes, steps=None, greedy=greedy
        )
        return episode_statistics.batch_metrics(played.episodes, played.success)

    def functions(self, action_space):
        """The exported functions; see `policy_functions.policy_functions`."""
        raw = self.decision.action_spec
        self._sent = raw if action_space is None else spaces.to_nest(action_space)
        known = action_space is not None
        if known not in self._functions:
            dtypes = keras.tree.map_structure(lambda leaf: leaf.dtype, self._sent)
            self._functions[known] = policy_functions.policy_functions(
                self.decision, dtypes
            )
        return self._functions[known]

    def checked(self, name, action_space):
        """Returns an exported function with a finite check of all that decided."""
        key = name, action_space is not None
        functions = self.functions(action_space)
        if key not in self._checked:
            variables = self.decision.variables
            self._checked[key] = policy_functions.with_finite_check(
                functions, name, variables
            )
        return self._checked[key]

    def batch(self, observations):
        """Observations as tensors `[N, …]`, or an error that shows both shapes."""
        batch = _nested("observations", self.decision.observation_spec, observations)
        counts = [len(array) for array in keras.tree.flatten(batch)]
        if len(set(counts)) > 1:
            raise ValueError(
                "All parts of `observations` must have the same number of rows. "
                f"Received: {counts} rows"
            )
        return batch

    def answer(self, results):
        """The actions among results, nested; with the next state where there is one."""
        names = policy_functions.signature_names(self._sent, "action")
        actions = keras.tree.map_structure(lambda name: results[name].numpy(), names)
        state = policy_functions.state_dict([None] * len(self.decision.state))
        return (actions, {name: results[name] for name in state}) if state else actions

    def more(self, count, action_mask, state):
        """What else decides, as tensors: the mask and the state, where there are any."""
        decision, more = self.decision, []
        if decision.mask_source is not None and not decision.mask_source.observed:
            spec = tf.TensorSpec((decision.mask_size,), tf.int8)
            mask = action_mask if action_mask is not None else []
            more.append(_batch("action_mask", spec, mask))
            mask = more[-1].numpy()
            if len(mask) != count:
                raise ValueError(
                    f"`action_mask` must have a row for each of {count} observations. "
                    f"Received: shape {mask.shape}. Nothing is broadcast."
                )
            if not decision.head.has_legal_action(mask).all():
                raise ValueError(
                    "`action_mask` must leave a legal action in every row. "
                    f"Received: {mask.tolist()}"
                )
        elif action_mask is not None:
            raise ValueError(
                "The agent reads no `action_mask` beside the observation. Make it with "
                '`Reinforce(policy, action_mask="info/action_mask")`.'
            )
        if decision.memory is not None:
            fresh = policy_functions.state_dict(decision.initial_state(count))
            more.append(fresh if state is None else _same_shapes(fresh, state))
        elif state is not None:
            raise ValueError("The policy has no recurrent layer, and takes no `state`.")
        return more

    def _program(self, observation_space, greedy):
        decision, rng = self.decision, seeding.generator(0, "parity")
        observed = [
            spaces.sample_observations(observation_space, decision.dtype, _EXAMPLES, rng),
            spaces.edge_observations(observation_space, decision.dtype),
        ]
        observed = [
            np.concatenate(parts)
            for parts in zip(*map(keras.tree.flatten, observed), strict=True)
        ]
        states, noise = self._states_and_noise(len(observed[0]), rng)
        masks = []
        if decision.mask_source is not None:
            masks.append(np.tile(decision.head.flatten_mask(None), (len(observed[0]), 1)))
        return acting_program.ActingProgram(
            decision, [*observed, *masks, *states], noise, greedy
        )

    def _states_and_noise(self, count, rng):
        """Two lists of arrays `[count, …]`, for engines to be compared on."""
        decision = self.decision
        # States that all differ: zeros would hide that two of them were exchanged.
        states = [
            rng.uniform(-1, 1, state.shape).astype(state.dtype.as_numpy_dtype)
            for state in decision.initial_state(count)
        ]
        noise = [
            rng.random((count, *part.shape)).astype(decision.dtype)
            for part in decision.noise
        ]
        return states, noise

    def _rows_of(self, episodes, greedy):
        """Inputs of an acting program from some steps of a record, evenly spread."""
        happened = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
        steps = np.argwhere(happened)
        steps = steps[np.linspace(0, len(steps) - 1, _COMPARED).astype(int)]
        columns = keras.tree.flatten(episodes.observations)
        if self.decision.mask_source is not None:
            columns.append(episodes.masks)
        rng = seeding.generator(0, "parity", 1)
        states, noise = self._states_and_noise(_COMPARED, rng)
        rows = [np.asarray(column)[tuple(steps.T)] for column in columns]
        return [*rows, *states, *([] if greedy else noise)]


def _nested(name, structure, given):
    """What was given as tensors `[N, …]`, nested as the structure."""
    if isinstance(structure, dict):
        expected = f"a dict with the keys {list(structure)}"
        if isinstance(given, Mapping) and set(given) == set(structure):
            return {key: _nested(name, structure[key], given[key]) for key in structure}
    elif isinstance(structure, tuple):
        expected = f"a tuple of {len(structure)} parts"
        if isinstance(given, (tuple, list)) and len(given) == len(structure):
            return tuple(
                _nested(name, part, own)
                for part, own in zip(structure, given, strict=True)
            )
    else:
        return _batch(name, structure, given)
    keys = f" with the keys {list(given)}" if isinstance(given, Mapping) else ""
    raise ValueError(
        f"`{name}` must nest as their space, with a batch in place of each array. "
        f"Expected: {expected}. Received: {type(given).__name__}{keys}"
    )


def _same_shapes(fresh, state):
    """The state, if it is one of these observations' number."""
    expected = {name: tuple(array.shape) for name, array in fresh.items()}
    received = state
    if isinstance(state, dict):
        received = {name: tuple(np.shape(array)) for name, array in state.items()}
    if received != expected:
        raise ValueError(
            "`state` must be the second part of what the last call returned, with a row "
            f"for each observation. Expected: a dict of the shapes {expected}. "
            f"Received: {received!r}"
        )
    return state


def _batch(name, leaf, array):
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array of shape {(None, *leaf.shape)}. Received: "
            f"{array!r}"
        ) from error
    if array.shape[1:] != tuple(leaf.shape) or array.ndim != len(leaf.shape) + 1:
        raise ValueError(
            f"`{name}` must be a batch of shape {(None, *leaf.shape)}. "
            f"Received: shape {array.shape}. Give a single {name.removesuffix('s')} as "
            f"`{name.removesuffix('s')}[None]`."
        )
    dtype = leaf.dtype.as_numpy_dtype
    with np.errstate(invalid="ignore", over="ignore"):  # what is lost is found below
        numbers = array.astype(dtype) if array.dtype.kind in "fiub" else None
    real = leaf.dtype.is_floating
    if numbers is None or not (real or np.array_equal(numbers, array)):
        raise ValueError(
            f"`{name}` must be numbers of type {leaf.dtype.name}. Received: "
            f"{array.tolist()} of type {array.dtype}. Convert them, so that nothing is "
            "cut in silence."
        )
    return tf.constant(numbers)
