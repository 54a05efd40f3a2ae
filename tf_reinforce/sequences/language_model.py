"""Uses a causal language model of KerasHub as a policy over tokens."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.heads import categorical
from tf_reinforce.policies import actor
from tf_reinforce.sequences import token_sampler


class TokenPolicy:
    """The distribution over the next token, in sampling, scoring and reference.

        π(token | earlier tokens) = softmax(logits / temperature)

    Ids that the tokenizer cannot decode, behind the end of its vocabulary, have the
    probability zero.

    All methods call the model with `training=False`, so that dropout is inactive: the
    tokens follow exactly the distribution whose log-probabilities are differentiated.

    Args:
        causal_lm: `keras_hub.models.CausalLM` or a Keras model with the same methods.
        temperature: Float above 0.
        encoding: `Encoding`, which knows the end tokens and the padding.
    """

    def __init__(self, causal_lm, temperature, encoding):
        self.causal_lm = causal_lm
        self.temperature = temperature
        self.encoding = encoding

    @property
    def dtype(self):
        """Returns the name of the float type of log-probabilities, at least float32."""
        return actor.float_type(self.causal_lm)

    def outputs(self, logits):
        """Returns the outputs, logits divided by the temperature, at least float32."""
        outputs = tf.cast(logits, self.dtype) / self.temperature
        illegal = self.encoding.ids_without_token(outputs.shape[-1])
        return categorical.mask_logits(outputs, illegal) if illegal.any() else outputs

    def distribution(self, outputs):
        """Returns the TFP distribution over V tokens for outputs `[..., V]`."""
        return heads.Categorical(outputs.shape[-1]).distribution(outputs)

    def sample(self, completions, limits, key=None, replayed=None):
        """Continues all rows of `Completions` that have fewer tokens than their limit.

        Args:
            completions: `Completions` of R rows.
            limits: `[R]` int, the largest number of tokens of each row.
            key: `[2]` uint32, the key of the random numbers, or `None` to select the most
                likely tokens.
            replayed: `[R, n]` int, the tokens that are selected, or `None`.
        """
        end_token_ids = self.encoding.end_token_ids
        before = tf.reduce_sum(tf.cast(completions.sampled, tf.int32), axis=1)

        def choose(outputs, index, counts):
            if replayed is not None:
                # Rows that have ended ignore their tokens.
                positions = tf.minimum(before + counts, replayed.shape[1] - 1)
                return tf.gather(replayed, positions, batch_dims=1)
            if key is None:
                return token_sampler.most_likely_tokens(outputs)
            return token_sampler.sample_tokens(outputs, key, index)

        sampler = token_sampler.TokenSampler(self, choose, limits)
        model, previous = self.causal_lm, getattr(self.causal_lm, "sampler", None)
        model.sampler = sampler
        try:
            model.generate_step(completions.inputs, end_token_ids)
        finally:
            model.sampler = previous
        if sampler.result is None:
            raise ValueError(
                f"`generate_step` of {type(model).__name__} must call `self.sampler`, as "
                "the models of KerasHub do"
            )
        token_ids, log_probs, new = sampler.result
        is_end = tf.reduce_any(token_ids[..., None] == end_token_ids, axis=2)
        continues = tf.reduce_any(new, axis=1)
        truncated = continues & ~tf.reduce_any(new & is_end, axis=1)
        return completions._replace(
            token_ids=token_ids,
            padding_mask=completions.padding_mask | new,
            sampled=completions.sampled | new,
            log_probs=completions.log_probs + log_probs,
            truncated=tf.where(continues, truncated, completions.truncated),
        )

    def log_probs(self, completions, weights=None):
        """Returns log-probabilities and entropies of the sampled tokens.

        Args:
            completions: `Completions` of R rows with L tokens.
            weights: List of tensors that replace the trainable weights of the model, or
                `None`.

        Returns:
            Log-probabilities `[R, L]` and entropies `[R, L]` in nats. Both are zero for
            tokens that the model has not sampled: for prompts, replies and padding.
            Gradients flow to the weights through the log-probabilities only.
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


def expect_causal_lm(causal_lm):
    """Raises an error if the argument `causal_lm` is not a causal language model."""
    methods = "generate_step", "call_with_cache"
    missing = [x for x in methods if not callable(getattr(causal_lm, x, None))]
    if not isinstance(causal_lm, keras.Model) or missing:
        raise TypeError(
            "`causal_lm` must be a causal language model of KerasHub, for example of "
            "`keras_hub.models.CausalLM.from_preset(name)`. Received: "
            f"causal_lm={causal_lm!r}"
        )


class AdapterWeights(keras.layers.Layer):
    """Saves the weights of the layers with adapters (LoRA) of a language model.

    Keras adds the adapters to the kernel in a file, and loads adapters of zeros, which
    would never learn again. Keras reads the attributes of a model in alphabetical order,
    so that an `AdapterWeights` must be read after the language model.

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
