"""Defines the interface of a tensor environment."""

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

    Here sₜ is the state at step t, aₜ the action of the policy π, and rₜ the reward. An
    episode terminates when `terminal` is True for its new state, and is truncated at the
    time limit. Every function of a `TensorEnv` processes `B` independent episodes at
    once. The first axis of every tensor is the batch axis, and all other axes have a
    fixed size. The state of a `TensorEnv` contains all information that is kept between
    steps, and all randomness comes from the argument `noise`. Because the functions are
    pure, training on a `TensorEnv` runs entirely in TensorFlow and is repeatable.

    A state is a tensor or a structure of tensors (tuple, dict) that the subclass chooses.
    The argument `action` contains `B` actions in the units of the environment, nested
    like the action space. Integer actions have the type of the action space, and real
    actions have the type `dtype`. The actions of an agent lie within the bounds of a
    `Box` action space. Actions that a user passes to the `VectorEnv` of `as_gymnasium`
    may be outside the bounds of the `Box`.

    No function of a `TensorEnv` may change its arguments.

    The compiled programs that step the environment contain the attributes of a
    `TensorEnv` as constants. A changed attribute takes effect when the programs are
    compiled again: at the next update of `fit`, the next call of `evaluate` or `collect`,
    or the next `reset` of a `VectorEnv` from `as_gymnasium`. Store values that change
    often in a `tf.Variable`, which is not a constant of the compiled programs. An agent
    uses the same program for all environments of one class with equal attributes.

    Args:
        dtype: `"float32"` or `"float64"`, the number type of the computations.

    Attributes:
        observation_space, action_space: `gymnasium.Space` of a single episode.
        max_episode_steps: Int, the time limit, or `None` if every episode terminates
            without a time limit. If the attribute `max_episode_steps` is `None`, `fit`
            requires an argument of this name.
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
        """Returns the next states, nested like the states of `initial`.

        The argument `noise` has the shape `[B, *transition_noise.shape]`, or is `None` if
        `transition_noise` is `None`. The next states of ended episodes are ignored.
        """

    @abc.abstractmethod
    def reward(self, state: Any, action: Any, next_state: Any) -> tf.Tensor:
        """Returns `[B]` float, the rewards of `B` actions that were taken in `state`."""

    @abc.abstractmethod
    def terminal(self, state: Any) -> tf.Tensor:
        """Returns `[B]` bool, True for each of `B` states that terminates its episode."""

    def action_mask(self, state: Any) -> Any:
        """Returns the masks of legal actions of `B` states, or `None` without masks.

        An agent with the argument `action_mask="info/action_mask"` samples legal actions
        only, and raises an error if there are no masks. Without this argument, an agent
        ignores the masks. A mask has the type bool or an integer type. The mask of a
        `Discrete` with n actions is `[B, n]`, with zeros for illegal actions. The mask of
        a `MultiDiscrete` is `[B, M]`, in which M is the sum of `nvec`, with the entries
        of all choices in a row. The mask of a `MultiBinary` with n flags is `[B, n]`; an
        entry of 0 or 1 is the only legal value of a flag, and 2 makes both values legal.

        For a nested action space, the masks are nested like the space. A part may be
        `None` if all its actions are legal; for a `Box` of real numbers, a part must be
        `None`. In a state in which an agent acts, each choice must have a legal action.
        The mask of a terminal state is ignored. The default implementation returns
        `None`.
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
