"""Tests that files of every format version load, act and train on as they did."""

import json
import pathlib
import shutil

import golden
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import cli

FORMATS = sorted((pathlib.Path(__file__).parent / "files").iterdir())
EXPECTED = {
    folder: json.loads((folder / golden.ARRAYS).read_text()) for folder in FORMATS
}


def equal(found, expected):
    """Compares nested numbers; other processors round differently."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", golden.AGENTS)
def test_agent_of_an_old_file_acts_and_trains_on(name, folder):
    agent = tfr.load(folder / f"{name}.keras")
    found = golden.what_an_agent_does(agent, golden.world(name))
    equal(found, EXPECTED[folder][name])


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", golden.MODELS)
def test_model_of_an_old_file_trains_on(name, folder):
    model = golden.loaded(folder / f"{name}.keras")
    before = golden.weights(model)
    golden.MODELS[name][1](model)
    equal({"loaded": before, "trained": golden.weights(model)}, EXPECTED[folder][name])


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("kind", ["agent", *golden.MODELS])
def test_training_continues_from_an_old_checkpoint(kind, folder, tmp_path):
    copy = shutil.copytree(folder / f"checkpoints_{kind}", tmp_path / "copy")
    equal(
        {"trained": golden.resumed(copy, kind)}, EXPECTED[folder][f"checkpoints_{kind}"]
    )


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_commands_read_an_old_run_and_an_old_search(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    assert cli.main(["info", str(run)]) == 0
    assert "CartPole-v1" in capsys.readouterr().out
    assert cli.main(["train", "--resume", str(run)]) == 0
    assert "2 updates" in capsys.readouterr().out
    search = shutil.copytree(folder / "search", tmp_path / "search")
    assert tfr.presets.read(search / "best.toml")["env"] == "CartPole-v1"
    assert cli.main(["info", str(search)]) == 0
