"""Defines small tensor environments with simple transitions."""

import gymnasium as gym
import tensorflow as tf

from tf_reinforce import envs


class Walk(envs.TensorEnv):
    """A random walk to 3 or -3 that ignores the actions."""

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-20, 20, (1,)), side=gym.spaces.Discrete(2)
    )
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))])
    max_episode_steps = 9
    transition_noise = envs.NoiseSpec("normal", (2,))

    def initial(self, noise):
        return noise

    def observation(self, state):
        return {"place": state[:, None], "side": tf.cast(state > 0, tf.int64)}

    def transition(self, state, action, noise):
        return state + noise[:, 0]

    def reward(self, state, action, next_state):
        return next_state - state

    def terminal(self, state):
        return tf.abs(state) > 3.0


class Lucky(envs.Bandit):
    """A float64 bandit with a reward larger than float32 in one of fifteen episodes."""

    def initial(self, noise):
        return noise

    def observation(self, state):
        return tf.ones_like(state)[:, None]

    def transition(self, state, action, noise):
        return state - 2.0

    def reward(self, state, action, next_state):
        return tf.where(
            state < 1 / 15,
            tf.constant(1e100, self.dtype),
            super().reward(state, action, next_state),
        )

    def terminal(self, state):
        return state < 0
