"""Tests what pictures of learning curves contain."""

import sys

import numpy as np
import pytest

from tf_reinforce.experiments import comparison
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import plots


def run(name, num_seeds, num_updates=50):
    """Returns a `Run` with random returns."""
    rng, made = np.random.default_rng(0), []
    for seed in range(num_seeds):
        columns = {
            "epoch": np.arange(num_updates),
            "env_steps": 10.0 * np.arange(1, num_updates + 1),
            "episode_return": rng.normal(size=num_updates),
            "entropy": rng.uniform(size=num_updates),
        }
        made.append(curves.Curve("log.csv", seed, columns))
    return curves.Run(name, "CartPole-v1", made, [])


@pytest.mark.parametrize("axis, window, used", [("steps", None, 3), ("updates", 7, 7)])
def test_line_and_area_are_the_interquartile_mean_and_its_interval(axis, window, used):
    many = run("many", 5, num_updates=150)
    keys = ["entropy", "episode_return"]
    first, panel = plots.draw([many], keys, axis=axis, window=window).axes
    assert [first.get_ylabel(), panel.get_ylabel()] == ["entropy", "episode return"]
    [line], [area] = panel.lines, panel.collections
    grid, values = curves.on_common_grid(many.curves, "episode_return", axis, used)
    interval = comparison.iqm_interval(values)
    np.testing.assert_array_equal(line.get_xdata(), grid)
    np.testing.assert_array_equal(line.get_ydata(), interval.estimate)
    points = area.get_paths()[0].vertices
    assert points[:, 1].min() == interval.low.min()
    assert points[:, 1].max() == interval.high.max()
    assert [text.get_text() for text in first.get_legend().texts] == ["many (5 seeds)"]


def test_few_seeds_are_drawn_one_by_one():
    [panel] = plots.draw([run("one", 1), run("two", 2)], window=3).axes
    assert len(panel.lines) == 3 and not panel.collections
    colors = [line.get_color() for line in panel.lines]
    assert colors[1] == colors[2] != colors[0]
    expected = curves.smooth(run("one", 1).curves[0].column("episode_return"), 3)
    np.testing.assert_array_equal(panel.lines[0].get_ydata(), expected)


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")]
)
def test_picture_is_written_in_the_format_of_its_name(tmp_path, name, start):
    figure = plots.draw([run("a", 1)])
    plots.save(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["matplotlib.figure", "scipy.stats"])
def test_missing_library_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'pip install "tf-reinforce\[plot\]"'):
        plots.draw([run("a", 3)])
