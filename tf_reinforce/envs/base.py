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

    All functions process `B` independent episodes at once. The first axis of every tensor
    is the batch, and all other axes have a fixed size. An episode terminates when
    `terminal` is True for its new state, and it is truncated at the time limit.

    The state sₜ holds everything that is kept between steps, and all randomness comes
    from `noise`. Training therefore runs entirely in TensorFlow and is repeatable. The
    functions must not change their arguments.

    A state is a tensor or a structure of tensors, such as a tuple or a dict. The argument
    `action` holds `B` actions in environment units, nested like the action space. Its
    integers have the type of the space, and its real numbers have the type `dtype`. An
    agent's actions always lie within the bounds of a `Box`, but actions that a user
    passes to the `VectorEnv` of `as_gymnasium` may lie outside.

    The attributes of an environment are constants in the compiled programs that step it,
    so a changed attribute takes effect only when these are compiled again. This happens
    at the next update of `fit`, at the next call of `evaluate` or `collect`, or at the
    next `reset` of a `VectorEnv` from `as_gymnasium`. Store values that change often in a
    `tf.Variable`.

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

        By default, an environment has no masks. An agent with
        `action_mask="info/action_mask"` needs them and samples legal actions only, while
        other agents ignore them. A mask has type bool or int, and its shape depends on
        the action space:

        - `Discrete` with n actions: `[B, n]`, with zeros for illegal ones.
        - `MultiDiscrete`: `[B, M]`, M the sum of `nvec`: all choices in a row.
        - `MultiBinary` with n flags: `[B, n]`, the only legal value, or 2 if both are.

        If the action space is nested, the masks are nested in the same way. The mask of a
        part may be `None` if all actions of this part are legal, and it must be `None`
        for a `Box` of reals. The mask of a part that depends on an earlier choice among K
        (`heads.Autoregressive`) is `[B, K, n]`. Each choice needs at least one legal
        action, except in a terminal state, whose mask is ignored.
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
