"""Tests that warnings point to a line of the user's program."""

import pathlib
import subprocess
import sys
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


def test_warning_outside_of_any_program_is_raised_too():
    """On the command line, all frames may belong to libraries."""
    path = validation.LIBRARIES[0] + "command.py"
    source = "from tf_reinforce.support import validation; validation.warn('text')"
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        f"exec(compile({source!r}, {path!r}, 'exec'))"
    )
    run = f"exec(compile({code!r}, {path!r}, 'exec'))"
    program = f"import sys; f = compile({run!r}, {path!r}, 'exec')\nexec(f)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0 and "UserWarning: text" in ran.stderr


def test_folder_with_a_similar_name_is_no_library():
    package = pathlib.Path(validation.__file__).parents[1]
    path = str(package.with_name(f"{package.name}_experiments") / "train.py")
    assert not path.startswith(validation.LIBRARIES)
    assert str(package / "agent.py").startswith(validation.LIBRARIES)
