"""Sends JSON and arrays between two processes."""

import contextlib
import json
import socket
import struct

import numpy as np

from tf_reinforce.engine.collect import buffers

_LENGTH = struct.Struct("!Q")
_MAX_JOINED = 2**20  # bytes of a message that is sent at once, at the price of a copy


class Closed(EOFError):
    """Reports that the other process has closed its end, or has died."""


class Channel:
    """Sends messages, which are a dict and a list of arrays, through a socket.

    Args:
        connection: Connected `socket.socket`.
        timeout: Float, the seconds after which waiting for the other process raises
            `TimeoutError`, or `None` to wait without a limit.
    """

    def __init__(self, connection, timeout=None):
        self._socket = connection
        self._timeout = timeout
        connection.settimeout(timeout)

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        """Closes both ends, also if a forked process has inherited this one."""
        with contextlib.suppress(OSError):  # it is already closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, header, arrays=()):
        """Sends a dict of JSON values and a list of NumPy arrays."""
        parts = _parts(header, arrays)
        if sum(map(len, parts)) < _MAX_JOINED:
            parts = [b"".join(parts)]
        for part in parts:
            self.send_encoded(part)

    def send_encoded(self, message):
        """Sends the bytes that `encode` returned."""
        try:
            self._socket.sendall(message)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout=None):
        """Returns the dict and the arrays of the next message, and waits for it.

        Args:
            timeout: Float, a timeout for this message, by default that of the channel.

        Raises:
            Closed: If the other process has closed its end, or has died.
        """
        self._socket.settimeout(self._timeout if timeout is None else timeout)
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        header, specs = json.loads(self._read(length))
        return header, [self._array(*spec) for spec in specs]

    def _array(self, name, shape):
        array = buffers.zeros(shape, name)
        if array.nbytes:
            self._read_into(memoryview(array.reshape(-1)).cast("B"))
        return array

    def _read(self, count):
        data = bytearray(count)
        self._read_into(memoryview(data))
        return data

    def _read_into(self, view):
        while view:
            try:
                received = self._socket.recv_into(view)
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not received:
                raise Closed("the other process has closed the connection")
            view = view[received:]


def encode(header, arrays=()):
    """Returns the message of a dict and a list of NumPy arrays as bytes."""
    return b"".join(_parts(header, arrays))


def _parts(header, arrays):
    specs = [[array.dtype.name, array.shape] for array in arrays]
    text = json.dumps([header, specs]).encode()
    contents = (np.ascontiguousarray(array).reshape(-1) for array in arrays)
    return [_LENGTH.pack(len(text)) + text, *(x.view("uint8").data for x in contents)]
