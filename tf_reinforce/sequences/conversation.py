"""Samples completions of prompts, in one turn or in several turns with replies."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_reinforce.sampling import reward_functions
from tf_reinforce.sequences import completions as records
from tf_reinforce.sequences import text_rewards


class SampledTexts(NamedTuple):
    """R completions, and the arguments of reward functions that describe them."""

    completions: records.Completions
    columns: dict[str, Any]  # lists of R entries: `prompts`, `completions`, …


class Conversation:
    """Samples completions, and asks for replies between the turns.

    Args:
        sample: Function of `Completions`, limits `[R]` and a key that continues all rows
            whose number of tokens is below their limit.
        encoding: `Encoding`.
        dtype: Float type of log-probabilities.
        reply: Function with the arguments of a reward function that returns a list with
            a reply or `None` for each completion; or `None`.
        max_turns: Int, the largest number of turns of the model.
    """

    def __init__(self, sample, encoding, dtype, reply=None, max_turns=1):
        self.sample = sample
        self.encoding = encoding
        self.dtype = dtype
        self.reply = reply
        self.max_turns = max_turns

    def __call__(self, columns, group_size, key):
        """Returns the `SampledTexts` of P prompts, `group_size` rows for each prompt.

        Args:
            columns: Dict of lists of P entries, among them `prompts`.
            group_size: Int.
            key: `[2]` uint32, the key of the random numbers of the tokens, or `None` for
                the most likely tokens.
        """
        inputs, limits = self.encoding.encode(columns["prompts"])
        prompt_lengths = np.repeat(inputs["padding_mask"].sum(axis=1), group_size)
        limits = np.repeat(limits, group_size)
        columns = {
            name: [x for x in values for _ in range(group_size)]
            for name, values in columns.items()
        }
        completions = records.from_prompts(inputs, group_size, self.dtype)
        completions = self.sample(completions, limits, key)
        continues = np.ones(len(limits), bool)
        for _ in range(1, self.max_turns):
            continues &= ~completions.truncated.numpy()
            if not continues.any():
                break
            texts = self._texts(completions, prompt_lengths, columns)
            replies = self._replies(texts, continues)
            completions, continues = self._append(completions, replies, limits)
            used = completions.padding_mask.numpy().sum(axis=1)
            turn_limits = np.where(continues, limits, used).astype("int32")
            if continues.any():
                completions = self.sample(completions, turn_limits, key)
        texts = self._texts(completions, prompt_lengths, columns)
        return SampledTexts(self._trimmed(completions), texts)

    def _texts(self, completions, prompt_lengths, columns):
        """Returns the columns with the texts and token ids of the completions."""
        texts, ids = self.encoding.decode(completions, prompt_lengths)
        truncated = completions.truncated.numpy().tolist()
        added = {"completions": texts, "completion_ids": ids, "truncated": truncated}
        return {**columns, **added}

    def _replies(self, columns, continues):
        """Returns the reply for each row, or `None`; asks only for rows that continue."""
        name = reward_functions.name_of(self.reply)
        columns = {
            key: list(itertools.compress(values, continues))
            for key, values in columns.items()
        }
        replies = text_rewards.call_all([name], [self.reply], columns)[0]
        rows = len(columns["prompts"])
        if not isinstance(replies, (list, tuple)) or len(replies) != rows:
            raise ValueError(
                f"The function {name!r} must return a list of {rows} replies, one string "
                f"or `None` for each completion. Received: {replies!r}"
            )
        replies = iter(replies)
        return [next(replies) if row else None for row in continues]

    def _append(self, completions, replies, limits):
        """Returns completions with their replies, and which of the rows continue.

        A row without space for its reply and one more token is truncated.
        """
        token_ids, padding_mask, truncated = (
            x.numpy().copy()
            for x in (
                completions.token_ids,
                completions.padding_mask,
                completions.truncated,
            )
        )
        continues = np.zeros(len(replies), bool)
        for row, reply in enumerate(replies):
            if reply is None:
                continue
            begin = padding_mask[row].sum()
            ids = self.encoding.reply_ids(reply)
            if begin + len(ids) >= limits[row]:
                truncated[row] = True
                continue
            token_ids[row, begin : begin + len(ids)] = ids
            padding_mask[row, begin : begin + len(ids)] = True
            continues[row] = True
        record = completions._replace(
            token_ids=tf.constant(token_ids),
            padding_mask=tf.constant(padding_mask),
            truncated=tf.constant(truncated),
        )
        return record, continues

    def _trimmed(self, completions):
        """Returns completions without columns that contain only padding."""
        used = completions.padding_mask.numpy().sum(axis=1).max()
        length = completions.padding_mask.shape[1]
        size = min(self.encoding.padded_length(int(used)), length)
        return tf.nest.map_structure(
            lambda x: x[:, :size] if x.shape[1:] == (length,) else x, completions
        )
