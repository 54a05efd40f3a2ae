"""Checks the expected update of an agent against the gradient that it follows."""

import collections
import functools
import inspect
import itertools
import math
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce import validation
from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.testing import enumeration

_MOST_BATCHES = 20_000

# A small task: (chance, next state) by state and action; `None` ends the episode, and so
# does every action that is not named here.
_STATES, _HORIZON = 2, 3
_ENDS = ((1.0, None),)
_MOVES = {
    (0, 0): ((0.7, 1), (0.3, 0)),
    (1, 0): ((0.6, None), (0.4, 1)),
    (1, 1): ((1.0, 0),),
}

# These treat all episodes of a batch alike, so their order need not be enumerated.
_ORDERLESS = (
    baselines.Zero,
    baselines.LeaveOneOut,
    baselines.Mean,
    baselines.Value,
)


class GradientReport(NamedTuple):
    """What `check_gradient` found; all gradients ascend the objective."""

    expected: np.ndarray  # [W] float64, expectation of the update over all batches
    exact: np.ndarray  # [W] float64, gradient of the expected discounted return
    error: float  # the largest difference between the two
    relative_error: float  # length of the difference over the length of `exact`
    cosine: float  # of the angle between the two; NaN where one of them is zero
    trajectories: int  # that the task has
    batches: int  # that were enumerated, one update each


