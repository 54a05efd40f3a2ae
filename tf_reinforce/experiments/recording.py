"""Records videos of episodes that an agent plays."""

import math
import numbers

from tf_reinforce import validation
from tf_reinforce.collect import in_process
from tf_reinforce.experiments import grid_pictures
from tf_reinforce.experiments import remote_envs
from tf_reinforce.experiments import rendered_envs
from tf_reinforce.experiments import video_files

DEFAULT_FPS = 30  # pictures per second, if the environment states no number
_GIF_SIZE = 300  # pixels of the longer side of a tile; larger GIFs load slowly
_PAUSE = 0.5  # seconds for which the last picture of an episode remains


def record(
    agent,
    env,
    path,
    episodes=1,
    *,
    num_envs=1,
    seed=0,
    deterministic=True,
    env_kwargs=None,
    max_episode_steps=None,
    fps=None,
    size=None,
):
    """Plays episodes, and writes an MP4 or GIF video of them.

    The episodes are the first episodes of `Reinforce.evaluate` with the same seed. Each
    picture shows the steps and the sum of the rewards so far. No display is needed. If
    an episode fails, an existing file at `path` stays unchanged.

    Args:
        agent: `Reinforce`.
        env: Environment id; `EnvSpec`; callable, for example a class, that has the
            parameter `render_mode` or makes an environment with
            `render_mode="rgb_array"`; or such an environment.
        path: Path of the video, with the extension .mp4 or .gif.
        episodes: Positive int, the number of episodes.
        num_envs: Positive int, the number of episodes that are shown side by side. The
            next ones start after all of them have ended.
        seed: Int for the environments and the actions.
        deterministic: Bool, whether to take the most likely actions.
        env_kwargs: Dict of keyword arguments for the constructor of the environment.
        max_episode_steps: Positive int, the time limit in steps, by default that of the
            environment.
        fps: Positive number, the pictures per second, by default that of the environment
            (`metadata["render_fps"]`), else 30. There is one picture per step.
        size: Int, the longer side of the picture of one environment in pixels, by default
            300 in a GIF, and in an MP4 file the size that the environment renders.

    Returns:
        Dict of floats, the metrics of `Reinforce.evaluate`.

    Raises:
        ValueError: If an argument is invalid, or the environment renders no pictures.
        ImportError: If the file is an MP4, and imageio-ffmpeg is not installed.
        EnvironmentFault: If the environment fails, also while it renders.
    """
    kind = video_files.check_options(path, fps, size)
    count = min(
        validation.positive_int("num_envs", num_envs),
        validation.positive_int("episodes", episodes),
    )
    validation.positive_int_or_none("max_episode_steps", max_episode_steps)
    opened = remote_envs.open_envs(env, count, env_kwargs, max_episode_steps)
    with opened as (gym_envs, limit):
        fps = fps or _default_fps(gym_envs[0])
        size = size or (_GIF_SIZE if kind == "gif" else None)
        painter = grid_pictures.GridPainter(count, size, with_episode=episodes > 1)
        pause = math.ceil(_PAUSE * fps)
        with video_files.write_video(path, fps) as writer:

            def show(tiles, is_end):
                writer.add(painter.draw(tiles), 1 + pause * is_end)

            batch = rendered_envs.RenderedEnvs(
                gym_envs, limit, show=show, restart=writer.restart
            )
            envs = in_process.InProcessEnvironments(batch)
            return agent.evaluate(envs, episodes, deterministic, seed)


def _default_fps(env):
    """Returns the pictures per second that an environment states, or `DEFAULT_FPS`."""
    metadata = env.metadata if isinstance(env.metadata, dict) else {}
    fps = metadata.get("render_fps")
    is_number = isinstance(fps, numbers.Real) and not isinstance(fps, bool)
    return float(fps) if is_number and 0 < fps <= video_files.MAX_FPS else DEFAULT_FPS
