"""Defines the interface of a head."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import fixed_arguments
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces


@dataclasses.dataclass(frozen=True)
class Support:
    """The range of each number of a raw action."""

    low: float | list  # one number or one per number of the action; may be infinite
    high: float | list
    atoms: bool  # whether finite bounds have a positive probability


class Head(keras.layers.Layer, abc.ABC):
    """Turns the outputs of a policy model into a distribution over actions.

    A sample is a function of outputs and noise. So eager mode, the acting program and the
    exported policy sample the same action from the same outputs and noise.
    Log-probabilities and entropy come from TensorFlow Probability. The *raw* action is
    sampled and recorded, and its log-probability is computed. `to_environment` converts
    it to the action that the environment receives.

    A head computes in the type of the outputs: float64 outputs give float64 results.

    Attributes:
        outputs_size: Int, the number of policy outputs per observation, P.
        noise: `NoiseSpec` of the noise for one sample.
        action_shape: Tuple, shape of one raw action.
        action_dtype: Type of a raw action; `None` is the type of the outputs.
        mask_size: Int, the number of entries of an action mask, M; zero for a head whose
            actions are always legal.
        support: `Support` of real raw actions. `None`: all real numbers, and a sample is
            a smooth function of the noise.

    In a `Composite`, `noise` is a nested structure, and shape, type and support belong to
    its leaves. `action_spec` describes an action of any head.
    """

    outputs_size: int
    noise: seeding.NoiseSpec
    action_shape: tuple
    action_dtype: str | None
    mask_size: int = 0
    support: Support | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        fixed_arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    def action_spec(self, dtype: Any) -> Any:
        """Returns the `tf.TensorSpec` of one raw action, or a structure of them.

        Args:
            dtype: The type of the outputs.
        """
        return tf.TensorSpec(self.action_shape, self.action_dtype or dtype)

    def set_float_type(self, dtype: str) -> None:
        """Sets the type of the weights that `build` creates.

        The agent calls it with the type of its policy, `"float32"` or `"float64"`.
        """
        self.dtype_policy = dtype

    @abc.abstractmethod
    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        """Returns the `tfd.Distribution` over raw actions for `[..., P]` float outputs.

        Its `log_prob` and `entropy` must return one number per row; wrap the axes of an
        action with `tfd.Independent`. The entropy is also logged. Gradients flow from the
        log-probabilities to the outputs and to the weights of the head. So the
        distribution must be created inside the gradient tape.
        """

    def density_variable(self, actions: Any) -> Any:
        """Returns the variable whose density `log_prob` is; usually the raw action."""
        return actions

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        """Returns d ln π(a|s) / d outputs.

        The heads of this library have closed forms. A head without one is
        differentiated automatically.

        Args:
            outputs: `[..., P]` float tensor.
            actions: `[..., *action_shape]` raw actions.

        Returns:
            `[..., P]` float. Times the advantage, this is what REINFORCE back-propagates
            into the outputs. Its expectation under the policy is zero. Williams (1992),
            section 4.
        """
        outputs = tf.convert_to_tensor(outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            log_probs = self.distribution(outputs).log_prob(actions)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(log_probs, outputs, unconnected_gradients=zero)

    @abc.abstractmethod
    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        """Returns raw actions for outputs `[..., P]` and noise `[..., *noise.shape]`."""

    @abc.abstractmethod
    def mode(self, outputs: tf.Tensor) -> Any:
        """Returns the most likely raw actions for outputs `[..., P]`."""

    @abc.abstractmethod
    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        """Returns the parameters of the distribution: a dict of `[..., …]` tensors."""

    @abc.abstractmethod
    def to_environment(self, actions: Any) -> Any:
        """Converts raw actions `[N, …]` to the units and bounds of the environment."""

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the standard deviation of each real number of an action.

        Args:
            outputs: `[N, P]` float tensor.

        Returns:
            `[N, R]` float, in units of half the width between the bounds; without bounds
            in units of the standard deviation before training. R is zero if no number of
            an action is real. A value of zero means that the number is always the same.
        """
        return outputs[:, :0]

    def at_bounds(self, actions: Any) -> tf.Tensor:
        """Returns which real numbers of an action the environment receives at a bound.

        A number counts as at a bound if its distance is less than a thousandth of the
        width, because squashed numbers approach a bound and do not reach it.

        Args:
            actions: Raw actions, `[N, …]`.

        Returns:
            `[N, R]` bool; R is zero if no number has bounds.
        """
        first = keras.tree.flatten(actions)[0]
        return tf.zeros([tf.shape(first)[0], 0], tf.bool)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns offsets and scales for the last layer of a default policy.

        The policy of `Reinforce.for_env` ends with offset + scale × output.

        Returns:
            Two float64 arrays `[outputs_size]`: the offsets and the scales. They are
            zeros and ones if the outputs are not in units of the environment.
        """
        return np.zeros(self.outputs_size), np.ones(self.outputs_size)

    def is_logit(self) -> np.ndarray:
        """Returns `[outputs_size]` bool: which outputs are logits.

        Logits must be able to take any value. A policy that ends in softmax or sigmoid
        gets a warning. By default no output is a logit.
        """
        return np.zeros(self.outputs_size, bool)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        """Returns outputs that give illegal choices the probability zero.

        Log-probabilities, entropy, samples, mode and eligibility of masked outputs are
        those of the legal choices; the eligibility of an illegal choice is zero.

        Args:
            outputs: `[..., P]` float tensor.
            mask: `[..., mask_size]` int8 tensor; zero is illegal.

        Returns:
            `[..., P]` float, finite.
        """
        return outputs

    def flatten_mask(self, mask: Any) -> np.ndarray:
        """Flattens an action mask from an environment.

        Args:
            mask: An action mask as Gymnasium's `Space.sample(mask=…)` takes it: an array
                or a tuple of arrays. `None` makes every action legal.

        Returns:
            `[mask_size]` int8.

        Raises:
            ValueError: if the mask does not have `mask_size` entries of 0 or 1.
        """
        if mask is None:
            return np.ones(self.mask_size, "int8")
        parts = keras.tree.flatten(mask) or [[]]
        flat = np.concatenate([np.ravel(part) for part in parts])
        binary = flat.dtype.kind in "biu" or np.isin(flat, (0, 1)).all()
        if flat.shape != (self.mask_size,) or not binary:
            raise ValueError(
                f"a mask of {self!r} must have {self.mask_size} entries, 0 or 1. "
                f"Received: {mask!r}"
            )
        return (flat != 0).astype("int8")

    def has_legal_action(self, mask: np.ndarray) -> Any:
        """Returns `[...]` bool: whether each NumPy mask `[..., M]` has a legal action."""
        return np.ones(mask.shape[:-1], bool)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        """Returns `[T, B]` bool: whether actions `[T, B, …]` are legal under the mask."""
        return np.ones(mask.shape[:-1], bool)

    def check_outputs(self, shape: Sequence[int | None]) -> None:
        """Raises `ValueError` if the policy returns the wrong number of outputs.

        Args:
            shape: Shape of the policy's outputs, batch axis first.

        Raises:
            ValueError: if the shape is not `(batch, outputs_size)`.
        """
        if len(shape) != 2 or shape[-1] != self.outputs_size:
            raise ValueError(
                f"{self!r} needs a policy that returns {self.outputs_size} numbers per "
                f"observation, shape (batch, {self.outputs_size}). "
                f"Received: a policy whose outputs have the shape {tuple(shape)}. "
                f"End the policy with keras.layers.Dense({self.outputs_size})."
            )

    def check_actions(self, actions: Any, lengths: np.ndarray, masks: Any = None) -> None:
        """Raises `ValueError` if a record has actions that this head cannot sample.

        Args:
            actions: `[T, B, …]` NumPy array.
            lengths: `[B]` ints; padding is ignored.
            masks: `[T, B, M]` int8; `None` or M = 0 without masks.

        Raises:
            ValueError: if an action is no raw action of this head, or illegal under its
                mask. The message names the action, the step and the episode.
        """
        valid_steps = np.arange(len(actions))[:, None] < lengths
        raw = self.is_valid(actions).reshape(*valid_steps.shape, -1).all(-1)
        invalid = np.argwhere(valid_steps & ~raw)
        kind = "raw"
        if not len(invalid) and masks is not None and masks.shape[-1]:
            invalid = np.argwhere(valid_steps & ~self.is_legal(actions, masks))
            kind = "legal"
        if len(invalid):
            step, episode = invalid[0]
            raise ValueError(
                f"`actions` must be {kind} actions of {self!r}. Received: "
                f"{actions[step, episode]} at step {step} of episode {episode}"
            )

    def check_space(self, space: gym.Space) -> None:
        """Raises `ValueError` if the actions of this head do not belong to the space.

        Raises:
            ValueError: if `matches_space` returns False. By default it returns True.
        """
        if not self.matches_space(space):
            raise ValueError(
                "`head` must sample actions of the action space of the environment. "
                f"Received: {self!r}, which does not sample actions of the space "
                f"{space!r}. Pass another head, or omit `head` to use "
                f"`tfr.heads.for_space(space)`. Supported spaces: {spaces.ACTIONS}."
            )

    def matches_space(self, space: gym.Space) -> bool:
        """Returns whether all actions of this head belong to the space."""
        return True

    def is_valid(self, actions: Any) -> Any:
        """Returns bools of the same shape: which entries `[T, B, …]` are raw actions.

        For a head with integer actions, True means that the head can sample the action.
        """
        return np.isfinite(actions)


def constant(values: Any, like: tf.Tensor) -> tf.Tensor:
    """Returns values as a tensor of the type of another tensor."""
    return tf.convert_to_tensor(values, dtype=like.dtype)


def mask_equals(mask: Any, value: int) -> tf.Tensor:
    """Returns `[..., M]` bool: which entries of a mask have this value."""
    return tf.equal(mask, value)
