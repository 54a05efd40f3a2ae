"""Checks a head against the definition of a distribution."""

import abc
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_reinforce import heads
from tf_reinforce.support import validation
from tf_reinforce.testing import enumeration

_NUM_SAMPLES = 20_000

# For each property, the largest error, and what it means if the error is larger.
_PROPERTIES = {
    "legality": (
        0.0,
        "Under the mask, all actions with `is_legal` must have a probability above zero, "
        "and all other actions zero; the error is the number of actions with a wrong "
        "probability. Check `mask_outputs` and `is_legal`.",
    ),
    "probabilities": (
        1e-9,
        "The probabilities exp(log_prob) must sum, or integrate, to one over all raw "
        "actions. Check `distribution`, and whether `actions` is complete.",
    ),
    "eligibility": (
        1e-12,
        "`eligibility` must be the derivative of log_prob with respect to the outputs by "
        "automatic differentiation. Check `eligibility`.",
    ),
    "finite_differences": (
        1e-7,
        "`eligibility` must be the derivative of log_prob with respect to the outputs by "
        "central differences. Check whether log_prob stops a gradient.",
    ),
    "sample": (
        6.0,
        "`sample` must sample from `distribution`; the error is a number of standard "
        "errors. Check `sample`.",
    ),
    "moments": (
        1e-9,
        "The first two moments of `sample` must be those of `distribution`. Check "
        "`sample`.",
    ),
    "expected_eligibility": (
        1e-9,
        "The expectation of `eligibility` must be zero. Check whether log_prob is "
        "normalized for all outputs. For a continuous head, also check `sample`, and "
        "whether log_prob has a kink or an edge (Laplace, uniform), which the check "
        "cannot integrate.",
    ),
    "entropy": (
        1e-9,
        "The distribution's entropy must be minus the expectation of log_prob. Check the "
        "`entropy` of `distribution`.",
    ),
    "mode": (1e-9, "No raw action may be more likely than `mode`. Check `mode`."),
}


