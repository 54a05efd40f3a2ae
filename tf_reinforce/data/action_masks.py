"""Reads, checks and flattens masks of legal actions, without TensorFlow.

An environment with illegal actions returns an action mask with every observation, either
as a part of the observation or in `info`. The mask is flattened to `[..., M]` int8, with
the M entries that the policy's head expects.

A zero in the mask marks an illegal choice. The masks of `MultiBinary` actions are
different: an entry of 0 or 1 is the only legal value of the flag, and 2 allows both
values.
"""

import functools
from typing import NamedTuple

import numpy as np

from tf_reinforce.data import spaces

OFF, ON, FREE = 0, 1, 2  # entries of a mask of flags: must be 0, must be 1, may be both


class MaskLayout:
    """The entries of a head's action masks, and which of their values are valid.

    Args:
        owner: String, the head's name in error messages.
        size: Int, `M`, the entries of a flat mask; zero if the head takes no masks.
        sizes: Tuple of ints, the categories of each choice. All choices must be legal.
        is_flags: Bool, whether each entry is the mask of a flag.

    Attributes:
        largest: Int, the value of an entry that allows the most.
        parts: List with the layout itself; with those of all parts for nested actions.
        shape: Tuple, the shape of a mask that is a table, or `None`.
        groups: List of `(entries, least, most, paths)`. A mask allows an action if, in
            each group of consecutive entries, one is between `least` and `most`. A group
            is a choice, whose `least` is 1, or a flag. A row of a table is required only
            if earlier choices can lead to it: if for one of `paths`, all entries of the
            flat mask with these indices are not zero.
    """

    shape = None

    def __init__(self, owner, size, sizes=(), is_flags=False):
        self.owner, self.size, self.sizes = owner, size, tuple(sizes)
        self.is_flags = is_flags
        self.largest = FREE if is_flags else 1
        self.parts = [self]
        others = size - sum(self.sizes)
        self.groups = [(n, 1, 127, None) for n in self.sizes]
        self.groups += [(1, 0, self.largest, None)] * others

    def flatten(self, mask):
        """Returns an environment's mask as a flat array `[M]` int8.

        Args:
            mask: Array or tuple of arrays, as Gymnasium's `Space.sample(mask=…)` takes
                it, or `None` if every action is legal.

        Raises:
            ValueError: If it does not have M valid entries.
        """
        if mask is None:
            return np.full(self.size, self.largest, "int8")
        parts = [np.ravel(part) for part in _split(mask)]
        flat, sizes = np.concatenate(parts), tuple(map(len, parts))
        any_integer = flat.dtype.kind in "biu" and not self.is_flags
        is_valid = any_integer or np.isin(flat, range(self.largest + 1)).all()
        is_valid = is_valid and not any(map(np.ma.is_masked, parts))
        is_split = min(len(sizes), len(self.sizes)) > 1
        if len(flat) != self.size or not is_valid or is_split and sizes != self.sizes:
            marks = "0, 1 or 2 for a flag" if self.is_flags else "0 or 1"
            split = f" in parts of the sizes {self.sizes}" if len(self.sizes) > 1 else ""
            hint = ""
            if any(np.ndim(part) == 2 for part in _split(mask)) and self.shape is None:
                hint = (
                    ". For a table, with a row for each choice of another part, pass "
                    'head={"kind": "autoregressive", "masks": …}'
                )
            raise ValueError(
                f"an action mask of {self.owner} must have {self.size} entries, {marks}"
                f"{split}. Received: {mask!r}{hint}"
            )
        return (flat if self.is_flags else flat.astype(bool)).astype("int8")

    def has_legal_action(self, masks):
        """Returns `[...]` bool, whether each flat mask `[..., M]` allows an action."""
        return self._allows(masks).all(axis=-1)

    def illegal_part(self, mask):
        """Returns " in the part …" for the first part without a legal value, or ""."""
        return ""

    def _allows(self, masks):
        """Returns `[..., G]` bool, whether each group allows an action."""
        starts, least, most, rows = self._bounds
        legal = (masks >= least) & (masks <= most)
        legal = np.logical_or.reduceat(legal, starts, axis=-1)
        for group, paths in rows:
            legal[..., group] |= ~(masks[..., paths] != 0).all(axis=-1).any(axis=-1)
        return legal

    @functools.cached_property
    def _bounds(self):
        """Returns where each group starts, `least` and `most` of each entry, and rows.

        The rows are pairs of the index of a group and its `paths`.
        """
        groups = [group[:3] for group in self.groups]
        rows = [(i, _entries(group[3])) for i, group in enumerate(self.groups)]
        rows = [row for row in rows if row[1] is not None]
        sizes, *bounds = np.array(groups, int).reshape(-1, 3).T
        return np.cumsum(sizes) - sizes, *np.repeat(np.int8(bounds), sizes, axis=1), rows


