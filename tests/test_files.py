"""Files are whole or not there: the old one stays until the new one is complete."""

import os
import zipfile

import keras
import pytest

from tf_reinforce import files

NAMES = ("a", "b", "gone", "deep")  # what a folder of these tests may hold


def listing(folder):
    """Every file below a folder and what it holds."""
    return {
        os.path.relpath(os.path.join(root, name), folder): open_text(root, name)
        for root, _, names in os.walk(folder)
        for name in names
    }


def open_text(*parts):
    with open(os.path.join(*parts)) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def fill(folder, **files):
    os.makedirs(folder)
    for name, text in files.items():
        write(os.path.join(folder, name), text)


class Interrupted(BaseException):
    """Stands for Ctrl-C: no `Exception`."""


def test_a_file_appears_whole_and_alone(tmp_path):
    with files.atomic_write(tmp_path / "new" / "a.txt") as aside:
        assert os.path.basename(aside) == "a.txt"
        write(aside, "one")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert listing(tmp_path) == {"new/a.txt": "one"}
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_a_file_takes_the_place_of_the_one_before(tmp_path):
    write(tmp_path / "a.txt", "old")
    with files.atomic_write(str(tmp_path / "a.txt")) as aside:
        write(aside, "new")
        assert open_text(tmp_path, "a.txt") == "old"
    assert listing(tmp_path) == {"a.txt": "new"}
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """A rename may reach the disk before the data: after a power cut, an empty file."""
    happened, flush, replace = [], os.fsync, os.replace

    def flushing(descriptor):
        happened.append(os.fstat(descriptor).st_ino)
        flush(descriptor)

    def replacing(source, target):
        happened.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", replacing)
    with files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "one")
    file, folder = (os.stat(path).st_ino for path in (tmp_path / "a.txt", tmp_path))
    assert happened == [file, "renamed", folder]


def test_a_relative_path_is_below_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with files.atomic_write("a.txt") as aside:
        write(aside, "one")
    assert listing(tmp_path) == {"a.txt": "one"}


@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
@pytest.mark.parametrize("existed", [False, True])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path, error, existed):
    if existed:
        write(tmp_path / "a.txt", "old")
    with pytest.raises(error), files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "half")
        raise error
    assert os.listdir(tmp_path) == (["a.txt"] if existed else [])
    assert listing(tmp_path) == ({"a.txt": "old"} if existed else {})


def test_a_writer_that_wrote_nothing_leaves_the_old_file(tmp_path):
    write(tmp_path / "a.txt", "old")
    with pytest.raises(FileNotFoundError), files.atomic_write(tmp_path / "a.txt"):
        pass
    assert listing(tmp_path) == {"a.txt": "old"}
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_existing_file_is_kept_unless_it_may_be_replaced(tmp_path):
    write(tmp_path / "a.txt", "old")
    with (
        pytest.raises(FileExistsError, match="a.txt exists. Pass overwrite=True"),
        files.atomic_write(tmp_path / "a.txt", overwrite=False),
    ):
        raise AssertionError("the body must not run")
    with files.atomic_write(tmp_path / "b.txt", overwrite=False) as aside:
        write(aside, "new")
    assert listing(tmp_path) == {"a.txt": "old", "b.txt": "new"}


def test_a_folder_takes_the_place_of_the_one_before(tmp_path):
    fill(tmp_path / "model", a="old", gone="old")
    with files.atomic_replace_folder(tmp_path / "model", NAMES) as aside:
        fill(aside, a="new", b="new")
        fill(os.path.join(aside, "deep"), c="new")
        assert open_text(tmp_path, "model", "a") == "old"
    assert listing(tmp_path / "model") == {"a": "new", "b": "new", "deep/c": "new"}
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_that_holds_anything_else_stays(tmp_path):
    fill(tmp_path / "model", a="old", thesis="mine")
    folder = files.atomic_replace_folder(tmp_path / "model", NAMES)
    with pytest.raises(ValueError, match="contains other files .thesis."), folder:
        raise AssertionError("the body must not run")
    assert listing(tmp_path) == {"model/a": "old", "model/thesis": "mine"}


