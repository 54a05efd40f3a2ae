"""What decides an action, as one thing: normaliser, policy, memory, mask and head."""

import keras
import tensorflow as tf

from tf_reinforce import masks, seeding


class Decision:
    """From observations to actions, in TensorFlow operations, for any engine.

    Args:
        step: Function from observations `[N, …]` and a list of states to the policy's
            outputs `[N, P]` and the list of next states.
        head: `heads.Head`, built.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        dtype: Float type of the outputs.
        variables: The Keras variables that decide.
        mask_source: `masks.Source`, or `None` where every action is always legal.
        memory: `recurrence.Recurrence`, or `None` for a policy without state.
    """

    def __init__(
        self, step, head, structure, dtype, variables, mask_source=None, memory=None
    ):
        self.step = step
        self.head = head
        self.structure = structure
        self.dtype = dtype
        self.variables = list(variables)
        self.mask_source = mask_source
        self.memory = memory
        self.raw = head.raw(dtype)
        self.noise = keras.tree.flatten(head.noise)
        self.mask_size = head.mask_size if mask_source else 0
        self.state = [] if memory is None else memory.state

    def mask_reader(self):
        """`masks.Reader` for environments, or `None` where nothing is masked."""
        source = self.mask_source
        return source and masks.Reader(source, self.head.read_mask)

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
        return outputs, self.head.masked(outputs, mask), states

    def choose(self, outputs, noise=None):
        """Raw actions from outputs and a list of noise; without it the most likely."""
        if noise is None:
            return self.head.mode(outputs)
        nested = keras.tree.pack_sequence_as(self.head.noise, noise)
        return self.head.sample(outputs, nested)

    def draw(self, seed, count):
        """A list of noise for `count` actions, from a scalar int tensor."""
        return [
            seeding.noise(
                seed, noise.kind, tf.stack([count, *noise.shape]), self.dtype, leaf
            )
            for leaf, noise in enumerate(self.noise)
        ]
