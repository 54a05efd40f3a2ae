"""Reads prompts and their columns, and splits them into batches."""

import collections.abc
import dataclasses

import keras
import numpy as np
import tensorflow as tf

# Names that reward functions receive and that a column cannot have.
RESERVED = ("completions", "completion_ids", "truncated")


@dataclasses.dataclass(frozen=True)
class PromptTable:
    """P prompts with their columns."""

    columns: dict[str, list]  # each with P entries, among them `prompts`

    def __len__(self):
        return len(self.columns["prompts"])

    def rows(self, indices):
        """Returns the columns of some rows."""
        return {name: [x[i] for i in indices] for name, x in self.columns.items()}


def read(prompts):
    """Returns prompts as a `PromptTable`; returns a `tf.data.Dataset` unchanged.

    Args:
        prompts: List of prompts; dict of columns of equal length, among them `prompts`;
            or `tf.data.Dataset` of batches, dicts of columns.
    """
    if isinstance(prompts, (PromptTable, tf.data.Dataset)):
        return prompts
    is_columns = isinstance(prompts, collections.abc.Mapping)
    return PromptTable(validated_columns(prompts if is_columns else {"prompts": prompts}))


def read_table(prompts):
    """Returns prompts as a `PromptTable`; raises an error for a dataset."""
    table = read(prompts)
    if not isinstance(table, PromptTable):
        raise TypeError(
            "Pass a list of prompts, or a dict of columns, not a dataset. Received: "
            f"prompts={prompts!r}"
        )
    return table


def read_batch(batch):
    """Returns the columns of a batch of a `tf.data.Dataset`, as lists."""
    batch = batch if isinstance(batch, dict) else {"prompts": batch}
    if any(isinstance(x, tuple) or not x.shape.rank for x in batch.values()):
        raise ValueError(
            "The elements of a `tf.data.Dataset` of prompts must be batches: tensors of "
            "strings, or dicts of columns. Expected, for example: dataset.batch(8). "
            f"Received: {batch!r}"
        )
    columns = {name: _to_texts(_to_list(x)) for name, x in batch.items()}
    return validated_columns(columns)


def validated_columns(columns):
    """Returns columns as lists; raises an error if they are not P entries each."""
    reserved = [name for name in RESERVED if name in columns]
    if "prompts" not in columns or reserved:
        raise ValueError(
            "The columns must contain `prompts`, and no column may be named like the "
            f"arguments {RESERVED} of reward functions. Received: the columns "
            f"{list(columns)}"
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
            f"Received: {values!r}"
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
        return keras.tree.map_structure(
            lambda x: x.decode() if isinstance(x, bytes) else x, entries
        )
    except UnicodeDecodeError:
        return entries