def _entries(paths):
    """Returns lists of entries as an integer array `[C, L]`, and `None` as it is."""
    return None if paths is None else np.array(paths or np.empty((0, 1)), int)


class TableLayout(MaskLayout):
    """Masks of a part of an action, with a row for each choice of an earlier part.

    Args:
        row: `MaskLayout` of one row.
        rows: Int, the number of rows; zero if the head takes no masks.
    """

    def __init__(self, row, rows):
        super().__init__(row.owner, rows * row.size, rows * row.sizes, row.is_flags)
        self.shape = (rows, row.size) if rows else None

    def flatten(self, mask):
        if mask is not None and np.asarray(mask, object).shape != (self.shape or (0,)):
            expected = "None, because a function decides what is legal"
            if self.shape:
                expected = f"a table of the shape {self.shape}, a row for each choice"
            raise ValueError(
                f"an action mask of {self.owner} must be {expected}. Received: {mask!r}"
            )
        return super().flatten(mask if mask is None else np.asanyarray(mask))


class NestedLayout(MaskLayout):
    """Masks for nested actions: the flat masks of all parts in a row.

    Args:
        layouts: Nested dicts and tuples of `MaskLayout`s.
        choosers: Dict from the index of each part with a `TableLayout` to the index of
            the part whose choice selects a row.
    """

    def __init__(self, layouts, choosers=()):
        self._layouts, self.parts = layouts, spaces.flatten(layouts)
        self._names = spaces.flatten(spaces.names(layouts, root="action"))
        self._choosers = dict(choosers)
        self._starts = np.cumsum([0, *(part.size for part in self.parts)]).tolist()
        self.size, self.groups, self._owners = self._starts[-1], [], []
        for i, part in enumerate(self.parts):
            self._owners += [repr(self._names[i])] * len(part.groups)
            for number, group in enumerate(part.groups):
                paths = None
                if part.shape:
                    row = number * part.shape[0] // len(part.groups)
                    self._owners[number - len(part.groups)] += f", row {row} of its table"
                    paths = self._paths(self._choosers[i], row)
                self.groups.append((*group[:3], paths))

    def _paths(self, index, choice):
        """Returns lists of entries: the choice can be made if all of one are legal."""
        start, part = self._starts[index], self.parts[index]
        if self._choosers.get(index, index) is None:
            return []  # a function decides; without a legal value, it gives NaN
        if not part.shape:
            return [[start + choice]]
        rows, size = part.shape
        return [
            [*path, start + row * size + choice]
            for row in range(rows)
            for path in self._paths(self._choosers[index], row)
        ]

    def illegal_part(self, mask):
        return f" in the part {self._owners[np.argmin(self._allows(mask))]}"

    def flatten(self, mask):
        """Returns nested masks, of which `None` allows all actions, as `[M]` int8."""
        return np.concatenate(_flatten_nested(self._layouts, mask))


def _split(mask):
    """Returns the masks of all choices; a flat mask of all is the only entry."""
    kinds = tuple, list, np.ndarray
    is_nested = isinstance(mask, (tuple, list)) and any(
        isinstance(x, kinds) for x in mask
    )
    return [leaf for part in mask for leaf in _split(part)] if is_nested else [mask]


