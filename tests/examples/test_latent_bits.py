"""Tests the example `latent_bits.py`: codes of bits and codes of real numbers."""

import keras
import numpy as np
import pytest
import toys

pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')


@pytest.fixture(scope="module")
def example():
    return toys.example("latent_bits")


def test_divergence_of_the_bits_is_their_definition(example):
    """KL(q ‖ p) = Σ q log (2 q), summed over the values of each bit."""
    keras.utils.set_random_seed(0)
    network, _ = example.make_bits()
    pictures = example.load_digits()[0][:5]
    encoder = keras.Model(network.input, network.layers[2].output)
    logits = np.array(encoder(pictures), "float64")
    probs = 1 / (1 + np.exp(-logits))
    terms = probs * np.log(2 * probs) + (1 - probs) * np.log(2 * (1 - probs))
    divergence = np.array(network(pictures))[:, example.PIXELS]
    np.testing.assert_allclose(divergence, terms.sum(axis=1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["make_bits", "make_reals"])
def test_few_epochs_lower_the_bound(example, name):
    keras.utils.set_random_seed(0)
    _, before, after = example.train(getattr(example, name), epochs=2)
    assert after < before - 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_bits_come_close_to_real_numbers(example, seed):
    bounds = []
    for make in (example.make_bits, example.make_reals):
        keras.utils.set_random_seed(seed)
        bounds.append(example.train(make, epochs=60)[2])
    assert bounds[0] < bounds[1] + 1.5
