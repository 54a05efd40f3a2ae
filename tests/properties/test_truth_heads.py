"""Tests that heads are correct distributions, and that `check_head` finds faults."""

import functools

import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
import tensorflow_probability as tfp
import toy_heads

from tf_reinforce import heads
from tf_reinforce import testing

HEADS = {
    **{name: functools.partial(parts.head, name) for name in parts.INTEGER_HEADS},
    **{
        name: functools.partial(parts.HEADS[name].kind, 1, low=-1.0, high=0.5)
        for name in parts.BOX_HEADS
    },
    "composite": lambda: heads.Composite(
        {
            "b": (heads.Bernoulli(2), heads.Categorical(3)),
            "a b": heads.Multinomial(3, trials=2),
        }
    ),
    "autoregressive": lambda: parts.dependent(
        toy_heads.built(
            heads.Autoregressive(
                {"a": heads.Pointer(6, key_dim=2), "b": (heads.Bernoulli(2),)},
                order=["a", "b_0"],
                dtype="float64",
            )
        )
    ),
    "autoregressive-of-three": lambda: parts.dependent(
        toy_heads.built(
            heads.Autoregressive(
                (heads.MultiCategorical([3, 2]), heads.Pointer(3, 2), heads.Bernoulli(1)),
                dtype="float64",
            )
        )
    ),
    "tempered": lambda: toy_heads.Tempered(4, dtype="float64"),
    "tempered-of-single-weights": lambda: toy_heads.Tempered(3),
    "switches": lambda: toy_heads.Switches(4),
    "gaussian-narrow": lambda: heads.Gaussian(1, initial_scale=0.01, dtype="float64"),
    "gaussian-wide": lambda: heads.Gaussian(1, initial_scale=300.0, low=-1, high=1),
    "gaussian-2": lambda: heads.Gaussian(2, initial_scale=[0.5, 3.0], dtype="float64"),
    "gaussian-scaled": lambda: heads.Gaussian(1, state_dependent_scale=True),
    "clipped-below": lambda: heads.ClippedGaussian(1, 0.0, np.inf),
    "clipped-above": lambda: heads.ClippedGaussian(1, -np.inf, 0.3),
    "clipped-nowhere": lambda: heads.ClippedGaussian(1, -np.inf, np.inf),
    "clipped-2": lambda: heads.ClippedGaussian(2, [-1.0, -np.inf], [0.5, 1.0]),
    "clipped-narrow": lambda: heads.ClippedGaussian(1, -1.0, 1.0, initial_scale=0.01),
    "clipped-wide": lambda: heads.ClippedGaussian(1, -1.0, 1.0, initial_scale=300.0),
    "clipped-scaled": lambda: heads.ClippedGaussian(1, 0, 9, state_dependent_scale=True),
    "tanh-2": lambda: heads.TanhGaussian(2, -3, [1, 8], initial_scale=[0.3, 1.0]),
    "tanh-wide": lambda: heads.TanhGaussian(1, -1.0, 1.0, initial_scale=2.0),
    "tanh-scaled": lambda: heads.TanhGaussian(1, 0, 9, state_dependent_scale=True),
    "beta-2": lambda: heads.Beta(2, 0.0, [1.0, 9.0]),
    "logistic": toy_heads.Logistic,
}
TOLERANCES = {
    "probabilities": 1e-9,
    "eligibility": 1e-12,
    "finite_differences": 1e-7,
    "sample": 6.0,
    "expected_eligibility": 1e-9,
    "entropy": 1e-9,
    "mode": 1e-9,
}


OFTEN = [*parts.INTEGER_HEADS, *parts.BOX_HEADS, "tempered", "switches", "composite"]
OFTEN += ["gaussian-wide", "gaussian-scaled", "clipped-below", "tanh-scaled", "logistic"]


@pytest.mark.parametrize("name", sweeps.some(HEADS, always=OFTEN))
def test_heads_satisfy_each_property_of_check_head(name):
    head = HEADS[name]()
    report = testing.check_head(head)
    assert set(report) == set(TOLERANCES)
    for word, tolerance in TOLERANCES.items():
        assert report[word] <= tolerance, word


def test_head_properties_hold_for_extreme_and_equal_outputs():
    outputs = np.array([[0.0, 0.0, 0.0], [30.0, -30.0, 0.0], [300.0, 299.0, -500.0]])
    assert testing.check_head(heads.Categorical(3), outputs)["entropy"] <= 1e-12
    outputs = np.array([[0.0], [1e4], [-1e4]])
    assert testing.check_head(heads.Gaussian(1), outputs)["entropy"] <= 1e-9
    # The means are beyond the bound, far beyond the other bound, and on a bound.
    outputs = np.array([[5.0], [-30.0], [1.0]])
    clipped = heads.ClippedGaussian(1, -1.0, 1.0)
    assert testing.check_head(clipped, outputs)["entropy"] <= 1e-12


