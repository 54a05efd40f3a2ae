"""Checks gradients of a `ScoreFunction`, from its samples and from logged decisions."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.functional import losses
from tf_reinforce.sampling import logged_actions
from tf_reinforce.sampling import model as score_functions
from tf_reinforce.sampling import sample as samples
from tf_reinforce.support import validation
from tf_reinforce.testing import enumeration
from tf_reinforce.testing import expectations


def check_score_function(
    score_function: score_functions.ScoreFunction,
    inputs: Any,
    targets: Any = None,
    sample_weight: Any = None,
    *,
    tolerance: float | None = 1e-9,
) -> expectations.GradientReport:
    """Checks that the expected gradient is the gradient of the expected loss.

        E[g] = ∇ 1/N Σₙ Σ_z p(z|xₙ) L(xₙ, z)

    In this equation, g is the gradient that `ScoreFunction.gradients` returns for a batch
    of N examples xₙ, and z runs over everything that the model can sample for an example.
    To compute the left side, the gradients for all combinations of samples are averaged
    with their probabilities. The right side is differentiated without the log-derivative
    trick. Because nothing is drawn at random, any difference between the two sides is a
    bias or a rounding error.

    Args:
        score_function: `tfr.ScoreFunction` whose `Sample` layers have heads with integer
            actions. Model and heads should be float64, for example after
            `keras.config.set_dtype_policy("float64")`. The model must not contain other
            random layers, such as dropout.
        inputs, targets, sample_weight: A batch of N examples, as in `fit`.
        tolerance: Float, the largest accepted difference between entries of the two
            gradients, or `None` to accept any.

    Returns:
        `GradientReport`. Its `trajectories` counts the different samples for one example.

    Raises:
        AssertionError: If the difference exceeds the tolerance, or the probabilities of
            an example's samples do not sum to one.
        ValueError: If the samples cannot be enumerated.
    """
    validation.instance("score_function", score_function, score_functions.ScoreFunction)
    batch = keras.tree.map_structure(
        lambda x: None if x is None else tf.convert_to_tensor(x),
        (inputs, targets, sample_weight),
    )
    paths = _SamplePaths(score_function, batch)
    exact, probs = paths.exact()

    def gradient(replayed):
        return score_function.gradients(*batch, replayed).gradients

    if score_function.is_nested:
        found = expected_over_noise(gradient)
        results = found, exact, paths.is_path.shape[1]
        return expectations.compare(*results, tolerance, "the expected loss")

    compiled = tf.function(gradient, autograph=False)
    probs = np.repeat(probs, score_function.samples, axis=0)
    found = expectations.expected(probs, lambda x: compiled(paths.replayed(x)))
    results = found, exact, paths.is_path.shape[1]
    return expectations.compare(*results, tolerance, "the expected loss")


class _SamplePaths:
    """Enumerates everything that a model can sample for the examples in a batch.

    A path is one combination of what all `Sample` layers draw for an example.
    """

    def __init__(self, score_function, batch):
        self.model, self.batch = score_function.model, batch
        self.score_function = score_function
        self.num_examples = len(keras.tree.flatten(batch[0])[0])
        with samples.recording() as recorder:
            self.model(batch[0], training=True)
        choices, calls, valid = [], [], []
        for sample in recorder.samples:
            actions = enumeration.raw_actions(sample.layer.head)
            rows = enumeration.count(sample.actions) // self.num_examples
            calls.append((actions, slice(len(choices), len(choices) + rows)))
            choices += [range(enumeration.count(actions))] * rows
            every = np.ones([self.num_examples, rows], bool)
            valid.append(every if sample.valid is None else sample.valid.numpy())
        paths = np.array([path for _, path in expectations.batches(choices)])
        self.tables = [enumeration.select(x, paths[:, place]) for x, place in calls]
        # Paths that differ only in padding are equal; the first of them counts.
        self.is_path = (np.concatenate(valid, axis=1)[:, None] | (paths == 0)).all(axis=2)

    def replayed(self, paths):
        """Returns the actions of all calls for R rows, given each row's path."""
        return keras.tree.map_structure(
            lambda table: tf.constant(np.reshape(table[paths], (-1, *table.shape[2:]))),
            self.tables,
        )

    def exact(self):
        """Returns the gradient of the expected loss, and each path's probability."""
        num_paths = self.is_path.shape[1]
        paths = np.tile(np.arange(num_paths), self.num_examples)
        rows = keras.tree.map_structure(
            lambda x: None if x is None else tf.repeat(x, num_paths, axis=0), self.batch
        )
        with tf.GradientTape() as tape:
            with samples.recording(self.replayed(paths)) as recorder:
                outputs = self.model(rows[0], training=True)
            probs = tf.exp(recorder.sums()[0]) * self.is_path.ravel()
            costs = self.score_function.costs(score_functions.Rows(*rows), outputs)[0]
            loss = tf.reduce_sum(probs * tf.cast(costs, probs.dtype))
            # The model's own losses may depend on samples, and are those of a batch.
            for row, path in enumerate(paths if self.model.losses else ()):
                one = keras.tree.map_structure(lambda x: x[row : row + 1], rows[0])  # noqa: B023
                with samples.recording(self.replayed(np.array([path]))):
                    self.model(one, training=True)
                loss += probs[row] * self.score_function.penalties(probs.dtype)
            loss /= self.num_examples
        gradient = losses.gradients(tape, loss, self.model.trainable_variables)
        probs = probs.numpy().reshape(self.num_examples, num_paths)
        return expectations.flat(gradient), probs


