"""Compares an exported policy with its agent, in a process without this package."""

import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces
from tf_reinforce.export import policy_functions
from tf_reinforce.export import runtimes
from tf_reinforce.support import validation

_NUM_ENVS = 8
_NEARBY = 64  # results near a result, with which a different result is compared


class ExportReport(NamedTuple):
    """The differences that `check_export` found, which `print` shows as text."""

    observations: int  # N, the number of observations
    played: bool  # whether the agent played the observations, or they are random
    differences: dict[str, float]  # keys: function/result, for example "act/action"
    ties: int  # results that differ, but that a rounding error may change
    tolerance: float

    @property
    def difference(self) -> float:
        """Returns the largest difference."""
        return max(self.differences.values())

    @property
    def passed(self) -> bool:
        """Returns whether all differences are within the tolerance."""
        return self.difference <= self.tolerance

    def __str__(self) -> str:
        source = "played" if self.played else "random"
        lines = [f"{name:28}{value:.1e}\n" for name, value in self.differences.items()]
        ties = f", {self.ties} ties" if self.ties else ""
        return (
            f"{''.join(lines)}maximal difference {self.difference:.1e} on "
            f"{self.observations:,} {source} observations{ties}; the limit is "
            f"{self.tolerance:.0e}"
        )


def check_export(
    agent: Any,
    path: str | os.PathLike,
    env: Any = None,
    *,
    observations: int = 1000,
    tolerance: float = 1e-5,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Compares an exported policy with its agent, in a process without this package.

        difference = |x - y| / max(1, |y|),    for a result x, and y of the agent

    A new process loads the export and calls all of its functions. It imports only NumPy
    and the runtime for the format.

    Rounding may change a result by more than the tolerance, for example when two actions
    are equally likely. Such a result counts as a tie, and not as a difference, if the
    agent also returns it after a change of policy outputs and noise by the tolerance.

    Args:
        agent: `Reinforce`, the agent that wrote the export.
        path: Path of the export.
        env: Environment in any form that `Reinforce.fit` accepts, where the agent plays
            to collect the observations; or `None` to draw them from the observation
            space.
        observations: Positive int, the number of observations.
        tolerance: Float, the largest difference that passes the check.
        seed: Int, the seed of the observations, the noise and the sampled actions.
        env_kwargs: Dict of keyword arguments for the environment's constructor.

    Returns:
        `ExportReport`; its `passed` says whether the export agrees with the agent. A
        result that is missing, or has another shape or number type, has an infinite
        difference.

    Raises:
        RuntimeError: If the new process cannot load or run the export.
        OSError: If there is no export at `path`.
        ValueError: If the export has other functions than the agent would write.
    """
    count = validation.positive_int("observations", observations)
    seed = validation.check_seed(seed)
    policy, metadata = agent._live_policy, runtimes.read_metadata(path)
    functions = policy.functions_for(metadata["format"])
    if set(functions) != set(metadata["functions"]):
        raise ValueError(
            "`path` must be an export of `agent`. Received: an export with the functions "
            f"{sorted(metadata['functions'])}. Export the agent again."
        )
    inputs, extra = _recorded(agent, env, count, seed, env_kwargs)
    noise = policy.actor.sample_noise(tf.constant(seed, tf.int64), count)
    arguments = _arguments(policy, functions, inputs, extra, noise, seed)
    arrays = {
        f"{name}/{spec.name}": array
        for name, function in functions.items()
        for spec, array in zip(
            *map(keras.tree.flatten, (function.input_signature, arguments[name])),
            strict=True,
        )
    }
    results = _run_in_new_process(path, arrays)
    noise_of = {"act": [], "sample": noise}
    differences, ties = {}, 0
    for name, function in functions.items():
        for key, tensor in function(*arguments[name]).items():
            result = results.get(f"{name}/{key}")
            difference = _differences(result, tensor.numpy())
            if name in noise_of and key.startswith(("action", "raw_action")):
                large = (difference > tolerance) & np.isfinite(difference)
                for row in np.unique(np.nonzero(large)[0]):
                    given = keras.tree.map_structure(
                        lambda x: x[row : row + 1],  # noqa: B023
                        (inputs, extra, noise_of[name]),
                    )
                    near = _nearby_actions(policy, tolerance, *given)[key].numpy()
                    own = np.broadcast_to(result[row], near.shape)
                    is_near = (_differences(own, near) <= tolerance).any(axis=0)
                    ties += int(np.sum(large[row] & is_near))
                    difference[row] = np.where(large[row] & is_near, 0.0, difference[row])
            differences[f"{name}/{key}"] = float(np.max(difference, initial=0.0))
    return ExportReport(count, env is not None, differences, ties, tolerance)


def _recorded(agent, env, count, seed, env_kwargs):
    """Returns N observations, and a list with their masks and recurrent states."""
    policy = agent._live_policy
    if env is None:
        record = _random_episodes(agent, count, np.random.default_rng(seed))
    else:
        record = agent.collect(
            env,
            steps=count,
            num_envs=_NUM_ENVS,
            seed=seed,
            env_kwargs=env_kwargs,
            max_episode_steps=-(-count // _NUM_ENVS),
        )
    extra = [record.masks] if policy.policy_functions.mask_is_input else []
    if policy.actor.recurrent is not None:
        extra.append(_states(policy, record, extra))
    valid = records.valid_steps(record.lengths, int(max(record.lengths)))
    valid = valid._replace(indices=valid.indices[:count])
    return valid.gather(record.observations), valid.gather(extra)


def _nearby_actions(policy, tolerance, observation, extra, noise):
    """Returns `[64, …]` actions by name, for slightly changed outputs and noise."""
    rng, functions = np.random.default_rng(0), policy.policy_functions
    outputs, _ = functions.outputs(observation, extra)
    changed = []
    for array in (outputs, *noise):
        array = np.repeat(np.asarray(array), _NEARBY, axis=0)
        change = tolerance * np.maximum(1.0, np.abs(array))
        change *= rng.uniform(-1.0, 1.0, array.shape)
        changed.append(tf.constant((array + change).astype(array.dtype)))
    return functions.actions(changed[0], changed[1:] or None)


def _random_episodes(agent, count, rng):
    """Returns 8 episodes of random observations and masks, at least N steps in all."""
    actor, steps = agent._live_policy.actor, -(-count // _NUM_ENVS)
    rows, space = (steps + 1) * _NUM_ENVS, agent.observation_space
    if space is None:
        observations = keras.tree.map_structure(
            lambda spec: rng.standard_normal((rows, *spec.shape)).astype(spec.dtype.name),
            actor.observation_spec,
        )
    else:
        observations = spaces.sample_observations(space, actor.dtype, rows, rng)
    masks = rng.integers(0, 2, (rows, actor.mask_size)).astype("int8")
    if actor.mask_size:
        is_possible = actor.head.has_legal_action(masks)
        masks[~is_possible] = actor.head.flatten_mask(None)
    observations, masks = keras.tree.map_structure(
        lambda x: x.reshape(steps + 1, _NUM_ENVS, *x.shape[1:]), (observations, masks)
    )
    lengths = np.full(_NUM_ENVS, steps)
    return records.Episodes(observations, None, None, lengths, None, masks[:-1])


def _states(policy, record, masks):
    """Returns the recurrent states before each step, a dict of arrays `[T, B, …]`."""
    state = policy_functions.state_dict(policy.actor.initial_state(record.count))
    states = []
    for step in range(int(max(record.lengths))):
        states.append(state)
        inputs = keras.tree.map_structure(
            operator.itemgetter(step), [record.observations, *masks]
        )
        results = policy.functions["distribution"](*inputs, state)
        state = {name: results[name] for name in state}
    return keras.tree.map_structure(lambda *steps: tf.stack(steps), *states)


def _arguments(policy, functions, observations, extra, noise, seed):
    """Returns each function's arguments, in the number types that it takes."""
    actor, seed = policy.actor, tf.constant(seed, tf.int64)
    draws_noise = functions is policy.functions
    random = seed if draws_noise else keras.tree.pack_sequence_as(actor.head.noise, noise)
    arguments = dict.fromkeys(("act", "distribution"), [observations, *extra])
    arguments["sample"] = [observations, random, *extra]
    if draws_noise:
        sample = functions["sample"](*arguments["sample"])
        names = policy_functions.signature_names(actor.action_spec, "raw_action")
        raw_action = keras.tree.map_structure(sample.get, names)
        arguments["log_prob"] = [observations, raw_action, *extra]
        arguments["initial_state"] = [tf.constant(len(noise[0]))]
    return {
        name: keras.tree.map_structure_up_to(
            function.input_signature,
            lambda spec, x: np.asarray(x, spec.dtype.as_numpy_dtype),
            function.input_signature,
            tuple(arguments[name]),
        )
        for name, function in functions.items()
    }


def _run_in_new_process(path, arrays):
    """Returns what `runtimes.run` computes in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        inputs, results = (os.path.join(folder, x) for x in ("in.npz", "out.npz"))
        np.savez(inputs, **arrays)
        command = [sys.executable, "-P", runtimes.__file__, os.fspath(path)]
        process = subprocess.run(
            [*command, inputs, results],
            capture_output=True,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
        )
        if process.returncode:
            raise RuntimeError(
                f"The export {os.fspath(path)} must run in a new process. Is the runtime "
                "of its format installed? The process failed with exit code "
                f"{process.returncode}: {process.stderr.strip()[-1000:]}"
            )
        with np.load(results) as file:
            return dict(file)


def _differences(result, expected):
    """Returns the difference of each number in a result, infinite if the form differs."""
    form = expected.shape, expected.dtype
    if result is None or (result.shape, result.dtype) != form:
        return np.full(expected.shape or 1, np.inf)
    x, y = (array.astype("float64") for array in (result, expected))
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        difference = np.abs(x - y) / np.maximum(1.0, np.abs(y))
    return np.where(equal, 0.0, np.where(np.isnan(difference), np.inf, difference))
