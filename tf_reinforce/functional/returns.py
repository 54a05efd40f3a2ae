"""Computes every kind of return with one recursion."""

import tensorflow as tf

from tf_reinforce.functional import shapes


def lambda_returns(rewards, discounts, next_values, lambdas):
    """Mixes Monte Carlo and bootstrapped returns along a trajectory.

        Gₜ = rₜ + γₜ [(1 - λₜ) vₜ₊₁ + λₜ Gₜ₊₁],    with  G_T = v_T

    With λ = 1 this is the Monte Carlo return of REINFORCE, with λ = 0 the one-step
    target of temporal differences. A terminated step has γₜ = 0, a step at which the
    clock cut the episode λₜ = 0: one recursion carries every case.

    Args:
        rewards: `[T, B]` float, rₜ received for the action taken at t.
        discounts: `[T, B]` float, γₜ; zero where the episode terminated at t.
        next_values: `[T, B]` float, vₜ₊₁, the value of the observation that
            followed; zeros when there is no value baseline.
        lambdas: `[T, B]` float, λₜ; zero where the episode was cut at t.

    Returns:
        `[T, B]` float, the returns Gₜ. Gradients flow to every argument: the caller
        stops what it does not mean to train.

    Raises:
        ValueError: when the shapes differ; nothing is broadcast.

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

    # Gₜ = constantₜ + slopeₜ Gₜ₊₁, and affine maps compose associatively: composing
    # each step with the one 1, 2, 4, … rows later takes log T sweeps. Dividing by
    # powers of γ instead would overflow.
    rows = tf.shape(rewards)[0]
    end = tf.concat([tf.zeros_like(rewards[1:]), next_values[-1:]], axis=0)
    slopes = discounts * lambdas
    constants = rewards + discounts * (1.0 - lambdas) * next_values + slopes * end
    index = tf.range(rows + 1)

    def compose(distance, constants, slopes):
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


def discounted_returns(rewards, discounts):
    """The discounted sum of the rewards from each step on: reward-to-go.

        Gₜ = rₜ + γₜ Gₜ₊₁,    with  G_T = 0

    Args:
        rewards: `[T, B]` float.
        discounts: `[T, B]` float, γₜ; zero at the last step of an episode.

    Returns:
        `[T, B]` float; see `lambda_returns`, of which this is the case λ = 1, v = 0.

    Example:

    >>> rewards = tf.constant([[1.0], [1.0], [1.0]], tf.float64)
    >>> discounted_returns(rewards, 0.99 * tf.ones_like(rewards)).numpy().ravel()
    array([2.9701, 1.99  , 1.    ])
    """
    zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)
    return lambda_returns(rewards, discounts, zeros, ones)


def coefficients(valid, lengths, terminated, gamma, gae_lambda, dtype):
    """The γₜ and λₜ that tell an ending apart from a cut.

    Args:
        valid: `[T, B]` bool, the steps that happened.
        lengths: `[B]` int, at least 1.
        terminated: `[B]` bool: the task ended the episode; False: the clock cut it.
        gamma: Float in [0, 1]. Zero: only the next reward counts.
        gae_lambda: Float in [0, 1]. One: Monte Carlo up to the episode's end.
        dtype: Float dtype of both results.

    Returns:
        `discounts` and `lambdas`, `[T, B]` each: γ and λ inside an episode; γₜ = 0 at
        a terminated last step, λₜ = 0 at a cut one, both zero in the padding.

    Example:

    >>> both = tf.constant([[True, True], [True, True]])
    >>> terminated = [True, False]
    >>> discounts, lambdas = coefficients(both, [2, 2], terminated, 0.9, 1.0, "float64")
    >>> discounts.numpy().tolist(), lambdas.numpy().tolist()
    ([[0.9, 0.9], [0.0, 0.9]], [[1.0, 1.0], [1.0, 0.0]])
    """
    last = tf.range(tf.shape(valid)[0])[:, None] == tf.cast(lengths, tf.int32) - 1
    gamma, gae_lambda, zero = (tf.constant(x, dtype) for x in (gamma, gae_lambda, 0))
    terminated = tf.convert_to_tensor(terminated)
    discounts = tf.where(valid & ~(last & terminated), gamma, zero)
    return discounts, tf.where(valid & ~(last & ~terminated), gae_lambda, zero)


def episode_returns(rewards, valid):
    """The plain sum of each episode's rewards, undiscounted: what a task reports.

    Args:
        rewards: `[T, B]` float; whatever stands in the padding is ignored.
        valid: `[T, B]` bool, the steps that happened.

    Returns:
        `[B]` float.

    Example:

    >>> rewards = tf.constant([[1.0, 2.0], [5.0, float("nan")]])
    >>> episode_returns(rewards, [[True, True], [True, False]]).numpy().tolist()
    [6.0, 2.0]
    """
    shapes.expect([(rewards, "TB"), (valid, "TB")])
    return tf.reduce_sum(tf.where(valid, rewards, tf.zeros_like(rewards)), axis=0)
