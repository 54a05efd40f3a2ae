"""Selects inputs on which LiteRT and TensorFlow are compared."""

import keras
import numpy as np

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces

_EXAMPLES = 8  # random observations for the comparison of a new program
_COMPARED = 64  # steps of every collection that are compared


def example_inputs(actor, observation_space):
    """Returns inputs to compare LiteRT with TensorFlow before the first episode.

    Args:
        actor: `actor.ActorPolicy` that selects the actions.
        observation_space: `gymnasium.Space` of the observations.

    Returns:
        Two lists of arrays `[N, …]` for N example observations. The first list contains
        observations, action masks and recurrent states. The second list contains the
        noise for sampling actions.
    """
    rng = seeding.generator(0, "engine_comparison")
    drawn = [
        spaces.sample_observations(observation_space, actor.dtype, _EXAMPLES, rng),
        spaces.edge_observations(observation_space, actor.dtype),
    ]
    specs = keras.tree.flatten(actor.observation_spec)
    observations = [
        np.concatenate(parts).astype(spec.dtype.as_numpy_dtype)
        for spec, *parts in zip(specs, *map(keras.tree.flatten, drawn), strict=True)
    ]
    count = len(observations[0])
    states, noise = _states_and_noise(actor, count, rng)
    masks = []
    if actor.mask_source is not None:
        masks.append(np.tile(actor.head.flatten_mask(None), (count, 1)))
    return [*observations, *masks, *states], noise


def recorded_inputs(actor, episodes, deterministic):
    """Returns inputs to compare LiteRT with TensorFlow, from steps of episodes.

    Args:
        actor: `actor.ActorPolicy` that selects the actions.
        episodes: `Episodes` of NumPy arrays.
        deterministic: Bool, whether to leave the noise out of the list.

    Returns:
        List of arrays `[64, …]`: observations and action masks of 64 evenly spread steps
        of the episodes, random recurrent states, and random noise.
    """
    valid = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
    steps = np.argwhere(valid)
    steps = steps[np.linspace(0, len(steps) - 1, _COMPARED).astype(int)]
    columns = keras.tree.flatten(episodes.observations)
    if actor.mask_source is not None:
        columns.append(episodes.masks)
    rng = seeding.generator(0, "engine_comparison", 1)
    states, noise = _states_and_noise(actor, _COMPARED, rng)
    rows = [np.asarray(column)[tuple(steps.T)] for column in columns]
    return [*rows, *states, *([] if deterministic else noise)]


def _states_and_noise(actor, count, rng):
    """Returns two lists of random arrays `[count, …]`: recurrent states, and noise."""
    # All states differ, because with zeros, the comparison would not detect that two
    # states are exchanged.
    states = [
        rng.uniform(-1, 1, state.shape).astype(state.dtype.as_numpy_dtype)
        for state in actor.initial_state(count)
    ]
    noise = [
        rng.random((count, *part.shape)).astype(actor.dtype) for part in actor.noise_specs
    ]
    return states, noise
