"""Videos of episodes that an agent plays.

Worker processes import this module, so it must not import TensorFlow.
"""

import contextlib
import functools
import os
import pathlib
import sys

import gymnasium as gym
import numpy as np

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.support import extras
from tf_reinforce.support import files
from tf_reinforce.support import validation

_MODE = "rgb_array"
# What pygame and MuJoCo use instead of a display and a sound card.
_HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MUJOCO_GL": "egl"}


def record(
    agent,
    env,
    path,
    episodes=1,
    *,
    seed=0,
    deterministic=True,
    workers=2,
    env_kwargs=None,
    max_episode_steps=None,
):
    """Plays episodes and writes an MP4 video of each, one picture per step.

    To see the episodes of an evaluation, pass its seed: the videos show the first
    episodes of `Reinforce.evaluate` with the same seed. If one of them fails, existing
    files stay unchanged.

    Args:
        agent: `Reinforce`.
        env: Environment id, `EnvSpec`, or a callable such as a class that accepts
            `render_mode="rgb_array"`.
        path: Path of the video, ending in .mp4. See `video_paths` for several episodes.
        episodes: Positive int.
        seed, deterministic, env_kwargs, max_episode_steps: As in `Reinforce.evaluate`.
        workers: Positive int, the number of processes that play and render. They do not
            import TensorFlow: beside it, MuJoCo dies if it renders without a GPU. Pass 1
            to render in this process if the policy does not act through LiteRT.

    Returns:
        Dict of floats, the metrics of `Reinforce.evaluate`.

    Raises:
        ValueError: If an argument is invalid, or the environment renders no pictures.
        ImportError: Without imageio-ffmpeg.
        EnvironmentFault: If the environment fails, also while it renders.
    """
    extras.load("imageio_ffmpeg", "video")
    seeds = seeding.EpisodeSeeds(validation.check_seed(seed), "evaluation", 0)
    if isinstance(env, str):  # worker processes may not have registered it
        env = gym.registry.get(env.rpartition(":")[2], env)
    with contextlib.ExitStack() as stack:
        paths = [
            stack.enter_context(files.atomic_write(x))
            for x in video_paths(path, episodes)
        ]
        by_seed = {seeds.reset_seed(i): x for i, x in enumerate(paths)}
        return agent.evaluate(
            functools.partial(_make, env, env_kwargs or {}, max_episode_steps, by_seed),
            episodes,
            deterministic,
            seed,
            num_envs=validation.positive_int("workers", workers),
            workers=workers,
            max_episode_steps=max_episode_steps,
        )


def video_paths(path, episodes):
    """Returns the path of each video: `path` if it is the only one, else numbered ones.

    >>> [x.name for x in video_paths("car.mp4", episodes=2)]
    ['car_1.mp4', 'car_2.mp4']
    """
    path, count = pathlib.Path(path), validation.positive_int("episodes", episodes)
    if path.suffix != ".mp4":
        raise ValueError(f"A video must have the extension .mp4. Received: '{path}'")
    if count == 1:
        return [path]
    return [path.with_stem(f"{path.stem}_{i}") for i in range(1, count + 1)]


def _make(env, env_kwargs, max_episode_steps, paths):
    """Returns an environment that writes each episode to the path of its reset seed."""
    is_linux, displays = sys.platform.startswith("linux"), ("DISPLAY", "WAYLAND_DISPLAY")
    if is_linux and not any(map(os.environ.get, displays)):
        os.environ.update(_HEADLESS | os.environ)
    make = env
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        limit = {"max_episode_steps": max_episode_steps, "disable_env_checker": True}
        make = functools.partial(gym.make, env, **limit)
    with batched_envs.explain_errors(env, env_kwargs):
        kwargs = {"render_mode": _MODE, **env_kwargs}
        result = make(**kwargs) if callable(make) else None
    if getattr(result, "render_mode", None) != _MODE:
        raise ValueError(
            "`env` must be an environment id, an EnvSpec or a callable that makes a "
            f"Gymnasium environment with render_mode={_MODE!r}. Received: {env!r} with "
            f"env_kwargs={env_kwargs}"
        )
    return _RecordedEnv(result, paths)


class _RecordedEnv(gym.Wrapper):
    """Writes the pictures of each episode to a file.

    Args:
        env: `gymnasium.Env` with `render_mode="rgb_array"`.
        paths: Dict from reset seeds to paths of videos.
    """

    def __init__(self, env, paths):
        super().__init__(env)
        self._paths = paths
        self._video = None

    def reset(self, *, seed=None, **options):
        self._finish()
        outputs = self.env.reset(seed=seed, **options)
        picture = self._render()
        self._video = extras.load("imageio_ffmpeg", "video").write_frames(
            self._paths[seed],
            picture.shape[1::-1],
            fps=self.env.metadata.get("render_fps") or 30,
            macro_block_size=2,  # 4:2:0, which all players read
            ffmpeg_log_level="error",
            # The index at the start lets a browser play at once.
            output_params=["-movflags", "+faststart"],
        )
        next(self._video)
        self._video.send(picture)
        return outputs

    def step(self, action):
        outputs = self.env.step(action)
        self._video.send(self._render())
        if outputs[2] or outputs[3]:  # terminated or truncated
            self._finish()
        return outputs

    def close(self):
        self._finish()
        super().close()

    def _finish(self):
        if self._video is not None:
            self._video.close()
        self._video = None

    def _render(self):
        """Returns the environment's picture, `[H, W, 3]` uint8."""
        picture = np.asarray(self.env.render(), order="C")
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            raise ValueError(
                "`render` must return uint8 arrays of the shape (H, W, 3). Received: "
                f"shape {picture.shape} and type {picture.dtype}"
            )
        return picture
