"""Tests that options which save time train a sampling model to the plain weights.

Every argument of `ScoreFunction`, its `compile` and its `fit` belongs to one group. An
argument in no group fails a test, which names it.
"""

import inspect

import keras
import numpy as np
import pairwise
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads

COUNT, RATE = 10, 0.5
SAVES = {
    "steps_per_execution": [1, 2],
    "run_eagerly": [False, True],
    "jit_compile": [False, True],
}
CHANGES = {
    "samples": [3, 1],
    "baseline": ["leave_one_out", "mean", None],
    "entropy_coef": [0.3, 0.0],
    "estimator": ["score_function", "disarm"],
    "sample_weight": [np.arange(COUNT) / 4, None],
}
OTHERS = {
    *("model", "loss", "reward", "optimizer", "loss_weights", "metrics"),
    *("weighted_metrics", "auto_scale_loss", "x", "y", "batch_size", "epochs"),
    *("verbose", "callbacks", "validation_split", "validation_data", "shuffle"),
    *("class_weight", "initial_epoch", "steps_per_epoch", "validation_steps"),
    *("validation_batch_size", "validation_freq", "resume"),
}


def test_every_option_of_a_sampling_model_is_compared():
    cls = tfr.ScoreFunction
    methods = cls.__init__, cls.compile, cls.fit, keras.Model.fit
    signatures = [inspect.signature(x) for x in methods]
    pairwise.expect_listed(signatures, [SAVES, CHANGES, OTHERS])


def policy():
    inputs = keras.Input((2,))
    initializer = keras.initializers.RandomNormal(1.0, seed=3)
    logits = keras.layers.Dense(3, kernel_initializer=initializer)(inputs)
    return keras.Model(inputs, tfr.layers.Sample(heads.Categorical(3), seed=1)(logits))


@tf.function(autograph=False)
def compiled_reward(inputs, choices, targets):
    return inputs[:, 0] * tf.cast(choices, tf.float32) + targets


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(COUNT, 2)).astype("float32"), np.arange(COUNT) % 3.0


def train_model(case, reward, **saves):
    names = "samples", "baseline", "entropy_coef", "estimator"
    options = {name: case[name] for name in names}
    model = tfr.ScoreFunction(policy(), reward=reward, **options)
    model.compile(keras.optimizers.SGD(RATE), **saves)
    options = {"sample_weight": case["sample_weight"], "shuffle": False, "verbose": 0}
    model.fit(*data(), batch_size=4, epochs=2, **options)
    return model.model.get_weights()


def excluded(case):
    return case["jit_compile"] and case["run_eagerly"]  # Keras refuses both


CASES = pairwise.covering({**SAVES, **CHANGES}, excluded)
TOGETHER = {name: values[0] for name, values in CHANGES.items()}
TOGETHER |= {"steps_per_execution": 2, "run_eagerly": False, "jit_compile": False}


def compare(case):
    saves = {name: case[name] for name in SAVES}
    expected = train_model(case, compiled_reward, run_eagerly=True)
    for x, y in zip(train_model(case, compiled_reward, **saves), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    start = policy().get_weights()
    assert max(np.abs(x - y).max() for x, y in zip(expected, start)) > 0.05


def test_sampling_model_with_all_options_trains_the_weights_of_eager_steps():
    compare(TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_sampling_model_with_every_pair_of_options_equals_eager_steps(case):
    compare(case)
