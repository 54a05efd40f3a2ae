"""Tests that files of every format version load, act and train on as they did."""

import json
import pathlib
import shutil
import zipfile

import golden
import numpy as np
import pytest
import sweeps
import tomli_w

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.engine import checkpoints
from tf_reinforce.settings import run_config
from tf_reinforce.settings import toml_files
from tf_reinforce.support import version

FORMATS = sorted((pathlib.Path(__file__).parent / "files").iterdir())
EXPECTED = {
    folder: json.loads((folder / golden.ARRAYS).read_text()) for folder in FORMATS
}


def equal(found, expected):
    """Compares nested numbers; other processors round differently."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6)


FIRST, SECOND = FORMATS[0], FORMATS[1:]


@pytest.mark.parametrize("name", sweeps.some(golden.AGENTS, always=["composite"]))
def test_agent_of_format_1_acts_and_trains_on(name):
    agent = tfr.load(FIRST / f"{name}.keras")
    found = golden.what_an_agent_does(agent, golden.world(name))
    equal(found, EXPECTED[FIRST][name])


@pytest.mark.parametrize("name", sorted(golden.AGENTS.keys() - {"composite"}))
def test_agent_of_format_1_loads(name):
    """The test above also trains it, with `make slow`."""
    assert tfr.load(FIRST / f"{name}.keras").updates > 0


def expect_recorded(folder, name, numbers, exact):
    """Compares bits on the machine that wrote the files, and numbers elsewhere."""
    expected = EXPECTED[folder]
    equal(numbers, expected[name])
    if expected["machine"] == golden.machine():
        assert exact == expected["exact"][name]


@pytest.mark.parametrize("folder", SECOND, ids=lambda folder: folder.name)
@pytest.mark.parametrize("name", golden.AGENTS | golden.MORE_AGENTS)
def test_agent_acts_and_makes_the_next_update(name, folder):
    agent = tfr.load(folder / f"{name}.keras")
    found = golden.next_update(agent, golden.world(name))
    expect_recorded(folder, name, *found)


MODELS = [(FIRST, name) for name in golden.MODELS]
MODELS += [(x, name) for x in SECOND for name in golden.MODELS | golden.MORE_MODELS]
ALWAYS = [x for x in MODELS if x != (FIRST, "language_model")]


@pytest.mark.parametrize("folder, name", sweeps.some(MODELS, always=ALWAYS))
def test_model_of_an_old_file_trains_on(name, folder):
    model = golden.loaded(folder / f"{name}.keras")
    before = golden.weights(model)
    (golden.MODELS | golden.MORE_MODELS)[name][1](model)
    found = {"loaded": before, "trained": golden.weights(model)}
    if folder == FIRST:
        equal(found, EXPECTED[folder][name])
    else:
        expect_recorded(folder, name, found, {"trained": golden.bits(model)})


CHECKPOINTS = [(x, kind) for x in FORMATS for kind in golden.CHECKPOINTS]
CHECKPOINTS += [(x, kind) for x in SECOND for kind in golden.MORE_CHECKPOINTS]


@pytest.mark.parametrize("folder, kind", CHECKPOINTS)
def test_training_continues_from_an_old_checkpoint(kind, folder, tmp_path):
    name = f"checkpoints_{kind}"
    model = golden.resumed(shutil.copytree(folder / name, tmp_path / "copy"), kind)
    found = {"trained": golden.weights(model)}
    if folder == FIRST:
        equal(found, EXPECTED[folder][name])
    else:
        expect_recorded(folder, name, found, {"trained": golden.bits(model)})


@pytest.mark.parametrize("folder", FORMATS, ids=lambda folder: folder.name)
def test_commands_read_old_runs_and_an_old_search(folder, tmp_path, capsys):
    runs = [path for path in folder.iterdir() if path.name.startswith("run")]
    for source in runs:
        run = shutil.copytree(source, tmp_path / source.name)
        assert cli.main(["info", str(run)]) == 0
        assert "CartPole-v1" in capsys.readouterr().out
        assert cli.main(["train", "--resume", str(run)]) == 0
        printed = capsys.readouterr().out
        assert "2 updates" in printed or "2 of 2" in printed or "2 seeds" in printed
    search = shutil.copytree(folder / "search", tmp_path / "search")
    assert tfr.presets.read(search / "best.toml")["env"] == "CartPole-v1"
    assert cli.main(["info", str(search)]) == 0


@pytest.mark.parametrize("folder", SECOND, ids=lambda folder: folder.name)
@pytest.mark.parametrize("kind", golden.EXPORTS)
def test_exported_policy_acts_as_its_agent(kind, folder):
    agent = tfr.load(folder / "no_baseline.keras")
    path = folder / f"export_{kind}"
    assert tfr.testing.check_export(agent, path, observations=20).passed


def test_there_are_files_of_every_kind():
    files = [path for path in SECOND[0].rglob("*") if path.is_file()]
    kinds = [path for path in SECOND[0].iterdir() if path.name != golden.ARRAYS]
    assert len(kinds) >= 60 and sum(path.stat().st_size for path in files) < 3 * 2**20


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
    with pytest.raises(ValueError, match="format 1.*Install a newer tf_reinforce"):
        READERS[kind](FORMATS[0])


def edit_archive(path, change):
    """Changes the configuration in a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    content = json.loads(members["config.json"])
    change(content["config"])
    members["config.json"] = json.dumps(content).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def edit_run(path, change):
    content = json.loads((path / "config.json").read_text())
    change(content)
    (path / "config.json").write_text(json.dumps(content))