def check_gradient(
    head=None,
    baseline="leave_one_out",
    *,
    batch_size=2,
    actions=None,
    masks=None,
    tolerance=1e-9,
    seed=0,
    **settings,
):
    """Proves that the expected update is the gradient of the expected return.

        E[Δw] = ∇ Σ_τ P(τ; w) Σₜ γᵗ rₜ

    Every batch of `batch_size` episodes of a small task goes through `agent.update`;
    the updates, each times the probability of its batch, are added up. The other side
    is differentiated through the probabilities of the trajectories, without the
    log-derivative trick. Nothing is sampled: an error of 1e-9 is a bias, not noise.

    Where `minibatch_size` or `passes` make several gradient steps of an update, the
    first is compared, over all ways to draw its steps: the others do not claim to be
    unbiased.

    The task has two states, at most three steps, random moves, early endings, and
    rewards for state and action. Observations are `[N, 2]`, one-hot; the policy is a
    dense layer on them, all in float64.

    Args:
        head: `tfr.heads.Head` with whole-number actions, made with `dtype="float64"` if
            it has weights; these are compared too. Defaults to `Categorical(2)`.
        baseline: As for `Reinforce`. One of your own is tried with all orders of the
            episodes. Its weights and its optimizer are put back after each update; it
            may remember nothing elsewhere.
        batch_size: Int, 1 to 3 episodes.
        actions: `[K, …]` raw actions: all that the head can make. Defaults to every
            array of whole numbers from 0 that `head.is_valid` accepts.
        masks: `[2, head.mask_size]` whole numbers, which actions are legal in each of
            the two states. Defaults to all actions in both.
        tolerance: Float, or `None` to report and accept any bias.
        seed: Int, for the weights of the policy.
        **settings: Options of `Reinforce`. `gamma` is 0.9 and `discount_states` True
            unless given: with these the update claims to be unbiased.

    Returns:
        `GradientReport`.

    Raises:
        AssertionError: when the largest difference exceeds the tolerance, or the
            probabilities of the actions do not sum to one.
        ValueError: when an argument is not acceptable, or there is too much to count.

    Example:

    A baseline of your own that may not look at the return it is subtracted from:

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


class _Ordered(agents.Reinforce):
    """An agent that is told the order of the steps of a batch."""

    order = None

    def _permutations(self, episodes, seed):
        count = len(super()._permutations(episodes, seed))
        return tf.constant(np.broadcast_to(self.order, (count, self.order.size)))


class _Enumeration:
    """An agent on the task, and the sums over all that can happen to it.

    One traced update serves every batch size.
    """

    def __init__(
        self, head, baseline, actions, seed, settings, horizon=_HORIZON, masks=None
    ):
        self.settings = _known(settings)
        head = _whole_head(head)
        self.actions = enumeration.raw_actions(head, actions)
        self.masks = None if masks is None else _masks_of_states(head, masks)
        if masks is not None:
            self.settings["action_mask"] = "info/action_mask"
        self.agent = _agent(head, baseline, seed, self.settings)
        self.head = head
        policy = self.agent.policy
        # A value that shares the policy has weights too, which J does not depend on.
        deciding = policy.get_layer("outputs").trainable_variables
        self.compared = [*deciding, *head.trainable_variables]
        _require_double(self.compared, head)
        optimizer = getattr(self.agent.baseline, "optimizer", None)
        learning = [] if optimizer is None else optimizer.variables
        own = self.agent.optimizer.variables
        self.changing = [*self.agent.variables, *own, *learning]
        self.choices = enumeration.count(self.actions)
        legal = [range(self.choices)] * _STATES
        if masks is not None:
            legal = [
                np.flatnonzero(enumeration.is_legal(head, self.actions, mask)).tolist()
                for mask in self.masks
            ]
        paths = list(_paths(0, legal, horizon))
        self.chances = np.array([chance for chance, _ in paths])
        self.steps = [np.array(steps) for _, steps in paths]
        self.record = _record(self.steps, self.actions, self.masks)
        powers = self.agent.gamma ** np.arange(len(self.record.rewards))[:, None]
        self.returns = np.nansum(powers * self.record.rewards, axis=0)
        self._kept = {}  # permutations, by the number of steps of a batch

    def probabilities(self):
        """`[2, K]`: π(a|s), from the head's log-probabilities; gradients flow."""
        outputs = self.agent(np.eye(_STATES))
        if self.masks is not None:
            outputs = self.head.mask_outputs(outputs, tf.constant(self.masks))
        outputs = tf.repeat(outputs, self.choices, axis=0)
        actions = enumeration.pick(self.actions, [*range(self.choices)] * _STATES)
        probs = tf.exp(self.head.distribution(outputs).log_prob(actions))
        return tf.reshape(probs, [_STATES, self.choices])

    def likelihoods(self, probs):
        """`[M]`: the probability of each trajectory, from `[2, K]` or `[T, 2, K]`."""
        shape = [len(self.record.rewards), _STATES, self.choices]
        choices = np.full((len(self.steps), shape[0]), math.prod(shape))
        for column, steps in enumerate(self.steps):
            places = np.arange(len(steps)), *steps.T
            choices[column, : len(steps)] = np.ravel_multi_index(places, shape)
        # After its end a trajectory is certain: the last entry is a one.
        flat = tf.reshape(tf.broadcast_to(probs, shape), [-1])
        certain = tf.concat([flat, tf.ones([1], tf.float64)], axis=0)
        return self.chances * tf.reduce_prod(tf.gather(certain, choices), axis=1)

    def exact(self):
        """∇J, flat: by differentiating the sum over the trajectories itself."""
        with tf.GradientTape() as tape:
            likelihoods = self.likelihoods(self.probabilities())
            objective = tf.reduce_sum(likelihoods * self.returns)
        return self.flat(losses.gradients(tape, objective, self.compared))

    def expected(self, batch_size):
        """E[Δw], flat: the updates of all batches, by their probability; their number."""
        probs = self.probabilities().numpy()
        error = np.abs(probs.sum(axis=1) - 1).max()
        if not error < 1e-9:
            raise AssertionError(
                f"The probabilities of all {self.choices} raw actions must sum to 1 "
                f"in each state. Received: {probs.sum(axis=1).tolist()}. Look at the "
                "log_prob of the head, or at `actions` if some were left out."
            )
        likelihoods = self.likelihoods(probs).numpy()
        total, batches, first = 0.0, 0, self._change([0] * batch_size)
        for times, batch in self._batches(batch_size):
            total += times * math.prod(likelihoods[batch]) * self._change(batch)
            batches += 1
        if not np.array_equal(first, self._change([0] * batch_size)):
            raise AssertionError(
                "The same batch must make the same update from the same weights. "
                "Received: two different ones. Look for what the baseline or the head "
                "remembers outside of its weights; keep it in `add_weight`, and change "
                "it in `apply_gradients`."
            )
        return total, batches

    def _change(self, batch):
        """What the first step of an update adds to the weights, however it is drawn."""
        episodes = _columns(self.record, batch)
        permutations = self._permutations(int(episodes.lengths.sum()))
        return sum(self._changed(episodes, order) for order in permutations) / len(
            permutations
        )

    def _changed(self, episodes, order):
        """What one update adds to the weights, which are then put back."""
        look, put_back = self._programs
        before, start = look()
        self.agent.order = order
        self.agent.update(episodes)
        return put_back(before).numpy() - start.numpy()

    @functools.cached_property
    def _programs(self):
        """Two traced functions around an update; variable by variable it takes longer.

        One reads all that an update may change, and the compared weights. The other puts
        the first of these back, and returns what the compared weights were until then.
        """

        def compared():
            return tf.concat([tf.reshape(w.value, [-1]) for w in self.compared], axis=0)

        @tf.function(autograph=False)
        def look():
            return [tf.identity(variable) for variable in self.changing], compared()

        @tf.function(autograph=False)
        def put_back(values):
            found = compared()
            for variable, value in zip(self.changing, values, strict=True):
                variable.assign(value)
            return found

        return look, put_back

    def _permutations(self, steps):
        """Orders of the steps of a batch: each set of steps comes first once."""
        if steps not in self._kept:
            size, everything = self.agent.minibatch_size, range(steps)
            parts = minibatches.Minibatches.of(tf.range(steps), size)
            first = len(parts.at(0))
            self._kept[steps] = [
                np.array([*chosen, *(n for n in everything if n not in chosen)], "int32")
                for chosen in itertools.combinations(everything, first)
            ]
        return self._kept[steps]

    def check(self, batch_size, tolerance):
        """The `GradientReport`, or an `AssertionError` that says what is wrong."""
        if validation.positive_int("batch_size", batch_size) > 3:
            raise ValueError(
                "`batch_size` must be 1, 2 or 3: all batches are enumerated. "
                f"Received: batch_size={batch_size!r}"
            )
        exact = self.exact()
        expected, batches = self.expected(batch_size)
        norm = np.linalg.norm
        report = GradientReport(
            expected,
            exact,
            error=float(np.abs(expected - exact).max()),
            relative_error=_ratio(norm(expected - exact), norm(exact)),
            cosine=_ratio(expected @ exact, norm(expected) * norm(exact)),
            trajectories=len(self.chances),
            batches=batches,
        )
        if tolerance is not None and not report.error <= tolerance:
            raise AssertionError(self._complaint(report, tolerance))
        return report

    def flat(self, values):
        """One float64 vector from gradients or weights."""
        return np.concatenate([value.numpy().ravel() for value in values])

    def _batches(self, batch_size):
        """(how many orders it stands for, indices of trajectories) of every batch."""
        count = len(self.chances)
        orderless = type(self.agent.baseline) in _ORDERLESS
        size = math.comb(count + batch_size - 1, batch_size)
        size = size if orderless else count**batch_size
        size *= len(self._permutations(max(map(len, self.steps)) * batch_size))
        if size > _MOST_BATCHES:
            raise ValueError(
                f"{self.choices} actions make {count} trajectories and {size} "
                f"batches of {batch_size}; at most {_MOST_BATCHES} are enumerated. Take "
                "a smaller `batch_size`, or a smaller head of the same kind."
            )
        if not orderless:
            for batch in itertools.product(range(count), repeat=batch_size):
                yield 1, list(batch)
            return
        for batch in itertools.combinations_with_replacement(range(count), batch_size):
            repeats = collections.Counter(batch).values()
            orders = math.factorial(batch_size)
            yield orders // math.prod(map(math.factorial, repeats)), list(batch)

    def _complaint(self, report, tolerance):
        owners = [[v.path] * int(np.prod(v.shape)) for v in self.compared]
        worst = int(np.argmax(np.abs(report.expected - report.exact)))
        return (
            "The expected update is not the gradient of the expected return. Expected: "
            f"{report.exact[worst]} for entry {worst} ({sum(owners, [])[worst]}), within "
            f"{tolerance}. Received: {report.expected[worst]}. Over all "
            f"{report.exact.size} weights the relative error is "
            f"{report.relative_error:.3g} and the cosine {report.cosine:.6f}. Look "
            "whether the baseline sees the return it is subtracted from, whether the "
            "head's log_prob passes its whole gradient, and in docs/estimators.md "
            f"whether these options are unbiased: {self.settings}"
        )


