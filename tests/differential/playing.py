"""Pairs of programs that act, play, save and export; see `pairs`."""

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
from comparing import close
from comparing import same_bits

import tf_reinforce as tfr
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import make_envs


def everything(agent):
    """All that an agent and its optimizers keep."""
    owners = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    found = [v for owner in owners if owner is not None for v in owner.variables]
    # Keras saves no state of the dropout in recurrent layers, which never runs here.
    deciding = [v for v in found if not v.path.endswith("seed_generator_state")]
    return [v.numpy() for v in {id(v): v for v in deciding}.values()]


def resumed(c, moved):
    """An agent that goes on, and one that is saved and loaded in between: to the bit.

    Args:
        moved: Function that makes one update of an agent with a record.
    """
    agent = parts.agent_of(c)
    with contextlib.suppress(FloatingPointError):
        moved(c, agent, parts.record_of(c, 0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "agent.keras")
        agent.save(path)
        with parts.quiet():
            other = tfr.load(path)
    same_bits("weights of a loaded agent", everything(other), everything(agent))
    for number in (1, 2):
        record, ends = parts.record_of(c, number), []
        for one in (agent, other):
            try:
                moved(c, one, record)
                ends.append("made")
            except FloatingPointError:  # of half precision; nothing has changed then
                ends.append("refused")
        if ends[0] != ends[1]:
            raise Disagreement(f"an update {ends[0]}, and {ends[1]} after loading")
        same_bits("weights after going on", everything(other), everything(agent))
    found, expected = (one.gradients(parts.record_of(c, 3))[0] for one in (other, agent))
    same_bits("gradients after going on", found, expected)


# Acting


def acting(c):
    """`act`, the exported policy, and Keras in eager mode."""
    agent = parts.agent_of(c)
    moved_a_little(c, agent)
    record = parts.record_of(dataclasses.replace(c, padding=0), 7)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "policy")
        agent.export(path)
        policy = tf.saved_model.load(path)
    state, seen = None, []
    count = c.episodes
    if c.recurrent:
        state = dict(policy.initial_state(tf.constant(count)))
    for step in range(2):
        row = keras.tree.map_structure(lambda x, t=step % c.rows: x[t], clean(record))
        mask = None
        if c.action_mask:
            draw = parts.score_of(c.head).draw
            rng = np.random.default_rng([c.seed, 11, step])
            mask = np.stack([draw(rng, "float32")[1] for _ in range(count)])
            if c.action_mask == "observation":
                row = {**row, "legal": mask}
        seen.append(row)
        given = [mask] if c.action_mask == "info" else []
        state = one_step(c, agent, policy, row, given, state, seen, mask)


def moved_a_little(c, agent):
    """Statistics of a normalizer that has seen something."""
    if agent.normalizer is not None:
        record = agent._checked(parts.record_of(c, 5))
        agent._estimator.update_normalizer(keras.tree.map_structure(tf.constant, record))


def clean(record):
    """Observations without rubbish."""

    def cleaned(array):
        if array.dtype.kind == "f":
            return np.nan_to_num(array, nan=0.25)
        return array

    return keras.tree.map_structure(cleaned, record.observations)


def one_step(c, agent, policy, row, given, state, seen, mask):
    """One decision by all three; the next state."""
    options = {"action_mask": given[0]} if given else {}
    if state is not None:
        options["state"], given = state, [*given, state]
    seed = tf.constant(c.seed, tf.int64)
    drawn = policy.sample(row, seed, *given)
    for greedy, exported in ((True, policy.act(row, *given)), (False, drawn)):
        live = agent.act(row, greedy, None if greedy else c.seed, **options)
        actions, after = live if state is not None else (live, {})
        ours = keras.tree.flatten(actions)
        names = [name for name in sorted(exported) if name.startswith("action")]
        for name, one in zip(names, sent(actions), strict=True):
            same_bits(f"exported {name}", [exported[name]], [one])
        assert len(names) == len(ours)
        for name in after:
            same_bits(f"exported {name}", [exported[name]], [after[name]])
    eager(c, agent, policy, row, given, drawn, seen, mask)
    return after if state is not None else None


def sent(actions):
    """Leaves in the order of the names that an export gives them."""
    from_names = {}

    def walk(part, path):
        if isinstance(part, dict):
            for key, x in part.items():
                walk(x, (*path, key))
        elif isinstance(part, tuple):
            for i, x in enumerate(part):
                walk(x, (*path, str(i)))
        else:
            from_names["_".join(("action", *path))] = part

    walk(actions, ())
    return [from_names[name] for name in sorted(from_names)]


def eager(c, agent, policy, row, given, drawn, seen, mask):
    """Parameters and log-probabilities of Keras itself, as near as tests/test_export."""
    if c.recurrent:
        whole = keras.tree.map_structure(lambda *x: np.stack(x, axis=1), *seen)
        outputs = agent(whole)[:, -1]
    else:
        outputs = agent(row)
    if mask is not None:
        outputs = agent.head.mask_outputs(outputs, tf.constant(mask))
    half = c.dtype not in ("float32", "float64")
    relative, absolute = (2e-2, 2e-2) if half else (1e-5, 1e-5)
    expected = agent.head.parameters(outputs)
    found = policy.distribution(row, *given)
    for name, values in expected.items():
        near(f"exported parameter {name}", found[name], values, relative, absolute)
    raw = raw_of(agent, drawn)
    raws = [drawn[name] for name in sorted(drawn) if name.startswith("raw_action")]
    log_prob = agent.head.distribution(outputs).log_prob(raw)
    exported = policy.log_prob(row, nested_raw(agent, raws, drawn), *given)["log_prob"]
    near("exported log_prob", exported, log_prob, 10 * relative, 10 * absolute)


