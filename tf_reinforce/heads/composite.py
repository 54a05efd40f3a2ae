"""`Composite`, several heads that are nested like the action space."""

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


@keras.saving.register_keras_serializable("tf_reinforce")
class Composite(base.Head):
    """Heads in tuples and dicts, for `Tuple` and `Dict` spaces nested to any depth.

        π(a|s) = Π_leaves π_leaf(a_leaf|s)

    Given the observation, the actions of the heads are independent of each other. Raw
    actions, noise and the environment's actions have the same nested structure as the
    heads.

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
        self.names = spaces.leaf_names(heads, "action")  # checks the keys
        _check_heads(heads)
        self.leaves = keras.tree.flatten(heads)
        # Keras tracks the layers in a flat list. Keras does not track nested layers, and
        # would replace the dicts. Therefore `_pack` keeps the nesting of the heads.
        self._pack = functools.partial(keras.tree.pack_sequence_as, heads)
        self.outputs_size = sum(leaf.outputs_size for leaf in self.leaves)
        self.mask_size = sum(leaf.mask_size for leaf in self.leaves)

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

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        return _JointDistribution(self._each("distribution", outputs), self._pack)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        return tf.concat(self._each("eligibility", outputs, nested=actions), axis=-1)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return self._pack(self._each("sample", outputs, nested=noise))

    def mode(self, outputs: tf.Tensor) -> Any:
        return self._pack(self._each("mode", outputs))

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        return tf.concat(self._each("relative_scale", outputs), axis=-1)

    def at_bounds(self, actions: Any) -> tf.Tensor:
        return tf.concat(self._each("at_bounds", nested=actions), axis=-1)

    def _each(self, method: str, outputs: Any = None, nested: Any = None) -> list:
        """Returns what a method of each head returns for its part of the arguments."""
        parts = []
        if outputs is not None:
            sizes = [leaf.outputs_size for leaf in self.leaves]
            parts.append(tf.split(outputs, sizes, axis=-1))
        if nested is not None:
            keras.tree.assert_same_structure(self.heads, nested)
            parts.append(keras.tree.flatten(nested))
        pairs = zip(self.leaves, *parts, strict=True)
        return [getattr(leaf, method)(*arguments) for leaf, *arguments in pairs]

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        offsets, scales = zip(*self._each("output_scaling"), strict=True)
        return np.concatenate(offsets), np.concatenate(scales)

    def is_logit(self) -> np.ndarray:
        return np.concatenate(self._each("is_logit"))

    def mask_outputs(self, outputs: tf.Tensor, mask: Any) -> tf.Tensor:
        sizes = [leaf.mask_size for leaf in self.leaves if leaf.mask_size]
        masks = iter(tf.split(mask, sizes, axis=-1) if sizes else ())
        parts = tf.split(outputs, [leaf.outputs_size for leaf in self.leaves], axis=-1)
        for i, leaf in enumerate(self.leaves):
            if leaf.mask_size:
                parts[i] = leaf.mask_outputs(parts[i], next(masks))
        return tf.concat(parts, axis=-1)

    @property
    def mask_layout(self) -> action_masks.NestedLayout:
        layouts = keras.tree.map_structure(lambda head: head.mask_layout, self.heads)
        return action_masks.NestedLayout(layouts)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        parts = zip(self.leaves, keras.tree.flatten(actions), self._split_mask(mask))
        return np.all([leaf.is_legal(a, m) for leaf, a, m in parts], axis=0)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        parts = zip(self.names, self._each("parameters", outputs), strict=True)
        return {f"{leaf}_{name}": x for leaf, p in parts for name, x in p.items()}

    def to_environment(self, actions: Any) -> Any:
        return self._pack(self._each("to_environment", nested=actions))

    def check_actions(self, actions: Any, lengths: ArrayLike, masks: Any = None) -> None:
        has_masks = masks is not None and masks.shape[-1]
        masks = self._split_mask(masks) if has_masks else [None] * len(self.leaves)
        keras.tree.assert_same_structure(self.heads, actions)
        actions = keras.tree.flatten(actions)
        parts = zip(self.names, self.leaves, actions, masks, strict=True)
        for name, leaf, part, mask in parts:
            try:
                leaf.check_actions(part, lengths, mask)
            except ValueError as error:
                raise ValueError(f"In the part {name!r} of the action: {error}") from None

    def matches_space(self, space: gym.Space) -> bool:
        nested = spaces.to_nest(space)
        try:
            keras.tree.assert_same_structure(self.heads, nested)
        except ValueError:
            return False
        parts = zip(self.leaves, keras.tree.flatten(nested), strict=True)
        return all(leaf.matches_space(part) for leaf, part in parts)

    def is_valid(self, actions: Any) -> Any:
        return self._pack(self._each("is_valid", nested=actions))

    def _split_mask(self, mask: Any) -> Any:
        ends = np.cumsum([leaf.mask_size for leaf in self.leaves])
        return np.split(mask, ends[:-1], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "heads": _to_config(self.heads)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return super().from_config({**config, "heads": _from_config(config["heads"])})

    def __repr__(self) -> str:
        return f"Composite({self.heads})"


def _check_heads(heads: Any) -> None:
    """Raises an error unless `heads` is a nested tuple or dict of different heads."""
    if not isinstance(heads, (tuple, dict)):
        raise TypeError(f"`heads` must be a tuple or a dict. Received: heads={heads!r}")
    leaves = spaces.flatten(heads)
    for leaf in leaves:
        if not isinstance(leaf, base.Head) or isinstance(leaf, Composite):
            raise TypeError(
                "`heads` must be heads in tuples and dicts. A Composite cannot "
                f"contain another Composite: nest its heads. Received: {leaf!r} in "
                f"{heads!r}"
            )
    if len(set(map(id, leaves))) < len(leaves):
        raise ValueError(
            "Each of `heads` must be a different object with its own weights. "
            f"Received: heads={heads!r}"
        )


class _JointDistribution(tfp.distributions.Distribution):
    """The joint distribution of several heads' independent actions.

    TFP's own joint distributions call `sample` in `log_prob`, which a distribution from
    `Head.distribution` does not need: `Head.sample` draws the actions.
    """

    def __init__(self, leaves: Any, pack: Any) -> None:
        self._leaves = leaves
        self._pack = pack
        super().__init__(
            dtype=pack([leaf.dtype for leaf in leaves]),
            reparameterization_type=pack([x.reparameterization_type for x in leaves]),
            validate_args=False,
            allow_nan_stats=True,
        )

    def _log_prob(self, actions: Any) -> Any:
        parts = zip(self._leaves, keras.tree.flatten(actions), strict=True)
        return tf.add_n([leaf.log_prob(action) for leaf, action in parts])

    def _entropy(self) -> Any:
        return tf.add_n([leaf.entropy() for leaf in self._leaves])

    def _batch_shape(self) -> Any:
        return self._leaves[0].batch_shape

    def _event_shape(self) -> Any:
        return self._pack([leaf.event_shape for leaf in self._leaves])


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