def check_head(
    head: Any,
    outputs: ArrayLike | None = None,
    *,
    mask: Any = None,
    actions: Any = None,
    seed: int = 0,
) -> dict[str, float]:
    """Checks that the methods of a head agree with the definition of a distribution.

    Raw actions are the samples of a head before their conversion to environment units.
    `check_head` enumerates all raw actions of a head with integer actions. For a
    continuous head, `check_head` computes integrals over all raw actions. The properties
    are checked in the following order, so that the first failure is not a consequence of
    another failure:

    - `legality`: Legal actions have a probability above zero, and illegal actions have
      the probability zero. `legality` is checked only with a mask. With a mask, all other
      properties are checked for the legal actions and the masked outputs. With a mask, an
      illegal action among the samples fails the property `sample`.
    - `probabilities`: exp(log_prob) sums, or integrates, to one over all raw actions.
    - `eligibility`: The method `eligibility` and automatic differentiation return equal
      derivatives of log_prob with respect to the outputs.
    - `finite_differences`: The method `eligibility` and central differences give equal
      derivatives of log_prob with respect to the outputs.
    - `sample`: Among 20,000 samples, the number of each action differs from its
      expectation by at most six standard errors plus one. For a continuous head, the
      first two moments of the samples differ from the first two moments of `distribution`
      by at most six standard errors.
    - `moments`: The first two moments of `sample`, integrated over the noise, equal the
      first two moments of `distribution`. `moments` is checked only for continuous heads
      with `head.support=None`.
    - `expected_eligibility`: The expectation of `eligibility` over all actions is zero.
    - `entropy`: The entropy of `distribution` is the expectation of -log_prob.
    - `mode`: No raw action is more likely than the mode of the head.

    Args:
        head: `tfr.heads.Head`, which `check_head` builds if necessary. A continuous head
            must sample one or two numbers. If `head.support` is `None`, the head needs
            one noise number for each sampled number, and the sampled numbers must be
            smooth functions of the noise. The log_prob of a continuous head must be
            smooth in the action (not Laplace or uniform). All heads inside a `Composite`
            must have integer actions.
        outputs: `[N, P]` float, N rows of P policy outputs, for which the head is
            checked. `outputs` defaults to three rows of standard normal numbers.
        mask: `[head.mask_size]` integers, the action mask under which a head with integer
            actions is checked. By default, the head is checked without a mask.
        actions: `[K, …]` integers, all K raw actions of a head with integer actions,
            nested like the actions of the head. `actions` defaults to every array of
            non-negative integers that `head.is_valid` accepts.
        seed: Int that determines the default outputs and the noise of the samples.

    Returns:
        Dict from the name of each property to its largest error over all rows of
        `outputs`. Errors are relative to the expected numbers if these are above 1. The
        error of `sample` is a number of standard errors.

    Raises:
        AssertionError: If the error of a property exceeds its tolerance. The message
            names the methods of the head that may be wrong.
        ValueError: If an argument is invalid, or the head has too many actions.

    Example:

    A custom head that adds uniform noise instead of Gumbel noise fails `check_head`:

    >>> class UniformNoise(heads.Categorical):
    ...     def sample(self, outputs, noise):
    ...         return self.mode(outputs + noise)
    >>> check_head(UniformNoise(3))
    Traceback (most recent call last):
        ...
    AssertionError: `sample` of Categorical(3, start=0): `sample` must sample from...
    >>> check_head(heads.Categorical(3))["entropy"] < 1e-9
    True
    """
    validation.instance("head", head, heads.Head)
    if not head.built:
        head.build((None, head.outputs_size))
    rng = np.random.default_rng(seed)
    if outputs is None:
        outputs = rng.normal(size=(3, head.outputs_size))
    outputs = np.asarray(outputs, "float64")
    is_matrix = outputs.ndim == 2 and outputs.shape[1] == head.outputs_size
    if not is_matrix or not len(outputs) or not np.isfinite(outputs).all():
        raise ValueError(
            f"`outputs` must be one or more rows of finite policy outputs for {head!r}, "
            f"in the shape (N, {head.outputs_size}). Received: {outputs.tolist()}"
        )
    if enumeration.is_integer(head):
        actions = enumeration.raw_actions(head, actions)
        mask = None if mask is None else enumeration.validate_mask(head, mask)
    elif not (actions is mask is None) or isinstance(head, heads.Composite):
        raise ValueError(
            "`actions`, `mask` and `Composite` are for heads with integer actions only. "
            f"Received: {head!r}. Check each continuous head alone."
        )
    report: dict[str, float] = {}
    for row in outputs:
        for name, error in _errors(head, row, actions, mask, rng):
            tolerance, meaning = _PROPERTIES[name]
            if not error <= tolerance:
                raise AssertionError(
                    f"`{name}` of {head!r}: {meaning} Expected: an error of at most "
                    f"{tolerance:g}. Received: {error:.6g} for the outputs "
                    f"{row.tolist()}"
                )
            report[name] = max(float(error), report.get(name, 0.0))
    return report


def _errors(head, row, actions, mask, rng):
    """Yields `(property, error)` of a head for one row of outputs."""
    if mask is not None:
        head = _MaskedHead(head, mask)
        legal = head.is_legal(actions)
        yield "legality", head.count_wrong(row, actions, legal)
        actions = enumeration.select(actions, legal)
    check = _EnumeratedCheck if enumeration.is_integer(head) else _IntegratedCheck
    yield from check(head, row, actions, rng).errors()


