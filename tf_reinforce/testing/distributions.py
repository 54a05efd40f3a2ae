"""Checks a head against the definition of a distribution."""

import functools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from numpy.typing import ArrayLike

from tf_reinforce import heads
from tf_reinforce.testing import enumeration

_NUM_SAMPLES = 20_000

_TOLERANCES = {
    "legality": 0.0,  # a number of actions
    "probabilities": 1e-9,
    "eligibility": 1e-12,
    "finite_differences": 1e-7,
    "sample": 6.0,  # standard errors
    "expected_eligibility": 1e-9,
    "entropy": 1e-9,
    "mode": 1e-9,
}


def check_head(
    head: Any,
    outputs: ArrayLike | None = None,
    *,
    mask: Any = None,
    seed: int = 0,
) -> dict[str, float]:
    """Checks that a head's methods agree with the definition of a distribution.

    Raw actions are the head's samples, before their conversion to environment units. If
    the raw actions are integers, all of them are enumerated. For a continuous head, the
    sums over actions become numerical integrals.

    The properties are checked in the following order, which ensures that the first
    failure is not a consequence of another:

    - `legality`: Legal actions have a positive probability, and illegal ones have zero.
      This is checked only with a mask. All other properties are then checked for the
      legal actions and the masked outputs, and an illegal sample fails `sample`.
    - `probabilities`: exp(log_prob) sums, or integrates, to one. Otherwise,
      `head.is_valid` may accept too few actions.
    - `eligibility`: `head.eligibility` and automatic differentiation return the same
      derivatives of log_prob with respect to the outputs.
    - `finite_differences`: `head.eligibility` and central differences return the same
      derivatives. Otherwise, log_prob may stop a gradient.
    - `sample`: Among 20,000 samples, the count of each action differs from its
      expectation by at most six standard errors plus one. For a continuous head, the
      first two moments of the samples differ from those of `distribution` by at most six
      standard errors.
    - `expected_eligibility`: The expectation of `eligibility` over all actions is zero.
      Otherwise, log_prob may be normalized for some outputs only, or not be smooth.
    - `entropy`: The expectation of the entropy from `log_prob_and_entropy` is that of
      -log_prob.
    - `mode`: No raw action is more likely than the head's mode. The mode of an
      `Autoregressive` is greedy: no value of a part is more likely, given the mode of the
      earlier parts.

    Args:
        head: `tfr.heads.Head`, which is built if necessary. A continuous head must sample
            one or two numbers, and its log_prob must be smooth in the action (not Laplace
            or uniform). All heads inside a nested one must have integer actions.
        outputs: `[N, P]` float, the rows of policy outputs to check. The default is three
            rows of standard normal numbers.
        mask: `[head.mask_size]` integers, an action mask for a head with integer actions,
            or `None` to check it without a mask.
        seed: Int, the seed of the default outputs and of the sampling noise.

    Returns:
        Dict from the name of each property to its largest error over all rows. Errors are
        relative to expected numbers above 1, and else absolute. The error of `sample` is
        a number of standard errors.

    Raises:
        AssertionError: If an error exceeds its tolerance. The message names the methods
            that may be wrong.
        ValueError: If an argument is invalid, or the head has too many actions.

    Example:

    A custom head that adds uniform noise instead of Gumbel noise fails `check_head`:

    >>> class UniformNoise(heads.Categorical):
    ...     def sample(self, outputs, noise):
    ...         return self.mode(outputs + noise)
    >>> check_head(UniformNoise(3))
    Traceback (most recent call last):
        ...
    AssertionError: `sample` of UniformNoise(size=3, start=0) must have an error of ...
    >>> check_head(heads.Categorical(3))["entropy"] < 1e-9
    True
    """
    enumeration.build(head)
    rng = np.random.default_rng(seed)
    if outputs is None:
        outputs = rng.normal(size=(3, head.outputs_size))
    outputs = np.asarray(outputs, "float64")
    is_matrix = outputs.ndim == 2 and outputs.size
    is_matrix = is_matrix and outputs.shape[1] == head.outputs_size
    if not is_matrix or not np.isfinite(outputs).all():
        raise ValueError(
            f"`outputs` must be finite numbers of shape (N, {head.outputs_size}) for "
            f"{head!r}. Received: {outputs.tolist()}"
        )
    kind: Any = _IntegratedCheck
    if enumeration.is_integer(head):
        kind = functools.partial(_EnumeratedCheck, enumeration.raw_actions(head))
    report: dict[str, float] = {}
    for row in outputs:
        for name, error in kind(head, row, rng, mask).errors():
            if not error <= _TOLERANCES[name]:
                raise AssertionError(
                    f"`{name}` of {head!r} must have an error of at most "
                    f"{_TOLERANCES[name]:g}, as the documentation of `check_head` "
                    f"explains. Received: {error:.6g} for the outputs {row.tolist()}"
                )
            report[name] = max(float(error), report.get(name, 0.0))
    return report


