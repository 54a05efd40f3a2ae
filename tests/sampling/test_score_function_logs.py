"""Recomputes every log key of `ScoreFunction` in float64, from recorded samples.

Batches have different sizes, so that the mean of an epoch must weight each batch with its
number of examples.
"""

import keras
import numpy as np
import pytest
import sweeps

import tf_reinforce as tfr
from tf_reinforce import heads

SIZES = [4, 4, 2]  # the batches of ten examples
COUNT, NAMES = sum(SIZES), ("policy_value", "effective_sample_size", "entropy")


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


class Network:
    """Two samples, of which the second depends on the first, and a regularizer."""

    def __init__(self, dtype="float64"):
        options = dict(kernel_regularizer=keras.regularizers.L2(0.3), dtype=dtype)
        inputs = keras.Input((2,), dtype=dtype)
        self.first, self.second = (keras.layers.Dense(n, **options) for n in (3, 2))
        choice = self.sample(heads.Categorical(3), dtype)(self.first(inputs))
        one_hot = keras.ops.one_hot(choice, 3, dtype=dtype)
        logits = self.second(keras.ops.concatenate([inputs, one_hot], axis=1))
        bits = self.sample(heads.Bernoulli(2), dtype)(logits)
        self.model = keras.Model(inputs, {"choice": choice, "bits": bits})
        for number, weight in enumerate(self.model.trainable_weights):
            weight.assign(2 * numbers(*weight.shape, seed=number))

    @staticmethod
    def sample(head, dtype):
        head = type(head).from_config({**head.get_config(), "dtype": dtype})
        return tfr.layers.Sample(head, seed=1, dtype=dtype)

    def penalty(self, weights):
        return 0.3 * sum((weights[i] ** 2).sum() for i in (0, 2))

    def entropies(self, weights, inputs, choices):
        """The sum of the entropies of both samples, `[R]`, in nats."""
        probs = softmax(inputs @ weights[0] + weights[1])
        logits = np.concatenate([inputs, np.eye(3)[choices]], 1) @ weights[2] + weights[3]
        bits = 1 / (1 + np.exp(-logits))
        own = -(probs * np.log(probs)).sum(axis=1)
        return own - (bits * np.log(bits) + (1 - bits) * np.log(1 - bits)).sum(axis=1)

    def modes(self, weights, inputs):
        choices = (inputs @ weights[0] + weights[1]).argmax(axis=1)
        logits = np.concatenate([inputs, np.eye(3)[choices]], 1) @ weights[2] + weights[3]
        return choices, (logits > 0).astype(float)


class Weights(keras.callbacks.Callback):
    """Records the weights before each step, and after the training."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_begin(self, batch, logs=None):
        self.steps.append(self.model.model.get_weights())


def mean_of_epoch(rows):
    """The mean over the rows of all batches of an epoch, in float64."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in rows]).mean()


def assert_logs(logs, expected, **tolerance):
    """Compares all logs; fails for a log key that is not recomputed."""
    assert set(logs) == set(expected)
    for name, value in expected.items():
        assert logs[name] == pytest.approx(value, **tolerance), name


# A large constant, and small differences between the rewards, need sums in float64.
LARGE = 2.0**30


