"""`CausalSelfAttention`, a Keras layer that remembers the last steps of an episode."""

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.support import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class CausalSelfAttention(keras.layers.Layer):
    """Lets each step of an episode attend to itself and the steps before it.

        yₜ = W_o Σ_{i<K} αₜᵢ vₜ₋ᵢ + b_o,    αₜ = softmaxᵢ(R(i) qₜ·kₜ₋ᵢ / √d)

    Use it in a policy or value model of sequences, `keras.Input((None, …))`, like a
    `GRU(…, return_sequences=True)`. An update calls it on whole episodes. To act, it
    takes one step at a time, with the keys and values of the last K steps as its
    recurrent state, and computes the same outputs. A step reads neither later steps nor
    other episodes.

    R(i) rotates a query by angles proportional to i, the age of the step that it attends
    to (rotary position embedding). So the layer knows how long ago a step was, and needs
    no positions in its inputs.

    Args:
        heads: Positive int, the number of attention heads.
        key_dim: Even positive int d, the size of a head's queries, keys and values.
        window: Positive int K: a step attends to the last K steps, itself included. An
            update of episodes of T steps needs memory for T × min(T, 2 K) weights per
            head.
        gate: `None` returns y; normalize the inputs and add y to them yourself. `"gru"`
            does both: the layer attends to layer-normalized inputs, and returns a mixture
            of its inputs x and y′ = relu(y), as in GTrXL (Parisotto et al., 2020, section
            3.2):

                r = σ(W_r y′ + U_r x),    z = σ(W_z y′ + U_z x - b)
                (1 - z) ⊙ x + z ⊙ tanh(W_h y′ + U_h (r ⊙ x))

            The bias b starts at 2, so a new layer changes its inputs only a little.
        seed: Int, which determines the initial weights, or `None`.

    Shapes:
        `[B, T, D]` inputs and outputs. No step attends to one that a Keras mask `[B, T]`
        excludes.

    Example:

    >>> layer = CausalSelfAttention(heads=2, key_dim=8, window=16)
    >>> layer(tf.zeros([3, 100, 5])).shape
    TensorShape([3, 100, 5])

    Reference:
        Parisotto et al. (2020), Stabilizing Transformers for Reinforcement Learning.
        https://arxiv.org/abs/1910.06764
        Su et al. (2021), RoFormer. https://arxiv.org/abs/2104.09864
    """

    def __init__(
        self,
        heads: int,
        key_dim: int,
        *,
        window: int,
        gate: str | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.heads = validation.size("heads", heads)
        self.key_dim = validation.size("key_dim", key_dim)
        if key_dim % 2:
            raise ValueError(f"`key_dim` must be even. Received: key_dim={key_dim}")
        validation.size("heads * key_dim", heads * key_dim)
        self.window = validation.whole_number("window", window, 1, validation.MAX_REPEATS)
        self.gate = validation.one_of("gate", gate, (None, "gru"))
        self.seed = seed
        self.supports_masking = True
        self.input_spec = keras.InputSpec(ndim=3)

    def build(self, inputs_shape: Any) -> None:
        size, inner = inputs_shape[-1], self.heads * self.key_dim
        seeds = keras.random.SeedGenerator(self.seed)
        glorot = keras.initializers.GlorotUniform(seeds)
        for name in ("query_kernel", "key_kernel", "value_kernel"):
            setattr(self, name, self.add_weight((size, inner), glorot, name=name))
        self.output_kernel = self.add_weight((inner, size), glorot, name="output_kernel")
        self.output_bias = self.add_weight((size,), "zeros", name="output_bias")
        if self.gate is not None:
            self.norm = keras.layers.LayerNormalization(dtype=self.dtype_policy)
            self.norm.build(inputs_shape)
            for name, columns in (("gate_y", 3), ("gate_x", 2), ("gate_rx", 1)):
                shape = size, columns * size
                setattr(self, name, self.add_weight(shape, glorot, name=name))
            bias = keras.initializers.Constant(2.0)
            self.gate_bias = self.add_weight((size,), bias, name="gate_bias")

    def call(self, sequences: Any, mask: Any = None) -> Any:
        # In blocks of K steps, a step attends only to its own block and the one before.
        batch, steps = tf.unstack(tf.shape(sequences)[:2])
        size = tf.clip_by_value(steps, 1, self.window)
        count = -(-steps // size)
        past = tf.where(count > 1, size, 0)  # steps of the previous block
        padding = count * size - steps

        def blocks(x: Any) -> Any:
            x = tf.pad(x, [[0, 0], [0, 0], [0, padding], [0, 0]])
            return tf.reshape(x, [batch, self.heads, count, size, self.key_dim])

        def with_past(x: Any) -> Any:
            shifted = tf.pad(x, [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]])[:, :, :-1]
            return tf.concat([shifted[:, :, :, size - past :], x], axis=3)

        projected = self._projected(sequences, tf.range(steps)[None])
        query, keys, values = map(blocks, projected)
        scores = tf.matmul(query, with_past(keys), transpose_b=True)
        columns = tf.range(-past, size)
        ages = tf.range(size)[:, None] - columns
        rows = tf.range(count)[:, None, None] * size + columns  # of the keys, in the T
        attended = (ages >= 0) & (ages < self.window) & (rows >= 0)
        if mask is not None:
            places = tf.clip_by_value(rows[:, 0], 0, steps - 1)
            # LiteRT converts `expand_dims`, but not the slices of bools that add axes.
            legal = tf.gather(tf.cast(mask, tf.bool), places, axis=1)
            attended &= tf.expand_dims(tf.expand_dims(legal, 1), 3)
        mixed = tf.matmul(_softmax(scores, attended), with_past(values))
        mixed = tf.reshape(mixed, [batch, self.heads, count * size, self.key_dim])
        mixed = tf.transpose(mixed[:, :, :steps], [0, 2, 1, 3])
        mixed = tf.reshape(mixed, [batch, steps, self.heads * self.key_dim])
        return self._outputs(sequences, mixed)

    def get_initial_state(self, batch_size: Any) -> list:
        """Returns the state before the first step: empty caches, and zero steps."""
        shape = [batch_size, self.heads, self.window, self.key_dim]
        cache = tf.zeros(shape, self.compute_dtype)
        return [cache, cache, tf.zeros([batch_size], tf.int32)]

    def step(self, inputs: Any, states: list) -> tuple:
        """Returns the outputs of one more step, `[N, D]`, and a list of the new states.

        Args:
            inputs: `[N, D]`, one step of N sequences.
            states: List of the keys and the values of the last K steps,
                `[N, heads, K, d]` each, where step t has the index t mod K; and of the
                number of steps so far, `[N]` int32.
        """
        *caches, position = states
        sequences = tf.expand_dims(inputs, 1)
        query, *new = self._projected(sequences, position[:, None])
        places = tf.range(self.window)
        is_new = tf.equal(places, position[:, None] % self.window)[:, None, :, None]
        # XLA compiles these operations to a program that hardly copies the caches.
        keys, values = map(functools.partial(tf.where, is_new), new, caches)
        attended = (places <= position[:, None])[:, None]
        scores = tf.einsum("nhd,nhkd->nhk", query[:, :, 0], keys)
        weights = _softmax(scores, attended)
        mixed = tf.einsum("nhk,nhkd->nhd", weights, values)
        mixed = tf.reshape(mixed, [-1, self.heads * self.key_dim])
        return self._outputs(inputs, mixed), [keys, values, position + 1]

    def _projected(self, sequences: Any, positions: Any) -> list:
        """Returns queries divided by √d, keys and values, `[B, heads, T, d]`."""
        if self.gate is not None:
            sequences = self.norm(sequences)
        kernels = self.query_kernel, self.key_kernel, self.value_kernel
        query, keys, values = (self._split(sequences, kernel) for kernel in kernels)
        query *= tf.constant(self.key_dim**-0.5, query.dtype)
        query, keys = (_rotated(x, *self._angles(positions)) for x in (query, keys))
        return [query, keys, values]

    def _split(self, sequences: Any, kernel: Any) -> Any:
        projected = tf.matmul(sequences, self._cast(kernel))
        shape = tf.concat([tf.shape(projected)[:2], [self.heads, self.key_dim]], axis=0)
        return tf.transpose(tf.reshape(projected, shape), [0, 2, 1, 3])

    def _angles(self, positions: Any) -> tuple:
        """Returns cosine and sine of each position's angles, `[B, 1, T, d / 2]`."""
        # Each rate is a multiple of 2π / 4K, so angles repeat after 4K steps, and a table
        # holds all of them.
        half, period = self.key_dim // 2, 4 * self.window
        rates = np.round(1e4 ** (-np.arange(half) / half) * period / (2 * np.pi))
        angles = np.arange(period)[:, None] * rates * (2 * np.pi / period)
        rows = tf.expand_dims(positions % period, 1)
        tables = np.cos(angles), np.sin(angles)
        return tuple(tf.gather(self._cast(table), rows) for table in tables)

    def _cast(self, array: Any) -> Any:
        return tf.cast(tf.convert_to_tensor(array), self.compute_dtype)

    def _outputs(self, inputs: Any, mixed: Any) -> Any:
        # Without a bias between them, LiteRT would ignore a relu after a matmul.
        outputs = tf.matmul(mixed, self._cast(self.output_kernel))
        outputs += self._cast(self.output_bias)
        if self.gate is None:
            return outputs
        y, x = tf.nn.relu(outputs), inputs
        by_y = tf.split(tf.matmul(y, self._cast(self.gate_y)), 3, axis=-1)
        by_x = tf.split(tf.matmul(x, self._cast(self.gate_x)), 2, axis=-1)
        reset = tf.sigmoid(by_y[0] + by_x[0])
        share = tf.sigmoid(by_y[1] + by_x[1] - self._cast(self.gate_bias))
        new = tf.tanh(by_y[2] + tf.matmul(reset * x, self._cast(self.gate_rx)))
        return x + share * (new - x)

    def compute_output_shape(self, inputs_shape: Any) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        names = "heads", "key_dim", "window", "gate", "seed"
        return {**super().get_config(), **{x: getattr(self, x) for x in names}}


def _rotated(x: Any, cosine: Any, sine: Any) -> Any:
    """Rotates each pair (xᵢ, xᵢ₊ₕ) of `[B, heads, T, 2 h]` numbers by an angle."""
    first, second = tf.split(x, 2, axis=-1)
    parts = first * cosine - second * sine, first * sine + second * cosine
    return tf.concat(parts, axis=-1)


def _softmax(scores: Any, attended: Any) -> Any:
    lowest = tf.constant(scores.dtype.min / 2, scores.dtype)
    return tf.nn.softmax(tf.where(attended, scores, lowest))