class _Check:
    """Measures how far a head is from a distribution, for one row of policy outputs.

    A subclass provides N raw `actions` and their weights `measure`, `[N]` float. Adding
    up a function of the actions with these weights gives its sum, or its integral, over
    all raw actions.
    """

    def __init__(self, head, row, rng):
        self.head, self.row, self.rng = head, row, rng
        self.action_spec = head.action_spec("float64")

    def outputs(self, count, row=None):
        """Returns `[count, P]`, copies of one row of policy outputs."""
        return tf.constant(np.tile(self.row if row is None else row, (count, 1)))

    def errors(self):
        """Yields `(property, error)` in the order that `check_head` documents."""
        count = enumeration.count(self.actions)
        outputs = self.outputs(count)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.head.distribution(outputs).log_prob(self.actions)
        self.checked("log_prob", log_probs, count, tf.TensorSpec((), tf.float64))
        gradients = tape.gradient(log_probs, outputs, unconnected_gradients="zero")
        log_probs = log_probs.numpy()
        # If the measure of an action is zero, log_prob may have any value.
        self.probs = np.where(self.measure > 0, np.exp(log_probs) * self.measure, 0.0)
        yield "probabilities", abs(self.probs.sum() - 1)
        closed_form = self.head.eligibility(outputs, self.actions)
        row = tf.TensorSpec(self.row.shape, tf.float64)
        closed_form = self.checked("eligibility", closed_form, count, row)
        yield "eligibility", _error(closed_form, gradients)
        # Differences of the log-probabilities of very unlikely actions are rounding.
        likely = log_probs > log_probs.max() - 20
        actions, step = enumeration.select(self.actions, likely), 1e-5
        differences = [
            self.log_prob(actions, self.row + shift)
            - self.log_prob(actions, self.row - shift)
            for shift in step * np.eye(len(self.row))
        ]
        differences = np.stack(differences, axis=1) / (2 * step)
        yield "finite_differences", _error(closed_form[likely], differences)
        yield from self.sample_errors()
        yield "expected_eligibility", np.abs(self.expectation(closed_form)).max()
        _, entropies = self.head.log_prob_and_entropy(outputs, self.actions)
        entropy = self.expectation(entropies.numpy()) / self.probs.sum()
        yield "entropy", _error(entropy, -self.expectation(log_probs))
        mode = self.checked("mode", self.head.mode(self.outputs(1)), 1, self.action_spec)
        yield "mode", self.mode_error(mode, log_probs)

    def expectation(self, values):
        """Returns E[f(a)], given the values f(a) of all N actions, `[N, …]`.

        Actions with probability zero do not count, even if their values are NaN.
        """
        probs = self.probs.reshape(-1, *[1] * (np.ndim(values) - 1))
        return np.sum(probs * np.where(probs > 0, values, 0.0), axis=0)

    @functools.cached_property
    def samples(self):
        """20,000 raw actions, as arrays `[20000, …]`."""
        generate = {"uniform": self.rng.random, "normal": self.rng.standard_normal}
        noise = keras.tree.map_structure(
            lambda spec: tf.constant(generate[spec.kind]((_NUM_SAMPLES, *spec.shape))),
            self.head.noise,
        )
        samples = self.head.sample(self.outputs(_NUM_SAMPLES), noise)
        return self.checked("sample", samples, _NUM_SAMPLES, self.action_spec)

    def checked(self, name, values, count, spec):
        """Returns `count` results as arrays; raises if a shape or type is wrong."""

        def check(one, part):
            part, shape = tf.convert_to_tensor(part), (count, *one.shape)
            if part.shape != shape or part.dtype != one.dtype:
                raise AssertionError(
                    f"`{name}` of {self.head!r} must return the shape {shape} in "
                    f"{one.dtype.name} for float64 outputs. Received: {part.shape} in "
                    f"{part.dtype.name}. Check the event shape of `distribution`."
                )
            return part.numpy()

        return keras.tree.map_structure(check, spec, values)

    def log_prob(self, actions, row=None):
        """Returns the log-probabilities of N raw actions, `[N]` float."""
        outputs = self.outputs(enumeration.count(actions), row)
        return self.head.distribution(outputs).log_prob(actions).numpy()


