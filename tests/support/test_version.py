"""Tests which files a version reads, from the stamp that they may lack or forge."""

import pytest

from tf_reinforce.support import version


def read(**entries):
    return version.current("run", "FILE", entries)


@pytest.mark.parametrize("number", [-(10**12), -1, 0, True, None, "abc", "2", 2.0, [1]])
def test_invalid_format_is_refused_at_once(number):
    """A conversion from format -10**12 would never end."""
    with pytest.raises(ValueError, match="FILE has .* format_version=") as e:
        read(tf_reinforce=version.VERSION, format_version=number)
    assert repr(number) in str(e.value) and type(e.value) is ValueError


@pytest.mark.parametrize("suffix", ["rc1", ".dev3", "a1", ".post1", "+local", ""])
def test_other_builds_of_this_version_are_not_newer(suffix):
    writer = version.VERSION + suffix
    assert read(tf_reinforce=writer, format_version=1)["format_version"] == version.FORMAT


@pytest.mark.parametrize(
    "writer, number, install",
    [
        ("999.0rc1", 2, "tf_reinforce 999.0rc1 or newer"),
        (None, 9, "a newer tf_reinforce"),
        ("0.9", 9, "a newer tf_reinforce"),
        (5, 10**12, "a newer tf_reinforce"),
    ],
)
def test_newer_file_is_refused_with_what_to_install(writer, number, install):
    with pytest.raises(version.NewerFile, match=f"this is .* Install {install}[.]$"):
        read(tf_reinforce=writer, format_version=number)
