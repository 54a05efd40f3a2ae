"""Tests that policies with a memory follow the gradient, by enumeration of all episodes.

The reward of the last action depends on the first observation, so a policy has to
remember it. There are three steps, three observations and two actions.
"""

import itertools
import warnings

import keras
import memory_agents
import numpy as np
import pytest
import sweeps
import tensorflow as tf
from memory_agents import ALL

import tf_reinforce as tfr

STEPS, FIRST = 3, np.array([0.5, 0.2, 0.3])
REWARDS = np.array([[1.0, -2.0], [-3.0, 0.5], [2.0, 4.0]])  # by first, and by last action


def trajectories():
    """Returns the record of all trajectories, and the probabilities of transitions."""
    chances, columns = [], []
    for first in range(3):
        for acts in itertools.product(range(2), repeat=STEPS):
            for turns in itertools.product(range(2), repeat=STEPS - 1):
                places, chance = [first], FIRST[first]
                for act, turn in zip(acts, turns):
                    chance *= [0.7, 0.3][turn]
                    places.append((places[-1] + 1 + (act + turn) % 2) % 3)
                rewards = [0.1 * act - 0.2 * place for act, place in zip(acts, places)]
                rewards[-1] += REWARDS[first, acts[-1]]
                chances.append(chance)
                columns.append((places, acts, rewards))
    places, acts, rewards = (np.array(x).T for x in zip(*columns))
    observations = np.eye(3)[np.concatenate([places, places[-1:]])]
    count = len(columns)
    lengths, ended = np.full(count, STEPS, "int32"), np.ones(count, bool)
    record = tfr.Episodes(observations, acts.astype("int32"), rewards, lengths, ended)
    return record, np.array(chances)


CASES = {
    "attention": dict(kind="attention"),
    "attention with actions and rewards": dict(kind="attention", names=ALL),
    "attention and values": dict(kind="attention", names=ALL, has_values=True),
    "gru with actions and rewards": dict(kind="gru", names=ALL),
    "two steps": dict(kind="dense", names=ALL, context=2),
    "three steps": dict(kind="dense", names=ALL, context=3),
    "three steps and values": dict(
        kind="attention", names=ALL, context=3, has_values=True
    ),
}


def make_agent(has_values=False, **options):
    keras.utils.set_random_seed(2)
    sizes = {"outputs": 2, "values": 1} if has_values else 2
    policy = memory_agents.model(
        sizes=sizes, dtype="float64", observations=(3,), is_discrete=True, **options
    )
    baseline = tfr.baselines.Value(loss_weight=0.0) if has_values else None
    agent = tfr.Reinforce(
        policy,
        tfr.heads.Categorical(2, dtype="float64"),
        baseline,
        gamma=1.0,
        context=options.get("context"),
        context_inputs=options.get("names", ALL[:1]),
    )
    agent.compile()
    agent.build((None, 3))
    return agent


def likelihoods(agent, record):
    """Returns the probability of the actions of each trajectory, as a definition."""
    columns = [
        memory_agents.history(record.observations[:, b], agent.context_inputs, record, b)
        for b in range(len(record.lengths))
    ]
    if agent.context is None:
        parts = keras.tree.map_structure(lambda *x: tf.constant(np.stack(x)), *columns)
        options = {}
    else:
        pairs = [memory_agents.windows(x, agent.context) for x in columns]
        parts, valid = keras.tree.map_structure(
            lambda *x: tf.constant(np.concatenate(x)), *pairs
        )
        options = {"mask": keras.tree.map_structure(lambda _: valid, parts)}
    if len(agent.context_inputs) == 1:
        parts = parts["observations"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not support masking", UserWarning)
        outputs = agent.policy(parts, **options)
    outputs = outputs["outputs"] if isinstance(outputs, dict) else outputs
    log_probs = tf.nn.log_softmax(tf.reshape(outputs, [-1, STEPS + 1, 2])[:, :STEPS])
    chosen = tf.gather(log_probs, tf.constant(record.actions.T), axis=2, batch_dims=2)
    return tf.exp(tf.reduce_sum(chosen, axis=1))


@pytest.mark.parametrize(
    "name", sweeps.some(CASES, ["attention and values", "two steps"])
)
def test_expected_gradient_is_that_of_the_expected_return(name):
    """E[∇ of one episode] = ∇ Σ_τ P(τ) R(τ), for every weight."""
    agent, (record, chances) = make_agent(**CASES[name]), trajectories()
    returns, weights = record.rewards.sum(axis=0), agent.policy.trainable_variables
    with tf.GradientTape() as tape:
        probs = likelihoods(agent, record) * chances
        loss = -tf.reduce_sum(probs * returns)
    exact = tape.gradient(loss, [w.value for w in weights])
    assert np.sum(probs) == pytest.approx(1, abs=1e-13)
    expected = [np.zeros(w.shape) for w in weights]
    estimator = agent.trainer.estimator
    gradients_of = tf.function(lambda x: estimator.gradients(x).gradients)
    for b, prob in enumerate(probs.numpy()):
        own = keras.tree.map_structure(
            lambda x: x if x is None else tf.gather(x, [b], axis=min(1, x.ndim - 1)),  # noqa: B023
            record,
        )
        gradients = gradients_of(own)
        expected = [x + prob * y for x, y in zip(expected, gradients, strict=True)]
    for ours, theirs in zip(expected, exact, strict=True):
        theirs = np.zeros(ours.shape) if theirs is None else theirs
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert max(np.abs(x).max() for x in expected) > 0.01