class _EnumeratedCheck(_Check):
    """Checks a head with integer actions by enumeration."""

    def __init__(self, all_actions, head, row, rng, mask):
        super().__init__(head, row, rng)
        self.all_actions, self.mask = all_actions, mask
        self.is_legal = np.ones(enumeration.count(self.all_actions), bool)
        if mask is not None:
            mask = enumeration.validate_mask(head, mask)
            self.is_legal = enumeration.is_legal(head, self.all_actions, mask)
            self.row = head.mask_outputs(tf.constant(row), tf.constant(mask)).numpy()
        self.actions = enumeration.select(self.all_actions, self.is_legal)
        self.measure = np.ones(np.sum(self.is_legal))

    def errors(self):
        if self.mask is not None:
            # A legal action may be so unlikely that the probability rounds to zero.
            is_possible = self.log_prob(self.all_actions) > -1e300
            wrong = np.sum(is_possible != self.is_legal)
            yield "legality", wrong if np.isfinite(self.row).all() else math.inf
        yield from super().errors()

    def sample_errors(self):
        count = enumeration.count(self.actions)
        rows = [enumeration.to_matrix(x) for x in (self.actions, self.samples)]
        _, indices = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        of_actions, of_samples = indices.ravel()[:count], indices.ravel()[count:]
        counts = np.bincount(of_samples, minlength=indices.max() + 1)[of_actions]
        # The term 1 / 6 allows one more sample, because counts of rare actions are not
        # normal.
        errors = np.sqrt(_NUM_SAMPLES * self.probs * (1 - self.probs)) + 1 / 6
        error = np.max(np.abs(counts - _NUM_SAMPLES * self.probs) / errors)
        yield "sample", error if counts.sum() == _NUM_SAMPLES else math.inf

    def mode_error(self, mode, log_probs):
        columns = [(self.actions, mode)]
        if isinstance(self.head, heads.Autoregressive):
            # The mode is greedy: part by part, given the mode of the earlier parts.
            flat = zip(*map(keras.tree.flatten, (self.actions, mode)), strict=True)
            named = dict(zip(self.head.names, flat, strict=True))
            columns = [named[name] for name in self.head.order]
        error, possible = 0.0, np.ones(len(log_probs), bool)
        for values, best in columns:
            matrix = enumeration.to_matrix(values)
            groups = np.unique(matrix, axis=0, return_inverse=True)[1].ravel()
            totals = np.bincount(groups, np.exp(log_probs) * possible)
            possible &= (matrix == enumeration.to_matrix(best)).all(axis=1)
            if not possible.any():
                return math.inf
            error = max(error, np.log(totals.max() / totals[groups[possible][0]]))
        return error


