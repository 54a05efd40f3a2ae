"""Explains the gradient of one sampled action's log-probability in words and numbers."""

import numpy as np
import tensorflow as tf

from tf_reinforce.functional import eligibility
from tf_reinforce.functional import explained_action


def text(**arguments):
    """Returns a table of eligibilities, in closed form and by automatic differentiation.

    Pass `probs` or `logits` together with `action` or `counts`. `text` also accepts
    `counts` alone, or `mean`, `std` and `sample`.

    Args:
        probs: K floats, relative probabilities of K categories.
        logits: K floats, the logits of K categories.
        action: Int, the index of the sampled category.
        counts: K ints, the number of samples of each category. Without `probs` and
            `logits`, all categories have the same probability.
        mean, std, sample: Floats, the mean and the standard deviation of a diagonal
            Gaussian, and one sample.

    Returns:
        String of several lines, a table of numbers with four decimals and an explanation.

    Raises:
        ValueError: If the combination of arguments is not supported, or if the module
            `eligibility` does not accept the value of an argument.

    Example:

    >>> print(text(logits=[0.0, 0.0], action=0))
    One of 2 categories; category 0 was sampled.
    log-probability -0.6931, probability 0.5000; derivatives with respect to logits
    <BLANKLINE>
          logits  probability   d prob  d log-prob  automatic  difference
     * 0  0.0000       0.5000   0.2500      0.5000     0.5000      0.0000
       1  0.0000       0.5000  -0.2500     -0.5000    -0.5000      0.0000
    <BLANKLINE>
    The eligibility of logits is the sampled counts minus the expected counts. So every
    output receives a gradient, not only the output of the sampled category.
    """
    arguments = explained_action.check(**arguments)
    kinds = {"action": _categorical, "counts": _counts, "mean": _gaussian}
    kind = next(kinds[name] for name in kinds if name in arguments)
    return kind(**arguments)


def _categorical(action, probs=None, logits=None):
    name, values = _parameters(probs, logits)
    closed_form = _eligibility_function(name, "categorical")(values, action)
    k = int(action)
    labels = [f"{'*' if i == k else ' '} {i}" for i in range(len(values))]
    title = f"One of {_categories(values)}; category {k} was sampled."
    return _page(title, name, values, np.eye(len(values))[k], closed_form, labels)


def _counts(counts, probs=None, logits=None):
    if probs is None and logits is None:
        probs = np.full(len(counts), 1 / len(counts))
    name, values = _parameters(probs, logits)
    trials = int(np.sum(counts))
    closed_form = _eligibility_function(name, "multinomial")(values, counts, trials)
    labels = [f"{int(n)} x {k}" for k, n in enumerate(counts)]
    title = f"{trials} choices among {_categories(values)}, counted."
    return _page(title, name, values, counts, closed_form, labels)


def _page(title, name, values, counts, closed_form, labels):
    """Returns heading, table and explanation of a categorical or multinomial action."""
    log_prob, automatic = _log_prob_and_gradient(name, values, counts)
    expected_counts = counts.sum() * _probabilities(name, values)
    derivatives = _derivatives(closed_form, automatic, np.exp(log_prob))
    rows = [
        (label, value, expected, *numbers)
        for label, value, expected, numbers in zip(
            labels, values, expected_counts, derivatives
        )
    ]
    second = "probability" if counts.sum() == 1 else "expected"
    heading = f"{title}\n{_likelihood(name, log_prob)}"
    return "\n\n".join((heading, _table(name, second, rows), _SENTENCES[name]))


