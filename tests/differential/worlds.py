"""Defines environments with any spaces, for the host and for the compiled engine."""

import gymnasium as gym
import keras
import numpy as np
import parts
import scores
import tensorflow as tf

from tf_reinforce import envs
from tf_reinforce.data import seeding


class RandomEnv(gym.Env):
    """An environment with four real numbers, of which observations are functions.

    Episodes have a random length of one to six steps. Most are terminated, the others are
    truncated. With masks, an illegal action is an error.
    """

    def __init__(self, c):
        self.c = c
        self.observation_space = parts.observation_space_of(c)
        self.action_space = parts.action_space_of(c.head)
        self.head = parts.score_of(c.head)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=4)
        self.time, self.length = 0, int(self.np_random.integers(1, 7))
        self.terminates = self.np_random.random() < 0.6
        return self._observe()

    def step(self, action):
        assert self.action_space.contains(action), action
        total = sum(float(np.sum(part)) for part in scores.leaves(action))
        self.state = 0.5 * np.sin(self.state + 0.1 * total) + 0.1 * np.arange(4)
        self.time += 1
        ended = self.time == self.length
        reward = float(self.state[0] + 0.1 * total)
        observation, info = self._observe()
        return (
            observation,
            reward,
            ended and self.terminates,
            ended and not self.terminates,
            info,
        )

    def _observe(self):
        observation = parts.map_structure(self._leaf, parts.observation_specs(self.c))
        _, self.mask = self.head.draw(self.np_random, "float32")
        if self.c.action_mask == "observation":
            observation["legal"] = self.mask
        if self.c.action_mask != "info":
            return observation, {}
        nested = getattr(self.head, "nested_mask", lambda mask: mask)
        return observation, {"legal": nested(self.mask)}

    def _leaf(self, spec, path):
        shape, dtype = spec
        values = np.resize(self.state, shape)
        if dtype == "float32":
            return values.astype(dtype)
        limit = {"uint8": 256, "int64": 4, "int8": 2}[dtype]
        return (np.abs(values * 97).astype("int64") % limit).astype(dtype)


class RandomTensorEnv(envs.TensorEnv):
    """An environment of the same kind in TensorFlow, without masks.

    Episodes are truncated after four steps. The value `remaining` of the state terminates
    an episode when it is negative.
    """

    initial_noise = seeding.NoiseSpec("uniform", (4,))
    transition_noise = seeding.NoiseSpec("normal", (4,))
    max_episode_steps = 4

    def __init__(self, c):
        super().__init__("float64" if c.dtype == "float64" else "float32")
        self.c = c
        self.observation_space = parts.observation_space_of(c)
        self.action_space = parts.action_space_of(c.head)

    def initial(self, noise):
        return {"position": noise - 0.5, "remaining": noise[:, 0]}

    def observation(self, state):
        def leaf(spec, path):
            shape, dtype = spec
            size = int(np.prod(shape, dtype=int))
            positions = tf.gather(state["position"], np.arange(size) % 4, axis=1)
            values = tf.reshape(positions, [-1, *shape])
            if dtype == "float32":
                return values
            limit = {"uint8": 256, "int64": 4}[dtype]
            return tf.cast(tf.math.floormod(tf.floor(tf.abs(values) * 97), limit), dtype)

        return parts.map_structure(leaf, parts.observation_specs(self.c))

    def transition(self, state, action, noise):
        position = 0.5 * tf.sin(state["position"] + 0.1 * self._total(action)[:, None])
        return {"position": position + 0.3 * noise, "remaining": state["remaining"] - 0.2}

    def reward(self, state, action, next_state):
        return next_state["position"][:, 0] + 0.1 * self._total(action)

    def terminal(self, state):
        return state["remaining"] < 0.0

    def _total(self, action):
        def total_of(part):
            part = tf.cast(part, self.dtype)
            return tf.reduce_sum(tf.reshape(part, [tf.shape(part)[0], -1]), axis=1)

        return tf.add_n([total_of(part) for part in keras.tree.flatten(action)])
