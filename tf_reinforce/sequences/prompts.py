"""Reads prompts and their columns, and splits them into batches."""

import collections.abc
import dataclasses
import reprlib

import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding

# Names that reward functions receive and that a column cannot have.
RESERVED = ("completions", "completion_ids", "truncated")


@dataclasses.dataclass(frozen=True)
class PromptTable:
    """P prompts with their columns, in batches whose order depends on seed and epoch."""

    columns: dict[str, list]  # each with P entries, among them `prompts`

    def __len__(self):
        return len(self.columns["prompts"])

    def batches(self, batch_size, order=None):
        """Yields dicts of columns, each with at most `batch_size` entries.

        Args:
            batch_size: Int.
            order: `[P]` int, a permutation of the prompts, or `None`.
        """
        order = range(len(self)) if order is None else order
        for begin in range(0, len(self), batch_size):
            indices = order[begin : begin + batch_size]
            yield {
                name: [values[i] for i in indices]
                for name, values in self.columns.items()
            }

    def permutation(self, seed, epoch):
        """Returns the order of the prompts in an epoch, a function of seed and epoch."""
        return seeding.generator(seed, "training/prompts", epoch).permutation(len(self))


def read(prompts):
    """Returns prompts as a `PromptTable`; returns a `tf.data.Dataset` unchanged.

    Args:
        prompts: List of prompts; dict of columns of equal length, among them `prompts`;
            or `tf.data.Dataset` of batches, dicts of columns.
    """
    if isinstance(prompts, (PromptTable, tf.data.Dataset)):
        return prompts
    columns = prompts if isinstance(prompts, collections.abc.Mapping) else None
    if columns is None:
        _expect_no_rows(prompts)
        columns = {"prompts": prompts}
    return PromptTable(validated_columns(columns))


def _expect_no_rows(prompts):
    """Raises `TypeError` for a list of dicts, and for a pair `(prompts, targets)`."""
    is_pair = isinstance(prompts, tuple) and any(
        isinstance(x, list) and any(isinstance(entry, str) for entry in x)
        for x in prompts
    )
    is_rows = isinstance(prompts, (list, tuple)) and any(
        isinstance(x, collections.abc.Mapping) for x in prompts
    )
    if is_rows or is_pair:
        raise TypeError(
            "Prompts with further columns must be a dict of lists, for example "
            '{"prompts": ["3+4="], "answer": ["7"]}. Received: '
            f"{'a list of dicts' if is_rows else 'a tuple of lists'}: "
            f"{reprlib.repr(prompts)}"
        )


def read_batch(batch):
    """Returns the columns of a batch of a `tf.data.Dataset`, as lists."""
    if not isinstance(batch, dict):
        batch = {"prompts": batch}
    for name, values in batch.items():
        if isinstance(values, tuple) or not np.ndim(getattr(values, "values", values)):
            raise ValueError(
                "The elements of a `tf.data.Dataset` of prompts must be batches: tensors "
                "of strings, or dicts of columns. Expected, for example: "
                f"dataset.batch(8). Received: {name}={values!r}"
            )
    columns = {name: _to_texts(_to_list(x)) for name, x in batch.items()}
    return validated_columns(columns)


def read_table(prompts):
    """Returns prompts as a `PromptTable`; raises an error for a dataset.

    Args:
        prompts: List of prompts, or dict of columns.
    """
    table = read(prompts)
    if not isinstance(table, PromptTable):
        raise TypeError(
            "Pass a list of prompts, or a dict of columns, not a dataset. Received: "
            f"prompts={prompts!r} of type {type(prompts).__name__}"
        )
    return table


def validated_columns(columns):
    """Returns columns as lists; raises an error if they are not P entries each."""
    if "prompts" not in columns:
        raise ValueError(
            "The columns must contain `prompts`. Received: the columns "
            f"{list(columns)}. Expected, for example: "
            '{"prompts": ["3+4="], "answer": ["7"]}'
        )
    for name in RESERVED:
        if name in columns:
            raise ValueError(
                f"A column must not have the name {name!r}, which is an argument of "
                f"reward functions. Received: the columns {list(columns)}. Rename it."
            )
    lists = {name: _entries(name, values) for name, values in columns.items()}
    lists["prompts"] = _to_texts(lists["prompts"])
    counts = {name: len(values) for name, values in lists.items()}
    if len(set(counts.values())) > 1 or not counts["prompts"]:
        raise ValueError(
            "All columns must have the same number of entries, at least one. Received: "
            f"the numbers of entries {counts}"
        )
    return lists


def _entries(name, values):
    is_scalar = isinstance(values, (str, bytes)) or getattr(values, "ndim", 1) == 0
    if is_scalar or not hasattr(values, "__len__"):
        raise TypeError(
            f"The column {name!r} must be a list with an entry for each prompt. "
            f"Received: {values!r} of type {type(values).__name__}"
        )
    return _to_list(values)


def _to_list(values):
    """Returns a list of Python objects."""
    if hasattr(values, "numpy"):
        values = values.numpy()
    entries = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in entries]


def _to_texts(entries):
    """Returns entries whose byte strings are strings, unless one of them is no UTF-8."""
    try:
        return [_to_text(x) for x in entries]
    except UnicodeDecodeError:
        return entries


def _to_text(entry):
    if isinstance(entry, list):
        return [_to_text(x) for x in entry]
    return entry.decode("utf-8") if isinstance(entry, bytes) else entry
