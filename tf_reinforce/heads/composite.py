"""Heads that are nested like the action space, and `Composite`, for independent parts."""

import functools
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from numpy.typing import ArrayLike

from tf_reinforce.data import action_masks
from tf_reinforce.data import spaces
from tf_reinforce.heads import base


class NestedHead(base.Head):
    """A head of several heads, in tuples and dicts that are nested to any depth.

    Raw actions, noise and the environment's actions have the same nested structure as the
    heads. The policy returns the outputs for all heads in one vector. The vector follows
    the order of `keras.tree.flatten`, which sorts the keys of dicts, and flat action
    masks follow the same order.

    Attributes:
        leaves: List of the heads, in the order of `keras.tree.flatten`.
        names: Tuple of strings, their names.
        argument: String, the name of the constructor argument with the heads.
    """

    argument = "heads"

    def _set_heads(self, heads: Any) -> None:
        """Sets the heads, or raises an error unless they are different heads."""
        self.names = spaces.leaf_names(heads, "action")  # checks the keys
        _check_heads(heads, self.argument)
        self.leaves = keras.tree.flatten(heads)
        # Keras tracks the layers in a flat list. Keras does not track nested layers, and
        # would replace the dicts. Therefore `_pack` keeps the nesting of the heads.
        self._pack = functools.partial(keras.tree.pack_sequence_as, heads)
        self._set_sizes({})

    def _set_sizes(self, rows: dict[int, int], *more: int) -> None:
        """Sets how outputs and masks are split into those of the heads.

        Args:
            rows: Dict from the index of a head to the number of rows of its mask, which
                `mask_outputs` appends to the outputs.
            *more: Ints, the sizes of outputs that belong to no head, behind all others.
        """
        self._rows, leaves = rows, [*enumerate(self.leaves)]
        masks = self._mask_sizes = [x.mask_size * rows.get(i, 1) for i, x in leaves]
        added = [masks[i] if i in rows else x.appended_size for i, x in leaves]
        self._sizes = [*(leaf.outputs_size for leaf in self.leaves), *more]
        self._appended = [*added, *(0 for _ in more)]
        self.outputs_size, self.mask_size = sum(self._sizes), sum(masks)
        self.appended_size = sum(added)

    def build(self, outputs_shape: Any) -> None:
        for leaf in self.leaves:
            if not leaf.built:
                leaf.build((*outputs_shape[:-1], leaf.outputs_size))

    def set_float_type(self, dtype: str) -> None:
        super().set_float_type(dtype)
        for leaf in self.leaves:
            if not leaf.built:
                leaf.set_float_type(dtype)

    @property
    def heads(self) -> Any:
        """Returns the heads, nested as they were passed."""
        return self._pack(list(self.leaves))

    @property
    def noise(self) -> Any:  # type: ignore[override]
        """Returns the `NoiseSpec` of each head, nested like the heads."""
        return self._pack([leaf.noise for leaf in self.leaves])

    def action_spec(self, dtype: Any) -> Any:
        return self._pack([leaf.action_spec(dtype) for leaf in self.leaves])

    def mode(self, outputs: tf.Tensor) -> Any:
        return self._pack(self._each("mode", self._greedy(outputs)))

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.concat(self._each("relative_scale", self._greedy(outputs)), axis=-1)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        leaves = self._each("parameters", self._greedy(outputs))
        parts = zip(self.names, leaves, strict=True)
        return {f"{leaf}_{name}": x for leaf, p in parts for name, x in p.items()}

    def _greedy(self, outputs: Any) -> list:
        """Returns the outputs of each head, given the most likely earlier parts."""
        return self._split(outputs)

    def at_bounds(self, actions: Any) -> tf.Tensor:
        return tf.concat(self._each("at_bounds", nested=actions), axis=-1)

    def _each(self, method: str, parts: Any = None, nested: Any = None) -> list:
        """Returns what a method of each head returns for its part of the arguments.

        Args:
            method: String, its name.
            parts: List of the outputs or the space of each head, or `None`.
            nested: Actions or noise, nested like the heads, or `None`.
        """
        columns = [] if parts is None else [parts]
        if nested is not None:
            keras.tree.assert_same_structure(self.heads, nested)
            columns.append(keras.tree.flatten(nested))
        pairs = zip(self.leaves, *columns, strict=True)
        return [getattr(leaf, method)(*arguments) for leaf, *arguments in pairs]

    def _split(self, outputs: Any) -> list:
        """Returns the policy outputs of each head, before or after `mask_outputs`."""
        sizes = self._sizes
        if outputs.shape[-1] != self.outputs_size:
            sizes = [x + y for x, y in zip(sizes, self._appended, strict=True)]
        return tf.split(outputs, sizes, axis=-1)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        parts = zip(*self._each("output_scaling"), strict=True)
        offsets, scales = map(np.concatenate, parts)
        more = 0, self.outputs_size - len(offsets)
        return np.pad(offsets, more), np.pad(scales, more, constant_values=1.0)

    def is_logit(self) -> np.ndarray:
        flags = np.concatenate(self._each("is_logit"))
        return np.pad(flags, (0, self.outputs_size - len(flags)))

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        sizes = [size for size in self._mask_sizes if size]
        masks = iter(tf.split(mask, sizes, axis=-1) if sizes else ())
        parts = self._split(outputs)
        for i, size in enumerate(self._mask_sizes):
            if size:
                if i in self._rows:
                    own = tf.cast(next(masks), outputs.dtype)
                    parts[i] = tf.concat([parts[i], own], axis=-1)
                else:
                    parts[i] = self.leaves[i].mask_outputs(parts[i], next(masks))
        return tf.concat(parts, axis=-1)

    @property
    def mask_layout(self) -> action_masks.NestedLayout:
        layouts = keras.tree.map_structure(lambda head: head.mask_layout, self.heads)
        return action_masks.NestedLayout(layouts)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        actions = keras.tree.flatten(actions)
        parts = zip(self.leaves, actions, self._leaf_masks(actions, mask), strict=True)
        legal = [leaf.is_legal(a, m) for leaf, a, m in parts if m is not None]
        return np.all([np.ones(mask.shape[:-1], bool), *legal], axis=0)

    def _leaf_masks(self, actions: list, mask: Any) -> list:
        """Returns the mask of each head, or `None`, given the actions of all heads."""
        if mask is None or not mask.shape[-1]:
            return [None] * len(actions)
        return np.split(mask, np.cumsum(self._mask_sizes)[:-1], axis=-1)

    def to_environment(self, actions: Any) -> Any:
        return self._pack(self._each("to_environment", nested=actions))

    def check_actions(self, actions: Any, lengths: ArrayLike, masks: Any = None) -> None:
        keras.tree.assert_same_structure(self.heads, actions)
        actions = keras.tree.flatten(actions)
        masks = self._leaf_masks(actions, masks)
        parts = zip(self.names, self.leaves, actions, masks, strict=True)
        for name, leaf, part, mask in parts:
            try:
                leaf.check_actions(part, lengths, mask)
            except ValueError as error:
                raise ValueError(f"In the part {name!r} of the action: {error}") from None

    def check_space(self, space: gym.Space) -> None:
        parts = self._spaces(space)
        if parts is None:
            super().check_space(space)
        for name, leaf, part in zip(self.names, self.leaves, parts or (), strict=True):
            try:
                leaf.check_space(part)
            except ValueError as error:
                raise ValueError(f"In the part {name!r}, {error}") from None

    def matches_space(self, space: gym.Space) -> bool:
        parts = self._spaces(space)
        return parts is not None and all(self._each("matches_space", parts))

    def _spaces(self, space: gym.Space) -> list | None:
        """Returns the space of each part, or `None` if the parts are others."""
        nested = spaces.to_nest(space)
        try:
            keras.tree.assert_same_structure(self.heads, nested)
        except ValueError:
            return None
        return keras.tree.flatten(nested)

    def is_valid(self, actions: Any) -> Any:
        return self._pack(self._each("is_valid", nested=actions))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), self.argument: _to_config(self.heads)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        heads = _from_config(config[cls.argument])
        return super().from_config({**config, cls.argument: heads})


