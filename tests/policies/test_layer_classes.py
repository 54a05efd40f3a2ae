"""Tests warnings about classes of layers that a saved file cannot restore."""

import re
import warnings

import keras
import pytest

from tf_reinforce.policies import layer_classes


class NoKwargs(keras.Model):
    def __init__(self, units=3):
        super().__init__()
        self.dense = keras.layers.Dense(units)


class NoConfig(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(units)


@keras.saving.register_keras_serializable("test_layer_classes")
class Complete(NoConfig):
    def __init__(self, units=3, **kwargs):
        super().__init__(units, **kwargs)
        self.units = units

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class OwnFromConfig(NoKwargs):
    @classmethod
    def from_config(cls, config):
        return cls()


class Required(keras.layers.Layer):
    """A layer with an argument that its configuration lacks."""

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)

    def get_config(self):
        return super().get_config()


def messages(layer):
    model = keras.Sequential([layer]) if not isinstance(layer, keras.Model) else layer
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer_classes.warn_if_not_loadable(model)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: NoKwargs(4), "NoKwargs does not take its own configuration: got an"),
        (
            lambda: NoConfig(4),
            "NoConfig has no `get_config`, which returns its arguments",
        ),
        (lambda: Required(0.1), "Required does not take .*: missing a required arg"),
    ],
    ids=["no_kwargs", "no_config", "required"],
)
def test_class_that_cannot_be_restored_is_named_once(make, text):
    found = messages(keras.Sequential([make(), make()]))
    assert len(found) == 1
    assert re.match(f"The class {text}", found[0])


def test_other_layers_give_no_warning():
    dense, inputs = keras.layers.Dense(2), keras.Input((3,))
    functional = keras.Model(inputs, keras.layers.Normalization()(dense(inputs)))
    wrapped = keras.layers.Bidirectional(keras.layers.GRU(2))
    for layer in (Complete(4), OwnFromConfig(), functional, wrapped, dense):
        assert messages(layer) == []
