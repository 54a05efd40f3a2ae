"""Checks a head against the definition of a distribution."""

import abc
import math

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce import validation
from tf_reinforce.testing import enumeration

_DRAWS = 20_000

_TOLERANCES = {
    "legality": 0.0,
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
    "legality": "Under the mask `is_legal` must be true of the actions that can happen, "
    "and all others must have the probability zero; the error counts actions. Look at "
    "`mask_outputs` and `is_legal`.",
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
    "log_prob is normalised for all outputs, not for these alone; for a continuous head "
    "also at `sample`, and whether log_prob has a kink or an edge (Laplace, uniform): "
    "such a one is too rough to be integrated here.",
    "entropy": "The distribution's entropy must be minus the expectation of log_prob. "
    "Look at the `entropy` of `distribution`.",
    "mode": "No raw action may be more likely than `mode`. Look at `mode`.",
}


def check_head(head, outputs=None, *, mask=None, actions=None, seed=0):
    """Proves that a head is the distribution it says it is.

    All raw actions are enumerated, or, for a continuous head, integrated over. Checked
    in this order, so that the first failure is the cause of later ones:

    - `legality`: under a mask only, and for all actions: what is legal can happen, and
      what is not has the probability zero. All other checks are then about the legal
      actions and the masked outputs, so that an illegal draw fails `sample`;
    - `probabilities`: exp(log_prob) sums, or integrates, to one;
    - `eligibility`: the closed form is what automatic differentiation of log_prob finds;
    - `finite_differences`: and what central differences of log_prob find;
    - `sample`: 20,000 draws, with noise from the seed, have the frequencies of all
      actions (one draw more or less besides), or the first two moments, within six
      standard errors;
    - `moments`: the same two moments without drawing; only of continuous heads whose
      samples follow the noise smoothly;
    - `expected_eligibility`: is zero;
    - `entropy`: is the expectation of -log_prob;
    - `mode`: no raw action is more likely.

    Args:
        head: `tfr.heads.Head`; built if it is not. Continuous heads must draw one or two
            numbers from as many of noise, smoothly, or state their `support`; with a
            log_prob that is smooth in the action (not Laplace or uniform). The leaves
            of a composite must make whole numbers.
        outputs: `[N, P]` a few rows of outputs. Defaults to three normal ones.
        mask: `[head.mask_size]` whole numbers, the mask under which to check a head with
            whole-number actions. Defaults to none.
        actions: `[K, …]` all raw actions of a head with whole-number actions, nested as
            these are. Defaults to every array of whole numbers from 0 that
            `head.is_valid` accepts.
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
    validation.instance("head", head, heads.Head)
    if not head.built:
        head.build((None, head.outputs_size))
    rng = np.random.default_rng(seed)
    if outputs is None:
        outputs = rng.normal(size=(3, head.outputs_size))
    outputs = np.asarray(outputs, "float64")
    if outputs.shape != (len(np.atleast_1d(outputs)), head.outputs_size):
        raise ValueError(
            f"`outputs` must be rows of what a policy puts out for {head!r}, of the "
            f"shape (N, {head.outputs_size}). Received: shape {outputs.shape}"
        )
    if not len(outputs) or not np.isfinite(outputs).all():
        raise ValueError(
            "`outputs` must be one or more rows of finite numbers. "
            f"Received: outputs={outputs.tolist()}"
        )
    for noise in keras.tree.flatten(head.noise):
        validation.one_of("head.noise.kind", noise.kind, ("uniform", "normal"))
    if enumeration.is_whole(head):
        actions = enumeration.raw_actions(head, actions)
        mask = None if mask is None else enumeration.checked_mask(head, mask)
    else:
        _require_integrable(head, actions=actions, mask=mask)
    report = {}
    for row in outputs:
        for name, error in _errors(head, row, actions, mask, rng):
            error = float(error)
            if not error <= _TOLERANCES[name]:
                raise AssertionError(
                    f"`{name}` of {head!r}: {_MEANINGS[name]} Expected: an error of at "
                    f"most {_TOLERANCES[name]:g}. Received: {error:.6g} for the outputs "
                    f"{row.tolist()}"
                )
            report[name] = max(error, report.get(name, 0.0))
    return report


def _require_integrable(head, **options):
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            "`actions` and `mask` are for heads with whole-number actions; those of a "
            f"continuous head are integrated over. Received: {given} for {head!r}"
        )
    if isinstance(head, heads.Composite):
        raise ValueError(
            "All leaves of a composite must make whole-number actions, to be enumerated "
            f"together. Received: {head!r}. Check its continuous leaves alone."
        )


def _errors(head, row, actions, mask, rng):
    """(property, error) of a head at one row of outputs."""
    if mask is not None:
        head = _Masked(head, mask)
        legal = head.is_legal(actions)
        yield "legality", head.misjudged(row, actions, legal)
        actions = enumeration.pick(actions, legal)
    check = _Enumerated if enumeration.is_whole(head) else _Integrated
    yield from check(head, row, actions, rng).errors()


class _Masked:
    """A head under one mask: what it does with outputs, it does with masked ones."""

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
        possible = enumeration.is_valid(self.head, actions)
        return (possible & self.is_legal(actions))[:, None]

    def is_legal(self, actions):
        """`[N]` bool for `[N, …]` raw actions."""
        return enumeration.is_legal(self.head, actions, self.mask)

    def misjudged(self, row, actions, legal):
        """How many actions are legal and cannot happen, or the other way round."""
        outputs = self.mask_outputs(tf.constant(np.tile(row, (len(legal), 1))))
        if not np.isfinite(outputs).all():
            return math.inf
        log_probs = self.head.distribution(outputs).log_prob(actions).numpy()
        # A legal action may be so unlikely that its probability rounds to zero.
        return np.sum((log_probs > -1e300) != legal)


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
        count = enumeration.count(self.actions)
        closed = self.head.eligibility(self.outputs(count), self.actions)
        closed = self.like("eligibility", closed, (count, len(self.row)), "float64")
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
        draws = {"uniform": self.rng.random, "normal": self.rng.standard_normal}
        noise = keras.tree.map_structure(
            lambda noise: tf.constant(draws[noise.kind]((_DRAWS, *noise.shape))),
            self.head.noise,
        )
        drawn = self.head.sample(self.outputs(_DRAWS), noise)
        return self.raw_actions("sample", drawn, _DRAWS)

    def mode(self):
        """`[1, …]`: the head's most likely action."""
        return self.raw_actions("mode", self.head.mode(self.outputs(1)), 1)

    def raw_actions(self, name, actions, count):
        """So many raw actions, of the structure, shapes and types that are promised."""
        raw = self.head.action_spec("float64")
        keras.tree.assert_same_structure(raw, actions)
        return keras.tree.map_structure(
            lambda spec, part: self.like(
                name, part, (count, *spec.shape), spec.dtype.name
            ),
            raw,
            actions,
        )

    def like(self, name, values, shape, dtype):
        """An array of the shape and type that are promised, or what came instead."""
        values = np.asarray(values)
        if values.shape != shape or values.dtype != dtype:
            raise AssertionError(
                f"`{name}` of {self.head!r} must return the shape {shape} in {dtype} for "
                f"{shape[0]} rows of float64 outputs. Received: shape {values.shape} in "
                f"{values.dtype}."
            )
        return values

    def log_prob(self, actions, row=None):
        """`[N]` for `[N, …]` raw actions, at this row of outputs or another."""
        outputs = self.outputs(enumeration.count(actions), row)
        return self.head.distribution(outputs).log_prob(actions).numpy()

    def _differentiated(self):
        count = enumeration.count(self.actions)
        outputs = self.outputs(count)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.head.distribution(outputs).log_prob(self.actions)
        if log_probs.shape != (count,) or log_probs.dtype != tf.float64:
            raise AssertionError(
                f"`log_prob` of {self.head!r} must give one number per action in the "
                f"type of the outputs. Expected: shape {(count,)} of float64. Received: "
                f"shape {tuple(log_probs.shape)} of {log_probs.dtype.name}. Look at the "
                "event shape of `distribution`, and for a cast."
            )
        zero = tf.UnconnectedGradients.ZERO
        slopes = tape.gradient(log_probs, outputs, unconnected_gradients=zero)
        return log_probs.numpy(), slopes.numpy()

    def _differences(self, near, step=1e-5):
        columns, actions = [], enumeration.pick(self.actions, near)
        for shift in step * np.eye(len(self.row)):
            above = self.log_prob(actions, self.row + shift)
            below = self.log_prob(actions, self.row - shift)
            columns.append((above - below) / (2 * step))
        return np.stack(columns, axis=1)


