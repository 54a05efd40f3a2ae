"""Completions of prompts, in one turn or in several turns with replies."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_reinforce.sampling import reward_functions
from tf_reinforce.sequences import language_model
from tf_reinforce.sequences import text_rewards


class SampledTexts(NamedTuple):
    """R completions, and the arguments of reward functions that describe them."""

    completions: language_model.Completions
    columns: dict[str, Any]  # lists of R entries: `prompts`, `completions`, …


def converse(model, sample, columns, group_size, key):
    """Samples completions, and asks for replies between the turns.

    Args:
        model: `SequenceReinforce`.
        sample: `model.policy.sample`, or a compiled version.
        columns: Dict of lists of P entries, among them `prompts`.
        group_size: Int, the number of rows for each prompt.
        key: `[2]` uint32, the key of the tokens' random numbers, or `None` for the most
            likely tokens.

    Returns:
        `SampledTexts` of P · `group_size` rows.
    """
    encoding = model.encoding
    inputs, limits = encoding.encode(columns["prompts"])
    prompt_lengths = np.repeat(inputs["padding_mask"].sum(axis=1), group_size)
    limits = np.repeat(limits, group_size)
    columns = {
        name: [x for x in values for _ in range(group_size)]
        for name, values in columns.items()
    }

    def texts(completions):
        """Returns the columns with the texts and token ids of the completions."""
        texts, ids = encoding.decode(completions, prompt_lengths)
        truncated = completions.truncated.numpy().tolist()
        added = {"completions": texts, "completion_ids": ids, "truncated": truncated}
        return {**columns, **added}

    completions = language_model.from_prompts(inputs, group_size, model.policy.dtype)
    completions = sample(completions, limits, key)
    continues = np.ones(len(limits), bool)
    for _ in range(1, model.options.max_turns):
        continues &= ~completions.truncated.numpy()
        if not continues.any():
            break
        replies = _replies(model.reply, texts(completions), continues)
        completions, continues = _append(encoding, completions, replies, limits)
        used = completions.padding_mask.numpy().sum(axis=1)
        turn_limits = np.where(continues, limits, used).astype("int32")
        if continues.any():
            completions = sample(completions, turn_limits, key)
    return SampledTexts(_trimmed(encoding, completions), texts(completions))


def _replies(reply, columns, continues):
    """Returns a reply or `None` for each row; asks only for rows that continue."""
    columns = {
        key: list(itertools.compress(values, continues))
        for key, values in columns.items()
    }
    replies, rows = text_rewards.call_all([reply], columns)[0], len(columns["prompts"])
    if not isinstance(replies, (list, tuple)) or len(replies) != rows:
        raise ValueError(
            f"The function {reward_functions.name_of(reply)!r} must return a list of "
            f"{rows} replies, one string or `None` for each completion. Received: "
            f"{replies!r}"
        )
    replies = iter(replies)
    return [next(replies) if row else None for row in continues]


def _append(encoding, completions, replies, limits):
    """Appends the replies; returns the completions, and which rows continue.

    A row without space for its reply and one more token is truncated.
    """
    names = "token_ids", "padding_mask", "truncated"
    arrays = {name: getattr(completions, name).numpy().copy() for name in names}
    token_ids, padding_mask, truncated = arrays.values()
    continues = np.zeros(len(replies), bool)
    for row, reply in enumerate(replies):
        if reply is None:
            continue
        begin = padding_mask[row].sum()
        ids = encoding.reply_ids(reply)
        if begin + len(ids) >= limits[row]:
            truncated[row] = True
            continue
        token_ids[row, begin : begin + len(ids)] = ids
        padding_mask[row, begin : begin + len(ids)] = True
        continues[row] = True
    arrays = {name: tf.constant(x) for name, x in arrays.items()}
    return completions._replace(**arrays), continues


def _trimmed(encoding, completions):
    """Drops columns that contain only padding."""
    used = completions.padding_mask.numpy().sum(axis=1).max()
    length = completions.padding_mask.shape[1]
    size = min(encoding.padded_length(int(used)), length)
    return tf.nest.map_structure(
        lambda x: x[:, :size] if x.shape[1:] == (length,) else x, completions
    )