@pytest.mark.parametrize("samples, constant", [sweeps.rare(1, 0.0), (3, LARGE)])
def test_logs_of_rewards_and_weights_of_examples(samples, constant):
    network, recorded = Network(), []
    targets, weights = numbers(COUNT, seed=5), 1.0 + np.arange(COUNT)

    def reward(inputs, outputs, targets):
        values = constant + targets * outputs["choice"] + outputs["bits"].sum(axis=1)
        recorded.append((inputs, outputs["choice"], targets, values))
        return values

    model = tfr.ScoreFunction(network.model, reward=reward, samples=samples)
    model.compile(keras.optimizers.SGD(1e-11), run_eagerly=not constant)
    steps = Weights()
    data = numbers(COUNT, 2), targets, weights
    options = dict(batch_size=4, epochs=2, shuffle=False, callbacks=[steps], verbose=0)
    options |= dict(sample_weight=weights, validation_data=data)
    history = model.fit(*data[:2], **options).history
    example_weights = np.split(
        np.repeat(weights, samples), np.cumsum(SIZES)[:2] * samples
    )
    for epoch in range(2):
        calls = recorded[6 * epoch : 6 * epoch + 3]  # then three of the validation
        before = steps.steps[3 * epoch : 3 * epoch + 3]
        losses = [
            network.penalty(w) - example * x[3]
            for w, x, example in zip(before, calls, example_weights, strict=True)
        ]
        entropies = [network.entropies(w, *x[:2]) for w, x in zip(before, calls)]
        after = steps.steps[3] if epoch == 0 else model.model.get_weights()
        choices, bits = network.modes(after, data[0])
        greedy = constant + targets * choices + bits.sum(axis=1)
        expected = {
            "reward": mean_of_epoch(x[3] for x in calls),
            "loss": mean_of_epoch(losses),
            "entropy": mean_of_epoch(entropies),
            "val_reward": greedy.mean(),
            "val_loss": network.penalty(after) - (weights * greedy).mean(),
        }
        logs = {name: values[epoch] for name, values in history.items()}
        assert_logs(logs, expected, rel=1e-6)
        assert logs["reward"] == pytest.approx(expected["reward"], abs=1e-5)
        assert logs["val_reward"] == pytest.approx(expected["val_reward"], abs=1e-5)
    options = dict(batch_size=4, sample_weight=weights, verbose=0, return_dict=True)
    logs = model.evaluate(*data[:2], **options)
    expected = {name: expected[f"val_{name}"] for name in ("reward", "loss")}
    assert_logs(logs, expected, rel=1e-6)


def policy(dtype="float64", size=2):
    inputs = keras.Input((size,), dtype=dtype)
    logits = keras.layers.Dense(3, dtype=dtype)(inputs)
    head = heads.Categorical(3, dtype=dtype)
    model = keras.Model(inputs, tfr.layers.Sample(head, dtype=dtype)(logits))
    for number, weight in enumerate(model.trainable_weights):
        weight.assign(numbers(*weight.shape, seed=number))
    return model


def decisions(count, seed=0):
    rng = np.random.default_rng(seed)
    actions = rng.integers(3, size=count)
    return numbers(count, 2), actions, rng.normal(size=count), rng.uniform(0.05, 1, count)


PREDICTIONS = numbers(2, 3, seed=8)


def reward_model():
    dense = keras.layers.Dense(3, use_bias=False, dtype="float64")
    model = keras.Sequential([keras.Input((2,), dtype="float64"), dense])
    model.set_weights([PREDICTIONS])
    return model


def terms_by_hand(weights, log, estimator, clip):
    """The terms of an estimate, `[N]`, the importance weights, entropies and gradients.

    The gradients `[N, 3]` of the estimate are those for the logits of each decision.
    """
    contexts, actions, rewards, propensities = log
    probs, rows = softmax(contexts @ weights[0] + weights[1]), np.arange(len(actions))
    ratios = np.minimum(probs[rows, actions] / propensities, clip or np.inf)
    entropies = -(probs * np.log(probs)).sum(axis=1)
    eligibilities = ratios[:, None] * (np.eye(3)[actions] - probs)
    if estimator == "ips":
        gradients = eligibilities * rewards[:, None]
        return ratios * rewards, ratios, entropies, gradients
    if estimator == "snips":
        value = (ratios * rewards).sum() / ratios.sum()
        errors = (rewards - value) / ratios.mean()
        return value + ratios * errors, ratios, entropies, eligibilities * errors[:, None]
    predictions = contexts @ PREDICTIONS
    by_policy = (probs * predictions).sum(axis=1)
    errors = rewards - predictions[rows, actions]
    gradients = probs * (predictions - by_policy[:, None])
    gradients += eligibilities * errors[:, None]
    return by_policy + ratios * errors, ratios, entropies, gradients


def effective_share(ratios):
    return ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())


ESTIMATORS = [("ips", None), ("ips", 0.9), ("snips", None), ("dr", 1.5)]


