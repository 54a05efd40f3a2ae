"""Computes every kind of return with one recursion."""

from typing import Any

import tensorflow as tf

from tf_reinforce.functional import shapes

__all__ = [
    "coefficients",
    "discounted_returns",
    "episode_returns",
    "lambda_returns",
]


def __dir__() -> list[str]:
    return __all__


def lambda_returns(
    rewards: tf.Tensor, discounts: tf.Tensor, next_values: tf.Tensor, lambdas: tf.Tensor
) -> tf.Tensor:
    """Mixes Monte Carlo and bootstrapped returns along a trajectory.

        Gₜ = rₜ + γₜ [(1 - λₜ) vₜ₊₁ + λₜ Gₜ₊₁],    with  G_T = v_T

    With λ = 1 this is the Monte Carlo return of REINFORCE, with λ = 0 the one-step TD
    target. The last step of a terminated episode has γₜ = 0, the last step of a truncated
    episode has λₜ = 0. So one recursion computes every case.

    Args:
        rewards: `[T, B]` float, rₜ received for the action taken at t.
        discounts: `[T, B]` float, γₜ; zero where the episode terminated at t.
        next_values: `[T, B]` float, vₜ₊₁, the value of the observation that
            followed; zeros when there is no value baseline.
        lambdas: `[T, B]` float, λₜ; zero where the episode was truncated at t.

    Returns:
        `[T, B]` float, the returns Gₜ. Gradients flow to every argument; apply
        `tf.stop_gradient` to the arguments that should not be trained.

    Raises:
        ValueError: If the shapes differ; nothing is broadcast.

    Example:

    >>> column = lambda *xs: tf.constant(xs, tf.float32)[:, None]
    >>> lambda_returns(
    ...     rewards=column(1, 1, 1),
    ...     discounts=column(0.5, 0.5, 0.0),
    ...     next_values=column(0, 0, 0),
    ...     lambdas=column(1, 1, 1),
    ... ).numpy().ravel().tolist()
    [1.75, 1.5, 1.0]

    Reference:
        Sutton & Barto, Reinforcement Learning: An Introduction (2nd ed.), section
        12.1. http://incompleteideas.net/book/the-book-2nd.html
        Hillis & Steele (1986), Data parallel algorithms. doi:10.1145/7902.7903
    """
    shapes.expect([(x, "TB") for x in (rewards, discounts, next_values, lambdas)])

    # Gₜ = constantₜ + slopeₜ Gₜ₊₁, and affine maps compose associatively. So each step
    # is composed with the step 1, 2, 4, … rows later, in log T sweeps. To divide by
    # powers of γ instead would overflow.
    rows = tf.shape(rewards)[0]
    end = tf.concat([tf.zeros_like(rewards[1:]), next_values[-1:]], axis=0)
    slopes = discounts * lambdas
    constants = rewards + discounts * (1.0 - lambdas) * next_values + slopes * end
    index = tf.range(rows + 1)

    def compose(distance: Any, constants: tf.Tensor, slopes: tf.Tensor) -> Any:
        later = tf.minimum(index + distance, rows)  # row `rows` is the zero map
        return (
            2 * distance,
            constants + slopes * tf.gather(constants, later),
            slopes * tf.gather(slopes, later),
        )

    _, returns, _ = tf.while_loop(
        lambda distance, *_: distance < rows,
        compose,
        (tf.constant(1), *(tf.pad(x, [[0, 1], [0, 0]]) for x in (constants, slopes))),
    )
    return returns[:-1]


def discounted_returns(rewards: tf.Tensor, discounts: tf.Tensor) -> tf.Tensor:
    """Returns the discounted sum of the rewards from each step on, the reward-to-go.

        Gₜ = rₜ + γₜ Gₜ₊₁,    with  G_T = 0

    Args:
        rewards: `[T, B]` float.
        discounts: `[T, B]` float, γₜ; zero at the last step of an episode.

    Returns:
        `[T, B]` float: the `lambda_returns` for λ = 1 and v = 0.

    Example:

    >>> rewards = tf.constant([[1.0], [1.0], [1.0]], tf.float64)
    >>> discounted_returns(rewards, 0.99 * tf.ones_like(rewards)).numpy().ravel()
    array([2.9701, 1.99  , 1.    ])
    """
    zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)
    return lambda_returns(rewards, discounts, zeros, ones)


def coefficients(
    valid: tf.Tensor,
    lengths: tf.Tensor,
    terminated: tf.Tensor,
    gamma: float,
    gae_lambda: float,
    dtype: Any,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns γₜ and λₜ, which distinguish terminated from truncated episodes.

    Args:
        valid: `[T, B]` bool; False for padding.
        lengths: `[B]` int, the number of steps of each episode, at least 1.
        terminated: `[B]` bool, True for terminated and False for truncated episodes.
        gamma: Float in [0, 1]. Zero: only the next reward counts.
        gae_lambda: Float in [0, 1]. One: Monte Carlo up to the end of the episode.
        dtype: Float dtype of both results.

    Returns:
        `discounts` and `lambdas`, `[T, B]` each: γ and λ inside an episode. γₜ is zero at
        the last step of a terminated episode, λₜ at the last step of a truncated one.
        Both are zero in the padding.

    Example:

    >>> valid = tf.constant([[True, True], [True, True]])
    >>> terminated = [True, False]
    >>> discounts, lambdas = coefficients(valid, [2, 2], terminated, 0.9, 1.0, "float64")
    >>> discounts.numpy().tolist(), lambdas.numpy().tolist()
    ([[0.9, 0.9], [0.0, 0.9]], [[1.0, 1.0], [1.0, 0.0]])
    """
    last = tf.range(tf.shape(valid)[0])[:, None] == tf.cast(lengths, tf.int32) - 1
    gamma, gae_lambda, zero = (tf.constant(x, dtype) for x in (gamma, gae_lambda, 0))
    terminated = tf.convert_to_tensor(terminated)
    discounts = tf.where(valid & ~(last & terminated), gamma, zero)
    return discounts, tf.where(valid & ~(last & ~terminated), gae_lambda, zero)


def episode_returns(rewards: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Returns the undiscounted sum of the rewards of each episode.

    Args:
        rewards: `[T, B]` float; padding is ignored, even if it is NaN.
        valid: `[T, B]` bool; False for padding.

    Returns:
        `[B]` float.

    Example:

    >>> rewards = tf.constant([[1.0, 2.0], [5.0, float("nan")]])
    >>> episode_returns(rewards, [[True, True], [True, False]]).numpy().tolist()
    [6.0, 2.0]
    """
    shapes.expect([(rewards, "TB"), (valid, "TB")])
    return tf.reduce_sum(tf.where(valid, rewards, tf.zeros_like(rewards)), axis=0)
