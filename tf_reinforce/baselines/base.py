"""Defines the interface of a baseline, and the batch from which a baseline learns."""

import abc
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import compiled_steps
from tf_reinforce.support import fixed_arguments


class BaselineBatch(NamedTuple):
    """The `N` steps of one batch, without padding, from which a baseline learns."""

    observations: Any  # [N, …] or a structure of [N, …], as the policy receives them
    returns: tf.Tensor  # [N] float, the returns to go, also with `returns="whole"`
    time_steps: tf.Tensor  # [N] int32, the time step in the episode, from 0
    episodes: tf.Tensor  # scalar, the number of episodes
    permutation: Any = None  # [N] int32, a permutation of the N steps, for minibatches
    values: Any = None  # [N] float, the values of an update that a baseline estimated
    is_padding: Any = None  # [N] bool, or `None` if no step is padding
    jit_compile: bool = False  # whether XLA compiles the gradient steps of the baseline

    def minibatch(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns a `BaselineBatch` of only the n steps at the given `[n]` indices.

        A minibatch of n of the N steps of a batch has n / N times the `episodes` of the
        batch. A sum over steps, divided by `episodes`, has about the same size for a
        minibatch as for the whole batch.
        """
        is_padding = self.is_padding
        if is_padding is not None:
            is_padding = tf.gather(is_padding, indices)
        fraction = compiled_steps.count_steps(indices, is_padding)
        fraction /= compiled_steps.count_steps(self.returns, self.is_padding)
        batch = self._gather(indices)
        return batch._replace(
            episodes=tf.cast(self.episodes, fraction.dtype) * fraction,
            is_padding=is_padding,
        )

    def padded(self, rows: tf.Tensor) -> "BaselineBatch":
        """Returns a `BaselineBatch` of R rows; the rows after the N steps are padding.

        Padding repeats the first step. The method serves XLA, see
        `compiled_steps.padded_rows`.

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


class Baseline(keras.layers.Layer, abc.ABC):
    """An estimate of the return that does not depend on the action.

    A subclass of `Baseline` implements `estimate`. A baseline with weights creates its
    weights in `build` with `add_weight`. The method `gradients` returns the gradients of
    the baseline's loss. At the end of an update, the agent calls the baseline's method
    `apply_gradients`, unless a value of the update is NaN or infinite. TensorFlow traces
    all methods of a baseline, so that a method must change nothing except the weights of
    the baseline. `examples/your_own_parts.py` contains an example of a custom baseline,
    and `tfr.testing.check_gradient` checks a baseline.

    Attributes:
        is_value_function: Bool, whether the baseline predicts the value of an
            observation. Only a baseline with `is_value_function=True` can bootstrap
            truncated episodes and allows `gae_lambda` below 1. A baseline with
            `is_value_function=True` must have the attributes `model` and `loss_weight`
            and the method `values`, like `Value`.
        reset_group_size: Int, the number of consecutive episodes in a group. If
            `reset_group_size` is above 1, the agent starts all episodes of a group with
            the same reset seed.
        minibatch_size: Int, the number of steps of a minibatch if the baseline learns
            from minibatches, else `None`. If `minibatch_size` is an int,
            `BaselineBatch.permutation` is a random permutation of the steps.
    """

    is_value_function = False
    reset_group_size = 1
    minibatch_size: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        fixed_arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    @property
    def shares_policy(self) -> bool:
        """Returns whether the policy model also returns the values of the baseline."""
        return self.is_value_function and self.model is None

    @abc.abstractmethod
    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the values that are subtracted from the returns.

        Args:
            returns: `[T, B]` float, the returns at `T` steps of `B` episodes, zero in the
                padding.
            valid: `[T, B]` bool, False in the padding (after the last step of an
                episode).
            values: `[T, B]` float, the values of the observations. Without a value
                baseline, all values of the observations are zero.

        Returns:
            `[T, B]` float in the number type of `returns`, the baseline of each step. A
            baseline of zero leaves the return of a step unchanged.
        """

    def gradients(self, baseline_batch: BaselineBatch) -> Any:
        """Returns loss and gradients of the baseline, by default NaN and `[]`.

        Args:
            baseline_batch: `BaselineBatch` to learn from.

        Returns:
            The scalar loss of the baseline, and a list of gradients, which the agent
            passes to `apply_gradients`. The list is empty if the baseline computes its
            gradients in `apply_gradients`.
        """
        return tf.constant(float("nan"), baseline_batch.returns.dtype), []

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        """Updates the baseline after an update of the policy.

        Args:
            gradients: List of finite gradients from `gradients(baseline_batch)`. A
                baseline that makes more than one gradient step per update must compute
                the gradients of the other steps itself. The baseline must skip a step
                whose gradients are not finite. If a weight of the baseline is not finite
                after the call, the agent restores all weights, and raises an error.
            baseline_batch: `BaselineBatch` to learn from.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """A baseline that is always zero; unbiased, but the gradient has a large variance."""

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.zeros_like(returns)