class _MaskedHead:
    """Wraps a head so that its methods first apply one action mask to the outputs."""

    def __init__(self, head, mask):
        self.head = head
        self.mask = mask

    def __getattr__(self, name):
        return getattr(self.head, name)

    def __repr__(self):
        return repr(self.head)

    def mask_outputs(self, outputs):
        masks = np.broadcast_to(self.mask, (*outputs.shape[:-1], len(self.mask)))
        return self.head.mask_outputs(outputs, tf.constant(masks))

    def distribution(self, outputs):
        return self.head.distribution(self.mask_outputs(outputs))

    def eligibility(self, outputs, actions):
        return self.head.eligibility(self.mask_outputs(outputs), actions)

    def sample(self, outputs, noise):
        return self.head.sample(self.mask_outputs(outputs), noise)

    def mode(self, outputs):
        return self.head.mode(self.mask_outputs(outputs))

    def is_valid(self, actions):
        valid = enumeration.is_valid(self.head, actions)
        return (valid & self.is_legal(actions))[:, None]

    def is_legal(self, actions):
        """Returns `[N]` bool, True for each of N raw actions that is legal."""
        return enumeration.is_legal(self.head, actions, self.mask)

    def count_wrong(self, row, actions, legal):
        """Returns the number of actions whose probability contradicts `is_legal`."""
        outputs = self.mask_outputs(tf.constant(np.tile(row, (len(legal), 1))))
        if not np.isfinite(outputs).all():
            return math.inf
        log_probs = self.head.distribution(outputs).log_prob(actions).numpy()
        # A legal action may be so unlikely that the probability rounds to zero.
        return np.sum((log_probs > -1e300) != legal)


class _Check(abc.ABC):
    """Measures how far a head is from a distribution, for one row of policy outputs.

    Args:
        head: `tfr.heads.Head` to check.
        row: `[P]` float, one row of policy outputs.
        actions: Array `[N, …]` of N raw actions, or nested arrays.
        measure: `[N]` float, the weights of the N actions. A sum over the N actions with
            these weights is the sum, or the integral, over all raw actions.
        rng: `np.random.Generator` for the noise of the samples.
    """

    def __init__(self, head, row, actions, measure, rng):
        self.head = head
        self.row = row
        self.actions = actions
        self.rng = rng
        self.log_probs, self.gradients = self._log_probs_and_gradients()
        weights = np.exp(self.log_probs) * measure
        # If the measure of an action is zero, log_prob may have any value.
        self.probs = np.where(measure > 0, weights, 0.0)

    def outputs(self, count, row=None):
        """Returns `count` copies of one row of P policy outputs, `[count, P]`."""
        return tf.constant(np.tile(self.row if row is None else row, (count, 1)))

    def expectation(self, values):
        """Returns the expectation E[f(a)] from the values f(a) of N actions, `[N, …]`.

        Values of actions with probability zero are ignored, even if the values are NaN.
        """
        probs = self.probs.reshape(-1, *[1] * (np.ndim(values) - 1))
        return np.sum(probs * np.where(probs > 0, values, 0.0), axis=0)

    def errors(self):
        """Yields `(property, error)` in the order of the docstring of `check_head`."""
        yield "probabilities", abs(self.probs.sum() - 1)
        count = enumeration.count(self.actions)
        closed_form = self.head.eligibility(self.outputs(count), self.actions)
        closed_form = self.validate(
            "eligibility", closed_form, (count, len(self.row)), "float64"
        )
        yield "eligibility", _error(closed_form, self.gradients)
        # The differences of the log-probabilities of very unlikely actions would be
        # rounding errors.
        likely = self.log_probs > self.log_probs.max() - 20
        differences = self._finite_differences(likely)
        yield "finite_differences", _error(closed_form[likely], differences)
        yield "sample", self.sample_error()
        yield from self.more_errors()
        yield "expected_eligibility", np.abs(self.expectation(closed_form)).max()
        entropy = self.head.distribution(self.outputs(1)).entropy().numpy()
        yield "entropy", _error(entropy, -self.expectation(self.log_probs))
        yield "mode", self.mode_error()

    @abc.abstractmethod
    def sample_error(self):
        """Returns the error of samples as a number of standard errors."""

    @abc.abstractmethod
    def mode_error(self):
        """Returns by how much the largest log-probability exceeds that of the mode."""

    def more_errors(self):
        """Returns `(property, error)` pairs of the checks for some heads only."""
        return ()

    def samples(self):
        """Returns 20,000 raw actions, sampled from new noise, as arrays `[20000, …]`."""
        generate = {"uniform": self.rng.random, "normal": self.rng.standard_normal}
        noise = keras.tree.map_structure(
            lambda spec: tf.constant(generate[spec.kind]((_NUM_SAMPLES, *spec.shape))),
            self.head.noise,
        )
        actions = self.head.sample(self.outputs(_NUM_SAMPLES), noise)
        return self.validate_actions("sample", actions, _NUM_SAMPLES)

    def mode(self):
        """Returns the mode of the head, its most likely raw action, `[1, …]`."""
        return self.validate_actions("mode", self.head.mode(self.outputs(1)), 1)

    def validate_actions(self, name, actions, count):
        """Returns the given raw actions as arrays; raises if a shape or type is wrong."""
        action_spec = self.head.action_spec("float64")
        keras.tree.assert_same_structure(action_spec, actions)
        return keras.tree.map_structure(
            lambda spec, part: self.validate(
                name, part, (count, *spec.shape), spec.dtype.name
            ),
            action_spec,
            actions,
        )

    def validate(self, name, values, shape, dtype):
        """Returns an array, or raises an error if its shape or type is wrong."""
        values = np.asarray(values)
        if values.shape != shape or values.dtype != dtype:
            raise AssertionError(
                f"`{name}` of {self.head!r} must return the shape {shape} in {dtype} for "
                f"{shape[0]} rows of float64 outputs. Received: shape {values.shape} in "
                f"{values.dtype}. Check the event shape and type of `distribution`."
            )
        return values

    def log_prob(self, actions, row=None):
        """Returns the log-probabilities of N raw actions `[N, …]`, as `[N]` float."""
        outputs = self.outputs(enumeration.count(actions), row)
        return self.head.distribution(outputs).log_prob(actions).numpy()

    def _log_probs_and_gradients(self):
        count = enumeration.count(self.actions)
        outputs = self.outputs(count)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.head.distribution(outputs).log_prob(self.actions)
        self.validate("log_prob", log_probs, (count,), "float64")
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(log_probs, outputs, unconnected_gradients=zero)
        return log_probs.numpy(), gradients.numpy()

    def _finite_differences(self, index, step=1e-5):
        columns, actions = [], enumeration.select(self.actions, index)
        for shift in step * np.eye(len(self.row)):
            above = self.log_prob(actions, self.row + shift)
            below = self.log_prob(actions, self.row - shift)
            columns.append((above - below) / (2 * step))
        return np.stack(columns, axis=1)


