"""Compares pairs of programs that act, collect, save and export; see `pairs`."""

import contextlib
import dataclasses
import functools
import os
import tempfile

import gymnasium as gym
import keras
import numpy as np
import parts
import scores
import tensorflow as tf
import worlds
from comparing import Disagreement
from comparing import assert_close
from comparing import assert_equal_bits

import tf_reinforce as tfr
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments as environments_
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.collect import xla_rollout


def all_variables(agent):
    """Returns the values of all variables of an agent and its optimizers."""
    owners = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    variables = [v for owner in owners if owner is not None for v in owner.variables]
    # Keras does not save the dropout state of recurrent layers; no dropout runs here.
    saved = [v for v in variables if not v.path.endswith("seed_generator_state")]
    return [v.numpy() for v in {id(v): v for v in saved}.values()]


def resumed(c, make_update):
    """Compares training with and without saving and loading, to the bit.

    Args:
        make_update: Function that makes one update of an agent with a record.
    """
    agent = parts.agent_of(c)
    with contextlib.suppress(FloatingPointError):
        make_update(c, agent, parts.record_of(c, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "agent.keras")
        agent.save(path)
        with parts.ignore_inference_warning():
            loaded = tfr.load(path)
    assert_equal_bits(
        "weights of a loaded agent", all_variables(loaded), all_variables(agent)
    )
    for number in (1, 2):
        record, results = parts.record_of(c, number), []
        for learner in (agent, loaded):
            try:
                make_update(c, learner, record)
                results.append("succeeds")
            except FloatingPointError:  # in half precision; the agent is unchanged
                results.append("fails")
        if results[0] != results[1]:
            raise Disagreement(f"an update {results[0]}, but {results[1]} after loading")
        assert_equal_bits(
            "weights after continued training",
            all_variables(loaded),
            all_variables(agent),
        )
    gradients, expected = (
        learner.gradients(parts.record_of(c, 3))[0] for learner in (loaded, agent)
    )
    assert_equal_bits("gradients after continued training", gradients, expected)


# Acting


def acting(c):
    """Compares `act`, the exported policy, and Keras in eager mode."""
    agent = parts.agent_of(c)
    update_normalizer(c, agent)
    record = parts.record_of(dataclasses.replace(c, padding=0), 7)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "policy")
        agent.export(path)
        policy = tf.saved_model.load(path)
    state, observations = None, []
    count = c.episodes
    if c.recurrent:
        state = dict(policy.initial_state(tf.constant(count)))
    for step in range(2):
        observation = keras.tree.map_structure(
            lambda x, t=step % c.rows: x[t], observations_without_nan(record)
        )
        mask = None
        if c.action_mask:
            draw = parts.score_of(c.head).draw
            rng = np.random.default_rng([c.seed, 11, step])
            mask = np.stack([draw(rng, "float32")[1] for _ in range(count)])
            if c.action_mask == "observation":
                observation = {**observation, "legal": mask}
        observations.append(observation)
        extra_inputs = [mask] if c.action_mask == "info" else []
        state = compare_step(
            c, agent, policy, observation, extra_inputs, state, observations, mask
        )


def update_normalizer(c, agent):
    """Updates the statistics of the normalizer with a record."""
    if agent.normalizer is not None:
        record = agent.trainer.check_episodes(parts.record_of(c, 5))
        agent.trainer.estimator.update_normalizer(
            keras.tree.map_structure(tf.constant, record)
        )


def observations_without_nan(record):
    """Returns the observations with 0.25 instead of NaN."""

    def cleaned(array):
        if array.dtype.kind == "f":
            return np.nan_to_num(array, nan=0.25)
        return array

    return keras.tree.map_structure(cleaned, record.observations)


