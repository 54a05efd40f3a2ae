"""Action selection: normalizer, policy, recurrent state, action mask and head."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import action_masks
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise


@dataclasses.dataclass(eq=False)
class ActorPolicy:
    """Selects actions for observations, in TensorFlow operations.

    Args:
        step: Function from N observations `[N, …]` and a list of recurrent states to the
            policy outputs, `[N, P]`, and the list of next states.
        head: The built `heads.Head` that samples actions from the policy outputs.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        dtype: Float type of the policy outputs.
        variables: The Keras variables that the actions depend on.
        mask_source: `action_masks.MaskPath` of the action mask in `info` or in the
            observation, or `None` if every action is always legal.
        memory: `memory.Memory`, or `None` for a policy that reads no earlier steps.
        lock: Lock that a thread holds while it reads or changes `variables`.
        centers: List from `RunningNormalization.centers`, with an entry for each array of
            an observation, or `None` without a normalizer.

    Attributes:
        action_spec: `tf.TensorSpec` of one raw action, or a structure of them. Raw
            actions are samples of the head, not yet in environment units.
        noise_specs: List of `NoiseSpec`, the random numbers that the head needs for one
            action.
        mask_size: Int, `M`, the number of entries of an action mask; zero without masks.
        state_spec: List of `tf.TensorSpec`, the recurrent state of one episode; empty for
            a policy without state.
        reads_rewards: Bool, whether the last state is the reward of the step before.
    """

    step: Callable
    head: Any
    observation_spec: Any
    dtype: str
    variables: list
    mask_source: Any = None
    memory: Any = None
    lock: Any = dataclasses.field(default_factory=threading.RLock)
    centers: list | None = None

    def __post_init__(self):
        head = self.head
        self.action_spec = head.action_spec(self.dtype)
        self.noise_specs = keras.tree.flatten(head.noise)
        self.mask_size = head.mask_size if self.mask_source else 0
        self.state_spec = [] if self.memory is None else self.memory.state_spec
        self.reads_rewards = self.memory is not None and self.memory.reads_rewards
        if self.centers is None:
            self.centers = [None] * len(keras.tree.flatten(self.observation_spec))

    def acting_specs(self):
        """Returns the `ActingSpecs` that a process without TensorFlow needs to act."""

        def array_specs(specs):
            leaves = keras.tree.flatten(specs)
            return [spaces.ArraySpec(tuple(x.shape), x.dtype.name) for x in leaves]

        return spaces.ActingSpecs(
            self.dtype,
            array_specs(self.observation_spec),
            array_specs(self.action_spec),
            self.noise_specs,
            self.mask_reader(),
            self.reads_rewards,
        )

    def mask_reader(self):
        """Returns a `MaskReader` for action masks, or `None` if there are none."""
        source = self.mask_source
        return source and action_masks.MaskReader(source, self.head.mask_layout)

    def initial_state(self, count):
        """Returns the list of recurrent states with which `count` episodes start."""
        return [] if self.memory is None else self.memory.initial_state(count)

    def named_states(self, states):
        """Returns recurrent states as a dict from their names, such as `state_0`."""
        return {x.name: state for x, state in zip(self.state_spec, states, strict=True)}

    def remember(self, states, raw_actions):
        """Returns the next recurrent states once actions have been selected."""
        return (
            states if self.memory is None else self.memory.remember(states, raw_actions)
        )

    def outputs(self, observations, mask, states):
        """Returns policy outputs, masked policy outputs, and next recurrent states.

        Args:
            observations: Tensor `[N, …]`, or a structure of tensors.
            mask: `[N, M]` int8, one action mask per observation, or `None` without masks.
            states: List of tensors `[N, …]`, the recurrent states.

        Returns:
            The outputs, `[N, P]`; the same under the action mask; and the list of next
            states.
        """
        outputs, states = self.step(observations, states)
        if mask is None:
            return outputs, outputs, states
        # A head may look at the number of entries, which must be known when it is traced.
        mask = tf.reshape(mask, [-1, self.mask_size])
        mask = tf.cast(mask, tf.int32)  # LiteRT compares no smaller integers
        return outputs, self.head.mask_outputs(outputs, mask), states

    def act(self, observations, masks, states, noise=None):
        """Selects the actions of one step of N episodes.

        Args:
            observations: N observations, nested like `observation_spec`.
            masks: List of one tensor, the action masks, or an empty list without masks.
            states: List of the recurrent states.
            noise: The same as for `select_actions`.

        Returns:
            The policy outputs before the mask, the raw actions, and a list of the next
            recurrent states.
        """
        mask = masks[0] if masks else None
        outputs, masked_outputs, states = self.outputs(observations, mask, states)
        raw_actions = self.select_actions(masked_outputs, noise)
        return outputs, raw_actions, self.remember(states, raw_actions)

    def select_actions(self, outputs, noise=None):
        """Returns raw actions, not yet converted to environment units.

        Args:
            outputs: `[N, P]` float, the policy outputs.
            noise: List of tensors `[N, …]`, one for each of `noise_specs`, from which
                actions are sampled, or `None` for the most likely actions.
        """
        if noise is None:
            return self.head.mode(outputs)
        nested = keras.tree.pack_sequence_as(self.head.noise, noise)
        return self.head.sample(outputs, nested)

    def sample_noise(self, seed, count):
        """Returns the noise from which `count` actions are sampled, as a list of tensors.

        Args:
            seed: Scalar int tensor that determines the noise.
            count: Int or scalar int tensor.
        """

        def draw(leaf, spec):
            shape = tf.stack([count, *spec.shape])
            return tensor_noise.stateless_noise(seed, spec.kind, shape, self.dtype, leaf)

        return [draw(leaf, spec) for leaf, spec in enumerate(self.noise_specs)]


def float_type(policy):
    """Returns the float type of a built policy's observations, outputs and actions.

    It is `"float64"` if any weight is float64, else `"float32"`, even for weights in half
    precision.
    """
    has_float64 = any(weight.dtype == "float64" for weight in policy.weights)
    return "float64" if has_float64 else "float32"


def constants(*models):
    """Returns what traced programs contain of Keras models, as a tuple to compare.

    These are the ids of the variables, which Keras' `enable_lora` extends, and the
    statistics from `adapted_layers`.
    """
    variable_ids = [id(v) for model in models for v in model.variables]
    statistics = [(name, array.tobytes()) for name, array in adapted_layers(*models)]
    return tuple(variable_ids), tuple(statistics)


def adapted_layers(*models):
    """Returns the statistics of layers with `adapt`, as a list of `(name, array)`.

    Such layers, for example `Normalization`, store their mean and variance twice: as
    weights, and as plain tensors that `call` reads.
    """
    return [
        (name, np.asarray(value))
        for model in models
        for layer in model._flatten_layers()
        if hasattr(layer, "finalize_state")
        for name, value in vars(layer).items()
        if isinstance(value, tf.Tensor)
    ]