class _EnumeratedCheck(_Check):
    """Checks a head with integer actions by enumeration."""

    def __init__(self, head, row, actions, rng):
        measure = np.ones(enumeration.count(actions))
        super().__init__(head, row, actions, measure, rng)

    def sample_error(self):
        count = enumeration.count(self.actions)
        rows = [enumeration.to_matrix(x) for x in (self.actions, self.samples())]
        _, indices = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        of_actions, of_samples = indices.ravel()[:count], indices.ravel()[count:]
        if not np.isin(of_samples, of_actions).all():
            return math.inf
        counts = np.bincount(of_samples, minlength=indices.max() + 1)[of_actions]
        # The term 1 / 6 allows one more sample, because counts of rare actions are not
        # normal.
        errors = np.sqrt(_NUM_SAMPLES * self.probs * (1 - self.probs)) + 1 / 6
        return np.max(np.abs(counts - _NUM_SAMPLES * self.probs) / errors)

    def mode_error(self):
        mode = self.mode()
        if not enumeration.is_valid(self.head, mode).all():
            return math.inf
        return max(self.log_probs.max() - self.log_prob(mode)[0], 0.0)


class _IntegratedCheck(_Check):
    """Checks a continuous head by numerical integrals over all raw actions.

        ∫ f(a) da = ∫ f(a(z)) |da/dz| dz

    To integrate a function f over all actions a, `_IntegratedCheck` writes a as a
    function a(z) of real numbers z, and applies the trapezoid rule to z. If log_prob is
    smooth, the error of the integral decreases exponentially with the number of points.
    """

    def __init__(self, head, row, _, rng):
        size = math.prod(head.action_shape)
        if size > 2 or head.support is None and math.prod(head.noise.shape) != size:
            raise ValueError(
                "A continuous head must sample one or two numbers. A head with "
                "`support=None` needs one noise number for each sampled number. "
                f"Received: {head!r} with actions of shape {head.action_shape} and noise "
                f"of shape {head.noise.shape}. To check a larger head, check a smaller "
                "head of the same kind."
            )
        self.noise_probs = None
        if head.support is None:
            actions, measure, self.noise_probs = _grid_of_noise(head, row, size)
        else:
            actions, measure = _grid_of_support(head, row, size, rng)
        super().__init__(head, row, actions, measure, rng)

    def powers(self, actions):
        """Returns the numbers of each of N actions, and the squares of the numbers."""
        flat = actions.reshape(len(actions), -1)
        return np.concatenate([flat, flat**2], axis=1)

    def sample_error(self):
        powers = self.powers(self.actions)
        moments = self.expectation(powers)
        errors = np.sqrt(self.expectation((powers - moments) ** 2) / _NUM_SAMPLES)
        means = self.powers(self.samples()).mean(axis=0)
        # If one atom has all the probability, the standard error is zero.
        rounding = 1e-14 * np.maximum(1.0, np.abs(moments))
        return np.max(np.abs(means - moments) / np.maximum(errors, rounding))

    def more_errors(self):
        if self.noise_probs is not None:
            powers = self.powers(self.actions)
            yield "moments", _error(self.noise_probs @ powers, self.expectation(powers))

    def mode_error(self):
        mode = self.mode()
        steps = np.eye(mode.size).reshape(-1, *mode.shape[1:])
        sizes = [sign * 10.0**-k for k in range(5) for sign in (-1, 1)]
        others = np.concatenate([self.actions] + [mode + size * steps for size in sizes])
        valid = self.head.is_valid(others).reshape(len(others), -1).all(axis=1)
        # A density cannot be compared with a probability.
        comparable = (self._is_atom(others) == self._is_atom(mode)).all(axis=1)
        log_densities = self._log_density(others[valid & comparable])
        return max(np.nanmax(log_densities) - self._log_density(mode)[0], 0.0)

    def _log_density(self, actions):
        """Returns the log-density of raw actions, which may differ from log_prob.

        log_prob is the log-density of the variable that `head.density_variable` returns,
        for example of tanh x for the raw action x.
        """
        raw_actions = tf.constant(actions)
        with tf.GradientTape() as tape:
            tape.watch(raw_actions)
            variable = self.head.density_variable(raw_actions)
        gradients = tape.gradient(variable, raw_actions)
        factors = np.abs(gradients).reshape(len(actions), -1)
        with np.errstate(divide="ignore"):  # a number may round to a bound
            return self.log_prob(actions) + np.log(factors).sum(axis=1)

    def _is_atom(self, actions):
        """Returns a bool for each number of each action, True if the number is an atom.

        An atom is a bound of the support that has a positive probability.
        """
        flat, support = actions.reshape(len(actions), -1), self.head.support
        if support is None or not support.atoms:
            return np.zeros(flat.shape, bool)
        return (flat <= support.low) | (flat >= support.high)


