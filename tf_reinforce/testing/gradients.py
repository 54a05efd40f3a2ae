"""Checks the expected update of an agent against the gradient of the expected return."""

import collections
import functools
import inspect
import itertools
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.support import validation
from tf_reinforce.testing import enumeration

_MAX_BATCHES = 20_000

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


class GradientReport(NamedTuple):
    """Contains the result of `check_gradient` for W weights of the policy and the head.

    All gradients in a `GradientReport` point in the direction of ascent.
    """

    expected: np.ndarray  # [W] float64, expectation of the update over all batches
    exact: np.ndarray  # [W] float64, gradient of the expected discounted return
    error: float  # largest difference between `expected` and `exact`
    relative_error: float  # norm of the difference over the norm of `exact`
    cosine: float  # cosine of the angle between both gradients, or NaN
    trajectories: int  # number of trajectories of the task
    batches: int  # number of enumerated batches, one update each

    @classmethod
    def of(
        cls, expected: np.ndarray, exact: np.ndarray, *, trajectories: int, batches: int
    ) -> "GradientReport":
        """Returns the report for an expected update and an exact gradient."""
        norm = np.linalg.norm
        return cls(
            expected,
            exact,
            error=float(np.abs(expected - exact).max()),
            relative_error=_ratio(norm(expected - exact), norm(exact)),
            cosine=_ratio(expected @ exact, norm(expected) * norm(exact)),
            trajectories=trajectories,
            batches=batches,
        )

    def validated(
        self, tolerance: float | None, goal: str, hint: str
    ) -> "GradientReport":
        """Returns the report; raises `AssertionError` if its `error` is too large.

        Args:
            tolerance: Float, the largest accepted `error`, or `None` for any.
            goal: String, what the exact gradient is the gradient of.
            hint: String, a sentence about possible causes.
        """
        if tolerance is not None and not self.error <= tolerance:
            raise AssertionError(
                f"The expected gradient is not the gradient of {goal}. Expected: a "
                f"largest difference of {tolerance}. Received: {self.error} with a "
                f"relative error of {self.relative_error:.3g} and a cosine of "
                f"{self.cosine:.6f}. {hint}"
            )
        return self


