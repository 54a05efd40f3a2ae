"""Selects actions with normalizer, policy, recurrent state, mask and head."""

import keras
import tensorflow as tf

from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding


class ActorPolicy:
    """Computes actions from observations in TensorFlow operations.

    Args:
        step: Function from observations `[N, …]` and a list of states to the policy
            outputs `[N, P]` and the list of next states.
        head: A built `heads.Head`.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of
            `tf.TensorSpec`s.
        dtype: Float type of the policy outputs.
        variables: The Keras variables that the actions depend on.
        mask_source: `action_masks.MaskPath`, or `None` if every action is always legal.
        recurrent: `recurrent.RecurrentPolicy`, or `None` for a policy without state.

    Attributes:
        action_spec: `tf.TensorSpec` of one raw action, or a structure of
            `tf.TensorSpec`s.
        noise_specs: List of `NoiseSpec` that describes the noise of one action.
        mask_size: Int, `M`, the number of entries of an action mask, or zero without
            action masks.
        state_spec: List of `tf.TensorSpec`, the recurrent state of one episode, or an
            empty list for a policy without state.
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
        """Returns policy outputs, masked policy outputs, and the next states.

        Args:
            observations: Structure of tensors `[N, …]`, the observations.
            mask: `[N, M]` int8 action masks, or `None` if M is zero.
            states: List of tensors `[N, …]`, the recurrent states.

        Returns:
            The policy outputs `[N, P]`, the policy outputs after the mask `[N, P]`, and
            the list of next states.
        """
        outputs, states = self.step(observations, states)
        if mask is None:
            return outputs, outputs, states
        mask = tf.cast(mask, tf.int32)  # LiteRT compares no smaller integers
        return outputs, self.head.mask_outputs(outputs, mask), states

    def select_actions(self, outputs, noise=None):
        """Returns raw actions, sampled with a list of noise or the most likely actions.

        Args:
            outputs: `[N, P]` float tensor, the policy outputs.
            noise: List of tensors `[N, …]`, one for each of `noise_specs`. `noise=None`
                selects the most likely actions.
        """
        if noise is None:
            return self.head.mode(outputs)
        nested = keras.tree.pack_sequence_as(self.head.noise, noise)
        return self.head.sample(outputs, nested)

    def sample_noise(self, seed, count):
        """Returns a list of random noise for `count` actions.

        Args:
            seed: Scalar int tensor that determines the noise.
            count: Int or scalar int tensor, the number of actions.
        """
        return [
            seeding.stateless_noise(
                seed, spec.kind, tf.stack([count, *spec.shape]), self.dtype, leaf
            )
            for leaf, spec in enumerate(self.noise_specs)
        ]
