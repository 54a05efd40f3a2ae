"""Small custom heads, with and without faults."""

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import heads

tfd = tfp.distributions


def built(head):
    """Returns the head after building it."""
    if not head.built:
        head.build((None, head.outputs_size))
    return head


def revived(head):
    """Returns the head restored from its config."""
    config = keras.saving.serialize_keras_object(head)
    return built(keras.saving.deserialize_keras_object(config))


class Own(heads.Head):
    """What the custom heads share, without parameters and conversion."""

    def parameters(self, outputs):
        return {}

    def to_environment(self, actions):
        return actions


class Switches(Own):
    """A head for `size` independent binary actions, with one logit each."""

    action_dtype = "int32"

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.outputs_size = size
        self.action_shape = (size,)
        self.noise = heads.NoiseSpec("uniform", (size,))

    def distribution(self, outputs):
        return tfd.Independent(tfd.Bernoulli(logits=outputs), 1)

    def eligibility(self, outputs, actions):
        return tf.cast(actions, outputs.dtype) - tf.sigmoid(outputs)

    def sample(self, outputs, noise):
        return tf.cast(noise < tf.sigmoid(outputs), tf.int32)

    def mode(self, outputs):
        return tf.cast(outputs > 0, tf.int32)

    def is_valid(self, actions):
        return (actions >= 0) & (actions < 2)


class Tempered(heads.Categorical):
    """A categorical head whose logits are divided by a trainable temperature."""

    def build(self, outputs_shape):
        initial = keras.initializers.Constant(0.3)
        self.log_temperature = self.add_weight(name="t", shape=(), initializer=initial)

    def cooled(self, outputs):
        return outputs / tf.exp(tf.cast(self.log_temperature, outputs.dtype))

    def distribution(self, outputs):
        return super().distribution(self.cooled(outputs))

    def eligibility(self, outputs, actions):
        warm = super().eligibility(self.cooled(outputs), actions)
        return self.cooled(warm)

    def sample(self, outputs, noise):
        return super().sample(self.cooled(outputs), noise)


class Logistic(Own):
    """A logistic distribution of one number, with outputs location and log scale."""

    action_dtype = None
    action_shape = (1,)
    outputs_size = 2
    noise = heads.NoiseSpec("uniform", (1,))

    def distribution(self, outputs):
        location, log_scale = outputs[..., :1], outputs[..., 1:]
        return tfd.Independent(tfd.Logistic(location, tf.exp(log_scale)), 1)

    def eligibility(self, outputs, actions):
        z = (actions - outputs[..., :1]) / tf.exp(outputs[..., 1:])
        slope = tf.tanh(z / 2)
        return tf.concat([slope / tf.exp(outputs[..., 1:]), z * slope - 1], axis=-1)

    def sample(self, outputs, noise):
        z = tf.math.log(noise) - tf.math.log1p(-noise)
        return outputs[..., :1] + tf.exp(outputs[..., 1:]) * z

    def mode(self, outputs):
        return outputs[..., :1]


class Bent:
    """A distribution with one fault, in its log-probability or in its entropy."""

    def __init__(self, actions, log_prob=lambda x: x, entropy=lambda x: x):
        self.actions = actions
        self.bend = log_prob, entropy

    def log_prob(self, actions):
        return self.bend[0](self.actions.log_prob(actions))

    def entropy(self):
        return self.bend[1](self.actions.entropy())


class Half(heads.Categorical):
    def distribution(self, outputs):
        return Bent(super().distribution(outputs), lambda x: x / 2)


class Stopped(heads.Categorical):
    """A normalizer without gradient, in log_prob and in the closed form."""

    def distribution(self, outputs):
        total = tf.reduce_logsumexp(outputs, axis=-1)
        bend = total - tf.stop_gradient(total)
        return Bent(super().distribution(outputs), lambda x: x + bend)

    def eligibility(self, outputs, actions):
        return tf.one_hot(actions, self.size, dtype=outputs.dtype)
