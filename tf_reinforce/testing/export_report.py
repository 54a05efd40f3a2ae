"""Compares an exported policy with its agent."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces
from tf_reinforce.export import formats
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
        lines = [f"{name:28} {value:.1e}\n" for name, value in self.differences.items()]
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
    """Compares all functions of an exported policy with those of its agent.

        difference = |x - y| / max(1, |y|),    for a result x, and y of the agent

    Rounding may change a result by more than the tolerance, for example when two actions
    are equally likely. The result then counts as a tie instead of a difference, provided
    that the agent returns the same result after its policy outputs are changed by at most
    the tolerance. For a recurrent policy, the check uses its states after up to 20 steps.

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
        ImportError: If the runtime of the format is not installed.
        OSError: If there is no export at `path`.
        ValueError: If the export has other functions than the agent would write.
    """
    count = validation.positive_int("observations", observations)
    seed = validation.check_seed(seed)
    policy, metadata = agent.trainer.live_policy(), formats.read_metadata(path)
    functions = policy.functions_for(metadata["format"])
    if set(functions) != set(metadata["functions"]):
        raise ValueError(
            "`path` must be an export of `agent`. Received: an export with the functions "
            f"{sorted(metadata['functions'])}. Export the agent again."
        )
    exported = formats.load(path)
    inputs, extra = _inputs(agent, env, count, seed, env_kwargs)
    noise = policy.actor.sample_noise(tf.constant(seed, tf.int64), count)
    values = _values(functions, [inputs, seed, *extra], noise)
    noise_of = {"act": None, "sample": noise}
    differences, ties = {}, 0
    for name, function in functions.items():
        given = {"count": count} if name == "initial_state" else values
        arguments = _arguments(function, given)
        pairs = map(keras.tree.flatten, (function.input_signature, arguments))
        results = exported[name]({x.name: array for x, array in zip(*pairs, strict=True)})
        for key, tensor in function(*arguments).items():
            result = results.get(key)
            difference = _differences(result, tensor.numpy())
            large = (difference > tolerance) & np.isfinite(difference)
            if name in noise_of and large.any() and "action" in key:
                given = inputs, extra, noise_of[name], tolerance
                near = _nearby_actions(policy.policy_functions, *given)[key]
                own = np.broadcast_to(result, near.shape)
                tied = large & (_differences(own, near) <= tolerance).any(axis=0)
                ties += int(np.sum(tied))
                difference[tied] = 0.0
            differences[f"{name}/{key}"] = float(np.max(difference, initial=0.0))
    return ExportReport(count, env is not None, differences, ties, tolerance)


def _inputs(agent, env, count, seed, env_kwargs):
    """Returns N observations, and a list with their masks and recurrent states."""
    policy, rng, extra = agent.trainer.live_policy(), np.random.default_rng(seed), []
    actor, takes_masks = policy.actor, policy.policy_functions.mask_is_input

    def normal(spec):
        return rng.standard_normal((count, *spec.shape)).astype(spec.dtype.name)

    if env is not None:
        record = agent.collect(
            env,
            steps=count,
            num_envs=_NUM_ENVS,
            seed=seed,
            env_kwargs=env_kwargs,
            max_episode_steps=max(-(-count // _NUM_ENVS), agent.context or 1),
        )
        valid = records.valid_steps(record.lengths, int(max(record.lengths)))
        valid = valid._replace(indices=valid.indices[:count])
        observations = valid.gather(record.observations)
        extra += [valid.gather(record.masks)] if takes_masks else []
    else:
        observations = keras.tree.map_structure(normal, actor.observation_spec)
        if (space := agent.observation_space) is not None:
            observations = spaces.sample_observations(space, actor.dtype, count, rng)
        if takes_masks:
            masks = rng.integers(0, 2, (count, actor.mask_size)).astype("int8")
            masks[~actor.head.has_legal_action(masks)] = actor.head.flatten_mask(None)
            extra.append(masks)
    if actor.memory is not None:
        extra.append(_states(policy, observations, extra))
    return observations, extra


def _states(policy, observations, extra):
    """Returns recurrent states after 0 to 20 steps."""
    actor, sample = policy.actor, policy.functions["sample"]
    count = len(keras.tree.flatten(observations)[0])
    lengths, states = np.arange(count) % 21, actor.initial_state(count)
    for step in range(20):
        others = keras.tree.map_structure(
            lambda x, step=step: np.roll(x, step, axis=0), [observations, *extra]
        )
        seed, before = tf.constant(step, tf.int64), actor.named_states(states)
        results = sample(others[0], seed, *others[1:], before)
        for i, (name, state) in enumerate(before.items()):
            is_running = np.reshape(lengths > step, [-1] + [1] * (len(state.shape) - 1))
            states[i] = tf.where(is_running, results.get(name, state + 1), state)
    return actor.named_states(states)


def _nearby_actions(functions, observation, extra, noise, tolerance):
    """Returns `[64, N, …]` actions by name, for slightly changed policy outputs."""
    rng = np.random.default_rng(0)
    outputs = functions.outputs(observation, extra)[0].numpy()
    largest = tolerance * np.maximum(1.0, np.abs(outputs))
    nearby = []
    for _ in range(_NEARBY):
        changed = outputs + largest * rng.uniform(-1.0, 1.0, outputs.shape)
        changed = tf.constant(changed.astype(outputs.dtype))
        actions = functions.actor.select_actions(changed, noise)
        nearby.append(functions.actions(actions, with_raw=noise is not None))
    return {key: np.stack([x[key] for x in nearby]) for key in nearby[0]}


def _values(functions, inputs, noise):
    """Returns the values of all arguments of the exported functions by name.

    Args:
        functions: Dict of `tf.function`s.
        inputs: List of the observation, the seed, and what all functions take.
        noise: List of tensors, for functions that take noise instead of the seed.
    """
    sample, draws_noise = functions["sample"], "log_prob" in functions
    if not draws_noise:
        inputs = [inputs[0], noise, *inputs[2:]]
    pairs = map(keras.tree.flatten, (sample.input_signature, inputs))
    values = {spec.name: x for spec, x in zip(*pairs, strict=True)}
    if draws_noise:
        results = sample(*_arguments(sample, values))
        values |= {k: x for k, x in results.items() if k.startswith("raw_action")}
    return values


def _arguments(function, values):
    """Returns a function's arguments, in the number types that it takes."""
    return keras.tree.map_structure(
        lambda spec: np.asarray(values[spec.name], spec.dtype.as_numpy_dtype),
        function.input_signature,
    )


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
