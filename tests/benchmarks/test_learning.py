"""The learning benchmark: its statistics by hand, and a run that is killed."""

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
    """A finished run of 100 steps, evaluated at 0, a little after 50, and the end."""
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


def written(folder, *records):
    for number, found in enumerate(records):
        path = folder / found["preset"] / f"100_seed{number}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return folder


def test_the_best_of_the_mean_is_not_the_mean_of_the_best():
    """
    step      0   50  100   its best
    seed 0    1    5    2   5
    seed 1    3    1    4   4
    mean      2    3    3.5
    """
    curves = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 4.0]])
    assert report.best_of_mean(curves) == (3.0, 2.0)
    curves[1, 2] = 5.0
    assert report.best_of_mean(curves) == (3.5, 1.5)
    assert report.best_of_each(curves) == (5.0, 0.0)
    curves[1, 2] = 3.0
    assert report.best_of_each(curves) == (4.0, 1.0)


def test_curves_meet_at_the_steps_that_asked_for_an_evaluation():
    """An update that passes two of them is evaluated once, and stands for both."""
    long = {**record(), "curve": [[0, 7.0, 0.0, 0.0], [104, 8.0, 0.0, 1.0]]}
    due_steps, curves = report.align_curves([record(), long])
    assert due_steps.tolist() == [0, 50, 100]
    assert curves.tolist() == [[1.0, 5.0, 2.0], [7.0, 8.0, 8.0]]


@pytest.mark.parametrize(
    "values, mean",
    [
        ([4.0], 4.0),
        ([1.0, 2.0, 6.0], 3.0),  # no quarter of three is a whole one
        ([9.0, 1.0, 2.0, 0.0], 1.5),
        ([100.0, 3.0, 1.0, 2.0, -50.0], 2.0),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 90.0], 5.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end(values, mean):
    assert report.interquartile_mean(values) == mean


def test_the_interval_is_that_of_all_resamples():
    """The quantiles over the 5⁵ resamples, each as likely, to the noise of 10,000."""
    values = [0.0, 1.0, 3.0, 7.0, 15.0]
    exact = sorted(sum(sorted(x)[1:4]) / 3 for x in itertools.product(values, repeat=5))
    low, high = report.interval(values)
    for share, found in ((0.025, low), (0.975, high)):
        noise = 4 * math.sqrt(0.025 * 0.975 / report.RESAMPLES)
        near = [exact[int((share + sign * noise) * len(exact))] for sign in (-1, 1)]
        assert near[0] <= found <= near[1]
    assert report.interval([2.0, 2.0, 2.0]).tolist() == [2.0, 2.0]


def test_each_of_tianshous_figures_has_a_mark():
    known = report.reference()["Ant"]
    cells = report.comparison("Ant-v5", 100, [record(means=(0.0, 200.0, 180.0))], known)
    assert cells == [
        "Ant-v5",
        "100",
        "200.0 ± 0.0",
        "184.1 ± 48.5 ✔",
        "474.9 ± 133.5 ✘",
        "1,108.1 ± 323.1 ✘",
        "3,485.4 ± 433.1 ✘",
        "180.0 ± 0.0",
        "184.1 ± 48.5 ✘",
    ]


def test_what_tianshou_published_is_the_best_of_its_curve():
    """Up to three million steps; the table says one place less than the curve."""
    for name, task in report.reference().items():
        _, mean, std = max(task["curve"], key=lambda point: point[1])
        published = task["published"]["REINFORCE 3M"]
        assert published == pytest.approx([mean, std], abs=0.0501), name


def test_the_report_stands_between_its_marks(tmp_path):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "results.md"
    page.write_text(f"before {report.BEGIN} old {report.END} after")
    empty = tmp_path / "none"
    assert "No run has finished yet." in report.write(empty, page.parent)
    results = written(
        tmp_path,
        record(seed=0),
        record(seed=1, final=5.0),
        record("Ant-v5-critic-free"),
        record("CartPole-v1"),
        record("CartPole-v1", seed=1, finished=False),
    )
    text = report.write(results, page.parent)
    assert page.read_text() == f"before {report.BEGIN}\n\n{text}\n\n{report.END} after"
    assert text.count("\n| Ant-v5 | 100 |") == 2
    assert "| Ant-v5 | 100 | 2 | 5.00 ± 0.00 | 5.00 ± 0.00 | 4.00 ± 1.00 |" in text
    assert "| 4.00 [3.00, 5.00] | 1,000 | 1.5 |" in text
    assert text.index("### MuJoCo\n") < text.index("### MuJoCo, critic-free")
    assert "run Ant-v5 --seeds 0-1 --steps 100 --every 50\n" in text
    assert "run Ant-v5-critic-free CartPole-v1 --seeds 0 --steps 100 " in text
    assert "has not finished: 1 " in text
    for name in ("mujoco", "classic"):
        assert f"(results_{name}.png)" in text
        assert 0 < (page.parent / f"results_{name}.png").stat().st_size < 200_000
    kept = (page.parent / "results.jsonl").read_text()
    assert [json.loads(line)["seed"] for line in kept.splitlines()] == [0, 1, 0, 0]
    again = report.write(empty, page.parent)  # what is published is kept
    assert again == text.replace(
        "Not counted because it has not finished: 1 runs.\n\n", ""
    )
    assert (page.parent / "results.jsonl").read_text() == kept
    for number, (wrong, match) in enumerate(
        [
            (record(seed=2, settings={"env": "Ant-v4"}), "100 steps .* other settings"),
            (record(seed=2, every=25), "other settings"),
            (record(seed=1, means=(1.0, 5.0, 2.5)), "seed 1 is in .* another run of it"),
        ]
    ):
        with pytest.raises(SystemExit, match=match):
            report.write(written(tmp_path / f"other{number}", wrong), page.parent)
    assert (page.parent / "results.jsonl").read_text() == kept
    page.write_text("no marks")
    with pytest.raises(ValueError, match="must contain"):
        report.write(results, page.parent)


def benchmark(results, env, *options):
    """A process that trains the preset, of a group of its own, with its children."""
    command = [sys.executable, str(SCRIPT), "run", env, "--seeds", "3", *options]
    return subprocess.Popen(
        [*command, "--results", str(results)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process):
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("env, steps", [("CartPole-v1", 30_000), ("Pendulum-v1", 20_000)])
def test_a_run_killed_twice_ends_with_the_same_bits(env, steps, tmp_path):
    """Learning rates on a line in the one, a critic and a normalizer in the other."""
    options = ["--steps", str(steps), "--every", "2500"]
    ended(benchmark(tmp_path / "whole", env, *options))
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
    ended(benchmark(tmp_path / "killed", env, *options))
    whole, killed = (
        json.loads((tmp_path / name / env / path.name).read_text())
        for name in ("whole", "killed")
    )
    assert killed["curve"][: len(kept)] == kept
    assert len(whole["curve"]) >= 8  # an update of CartPole may pass two of them
    seconds = ("curve", "training_seconds", "evaluation_seconds", "steps_per_second")
    for run in (whole, killed):
        run["points"] = [point[:3] for point in run["curve"]]
        for name in seconds:
            del run[name]
    assert killed == whole and whole["finished"]
    names = {name.name for name in path.parent.iterdir()}
    assert names == {path.name, f".{path.stem}.lock"}
    before = path.read_text()
    assert "is finished" in ended(benchmark(tmp_path / "killed", env, *options))
    assert path.read_text() == before
