"""Tests that warnings point to a line of the user's program."""

import pathlib
import warnings

import keras

import tf_reinforce as tfr
from tf_reinforce.support import validation


def test_warning_of_fit_has_the_line_that_calls_fit():
    outputs = keras.layers.Dense(2, "softmax")
    agent = tfr.Reinforce(keras.Sequential([keras.Input((4,)), outputs]))
    agent.compile(optimizer="adam")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=1, verbose=0)
    [warning] = [x for x in caught if "logits" in str(x.message)]
    line = pathlib.Path(__file__).read_text().split("\n")[warning.lineno - 1]
    assert warning.filename == __file__ and "agent.fit(" in line


def test_folder_with_a_similar_name_is_no_library():
    package = pathlib.Path(validation.__file__).parents[1]
    path = str(package.with_name(f"{package.name}_experiments") / "train.py")
    assert not path.startswith(validation.LIBRARIES)
    assert str(package / "agent.py").startswith(validation.LIBRARIES)