@pytest.mark.parametrize("estimator, clip", ESTIMATORS)
def test_steps_and_logs_of_logged_training(estimator, clip):
    """A batch counts with its number of decisions, also for the effective sample size."""
    model, log, steps = tfr.ScoreFunction(policy()), decisions(COUNT), Weights()
    model.model.layers[1].kernel.regularizer = keras.regularizers.L2(0.3)
    optimizer = keras.optimizers.SGD(0.125)
    if clip:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, 2.0**6)
    model.compile(optimizer, run_eagerly=True)
    options = dict(estimator=estimator, clip=clip)
    if estimator == "dr":
        options["reward_model"] = reward_model()
    arguments = dict(batch_size=4, epochs=2, shuffle=False, callbacks=[steps], verbose=0)
    history = model.fit_logged(*log, **options, **arguments).history
    parts = list(zip(*(np.split(x, np.cumsum(SIZES)[:2]) for x in log)))
    values, ratios, entropies, gradients = zip(
        *(terms_by_hand(*x, estimator, clip) for x in zip(steps.steps, 2 * parts))
    )
    for epoch in range(2):
        three = slice(3 * epoch, 3 * epoch + 3)
        shares = [effective_share(x) for x in ratios[three]]
        expected = {
            "policy_value": mean_of_epoch(values[three]),
            "effective_sample_size": np.average(shares, weights=SIZES),
            "entropy": mean_of_epoch(entropies[three]),
        }
        logs = {name: values[epoch] for name, values in history.items()}
        assert_logs(logs, expected, rel=1e-6)
    after = [*steps.steps[1:], model.model.get_weights()]
    for (kernel, bias), part, of_logits, found in zip(
        steps.steps, 2 * parts, gradients, after, strict=True
    ):
        ascent = part[0].T @ of_logits / len(of_logits) - 2 * 0.3 * kernel
        np.testing.assert_allclose(found[0], kernel + 0.125 * ascent, rtol=1e-6)
        np.testing.assert_allclose(found[1], bias + 0.125 * of_logits.mean(axis=0), 1e-6)


@pytest.mark.parametrize(
    "estimator, clip, shift",
    [*((*x, 0.0) for x in ESTIMATORS), ("ips", None, LARGE), ("snips", None, LARGE)],
)
def test_logs_of_logged_evaluation(estimator, clip, shift):
    """More decisions than the evaluation computes at once, and large rewards."""
    confidence, quantile = (
        (0.5, 0.6744897501960817) if shift else (0.95, 1.959963984540054)
    )
    model, log = tfr.ScoreFunction(policy()), list(decisions(1100))
    log[2] = log[2] + shift
    options = dict(estimator=estimator, clip=clip, confidence=confidence)
    if estimator == "dr":
        options["reward_model"] = reward_model()
    logs = model.evaluate_logged(*log, **options)
    values, ratios, *_ = terms_by_hand(model.model.get_weights(), log, estimator, clip)
    radius = quantile * values.std(ddof=1) / np.sqrt(1100)
    expected = {
        "policy_value": values.mean(),
        "policy_value_lower": values.mean() - radius,
        "policy_value_upper": values.mean() + radius,
        "effective_sample_size": effective_share(ratios),
    }
    assert_logs(logs, expected, rel=1e-10)


def test_effective_sample_size_of_extreme_weights():
    """Importance weights of 1e25, whose squares are infinite in float32."""
    model, log = tfr.ScoreFunction(policy("float32")), list(decisions(COUNT))
    log[3] = log[3] * 1e-25
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    ratios = terms_by_hand(model.model.get_weights(), log, "ips", None)[1]
    logs = model.evaluate_logged(*log)
    assert logs["effective_sample_size"] == pytest.approx(effective_share(ratios), 1e-5)
    log[2] = log[2] * 1e-25
    trained = model.fit_logged(*log, batch_size=COUNT, shuffle=False, verbose=0).history
    (share,) = trained["effective_sample_size"]
    assert share == pytest.approx(effective_share(ratios), 1e-5)
