"""Tests the messages that a worker sends to its pool."""

import multiprocessing

import numpy as np
import pytest

from tf_reinforce.engine.collect import worker

ARRAYS = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.arange(6).reshape(2, 3).T,  # not contiguous
    np.zeros((3, 0), "int8"),
    np.array(True),
    np.float16([1.5, np.inf]),
]


def test_received_message_equals_the_sent_message_and_end_of_file_is_an_error():
    ours, theirs = multiprocessing.Pipe()
    with ours:
        with theirs:
            worker.send(theirs, ("episodes", ARRAYS))
            worker.send(theirs, ("closed", []))
            kind, arrays = worker.receive(ours)
            assert kind == "episodes" and worker.receive(ours) == ("closed", [])
            for sent, received in zip(ARRAYS, arrays, strict=True):
                assert sent.dtype == received.dtype
                np.testing.assert_array_equal(sent, received)
        with pytest.raises(EOFError):
            worker.receive(ours)
