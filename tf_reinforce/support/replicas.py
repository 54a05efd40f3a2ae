"""Splits the computation of gradients among the replicas of a strategy."""

import contextlib
import os

import tensorflow as tf

from tf_reinforce.support import startup

# TensorFlow's class MultiWorkerMirroredStrategy has another `__name__`.
_SUPPORTED = {
    "MirroredStrategy": tf.distribute.MirroredStrategy,
    "MultiWorkerMirroredStrategy": tf.distribute.MultiWorkerMirroredStrategy,
    "OneDeviceStrategy": tf.distribute.OneDeviceStrategy,
}


def learner_strategy() -> tf.distribute.Strategy:
    """Returns the strategy of the learner processes that `TF_CONFIG` describes.

    Make the strategy before any other call of TensorFlow. The function waits until all
    processes have called it.

    Returns:
        `tf.distribute.MultiWorkerMirroredStrategy` if the environment variable
        `TF_CONFIG` describes several processes. Otherwise TensorFlow's default strategy,
        whose scope has no effect.

    Raises:
        ValueError: If `TF_CONFIG` is invalid.
        RuntimeError: If TensorFlow has already started.
        OSError: If the port of the current process is in use.

    Example:

    >>> import tf_reinforce as tfr
    >>> with tfr.learner_strategy().scope():
    ...     agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    """
    cluster = startup.learner_cluster(os.environ)
    if cluster is None:
        return tf.distribute.get_strategy()
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        raise RuntimeError(
            "Call `tfr.learner_strategy()` after the imports, before any other call of "
            f"TensorFlow ({error})."
        ) from error
    except tf.errors.OpError as error:
        raise OSError(
            f"Process {cluster.number} cannot connect to the others of {cluster.hosts}. "
            f"Start all of them, each at an unused port ({error.message})."
        ) from error


def scope(strategy):
    """Returns the scope of a `tf.distribute.Strategy`, or of no strategy for `None`."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_strategy(strategy):
    """Raises `ValueError` if agents do not support a strategy, or `None`."""
    if strategy is not None and not isinstance(strategy, tuple(_SUPPORTED.values())):
        raise ValueError(
            f"An agent does not support the strategy {type(strategy).__name__}, but only "
            f"{', '.join(_SUPPORTED)}."
        )


def check_same_scope(strategy, parts):
    """Raises `ValueError` if a part of an agent was made in another scope than the agent.

    Args:
        strategy: `tf.distribute.Strategy` in whose scope the agent was made, or `None`.
        parts: Dict from the names of the parts to lists of their Keras variables.
    """
    if strategy is not None and strategy.num_replicas_in_sync < 2:
        strategy = None
    for name, variables in parts.items():
        if any(strategy_of([variable]) is not strategy for variable in variables):
            raise ValueError(
                f"The {name} and the agent were not made in the same scope. Make policy, "
                "head, baseline, optimizer and agent in one `with strategy.scope():`, or "
                "all without."
            )


def check_outside_scope(method):
    """Raises `RuntimeError` in the scope of a strategy.

    Args:
        method: String, the method of the agent that makes updates.
    """
    if tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"`{method}` was called in the scope of a strategy. Make the agent and its "
            f"parts in `with strategy.scope():`, and call `{method}` after this block."
        )


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
