"""λ-returns, discounted returns and episode returns."""

from typing import Any

import tensorflow as tf

from tf_reinforce.functional import shapes

__all__ = [
    "coefficients",
    "discounted_returns",
    "episode_returns",
    "lambda_returns",
]

__dir__ = __all__.copy  # what tab completion shows


def lambda_returns(
    rewards: tf.Tensor, discounts: tf.Tensor, next_values: tf.Tensor, lambdas: tf.Tensor
) -> tf.Tensor:
    """Mixes Monte Carlo and bootstrapped returns along a trajectory.

        Gₜ = rₜ + γₜ [(1 - λₜ) vₜ₊₁ + λₜ Gₜ₊₁],    with  G_T = v_T

    With λ = 1, the result is the Monte Carlo return of REINFORCE, and with λ = 0, it is
    the one-step TD target. The coefficients also tell how an episode ended. An episode
    that terminates has γₜ = 0 at its last step, and a truncated episode has λₜ = 0 there.

    Args:
        rewards: `[T, B]` float, the reward rₜ for the action at step t of B episodes.
        discounts: `[T, B]` float, γₜ; zero where the episode terminated.
        next_values: `[T, B]` float, vₜ₊₁, the value of the observation after step t; all
            zero without a value baseline.
        lambdas: `[T, B]` float, λₜ; zero where the episode was truncated.

    Returns:
        `[T, B]` float. Gradients flow to every argument: apply `tf.stop_gradient` to
        those that should not be trained.

    Raises:
        ValueError: If the arguments differ in shape; they are not broadcast.

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

    # The recursion Gₜ = constantₜ + slopeₜ Gₜ₊₁ is an affine map, and affine maps compose
    # associatively. The scan composes each step with the step 1, 2, 4, … rows later, in
    # log T sweeps. Division by powers of γ, as an alternative to the scan, would
    # overflow.
    rows = tf.shape(rewards)[0]
    end = tf.concat([tf.zeros_like(rewards[1:]), next_values[-1:]], axis=0)
    slopes = discounts * lambdas
    constants = rewards + discounts * (1.0 - lambdas) * next_values + slopes * end
    index = tf.range(rows + 1)

    def compose(distance: Any, constants: tf.Tensor, slopes: tf.Tensor) -> Any:
        later = tf.minimum(index + distance, rows)  # row `rows` is the map x → 0
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
    """Returns the reward-to-go: the discounted sum of the rewards from each step on.

        Gₜ = rₜ + γₜ Gₜ₊₁,    with  G_T = 0

    Args:
        rewards: `[T, B]` float, the reward rₜ of each step.
        discounts: `[T, B]` float, γₜ; zero at the last step of an episode.

    Returns:
        `[T, B]` float, the same as `lambda_returns` with `lambdas` of one and
        `next_values` of zero.

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
    """Returns the arguments `discounts` and `lambdas` of `lambda_returns`.

    Args:
        valid: `[T, B]` bool, False for padding.
        lengths: `[B]` int of at least 1, the steps of each episode.
        terminated: `[B]` bool, False for truncated episodes.
        gamma: Float in [0, 1], γ. With 0, the return is the next reward.
        gae_lambda: Float in [0, 1], the λ of generalized advantage estimation. With 1,
            the return is the Monte Carlo return.
        dtype: Float type of the results.

    Returns:
        Two `[T, B]` floats: γ, but zero at the last step of a terminated episode, and λ,
        but zero at the last step of a truncated one. Both are zero in the padding.

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
    """Returns each episode's undiscounted sum of rewards.

    Args:
        rewards: `[T, B]` float. Padding is ignored, even if it is NaN.
        valid: `[T, B]` bool, False for padding.

    Returns:
        `[B]` float.

    Example:

    >>> rewards = tf.constant([[1.0, 2.0], [5.0, float("nan")]])
    >>> episode_returns(rewards, [[True, True], [True, False]]).numpy().tolist()
    [6.0, 2.0]
    """
    shapes.expect([(rewards, "TB"), (valid, "TB")])
    return tf.reduce_sum(tf.where(valid, rewards, tf.zeros_like(rewards)), axis=0)
