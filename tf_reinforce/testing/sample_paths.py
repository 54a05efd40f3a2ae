"""Checks the expected gradient of a `ScoreFunction` against the gradient of its loss."""

import itertools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.functional import losses
from tf_reinforce.sampling import estimator as estimators
from tf_reinforce.sampling import model as score_functions
from tf_reinforce.sampling import recording
from tf_reinforce.support import validation
from tf_reinforce.testing import enumeration
from tf_reinforce.testing import gradients as reports

_MAX_PATHS, _MAX_BATCHES = 4096, 20_000


def check_score_function(
    score_function: score_functions.ScoreFunction,
    inputs: Any,
    targets: Any = None,
    sample_weight: Any = None,
    *,
    tolerance: float | None = 1e-9,
) -> reports.GradientReport:
    """Checks that the expected gradient is the gradient of the expected loss.

        E[g] = ∇ 1/N Σₙ Σ_z p(z|xₙ) L(xₙ, z)

    In the equation, g is the gradient that `ScoreFunction.gradients` returns for a batch
    of N examples xₙ, and z are all samples that the model draws for an example. The
    expectation is a sum over all samples of all rows of the batch, weighted by their
    probabilities. The right side is differentiated without the log-derivative trick. No
    sample is drawn, so that a difference is a bias or a rounding error.

    Args:
        score_function: `tfr.ScoreFunction`, whose `Sample` layers have heads with integer
            actions. Model and heads should be float64, for example after
            `keras.config.set_floatx("float64")`. The model must not contain other random
            layers, for example dropout.
        inputs, targets, sample_weight: A batch of N examples, as in `fit`.
        tolerance: Float, the largest accepted difference between an entry of both
            gradients. `tolerance=None` accepts any difference.

    Returns:
        `GradientReport`, whose `trajectories` is the number of different samples of one
        example, and `batches` the number of enumerated batches.

    Raises:
        AssertionError: If the difference of both gradients exceeds the tolerance, or if
            the probabilities of all samples of an example do not sum to one.
        ValueError: If the samples cannot be enumerated.
    """
    validation.instance("score_function", score_function, score_functions.ScoreFunction)
    batch = keras.tree.map_structure(
        lambda x: None if x is None else tf.convert_to_tensor(x),
        (inputs, targets, sample_weight),
    )
    return _SamplePaths(score_function, batch).check(tolerance)


