"""Finds the mask of legal actions in an observation or in `info`.

An environment returns a mask with every observation. It is flattened to `[..., M]` int8,
with the M entries that the policy's head expects. Zero marks an illegal choice; for
`MultiBinary` actions, 0 or 1 is the flag's only legal value, and 2 allows both.
"""

from collections.abc import Mapping

from tf_reinforce.data import nests

_FORMATS = '"info/<key>", for example "info/action_mask", or "observation/<key>"'


# Keys of action masks that common environments use.
_KEYS = ("action_mask", "legal_actions", "avail_actions")


def find(observation, info):
    """Returns the path of a mask with a common name, or `None`.

    Args:
        observation: An observation or an observation space.
        info: The `info` of a reset or step.

    Example:

    >>> find([0.0, 0.5], {"action_mask": [1, 0, 1]})
    'info/action_mask'
    """
    for root, part in (("info", info), ("observation", observation)):
        for key in _KEYS if isinstance(part, Mapping) else ():
            if key in part:
                return f"{root}/{key}"
    return None


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
                f"`action_mask` must be None or {_FORMATS}. "
                f"Received: action_mask={where!r}"
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
                "`action_mask` must name a part of the observation. "
                "Received: "
                f"action_mask={self.where!r} for observations {observation_spec}"
            ) from None

    def lookup_env(self, env_index, observations, infos):
        """Returns the mask of one environment of a `VectorEnv`."""
        if self.observed:
            masks = self.lookup(observations, None)
            return nests.map_leaves(lambda part: part[env_index], masks)
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


class MaskReader:
    """Reads action masks from what environments return, and flattens them.

    Args:
        path: `MaskPath`.
        layout: `mask_layouts.MaskLayout`.
    """

    def __init__(self, path, layout):
        self._path = path
        self.layout = layout

    def read(self, observation, info):
        """Returns `[M]` int8, the mask of one environment.

        Raises:
            KeyError: If the environment returned none.
            ValueError: If the head does not accept it.
        """
        return self.layout.flatten(self._path.lookup(observation, info))

    def read_env(self, env_index, observations, infos):
        """Returns `[M]` int8, the mask of one environment of a `VectorEnv`."""
        mask = self._path.lookup_env(env_index, observations, infos)
        return self.layout.flatten(mask)
