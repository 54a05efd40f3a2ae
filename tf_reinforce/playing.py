"""A policy at play: its acting programs, and the functions that others call."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import evaluation, export, seeding, spaces
from tf_reinforce.collect import acting, host


class Player:
    """Plays whole episodes with what decides an action: normaliser, policy and head.

    Programs are traced and converted when they are first needed, and kept.

    Args:
        outputs_of: Function from observations `[N, …]` to policy outputs `[N, P]`.
        head: `heads.Head`, built.
        variables: The Keras variables that decide.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        dtype: Float type of the outputs.
    """

    def __init__(self, outputs_of, head, variables, structure, dtype):
        self.outputs_of = outputs_of
        self.head = head
        self.variables = variables
        self.structure = structure
        self.dtype = dtype
        self.programs = {}  # `acting.Acting`, by whether it is greedy
        self._functions = None

    def collect(self, fleet, purpose, update, seed, *, episodes, steps, greedy=False):
        """Whole episodes of a fleet; see `host.collect`."""
        structure = fleet.prepare(self.dtype)
        if greedy not in self.programs:
            self.programs[greedy] = self._program(fleet.observation_space, greedy)
        return host.collect(
            fleet,
            structure,
            self.programs[greedy].rows(fleet.size),
            self.head,
            self.dtype,
            seed=seed,
            purpose=purpose,
            update=update,
            episodes=episodes,
            steps=steps,
            deterministic=greedy,
        )

    def play(self, fleet, purpose, update, seed, *, episodes, greedy):
        """The figures of so many episodes; see `evaluation.figures`."""
        played = self.collect(
            fleet, purpose, update, seed, episodes=episodes, steps=None, greedy=greedy
        )
        return evaluation.figures(played.episodes, played.success)

    def functions(self, action_space):
        """The exported functions; see `export.endpoints`."""
        if self._functions is None:
            action_dtype = self.head.action_dtype or self.dtype
            if action_space is not None:
                action_dtype = action_space.dtype
            self._functions = export.endpoints(
                self.outputs_of, self.head, self.structure, action_dtype, self.dtype
            )
        return self._functions

    def batch(self, observations):
        """Observations as tensors `[N, …]`, or an error that shows both shapes."""

        def tensor(leaf, array):
            array = np.asarray(array)
            if array.shape[1:] != tuple(leaf.shape) or array.ndim != len(leaf.shape) + 1:
                raise ValueError(
                    f"`observations` must be a batch of shape {(None, *leaf.shape)}. "
                    f"Received: shape {array.shape}. Give a single observation as "
                    "`observation[None]`."
                )
            return tf.constant(array, leaf.dtype)

        return keras.tree.map_structure(tensor, self.structure, observations)

    def _program(self, observation_space, greedy):
        rng = seeding.generator(0, "parity")
        return acting.Acting(
            self.outputs_of,
            self.head,
            self.structure,
            self.dtype,
            self.variables,
            spaces.examples(observation_space, self.dtype, 8, rng),
            rng.random((8, *self.head.noise.shape)).astype(self.dtype),
            greedy,
        )