def _ratio(part, whole):
    return float(part / whole) if whole else math.nan


def _known(settings):
    """The settings with our defaults, or an error that lists the options there are."""
    parameters = inspect.signature(agents.Reinforce.__init__).parameters.values()
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    options.remove("name")
    options.remove("action_mask")  # where masks are read from; here they are given
    unknown = sorted(set(settings) - set(options))
    if unknown:
        raise ValueError(
            f"`settings` must be options of Reinforce, {options}. Received: {unknown}"
        )
    return {"gamma": 0.9, "discount_states": True, **settings}


def _whole_head(head):
    """The head, built, if its actions can be enumerated."""
    if head is None:
        head = heads.Categorical(2, dtype="float64")
    validation.instance("head", head, heads.Head)
    if not enumeration.is_whole(head):
        raise ValueError(
            "`head` must make whole-number actions: the episodes are enumerated. "
            f"Received: {head!r} with raw actions {head.action_spec('float64')}. Use "
            "`check_head` for continuous heads."
        )
    if not head.built:
        head.build((None, head.outputs_size))
    return head


def _masks_of_states(head, masks):
    if len(np.atleast_1d(masks)) != _STATES:
        raise ValueError(
            f"`masks` must be one mask for each of the {_STATES} states. "
            f"Received: masks={masks!r}"
        )
    return np.stack([enumeration.checked_mask(head, mask) for mask in masks])