def check_gradient(
    head: Any = None,
    baseline: Any = "leave_one_out",
    *,
    batch_size: int = 2,
    actions: Any = None,
    masks: Any = None,
    tolerance: float = 1e-9,
    seed: int = 0,
    **settings: Any,
) -> GradientReport:
    """Checks that the expected update is the gradient of the expected return.

        E[Δw] = ∇ Σ_τ P(τ; w) Σₜ γᵗ rₜ

    In the equation, Δw is the change of the weights w by one update, and τ is a
    trajectory of a small task. The expected update E[Δw] is a sum over all batches of
    `batch_size` episodes of the task. `check_gradient` makes the agent's update from each
    batch, and weights each update by the probability of the batch. The exact gradient is
    the derivative of the expected return, a sum over all trajectories, without the
    log-derivative trick. No batch is sampled, so that a difference between expected
    update and exact gradient is a bias or a rounding error.

    If an update makes several gradient steps (`minibatch_size`, `passes`), only the first
    gradient step is compared, averaged over all possible first minibatches. Later
    gradient steps of an update are not expected to be unbiased.

    The task of `check_gradient` has two states, at most three steps, random transitions,
    early termination, and rewards that depend on state and action. The observations of
    the task are one-hot vectors of the state. The policy of `check_gradient` is one dense
    layer. All numbers of `check_gradient` are float64.

    Args:
        head: `tfr.heads.Head` with integer actions. A head with weights needs
            `dtype="float64"`. `check_gradient` compares the gradients of the policy
            weights and of the head weights. `head` defaults to `Categorical(2)`.
        baseline: Baseline in any form that `Reinforce` accepts. A custom baseline is
            checked with all orders of the episodes in a batch. The weights and the
            optimizer of a custom baseline are restored after each update. A custom
            baseline must not have state outside of its weights and its optimizer.
        batch_size: Int, the number of episodes of a batch, 1 to 3.
        actions: `[K, …]` integers, all K raw actions of the head: its samples before
            conversion to environment units. `actions` defaults to every array of
            non-negative integers that `head.is_valid` accepts.
        masks: `[2, head.mask_size]` integers, one action mask for each of the two states.
            `masks` defaults to no masks, so that all actions are legal.
        tolerance: Float, the largest accepted difference between an entry of the expected
            update and of the exact gradient. `tolerance=None` accepts any difference.
        seed: Int that determines the random weights of the policy.
        **settings: Options of `Reinforce`. The default options are `gamma=0.9` and
            `discount_states=True`, for which the update should be unbiased.

    Returns:
        `GradientReport` with the expected update and the exact gradient.

    Raises:
        AssertionError: If the difference of expected update and exact gradient exceeds
            the tolerance, or if the probabilities of the actions do not sum to one.
        ValueError: If an argument is invalid, or the task has too many batches.

    Example:

    A custom baseline that depends on the return from which the baseline is subtracted
    fails `check_gradient`:

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
    task = _Enumeration(head, baseline, actions, seed, settings, masks=masks)
    return task.check(batch_size, tolerance)


class _Enumeration:
    """Computes the expected update and exact gradient from all trajectories of a task.

    `_Enumeration` uses the same traced update for every batch size.
    """

    def __init__(
        self, head, baseline, actions, seed, settings, horizon=_HORIZON, masks=None
    ):
        self.settings = _validate_settings(settings)
        head = _build_head(head)
        self.actions = enumeration.raw_actions(head, actions)
        self.masks = None if masks is None else _validate_masks(head, masks)
        if masks is not None:
            self.settings["action_mask"] = "info/action_mask"
        self.agent = _build_agent(head, baseline, seed, self.settings)
        self.head = head
        policy = self.agent.policy
        # A value baseline that shares the policy has weights that J does not depend on.
        policy_variables = policy.get_layer("outputs").trainable_variables
        self.compared = [*policy_variables, *head.trainable_variables]
        _check_float64(self.compared, head)
        optimizer = getattr(self.agent.baseline, "optimizer", None)
        baseline_state = [] if optimizer is None else optimizer.variables
        optimizer_state = self.agent.optimizer.variables
        self.changing = [*self.agent.variables, *optimizer_state, *baseline_state]
        self.num_actions = enumeration.count(self.actions)
        legal = [range(self.num_actions)] * _NUM_STATES
        if masks is not None:
            legal = [
                np.flatnonzero(enumeration.is_legal(head, self.actions, mask)).tolist()
                for mask in self.masks
            ]
        trajectories = list(_trajectories(0, legal, horizon))
        self.transition_probs = np.array([prob for prob, _ in trajectories])
        self.steps = [np.array(steps) for _, steps in trajectories]
        self.record = _record(self.steps, self.actions, self.masks)
        powers = self.agent.gamma ** np.arange(len(self.record.rewards))[:, None]
        self.returns = np.nansum(powers * self.record.rewards, axis=0)
        self._permutation_cache = {}  # permutations by the number of steps of a batch

    def probabilities(self):
        """Returns differentiable probabilities of K actions in two states, `[2, K]`."""
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
            probs: `[2, K]` float, the probabilities of K actions in two states; or
                `[T, 2, K]` float, these probabilities at each of T steps.
        """
        shape = [len(self.record.rewards), _NUM_STATES, self.num_actions]
        indices = np.full((len(self.steps), shape[0]), math.prod(shape))
        for column, steps in enumerate(self.steps):
            entries = np.arange(len(steps)), *steps.T
            indices[column, : len(steps)] = np.ravel_multi_index(entries, shape)
        # Padding has the index of the last entry, which is one.
        flat = tf.reshape(tf.broadcast_to(probs, shape), [-1])
        flat = tf.concat([flat, tf.ones([1], tf.float64)], axis=0)
        return self.transition_probs * tf.reduce_prod(tf.gather(flat, indices), axis=1)

    def exact(self):
        """Returns the exact gradient of the expected discounted return as a vector."""
        with tf.GradientTape() as tape:
            likelihoods = self.likelihoods(self.probabilities())
            objective = tf.reduce_sum(likelihoods * self.returns)
        return self.flat(losses.gradients(tape, objective, self.compared))

    def expected(self, batch_size):
        """Returns the expected update as a vector, and the number of batches."""
        probs = self.probabilities().numpy()
        error = np.abs(probs.sum(axis=1) - 1).max()
        if not error < 1e-9:
            raise AssertionError(
                f"The probabilities of all {self.num_actions} raw actions must sum to 1 "
                f"in each state. Received: {probs.sum(axis=1).tolist()}. Check the "
                "log_prob of the head, and whether `actions` contains all raw actions."
            )
        likelihoods = self.likelihoods(probs).numpy()
        total, batches, first = 0.0, 0, self._change([0] * batch_size)
        for times, batch in self.batches(batch_size):
            total += times * math.prod(likelihoods[batch]) * self._change(batch)
            batches += 1
        if not np.array_equal(first, self._change([0] * batch_size)):
            raise AssertionError(
                "Two updates from the same weights and the same batch must be equal. "
                "Received: two different updates. Check whether the baseline or the "
                "head has state outside of its weights. Create the state with "
                "`add_weight`, and change the state in `apply_gradients`."
            )
        return total, batches

    def _change(self, indices):
        """Returns the change of the weights, averaged over all first minibatches."""
        episodes = select_columns(self.record, indices)
        permutations = self._permutations(int(episodes.lengths.sum()))
        changes = [self._change_of(episodes, one) for one in permutations]
        return sum(changes) / len(permutations)

    def _change_of(self, episodes, permutation):
        """Returns the change of the weights by one update, and restores the weights."""
        read, restore = self._programs
        values, before = read()
        trainer = self.agent.trainer
        count = trainer.learner.make_train_step(None).num_permutations
        permutations = np.broadcast_to(permutation, (count, permutation.size))
        trainer.update(self.agent.optimizer, episodes, 0, tf.constant(permutations))
        return restore(values).numpy() - before.numpy()

    @functools.cached_property
    def _programs(self):
        """Returns the two traced functions `read` and `restore`.

        A traced function takes less time than one eager operation for each variable.
        `read` returns the values of all variables that an update may change, and a vector
        of the weights of policy and head. `restore` assigns the values that `read`
        returned, and returns the vector of weights before the assignment.
        """

        def compared():
            return tf.concat([tf.reshape(w.value, [-1]) for w in self.compared], axis=0)

        @tf.function(autograph=False)
        def read():
            return [tf.identity(variable) for variable in self.changing], compared()

        @tf.function(autograph=False)
        def restore(values):
            after = compared()
            for variable, value in zip(self.changing, values, strict=True):
                variable.assign(value)
            return after

        return read, restore

    def _permutations(self, count):
        """Returns permutations of `count` time steps, one for each first minibatch.

        The first time steps of a permutation are the first minibatch.
        """
        if count not in self._permutation_cache:
            steps = range(count)
            batches = minibatches.Minibatches.split(
                tf.range(count), self.agent.minibatch_size
            )
            size = len(batches.minibatch(0))
            self._permutation_cache[count] = [
                np.array([*first, *(n for n in steps if n not in first)], "int32")
                for first in itertools.combinations(steps, size)
            ]
        return self._permutation_cache[count]

    def check(self, batch_size, tolerance):
        """Returns the `GradientReport`; raises an error if its `error` is too large."""
        if validation.positive_int("batch_size", batch_size) > 3:
            raise ValueError(
                "`batch_size` must be 1, 2 or 3, because all batches are enumerated. "
                f"Received: batch_size={batch_size!r}"
            )
        exact = self.exact()
        expected, batches = self.expected(batch_size)
        report = GradientReport.of(
            expected, exact, trajectories=len(self.transition_probs), batches=batches
        )
        if tolerance is not None and not report.error <= tolerance:
            raise AssertionError(self._message(report, tolerance))
        return report

    def flat(self, values):
        """Returns gradients or weights as one float64 vector."""
        return np.concatenate([value.numpy().ravel() for value in values])

    def batches(self, batch_size):
        """Yields `(multiplicity, indices of trajectories)` for every batch.

        The multiplicity of a batch is the number of different orders of its episodes. If
        the baseline depends on the order of the episodes, every order counts as a
        separate batch with multiplicity one.
        """
        count = len(self.transition_probs)
        permutation_invariant = type(self.agent.baseline) in _PERMUTATION_INVARIANT
        size = math.comb(count + batch_size - 1, batch_size)
        size = size if permutation_invariant else count**batch_size
        size *= len(self._permutations(max(map(len, self.steps)) * batch_size))
        if size > _MAX_BATCHES:
            raise ValueError(
                f"`check_gradient` enumerates at most {_MAX_BATCHES} batches of "
                f"episodes. Received: {self.num_actions} actions, which make {count} "
                f"trajectories and {size} batches of {batch_size}. Use a smaller "
                "`batch_size`, or a smaller head of the same kind."
            )
        if not permutation_invariant:
            for batch in itertools.product(range(count), repeat=batch_size):
                yield 1, list(batch)
            return
        for batch in itertools.combinations_with_replacement(range(count), batch_size):
            repeats = collections.Counter(batch).values()
            num_permutations = math.factorial(batch_size)
            yield num_permutations // math.prod(map(math.factorial, repeats)), list(batch)

    def _message(self, report, tolerance):
        paths = [[v.path] * int(np.prod(v.shape)) for v in self.compared]
        worst = int(np.argmax(np.abs(report.expected - report.exact)))
        return (
            "The expected update is not the gradient of the expected return. "
            f"Expected: {report.exact[worst]} for entry {worst} "
            f"({sum(paths, [])[worst]}), within {tolerance}. Received: "
            f"{report.expected[worst]}. Over all {report.exact.size} weights the "
            f"relative error is {report.relative_error:.3g} and the cosine between both "
            f"gradients {report.cosine:.6f}. Check whether the baseline depends on the "
            "return from which it is subtracted, and whether the head's log_prob passes "
            "the complete gradient. docs/estimators.md states whether the following "
            f"options are unbiased: {self.settings}"
        )


