"""The loss of each example in a batch, from Keras losses."""

import keras
import tensorflow as tf


def example_losses(loss, targets, outputs, sample_weight=None):
    """Returns the loss of each of N examples, `[N]`.

    The loss of an example is the mean over all axes after the first, without the elements
    that the Keras mask of the outputs excludes. If there are several losses, they are
    added up.

    Args:
        loss: A Keras loss or a function; or a list or dict of these with one entry for
            each output, in which `None` means no loss.
        targets, outputs: `[N, …]` tensors, or a list or dict of these.
        sample_weight: `[N]` or `[N, …]` float tensor that multiplies the losses before
            the mean, or a list or dict of these, or `None`.
    """
    if targets is None:
        raise ValueError(
            "A `loss` compares outputs with targets. Received: no targets. Pass "
            "`fit(inputs, targets)`, or `reward` in place of `loss`."
        )
    nested = isinstance(sample_weight, (list, tuple, dict))
    loss, targets, outputs = map(_named, (loss, targets, outputs))
    used = {name: each for name, each in loss.items() if each is not None}
    if loss.keys() != outputs.keys() or not used.keys() <= targets.keys():
        raise ValueError(
            "`loss` must be nested like outputs and targets: one loss for each array, in "
            f"a list or dict, where None means no loss. Received: loss={loss!r}, outputs "
            f"{outputs!r} and targets {targets!r}"
        )
    parts = [
        _mean_of_elements(
            each,
            targets[name],
            outputs[name],
            sample_weight[name] if nested else sample_weight,
        )
        for name, each in used.items()
    ]
    return tf.add_n([tf.cast(part, parts[0].dtype) for part in parts])


def _named(nested):
    """Returns arrays by their indices or keys, and a single one by `None`."""
    if isinstance(nested, (list, tuple)):
        return dict(enumerate(nested))
    return nested if isinstance(nested, dict) else {None: nested}


def _mean_of_elements(loss, targets, outputs, sample_weight):
    mask = getattr(outputs, "_keras_mask", None)
    targets = _finite_padding(tf.convert_to_tensor(targets), mask)
    elements = _elements(loss, targets, outputs)
    rank = elements.shape.rank
    if not rank:
        raise ValueError(
            "A loss must return one number for each example, in an array [N, …], and no "
            f"mean over the batch. Received: loss={loss!r}, which returns one number"
        )
    counts = tf.ones_like(elements)
    if mask is not None and mask.shape.rank <= rank:
        counts *= _append_axes(tf.cast(mask, elements.dtype), rank)
        elements = tf.where(counts > 0, elements, 0.0)
    if sample_weight is not None:
        weights = tf.cast(sample_weight, elements.dtype)
        if weights.shape.rank == rank + 1 and weights.shape[-1] == 1:
            weights = weights[..., 0]
        elements *= _append_axes(weights, rank)
    axes = list(range(1, rank))
    return tf.math.divide_no_nan(
        tf.reduce_sum(elements, axes), tf.reduce_sum(counts, axes)
    )


def _finite_padding(targets, mask):
    """Replaces NaN by zero in masked targets; it would make the gradients NaN."""
    rank = targets.shape.rank
    if mask is None or not targets.dtype.is_floating or mask.shape.rank > rank:
        return targets
    is_valid = _append_axes(mask, rank) | tf.math.is_finite(targets)
    return tf.where(is_valid, targets, tf.zeros_like(targets))


def _elements(loss, targets, outputs):
    """Returns the unreduced loss, `[N, …]`.

    The loss is computed as in Keras. If only the targets or only the outputs have a last
    axis of size one, the shapes are matched. Losses of half-precision outputs are
    computed in float32.
    """
    outputs = tf.convert_to_tensor(outputs)
    if outputs.dtype in (tf.float16, tf.bfloat16):
        outputs = tf.cast(outputs, tf.float32)
    if isinstance(loss, keras.losses.Loss):
        targets = tf.cast(targets, loss.dtype)
        return tf.convert_to_tensor(loss.call(targets, tf.cast(outputs, loss.dtype)))
    if targets.shape.rank == outputs.shape.rank - 1 and outputs.shape[-1] == 1:
        targets = targets[..., None]
    elif targets.shape.rank == outputs.shape.rank + 1 and targets.shape[-1] == 1:
        targets = targets[..., 0]
    return tf.convert_to_tensor(loss(targets, outputs))


def _append_axes(array, rank):
    ones = [1] * (rank - array.shape.rank)
    return tf.reshape(array, tf.concat([tf.shape(array), ones], axis=0))
