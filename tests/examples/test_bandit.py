"""Tests the example `bandit.py`, in which rewards alone teach the classes of digits."""

import keras
import numpy as np
import pytest
import toys

pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')


@pytest.fixture(scope="module")
def example():
    return toys.example("bandit")


def test_propensities_are_the_frequencies_of_the_choices(example):
    """With 20,000 rows, six standard errors of a frequency of one half are 0.0213."""
    labels = np.zeros(20_000, int)
    choices, propensities = example.make_log(labels, seed=0)
    assert abs((choices == 0).mean() - 0.5) < 0.0213
    np.testing.assert_allclose(propensities[choices == 0], 0.5)
    np.testing.assert_allclose(propensities[choices != 0], 0.5 / 9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["train_online", "train_from_log"])
def test_digits_are_learned_from_rewards(example, name, seed):
    keras.utils.set_random_seed(seed)
    train, test = example.load_digits()
    model = getattr(example, name)(train, epochs=30)
    assert example.accuracy(model, test) > 0.94