def _gaussian(mean, std, sample):
    closed_form = eligibility.gaussian(mean, std, sample)
    with tf.GradientTape() as tape:
        variables = [tf.constant(mean), tf.constant(std)]
        tape.watch(variables)
        deviations = (sample - variables[0]) / variables[1]
        log_probs = -(deviations**2) / 2 - tf.math.log(variables[1] * np.sqrt(2 * np.pi))
        log_prob = tf.reduce_sum(log_probs)
    by_mean, by_std = tape.gradient(log_prob, variables)
    automatic = by_mean, by_std, by_std * std
    if not np.isfinite([*closed_form, *automatic]).all():
        raise ValueError(
            "A derivative of the log-density is too large for a float64, "
            "because `std` is too small."
        )
    lines = ["            component  closed form  automatic  difference"]
    parameters = zip(("mean", "std", "log std"), closed_form, automatic)
    for name, by_formula, by_tape in parameters:
        for k, (x, y) in enumerate(zip(by_formula.numpy(), by_tape.numpy())):
            cells = f"{_format(x):>11}  {_format(y):>9}  {_format(x - y):>10}"
            lines.append(f"d / d {name:<7} {k:>6}  {cells}")
    return "\n\n".join(
        (
            f"A Gaussian with {len(mean)} component{'s' * (len(mean) > 1)}.\n"
            f"log-density {_format(log_prob)}",
            "\n".join(lines),
            "To make the sample more likely, the mean moves towards the sample; the "
            "smaller `std`, the\nlarger the derivative. `std` grows if the sample is "
            "further than one `std` from the mean,\nand shrinks otherwise.",
        )
    )


def _likelihood(name, log_prob):
    return (
        f"log-probability {_format(log_prob)}, probability {_format(np.exp(log_prob))}; "
        f"derivatives with respect to {name}"
    )


def _parameters(probs, logits):
    name = "probs" if logits is None else "logits"
    return name, probs if logits is None else logits


def _categories(values):
    return "1 category" if len(values) == 1 else f"{len(values)} categories"


def _eligibility_function(name, family):
    return getattr(eligibility, f"{family}_{name}")


def _probabilities(name, values):
    weights = values if name == "probs" else np.exp(values - values.max())
    return weights / weights.sum()


def _log_prob_and_gradient(name, values, counts):
    """Returns the log-probability of counts, and the automatic derivative by `values`."""
    x, n = tf.constant(values), tf.constant(counts, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        if name == "logits":
            log_p = tf.nn.log_softmax(x)
        else:  # a category with count zero may have probability zero
            log_p = tf.math.log(tf.where(n > 0, x, 1.0)) - tf.math.log(tf.reduce_sum(x))
        log_factorials = tf.math.lgamma(n + 1)
        log_coefficient = tf.math.lgamma(tf.reduce_sum(n) + 1)
        log_coefficient -= tf.reduce_sum(log_factorials)
        log_prob = log_coefficient + tf.reduce_sum(n * log_p)
    return log_prob.numpy(), tape.gradient(log_prob, x).numpy()


def _derivatives(closed_form, automatic, prob):
    for by_formula, by_tape in zip(closed_form.numpy(), automatic, strict=True):
        yield prob * by_formula, by_formula, by_tape, by_formula - by_tape


def _table(name, second, rows):
    cells = [["", name, second, "d prob", "d log-prob", "automatic", "difference"]]
    cells += [[label, *map(_format, numbers)] for label, *numbers in rows]
    if any(not np.isfinite(numbers).all() for _, *numbers in rows):
        raise ValueError(
            f"A derivative with respect to `{name}` is too large for a float64, "
            "because a parameter is too small."
        )
    widths = [max(4, *map(len, column)) for column in zip(*cells)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in cells
    )


def _format(number):
    """Returns the number with four decimals, and 0.0000 in place of -0.0000."""
    return f"{round(float(number), 4) + 0.0:.4f}"


_SENTENCES = {
    "logits": (
        "The eligibility of logits is the sampled counts minus the expected counts. "
        "So every\noutput receives a gradient, not only the output of the "
        "sampled category."
    ),
    "probs": "The numbers are divided by their sum, so only their ratios count. Each "
    "choice adds\n-1 / sum to the derivative of every category, and 1 / number to that "
    "of the sampled one.",
}
