"""Computes losses whose gradients are policy gradients: sums over steps, per episode.

A mean over steps is not the policy gradient. It divides each batch by its mean episode
length, which depends on the actions; with few episodes its expectation can even point in
the opposite direction. Every loss here is a sum over the valid steps of a batch, divided
by the number of *episodes*.
"""

import keras
import tensorflow as tf

from tf_reinforce.functional import shapes


def policy_gradient(log_probs, advantages, episodes):
    """The surrogate whose gradient is REINFORCE.

        L = - 1/E Σₙ log π(aₙ|sₙ) Aₙ,    with A held constant

    Its value means nothing; its gradient is minus the policy gradient.

    Args:
        log_probs: `[N]` float, of the actions as they were sampled, for the `N`
            valid steps of all episodes.
        advantages: `[N]` float, return minus baseline. Zero: the step teaches
            nothing. Gradients stop here.
        episodes: Scalar, `E`.

    Returns:
        Scalar loss in the type of `log_probs`. Gradients flow to `log_probs` only.

    Raises:
        ValueError: when the shapes differ; nothing is broadcast.

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


def entropy(entropies, episodes):
    """Minus the entropy of the policy, summed over an episode: a term of the loss.

        L = - 1/E Σₙ H(π(·|sₙ))

    Args:
        entropies: `[N]` float, in nats, for the valid steps.
        episodes: Scalar, `E`.

    Returns:
        Scalar loss; making it small makes the policy more random.

    Example:

    >>> entropy(tf.constant([0.5, 0.5]), 1.0).numpy()
    np.float32(-1.0)

    Reference:
        Williams & Peng (1991), Function optimization using connectionist
        reinforcement learning algorithms. doi:10.1080/09540099108946587
    """
    shapes.expect([(entropies, "N"), (episodes, ())])
    return -tf.reduce_sum(entropies) / tf.cast(episodes, entropies.dtype)


def value(values, returns, episodes):
    """Half the squared error of a value baseline, summed over an episode.

        L = 1/E Σₙ (v(sₙ) - Gₙ)² / 2,    with G held constant

    Args:
        values: `[N]` float, predictions for the valid steps.
        returns: `[N]` float, their targets. Gradients stop here.
        episodes: Scalar, `E`.

    Returns:
        Scalar loss in the type of `values`.

    Raises:
        ValueError: when the shapes differ; nothing is broadcast.

    Example:

    >>> value(tf.constant([1.0, 2.0]), tf.constant([3.0, 2.0]), 2.0).numpy()
    np.float32(1.0)
    """
    shapes.expect([(values, "N"), (returns, "N"), (episodes, ())])
    errors = values - tf.stop_gradient(tf.cast(returns, values.dtype))
    return tf.reduce_sum(tf.square(errors)) / (2.0 * tf.cast(episodes, values.dtype))


def gradients(tape, loss, variables):
    """∂L/∂w for each Keras variable; zeros where the loss does not depend on it.

    Args:
        tape: `tf.GradientTape` that saw the loss.
        loss: Scalar float tensor.
        variables: List of Keras variables.

    Returns:
        List of tensors shaped as the variables.
    """
    # TensorFlow makes no zeros for a Keras variable, only for its own inside.
    inside = [variable.value for variable in variables]
    none = tf.UnconnectedGradients.ZERO
    found = tape.gradient(loss, inside, unconnected_gradients=none)
    # That of an embedding is slices, which are no array.
    return [tf.convert_to_tensor(gradient) for gradient in found]


def global_norm(gradients):
    """The length of all gradients as one vector, √Σ g².

    Args:
        gradients: List of float tensors; their types may differ.

    Returns:
        Scalar, float64 if one of the gradients is, else float32.

    Example:

    >>> global_norm([tf.constant([3.0], tf.bfloat16), tf.constant([4.0])]).numpy()
    np.float32(5.0)
    """
    double = any(gradient.dtype == tf.float64 for gradient in gradients)
    dtype = tf.float64 if double else tf.float32
    return tf.linalg.global_norm([tf.cast(gradient, dtype) for gradient in gradients])


# The agent has the plain name.
@keras.saving.register_keras_serializable("tf_reinforce", name="ReinforceLoss")
class Reinforce(keras.losses.Loss):
    """REINFORCE as a loss for plain `model.compile` and `model.fit`.

        Lₙ = - log π(aₙ|sₙ),    weighted by  sample_weight = advantages

    With `fit(observations, actions, sample_weight=advantages)` one step on one batch
    is the policy gradient of these steps. Keras divides by the number of steps in
    the batch; `reduction="sum"` with advantages divided by the number of episodes
    gives the estimator of `policy_gradient`.

    Fractional actions are refused, but not under XLA, which drops assertions.

    Pitfall: one-hot labels multiplied by the return under
    `categorical_crossentropy(from_logits=True)` have the same loss and a *different*
    gradient.

    Args:
        head: `tfr.heads.Head`, for example `tfr.heads.Gaussian(2)`; its own weights
            are not the model's, and `fit` does not train them. `None`: the outputs are
            the logits of a categorical distribution, the actions whole numbers from 0.
            A `Composite`, whose actions are several arrays, is refused.
        reduction: As in every Keras loss.
        name: Optional name.

    Example:

    >>> loss = Reinforce(reduction="sum")
    >>> logits = tf.math.log([[0.6, 0.4], [0.6, 0.4]])
    >>> float(loss(tf.constant([0, 1]), logits, sample_weight=[1.0, 0.0]))  # -log 0.6
    0.51082...
    """

    def __init__(self, head=None, *, reduction="sum_over_batch_size", name="reinforce"):
        super().__init__(name=name, reduction=reduction)
        if head is not None and not isinstance(
            head.action_spec("float32"), tf.TensorSpec
        ):
            raise ValueError(
                "Keras hands a loss one array of actions, and this head has several. "
                f"Received: head={head!r}. Give a head for one array, or learn with "
                "`tfr.Reinforce(policy, head)`, which takes nested actions."
            )
        self.head = head

    def call(self, y_true, y_pred):
        action_shape = () if self.head is None else self.head.action_shape
        expected = [*y_pred.shape[:-1], *action_shape]
        if not y_true.shape.is_compatible_with(expected):
            raise ValueError(
                f"Actions for outputs of shape {y_pred.shape} must have the shape "
                f"{tuple(expected)}. Received: shape {y_true.shape}. Nothing is "
                "broadcast. Remove the last axis, for example `actions[:, 0]`."
            )
        if self.head is None:
            actions = _whole(y_true, tf.int32)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(actions, y_pred)
        if y_pred.shape[-1] not in (None, self.head.outputs_size):
            raise ValueError(
                f"{self.head!r} needs {self.head.outputs_size} outputs for each action. "
                f"Received: outputs of shape {y_pred.shape}. Change the last layer."
            )
        if not self.head.built:
            self.head.build(y_pred.shape)
        dtype = tf.as_dtype(self.head.action_dtype or y_pred.dtype)
        actions = _whole(y_true, dtype) if dtype.is_integer else tf.cast(y_true, dtype)
        return -self.head.distribution(y_pred).log_prob(actions)

    def get_config(self):
        head = keras.saving.serialize_keras_object(self.head)
        return {**super().get_config(), "head": head}

    @classmethod
    def from_config(cls, config):
        head = keras.saving.deserialize_keras_object(config["head"])
        return cls(**{**config, "head": head})


def _whole(actions, dtype):
    """Actions in a whole type: Keras hands them over as floats, perhaps fractions."""
    whole = tf.cast(actions, dtype)
    tf.debugging.assert_equal(
        tf.cast(whole, actions.dtype), actions, message="Actions must be whole numbers."
    )
    return whole
