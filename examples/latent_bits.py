"""Compresses handwritten digits to bits, beside a model that compresses to real numbers.

    python examples/latent_bits.py [EPOCHS]

Both models are variational autoencoders (Kingma & Welling, 2014): an encoder describes a
picture by a distribution over codes z, and a decoder draws the picture from a sample of
z. A code of real numbers is a differentiable function of noise (reparameterization),
and plain Keras trains it. A code of bits has no derivative: `tfr.ScoreFunction` trains it
with the score function. The loss of a picture x is the negative evidence lower bound, in
nats:

    L = -log p(x|z) + KL(q(z|x) ‖ p(z))
"""

import math
import sys

import keras
import numpy as np
from sklearn import datasets

import tf_reinforce as tfr

PIXELS, CODES = 64, 16
LOG_TWO = math.log(2)  # the entropy of a fair bit, in nats


def load_digits():
    """Returns black and white pictures, for training and for tests."""
    pictures = datasets.load_digits().data
    pictures = (pictures > 7).astype("float32")
    pictures = pictures[np.random.default_rng(0).permutation(len(pictures))]
    return pictures[:1400], pictures[1400:]


def negative_elbo(pictures, outputs):
    """The loss of each picture; the last column of the outputs is the KL divergence."""
    logits, divergence = outputs[:, :PIXELS], outputs[:, PIXELS]
    pixels = keras.ops.binary_crossentropy(pictures, logits, from_logits=True)
    return keras.ops.sum(pixels, axis=1) + divergence


def decode(codes, divergence):
    """Returns the logits of the pixels, and the KL divergence in a last column."""
    hidden = keras.layers.Dense(128, "relu")(keras.ops.cast(codes, "float32"))
    logits = keras.layers.Dense(PIXELS)(hidden)
    return keras.ops.concatenate([logits, divergence], axis=1)


def make_bits():
    """Codes of independent bits; before a picture is seen, each bit is fair."""
    pictures = keras.Input((PIXELS,))
    hidden = keras.layers.Dense(128, "relu")(pictures)
    logits = keras.layers.Dense(CODES)(hidden)
    bits = tfr.layers.Sample(tfr.heads.Bernoulli(CODES))(logits)
    probs = keras.ops.sigmoid(logits)
    entropies = keras.ops.binary_crossentropy(probs, logits, from_logits=True)
    divergence = keras.ops.sum(LOG_TWO - entropies, axis=1, keepdims=True)
    network = keras.Model(pictures, decode(bits, divergence))
    model = tfr.ScoreFunction(network, loss=negative_elbo, samples=8)
    model.compile(keras.optimizers.Adam(2e-3))
    return network, model


class AddNoise(keras.layers.Layer):
    """Adds noise to means in training: a differentiable sample."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(0)

    def call(self, means, log_scales, training=False):
        if not training:
            return means
        shape = keras.ops.shape(means)
        noise = keras.random.normal(shape, seed=self.seed_generator)
        return means + keras.ops.exp(log_scales) * noise


def make_reals():
    """Codes of independent real numbers, with a standard normal prior."""
    pictures = keras.Input((PIXELS,))
    hidden = keras.layers.Dense(128, "relu")(pictures)
    means, log_scales = (keras.layers.Dense(CODES)(hidden) for _ in range(2))
    codes = AddNoise()(means, log_scales)
    terms = keras.ops.exp(2 * log_scales) + means**2 - 1 - 2 * log_scales
    divergence = keras.ops.sum(terms, axis=1, keepdims=True) / 2
    network = keras.Model(pictures, decode(codes, divergence))
    network.compile(keras.optimizers.Adam(2e-3), loss=negative_elbo)
    return network, network


def bound(network, pictures, samples=20):
    """Returns the mean loss of pictures in nats, over samples of the codes."""
    losses = [
        negative_elbo(pictures, network(pictures, training=True)) for _ in range(samples)
    ]
    return float(np.mean(losses))


def train(make, epochs):
    """Returns a network and its mean loss on the test pictures, before and after."""
    train_pictures, test_pictures = load_digits()
    network, model = make()
    before = bound(network, test_pictures)
    model.fit(train_pictures, train_pictures, batch_size=64, epochs=epochs, verbose=0)
    return network, before, bound(network, test_pictures)


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    for name, make in {"bits": make_bits, "real numbers": make_reals}.items():
        keras.utils.set_random_seed(0)
        _, before, after = train(make, epochs)
        print(f"{CODES} {name}: {before:.1f} -> {after:.1f} nats per test picture")
