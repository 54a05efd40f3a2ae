"""Tests how an agent builds subclassed Keras models."""

import re
import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.policies import models


class TwoLayers(keras.Model):
    """A subclassed model without a method `build`."""

    def __init__(self, size, one_hot=0, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.one_hot = one_hot
        options = dict(dtype=self.dtype_policy)
        self.hidden = keras.layers.Dense(5, "tanh", **options)
        self.last = keras.layers.Dense(size, **options)

    def call(self, x):
        if self.one_hot:
            x = tf.one_hot(x, self.one_hot)  # refuses real numbers
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "size": self.size, "one_hot": self.one_hot}


def subclassed(dtype, actions=2, **options):
    """Returns an agent whose policy and value model are subclassed models."""
    value_model = TwoLayers(1, dtype=dtype, **options)
    baseline = tfr.baselines.Value(value_model, keras.optimizers.SGD(0.1))
    policy = TwoLayers(actions, dtype=dtype, **options)
    agent = tfr.Reinforce(policy, baseline=baseline)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


def functional(dtype):
    """Returns the agent of `subclassed` with functional models."""

    def make(size):
        x = keras.Input((4,), dtype=dtype)
        hidden = keras.layers.Dense(5, "tanh", dtype=dtype)(x)
        return keras.Model(x, keras.layers.Dense(size, dtype=dtype)(hidden), dtype=dtype)

    baseline = tfr.baselines.Value(make(1), keras.optimizers.SGD(0.1))
    agent = tfr.Reinforce(make(2), baseline=baseline)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


@pytest.mark.parametrize("dtype", [sweeps.rare("float32"), "float64"])
def test_subclassed_models_learn_like_functional_models(dtype):
    """Keras' own `build` of a subclassed model would create no weights."""
    env = gym.make("CartPole-v1")
    agents = subclassed(dtype), functional(dtype)
    for agent in agents:
        agent.build_for_env(env)
        assert agent.head.compute_dtype == dtype
        assert {x.dtype for x in agent.policy.weights} == {dtype}
    start = agents[0].policy.get_weights(), agents[0].baseline.model.get_weights()
    agents[1].policy.set_weights(start[0])
    agents[1].baseline.model.set_weights(start[1])
    for agent in agents:
        agent.fit("CartPole-v1", epochs=2, seed=3, verbose=0)
    for name in ("policy", "baseline"):
        found, expected = (getattr(agent, name).get_weights() for agent in agents)
        before = start[name == "baseline"]
        assert len(found) == len(before) and not np.array_equal(found[0], before[0])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_error_names_the_subclassed_model_that_does_not_take_the_observations():
    agent = subclassed("float32", one_hot=3)
    with pytest.raises(ValueError, match="The policy does not take the observations"):
        agent.fit("CartPole-v1", epochs=1, verbose=0)
    agent = tfr.Reinforce(
        keras.Sequential([keras.layers.Dense(2)]),
        baseline=tfr.baselines.Value(TwoLayers(1, one_hot=3)),
    )
    agent.compile("adam")
    with pytest.raises(ValueError, match="The value model does not take the observ"):
        agent.fit("CartPole-v1", epochs=1, verbose=0)


# Classes of layers that a file cannot restore


class NoKwargs(keras.Model):
    def __init__(self, units=3):
        super().__init__()
        self.dense = keras.layers.Dense(units)


class NoConfig(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(units)


@keras.saving.register_keras_serializable("tests")
class Complete(NoConfig):
    def __init__(self, units=3, **kwargs):
        super().__init__(units, **kwargs)
        self.units = units

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class OwnFromConfig(NoKwargs):
    @classmethod
    def from_config(cls, config):
        return cls()


class Required(keras.layers.Layer):
    """A layer with an argument that its configuration lacks."""

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)

    def get_config(self):
        return super().get_config()


def messages(layer):
    model = keras.Sequential([layer]) if not isinstance(layer, keras.Model) else layer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        models.warn_if_not_loadable(model)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: NoKwargs(4), "NoKwargs does not take its own configuration: got an"),
        (
            lambda: NoConfig(4),
            "NoConfig has no `get_config`, which returns its arguments",
        ),
        (lambda: Required(0.1), "Required does not take .*: missing a required arg"),
    ],
    ids=["no_kwargs", "no_config", "required"],
)
def test_class_that_cannot_be_restored_is_named_once(make, text):
    found = messages(keras.Sequential([make(), make()]))
    assert len(found) == 1
    assert re.match(f"The class {text}", found[0])


def test_other_layers_give_no_warning():
    dense, inputs = keras.layers.Dense(2), keras.Input((3,))
    functional = keras.Model(inputs, keras.layers.Normalization()(dense(inputs)))
    wrapped = keras.layers.Bidirectional(keras.layers.GRU(2))
    for layer in (Complete(4), OwnFromConfig(), functional, wrapped, dense):
        assert messages(layer) == []
