"""`Autoregressive`, for actions whose parts depend on each other."""

import contextlib
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
from tf_reinforce.data import spaces
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

    argument = "parts"
    argument_names = ("parts", "order", "hidden", "masks", "shape")
    setting_names = ("order", "hidden", "masks")

    def __init__(
        self,
        parts: tuple | dict,
        *,
        order: Sequence[str] | None = None,
        hidden: int = 64,
        masks: dict[str, str | Callable] | None = None,
        shape: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_heads(parts)
        self.hidden = validation.size("hidden", hidden)
        order = self.names if order is None else order
        self.order = tuple(order) if isinstance(order, (list, tuple)) else ()
        if len(self.order) > len(self.names) or set(self.order) != set(self.names):
            raise ValueError(
                "`order` must name each part of the action once. Expected: an order of "
                f"{self.names}. Received: order={order!r}"
            )
        self.masks = validation.instance("masks", masks or {}, dict)
        self.shape = shape if shape is None else base.env_shape(shape, len(self.names))
        self._indices = [self.names.index(name) for name in self.order]
        # From the index of a part with a rule to that of the part that picks a row of its
        # table of masks; `None` for a function.
        self._choosers: dict[int, int | None] = {}
        for name, rule in self.masks.items():
            if problem := self._problem_of_rule(name, rule):
                raise ValueError(
                    "`masks` must be rules for parts that take a mask and are not the "
                    "first: the name of an earlier part that is one choice, or a "
                    f"function. Received: masks={dict(self.masks)} for the order "
                    f"{self.order}, but {problem}"
                )
            chooser = self.names.index(rule) if rule in self.names else None
            self._choosers[self.names.index(name)] = chooser
        sizes = [leaf.mask_size for leaf in self.leaves]
        self.reads_tables = any(x is not None for x in self._choosers.values())
        rows = {i: 0 if j is None else sizes[j] for i, j in self._choosers.items()}
        self._set_sizes(rows, self.hidden)
        self._check_functions()

    parts = composite.NestedHead.heads

    def _earlier(self, index: int) -> list[int]:
        """Returns the indices of the parts that are chosen before a part."""
        return self._indices[: self._indices.index(index)]

    def _problem_of_rule(self, name: Any, rule: Any) -> str:
        """Returns what is wrong with the rule of a part, or ""."""
        if name not in self.names:
            return f"there is no part {name!r}"
        index = self.names.index(name)
        if not self.leaves[index].mask_size:
            return f"the part {name!r} takes no mask"
        if not self._earlier(index):
            return f"the part {name!r} is the first"
        if callable(rule):
            known = keras.saving.get_registered_name(rule)
            is_known = rule is keras.saving.get_registered_object(known)
            text = "needs the decorator keras.saving.register_keras_serializable"
            return "" if is_known else f"the function of {name!r} {text}"
        if rule not in self.names:
            return f"the rule of {name!r} is {rule!r}, which is no part"
        chooser = self.names.index(rule)
        if chooser not in self._earlier(index):
            return f"{rule!r} is not chosen before {name!r}"
        is_choice = isinstance(self.leaves[chooser], categorical.ChoiceHead)
        return "" if is_choice else f"{rule!r} is not one choice"

    def _check_functions(self) -> None:
        """Raises `ValueError` if a mask function leaves no value, in any finite case."""
        functions = [i for i, chooser in self._choosers.items() if chooser is None]
        for i in functions:
            earlier = self._earlier(i)
            prefixes = base.combinations([self.leaves[j] for j in earlier], _MAX_CHECKED)
            if prefixes is None:
                continue
            actions = dict(zip(earlier, prefixes, strict=True))
            own = [j for j in (*earlier, i) if j in functions]
            masks = {j: self._row(j, None, actions).numpy() for j in own}
            right = [self.leaves[i].has_legal_action(masks.pop(i))]
            right += [~self.leaves[j].is_legal(actions[j], x) for j, x in masks.items()]
            for wrong in np.flatnonzero(~np.any(right, axis=0))[:1]:
                prefix = {self.names[j]: actions[j][wrong].tolist() for j in earlier}
                raise ValueError(
                    f"The mask function of the part {self.names[i]!r} must leave a legal "
                    f"value. Received: none for the earlier parts {prefix}"
                )

    def build(self, outputs_shape: Any) -> None:
        super().build(outputs_shape)
        self._weights_of: dict[str, tuple] = {}
        count = 0
        for i in self._indices:
            leaf, name = self.leaves[i], self.names[i]
            if count:
                size = leaf.conditioned_size or leaf.outputs_size
                glorot = keras.initializers.GlorotUniform(seed=i)
                safe = spaces.safe_name(name)
                self._weights_of[name] = (
                    self.add_weight((count, self.hidden), glorot, name=f"{safe}_E"),
                    self.add_weight((self.hidden, size), "zeros", name=f"{safe}_V"),
                )
            count += leaf.features_size or math.prod(leaf.action_shape)

    def _chain(self, outputs: Any, choose: Callable, uniform: bool = False) -> Any:
        """Chooses an action part by part.

        Args:
            outputs: `[..., P]` float tensor, before or after `mask_outputs`.
            choose: Function of the index of a head and its outputs, given the earlier
                parts, that returns the raw action of the part.
            uniform: Bool, whether only masks depend on the earlier parts.

        Returns:
            A list with the outputs and one with the action of each head, in the order of
            `keras.tree.flatten`, and whether each part had a legal value, `[...]` bool or
            True. Where it had none, its outputs are as if all values were legal.
        """
        *parts, context = self._split(outputs)
        actions: dict[int, Any] = {}
        features: list[Any] = []
        legal = True
        for i in self._indices:
            leaf, own = self.leaves[i], parts[i]
            if features and not uniform:
                parts[i] = self._conditioned(i, own, context, features)
            mask, size = None, leaf.outputs_size
            if i in self._choosers:
                mask = self._row(i, own[..., size:], actions)
            if mask is not None:
                has_legal = _has_legal(leaf, mask)
                legal &= has_legal
                mask = tf.where(has_legal[..., None], mask, 1)
                parts[i] = leaf.mask_outputs(parts[i][..., :size], mask)
            actions[i] = choose(i, parts[i])
            if i != self._indices[-1]:
                features.append(leaf.action_features(own, actions[i]))
        return parts, [actions[i] for i in range(len(parts))], legal

    def _conditioned(self, index: int, outputs: Any, context: Any, features: Any) -> Any:
        """Returns zᵢ + Vᵢ tanh(h + Σⱼ Eᵢⱼ xⱼ), with V in units of the outputs."""
        weights = self._weights_of[self.names[index]]
        first, last = (tf.cast(weight, outputs.dtype) for weight in weights)
        inner, size = tf.concat(features, axis=-1), last.shape[-1]
        inner = tf.tanh(context + tf.matmul(inner, first))
        scales = base.constant(self.leaves[index].output_scaling()[1][:size], outputs)
        shifted = outputs[..., :size] + scales * tf.matmul(inner, last)
        return tf.concat([shifted, outputs[..., size:]], axis=-1)

    def _row(self, index: int, table: Any, actions: dict) -> Any:
        """Returns the mask of a part with a rule, given the earlier parts.

        Args:
            index: Int, which part.
            table: `[..., rows * M]` float, its table; no entries, or `None`, if there are
                no masks.
            actions: Dict from the indices of the earlier parts to their raw actions.

        Returns:
            `[..., M]` int32, or `None` if there are no masks.
        """
        name, size = self.names[index], self.leaves[index].mask_size
        chooser = self._choosers[index]
        if chooser is not None:
            if table is None or not table.shape[-1]:
                return None
            sizes = self.leaves[chooser].mask_size, size
            table = tf.reshape(table, tf.concat([tf.shape(table)[:-1], sizes], axis=0))
            one_hot = tf.one_hot(actions[chooser], sizes[0], dtype=table.dtype)
            row = tf.reduce_sum(one_hot[..., None] * table, axis=-2)
            return tf.cast(tf.round(row), tf.int32)
        rule: Any = self.masks[name]
        earlier = self._earlier(index)
        chosen = {self.names[j]: tf.convert_to_tensor(actions[j]) for j in earlier}
        try:
            row = rule(chosen)
        except Exception as error:  # of any type, since the function is the user's
            types = {part: x.dtype.name for part, x in chosen.items()}
            raise ValueError(
                f"The mask function of the part {name!r} must take earlier actions of "
                f"the types {types}. It raised {type(error).__name__}: "
                f"{validation.one_line(error)}"
            ) from error
        row = tf.convert_to_tensor(row)
        first, leaf = actions[earlier[0]], self.leaves[earlier[0]]
        rank = len(first.shape) - len(leaf.action_shape) + 1
        if row.shape.rank != rank or row.shape[-1] != size:
            raise ValueError(
                f"The mask function of the part {name!r} must return {size} entries for "
                f"each action, an array of {rank} axes. Received: shape {row.shape}"
            )
        return tf.cast(row, tf.int32)

    @property
    def mask_layout(self) -> action_masks.NestedLayout:
        layouts = [leaf.mask_layout for leaf in self.leaves]
        for i, chooser in self._choosers.items():
            rows = 0 if chooser is None else self.leaves[chooser].mask_size
            layouts[i] = action_masks.TableLayout(layouts[i], rows)
        return action_masks.NestedLayout(self._pack(layouts), self._choosers)

    def _leaf_masks(self, actions: list, mask: Any) -> list:
        masks, inputs = super()._leaf_masks(actions, mask), {}
        for i, x in enumerate(actions):  # padding may contain any number
            inputs[i] = np.where(self.leaves[i].is_valid(x), x, np.zeros_like(x))
        for i in self._choosers:
            table = None if masks[i] is None else tf.cast(masks[i], tf.float32)
            row = self._row(i, table, inputs)
            masks[i] = None if row is None else row.numpy()
        return masks

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        def log_prob(actions: Any) -> Any:
            log_probs, _, legal = self._scores(outputs, keras.tree.flatten(actions))
            return tf.where(legal, tf.add_n(log_probs), math.nan)

        entropy = functools.partial(self._entropy, outputs)
        return composite.JointDistribution(self, outputs, log_prob, entropy)

    def log_prob_and_entropy(self, outputs: tf.Tensor, actions: Any) -> tuple[Any, Any]:
        log_probs, entropies, legal = self._scores(outputs, keras.tree.flatten(actions))
        log_prob = tf.where(legal, tf.add_n(log_probs), math.nan)
        with contextlib.suppress(NotImplementedError):
            return log_prob, self._entropy(outputs)
        # The value of each term is Hᵢ, and its gradient ∇Hᵢ + Hᵢ ∇ln π(earlier parts).
        earlier = tf.cumsum(log_probs, exclusive=True)
        score = earlier - tf.stop_gradient(earlier)
        terms = entropies + tf.stop_gradient(entropies) * score
        return log_prob, tf.where(legal, tf.reduce_sum(terms, axis=0), math.nan)

    def _scores(self, outputs: Any, actions: list) -> Any:
        """Returns log-probability and entropy of each part, given the earlier parts.

        Both are lists in the order of the choices. The third result is False where a part
        has no legal value, if the earlier parts can lead there.
        """
        parts, _, legal = self._chain(outputs, lambda i, _: actions[i])
        order = self._indices
        laws = [self.leaves[i].distribution(parts[i]) for i in order]
        pairs = zip(laws, (actions[i] for i in order), strict=True)
        log_probs = [law.log_prob(x) for law, x in pairs if x is not None]
        legal |= tf.exp(sum(log_probs, 0.0)) == 0
        return log_probs, [law.entropy() for law in laws], legal

    def _entropy(self, outputs: Any) -> Any:
        """Returns the exact entropy, E[Σᵢ Hᵢ] over the parts before the last."""
        first = self._indices[:-1]
        prefixes = base.combinations([self.leaves[i] for i in first], _MAX_EXACT)
        if prefixes is None:
            raise NotImplementedError(
                "The entropy has no closed form, because the parts before the last have "
                f"more than {_MAX_EXACT} combinations. Call `head.log_prob_and_entropy`, "
                "which estimates it from sampled actions."
            )
        actions: list[Any] = [None] * len(self.leaves)
        for i, rows in zip(first, prefixes, strict=True):
            shape = tf.concat([tf.shape(outputs)[:-1], rows.shape], axis=0)
            actions[i] = tf.broadcast_to(rows, shape)
        count = len(prefixes[0]) if first else 1
        repeated = tf.repeat(outputs[..., None, :], count, axis=-2)
        log_probs, entropies, legal = self._scores(repeated, actions)
        terms = tf.exp(sum(log_probs, tf.zeros([], outputs.dtype))) * sum(entropies)
        return tf.reduce_sum(tf.where(legal, terms, math.nan), axis=-1)

    def max_entropy(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        flat = keras.tree.flatten(actions)
        parts, _, _ = self._chain(outputs, lambda i, _: flat[i], uniform=True)
        return tf.add_n([x.entropy() for x in self._each("distribution", parts)])

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        flat, outputs = keras.tree.flatten(actions), tf.convert_to_tensor(outputs)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            parts, _, _ = self._chain(outputs, lambda i, _: flat[i])
        slopes = self._each("eligibility", parts, nested=actions)
        zero = tf.UnconnectedGradients.ZERO
        return tape.gradient(parts, outputs, slopes, unconnected_gradients=zero)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        flat, leaves = keras.tree.flatten(noise), self.leaves
        _, actions, _ = self._chain(outputs, lambda i, x: leaves[i].sample(x, flat[i]))
        return self._pack(actions)

    def _greedy(self, outputs: Any) -> list:
        return self._chain(outputs, lambda i, x: self.leaves[i].mode(x))[0]

    def to_environment(self, actions: Any) -> Any:
        result = super().to_environment(actions)
        if self.shape is None:
            return result
        return tf.reshape(tf.stack(keras.tree.flatten(result), 1), [-1, *self.shape])

    def check_space(self, space: gym.Space) -> None:
        if isinstance(space, gym.spaces.MultiDiscrete) and self.shape is None:
            raise ValueError(
                f"A head for arrays of actions needs their shape. Received: {self!r} and "
                f"the space {space!r}. Pass shape={space.shape} to the head."
            )
        super().check_space(space)

    def _spaces(self, space: gym.Space) -> list | None:
        if self.shape is None:
            return super()._spaces(space)
        is_array = isinstance(space, gym.spaces.MultiDiscrete)
        is_same = is_array and space.shape == self.shape
        return super()._spaces(choices_of(space)) if is_same else None

    @property
    def _last_layer(self) -> str:
        names = (*self.names, "`hidden`")
        sizes = (*(leaf.outputs_size for leaf in self.leaves), self.hidden)
        parts = ", ".join(f"{n} of {x}" for x, n in zip(names, sizes, strict=True))
        return f"{super()._last_layer}, or concatenate the outputs of its parts: {parts}"

    def get_config(self) -> dict[str, Any]:
        rules = keras.saving.serialize_keras_object(dict(self.masks))
        return {**super().get_config(), "masks": rules}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        rules = keras.saving.deserialize_keras_object(config["masks"])
        return super().from_config({**config, "masks": rules})


def choices_of(space: Any) -> gym.spaces.Tuple:
    """Returns the numbers of a `MultiDiscrete` as a tuple of `Discrete`."""
    pairs = zip(np.ravel(space.nvec), np.ravel(space.start), strict=True)
    return gym.spaces.Tuple([gym.spaces.Discrete(n, start=start) for n, start in pairs])


def _has_legal(leaf: Any, mask: Any) -> Any:
    """Returns `[...]` bool, whether each choice of a head has a legal value."""
    parts = tf.split(mask, leaf.choices, axis=-1) if leaf.choices else ()
    flags = [tf.reduce_any(part != 0, axis=-1) for part in parts]
    return functools.reduce(tf.logical_and, flags, tf.fill(tf.shape(mask)[:-1], True))
