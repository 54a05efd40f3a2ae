"""Proofs for heads and baselines of one's own: nothing is sampled, all is enumerated.

`check_gradient` compares the expected update of an agent with the gradient it claims to
follow, `check_head` a head with the definition of a distribution.
"""

import abc
import collections
import inspect
import itertools
import math
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import arguments, baselines, heads
from tf_reinforce import episodes as records

_MOST_ACTIONS = 100_000
_MOST_BATCHES = 20_000
_DRAWS = 20_000

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
    baselines.Nothing,
    baselines.LeaveOneOut,
    baselines.Mean,
    baselines.Value,
)

_TOLERANCES = {
    "probabilities": 1e-9,
    "eligibility": 1e-12,
    "finite_differences": 1e-7,
    "sample": 6.0,
    "moments": 1e-9,
    "expected_eligibility": 1e-9,
    "entropy": 1e-9,
    "mode": 1e-9,
}
_MEANINGS = {
    "probabilities": "exp(log_prob) must sum, or integrate, to one over all raw actions. "
    "Look at `distribution`, or at `actions` if some were left out.",
    "eligibility": "`eligibility` must be the derivative of log_prob by the outputs, as "
    "automatic differentiation finds it. Look at `eligibility`.",
    "finite_differences": "`eligibility` must be the slope of log_prob by the outputs, "
    "as central differences find it. Look for a gradient that log_prob stops.",
    "sample": "`sample` must draw from `distribution`; the error counts standard errors. "
    "Look at `sample`.",
    "moments": "The first two moments of `sample` must be those of `distribution`. Look "
    "at `sample`.",
    "expected_eligibility": "The expectation of `eligibility` must be zero. Look whether "
    "log_prob is normalised for all outputs, not for these alone.",
    "entropy": "The distribution's entropy must be minus the expectation of log_prob. "
    "Look at the `entropy` of `distribution`.",
    "mode": "No raw action may be more likely than `mode`. Look at `mode`.",
}


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

    The task has two states, at most three steps, random moves, early endings, and
    rewards for state and action. Observations are `[N, 2]`, one-hot; the policy is a
    dense layer on them, all in float64.

    Args:
        head: `tfr.heads.Head` with whole-number actions, made with `dtype="float64"` if
            it has weights; these are compared too. Defaults to `Categorical(2)`.
        baseline: As for `Reinforce`. One of your own is tried with all orders of the
            episodes. What it learns, and its optimizer, are put back after each update.
        batch_size: Int, 1 to 3 episodes.
        actions: `[K, …]` raw actions: all that the head can make. Defaults to every
            array of whole numbers from 0 that `head.possible` accepts.
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
    enumeration = _Enumeration(head, baseline, actions, seed, settings)
    return enumeration.check(batch_size, tolerance)


