"""Lets Keras' `fit` read batches of prompts, and averages the logs of an epoch."""

import collections
import hashlib
import itertools
import json
import math

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.sequences import prompts as prompt_tables


class Batches:
    """The batches of prompts of each epoch, as a `tf.data.Dataset`.

    Args:
        prompts: `PromptTable` or `tf.data.Dataset`.
        batch_size: Int, the number of prompts of a batch of a `PromptTable`.
        steps: Int, the number of batches of an epoch, which begins where the epoch before
            has ended; or `None` for one pass over the prompts.
        seed: Int that determines the order of prompts, or `None` for no shuffling.
        first_epoch: Function that returns the number of the first epoch.

    Attributes:
        dataset: Dataset of indices into the `PromptTable`, or that of the user.
    """

    def __init__(self, prompts, batch_size, steps, seed=None, first_epoch=lambda: 0):
        self.prompts = prompts
        self.options = {
            "batch_size": batch_size,
            "steps_per_epoch": steps,
            "seed of the order": seed,
        }
        passes = itertools.count()
        dataset = prompts

        def order():
            number = next(passes) + (0 if steps else first_epoch())
            if seed is None:
                return np.arange(len(prompts))
            generator = seeding.generator(seed, "training/prompts", number)
            return generator.permutation(len(prompts))

        if self._is_table:
            dataset = resumed_fit.index_batches(len(prompts), batch_size, order)
        if steps is None and dataset.cardinality() in (0, tf.data.INFINITE_CARDINALITY):
            raise ValueError(
                "A dataset needs at least one batch, and a dataset without end needs the "
                "number of steps. Received: a `tf.data.Dataset` with "
                f"{'no batch' if dataset.cardinality() == 0 else 'infinitely many'}"
            )
        if steps is not None:
            dataset = dataset.repeat().skip(steps * first_epoch())
        self.dataset = dataset

    @property
    def _is_table(self):
        return isinstance(self.prompts, prompt_tables.PromptTable)

    @property
    def count(self):
        """Returns the number of batches of an epoch, or `None` if it is not known."""
        count = self.options["steps_per_epoch"] or int(self.dataset.cardinality())
        return count if count >= 0 else None

    def columns(self, batch):
        """Returns the columns of a batch of the dataset."""
        if self._is_table:
            return self.prompts.rows(batch.numpy())
        return prompt_tables.read_batch(batch)

    def description(self):
        """Returns a dict that describes the batches, for a checkpoint."""
        if self._is_table:
            text = json.dumps(self.prompts.columns, default=_to_text)
            described = hashlib.sha256(text.encode()).hexdigest()
        else:
            described = repr(self.prompts.element_spec), int(self.prompts.cardinality())
        return {"prompts": described, **self.options}


def _to_text(value):
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


class Means(keras.callbacks.Callback):
    """The means of logs in an epoch, weighted by the numbers of prompts of the batches.

    Values that are not finite do not count: the gradient norm of a step that the loss
    scale of mixed precision has skipped. Other callbacks follow, because the callback
    also adds the logs of a validation.

    Args:
        validate: Function of the number of an epoch that returns further logs.
    """

    def __init__(self, validate=lambda epoch: {}):
        super().__init__()
        self._validate = validate
        self._sums = collections.defaultdict(float)
        self._counts = collections.defaultdict(int)

    def on_epoch_begin(self, epoch, logs=None):
        self._sums.clear()
        self._counts.clear()

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._validate(epoch))

    def add(self, function, columns):
        """Adds the logs that a function returns for a batch of prompts; returns means."""
        logs, count = function(columns), len(columns["prompts"])
        for name, value in logs.items():
            is_finite = math.isfinite(value)
            self._sums[name] += count * value if is_finite else 0.0
            self._counts[name] += count if is_finite else 0
        return self.logs()

    def logs(self):
        """Returns the means as a dict of floats; NaN if no value counts."""
        return {
            name: total / self._counts[name] if self._counts[name] else math.nan
            for name, total in self._sums.items()
        }


def text_metrics(columns, rewards, parts, group_size=None):
    """Returns metrics of completions as a dict of floats.

    Args:
        columns: Dict of lists, the arguments of reward functions.
        rewards: `[R]` floats.
        parts: Dict from the name of each reward function to its rewards.
        group_size: Int, the number of consecutive completions of a prompt, or `None`
            for greedy completions.
    """
    lengths = [len(ids) for ids in columns["completion_ids"]]
    metrics = {
        "reward": float(np.mean(rewards)),
        "completion_length": float(np.mean(lengths)),
        "truncated": float(np.mean(columns["truncated"])),
    }
    if group_size is not None:
        groups = np.reshape(rewards, [-1, group_size])
        equal = groups.max(axis=1) == groups.min(axis=1)
        metrics["equal_reward_groups"] = float(np.mean(equal))
    if len(parts) > 1:
        metrics |= {f"reward_{name}": float(np.mean(x)) for name, x in parts.items()}
    return metrics


def run_evaluation(model, evaluate, batches, callbacks, verbose):
    """Evaluates all batches, calls the callbacks, and returns the mean logs."""
    options = dict(add_progbar=verbose not in (0, "auto"), verbose=verbose)
    options |= dict(model=model, epochs=1, steps=batches.count)
    callbacks, means = keras.callbacks.CallbackList(callbacks, **options), Means()
    callbacks.on_test_begin()
    for number, batch in enumerate(batches.dataset.take(batches.count or -1)):
        callbacks.on_test_batch_begin(number)
        logs = means.add(evaluate, batches.columns(batch))
        callbacks.on_test_batch_end(number, logs)
    callbacks.on_test_end(means.logs())
    return means.logs()
