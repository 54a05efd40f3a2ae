"""Tests that the file of the weights may only contain arrays that it stores."""

import io

import h5py
import numpy as np
import pytest

from tf_reinforce.loading import weights_file


def hdf5(fill):
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        fill(file)
    return buffer.getvalue()


def test_stored_bytes_counts_the_bytes_of_all_arrays():
    def fill(file):
        group = file.create_group("layers/dense/vars")
        group["0"] = np.zeros((3, 4), "float32")
        group["1"] = np.zeros(5, "float64")
        file["counters"] = np.zeros((), "int64")
        file["empty"] = np.zeros((0, 3), "float32")

    assert weights_file.stored_bytes(hdf5(fill)) == 48 + 40 + 8


def soft_link(file):
    file["a"] = h5py.SoftLink("/b")


def external_link(file):
    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def other_file(file):
    file.create_dataset("a", (10,), "uint8", external=[("/etc/passwd", 0, 10)])


def virtual(file):
    layout = h5py.VirtualLayout((4,), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "a", (4,))
    file.create_virtual_dataset("a", layout)


def cycle(file):
    group = file.create_group("a")
    group["b"] = group


def deep(file):
    for _ in range(66):
        file = file.create_group("a")


def many(file):
    for number in range(10_001):
        file.create_group(str(number))


def huge(file):
    file.create_dataset("a", (2**40,), "float32")


def compressed(file):
    file.create_dataset("a", data=np.zeros(1000), compression="gzip")


def named_type(file):
    file["a"] = np.dtype("float32")


@pytest.mark.parametrize(
    "fill, match",
    [
        (soft_link, r"/a is a link to another place \(SoftLink\)"),
        (external_link, r"/a is a link to another place \(ExternalLink\)"),
        (other_file, "/a is stored in another file"),
        (virtual, "/a is a view of other arrays"),
        (cycle, "/a/b is stored under two names"),
        (deep, "beyond the limit of 10,000 parts and 64 levels"),
        (many, "beyond the limit of 10,000 parts and 64 levels"),
        (huge, "declares 4,398,046,511,104 bytes and stores 0 bytes"),
        (compressed, "declares 8,000 bytes and stores"),
        (lambda file: file.create_dataset("a", data="text"), "the type object"),
        (lambda file: file.create_dataset("a", dtype="f4"), "/a has no shape"),
        (named_type, "neither a group nor an array"),
    ],
)
def test_array_that_the_file_does_not_store_is_refused(fill, match):
    with pytest.raises(ValueError, match=match):
        weights_file.stored_bytes(hdf5(fill))


def test_file_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="not a valid HDF5 file"):
        weights_file.stored_bytes(b"text")
