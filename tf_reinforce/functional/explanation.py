"""Explains what one sampled action back-propagates, as a table and a sentence."""

import numpy as np
import tensorflow as tf

from tf_reinforce.functional import eligibility

_WAYS = (
    "Give `probs` or `logits` with `action` or `counts`, or give `mean`, `std` and "
    "`sample`."
)


def text(**given):
    """Closed form beside automatic differentiation, with four decimals.

    Args:
        probs: Floats, relative probabilities of K categories; or
        logits: floats; with
        action: int, the category sampled; or
        counts: K ints, how often each was sampled; alone, of even probabilities.
        mean, std, sample: Floats of a diagonal Gaussian instead.

    Returns:
        String of several lines.

    Raises:
        ValueError: when the arguments do not belong together, or a number is not what
            `eligibility` takes.

    Example:

    >>> print(text(logits=[0.0, 0.0], action=0))
    One of 2 categories; category 0 was sampled.
    log-probability -0.6931, probability 0.5000; derivatives with respect to logits
    <BLANKLINE>
          logits  probability   d prob  d log-prob  automatic  difference
     * 0  0.0000       0.5000   0.2500      0.5000     0.5000      0.0000
       1  0.0000       0.5000  -0.2500     -0.5000    -0.5000      0.0000
    <BLANKLINE>
    On logits the eligibility is what came minus what was expected: every output
    neuron receives its share, not only that of the category that came.
    """
    kinds = {
        ("action", "probs"): _choice,
        ("action", "logits"): _choice,
        ("counts",): _counts,
        ("counts", "probs"): _counts,
        ("counts", "logits"): _counts,
        ("mean", "sample", "std"): _gaussian,
    }
    kind = kinds.get(tuple(sorted(given)))
    if kind is None:
        received = ", ".join(sorted(given)) or "nothing"
        raise ValueError(f"{_WAYS} Received: {received}.")
    return kind(**{name: _numbers(name, values) for name, values in given.items()})


def _numbers(name, values):
    """`[N]` finite floats, or one for `action`; N is one at least."""
    values = np.asarray(values)
    wanted = (0,) if name == "action" else (0, 1)
    if values.dtype.kind not in "fiu" or values.ndim not in wanted or not values.size:
        shape = "one number" if name == "action" else "a row of one or more numbers"
        raise ValueError(f"`{name}` must be {shape}. Received: {values.tolist()!r}")
    if not np.isfinite(values).all():
        raise ValueError(f"`{name}` must be finite. Received: {values.tolist()}")
    return values if name == "action" else np.atleast_1d(values).astype("float64")


def _choice(action, probs=None, logits=None):
    name, values = _parameters(probs, logits)
    closed = _closed(name, "categorical")(values, action)
    k = int(action)
    marks = [f"{'*' if i == k else ' '} {i}" for i in range(len(values))]
    first = f"One of {_categories(values)}; category {k} was sampled."
    return _page(first, name, values, np.eye(len(values))[k], closed, marks)


def _counts(counts, probs=None, logits=None):
    if probs is None and logits is None:
        probs = np.full(len(counts), 1 / len(counts))
    name, values = _parameters(probs, logits)
    trials = int(np.sum(counts))
    closed = _closed(name, "multinomial")(values, counts, trials)
    marks = [f"{int(n)} × {k}" for k, n in enumerate(counts)]
    first = f"{trials} choices among {_categories(values)}, counted."
    return _page(first, name, values, counts, closed, marks)


def _page(first, name, values, counts, closed, marks):
    """Heading, table and sentence; one choice is a count of one."""
    log_prob, automatic = _differentiated(name, values, counts)
    expected = counts.sum() * _probabilities(name, values)
    columns = _columns(closed, automatic, np.exp(log_prob))
    rows = [
        (mark, value, chance, *derivatives)
        for mark, value, chance, derivatives in zip(marks, values, expected, columns)
    ]
    second = "probability" if counts.sum() == 1 else "expected"
    heading = f"{first}\n{_likelihood(name, log_prob)}"
    return "\n\n".join((heading, _table(name, second, rows), _SENTENCES[name]))


