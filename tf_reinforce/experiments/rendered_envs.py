"""Makes environments that render pictures, and plays their episodes in rounds."""

import functools
import importlib
import inspect
import os
import sys

import gymnasium as gym
import numpy as np

from tf_reinforce import env_arguments
from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import env_outputs
from tf_reinforce.collect import results
from tf_reinforce.experiments import grid_pictures

MODE = "rgb_array"
EnvSpec = gym.envs.registration.EnvSpec
# What pygame and MuJoCo use instead of a display and a sound card.
_HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MUJOCO_GL": "egl"}


def check(env, count, env_kwargs=None):
    """Returns `env`, or the `EnvSpec` of an environment id.

    Args:
        env, count, env_kwargs: As for `make`.

    Raises:
        ValueError: If an argument is invalid.
        gymnasium.error.Error: If there is no environment with this id.
    """
    env_arguments.check(env_kwargs)
    if (env_kwargs or {}).get("render_mode", MODE) != MODE:
        raise ValueError(
            f"The environment must be made with render_mode={MODE!r}. Received: "
            f"env_kwargs={env_kwargs}. Omit `render_mode`."
        )
    if isinstance(env, gym.Env) and (count > 1 or env_kwargs):
        raise ValueError(
            "`num_envs` and `env_kwargs` require an environment id, an EnvSpec or a "
            "callable, from which several environments can be made. Received: "
            f"env={env!r}, num_envs={count}, env_kwargs={env_kwargs}"
        )
    if isinstance(env, str):
        module, _, name = env.rpartition(":")
        if module:
            importlib.import_module(module)  # registers the environment
        return gym.spec(name)
    if not callable(env) and not isinstance(env, (gym.Env, EnvSpec)):
        raise _not_supported(env)
    return env


def make(env, count, env_kwargs=None, max_episode_steps=None):
    """Returns a list of `count` environments with `render_mode="rgb_array"`.

    Without a display, environment variables tell SDL and MuJoCo to render without one,
    unless the user has set these variables.

    Args:
        env: `EnvSpec`; callable, for example a class, that has the parameter
            `render_mode` or makes an environment with `render_mode="rgb_array"`; or such
            a `gymnasium.Env`.
        count: Positive int, the number of environments; one for a `gymnasium.Env`.
        env_kwargs: Dict of keyword arguments for the constructor of the environment.
        max_episode_steps: Positive int, the time limit of environments of an `EnvSpec`,
            or `None` for the limit in the `EnvSpec`. `RenderedEnvs` limits the others.

    Raises:
        ValueError: If the environment renders no pictures, or is no single environment.
    """
    _select_headless_rendering()
    kwargs = {k: x for k, x in (env_kwargs or {}).items() if k != "render_mode"}
    envs = [env]
    if not isinstance(env, gym.Env):
        if isinstance(env, EnvSpec):
            env_type = _maker(env, kwargs, max_episode_steps)
        else:
            mode = {"render_mode": MODE} if _takes_render_mode(env) else {}
            env_type = functools.partial(env, **mode, **kwargs)
        with env_arguments.explain_errors(env, kwargs):
            envs = [env_type() for _ in range(count)]
    for one in envs:
        _expect_pictures(env, one)
    return envs


def _takes_render_mode(function):
    try:
        return "render_mode" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions of C libraries have no signature
        return False


def describe(envs):
    """Returns the spaces and the metadata of environments, and their time limit."""
    first = envs[0]
    spaces = first.observation_space, first.action_space, first.metadata
    return spaces, time_limit(first)


def time_limit(env):
    """Returns the time limit in the spec of an environment, or `None`."""
    return None if env.spec is None else env.spec.max_episode_steps


def _select_headless_rendering():
    """Sets variables of SDL and MuJoCo, if a Linux process has no display."""
    displays = "DISPLAY", "WAYLAND_DISPLAY"
    if sys.platform.startswith("linux") and not any(map(os.environ.get, displays)):
        for name, value in _HEADLESS.items():
            os.environ.setdefault(name, value)


def _maker(spec, kwargs, max_episode_steps):
    """Returns a function that makes an environment from an `EnvSpec`."""
    common = {"max_episode_steps": max_episode_steps, "disable_env_checker": True}
    with env_arguments.explain_errors_of_make(spec.id, kwargs):
        first = gym.make(spec, **common, **kwargs)
    modes = [str(mode) for mode in first.metadata.get("render_modes") or ()]
    first.close()
    if MODE not in modes:
        raise ValueError(
            f"The environment must have the render mode {MODE!r}, which returns "
            f"pictures. Received: {spec.id}, with the render modes {modes or 'none'}"
        )
    return functools.partial(gym.make, spec, render_mode=MODE, **common, **kwargs)