def compare_step(c, agent, policy, observation, extra_inputs, state, observations, mask):
    """Compares the actions of all three programs; returns the next recurrent state."""
    options = {"action_mask": extra_inputs[0]} if extra_inputs else {}
    if state is not None:
        options["state"], extra_inputs = state, [*extra_inputs, state]
    seed = tf.constant(c.seed, tf.int64)
    samples = policy.sample(observation, seed, *extra_inputs)
    for greedy, exported in (
        (True, policy.act(observation, *extra_inputs)),
        (False, samples),
    ):
        result = agent.act(observation, greedy, None if greedy else c.seed, **options)
        actions, next_state = result if state is not None else (result, {})
        num_actions = len(keras.tree.flatten(actions))
        names = [name for name in sorted(exported) if name.startswith("action")]
        for name, action in zip(names, flatten_by_name(actions), strict=True):
            assert_equal_bits(f"exported {name}", [exported[name]], [action])
        assert len(names) == num_actions
        for name in next_state:
            assert_equal_bits(f"exported {name}", [exported[name]], [next_state[name]])
    compare_with_eager(
        c, agent, policy, observation, extra_inputs, samples, observations, mask
    )
    return next_state if state is not None else None


def flatten_by_name(actions):
    """Returns the leaves in the order of their names in the export."""
    by_name = {}

    def visit(part, path):
        if isinstance(part, dict):
            for key, x in part.items():
                visit(x, (*path, key))
        elif isinstance(part, tuple):
            for i, x in enumerate(part):
                visit(x, (*path, str(i)))
        else:
            by_name["_".join(("action", *path))] = part

    visit(actions, ())
    return [by_name[name] for name in sorted(by_name)]


def compare_with_eager(
    c, agent, policy, observation, extra_inputs, samples, observations, mask
):
    """Compares parameters and log-probabilities with Keras in eager mode."""
    if c.recurrent:
        sequence = keras.tree.map_structure(lambda *x: np.stack(x, axis=1), *observations)
        outputs = agent(sequence)[:, -1]
    else:
        outputs = agent(observation)
    if mask is not None:
        outputs = agent.head.mask_outputs(outputs, tf.constant(mask))
    is_half = c.dtype not in ("float32", "float64")
    relative, absolute = (2e-2, 2e-2) if is_half else (1e-5, 1e-5)
    expected = agent.head.parameters(outputs)
    parameters = policy.distribution(observation, *extra_inputs)
    for name, values in expected.items():
        assert_near(
            f"exported parameter {name}", parameters[name], values, relative, absolute
        )
    raw = nested_raw_actions(agent, samples)
    log_prob = agent.head.distribution(outputs).log_prob(raw)
    exported = policy.log_prob(observation, raw, *extra_inputs)["log_prob"]
    assert_near("exported log_prob", exported, log_prob, 10 * relative, 10 * absolute)


def nested_raw_actions(agent, samples):
    """Returns the raw actions of an export, nested as those of the head."""
    from tf_reinforce.data import spaces

    names = spaces.names(agent.head.action_spec("float32"), root="raw_action")
    if isinstance(names, str):
        return samples["raw_action"]
    raw_actions = {k: v for k, v in samples.items() if k.startswith("raw_action")}
    return keras.tree.map_structure(
        lambda name: raw_actions.get(name, raw_actions.get(f"raw_action_{name}")), names
    )


def assert_near(name, actual, expected, relative, absolute):
    actual, expected = (np.asarray(x, "float64") for x in (actual, expected))
    if not np.allclose(actual, expected, rtol=relative, atol=absolute):
        raise Disagreement(f"{name}: {actual.ravel()[:6]} and {expected.ravel()[:6]}")


# Environments


def environments(c):
    """Compares 1, 3 and 8 environments, and a `VectorEnv` in all autoreset modes."""
    agent, make = parts.agent_of(c), functools.partial(worlds.RandomEnv, c)
    reference = agent.collect(make, 10, num_envs=1, seed=c.seed)
    if agent.trainer.collector.programs["acting", False].runtime != "litert":
        return  # last bits may depend on the number of rows
    for num_envs in (3, 8):
        record = agent.collect(make, 10, num_envs=num_envs, seed=c.seed)
        assert_equal_records(f"{num_envs} environments", record, reference)
    if c.baseline == "groups":  # a VectorEnv has no reset seeds for groups
        return
    records = []
    for mode in gym.vector.AutoresetMode:
        env = gym.vector.SyncVectorEnv([make], autoreset_mode=mode)
        records.append(agent.collect(env, 6, seed=c.seed))
        env.close()
    for mode, record in zip(list(gym.vector.AutoresetMode)[1:], records[1:]):
        assert_equal_records(
            f"a VectorEnv, {mode}",
            with_zero_padding(record),
            with_zero_padding(records[0]),
        )


