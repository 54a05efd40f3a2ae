"""Checks an agent's expected update against the gradient of the expected return."""

import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.testing import enumeration
from tf_reinforce.testing import expectations

# `_TRANSITIONS` defines a small task by pairs (probability, next state) for each state
# and action. A next state of `None` terminates the episode. A pair of state and action
# that is not listed also terminates the episode.
_NUM_STATES, _HORIZON = 2, 3
_TERMINATION = ((1.0, None),)
_TRANSITIONS = {
    (0, 0): ((0.7, 1), (0.3, 0)),
    (1, 0): ((0.6, None), (0.4, 1)),
    (1, 1): ((1.0, 0),),
}

# For baselines in `_PERMUTATION_INVARIANT`, the order of the episodes in a batch makes no
# difference, and is therefore not enumerated.
_PERMUTATION_INVARIANT = (
    baselines.Zero,
    baselines.LeaveOneOut,
    baselines.Mean,
    baselines.Value,
)


def check_gradient(
    head: Any = None,
    baseline: Any = "leave_one_out",
    *,
    batch_size: int = 2,
    masks: Any = None,
    tolerance: float = 1e-9,
    seed: int = 0,
    **settings: Any,
) -> expectations.GradientReport:
    """Checks that the expected update is the gradient of the expected return.

        E[Δw] = ∇ Σ_τ P(τ; w) Σₜ γᵗ rₜ

    In this equation, Δw is the change of the weights w in one update, and τ is a
    trajectory of a small task. To compute the left side, the agent updates its weights on
    every possible batch of `batch_size` episodes, and the updates are averaged with the
    probabilities of the batches. The right side is a sum over all trajectories, which is
    differentiated without the log-derivative trick. Because nothing is sampled, any
    difference between the two sides is a bias or a rounding error.

    With minibatches or several passes, an update makes several gradient steps. Only the
    first step is compared, averaged over all possible first minibatches, because later
    steps are not expected to be unbiased.

    The task has two states and at most three steps, with random transitions, early
    termination, and rewards that depend on state and action. The policy is one dense
    layer, which receives the one-hot vector of the state. All numbers are float64.

    Args:
        head: `tfr.heads.Head` with integer actions, by default `Categorical(2)`. If it
            has weights, they are compared too, and it needs `dtype="float64"`.
        baseline: Baseline in any form that `Reinforce` accepts. A custom one is checked
            with the episodes in all orders. Its weights and optimizer are restored after
            each update, and it must not keep state elsewhere.
        batch_size: Int from 1 to 3, the number of episodes in a batch.
        masks: `[2, head.mask_size]` integers, one action mask for each state, or `None`
            if all actions are legal.
        tolerance: Float, the largest accepted difference between entries of the two
            gradients, or `None` to accept any.
        seed: Int, the seed of the policy's weights.
        **settings: Options of `Reinforce`. The defaults `gamma=0.9` and
            `discount_states=True` should give an unbiased update.

    Returns:
        `GradientReport`.

    Raises:
        AssertionError: If the difference exceeds the tolerance, or the probabilities of
            the actions do not sum to one.
        ValueError: If an argument is invalid, or the task has too many batches.

    Example:

    This baseline is biased, because it depends on the return that it is subtracted from:

    >>> class Half(baselines.Baseline):
    ...     def estimate(self, returns, valid, values):
    ...         return returns / 2
    >>> report = check_gradient(baseline=Half(), tolerance=None)
    >>> round(report.relative_error, 9), report.trajectories, report.batches
    (0.5, 11, 121)
    >>> check_gradient(baseline=Half())
    Traceback (most recent call last):
        ...
    AssertionError: The expected update is not the gradient of the expected return...
    >>> check_gradient(baseline="leave_one_out").error < 1e-9
    True
    """
    task = _Enumeration(head, baseline, seed, settings, masks=masks)
    return task.check(batch_size, tolerance)


