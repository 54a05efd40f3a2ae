"""KerasHub's causal language models as policies over tokens."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.heads import categorical
from tf_reinforce.policies import actor

_NOISE = [seeding.NoiseSpec("uniform", ())]


class Completions(NamedTuple):
    """R completions, each behind its prompt, in rows of L tokens.

    A completion consists of tokens that the model has sampled, among them the end token,
    and of tokens from replies.
    """

    token_ids: tf.Tensor  # [R, L] int32, prompt, completion and padding
    padding_mask: tf.Tensor  # [R, L] bool, False for padding
    sampled: tf.Tensor  # [R, L] bool, True for tokens that the model has sampled
    log_probs: tf.Tensor  # [R, L] float, of the sampled tokens, when they were sampled
    truncated: tf.Tensor  # [R] bool, True if the length limit has ended the completion
    others: dict[str, Any]  # further inputs of the model, `[R, …]`

    @property
    def inputs(self):
        """Returns the inputs of the language model, a dict."""
        own = {"token_ids": self.token_ids, "padding_mask": self.padding_mask}
        return {**self.others, **own}

    @property
    def row_log_probs(self):
        """Returns each completion's log-probability when it was sampled, `[R]`."""
        return tf.reduce_sum(self.log_probs, axis=1)

    def rows(self, indices):
        """Returns the `Completions` of some rows."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self)


def from_prompts(inputs, group_size, dtype):
    """Returns `Completions` without sampled tokens, `group_size` rows per prompt.

    Args:
        inputs: Dict of inputs of the language model for P prompts, at least `token_ids`
            and `padding_mask`, each `[P, L]`.
        group_size: Int, how many consecutive rows begin with the same prompt.
        dtype: Float type of log-probabilities.
    """
    inputs = {name: tf.repeat(x, group_size, axis=0) for name, x in inputs.items()}
    token_ids = tf.cast(inputs.pop("token_ids"), tf.int32)
    padding_mask = tf.cast(inputs.pop("padding_mask"), tf.bool)
    sampled, log_probs = tf.zeros_like(padding_mask), tf.zeros(token_ids.shape, dtype)
    truncated = tf.zeros(token_ids.shape[:1], tf.bool)
    return Completions(token_ids, padding_mask, sampled, log_probs, truncated, inputs)


class TokenPolicy:
    """The distribution over the next token, for sampling, scoring and the reference.

        π(token | earlier tokens) = softmax(logits / temperature)

    Token ids that the tokenizer cannot decode have probability zero. The model is always
    called with `training=False`, which turns dropout off. The sampled tokens therefore
    follow exactly the distribution whose log-probabilities are differentiated.

    Args:
        causal_lm: `keras_hub.models.CausalLM` or a Keras model with the same methods.
        temperature: Float above 0.
        encoding: `Encoding`, for the end tokens and the padding.
    """

    def __init__(self, causal_lm, temperature, encoding):
        self.causal_lm = causal_lm
        self.temperature = temperature
        self.encoding = encoding

    @property
    def dtype(self):
        """Returns the name of the log-probabilities' float type, at least float32."""
        return actor.float_type(self.causal_lm)

    def outputs(self, logits):
        """Returns logits divided by the temperature, at least float32."""
        outputs = tf.cast(logits, self.dtype) / self.temperature
        illegal = self.encoding.ids_without_token(outputs.shape[-1])
        return categorical.mask_logits(outputs, illegal) if illegal.any() else outputs

    def distribution(self, outputs):
        """Returns the TFP distribution over V tokens for outputs `[..., V]`."""
        return heads.Categorical(outputs.shape[-1]).distribution(outputs)

    def sample(self, completions, limits, key=None, replayed=None):
        """Continues all rows of `Completions` that are shorter than their limit.

        Args:
            completions: `Completions` of R rows.
            limits: `[R]` int, the largest number of tokens of each row.
            key: `[2]` uint32, the key of the random numbers, or `None` to select the most
                likely tokens.
            replayed: `[R, n]` int, the tokens that are selected, or `None`.
        """
        before, results = _count(completions.sampled), []

        def choose(outputs, index, counts):
            if replayed is not None:
                # Rows that have ended ignore their tokens.
                positions = tf.minimum(before + counts, replayed.shape[1] - 1)
                return tf.gather(replayed, positions, batch_dims=1)
            if key is None:
                return tf.argmax(outputs, axis=1, output_type=tf.int32)
            return sample_tokens(outputs, key, index)

        def sampler(next, prompt, cache=None, index=0, mask=None, **kwargs):
            rows = prompt, tf.cast(mask, tf.bool), limits
            results.append(self._continued(next, cache, index, rows, choose))
            return results[0][0]

        model, previous = self.causal_lm, getattr(self.causal_lm, "sampler", None)
        model.sampler = sampler
        try:
            model.generate_step(completions.inputs, self.encoding.end_token_ids)
        finally:
            model.sampler = previous
        token_ids, log_probs, new = results[0]
        continues = tf.reduce_any(new, axis=1)
        truncated = continues & ~tf.reduce_any(new & self._is_end(token_ids), axis=1)
        return completions._replace(
            token_ids=token_ids,
            padding_mask=completions.padding_mask | new,
            sampled=completions.sampled | new,
            log_probs=completions.log_probs + log_probs,
            truncated=tf.where(continues, truncated, completions.truncated),
        )

    def _is_end(self, tokens):
        return tf.reduce_any(tokens[..., None] == self.encoding.end_token_ids, axis=-1)

    def _continued(self, next, cache, index, rows, choose):
        """Samples tokens with a cache, one per row and step, until all rows end.

        A row ends with an end token or at its limit, and is then filled with padding.
        KerasHub's own samplers are not used because they stop if the padding is the end
        token, or do not sample from a softmax.

        Args:
            next: Function of KerasHub that computes the logits of the next token.
            cache, index: Arguments of the first call of `next`.
            rows: Prompts `[R, L]`, a mask of their tokens, and limits as in `sample`.
            choose: Function that returns the next tokens, `[R]`, from the outputs
                `[R, V]`, the scalar index of the tokens in their rows, and the numbers of
                tokens sampled before, `[R]`.

        Returns:
            Triple of token ids, log-probabilities and a mask of the sampled tokens, each
            `[R, L]`.
        """
        prompt, is_prompt, limits = rows
        length, used = tf.shape(prompt)[1], _count(is_prompt)
        columns = tf.range(length)[None]

        def step(index, token_ids, log_probs, sampled, ended, cache):
            logits, _, cache = next(token_ids, cache, index)
            outputs = self.outputs(logits)
            tokens = tf.cast(choose(outputs, index, _count(sampled)), token_ids.dtype)
            is_new = ~ended & (index >= used)
            here = is_new[:, None] & (columns == index)
            token_ids = tf.where(here, tokens[:, None], token_ids)
            new = self.distribution(outputs).log_prob(tokens)[:, None]
            log_probs = tf.where(here, new, log_probs)
            is_end = self._is_end(tokens)
            ended |= is_new & (is_end | (index + 1 >= limits))
            return index + 1, token_ids, log_probs, sampled | here, ended, cache

        padding = tf.cast(self.encoding.pad_token_id, prompt.dtype)
        token_ids = tf.where(is_prompt, prompt, padding)
        empty = tf.zeros(tf.shape(prompt), self.dtype), tf.zeros_like(is_prompt)
        start = tf.cast(index, tf.int32), token_ids, *empty, used >= limits, cache

        goes_on = lambda *carry: ~tf.reduce_all(carry[4])  # noqa: E731
        return tf.while_loop(goes_on, step, start, maximum_iterations=length)[1:4]

    def log_probs(self, completions, weights=None):
        """Returns log-probabilities and entropies of the sampled tokens.

        Args:
            completions: `Completions` of R rows with L tokens.
            weights: List of tensors that replace the trainable weights of the model, or
                `None`.

        Returns:
            Log-probabilities `[R, L]` and entropies `[R, L]` in nats, zero in prompts,
            replies and padding. Gradients flow through the log-probabilities only.
        """
        model, inputs = self.causal_lm, completions.inputs
        if weights is None:
            logits = model(inputs, training=False)
        else:
            fixed = [variable.value for variable in model.non_trainable_variables]
            logits, _ = model.stateless_call(weights, fixed, inputs, training=False)
        # The outputs at one token are the distribution of the next token.
        outputs = self.outputs(logits[:, :-1])
        tokens, sampled = completions.token_ids[:, 1:], completions.sampled[:, 1:]
        log_probs = self.distribution(outputs).log_prob(tokens)
        entropies = self.distribution(tf.stop_gradient(outputs)).entropy()
        return tuple(
            tf.pad(tf.where(sampled, x, 0.0), [[0, 0], [1, 0]])
            for x in (log_probs, entropies)
        )


