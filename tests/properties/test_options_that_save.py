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

COUNT, SIZES = 10, [4, 4, 2]
RATE = 0.5


SAVES = {
    "steps_per_execution": [1, 2],
    "run_eagerly": [False, True],
    "jit_compile": [False, True],
}
CHANGES = {
    "samples": [3, 1],
    "baseline": ["leave_one_out", "mean", None],
    "entropy_coef": [0.3, 0.0],
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
    options = {name: case[name] for name in ("samples", "baseline", "entropy_coef")}
    model = tfr.ScoreFunction(policy(), reward=reward, **options)
    model.compile(keras.optimizers.SGD(RATE), **saves)
    options = {"sample_weight": case["sample_weight"], "shuffle": False, "verbose": 0}
    model.fit(*data(), batch_size=4, epochs=2, **options)
    return model.model.get_weights()


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def baseline_by_hand(returns, baseline, samples):
    if baseline is None:
        return np.zeros(len(returns))
    if baseline == "mean":
        return np.full(len(returns), returns.mean())
    groups = returns.reshape(-1, samples if samples > 1 else len(returns))
    others = groups.sum(axis=1, keepdims=True) - groups
    return (others / (groups.shape[1] - 1)).ravel()


def step_by_hand(weights, calls, case):
    """The gradient of a softmax policy in closed form, in float64."""
    (kernel, bias), (inputs, choices, rewards, factors) = weights, calls
    probs = softmax(inputs @ kernel + bias)
    returns = factors * rewards
    advantages = returns - baseline_by_hand(returns, case["baseline"], case["samples"])
    ascent = advantages[:, None] * (np.eye(3)[choices] - probs)
    entropies = -(probs * np.log(probs)).sum(axis=1, keepdims=True)
    ascent -= case["entropy_coef"] * probs * (np.log(probs) + entropies)
    ascent = RATE * ascent / len(rewards)
    return [kernel + inputs.T @ ascent, bias + ascent.sum(axis=0)]


def trained_by_hand(case):
    """Replays the samples of a training without an option that saves time."""
    calls, repeated = [], case["samples"]

    def reward(inputs, choices, targets):
        values = inputs[:, 0].astype("float64") * choices + targets
        calls.append([inputs.astype("float64"), choices.copy(), values])
        return values

    train_model(case, reward, run_eagerly=True)
    factors = np.ones(COUNT) if case["sample_weight"] is None else case["sample_weight"]
    parts = np.split(np.repeat(factors, repeated), np.cumsum(SIZES)[:2] * repeated)
    weights = [np.array(x, np.float64) for x in policy().get_weights()]
    for number, call in enumerate(calls):
        weights = step_by_hand(weights, [*call, parts[number % 3]], case)
    assert len(calls) == 6
    return weights


def excluded(case):
    return case["jit_compile"] and case["run_eagerly"]  # Keras refuses both


CASES = pairwise.covering({**SAVES, **CHANGES}, excluded)
TOGETHER = {name: values[0] for name, values in CHANGES.items()}
TOGETHER |= {"steps_per_execution": 2, "run_eagerly": False, "jit_compile": False}


def compare(case):
    saves = {name: case[name] for name in SAVES}
    expected = trained_by_hand(case)
    for x, y in zip(train_model(case, compiled_reward, **saves), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    start = policy().get_weights()
    assert max(np.abs(x - y).max() for x, y in zip(expected, start)) > 0.05


def test_sampling_model_with_all_options_trains_the_weights_of_its_definition():
    compare(TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_sampling_model_with_every_pair_of_options_equals_its_definition(case):
    compare(case)
