"""Small heads of one's own, each right in its own way."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import heads

tfd = tfp.distributions


class Own(heads.Head):
    """What the toys share: no parameters to name, no environment to please."""

    def parameters(self, outputs):
        return {}

    def to_environment(self, actions):
        return actions


class Switches(Own):
    """`size` independent switches; one logit each."""

    action_dtype = "int32"

    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.outputs_size = size
        self.action_shape = (size,)
        self.noise = heads.Noise("uniform", (size,))

    def distribution(self, outputs):
        return tfd.Independent(tfd.Bernoulli(logits=outputs), 1)

    def eligibility(self, outputs, actions):
        return tf.cast(actions, outputs.dtype) - tf.sigmoid(outputs)

    def sample(self, outputs, noise):
        return tf.cast(noise < tf.sigmoid(outputs), tf.int32)

    def mode(self, outputs):
        return tf.cast(outputs > 0, tf.int32)

    def possible(self, actions):
        return (actions >= 0) & (actions < 2)


class Counts(Own):
    """How often each of `size` actions is taken in `trials` trials; logits.

    Whether a row is possible cannot be told from its entries alone.
    """

    action_dtype = "int32"

    def __init__(self, size, trials, **kwargs):
        super().__init__(**kwargs)
        self.trials = trials
        self.outputs_size = size
        self.action_shape = (size,)
        self.noise = heads.Noise("uniform", (trials, size))

    def distribution(self, outputs):
        logits = outputs - tf.reduce_logsumexp(outputs, axis=-1, keepdims=True)
        return Enumerated(tfd.Multinomial(self.trials, logits=logits), self.rows())

    def rows(self):
        grid = np.indices([self.trials + 1] * self.outputs_size)
        rows = grid.reshape(self.outputs_size, -1).T
        return rows[self.possible(rows)]

    def eligibility(self, outputs, actions):
        return tf.cast(actions, outputs.dtype) - self.trials * tf.nn.softmax(outputs)

    def sample(self, outputs, noise):
        gumbel = outputs[..., None, :] - tf.math.log(-tf.math.log(noise))
        chosen = tf.one_hot(tf.argmax(gumbel, -1), self.outputs_size, dtype=tf.int32)
        return tf.reduce_sum(chosen, axis=-2)

    def mode(self, outputs):
        rows = self.rows()
        best = [
            rows[np.argmax(self.distribution(row).log_prob(rows.astype("float64")))]
            for row in outputs
        ]
        return tf.constant(np.array(best), tf.int32)

    def possible(self, actions):
        return (actions >= 0).all(-1) & (actions.sum(-1) == self.trials)


class Enumerated:
    """A distribution over whole rows whose entropy is a sum over all of them."""

    def __init__(self, actions, rows):
        self.actions = actions
        self.rows = rows

    def log_prob(self, actions):
        return self.actions.log_prob(tf.cast(actions, tf.float64))

    def entropy(self):
        rows = self.rows.reshape(len(self.rows), 1, -1)
        log_probs = self.log_prob(rows)
        return -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=0)


class Tempered(heads.Categorical):
    """A choice whose logits are divided by a temperature that it learns."""

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
    """One real with heavier tails, from uniform noise: location and log scale."""

    action_dtype = None
    action_shape = (1,)
    outputs_size = 2
    noise = heads.Noise("uniform", (1,))

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
