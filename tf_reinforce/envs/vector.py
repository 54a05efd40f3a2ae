"""Tensor environments as a Gymnasium `VectorEnv`."""

import functools

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.envs import checks
from tf_reinforce.support import validation


class TensorVectorEnv(gym.vector.VectorEnv):
    """A batch of tensor environments, stepped by one XLA program.

    When an episode has ended, the next step resets its environment and ignores the
    action. This is Gymnasium's `AutoresetMode.NEXT_STEP`. If the environments have action
    masks, they are returned as `info["action_mask"]`.

    Seeds work as in Gymnasium's vector environments. After `reset(seed=7)`, environment i
    uses the seed 7 + i, and a list gives each environment its own seed.

    Args:
        env: `TensorEnv` to present as a `VectorEnv`.
        num_envs: Int, the number of environments.

    Raises:
        ValueError: If the environment's tensors do not fit its spaces.
    """

    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, env, num_envs):
        self.num_envs = validation.positive_int("num_envs", num_envs)
        checks.check(env)
        self.env = env
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        batch_space = gym.vector.utils.batch_space
        self.observation_space = batch_space(env.observation_space, num_envs)
        self.action_space = batch_space(env.action_space, num_envs)
        self._keys = None  # before the first reset
        self._constants = None  # constants with which the programs were compiled

    def reset(self, *, seed=None, options=None):
        """Starts an episode in every environment, as in `gymnasium.vector.VectorEnv`."""
        self._compile()
        if seed is None and self._keys is not None:
            self._episodes += 1  # the noise continues
        else:
            seeds = map(validation.check_seed, self._env_seeds(seed))
            keys = [seeding.rollout_keys(x, "vector", 0)[:2] for x in seeds]
            self._keys = np.array(keys, "uint32")  # [num_envs, 2, 2]
            self._episodes = np.zeros(self.num_envs, "int32")
        self._lengths = np.zeros(self.num_envs, "int32")
        self._ended = np.zeros(self.num_envs, bool)
        self._state, observations, masks = self._reset_program(self._keys, self._episodes)
        return self._to_numpy(observations), self._infos(masks)

    def step(self, actions):
        """Steps every environment, or resets it if its episode has ended."""
        if self._keys is None:
            raise gym.error.ResetNeeded("Call `reset` before `step`.")
        actions = self._checked(actions)
        self._episodes += self._ended
        self._lengths = np.where(self._ended, 0, self._lengths + 1).astype("int32")
        self._state, observations, masks, rewards, terminations = self._step_program(
            self._keys, self._episodes, self._lengths, self._ended, self._state, actions
        )
        terminations = terminations.numpy()
        truncations = self._lengths >= (self.env.max_episode_steps or np.inf)
        self._ended = terminations | truncations
        rewards = rewards.numpy().astype("float64")
        outputs = self._to_numpy(observations), rewards, terminations, truncations
        return *outputs, self._infos(masks)

    def _compile(self):
        """Compiles `reset` and `step`, again if an attribute of `env` has changed."""
        constants = checks.constants(self.env)
        if constants != self._constants:
            self._constants = constants
            self._reset_program, self._step_program = (
                tf.function(functools.partial(step), jit_compile=True, autograph=False)
                for step in (self._initial_states, self._next_states)
            )

    def _initial_states(self, keys, episodes):
        """Returns initial states, and their observations and action masks."""
        env = self.env
        specs = [env.initial_noise]
        (noise,) = tensor_noise.counter_noise(keys[:, 0], specs, episodes, 0, env.dtype)
        state = env.initial(noise)
        return state, env.observation(state), env.action_mask(state)

    def _next_states(self, keys, episodes, lengths, ended, state, actions):
        """Returns states, observations, masks, rewards and terminations after one step.

        Where `ended` is True, the state is an initial one and the reward zero.
        """
        env, noise = self.env, None
        if env.transition_noise is not None:
            noise_args = [env.transition_noise], episodes, lengths, env.dtype
            noise = tensor_noise.counter_noise(keys[:, 1], *noise_args)[0]
        actions = checks.cast_actions(env, actions)
        next_state = env.transition(state, actions, noise)
        rewards = env.reward(state, actions, next_state)
        rewards = tf.where(ended, tf.zeros_like(rewards), rewards)
        terminations = env.terminal(next_state) & ~ended
        initial_state, *_ = self._initial_states(keys, episodes)

        def reset_ended(new, old):
            flags = tf.reshape(ended, [-1, *[1] * (new.shape.rank - 1)])
            return tf.where(flags, new, old)

        state = keras.tree.map_structure(reset_ended, initial_state, next_state)
        observations, masks = env.observation(state), env.action_mask(state)
        return state, observations, masks, rewards, terminations

    def _env_seeds(self, seed):
        """Returns a seed for each environment."""
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if not isinstance(seed, (list, tuple)):
            seed = validation.check_seed(seed)
            return [seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(
                "`seed` must be an int, or a list with one seed for each of "
                f"{self.num_envs} environments. Received: {seed}"
            )
        return seed

    def _checked(self, actions):
        """Returns actions as tensors; raises an error if they are not in the space."""
        nest = spaces.to_nest(self.action_space)
        try:
            return keras.tree.map_structure_up_to(nest, _to_tensor, nest, actions)
        except (ValueError, TypeError):
            raise ValueError(
                f"`actions` must be actions of {self.action_space}, one for each "
                f"environment. Received: {actions!r}"
            ) from None

    def _infos(self, masks):
        """Returns the infos of a step, in the layout of Gymnasium's vector environments.

        Nested masks become an array of objects, one nested mask per environment.
        """
        if masks is None:
            return {}
        arrays = spaces.map_leaves(lambda x: None if x is None else x.numpy(), masks)
        if isinstance(arrays, (dict, tuple)):
            rows = (spaces.row_of_leaves(arrays, i) for i in range(self.num_envs))
            arrays = np.fromiter(rows, object, self.num_envs)
        return {"action_mask": arrays, "_action_mask": np.ones(self.num_envs, bool)}

    def _to_numpy(self, observations):
        """Returns observations as NumPy arrays in the types of the observation space."""
        return keras.tree.map_structure(
            lambda tensor, space: tensor.numpy().astype(space.dtype),
            observations,
            spaces.to_nest(self.observation_space),
        )


def _to_tensor(space, action):
    """Returns actions in the type of the action space; raises if they are invalid."""
    action = np.asarray(action)
    if isinstance(space, gym.spaces.Box):  # the environment clips actions at its bounds
        valid = action.dtype.kind in "fiub" and action.shape == space.shape
        valid = valid and np.isfinite(action).all()
    else:
        valid = action.dtype.kind in "iub" and space.contains(action.astype(space.dtype))
    if not valid:
        raise ValueError
    return tf.constant(action.astype(space.dtype))