def workers(c):
    """Compares two processes with one: records, and weights after two updates."""
    make, results = functools.partial(worlds.RandomEnv, c), []
    for count in (1, 2):
        agent = parts.agent_of(c)
        options = dict(episodes_per_epoch=6, num_envs=3, workers=count, seed=c.seed)
        agent.fit(make, epochs=2, verbose=0, **options)
        record = agent.collect(make, 6, num_envs=4, workers=count, seed=c.seed)
        results.append((all_variables(agent), record))
    assert_equal_bits("weights of two processes", results[1][0], results[0][0])
    assert_equal_records("two processes", results[1][1], results[0][1])


def assert_equal_records(name, actual, expected):
    keras.tree.assert_same_structure(actual, expected)
    flat = (keras.tree.flatten(tuple(x for x in record if x is not None))
            for record in (actual, expected))  # fmt: skip
    assert_equal_bits(name, *flat)


def with_zero_padding(record):
    """Returns the record with zeros for masks in the padding, which are arbitrary."""
    if record.masks is None:
        return record
    valid = np.arange(len(record.masks))[:, None] < record.lengths
    return record._replace(masks=record.masks * valid[..., None])


# The compiled engine


def engines(c):
    """Compares updates of the compiled engine and of the host from the same record."""
    env = worlds.RandomTensorEnv(c)
    compiled, host = parts.agent_of(c), parts.agent_of(c)
    initial_weights = compiled.get_weights()
    with make_envs.open_envs(env, 1) as envs:
        for _ in range(2):
            key = seeding.StreamKey(c.seed, "training", compiled.updates)
            request = environments_.CollectionRequest(
                key, 6, group_size=compiled.baseline.reset_group_size
            )
            rollout = compiled.trainer.collector.program(envs, request)
            collected = xla_rollout.collect(rollout, key)
            update_result = compiled.trainer.learner.update_from_rollout(
                compiled.optimizer, rollout, collected.rollout_result, c.seed
            )
            logs = host.update(collected.episodes, seed=c.seed)
            compare_updates(
                c, compiled, host, update_result.metrics, logs, initial_weights
            )
            host.set_weights(compiled.get_weights())


def compare_updates(c, ours, theirs, logs, expected, initial_weights):
    tolerance = {"float64": 1e-9, "float32": 1e-5}.get(c.dtype, 2e-2)
    largest = max(
        np.abs(x).max(initial=1.0) for x in initial_weights if x.dtype.kind != "i"
    )
    actual, expected_weights = ours.get_weights(), theirs.get_weights()
    assert_close(
        "weights of the compiled engine",
        actual,
        expected_weights,
        tolerance * float(largest),
    )
    for name, value in logs.items():
        assert_near(f"log {name} of the compiled engine", value, expected[name],
             10 * tolerance, 10 * tolerance) if value == value else None  # fmt: skip


def seeds(c):
    """Compares one seed of two in one program with the same seed alone."""
    env = worlds.RandomTensorEnv(c)

    def make(seed):
        return parts.agent_of(dataclasses.replace(c, seed=seed))

    both_seeds = [c.seed, c.seed + 1]
    options = dict(epochs=2, episodes_per_epoch=4)
    results = tfr.train_seeds(make, env, both_seeds, **options)
    if results.failures:
        raise Disagreement(f"failures {results.failures}")
    single_agent = make(both_seeds[1])
    single_agent.fit(env, seed=both_seeds[1], verbose=0, **options)
    actual, expected = (
        results.agent(both_seeds[1]).get_weights(),
        single_agent.get_weights(),
    )
    tolerance = {"float64": 1e-9, "float32": 1e-4}.get(c.dtype, 5e-2)
    for ours, theirs in zip(actual, expected, strict=True):
        assert_near("weights of one of many seeds", ours, theirs, tolerance, tolerance)


def leaves(action):
    return list(scores.leaves(action))
