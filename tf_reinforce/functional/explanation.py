"""The text of `tf-reinforce explain`: one action's gradient in words and numbers."""

import numpy as np
import tensorflow as tf

from tf_reinforce.functional import eligibility

_COMBINATIONS = (
    *({"probs", "action"}, {"logits", "action"}),
    *({"counts"}, {"probs", "counts"}, {"logits", "counts"}),
    {"mean", "std", "sample"},
)
_SENTENCES = {
    "logits": "The eligibility of logits is the sampled counts minus the expected "
    "counts. So every\noutput receives a gradient, not only the output of the sampled "
    "category.",
    "probs": "The numbers are divided by their sum, so only their ratios count. Each "
    "choice adds\n-1 / sum to the derivative of every category, and 1 / number to that "
    "of the sampled one.",
    "mean": "To make the sample more likely, the mean moves towards the sample; the "
    "smaller `std`, the\nlarger the derivative. `std` grows if the sample is "
    "further than one `std` from the mean,\nand shrinks otherwise.",
}


def text(**arguments):
    """Explains one action's eligibility, in closed form and by automatic differentiation.

    Pass `probs` or `logits` together with `action` or `counts`, or `counts` alone, or
    `mean`, `std` and `sample`.

    Args:
        probs: K floats, relative probabilities of K categories.
        logits: K floats.
        action: Int, the index of the sampled category.
        counts: K ints, how often each category was sampled. On their own, all categories
            are equally likely.
        mean, std, sample: Floats of a diagonal Gaussian, and one sample of it.

    Returns:
        String: a table of numbers with four decimals, and what they mean.

    Raises:
        ValueError: If the arguments do not go together, or `eligibility` refuses one.

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
    if set(arguments) not in _COMBINATIONS:
        received = ", ".join(sorted(arguments)) or "nothing"
        raise ValueError(
            "Pass `probs` or `logits` with `action` or `counts`, or pass `mean`, `std` "
            "and `sample`. On the command line, for example: --probs 0.2 0.8 --action "
            f"1. Received: {received}."
        )
    arrays = {name: np.atleast_1d(values) for name, values in arguments.items()}
    for name, array in arrays.items():
        is_row = array.dtype.kind in "fiu" and array.ndim == 1 and array.size
        if not is_row or name == "action" and np.ndim(arguments[name]):
            raise ValueError(
                f"`{name}` must be one number, or a row of one or more numbers. "
                f"Received: {array.tolist()!r}"
            )
    if "mean" in arrays:
        return _gaussian(**{k: x.astype("float64") for k, x in arrays.items()})
    if "action" in arrays:
        return _categorical(**{**arrays, "action": arguments["action"]})
    return _multinomial(**arrays)


def _categorical(action, **parameters):
    [(name, values)] = parameters.items()
    closed_form = getattr(eligibility, f"categorical_{name}")(values * 1.0, action)
    labels = [f"{'*' if i == action else ' '} {i}" for i in range(len(values))]
    title = f"One of {_categories(values)}; category {int(action)} was sampled."
    counts = np.eye(len(values))[int(action)]
    return _page(title, name, values * 1.0, counts, closed_form, labels)


def _multinomial(counts, **parameters):
    parameters = parameters or {"probs": np.full(len(counts), 1 / len(counts))}
    [(name, values)] = parameters.items()
    trials = int(np.nan_to_num(counts).sum())
    closed_form = getattr(eligibility, f"multinomial_{name}")(
        values * 1.0, counts, trials
    )
    labels = [f"{int(n)} x {k}" for k, n in enumerate(counts)]
    title = f"{trials} choices among {_categories(values)}, counted."
    return _page(title, name, values * 1.0, counts, closed_form, labels)


def _page(title, name, values, counts, closed_form, labels):
    """Returns heading, table and explanation of a categorical or multinomial action."""
    x, n = tf.constant(values), tf.constant(counts, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        if name == "logits":
            log_p = tf.nn.log_softmax(x)
        else:  # a category with count zero may have probability zero
            log_p = tf.math.log(tf.where(n > 0, x, 1.0)) - tf.math.log(tf.reduce_sum(x))
        log_prob = tf.math.lgamma(tf.reduce_sum(n) + 1) - tf.reduce_sum(
            tf.math.lgamma(n + 1)
        )
        log_prob += tf.reduce_sum(n * log_p)
    automatic, prob = tape.gradient(log_prob, x), np.exp(log_prob)
    weights = values if name == "probs" else np.exp(values - values.max())
    expected = counts.sum() * weights / weights.sum()
    second = "probability" if counts.sum() == 1 else "expected"
    header = ["", name, second, "d prob", "d log-prob", "automatic", "difference"]
    gaps = closed_form - automatic
    numbers = np.stack(
        [values, expected, prob * closed_form, closed_form, automatic, gaps], axis=1
    )
    heading = (
        f"{title}\nlog-probability {_format(log_prob)}, probability {_format(prob)}; "
        f"derivatives with respect to {name}"
    )
    return f"{heading}\n\n{_table(header, labels, numbers)}\n\n{_SENTENCES[name]}"


def _gaussian(mean, std, sample):
    closed_form = eligibility.gaussian(mean, std, sample)
    with tf.GradientTape() as tape:
        variables = [tf.constant(mean), tf.constant(std)]
        tape.watch(variables)
        deviations = (sample - variables[0]) / variables[1]
        log_probs = -(deviations**2) / 2 - tf.math.log(variables[1] * np.sqrt(2 * np.pi))
        log_prob = tf.reduce_sum(log_probs)
    by_mean, by_std = tape.gradient(log_prob, variables)
    closed_form = np.ravel(closed_form)
    automatic = np.ravel([by_mean, by_std, by_std * std])
    labels = [
        f"d / d {name:<7} {k:>6}"
        for name in ("mean", "std", "log std")
        for k in range(len(mean))
    ]
    header = ["component", "closed form", "automatic", "difference"]
    with np.errstate(invalid="ignore"):
        gaps = closed_form - automatic
    numbers = np.stack([closed_form, automatic, gaps], axis=1)
    heading = (
        f"A Gaussian with {len(mean)} component{'s' * (len(mean) > 1)}.\n"
        f"log-density {_format(log_prob)}"
    )
    return f"{heading}\n\n{_table(header, labels, numbers)}\n\n{_SENTENCES['mean']}"


def _categories(values):
    return "1 category" if len(values) == 1 else f"{len(values)} categories"


def _table(header, labels, numbers):
    if not np.isfinite(numbers).all():
        raise ValueError(
            "A derivative is too large for a float64, because a parameter is too small."
        )
    rows = [[label, *map(_format, row)] for label, row in zip(labels, numbers)]
    widths = [max(4, *map(len, column)) for column in zip(header, *rows)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths))
        for row in (header, *rows)
    )


def _format(number):
    """Returns a number with four decimals, and 0.0000 instead of -0.0000."""
    return f"{round(float(number), 4) + 0.0:.4f}"
