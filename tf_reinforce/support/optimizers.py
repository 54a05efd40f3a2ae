"""Builds Keras optimizers, sums gradients over replicas, and averages weights."""

import tensorflow as tf


def build(optimizer, variables):
    """Creates an optimizer's state, unless it exists.

    Raises:
        ValueError: If a decay rounds to 1 in the type of a weight, as Adam's
            `beta_2=0.999` does in bfloat16, because averages of gradients would then stay
            at zero. Also if the optimizer divides by average squared gradients and a
            weight is float16, in which the squares of small gradients are zero and steps
            would be enormous.
    """
    if optimizer.built:
        return
    for name in ("beta_1", "beta_2", "rho"):
        decay = getattr(_inner(optimizer), name, None)
        for variable in variables if isinstance(decay, float) and decay < 1 else ():
            divides = name != "beta_1" and hasattr(_inner(optimizer), "epsilon")
            rounds = float(tf.cast(decay, variable.dtype)) == 1.0
            if rounds or (divides and variable.dtype == "float16"):
                raise ValueError(
                    f"{variable.path} is in {variable.dtype}, in which the optimizer "
                    f"cannot keep averages with `{name}={decay}`. Use the dtype policy "
                    '"mixed_bfloat16" or "mixed_float16", or SGD.'
                )
    optimizer.build(variables)


def assign(variables, values):
    """Assigns a value to each variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def step_count(optimizer):
    """Returns the optimizer that updates the weights, and how many steps it has made."""
    inner = _inner(optimizer)
    return inner, int(inner.iterations.numpy())


def begin_averages(optimizer):
    """Assigns weights to their averages (`use_ema`) before the first step.

    Keras' `fit` ends with the averages even if there was no step, and they start at zero.
    """
    inner, steps = step_count(optimizer)
    if inner.use_ema and steps == 0:
        assign(inner._model_variables_moving_average, inner._trainable_variables)


def finalize(optimizer):
    """Replaces weights by their averages, if the optimizer keeps them (`use_ema`).

    Keras' own `fit` does the same at its end. Frozen weights stay as they are.
    Before the first step, all weights stay as they are, because averages start at zero.
    """
    inner, steps = step_count(optimizer)
    if inner.use_ema and steps > 0:
        averages = inner._model_variables_moving_average
        # Keras' own `finalize_variable_values` would pair the averages with the currently
        # trainable variables, of which some may have been frozen since `build`.
        for variable, average in zip(inner._trainable_variables, averages, strict=True):
            if variable.trainable and average is not None:
                variable.assign(average)


def _inner(optimizer):
    """Returns the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def strategy_of(variables):
    """Returns the strategy that created variables on several replicas, or `None`."""
    for variable in variables:
        strategy = getattr(variable.value, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            return strategy
    return None


def sum_over_replicas(strategy, function):
    """Returns Σᵣ wᵣ xᵣ over all replicas r = 0 … R - 1.

    Each replica computes its weight wᵣ and its tensors xᵣ on its own device. A replica
    whose weight is zero adds zero, even if its tensors are NaN.

    Args:
        strategy: `tf.distribute.Strategy` with R replicas.
        function: Function of r, a scalar int32, and R, an int. It returns wᵣ, a scalar
            float64, and xᵣ, a list of float tensors.

    Returns:
        List of the sums, with the same bits on all replicas.
    """

    def sums_on_replica():
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int32)
        weight, tensors = function(replica, strategy.num_replicas_in_sync)
        terms = [tf.math.multiply_no_nan(x, tf.cast(weight, x.dtype)) for x in tensors]
        sums = [None] * len(terms)
        # A collective operation joins tensors, which must have the same type.
        for dtype in dict.fromkeys(x.dtype for x in terms):
            indices = [i for i, x in enumerate(terms) if x.dtype == dtype]
            same = [terms[i] for i in indices]
            results = context.all_reduce(tf.distribute.ReduceOp.SUM, same)
            for i, result in zip(indices, results, strict=True):
                sums[i] = result
        return sums

    with strategy.scope():
        sums = strategy.run(sums_on_replica)
    return [strategy.experimental_local_results(x)[0] for x in sums]
