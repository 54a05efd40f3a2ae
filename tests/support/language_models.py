"""Tiny language models, with few enough completions to enumerate."""

import keras
import keras_hub

CHARACTERS = "0123456789+="
END, PADDING = 13, 0


def random_weights(model, seed=0, scale=0.5):
    """Sets weights far from zero, so no two tokens are equally likely."""
    for number, variable in enumerate(model.trainable_variables):
        noise = keras.random.normal(variable.shape, seed=1000 * seed + number)
        variable.assign(variable + scale * keras.ops.cast(noise, variable.dtype))


def gpt2(vocabulary_size=3, length=8, dtype="float64", seed=0, dropout=0.0, **kwargs):
    """A GPT-2 without preprocessor: prompts are token ids."""
    sizes = dict(num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=vocabulary_size,
        max_sequence_length=length,
        dropout=dropout,
        dtype=dtype,
        **{**sizes, **kwargs},
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, dtype=dtype)
    random_weights(model, seed)
    return model


def tokenizer():
    """A tokenizer for digits, `+` and `=`; KerasHub needs at least one merge."""
    vocabulary = {"<pad>": PADDING, **{c: i + 1 for i, c in enumerate(CHARACTERS)}}
    vocabulary |= {"<|endoftext|>": END, "==": END + 1}
    return keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=["= ="])


def text_gpt2(length=16, seed=0, dropout=0.0, **kwargs):
    """A GPT-2 with preprocessor: prompts are strings of digits, `+` and `=`."""
    keras.utils.set_random_seed(seed)
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
    sizes["vocabulary_size"] = END + 2
    backbone = keras_hub.models.GPT2Backbone(
        max_sequence_length=length,
        dropout=dropout,
        **{**sizes, **kwargs},
    )
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(
        tokenizer(), sequence_length=length
    )
    # The cache has the type of the model.
    return keras_hub.models.GPT2CausalLM(
        backbone, preprocessor, dtype=backbone.dtype_policy
    )