class _IntegratedCheck(_Check):
    """Checks a continuous head by numerical integrals over all raw actions.

        ∫ f(a) da = ∫ f(a(z)) |da/dz| dz

    The actions are written as a function of real numbers z, over which the trapezoid rule
    integrates. If log_prob is smooth, the error of this rule decreases exponentially with
    the number of points.
    """

    def __init__(self, head, row, rng, mask):
        super().__init__(head, row, rng)
        if hasattr(head, "leaves") or mask is not None:
            raise ValueError(
                "Only a head with integer actions may have a `mask` or be of several. "
                f"Received: {head!r}. Check each continuous head alone."
            )
        self.size = math.prod(head.action_shape)
        if self.size > 2:
            raise ValueError(
                "A continuous head must sample one or two numbers. Check a smaller head "
                f"of the same kind. Received: {head!r}"
            )
        support = head.support or _LINE
        self.low, self.high = np.broadcast_arrays(
            support.low, support.high, np.zeros(self.size)
        )[:2]
        self.atoms = support.atoms
        samples = self.samples.reshape(_NUM_SAMPLES, -1)[:1000]
        rules = [
            _quadrature(numbers, low, high, self.atoms)
            for numbers, low, high in zip(samples.T, self.low, self.high, strict=True)
        ]
        points, weights = (
            np.stack(np.meshgrid(*parts, indexing="ij"), axis=-1).reshape(-1, self.size)
            for parts in zip(*rules, strict=True)
        )
        self.actions = points.reshape(-1, *head.action_shape)
        self.measure = weights.prod(axis=1) * np.exp(self._log_factor(self.actions))

    def sample_errors(self):
        powers = _powers(self.actions)
        moments = self.expectation(powers)
        errors = np.sqrt(self.expectation((powers - moments) ** 2) / _NUM_SAMPLES)
        means = _powers(self.samples).mean(axis=0)
        # If one atom has all the probability, the standard error is zero.
        rounding = 1e-14 * np.maximum(1.0, np.abs(moments))
        yield "sample", np.max(np.abs(means - moments) / np.maximum(errors, rounding))

    def mode_error(self, mode, log_probs):
        steps = np.eye(mode.size).reshape(-1, *mode.shape[1:])
        sizes = [sign * 10.0**-k for k in range(5) for sign in (-1, 1)]
        others = np.concatenate([self.actions] + [mode + size * steps for size in sizes])
        valid = self.head.is_valid(others).reshape(len(others), -1).all(axis=1)
        # A density cannot be compared with the probability of an atom.
        flat, top = (x.reshape(len(x), -1) for x in (others, mode))
        is_atom, top_is_atom = (
            self.atoms & ((x <= self.low) | (x >= self.high)) for x in (flat, top)
        )
        others = others[valid & (is_atom == top_is_atom).all(axis=1)]
        # log_prob is the log-density of `density_variable`.
        pair = (self.log_prob(x) + self._log_factor(x) for x in (others, mode))
        densities, density = pair
        return max(np.nanmax(densities) - density[0], 0.0)

    def _log_factor(self, actions):
        """Returns ln |dv/da| for raw actions a and the head's density variable v."""
        actions = tf.constant(actions)
        with tf.GradientTape() as tape:
            tape.watch(actions)
            variable = self.head.density_variable(actions)
        factors = np.abs(tape.gradient(variable, actions)).reshape(len(actions), -1)
        with np.errstate(divide="ignore"):  # a number may round to a bound
            return np.log(factors).sum(axis=1)


_LINE = heads.Support(-math.inf, math.inf, atoms=False)


def _powers(actions):
    """Returns the numbers in each of N actions, followed by their squares."""
    flat = actions.reshape(len(actions), -1)
    return np.concatenate([flat, flat**2], axis=1)


def _quadrature(samples, low, high, atoms):
    """Returns points in an interval, densest near the samples, and their weights.

    The points are a grid on the real line that is mapped to the interval. Applying sinh
    to the grid makes the points sparse in the tails. If a bound has a positive
    probability, the bound itself is a point with weight 1.
    """
    bijector = _from_line(*map(np.float64, (low, high)))
    inside = bijector.inverse(samples[(samples > low) & (samples < high)]).numpy()
    middle, width = 0.0, 1.0
    if len(inside) > 10:  # too few samples make noisy estimates
        middle, width = np.mean(inside), np.std(inside) or 1.0
    grid = np.linspace(-6.0, 6.0, 257)
    numbers = tf.constant(middle + width * np.sinh(grid))
    points = bijector.forward(numbers).numpy()
    weights = np.exp(bijector.forward_log_det_jacobian(numbers))
    weights *= width * np.cosh(grid) * (grid[1] - grid[0])
    usable = (points > low) & (points < high) & (np.abs(points) < 1e50)
    ends = [end for end in (low, high) if atoms and math.isfinite(end)]
    return np.append(points[usable], ends), np.append(weights[usable], np.ones(len(ends)))


def _from_line(low, high):
    """Returns a bijector from the real line to an interval."""
    if np.isfinite(low) and np.isfinite(high):
        return tfp.bijectors.Sigmoid(low, high)
    if np.isfinite(low):
        return tfp.bijectors.Shift(low)(tfp.bijectors.Exp())
    if np.isfinite(high):
        negative = tfp.bijectors.Scale(np.float64(-1.0))(tfp.bijectors.Exp())
        return tfp.bijectors.Shift(high)(negative)
    return tfp.bijectors.Identity()


def _error(values, reference):
    """Returns the largest |values - reference|, divided by max(1, max |reference|)."""
    scale = max(1.0, np.max(np.abs(reference)))
    return float(np.max(np.abs(values - reference)) / scale)
