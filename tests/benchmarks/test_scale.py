"""Tests the simulation of many workers, and the page that shows its predictions."""

import importlib
import json
import pathlib
import re
import statistics

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale_model")


@pytest.fixture
def report(model):
    return importlib.import_module("scale_report")


def costs(model, **values):
    """Returns costs that are zero, except for the given values."""
    return model.Costs(**{**dict.fromkeys(model.Costs._fields, 0.0), **values})


def test_one_worker_plays_the_episodes_one_after_another(model):
    """The seconds of all parts are added, as for one process."""
    values = dict(
        collection=1.0, prepare_byte=0.3, first_message=2.0, weight_byte=0.5, record=0.1
    )
    values.update(record_byte=0.01, record_step=0.02, update=4.0, update_step=0.03)
    values.update(start=5.0, start_byte=0.25, episode=0.5, acting_after_wait=0.2)
    task = model.Task([3, 4, 5], 1.0, 0.5, weight_bytes=8, step_bytes=2)
    out = 1 + 8 * 0.3 + 2 + 8 * 0.5
    start = 5 + 8 * 0.25
    # The first message names two episodes. The worker waits for the number of the third.
    between = 0.1 + 4 * 2 * 0.01
    playing = 3 * 0.5 + 12 * (1.0 + 0.5 + 0.2)
    last_record = 0.1 + 5 * 2 * 0.01
    total = out + start + playing + between + last_record + 12 * 0.02 + 4 + 12 * 0.03
    result = model.simulate(costs(model, **values), task, 1)
    assert result.total == pytest.approx(total)
    assert result[1:4] == pytest.approx((out + start, playing, between))


def test_parts_of_an_update_sum_to_its_total(model):
    rng = np.random.default_rng(0)
    for cores in (None, 2):
        values = dict(zip(model.Costs._fields, rng.uniform(0.001, 0.01, 17)))
        task = model.Task(rng.integers(1, 30, 40).tolist(), 0.02, 0.001, 3, 2)
        result = model.simulate(model.Costs(**values), task, 7, cores=cores)
        assert sum(result[1:]) == pytest.approx(result.total)
        assert min(result) > -1e-12


def test_without_costs_no_worker_waits_while_episodes_are_left(model):
    """The bound of Graham (1966) for list scheduling."""
    lengths = np.random.default_rng(1).integers(1, 100, 50).tolist()
    for num_workers in (1, 3, 8, 50, 60):
        result = model.simulate(costs(model), model.Task(lengths, 1.0, 0.0), num_workers)
        bound = max(max(lengths), sum(lengths) / num_workers)
        assert bound <= result.total <= sum(lengths) / num_workers + max(lengths)
        if num_workers >= 50:
            assert result.total == max(lengths)


def test_processes_share_the_cores(model):
    """Ten workers on two cores need five times as long as on ten cores."""
    task = model.Task([20] * 10, 0.0, 1.0)
    assert model.simulate(costs(model), task, 10).total == 20
    assert model.simulate(costs(model), task, 10, cores=2).total == 100
    waiting = model.Task([20] * 10, 1.0, 0.0)
    assert model.simulate(costs(model), waiting, 10, cores=2).total == 20


def test_busy_driver_limits_the_episodes_per_second(model):
    """The driver handles at most 1 / (record + wait) episodes per second."""
    task = model.Task([1] * 4000, 0.001, 0.0)
    result = model.simulate(costs(model, record=0.03, wait=0.02), task, 1000)
    assert result.total == pytest.approx(4000 * 0.05, rel=0.01)


def test_network_connection_sends_weights_one_worker_after_another(model):
    """If all workers share one copy, a tenth of the bytes is sent for each of ten."""
    for copies in (1.0, 0.1):
        task = model.Task([1] * 10, 1.0, 0.0, 1000, copies_per_worker=copies)
        result = model.simulate(costs(model, network_byte=0.01, latency=0.5), task, 10)
        assert result.total == pytest.approx(10 * copies * 1000 * 0.01 + 1.0 + 2 * 0.5)


def test_predictions_differ_from_measurements_by_less_than_15_percent(report):
    rows = report.compare(json.loads((ROOT / "benchmarks" / "scale.json").read_text()))
    sleeping = [row for row in rows if row["name"] == "50 steps, 4 episodes per worker"]
    assert [row["workers"] for row in sleeping] == [1, 2, 4, 8, 16, 32, 64]
    for row in rows:
        assert abs(statistics.median(row["ratios"]) - 1) < 0.15, row


def test_page_shows_the_stored_measurements(report):
    numbers = json.loads((ROOT / "benchmarks" / "scale.json").read_text())
    text = PAGE.read_text()
    assert report.costs_table(numbers) in text
    assert report.comparison_table(numbers) in text


def test_prediction_of_the_page_runs(model, monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    world = {}
    exec(compile(block, "scale.md", "exec"), world)
    assert 100 < world["speed_up"] < 1000
