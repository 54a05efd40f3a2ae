"""Defines `Head`, which turns policy outputs into a distribution over actions."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import mask_layouts
from tf_reinforce.data import seeding
from tf_reinforce.support import fixed_arguments
from tf_reinforce.support import validation


@dataclasses.dataclass(frozen=True)
class Support:
    """The range of each number of a raw action, an action before `to_environment`."""

    low: float | list  # one bound, or one per number of the action; may be infinite
    high: float | list
    atoms: bool  # whether finite bounds have a positive probability


class Head(keras.layers.Layer, abc.ABC):
    """Turns the outputs of a policy model into a distribution over actions.

    A sampled action is a function of the policy outputs and of noise. In eager mode, in a
    compiled program and in an exported policy, equal policy outputs and equal noise give
    equal actions. TensorFlow Probability computes the log-probability and the entropy of
    the distribution. The *raw* action is the sample of the distribution, before clipping,
    rounding and offsets. The agent records raw actions and computes their
    log-probabilities. `to_environment` converts a raw action to the action that the
    environment receives.

    A head computes in the number type of the policy outputs; for example, float64 outputs
    give float64 results.

    Attributes:
        outputs_size: Int, `P`, the number of policy outputs per observation.
        noise: `NoiseSpec` of the noise that one sample needs.
        action_shape: Tuple, shape of one raw action.
        action_dtype: Type of a raw action, or `None` for the type of the policy outputs.
        mask_size: Int, `M`, the number of entries of an action mask, or zero for a head
            whose actions are always legal.
        support: `Support`, the range of raw actions that are real numbers, or `None`.
            `support=None` means that raw actions may be any real numbers, and that a
            sample is a smooth function of the noise.

    In a `Composite` head, `noise` is a nested structure. A `Composite` itself does not
    set `action_shape`, `action_dtype` and `support`; the heads inside the `Composite` set
    them. `action_spec` describes the raw action of any head.
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
        """Returns the spec of one raw action, a `tf.TensorSpec` or a structure of them.

        Args:
            dtype: The number type of the policy outputs.
        """
        return tf.TensorSpec(self.action_shape, self.action_dtype or dtype)

    def set_float_type(self, dtype: str) -> None:
        """Sets the number type of the weights that `build` creates.

        The agent calls `set_float_type` with the type of its policy, `"float32"` or
        `"float64"`.
        """
        self.dtype_policy = dtype

    def call(self, outputs: tf.Tensor) -> Any:
        raise TypeError(
            "A head is not called like a layer. `head.distribution(outputs)` returns the "
            f"distribution over actions. Received: a call of {self!r}. To draw samples "
            "inside a Keras model, use `tfr.layers.Sample(head)`."
        )

    @abc.abstractmethod
    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        """Returns the `tfd.Distribution` over raw actions for policy outputs.

        The policy outputs `[..., outputs_size]` are a float tensor. The methods
        `log_prob` and `entropy` of the distribution must return one number per action. To
        sum over the axes of an action, wrap the distribution with `tfd.Independent`.
        Gradients flow from the log-probabilities to the policy outputs and to the weights
        of the head. `distribution` must be called inside the gradient tape.
        """

    def density_variable(self, actions: Any) -> Any:
        """Returns the variable whose log-density is `log_prob`, usually the raw action.

        For example, `TanhGaussian` returns tanh x for the raw action x.
        """
        return actions

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        """Returns d ln π(a|s) / d outputs, the eligibility of each policy output.

        The heads of tf_reinforce compute eligibilities by closed forms. The eligibility
        of a custom head is computed by automatic differentiation, if the head does not
        override the method `eligibility`.

        Args:
            outputs: `[..., P]` float tensor, the policy outputs.
            actions: `[..., *action_shape]` raw actions.

        Returns:
            `[..., P]` float, the eligibilities. The eligibility times the advantage is
            the gradient that REINFORCE back-propagates into the policy outputs. The
            expectation of the eligibility under the policy is zero. See Williams (1992),
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
        """Samples raw actions from policy outputs and noise.

        Args:
            outputs: `[..., outputs_size]` float tensor, the policy outputs.
            noise: Random numbers in the shape `[..., *self.noise.shape]`.
        """

    @abc.abstractmethod
    def mode(self, outputs: tf.Tensor) -> Any:
        """Returns the most likely raw actions for outputs `[..., outputs_size]`."""

    @abc.abstractmethod
    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        """Returns the parameters of the distribution, as a dict from names to tensors."""

    @abc.abstractmethod
    def to_environment(self, actions: Any) -> Any:
        """Converts `N` raw actions `[N, …]` to actions that the environment receives."""

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the standard deviation of each real number of an action.

        Args:
            outputs: `[N, P]` float tensor, the policy outputs for `N` observations.

        Returns:
            `[N, R]` float, the standard deviations of the R real numbers of an action, in
            units of half the distance between the bounds. If a number has no bounds, its
            standard deviation before training is the unit. A standard deviation of zero
            means that all samples of the number are equal.
        """
        return outputs[:, :0]

    def at_bounds(self, actions: Any) -> tf.Tensor:
        """Returns whether each real number of an action is at a bound in the environment.

        A number counts as at a bound if its distance from the bound is at most a
        thousandth of the distance between the bounds. The tolerance is needed because
        actions squashed by tanh approach a bound but usually do not reach the bound.

        Args:
            actions: `N` raw actions, `[N, …]`.

        Returns:
            `[N, R]` bool, for the R real numbers of an action. If the environment takes
            integers, the array has no columns.
        """
        first = keras.tree.flatten(actions)[0]
        return tf.zeros([tf.shape(first)[0], 0], tf.bool)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns offsets and scales for the last layer of a default policy.

        The policy of `Reinforce.for_env` returns offset + scale × output for each output
        of its last layer.

        Returns:
            Two float64 arrays `[outputs_size]`, the offsets and the scales. If a policy
            output is not in the unit of an action, for example a logit, its offset is
            zero and its scale is one.
        """
        return np.zeros(self.outputs_size), np.ones(self.outputs_size)

    def is_logit(self) -> np.ndarray:
        """Returns `[outputs_size]` bool, True for each policy output that is a logit.

        Logits must be able to take any real value. The agent warns if a policy with
        logits as outputs ends in softmax or sigmoid. By default, no policy output is a
        logit.
        """
        return np.zeros(self.outputs_size, bool)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        """Returns policy outputs that give illegal actions the probability zero.

        The masked outputs give a distribution over the legal actions only. Masking thus
        changes log-probabilities, entropy, samples, mode and eligibility. With respect to
        the logit of an illegal action, the eligibility is zero.

        Args:
            outputs: `[..., P]` float tensor, the policy outputs.
            mask: `[..., mask_size]` int8 tensor; zero marks an illegal action.

        Returns:
            `[..., P]` float, the masked policy outputs, which are finite.
        """
        return outputs

    @property
    def mask_layout(self) -> mask_layouts.MaskLayout:
        """Returns the `MaskLayout`, which flattens and checks action masks with NumPy."""
        return mask_layouts.MaskLayout(repr(self), self.mask_size)

    def flatten_mask(self, mask: Any) -> np.ndarray:
        """Returns an action mask of an environment as a flat array.

        Args:
            mask: An action mask in the format of Gymnasium's `Space.sample(mask=…)`,
                which is an array or a tuple of arrays. A mask of `None` makes every
                action legal.

        Returns:
            `[mask_size]` int8, the flat mask.

        Raises:
            ValueError: If the mask does not have `mask_size` valid entries: 0 or 1, or
                for flags 0, 1 or 2.
        """
        return self.mask_layout.flatten(mask)

    def has_legal_action(self, mask: np.ndarray) -> Any:
        """Returns `[...]` bool, whether each mask `[..., mask_size]` allows an action."""
        return self.mask_layout.has_legal_action(mask)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        """Returns a bool array, True for each action that is legal under its mask.

        Args:
            actions: `[T, B, …]` array of raw actions at `T` steps of `B` episodes.
            mask: `[T, B, mask_size]` int8, the action masks.

        Returns:
            `[T, B]` bool.
        """
        return np.ones(mask.shape[:-1], bool)

    def check_outputs(self, shape: Sequence[int | None]) -> None:
        """Raises `ValueError` if the policy returns the wrong number of outputs.

        Args:
            shape: Shape of the policy outputs, batch axis first.

        Raises:
            ValueError: If the shape is not `(batch, outputs_size)`.
        """
        if len(shape) != 2 or shape[-1] != self.outputs_size:
            raise ValueError(
                f"{self!r} needs a policy that returns {self.outputs_size} numbers per "
                f"observation, in an array of shape (batch, {self.outputs_size}). "
                f"Received: a policy whose outputs have the shape {tuple(shape)}. End "
                f"the policy with keras.layers.Dense({self.outputs_size})."
            )

    def check_actions(self, actions: Any, lengths: np.ndarray, masks: Any = None) -> None:
        """Raises `ValueError` if the head cannot sample the actions of recorded episodes.

        Args:
            actions: `[T, B, …]` NumPy array of raw actions (before `to_environment`), at
                `T` steps of `B` episodes.
            lengths: `[B]` ints, the lengths of the episodes. Actions in the padding after
                the last step of an episode are not checked.
            masks: `[T, B, mask_size]` int8, the action masks. Without action masks,
                `masks` is `None` or its last axis has the size 0.

        Raises:
            ValueError: If the head cannot sample one of the actions, or an action is
                illegal under its mask. The error message contains the first invalid
                action, its step and its episode.
        """
        valid = np.arange(len(actions))[:, None] < lengths
        is_valid = self.is_valid(actions).reshape(*valid.shape, -1).all(-1)
        invalid = np.argwhere(valid & ~is_valid)
        kind = "raw"
        if not len(invalid) and masks is not None and masks.shape[-1]:
            invalid = np.argwhere(valid & ~self.is_legal(actions, masks))
            kind = "legal"
        if len(invalid):
            step, episode = invalid[0]
            raise ValueError(
                f"`actions` must be {kind} actions of {self!r}. Received: "
                f"{actions[step, episode]} at step {step} of episode {episode}"
            )

    def check_space(self, space: gym.Space) -> None:
        """Raises `ValueError` if the actions of the head do not belong to the space.

        Raises:
            ValueError: If `matches_space` returns False. The default implementation of
                `matches_space` returns True.
        """
        if not self.matches_space(space):
            raise ValueError(
                "`head` must sample actions of the action space of the environment. "
                f"Received: {self!r}, which does not sample actions of the space "
                f"{space!r}. Pass another head to the agent, or omit `head` to use "
                "`tfr.heads.for_space(space)`."
            )

    def matches_space(self, space: gym.Space) -> bool:
        """Returns whether all actions of the head belong to a Gymnasium space."""
        return True

    def is_valid(self, actions: Any) -> Any:
        """Returns a bool array, True for each number that a raw action may contain.

        For a head with integer actions, True means that the head can sample the integer.
        """
        return np.isfinite(actions)


def constant(values: Any, like: tf.Tensor) -> tf.Tensor:
    """Returns values as a tensor with the number type of another tensor."""
    return tf.convert_to_tensor(values, dtype=like.dtype)


def env_shape(shape: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Returns the shape of an environment's action of `size` numbers."""
    result = tuple(validation.positive_ints("shape", (size,) if shape is None else shape))
    if math.prod(result) != size:
        raise ValueError(
            f"An action of shape {result} does not hold {size} numbers. "
            f"Received: shape={shape}"
        )
    return result


def one_if_equal(values: list) -> Any:
    """Returns one number if all numbers of a list are equal, else the list."""
    return values[0] if all(value == values[0] for value in values) else values
