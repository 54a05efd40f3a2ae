"""Tests the example `glimpses.py`: pictures, glimpses, and that looking helps."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import toys

pytest.importorskip("sklearn", reason='needs pip install ".[examples]"')


@pytest.fixture(scope="module")
def example():
    return toys.example("glimpses")


def test_a_glimpse_shows_the_pixels_around_its_point(example):
    """The smallest square is an exact copy; the others are means of blocks of pixels."""
    picture = np.random.default_rng(0).uniform(size=(1, 24, 24, 1)).astype("float32")
    center = 40  # of 81 choices: rows and columns 8 to 15
    glimpse = example.look(picture, example.to_points(tf.constant([center])))
    small, _, large = tf.transpose(glimpse[0], [2, 0, 1]).numpy()
    np.testing.assert_allclose(small, picture[0, 8:16, 8:16, 0], rtol=1e-4)
    blocks = picture[0, :, :, 0].reshape(8, 3, 8, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(large, blocks, rtol=1e-4)


def test_points_reach_all_corners_of_the_picture(example):
    points = example.to_points(tf.range(81)).numpy()
    assert points.shape == (81, 2)
    pixels = points * 23
    assert pixels.min() == pytest.approx(3.5) and pixels.max() == pytest.approx(19.5)


def test_pictures_change_in_every_epoch_and_contain_the_digit(example):
    train, test = example.load_digits(seed=0)
    before = train.pictures.copy()
    train.on_epoch_end()
    assert (train.pictures != before).any()
    pictures, labels = test
    assert pictures.shape == (1985, 24, 24, 1) and len(labels) == 1985
    assert pictures.max() == 1.0 and pictures.min() == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "random", "full"])
def test_every_network_trains_and_is_evaluated(example, kind, monkeypatch):
    data, (pictures, labels) = example.load_digits(seed=0)
    small = example.Digits(data.digits[:128], data.labels[:128], seed=0)
    monkeypatch.setattr(
        example, "load_digits", lambda seed: (small, (pictures[:50], labels[:50]))
    )
    two_glimpses = functools.partial(example.Attention, num_glimpses=2)
    monkeypatch.setattr(example, "Attention", two_glimpses)
    _, accuracy = example.train(kind, epochs=1, seed=0)
    assert 0 <= accuracy <= 1


@pytest.mark.slow
def test_attention_finds_the_digit(example):
    """The other network looks once, at a random point."""
    _, attention = example.train("attention", epochs=60, seed=0)
    _, random = example.train("random", epochs=60, seed=0)
    assert attention > random + 0.2
