"""The text of `tf-reinforce explain`: one action's gradient in numbers."""

import numpy as np
import tensorflow as tf

from tf_reinforce.functional import eligibility

_COMBINATIONS = (
    *({"probs", "action"}, {"logits", "action"}),
    *({"counts"}, {"probs", "counts"}, {"logits", "counts"}),
    {"mean", "std", "sample"},
)


def text(**arguments):
    """Prints one action's eligibility, in closed form and by automatic differentiation.

    Pass `probs` or `logits` together with `action` or `counts`, or `counts` alone, or
    `mean`, `std` and `sample`.

    Args:
        **arguments: `action` is one category, counted from zero, and `counts` says how
            often each category was sampled. All others are lists of numbers.

    Raises:
        ValueError: If the arguments do not go together.
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
    arrays = {name: array.astype("float64") for name, array in arrays.items()}
    return _gaussian(**arrays) if "mean" in arrays else _discrete(**arrays)


def _discrete(action=None, counts=None, **parameters):
    if not parameters:
        parameters = {"probs": np.full(len(counts), 1 / len(counts))}
    [(name, values)] = parameters.items()
    if counts is None:
        closed_form = getattr(eligibility, f"categorical_{name}")(values, action[0])
        counts = np.eye(len(values))[int(action[0])]
    else:
        trials = int(np.nan_to_num(counts).sum())
        closed_form = getattr(eligibility, f"multinomial_{name}")(values, counts, trials)
    x, n = tf.constant(values), tf.constant(counts)
    with tf.GradientTape() as tape:
        tape.watch(x)
        if name == "logits":
            log_p = tf.nn.log_softmax(x)
        else:  # a category with count zero may have probability zero
            log_p = tf.math.log(tf.where(n > 0, x, 1.0)) - tf.math.log(tf.reduce_sum(x))
        terms = n * log_p - tf.math.lgamma(n + 1)
        log_prob = tf.math.lgamma(tf.reduce_sum(n) + 1) + tf.reduce_sum(terms)
    columns = {name: values, "counts": counts, "d prob": np.exp(log_prob) * closed_form}
    columns |= {"d log-prob": closed_form, "automatic": tape.gradient(log_prob, x)}
    return (
        f"log-probability {_format(log_prob)}, probability {_format(np.exp(log_prob))}; "
        f"derivatives with respect to {name}\n\n{table(range(len(values)), columns)}"
    )


def _gaussian(mean, std, sample):
    closed_form = eligibility.gaussian(mean, std, sample)
    with tf.GradientTape() as tape:
        variables = [tf.constant(mean), tf.constant(std)]
        tape.watch(variables)
        deviations = (sample - variables[0]) / variables[1]
        log_probs = -(deviations**2) / 2 - tf.math.log(variables[1] * np.sqrt(2 * np.pi))
        log_prob = tf.reduce_sum(log_probs)
    by_mean, by_std = tape.gradient(log_prob, variables)
    names = "mean", "std", "log std"
    labels = [f"d / d {name:<7} {k:>6}" for name in names for k in range(len(mean))]
    columns = {"closed form": np.ravel(closed_form)}
    columns["automatic"] = np.ravel([by_mean, by_std, by_std * std])
    return f"log-density {_format(log_prob)}\n\n{table(labels, columns)}"


def table(labels, columns):
    """Returns the columns, and the difference of the last two, below their names."""
    numbers = np.stack([np.asarray(column) for column in columns.values()], axis=1)
    if not np.isfinite(numbers).all():
        raise ValueError(
            "A derivative is too large for a float64, because a parameter is too small."
        )
    numbers = np.column_stack([numbers, numbers[:, -2] - numbers[:, -1]])
    rows = [[str(x), *map(_format, row)] for x, row in zip(labels, numbers, strict=True)]
    rows = [["", *columns, "difference"], *rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in rows)


def _format(number):
    return f"{round(float(number), 4) + 0.0:.4f}"
