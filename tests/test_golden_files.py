"""Tests that files of every format version load, act and train on as they did."""

import json
import pathlib
import shutil

import golden
import numpy as np
import pytest
import sweeps

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.settings import run_config
from tf_reinforce.support import version

FORMATS = sorted((pathlib.Path(__file__).parent / "files").iterdir())
EXPECTED = {
    folder: json.loads((folder / golden.ARRAYS).read_text()) for folder in FORMATS
}


OFTEN = ["composite", "recurrent", "shared_values"]


def equal(found, expected):
    """Compares nested numbers; other processors round differently."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", sweeps.some(golden.AGENTS, always=OFTEN))
def test_agent_of_an_old_file_acts_and_trains_on(name, folder):
    agent = tfr.load(folder / f"{name}.keras")
    found = golden.what_an_agent_does(agent, golden.world(name))
    equal(found, EXPECTED[folder][name])


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", sorted(golden.AGENTS.keys() - {*OFTEN}))
def test_agent_of_an_old_file_loads(name, folder):
    """The test above also trains it, with `make slow`."""
    assert tfr.load(folder / f"{name}.keras").updates > 0


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", sweeps.some(golden.MODELS, always=["score_function"]))
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


READERS = {
    "Reinforce": lambda folder: tfr.load(folder / "categorical.keras"),
    "ScoreFunction": lambda folder: golden.loaded(folder / "score_function.keras"),
    "SequenceReinforce": lambda folder: golden.loaded(folder / "language_model.keras"),
    "checkpoint": lambda folder: tfr.Checkpoints(folder / "checkpoints_agent").newest(),
    "run": lambda folder: run_config.read(folder / "run"),
    "preset": lambda folder: tfr.presets.read(folder / "search" / "best.toml"),
}


@pytest.mark.parametrize("kind", READERS)
def test_every_kind_of_file_is_migrated_and_refused_if_newer(kind, monkeypatch):
    """A later version reads the files of format 1, an earlier one refuses them."""
    steps = []
    monkeypatch.setattr(version, "FORMAT", 3)
    table = {(kind, n): lambda x, n=n: steps.append(n) or x for n in range(4)}
    monkeypatch.setattr(version, "MIGRATIONS", table)
    READERS[kind](FORMATS[0])
    assert steps[:2] == [1, 2] and steps[2:] in ([], [1, 2])  # checked, then built
    monkeypatch.setattr(version, "FORMAT", 0)
    with pytest.raises(ValueError, match="format 1.*Install tf_reinforce"):
        READERS[kind](FORMATS[0])


class Mine(tfr.Reinforce):
    """An agent of a user."""


def test_a_subclass_is_migrated_like_its_class_and_nothing_twice(monkeypatch):
    config = golden.loaded(FORMATS[0] / "categorical.keras").get_config()
    monkeypatch.setattr(version, "FORMAT", version.FORMAT + 1)

    def halved(content):
        return {**content, "gamma": content["gamma"] / 2}

    monkeypatch.setattr(
        version, "MIGRATIONS", {("Reinforce", version.FORMAT - 1): halved}
    )
    once = version.current("Reinforce", "The agent", config)
    assert version.current("Reinforce", "The agent", once) == once
    assert Mine.from_config(config).gamma == once["gamma"] == config["gamma"] / 2
