"""Presents tensor environments as a Gymnasium `VectorEnv`."""

import functools

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.envs import checks


class TensorVectorEnv(gym.vector.VectorEnv):
    """`num_envs` tensor environments side by side, one XLA program for a step of all.

    An environment that has ended is reset in the next step, whose action it ignores
    (`AutoresetMode.NEXT_STEP`). After `reset(seed=7)` environment i draws from seed
    7 + i, as Gymnasium's own do; a list gives each its own.

    Args:
        env: `TensorEnv`.
        num_envs: Int.

    Raises:
        ValueError: when the tensors of the environment are not what its spaces say.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, env, num_envs):
        self.num_envs = validation.positive_int("num_envs", num_envs)
        checks.check(env)
        self.env = env
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        batch = gym.vector.utils.batch_space
        self.observation_space = batch(env.observation_space, num_envs)
        self.action_space = batch(env.action_space, num_envs)
        self._keys = None  # [num_envs, 2, 2] uint32
        self._constants = None  # those of the compiled programs

    def reset(self, *, seed=None, options=None):
        """Begins an episode in every environment; see `gymnasium.vector.VectorEnv`."""
        self._compile()
        first = self._keys is None
        seeds = self._seeds(seed, first)
        if first:
            self._keys = np.zeros((self.num_envs, 2, 2), "uint32")
            self._episodes = np.zeros(self.num_envs, "int32")
        self._episodes += 1
        for i, one in enumerate(seeds):
            if one is not None:
                one = seeding.check_seed(one)
                self._keys[i] = seeding.rollout_keys(one, "vector", 0)[:2]
                self._episodes[i] = 0
        self._lengths = np.zeros(self.num_envs, "int32")
        self._over = np.zeros(self.num_envs, bool)
        self._state, observations = self._begin(self._keys, self._episodes)
        return self._numpy(observations), {}

    def step(self, actions):
        """One step of every environment, or the reset of one that had ended."""
        if self._keys is None:
            raise gym.error.ResetNeeded("Call `reset` before `step`.")
        actions = keras.tree.map_structure(_taken, self._nested(actions), self._leaves())
        self._episodes += self._over
        self._lengths = np.where(self._over, 0, self._lengths + 1).astype("int32")
        self._state, observations, rewards, terminations = self._advance(
            self._keys, self._episodes, self._lengths, self._over, self._state, actions
        )
        terminations = terminations.numpy()
        limit = self.env.max_episode_steps
        truncations = np.zeros_like(terminations)
        if limit is not None:
            truncations = self._lengths >= limit
        self._over = terminations | truncations
        rewards = rewards.numpy().astype("float64")
        return self._numpy(observations), rewards, terminations, truncations, {}

    def _compile(self):
        """Makes the programs, anew once an attribute of the environment has changed."""
        constants = checks.constants(self.env)
        if constants != self._constants:
            self._constants = constants
            self._begin, self._advance = (
                tf.function(functools.partial(step), jit_compile=True, autograph=False)
                for step in (self._begun, self._advanced)
            )

    def _begun(self, keys, episodes):
        env = self.env
        drawn = [env.initial_noise], episodes, 0, env.dtype
        noise = seeding.counter_noise(keys[:, 0], *drawn)[0]
        state = env.initial(noise)
        return state, env.observation(state)

    def _advanced(self, keys, episodes, lengths, over, state, actions):
        env, noise = self.env, None
        if env.transition_noise is not None:
            drawn = [env.transition_noise], episodes, lengths, env.dtype
            noise = seeding.counter_noise(keys[:, 1], *drawn)[0]
        actions = checks.cast_actions(env, actions)
        following = env.transition(state, actions, noise)
        rewards = env.reward(state, actions, following)
        rewards = tf.where(over, tf.zeros_like(rewards), rewards)
        terminations = env.terminal(following) & ~over
        first, _ = self._begun(keys, episodes)
        state = keras.tree.map_structure(
            lambda new, old: tf.where(_beside(over, new), new, old), first, following
        )
        return state, env.observation(state), rewards, terminations

    def _seeds(self, seed, first):
        """A seed for each environment; `None` goes on with the numbers it has."""
        if seed is None:
            drawn = int(np.random.SeedSequence().generate_state(1)[0])
            return self._seeds(drawn, first) if first else [None] * self.num_envs
        if not isinstance(seed, (list, tuple)):
            seed = seeding.check_seed(seed)
            return [seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs or (first and None in seed):
            raise ValueError(
                f"`seed` must be an int, or a list with one for each of {self.num_envs} "
                f"environments, at the first reset without None. Received: {seed}"
            )
        return list(seed)

    def _leaves(self):
        return spaces.to_nest(self.action_space)

    def _nested(self, actions):
        if not isinstance(self._leaves(), (dict, tuple)):
            return np.asarray(actions)
        try:
            keras.tree.assert_same_structure(self._leaves(), actions)
        except ValueError:
            raise ValueError(
                f"`actions` must be nested as {self.action_space}. Received: {actions!r}"
            ) from None
        return actions

    def _numpy(self, observations):
        nested = spaces.to_nest(self.observation_space)
        return keras.tree.map_structure(
            lambda tensor, space: tensor.numpy().astype(space.dtype), observations, nested
        )


def _taken(action, space):
    """An action for each environment in the type of their space, or an error."""
    action = np.asarray(action)
    if isinstance(space, gym.spaces.Box):  # its bounds are for the world to clip
        fits = action.dtype.kind in "fiub" and action.shape == space.shape
        fits = fits and np.isfinite(action).all()
    else:
        fits = action.dtype.kind in "iub" and space.contains(action.astype(space.dtype))
    if not fits:
        raise ValueError(
            f"`actions` must be actions of {space}, one for each environment. "
            f"Received: {action!r}"
        )
    return tf.constant(action.astype(space.dtype))


def _beside(rows, tensor):
    """`[B]` with as many axes as a tensor `[B, …]` has."""
    return tf.reshape(rows, [-1, *[1] * (tensor.shape.rank - 1)])
