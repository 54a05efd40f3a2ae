"""Builds and finalizes Keras optimizers."""

import tensorflow as tf


def build(optimizer, variables):
    """Creates the state of an optimizer if it has none.

    Raises:
        ValueError: If averages of gradients would stay at zero. An average has the type
            of its variable. For example, Adam's 0.999 is 1 in bfloat16, so the weight of
            a new gradient would be zero.
    """
    if optimizer.built:
        return
    for name in ("beta_1", "beta_2", "rho"):
        decay = getattr(_inner(optimizer), name, None)
        for variable in variables if isinstance(decay, float) and decay < 1 else ():
            if float(tf.cast(decay, variable.dtype)) == 1.0:
                raise ValueError(
                    f"`{name}` of the optimizer must be less than 1 in the type of every "
                    "weight, because otherwise its averages stay at zero. "
                    f"Received: {name}={decay}, which is 1 in {variable.dtype}, the type "
                    f"of {variable.path}. Keep the weights in float32, for example with "
                    f'the dtype policy "mixed_bfloat16", or pass a smaller `{name}`.'
                )
    optimizer.build(variables)


def step_count(optimizer):
    """Returns the optimizer and the number of its steps, for a later comparison."""
    inner = _inner(optimizer)
    return inner, int(inner.iterations)


def finalize(optimizer, since=None):
    """Replaces weights by their averages if the optimizer averages them (`use_ema`).

    Keras does so at the end of `fit`. Here nothing changes before the first step, because
    averages start at zero. Frozen weights do not change.

    Args:
        optimizer: Keras optimizer.
        since: Result of an earlier `step_count`, or `None`. If the optimizer has made no
            step since then, nothing changes.
    """
    inner, steps = now = step_count(optimizer)
    if inner.use_ema and steps > 0 and now != since:
        averages = inner._model_variables_moving_average
        # Keras would pair the averages with the variables that are trainable now. Some
        # variables may be frozen since the optimizer was built.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)


def _inner(optimizer):
    """Returns the optimizer that makes the steps, without a `LossScaleOptimizer`."""
    return getattr(optimizer, "inner_optimizer", optimizer)
