"""Prompts as tokens, and completions as texts, in one turn or in several with replies."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_reinforce.sampling import reward_functions
from tf_reinforce.sequences import language_model
from tf_reinforce.sequences import text_rewards

# The tokens that end a turn in Gemma 3 and 3n, Gemma 4, and Phi 3.
_ENDS_OF_TURNS = "<end_of_turn>", "<turn|>", "<|end|>"
_MULTIPLE = 8  # rows are padded to a multiple, so that few graphs are traced


class Encoding:
    """Converts prompts to rows of tokens, and completions back to texts.

    Prompts and completions are strings if the model has a preprocessor, else lists of
    token ids.

    Args:
        causal_lm: `keras_hub.models.CausalLM`.
        max_completion_length: Int, the largest number of tokens of a completion.
        stop_token_ids: `"auto"`, the end tokens of the tokenizer, or a sequence of ints.

    Attributes:
        end_token_ids: List of ints.
        max_length: Int, the largest number of tokens of prompt and completion, or inf.
    """

    def __init__(self, causal_lm, max_completion_length, stop_token_ids="auto"):
        self.preprocessor = getattr(causal_lm, "preprocessor", None)
        self._tokenizer = getattr(self.preprocessor, "tokenizer", None)
        backbone = getattr(causal_lm, "backbone", None)
        self.vocabulary_size = getattr(backbone, "vocabulary_size", None)
        self.max_completion_length = max_completion_length
        if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
            stop_token_ids = self._end_tokens()
        self.end_token_ids = self._checked_ids("stop_token_ids", stop_token_ids)
        if not self.end_token_ids or self.pad_token_id in self.end_token_ids:
            raise ValueError(
                "A completion needs an end token, which differs from the padding "
                f"{self.pad_token_id}. Received: stop_token_ids={self.end_token_ids}"
            )
        limits = [getattr(backbone, "max_sequence_length", None)]
        limits.append(getattr(self.preprocessor, "sequence_length", None))
        self.max_length = min([x for x in limits if x is not None], default=np.inf)
        self._longest_prompt = self.max_length - max_completion_length
        if self._longest_prompt < 1:
            raise ValueError(
                "A prompt and `max_completion_length` must fit the longest sequence of "
                f"the model, {self.max_length}. Received: {max_completion_length}"
            )

    @property
    def pad_token_id(self):
        """Returns the token that fills rows behind their end."""
        return getattr(self._tokenizer, "pad_token_id", None) or 0

    def _end_tokens(self):
        """Returns the end tokens, of which instruction-tuned models have two."""
        tokenizer = self._tokenizer
        if tokenizer is None:
            return []
        ids = [getattr(tokenizer, x, None) for x in ("end_token_id", "end_token2_id")]
        vocabulary = set(tokenizer.get_vocabulary())
        ids += [tokenizer.token_to_id(x) for x in _ENDS_OF_TURNS if x in vocabulary]
        return [x for x in ids if x is not None]

    def ids_without_token(self, size):
        """Returns which of `size` token ids the tokenizer cannot decode, `[size]` bool.

        Many models pad their vocabulary to a multiple of a power of two. Without a
        tokenizer, every id is a token.
        """
        if self._tokenizer is None:
            return np.zeros(size, bool)
        ids = getattr(self._tokenizer, "vocabulary", None)  # BPE: may have gaps
        ids = ids.values() if isinstance(ids, dict) else None
        ids = range(self._tokenizer.vocabulary_size()) if ids is None else ids
        return ~np.isin(np.arange(size), [*ids, *self.end_token_ids])

    def encode(self, prompts):
        """Returns the tokens of P prompts, with space for their completions.

        Args:
            prompts: List of P strings, or of P lists of token ids.

        Returns:
            Dict of arrays `[P, L]`, among them `token_ids` and `padding_mask`; and `[P]`
            int32, the largest number of tokens in each row.

        Raises:
            ValueError: If a prompt is empty or too long.
        """
        prompts = [self._checked("prompt", prompt) for prompt in prompts]
        longest = self._longest_prompt
        if self.preprocessor is None:
            inputs = self._pack(prompts)
        else:
            # One token more than allowed shows that a prompt is too long.
            size = None if longest == np.inf else longest + 1
            inputs = self.preprocessor.generate_preprocess(prompts, sequence_length=size)
            inputs = {name: np.array(x) for name, x in inputs.items()}
        lengths = inputs["padding_mask"].sum(axis=1)
        for prompt, length in zip(prompts, lengths, strict=True):
            if not 1 <= length <= longest:
                raise ValueError(
                    f"A prompt before {self.max_completion_length} further tokens must "
                    f"have 1 to {longest} tokens. Received: prompt={prompt!r}"
                )
        size = self.padded_length(int(lengths.max()) + self.max_completion_length)
        width = inputs["token_ids"].shape[1]
        inputs = {
            # Other inputs, for example pictures, have no axis of tokens.
            name: _resize(x, size) if x.shape[1:] == (width,) else x
            for name, x in inputs.items()
        }
        return inputs, (lengths + self.max_completion_length).astype("int32")

    def _checked(self, name, value):
        """Returns a prompt or reply as a string, or as a list of token ids."""
        if self.preprocessor is None:
            return self._checked_ids(name, value)
        if not isinstance(value, str):
            raise TypeError(
                "The prompts and replies of a model with a preprocessor must be strings. "
                f"Received: {name}={value!r}"
            )
        return value

    def _checked_ids(self, name, ids):
        size, array = self.vocabulary_size or np.inf, np.array(ids)
        is_valid = array.dtype.kind in "iu" and ((array >= 0) & (array < size)).all()
        if array.ndim != 1 or not (is_valid or not array.size):
            raise ValueError(
                "Token ids, as prompts without a preprocessor, are lists of ints of at "
                f"least 0 and below {size}. Received: {name}={ids!r}"
            )
        return [int(x) for x in ids]

    def _pack(self, rows):
        """Returns token ids and padding mask, `[R, L]`, for R lists of token ids."""
        lengths = np.array([len(row) for row in rows])
        padding_mask = np.arange(lengths.max()) < lengths[:, None]
        token_ids = np.full(padding_mask.shape, self.pad_token_id, "int32")
        token_ids[padding_mask] = [x for row in rows for x in row]
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    def decode(self, completions, prompt_lengths):
        """Returns R completions as texts and as token ids, without their prompts.

        Args:
            completions: `Completions` of R rows.
            prompt_lengths: `[R]` int.

        Returns:
            List of R strings without special tokens such as the end token (without a
            preprocessor, R lists of token ids), and R lists of token ids with the end
            token.
        """
        token_ids = completions.token_ids.numpy()
        mask = completions.padding_mask.numpy()
        mask &= np.arange(mask.shape[1]) >= prompt_lengths[:, None]
        ids = [row[valid].tolist() for row, valid in zip(token_ids, mask, strict=True)]
        if self.preprocessor is None:
            return [[x for x in row if x not in self.end_token_ids] for row in ids], ids
        inputs = {"token_ids": token_ids, "padding_mask": mask}
        return [str(x) for x in self.preprocessor.generate_postprocess(inputs)], ids

    def padded_length(self, length):
        """Returns the number of columns for rows of at most `length` tokens."""
        multiple = _MULTIPLE if length <= 8 * _MULTIPLE else 8 * _MULTIPLE
        return min(-(-length // multiple) * multiple, self.max_length)

    def reply_ids(self, reply):
        """Returns the token ids of a reply, a string or a list of token ids."""
        reply = self._checked("reply", reply)
        is_text = isinstance(reply, str)
        return np.array(self._tokenizer([reply])[0]).tolist() if is_text else reply


def _resize(array, size):
    """Cuts the second axis to `size`, or pads it with zeros."""
    array = array[:, :size]
    return np.pad(array, [[0, 0], [0, size - array.shape[1]]])


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
        rows, spoken = np.flatnonzero(continues), texts(completions)
        completions, continues = _append(model, completions, spoken, rows, limits)
        used = completions.padding_mask.numpy().sum(axis=1)
        turn_limits = np.where(continues, limits, used).astype("int32")
        if continues.any():
            completions = sample(completions, turn_limits, key)
    return SampledTexts(_trimmed(encoding, completions), texts(completions))


def _append(model, completions, columns, rows, limits):
    """Appends replies to some rows; returns the completions, and which rows continue.

    A row without space for its reply and one more token is truncated.
    """
    columns = {name: [values[row] for row in rows] for name, values in columns.items()}
    (replies,) = text_rewards.call_all([model.reply], columns)
    if not isinstance(replies, (list, tuple)) or len(replies) != len(rows):
        raise ValueError(
            f"The function {reward_functions.name_of(model.reply)!r} must return a list "
            f"of {len(rows)} replies, each a string or `None`. Received: {replies!r}"
        )
    names = "token_ids", "padding_mask", "truncated"
    arrays = {name: np.array(getattr(completions, name)) for name in names}
    token_ids, padding_mask, truncated = arrays.values()
    continues = np.zeros(len(limits), bool)
    for row, reply in zip(rows, replies, strict=True):
        if reply is None:
            continue
        ids, begin = model.encoding.reply_ids(reply), padding_mask[row].sum()
        end = begin + len(ids)
        truncated[row] = end >= limits[row]
        continues[row] = not truncated[row]
        if continues[row]:
            token_ids[row, begin:end], padding_mask[row, begin:end] = ids, True
    arrays = {name: tf.constant(array) for name, array in arrays.items()}
    return completions._replace(**arrays), continues


def _trimmed(encoding, completions):
    """Drops columns that contain only padding."""
    used = completions.padding_mask.numpy().sum(axis=1).max()
    length = completions.padding_mask.shape[1]
    size = min(encoding.padded_length(int(used)), length)
    return tf.nest.map_structure(
        lambda x: x[:, :size] if x.shape[1:] == (length,) else x, completions
    )
