"""Tests that `train --resume` refuses hostile run directories in one sentence.

`stress/hostile_files.py` runs the same cases, and also measures memory and time.
"""

import json
import shutil

import hostile_runs
import pytest

from tf_reinforce import cli

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
    (path / "evaluation.json").unlink()  # the best agent is evaluated again
    return path


@pytest.mark.parametrize("name", hostile_runs.CASES)
def test_hostile_run_is_refused_with_one_sentence(name, run, tmp_path, capsys):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine.txt").write_text("a file of the user")
    shutil.copytree(run, tmp_path / "run")
    hostile_runs.CASES[name](tmp_path / "run", tmp_path / "outside")
    capsys.readouterr()
    code = 1 if name == "weights are NaN" else 2  # found as the policy acts
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == code
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and error.startswith("tf-reinforce: ")
    assert [x.name for x in (tmp_path / "outside").iterdir()] == ["mine.txt"]
    assert (tmp_path / "outside" / "mine.txt").read_text() == "a file of the user"
