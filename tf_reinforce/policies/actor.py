"""Selects actions with normalizer, policy, recurrent state, mask and head."""

import keras
import tensorflow as tf

from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding


class ActorPolicy:
    """Computes actions from observations in TensorFlow operations, for any engine.

    Args:
        step: Function from observations `[N, …]` and a list of states to the policy's
            outputs `[N, P]` and the list of next states.
        head: `heads.Head`, built.
        observation_spec: `tf.TensorSpec`, or a structure of them: one observation.
        dtype: Float type of the outputs.
        variables: The Keras variables that the actions depend on.
        mask_source: `action_masks.MaskPath`, or `None` if every action is always legal.
        recurrent: `recurrent.RecurrentPolicy`, or `None` for a policy without state.

    Attributes:
        action_spec: `tf.TensorSpec`, or a structure of them: one raw action.
        noise_specs: List of `NoiseSpec`, the noise of one action.
        mask_size: Int, the number of entries of a mask, M; zero without masks.
        state_spec: List of `tf.TensorSpec`, the recurrent state of one episode; empty
            for a policy without state.
    """

    def __init__(
        self,
        step,
        head,
        observation_spec,
        dtype,
        variables,
        mask_source=None,
        recurrent=None,
    ):
        self.step = step
        self.head = head
        self.observation_spec = observation_spec
        self.dtype = dtype
        self.variables = list(variables)
        self.mask_source = mask_source
        self.recurrent = recurrent
        self.action_spec = head.action_spec(dtype)
        self.noise_specs = keras.tree.flatten(head.noise)
        self.mask_size = head.mask_size if mask_source else 0
        self.state_spec = [] if recurrent is None else recurrent.state_spec

    def mask_reader(self):
        """Returns a `MaskReader` for environments, or `None` if no action is masked."""
        source = self.mask_source
        return source and action_masks.MaskReader(source, self.head.flatten_mask)

    def initial_state(self, count):
        """Returns the states at the start of `count` episodes, `[count, …]` each."""
        return [] if self.recurrent is None else self.recurrent.initial_state(count)

    def outputs(self, observations, mask, states):
        """Returns outputs, masked outputs, and the next states.

        Args:
            observations: Structure of tensors `[N, …]`.
            mask: `[N, M]` int8, or `None` if M is zero.
            states: List of tensors `[N, …]`.

        Returns:
            `[N, P]` outputs of the policy, `[N, P]` outputs after the mask, and the list
            of next states.
        """
        outputs, states = self.step(observations, states)
        if mask is None:
            return outputs, outputs, states
        mask = tf.cast(mask, tf.int32)  # LiteRT compares no smaller integers
        return outputs, self.head.mask_outputs(outputs, mask), states

    def select_actions(self, outputs, noise=None):
        """Returns raw actions: sampled with a list of noise, or the most likely ones.

        Args:
            outputs: `[N, P]` float tensor.
            noise: List of tensors `[N, …]`, one for each of `noise_specs`; `None` selects
                the mode.
        """
        if noise is None:
            return self.head.mode(outputs)
        nested = keras.tree.pack_sequence_as(self.head.noise, noise)
        return self.head.sample(outputs, nested)

    def sample_noise(self, seed, count):
        """Returns a list of noise for `count` actions.

        Args:
            seed: Scalar int tensor.
            count: Int, or scalar int tensor.
        """
        return [
            seeding.stateless_noise(
                seed, spec.kind, tf.stack([count, *spec.shape]), self.dtype, leaf
            )
            for leaf, spec in enumerate(self.noise_specs)
        ]
