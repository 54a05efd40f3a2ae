"""Checks the expected gradient of a `ScoreFunction` against the gradient of its loss."""

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
        self.num_paths = len(self.paths)  # for examples without padding
        self.is_path = self._is_path(recorder.samples)

    def _tables(self, samples):
        """Returns all paths, `[paths, all samples]`, and the actions of each call.

        The actions of a call are `[paths, M, …]`, or nested arrays.
        """
        options, calls = [], []
        for sample in samples:
            actions = enumeration.raw_actions(sample.layer.head)
            rows = enumeration.count(sample.actions) // self.num_examples
            options += [range(enumeration.count(actions))] * rows
            calls += [(actions, slice(len(options) - rows, len(options)))]
        paths = np.array(list(expectations.batches(options)))
        return paths, [enumeration.select(actions, paths[:, at]) for actions, at in calls]

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
        gradient = expectations.flat(losses.gradients(tape, loss, self.variables))
        return gradient, probs.numpy().reshape(self.num_examples, self.num_paths)

    def _expected_penalties(self, inputs, paths, probs):
        """Returns the expectation of the model's own losses, which may depend on samples.

        The losses are those of a batch, and are therefore computed for one row at a time.
        """
        model, total = self.score_function.model, tf.zeros([], probs.dtype)
        for row, path in enumerate(paths if model.losses else ()):
            one = keras.tree.map_structure(lambda x: x[row : row + 1], inputs)  # noqa: B023
            with recording.recording(self.replayed(np.array([path]))):
                model(one, training=True)
            total += probs[row] * self.estimator.penalties(probs.dtype)
        return total / self.num_examples

    def expected(self, probs):
        """Returns the expected gradient, and the number of batches."""
        samples = self.score_function.samples
        possible = [np.flatnonzero(row) for row in probs for _ in range(samples)]
        rows = self.estimator.repeat(*self.batch)
        examples = np.repeat(np.arange(self.num_examples), samples)

        @tf.function(autograph=False)
        def gradients(replayed):
            return self.estimator.gradients(rows, replayed).gradients

        total, count = np.zeros(1), 0
        for paths in expectations.batches(possible):
            replayed = self.replayed(np.array(paths))
            replayed = keras.tree.map_structure(tf.constant, replayed)
            gradient = expectations.flat(gradients(replayed))
            total = total + math.prod(probs[examples, paths]) * gradient
            count += 1
        return total, count

    def check(self, tolerance):
        """Returns the `GradientReport`; raises an error if its `error` is too large."""
        exact, probs = self.exact()
        expectations.check_probabilities(
            probs.sum(axis=1),
            "samples of an example",
            "Check the log_prob of the heads, and whether the model is float64 and has "
            "no random layers besides `Sample`.",
        )
        expected, batches = self.expected(probs)
        message = (
            "the expected loss",
            "Check whether the baseline depends on the sample whose loss it is "
            "subtracted from.",
        )
        counts = {"trajectories": self.num_paths, "batches": batches}
        return expectations.compare(expected, exact, tolerance, message, **counts)