class _Enumerated(_Weighed):
    """Whole-number actions: there are so many and no more."""

    def __init__(self, head, row, actions, rng):
        measure = np.ones(enumeration.count(actions))
        super().__init__(head, row, actions, measure, rng)

    def sample_error(self):
        count = enumeration.count(self.actions)
        both = np.concatenate(list(map(enumeration.rows, (self.actions, self.draws()))))
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
        mode = self.mode()
        if not enumeration.is_valid(self.head, mode).all():
            return math.inf
        return max(self.log_probs.max() - self.log_prob(mode)[0], 0.0)


class _Integrated(_Weighed):
    """Real actions: the trapezoid rule along a line that leads to all of them.

        ∫ f(a) da = ∫ f(a(z)) |da/dz| dz

    Where log_prob is smooth, the error falls exponentially with the number of points.
    """

    def __init__(self, head, row, _, rng):
        size = math.prod(head.action_shape)
        if size > 2 or head.support is None and math.prod(head.noise.shape) != size:
            raise ValueError(
                "A continuous head must draw one or two numbers, from as many of noise "
                "or with a `support`. "
                f"Received: {head!r} with actions of shape {head.action_shape} and noise "
                f"of shape {head.noise.shape}. Take a smaller head of the same kind."
            )
        self.chances = None
        if head.support is None:
            actions, measure, self.chances = _along_noise(head, row, size)
        else:
            actions, measure = _along_support(head, row, size, rng)
        super().__init__(head, row, actions, measure, rng)

    def powers(self, actions):
        """`[N, …]`: the action and its square."""
        flat = actions.reshape(len(actions), -1)
        return np.concatenate([flat, flat**2], axis=1)

    def sample_error(self):
        powers = self.powers(self.actions)
        moments = self.expectation(powers)
        spread = np.sqrt(self.expectation((powers - moments) ** 2) / _DRAWS)
        found = self.powers(self.draws()).mean(axis=0)
        rounding = 1e-14 * np.maximum(1.0, np.abs(moments))  # all there is of an atom
        return np.max(np.abs(found - moments) / np.maximum(spread, rounding))

    def more_errors(self):
        if self.chances is not None:
            powers = self.powers(self.actions)
            yield "moments", _far(self.chances @ powers, self.expectation(powers))

    def mode_error(self):
        mode = self.mode()
        steps = np.eye(mode.size).reshape(-1, *mode.shape[1:])
        sizes = [sign * 10.0**-k for k in range(5) for sign in (-1, 1)]
        around = np.concatenate([self.actions] + [mode + size * steps for size in sizes])
        possible = self.head.is_valid(around).reshape(len(around), -1).all(axis=1)
        # A density cannot be compared with a probability.
        alike = (self._at_ends(around) == self._at_ends(mode)).all(axis=1)
        rivals = self._likelihood(around[possible & alike])
        return max(np.nanmax(rivals) - self._likelihood(mode)[0], 0.0)

    def _likelihood(self, actions):
        """log_prob, as the density of the raw actions themselves."""
        raw = tf.constant(actions)
        with tf.GradientTape() as tape:
            tape.watch(raw)
            scored = self.head.density_variable(raw)
        slopes = np.abs(tape.gradient(scored, raw)).reshape(len(actions), -1)
        with np.errstate(divide="ignore"):  # too far out to be told from the end
            return self.log_prob(actions) + np.log(slopes).sum(axis=1)

    def _at_ends(self, actions):
        """`[N, size]` bool: which numbers are atoms."""
        flat, support = actions.reshape(len(actions), -1), self.head.support
        if support is None or not support.atoms:
            return np.zeros(flat.shape, bool)
        return (flat <= support.low) | (flat >= support.high)


