"""Tests that each part of the package has an example in `parts.py`."""

import inspect

import parts
import pytest

from tf_reinforce import baselines
from tf_reinforce import envs
from tf_reinforce import heads

TABLES = {
    "HEADS": (heads, heads.Head),
    "BASELINES": (baselines, baselines.Baseline),
    "ENVS": (envs, envs.TensorEnv),
}


@pytest.mark.parametrize("table", TABLES)
def test_each_public_part_has_an_example(table):
    module, base = TABLES[table]
    public = {name: getattr(module, name) for name in module.__all__}
    classes = {k for k, x in public.items() if inspect.isclass(x) and issubclass(x, base)}
    missing = classes - {base.__name__} - getattr(parts, table).keys()
    assert not missing, f"add {sorted(missing)} to parts.{table}: every suite reads it"
    for name, example in getattr(parts, table).items():
        part = example.make() if isinstance(example, parts.Example) else example()
        assert type(part) is getattr(module, name)
