"""Tests that a written preset file gives the same settings when it is read."""

import pytest

from tf_reinforce import presets
from tf_reinforce.presets import toml_files
from tf_reinforce.presets import toml_text


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_equal_after_writing_and_reading(name, tmp_path):
    settings, path = toml_files.read(name), tmp_path / "copy.toml"
    toml_text.write(path, settings, ["a comment"])
    assert path.read_text().startswith("# a comment\n")
    assert toml_files.read(path) == settings


def test_numbers_and_texts_keep_their_type_and_every_digit(tmp_path):
    texts = 'quote " backslash \\ tab \t line \n del \x7f umlaut ü snowman ☃ 😀'
    settings = {
        "env": texts,
        "env_kwargs": {"gravity": 9.8, "map name": True, "size": 3},
        "agent": {"learning_rate": 0.1 + 0.2, "gamma": 1e-300, "hidden": [1, 2, 3]},
        "fit": {"steps": 10**12},
        "evaluation": {"deterministic": False, "target": -1e22},
    }
    path = tmp_path / "own.toml"
    toml_text.write(path, settings)
    content = toml_files.read(path)
    assert content == {**settings, "ranges": {}, "result": ""}
    assert type(content["agent"]["hidden"][0]) is int
    assert type(content["evaluation"]["target"]) is float


def test_settings_that_no_file_may_contain_are_left_out(tmp_path):
    path = tmp_path / "own.toml"
    settings = {"env": "Own-v0", "env_kwargs": {"file": "/etc/passwd", "size": 3}}
    toml_text.write(path, {**settings, "agent": {"head": None, "gamma": 0.5}})
    content = toml_files.read(path)
    assert content["env_kwargs"] == {"size": 3} and content["agent"] == {"gamma": 0.5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"x"])
def test_value_that_toml_does_not_have_is_refused_and_no_file_is_written(value, tmp_path):
    path = tmp_path / "own.toml"
    with pytest.raises(TypeError, match="must be a text"):
        toml_text.write(path, {"env": "Own-v0", "agent": {"gamma": value}})
    assert not path.exists()
