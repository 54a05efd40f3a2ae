"""Small environments whose best return is known."""

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base
from tf_reinforce.support import validation


class Bandit(base.TensorEnv):
    """A multi-armed bandit: an episode is one choice among the arms.

    Args:
        values: Floats, the reward of each arm.
        **kwargs: Arguments that every `TensorEnv` accepts.

    Attributes:
        optimum: Float, the return of the best policy.

    Example:

    >>> Bandit([0.0, 1.0, 0.5]).optimum
    1.0
    """

    observation_space = gym.spaces.Box(0, 1, (1,))  # the observation is always 1
    max_episode_steps = 1

    def __init__(self, values=(0.0, 0.5, 1.0), **kwargs):
        super().__init__(**kwargs)
        self.values = validation.finite_numbers("values", values)
        self.action_space = gym.spaces.Discrete(len(self.values))
        self.optimum = max(self.values)

    def initial(self, noise):
        return tf.zeros_like(noise, tf.bool)

    def observation(self, state):
        return tf.ones_like(state[:, None], self.dtype)

    def transition(self, state, action, noise):
        return tf.ones_like(state)

    def reward(self, state, action, next_state):
        return tf.gather(tf.constant(self.values, self.dtype), action)

    def terminal(self, state):
        return state


class Corridor(base.TensorEnv):
    """A corridor with its goal at the right end: the reward is -1 for every step.

    Action 1 moves the agent one cell to the right. Action 0 moves the agent one cell to
    the left, except in the leftmost cell. The time limit is four times the distance from
    the start to the goal.

    Args:
        length: Int, at least 2, the number of cells.
        **kwargs: Arguments that every `TensorEnv` accepts.

    Attributes:
        optimum: Float, the return of the best policy.

    Example:

    >>> Corridor(6).optimum
    -5.0
    """

    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=6, **kwargs):
        super().__init__(**kwargs)
        self.length = validation.whole_number("length", length, low=2)
        self.observation_space = gym.spaces.Discrete(self.length)
        self.max_episode_steps = 4 * (self.length - 1)
        self.optimum = 1.0 - self.length

    def initial(self, noise):
        return tf.zeros_like(noise, tf.int64)

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        step = 2 * tf.cast(action, tf.int64) - 1
        return tf.clip_by_value(state + step, 0, self.length - 1)

    def reward(self, state, action, next_state):
        return -tf.ones_like(state, self.dtype)

    def terminal(self, state):
        return tf.equal(state, self.length - 1)


class Catch(base.TensorEnv):
    """A paddle catches a falling ball; the observation is an image.

    The board has 7 × 7 cells of 12 × 12 pixels. The ball starts in a random column of the
    highest row and falls one cell per step, while the paddle starts in the middle of the
    lowest row and moves by at most one cell per step. After six steps, the reward is 1 if
    the paddle catches the ball, and -1 if not. All earlier rewards are zero.

    Attributes:
        optimum: Float, the return of the best policy.
    """

    CELL, CELLS = 12, 7
    observation_space = gym.spaces.Box(0, 255, (CELL * CELLS, CELL * CELLS, 1), np.uint8)
    action_space = gym.spaces.Discrete(3, start=-1)  # left, stay, right
    max_episode_steps = CELLS - 1
    optimum = 1.0
    initial_noise = seeding.NoiseSpec("uniform", ())

    def initial(self, noise):
        column = tf.cast(noise * self.CELLS, tf.int32)
        zero = tf.zeros_like(column)
        return {"row": zero, "column": column, "paddle": zero + self.CELLS // 2}

    def observation(self, state):
        ball = self._is_cell(state["row"], state["column"])
        paddle = self._is_cell(
            tf.zeros_like(state["row"]) + self.CELLS - 1, state["paddle"]
        )
        cells = tf.where(ball, 255, tf.where(paddle, 128, 0))
        pixels = tf.repeat(tf.repeat(cells, self.CELL, axis=1), self.CELL, axis=2)
        return tf.cast(pixels[..., None], tf.uint8)

    def transition(self, state, action, noise):
        paddle = state["paddle"] + tf.cast(action, tf.int32)
        paddle = tf.clip_by_value(paddle, 0, self.CELLS - 1)
        return {**state, "row": state["row"] + 1, "paddle": paddle}

    def reward(self, state, action, next_state):
        caught = tf.equal(next_state["column"], next_state["paddle"])
        reward = tf.where(caught, 1.0, -1.0)
        return tf.cast(tf.where(self.terminal(next_state), reward, 0.0), self.dtype)

    def terminal(self, state):
        return tf.equal(state["row"], self.CELLS - 1)

    def _is_cell(self, row, column):
        """Returns `[B, 7, 7]` bool, True in the cell of a given row and column."""
        cells = tf.range(self.CELLS)
        rows, columns = tf.equal(cells, row[:, None]), tf.equal(cells, column[:, None])
        return rows[:, :, None] & columns[:, None, :]