def inverse_cdf(probs, uniform):
    """Returns the tokens that uniform random numbers select, each with its probability.

        token = the number of tokens k with  p₀ + … + pₖ ≤ u

    Args:
        probs: `[R, V]` float64, the probabilities of V tokens. A token with probability
            zero is never selected.
        uniform: `[R]` float64 in [0, 1).

    Returns:
        `[R]` int32.
    """
    cdf = tf.cumsum(probs, axis=1)
    # The sum of all probabilities is 1 only up to rounding. The product of the sum and a
    # number below 1 is always smaller than the sum.
    return _count(cdf <= uniform[:, None] * cdf[:, -1:])


def sample_tokens(outputs, key, index):
    """Samples a token for each row from the softmax of the outputs.

    Its random number depends on key, row and index only.

    Args:
        outputs: `[R, V]` float, the logits of V tokens.
        key: `[2]` uint32, the key of an update's random numbers.
        index: Scalar int, the index of the token in its row.
    """
    rows = tf.range(tf.shape(outputs)[0])
    uniform = tensor_noise.counter_noise(key, _NOISE, rows, index, tf.float64)[0]
    return inverse_cdf(tf.nn.softmax(tf.cast(outputs, tf.float64)), uniform)


def _count(mask):
    return tf.reduce_sum(tf.cast(mask, tf.int32), axis=1)


