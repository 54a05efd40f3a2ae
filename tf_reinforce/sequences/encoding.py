"""Converts prompts to tokens, and completions to texts."""

import numpy as np

# The tokens that end a turn in Gemma 3 and 3n, Gemma 4, and Phi 3.
_ENDS_OF_TURNS = "<end_of_turn>", "<turn|>", "<|end|>"
_MULTIPLE = 8  # rows are padded to a multiple, so that few graphs are traced


class Encoding:
    """Converts prompts to rows of tokens, and the tokens of completions to texts.

    A model with a preprocessor has prompts and completions that are strings. In a model
    without preprocessor, they are lists of token ids.

    Args:
        causal_lm: `keras_hub.models.CausalLM`.
        max_completion_length: Int, the largest number of tokens of a completion.
        stop_token_ids: `"auto"`, the end tokens of the tokenizer, or a sequence of ints.

    Attributes:
        end_token_ids: List of ints.
        max_length: Int, the largest number of tokens of prompt and completion, or `None`.
    """

    def __init__(self, causal_lm, max_completion_length, stop_token_ids="auto"):
        self.preprocessor = getattr(causal_lm, "preprocessor", None)
        tokenizer = getattr(self.preprocessor, "tokenizer", None)
        self.max_completion_length = max_completion_length
        self.end_token_ids = _end_token_ids(tokenizer, stop_token_ids)
        if self.pad_token_id in self.end_token_ids:
            raise ValueError(
                "The end token must differ from the padding, because otherwise the end "
                "of a completion cannot be found. Received: the end tokens "
                f"{self.end_token_ids} and the padding {self.pad_token_id}. Use a "
                "tokenizer whose end token has another id, or pass `stop_token_ids`."
            )
        backbone = getattr(causal_lm, "backbone", None)
        self.vocabulary_size = getattr(backbone, "vocabulary_size", None)
        self._expect_in_vocabulary(self.end_token_ids, "stop_token_ids")
        limits = [
            getattr(self.preprocessor, "sequence_length", None),
            getattr(backbone, "max_sequence_length", None),
        ]
        self.max_length = min([x for x in limits if x is not None], default=None)
        if self.max_length is not None and max_completion_length >= self.max_length:
            raise ValueError(
                "`max_completion_length` must be smaller than the longest sequence of "
                "the model and its preprocessor, which contains prompt and completion. "
                f"Expected: less than {self.max_length}. Received: "
                f"max_completion_length={max_completion_length}"
            )

    @property
    def pad_token_id(self):
        """Returns the token that fills rows behind their end."""
        tokenizer = getattr(self.preprocessor, "tokenizer", None)
        return getattr(tokenizer, "pad_token_id", None) or 0

    def ids_without_token(self, size):
        """Returns which of `size` token ids the tokenizer cannot decode, `[size]` bool.

        Many models pad their vocabulary to a multiple of a power of two. Without a
        tokenizer, every id is a token.
        """
        tokenizer = getattr(self.preprocessor, "tokenizer", None)
        if tokenizer is None:
            return np.zeros(size, bool)
        vocabulary = getattr(tokenizer, "vocabulary", None)  # BPE: may have gaps
        has_ids = isinstance(vocabulary, dict)
        ids = list(vocabulary.values()) if has_ids else range(tokenizer.vocabulary_size())
        return ~np.isin(np.arange(size), [*ids, *self.end_token_ids])

    def encode(self, prompts):
        """Returns the tokens of P prompts, with space for their completions.

        Args:
            prompts: List of P strings, or of P lists of token ids.

        Returns:
            Dict of arrays `[P, L]`, among them `token_ids` and `padding_mask`, and `[P]`
            int32, the largest number of tokens of each row.

        Raises:
            ValueError: If a prompt is empty or too long.
        """
        longest = None
        if self.max_length is not None:
            longest = self.max_length - self.max_completion_length
        if self.preprocessor is None:
            rows = [_validated_ids(prompt) for prompt in prompts]
            for row in rows:
                self._expect_in_vocabulary(row, "prompt")
            inputs = self._pack(rows, max(map(len, rows)))
        else:
            inputs = self._preprocess(prompts, longest)
        lengths = inputs["padding_mask"].sum(axis=1)
        for prompt, length in zip(prompts, lengths, strict=True):
            if length == 0 or (longest is not None and length > longest):
                limit = "" if longest is None else f", and at most {longest} tokens"
                count = "more" if length else 0
                raise ValueError(
                    f"A prompt must have at least one token{limit}, so that a completion "
                    f"of {self.max_completion_length} tokens fits behind it. A start "
                    "token of the preprocessor counts. Received: "
                    f"prompt={prompt!r} with {count} tokens. Shorten the prompt, or pass "
                    "a smaller `max_completion_length`."
                )
        size = self.padded_length(int(lengths.max()) + self.max_completion_length)
        width = inputs["token_ids"].shape[1]
        inputs = {
            # Other inputs, for example pictures, have no axis of tokens.
            name: _resize(x, size) if x.shape[1:] == (width,) else x
            for name, x in inputs.items()
        }
        return inputs, (lengths + self.max_completion_length).astype("int32")

    def _expect_in_vocabulary(self, ids, name):
        size = self.vocabulary_size
        if any(x < 0 or (size is not None and x >= size) for x in ids):
            count = "" if size is None else f" below {size}, the size of the vocabulary"
            raise ValueError(
                f"Token ids must be at least 0 and{count or ' known to the model'}. "
                f"Received: {name}={ids}"
            )

    def _preprocess(self, prompts, longest):
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise TypeError(
                    "The prompts of a model with a preprocessor must be strings. "
                    f"Received: {prompt!r} of type {type(prompt).__name__}"
                )
        # One token more than allowed shows that a prompt is too long.
        size = None if longest is None else longest + 1
        inputs = self.preprocessor.generate_preprocess(
            list(prompts), sequence_length=size
        )
        return {name: np.array(x) for name, x in inputs.items()}

    def _pack(self, rows, size):
        """Returns token ids and padding mask `[R, size]` for R lists of token ids."""
        token_ids = np.full((len(rows), size), self.pad_token_id, "int32")
        for target, row in zip(token_ids, rows, strict=True):
            target[: len(row)] = row
        lengths = np.array(list(map(len, rows)))
        padding_mask = np.arange(size) < lengths[:, None]
        return {"token_ids": token_ids, "padding_mask": padding_mask}

    def decode(self, completions, prompt_lengths):
        """Returns the texts and the token ids of R completions, without their prompts.

        Args:
            completions: `Completions` of R rows.
            prompt_lengths: `[R]` int.

        Returns:
            List of R strings without special tokens such as the end token, or of R lists
            of token ids for a model without preprocessor; and list of R lists of token
            ids, with the end token.
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
        padded = -(-length // multiple) * multiple
        return padded if self.max_length is None else min(padded, self.max_length)

    def reply_ids(self, reply):
        """Returns the token ids of a reply, a string or a list of token ids."""
        if self.preprocessor is None:
            ids = _validated_ids(reply, "replies")
            self._expect_in_vocabulary(ids, "reply")
            return ids
        if not isinstance(reply, str):
            raise TypeError(
                "`reply` must return a list with a string or `None` for each completion. "
                f"Received: {reply!r} of type {type(reply).__name__}"
            )
        return np.array(self.preprocessor.tokenizer([reply])[0]).tolist()


def _vocabulary(tokenizer):
    """Returns the tokens of a tokenizer, or an empty set before they are loaded."""
    try:
        return set(tokenizer.get_vocabulary())
    except (AttributeError, ValueError):
        return set()


def _resize(array, size):
    """Returns an array whose second axis is cut or padded with zeros to a size."""
    array = array[:, :size]
    return np.pad(array, [[0, 0], [0, size - array.shape[1]]])


def _validated_ids(ids, kind="prompts"):
    if not _is_list_of_ints(ids):
        raise TypeError(
            f"The {kind} of a model without preprocessor must be lists of token ids. "
            f"Received: {ids!r} of type {type(ids).__name__}"
        )
    return [int(x) for x in ids]


def _is_list_of_ints(value):
    is_list = isinstance(value, (list, tuple, np.ndarray))
    return is_list and all(isinstance(x, (int, np.integer)) for x in value)


def _end_token_ids(tokenizer, stop_token_ids):
    """Returns the end tokens; KerasHub's instruction-tuned models have two of them."""
    if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
        ids = [
            getattr(tokenizer, name, None) for name in ("end_token_id", "end_token2_id")
        ]
        ids = [x for x in ids if x is not None]
        vocabulary = _vocabulary(tokenizer)
        turns = [x for x in _ENDS_OF_TURNS if x in vocabulary]
        ids += [tokenizer.token_to_id(x) for x in turns]
    else:
        ids = stop_token_ids
    if not _is_list_of_ints(ids) or not len(ids):
        raise ValueError(
            "A completion needs an end token. Pass a model whose preprocessor has a "
            "tokenizer with an end token, or a list of ints as `stop_token_ids`. "
            f"Received: stop_token_ids={stop_token_ids!r}"
        )
    return [int(x) for x in ids]