def _along_noise(head, row, size):
    """Raw actions, their measure and their chances, by way of the noise that makes them.

    Any smooth `sample` may carry the integral, also one from another distribution.
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
        parts = [flat[:, place] for place in range(size)]
    slopes = [tape.gradient(part, grid) for part in parts]
    if any(slope is None for slope in slopes):
        raise AssertionError(
            f"`sample` of {head!r}: every number of a continuous action must follow "
            "the noise smoothly. Received: one that does not follow it at all."
        )
    wild = ~np.isfinite([flat.numpy().T, *(slope.numpy().T for slope in slopes)])
    if wild.any():
        place = np.flatnonzero(wild.reshape(-1, len(grid)).any(axis=0))[0]
        raise AssertionError(
            f"`sample` of {head!r}: actions, and how they follow the noise, must be "
            f"finite. Received: {flat[place].numpy().tolist()} for the noise "
            f"{noise[place].numpy().tolist()}, with the slope "
            f"{[slope[place].numpy().tolist() for slope in slopes]}."
        )
    cell = (axis[1] - axis[0]) ** size
    density = np.exp(-(grid.numpy() ** 2) / 2) / math.sqrt(2 * math.pi)
    measure = cell * np.abs(np.linalg.det(np.stack(slopes, axis=1)))
    return actions.numpy(), measure, cell * density.prod(axis=1)


def _along_support(head, row, size, rng):
    """Raw actions and their measure, by way of a line through all of the support."""
    draw = {"uniform": rng.random, "normal": rng.standard_normal}[head.noise.kind]
    noise = tf.constant(draw((1000, *head.noise.shape)))
    draws = head.sample(tf.constant(np.tile(row, (1000, 1))), noise).numpy()
    ends = [np.broadcast_to(x, size) for x in (head.support.low, head.support.high)]
    rules = [
        _rule(numbers, low, high, head.support.atoms)
        for numbers, low, high in zip(draws.reshape(1000, size).T, *ends, strict=True)
    ]
    places, weights = (
        np.stack(np.meshgrid(*parts, indexing="ij"), axis=-1).reshape(-1, size)
        for parts in zip(*rules, strict=True)
    )
    return places.reshape(-1, *head.action_shape), weights.prod(axis=1)


def _rule(draws, low, high, atoms):
    """Points of an interval and their weights, close together where the draws lie.

    The interval is the image of the real line; a sinh makes tails short. An atom is a
    point of the weight 1.
    """
    line, back, slope = _line(low, high)
    inside = draws[(draws > low) & (draws < high)]
    middle, width = 0.0, 1.0
    if len(inside) > 10:  # fewer do not tell
        middle, width = np.mean(line(inside)), np.std(line(inside))
    grid = np.linspace(-6.0, 6.0, 257)
    with np.errstate(over="ignore"):
        points = back(middle + width * np.sinh(grid))
    weights = slope(points) * width * np.cosh(grid) * (grid[1] - grid[0])
    kept = (points > low) & (points < high) & (np.abs(points) < 1e50)
    ends = [end for end in (low, high) if atoms and math.isfinite(end)]
    return np.append(points[kept], ends), np.append(weights[kept], np.ones(len(ends)))


def _line(low, high):
    """An interval to the real line, and back, and the slope of the way back."""
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
    """Noise of a kind from points of the real line, where it would be normal."""
    if kind == "normal":
        return grid
    below_one = np.nextafter(1.0, 0.0)
    return tf.minimum(tf.math.erfc(-grid / math.sqrt(2)) / 2, below_one)


def _far(found, reference):
    """The largest difference; of numbers above 1, relative to the largest."""
    scale = max(1.0, np.max(np.abs(reference)))
    return float(np.max(np.abs(found - reference)) / scale)
