"""Tests that `train --resume` refuses hostile run directories with one sentence.

`stress/hostile_files.py` runs the same cases, and also measures memory and seconds.
"""

import json
import shutil

import hostile_runs
import pytest

from tf_reinforce import cli
from tf_reinforce.experiments import run_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("strangers") / "run"
    small = "--epochs 2 --episodes-per-epoch 2 --hidden 4 --engine host"
    options = *small.split(), "--checkpoint-every", "1", "--run-dir", str(path)
    assert cli.main(["train", "CartPole-v1", *options]) == 0
    config = json.loads((path / "config.json").read_text())
    config["evaluation"]["episodes"] = 2
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", hostile_runs.CASES)
def test_hostile_run_is_refused_with_one_sentence(name, run, tmp_path, capsys):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.txt").write_text("a file of the user")
    shutil.copytree(run, tmp_path / "run")
    hostile_runs.CASES[name](tmp_path / "run", tmp_path / "outside")
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and error.startswith("tf-reinforce: ")
    assert [x.name for x in (tmp_path / "outside").iterdir()] == ["mine.txt"]
    assert (tmp_path / "outside" / "mine.txt").read_text() == "a file of the user"


def test_network_as_large_as_its_checkpoint_is_not_limited(run, tmp_path):
    """A run of one's own continues without an option, whatever its size is."""
    shutil.copytree(run, tmp_path / "run")
    hostile_runs.CASES["layers of 1 GB"](tmp_path / "run", None)
    with pytest.raises(ValueError, match="need 900,.* start a new training"):
        run_config.read_training(tmp_path / "run")
    hostile_runs.truncate(910_000_000, tmp_path / "run", None)
    settings = run_config.read_training(tmp_path / "run")
    assert settings["agent"]["hidden"] == [15_000, 15_000]
