"""Helpers for the tests of docs/correctness.md."""

import ast
import pathlib
import re

import keras
import numpy as np

from tf_reinforce import baselines

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "correctness.md"


def critic(optimizer=None):
    """Returns a linear value baseline with fixed weights and a large learning rate."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="float64")])
    model.set_weights([np.array([[1.7], [-0.6]]), np.array([0.4])])
    return baselines.Value(model, optimizer or keras.optimizers.Adam(0.3))


def settings_of(text):
    """Returns the keyword arguments in a passage of the document."""
    call = ast.parse(f"dict({text})", mode="eval").body
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords}


def documented(section):
    """Returns (options, relative bias, cosine) for the rows of a section's table."""
    text = DOCUMENT.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \| (\S+) \| (\S+) \|$", text, re.MULTILINE)


def bias_and_cosine(found, truth):
    """Returns both numbers, formatted as in the document."""
    norm = np.linalg.norm
    cosine = found @ truth / (norm(found) * norm(truth))
    return f"{norm(found - truth) / norm(truth):.3f}", f"{cosine:.4f}"
