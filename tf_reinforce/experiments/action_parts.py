"""Describes the action distribution at many observations, one part after another."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.data import tensor_noise
from tf_reinforce.heads import gaussian

# Standard normal numbers of the trapezoidal rule, whose error is far below 1e-6 for
# smooth functions, and small also for clipped and rounded actions.
_NODES = np.linspace(-6.0, 6.0, 121)
_SAMPLES = 256  # samples of a custom head, from which mean and deviation are estimated


class Choices(NamedTuple):
    """The probabilities of the K values of a discrete action, at N observations."""

    name: str
    values: list  # of K texts
    probs: np.ndarray  # [N, K], one row sums to one


class Numbers(NamedTuple):
    """Mean and standard deviation of one real number of an action, at N observations.

    All numbers are in the units of the environment, after clipping and rounding.
    """

    name: str
    mean: np.ndarray  # [N]
    deviation: np.ndarray  # [N]
    taken: Any = None  # [N], the numbers that were taken, or `None`


def describe(head, outputs, actions=None):
    """Returns the parts of the action distribution, a list of `Choices` and `Numbers`.

    A `Categorical` is one `Choices`. A `MultiCategorical` and a `Bernoulli` have one
    `Choices` for each of their actions. The `Choices` of a `Multinomial` are the expected
    shares of its categories. A head for real numbers has one `Numbers` for each number.
    Mean and deviation of a Gaussian head are integrals over its noise, computed by the
    trapezoidal rule. Those of a `Beta` are closed forms, and those of a custom head are
    estimated from 256 samples.

    Args:
        head: A built `heads.Head`.
        outputs: `[N, P]` float tensor, the masked policy outputs for N observations.
        actions: N raw actions, nested like the actions of the head, or `None`.
    """
    if not isinstance(head, heads.Composite):
        return _parts("action", head, outputs, actions)
    sizes = [leaf.outputs_size for leaf in head.leaves]
    taken = [None] * len(sizes) if actions is None else keras.tree.flatten(actions)
    leaves = zip(head.names, head.leaves, tf.split(outputs, sizes, axis=-1), taken)
    return [part for leaf in leaves for part in _parts(*leaf)]


def _parts(name, head, outputs, actions):
    """Returns the parts of a head that is not a `Composite`.

    A subclass may have another distribution. Therefore only the heads of the package are
    described by their parameters, and others by their distribution or by samples.
    """
    if isinstance(head, heads.Categorical):
        distribution, indices = head.distribution(outputs), range(head.size)
        log_probs = [distribution.log_prob([i] * len(outputs)) for i in indices]
        return _choices(name, [np.exp(np.stack(log_probs, axis=-1))], [head.start])
    if type(head) not in (heads.MultiCategorical, heads.Bernoulli, heads.Multinomial):
        return _numbers(name, head, outputs, actions)
    probs = head.parameters(outputs)["probs"].numpy()
    if type(head) is heads.MultiCategorical:
        parts = np.split(probs, np.cumsum(head.sizes)[:-1], axis=-1)
        return _choices(name, parts, np.broadcast_to(head.start, len(parts)))
    if type(head) is heads.Bernoulli:
        parts = [np.stack([1.0 - on, on], axis=-1) for on in probs.T]
        return _choices(name, parts, [0] * head.n)
    return _choices(f"{name}, expected share", [probs], [0])


def _choices(name, parts, starts):
    """Returns a `Choices` for each array of probabilities and its first value."""
    return [
        Choices(
            _indexed(name, i, len(parts)),
            [str(start + k) for k in range(probs.shape[1])],
            probs,
        )
        for i, (probs, start) in enumerate(zip(parts, starts, strict=True))
    ]


def _numbers(name, head, outputs, actions):
    """Returns `Numbers` of a head for real numbers, or of a custom head."""
    if type(head) is heads.Beta:
        mean, deviation = _beta_moments(head, outputs)
    elif isinstance(head, gaussian.GaussianHead):
        mean, deviation = _normal_moments(head, outputs)
    else:
        mean, deviation = _sampled_moments(head, outputs)
    count = mean.shape[1]
    taken = [None] * count if actions is None else _to_rows(head, actions).T
    columns = enumerate(zip(mean.T, deviation.T, taken, strict=True))
    return [Numbers(_indexed(name, i, count), *column) for i, column in columns]


def _beta_moments(head, outputs):
    """Returns mean and deviation of a + (b - a) y with y ~ Beta(α, β)."""
    alpha, beta = (x.numpy() for x in head.parameters(outputs).values())
    total = alpha + beta
    deviation = np.sqrt(alpha * beta / (total + 1.0)) / total
    low, high = (head.to_environment(tf.constant([[x] * head.size])) for x in (0.0, 1.0))
    low, high = (np.reshape(x, [1, head.size]) for x in (low, high))
    return low + (high - low) * alpha / total, (high - low) * deviation


def _normal_moments(head, outputs):
    """Returns the moments of the action, which are integrals over its normal noise."""
    weights = np.exp(-(_NODES**2) / 2)
    weights /= weights.sum()
    rows = [
        _to_rows(head, head.sample(outputs, tf.fill([len(outputs), head.size], node)))
        for node in _NODES.astype(outputs.dtype.as_numpy_dtype)
    ]
    mean = np.tensordot(weights, rows, axes=1)
    variance = np.tensordot(weights, (rows - mean) ** 2, axes=1)
    return mean, np.sqrt(variance)


def _sampled_moments(head, outputs):
    rows = []
    for seed in range(_SAMPLES):
        noise = tensor_noise.stateless_noise(
            seed, head.noise.kind, [len(outputs), *head.noise.shape], outputs.dtype, 0
        )
        rows.append(_to_rows(head, head.sample(outputs, noise)))
    return np.mean(rows, axis=0), np.std(rows, axis=0)


def _to_rows(head, actions):
    """Returns raw actions as `[N, A]` float64, in the units of the environment."""
    env_actions = np.asarray(head.to_environment(tf.convert_to_tensor(actions)))
    return env_actions.reshape(len(env_actions), -1).astype("float64")


def _indexed(name, index, count):
    return f"{name} {index}" if count > 1 else name
