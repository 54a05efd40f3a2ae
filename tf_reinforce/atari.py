"""Atari games with small gray images, from which policies learn quickly.

Each game of the Arcade Learning Environment has an environment in this module, for
example `SmallPong-v0` for Pong. To make it, put the name of the module into the id, as in
`gymnasium.make("tf_reinforce.atari:SmallPong-v0")`. The games require the extra
`[atari]`.
"""

import gymnasium as gym
from gymnasium import wrappers
from gymnasium.utils import seeding

try:
    import ale_py
except ImportError as error:
    raise ImportError(
        'Atari environments require ale-py: pip install "tf-reinforce[atari]".'
    ) from error

_FRAME_SKIP = 4  # frames for each action
_NOOP_MAX = 30  # an episode begins after 1 to 30 frames without an action


class _KeepGameLoaded(gym.Wrapper):
    """Seeds an Atari environment without loading its game again.

    With a seed, `AtariEnv.reset` would load the game again, which takes as long as 200
    steps. Only the emulator's own sticky actions need the new seed, and these are turned
    off.
    """

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.unwrapped.np_random, _ = seeding.np_random(seed)
        return self.env.reset(options=options)


def make(
    game: str,
    *,
    screen_size: int = 42,
    stack_size: int = 2,
    scale_images: bool = False,
    repeat_action_probability: float = 0.25,
    render_mode: str | None = None,
) -> gym.Env:
    """Makes an Atari game whose observations are the last few gray images.

    Each step repeats its action for four frames and returns the sum of their rewards,
    which are not clipped. Some games draw an object only in every second frame, so an
    image is the maximum over the last two frames.

    Args:
        game: Name in Gymnasium's ids, for example `"Pong"` for `ALE/Pong-v5`.
        screen_size: Int, rows and columns of an image.
        stack_size: Int, images per observation. A single image does not show in which
            direction an object moves.
        scale_images: Bool, whether observations are float32 in [0, 1] instead of uint8.
            `normalize_observations=True` normalizes only float images.
        repeat_action_probability: Float in [0, 1), the probability that a frame repeats
            the action of the frame before (Machado et al., 2018). Zero makes the game
            deterministic after its start.
        render_mode: `"rgb_array"`, `"human"` or `None`, as in Gymnasium.

    Returns:
        `gymnasium.Env` with observations `[stack_size, screen_size, screen_size]`.

    Example:

    >>> env = gym.make("tf_reinforce.atari:SmallPong-v0")
    >>> env.observation_space.shape, env.action_space
    ((2, 42, 42), Discrete(6))

    Reference:
        Machado et al. (2018), Revisiting the Arcade Learning Environment.
        doi:10.1613/jair.5699
    """
    env = gym.make(
        f"ALE/{game}-v5",
        obs_type="grayscale",
        frameskip=1,
        repeat_action_probability=0.0,
        render_mode=render_mode,
        disable_env_checker=True,  # Gymnasium checks the outer environment
    )
    env = wrappers.StickyAction(_KeepGameLoaded(env), repeat_action_probability)
    env = wrappers.AtariPreprocessing(
        env,
        noop_max=_NOOP_MAX,
        frame_skip=_FRAME_SKIP,
        screen_size=screen_size,
        scale_obs=scale_images,
    )
    return wrappers.FrameStackObservation(env, stack_size)


def _register_games():
    # Otherwise, each emulator prints its name.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gym.register_envs(ale_py)
    for spec in list(gym.registry.values()):
        if spec.namespace == "ALE" and spec.version == 5:
            gym.register(
                f"Small{spec.name}-v0",
                "tf_reinforce.atari:make",
                kwargs={"game": spec.name},
            )


_register_games()
