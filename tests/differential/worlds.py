"""Environments with any spaces, on the host and as tensors."""

import gymnasium as gym
import keras
import numpy as np
import parts
import scores
import tensorflow as tf

from tf_reinforce import envs
from tf_reinforce.data import seeding


class Wander(gym.Env):
    """Four numbers that actions push around; what is seen are functions of them.

    Episodes have one to six steps, by chance; the task ends most, the clock the others.
    Under masks an illegal action is an error.
    """

    def __init__(self, c):
        self.c = c
        self.observation_space = parts.observation_space_of(c)
        self.action_space = parts.action_space_of(c.head)
        self.head = parts.score_of(c.head)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=4)
        self.now, self.length = 0, int(self.np_random.integers(1, 7))
        self.ends = self.np_random.random() < 0.6
        return self._answer()

    def step(self, action):
        assert self.action_space.contains(action), action
        pushed = sum(float(np.sum(part)) for part in scores.leaves(action))
        self.state = 0.5 * np.sin(self.state + 0.1 * pushed) + 0.1 * np.arange(4)
        self.now += 1
        over = self.now == self.length
        reward = float(self.state[0] + 0.1 * pushed)
        observation, info = self._answer()
        return observation, reward, over and self.ends, over and not self.ends, info

    def _answer(self):
        observation = parts.mapped(self._leaf, parts.seen_by(self.c))
        _, self.mask = self.head.draw(self.np_random, "float32")
        if self.c.action_mask == "observation":
            observation["legal"] = self.mask
        if self.c.action_mask != "info":
            return observation, {}
        nested = getattr(self.head, "nested_mask", lambda mask: mask)
        return observation, {"legal": nested(self.mask)}

    def _leaf(self, spec, path):
        shape, dtype = spec
        numbers = np.resize(self.state, shape)
        if dtype == "float32":
            return numbers.astype(dtype)
        most = {"uint8": 256, "int64": 4, "int8": 2}[dtype]
        return (np.abs(numbers * 97).astype("int64") % most).astype(dtype)


class World(envs.TensorEnv):
    """The same kind of environment in TensorFlow, without masks.

    Its clock stands at four steps; the task ends an episode when one of its numbers
    says so.
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
        return {"place": noise - 0.5, "rest": noise[:, 0]}

    def observation(self, state):
        def leaf(spec, path):
            shape, dtype = spec
            size = int(np.prod(shape, dtype=int))
            places = tf.gather(state["place"], np.arange(size) % 4, axis=1)
            numbers = tf.reshape(places, [-1, *shape])
            if dtype == "float32":
                return numbers
            most = {"uint8": 256, "int64": 4}[dtype]
            return tf.cast(tf.math.floormod(tf.floor(tf.abs(numbers) * 97), most), dtype)

        return parts.mapped(leaf, parts.seen_by(self.c))

    def transition(self, state, action, noise):
        place = 0.5 * tf.sin(state["place"] + 0.1 * self._pushed(action)[:, None])
        return {"place": place + 0.3 * noise, "rest": state["rest"] - 0.2}

    def reward(self, state, action, next_state):
        return next_state["place"][:, 0] + 0.1 * self._pushed(action)

    def terminal(self, state):
        return state["rest"] < 0.0

    def _pushed(self, action):
        def total(part):
            part = tf.cast(part, self.dtype)
            return tf.reduce_sum(tf.reshape(part, [tf.shape(part)[0], -1]), axis=1)

        return tf.add_n([total(part) for part in keras.tree.flatten(action)])
