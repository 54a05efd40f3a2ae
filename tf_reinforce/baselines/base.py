"""The interface of a baseline, and the batch that it learns from."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import compilation


class BaselineBatch(NamedTuple):
    """The `N` steps of a batch, without padding, that a baseline learns from."""

    observations: Any  # [N, …] or a structure of [N, …], as the policy receives them
    returns: tf.Tensor  # [N] float, the returns to go, also with `returns="whole"`
    time_steps: tf.Tensor  # [N] int32, the time step in the episode, from 0
    episodes: tf.Tensor  # scalar, the number of episodes
    permutation: Any = None  # [N] int32, a permutation of the N steps, for minibatches
    values: Any = None  # [N] float, the values of an update that a baseline estimated
    is_padding: Any = None  # [N] bool, or `None` if no step is padding
    jit_compile: bool = False  # whether XLA compiles the gradient steps of the baseline

    def minibatch(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns the batch of the n steps at `[n]` indices.

        It has n / N times the `episodes`, so that a sum over steps divided by `episodes`
        keeps its size.
        """
        is_padding = self.is_padding
        if is_padding is not None:
            is_padding = tf.gather(is_padding, indices)
        fraction = compilation.count_steps(indices, is_padding)
        fraction /= compilation.count_steps(self.returns, self.is_padding)
        batch = self._gather(indices)
        return batch._replace(
            episodes=tf.cast(self.episodes, fraction.dtype) * fraction,
            is_padding=is_padding,
        )

    def padded(self, rows: tf.Tensor) -> "BaselineBatch":
        """Returns a batch of R rows for XLA, see `compilation.padded_rows`.

        Rows beyond the N steps repeat the first step and are marked as padding.

        Args:
            rows: Scalar int R, above N.
        """
        numbers = tf.range(rows)
        is_padding = numbers >= tf.size(self.returns)
        batch = self._gather(tf.where(is_padding, 0, numbers))
        return batch._replace(episodes=self.episodes, is_padding=is_padding)

    def _gather(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns the steps at `[n]` indices, without `episodes`."""

        def gather(array: Any) -> Any:
            return tf.gather(array, indices)

        return BaselineBatch(
            keras.tree.map_structure(gather, self.observations),
            gather(self.returns),
            gather(self.time_steps),
            None,
        )


class Baseline(compilation.FixedArguments, keras.layers.Layer, abc.ABC):
    """An estimate of the return that does not depend on the action.

    A subclass implements `estimate`, and creates weights, if any, in `build` with
    `add_weight`. `gradients` returns the gradients of its loss; the agent calls
    `apply_gradients` at the end of an update, unless one of its values is NaN or
    infinite. TensorFlow traces all of these, so they must change nothing but the
    baseline's weights. `examples/your_own_parts.py` has an example, and
    `tfr.testing.check_gradient` checks a baseline.

    Attributes:
        is_value_function: Bool, whether it predicts the value of an observation. Only
            then can it bootstrap truncated episodes and allow `gae_lambda` below 1. It
            then needs `model`, `loss_weight` and `values`, like `Value`.
        reset_group_size: Int, how many consecutive episodes the agent starts with the
            same reset seed.
        minibatch_size: Int, the steps of a minibatch, or `None` if the baseline does not
            learn from minibatches. With an int, `BaselineBatch.permutation` is a random
            permutation of the steps.
    """

    is_value_function = False
    reset_group_size = 1
    minibatch_size: int | None = None

    @property
    def shares_policy(self) -> bool:
        """Returns whether the policy model also returns the baseline's values."""
        return self.is_value_function and self.model is None

    @abc.abstractmethod
    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the values that are subtracted from the returns.

        Args:
            returns: `[T, B]` float, the returns at `T` steps of `B` episodes, zero in the
                padding.
            valid: `[T, B]` bool, False in the padding after an episode's last step.
            values: `[T, B]` float, the values of the observations; all zero without a
                value baseline.

        Returns:
            `[T, B]` float in the number type of `returns`. A zero leaves a return
            unchanged.
        """

    def gradients(self, baseline_batch: BaselineBatch) -> Any:
        """Returns the baseline's loss and gradients, by default NaN and `[]`.

        Args:
            baseline_batch: `BaselineBatch` to learn from.

        Returns:
            Scalar loss, and a list of gradients for `apply_gradients`; it is empty if
            that method computes its own.
        """
        return tf.constant(float("nan"), baseline_batch.returns.dtype), []

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        """Updates the baseline after an update of the policy.

        Args:
            gradients: List of finite gradients from `gradients(baseline_batch)`. For
                further steps, the baseline computes gradients itself, and skips those
                that are not finite. If a weight is not finite in the end, the agent
                restores all weights and raises an error.
            baseline_batch: `BaselineBatch` to learn from.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """No baseline: unbiased, but the gradient has a large variance."""

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.zeros_like(returns)
