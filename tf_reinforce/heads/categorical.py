"""`Categorical`, for one action among finitely many."""

from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.support import validation


class LogitsHead(base.Head):
    """A head for choices among categories, each with a logit and a mask entry.

    Attributes:
        choices: Tuple of ints, the number of categories of each choice.
    """

    action_dtype = "int64"  # Gymnasium's type of discrete actions

    def is_logit(self) -> np.ndarray:
        return np.ones(self.outputs_size, bool)

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        return mask_logits(outputs, tf.equal(mask, 0))

    def logits(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the logits of all choices, `[..., K]` or `[..., D, K]`."""
        return outputs

    def mode(self, outputs: tf.Tensor) -> Any:
        return tf.argmax(self.logits(outputs), axis=-1)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        logits = self.logits(outputs)
        return {"logits": logits, "probs": tf.nn.softmax(logits)}


class ChoiceHead(LogitsHead):
    """A head for one action among `size`, from logits that `logits` computes.

    Args:
        size, start: As for `Categorical`.
    """

    action_shape = ()
    argument_names: tuple[str, ...] = ("size", "start")

    def __init__(self, size: int, *, start: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = validation.size("size", size)
        self.start = validation.whole_number("start", start)
        self.choices = (self.size,)
        self.outputs_size = self.mask_size = self.features_size = self.size
        self.noise = seeding.NoiseSpec("uniform", (self.size,))

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> Any:
        return cls(int(space.n), start=int(space.start), **options)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        return tfp.distributions.Categorical(logits=self.logits(outputs))

    def category_log_probs(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(self.logits(outputs))[:, None]

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        # By the Gumbel-max trick, the argmax of logits plus -log(-log u) is a sample.
        return tf.argmax(center_logits(self.logits(outputs)) + gumbel(noise), axis=-1)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        # Padding may contain any number, and is therefore clipped to valid indices.
        indices = np.clip(actions, 0, self.size - 1)[..., None]
        return np.take_along_axis(mask, indices, axis=-1)[..., 0] != 0

    def to_environment(self, actions: Any) -> Any:
        return actions + self.start if self.start else actions

    def matches_space(self, space: Any) -> bool:
        is_discrete = isinstance(space, gym.spaces.Discrete)
        return is_discrete and (space.n, space.start) == (self.size, self.start)

    def is_valid(self, actions: Any) -> Any:
        return (actions >= 0) & (actions < self.size)


@keras.saving.register_keras_serializable("tf_reinforce")
class Categorical(ChoiceHead):
    """One of `K` actions, from `K` policy outputs (the logits).

        π(a|s) = exp(zₐ) / Σₖ exp(zₖ),    a = arg maxₖ [zₖ - log(-log uₖ)]

    To sample an action, one uniform random number uₖ is converted to noise for each logit
    zₖ, and the action with the largest sum is taken (Gumbel-max trick).

    The policy outputs are logits instead of probabilities. The gradient of log π with
    respect to the logits is the one-hot action minus the probabilities, which stays
    accurate even for probabilities close to 0 or 1.

    Args:
        size: Positive int, `K`.
        start: Int, the environment's lowest action, as in Gymnasium's `Discrete(K,
            start)`. Raw actions always count from 0.

    Example:

    >>> head = Categorical(3, start=5)
    >>> logits = tf.constant([[0.0, 9.0, 0.0]])
    >>> raw = head.mode(logits)
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([1], [6])
    """

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        return eligibility.categorical_logits(outputs, actions)

    def action_features(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        return tf.one_hot(actions, self.size, dtype=outputs.dtype)


def mask_logits(logits: Any, illegal: Any) -> Any:
    """Returns finite logits that give illegal actions the probability 0.

    The probabilities of the legal actions keep their ratios and sum to one. An illegal
    action adds nothing to the entropy, and the gradient of its logit is zero.

    Args:
        logits: `[..., K]` float tensor.
        illegal: `[..., K]` bool.

    Returns:
        `[..., K]` float; illegal logits become half the most negative number of the type.
    """
    return tf.where(illegal, tf.constant(logits.dtype.min / 2, logits.dtype), logits)


def center_logits(logits: Any) -> Any:
    """Subtracts the largest logit: adding noise to large ones would lose its digits."""
    return logits - tf.reduce_max(logits, axis=-1, keepdims=True)


def gumbel(noise: Any) -> Any:
    """Converts uniform random numbers u to finite Gumbel noise.

    A uniform number of exactly 0 or 1 would make the noise infinite, which could exclude
    a certain action or select an illegal one. Such numbers are therefore replaced by the
    nearest number inside the interval.
    """
    return -tf.math.log(-tf.math.log(base.clip_to_open(noise)))
