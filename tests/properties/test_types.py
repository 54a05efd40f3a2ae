"""Tests that every part uses the floating point type of the policy, on both engines."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import envs
from tf_reinforce import heads

UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
NESTED = "Autoregressive", "Composite"
HEADS = {name: x for name, x in parts.HEADS.items() if name not in NESTED}


class EveryAction(envs.TensorEnv):
    """Two steps with every kind of action, which all influence the reward."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Dict({name: x.space for name, x in HEADS.items()})
    max_episode_steps = 2
    initial_noise = tfr.heads.NoiseSpec("uniform", (2,))

    def initial(self, noise):
        return noise

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        return 1.0 - state

    def reward(self, state, action, next_state):
        parts = [tf.cast(x, self.dtype) for x in tf.nest.flatten(action)]
        parts = [tf.reduce_sum(tf.reshape(x, [tf.shape(x)[0], -1]), 1) for x in parts]
        return tf.add_n(parts)

    def terminal(self, state):
        return tf.zeros(tf.shape(state)[:1], tf.bool)


def every_head():
    """Returns a composite of all heads, none of them with an explicit type."""

    return heads.Composite({name: x.make() for name, x in HEADS.items()})


def network(inputs, outputs, *types):
    """Returns two dense layers of one type or of two types."""
    first, last = types * 2 if len(types) == 1 else types
    layers = [
        keras.layers.Dense(3, "tanh", dtype=first, kernel_initializer=initializer(1)),
        keras.layers.Dense(outputs, dtype=last, kernel_initializer=initializer(2)),
    ]
    return keras.Sequential([keras.Input((inputs,), dtype=first), *layers])


def initializer(seed):
    return keras.initializers.GlorotUniform(seed)


def agent_of(dtype):
    head = every_head()
    agent = tfr.Reinforce(
        network(2, head.outputs_size, dtype), head, "moving_average", entropy_coef=0.1
    )
    agent.compile(keras.optimizers.SGD(0.01))
    return agent


# Other tests train each head alone in float32, on the host.
@pytest.mark.parametrize(
    "dtype, engine",
    sweeps.some(
        itertools.product(["float32", "float64"], ["host", "compiled"]),
        always=[("float64", "host")],
    ),
)
def test_every_head_trains_in_the_type_of_the_policy(dtype, engine):
    agent, env = agent_of(dtype), EveryAction()
    env = env.as_gymnasium(2) if engine == "host" else env
    agent.build_for_env(env if engine == "compiled" else EveryAction())
    before = [variable.numpy() for variable in agent.policy_variables]
    agent.fit(env, epochs=2, episodes_per_epoch=4, verbose=0)
    own = [len(parts.head(name).variables) for name in HEADS]
    assert len(agent.head.variables) == sum(own) > 0
    for variable, old in zip(agent.policy_variables, before, strict=True):
        assert variable.dtype == dtype
        assert np.isfinite(variable).all() and (variable.numpy() != old).any()


def test_default_policy_has_the_dtype_policy_of_keras():
    keras.config.set_dtype_policy("float64")
    agent = tfr.Reinforce.for_env("CartPole-v1", baseline="value", hidden=(2,))
    models = agent.policy, agent.baseline.model
    assert {v.dtype for model in models for v in model.weights} == {"float64"}
    assert agent.head.dtype == "float64"


@pytest.mark.parametrize(
    "types, engine",
    [
        (("bfloat16", "float32"), "host"),
        sweeps.rare(("bfloat16", "float32"), "compiled"),
        sweeps.rare(("float64", "float32"), "host"),
        sweeps.rare(("float64", "float32"), "compiled"),
        sweeps.rare(("float32", "float64"), "host"),
        sweeps.rare(("float32", "float64"), "compiled"),
    ],
)
def test_policy_with_weights_of_two_types_trains(types, engine):
    agent = tfr.Reinforce(network(3, 1, *types), heads.Gaussian(1, low=-2, high=2))
    agent.compile(keras.optimizers.SGD(0.01))
    env = "Pendulum-v1" if engine == "host" else envs.Pendulum()
    budget = dict(episodes_per_epoch=2, num_envs=2, max_episode_steps=4)
    history = agent.fit(env, epochs=1, verbose=0, **budget).history
    assert 0 < history["gradient_norm"][0] < np.inf
    double = "float64" in types
    assert agent.head.log_scale.dtype == ("float64" if double else "float32")
    assert agent(np.ones((5, 3))).dtype == (tf.float64 if double else tf.float32)
    for variable, dtype in zip(agent.policy.variables, np.repeat(types, 2), strict=True):
        assert variable.dtype == dtype and np.isfinite(variable.numpy()).all()


@pytest.mark.parametrize("kind", [baselines.MovingAverage, baselines.TimeStep])
def test_moving_averages_are_computed_in_float64(kind):
    """Returns are float64 for every type of the policy, and keep all digits."""
    baseline = kind(decay=1.0)
    baseline.build((None, 2))
    returns = np.array([1e8, 1e8 + 1.0, 1e8 + 2.0])
    for one in returns:
        baseline_batch = baselines.BaselineBatch(
            None, tf.constant([one], tf.float64), tf.constant([0]), 1
        )
        baseline.apply_gradients([], baseline_batch)
    valid = tf.ones([1, 1], tf.bool)
    found = baseline.estimate(tf.zeros([1, 1], tf.float64), valid, None)
    assert float(found[0, 0]) == returns.mean()


@pytest.mark.parametrize("optimizer", ["adam", sweeps.rare("rmsprop"), "adadelta"])
def test_fit_raises_if_an_optimizer_average_would_stay_zero(optimizer):
    """Adam's 0.999 is 1 in bfloat16. RMSprop's 0.9 and Adadelta's 0.95 are not 1."""
    layer = keras.layers.Dense(2, dtype="bfloat16")
    agent = tfr.Reinforce(keras.Sequential([keras.Input((1,)), layer]))
    agent.compile(optimizer)
    if optimizer == "adam":
        with pytest.raises(ValueError, match="in bfloat16, .*`beta_2=0.999`"):
            agent.fit(toys.Clock, epochs=1, verbose=0)
    else:
        agent.fit(toys.Clock, epochs=1, verbose=0)
