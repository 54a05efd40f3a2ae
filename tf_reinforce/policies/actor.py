"""Selects actions with normalizer, policy, recurrent state, mask and head."""

import keras
import tensorflow as tf

from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding


class ActorPolicy:
    """From observations to actions, in TensorFlow operations, for any engine.

    Args:
        step: Function from observations `[N, …]` and a list of states to the policy's
            outputs `[N, P]` and the list of next states.
        head: `heads.Head`, built.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        dtype: Float type of the outputs.
        variables: The Keras variables that decide.
        mask_source: `action_masks.MaskPath`, or `None` if every action is always legal.
        memory: `recurrent.RecurrentPolicy`, or `None` for a policy without state.
    """

    def __init__(
        self, step, head, structure, dtype, variables, mask_source=None, memory=None
    ):
        self.step = step
        self.head = head
        self.observation_spec = structure
        self.dtype = dtype
        self.variables = list(variables)
        self.mask_source = mask_source
        self.memory = memory
        self.action_spec = head.action_spec(dtype)
        self.noise = keras.tree.flatten(head.noise)
        self.mask_size = head.mask_size if mask_source else 0
        self.state = [] if memory is None else memory.state

    def mask_reader(self):
        """Returns a `MaskReader` for environments, or `None` if no action is masked."""
        source = self.mask_source
        return source and action_masks.MaskReader(source, self.head.flatten_mask)

    def initial_state(self, count):
        """The states at the beginning of `count` episodes, `[count, …]` each."""
        return [] if self.memory is None else self.memory.initial(count)

    def outputs(self, observations, mask, states):
        """The policy's outputs, the same under the mask, and the next states.

        Args:
            observations: Structure of tensors `[N, …]`.
            mask: `[N, M]` int8, or `None` where M is zero.
            states: List of tensors `[N, …]`.
        """
        outputs, states = self.step(observations, states)
        if mask is None:
            return outputs, outputs, states
        mask = tf.cast(mask, tf.int32)  # LiteRT compares nothing smaller
        return outputs, self.head.mask_outputs(outputs, mask), states

    def select_actions(self, outputs, noise=None):
        """Raw actions from outputs and a list of noise; without it the most likely."""
        if noise is None:
            return self.head.mode(outputs)
        nested = keras.tree.pack_sequence_as(self.head.noise, noise)
        return self.head.sample(outputs, nested)

    def sample_noise(self, seed, count):
        """A list of noise for `count` actions, from a scalar int tensor."""
        return [
            seeding.stateless_noise(
                seed, noise.kind, tf.stack([count, *noise.shape]), self.dtype, leaf
            )
            for leaf, noise in enumerate(self.noise)
        ]
