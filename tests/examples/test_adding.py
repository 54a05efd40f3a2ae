"""Tests the example `adding.py`, in which rewards teach a language model to add."""

import numpy as np
import pytest
import toys

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')


@pytest.fixture(scope="module")
def example():
    return toys.example("adding")


def test_reward_is_the_share_of_right_characters(example):
    """The end of the completion counts as a character."""
    cases = [
        ("17", "17", False, 1.0),
        ("17", "17", True, 2 / 3),  # no end token
        ("1", "17", False, 1 / 3),
        ("27", "17", False, 0.0),
        ("7", "7", False, 1.0),
        ("71", "7", False, 1 / 2),
        ("", "7", False, 0.0),
    ]
    completions, answers, truncated, expected = map(list, zip(*cases))
    rewards = example.right_characters(completions, answers, truncated)
    np.testing.assert_allclose(rewards, expected)
    exact = example.exact(completions, answers, truncated)
    assert exact == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.slow
def test_pretrained_model_is_loaded_from_a_preset(example, tmp_path, capsys):
    """A saved tiny model with random weights takes the place of a real preset."""
    example.make_tiny_model().save_to_preset(tmp_path / "preset")
    model, history = example.train_preset(str(tmp_path / "preset"), seed=0, updates=2)
    assert len(history.epoch) == 2
    assert np.isfinite(history.history["reward"]).all()
    assert all("lora" in v.path or "bias" in v.path for v in model.trainable_variables)
    assert len(model.generate(["3+4="])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_tiny_model_learns_to_add(example, seed):
    model, history = example.train_tiny(seed, updates=1500)
    tasks = example.make_tasks()
    right = np.mean([x == y for x, y in zip(model.generate(tasks), tasks["answer"])])
    assert history.history["reward_exact"][0] <= 0.05
    assert right >= 0.95
