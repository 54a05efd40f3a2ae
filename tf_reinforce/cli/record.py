"""Runs the command `record`, which writes videos of a trained agent."""

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments
from tf_reinforce.support import validation


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce record`."""
    command = subparsers.add_parser(
        "record",
        help="record videos of a trained agent",
        description="Plays the first episodes of `evaluate` with the same seed, and "
        "writes an MP4 video of each. No display is needed.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument(
        "--out",
        metavar="FILE",
        help="video, with the extension .mp4 (RUN/video.mp4); the names of several "
        "videos end in _1, _2 and so on",
    )
    command.add_argument(
        "--episodes", type=argument_types.count, metavar="N", default=1, help="(1)"
    )
    command.add_argument(
        "--workers",
        type=argument_types.count,
        default=2,
        metavar="N",
        help="processes that play and render (2)",
    )
    _add_env_options(command)
    agent_files.add_max_bytes(command)


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


def run(options):
    """Runs `tf-reinforce record` and returns the exit code."""
    from tf_reinforce.experiments import recording

    out = shared_arguments.output_path(options.out, [options.run], "video.mp4")
    for name in ("episodes", "workers"):
        validation.positive_int(name, getattr(options, name))
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    validation.check_seed(options.seed)
    recording.import_ffmpeg()
    paths = recording.video_paths(out, options.episodes)
    agent, env, env_options = agent_files.load_with_env(options, options.run)
    metrics = recording.record(
        agent,
        env,
        out,
        options.episodes,
        seed=options.seed,
        deterministic=not options.stochastic,
        workers=options.workers,
        **env_options,
    )
    count = len(paths)
    text = f"{count} episodes in {paths[0]} to {paths[-1]}"
    text = f"1 episode in {paths[0]}" if count == 1 else text
    print(
        f"recorded {text}: mean return {metrics['episode_return']:.6g}, "
        f"mean length {metrics['episode_length']:.6g}"
    )
    return 0
