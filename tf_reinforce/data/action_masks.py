"""Finds the mask of legal actions in an observation or in `info`.

An environment gives a mask with every observation, in `info` or inside the observation.
Internally a mask is flat, `[..., M]` int8, in the order of the head's choices; zero marks
an illegal action.
"""

import keras
import tensorflow as tf

_WAYS = '"info/<key>", for example "info/action_mask", or "observation/<key>"'


class MaskPath:
    """The place of the mask, and how it is read there.

    Args:
        where: `"info/<key>"` or `"observation/<key>"`; further keys lead deeper.

    Raises:
        ValueError: when it names no place.

    Example:

    >>> source = MaskPath("observation/legal")
    >>> source.find({"board": [0.0, 0.5, 0.0], "legal": [1, 0, 1]}, {})
    [1, 0, 1]
    """

    def __init__(self, where):
        start, *self._path = where.split("/") if isinstance(where, str) else [None]
        if start not in ("info", "observation") or not all(self._path) or not self._path:
            raise ValueError(
                f"`action_mask` must be None or {_WAYS}. Received: action_mask={where!r}"
            )
        self.where = where
        self.observed = start == "observation"

    def find(self, observation, info):
        """The mask as the environment gave it, or a `KeyError` with the place."""
        part = observation if self.observed else info
        for key in self._path:
            try:
                part = part[int(key) if isinstance(part, tuple) else key]
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise KeyError(self.where) from error
        return part

    def expect_in(self, structure):
        """Refuses observations, a structure of `tf.TensorSpec`, without such a part."""
        try:
            if self.observed:
                self.find(structure, None)
        except KeyError:
            raise ValueError(
                "`action_mask` must name a part of the observation. "
                f"Received: action_mask={self.where!r} for observations {structure}"
            ) from None

    def find_slot(self, slot, observations, infos):
        """The same from the answers of many environments, as a `VectorEnv` has them."""
        if self.observed:
            found = self.find(observations, None)
            return keras.tree.map_structure(lambda part: part[slot], found)
        key = self._path[0]
        told = {name: infos[name] for name in (key, f"_{key}") if name in infos}
        return self.find(None, _of_slot(slot, told))

    def of(self, observations):
        """`[N, M]` int8 from a batch of observations, in TensorFlow operations."""
        parts = keras.tree.flatten(self.find(observations, None))
        # Marks go from 0 to 2; anything else must not become a zero in int8.
        marks = [tf.minimum(tf.abs(tf.cast(part, tf.int64)), 3) for part in parts]
        flat = [tf.reshape(part, [tf.shape(part)[0], -1]) for part in marks]
        return tf.cast(tf.concat(flat, axis=-1), tf.int8)


def _of_slot(slot, infos):
    """What one environment told: beside each key stands `_key`, which says who did."""
    if not isinstance(infos, dict):
        return infos[slot]
    keys = [key for key in infos if not (key[:1] == "_" and key[1:] in infos)]
    told = [key for key in keys if f"_{key}" not in infos or infos[f"_{key}"][slot]]
    return {key: _of_slot(slot, infos[key]) for key in told}


class MaskReader:
    """Reads the masks in the answers of environments, as a head needs them.

    Args:
        source: `MaskPath`.
        read: See `heads.Head.flatten_mask`.
    """

    def __init__(self, source, read):
        self._source = source
        self._read = read

    def one(self, observation, info):
        """`[M]` int8, or a `KeyError` or `ValueError` that says what is wrong."""
        return self._read(self._source.find(observation, info))

    def of_slot(self, slot, observations, infos):
        """The same for one of many environments that answered together."""
        found = self._source.find_slot(slot, observations, infos)
        return self._read(found)
