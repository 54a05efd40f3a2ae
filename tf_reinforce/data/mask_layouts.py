"""Checks and flattens action masks with NumPy.

A mask marks the legal choices of one action. Each head has a layout, which says how many
entries the flat mask has and which values are valid.
"""

import numpy as np

from tf_reinforce.data import nests

OFF, ON, FREE = 0, 1, 2  # entries of a mask of flags: must be 0, must be 1, may be both


class MaskLayout:
    """Masks whose entries are 0 for illegal choices, else 1.

    Args:
        owner: String, the head's name in error messages.
        size: Int, `M`, the entries of a flat mask; zero if the head takes no masks.
    """

    def __init__(self, owner, size):
        self.owner = owner
        self.size = size

    def flatten(self, mask):
        """Returns an environment's mask as a flat array `[M]` int8.

        Args:
            mask: Array or tuple of arrays, as Gymnasium's `Space.sample(mask=…)` takes
                it, or `None` if every action is legal.

        Raises:
            ValueError: If it does not have M entries of 0 or 1.
        """
        if mask is None:
            return np.ones(self.size, "int8")
        if mask.__class__ is np.ndarray:  # the usual mask; `flatten` takes longer
            flat = mask.ravel()
        else:
            parts = nests.flatten(mask) or [[]]
            flat = np.concatenate([np.ravel(part) for part in parts])
        binary = flat.dtype.kind in "biu" or np.isin(flat, (0, 1)).all()
        if flat.shape != (self.size,) or not binary:
            raise ValueError(
                f"an action mask of {self.owner} must have {self.size} entries, 0 or "
                f"1. Received: {mask!r}"
            )
        return flat.astype(bool).astype("int8")

    def has_legal_action(self, masks):
        """Returns `[...]` bool, whether each flat mask `[..., M]` allows an action."""
        return np.ones(masks.shape[:-1], bool)

    def parts(self):
        """Returns the layouts of all parts, in the order of the flat mask."""
        return [self]

    def choices(self):
        """Returns the entries `(first, end)` of each choice among categories.

        A mask allows an action only if each choice has an entry that is not zero.
        """
        return []


class ChoicesMask(MaskLayout):
    """Masks for one or more choices among categories.

    Args:
        owner: String, the head's name in error messages.
        sizes: Tuple of ints, the categories of each choice. All choices must be legal.
    """

    def __init__(self, owner, sizes):
        super().__init__(owner, sum(sizes))
        self.sizes = tuple(sizes)
        self._offsets = np.cumsum([0, *sizes[:-1]])

    def flatten(self, mask):
        sizes = tuple(np.size(part) for part in _flatten_parts(mask))
        if min(len(sizes), len(self.sizes)) > 1 and sizes != self.sizes:
            raise ValueError(
                f"an action mask of {self.owner} must have a part for each choice, of "
                f"the sizes {self.sizes}. Received: parts of the sizes {sizes}"
            )
        return super().flatten(mask)

    def has_legal_action(self, masks):
        return np.logical_or.reduceat(masks != 0, self._offsets, axis=-1).all(axis=-1)

    def choices(self):
        ends = np.cumsum(self.sizes).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))


class FlagsMask(MaskLayout):
    """Masks for flags: 0 or 1 is the only legal value, 2 allows both."""

    def flatten(self, mask):
        if mask is None:
            return np.full(self.size, FREE, "int8")
        flat = np.ravel(mask)
        if flat.shape != (self.size,) or not np.isin(flat, (OFF, ON, FREE)).all():
            raise ValueError(
                f"an action mask of {self.owner} must have {self.size} entries: 0 if the "
                "action must be 0, 1 if the action must be 1, 2 if both actions are "
                f"legal. Received: {mask!r}"
            )
        return flat.astype("int8")

    def has_legal_action(self, masks):
        return np.isin(masks, (OFF, ON, FREE)).all(axis=-1)


class NestedMask(MaskLayout):
    """Masks for nested actions: the flat masks of all parts in a row.

    Args:
        owner: String, the head's name in error messages.
        layouts: Nested dicts and tuples of `MaskLayout`s.
    """

    def __init__(self, owner, layouts):
        self._layouts = layouts
        self._leaves = nests.flatten(layouts)
        super().__init__(owner, sum(leaf.size for leaf in self._leaves))
        self._ends = np.cumsum([leaf.size for leaf in self._leaves])

    def flatten(self, mask):
        return np.concatenate(nests.flatten(_flatten_nested(self._layouts, mask)))

    def has_legal_action(self, masks):
        parts = np.split(masks, self._ends[:-1], axis=-1)
        pairs = zip(self._leaves, parts, strict=True)
        return np.all([leaf.has_legal_action(part) for leaf, part in pairs], axis=0)

    def parts(self):
        return self._leaves

    def choices(self):
        starts = self._ends - [leaf.size for leaf in self._leaves]
        return [
            (int(start) + first, int(start) + end)
            for start, leaf in zip(starts, self._leaves, strict=True)
            for first, end in leaf.choices()
        ]


def _flatten_parts(mask):
    """Returns the masks of all choices; a flat mask of all is the only entry."""
    is_nested = isinstance(mask, (tuple, list)) and any(
        isinstance(part, (tuple, list, np.ndarray)) for part in mask
    )
    if not is_nested:
        return [mask]
    return [leaf for part in mask for leaf in _flatten_parts(part)]


def _flatten_nested(layouts, mask, path=()):
    """Returns a flat mask for each layout; a mask of `None` allows all actions."""
    if isinstance(layouts, MaskLayout):
        try:
            return layouts.flatten(mask)
        except ValueError as error:
            name = "_".join(map(str, path))
            raise ValueError(f"in the part {name!r} of the mask, {error}") from None
    is_dict = isinstance(layouts, dict)
    keys = list(layouts) if is_dict else list(range(len(layouts)))
    parts = dict.fromkeys(keys) if mask is None else mask
    if not is_dict and isinstance(mask, tuple):
        parts = dict(enumerate(mask))
    if not isinstance(parts, dict) or set(parts) != set(keys):
        kind = f"a dict with the keys {keys}" if is_dict else f"a tuple of {len(keys)}"
        raise ValueError(f"an action mask must be {kind}. Received: {mask!r}")
    masks = {key: _flatten_nested(layouts[key], parts[key], (*path, key)) for key in keys}
    return masks if is_dict else tuple(masks.values())
