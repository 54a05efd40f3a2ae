"""Splits the computation of gradients among the replicas of a strategy."""

import contextlib

import tensorflow as tf


def scope(strategy):
    """Returns the scope of a `tf.distribute.Strategy`, or of no strategy for `None`."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def strategy_of(variables):
    """Returns the strategy with several replicas that has created Keras variables.

    Returns:
        `tf.distribute.Strategy`, or `None` if the variables have one replica only.
    """
    for variable in variables:
        strategy = getattr(variable.value, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            return strategy
    return None


def sum_over_replicas(strategy, function):
    """Returns Σᵣ wᵣ xᵣ, a weighted sum of the results of all R replicas.

    Every replica r computes its weight wᵣ and its tensors xᵣ on its own device. A replica
    with the weight zero adds zero, even if its tensors are NaN.

    Args:
        strategy: `tf.distribute.Strategy` with R replicas.
        function: Function of two arguments, the number r of a replica, a scalar int32,
            and the number R, an int. The function returns the weight wᵣ, a scalar
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
            results = context.all_reduce(
                tf.distribute.ReduceOp.SUM, [terms[i] for i in indices]
            )
            for i, result in zip(indices, results, strict=True):
                sums[i] = result
        return sums

    with strategy.scope():
        sums = strategy.run(sums_on_replica)
    return [strategy.experimental_local_results(x)[0] for x in sums]