class _Enumeration:
    """An agent on the task, and the sums over all that can happen to it.

    One traced update serves every batch size.
    """

    def __init__(self, head, baseline, actions, seed, settings, horizon=_HORIZON):
        self.settings = _known(settings)
        head = _whole_head(head)
        self.actions = _raw_actions(head, actions)
        self.agent = _agent(head, baseline, seed, self.settings)
        self.head = head
        policy = self.agent.policy
        # A value that shares the policy has weights too, which J does not depend on.
        deciding = policy.get_layer("outputs").trainable_variables
        self.compared = [*deciding, *head.trainable_variables]
        _require_double(self.compared, head)
        optimizer = getattr(self.agent.baseline, "optimizer", None)
        learning = [] if optimizer is None else optimizer.variables
        self.changing = [*self.agent.variables, *learning]
        paths = list(_paths(0, len(self.actions), horizon))
        self.chances = np.array([chance for chance, _ in paths])
        self.steps = [np.array(steps) for _, steps in paths]
        self.record = _record(self.steps, self.actions)
        powers = self.agent.gamma ** np.arange(horizon)[:, None]
        self.returns = np.nansum(powers * self.record.rewards, axis=0)

    def probabilities(self):
        """`[2, K]`: π(a|s), from the head's log-probabilities; gradients flow."""
        count = len(self.actions)
        outputs = tf.repeat(self.agent(np.eye(_STATES)), count, axis=0)
        actions = np.concatenate([self.actions] * _STATES)
        probs = tf.exp(self.head.distribution(outputs).log_prob(actions))
        return tf.reshape(probs, [_STATES, count])

    def likelihoods(self, probs):
        """`[M]`: the probability of each trajectory, from `[2, K]` or `[T, 2, K]`."""
        shape = [len(self.record.rewards), _STATES, len(self.actions)]
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
        zero = tf.UnconnectedGradients.ZERO
        return self.flat(
            tape.gradient(objective, self.compared, unconnected_gradients=zero)
        )

    def expected(self, batch_size):
        """E[Δw], flat: the updates of all batches, by their probability; their number."""
        probs = self.probabilities().numpy()
        error = np.abs(probs.sum(axis=1) - 1).max()
        if not error < 1e-9:
            raise AssertionError(
                f"The probabilities of all {len(self.actions)} raw actions must sum to 1 "
                f"in each state. Received: {probs.sum(axis=1).tolist()}. Look at the "
                "log_prob of the head, or at `actions` if some were left out."
            )
        likelihoods = self.likelihoods(probs).numpy()
        before = [tf.constant(variable.numpy()) for variable in self.changing]
        start, total, batches = self.flat(self.compared), 0.0, 0
        for times, batch in self._batches(batch_size):
            self.agent.update(_columns(self.record, batch))
            change = self.flat(self.compared) - start
            total += times * math.prod(likelihoods[batch]) * change
            batches += 1
            for variable, value in zip(self.changing, before):
                variable.assign(value)
        return total, batches

    def check(self, batch_size, tolerance):
        """The `GradientReport`, or an `AssertionError` that says what is wrong."""
        if arguments.positive_int("batch_size", batch_size) > 3:
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
        if size > _MOST_BATCHES:
            raise ValueError(
                f"{len(self.actions)} actions make {count} trajectories and {size} "
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
    arguments.instance("head", head, heads.Head)
    if not _is_whole(head):
        raise ValueError(
            "`head` must make whole-number actions: the episodes are enumerated. "
            f"Received: {head!r} with action_dtype={head.action_dtype!r}. Use "
            "`check_head` for continuous heads."
        )
    if not head.built:
        head.build((None, head.outputs_size))
    return head


def _is_whole(head):
    return head.action_dtype is not None and np.issubdtype(head.action_dtype, np.integer)


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
    shared = baseline.values_states and baseline.model is None
    policy = keras.Model(inputs, ends if shared else ends["outputs"])
    for variable in policy.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    agent = agents.Reinforce(policy, head, baseline, **settings)
    agent.compile(optimizer=keras.optimizers.SGD(1.0))
    agent.build((None, _STATES))
    return agent


def _require_double(variables, head):
    for variable in variables:
        if variable.dtype != "float64":
            raise ValueError(
                f"The weights of {head!r} must be float64, so that an error is no "
                f"rounding. Received: {variable.path} of type {variable.dtype}. Make "
                'the head with `dtype="float64"`.'
            )


def _paths(state, actions, steps):
    """(chance of the task's moves, ((state, action), …)) of every trajectory."""
    for action in range(actions):
        moves = _MOVES.get((state, action), _ENDS) if steps > 1 else _ENDS
        for chance, following in moves:
            rest = [(1.0, ())]
            if following is not None:
                rest = _paths(following, actions, steps - 1)
            for later, path in rest:
                yield chance * later, ((state, action), *path)


def _record(trajectories, actions):
    """All trajectories as one record; what never happened is NaN where it can be."""
    rows, count = max(map(len, trajectories)), len(trajectories)
    observations = np.zeros((rows + 1, count, _STATES))
    chosen = np.zeros((rows, count, *actions.shape[1:]), actions.dtype)
    rewards = np.full((rows, count), np.nan)
    for column, steps in enumerate(trajectories):
        for row, (state, action) in enumerate(steps):
            observations[row, column, state] = 1.0
            chosen[row, column] = actions[action]
            rewards[row, column] = (-1) ** action * (1 + state + action / 2)
    lengths = np.array([len(steps) for steps in trajectories], "int32")
    return records.Episodes(
        observations, chosen, rewards, lengths, np.ones(count, "bool")
    )


def _columns(record, batch):
    return records.Episodes(
        record.observations[:, batch],
        record.actions[:, batch],
        record.rewards[:, batch],
        record.lengths[batch],
        record.terminated[batch],
    )


def _raw_actions(head, actions=None):
    """`[K, …]` every raw action of a head with whole-number actions."""
    if actions is None:
        actions = _counted(head)
    actions = np.asarray(actions)
    if actions.shape[1:] != tuple(head.action_shape) or len(actions) < 2:
        raise ValueError(
            f"`actions` must be two or more raw actions of {head!r}, of the shape "
            f"(K, *{tuple(head.action_shape)}). Received: shape {actions.shape}"
        )
    if not np.can_cast(actions.dtype, head.action_dtype, "same_kind"):
        raise ValueError(
            f"`actions` of {head!r} must be of type {head.action_dtype}. "
            f"Received: {actions.dtype}"
        )
    wrong = np.flatnonzero(~_possible(head, actions))
    if len(wrong):
        raise ValueError(
            f"`actions` must be raw actions of {head!r}. Received: {actions[wrong[0]]}, "
            "which `head.possible` refuses."
        )
    return actions.astype(head.action_dtype)


def _possible(head, actions):
    """`[N]`: which of `[N, …]` are whole raw actions."""
    return np.reshape(head.possible(actions), (len(actions), -1)).all(axis=1)


def _counted(head):
    """Every array of whole numbers from 0 that the head accepts.

    How far to count is asked of each place alone, with zeros in all others.
    """
    ranges, size = [], math.prod(head.action_shape)
    for place in range(size):
        alone = np.zeros((_MOST_ACTIONS + 1, size), "int64")
        alone[:, place] = np.arange(_MOST_ACTIONS + 1)
        accepted = _possible(head, alone.reshape(-1, *head.action_shape))
        ranges.append(1 + max(np.flatnonzero(accepted), default=-1))
    count = math.prod(int(number) for number in ranges)
    if not 0 < count <= _MOST_ACTIONS:
        raise ValueError(
            f"The raw actions of {head!r} cannot be counted: `head.possible` accepts "
            f"{ranges} numbers for its {size} places; there may be at most "
            f"{_MOST_ACTIONS} combinations. Give all raw actions as `actions`, or take a "
            "smaller head of the same kind."
        )
    counted = np.array(list(itertools.product(*map(range, ranges))), head.action_dtype)
    counted = counted.reshape(-1, *head.action_shape)
    return counted[_possible(head, counted)]


def check_head(head, outputs=None, *, actions=None, seed=0):
    """Proves that a head is the distribution it says it is.

    All raw actions are enumerated, or, for a continuous head, integrated over. Checked
    in this order, so that the first failure is the cause of later ones:

    - `probabilities`: exp(log_prob) sums, or integrates, to one;
    - `eligibility`: the closed form is what automatic differentiation of log_prob finds;
    - `finite_differences`: and what central differences of log_prob find;
    - `sample`: 20,000 draws, with noise from the seed, have the frequencies of all
      actions (one draw more or less besides), or the first two moments, within six
      standard errors;
    - `moments`: continuous heads only, the same two moments without drawing;
    - `expected_eligibility`: is zero;
    - `entropy`: is the expectation of -log_prob;
    - `mode`: no raw action is more likely.

    Args:
        head: `tfr.heads.Head`; built if it is not. Continuous heads must draw one or two
            numbers from as many of noise, smoothly.
        outputs: `[N, P]` a few rows of outputs. Defaults to three normal ones.
        actions: `[K, …]` all raw actions of a head with whole-number actions. Defaults
            to every array of whole numbers from 0 that `head.possible` accepts.
        seed: Int, for the outputs and for the noise of the draws.

    Returns:
        Dict from the property to its largest error. Errors of numbers above 1 are
        relative to these, the error of `sample` counts standard errors.

    Raises:
        AssertionError: naming the property, its error and what to look at.
        ValueError: when an argument is not acceptable, or there is too much to count.

    Example:

    A head of your own that adds uniform noise where Gumbel's is needed:

    >>> class Mine(heads.Categorical):
    ...     def sample(self, outputs, noise):
    ...         return self.mode(outputs + noise)
    >>> check_head(Mine(3))
    Traceback (most recent call last):
        ...
    AssertionError: `sample` of Categorical(3, start=0): `sample` must draw from...
    >>> check_head(heads.Categorical(3))["entropy"] < 1e-9
    True
    """
    arguments.instance("head", head, heads.Head)
    if not head.built:
        head.build((None, head.outputs_size))
    rng = np.random.default_rng(seed)
    if outputs is None:
        outputs = rng.normal(size=(3, head.outputs_size))
    outputs = np.asarray(outputs, "float64")
    head.check_outputs(outputs.shape)
    if not len(outputs) or not np.isfinite(outputs).all():
        raise ValueError(
            "`outputs` must be one or more rows of finite numbers. "
            f"Received: outputs={outputs.tolist()}"
        )
    arguments.one_of("head.noise.kind", head.noise.kind, ("uniform", "normal"))
    if _is_whole(head):
        actions = _raw_actions(head, actions)
    elif actions is not None:
        raise ValueError(
            "`actions` are for heads with whole-number actions; those of a continuous "
            f"head are integrated over. Received: actions for {head!r}"
        )
    report = {}
    for row in outputs:
        check = _Enumerated if _is_whole(head) else _Integrated
        for name, error in check(head, row, actions, rng).errors():
            error = float(error)
            if not error <= _TOLERANCES[name]:
                raise AssertionError(
                    f"`{name}` of {head!r}: {_MEANINGS[name]} Expected: an error of at "
                    f"most {_TOLERANCES[name]:g}. Received: {error:.6g} for the outputs "
                    f"{row.tolist()}"
                )
            report[name] = max(error, report.get(name, 0.0))
    return report


class _Weighed(abc.ABC):
    """A head at one row of outputs: many raw actions, each with its probability."""

    def __init__(self, head, row, actions, measure, rng):
        self.head = head
        self.row = row
        self.actions = actions
        self.rng = rng
        self.log_probs, self.slopes = self._differentiated()
        counts = measure > 0  # where it is zero, log_prob may be anything
        weights = np.exp(self.log_probs) * measure
        self.probs = np.where(counts, weights, 0.0)

    def outputs(self, count, row=None):
        """The row, `count` times."""
        return tf.constant(np.tile(self.row if row is None else row, (count, 1)))

    def expectation(self, values):
        """E[f(a)] from `[N, …]` values f(a), where the probability is not zero."""
        probs = self.probs.reshape(-1, *[1] * (np.ndim(values) - 1))
        return np.sum(probs * np.where(probs > 0, values, 0.0), axis=0)

    def errors(self):
        """(property, error), in the order in which they are to be believed."""
        yield "probabilities", abs(self.probs.sum() - 1)
        count = len(self.actions)
        closed = self.head.eligibility(self.outputs(count), self.actions).numpy()
        yield "eligibility", _far(closed, self.slopes)
        # Differences of actions that never happen would be rounding alone.
        near = self.log_probs > self.log_probs.max() - 20
        yield "finite_differences", _far(closed[near], self._differences(near))
        yield "sample", self.sample_error()
        yield from self.more_errors()
        yield "expected_eligibility", np.abs(self.expectation(closed)).max()
        entropy = self.head.distribution(self.outputs(1)).entropy().numpy()
        yield "entropy", _far(entropy, -self.expectation(self.log_probs))
        yield "mode", self.mode_error()

    @abc.abstractmethod
    def sample_error(self):
        """How far draws are from the distribution, in standard errors."""

    @abc.abstractmethod
    def more_errors(self):
        """(property, error) that only one kind of action has."""

    @abc.abstractmethod
    def mode_error(self):
        """By how much the log-probability of some action exceeds that of the mode."""

    def draws(self):
        """`[20000, …]` raw actions from fresh noise."""
        kind, shape = self.head.noise
        draw = {"uniform": self.rng.random, "normal": self.rng.standard_normal}[kind]
        noise = tf.constant(draw((_DRAWS, *shape)))
        return self.head.sample(self.outputs(_DRAWS), noise).numpy()

    def log_prob(self, actions, row=None):
        """`[N]` for `[N, …]` raw actions, at this row of outputs or another."""
        outputs = self.outputs(len(actions), row)
        return self.head.distribution(outputs).log_prob(actions).numpy()

    def _differentiated(self):
        count = len(self.actions)
        outputs = self.outputs(count)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.head.distribution(outputs).log_prob(self.actions)
        if log_probs.shape != (count,) or log_probs.dtype != tf.float64:
            raise AssertionError(
                f"`log_prob` of {self.head!r} must give one number per action in the "
                f"type of the outputs. Expected: shape {(count,)} of float64. Received: "
                f"shape {tuple(log_probs.shape)} of {log_probs.dtype.name}. Look at the "
                "event shape of `distribution`."
            )
        zero = tf.UnconnectedGradients.ZERO
        slopes = tape.gradient(log_probs, outputs, unconnected_gradients=zero)
        return log_probs.numpy(), slopes.numpy()

    def _differences(self, near, step=1e-5):
        columns = []
        for shift in step * np.eye(len(self.row)):
            above = self.log_prob(self.actions[near], self.row + shift)
            below = self.log_prob(self.actions[near], self.row - shift)
            columns.append((above - below) / (2 * step))
        return np.stack(columns, axis=1)


class _Enumerated(_Weighed):
    """Whole-number actions: there are so many and no more."""

    def __init__(self, head, row, actions, rng):
        super().__init__(head, row, actions, np.ones(len(actions)), rng)

    def sample_error(self):
        count = len(self.actions)
        both = np.concatenate([self.actions, self.draws()]).reshape(count + _DRAWS, -1)
        _, places = np.unique(both, axis=0, return_inverse=True)
        known, drawn = places.ravel()[:count], places.ravel()[count:]
        if not np.isin(drawn, known).all():
            return math.inf
        found = np.bincount(drawn, minlength=places.max() + 1)[known]
        # One draw besides: the frequency of what hardly ever happens is not normal.
        spread = np.sqrt(_DRAWS * self.probs * (1 - self.probs)) + 1 / 6
        return np.max(np.abs(found - _DRAWS * self.probs) / spread)

    def more_errors(self):
        return ()

    def mode_error(self):
        mode = self.head.mode(self.outputs(1)).numpy()
        if not _possible(self.head, mode).all():
            return math.inf
        return max(self.log_probs.max() - self.log_prob(mode)[0], 0.0)


class _Integrated(_Weighed):
    """Real actions: the trapezoid rule along the noise that makes them.

        ∫ f(a) da = ∫ f(a(z)) |da/dz| dz

    Any smooth `sample` may carry the integral, also one from another distribution; the
    error falls exponentially with the number of points.
    """

    def __init__(self, head, row, _, rng):
        size = math.prod(head.action_shape)
        if size > 2 or math.prod(head.noise.shape) != size:
            raise ValueError(
                "A continuous head must draw one or two numbers from as many of noise. "
                f"Received: {head!r} with actions of shape {head.action_shape} and noise "
                f"of shape {head.noise.shape}. Take a smaller head of the same kind."
            )
        axis = np.linspace(-16.0, 16.0, 257)
        grid = np.stack(np.meshgrid(*[axis] * size, indexing="ij"), axis=-1)
        grid = tf.constant(grid.reshape(-1, size))
        outputs = tf.constant(np.tile(row, (len(grid), 1)))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(grid)
            noise = tf.reshape(_noise(grid, head.noise.kind), [-1, *head.noise.shape])
            actions = head.sample(outputs, noise)
            flat = tf.reshape(actions, [-1, size])
            parts = [flat[:, place] for place in range(size)]
        slopes = [tape.gradient(part, grid) for part in parts]
        if any(slope is None for slope in slopes):
            raise AssertionError(
                f"`sample` of {head!r}: every number of a continuous action must follow "
                "the noise smoothly. Received: one that does not follow it at all."
            )
        cell = (axis[1] - axis[0]) ** size
        density = np.exp(-(grid.numpy() ** 2) / 2) / math.sqrt(2 * math.pi)
        self.chances = cell * density.prod(axis=1)
        measure = cell * np.abs(np.linalg.det(np.stack(slopes, axis=1)))
        super().__init__(head, row, actions.numpy(), measure, rng)

    def powers(self, actions):
        """`[N, …]`: the action and its square."""
        flat = actions.reshape(len(actions), -1)
        return np.concatenate([flat, flat**2], axis=1)

    def sample_error(self):
        powers = self.powers(self.actions)
        moments = self.expectation(powers)
        spread = np.sqrt(self.expectation((powers - moments) ** 2) / _DRAWS)
        found = self.powers(self.draws()).mean(axis=0)
        return np.max(np.abs(found - moments) / spread)

    def more_errors(self):
        powers = self.powers(self.actions)
        yield "moments", _far(self.chances @ powers, self.expectation(powers))

    def mode_error(self):
        mode = self.head.mode(self.outputs(1)).numpy()
        steps = np.eye(mode.size).reshape(-1, *mode.shape[1:])
        sizes = [sign * 10.0**-k for k in range(5) for sign in (-1, 1)]
        around = np.concatenate([mode + size * steps for size in sizes])
        rivals = np.append(self.log_probs, self.log_prob(around))
        return max(np.nanmax(rivals) - self.log_prob(mode)[0], 0.0)


def _noise(grid, kind):
    """Noise of a kind from points of the real line, where it would be normal."""
    if kind == "normal":
        return grid
    below_one = np.nextafter(1.0, 0.0)
    return tf.minimum(tf.math.erfc(-grid / math.sqrt(2)) / 2, below_one)


def _far(found, reference):
    """The largest difference; of numbers above 1, relative to the largest."""
    scale = max(1.0, np.max(np.abs(reference)))
    return float(np.max(np.abs(found - reference)) / scale)
