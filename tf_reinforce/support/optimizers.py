"""Builds Keras optimizers, and applies their weight averages."""

import tensorflow as tf


def build(optimizer, variables):
    """Creates an optimizer's state, unless it exists.

    Raises:
        ValueError: If a decay rounds to 1 in the type of a weight, as Adam's
            `beta_2=0.999` does in bfloat16: averages of gradients would stay at zero. Or
            if the optimizer divides by average squared gradients and a weight is float16,
            in which squares of small gradients are zero and steps would be enormous.
    """
    if optimizer.built:
        return
    for name in ("beta_1", "beta_2", "rho"):
        decay = getattr(_inner(optimizer), name, None)
        for variable in variables if isinstance(decay, float) and decay < 1 else ():
            if float(tf.cast(decay, variable.dtype)) == 1.0:
                raise ValueError(
                    f"`{name}={decay}` of the optimizer is 1 in {variable.dtype}, the "
                    f"type of {variable.path}: averages of gradients would stay at zero. "
                    'Use the dtype policy "mixed_bfloat16", or a smaller value.'
                )
            divides = name != "beta_1" and hasattr(_inner(optimizer), "epsilon")
            if divides and variable.dtype == "float16":
                raise ValueError(
                    f"{variable.path} is in float16, in which the squares of small "
                    "gradients, of which the optimizer keeps averages, are zero. Use the "
                    'dtype policy "mixed_float16", or SGD.'
                )
    optimizer.build(variables)


def step_count(optimizer):
    """Returns the optimizer that updates the weights, and how many steps it has made."""
    inner = _inner(optimizer)
    return inner, int(inner.iterations.numpy())


def finalize(optimizer, since=None):
    """Replaces weights by their averages, if the optimizer keeps them (`use_ema`).

    Keras' own `fit` does the same at its end. Frozen weights stay, and so do all weights
    before the first step, because averages start at zero.

    Args:
        optimizer: Keras optimizer.
        since: Earlier result of `step_count`, or `None`. If no step was made since then,
            nothing changes.
    """
    inner, steps = now = step_count(optimizer)
    if inner.use_ema and steps > 0 and now != since:
        averages = inner._model_variables_moving_average
        # Keras' own `finalize_variable_values` would pair the averages with the currently
        # trainable variables, of which some may have been frozen since `build`.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)


def _inner(optimizer):
    """Returns the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
