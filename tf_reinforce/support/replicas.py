"""Splits gradient computation among a strategy's replicas."""

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
    """Returns the strategy for training one agent in several processes.

    Set the environment variable `TF_CONFIG` in each process, and call this function
    before anything else in TensorFlow. It returns when all processes have called it.

    Returns:
        `tf.distribute.MultiWorkerMirroredStrategy` if `TF_CONFIG` lists several
        processes, else TensorFlow's default strategy, whose scope has no effect.

    Raises:
        ValueError: If `TF_CONFIG` is invalid.
        RuntimeError: If TensorFlow has already started.
        OSError: If this process cannot connect to the others, for example because its
            port is in use.

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
    """Returns the scope of a `tf.distribute.Strategy`; for `None`, one without effect."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_strategy(strategy):
    """Raises `ValueError` if agents do not support a strategy. `None` is supported."""
    if strategy is not None and not isinstance(strategy, tuple(_SUPPORTED.values())):
        raise ValueError(
            f"An agent does not support the strategy {type(strategy).__name__}, but only "
            f"{', '.join(_SUPPORTED)}."
        )


def check_same_scope(strategy, parts):
    """Raises `ValueError` if parts of an agent were made in another scope than the agent.

    Args:
        strategy: `tf.distribute.Strategy` in whose scope the agent was made, or `None`.
        parts: Dict from the parts' names to lists of their Keras variables.
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
    """Raises `RuntimeError` inside a strategy's scope, where no updates can be made.

    Args:
        method: String, the method that makes updates.
    """
    if tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"`{method}` was called in the scope of a strategy. Make the agent and its "
            f"parts in `with strategy.scope():`, and call `{method}` after this block."
        )


def strategy_of(variables):
    """Returns the strategy that created variables on several replicas, or `None`."""
    for variable in variables:
        strategy = getattr(variable.value, "distribute_strategy", None)
        if strategy is not None and strategy.num_replicas_in_sync > 1:
            return strategy
    return None


def sum_over_replicas(strategy, function):
    """Returns Σᵣ wᵣ xᵣ over all replicas r = 0 … R - 1.

    Each replica computes its weight wᵣ and tensors xᵣ on its own device. With a weight of
    zero it adds zero, even if its tensors are NaN.

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
            results = context.all_reduce(
                tf.distribute.ReduceOp.SUM, [terms[i] for i in indices]
            )
            for i, result in zip(indices, results, strict=True):
                sums[i] = result
        return sums

    with strategy.scope():
        sums = strategy.run(sums_on_replica)
    return [strategy.experimental_local_results(x)[0] for x in sums]
