"""Tests the search for settings of a preset: its candidates, its rungs and its table."""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

from tf_reinforce import presets
from tf_reinforce.settings import default_settings

ROOT = pathlib.Path(__file__).parents[2]
PLAN = """
preset = "CartPole-v1"
steps = 900
every = 100
rungs = [{until = 300, seeds = 1}, {until = 900, seeds = 2}]

[candidates]
as_it_is = []
"""


@pytest.fixture
def halving(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("halving")


def written(tmp_path, text):
    path = tmp_path / "CartPole.toml"
    path.write_text(text)
    return path


def test_candidate_is_the_preset_with_overrides(halving):
    texts = ["ratio_clip=[0.2, 0.3]", "passes=4", "baseline=value", "baseline.passes=9"]
    settings = halving.candidate_settings("CartPole-v1", texts)
    expected = presets.read("CartPole-v1")
    changed = dict(ratio_clip=[0.2, 0.3], passes=4)
    changed["baseline"] = {**default_settings.VALUE, "passes": 9}
    assert settings["agent"] == {**expected["agent"], **changed}
    assert settings["fit"] == expected["fit"] and settings["result"] is None


def test_value_is_the_mean_of_the_last_two_evaluations_until_the_rung(halving):
    points = [(0, 1.0), (52, 2.0), (104, 6.0), (150, 100.0)]
    first = {"curve": [[steps, mean, 0.0, 0.0] for steps, mean in points]}
    second = {"curve": [[steps, 10 * mean, 0.0, 0.0] for steps, mean in points]}
    assert halving.value([first], 100) == 4.0
    assert halving.value([first, second], 100) == 22.0
    assert halving.value([first], 52) == 1.5


def test_best_third_of_the_candidates_goes_on(halving, tmp_path, monkeypatch):
    """The runs of this test write their return at once: the number of passes."""
    lines = "\n".join(f'passes_{n} = ["passes={n}"]' for n in (1, 5, 3, 4))
    path = written(tmp_path, PLAN + lines)
    started = []

    def run_commands(commands, jobs):
        for command in commands:
            assert command[2] == "run_one" and jobs == 2
            options = dict(x.removeprefix("--").split("=") for x in command[4:])
            seed, until = int(options["seeds"]), int(options["until"])
            preset = pathlib.Path(command[3])
            started.append((preset.stem, seed, until))
            passes = presets.read(str(preset))["agent"].get("passes", 1)
            record = {"curve": [[until, passes, 0.0, 0.0]], "steps": 900}
            record["finished"] = until == 900
            run = pathlib.Path(options["results"], preset.stem, f"900_seed{seed}.json")
            run.parent.mkdir(exist_ok=True)
            run.write_text(json.dumps(record))

    monkeypatch.setattr(halving.learning, "run_commands", run_commands)
    halving.Search(path, tmp_path / "runs").climb(jobs=2)
    names = ["as_it_is", "passes_1", "passes_5", "passes_3", "passes_4"]
    first = [(name, 0, 300) for name in names]
    second = [(name, s, 900) for s in (0, 1) for name in ("passes_5", "passes_4")]
    assert started == [*first, *second]
    rows = path.with_suffix(".md").read_text().splitlines()[-5:]
    assert rows[0] == "| passes_5 | 5.00 | 5.00 | `passes=5` |"
    assert rows[1] == "| passes_4 | 4.00 | 4.00 | `passes=4` |"
    assert rows[2] == "| passes_3 | 3.00 |  | `passes=3` |"
    started.clear()
    halving.Search(path, tmp_path / "runs").climb(jobs=2)
    assert not started, "finished runs were started again"


@pytest.mark.slow
def test_paused_runs_continue_to_the_weights_of_runs_without_pause(tmp_path):
    path = written(tmp_path, PLAN)
    runs = tmp_path / "runs"
    script = str(ROOT / "benchmarks" / "halving.py")
    options = ["--jobs", "1", "--results", str(runs)]
    subprocess.run([sys.executable, script, str(path), *options], check=True)
    preset = runs / "CartPole" / "as_it_is.toml"
    script = str(ROOT / "benchmarks" / "learning.py")
    folders = runs / "CartPole", tmp_path / "whole"
    options = ["--seeds=0", "--steps=900", "--every=100", f"--results={folders[1]}"]
    subprocess.run([sys.executable, script, "run", str(preset), *options], check=True)
    paused, whole = (
        json.loads((folder / "as_it_is" / "900_seed0.json").read_text())
        for folder in folders
    )
    assert paused["finished"] and paused["final"] == whole["final"]
    points = [[point[:3] for point in run["curve"]] for run in (paused, whole)]
    assert len(points[0]) > 3 and points[0] == points[1]
    assert (runs / "CartPole" / "as_it_is" / "900_seed1.json").exists()
