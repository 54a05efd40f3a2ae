"""Runs the command `bench-env`, which measures an environment."""

from tf_reinforce import config
from tf_reinforce import startup
from tf_reinforce import validation
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import shared_arguments


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce bench-env`."""
    command = subparsers.add_parser(
        "bench-env",
        help="measure an environment, and recommend num_envs and workers",
        description="Measures steps and resets of an environment, then collects episodes "
        "with an untrained policy for several numbers of environments and workers, and "
        "recommends --num-envs and --workers for this machine.",
    )
    command.set_defaults(command=run)
    command.add_argument("env", metavar="ENV", help="environment id, also module:Id-v0")
    command.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    command.add_argument(
        "--seconds", type=float, default=2.0, help="time of each measurement (2)"
    )
    command.add_argument(
        "--episodes",
        type=argument_types.count,
        default=config.EPISODES_PER_EPOCH,
        help="episodes of an update",
    )
    command.add_argument(
        "--workers",
        type=argument_types.count,
        nargs="+",
        metavar="N",
        help="numbers of processes to measure (up to the number of cores)",
    )
    command.add_argument(
        "--max-episode-steps", type=argument_types.count, help="time limit"
    )
    command.add_argument(
        "--action-mask", metavar="PATH", help="for example info/action_mask"
    )


def run(options):
    """Runs `tf-reinforce bench-env` and returns the exit code."""
    validation.within("seconds", options.seconds, 0.01, 3600)
    validation.positive_int("episodes", options.episodes)
    for count in options.workers or ():
        validation.positive_int("workers", count)
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    env = env_ids.resolve_env(options.env)
    startup.import_tensorflow()
    env = env_ids.find_env(env)
    from tf_reinforce.experiments import bench_env as benchmarks

    result = benchmarks.bench_env(
        env,
        seconds=options.seconds,
        episodes=options.episodes,
        workers=options.workers,
        env_kwargs=dict(options.env_arg or ()),
        max_episode_steps=options.max_episode_steps,
        action_mask=options.action_mask,
    )
    print(result)
    return 0
