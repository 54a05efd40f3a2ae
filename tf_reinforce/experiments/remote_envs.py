"""Opens environments that render, in a process of their own."""

import contextlib
import json
import multiprocessing
import signal
import subprocess
import sys

import gymnasium as gym
from gymnasium.vector import utils

from tf_reinforce.experiments import rendered_envs

_END_TIMEOUT = 5.0  # seconds in which the process may close its environments


class RemoteEnv(gym.Env):
    """An environment in another process.

    Args:
        call: Function from the name of a method, and the keyword arguments of the method,
            to the result.
        observation_space, action_space: The spaces of the environment.
        metadata: Dict, the metadata of the environment.
    """

    render_mode = rendered_envs.MODE

    def __init__(self, call, observation_space, action_space, metadata):
        self._call = call
        self.observation_space = observation_space
        self.action_space = action_space
        self.metadata = metadata

    def reset(self, *, seed=None, options=None):
        return self._call("reset", seed=seed)

    def step(self, action):
        return self._call("step", action=action)

    def render(self):
        return self._call("render")


@contextlib.contextmanager
def open_envs(env, count, env_kwargs=None, max_episode_steps=None):
    """Yields a list of environments that render pictures, and their time limit.

    A `gymnasium.Env` stays in the current process, and is not closed. All other
    environments run in one process without TensorFlow, which ends with the `with` block.
    Of the dict `info`, this process sends numbers, arrays and texts.

    Args:
        env, count, env_kwargs, max_episode_steps: As for `rendered_envs.make`.

    Yields:
        List of `gymnasium.Env`, and the time limit in steps or `None`.

    Raises:
        RuntimeError: In a method of an environment, if the process dies.
        Others: See `rendered_envs.make`.
    """
    env = rendered_envs.check(env, count, env_kwargs)
    if isinstance(env, gym.Env):
        envs = rendered_envs.make(env, count, env_kwargs, max_episode_steps)
        yield envs, max_episode_steps or rendered_envs.time_limit(envs[0])
        return
    with _RenderProcess() as process:
        # The wrapper sends functions of the main module by value.
        request = utils.CloudpickleWrapper(env), count, env_kwargs, max_episode_steps
        spaces, limit = process.request(*request)
        limit = max_episode_steps or limit
        yield [process.env(i, *spaces) for i in range(count)], limit


class _RenderProcess:
    """A fresh process that runs `render_process.main`."""

    def __enter__(self):
        self._connection, theirs = multiprocessing.Pipe()
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from tf_reinforce.experiments import render_process; "
            "render_process.main(int(sys.argv[2]))"
        )
        descriptor = theirs.fileno()
        command = [sys.executable, "-c", code, json.dumps(sys.path), str(descriptor)]
        with theirs:
            # Ctrl-C reaches only the current process, which then closes the connection.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        return self

    def __exit__(self, *_):
        self._connection.close()
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def env(self, env_index, *spaces):
        """Returns the `RemoteEnv` with an index."""

        def call(method, **arguments):
            return self.request(env_index, method, arguments)

        return RemoteEnv(call, *spaces)

    def request(self, *request):
        """Sends a request; returns its result, or raises the error of the process."""
        try:
            self._connection.send(request)
            result, error = self._connection.recv()
        except (EOFError, ConnectionError):
            text = _describe_exit(self._process.wait())
            raise RuntimeError(f"the process of the environments {text}") from None
        except Exception as error:
            raise ValueError(
                "`env` must be a callable that can be sent to another process, because "
                "pictures are rendered in one. Received: a callable that cannot be sent: "
                f"{error}. Pass an environment id, or a callable of a module."
            ) from error
        if error is not None:
            raise error
        return result


def _describe_exit(code):
    if code < 0:
        return f"was killed by the signal {signal.Signals(-code).name}"
    return f"ended with the exit code {code}"