def _not_supported(env):
    return ValueError(
        "Only single environments of Gymnasium render pictures. Expected: an environment "
        "id, an EnvSpec, a callable that makes an environment, or a gymnasium.Env. "
        f"Received: {type(env).__name__}. For a tensor environment, pass the Gymnasium "
        "environment that it equals."
    )


def _expect_pictures(argument, env):
    if not isinstance(env, gym.Env):
        raise _not_supported(env)
    if env.render_mode != MODE:
        raise ValueError(
            f"The environment must be made with render_mode={MODE!r}. Received: "
            f"{argument!r}, with render_mode={env.render_mode!r}"
        )


class RenderedEnvs(batched_envs.BatchedEnvs):
    """Steps environments side by side, and passes their pictures to a function.

    The episodes run in rounds. The episodes of a round start together, one in each
    environment, and the next round starts after all of them have ended.

    Args:
        envs: List of environments from `make`.
        max_episode_steps: Positive int, the time limit, or `None` for 10,000 steps.
        show: Function of a list of `grid_pictures.Tile`s, or `None` in place of a tile
            for an environment without an episode, and of a bool, whether a round ends.
            `show` is called when a round starts, and after each step.
        restart: Function without arguments, called before the first episode starts. A
            later call means that all episodes are played again.
    """

    def __init__(self, envs, max_episode_steps, *, show, restart):
        self._envs, self._show, self._restart = envs, show, restart
        self._batch = batched_envs.SyncEnvs(envs, max_episode_steps, owned=False)
        self.num_envs = len(envs)
        self.max_episode_steps = self._batch.max_episode_steps
        self.observation_space = self._batch.observation_space
        self.action_space = self._batch.action_space
        self.spec = self._batch.spec
        self.progress = self._batch.progress

    def configure(self, float_dtype, mask_reader=None):
        self._batch.configure(float_dtype, mask_reader)

    def checked(self, float_dtype):
        return self._batch.checked(float_dtype)

    def set(self, settings):
        self._batch.set(settings)

    def reset(self, seed, out):
        self._tiles, self._running = [None] * self.num_envs, set()
        self._episodes = 0
        self._restart()
        return self._batch.reset(seed, out)

    def can_start(self, env_index):
        return not self._running

    def start_episode(self, env_index, seed, out):
        if not self._running:
            self._tiles = [None] * self.num_envs
        self._batch.start_episode(env_index, seed, out)
        picture = self._render(env_index)
        self._tiles[env_index] = grid_pictures.Tile(picture, self._episodes, 0, 0.0)
        self._running.add(env_index)
        self._episodes += 1

    def step(self, actions, out, rewards, active, time_limit_envs):
        if all(tile is None or tile.step == 0 for tile in self._tiles):
            self._show(self._tiles, False)
        ends = self._batch.step(actions, out, rewards, active, time_limit_envs)
        kinds = {x.env_index: "terminated" if x.terminated else "truncated" for x in ends}
        for i in active:
            tile, picture = self._tiles[i], self._render(i)
            episode_return = tile.episode_return + rewards[i]
            self._tiles[i] = grid_pictures.Tile(
                picture, tile.episode, tile.step + 1, episode_return, kinds.get(i, "")
            )
        self._running.difference_update(kinds)
        self._show(self._tiles, not self._running)
        return ends

    def _render(self, env_index):
        """Returns a copy of the picture of an environment, `[H, W, 3]` uint8."""
        try:
            picture = np.array(self._envs[env_index].render())
        except gym.error.Error:  # for example a missing package, with the remedy
            raise
        except Exception as error:
            raise results.EnvironmentFault(
                f"Environment {env_index}: `render` raised "
                f"{env_outputs.describe_error(error)}. Expected: a picture without a "
                "display. For MuJoCo, set the environment variable MUJOCO_GL to egl or "
                "osmesa, whichever is installed."
            ) from error
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise results.EnvironmentFault(
                f"Environment {env_index}: `render` must return an array of shape (H, W, "
                f"3) and type uint8. Received: shape {picture.shape} and type "
                f"{picture.dtype}"
            )
        return picture