def _ratio(numerator, denominator):
    return float(numerator / denominator) if denominator else math.nan


def _validate_settings(settings):
    """Returns the settings with defaults, or raises an error if an option is unknown."""
    parameters = inspect.signature(agents.Reinforce.__init__).parameters.values()
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    options.remove("name")
    options.remove("action_mask")  # `masks` replaces `action_mask`
    unknown = sorted(set(settings) - set(options))
    if unknown:
        raise ValueError(
            f"`settings` must be options of Reinforce, {options}. Received: {unknown}"
        )
    return {"gamma": 0.9, "discount_states": True, **settings}


def _build_head(head):
    """Returns the built head, or raises an error if its actions cannot be enumerated."""
    if head is None:
        head = heads.Categorical(2, dtype="float64")
    validation.instance("head", head, heads.Head)
    if not enumeration.is_integer(head):
        raise ValueError(
            "`head` must have integer actions, because the episodes are enumerated. "
            f"Received: {head!r} with raw actions {head.action_spec('float64')}. To "
            "check a head with continuous actions, use `check_head`."
        )
    if not head.built:
        head.build((None, head.outputs_size))
    return head


def _validate_masks(head, masks):
    if len(np.atleast_1d(masks)) != _NUM_STATES:
        raise ValueError(
            f"`masks` must be one mask for each of the {_NUM_STATES} states. "
            f"Received: masks={masks!r}"
        )
    return np.stack([enumeration.validate_mask(head, mask) for mask in masks])


