"""`Head`, which turns policy outputs into a distribution over actions."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding
from tf_reinforce.support import compilation
from tf_reinforce.support import validation


@dataclasses.dataclass(frozen=True)
class Support:
    """The range of each number of a raw action, before `to_environment`."""

    low: float | list  # one bound, or one per number of the action; may be infinite
    high: float | list
    atoms: bool  # whether finite bounds have a positive probability


class Head(compilation.FixedArguments, keras.layers.Layer, abc.ABC):
    """Turns the outputs of a policy model into a distribution over actions.

    A sampled action is a function of the policy outputs and of random noise that the head
    receives as an argument. Because a head draws no random numbers itself, equal inputs
    give equal actions in eager mode, in compiled programs and in exported policies.

    The head samples a *raw* action, which has not yet been clipped, rounded or shifted.
    The agent records the raw action and takes its log-probability. The method
    `to_environment` converts the raw action to the action that the environment receives.

    A head computes in the number type of the policy outputs.

    Attributes:
        outputs_size: Int, `P`, the number of policy outputs per observation.
        noise: `NoiseSpec` of the noise for one sample.
        action_shape: Tuple, the shape of one raw action.
        action_dtype: Type of a raw action, or `None` for that of the policy outputs.
        mask_size: Int, `M`, the entries of an action mask; zero if all actions are always
            legal.
        reads_tables: Bool, whether a part has a table of masks, so masks are needed.
        appended_size: Int, the entries that `mask_outputs` appends to the outputs.
        conditioned_size: Int, how many of the first outputs depend on earlier parts of an
            `Autoregressive` action, or `None` for all.
        features_size: Int, F, the size of `action_features`, or `None` for that of the
            action.
        choices: Tuple of ints, the categories of each choice of an action, if a mask must
            leave one of them.
        support: `Support`, the range of real raw actions. `None` means that they may be
            any real numbers, and a sample is a smooth function of the noise.
        family: String, "normal" or "beta" if `parameters` are those of independent
            numbers with this distribution, which more gradient estimators can then use.
        argument_names: Tuple of the constructor arguments, attributes of the same name,
            that `get_config` and `repr` show.

    In a `Composite` or an `Autoregressive`, `noise` is nested, and `action_shape`,
    `action_dtype` and `support` belong to the heads inside; `action_spec` describes the
    raw action of every head.
    """

    outputs_size: int
    noise: seeding.NoiseSpec
    action_shape: tuple
    action_dtype: str | None
    mask_size: int = 0
    reads_tables: bool = False
    choices: tuple[int, ...] = ()
    appended_size: int = 0
    conditioned_size: int | None = None
    features_size: int | None = None
    support: Support | None = None
    family: str = ""

    def __repr__(self) -> str:
        pairs = (f"{name}={getattr(self, name)}" for name in self.argument_names)
        return f"{type(self).__name__}({', '.join(pairs)})"

    def action_spec(self, dtype: Any) -> Any:
        """Returns the spec of one raw action, a `tf.TensorSpec` or a structure of them.

        Args:
            dtype: Number type of the policy outputs.
        """
        return tf.TensorSpec(self.action_shape, self.action_dtype or dtype)

    def set_float_type(self, dtype: str) -> None:
        """Sets the type of the weights that `build` creates, `"float32"` or `"float64"`.

        The agent passes the type of its policy.
        """
        self.dtype_policy = dtype

    def call(self, *args: Any, **kwargs: Any) -> Any:
        text = "Use `head.distribution(outputs)`, or the layer tfr.layers.Sample(head)."
        raise NotImplementedError(text)

    @abc.abstractmethod
    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        """Returns the `tfd.Distribution` over raw actions.

        The distribution's `log_prob` and `entropy` must return one number per action. If
        an action consists of several numbers, wrap their distribution in
        `tfd.Independent`, which sums over the axes of the action. Call this method inside
        the gradient tape, because gradients flow from the log-probabilities to the policy
        outputs and to the weights of the head.

        Args:
            outputs: `[..., P]` float tensor.
        """

    def log_prob_and_entropy(self, outputs: tf.Tensor, actions: Any) -> tuple[Any, Any]:
        """Returns ln π(a|s) of raw actions, and the entropy of π, `[...]` each.

        An update maximizes the entropy by its gradient, so a head whose entropy has no
        closed form returns an estimate from the actions, with an unbiased gradient.
        """
        distribution = self.distribution(outputs)
        return distribution.log_prob(actions), distribution.entropy()

    def max_entropy(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        """Returns the entropy of a uniform choice among legal actions, `[...]`.

        Args:
            outputs: `[..., P]` zeros, or what `mask_outputs` returns for them.
            actions: Raw actions, on which the legal values of later parts may depend.
        """
        return self.distribution(outputs).entropy()

    def action_features(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        """Returns what later parts of an `Autoregressive` action see of an action.

        Args:
            outputs: `[..., P]` float tensor.
            actions: `[..., *action_shape]` raw actions.

        Returns:
            `[..., F]` float; by default the numbers of the raw action.
        """
        shape = [*tf.unstack(tf.shape(outputs)[:-1]), math.prod(self.action_shape)]
        return tf.reshape(tf.cast(actions, outputs.dtype), shape)

    def density_variable(self, actions: Any) -> Any:
        """Returns the variable whose log-density is `log_prob`, usually the raw action.

        For `TanhGaussian`, it is tanh x for the raw action x.
        """
        return actions

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        """Returns d ln π(a|s) / d outputs, the eligibility of each policy output.

        The heads of this package compute the eligibility in closed form. A custom head
        that does not override this method uses automatic differentiation.

        Args:
            outputs: `[..., P]` float tensor.
            actions: `[..., *action_shape]` raw actions.

        Returns:
            `[..., P]` float. The product of the eligibility and the advantage is the
            gradient that REINFORCE back-propagates into the policy outputs. The
            expectation of the eligibility under the policy is zero (Williams 1992,
            section 4).
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
            outputs: `[..., P]` float tensor.
            noise: `[..., *self.noise.shape]` random numbers.
        """

    @abc.abstractmethod
    def mode(self, outputs: tf.Tensor) -> Any:
        """Returns the most likely raw actions for outputs `[..., outputs_size]`."""

    @abc.abstractmethod
    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        """Returns the distribution's parameters, a dict from names to tensors."""

    @abc.abstractmethod
    def to_environment(self, actions: Any) -> Any:
        """Converts `N` raw actions `[N, …]` to what the environment receives."""

    def category_log_probs(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the log-probabilities of D independent choices, `[N, D, K]`.

        K is the largest number of categories, and missing ones have probability zero.

        Args:
            outputs: `[N, P]` float tensor.

        Raises:
            ValueError: If an action does not consist of such choices.
        """
        raise ValueError(
            "`one_hot=True` or this estimator needs a head of independent choices: "
            f"Categorical, Bernoulli, MultiCategorical or Pointer. Received: {self!r}"
        )

    def from_vectors(self, vectors: tf.Tensor) -> tf.Tensor:
        """Converts one-hot vectors `[N, D, K]`, or relaxed ones, to `[N, F]` floats."""
        return vectors[:, 0]

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the standard deviation of each real number of an action.

        Args:
            outputs: `[N, P]` float tensor.

        Returns:
            `[N, R]` float for the R real numbers of an action, in units of half the
            distance between the bounds, or without bounds, of the standard deviation
            before training. Zero means that all samples are equal.
        """
        return outputs[:, :0]

    def at_bounds(self, actions: Any) -> tf.Tensor:
        """Returns whether each real number of an action is at a bound in the environment.

        A thousandth of the distance between the bounds counts as at the bound, because
        actions squashed by tanh approach it without reaching it.

        Args:
            actions: `N` raw actions, `[N, …]`.

        Returns:
            `[N, R]` bool for the R real numbers; no columns if the environment takes
            integers.
        """
        first = keras.tree.flatten(actions)[0]
        return tf.zeros([tf.shape(first)[0], 0], tf.bool)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns offsets and scales for the last layer of a default policy.

        `Reinforce.for_env` makes it return offset + scale × output.

        Returns:
            Two float64 arrays `[P]`. Outputs that are not in units of an action, for
            example logits, have offset zero and scale one.
        """
        return np.zeros(self.outputs_size), np.ones(self.outputs_size)

    def is_logit(self) -> np.ndarray:
        """Returns `[P]` bool, True for each output that is a logit; by default none.

        Logits may take any value, so the agent warns of a policy that ends in softmax or
        sigmoid.
        """
        return np.zeros(self.outputs_size, bool)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        """Returns policy outputs under which illegal actions have probability zero.

        They describe the distribution over legal actions only, so masking changes
        log-probabilities, entropy, samples, mode and eligibility. An illegal action's
        logit has eligibility zero.

        Args:
            outputs: `[..., P]` float tensor.
            mask: `[..., M]` int8 tensor; zero marks an illegal action.

        Returns:
            `[..., P + appended_size]` float, finite, which every method takes.
        """
        return outputs

    @property
    def mask_layout(self) -> action_masks.MaskLayout:
        """Returns the `MaskLayout`, which flattens and checks masks with NumPy."""
        return action_masks.MaskLayout(repr(self), self.mask_size, self.choices)

    def flatten_mask(self, mask: Any) -> np.ndarray:
        """Returns an environment's action mask as a flat array.

        Args:
            mask: Array or tuple of arrays, as Gymnasium's `Space.sample(mask=…)` takes
                it, or `None` if every action is legal.

        Returns:
            `[M]` int8.

        Raises:
            ValueError: If the mask does not have `M` entries of 0 or 1, or for flags 0, 1
                or 2.
        """
        return self.mask_layout.flatten(mask)

    def has_legal_action(self, mask: np.ndarray) -> Any:
        """Returns `[...]` bool, whether each mask `[..., M]` allows an action."""
        return self.mask_layout.has_legal_action(mask)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        """Returns which actions are legal under their masks.

        Args:
            actions: `[T, B, …]` array of raw actions.
            mask: `[T, B, M]` int8.

        Returns:
            `[T, B]` bool.
        """
        return np.ones(mask.shape[:-1], bool)

    @property
    def _last_layer(self) -> str:
        """Returns the layer that the error of `check_outputs` proposes."""
        return f"keras.layers.Dense({self.outputs_size})"

    def check_outputs(self, shape: Sequence[int | None]) -> None:
        """Raises `ValueError` unless the policy returns `(batch, P)` outputs.

        Args:
            shape: Shape of the policy outputs, batch axis first.
        """
        if len(shape) != 2 or shape[-1] != self.outputs_size:
            remedy = f"End the policy with {self._last_layer}."
            if len(shape) > 2:
                remedy += (
                    " Before it, reduce the axes between with Flatten, pooling or, for a "
                    "recurrent layer in a window, return_sequences=False."
                )
            raise ValueError(
                f"{self!r} needs a policy that returns {self.outputs_size} numbers per "
                f"observation, in an array of shape (batch, {self.outputs_size}). "
                "Received: a policy whose outputs have the shape "
                f"{tuple(shape)}. {remedy}"
            )

    def check_actions(self, actions: Any, lengths: np.ndarray, masks: Any = None) -> None:
        """Raises `ValueError` if the head cannot sample the actions of recorded episodes.

        The error names the first action that is invalid, or illegal under its mask, with
        its step and episode.

        Args:
            actions: `[T, B, …]` NumPy array of raw actions.
            lengths: `[B]` ints; actions after an episode's last step are not checked.
            masks: `[T, B, M]` int8, or `None`.
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
        """Raises `ValueError` if `matches_space` returns False."""
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
        """Returns a bool array, True for each number that a raw action may contain."""
        return np.isfinite(actions)


def combinations(heads: Sequence[Head], limit: int) -> list | None:
    """Returns all combinations of the raw actions of several heads.

    Returns:
        A list with an array `[K, *action_shape]` for each head, or `None` if actions are
        real, or there are more than `limit` combinations.
    """
    actions: list[Any] = [_all_actions(head, limit) for head in heads]
    if any(x is None for x in actions) or math.prod(map(len, actions)) > limit:
        return None
    grid = np.meshgrid(*(np.arange(len(x)) for x in actions), indexing="ij")
    return [x[index.ravel()] for x, index in zip(actions, grid, strict=True)]


def _all_actions(head: Head, limit: int) -> np.ndarray | None:
    """Returns every array of non-negative integers that a head accepts as an action.

    Each entry counts up to the largest integer that is accepted while all others are
    zero.
    The result is `None` if the actions are real, more than `limit`, or none.
    """
    if not tf.as_dtype(head.action_dtype or "float32").is_integer:
        return None
    numbers, sizes = np.arange(limit + 1)[:, None], []
    for entry in np.eye(math.prod(head.action_shape), dtype="int64"):
        accepted = np.flatnonzero(_are_valid(head, numbers * entry))
        sizes.append(1 + int(max(accepted, default=-1)))
    if not 0 < math.prod(sizes) <= limit:
        return None
    actions = np.array(list(itertools.product(*map(range, sizes))), head.action_dtype)
    actions = actions[_are_valid(head, actions)]
    return actions.reshape(-1, *head.action_shape)


def _are_valid(head: Head, rows: np.ndarray) -> Any:
    valid = head.is_valid(rows.reshape(-1, *head.action_shape))
    return np.reshape(valid, (len(rows), -1)).all(axis=1)


def constant(values: Any, like: tf.Tensor) -> tf.Tensor:
    """Returns values as a tensor with the number type of another."""
    return tf.convert_to_tensor(values, dtype=like.dtype)


def clip_to_open(fractions: Any) -> Any:
    """Clips numbers in [0, 1] to the open interval (0, 1)."""
    limits = np.finfo(tf.as_dtype(fractions.dtype).as_numpy_dtype)
    return tf.clip_by_value(fractions, limits.tiny, 1.0 - limits.epsneg)


def env_shape(shape: Sequence[int] | None, size: int) -> tuple[int, ...]:
    """Returns the shape of an environment's action of `size` numbers."""
    result = tuple(validation.positive_ints("shape", (size,) if shape is None else shape))
    if math.prod(result) != size:
        raise ValueError(
            f"An action of shape {result} does not hold {size} numbers. "
            f"Received: shape={shape}"
        )
    return result


def one_or_each(name: str, values: Any, size: int, kinds: str = "fiu") -> np.ndarray:
    """Returns an argument as an array, or raises unless it is one or `size` numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in kinds or array.shape not in ((), (size,)):
        numbers = "number" if "f" in kinds else "whole number"
        raise ValueError(
            f"`{name}` must be one {numbers} or {size} {numbers}s. "
            f"Received: {name}={array.tolist()!r}"
        )
    return array


def one_if_equal(values: list) -> Any:
    """Returns one number if all numbers of a list are equal, else the list."""
    return values[0] if all(value == values[0] for value in values) else values
