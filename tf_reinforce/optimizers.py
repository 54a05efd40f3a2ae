"""Builds and finalizes Keras optimizers."""

import tensorflow as tf


def build(optimizer, variables):
    """Makes the state of an optimizer, unless it has been made.

    Raises:
        ValueError: when averages of gradients would stay at zero. They are kept in the
            types of the variables: Adam's 0.999 is 1 in bfloat16, which leaves nothing
            to a new gradient.
    """
    if optimizer.built:
        return
    for name in ("beta_1", "beta_2", "rho"):
        decay = getattr(_inner(optimizer), name, None)
        for variable in variables if isinstance(decay, float) and decay < 1 else ():
            if float(tf.cast(decay, variable.dtype)) == 1.0:
                raise ValueError(
                    f"`{name}` of the optimizer must be less than 1 in the type of every "
                    "weight, or its averages stay at zero and nothing is learned. "
                    f"Received: {name}={decay}, which is 1 in {variable.dtype}, the type "
                    f"of {variable.path}. Keep the weights in float32, as the policy "
                    '"mixed_bfloat16" does, or take a smaller one.'
                )
    optimizer.build(variables)


def progress(optimizer):
    """The optimizer and how many steps it has made, to be compared later."""
    inner = _inner(optimizer)
    return inner, int(inner.iterations)


def finalize(optimizer, since=None):
    """Replaces weights by their averages where the optimizer averages them (`use_ema`).

    Keras does so at the end of `fit`. Here it takes a step, as averages begin at zero,
    and a step after `since`, an earlier `progress`. Frozen weights stay as they are.
    """
    inner, steps = now = progress(optimizer)
    if inner.use_ema and steps > 0 and now != since:
        averages = inner._model_variables_moving_average
        # Keras would pair them with the variables of today, of which some may be frozen.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)


def _inner(optimizer):
    """The optimizer that makes the steps; a LossScaleOptimizer has it inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)
