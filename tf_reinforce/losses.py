"""Losses whose gradients are the ones meant: sums over steps, per episode.

A mean over steps is not the policy gradient; with episodes of different length it
can point the other way. Every loss here is a sum over the valid steps of a batch,
divided by its number of *episodes*.
"""

import keras
import tensorflow as tf


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
    tf.debugging.assert_shapes([(log_probs, "N"), (advantages, "N")])
    advantages = tf.stop_gradient(tf.cast(advantages, log_probs.dtype))
    return -tf.reduce_sum(log_probs * advantages) / tf.cast(episodes, log_probs.dtype)


def entropy(entropies, episodes):
    """Minus the entropy of the policy, summed over an episode: a bonus to subtract.

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
    tf.debugging.assert_shapes([(entropies, "N")])
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
    tf.debugging.assert_shapes([(values, "N"), (returns, "N")])
    errors = values - tf.stop_gradient(tf.cast(returns, values.dtype))
    return tf.reduce_sum(tf.square(errors)) / (2.0 * tf.cast(episodes, values.dtype))


@keras.saving.register_keras_serializable("tf_reinforce")
class Reinforce(keras.losses.Loss):
    """REINFORCE as a loss for plain `model.compile` and `model.fit`.

        Lₙ = - log π(aₙ|sₙ),    weighted by  sample_weight = advantages

    With `fit(observations, actions, sample_weight=advantages)` one step on one batch
    is the policy gradient of these steps. Keras divides by the number of steps in
    the batch; `reduction="sum"` with advantages divided by the number of episodes
    gives the estimator of `policy_gradient`.

    Pitfall: one-hot labels multiplied by the return under
    `categorical_crossentropy` have the same loss and a *different* gradient.

    Args:
        head: An object with `distribution(outputs)`, for example
            `tfr.heads.Gaussian(2)`. `None`: the outputs are the logits of a
            categorical distribution and the actions whole numbers from 0.
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
        self.head = head

    def call(self, y_true, y_pred):
        if self.head is None:
            return _categorical_surprise(y_true, y_pred)
        if not self.head.built:
            self.head.build(y_pred.shape)
        log_probs = self.head.distribution(y_pred).log_prob(
            tf.cast(y_true, self.head.action_dtype or y_pred.dtype)
        )
        if log_probs.shape.rank != y_pred.shape.rank - 1:
            raise ValueError(
                f"Actions of shape {y_true.shape} do not fit outputs of shape "
                f"{y_pred.shape}: one log-probability per row was expected. "
                f"Received: shape {log_probs.shape}"
            )
        return -log_probs

    def get_config(self):
        head = keras.saving.serialize_keras_object(self.head)
        return {**super().get_config(), "head": head}

    @classmethod
    def from_config(cls, config):
        config = dict(config, head=keras.saving.deserialize_keras_object(config["head"]))
        config.pop("dtype", None)
        return cls(**config)


def _categorical_surprise(actions, logits):
    if actions.shape.rank != logits.shape.rank - 1:
        raise ValueError(
            "Actions must be whole numbers with one axis fewer than the logits. "
            f"Received: actions of shape {actions.shape}, logits of shape "
            f"{logits.shape}. Remove the last axis, for example `actions[:, 0]`."
        )
    whole = tf.cast(actions, tf.int32)
    # Keras hands labels over as floats; a fraction would be cut to another action.
    with tf.control_dependencies(
        [
            tf.debugging.assert_equal(
                tf.cast(whole, actions.dtype),
                actions,
                message="Actions must be whole numbers.",
            )
        ]
    ):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(whole, logits)
