"""Environments with finitely many states, from a table of transitions."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base
from tf_reinforce.support import validation


class Tabular(base.TensorEnv):
    """A Markov decision process with S states and A actions, given as a table.

    The observation is the number of the state. For each action in a state, the table
    lists the possible outcomes, of which one is drawn at random. Gymnasium's tabular
    tasks store their table in the same form, as their attribute `P`.

    Args:
        transitions: List or dict of S states. `transitions[state][action]` is a list of
            outcomes `(probability, next_state, reward, terminated)`.
        initial_probs: `[S]` floats, the probability of each state at the start.
        max_episode_steps: Int, the time limit, or `None` if every episode terminates.
        action_masks: `[S, A]` of zeros and ones, zero for an action that is illegal in a
            state, or `None` if all are legal. Each state, even a terminal one, needs a
            legal action.
        **kwargs: Arguments that every `TensorEnv` accepts.

    Raises:
        ValueError: If the table is incomplete, or has invalid probabilities, rewards,
            next states or masks.

    Example:

    >>> stay, win = (0.5, 0, 0.0, False), (0.5, 0, 1.0, True)
    >>> env = Tabular([[[(1.0, 0, -1.0, True)], [stay, win]]], [1.0], max_episode_steps=9)
    >>> env.observation_space, env.action_space
    (Discrete(1), Discrete(2))
    """

    def __init__(
        self,
        transitions: Sequence | Mapping,
        initial_probs: Sequence[float] | np.ndarray,
        max_episode_steps: int | None = None,
        action_masks: Sequence | np.ndarray | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        probs, next_states, rewards, terminated = _outcomes(transitions)
        num_states, num_actions, num_outcomes = probs.shape
        self.max_episode_steps = validation.positive_int_or_none(
            "max_episode_steps", max_episode_steps
        )
        self.observation_space = gym.spaces.Discrete(num_states)
        self.action_space = gym.spaces.Discrete(num_actions)
        if num_outcomes > 1:
            self.transition_noise = seeding.NoiseSpec("uniform", ())
        initial = _distribution("initial_probs", initial_probs, (num_states,))
        self._initial_bounds = _bounds(initial)
        self._outcome_bounds = _bounds(_distribution("transitions", probs, probs.shape))
        self._next_states = next_states
        self._rewards, self._terminated = rewards, terminated
        self._masks = _checked_masks(action_masks, (num_states, num_actions))

    def initial(self, noise):
        bounds = tf.constant(self._initial_bounds, self.dtype)
        cells = tf.math.count_nonzero(noise[:, None] >= bounds, axis=1)
        zeros = tf.zeros_like(noise)
        return {"cell": cells, "reward": zeros, "terminal": zeros > 0}

    def observation(self, state):
        return state["cell"]

    def action_mask(self, state):
        if self._masks is None:
            return None
        return tf.gather(tf.constant(self._masks), state["cell"])

    def transition(self, state, action, noise):
        index = tf.stack([state["cell"], tf.cast(action, tf.int64)], axis=1)
        outcome = tf.zeros_like(state["cell"])
        if noise is not None:
            bounds = tf.gather_nd(tf.constant(self._outcome_bounds, self.dtype), index)
            outcome = tf.math.count_nonzero(noise[:, None] >= bounds, axis=1)
        index = tf.concat([index, outcome[:, None]], axis=1)
        return {
            "cell": tf.gather_nd(tf.constant(self._next_states), index),
            "reward": tf.gather_nd(tf.constant(self._rewards, self.dtype), index),
            "terminal": tf.gather_nd(tf.constant(self._terminated), index),
        }

    def reward(self, state, action, next_state):
        return next_state["reward"]

    def terminal(self, state):
        return state["terminal"]


class _Registered(Tabular):
    """The table of one of Gymnasium's tasks."""

    id: str

    def __init__(self, **kwargs: Any) -> None:
        with contextlib.closing(gym.make(self.id)) as env:
            task: Any = env.unwrapped
            spec: Any = env.spec
            probs, limit = task.initial_state_distrib, spec.max_episode_steps
            masks = None
            if hasattr(task, "action_mask"):
                masks = [task.action_mask(state) for state in range(len(task.P))]
            super().__init__(task.P, probs, limit, masks, **kwargs)


