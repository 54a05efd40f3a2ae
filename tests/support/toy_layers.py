"""Layers that cannot go everywhere: XLA and LiteRT refuse them."""

import keras
import tensorflow as tf


class Unconvertible(keras.layers.Layer):
    """LiteRT has no determinant."""

    def call(self, inputs):
        square = tf.eye(2) + inputs[:, :1, None] * tf.eye(2)
        return inputs * tf.linalg.det(square)[:, None]


class Spelling(keras.layers.Layer):
    """XLA has no strings."""

    def call(self, inputs):
        return tf.strings.to_number(tf.strings.as_string(inputs))
