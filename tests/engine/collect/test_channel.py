"""Tests the messages between two processes."""

import socket

import numpy as np
import pytest

from tf_reinforce.engine.collect import worker


@pytest.fixture
def pair():
    ends = [worker.Channel(end, timeout=5) for end in socket.socketpair()]
    yield ends
    for end in ends:
        end.close()


ARRAYS = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.arange(6).reshape(2, 3).T,  # not contiguous
    np.zeros((3, 0), "int8"),
    np.array(True),
    np.float16([1.5, np.inf]),
]


def test_received_message_equals_the_sent_message(pair):
    pair[0].send({"kind": "episodes", "numbers": [1, 2]}, ARRAYS)
    pair[0].send({"kind": "stop"})
    header, arrays = pair[1].receive()
    assert header == {"kind": "episodes", "numbers": [1, 2]}
    for sent, received in zip(ARRAYS, arrays, strict=True):
        assert sent.dtype == received.dtype
        np.testing.assert_array_equal(sent, received)
        received.flags.writeable = True  # an array of its own
    assert pair[1].receive() == ({"kind": "stop"}, [])


def test_closed_connection_raises_end_of_file_also_in_the_middle_of_a_message(pair):
    message = worker.encode({"kind": "weights"}, ARRAYS)
    pair[0].send_encoded(message[:-3])
    pair[0].close()
    with pytest.raises(EOFError, match="closed the connection"):
        pair[1].receive()


def test_missing_message_raises_timeout(pair):
    with pytest.raises(TimeoutError):
        pair[1].receive(timeout=0.01)