def _grid_of_noise(head, row, size):
    """Returns raw actions for a grid of noise, their weights and the noise probabilities.

    The weights define integrals over all raw actions: the integral of a function is the
    weighted sum of its values at the returned actions. The method `sample` must be
    smooth, but may sample from a wrong distribution.
    """
    axis = np.linspace(-16.0, 16.0, 257)
    grid = np.stack(np.meshgrid(*[axis] * size, indexing="ij"), axis=-1)
    grid = tf.constant(grid.reshape(-1, size))
    outputs = tf.constant(np.tile(row, (len(grid), 1)))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(grid)
        noise = tf.reshape(_noise(grid, head.noise.kind), [-1, *head.noise.shape])
        actions = head.sample(outputs, noise)
        flat = tf.reshape(head.density_variable(actions), [-1, size])
        numbers = [flat[:, index] for index in range(size)]
    gradients = [tape.gradient(number, grid) for number in numbers]
    values = [flat, *gradients]
    if not all(x is not None and np.isfinite(x).all() for x in values):
        raise AssertionError(
            f"`sample` of {head!r}: every number of a continuous action must be a "
            "finite, smooth function of the noise."
        )
    cell = (axis[1] - axis[0]) ** size
    density = np.exp(-(grid.numpy() ** 2) / 2) / math.sqrt(2 * math.pi)
    measure = cell * np.abs(np.linalg.det(np.stack(gradients, axis=1)))
    return actions.numpy(), measure, cell * density.prod(axis=1)