def raw_of(agent, drawn):
    """The raw actions of an export, nested as the head has them."""
    from tf_reinforce.data import spaces

    names = spaces.names(agent.head.action_spec("float32"), whole="raw_action")
    if isinstance(names, str):
        return drawn["raw_action"]
    given = {k: v for k, v in drawn.items() if k.startswith("raw_action")}
    return keras.tree.map_structure(
        lambda name: given.get(name, given.get(f"raw_action_{name}")), names
    )


def nested_raw(agent, raws, drawn):
    return raw_of(agent, drawn)


def near(what, found, expected, relative, absolute):
    found, expected = (np.asarray(x, "float64") for x in (found, expected))
    if not np.allclose(found, expected, rtol=relative, atol=absolute):
        raise Disagreement(f"{what}: {found.ravel()[:6]} and {expected.ravel()[:6]}")


# Environments


def environments(c):
    """1, 3 or 8 environments side by side, and one of a `VectorEnv` in every mode."""
    agent, make = parts.agent_of(c), functools.partial(worlds.Wander, c)
    one = agent.collect(make, 10, num_envs=1, seed=c.seed)
    if agent._collector.programs[False].engine != "litert":
        return  # rows may depend on their number, in the last bit
    for num_envs in (3, 8):
        other = agent.collect(make, 10, num_envs=num_envs, seed=c.seed)
        same_records(f"{num_envs} environments", other, one)
    if c.baseline == "groups":  # a VectorEnv resets its own
        return
    found = []
    for mode in gym.vector.AutoresetMode:
        env = gym.vector.SyncVectorEnv([make], autoreset_mode=mode)
        found.append(agent.collect(env, 6, seed=c.seed))
        env.close()
    for mode, other in zip(list(gym.vector.AutoresetMode)[1:], found[1:]):
        same_records(f"a VectorEnv, {mode}", unpadded(other), unpadded(found[0]))


def workers(c):
    """Two processes and one: records, and weights after two updates."""
    make, ends = functools.partial(worlds.Wander, c), []
    for count in (1, 2):
        agent = parts.agent_of(c)
        options = dict(episodes_per_epoch=6, num_envs=3, workers=count, seed=c.seed)
        agent.fit(make, epochs=2, verbose=0, **options)
        record = agent.collect(make, 6, num_envs=4, workers=count, seed=c.seed)
        ends.append((everything(agent), record))
    same_bits("weights of two processes", ends[1][0], ends[0][0])
    same_records("two processes", ends[1][1], ends[0][1])


def same_records(what, found, expected):
    keras.tree.assert_same_structure(found, expected)
    flat = (keras.tree.flatten(tuple(x for x in one if x is not None))
            for one in (found, expected))  # fmt: skip
    same_bits(what, *flat)


def unpadded(record):
    """The record with zeros for masks in the padding: there they may be anything."""
    if record.masks is None:
        return record
    happened = np.arange(len(record.masks))[:, None] < record.lengths
    return record._replace(masks=record.masks * happened[..., None])


# The compiled engine


def engines(c):
    """The updates of the compiled engine and of the host's, from one record."""
    env = worlds.World(c)
    compiled_, host = parts.agent_of(c), parts.agent_of(c)
    before = compiled_.get_weights()
    with make_envs.open_envs(env, 1) as world:
        for _ in range(2):
            rollout = compiled_._collector.rollout(
                world, 6, group_size=compiled_.baseline.reset_group_size
            )
            address = dict(seed=c.seed, purpose="training", update=compiled_.updates)
            played, collected = compiled_rollout.collect(rollout, **address)
            made = compiled_._learner.learn(compiled_.optimizer, rollout, played, c.seed)
            logs = host.update(collected.episodes, seed=c.seed)
            compare_updates(c, compiled_, host, made.logs, logs, before)
            host.set_weights(compiled_.get_weights())


def compare_updates(c, ours, theirs, logs, expected, before):
    tolerance = {"float64": 1e-9, "float32": 1e-5}.get(c.dtype, 2e-2)
    size = max(np.abs(x).max(initial=1.0) for x in before if x.dtype.kind != "i")
    found, wanted = ours.get_weights(), theirs.get_weights()
    close("weights of the compiled engine", found, wanted, tolerance * float(size))
    for name, figure in logs.items():
        near(f"log {name} of the compiled engine", figure, expected[name],
             10 * tolerance, 10 * tolerance) if figure == figure else None  # fmt: skip


def seeds(c):
    """Two seeds in one program, and one of them alone."""
    world = worlds.World(c)

    def make(seed):
        return parts.agent_of(dataclasses.replace(c, seed=seed))

    pair = [c.seed, c.seed + 1]
    options = dict(epochs=2, episodes_per_epoch=4)
    population = tfr.train_seeds(make, world, pair, **options)
    if population.failures:
        raise Disagreement(f"failures {population.failures}")
    alone = make(pair[1])
    alone.fit(world, seed=pair[1], verbose=0, **options)
    found, expected = population.agent(pair[1]).get_weights(), alone.get_weights()
    tolerance = {"float64": 1e-9, "float32": 1e-4}.get(c.dtype, 5e-2)
    for ours, theirs in zip(found, expected, strict=True):
        near("weights of one of many seeds", ours, theirs, tolerance, tolerance)


def leaves(action):
    return list(scores.leaves(action))