class CliffWalking(_Registered):
    """Gymnasium's CliffWalking-v1: a walk of 13 steps along a cliff.

    Every step has the reward -1, except that a step off the cliff has the reward -100 and
    leads back to the start. The best return is therefore -13. There is no time limit.

    Reference:
        Sutton & Barto (2018), Reinforcement learning: an introduction, example 6.6.
    """

    id = "CliffWalking-v1"


class FrozenLake(_Registered):
    """Gymnasium's FrozenLake-v1: a walk over slippery ice, with 4 × 4 cells.

    Because the ice is slippery, two steps in three slip to one side on average. The
    reward is 1 at the goal and 0 for every other step. An episode ends when the agent
    reaches the goal or falls into a hole, and at the latest after 100 steps.
    """

    id, reward_threshold = "FrozenLake-v1", 0.70


class Taxi(_Registered):
    """Gymnasium's Taxi-v4: a taxi picks up a passenger, and drives to the destination.

    The reward is -1 for an ordinary step, -10 for an attempt to pick up or drop off the
    passenger in the wrong place, and 20 when the passenger is dropped off at the
    destination. The action mask allows only actions that change the state.

    Reference:
        Dietterich (2000), Hierarchical reinforcement learning with the MAXQ value
        function decomposition. doi:10.1613/jair.639
    """

    id, reward_threshold = "Taxi-v4", 8.0


def _outcomes(transitions):
    """Returns probabilities, next states, rewards and ends of all outcomes, `[S, A, K]`.

    Actions with fewer than K outcomes are filled up with some of probability zero.
    """
    count = len(transitions)
    try:
        states = [transitions[state] for state in range(count)]
        lists = [[list(actions[a]) for a in range(len(actions))] for actions in states]
        size = max(len(outcomes) for actions in lists for outcomes in actions)
        padding = [(0.0, 0, 0.0, False)] * size
        padded = [[(outcomes + padding)[:size] for outcomes in row] for row in lists]
        table = np.array(padded, "float64")
        probs, next_states, rewards, terminated = np.moveaxis(table, -1, 0)
        is_state = np.isin(next_states, range(count)).all()
        valid = table.ndim == 4 and is_state and np.isfinite(rewards).all()
    except (KeyError, ValueError, TypeError):
        valid = False
    if not valid:
        raise ValueError(
            "`transitions[state][action]` must be one or more outcomes (probability, "
            "next_state, reward, terminated) with finite rewards, for states and actions "
            "with the numbers 0, 1, 2, …, and equally many actions in each state. "
            f"Received, for {count} states: {str(transitions)[:1000]}"
        )
    return probs, next_states.astype("int64"), rewards, terminated.astype(bool)


def _checked_masks(masks, shape):
    """Returns masks as int8, or `None`; raises unless each state has a legal action."""
    if masks is None:
        return None
    table = np.asarray(masks)
    if table.shape != shape or not np.isin(table, (0, 1)).all() or not table.any(1).all():
        raise ValueError(
            "`action_masks` must be zeros and ones of the shape [states, actions], here "
            f"{shape}, with at least one legal action in each state. Received: {masks!r}"
        )
    return table.astype("int8")


def _distribution(name, probs, shape):
    """Returns probabilities `[…, K]`; raises unless each K numbers add up to one."""
    probs = np.asarray(probs, "float64")
    sums = probs.sum(axis=-1)
    is_one = np.allclose(sums, 1, rtol=0, atol=1e-6)
    if probs.shape != shape or not (probs >= 0).all() or not is_one:
        raise ValueError(
            f"`{name}` must have probabilities of shape {shape}, at least zero, that add "
            f"up to one. Received: shape {probs.shape}, with sums of {np.unique(sums)}"
        )
    return probs


def _bounds(probs):
    """Returns the numbers in [0, 1] between K outcomes, `[…, K - 1]`.

    Outcome k is drawn if the uniform noise is at least as large as k of these numbers.
    The numbers after the last outcome of probability above zero are larger than all
    noise.
    """
    sums = np.cumsum(probs, axis=-1)
    later = np.cumsum(probs[..., ::-1], axis=-1)[..., ::-1]
    return np.where(later[..., 1:] > 0, sums[..., :-1], 2.0)
