"""Policy-gradient losses: sums over steps, divided by the number of episodes.

Every loss in this module is a sum over the valid steps of a batch, divided by the number
of *episodes*. A mean over steps would be wrong, because it divides by the mean episode
length, which depends on the actions. With few episodes, the expected gradient of such a
mean can even point the other way.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_reinforce.functional import shapes

__all__ = [
    "Reinforce",
    "entropy",
    "global_norm",
    "gradients",
    "policy_gradient",
    "value",
]

__dir__ = __all__.copy  # what tab completion shows


def policy_gradient(
    log_probs: tf.Tensor, advantages: tf.Tensor, episodes: tf.Tensor | int
) -> tf.Tensor:
    """Returns the surrogate loss whose gradient is minus the policy gradient.

        L = - 1/E Σₙ log π(aₙ|sₙ) Aₙ,    with A held constant

    Only its gradient has a meaning: the value does not say how good the policy is.

    Args:
        log_probs: `[N]` float, log π(aₙ|sₙ) of the sampled action at each of the `N`
            valid steps of all episodes.
        advantages: `[N]` float, Aₙ, return minus baseline. A step with zero advantage
            adds nothing to the gradient.
        episodes: Scalar, the number of episodes, `E`.

    Returns:
        Scalar loss in the number type of `log_probs`, the only argument that gradients
        flow to.

    Raises:
        ValueError: If the arguments differ in shape; they are not broadcast.

    Example:

    >>> policy_gradient(tf.constant([-1.0, -2.0]), tf.constant([3.0, 1.0]), 2.0).numpy()
    np.float32(2.5)

    Reference:
        Williams (1992), Simple statistical gradient-following algorithms for
        connectionist reinforcement learning, section 4. doi:10.1007/BF00992696
    """
    shapes.expect([(log_probs, "N"), (advantages, "N"), (episodes, ())])
    advantages = tf.stop_gradient(tf.cast(advantages, log_probs.dtype))
    return -tf.reduce_sum(log_probs * advantages) / tf.cast(episodes, log_probs.dtype)


def entropy(entropies: tf.Tensor, episodes: tf.Tensor | int) -> tf.Tensor:
    """Returns minus the policy's entropy, summed over steps and averaged over episodes.

        L = - 1/E Σₙ H(π(·|sₙ))

    Args:
        entropies: `[N]` float, the policy's entropy at each valid step, in nats.
        episodes: Scalar, the number of episodes, `E`.

    Returns:
        Scalar loss; the smaller, the more random the policy.

    Example:

    >>> entropy(tf.constant([0.5, 0.5]), 1.0).numpy()
    np.float32(-1.0)

    Reference:
        Williams & Peng (1991), Function optimization using connectionist
        reinforcement learning algorithms. doi:10.1080/09540099108946587
    """
    shapes.expect([(entropies, "N"), (episodes, ())])
    return -tf.reduce_sum(entropies) / tf.cast(episodes, entropies.dtype)


def value(values: tf.Tensor, returns: tf.Tensor, episodes: tf.Tensor | int) -> tf.Tensor:
    """Returns half the squared value error, summed over steps and averaged over episodes.

        L = 1/E Σₙ (v(sₙ) - Gₙ)² / 2,    with G held constant

    Args:
        values: `[N]` float, the predicted values v(sₙ) at the `N` valid steps.
        returns: `[N]` float, the returns Gₙ to predict. No gradient flows to them.
        episodes: Scalar, the number of episodes, `E`.

    Returns:
        Scalar loss in the number type of `values`.

    Raises:
        ValueError: If the arguments differ in shape; they are not broadcast.

    Example:

    >>> value(tf.constant([1.0, 2.0]), tf.constant([3.0, 2.0]), 2.0).numpy()
    np.float32(1.0)
    """
    shapes.expect([(values, "N"), (returns, "N"), (episodes, ())])
    errors = values - tf.stop_gradient(tf.cast(returns, values.dtype))
    return tf.reduce_sum(tf.square(errors)) / (2.0 * tf.cast(episodes, values.dtype))


def gradients(
    tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Returns a dense gradient for each Keras variable, zero where the loss ignores it.

    Args:
        tape: `tf.GradientTape` that recorded the loss.
        loss: Scalar float tensor.
        variables: List of Keras variables, for example a model's weights.
    """
    # TensorFlow returns zero gradients only for a `tf.Variable`, which a Keras variable
    # wraps.
    tf_variables = [variable.value for variable in variables]
    zero = tf.UnconnectedGradients.ZERO
    results = tape.gradient(loss, tf_variables, unconnected_gradients=zero)
    # The gradient of an embedding is a `tf.IndexedSlices`.
    return [tf.convert_to_tensor(gradient) for gradient in results]


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns √Σ g², the Euclidean norm of all gradients as one vector.

    Args:
        gradients: List of float tensors, whose number types may differ.

    Returns:
        Scalar, float64 if a gradient is float64, else float32.

    Example:

    >>> global_norm([tf.constant([3.0], tf.bfloat16), tf.constant([4.0])]).numpy()
    np.float32(5.0)
    """
    any_float64 = any(gradient.dtype == tf.float64 for gradient in gradients)
    dtype = tf.float64 if any_float64 else tf.float32
    return tf.linalg.global_norm([tf.cast(gradient, dtype) for gradient in gradients])


# The agent is registered in Keras as "Reinforce". The loss of this name therefore needs
# another registered name.
@keras.saving.register_keras_serializable("tf_reinforce", name="ReinforceLoss")
class Reinforce(keras.losses.Loss):
    """The REINFORCE loss for plain `model.compile` and `model.fit`.

        Lₙ = - log π(aₙ|sₙ),    weighted by  sample_weight = advantages

    If you call `fit(observations, actions, sample_weight=advantages)`, the training
    follows the policy gradient of the batch. Keras divides the loss by the number of
    steps. To get the estimator of `policy_gradient` instead, pass `reduction="sum"` and
    divide the advantages by the number of episodes.

    The loss `categorical_crossentropy(from_logits=True)` with one-hot labels times the
    return is no substitute. It has the same value, but a *different* and wrong gradient.

    The actions of a categorical head must be whole numbers. This is not checked under
    XLA, which drops assertions.

    Args:
        head: `tfr.heads.Head`, for example `tfr.heads.Gaussian(2)`. Its own weights are
            not trained, because they do not belong to the model. With `None`, the outputs
            are logits of a categorical distribution, and actions count from 0. A
            `Composite` is refused: its actions are several arrays, and Keras passes one.
        reduction: Reduction over the batch, as in every Keras loss.
        name: String.

    Example:

    >>> loss = Reinforce(reduction="sum")
    >>> logits = tf.math.log([[0.6, 0.4], [0.6, 0.4]])
    >>> float(loss(tf.constant([0, 1]), logits, sample_weight=[1.0, 0.0]))  # -log 0.6
    0.51082...
    """

    def __init__(
        self,
        head: Any = None,
        *,
        reduction: str = "sum_over_batch_size",
        name: str = "reinforce",
    ) -> None:
        super().__init__(name=name, reduction=reduction)
        if head is not None and not isinstance(
            head.action_spec("float32"), tf.TensorSpec
        ):
            raise ValueError(
                "Keras passes one array of actions to a loss. For nested actions, train "
                f"with `tfr.Reinforce(policy, head)`. Received: head={head!r}"
            )
        self.head = head

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        action_shape = () if self.head is None else self.head.action_shape
        expected = [*y_pred.shape[:-1], *action_shape]
        if not y_true.shape.is_compatible_with(expected):
            raise ValueError(
                f"Actions for outputs of shape {y_pred.shape} must have the shape "
                f"{tuple(expected)}, without broadcasting. Received: shape {y_true.shape}"
            )
        if self.head is None:
            actions = _to_integers(y_true, tf.int32)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(actions, y_pred)
        if y_pred.shape[-1] not in (None, self.head.outputs_size):
            raise ValueError(
                f"{self.head!r} needs {self.head.outputs_size} model outputs for each "
                f"action. Received: outputs of shape {y_pred.shape}"
            )
        if not self.head.built:
            self.head.build(y_pred.shape)
        dtype = tf.as_dtype(self.head.action_dtype or y_pred.dtype)
        convert = _to_integers if dtype.is_integer else tf.cast
        actions = convert(y_true, dtype)
        return -self.head.distribution(y_pred).log_prob(actions)

    def get_config(self) -> dict[str, Any]:
        head = keras.saving.serialize_keras_object(self.head)
        return {**super().get_config(), "head": head}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Reinforce":
        head = keras.saving.deserialize_keras_object(config["head"])
        return cls(**{**config, "head": head})


def _to_integers(actions: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Casts actions to integers, because Keras passes them as floats.

    Raises:
        InvalidArgumentError: If one is not a whole number.
    """
    integers = tf.cast(actions, dtype)
    tf.debugging.assert_equal(
        tf.cast(integers, actions.dtype),
        actions,
        message="Categorical actions must be whole numbers.",
    )
    return integers
