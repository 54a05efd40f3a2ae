"""Tests that nested structures equal those of Keras, and that modules need no Keras."""

import keras
import pytest

from tf_reinforce.data import nests

NESTS = [
    3,
    (),
    {},
    {"b": 1, "a": (2, {"d": 3, "c": 4})},
    ((1, 2), {"z": 5, "y": ()}),
]


@pytest.mark.parametrize("nest", NESTS, ids=str)
def test_leaves_have_the_order_and_the_structure_of_keras(nest):
    leaves = keras.tree.flatten(nest)
    assert nests.flatten(nest) == leaves
    doubled = keras.tree.map_structure(lambda x: 2 * x, nest)
    assert nests.map_leaves(lambda x: 2 * x, nest) == doubled
    packed = nests.pack(nest, [2 * x for x in leaves])
    assert packed == doubled
    if isinstance(nest, dict):
        assert list(packed) == list(nest)
