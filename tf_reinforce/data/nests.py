"""Flattens and rebuilds nested dicts and tuples without Keras.

Leaves have the order of `keras.tree.flatten`, which sorts the keys of dicts. Processes
that play episodes do not import Keras.
"""


def flatten(nest):
    """Returns the leaves of nested dicts, tuples and lists.

    Example:

    >>> flatten({"b": 1, "a": (2, 3)})
    [2, 3, 1]
    """
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
    if isinstance(nest, (tuple, list)):
        return [leaf for part in nest for leaf in flatten(part)]
    return [nest]


def map_leaves(function, nest):
    """Returns the nest with `function(leaf)` for each leaf.

    Example:

    >>> map_leaves(str, {"b": 1, "a": (2, 3)})
    {'b': '1', 'a': ('2', '3')}
    """
    if isinstance(nest, dict):
        return {key: map_leaves(function, part) for key, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(map_leaves(function, part) for part in nest)
    return function(nest)


def pack(nest, leaves):
    """Returns leaves, in the order of `flatten`, nested like `nest`.

    Example:

    >>> pack({"b": 1, "a": (2, 3)}, ["first", "second", "third"])
    {'b': 'third', 'a': ('first', 'second')}
    """
    return _pack(nest, iter(leaves))


def _pack(nest, leaves):
    if isinstance(nest, dict):
        packed = {key: _pack(nest[key], leaves) for key in sorted(nest)}
        return {key: packed[key] for key in nest}
    if isinstance(nest, tuple):
        return tuple(_pack(part, leaves) for part in nest)
    return next(leaves)
