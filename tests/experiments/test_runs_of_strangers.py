"""Tests that `train --resume` refuses hostile run directories with one sentence.

`stress/hostile_files.py` also measures memory and seconds, and runs all cases.
"""

import json
import shutil

import hostile_runs
import pytest

from tf_reinforce import cli
from tf_reinforce.experiments import run_config

pytestmark = pytest.mark.slow

MENDED = (
    "300,000 layers",
    "layers of 1 GB",
    "value network of 1 GB",
    "preset is a number",
    "variables are text",
    "variable is a number",
    "epoch is negative",
    "epoch of 400 digits",
    "steps are negative",
    "log of negative length",
    "columns of the log are a number",
    "history is text",
    "epochs of the history are a dict",
    "best return is text",
    "evaluations are null",
    "no state of the evaluation",
    "state of the evaluation is a list",
    "best agent is a sparse file",
    "format version is text",
    "state of depth 900",
)


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


@pytest.fixture
def resume(run, tmp_path, capsys):
    """Returns a function that continues a changed run: exit code, error, output."""

    def resume_changed(edit, *options):
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "mine.txt").write_text("a file of the user")
        shutil.copytree(run, tmp_path / "run")
        edit(tmp_path / "run", tmp_path / "outside")
        capsys.readouterr()
        code = cli.main(["train", "--resume", str(tmp_path / "run"), *options])
        assert [x.name for x in (tmp_path / "outside").iterdir()] == ["mine.txt"]
        assert (tmp_path / "outside" / "mine.txt").read_text() == "a file of the user"
        return code, capsys.readouterr().err

    return resume_changed


@pytest.mark.parametrize("name", MENDED)
def test_hostile_run_is_refused_with_one_sentence(resume, name):
    code, error = resume(hostile_runs.CASES[name])
    assert code == 2
    assert len(error.strip().splitlines()) == 1 and error.startswith("tf-reinforce: ")


def test_agent_file_that_the_training_did_not_write_has_the_limits_of_the_agent(resume):
    code, error = resume(hostile_runs.CASES["best agent is a sparse file"])
    assert code == 2 and "more than the limit of 134," in error


def test_network_as_large_as_its_checkpoint_is_not_limited(run, tmp_path):
    """A run of one's own continues without an option, whatever its size is."""
    shutil.copytree(run, tmp_path / "run")
    hostile_runs.CASES["layers of 1 GB"](tmp_path / "run", None)
    with pytest.raises(ValueError, match="need 900,.* start a new training"):
        run_config.read_training(tmp_path / "run")
    hostile_runs.truncate(910_000_000, tmp_path / "run", None)
    settings = run_config.read_training(tmp_path / "run")
    assert settings["agent"]["hidden"] == [15_000, 15_000]