class AdapterWeights(keras.layers.Layer):
    """Saves the weights of a language model's layers with adapters (LoRA).

    When Keras saves a layer with adapters, it adds the adapters to the kernel. After
    loading, the adapters are zeros, which would never learn again, so this class saves
    the weights of these layers itself. Keras reads a model's attributes in alphabetical
    order, and the attribute with this object must come after the language model.

    Args:
        causal_lm: Keras model.
    """

    def __init__(self, causal_lm, **kwargs):
        super().__init__(**kwargs)
        # A function prevents that Keras tracks the layers twice.
        self._find_layers = lambda: _adapter_layers(causal_lm).values()
        self.built = True

    def save_own_variables(self, store):
        for name, variable in self._named():
            store[name] = np.array(variable)

    def load_own_variables(self, store):
        for name, variable in self._named():
            variable.assign(store[name])

    def _named(self):
        for number, layer in enumerate(self._find_layers()):
            for position, variable in enumerate(layer.variables):
                yield f"{number}_{position}", variable


def _adapter_layers(causal_lm):
    """Returns the layers with adapters, by their numbers among all layers."""
    layers = enumerate(causal_lm._flatten_layers())
    return {n: layer for n, layer in layers if getattr(layer, "lora_enabled", False)}


def training_state(causal_lm):
    """Returns which weights are trained, and the adapters, as a config for a file.

    The config of a KerasHub model contains neither adapters nor frozen layers.
    """
    adapters = {
        str(number): [layer.lora_rank, layer.lora_alpha]
        for number, layer in _adapter_layers(causal_lm).items()
    }
    trainable = [bool(variable.trainable) for variable in causal_lm.variables]
    return {"adapters": adapters, "trainable": trainable}


def restore_training_state(causal_lm, config):
    """Adds the adapters of `training_state`, and freezes the same weights."""
    layers = list(causal_lm._flatten_layers())
    for number, (rank, alpha) in config["adapters"].items():
        layers[int(number)].enable_lora(rank, lora_alpha=alpha)
    for variable, flag in zip(causal_lm.variables, config["trainable"], strict=True):
        variable.trainable = flag
