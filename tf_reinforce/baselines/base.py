"""Defines the interface of a baseline, and the batch from which a baseline learns."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import fixed_arguments


class BaselineBatch(NamedTuple):
    """The `N` valid steps of one update, from which a baseline learns."""

    observations: Any  # [N, …] or a structure of [N, …], as the policy receives them
    returns: tf.Tensor  # [N] float, the returns to go, also with `returns="whole"`
    time_steps: tf.Tensor  # [N] int32, the time step in the episode, from 0
    episodes: tf.Tensor  # scalar, the number of episodes
    permutation: Any = None  # [N] int32, a permutation of the N steps, for minibatches

    def minibatch(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns the batch that contains only the steps at `[n]` indices.

        If n of N steps are selected, the number of episodes is multiplied by n / N. A sum
        over the selected steps, divided by the multiplied number of episodes, is
        comparable with that of the whole batch.
        """
        fraction = tf.size(indices) / tf.size(self.returns)

        def gather(array: Any) -> Any:
            return tf.gather(array, indices)

        return BaselineBatch(
            keras.tree.map_structure(gather, self.observations),
            gather(self.returns),
            gather(self.time_steps),
            tf.cast(self.episodes, fraction.dtype) * fraction,
        )


class Baseline(keras.layers.Layer, abc.ABC):
    """An estimate of the return that does not depend on the action.

    A subclass of `Baseline` implements `estimate`. A baseline with weights creates its
    weights in `build` with `add_weight`. The method `gradients` of a baseline returns the
    gradients of its weights. The agent calls `apply_gradients` of the baseline after it
    has checked that all values of the update are finite. TensorFlow traces all methods of
    a baseline, so that a method must change nothing except the weights of the baseline.
    `examples/your_own_parts.py` contains an example of a custom baseline, and
    `tfr.testing.check_gradient` checks a baseline.

    Attributes:
        values_states: Bool, whether the baseline is a value of the observation. Only a
            baseline with `values_states=True` can bootstrap truncated episodes and allows
            `gae_lambda` below 1. A baseline with `values_states=True` has `model`,
            `values` and `loss_weight`, like `Value`.
        reset_group_size: Int, the number of consecutive episodes in a group. If
            `reset_group_size` is above 1, the agent starts all episodes of a group with
            the same reset seed.
        minibatch_size: Int if the baseline reads `BaselineBatch.permutation`, else
            `None`.
    """

    values_states = False
    reset_group_size = 1
    minibatch_size: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        fixed_arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    @property
    def shares_policy(self) -> bool:
        """Returns whether the policy also returns the values and one loss trains both."""
        return self.values_states and self.model is None

    @abc.abstractmethod
    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the values that are subtracted from the returns.

        Args:
            returns: `[T, B]` float, the returns, which are zero in the padding.
            valid: `[T, B]` bool, False in the padding.
            values: `[T, B]` float, the values of the observations. Without a value
                baseline, all values of the observations are zero.

        Returns:
            `[T, B]` float in the number type of `returns`, the baseline of each step. At
            a step with a baseline of zero, the return is not changed.
        """

    def gradients(self, baseline_batch: BaselineBatch) -> Any:
        """Returns loss and gradients of the baseline, or NaN and `[]` without weights.

        Args:
            baseline_batch: `BaselineBatch` to learn from.

        Returns:
            A scalar loss, and a list of gradients for `apply_gradients`.
        """
        return tf.constant(float("nan"), baseline_batch.returns.dtype), []

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        """Updates the baseline after an update of the policy.

        Args:
            gradients: List of finite gradients from `gradients(baseline_batch)`. A
                baseline that makes further gradient steps must compute their gradients
                itself, and must skip a step whose gradients are not finite.
            baseline_batch: `BaselineBatch` to learn from.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """A baseline of zero, which is unbiased and usually has the largest variance."""

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.zeros_like(returns)
