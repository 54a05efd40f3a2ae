"""Tests which strategies and scopes an agent supports, and what it refuses."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.support import replicas


def small_policy():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def fake_strategy(kind=tf.distribute.MirroredStrategy, count=2):
    """Returns a strategy with several replicas that makes no variables."""

    class Strategy(kind):
        num_replicas_in_sync = count

        def __init__(self):
            pass

    return Strategy()


def variables_of(strategy):
    return [
        types.SimpleNamespace(value=types.SimpleNamespace(distribute_strategy=strategy))
    ]


def test_unsupported_strategies_are_refused():
    strategy = fake_strategy(tf.distribute.ParameterServerStrategy)
    expected = ", but only MirroredStrategy, MultiWorkerMirroredStrategy, "
    with pytest.raises(ValueError, match="Strategy" + expected):
        replicas.check_strategy(strategy)
    with tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]).scope():
        policy = small_policy()
        with pytest.raises(ValueError, match="CentralStorageStrategy" + expected):
            tfr.Reinforce(policy)


def test_parts_of_another_scope_are_refused():
    strategy = fake_strategy()
    replicas.check_same_scope(strategy, {"policy": variables_of(strategy)})
    replicas.check_same_scope(None, {"policy": variables_of(None)})
    replicas.check_same_scope(fake_strategy(count=1), {"policy": variables_of(None)})
    for pair in ((strategy, None), (None, strategy)):
        with pytest.raises(ValueError, match="policy and the agent were not made in the"):
            replicas.check_same_scope(pair[0], {"policy": variables_of(pair[1])})


@pytest.mark.parametrize("weight, expected", [(0.0, [0.0, 0.0]), (0.5, [np.nan, 1.0])])
def test_replica_without_weight_adds_zero_even_to_nan(weight, expected):
    """A replica without episodes may compute 0 / 0."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

    def results(replica, count):
        assert count == 1
        tensors = [tf.constant([np.nan, 2.0], x) for x in ("float32", "float64")]
        return tf.constant(weight, tf.float64), [*tensors, tf.cast(replica, "float32")]

    *sums, number = replicas.sum_over_replicas(strategy, results)
    for total, dtype in zip(sums, ("float32", "float64"), strict=True):
        assert total.dtype == dtype and number == 0
        np.testing.assert_array_equal(total, expected)


def test_training_in_the_scope_is_refused():
    """TensorFlow's error in the optimizer would name neither `fit` nor the scope."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        agent = tfr.Reinforce(small_policy())
        agent.compile(keras.optimizers.Adam())
        with pytest.raises(
            RuntimeError, match="`fit` was called in the scope of a strat"
        ):
            agent.fit("CartPole-v1", epochs=1)
        with pytest.raises(RuntimeError, match="`update` .* after this block"):
            agent.update(None)


@pytest.mark.parametrize(
    "error, expected, message",
    [
        (RuntimeError("late"), RuntimeError, "before any other call of TensorFlow"),
        (
            tf.errors.UnknownError(None, None, "no server"),
            OSError,
            "each at an unused port",
        ),
    ],
)
def test_errors_of_learner_strategy(monkeypatch, error, expected, message):
    """TensorFlow raises them once it has started, and if a port is in use."""

    def refuse():
        raise error

    cluster = '{"worker": ["127.0.0.1:1", "127.0.0.1:2"]}'
    task = '{"type": "worker", "index": 0}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", refuse)
    with pytest.raises(expected, match=message):
        tfr.learner_strategy()