def _gaussian(mean, std, sample):
    closed = eligibility.gaussian(mean, std, sample)
    with tf.GradientTape() as tape:
        variables = [tf.constant(mean), tf.constant(std)]
        tape.watch(variables)
        away = (sample - variables[0]) / variables[1]
        log_prob = -(away**2) / 2 - tf.math.log(variables[1] * np.sqrt(2 * np.pi))
        total = tf.reduce_sum(log_prob)
    by_mean, by_std = tape.gradient(total, variables)
    automatic = by_mean, by_std, by_std * std
    if not np.isfinite([*closed, *automatic]).all():
        raise ValueError("A derivative is too large for a float64: `std` is too small.")
    lines = ["            component  closed form  automatic  difference"]
    for name, ours, theirs in zip(("mean", "std", "log std"), closed, automatic):
        for k, (x, y) in enumerate(zip(ours.numpy(), theirs.numpy())):
            cells = f"{_four(x):>11}  {_four(y):>9}  {_four(x - y):>10}"
            lines.append(f"d / d {name:<7} {k:>6}  {cells}")
    return "\n\n".join(
        (
            f"A Gaussian with {len(mean)} component{'s' * (len(mean) > 1)}.\n"
            f"log-density {_four(total)}",
            "\n".join(lines),
            "A sample pulls the mean towards itself, the harder the narrower the "
            "distribution; it\nwidens the distribution when it lies further than one "
            "deviation away, and narrows it\notherwise.",
        )
    )


def _likelihood(name, log_prob):
    return (
        f"log-probability {_four(log_prob)}, probability {_four(np.exp(log_prob))}; "
        f"derivatives with respect to {name}"
    )


def _parameters(probs, logits):
    name = "probs" if logits is None else "logits"
    return name, probs if logits is None else logits


def _categories(values):
    return "1 category" if len(values) == 1 else f"{len(values)} categories"


def _closed(name, family):
    return getattr(eligibility, f"{family}_{name}")


def _probabilities(name, values):
    weights = values if name == "probs" else np.exp(values - values.max())
    return weights / weights.sum()


def _differentiated(name, values, counts):
    """ln π of the counts, and its derivative, by TensorFlow."""
    x, n = tf.constant(values), tf.constant(counts, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        if name == "logits":
            log_p = tf.nn.log_softmax(x)
        else:  # what never came may have the probability zero
            log_p = tf.math.log(tf.where(n > 0, x, 1.0)) - tf.math.log(tf.reduce_sum(x))
        ways = tf.math.lgamma(tf.reduce_sum(n) + 1) - tf.reduce_sum(tf.math.lgamma(n + 1))
        log_prob = ways + tf.reduce_sum(n * log_p)
    return log_prob.numpy(), tape.gradient(log_prob, x).numpy()


def _columns(closed, automatic, prob):
    for ours, theirs in zip(closed.numpy(), automatic, strict=True):
        yield prob * ours, ours, theirs, ours - theirs


def _table(name, second, rows):
    cells = [["", name, second, "d prob", "d log-prob", "automatic", "difference"]]
    cells += [[first, *map(_four, numbers)] for first, *numbers in rows]
    if any(not np.isfinite(numbers).all() for _, *numbers in rows):
        raise ValueError(f"A derivative is too large for a float64, of `{name}`.")
    widths = [max(4, *map(len, column)) for column in zip(*cells)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in cells
    )


def _four(number):
    """Four decimals, and no minus in front of zero."""
    return f"{round(float(number), 4) + 0.0:.4f}"


_SENTENCES = {
    "logits": "On logits the eligibility is what came minus what was expected: every "
    "output\nneuron receives its share, not only that of the category that came.",
    "probs": "Only the ratios of the numbers count: for every choice each of them is "
    "pushed down by\nthe same 1 / sum, whether it came or not, and the one that came is "
    "pushed up by 1 / its own.",
}
