"""Runs the command `evaluate`, which evaluates a trained agent."""

import json

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments
from tf_reinforce.settings import config
from tf_reinforce.support import validation


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce evaluate`."""
    command = subparsers.add_parser("evaluate", help="evaluate a trained agent")
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument(
        "--episodes", type=argument_types.count, default=100, help="(100)"
    )
    command.add_argument("--env", help="environment id (that of the run)")
    command.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    command.add_argument("--seed", **shared_arguments.EPISODES_SEED)
    command.add_argument(
        "--num-envs",
        type=argument_types.count,
        default=config.FitOptions.num_envs,
        help="environments side by side (8); the result does not depend on it",
    )
    command.add_argument(
        "--workers",
        type=argument_types.count,
        default=config.FitOptions.workers,
        help="processes that collect the episodes",
    )
    command.add_argument(
        "--max-episode-steps",
        type=argument_types.count,
        help="time limit (that of the run)",
    )
    command.add_argument(
        "--stochastic",
        action="store_true",
        help="sample actions instead of taking the most likely one",
    )
    agent_files.add_max_bytes(command)


def run(options):
    """Runs `tf-reinforce evaluate` and returns the exit code."""
    _check_options(options)
    agent, env, env_options = agent_files.load_with_env(options, options.run)
    metrics = agent.evaluate(
        env,
        options.episodes,
        deterministic=not options.stochastic,
        seed=options.seed,
        num_envs=options.num_envs,
        workers=options.workers,
        **env_options,
    )
    print(json.dumps(metrics, indent=2))
    return 0


def _check_options(options):
    for name in ("episodes", "num_envs", "workers"):
        validation.positive_int(name, getattr(options, name))
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    validation.check_seed(options.seed)