def _build_agent(head, baseline, seed, settings):
    """Returns a float64 agent with plain SGD and an initial learning rate of one."""
    rng = np.random.default_rng(seed)
    baseline = baselines.get(baseline)
    inputs = keras.Input((_NUM_STATES,), dtype="float64")
    sizes = {"outputs": head.outputs_size, "values": 1}
    outputs = {
        name: keras.layers.Dense(size, name=name, dtype="float64")(inputs)
        for name, size in sizes.items()
    }
    shared = baseline.shares_policy
    policy = keras.Model(inputs, outputs if shared else outputs["outputs"])
    for variable in policy.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    agent = agents.Reinforce(policy, head, baseline, **settings)
    # The learning rate is zero after the first gradient step of an update.
    learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    agent.compile(optimizer=keras.optimizers.SGD(learning_rate))
    agent.build((None, _NUM_STATES))
    agent.optimizer.build(agent.policy_variables)
    return agent


def _check_float64(variables, head):
    for variable in variables:
        if variable.dtype != "float64":
            raise ValueError(
                f"The weights of {head!r} must be float64, so that rounding errors are "
                f"small. Received: {variable.path} of type {variable.dtype}. Create the "
                'head with `dtype="float64"`.'
            )


def _trajectories(state, legal, steps):
    """Yields `(transition probability, ((state, action), …))` for each trajectory.

    Args:
        state: Int, the first state.
        legal: List of lists, the indices of the legal actions of each state.
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
    """Returns all trajectories as one `Episodes` object, padded with NaN rewards."""
    rows, count = max(map(len, trajectories)), len(trajectories)
    observations = np.zeros((rows + 1, count, _NUM_STATES))
    indices = np.zeros((rows, count), "int64")
    row_masks = None
    if masks is not None:
        row_masks = np.zeros((rows, count, masks.shape[1]), "int8")
    rewards = np.full((rows, count), np.nan)
    for column, steps in enumerate(trajectories):
        for row, (state, action) in enumerate(steps):
            observations[row, column, state] = 1.0
            indices[row, column] = action
            if masks is not None:
                row_masks[row, column] = masks[state]
            rewards[row, column] = (-1) ** action * (1 + state + action / 2)
    lengths = np.array([len(steps) for steps in trajectories], "int32")
    return records.Episodes(
        observations,
        enumeration.select(actions, indices),
        rewards,
        lengths,
        np.ones(count, "bool"),
        row_masks,
    )


def select_columns(episodes, indices):
    return records.Episodes(
        episodes.observations[:, indices],
        enumeration.select(episodes.actions, np.s_[:, indices]),
        episodes.rewards[:, indices],
        episodes.lengths[indices],
        episodes.terminated[indices],
        None if episodes.masks is None else episodes.masks[:, indices],
    )
