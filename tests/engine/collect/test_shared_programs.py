"""Tests that equal agents share an XLA program, and that different agents do not."""

import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.engine.collect import xla_rollout

SCALAR = [tf.TensorSpec(())]


def square_plus(constant):
    """Returns a function with an inner function that contains a constant."""

    def function(x):
        return tf.while_loop(lambda y: y < 10.0, lambda y: (y * y + constant,), [x])[0]

    return function


def digest(function, signature=SCALAR):
    traced = tf.function(function, input_signature=signature, autograph=False)
    return xla_rollout.digest(traced.get_concrete_function())


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


def test_function_with_a_captured_variable_is_not_shared():
    def reads(variable):
        return xla_rollout.shared(lambda x: x + variable, SCALAR)

    one, other = reads(tf.Variable(1.0)), reads(tf.Variable(2.0))
    assert one is not other
    assert float(one(tf.constant(0.0))) == 1.0 and float(other(tf.constant(0.0))) == 2.0


def test_equal_agents_share_their_program_and_use_their_own_weights():
    env, before = envs.CartPole(), set(xla_rollout._PROGRAMS)
    agents = [tfr.Reinforce.for_env(env, hidden=(3,), seed=seed) for seed in (1, 2)]
    agents[1].policy.set_weights([100.0 * x for x in agents[1].policy.get_weights()])
    first, second = (agent.collect(env, 5, seed=0) for agent in agents)
    assert len(set(xla_rollout._PROGRAMS) - before) <= 1
    assert not np.array_equal(first.lengths, second.lengths)
    agents[0].policy.set_weights(agents[1].policy.get_weights())
    same = agents[0].collect(env, 5, seed=0)
    np.testing.assert_array_equal(same.observations, second.observations)
