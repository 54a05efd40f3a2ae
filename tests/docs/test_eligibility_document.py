"""Tests the code, the printed results and the statements of docs/eligibility.md."""

import contextlib
import io
import pathlib
import re
import runpy
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions
ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "eligibility.md").read_text()
PROBS = np.array([0.69, 0.1, 0.2, 0.01])


def blocks():
    """Yields `(line, code, printed text)` of every block of the page."""
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?"
    for found in re.finditer(pattern, PAGE, re.DOTALL):
        line = PAGE[: found.start(1)].count("\n")
        yield line, found[1], found[2] or ""


def test_code_blocks_print_what_the_page_shows():
    world = {}
    for line, code, shown in blocks():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Blank lines make an error name the line of the page.
            exec(compile("\n" * line + code, "docs/eligibility.md", "exec"), world)
        assert printed.getvalue() == shown, f"line {line} of docs/eligibility.md"


def test_all_blocks_of_the_page_are_found():
    assert len(list(blocks())) == PAGE.count("```python") >= 9
    assert sum(bool(shown) for _, _, shown in blocks()) == PAGE.count("```text")


@pytest.mark.parametrize(
    "numbers",
    [
        "0.3100 -0.6900 -0.6900 -0.6900",
        "0.4493 -1.0000 -1.0000 -1.0000",
        "0.0031 -0.0069 -0.0069 -0.0069",
        "0.0045 -0.0100 -0.0100 -0.0100",
        "-0.6522 5.0000 0.0000 -5.0000",
        "4.3478 10.0000 5.0000 0.0000",
        "-0.4500 0.5000 0.0000 -0.0500",
    ],
)
def test_page_contains_the_numbers_of_common_questions(numbers):
    assert numbers in " ".join(PAGE.split())


def test_unnormalized_probs_give_wrong_entropy_and_mean():
    ordinary, inflated = (tfd.Categorical(probs=PROBS * scale) for scale in (1, 100))
    assert f"{ordinary.entropy():.4f}" == "0.8542" and "0.8542" in PAGE
    assert f"{inflated.entropy():.4f}" == "-375.0938" and "-375.0938" in PAGE
    np.testing.assert_allclose(inflated.probs_parameter(), [69, 10, 20, 1])


def test_probability_zero_has_nan_gradient_and_a_low_logit_has_not():
    def gradient(parameter, at):
        at = tf.constant(at, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(at)
            log_prob = tfd.Categorical(**{parameter: at}).log_prob(0)
        return tape.gradient(log_prob, at).numpy()

    found = gradient("probs", [0.5, 0.5, 0.0])
    assert np.isnan(found).tolist() == [False, False, True]
    found = gradient("logits", [0.0, 0.0, -1000.0])
    np.testing.assert_allclose(found, [0.5, -0.5, 0.0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: tfd.Categorical(probs=p, validate_args=True),
        lambda p: tfd.OneHotCategorical(probs=p, validate_args=True),
        lambda p: tfd.Multinomial(tf.ones([], p.dtype), probs=p, validate_args=True),
        lambda p: tfd.Bernoulli(probs=p[0], validate_args=True),
    ],
    ids=["categorical", "one_hot", "multinomial", "bernoulli"],
)
def test_validate_args_raises_if_probs_are_not_normalized(make):
    make(tf.constant(PROBS))
    with pytest.raises(tf.errors.InvalidArgumentError, match="sum to 1|did not hold"):
        make(tf.constant(100 * PROBS))


@pytest.mark.parametrize("end", ["logits", "softmax"])
@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "graph"])
def test_keras_crossentropy_with_returns_as_labels_has_wrong_gradient(end, eagerly):
    """Keras subtracts p - G·one-hot from the biases instead of G (p - one-hot)."""
    activation = "softmax" if end == "softmax" else None
    layer = keras.layers.Dense(2, activation, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.bias.assign(np.log([0.6, 0.4]))
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.CategoricalCrossentropy(from_logits=end == "logits"),
        run_eagerly=eagerly,
    )
    model.train_on_batch(np.ones((1, 1), "float32"), np.array([[2.0, 0.0]], "float32"))
    moved = layer.bias.numpy() - np.log([0.6, 0.4])
    np.testing.assert_allclose(moved, [1.4, -0.4], atol=1e-6)


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "graph"])
def test_sample_weights_give_the_policy_gradient_update(eagerly):
    """One step on weighted labels adds G (one-hot - p) to the biases, with G = 2."""
    layer = keras.layers.Dense(2, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.bias.assign(np.log([0.6, 0.4]))
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=eagerly,
    )
    one = np.ones((1, 1), "float32")
    model.train_on_batch(one, np.array([0]), sample_weight=np.array([2.0], "float32"))
    moved = layer.bias.numpy() - np.log([0.6, 0.4])
    np.testing.assert_allclose(moved, [0.8, -0.8], atol=1e-6)


def test_eligibility_example_prints_the_tables_and_draws_the_image(
    tmp_path, monkeypatch, capsys
):
    """The image is not blank, and is as large as the image of the page."""
    path = tmp_path / "picture.png"
    script = str(ROOT / "examples" / "eligibility.py")
    monkeypatch.setattr(sys, "argv", [script, str(path)])
    runpy.run_path(script, run_name="__main__")
    printed = " ".join(capsys.readouterr().out.split())
    for row in ("0.3100 -0.1000 -0.2000 -0.0100", "0.4493 -1.0000 -1.0000 -1.0000"):
        assert row in printed
    drawn = tf.io.decode_png(path.read_bytes())
    kept = (ROOT / "docs" / "simplex.png").read_bytes()
    assert len(kept) < 80_000
    assert tf.io.decode_png(kept).shape == drawn.shape
    assert len(np.unique(np.reshape(drawn, (-1, drawn.shape[-1])), axis=0)) > 3
