"""Builds and finalizes Keras optimizers."""

import tensorflow as tf


def build(optimizer, variables):
    """Creates the state of an optimizer if the optimizer has no state.

    Raises:
        ValueError: If averages of gradients would stay at zero. For example, Adam's decay
            0.999 is rounded to 1 in bfloat16, so that the weight of a new gradient would
            be zero.
    """
    if optimizer.built:
        return
    for name in ("beta_1", "beta_2", "rho"):
        decay = getattr(_inner(optimizer), name, None)
        for variable in variables if isinstance(decay, float) and decay < 1 else ():
            if float(tf.cast(decay, variable.dtype)) == 1.0:
                raise ValueError(
                    f"`{name}` of the optimizer must be below 1 in the type of every "
                    "weight, because otherwise the averages of gradients stay at zero. "
                    f"Received: {name}={decay}, which is 1 in "
                    f"{variable.dtype}, the type of {variable.path}. Keep the weights "
                    'in float32, for example with the dtype policy "mixed_bfloat16", '
                    f"or pass a smaller `{name}`."
                )
    optimizer.build(variables)


def step_count(optimizer):
    """Returns the optimizer and the number of its steps so far."""
    inner = _inner(optimizer)
    return inner, int(inner.iterations)


def finalize(optimizer, since=None):
    """Replaces weights by their averages if the optimizer averages weights (`use_ema`).

    Keras also replaces weights by their averages at the end of `fit`. In `finalize`,
    weights do not change before the first step, because averages start at zero. Frozen
    weights do not change.

    Args:
        optimizer: Keras optimizer.
        since: Result of an earlier `step_count`, or `None`. If the optimizer has made no
            step since the earlier `step_count`, `finalize` changes nothing.
    """
    inner, steps = now = step_count(optimizer)
    if inner.use_ema and steps > 0 and now != since:
        averages = inner._model_variables_moving_average
        # Keras' own `finalize_variable_values` would pair the averages with the variables
        # that are currently trainable. Some variables may have been frozen after the
        # optimizer was built.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)


def _inner(optimizer):
    """Returns the optimizer that makes the steps, without a `LossScaleOptimizer`."""
    return getattr(optimizer, "inner_optimizer", optimizer)
