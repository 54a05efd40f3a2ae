"""Defines the interface of a baseline, and the batch from which a baseline learns."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import fixed_arguments


class BaselineBatch(NamedTuple):
    """The `N` valid steps of one update, from which a baseline learns."""

    observations: Any  # [N, …], or a structure of them, as the policy receives them
    returns: tf.Tensor  # [N] float, the returns to go, also under `returns="whole"`
    time_steps: tf.Tensor  # [N] int32, the step in the episode, from 0
    episodes: tf.Tensor  # scalar, the number of episodes
    permutation: Any = None  # [N] int32, a permutation, for a baseline with minibatches

    def minibatch(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns the steps at `[n]` indices.

        The number of episodes is multiplied by n / N. So a sum over steps, divided by
        the number of episodes, is comparable with that of the whole batch.
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

    A subclass implements `estimate`. A baseline with weights creates them in `build` with
    `add_weight`; `gradients` returns their gradients, and `apply_gradients` changes them
    after all values of the update were checked to be finite. All methods are traced, so
    they must change nothing else. `examples/your_own_parts.py` has an example, and
    `tfr.testing.check_gradient` checks a baseline.

    Attributes:
        values_states: Bool. True if the baseline is a value of the observation. Only such
            a baseline can bootstrap truncated episodes and allows `gae_lambda` below 1.
            It then has `model`, `values` and `loss_weight`, like `Value`.
        reset_group_size: Int. If it is above 1, the agent starts groups of this many
            consecutive episodes with the same reset seed.
        minibatch_size: Int if the baseline reads `BaselineBatch.permutation`, or `None`.
    """

    values_states = False
    reset_group_size = 1
    minibatch_size: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        fixed_arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    @property
    def shares_policy(self) -> bool:
        """Whether the policy returns the values too, and one loss trains both."""
        return self.values_states and self.model is None

    @abc.abstractmethod
    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the values that are subtracted from the returns.

        Args:
            returns: `[T, B]` float, zero in the padding.
            valid: `[T, B]` bool; False in the padding.
            values: `[T, B]` float, values of the observations; zeros without a
                value baseline.

        Returns:
            `[T, B]` float in the type of `returns`. Zero: nothing is subtracted.
        """

    def gradients(self, baseline_batch: BaselineBatch) -> Any:
        """Returns loss and gradients of the baseline; NaN and `[]` without weights.

        Args:
            baseline_batch: `BaselineBatch`.

        Returns:
            Scalar loss, and a list of gradients for `apply_gradients`.
        """
        return tf.constant(float("nan"), baseline_batch.returns.dtype), []

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        """Updates the baseline after an update of the policy. Does nothing by default.

        Args:
            gradients: List, from `gradients(baseline_batch)`. They are finite. A baseline
                that makes further steps must compute their gradients itself, and must
                skip a step whose gradients are not finite.
            baseline_batch: `BaselineBatch`.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """No baseline: subtracts zero. Unbiased, and usually the largest variance."""

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.zeros_like(returns)