class _SamplePaths:
    """Enumerates all samples that a model can draw for the examples of a batch.

    A path is one combination of the samples of all `Sample` layers for one example.
    """

    def __init__(self, score_function, batch):
        self.score_function = score_function
        self.estimator = score_function.estimator
        self.batch = batch
        self.num_examples = len(keras.tree.flatten(batch[0])[0])
        with recording.recording() as recorder:
            score_function.model(batch[0], training=True)
        self.variables = score_function.model.trainable_variables
        self.paths, self.tables = self._tables(recorder.samples)
        self.is_path = self._is_path(recorder.samples)

    @property
    def num_paths(self):
        """Returns the number of paths, for examples without padding."""
        return len(self.paths)

    def _tables(self, samples):
        """Returns all paths, `[paths, all samples]`, and the actions of each call.

        The actions of a call are `[paths, M, …]`, or nested arrays.
        """
        options, sizes = [], []
        for sample in samples:
            head = sample.layer.head
            if not enumeration.is_integer(head):
                raise ValueError(
                    "Only samples of heads with integer actions can be enumerated. "
                    f"Received: the layer {sample.layer.name!r} with the head {head!r}"
                )
            actions = enumeration.raw_actions(head)
            rows = enumeration.count(sample.actions) // self.num_examples
            options += [range(enumeration.count(actions))] * rows
            sizes.append((actions, rows))
        count = math.prod(map(len, options))
        if count > _MAX_PATHS:
            raise ValueError(
                f"At most {_MAX_PATHS} different samples of an example are enumerated. "
                f"Received: a model with {count}. Use fewer samples or smaller heads."
            )
        paths = np.array(list(itertools.product(*options)))
        tables, begin = [], 0
        for actions, rows in sizes:
            tables.append(enumeration.select(actions, paths[:, begin : begin + rows]))
            begin += rows
        return paths, tables

    def _is_path(self, samples):
        """Returns `[N, paths]` bool, False for paths that differ only in padding."""
        valid = []
        for sample in samples:
            rows = enumeration.count(sample.actions) // self.num_examples
            ones = np.ones([self.num_examples, rows], bool)
            valid.append(ones if sample.valid is None else sample.valid.numpy())
        return (np.concatenate(valid, axis=1)[:, None] | (self.paths == 0)).all(axis=2)

    def replayed(self, paths):
        """Returns the actions of all calls for R rows, given the path of each row."""

        def actions_of(table):
            return np.reshape(table[paths], (-1, *table.shape[2:]))

        return keras.tree.map_structure(actions_of, self.tables)

    def exact(self):
        """Returns the gradient of the expected loss, and the probability of each path."""
        paths = np.tile(np.arange(self.num_paths), self.num_examples)
        rows = keras.tree.map_structure(
            lambda x: None if x is None else tf.repeat(x, self.num_paths, axis=0),
            self.batch,
        )
        model, estimator = self.score_function.model, self.estimator
        with tf.GradientTape() as tape:
            with recording.recording(self.replayed(paths)) as recorder:
                outputs = model(rows[0], training=True)
            probs = tf.exp(recorder.log_probs) * self.is_path.ravel()
            costs = estimator.costs(estimators.Rows(*rows), outputs)[0]
            costs = tf.cast(costs, probs.dtype)
            loss = tf.reduce_sum(probs * costs) / self.num_examples
            loss += self._expected_penalties(rows[0], paths, probs)
        gradient = _flat(losses.gradients(tape, loss, self.variables))
        return gradient, probs.numpy().reshape(self.num_examples, self.num_paths)

    def _expected_penalties(self, inputs, paths, probs):
        """Returns the expectation of the model's own losses, which may depend on samples.

        The losses are those of a batch, and are therefore computed for one row at a time.
        """
        model = self.score_function.model
        if not model.losses:
            return tf.zeros([], probs.dtype)
        total = tf.zeros([], probs.dtype)
        for row, path in enumerate(paths):
            one = keras.tree.map_structure(lambda x: x[row : row + 1], inputs)  # noqa: B023
            with recording.recording(self.replayed(np.array([path]))):
                model(one, training=True)
            total += probs[row] * self.estimator.penalties(probs.dtype)
        return total / self.num_examples

    def expected(self, probs):
        """Returns the expected gradient, and the number of batches."""
        samples = self.score_function.samples
        possible = [np.flatnonzero(row).tolist() for row in probs for _ in range(samples)]
        count = math.prod(map(len, possible))
        if count > _MAX_BATCHES:
            raise ValueError(
                f"At most {_MAX_BATCHES} batches of samples are enumerated. Received: "
                f"{count} batches. Use fewer examples or a smaller model."
            )
        rows = self.estimator.repeat(*self.batch)
        examples = np.repeat(np.arange(self.num_examples), samples)

        @tf.function(autograph=False)
        def gradients(replayed):
            return self.estimator.gradients(rows, replayed).gradients

        total = np.zeros(1)
        for paths in itertools.product(*possible):
            likelihood = math.prod(probs[examples, paths])
            replayed = self.replayed(np.array(paths))
            replayed = keras.tree.map_structure(tf.constant, replayed)
            total = total + likelihood * _flat(gradients(replayed))
        return total, count

    def check(self, tolerance):
        """Returns the `GradientReport`; raises an error if its `error` is too large."""
        exact, probs = self.exact()
        sums = probs.sum(axis=1)
        if not np.abs(sums - 1).max() < 1e-9:
            raise AssertionError(
                "The probabilities of all samples of an example must sum to 1. Received: "
                f"{sums.tolist()}. Check the log_prob of the heads, and whether the "
                "model is float64 and has no random layers besides `Sample`."
            )
        expected, batches = self.expected(probs)
        report = reports.GradientReport.of(
            expected, exact, trajectories=self.num_paths, batches=batches
        )
        hint = (
            "Check whether the baseline depends on the sample whose loss it is "
            "subtracted from."
        )
        return report.validated(tolerance, "the expected loss", hint)


def _flat(values):
    return np.concatenate([np.ravel(value) for value in values]).astype("float64")
