"""`Autoregressive`, for actions whose parts depend on each other."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import action_masks
from tf_reinforce.heads import base
from tf_reinforce.heads import categorical
from tf_reinforce.heads import composite
from tf_reinforce.support import validation

# The entropy is exact if the parts before the last have at most so many combinations.
_MAX_EXACT = 16
# The function of a mask is checked for so many combinations of the earlier parts.
_MAX_CHECKED = 10_000


@keras.saving.register_keras_serializable("tf_reinforce")
class Autoregressive(composite.NestedHead):
    """Heads in tuples and dicts, each of which sees the actions of those before it.

        π(a|s) = Πᵢ πᵢ(aᵢ|s, a₁, …, aᵢ₋₁)
        outputs of part i:    zᵢ + Vᵢ tanh(h + Σⱼ﹤ᵢ Eᵢⱼ xⱼ)

    The policy returns outputs zᵢ for each head, in the order of `keras.tree.flatten`, and
    then `hidden` numbers h. The vector xⱼ describes the raw action of an earlier part:
    one-hot for categories, numbers for others, the key of the row for a `Pointer`. E and
    V are weights of this head. V starts at zero, so a new head is a `Composite`: its
    parts are independent of each other.

    Log-probabilities follow the chain rule, and a sample is drawn part by part. The
    `mode` is *greedy*: the most likely action of each part, given those before it, which
    need not be the most likely action as a whole. `parameters` and `relative_scale` are
    those along this path.

    The entropy is exact if the parts before the last have at most 16 combinations.
    Otherwise, it is estimated from the sampled action by the sum of the conditional
    entropies, Σᵢ Hᵢ(a₁, …, aᵢ₋₁). The estimate is unbiased, and so is its gradient, which
    has a score term: ∇Hᵢ + Hᵢ ∇ln π(a₁, …, aᵢ₋₁). For both, the actions must be samples
    of the current policy, which they are in the first gradient step of an update.

    Args:
        parts: Tuple or dict of heads, nested to any depth. Keys are strings without "/".
        order: Names of all parts in the order in which they are chosen, by default that
            of `keras.tree.flatten`. A name consists of the keys joined by `_`; that of an
            entry of a tuple begins with `action_`.
        hidden: Positive int, the size of h.
        masks: Dict from the names of parts to the rule of their masks. If it is the name
            of an earlier part with one choice among K, the environment's mask of the part
            is a table `[K, …]`, and the choice selects a row. If it is a function,
            registered with `keras.saving.register_keras_serializable`, it computes the
            mask `[..., M]` from a dict of earlier parts' raw actions by name, in
            TensorFlow. Parts without a rule have the mask of their head.
        shape: Shape of the environment's action, if the parts are the numbers of a
            `MultiDiscrete`.
        seed: Int, which determines the initial E.

    Example:

    >>> from tf_reinforce import heads
    >>> unit, target = heads.Categorical(2), heads.Categorical(3)
    >>> head = Autoregressive(
    ...     {"unit": unit, "target": target},
    ...     order=("unit", "target"),
    ...     masks={"target": "unit"},
    ...     hidden=8,
    ... )
    >>> head.build((None, head.outputs_size))
    >>> table = np.array([[1, 1, 0], [0, 0, 1]])  # unit 0 reaches 0 and 1, unit 1 only 2
    >>> mask = head.flatten_mask({"unit": np.array([0, 1]), "target": table})
    >>> mode = head.mode(head.mask_outputs(tf.zeros([1, 13]), tf.constant(mask[None])))
    >>> mode["unit"].numpy().tolist(), mode["target"].numpy().tolist()
    ([1], [2])

    Reference:
        Vinyals et al. (2019), Grandmaster level in StarCraft II using multi-agent
        reinforcement learning, methods. doi:10.1038/s41586-019-1724-z
    """

    setting_names = ("order", "hidden", "masks")

    def __init__(
        self,
        parts: tuple | dict,
        *,
        order: Sequence[str] | None = None,
        hidden: int = 64,
        masks: dict[str, str | Callable] | None = None,
        shape: Sequence[int] | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_heads(parts, "parts")
        self.hidden = validation.size("hidden", hidden)
        order = self.names if order is None else order
        self.order = tuple(order) if isinstance(order, (list, tuple)) else ()
        if len(self.order) > len(self.names) or set(self.order) != set(self.names):
            raise ValueError(
                "`order` must name each part of the action once. Expected: an order of "
                f"{self.names}. Received: order={order!r}"
            )
        self.shape = shape if shape is None else base.env_shape(shape, len(self.names))
        self.seed = validation.check_seed(seed)
        self.masks = validation.instance("masks", masks or {}, dict)
        self._indices = [self.names.index(name) for name in self.order]
        self._choosers = self._check_rules()
        sizes = [leaf.mask_size for leaf in self.leaves]
        appended = [leaf.masked_size - leaf.outputs_size for leaf in self.leaves]
        for name in self.masks:
            i = self.names.index(name)
            rows = sizes[self._choosers[i]] if i in self._choosers else 0
            sizes[i] = appended[i] = rows * self.leaves[i].mask_size
        self._set_sizes(sizes, [self.hidden], appended)
        self._check_functions()

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> "Autoregressive":
        """Returns a head with the default head of each part of the space.

        The parts of a `MultiDiscrete` are its numbers, in nested tuples of its shape.
        """
        if isinstance(space, gym.spaces.MultiDiscrete):
            options["shape"] = space.shape
            space = _nested_choices(space)
        if not isinstance(space, (gym.spaces.Tuple, gym.spaces.Dict)):
            raise ValueError(
                "An Autoregressive head needs an action of several parts: a Tuple, a "
                f"Dict or a MultiDiscrete. Received: {space!r}"
            )
        return cls(composite.default_parts(space), **options)

    @property
    def parts(self) -> Any:
        """Returns the heads, nested as they were passed."""
        return self.heads

    def _check_rules(self) -> dict[int, int]:
        """Returns the index of each part with a table, and of the part that selects."""
        choosers, rules = {}, dict(self.masks)
        for name, rule in self.masks.items():
            earlier = self.order[: self.order.index(name)] if name in self.order else ()
            if not earlier or not self.leaves[self.names.index(name)].mask_size:
                raise ValueError(
                    "`masks` must be rules for parts that take a mask and are not the "
                    f"first, in the order {self.order}. Received: masks={rules}"
                )
            is_registered = callable(rule) and rule is (
                keras.saving.get_registered_object(keras.saving.get_registered_name(rule))
            )
            by_name = {x: self.leaves[self.names.index(x)] for x in earlier}
            if isinstance(by_name.get(rule), categorical.ChoiceHead):
                choosers[self.names.index(name)] = self.names.index(rule)
            elif not is_registered:
                raise ValueError(
                    f"The rule of the mask of {name!r} must be the name of an earlier "
                    f"part that is one choice, among {earlier}, or a function registered "
                    "with keras.saving.register_keras_serializable. Received: "
                    f"masks={rules} for the order {self.order}"
                )
        return choosers

    def _check_functions(self) -> None:
        """Raises `ValueError` if a mask function leaves no value, in any finite case."""
        for position, i in enumerate(self._indices):
            if not callable(self.masks.get(self.names[i])):
                continue
            earlier = self._indices[:position]
            prefixes = base.combinations([self.leaves[j] for j in earlier], _MAX_CHECKED)
            if prefixes is None:
                continue
            actions = dict(zip(earlier, prefixes, strict=True))
            possible = True
            for j in earlier:
                if callable(self.masks.get(self.names[j])):
                    mask = self._function_mask(j, actions)
                    possible &= self.leaves[j].is_legal(actions[j], mask)
            legal = _has_legal(self.leaves[i], self._function_mask(i, actions))
            wrong = np.flatnonzero(possible & ~np.asarray(legal))
            if len(wrong):
                prefix = {self.names[j]: actions[j][wrong[0]].tolist() for j in earlier}
                raise ValueError(
                    f"The mask function of the part {self.names[i]!r} must leave a legal "
                    f"value. Received: none for the earlier parts {prefix}"
                )

    def build(self, outputs_shape: Any) -> None:
        super().build(outputs_shape)
        features = 0
        self._weights_of: dict[str, tuple] = {}
        for i in self._indices:
            leaf, name = self.leaves[i], self.names[i]
            if features:
                seed = (self.seed + i) % 2**31
                glorot = keras.initializers.GlorotUniform(seed=seed)
                self._weights_of[name] = (
                    self.add_weight((features, self.hidden), glorot, name=f"{name}_E"),
                    self.add_weight(
                        (self.hidden, leaf.conditioned_size), "zeros", name=f"{name}_V"
                    ),
                )
            features += leaf.features_size

    def _chain(self, outputs: Any, choose: Callable, uniform: bool = False) -> Any:
        """Chooses an action part by part.

        Args:
            outputs: `[..., P]` float tensor, before or after `mask_outputs`.
            choose: Function of the index of a head and its outputs, given the earlier
                parts, that returns the raw action of the part.
            uniform: Bool, whether only masks depend on the earlier parts.

        Returns:
            A list with the outputs and one with the action of each head, in the order of
            `keras.tree.flatten`, and whether there was a legal value for each part,
            `[...]` bool or True.
        """
        *parts, context = self._split(outputs)
        actions: dict[int, Any] = {}
        features: list[Any] = []
        legal = True
        for i in self._indices:
            own = parts[i]
            if features and not uniform:
                parts[i] = self._conditioned(i, own, context, features)
            parts[i], has_legal = self._masked(i, parts[i], actions)
            legal &= has_legal
            actions[i] = choose(i, parts[i])
            if i != self._indices[-1]:
                features.append(self.leaves[i].action_features(own, actions[i]))
        return parts, [actions[i] for i in range(len(parts))], legal

    def _conditioned(self, index: int, outputs: Any, context: Any, features: Any) -> Any:
        """Returns zᵢ + Vᵢ tanh(h + Σⱼ Eᵢⱼ xⱼ), with V in units of the outputs."""
        leaf = self.leaves[index]
        first, last = (
            tf.cast(x, outputs.dtype) for x in self._weights_of[self.names[index]]
        )
        inner = tf.tanh(context + tf.matmul(tf.concat(features, axis=-1), first))
        size = leaf.conditioned_size
        scales = base.constant(leaf.output_scaling()[1][:size], outputs)
        shifted = outputs[..., :size] + scales * tf.matmul(inner, last)
        return tf.concat([shifted, outputs[..., size:]], axis=-1)

    def _masked(self, index: int, outputs: Any, actions: dict) -> Any:
        """Applies the rule of a mask to the outputs of a head, given the earlier parts.

        Where no value is legal, the outputs are as if all were.

        Returns:
            The outputs, and `[...]` bool, whether a value is legal.
        """
        leaf = self.leaves[index]
        size, table = leaf.outputs_size, outputs[..., leaf.outputs_size :]
        if self.names[index] not in self.masks:
            return outputs, True
        if index not in self._choosers:
            mask = self._function_mask(index, actions)
        elif table.shape[-1]:
            rows = self.leaves[self._choosers[index]].size
            shape = tf.concat([tf.shape(table)[:-1], [rows, leaf.mask_size]], axis=0)
            choice = actions[self._choosers[index]]
            one_hot = tf.one_hot(choice, rows, dtype=table.dtype)[..., None]
            mask = tf.reduce_sum(one_hot * tf.reshape(table, shape), axis=-2)
            mask = tf.cast(tf.round(mask), tf.int32)
        else:  # there are no masks
            return outputs, True
        legal = _has_legal(leaf, mask)
        mask = tf.where(legal[..., None], mask, tf.ones_like(mask))
        return leaf.mask_outputs(outputs[..., :size], mask), legal

    def _function_mask(self, index: int, actions: dict) -> Any:
        """Returns the mask `[..., M]` int32 that a rule computes from earlier parts."""
        name, leaf = self.names[index], self.leaves[index]
        earlier = self._indices[: self._indices.index(index)]
        inputs = {self.names[j]: tf.convert_to_tensor(actions[j]) for j in earlier}
        rule: Any = self.masks[name]
        mask = tf.convert_to_tensor(rule(inputs))
        if mask.shape.rank == 0 or mask.shape[-1] != leaf.mask_size:
            raise ValueError(
                f"The mask function of the part {name!r} must return {leaf.mask_size} "
                f"entries for each action. Received: shape {mask.shape}"
            )
        return tf.cast(mask, tf.int32)

    def _mask_part(self, index: int, outputs: Any, mask: Any) -> Any:
        if index not in self._choosers:
            return super()._mask_part(index, outputs, mask)
        own = outputs[..., : self.leaves[index].outputs_size]
        return tf.concat([own, tf.cast(mask, outputs.dtype)], axis=-1)

    @property
    def mask_layout(self) -> action_masks.NestedLayout:
        layouts = []
        for i, leaf in enumerate(self.leaves):
            layout = leaf.mask_layout
            if i in self._choosers:
                rows = self.leaves[self._choosers[i]].size
                layout = action_masks.TableLayout(layout, rows)
            elif self.names[i] in self.masks:
                layout = action_masks.MaskLayout(repr(leaf), 0)
            layouts.append(layout)
        return action_masks.NestedLayout(self._pack(layouts), self._choosers)

    def _leaf_masks(self, actions: list, mask: Any) -> list:
        masks = super()._leaf_masks(actions, mask)
        # Padding may contain any number.
        pairs = zip(self.leaves, actions, strict=True)
        inputs = [np.where(leaf.is_valid(x), x, np.zeros_like(x)) for leaf, x in pairs]
        for i, leaf in enumerate(self.leaves):
            if i in self._choosers and masks[i] is not None:
                table = masks[i].reshape(*masks[i].shape[:-1], -1, leaf.mask_size)
                rows = inputs[self._choosers[i]][..., None, None]
                masks[i] = np.take_along_axis(table, rows, axis=-2)[..., 0, :]
            elif i not in self._choosers and self.names[i] in self.masks:
                masks[i] = self._function_mask(i, dict(enumerate(inputs))).numpy()
        return masks

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        def log_prob(actions: Any) -> Any:
            return self._log_prob(outputs, keras.tree.flatten(actions))

        entropy = functools.partial(self._entropy, outputs)
        return composite.JointDistribution(self, outputs, log_prob, entropy)

    def log_prob_and_entropy(self, outputs: tf.Tensor, actions: Any) -> tuple[Any, Any]:
        scores = self._scores(outputs, keras.tree.flatten(actions))
        log_probs, entropies, legal = scores
        log_prob = _or_nan(legal, tf.add_n(log_probs))
        if self._prefixes is not None:
            return log_prob, self._entropy(outputs)
        total, earlier = tf.zeros_like(log_prob), tf.zeros_like(log_prob)
        for part, entropy in zip(log_probs, entropies, strict=True):
            # The value is Hᵢ, and the gradient ∇Hᵢ + Hᵢ ∇ln π(earlier parts).
            score = earlier - tf.stop_gradient(earlier)
            total += entropy + tf.stop_gradient(entropy) * score
            earlier += part
        return log_prob, _or_nan(legal, total)

    def _log_prob(self, outputs: Any, actions: list) -> Any:
        log_probs, _, legal = self._scores(outputs, actions)
        return _or_nan(legal, tf.add_n(log_probs))

    def _scores(self, outputs: Any, actions: list) -> Any:
        """Returns log-probability and entropy of each part, given the earlier parts.

        Both are lists in the order of the choices. The third result is False where a part
        has no legal value, if the earlier parts can lead there.
        """
        parts, _, legal = self._chain(outputs, lambda i, _: actions[i])
        log_probs, entropies = [], []
        for i in self._indices:
            distribution = self.leaves[i].distribution(parts[i])
            if actions[i] is not None:
                log_probs.append(distribution.log_prob(actions[i]))
            entropies.append(distribution.entropy())
        if legal is not True and log_probs:
            legal |= tf.exp(tf.add_n(log_probs)) == 0
        return log_probs, entropies, legal

    @functools.cached_property
    def _prefixes(self) -> list | None:
        """All combinations of the parts before the last, if they are few."""
        leaves = [self.leaves[i] for i in self._indices[:-1]]
        return base.combinations(leaves, _MAX_EXACT)

    def _entropy(self, outputs: Any) -> Any:
        """Returns the exact entropy, E[Σᵢ Hᵢ] over the parts before the last."""
        if self._prefixes is None:
            raise NotImplementedError(
                f"The entropy of {self!r} has no closed form, because the parts before "
                f"the last have more than {_MAX_EXACT} combinations. Call "
                "`head.log_prob_and_entropy(outputs, actions)`, which estimates it from "
                "sampled actions."
            )
        actions: list[Any] = [None] * len(self.leaves)
        for i, rows in zip(self._indices, self._prefixes):
            ones = [1] * (outputs.shape.rank - 1)
            rows = tf.reshape(rows, [len(rows), *ones, *rows.shape[1:]])
            shape = [tf.shape(rows)[:1], tf.shape(outputs)[:-1]]
            shape = tf.concat([*shape, self.leaves[i].action_shape], axis=0)
            actions[i] = tf.broadcast_to(rows, tf.cast(shape, tf.int32))
        count = len(self._prefixes[0]) if self._prefixes else 1
        repeated = tf.repeat(outputs[None], count, axis=0)
        log_probs, entropies, legal = self._scores(repeated, actions)
        total = tf.add_n(entropies)
        probs = tf.exp(tf.add_n(log_probs)) if log_probs else tf.ones_like(total)
        return tf.reduce_sum(_or_nan(legal, probs * total), axis=0)

    def max_entropy(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        flat = keras.tree.flatten(actions)
        parts, _, _ = self._chain(outputs, lambda i, _: flat[i], uniform=True)
        distributions = self._each("distribution", parts)
        return tf.add_n([distribution.entropy() for distribution in distributions])

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        flat = keras.tree.flatten(actions)
        outputs = tf.convert_to_tensor(outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            parts, _, _ = self._chain(outputs, lambda i, _: flat[i])
        slopes = self._each("eligibility", parts, nested=actions)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(parts, outputs, slopes, unconnected_gradients=zero)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        flat = keras.tree.flatten(noise)
        _, actions, _ = self._chain(
            outputs, lambda i, own: self.leaves[i].sample(own, flat[i])
        )
        return self._pack(actions)

    def mode(self, outputs: tf.Tensor) -> Any:
        return self._pack(self._greedy(outputs)[1])

    def _greedy(self, outputs: Any) -> Any:
        return self._chain(outputs, lambda i, own: self.leaves[i].mode(own))

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        parts = self._greedy(outputs)[0]
        return tf.concat(self._each("relative_scale", parts), axis=-1)

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        return self._named_parameters(self._greedy(outputs)[0])

    def to_environment(self, actions: Any) -> Any:
        result = super().to_environment(actions)
        if self.shape is None:
            return result
        numbers = tf.stack(keras.tree.flatten(result), axis=-1)
        return tf.reshape(numbers, [-1, *self.shape])

    def matches_space(self, space: gym.Space) -> bool:
        if self.shape is None:
            return super().matches_space(space)
        is_array = isinstance(space, gym.spaces.MultiDiscrete)
        if not is_array or space.shape != self.shape:
            return False
        return super().matches_space(_nested_choices(space))

    def get_config(self) -> dict[str, Any]:
        rules = {
            name: rule if isinstance(rule, str) else _serialize(rule)
            for name, rule in self.masks.items()
        }
        own = {"order": list(self.order), "hidden": self.hidden, "seed": self.seed}
        shape = self.shape if self.shape is None else list(self.shape)
        own |= {"parts": composite.to_config(self.heads), "masks": rules, "shape": shape}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        rules = {
            name: rule if isinstance(rule, str) else _deserialize(rule)
            for name, rule in config["masks"].items()
        }
        parts = composite.from_config(config["parts"])
        return super().from_config({**config, "parts": parts, "masks": rules})

    def __repr__(self) -> str:
        return f"Autoregressive({self.heads}, order={self.order}, hidden={self.hidden})"


_serialize = keras.saving.serialize_keras_object
_deserialize = keras.saving.deserialize_keras_object


def _nested_choices(space: Any) -> Any:
    """Returns the numbers of a `MultiDiscrete` as nested tuples of `Discrete`."""
    if isinstance(space, gym.spaces.Discrete):
        return space
    return gym.spaces.Tuple([_nested_choices(space[i]) for i in range(space.shape[0])])


def _has_legal(leaf: Any, mask: Any) -> Any:
    """Returns `[...]` bool, whether each choice of a head has a legal value."""
    parts = tf.split(mask, leaf.choices, axis=-1) if leaf.choices else ()
    flags = [tf.reduce_any(part != 0, axis=-1) for part in parts]
    return functools.reduce(tf.logical_and, flags, tf.fill(tf.shape(mask)[:-1], True))


def _or_nan(condition: Any, values: Any) -> Any:
    if condition is True:
        return values
    return tf.where(condition, values, tf.constant(math.nan, values.dtype))
