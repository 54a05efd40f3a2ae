"""Defines the interface of a tensor environment."""

import abc

import gymnasium as gym

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.envs import vector


class TensorEnv(abc.ABC):
    """An environment as pure functions of batches, in TensorFlow operations.

        s₀ = initial(noise),   aₜ ~ π(· | observation(sₜ)),
        sₜ₊₁ = transition(sₜ, aₜ, noise),   rₜ = reward(sₜ, aₜ, sₜ₊₁)

    until `terminal(sₜ₊₁)`, or until the clock cuts the episode. Every function works on
    `B` episodes at once, the batch axis first, and on each as if it were alone. All
    other axes have a fixed size. Nothing is remembered but the state, and all chance
    comes in as `noise`; so a whole training runs in TensorFlow, and can be repeated.

    A state is a tensor or a structure of them (tuple, dict), of the subclass' choosing.
    Actions arrive in the environment's own units, `[B, …]`, nested as the action space:
    whole numbers in the type of their space, real ones in `dtype`. Agents
    play inside of a Box; what others send to `as_gymnasium` may lie outside.

    No function may change what it is given.

    An attribute is a constant of the compiled program. When it has changed, the next
    call of `fit`, `evaluate` or `collect`, the next update and the next `reset` of
    `as_gymnasium` compile the program anew. Keep what changes often in a `tf.Variable`.

    Args:
        dtype: `"float32"` or `"float64"`, for the subclass to compute in.

    Attributes:
        observation_space, action_space: `gymnasium.Space`, of one episode.
        max_episode_steps: Int, the clock; `None` where every episode ends by itself,
            and then `fit` has to be given one.
        reward_threshold: Float, the mean return that counts as solved, or `None`.
        initial_noise: `NoiseSpec` for the first state of one episode.
        transition_noise: `NoiseSpec` for each step, or `None` where a step is certain.
    """

    observation_space: gym.Space
    action_space: gym.Space
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    initial_noise = seeding.NoiseSpec("uniform", ())
    transition_noise: seeding.NoiseSpec | None = None

    def __init__(self, dtype="float32"):
        self.dtype = validation.one_of("dtype", dtype, ("float32", "float64"))

    @abc.abstractmethod
    def initial(self, noise):
        """First states from noise `[B, *initial_noise.shape]`."""

    @abc.abstractmethod
    def observation(self, state):
        """What is seen of states, nested as the observation space, `[B, …]` each."""

    @abc.abstractmethod
    def transition(self, state, action, noise):
        """The next states, as `initial` nests them.

        `noise` is `[B, *transition_noise.shape]`, or `None`. Answers for episodes that
        are over are not used, whatever they are.
        """

    @abc.abstractmethod
    def reward(self, state, action, next_state):
        """`[B]` float, for the action taken in `state`."""

    @abc.abstractmethod
    def terminal(self, state):
        """`[B]` bool: whether the task ends on reaching these states."""

    def as_gymnasium(self, num_envs):
        """So many of these environments as a `gymnasium.vector.VectorEnv`.

        >>> from tf_reinforce import envs
        >>> worlds = envs.CartPole().as_gymnasium(3)
        >>> observations, _ = worlds.reset(seed=0)
        >>> observations.shape, observations.dtype.name
        ((3, 4), 'float32')
        """
        return vector.TensorVectorEnv(self, num_envs)

    def __repr__(self):
        return f"{type(self).__name__}()"
