"""Tests that a written preset file gives the same settings when it is read."""

import pytest

from tf_reinforce import presets
from tf_reinforce.settings import toml_files


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_equal_after_writing_and_reading(name, tmp_path):
    settings, path = toml_files.read(name), tmp_path / "copy.toml"
    toml_files.write(path, settings, "a comment")
    assert path.read_text().startswith("# a comment\n")
    assert toml_files.read(path) == settings


def test_settings_that_no_file_may_contain_are_left_out(tmp_path):
    path = tmp_path / "own.toml"
    settings = {"env": "Own-v0", "env_kwargs": {"file": "/etc/passwd", "size": 3}}
    agent = {"head": None, "gamma": 0.5, "baseline": {"kind": "value", "passes": None}}
    toml_files.write(path, {**settings, "agent": agent}, "a comment")
    content = toml_files.read(path)
    assert content["env_kwargs"] == {"size": 3}
    assert content["agent"] == {"gamma": 0.5, "baseline": {"kind": "value"}}


def test_value_that_toml_does_not_have_is_refused_and_no_file_is_written(tmp_path):
    path = tmp_path / "own.toml"
    with pytest.raises(TypeError, match="not TOML serializable"):
        toml_files.write(path, {"env": "Own-v0", "agent": {"gamma": object()}}, "")
    assert not path.exists()