class _Enumeration:
    """Computes the expected update and the exact gradient from all trajectories."""

    def __init__(self, head, baseline, seed, settings, horizon=_HORIZON, masks=None):
        self.settings = {"gamma": 0.9, "discount_states": True, **settings}
        self.head = heads.Categorical(2, dtype="float64") if head is None else head
        enumeration.build(self.head)
        self.actions = enumeration.raw_actions(self.head)
        self.num_actions = enumeration.count(self.actions)
        self.masks, legal = None, [range(self.num_actions)] * _NUM_STATES
        if masks is not None:
            self.settings["action_mask"] = "info/action_mask"
            checked = [enumeration.validate_mask(self.head, x) for x in masks]
            self.masks = np.stack(checked)
            inputs = self.head, self.actions
            flags = [enumeration.is_legal(*inputs, mask) for mask in self.masks]
            legal = [np.flatnonzero(row).tolist() for row in flags]
        self.agent = _build_agent(self.head, baseline, seed, self.settings)
        # A value baseline that shares the policy has weights that J does not depend on.
        policy_variables = self.agent.policy.get_layer("outputs").trainable_variables
        self.compared = [*policy_variables, *self.head.trainable_variables]
        if any(variable.dtype != "float64" for variable in self.compared):
            raise ValueError(
                f"The weights of {self.head!r} must be float64: create it with "
                '`dtype="float64"`.'
            )
        optimizers = self.agent.optimizer, getattr(self.agent.baseline, "optimizer", None)
        states = [x.variables for x in optimizers if x is not None]
        self.changing = sum(states, self.agent.variables)
        trajectories = list(_trajectories(0, legal, horizon))
        self.transition_probs = np.array([prob for prob, _ in trajectories])
        self.steps = [np.array(steps) for _, steps in trajectories]
        self.record = _record(self.steps, self.actions, self.masks)
        powers = self.agent.gamma ** np.arange(len(self.record.rewards))[:, None]
        self.returns = np.nansum(powers * self.record.rewards, axis=0)

    def probabilities(self):
        """Returns `[2, K]`, differentiable probabilities of K actions in both states."""
        outputs = self.agent(np.eye(_NUM_STATES))
        if self.masks is not None:
            outputs = self.head.mask_outputs(outputs, tf.constant(self.masks))
        outputs = tf.repeat(outputs, self.num_actions, axis=0)
        indices = [*range(self.num_actions)] * _NUM_STATES
        actions = enumeration.select(self.actions, indices)
        probs = tf.exp(self.head.distribution(outputs).log_prob(actions))
        return tf.reshape(probs, [_NUM_STATES, self.num_actions])

    def likelihoods(self, probs):
        """Returns a vector with the probability of each trajectory.

        Args:
            probs: `[2, K]` float, the probabilities of the K actions in both states, or
                `[T, 2, K]` if they change from step to step.
        """
        shape = [len(self.record.rewards), _NUM_STATES, self.num_actions]
        count = len(self.steps)
        steps = [(t, *step) for steps in self.steps for t, step in enumerate(steps)]
        owners = np.repeat(np.arange(count), [len(steps) for steps in self.steps])
        chosen = tf.gather_nd(tf.broadcast_to(probs, shape), np.array(steps))
        likelihoods = tf.math.unsorted_segment_prod(chosen, owners, count)
        return self.transition_probs * likelihoods

    def exact(self):
        """Returns the exact gradient of the expected discounted return, as a vector."""
        with tf.GradientTape() as tape:
            likelihoods = self.likelihoods(self.probabilities())
            objective = tf.reduce_sum(likelihoods * self.returns)
        return expectations.flat(losses.gradients(tape, objective, self.compared))

    def expected(self, batch_size):
        """Returns the expected update as a vector, and the number of batches."""
        likelihoods = self.likelihoods(self.probabilities()).numpy()
        batches = self.batches(batch_size)
        return expectations.expected([likelihoods] * batch_size, self.change, batches)

    def batches(self, batch_size):
        """Yields `(multiplicity, indices of trajectories)` for every batch."""
        return expectations.batches(
            [range(len(self.steps))] * batch_size,
            any_order=type(self.agent.baseline) in _PERMUTATION_INVARIANT,
            factor=len(self._permutations(max(map(len, self.steps)) * batch_size)),
        )

    def change(self, indices):
        """Returns the change of the weights by an update, and restores them.

        It is averaged over all first minibatches.
        """
        episodes = select_columns(self.record, indices)
        permutations = self._permutations(int(episodes.lengths.sum()))
        values = [variable.numpy() for variable in self.changing]
        before, total = expectations.flat(self.compared), 0.0
        for permutation in permutations:
            trainer = self.agent.trainer
            count = trainer.train_step().num_permutations
            repeated = np.broadcast_to(permutation, (count, len(permutation)))
            trainer.update(trainer.check_episodes(episodes), 0, tf.constant(repeated))
            total += expectations.flat(self.compared) - before
            optimizers.assign(self.changing, values)
        return total / len(permutations)

    def _permutations(self, count):
        """Returns int32 permutations of `count` steps, one for each first minibatch."""
        steps, size = range(count), self.agent.minibatch_size
        size = len(minibatches.Minibatches.split(tf.range(count), size).minibatch(0))
        return [
            np.array([*first, *(n for n in steps if n not in first)], "int32")
            for first in itertools.combinations(steps, size)
        ]

    def check(self, batch_size, tolerance):
        """Returns the report, or raises an error if the difference is too large."""
        validation.positive_int("batch_size", batch_size)
        results = self.expected(batch_size), self.exact(), len(self.steps)
        return expectations.compare(*results, tolerance, "the expected return")


