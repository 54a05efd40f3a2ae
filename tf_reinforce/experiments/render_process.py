"""Makes, steps and renders environments at the request of another process.

The process does not import TensorFlow. TensorFlow contains parts of LLVM, with which Mesa
cannot render: a process with TensorFlow dies when MuJoCo renders without a GPU.
"""

import itertools
import numbers
from multiprocessing import connection as connections

import numpy as np

from tf_reinforce.collect import env_outputs
from tf_reinforce.experiments import rendered_envs

_PLAIN_TYPES = numbers.Number, str, np.ndarray, np.generic
_WITH_INFO = "reset", "step"  # the methods whose last result is the dict `info`


def main(descriptor):
    """Answers requests until the other process closes the connection, or dies.

    The first request contains the arguments of `rendered_envs.make`, with the environment
    in a `CloudpickleWrapper` of Gymnasium. The response describes the environments. Each
    later request is the index of an environment, the name of a method and a dict of
    arguments. A response is a pair of the result and the error, of which one is `None`.

    Args:
        descriptor: Int, the file descriptor of the connection.
    """
    envs = []

    def make(wrapper, *arguments):
        envs.extend(rendered_envs.make(wrapper.fn, *arguments))
        return rendered_envs.describe(envs)

    def call(env_index, method, arguments):
        result = getattr(envs[env_index], method)(**arguments)
        return (*result[:-1], _plain(result[-1])) if method in _WITH_INFO else result

    with connections.Connection(descriptor) as connection:
        for function in itertools.chain([make], itertools.repeat(call)):
            try:
                request = connection.recv()
            except (EOFError, ConnectionError):
                break
            _respond(connection, function, request)
    for env in envs:
        env.close()


def _respond(connection, function, request):
    try:
        response = function(*request), None
    except Exception as error:
        response = None, error
    try:
        connection.send(response)
    except ConnectionError:
        return
    except Exception as failure:  # the result or the error cannot be sent
        error = RuntimeError(env_outputs.describe_error(response[1] or failure))
        connection.send((None, error))


def _plain(value):
    """Returns `info` without the objects that are neither numbers, arrays nor texts."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_plain(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value if isinstance(value, _PLAIN_TYPES) else None
