"""Tests the learning benchmark: its statistics, its report, and runs that are killed."""

import importlib
import importlib.util
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "learning.py"


def _report():
    path = SCRIPT.with_name("learning_report.py")
    spec = importlib.util.spec_from_file_location("learning_report", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = _report()


def record(preset="Ant-v5", seed=0, means=(1.0, 5.0, 2.0), final=3.0, **more):
    """Returns a finished run of 100 steps, evaluated at steps 0, 53 + seed, and 101."""
    points = zip((0, 53 + seed, 101), means)
    return {
        "preset": preset,
        "seed": seed,
        "steps": 100,
        "every": 50,
        "settings": {"env": "-".join(preset.split("-")[:2])},
        "versions": {"python": "3.11"},
        "finished": True,
        "curve": [[taken, mean, 0.0, 1.0] for taken, mean in points],
        "training_seconds": 60.0,
        "evaluation_seconds": 30.0,
        "steps_per_second": 1000.0,
        "final": {"episode_return": final},
        **more,
    }


def write_report(results, docs):
    """Writes the report; the settings of HalfCheetah-v5 count as default settings."""
    return report.write(results, docs, lambda x: x["env"] == "HalfCheetah-v5")


def write_records(folder, *records):
    for number, found in enumerate(records):
        path = folder / found["preset"] / f"100_seed{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return folder


def test_best_of_mean_is_the_highest_point_of_the_mean_curve():
    """It is 3 here; the mean of the best of each seed would be 4.5."""
    curves = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 4.0]])
    assert report.best_of_mean(curves) == (3.0, 2.0)
    curves[1, 2] = 5.0
    assert report.best_of_mean(curves) == (3.5, 1.5)


def test_align_curves_uses_the_steps_at_which_evaluations_were_due():
    """One evaluation stands for both steps if an update passes two of them."""
    long = {**record(), "curve": [[0, 7.0, 0.0, 0.0], [104, 8.0, 0.0, 1.0]]}
    due_steps, curves = report.align_curves([record(), long])
    assert due_steps.tolist() == [0, 50, 100]
    assert curves.tolist() == [[1.0, 5.0, 2.0], [7.0, 8.0, 8.0]]


@pytest.mark.parametrize(
    "values, mean",
    [
        ([4.0], 4.0),
        ([1.0, 2.0, 6.0], 3.0),  # a quarter of three values is less than one value
        ([9.0, 1.0, 2.0, 0.0], 1.5),
        ([100.0, 3.0, 1.0, 2.0, -50.0], 2.0),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 90.0], 5.5),
    ],
)
def test_interquartile_mean_leaves_out_a_quarter_at_each_end(values, mean):
    assert report.interquartile_mean(values) == mean


def test_interval_equals_the_quantiles_of_all_resamples():
    """The tolerance is the sampling error of 10,000 of 5⁵ equally likely resamples."""
    values = [0.0, 1.0, 3.0, 7.0, 15.0]
    exact = sorted(sum(sorted(x)[1:4]) / 3 for x in itertools.product(values, repeat=5))
    low, high = report.interval(values)
    for share, found in ((0.025, low), (0.975, high)):
        noise = 4 * math.sqrt(0.025 * 0.975 / report.RESAMPLES)
        near = [exact[int((share + sign * noise) * len(exact))] for sign in (-1, 1)]
        assert near[0] <= found <= near[1]
    assert report.interval([2.0, 2.0, 2.0]).tolist() == [2.0, 2.0]


def test_row_of_tianshou_lists_the_published_results():
    cells = report.published_row("Ant", report.reference()["Ant"])
    assert cells[:4] == ["Ant", "184.1 ± 48.5", "184.1 ± 48.5", "474.9 ± 133.5"]
    assert cells[4:6] == ["1,108.1 ± 323.1", "3,258.4 ± 1,079.3"]
    assert cells[6:] == ["2,866.7 ± 707.9", "2,358.0 ± 517.5", "3,485.4 ± 433.1"]


def test_mean_of_a_curve_is_its_area_divided_by_its_steps():
    """Seed 0: (3 · 50 + 7 · 100) / 150, and seed 1: 2 everywhere."""
    curves = np.array([[2.0, 4.0, 10.0], [2.0, 2.0, 2.0]])
    mean, std = report.mean_of_curve(np.array([0, 50, 150]), curves)
    assert mean == pytest.approx((850 / 150 + 2) / 2)
    assert std == pytest.approx((850 / 150 - 2) / 2)


def test_published_tianshou_result_is_the_best_of_its_curve():
    """The published numbers have one decimal place less than the curve."""
    for name, task in report.reference().items():
        _, mean, std = max(task["curve"], key=lambda point: point[1])
        published = task["published"]["REINFORCE 3M"]
        assert published == pytest.approx([mean, std], abs=0.0501), name


