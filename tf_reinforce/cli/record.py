"""Runs the command `record`, which writes a video of a trained agent."""

from tf_reinforce import validation
from tf_reinforce.cli import agent_files
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce record`."""
    command = subparsers.add_parser(
        "record",
        help="record a video of a trained agent",
        description="Plays the first episodes of `evaluate` with the same seed, and "
        "writes a video of them, an MP4 or a GIF. A picture shows the steps and the "
        "return so far. No display is needed.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument(
        "--out",
        metavar="FILE",
        help="video, with the extension .mp4 or .gif (RUN/video.mp4)",
    )
    command.add_argument(
        "--episodes", type=argument_types.count, metavar="N", default=1, help="(1)"
    )
    command.add_argument(
        "--num-envs",
        type=argument_types.count,
        default=1,
        metavar="N",
        help="episodes that are shown side by side (1)",
    )
    _add_env_options(command)
    _add_picture_options(command)
    agent_files.add_load_limits(command)


def _add_env_options(command):
    command.add_argument("--env", help="environment id (that of the run)")
    command.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    command.add_argument("--seed", **shared_arguments.EPISODES_SEED)
    command.add_argument(
        "--max-episode-steps",
        type=argument_types.count,
        metavar="N",
        help="time limit (that of the run)",
    )
    command.add_argument(
        "--stochastic",
        action="store_true",
        help="sample actions instead of taking the most likely one",
    )


def _add_picture_options(command):
    command.add_argument(
        "--fps",
        type=float,
        metavar="N",
        help="pictures, which are steps, per second (that of the environment)",
    )
    command.add_argument(
        "--size",
        type=argument_types.count,
        metavar="PIXELS",
        help="longer side of the picture of one environment (in a GIF 300, else that of "
        "the environment)",
    )


def run(options):
    """Runs `tf-reinforce record` and returns the exit code."""
    options.out = shared_arguments.output_path(options.out, [options.run], "video.mp4")
    _check_options(options)
    agent, env, env_options = agent_files.load_with_env(options, options.run)
    from tf_reinforce.experiments import recording

    metrics = recording.record(
        agent,
        env,
        options.out,
        options.episodes,
        num_envs=options.num_envs,
        seed=options.seed,
        deterministic=not options.stochastic,
        fps=options.fps,
        size=options.size,
        **env_options,
    )
    count = options.episodes
    episodes = "1 episode" if count == 1 else f"{count} episodes"
    print(
        f"recorded {episodes} in {options.out}: mean return "
        f"{metrics['episode_return']:.6g}, mean length {metrics['episode_length']:.6g}"
    )
    return 0


def _check_options(options):
    from tf_reinforce.experiments import video_files

    for name in ("episodes", "num_envs"):
        validation.positive_int(name, getattr(options, name))
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    validation.check_seed(options.seed)
    video_files.check_options(options.out, options.fps, options.size)