def _build_agent(head, baseline, seed, settings):
    """Returns a float64 agent whose plain SGD starts with a learning rate of one."""
    rng = np.random.default_rng(seed)
    baseline = baselines.get(baseline)
    inputs = keras.Input((_NUM_STATES,), dtype="float64")
    sizes = {"outputs": head.outputs_size, "values": 1}
    outputs = {
        name: keras.layers.Dense(size, name=name, dtype="float64")(inputs)
        for name, size in sizes.items()
    }
    outputs = outputs if baseline.shares_policy else outputs["outputs"]
    policy = keras.Model(inputs, outputs)
    for variable in policy.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    agent = agents.Reinforce(policy, head, baseline, **settings)
    # The learning rate is zero after the first gradient step of an update.
    learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    agent.compile(optimizer=keras.optimizers.SGD(learning_rate))
    agent.build((None, _NUM_STATES))
    agent.optimizer.build(agent.policy_variables)
    return agent


def _trajectories(state, legal, steps):
    """Yields `(transition probability, ((state, action), …))` for each trajectory.

    Args:
        state: Int, the first state.
        legal: List of lists, the indices of the actions that are legal in each state.
        steps: Int, the number of steps until the time limit.
    """
    for action in legal[state]:
        transitions = _TERMINATION
        if steps > 1:
            transitions = _TRANSITIONS.get((state, action), _TERMINATION)
        for prob, next_state in transitions:
            rest = [(1.0, ())]
            if next_state is not None:
                rest = _trajectories(next_state, legal, steps - 1)
            for later_prob, later_steps in rest:
                yield prob * later_prob, ((state, action), *later_steps)


def _record(trajectories, actions, masks):
    """Returns all trajectories as `Episodes`, padded with NaN rewards."""
    lengths = np.array([len(steps) for steps in trajectories], "int32")
    shape = rows, count = max(lengths), len(lengths)
    observations = np.zeros((rows + 1, count, _NUM_STATES))
    states, indices = np.zeros(shape, "int64"), np.zeros(shape, "int64")
    for column, steps in enumerate(trajectories):
        states[: len(steps), column], indices[: len(steps), column] = steps.T
        observations[range(len(steps)), column, steps[:, 0]] = 1.0
    rewards = (-1.0) ** indices * (1 + states + indices / 2)
    rewards[np.arange(rows)[:, None] >= lengths] = np.nan
    return records.Episodes(
        observations,
        enumeration.select(actions, indices),
        rewards,
        lengths,
        np.ones(count, "bool"),
        None if masks is None else masks[states],
    )


def select_columns(episodes, indices):
    return keras.tree.map_structure(
        lambda x: x if x is None else np.take(x, indices, min(1, x.ndim - 1)), episodes
    )