# Nodes and weights on [0, 1]: of a constant, of a line (Gauss), and of a function that is
# smooth except at the ends (tanh-sinh).
_MAX_NODES, _CHUNK = 100_000_000, 65_536
_STEP = np.array([0.5]), np.array([1.0])
_LINE = np.array([0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5]), np.array([0.5, 0.5])


def _tanh_sinh(step=0.1, count=36):
    t = step * np.arange(-count, count + 1)
    nodes = 0.5 + 0.5 * np.tanh(np.pi / 2 * np.sinh(t))
    weights = np.cosh(t) / np.cosh(np.pi / 2 * np.sinh(t)) ** 2
    is_inside = (nodes > 1e-280) & (nodes < 1.0)
    return nodes[is_inside], weights[is_inside] / weights[is_inside].sum()


_SMOOTH = _tanh_sinh()


class _NoiseNodes:
    """Replaces the noise of estimators by the nodes of a quadrature.

    Args:
        choices: `[D]` int, the index of a node for each of D numbers; or `None`.

    Attributes:
        sizes: List of D ints, how many nodes each number has.
        weights: List of scalars, whose product is the weight of the nodes.
    """

    def __init__(self, choices=None):
        self.choices, self.sizes, self.weights = choices, [], [tf.ones([], tf.float64)]

    def __call__(self, count, dtype):
        def draw(shape, cuts, is_step):
            nodes, weights = _STEP if is_step else _SMOOTH if cuts is None else _LINE
            begin, size = len(self.sizes), count * math.prod(shape)
            cells = 1 if cuts is None else cuts.shape[-1] + 1
            self.sizes += [cells * len(nodes)] * size
            if self.choices is None:
                return tf.fill([count, *shape], tf.constant(0.5, dtype))
            chosen = self.choices[begin : begin + size]
            cell, node = chosen // len(nodes), chosen % len(nodes)
            edges = tf.zeros([size, 0], dtype)
            if cuts is not None:
                edges = tf.reshape(cuts, [size, cells - 1])
            edges = tf.concat([tf.zeros([size, 1], dtype), edges], axis=1)
            edges = tf.concat([edges, tf.ones([size, 1], dtype)], axis=1)
            low, high = (tf.gather(edges, cell + i, batch_dims=1) for i in (0, 1))
            each = (high - low) * tf.gather(tf.cast(weights, dtype), node)
            self.weights.append(tf.cast(tf.reduce_prod(each), tf.float64))
            numbers = low + (high - low) * tf.gather(tf.cast(nodes, dtype), node)
            largest = 1.0 - np.finfo(tf.as_dtype(dtype).as_numpy_dtype).epsneg
            return tf.reshape(tf.minimum(numbers, largest), [count, *shape])

        return draw


