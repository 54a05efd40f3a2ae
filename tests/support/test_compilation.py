"""Tests that a traced function's graph is freed together with the function."""

import gc

import keras
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.support import compilation


@tf.custom_gradient
def clipped_square(x):
    return x**2, lambda upstream: upstream * tf.clip_by_value(2 * x, -1.0, 1.0)


def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = clipped_square(x)
    return tape.gradient(y, x)


def gradient_in_a_loop(x):
    def body(x):
        return [tf.cond(x > 0, lambda: gradient(x), lambda: x) - 1.0]

    return tf.while_loop(lambda x: x > 0, body, [x])[0]


def optimizer_step(x):
    OPTIMIZER.apply([x[None]], [WEIGHT])
    return x


WEIGHT, OPTIMIZER = keras.Variable([1.0]), keras.optimizers.Adam(0.1)
OPTIMIZER.build([WEIGHT])


def traced(function):
    signature = [tf.TensorSpec(())]
    graph = tf.function(function, input_signature=signature, autograph=False)
    return graph.get_concrete_function()


def num_graphs():
    """Returns the number of function graphs in memory, also inside loops."""
    gc.collect()
    # AutoGraph raises a warning on Python 3.13, which would keep the graph.
    kind = type(tf.function(lambda: 0, autograph=False).get_concrete_function().graph)
    gc.collect()
    return sum(isinstance(x, kind) for x in gc.get_objects())


@pytest.mark.parametrize("released", [True, sweeps.rare(False)])
@pytest.mark.parametrize(
    "function",
    [gradient_in_a_loop, sweeps.rare(optimizer_step)],
    ids=lambda x: x.__name__,
)
def test_graph_is_freed_only_if_it_is_released(function, released):
    """Without `release`, TensorFlow and TensorFlow Probability keep it."""
    before = num_graphs()
    concrete = traced(function)
    result = concrete(tf.constant(3.0)).numpy()
    if released:
        compilation.release(concrete.graph)
        assert concrete(tf.constant(3.0)).numpy() == result
    del concrete
    assert (num_graphs() == before) == released


CASES = {
    "host": ("CartPole-v1", None),
    "compiled": (envs.Bandit(), None),
    "Gaussian": ("Pendulum-v1", "Gaussian"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_deleted_agent_leaves_no_graph(case):
    env, head = CASES[case]

    def train():
        agent = tfr.Reinforce.for_env(
            env, hidden=(), head=head, baseline={"kind": "value"}
        )
        options = dict(episodes_per_epoch=2, num_envs=2, max_episode_steps=3)
        agent.fit(env, epochs=1, **options, verbose=0)

    train()  # all later equal agents share the compiled rollout of the first one
    before = num_graphs()
    train()
    assert num_graphs() <= before
