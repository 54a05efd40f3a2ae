"""Learns to classify handwritten digits from rewards alone, and from a log of rewards.

    python examples/bandit.py [EPOCHS]

The model never sees a label. It chooses a digit for each picture, and receives the reward
1 if the choice is right, else 0. Such a task is a contextual bandit. The second part
learns from a log: another policy, which is right with a probability of about 0.5, has
chosen digits, and the log contains its choices, their rewards and their probabilities.
"""

import sys

import keras
import numpy as np
from sklearn import datasets

import tf_reinforce as tfr

CHOICES = 10


def load_digits():
    """Returns the pictures and labels of a training set and of a test set."""
    pictures, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    pictures, labels = (pictures / 16).astype("float32")[order], labels[order]
    return (pictures[:1400], labels[:1400]), (pictures[1400:], labels[1400:])


def right(pictures, choices, labels):
    """The reward of each choice."""
    return (choices == labels).astype("float32")


def make_model():
    """A policy for pictures of 64 pixels, which rewards train."""
    pictures = keras.Input((64,))
    logits = keras.layers.Dense(CHOICES)(keras.layers.Dense(64, "relu")(pictures))
    choice = tfr.layers.Sample(tfr.heads.Categorical(CHOICES))(logits)
    model = tfr.ScoreFunction(keras.Model(pictures, choice), reward=right)
    model.compile(keras.optimizers.Adam(3e-3))
    return model


def make_log(labels, seed):
    """Returns choices and their probabilities: the right digit with probability 0.5."""
    rng = np.random.default_rng(seed)
    probs = np.full((len(labels), CHOICES), 0.5 / (CHOICES - 1))
    probs[np.arange(len(labels)), labels] = 0.5
    choices = np.array([rng.choice(CHOICES, p=row) for row in probs])
    return choices, probs[np.arange(len(labels)), choices]


def train_online(train, epochs):
    """Returns a model that has learned from the rewards of its own choices."""
    model = make_model()
    model.fit(*train, epochs=epochs, verbose=0)
    return model


def train_from_log(train, epochs):
    """Returns a model that has learned from the choices of another policy."""
    pictures, labels = train
    choices, propensities = make_log(labels, seed=1)
    rewards = right(pictures, choices, labels)
    model = make_model()
    log = pictures, choices, rewards, propensities
    model.fit_logged(*log, batch_size=256, epochs=2 * epochs, verbose=0)
    return model


def accuracy(model, test):
    """Returns the share of test pictures whose most likely choice is right."""
    pictures, labels = test
    return float(np.mean(model.predict(pictures, verbose=0) == labels))


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    keras.utils.set_random_seed(0)
    train, test = load_digits()
    print(f"from its own choices: {accuracy(train_online(train, epochs), test):.3f}")
    model = train_from_log(train, epochs)
    print(f"from a log that is right in half of the rows: {accuracy(model, test):.3f}")
    pictures, labels = test
    choices, propensities = make_log(labels, seed=2)
    log = pictures, choices, right(pictures, choices, labels), propensities
    print("its value, estimated from another log:", model.evaluate_logged(*log))
