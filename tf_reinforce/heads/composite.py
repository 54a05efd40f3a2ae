"""Several heads as one, nested like the action space."""

import functools

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import spaces
from tf_reinforce.heads import base


@keras.saving.register_keras_serializable("tf_reinforce")
class Composite(base.Head):
    """Heads in tuples and dicts, for `Tuple` and `Dict` spaces nested to any depth.

        π(a|s) = Π_leaves π_leaf(a_leaf|s)

    Given the observation the leaves are independent of each other. The policy puts out
    what all leaves need, one after another in the order of `keras.tree.flatten`, that is
    with sorted keys; a mask holds their masks in the same order. Raw actions, noise and
    what the environment receives are nested as the heads.

    Args:
        heads: Tuple or dict of heads, or of such tuples and dicts. Keys are strings
            without "/".

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

    def __init__(self, heads, **kwargs):
        super().__init__(**kwargs)
        _check(heads)
        self.names = spaces.action_names(heads)
        self.leaves = keras.tree.flatten(heads)
        # Keras follows lists but loses what nests deeper, and it would replace the dicts.
        self._pack = functools.partial(keras.tree.pack_sequence_as, heads)
        self.outputs_size = sum(leaf.outputs_size for leaf in self.leaves)
        self.mask_size = sum(leaf.mask_size for leaf in self.leaves)

    def build(self, outputs_shape):
        for leaf in self.leaves:
            if not leaf.built:
                leaf.build((*outputs_shape[:-1], leaf.outputs_size))

    def set_float_type(self, dtype):
        super().set_float_type(dtype)
        for leaf in self.leaves:
            if not leaf.built:
                leaf.set_float_type(dtype)

    @property
    def heads(self):
        """The heads, nested as they were given."""
        return self._pack(list(self.leaves))

    @property
    def noise(self):
        """`NoiseSpec` for each leaf, nested as the heads."""
        return self._pack([leaf.noise for leaf in self.leaves])

    def action_spec(self, dtype):
        return self._pack([leaf.action_spec(dtype) for leaf in self.leaves])

    def distribution(self, outputs):
        leaves = [
            leaf.distribution(part)
            for leaf, part in zip(self.leaves, self._split(outputs), strict=True)
        ]
        return _Joint(leaves, self._pack)

    def eligibility(self, outputs, actions):
        parts = zip(self.leaves, self._split(outputs), self._flat(actions), strict=True)
        return tf.concat([leaf.eligibility(o, a) for leaf, o, a in parts], axis=-1)

    def sample(self, outputs, noise):
        parts = zip(self.leaves, self._split(outputs), self._flat(noise), strict=True)
        return self._pack([leaf.sample(o, u) for leaf, o, u in parts])

    def mode(self, outputs):
        parts = zip(self.leaves, self._split(outputs), strict=True)
        return self._pack([leaf.mode(part) for leaf, part in parts])

    def relative_scale(self, outputs):
        parts = zip(self.leaves, self._split(outputs), strict=True)
        return tf.concat([leaf.relative_scale(part) for leaf, part in parts], axis=-1)

    def at_bounds(self, actions):
        parts = zip(self.leaves, self._flat(actions), strict=True)
        return tf.concat([leaf.at_bounds(part) for leaf, part in parts], axis=-1)

    def output_scaling(self):
        offsets, scales = zip(
            *(leaf.output_scaling() for leaf in self.leaves), strict=True
        )
        return np.concatenate(offsets), np.concatenate(scales)

    def mask_outputs(self, outputs, mask):
        ruled = [leaf.mask_size for leaf in self.leaves if leaf.mask_size]
        masks = iter(tf.split(mask, ruled, axis=-1) if ruled else ())
        parts = zip(self.leaves, self._split(outputs), strict=True)
        return tf.concat(
            [
                leaf.mask_outputs(o, next(masks)) if leaf.mask_size else o
                for leaf, o in parts
            ],
            axis=-1,
        )

    def flatten_mask(self, mask):
        return np.concatenate(keras.tree.flatten(_read(self.heads, mask)))

    def has_legal_action(self, mask):
        parts = zip(self.leaves, self._split_mask(mask), strict=True)
        return np.all([leaf.has_legal_action(part) for leaf, part in parts], axis=0)

    def is_legal(self, actions, mask):
        parts = zip(self.leaves, self._flat(actions), self._split_mask(mask), strict=True)
        return np.all([leaf.is_legal(a, part) for leaf, a, part in parts], axis=0)

    def parameters(self, outputs):
        return {
            f"{name}_{word}": values
            for name, leaf, part in zip(
                self.names, self.leaves, self._split(outputs), strict=True
            )
            for word, values in leaf.parameters(part).items()
        }

    def to_environment(self, actions):
        parts = zip(self.leaves, self._flat(actions), strict=True)
        return self._pack([leaf.to_environment(a) for leaf, a in parts])

    def check_actions(self, actions, lengths, masks=None):
        ruled = masks is not None and masks.shape[-1]
        ruling = self._split_mask(masks) if ruled else [None] * len(self.leaves)
        parts = zip(self.names, self.leaves, self._flat(actions), ruling, strict=True)
        for name, leaf, part, mask in parts:
            try:
                leaf.check_actions(part, lengths, mask)
            except ValueError as error:
                raise ValueError(f"In the part {name!r}: {error}") from None

    def matches_space(self, space):
        return _fits(self.heads, space)

    def is_valid(self, actions):
        parts = zip(self.leaves, self._flat(actions), strict=True)
        return self._pack([leaf.is_valid(a) for leaf, a in parts])

    def _split(self, outputs):
        return tf.split(outputs, [leaf.outputs_size for leaf in self.leaves], axis=-1)

    def _split_mask(self, mask):
        ends = np.cumsum([leaf.mask_size for leaf in self.leaves])
        return np.split(mask, ends[:-1], axis=-1)

    def _flat(self, nested):
        """The leaves of a structure, if it nests as the heads do."""
        keras.tree.assert_same_structure(self.heads, nested)
        return keras.tree.flatten(nested)

    def get_config(self):
        return {**super().get_config(), "heads": _to_config(self.heads)}

    @classmethod
    def from_config(cls, config):
        return super().from_config({**config, "heads": _from_config(config["heads"])})

    def __repr__(self):
        return f"Composite({self.heads})"


def _check(heads):
    """Refuses what is no structure of heads, each with weights of its own."""
    if not isinstance(heads, (tuple, dict)):
        raise TypeError(f"`heads` must be a tuple or a dict. Received: heads={heads!r}")
    leaves = list(_leaves(heads))
    for leaf in leaves:
        if not isinstance(leaf, base.Head) or isinstance(leaf, Composite):
            raise TypeError(
                "`heads` must be heads in tuples and dicts; a Composite is no part of "
                f"another one: nest its heads. Received: {leaf!r} in {heads!r}"
            )
    if len(set(map(id, leaves))) < len(leaves):
        raise ValueError(
            "Each of `heads` must be another object, with weights of its own. "
            f"Received: heads={heads!r}"
        )


def _leaves(heads):
    if not isinstance(heads, (tuple, dict)):
        yield heads
        return
    for part in heads.values() if isinstance(heads, dict) else heads:
        yield from _leaves(part)


class _Joint(tfp.distributions.Distribution):
    """Independent distributions as one, over values that nest as the heads do.

    TFP's own draws a sample even for a log-probability, and the distribution of a head
    need not be able to: a head has its own `sample`.
    """

    def __init__(self, leaves, pack):
        self._leaves = leaves
        self._pack = pack
        super().__init__(
            dtype=pack([leaf.dtype for leaf in leaves]),
            reparameterization_type=pack([x.reparameterization_type for x in leaves]),
            validate_args=False,
            allow_nan_stats=True,
        )

    def _log_prob(self, actions):
        parts = zip(self._leaves, keras.tree.flatten(actions), strict=True)
        return tf.add_n([leaf.log_prob(action) for leaf, action in parts])

    def _entropy(self):
        return tf.add_n([leaf.entropy() for leaf in self._leaves])

    def _sample_n(self, n, seed=None):
        seeds = tfp.random.split_seed(seed, len(self._leaves))
        parts = zip(self._leaves, tf.unstack(seeds), strict=True)
        return self._pack([leaf.sample(n, seed=one) for leaf, one in parts])

    def _batch_shape(self):
        return self._leaves[0].batch_shape

    def _batch_shape_tensor(self):
        return self._leaves[0].batch_shape_tensor()

    def _event_shape(self):
        return self._pack([leaf.event_shape for leaf in self._leaves])

    def _event_shape_tensor(self):
        return self._pack([leaf.event_shape_tensor() for leaf in self._leaves])


def _read(heads, mask, path=()):
    """A flat mask for each head; `None` in place of any part rules nothing out."""
    if isinstance(heads, base.Head):
        try:
            return heads.flatten_mask(mask)
        except ValueError as error:
            name = "_".join(map(str, path))
            raise ValueError(f"in the part {name!r}, {error}") from None
    named = isinstance(heads, dict)
    keys = list(heads) if named else list(range(len(heads)))
    if mask is None:
        parts = dict.fromkeys(keys)
    elif named:
        parts = mask if isinstance(mask, dict) else {}
    else:
        parts = dict(enumerate(mask)) if isinstance(mask, tuple) else {}
    if set(parts) != set(keys):
        wanted = f"a dict with the keys {keys}" if named else f"a tuple of {len(keys)}"
        raise ValueError(f"a mask of {heads!r} must be {wanted}. Received: {mask!r}")
    read = {key: _read(heads[key], parts[key], (*path, key)) for key in keys}
    return read if named else tuple(read.values())


def _fits(heads, space):
    if isinstance(heads, base.Head):
        return heads.matches_space(space)
    if isinstance(heads, dict):
        same = isinstance(space, gym.spaces.Dict) and set(space) == set(heads)
        return same and all(_fits(head, space[key]) for key, head in heads.items())
    same = isinstance(space, gym.spaces.Tuple) and len(space) == len(heads)
    return same and all(map(_fits, heads, space))


def _to_config(heads):
    """As `spaces.to_config` does it: JSON knows no tuples."""
    if isinstance(heads, dict):
        parts = {key: _to_config(part) for key, part in heads.items()}
        return {"kind": "Dict", "parts": parts}
    if isinstance(heads, tuple):
        return {"kind": "Tuple", "parts": [_to_config(part) for part in heads]}
    return keras.saving.serialize_keras_object(heads)


def _from_config(config):
    if config.get("kind") == "Dict":
        return {key: _from_config(part) for key, part in config["parts"].items()}
    if config.get("kind") == "Tuple":
        return tuple(_from_config(part) for part in config["parts"])
    return keras.saving.deserialize_keras_object(config)