def test_learning_report_is_written_between_its_marks(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "results.md"
    page.write_text(f"before {report.BEGIN} old {report.END} after")
    empty = tmp_path / "none"
    assert "No run has finished yet." in write_report(empty, page.parent)
    results = write_records(
        tmp_path,
        record(seed=0),
        record(seed=1, final=5.0),
        record("Ant-v5-critic-free"),
        record("Ant-v5-critic-free-one-pass"),
        record("Ant-v5-one-pass"),
        record("HalfCheetah-v5"),
        record("Swimmer-v5-default"),
        record("CartPole-v1"),
        record("CartPole-v1", seed=1, finished=False),
    )
    text = write_report(results, page.parent)
    assert page.read_text() == f"before {report.BEGIN}\n\n{text}\n\n{report.END} after"
    assert text.count("\n| Ant-v5 | 100 |") == 1
    assert "| Ant-v5 | 100 | 2 | 5.00 ± 0.00 | 3.25 ± 0.00 | 4.00 ± 1.00 |" in text
    assert "| 4.00 [3.00, 5.00] | 1,000 | 1.5 |" in text
    titles = [line for line in text.splitlines() if line.startswith("### MuJoCo")]
    kinds = ["", ", settings without a preset", ", one pass", ", critic-free"]
    kinds.append(", critic-free, one pass")
    assert titles == [f"### MuJoCo{kind}" for kind in kinds]
    default = text.partition(titles[1])[2].partition(titles[2])[0]
    assert "\n| Ant" not in default and "\n| Swimmer-v5-default | 100 |" in default
    assert default.count("\n| HalfCheetah-v5 | 100 |") == 1
    assert text.count("\n| HalfCheetah-v5 | 100 |") == 2
    assert "run Ant-v5 --seeds 0-1 --steps 100 --every 50\n" in text
    others = "Ant-v5-critic-free Ant-v5-critic-free-one-pass Ant-v5-one-pass CartPole-v1 "
    others += "HalfCheetah-v5 Swimmer-v5-default"
    assert f"run {others} --seeds 0 --steps 100 " in text
    assert "omit 1 unfinished" in text
    for name in ("mujoco", "classic"):
        assert f"(results_{name}.png)" in text
        assert 0 < (page.parent / f"results_{name}.png").stat().st_size < 200_000
    kept = (page.parent / "results.jsonl").read_text()
    seeds = [json.loads(line)["seed"] for line in kept.splitlines()]
    assert seeds == [0, 1, 0, 0, 0, 0, 0, 0]
    again = write_report(empty, page.parent)  # published runs are kept
    assert again == text.replace("The tables omit 1 unfinished runs.\n\n", "")
    assert (page.parent / "results.jsonl").read_text() == kept
    for number, (wrong, match) in enumerate(
        [
            (record(seed=2, settings={"env": "Ant-v4"}), "100 steps .* other settings"),
            (record(seed=2, every=25), "other settings"),
            (record(seed=1, means=(1.0, 5.0, 2.5)), "seed 1: one is in .* the other"),
        ]
    ):
        with pytest.raises(SystemExit, match=match):
            write_report(write_records(tmp_path / f"other{number}", wrong), page.parent)
    assert (page.parent / "results.jsonl").read_text() == kept
    page.write_text("no marks")
    with pytest.raises(ValueError, match="must contain"):
        write_report(results, page.parent)


def test_default_stands_for_the_settings_without_a_preset(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    settings = importlib.import_module("learning_settings")
    default = settings.read("Pendulum-v1-default")
    assert (default["env"], default["agent"]["gamma"]) == ("Pendulum-v1", 0.975)
    assert settings.is_default(default)
    assert settings.is_default({**default, "fit": {**default["fit"], "steps": 9}})
    other = {**default, "agent": {**default["agent"], "passes": 4}}
    assert not settings.is_default(other)
    assert not settings.is_default(settings.read("CliffWalking-v1"))  # no time limit
    assert not settings.is_default({**default, "env": "Missing-v0"})
    assert settings.steps_of("Pendulum-v1-default", 7) == 7
    with pytest.raises(SystemExit, match="Pendulum-v1-default .* Pass --steps"):
        settings.steps_of("Pendulum-v1-default", None)


def benchmark(results, env, *options):
    """Starts a training process in its own process group, with its children."""
    command = [sys.executable, str(SCRIPT), "run", env, "--seeds", "3", *options]
    return subprocess.Popen(
        [*command, "--results", str(results)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(process):
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("env, steps", [("CartPole-v1", 30_000), ("Pendulum-v1", 20_000)])
def test_run_killed_twice_ends_with_the_same_bits(env, steps, tmp_path):
    """One run has linear learning rates, and one run has a critic and a normalizer."""
    options = ["--steps", str(steps), "--every", "2500"]
    wait_for(benchmark(tmp_path / "whole", env, *options))
    path = tmp_path / "killed" / env / f"{steps}_seed3.json"
    kept = []
    for points in (2, 5):
        process = benchmark(tmp_path / "killed", env, *options)
        while not path.exists() or len(json.loads(path.read_text())["curve"]) < points:
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        found = json.loads(path.read_text())
        assert not found["finished"] and path.with_name(found["agent"]).exists()
        assert found["curve"][: len(kept)] == kept, "it began anew"
        kept = found["curve"]
    wait_for(benchmark(tmp_path / "killed", env, *options))
    whole, killed = (
        json.loads((tmp_path / name / env / path.name).read_text())
        for name in ("whole", "killed")
    )
    assert killed["curve"][: len(kept)] == kept
    assert len(whole["curve"]) >= 8  # an update of CartPole may pass two evaluations
    seconds = ("curve", "training_seconds", "evaluation_seconds", "steps_per_second")
    for run in (whole, killed):
        run["points"] = [point[:3] for point in run["curve"]]
        for name in seconds:
            del run[name]
    assert killed == whole and whole["finished"]
    names = {name.name for name in path.parent.iterdir()}
    assert names == {path.name, f".{path.stem}.lock"}
    before = path.read_text()
    assert "is finished" in wait_for(benchmark(tmp_path / "killed", env, *options))
    assert path.read_text() == before
