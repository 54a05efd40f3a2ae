"""Defines the interface of a tensor environment."""

import abc
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.envs import vector


class TensorEnv(abc.ABC):
    """An environment as pure functions on batches, written as TensorFlow operations.

        s₀ = initial(noise),   aₜ ~ π(· | observation(sₜ)),
        sₜ₊₁ = transition(sₜ, aₜ, noise),   rₜ = reward(sₜ, aₜ, sₜ₊₁)

    An episode ends when `terminal(sₜ₊₁)` is True, or is truncated by the time limit.
    Every function of a `TensorEnv` computes `B` episodes at once, the batch axis first,
    and each episode independently of the others. All axes of a tensor, except the batch
    axis, have a fixed size. The state of a `TensorEnv` contains all information that is
    kept between steps, and all randomness comes from `noise`. Training on a `TensorEnv`
    therefore runs entirely in TensorFlow, and is repeatable.

    A state is a tensor or a structure of tensors (tuple, dict) that the subclass chooses.
    Actions are in the units of the environment, `[B, …]`, and are nested like the action
    space. Integer actions have the type of their space, and real actions have the type
    `dtype`. Actions of an agent lie within the bounds of a Box. Actions that a user
    passes to the environment of `as_gymnasium` may be outside the bounds.

    No function of a `TensorEnv` may change its arguments.

    An attribute of a `TensorEnv` is a constant of the compiled program. When an attribute
    of a `TensorEnv` has changed, the program is compiled again. The next call of `fit`,
    `evaluate` or `collect`, the next update, or the next `reset` of `as_gymnasium`
    compiles the changed program. Store environment values that change often in a
    `tf.Variable`, which is not a constant of the program.

    Args:
        dtype: `"float32"` or `"float64"`, the number type of the computations.

    Attributes:
        observation_space, action_space: `gymnasium.Space` of a single episode.
        max_episode_steps: Int, the time limit. `max_episode_steps=None` means that every
            episode terminates without a limit. `fit` then requires the argument
            `max_episode_steps`.
        reward_threshold: Float, the mean return at which the task counts as solved, or
            `None`.
        initial_noise: `NoiseSpec` of the noise for the first state of one episode.
        transition_noise: `NoiseSpec` of the noise for each step, or `None` if steps are
            deterministic.
    """

    observation_space: gym.Space
    action_space: gym.Space
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    initial_noise = seeding.NoiseSpec("uniform", ())
    transition_noise: seeding.NoiseSpec | None = None

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = validation.one_of("dtype", dtype, ("float32", "float64"))

    @abc.abstractmethod
    def initial(self, noise: tf.Tensor | None) -> Any:
        """Returns initial states from noise of shape `[B, *initial_noise.shape]`."""

    @abc.abstractmethod
    def observation(self, state: Any) -> Any:
        """Returns observations `[B, …]` of states, nested like the observation space."""

    @abc.abstractmethod
    def transition(self, state: Any, action: Any, noise: tf.Tensor | None) -> Any:
        """Returns the next states, nested like the states of `initial`.

        The argument `noise` has the shape `[B, *transition_noise.shape]`, or is `None` if
        `transition_noise` is `None`. The next states of ended episodes are ignored.
        """

    @abc.abstractmethod
    def reward(self, state: Any, action: Any, next_state: Any) -> tf.Tensor:
        """Returns rewards, `[B]` float, of the actions taken in `state`."""

    @abc.abstractmethod
    def terminal(self, state: Any) -> tf.Tensor:
        """Returns `[B]` bool, True for each episode that terminates in its state."""

    def as_gymnasium(self, num_envs: int) -> vector.TensorVectorEnv:
        """Returns a `gymnasium.vector.VectorEnv` of `num_envs` copies of the environment.

        >>> from tf_reinforce import envs
        >>> vector_env = envs.CartPole().as_gymnasium(3)
        >>> observations, _ = vector_env.reset(seed=0)
        >>> observations.shape, observations.dtype.name
        ((3, 4), 'float32')
        """
        return vector.TensorVectorEnv(self, num_envs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
