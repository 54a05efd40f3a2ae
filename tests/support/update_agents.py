"""Agents with small policies, their record, and their permutations."""

import definitions
import keras
import numpy as np
import toys
from definitions import LENGTHS
from definitions import OBSERVED

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import seeding

N = sum(LENGTHS)  # 20 steps of 5 episodes
A, RATE, GAMMA = 3, 1 / 16, 0.9  # the rate is exact in float32


def dense(outputs, dtype="float64", seed=3):
    rng = np.random.default_rng(seed)
    layer = keras.layers.Dense(outputs, dtype=dtype)
    model = keras.Sequential([keras.Input((OBSERVED,), dtype=dtype), layer])
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model


def record(kind="softmax", dtype="float64"):
    """Returns a record with rewards so large that ratios are clipped.

    With masks, all actions occur.
    """
    rng, episodes = np.random.default_rng(5), definitions.record(heads.Gaussian)
    rows, count = episodes.rewards.shape
    masks = np.ones((rows, count, A), "int8")
    actions = rng.normal(size=(rows, count, A)).astype(dtype)
    if kind != "gaussian":
        actions = rng.integers(A, size=(rows, count)).astype("int32")
        illegal = (actions + rng.integers(1, A, size=(rows, count))) % A
        np.put_along_axis(masks, illegal[..., None], 0, axis=2)
    return episodes._replace(
        observations=episodes.observations.astype(dtype),
        actions=actions,
        rewards=episodes.rewards * (0.125 if kind == "gaussian" else 2),
        masks=masks if kind == "masked" else None,
    )


HEADS = {"softmax": heads.Categorical, "masked": heads.Categorical}


def made(
    kind="softmax",
    dtype="float64",
    optimizer=None,
    baseline="leave_one_out",
    policy=None,
    **settings,
):
    head = HEADS.get(kind, heads.Gaussian)(A, dtype=dtype)
    settings = {"gamma": GAMMA, **settings}
    if kind == "masked":
        settings["action_mask"] = "info/action_mask"
    agent = tfr.Reinforce(policy or dense(A, dtype), head, baseline, **settings)
    agent.compile(optimizer=optimizer or keras.optimizers.SGD(RATE))
    agent.build((None, OBSERVED))
    agent.optimizer.build(agent.policy_variables)
    return agent


def numbers(variables):
    return [np.array(v) for v in variables]


def everything(agent):
    owners = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    found = [v for owner in owners if owner is not None for v in owner.variables]
    return list({id(v): v for v in found}.values())


def parts_of(order, size):
    count = max(1, int(len(order) / (size or len(order)) + 0.5))
    cuts = [k * len(order) // count for k in range(count + 1)]
    return [order[a:b] for a, b in zip(cuts, cuts[1:])]


def drawn(passes, seed=0, update=0, steps=N):
    rng = seeding.generator(seed, "training/minibatches", update)
    return np.stack([rng.permutation(steps) for _ in range(passes)]).astype("int32")


def close(found, expected, tolerance=1e-12):
    scale = max(1.0, *(np.abs(x).max() for x in expected))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


def complete(optimizer, policy=None, **settings):
    """Returns an agent with all state that an update can change."""
    critic = baselines.Value(dense(1, "float32"), passes=2, minibatch_size=7)
    return made(
        "gaussian",
        "float32",
        optimizer,
        critic,
        policy,
        normalize_observations=True,
        scale_rewards=True,
        scale_advantages="running",
        **settings,
    )


def step_of(agent, passes=1, minibatch_size=None, **attributes):
    """Returns an agent's `TrainStep`, with other options and attributes."""
    options = dict(passes=passes, minibatch_size=minibatch_size)
    toys.set_options(agent.trainer.estimator, **options)
    step = agent.trainer.train_step()
    for name, value in attributes.items():
        setattr(step, name, value)
    return step