def test_a_folder_appears_where_none_was(tmp_path):
    with files.atomic_replace_folder(tmp_path / "new" / "model", NAMES) as aside:
        fill(aside, a="one")
    assert listing(tmp_path) == {"new/model/a": "one"}
    assert os.listdir(tmp_path / "new") == ["model"]


@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
def test_a_failure_leaves_the_old_folder_and_nothing_beside_it(tmp_path, error):
    fill(tmp_path / "model", a="old")
    with (
        pytest.raises(error),
        files.atomic_replace_folder(tmp_path / "model", NAMES) as aside,
    ):
        fill(aside, a="half")
        raise error
    assert listing(tmp_path) == {"model/a": "old"}
    assert os.listdir(tmp_path) == ["model"]


def test_a_writer_that_made_no_folder_leaves_the_old_one(tmp_path):
    """Between its two renames nothing may be lost, whatever goes wrong."""
    fill(tmp_path / "model", a="old")
    model = tmp_path / "model"
    with pytest.raises(FileNotFoundError), files.atomic_replace_folder(model, NAMES):
        pass
    assert listing(tmp_path) == {"model/a": "old"}
    assert os.listdir(tmp_path) == ["model"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    write(tmp_path / "model", "a file")
    with (
        pytest.raises(ValueError, match="A folder was expected.*the file .*model"),
        files.atomic_replace_folder(tmp_path / "model", NAMES),
    ):
        raise AssertionError("the body must not run")
    assert listing(tmp_path) == {"model": "a file"}


# check_archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The bytes of a small real `.keras` file."""
    path = tmp_path_factory.mktemp("archive") / "model.keras"
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The bytes of the smallest archive that passes: every bit of it can be tried."""
    path = tmp_path_factory.mktemp("tiny") / "a.keras"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("config.json", '{"a": 1}')
        file.writestr("metadata.json", "{}")
    return path.read_bytes()


def test_a_whole_archive_passes(tmp_path, archive):
    (tmp_path / "a.keras").write_bytes(archive)
    files.check_archive(tmp_path / "a.keras")
    files.check_archive(str(tmp_path / "a.keras"))


def test_a_missing_file_is_missed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*a\.keras"):
        files.check_archive(tmp_path / "a.keras")


def test_a_folder_is_no_archive(tmp_path):
    with pytest.raises(ValueError, match="Received: the folder"):
        files.check_archive(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_archive_is_refused(tmp_path, archive, share):
    path = tmp_path / "a.keras"
    path.write_bytes(archive[: int(share * len(archive))])
    with pytest.raises(ValueError, match="not a complete agent file.*truncated"):
        files.check_archive(path)


def test_an_archive_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word/document.xml", "<text/>")
    with pytest.raises(ValueError, match="damaged or no Keras archive"):
        files.check_archive(path)


@pytest.mark.parametrize("part", ["config.json", "model.weights.h5"])
def test_a_flipped_bit_names_the_damaged_part(tmp_path, archive, part):
    path = tmp_path / "a.keras"
    path.write_bytes(archive)
    with zipfile.ZipFile(path) as file:
        info = file.getinfo(part)
    # A local header is 30 bytes and its name; the middle of the data follows.
    middle = info.header_offset + 30 + len(part) + info.compress_size // 2
    damaged = bytearray(archive)
    damaged[middle] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"damaged.*first damaged part: {part}"):
        files.check_archive(path)


def contents(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_no_flipped_bit_gives_other_contents_or_another_error(tmp_path, tiny):
    """Each of some 2000 bits: refused in a sentence with the path, or meaningless."""
    path = tmp_path / "a.keras"
    path.write_bytes(tiny)
    whole, errors = contents(path), {}
    for bit in range(8 * len(tiny)):
        damaged = bytearray(tiny)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            files.check_archive(path)
            errors.update({} if contents(path) == whole else {bit: "other contents"})
        except Exception as error:
            if not isinstance(error, ValueError) or str(path) not in str(error):
                errors[bit] = f"{type(error).__name__}: {error}"
    assert not errors


def test_no_truncation_passes(tmp_path, tiny):
    path = tmp_path / "a.keras"
    for size in range(len(tiny)):
        path.write_bytes(tiny[:size])
        with pytest.raises(ValueError, match="not a complete agent file"):
            files.check_archive(path)
