"""The interface of a tensor environment."""

import abc
from typing import Any

import gymnasium as gym
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import vector
from tf_reinforce.support import validation


class TensorEnv(abc.ABC):
    """An environment as pure functions on batches, written as TensorFlow operations.

        s₀ = initial(noise),   aₜ ~ π(· | observation(sₜ)),
        sₜ₊₁ = transition(sₜ, aₜ, noise),   rₜ = reward(sₜ, aₜ, sₜ₊₁)

    The functions process `B` independent episodes at once: the first axis of every tensor
    is the batch, and all others have a fixed size. An episode terminates when `terminal`
    is True for its new state, and is truncated at the time limit. The state sₜ holds all
    that is kept between steps, and all randomness comes from `noise`, so training runs
    entirely in TensorFlow and is repeatable. No function may change its arguments.

    A state is a tensor or a structure of tensors (tuple, dict) of your choice. `action`
    holds `B` actions aₜ in environment units, nested like the action space: integers in
    the space's type, reals in `dtype`. An agent's actions lie within the bounds of a
    `Box`; those that a user passes to the `VectorEnv` of `as_gymnasium` may not.

    Attributes are constants in the compiled programs that step the environment. A changed
    one takes effect when these are compiled again: at the next update of `fit`, call of
    `evaluate` or `collect`, or `reset` of a `VectorEnv` from `as_gymnasium`. Store values
    that change often in a `tf.Variable`. Environments of one class with equal attributes
    share an agent's programs.

    Args:
        dtype: `"float32"` or `"float64"`, the number type of the computations.

    Attributes:
        observation_space, action_space: `gymnasium.Space` of a single episode.
        max_episode_steps: Int, the time limit, or `None` if every episode terminates
            without one; `fit` then needs an argument of this name.
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
    def initial(self, noise: tf.Tensor) -> Any:
        """Returns `B` initial states from noise `[B, *initial_noise.shape]`."""

    @abc.abstractmethod
    def observation(self, state: Any) -> Any:
        """Returns observations of `B` states, nested like the observation space."""

    @abc.abstractmethod
    def transition(self, state: Any, action: Any, noise: tf.Tensor | None) -> Any:
        """Returns the next states, nested like those of `initial`.

        `noise` has the shape `[B, *transition_noise.shape]`, or is `None` if
        `transition_noise` is. For ended episodes, the result is ignored.
        """

    @abc.abstractmethod
    def reward(self, state: Any, action: Any, next_state: Any) -> tf.Tensor:
        """Returns `[B]` float, the rewards of the actions taken in `state`."""

    @abc.abstractmethod
    def terminal(self, state: Any) -> tf.Tensor:
        """Returns `[B]` bool, True for a state that terminates its episode."""

    def action_mask(self, state: Any) -> Any:
        """Returns the masks of legal actions of `B` states, or `None` without masks.

        There are none by default. Agents with `action_mask="info/action_mask"` need them
        and sample legal actions only; others ignore them. A mask has type bool or int,
        and depends on the action space:

        - `Discrete` with n actions: `[B, n]`, with zeros for illegal ones.
        - `MultiDiscrete`: `[B, M]`, M the sum of `nvec`: all choices in a row.
        - `MultiBinary` with n flags: `[B, n]`, the only legal value, or 2 if both are.

        For a nested space, the masks are nested alike. A part may be `None` if all its
        actions are legal; that of a `Box` of reals must be. Where an agent acts, each
        choice needs a legal action; the mask of a terminal state is ignored.
        """
        return None

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
