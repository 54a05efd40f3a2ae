"""Tests that damaged archives are refused before a file inside is used."""

import os
import struct
import zipfile

import keras
import pytest
from hostile_configs import read
from hostile_configs import write

from tf_reinforce.loading import archive

LIMITS = archive.LoadLimits()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the bytes of a small real `.keras` file."""
    path = tmp_path_factory.mktemp("archive") / "model.keras"
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Returns the bytes of the smallest valid archive, so that each bit can be tested."""
    path = tmp_path_factory.mktemp("tiny") / "a.keras"
    write(path, {"config.json": '{"a": 1}', "metadata.json": "", "model.weights.h5": "W"})
    return path.read_bytes()


@pytest.fixture
def path(tmp_path, tiny):
    path = tmp_path / "a.keras"
    path.write_bytes(tiny)
    return str(path)


def refused(path, match):
    with pytest.raises(ValueError, match=match):
        archive.read(str(path), LIMITS)


def test_read_returns_configuration_and_weights(path):
    assert archive.read(path, LIMITS) == ({"a": 1}, b"W")


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*a\.keras"):
        archive.read(str(tmp_path / "a.keras"), LIMITS)


def test_path_that_is_no_regular_file_is_refused_without_opening_it(tmp_path):
    """Opening a FIFO would wait forever."""
    os.mkfifo(tmp_path / "fifo.keras")
    (tmp_path / "loop.keras").symlink_to("loop.keras")
    refused(tmp_path / "fifo.keras", "a pipe, a socket or a device")
    refused("/dev/zero", "a pipe, a socket or a device")
    refused(tmp_path / "loop.keras", "a link that leads to no file")
    refused(tmp_path, "Received: the folder")


def test_file_larger_than_the_limit_is_refused(path):
    size = os.path.getsize(path)
    archive.read(path, archive.LoadLimits(max_bytes=size))
    remedy = f"LoadLimits\\(max_bytes={size}\\)\\), or `--max-bytes {size}` on"
    with pytest.raises(ValueError, match=remedy):
        archive.read(path, archive.LoadLimits(max_bytes=size - 1))


def test_every_truncation_is_refused_with_that_reason(path, tiny):
    for size in range(len(tiny)):
        with open(path, "wb") as file:
            file.write(tiny[:size])
        refused(path, "truncated")


@pytest.mark.parametrize(
    "start, match", [(b"an agent", "of another kind"), (b"\x89HDF\r\n", "an HDF5 file")]
)
def test_file_of_another_kind_is_refused(path, start, match):
    with open(path, "wb") as file:
        file.write(start)
    refused(path, f"{match}, and not a zip archive")


def test_data_before_or_after_the_archive_is_refused(path, tiny):
    for data, match in ((b"PK\3\4" + tiny, "does not agree"), (tiny + b"PK", "missing")):
        with open(path, "wb") as file:
            file.write(data)
        refused(path, f"truncated or damaged, because .* {match}")


@pytest.mark.parametrize("part", ["config.json", "model.weights.h5"])
def test_error_names_the_file_with_a_flipped_bit(path, whole, part):
    with open(path, "wb") as file:
        file.write(whole)
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(part)
    # A local header has 30 bytes and the name; the data follow.
    middle = info.header_offset + 30 + len(part) + info.compress_size // 2
    damaged = bytearray(whole)
    damaged[middle] ^= 1
    with open(path, "wb") as file:
        file.write(damaged)
    refused(path, f"The file {part} in the archive is damaged.*checksum")


def test_flipped_bit_raises_or_changes_no_content(path, tiny):
    """Each of about 2500 bits is flipped, one at a time."""
    expected, errors = archive.read(path, LIMITS), {}
    for bit in range(8 * len(tiny)):
        damaged = bytearray(tiny)
        damaged[bit // 8] ^= 1 << bit % 8
        with open(path, "wb") as file:
            file.write(damaged)
        try:
            if archive.read(path, LIMITS) != expected:
                errors[bit] = "other contents"
        except ValueError:
            pass
        except Exception as error:
            errors[bit] = f"{type(error).__name__}: {error}"
    assert not errors


EDITS = {
    "is compressed": lambda files: ("deflated", files),
    "twice": lambda files: ("stored", [*files, files[0]]),
    "'../x', which would be outside": lambda files: ("stored", [*files, ("../x", b"")]),
    "'/x', which would be outside": lambda files: ("stored", [*files, ("/x", b"")]),
    "unknown file 'x.py'": lambda files: ("stored", [*files, ("x.py", b"")]),
    "does not contain the file config.json": lambda files: ("stored", files[1:]),
}


@pytest.mark.parametrize("match", EDITS)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_with_other_files_than_keras_writes_is_refused(path, match):
    compression, files = EDITS[match](list(read(path).items()))
    kinds = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
    write(path, files, kinds[compression])
    refused(path, match)


def test_assets_of_layers_are_accepted(path):
    write(path, {**read(path), "assets/vocabulary.txt": "a"})
    archive.read(path, LIMITS)


def test_encrypted_file_is_refused(path, tiny):
    data = bytearray(tiny)
    data[tiny.index(b"PK\1\2") + 8] |= 1
    with open(path, "wb") as file:
        file.write(data)
    refused(path, "is encrypted")


def test_huge_list_of_files_is_refused_before_it_is_read(path, tiny):
    with open(path, "wb") as file:
        file.write(tiny[:-10] + struct.pack("<L", 2**31) + tiny[-6:])
    refused(path, "list of files in the archive has 2,147,483,648 bytes")


@pytest.mark.parametrize(
    "text, match",
    [
        ("", "not valid JSON"),
        (b"\xff", "not text in UTF-8"),
        ("[" * 10**5, "more than 100 nested"),
        ("[" * 101 + "]" * 101, "more than 100 nested"),
        ('{"a": NaN}', "contains NaN"),
        ('{"a": 1, "a": 2}', "contains the key 'a' twice"),
        ("1" * 21, "an integer of 21 digits"),
        (" " * (2**21 + 1), "limit of 2,097,152 bytes for 256 layers"),
    ],
)
def test_invalid_configuration_text_is_refused(path, text, match):
    write(path, {**read(path), "config.json": text})
    refused(path, match)


@pytest.mark.parametrize("number", [-(2**63), 2**64 - 1])
def test_configuration_may_have_the_bounds_of_64_bit_integers(path, number):
    write(path, {**read(path), "config.json": f"[{number}]"})
    assert archive.read(path, LIMITS)[0] == [number]


def test_configuration_may_have_infinite_bounds_and_100_levels(path):
    text = "[" * 100 + "-Infinity" + "]" * 100
    write(path, {**read(path), "config.json": text})
    content, _ = archive.read(path, LIMITS)
    for _ in range(100):
        (content,) = content
    assert content == -float("inf")
