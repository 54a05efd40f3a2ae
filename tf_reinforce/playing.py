"""A policy at play: its acting programs, and the functions that others call."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import evaluation, export, seeding, spaces
from tf_reinforce.collect import acting, host

_EXAMPLES = 8  # rows on which LiteRT and Keras are compared


class Player:
    """Plays whole episodes with what decides an action: normaliser, policy and head.

    Programs are traced and converted when they are first needed, and kept.

    Args:
        decision: `decision.Decision`.
    """

    def __init__(self, decision):
        self.decision = decision
        self.programs = {}  # `acting.Acting`, by whether it is greedy
        self._functions = None

    def collect(self, fleet, purpose, update, seed, *, episodes, steps, greedy=False):
        """Whole episodes of a fleet; see `host.collect`."""
        decision = self.decision
        fleet.prepare(decision.dtype, decision.mask_reader())
        if greedy not in self.programs:
            self.programs[greedy] = self._program(fleet.observation_space, greedy)
        return host.collect(
            fleet,
            decision,
            self.programs[greedy].rows(fleet.size),
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
            raw = self.decision.raw
            self._sent = raw if action_space is None else spaces.nest(action_space)
            dtypes = keras.tree.map_structure(lambda leaf: leaf.dtype, self._sent)
            self._functions = export.endpoints(self.decision, dtypes)
        return self._functions

    def batch(self, observations):
        """Observations as tensors `[N, …]`, or an error that shows both shapes."""
        return keras.tree.map_structure(
            lambda leaf, array: _batch("observations", leaf, array),
            self.decision.structure,
            observations,
        )

    def answer(self, results):
        """The actions among results, nested; with the next state where there is one."""
        names = export.names(self._sent, "action")
        actions = keras.tree.map_structure(lambda name: results[name].numpy(), names)
        state = export.named([None] * len(self.decision.state))
        return (actions, {name: results[name] for name in state}) if state else actions

    def more(self, count, action_mask, state):
        """What else decides, as tensors: the mask and the state, where there are any."""
        decision, more = self.decision, []
        if decision.masks is not None and not decision.masks.observed:
            spec = tf.TensorSpec((decision.mask_size,), tf.int8)
            mask = np.asarray(action_mask if action_mask is not None else [], "int8")
            more.append(_batch("action_mask", spec, mask))
            if not decision.head.leaves_choice(mask).all():
                raise ValueError(
                    "`action_mask` must leave a legal action in every row. "
                    f"Received: {mask.tolist()}"
                )
        elif action_mask is not None:
            raise ValueError(
                "The agent reads no `action_mask` beside the observation. Make it with "
                '`Reinforce(policy, action_mask="info/action_mask")`.'
            )
        if decision.memory is not None:
            fresh = export.named(decision.initial_state(count))
            more.append(fresh if state is None else state)
        elif state is not None:
            raise ValueError("The policy has no recurrent layer, and takes no `state`.")
        return more

    def _program(self, observation_space, greedy):
        decision, rng = self.decision, seeding.generator(0, "parity")
        observed = spaces.examples(observation_space, decision.dtype, _EXAMPLES, rng)
        inputs = keras.tree.flatten(observed)
        if decision.masks is not None:
            inputs.append(np.tile(decision.head.read_mask(None), (_EXAMPLES, 1)))
        # States that all differ: zeros would hide that two of them were exchanged.
        inputs += [
            rng.uniform(-1, 1, state.shape).astype(state.dtype.as_numpy_dtype)
            for state in decision.initial_state(_EXAMPLES)
        ]
        noise = [
            rng.random((_EXAMPLES, *part.shape)).astype(decision.dtype)
            for part in decision.noise
        ]
        return acting.Acting(decision, inputs, noise, greedy)


def _batch(name, leaf, array):
    array = np.asarray(array)
    if array.shape[1:] != tuple(leaf.shape) or array.ndim != len(leaf.shape) + 1:
        raise ValueError(
            f"`{name}` must be a batch of shape {(None, *leaf.shape)}. "
            f"Received: shape {array.shape}. Give a single {name.removesuffix('s')} as "
            f"`{name.removesuffix('s')}[None]`."
        )
    return tf.constant(array, leaf.dtype)