def _flatten_nested(layouts, mask, path=()):
    """Returns a list with a flat mask for each layout."""
    if isinstance(layouts, MaskLayout):
        try:
            return [layouts.flatten(mask)]
        except ValueError as error:
            name = "_".join(map(str, path))
            raise ValueError(f"in the part {name!r} of the mask, {error}") from None
    is_dict = isinstance(layouts, dict)
    keys = sorted(layouts) if is_dict else range(len(layouts))
    parts = dict.fromkeys(keys) if mask is None else mask
    if isinstance(mask, tuple) and not is_dict:
        parts = dict(enumerate(mask))
    if not isinstance(parts, dict) or set(parts) != set(keys):
        kind = f"a dict with the keys {keys}" if is_dict else f"a tuple of {len(keys)}"
        raise ValueError(f"an action mask must be {kind}. Received: {mask!r}")
    flat = [_flatten_nested(layouts[key], parts[key], (*path, key)) for key in keys]
    return [part for parts in flat for part in parts]


class MaskPath:
    """Where the action mask is: in `info` or in the observation.

    Args:
        where: String, `"info/<key>"` or `"observation/<key>"`. Several keys, as in
            `"observation/<key>/<key>"`, select a nested part.

    Raises:
        ValueError: If `where` starts otherwise, or a key is empty.

    Example:

    >>> path = MaskPath("observation/legal")
    >>> path.lookup({"board": [0.0, 0.5, 0.0], "legal": [1, 0, 1]}, {})
    [1, 0, 1]
    """

    def __init__(self, where):
        root, *self._keys = where.split("/") if isinstance(where, str) else [None]
        if root not in ("info", "observation") or not all(self._keys) or not self._keys:
            raise ValueError(
                '`action_mask` must be None or "info/<key>", for example '
                f'"info/action_mask", or "observation/<key>". Received: '
                f"action_mask={where!r}"
            )
        self.where = where
        self.observed = root == "observation"

    def lookup(self, observation, info):
        """Returns the mask as the environment returned it.

        Raises:
            KeyError: If there is none.
        """
        part = observation if self.observed else info
        for key in self._keys:
            try:
                part = part[int(key) if isinstance(part, tuple) else key]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise KeyError(self.where) from error
        return part

    def expect_in(self, observation_spec):
        """Raises `ValueError` if an observation mask is not in the observation spec.

        Args:
            observation_spec: `tf.TensorSpec`, or a structure of them.
        """
        try:
            if self.observed:
                self.lookup(observation_spec, None)
        except KeyError:
            raise ValueError(
                "`action_mask` must name a part of the observation. Received: "
                f"action_mask={self.where!r} for observations {observation_spec}"
            ) from None

    def lookup_env(self, env_index, observations, infos):
        """Returns the mask of one environment of a `VectorEnv`."""
        if self.observed:
            masks = self.lookup(observations, None)
            return spaces.map_leaves(lambda part: part[env_index], masks)
        key = self._keys[0]
        infos = {name: infos[name] for name in (key, f"_{key}") if name in infos}
        return self.lookup(None, _env_info(env_index, infos))


def _env_info(env_index, infos):
    """Returns one environment's `info` from the infos of a `VectorEnv`.

    Beside each key, a `VectorEnv` adds `_<key>`, a bool array that is True for the
    environments that returned the key.
    """
    if not isinstance(infos, dict):
        return infos[env_index]
    keys = [key for key in infos if not (key[:1] == "_" and key[1:] in infos)]
    keys = [key for key in keys if f"_{key}" not in infos or infos[f"_{key}"][env_index]]
    return {key: _env_info(env_index, infos[key]) for key in keys}


class MaskReader(NamedTuple):
    """Reads action masks from what environments return, and flattens them."""

    path: MaskPath
    layout: MaskLayout

    def read(self, observation, info):
        """Returns `[M]` int8, the mask of one environment.

        Raises:
            KeyError: If the environment returned none.
            ValueError: If the head does not accept it.
        """
        return self.layout.flatten(self.path.lookup(observation, info))

    def read_env(self, env_index, observations, infos):
        """Returns `[M]` int8, the mask of one environment of a `VectorEnv`."""
        return self.layout.flatten(self.path.lookup_env(env_index, observations, infos))
