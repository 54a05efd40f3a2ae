"""Tests that a damaged or hostile agent file is refused, and does no harm."""

import io
import json
import os
import struct
import zipfile

import h5py
import keras
import numpy as np
import pytest
from hostile_configs import CONFIGS
from hostile_configs import dense
from hostile_configs import layers
from hostile_configs import read
from hostile_configs import write

import tf_reinforce as tfr
from tf_reinforce import saving

ZIPS = "truncated, damaged or no archive of Keras"


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Returns the files in the archive of a small agent."""
    path = tmp_path_factory.mktemp("agent") / "agent.keras"
    tfr.Reinforce.for_env(tfr.envs.CartPole(), hidden=(4,)).save(path)
    return read(path)


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "a.keras"


def refused(path, match, **options):
    """Expects one sentence that names the file, and that nothing else was written."""
    before = sorted(os.listdir("."))
    with pytest.raises(ValueError, match=f"^{path} cannot be loaded") as error:
        tfr.load(path, **options)
    message = str(error.value)
    assert match in message and "\n" not in message and len(message) < 800
    assert sorted(os.listdir(".")) == before


CODE = {
    "os.system": "Could not locate class 'system'",
    "builtins exec": "Could not locate class 'exec'",
    "function of os": "Could not locate",
    "optimizer of os": "Could not locate class 'system'",
    "unknown class of this package": "Could not locate class",
    "agent of another class": "contains no agent",
    "Lambda": "Lambda",
    "lambda as activation": "lambda",
    "typespec": "Could not locate",
    "TFSMLayer": "loads an external SavedModel",
    "TorchModuleWrapper": "torch",
    "load_model": "not a modeling function",
    "get_file": "not a modeling function",
    "private module of Keras": "not a KerasSaveable",
    "keras_hub": "import what registers your functions",
    "tensorflow function": "Could not locate",
    "vocabulary file": "loading of a vocabulary file",
    "dotted name of a layer": "cannot contain character `/`",
}
SIZES = {
    "200 million units": "more weights than it contains",
    "units of 50 digits": "more weights than it contains",
    "Embedding": "more weights than it contains",
    "huge input": "incompatible with the layer",
    "3,000 layers": "`max_bytes` raises it",
    "20,000 calls of a layer": "`max_bytes` raises it",
    "array without a type": "array of the type",
    "object array": "array of the type",
    "space with huge shape": "[1, 16777216]",
    "deep space": "levels",
    "a million environments": "[1, 4096]",
}
OTHERS = {
    "environment id in env_kwargs": "xml_file",
    "policy as text": "`policy` must be",
    "gamma is 2": "`gamma` must be",
    "unknown option": "evil",
    "learning rate without an end": "`learning_rates`",
    "learning rate of __class__": "`learning_rates`",
    "config is missing": "no agent",
}
REASONS = CODE | SIZES | OTHERS


@pytest.mark.parametrize("name", REASONS)
def test_hostile_configuration_is_refused_with_one_reason(members, path, name):
    config = json.loads(members["config.json"])
    CONFIGS[name](config)
    write(path, {**members, "config.json": json.dumps(config)})
    refused(path, REASONS[name])


def test_layer_larger_than_the_file_is_never_computed(members, path, monkeypatch):
    """10^6 inputs and 300 units have 10^9 bytes of weights."""
    config, shapes = json.loads(members["config.json"]), []
    layers(config)[0]["config"]["batch_shape"] = [None, 10**6]
    dense(config)["config"]["units"] = 300
    dense(config)["build_config"] = {"input_shape": [None, 10**6]}
    write(path, {**members, "config.json": json.dumps(config)})
    compute = keras.initializers.Orthogonal.__call__
    monkeypatch.setattr(
        keras.initializers.Orthogonal,
        "__call__",
        lambda self, shape, **options: shapes.append(shape) or compute(self, shape),
    )
    refused(path, "more weights than it contains")
    assert shapes == []


def edited_weights(members, edit):
    data = io.BytesIO(members["model.weights.h5"])
    with h5py.File(data, "r+") as file:
        names = []
        file.visit(names.append)
        name = next(x for x in names if isinstance(file[x], h5py.Dataset))
        edit(file, name)
    return {**members, "model.weights.h5": data.getvalue()}


def replaced(**options):
    def edit(file, name):
        shape = file[name].shape
        del file[name]
        file.create_dataset(name, **{"shape": shape, "dtype": "float32", **options})

    return edit


def linked(file, name):
    del file[name]
    file[name] = h5py.ExternalLink("/etc/passwd", "/")


WEIGHTS = {
    "external data": (replaced(external=[("/etc/passwd", 0, 10**4)]), "received 0 var"),
    "external link": (linked, "received 0 variables"),
    "no data": (replaced(shape=(2**31,)), "declare more numbers"),
    "no optimizer": (lambda file, name: file.pop("optimizer"), "Skipping variable"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_outside_the_file_are_refused(members, path, name):
    edit, match = WEIGHTS[name]
    write(path, edited_weights(members, edit))
    refused(path, match)


def test_each_truncation_and_flipped_bit_is_refused_or_without_effect(path):
    """The smallest valid archive, so that each of its bits can be tested."""
    weights = io.BytesIO()
    h5py.File(weights, "w").close()
    parts = {"config.json": '{"a": 1}', "model.weights.h5": weights.getvalue()}
    write(path, {**parts, "metadata.json": ""})
    data, bits = path.read_bytes(), np.random.default_rng(0)
    assert saving.read(str(path)) == {"a": 1}
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        refused(path, ZIPS)
    for bit in bits.choice(8 * len(data), 2000, replace=False):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert saving.read(str(path)) == {"a": 1}
        except ValueError as error:
            assert str(path) in str(error)


def test_archive_that_keras_did_not_write_is_refused(members, path):
    for name in ("../canary", "/tmp/canary", "assets/../../canary", "evil.py"):
        write(path, {**members, name: b"x"})
        refused(path, f"unknown file {name!r}")
    write(path, {**members, "model.weights.h5": bytes(2**20)}, zipfile.ZIP_DEFLATED)
    refused(path, "larger than the archive")
    write(path, members)
    data = path.read_bytes()
    path.write_bytes(data[:-10] + struct.pack("<L", 2**31) + data[-6:])
    refused(path, ZIPS)
    for data in (b"an agent", b"\x89HDF\r\n", b""):
        path.write_bytes(data)
        refused(path, ZIPS)
    for text in ("", b"\xff", "[" * 10**5, '{"a": 1'):
        write(path, {**members, "config.json": text})
        refused(path, "config.json")
    write(path, {**members, "config.json": b" " * 2**20 + members["config.json"]})
    refused(path, "`max_bytes` raises it")
    assert tfr.load(path, max_bytes=2 * saving.MAX_BYTES).gamma == 0.99


def test_path_that_is_no_regular_file_is_refused_without_opening_it(path):
    """Opening a FIFO would wait forever."""
    os.mkfifo("fifo.keras")
    for name in (os.path.abspath("fifo.keras"), "/dev/zero", os.getcwd()):
        refused(name, "no folder or device")
    with pytest.raises(FileNotFoundError, match="There is no file .*a.keras"):
        tfr.load(path)


def test_limit_is_inclusive_and_can_be_raised(members, path):
    write(path, members)
    size = os.path.getsize(path)
    refused(path, f"max_bytes={size}), or `--max-bytes {size}`", max_bytes=size - 1)
    assert tfr.load(path, max_bytes=size).gamma == 0.99
