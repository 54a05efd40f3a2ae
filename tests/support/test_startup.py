"""Tests the start: the processes of `TF_CONFIG`, and Ctrl-C inside of libraries."""

import json
import logging
import signal

import keras
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.support import locks
from tf_reinforce.support import startup

pytestmark = pytest.mark.usefixtures("hears_ctrl_c")

WORKERS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}


def tf_config(cluster, kind="worker", index=0):
    task = {"type": kind, "index": index}
    return json.dumps({"cluster": cluster, "task": task})


@pytest.mark.parametrize(
    "text", ["", "{}", '{"cluster": {}}', tf_config({"worker": ["10.0.0.1:2222"]})]
)
def test_one_process_is_no_cluster(text):
    assert startup.learner_cluster({"TF_CONFIG": text}) is None


def test_processes_are_numbered_from_the_chief_on():
    cluster = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    for kind, index, number in [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)]:
        environ = {"TF_CONFIG": tf_config(cluster, kind, index)}
        found = startup.learner_cluster(environ)
        assert found == (("a:1", "b:1", "c:1"), number)


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", "3", '{"task": {}}', json.dumps({"cluster": WORKERS})),
        tf_config({"worker": "10.0.0.1:2222"}),
        tf_config({"worker": ["10.0.0.1"]}),
        tf_config({"worker": [3, 4]}),
        tf_config({**WORKERS, "ps": ["10.0.0.3:2222"]}),
        tf_config(WORKERS, "evaluator"),
        tf_config(WORKERS, index=2),
        tf_config(WORKERS, index=-1),
        tf_config(WORKERS, index=None),
        tf_config(WORKERS, "chief"),
    ],
)
def test_invalid_tf_config_is_refused(text):
    with pytest.raises(ValueError, match=r"must be.*unset.*Received: TF_CONFIG="):
        startup.learner_cluster({"TF_CONFIG": text})


@keras.saving.register_keras_serializable("tests")
class Interrupted(keras.layers.Layer):
    """Receives Ctrl-C in one of its calls, and like TensorFlow raises another error."""

    calls, last = 0, None

    def call(self, inputs):
        self.calls += 1
        if self.calls == self.last:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise TypeError("cannot convert a symbolic tensor") from None
        return inputs


def train(last):
    """Trains and evaluates; Ctrl-C arrives in a call of the layer. Returns the calls."""
    layer = Interrupted()
    agent = tfr.Reinforce(keras.Sequential([layer, keras.layers.Dense(2)]))
    agent.compile(keras.optimizers.SGD(0.1))
    layer.calls, layer.last = 0, last
    agent.fit(toys.Bandit, epochs=1, episodes_per_epoch=2, num_envs=1, verbose=0)
    agent.evaluate(toys.Bandit, episodes=2, num_envs=1)
    return layer.calls


@pytest.mark.slow
def test_ctrl_c_while_a_function_is_traced_is_a_keyboard_interrupt(caplog):
    calls = train(None)
    assert calls >= 3
    for last in range(1, calls + 1):
        with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.WARNING):
            train(last)
    # The agents have not left LiteRT. TensorFlow may log about models of other tests.
    assert not [x for x in caplog.records if x.name == "tf_reinforce"]


@pytest.mark.parametrize("at_once", [True, False])
def test_signal_in_a_block_is_delivered_once_and_the_handler_is_restored(at_once):
    log = []
    own = signal.signal(signal.SIGINT, lambda *_: log.append("own handler"))
    with locks.kept(at_once=at_once):
        signal.raise_signal(signal.SIGINT)
        log.append("end of the block")
    assert log == ["own handler", "end of the block"][:: 1 if at_once else -1]
    with pytest.raises(ZeroDivisionError), locks.kept(at_once=at_once):
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError  # Ctrl-C has not caused it
    assert len(log) == 3
    signal.signal(signal.SIGINT, own)
    with pytest.raises(KeyboardInterrupt), locks.kept():
        with locks.kept(at_once=at_once):
            signal.raise_signal(signal.SIGINT)
        log.append("after the inner block")
    assert len(log) == 3 and signal.getsignal(signal.SIGINT) is own
