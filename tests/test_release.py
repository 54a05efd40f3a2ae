"""Tests that the files of a release agree."""

import pathlib
import re

import pytest

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize(
    "file, pattern",
    [
        ("CHANGELOG.md", r"\A# Changelog\n\n## (\S+)"),
        ("CITATION.cff", r"^version: (.+)$"),
    ],
)
def test_file_states_the_version_of_the_package(file, pattern):
    found = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert set(found) == {tfr.__version__}
