"""Runs the command `check-env`, which checks an environment."""

from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import shared_arguments
from tf_reinforce.support import startup
from tf_reinforce.support import validation


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce check-env`."""
    command = subparsers.add_parser(
        "check-env",
        help="check an environment, and explain what to correct",
        description="Collects episodes with a random policy, as in training, and prints "
        "errors, warnings and notes. The last notes say what a step costs, and which "
        "--num-envs and --workers to take. The exit code is 1 if there is an error. The "
        "rules are in docs/environments.md.",
    )
    command.set_defaults(command=run)
    command.add_argument("env", metavar="ENV", help="environment id, also module:Id-v0")
    command.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    command.add_argument("--episodes", type=argument_types.count, default=5)
    command.add_argument("--seed", type=argument_types.count, default=0)
    command.add_argument(
        "--max-episode-steps", type=argument_types.count, help="time limit"
    )
    command.add_argument(
        "--action-mask", metavar="PATH", help="for example info/action_mask"
    )


def run(options):
    """Runs `tf-reinforce check-env` and returns the exit code, 1 if there is an error."""
    validation.check_seed(options.seed)
    validation.positive_int("episodes", options.episodes)
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    env = env_ids.resolve_env(options.env)
    startup.import_tensorflow()
    env = env_ids.find_env(env)
    from tf_reinforce.testing import environments

    report = environments.check_env(
        env,
        episodes=options.episodes,
        seed=options.seed,
        env_kwargs=dict(options.env_arg or ()),
        max_episode_steps=options.max_episode_steps,
        action_mask=options.action_mask,
    )
    print(report)
    return int(bool(report.errors))
