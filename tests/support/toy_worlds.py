"""Small tensor environments with simple transitions."""

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


class Gates(envs.TensorEnv):
    """Eight steps with nested actions; the place determines which are legal."""

    observation_space = gym.spaces.Discrete(4)
    action_space = gym.spaces.Dict(
        way=gym.spaces.Discrete(4),
        gear=gym.spaces.MultiDiscrete([3, 2]),
        push=gym.spaces.Box(-1, 1, (2,)),
        lamps=gym.spaces.MultiBinary(2),
    )
    max_episode_steps = 8
    transition_noise = envs.NoiseSpec("uniform", ())

    def initial(self, noise):
        return tf.cast(noise * 4, tf.int64)

    def observation(self, state):
        return state

    def action_mask(self, state):
        place = state[:, None]
        other = tf.one_hot(state, 4, on_value=False, off_value=True, dtype=tf.bool)
        gear = [(place == [0, 1, 2]) | (place == 3), place != [3, 4]]
        lamps = [tf.minimum(place, 2), 2 - tf.minimum(place, 2)]
        gear, lamps = (tf.concat(parts, axis=1) for parts in (gear, lamps))
        return {"way": other, "gear": gear, "push": None, "lamps": lamps}

    def transition(self, state, action, noise):
        return tf.cast(noise * 4, tf.int64)

    def reward(self, state, action, next_state):
        return tf.cast(action["way"] + action["gear"][:, 0], self.dtype)

    def terminal(self, state):
        return tf.zeros_like(state, tf.bool)


class Lucky(envs.Bandit):
    """A float64 bandit; one of fifteen episodes has a reward larger than float32."""

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


class Echo(envs.TensorEnv):
    """Random observations; the reward is the action plus the first of them.

    Each step ends an episode with a probability of a fifth. Most raw actions are clipped.
    """

    observation_space = gym.spaces.Box(-10, 10, (2,))
    action_space = gym.spaces.Box(-0.1, 0.1, (1,))
    max_episode_steps = 9
    initial_noise = transition_noise = envs.NoiseSpec("uniform", (2,))

    def initial(self, noise):
        return noise

    def observation(self, state):
        return 4.0 * state - 2.0

    def transition(self, state, action, noise):
        return noise

    def reward(self, state, action, next_state):
        return action[:, 0] + next_state[:, 0]

    def terminal(self, state):
        return state[:, 1] < 0.2
