"""Tests that equal agents share an XLA program, and that different agents do not."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.engine.collect import shared_programs

SCALAR = [tf.TensorSpec(())]


def square_plus(constant):
    """Returns a function with an inner function that contains a constant."""

    def function(x):
        return tf.while_loop(lambda y: y < 10.0, lambda y: (y * y + constant,), [x])[0]

    return function


def digest(function, signature=SCALAR):
    traced = tf.function(function, input_signature=signature, autograph=False)
    return shared_programs.digest(traced.get_concrete_function())


def test_digest_does_not_depend_on_names():
    def renamed(value):
        with tf.name_scope("other"):
            return tf.multiply(value, 2.0, name="doubled")

    assert digest(lambda x: 2.0 * x) != digest(renamed)  # the order of the inputs
    assert digest(lambda x: x * 2.0) == digest(renamed)
    assert digest(square_plus(2.0)) == digest(square_plus(2.0))


DIFFERENT = {
    "constant": (lambda x: x + 1.0, lambda x: x + 1.0000001),
    "constant of an inner function": (square_plus(2.0), square_plus(3.0)),
    "operation": (lambda x: x + x, lambda x: x * x),
    "attribute": (lambda x: tf.argmax([x, x]), lambda x: tf.argmin([x, x])),
    "type": (lambda x: tf.cast(x, "int32"), lambda x: tf.cast(x, "int64")),
    "connection": (lambda x: x - (x + 1.0), lambda x: (x + 1.0) - x),
    "result": (
        lambda x: (x + 1.0, (x + 1.0) * x)[0], lambda x: (x + 1.0, (x + 1.0) * x)[1],
    ),
    "output number": (
        lambda x: tf.split([x, -x], 2)[0], lambda x: tf.split([x, -x], 2)[1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_digest_differs_for_functions_that_differ_in_one_detail(case):
    one, other = map(digest, DIFFERENT[case])
    assert one != other


def test_digest_differs_for_another_type_of_an_argument():
    def identity(x):
        return x

    assert digest(identity) != digest(identity, [tf.TensorSpec((), tf.float64)])


def test_digest_differs_for_exchanged_arguments():
    pair = SCALAR * 2
    assert digest(lambda x, y: x - y, pair) != digest(lambda x, y: y - x, pair)


def test_function_with_a_captured_variable_is_not_shared():
    def reads(variable):
        return shared_programs.shared(lambda x: x + variable, SCALAR)

    one, other = reads(tf.Variable(1.0)), reads(tf.Variable(2.0))
    assert one is not other
    assert float(one(tf.constant(0.0))) == 1.0 and float(other(tf.constant(0.0))) == 2.0


def test_shared_function_is_the_same_object_and_is_compiled_with_xla():
    one, other = (shared_programs.shared(square_plus(2.0), SCALAR) for _ in range(2))
    assert one is other
    assert one.function_def.attr["_XlaMustCompile"].b


class ShiftLayer(keras.layers.Layer):
    """Adds a number to the logits, which is kept as a Python float or `tf.Variable`."""

    def __init__(self, shift, **kwargs):
        super().__init__(**kwargs)
        self.shift = shift

    def call(self, inputs):
        return inputs + [self.shift, 0.0]


def always_zero(shift):
    """Returns an agent that always selects 0 for +100, and always 1 for -100."""
    layers = [keras.layers.Dense(2), ShiftLayer(shift)]
    return tfr.Reinforce(keras.Sequential([keras.Input((4,)), *layers]))


@pytest.mark.parametrize("kind", [float, lambda x: tf.Variable(x, dtype="float32")])
def test_agents_that_differ_in_a_layer_act_differently(kind):
    env = envs.CartPole()
    actions = [always_zero(kind(x)).collect(env, 2).actions for x in (100.0, -100.0)]
    assert not actions[0].any() and actions[1][0].all()


def test_equal_agents_share_their_program_and_use_their_own_weights():
    env, before = envs.CartPole(), set(shared_programs._PROGRAMS)
    agents = [tfr.Reinforce.for_env(env, hidden=(3,), seed=seed) for seed in (1, 2)]
    agents[1].policy.set_weights([100.0 * x for x in agents[1].policy.get_weights()])
    first, second = (agent.collect(env, 5, seed=0) for agent in agents)
    assert len(set(shared_programs._PROGRAMS) - before) <= 1
    assert not np.array_equal(first.lengths, second.lengths)
    agents[0].policy.set_weights(agents[1].policy.get_weights())
    same = agents[0].collect(env, 5, seed=0)
    np.testing.assert_array_equal(same.observations, second.observations)


def test_shared_program_does_not_keep_an_agent_in_memory():
    env = envs.CartPole()
    agent = tfr.Reinforce.for_env(env, hidden=(5,))
    agent.evaluate(env, 1)
    reference = weakref.ref(agent)
    del agent
    gc.collect()
    assert reference() is None
