"""Checks the HDF5 file of the weights of an agent, before the weights are read."""

import io
import math

import h5py

_MAX_DEPTH = 64
_MAX_OBJECTS = 10_000
_KINDS = "fiub"  # float, int, unsigned int and bool
_BFLOAT16 = 2  # bytes of a bfloat16, which HDF5 stores without a number type


def stored_bytes(data: bytes) -> int:
    """Returns the number of bytes of all arrays in the HDF5 file of the weights.

    All arrays must be stored completely in the file, so that reading them needs no more
    memory than the file has bytes.

    Args:
        data: Bytes of the HDF5 file.

    Raises:
        ValueError: If the file is not valid HDF5, or contains links, arrays in other
            files, arrays that are not stored, or arrays of other types than numbers.
    """
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            return _count(file, len(data))
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "The file of the weights is not a valid HDF5 file "
            f"({type(error).__name__}: {str(error)[:100]}). Expected: the weights that "
            "`agent.save` wrote."
        ) from None


def _count(file, size):
    total, visited, groups = 0, set(), [(file, "", 0)]
    while groups:
        group, path, depth = groups.pop()
        for name in group:
            inner = f"{path}/{name}"[-200:]
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                _refuse(inner, f"is a link to another place ({type(link).__name__})")
            part = group[name]
            offset = h5py.h5o.get_info(part.id).addr
            if offset in visited:
                _refuse(inner, "is stored under two names")
            visited.add(offset)
            if len(visited) > _MAX_OBJECTS or depth > _MAX_DEPTH:
                limits = f"{_MAX_OBJECTS:,} parts and {_MAX_DEPTH} levels"
                _refuse(inner, f"is beyond the limit of {limits}")
            if isinstance(part, h5py.Group):
                groups.append((part, inner, depth + 1))
            elif isinstance(part, h5py.Dataset):
                total += _array_bytes(part, inner)
            else:
                _refuse(inner, "is neither a group nor an array")
    if total > size:
        raise ValueError(
            f"The arrays of the weights have {total:,} bytes, which is more than the "
            f"{size:,} bytes of their file. Expected: the weights that `agent.save` "
            "wrote."
        )
    return total


def _array_bytes(array, path):
    if array.external:
        _refuse(path, "is stored in another file")
    if array.is_virtual:
        _refuse(path, "is a view of other arrays")
    is_bfloat16 = array.dtype.kind == "V" and array.dtype.itemsize == _BFLOAT16
    if array.dtype.kind not in _KINDS and not is_bfloat16:
        _refuse(path, f"has the type {str(array.dtype)[:50]}, which is not a number type")
    if array.shape is None:
        _refuse(path, "has no shape")
    declared = math.prod(array.shape) * array.dtype.itemsize
    stored = array.id.get_storage_size()
    if declared != stored:
        _refuse(
            path,
            f"declares {declared:,} bytes and stores {stored:,} bytes",
        )
    return declared


def _refuse(path, problem):
    raise ValueError(
        f"In the file of the weights, {path} {problem}. Expected: arrays of numbers that "
        "are stored uncompressed, as `agent.save` writes them."
    )
