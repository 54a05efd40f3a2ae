"""The rows of a batch if `Sample` layers draw several samples for each example.

Each of N examples fills T = C₁ ··· C_L rows, a nest with an axis for each layer, in the
order of their calls. Rows that agree in the axes before a layer's axis are a group, for
which the layer draws C samples. So a layer draws for each sample of the layers before.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_reinforce.sampling import estimators


class Call(NamedTuple):
    """The call of one layer for G groups."""

    name: str
    estimator: estimators.Estimator
    parameters: tf.Tensor  # [G, M, K] float
    entropies: tf.Tensor  # [G] float, in nats
    samples: estimators.Samples
    passed: tf.Tensor  # [G, C, M, K] float, what the model receives


class NestedRows:
    """Gives `Sample` layers their samples, and makes a surrogate from the costs of rows.

    Args:
        layers: List of all `Sample` layers of a model.
        default: `Estimator` of layers without one of their own.
        tape: Persistent `tf.GradientTape` around the call of the model.
        noise: Function that replaces `uniform_noise` of all layers, or `None`.

    Attributes:
        size: Int, T.
    """

    def __init__(self, layers, default, tape, noise=None):
        self.size = 1
        self._waiting = {}
        for layer in layers:
            estimator = (layer.estimator or default).for_head(layer.head)
            self._waiting[layer.name] = estimator
            self.size *= layer.copies(estimator)
        self.calls, self._tape, self._noise = [], tape, noise
        self._after = self.size  # rows of a group
        self._is_relaxed = [False]  # of the groups of one example

    def estimator_of(self, layer):
        """Returns the estimator of a layer, once."""
        estimator = self._waiting.pop(layer.name, None)
        if estimator is None:
            raise ValueError(
                "With an estimator other than 'score_function', a `Sample` layer must be "
                f"called once. Received: another call of {layer.name!r}. Use one layer "
                "for each call."
            )
        return estimator

    def draw(self, layer, estimator, rows, entropies):
        """Returns the samples of a layer, `[R, M, K]`.

        Args:
            layer: `Sample` layer.
            estimator: Its `Estimator`.
            rows: `[R, M, K]` float, the parameters.
            entropies: `[R]` float, in nats.
        """
        sites, size = rows.shape[1:]
        blocks = tf.reshape(rows, [-1, self._after, sites, size])
        groups = blocks[:, 0]
        if self._after > 1:
            tf.debugging.assert_near(
                blocks,
                tf.broadcast_to(groups[:, None], tf.shape(blocks)),
                rtol=1e-3,
                atol=1e-3,
                message=f"The rows of an example must agree before {layer.name!r}. "
                "Remove random layers, such as Dropout, before it, or take "
                "estimator='score_function'",
            )
        count = groups.shape[0] or tf.shape(groups)[0]
        noise = (self._noise or layer.uniform_noise)(count, groups.dtype)
        samples = estimator.draw(groups, estimators.Noise(noise))
        passed = samples.vectors
        if not samples.passes:
            passed = tf.stop_gradient(passed)
        if any(self._is_relaxed):
            if not layer.one_hot and estimator.family == "categories":
                raise ValueError(
                    f"{layer.name!r} follows a relaxed sample, but returns integers. "
                    "Pass Sample(head, one_hot=True), or another estimator to the layer "
                    "before, such as 'disarm'."
                )
            repeats = tf.shape(groups)[0] // len(self._is_relaxed)
            is_relaxed = tf.tile(self._is_relaxed, [repeats])[:, None, None, None]
            passed = tf.where(is_relaxed, estimator.mean(groups)[:, None], passed)
        self._tape.watch(passed)
        entropies = entropies[:: self._after]
        call = Call(layer.name, estimator, groups, entropies, samples, passed)
        self.calls.append(call)
        count = passed.shape[1]
        self._after //= count
        here = [i >= count - samples.relaxed for i in range(count)]
        self._is_relaxed = [x or y for x in self._is_relaxed for y in here]
        rows = tf.repeat(passed, self._after, axis=1)
        return tf.reshape(rows, [-1, sites, passed.shape[-1]])

    def surrogate(self, costs, baseline):
        """Returns what the rows say about the expected cost.

        Args:
            costs: `[R]` float.
            baseline: Function of estimated costs of the examples, `[N]`, that returns
                what to subtract from them.

        Returns:
            The sum over examples of the layers' surrogates, scalar; the estimated costs,
            `[N]`; the entropies, `[N]`; and the weight of each row in the costs, `[R]`.
        """
        if self._waiting:
            raise ValueError(
                "The model must call each `Sample` layer with `training=True`, and "
                f"outside of `tf.function`. Received: {sorted(self._waiting)} not called"
            )
        values, columns = tf.stop_gradient(costs), []
        for call in reversed(self.calls):
            columns.append(tf.reshape(values, [-1, call.passed.shape[1]]))
            values = tf.reduce_sum(call.samples.weights * columns[-1], axis=1)
        level, weights = tf.stop_gradient(baseline(values)), tf.ones_like(values)
        total, entropies = tf.zeros([], values.dtype), tf.zeros_like(values)
        for call, column in zip(self.calls, reversed(columns), strict=True):
            repeats = tf.size(weights) // tf.size(level)
            column -= tf.repeat(level, repeats)[:, None]
            samples = call.samples._replace(
                costs=column, slopes=self._slopes(call, costs)
            )
            each = call.estimator.surrogate(call.parameters, samples)
            total += tf.reduce_sum(weights * each)
            each = weights * call.entropies
            entropies += tf.reduce_sum(tf.reshape(each, [-1, repeats]), axis=1)
            weights = tf.reshape(weights[:, None] * call.samples.weights, [-1])
        return total, values, entropies, weights

    def _slopes(self, call, costs):
        """Returns the slope of the costs in the samples of a call, or `None`."""
        if not call.estimator.needs_slopes:
            return None
        with self._tape.stop_recording():
            slopes = self._tape.gradient(costs, call.passed)
        if slopes is None:
            raise ValueError(
                f"The estimator {type(call.estimator).__name__} of {call.name!r} needs a "
                "loss that is differentiable in the samples. Received: one without a "
                "gradient. Pass Sample(head, one_hot=True) and `loss`, not `reward`; or "
                "take an estimator that needs no gradient, such as 'disarm'."
            )
        copies = tf.size(costs) // (tf.shape(slopes)[0] * slopes.shape[1])
        return slopes / tf.cast(copies, slopes.dtype)
