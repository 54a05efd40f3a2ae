"""Layers that XLA or LiteRT cannot compile."""

import keras
import tensorflow as tf


class Unconvertible(keras.layers.Layer):
    """Computes a determinant, which LiteRT does not support."""

    def call(self, inputs):
        square = tf.eye(2) + inputs[:, :1, None] * tf.eye(2)
        return inputs * tf.linalg.det(square)[:, None]


class Spelling(keras.layers.Layer):
    """Contains strings, which XLA does not support."""

    def call(self, inputs):
        return tf.strings.to_number(tf.strings.as_string(inputs))
