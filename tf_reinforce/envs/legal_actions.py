"""Action masks of a tensor environment, as tensors."""

import contextlib

import tensorflow as tf

from tf_reinforce.data import spaces

_INVALID = -1  # instead of an entry that the host engine does not accept


def flat_masks(reader, env, state, observation, count):
    """Returns `[B, M]` int8, the masks of B states, as `reader` would read them.

    An entry that is not accepted there becomes -1.

    Args:
        reader: `action_masks.MaskReader`, with `"info/action_mask"` for the environment's
            method `action_mask`, or with a part of the observation.
        env: `TensorEnv` with action masks.
        state: The states of the environment.
        observation: Their observations.
        count: Int, B.

    Raises:
        ValueError: If there is no mask of M entries at the reader's path.
    """
    mask = {"action_mask": env.action_mask(state)}
    layouts, parts = reader.layout.parts, [None]
    with contextlib.suppress(KeyError):
        parts = spaces.flatten(reader.path.lookup(observation, mask))
    flat = [None if part is None else tf.reshape(part, [count, -1]) for part in parts]
    expected = [layout.shape or layout.size for layout in layouts]
    sizes = [None if part is None else part.shape[1] for part in flat]
    has_mask = len(sizes) == len(expected) and sizes != [None]
    for i, layout in enumerate(layouts if has_mask else ()):
        if layout.shape and parts[i] is not None:
            sizes[i] = tuple(parts[i].shape[1:])
    if not (has_mask and all(x in (None, y) for x, y in zip(sizes, expected))):
        raise ValueError(
            "`action_mask` must be the place of a mask, with parts of "
            f"{expected} entries, in {env!r}: a part of the observation, or "
            "'info/action_mask' if its method `action_mask` returns one. Received: "
            f"{sizes} entries at action_mask={reader.path.where!r}"
        )
    pairs = zip(layouts, flat, strict=True)
    return tf.concat([_flat_part(*pair, count) for pair in pairs], axis=1)


def has_legal_action(layout, masks):
    """Returns `[...]` bool, whether masks of `flat_masks` are valid and allow an action.

    Args:
        layout: `action_masks.MaskLayout`.
        masks: `[..., M]` int8 tensor.
    """
    valid, first = tf.reduce_all(masks != _INVALID, axis=-1), 0
    for size, least, _, paths in layout.groups:
        if least:  # valid flags are legal
            legal = tf.reduce_any(masks[..., first : first + size] > 0, axis=-1)
            if paths is not None:
                reached = tf.zeros_like(legal)
                if paths:
                    entries = tf.gather(masks, paths, axis=-1) > 0
                    reached = tf.reduce_any(tf.reduce_all(entries, axis=-1), axis=-1)
                legal |= ~reached
            valid &= legal
        first += size
    return valid


def _flat_part(layout, part, count):
    if part is None:  # every action is legal
        return tf.fill([count, layout.size], tf.constant(layout.largest, tf.int8))
    if part.dtype.is_bool or not (layout.is_flags or part.dtype.is_floating):
        return tf.cast(tf.cast(part, tf.bool), tf.int8)
    values = tf.cast(tf.range(layout.largest + 1), part.dtype)
    is_valid = tf.reduce_any(part[..., None] == values, axis=-1)
    return tf.where(is_valid, tf.cast(part, tf.int8), tf.constant(_INVALID, tf.int8))