@keras.saving.register_keras_serializable("tf_reinforce")
class Composite(NestedHead):
    """Heads in tuples and dicts, for `Tuple` and `Dict` spaces nested to any depth.

        π(a|s) = Π_leaves π_leaf(a_leaf|s)

    Given the observation, the actions of the heads are independent of each other; in an
    `Autoregressive`, they depend on each other. Raw actions, noise and the environment's
    actions have the same nested structure as the heads.

    The policy returns the outputs for all heads in one vector. The vector follows the
    order of `keras.tree.flatten`, which sorts the keys of dicts, and flat action masks
    follow the same order.

    Args:
        heads: Tuple or dict of heads, nested to any depth. Keys are strings without "/".

    Example:

    >>> from tf_reinforce import heads
    >>> gear, lamps = heads.Categorical(3, start=1), heads.Bernoulli(2)
    >>> head = Composite({"gear": gear, "lamps": lamps})
    >>> head.mode(tf.constant([[0.0, 0.0, 9.0, 1.0, -1.0]]))["lamps"].numpy().tolist()
    [[1, 0]]
    >>> head.flatten_mask({"gear": np.array([1, 1, 0]), "lamps": None}).tolist()
    [1, 1, 0, 2, 2]
    >>> sorted(head.parameters(tf.zeros([1, 5])))
    ['gear_logits', 'gear_probs', 'lamps_logits', 'lamps_probs']
    """

    def __init__(self, heads: tuple | dict, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_heads(heads)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        leaves = self._each("distribution", self._split(outputs))

        def log_prob(actions: Any) -> Any:
            parts = zip(leaves, keras.tree.flatten(actions), strict=True)
            return tf.add_n([leaf.log_prob(action) for leaf, action in parts])

        def entropy() -> Any:
            return tf.add_n([leaf.entropy() for leaf in leaves])

        return JointDistribution(self, outputs, log_prob, entropy)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        parts = self._split(outputs)
        return tf.concat(self._each("eligibility", parts, nested=actions), axis=-1)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return self._pack(self._each("sample", self._split(outputs), nested=noise))

    def __repr__(self) -> str:
        return f"Composite({self.heads})"


class JointDistribution(tfp.distributions.Distribution):
    """The joint distribution of the actions of a nested head.

    TFP's own joint distributions call `sample` in `log_prob`, which a distribution from
    `Head.distribution` does not need: `Head.sample` draws the actions.

    Args:
        head: `NestedHead`.
        outputs: `[..., P]` float tensor.
        log_prob: Function from nested actions to their log-probabilities.
        entropy: Function without arguments that returns the entropy.
    """

    def __init__(self, head: Any, outputs: Any, log_prob: Any, entropy: Any) -> None:
        self._log_prob, self._entropy = log_prob, entropy
        specs = head.action_spec(outputs.dtype)
        self._specs = lambda: specs  # TensorFlow would replace the dicts
        self._outputs_shape = outputs.shape[:-1]
        nested = keras.tree.map_structure
        fixed = tfp.distributions.NOT_REPARAMETERIZED
        dtypes = nested(lambda spec: spec.dtype, specs)
        kinds = nested(lambda spec: fixed, specs)
        super().__init__(dtypes, kinds, validate_args=False, allow_nan_stats=True)

    def _batch_shape(self) -> Any:
        return self._outputs_shape

    def _event_shape(self) -> Any:
        return keras.tree.map_structure(lambda spec: spec.shape, self._specs())


def _check_heads(heads: Any, name: str) -> None:
    """Raises an error unless `heads` is a nested tuple or dict of different heads."""
    if not isinstance(heads, (tuple, dict)):
        raise TypeError(f"`{name}` must be a tuple or a dict. Received: {name}={heads!r}")
    leaves = spaces.flatten(heads)
    for leaf in leaves:
        if not isinstance(leaf, base.Head) or isinstance(leaf, NestedHead):
            raise TypeError(
                f"`{name}` must be heads in tuples and dicts. A nested head cannot "
                f"contain another one: nest its heads. Received: {leaf!r} in "
                f"{heads!r}"
            )
    if len(set(map(id, leaves))) < len(leaves):
        raise ValueError(
            f"Each of `{name}` must be a different object with its own weights. "
            f"Received: {name}={heads!r}"
        )


def _to_config(heads: Any) -> Any:
    """Converts nested heads to dicts that mark tuples, because JSON has no tuples."""
    if isinstance(heads, dict):
        parts = {key: _to_config(part) for key, part in heads.items()}
        return {"kind": "Dict", "parts": parts}
    if isinstance(heads, tuple):
        return {"kind": "Tuple", "parts": [_to_config(part) for part in heads]}
    return keras.saving.serialize_keras_object(heads)


def _from_config(config: Any) -> Any:
    if config.get("kind") == "Dict":
        return {key: _from_config(part) for key, part in config["parts"].items()}
    if config.get("kind") == "Tuple":
        return tuple(_from_config(part) for part in config["parts"])
    return keras.saving.deserialize_keras_object(config)