# Heads with one fault each


class More(heads.Gaussian):
    def distribution(self, outputs):
        return toy_heads.Bent(super().distribution(outputs), lambda x: x + 1e-6)


class Forgetful(heads.Categorical):
    """The eligibility is one-hot, as if the gradient were that of the logit only."""

    def eligibility(self, outputs, actions):
        return tf.one_hot(actions, self.size, dtype=outputs.dtype)


class Greedy(heads.Categorical):
    def sample(self, outputs, noise):
        return self.mode(outputs)


class TooWide(heads.Gaussian):
    def sample(self, outputs, noise):
        return outputs + 1.1 * self._scale(outputs) * noise


class Deaf(heads.Gaussian):
    """Samples ignore the noise."""

    def sample(self, outputs, noise):
        return tf.identity(outputs)


class Leaning(heads.Categorical):
    """Probabilities are normalized only if the sum of the outputs is zero."""

    def distribution(self, outputs):
        total = tf.reduce_sum(outputs, axis=-1)
        return toy_heads.Bent(super().distribution(outputs), lambda x: x + total)

    def eligibility(self, outputs, actions):
        return super().eligibility(outputs, actions) + 1.0


class Hotter(heads.Categorical):
    def distribution(self, outputs):
        return toy_heads.Bent(super().distribution(outputs), entropy=lambda x: x + 1e-6)


class Contrary(heads.Categorical):
    def mode(self, outputs):
        return tf.argmin(outputs, axis=-1)

    def sample(self, outputs, noise):
        gumbel = -tf.math.log(-tf.math.log(noise))
        return tf.argmax(outputs + gumbel, axis=-1)


class Unclipped(heads.ClippedGaussian):
    """The samples are clipped, but the log-probability is that of a Gaussian."""

    def distribution(self, outputs):
        loc, scale = self.parameters(outputs).values()
        return tfp.distributions.Independent(tfp.distributions.Normal(loc, scale), 1)

    eligibility = heads.Head.eligibility


class Swapped(heads.Beta):
    def sample(self, outputs, noise):
        return 1.0 - super().sample(outputs, noise)


BALANCED = np.array([[0.5, -0.5], [-1.0, 1.0]])
FAULTS = [
    ("probabilities", toy_heads.Half(3), None),
    ("probabilities", More(1), None),
    ("eligibility", Forgetful(3), None),
    ("finite_differences", toy_heads.Stopped(3), None),
    ("sample", Greedy(2), None),
    ("sample", TooWide(1), None),
    ("sample", Deaf(1), None),
    ("expected_eligibility", Leaning(2), BALANCED),
    ("entropy", Hotter(3), None),
    ("mode", Contrary(3), None),
    ("probabilities", Unclipped(1, -1.0, 1.0), None),
    ("sample", Swapped(1, 0.0, 1.0), None),
]


@pytest.mark.parametrize(
    "word, head, outputs", FAULTS, ids=[f"{f[0]}-{type(f[1]).__name__}" for f in FAULTS]
)
def test_check_head_names_the_property_with_a_fault(word, head, outputs):
    with pytest.raises(AssertionError, match=f"^`{word}` of "):
        testing.check_head(head, outputs)


def test_every_property_of_check_head_has_a_test_with_a_fault():
    assert {word for word, _, _ in FAULTS} == set(TOLERANCES)


class Vector(heads.Gaussian):
    """The log-probability has one number per element instead of one per action."""

    def distribution(self, outputs):
        return tfp.distributions.Normal(outputs, 1.0)


def test_check_head_explains_a_wrong_shape():
    with pytest.raises(AssertionError, match="`log_prob`.*Check the event shape"):
        testing.check_head(Vector(2))


class Endless(heads.Categorical):
    def is_valid(self, actions):
        return actions >= 0


class Nowhere(toy_heads.Switches):
    """Zero is no valid action, so that counting from zero finds no action."""

    def is_valid(self, actions):
        return actions > 0


@pytest.mark.parametrize(
    "head, options, message",
    [
        (Endless(3), {}, "cannot be enumerated"),
        (Nowhere(2), {}, "cannot be enumerated"),
        (heads.Gaussian(3), {}, "must sample one or two numbers"),
        (heads.Gaussian(1), {"mask": [1]}, "Only a head with integer"),
        (heads.Composite((heads.Gaussian(1),)), {}, "Check each continuous head alone"),
        (heads.Categorical(3), {"outputs": np.zeros((2, 4))}, r"shape \(N, 3\)"),
        (heads.Categorical(3), {"outputs": np.zeros((0, 3))}, r"shape \(N, 3\)"),
        (heads.Categorical(2), {"outputs": [[0, np.nan]]}, "must be finite numbers"),
    ],
)
def test_check_head_raises_on_invalid_arguments(head, options, message):
    with pytest.raises(ValueError, match=message):
        testing.check_head(head, **options)
