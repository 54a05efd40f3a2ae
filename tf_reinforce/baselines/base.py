"""The interface of a baseline, and the batch that a baseline learns from."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import validation


class BaselineBatch(NamedTuple):
    """The `N` valid steps of one update, from which a baseline learns."""

    observations: Any  # [N, …], or a structure of them, as the policy sees them
    targets: tf.Tensor  # [N] float, the returns to go, also under `returns="whole"`
    times: tf.Tensor  # [N] int32, steps since the episode began
    episodes: tf.Tensor  # scalar, how many episodes
    order: Any = None  # [N] int32, a permutation, for a baseline with minibatches

    def part(self, indices):
        """Returns the steps at `[n]` indices; their sum is weighted by N / n."""
        share = tf.size(indices) / tf.size(self.targets)

        def gather(array):
            return tf.gather(array, indices)

        return BaselineBatch(
            keras.tree.map_structure(gather, self.observations),
            gather(self.targets),
            gather(self.times),
            tf.cast(self.episodes, share.dtype) * share,
        )


class Baseline(keras.layers.Layer, abc.ABC):
    """An estimate of the return that is made without looking at the action.

    A subclass implements `estimate`. A baseline that learns makes its weights in `build`
    with `add_weight`; `gradients` returns their gradients, and `apply_gradients` changes
    them after the whole update is known to be finite. All methods are traced, so they
    must change nothing else. `examples/your_own_parts.py` has an example, and
    `tfr.testing.check_gradient` checks a baseline.

    Attributes:
        values_states: Bool. True if the baseline is a value of the observation. Only such
            a baseline can bootstrap truncated episodes and allows `gae_lambda` below 1.
            It then has `model`, `values` and `loss_weight`, like `Value`.
        reset_group_size: Int. If it is above 1, the agent starts that many consecutive
            episodes with the same reset seed.
        minibatch_size: Int if the baseline needs `BaselineBatch.order`, else `None`.
    """

    values_states = False
    reset_group_size = 1
    minibatch_size: int | None = None

    def __setattr__(self, name, value):
        validation.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    @property
    def shares_policy(self):
        """Whether the policy returns the values too, and one loss trains both."""
        return self.values_states and self.model is None

    @abc.abstractmethod
    def estimate(self, returns, valid, values):
        """Returns what is subtracted from each return.

        Args:
            returns: `[T, B]` float, zero in the padding.
            valid: `[T, B]` bool; False in the padding.
            values: `[T, B]` float, values of the observations; zeros without a
                value baseline.

        Returns:
            `[T, B]` float in the type of `returns`. Zero: subtract nothing.
        """

    def gradients(self, baseline_batch):
        """Returns loss and gradients of the baseline; NaN and `[]` without weights.

        Args:
            baseline_batch: `BaselineBatch`.

        Returns:
            Scalar loss, and a list of gradients for `apply_gradients`.
        """
        return tf.constant(float("nan"), baseline_batch.targets.dtype), []

    def apply_gradients(self, gradients, baseline_batch):
        """Makes one gradient step. The gradients are known to be finite.

        Args:
            gradients: List, from `gradients(baseline_batch)`. A baseline that takes
                further steps computes their gradients itself, and skips a step whose
                gradients are not finite.
            baseline_batch: `BaselineBatch`.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """No baseline: subtracts zero. Unbiased, and usually the largest variance."""

    def estimate(self, returns, valid, values):
        return tf.zeros_like(returns)
