"""Policies and a record, for tests of updates."""

import keras
import numpy as np

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.testing import gradients

# Rows, episodes, observation size and action size differ, so that no broadcast is valid.
T, B, OBSERVED, A = 7, 5, 3, 2
LENGTHS = [7, 1, 4, 6, 2]
TERMINATED = [True, False, False, True, True]
DEFAULTS = dict(
    gamma=0.9,
    gae_lambda=1.0,
    returns="to_go",
    discount_states=False,
    scale_advantages=None,
    mean_over="episodes",
    on_truncation="bootstrap",
    ratio_clip=2.0,
    max_kl=None,
    entropy_coef=0.0,
)


def network(dtype="float64", hidden=11):
    keras.utils.set_random_seed(3)
    options = dict(bias_initializer="normal", dtype=dtype)
    x = keras.Input((OBSERVED,), dtype=dtype)
    y = keras.layers.Dense(hidden, "tanh", **options)(x)
    return keras.Model(x, keras.layers.Dense(A, **options)(y))


def shared_network(hidden=3):
    x = keras.Input((OBSERVED,), dtype="float64")
    y = keras.layers.Dense(hidden, "tanh", bias_initializer="normal", dtype="float64")(x)
    ends = {"outputs": A, "values": 1}
    return keras.Model(
        x, {k: keras.layers.Dense(n, name=k, dtype="float64")(y) for k, n in ends.items()}
    )


def gaussian(dtype="float64"):
    head = heads.Gaussian(A, initial_scale=[0.5, 2.0], dtype=dtype)
    head.build((None, A))
    return head


def record(kind=heads.Categorical, dtype="float64"):
    rng = np.random.default_rng(1)
    whole = kind is heads.Categorical
    actions = rng.integers(A, size=(T, B)) if whole else rng.normal(size=(T, B, A))
    return tfr.Episodes(
        rng.normal(size=(T + 1, B, OBSERVED)).astype(dtype),
        actions.astype("int32" if whole else dtype),
        rng.normal(size=(T, B)),
        np.array(LENGTHS, "int32"),
        np.array(TERMINATED),
    )


def padded(episodes, rows):
    """Returns the record with more rows, and invalid values in the padding."""

    def fill(array, lengths, nothing):
        more = np.zeros((rows, *array.shape[1:]), array.dtype)
        array = np.concatenate([array, more])
        array[np.arange(len(array))[:, None] >= lengths] = nothing
        return array

    lengths, real = episodes.lengths, episodes.actions.dtype.kind == "f"
    return episodes._replace(
        observations=fill(episodes.observations, lengths + 1, np.nan),
        actions=fill(episodes.actions, lengths, np.nan if real else -99),
        rewards=fill(episodes.rewards, lengths, np.nan),
    )


def same_bits(first, second):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


columns = gradients.select_columns
