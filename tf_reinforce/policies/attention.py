"""`CausalSelfAttention`, a Keras layer that remembers the last steps of an episode."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.support import validation

_GATES = None, "gru"


@keras.saving.register_keras_serializable("tf_reinforce")
class CausalSelfAttention(keras.layers.Layer):
    """Lets each step of an episode attend to itself and the steps before it.

        yₜ = W_o Σ_{i<K} αₜᵢ vₜ₋ᵢ,    αₜ = softmaxᵢ(qₜ·kₜ₋ᵢ / √d + bᵢ)

    Use it in a policy of sequences, `keras.Input((None, …))`, like a
    `GRU(…, return_sequences=True)`: an update reads whole episodes at once, and acting
    reads one step at a time, with the keys and values of the last K steps as the
    recurrent state. Both compute the same. The attention never reads later steps, nor
    the rows of another episode. Positions are relative: bᵢ is a learned number for each
    head and each age i, zero before training.

    Args:
        heads: Positive int, the attention heads.
        key_dim: Positive int d, the size of a head's queries, keys and values.
        window: Positive int K, how many steps each step attends to, itself included. The
            memory of an update grows with T × min(T, K) for episodes of T steps.
        gate: `None` returns y, so add a residual connection around the layer yourself.
            `"gru"` normalizes the inputs with LayerNormalization, and mixes relu(y) with
            the inputs x as in GTrXL (Parisotto et al., 2020, section 3.2):

                r = σ(W_r y + U_r x),    z = σ(W_z y + U_z x - b),    b = 2 at first
                h = tanh(W_h y + U_h (r ⊙ x)),    (1 - z) ⊙ x + z ⊙ h

            With b = 2, a new layer hardly changes its inputs, so stacks of such layers
            learn well from the first update.

    Shapes:
        `[B, T, D]` inputs and outputs. A Keras mask `[B, T]` excludes steps from being
        attended to.

    Example:

    >>> layer = CausalSelfAttention(heads=2, key_dim=8, window=16)
    >>> layer(tf.zeros([3, 100, 5])).shape
    TensorShape([3, 100, 5])

    Reference:
        Parisotto et al. (2020), Stabilizing Transformers for Reinforcement Learning.
        https://arxiv.org/abs/1910.06764
    """

    def __init__(
        self,
        heads: int,
        key_dim: int,
        *,
        window: int,
        gate: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = validation.positive_int("heads", heads)
        self.key_dim = validation.positive_int("key_dim", key_dim)
        self.window = validation.positive_int("window", window)
        self.gate = validation.one_of("gate", gate, _GATES)
        self.supports_masking = True

    def build(self, inputs_shape: Any) -> None:
        size, inner = inputs_shape[-1], self.heads * self.key_dim
        add = self.add_weight
        self.projection = add((size, 3 * inner), name="projection")
        self.output_kernel = add((inner, size), name="output_kernel")
        self.output_bias = add((size,), "zeros", name="output_bias")
        self.bias = add((self.heads, self.window), "zeros", name="bias")
        if self.gate is not None:
            self.norm = keras.layers.LayerNormalization(dtype=self.dtype_policy)
            self.norm.build(inputs_shape)
            self.gate_y = add((size, 3 * size), name="gate_y")
            self.gate_x = add((size, 2 * size), name="gate_x")
            self.gate_rx = add((size, size), name="gate_rx")
            constant = keras.initializers.Constant(2.0)
            self.gate_bias = add((size,), constant, name="gate_bias")

    def call(self, sequences: Any, mask: Any = None) -> Any:
        """Attends within B sequences of T steps, in blocks of at most K steps.

        A step of a block attends to its block and the one before, which contain all of
        its last K steps.
        """
        batch, steps = tf.unstack(tf.shape(sequences)[:2])
        size = tf.clip_by_value(steps, 1, self.window)
        count = -(-steps // size)
        parts = self._projected(sequences)
        query, keys, values = (
            tf.reshape(
                tf.pad(x, [[0, 0], [0, count * size - steps], [0, 0], [0, 0]]),
                [batch, count, size, self.heads, self.key_dim],
            )
            for x in parts
        )
        ages = tf.range(size, 2 * size)[:, None] - tf.range(2 * size)
        rows = tf.range(count)[:, None] * size + tf.range(-size, size)
        attended = (rows >= 0)[None, :, None, :]
        if mask is not None:
            legal = tf.gather(tf.pad(mask, [[0, 0], [size, size]]), rows + size, axis=1)
            attended &= legal[:, :, None, :]
        scores = tf.einsum("bnqhd,bnkhd->bnhqk", query, _with_previous(keys))
        attended &= (ages >= 0) & (ages < self.window)
        bias = tf.gather(self._bias(), tf.clip_by_value(ages, 0, self.window - 1), axis=1)
        weights = self._weights(scores + bias, attended[:, :, None])
        mixed = tf.einsum("bnhqk,bnkhd->bnqhd", weights, _with_previous(values))
        shape = [batch, count * size, self.heads * self.key_dim]
        return self._output(sequences, tf.reshape(mixed, shape)[:, :steps])

    def get_initial_state(self, batch_size: Any) -> list:
        """Returns the state before the first step: no keys and values, and no steps."""
        size = self.window * 2 * self.heads * self.key_dim
        dtype = self.compute_dtype
        return [tf.zeros([batch_size, size], dtype), tf.zeros([batch_size, 1], dtype)]

    def step(self, inputs: Any, states: list) -> tuple:
        """Attends to the last K steps, of which the states hold keys and values.

        Args:
            inputs: `[N, D]`, one step of N sequences.
            states: `[N, K·2·heads·d]`, the keys and values of earlier steps, oldest
                first; and `[N, 1]`, the number of earlier steps, at most K.

        Returns:
            `[N, D]` outputs, and the list of new states.
        """
        inner = self.heads * self.key_dim
        query, *new = (x[:, 0] for x in self._projected(inputs[:, None]))
        cache = tf.reshape(states[0], [-1, self.window, 2, self.heads, self.key_dim])
        cache = tf.concat([cache[:, 1:], tf.stack(new, axis=1)[:, None]], axis=1)
        count = tf.minimum(states[1] + 1, tf.cast(self.window, states[1].dtype))
        ages = np.arange(self.window)[::-1].copy()
        attended = tf.constant(ages, count.dtype) < count
        scores = tf.einsum("nhd,nkhd->nhk", query, cache[:, :, 0])
        bias = tf.reverse(self._bias(), axis=[1])
        weights = self._weights(scores + bias, attended[:, None])
        mixed = tf.einsum("nhk,nkhd->nhd", weights, cache[:, :, 1])
        outputs = self._output(inputs, tf.reshape(mixed, [-1, inner]))
        return outputs, [tf.reshape(cache, [-1, self.window * 2 * inner]), count]

    def _projected(self, sequences: Any) -> list:
        """Returns queries, divided by √d, keys and values, each `[B, T, heads, d]`."""
        if self.gate is not None:
            sequences = self.norm(sequences)
        projected = tf.matmul(sequences, self._cast(self.projection))
        shape = tf.concat([tf.shape(projected)[:2], [3, self.heads, self.key_dim]], 0)
        query, keys, values = tf.unstack(tf.reshape(projected, shape), axis=2)
        return [query / np.sqrt(self.key_dim), keys, values]

    def _bias(self) -> Any:
        return self._cast(self.bias)

    def _cast(self, weight: Any) -> Any:
        return tf.cast(tf.convert_to_tensor(weight), self.compute_dtype)

    def _weights(self, scores: Any, attended: Any) -> Any:
        lowest = tf.constant(scores.dtype.min / 2, scores.dtype)
        return tf.nn.softmax(tf.where(attended, scores, lowest))

    def _output(self, inputs: Any, mixed: Any) -> Any:
        outputs = tf.matmul(mixed, self._cast(self.output_kernel))
        outputs += self._cast(self.output_bias)  # LiteRT ignores a relu after a matmul
        if self.gate is None:
            return outputs
        outputs = tf.nn.relu(outputs)
        by_y = tf.split(tf.matmul(outputs, self._cast(self.gate_y)), 3, axis=-1)
        by_x = tf.split(tf.matmul(inputs, self._cast(self.gate_x)), 2, axis=-1)
        reset = tf.sigmoid(by_y[0] + by_x[0])
        update = tf.sigmoid(by_y[1] + by_x[1] - self._cast(self.gate_bias))
        new = tf.tanh(by_y[2] + tf.matmul(reset * inputs, self._cast(self.gate_rx)))
        return inputs + update * (new - inputs)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        names = "heads", "key_dim", "window", "gate"
        return {**super().get_config(), **{x: getattr(self, x) for x in names}}


def _with_previous(blocks: Any) -> Any:
    """Joins each of n blocks `[B, n, size, …]` to the block before it, or zeros."""
    previous = tf.pad(blocks, [[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]])[:, :-1]
    return tf.concat([previous, blocks], axis=2)