def _agent(head, baseline, seed, settings):
    """A float64 agent whose step of plain descent is the gradient itself."""
    rng = np.random.default_rng(seed)
    baseline = baselines.get(baseline)
    inputs = keras.Input((_STATES,), dtype="float64")
    sizes = {"outputs": head.outputs_size, "values": 1}
    ends = {
        name: keras.layers.Dense(size, name=name, dtype="float64")(inputs)
        for name, size in sizes.items()
    }
    shared = baseline.shares_policy
    policy = keras.Model(inputs, ends if shared else ends["outputs"])
    for variable in policy.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    agent = _Ordered(policy, head, baseline, **settings)
    # After the first step of an update nothing moves any more.
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    agent.compile(optimizer=keras.optimizers.SGD(rate))
    agent.build((None, _STATES))
    agent.optimizer.build(agent.policy_variables)
    return agent


def _require_double(variables, head):
    for variable in variables:
        if variable.dtype != "float64":
            raise ValueError(
                f"The weights of {head!r} must be float64, so that an error is no "
                f"rounding. Received: {variable.path} of type {variable.dtype}. Make "
                'the head with `dtype="float64"`.'
            )


def _paths(state, legal, steps):
    """(chance of the task's moves, ((state, action), …)) of every trajectory."""
    for action in legal[state]:
        moves = _MOVES.get((state, action), _ENDS) if steps > 1 else _ENDS
        for chance, following in moves:
            rest = [(1.0, ())]
            if following is not None:
                rest = _paths(following, legal, steps - 1)
            for later, path in rest:
                yield chance * later, ((state, action), *path)


def _record(trajectories, actions, masks):
    """All trajectories as one record; what never happened is NaN where it can be."""
    rows, count = max(map(len, trajectories)), len(trajectories)
    observations = np.zeros((rows + 1, count, _STATES))
    indices = np.zeros((rows, count), "int64")
    ruling = None if masks is None else np.zeros((rows, count, masks.shape[1]), "int8")
    rewards = np.full((rows, count), np.nan)
    for column, steps in enumerate(trajectories):
        for row, (state, action) in enumerate(steps):
            observations[row, column, state] = 1.0
            indices[row, column] = action
            if masks is not None:
                ruling[row, column] = masks[state]
            rewards[row, column] = (-1) ** action * (1 + state + action / 2)
    lengths = np.array([len(steps) for steps in trajectories], "int32")
    return records.Episodes(
        observations,
        enumeration.pick(actions, indices),
        rewards,
        lengths,
        np.ones(count, "bool"),
        ruling,
    )


def _columns(record, batch):
    return records.Episodes(
        record.observations[:, batch],
        enumeration.pick(record.actions, np.s_[:, batch]),
        record.rewards[:, batch],
        record.lengths[batch],
        record.terminated[batch],
        None if record.masks is None else record.masks[:, batch],
    )