def edit_checkpoint(path, change):
    newest = max((path / "checkpoints").iterdir())
    manifest = json.loads((newest / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    change(manifest)
    manifest["manifest_sha256"] = checkpoints._digest(manifest)
    (newest / "manifest.json").write_text(json.dumps(manifest))


def edit_preset(path, change):
    content = toml_files.read_toml(path / "best.toml")
    change(content)
    (path / "best.toml").write_text(tomli_w.dumps(content))


# By kind of file: one of format 2, a function that changes its content, the table with
# the option that is renamed in the trial, and how to read the option.
PLANTED = {
    "Reinforce": ("categorical.keras", edit_archive, (), "gamma", tfr.load),
    "ScoreFunction": ("score_function.keras", edit_archive, (), "samples", golden.loaded),
    "SequenceReinforce": (
        "language_model.keras",
        edit_archive,
        (),
        "group_size",
        golden.loaded,
    ),
    "run": ("run", edit_run, ("agent",), "gamma", None),
    "checkpoint": ("run", edit_checkpoint, ("agent",), "gamma", None),
    "preset": ("search", edit_preset, ("agent",), "gamma", None),
}


def inner(content, table):
    for name in table:
        content = content[name]
    return content


@pytest.mark.parametrize("kind", PLANTED)
def test_file_from_before_a_change_of_options_still_loads(kind, tmp_path, monkeypatch):
    """The present version plays a later one, in which an option has a new name, and
    another one is gone. The file is from before: with the old name, and the lost option.
    """
    name, edit, table, option, load = PLANTED[kind]
    path = tmp_path / name
    source = FORMATS[-1] / name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)
    kept = []

    def older(content):
        part = inner(content, table)
        kept.append(part.pop(option))
        part |= {"old_name": kept[0], "lost_option": 3}

    def migrated(content):
        part = dict(inner(content, table))
        assert part.pop("lost_option") == 3
        part[option] = part.pop("old_name")
        return {**content, table[0]: part} if table else part

    edit(path, older)
    monkeypatch.setattr(version, "FORMAT", version.FORMAT + 1)
    steps = {**version.MIGRATIONS, (kind, version.FORMAT - 1): migrated}
    monkeypatch.setattr(version, "MIGRATIONS", steps)
    if load is not None:
        loaded = load(path)
        found = getattr(loaded, option, None) or getattr(loaded.options, option)
        assert found == kept[0]
    elif kind == "preset":
        assert tfr.presets.read(path / "best.toml")["agent"][option] == kept[0]
    elif kind == "run":
        found = run_config.read_training(path, {}, {})["agent"]
        assert found[option] == kept[0] and "lost_option" not in found
    else:
        header = tfr.Checkpoints(path).newest().header["agent"]
        assert header[option] == kept[0] and "old_name" not in header


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