def expected_over_noise(
    function: Callable[[Callable], list[tf.Tensor]],
) -> tuple[np.ndarray, int]:
    """Returns the expectation of a function over all noise, and the number of nodes.

    Args:
        function: Function of what replaces `Sample.uniform_noise`, which returns tensors.
            The nodes are rows of one vectorized call.
    """
    first = _NoiseNodes()
    function(first)
    count = math.prod(first.sizes)
    if count > _MAX_NODES:
        raise ValueError(
            f"Noise is integrated with at most {_MAX_NODES} nodes. Received: {count}, "
            f"of {len(first.sizes)} random numbers. Use one example, or a smaller model "
            "of the same kind."
        )

    def weighted(choices):
        noise = _NoiseNodes(choices)
        values = function(noise)
        weight = tf.reduce_prod(noise.weights)
        return [weight * tf.cast(x, weight.dtype) for x in (1.0, *values)]

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def total(choices):
        choices = tf.ensure_shape(choices, [None, len(first.sizes)])
        rows = tf.vectorized_map(weighted, choices)
        return [tf.reduce_sum(x, axis=0) for x in rows]

    mass_and_values = np.zeros(1)
    for begin in range(0, count, _CHUNK):
        nodes = np.arange(begin, min(begin + _CHUNK, count))
        choices = np.zeros([len(nodes), 0], "int64")
        if first.sizes:
            choices = np.stack(np.unravel_index(nodes, first.sizes), axis=1)
        mass_and_values = mass_and_values + expectations.flat(total(choices))
    mass, values = mass_and_values[0], mass_and_values[1:]
    if abs(mass - 1.0) > 1e-9:
        raise AssertionError(f"The weights of the noise must sum to 1. Received: {mass}")
    return values, count


def check_logged_gradient(
    score_function: score_functions.ScoreFunction,
    contexts: Any,
    rewards: np.ndarray,
    propensities: np.ndarray,
    *,
    estimator: str = "ips",
    clip: float | None = None,
    top_k: int | None = None,
    reward_model: keras.Model | None = None,
    tolerance: float | None = 1e-9,
) -> expectations.GradientReport:
    """Checks that a log's expected gradient is the gradient of the policy's value.

        E[g] = ∇ 1/N Σₙ Σₐ π(a|xₙ) r(xₙ, a)

    In this equation, g is the gradient with which `ScoreFunction.fit_logged` trains on a
    log with one decision for each of N contexts. The expectation on the left covers every
    log that the logging policy can write. With `top_k=K`, the right side contains α(a|x)
    = 1 - (1 - π(a|x))ᴷ in place of π(a|x).

    Args:
        score_function: `tfr.ScoreFunction` whose model is float64 and has one `Sample`
            layer with the head `Categorical(K)`.
        contexts: `[N, …]` inputs of the model.
        rewards: `[N, K]` floats, the rewards of all actions.
        propensities: `[N, K]` floats, the probabilities of all actions under the logging
            policy. Each row sums to one. Actions with probability zero are never logged.
        estimator, clip, top_k, reward_model: As in `ScoreFunction.fit_logged`.
        tolerance: Float, the largest accepted difference between entries of the two
            gradients, or `None` to accept any.

    Returns:
        `GradientReport`. Its `trajectories` is K, and its `batches` counts the logs.

    Raises:
        AssertionError: If the difference exceeds the tolerance.
        ValueError: If the logs cannot be enumerated.
    """
    model = score_function.model
    options = logged_actions.LoggedOptions(estimator, clip, top_k, reward_model)
    rewards, propensities = (np.asarray(x, "float64") for x in (rewards, propensities))
    rows = np.arange(len(rewards))

    def gradient(actions):
        logged = contexts, actions, rewards[rows, actions], propensities[rows, actions]
        batch = logged_actions.validated(model, options, *logged)
        return [-x for x in logged_actions.estimate(model, batch, options)[0]]

    found = expectations.expected(propensities, gradient)
    exact = _exact_gradient(model, contexts, rewards, top_k or 1)
    results = found, exact, rewards.shape[1]
    return expectations.compare(*results, tolerance, "the value of the policy")


def _exact_gradient(model, contexts, rewards, k):
    """Returns the gradient of 1/N Σₙ Σₐ α(a|xₙ) r(xₙ, a) as a vector."""
    total = 0.0
    with tf.GradientTape() as tape:
        for action in range(rewards.shape[1]):
            with samples.recording([np.full(len(rewards), action)]) as recorder:
                model(contexts, training=True)
            alphas = 1.0 - (1.0 - tf.exp(recorder.sums()[0])) ** k
            total += tf.reduce_mean(alphas * rewards[:, action])
    return expectations.flat(losses.gradients(tape, total, model.trainable_variables))