def _grid_of_support(head, row, size, rng):
    """Returns raw actions on a grid over the support of a head, and their weights."""
    generate = {"uniform": rng.random, "normal": rng.standard_normal}[head.noise.kind]
    noise = tf.constant(generate((1000, *head.noise.shape)))
    samples = head.sample(tf.constant(np.tile(row, (1000, 1))), noise).numpy()
    bounds = [np.broadcast_to(x, size) for x in (head.support.low, head.support.high)]
    rules = [
        _quadrature(numbers, low, high, head.support.atoms)
        for numbers, low, high in zip(samples.reshape(1000, size).T, *bounds, strict=True)
    ]
    points, weights = (
        np.stack(np.meshgrid(*parts, indexing="ij"), axis=-1).reshape(-1, size)
        for parts in zip(*rules, strict=True)
    )
    return points.reshape(-1, *head.action_shape), weights.prod(axis=1)


def _quadrature(samples, low, high, atoms):
    """Returns points of an interval, densest near the samples, and their weights.

    `_quadrature` maps a grid on the real line to the interval. A sinh of the grid makes
    the points sparse in the tails of the distribution. An atom of the distribution, a
    bound with a positive probability, is a point with the weight 1.
    """
    to_line, from_line, derivative = _line_maps(low, high)
    inside = samples[(samples > low) & (samples < high)]
    middle, width = 0.0, 1.0
    if len(inside) > 10:  # too few samples make noisy estimates
        middle, width = np.mean(to_line(inside)), np.std(to_line(inside))
    grid = np.linspace(-6.0, 6.0, 257)
    with np.errstate(over="ignore"):
        points = from_line(middle + width * np.sinh(grid))
    weights = derivative(points) * width * np.cosh(grid) * (grid[1] - grid[0])
    usable = (points > low) & (points < high) & (np.abs(points) < 1e50)
    ends = [end for end in (low, high) if atoms and math.isfinite(end)]
    return np.append(points[usable], ends), np.append(weights[usable], np.ones(len(ends)))


def _line_maps(low, high):
    """Returns a map from an interval to the real line, the inverse, and its derivative.

    The derivative of the inverse is a function of the point in the interval.
    """
    if math.isfinite(low) and math.isfinite(high):
        return (
            lambda a: np.log((a - low) / (high - a)),
            lambda x: low + (high - low) / (1 + np.exp(-x)),
            lambda a: (a - low) * (high - a) / (high - low),
        )
    if math.isfinite(low):
        return lambda a: np.log(a - low), lambda x: low + np.exp(x), lambda a: a - low
    if math.isfinite(high):
        return (
            lambda a: -np.log(high - a),
            lambda x: high - np.exp(-x),
            lambda a: high - a,
        )
    return np.array, np.array, np.ones_like


def _noise(grid, kind):
    """Converts standard normal noise to noise of the given `kind`, normal or uniform."""
    if kind == "normal":
        return grid
    below_one = np.nextafter(1.0, 0.0)
    return tf.minimum(tf.math.erfc(-grid / math.sqrt(2)) / 2, below_one)


def _error(values, reference):
    """Returns the largest |values - reference|, divided by max(1, max |reference|)."""
    scale = max(1.0, np.max(np.abs(reference)))
    return float(np.max(np.abs(values - reference)) / scale)
