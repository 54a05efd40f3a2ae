"""Defines the parsers of the commands and their options."""

import argparse

from tf_reinforce import config
from tf_reinforce import version
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import commands
from tf_reinforce.cli import train
from tf_reinforce.cli import train_options


def make_parser():
    """Returns the parser of `tf-reinforce`, with a parser for each command."""
    parser = argparse.ArgumentParser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    _train_parser(subparsers)
    _evaluate_parser(subparsers)
    _export_parser(subparsers)
    _plot_parser(subparsers)
    _compare_parser(subparsers)
    _check_env_parser(subparsers)
    _bench_env_parser(subparsers)
    _replay_parser(subparsers)
    _explain_parser(subparsers)
    return parser


def _train_parser(subparsers):
    command = subparsers.add_parser(
        "train",
        help="train an agent on an environment",
        description="Without a budget (--epochs, --steps, or that of a preset) training "
        "ends when an evaluation over 100 episodes reaches the target return, or after "
        "300 updates. With a budget, the target is only reported.",
    )
    command.set_defaults(command=train.train)
    for option in train_options.TRAIN_OPTIONS:
        command.add_argument(option.flag, **option.arguments)
    for names, replacement in train_options.UNKNOWN_OPTIONS.items():
        suppress = dict(default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument(
            *names, action=_Unknown, nargs="?", const=replacement, **suppress
        )


class _Unknown(argparse.Action):
    """Rejects an option of other libraries, like `--lr`, and prints the option to use."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"there is no option {option_string}. Use {self.const}.")


def _evaluate_parser(subparsers):
    command = subparsers.add_parser("evaluate", help="evaluate a trained agent")
    command.set_defaults(command=commands.evaluate)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--episodes", type=argument_types.count, default=100)
    command.add_argument("--env", help="environment id (that of the run)")
    command.add_argument("--env-arg", **train_options.ENV_ARG)
    command.add_argument("--seed", type=argument_types.count, default=0)
    command.add_argument(
        "--num-envs", type=argument_types.count, default=config.FitOptions.num_envs
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
    _add_load_limits(command)


def _export_parser(subparsers):
    command = subparsers.add_parser("export", help="write a SavedModel of the policy")
    command.set_defaults(command=commands.export)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    _add_load_limits(command)


_RUNS = dict(
    nargs="+",
    metavar="RUN",
    help="run directory, or a folder with a run directory for each seed",
)


def _plot_parser(subparsers):
    command = subparsers.add_parser(
        "plot",
        help="draw the learning curves of runs",
        description="Draws a line for each run. With three or more seeds, the line is "
        "the interquartile mean over the seeds, and the area is its 95 %% bootstrap "
        "interval.",
    )
    command.set_defaults(command=commands.plot)
    command.add_argument("run", **_RUNS)
    command.add_argument(
        "--out", default="curves.png", metavar="FILE", help="PNG, SVG or PDF (curves.png)"
    )
    command.add_argument(
        "--key",
        action="append",
        metavar="KEY",
        help="key of log.csv, for example entropy; several times for several panels "
        "(episode_return)",
    )
    command.add_argument(
        "--x",
        choices=("steps", "episodes", "updates", "seconds"),
        default="steps",
        help="horizontal axis (steps)",
    )
    command.add_argument(
        "--window",
        type=argument_types.count,
        metavar="N",
        help="draw means of N updates (a fiftieth of all updates)",
    )


def _compare_parser(subparsers):
    command = subparsers.add_parser(
        "compare",
        help="compare runs in a table, and draw their curves",
        description="Prints interquartile means over the seeds of each run, with 95 %% "
        "bootstrap intervals, and the difference to the first run.",
    )
    command.set_defaults(command=commands.compare)
    command.add_argument("run", **_RUNS)
    command.add_argument("--out", metavar="FILE", help="draw the curves to this file")


def _check_env_parser(subparsers):
    command = subparsers.add_parser(
        "check-env",
        help="check an environment, and explain what to correct",
        description="Collects episodes with a random policy, as in training, and prints "
        "errors, warnings and notes. The exit code is 1 if there is an error. The rules "
        "are in docs/environments.md.",
    )
    command.set_defaults(command=commands.check_env)
    command.add_argument("env", metavar="ENV", help="environment id, also module:Id-v0")
    command.add_argument("--env-arg", **train_options.ENV_ARG)
    command.add_argument("--episodes", type=argument_types.count, default=5)
    command.add_argument("--seed", type=argument_types.count, default=0)
    command.add_argument(
        "--max-episode-steps", type=argument_types.count, help="time limit"
    )
    command.add_argument(
        "--action-mask", metavar="PATH", help="for example info/action_mask"
    )


def _bench_env_parser(subparsers):
    command = subparsers.add_parser(
        "bench-env",
        help="measure an environment, and recommend num_envs and workers",
        description="Measures steps and resets of an environment, then collects episodes "
        "with an untrained policy for several numbers of environments and workers, and "
        "recommends --num-envs and --workers for this machine.",
    )
    command.set_defaults(command=commands.bench_env)
    command.add_argument("env", metavar="ENV", help="environment id, also module:Id-v0")
    command.add_argument("--env-arg", **train_options.ENV_ARG)
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


def _replay_parser(subparsers):
    command = subparsers.add_parser(
        "replay",
        help="repeat and explain an update that was refused as not finite",
        description="Repeats an update that was refused because a number was not "
        "finite, and explains the cause. The exit code is 1 if the update is refused "
        "again, and 0 if it is finite.",
    )
    command.set_defaults(command=commands.replay)
    command.add_argument(
        "update", metavar="DIR", help="folder refused_update_N of a run directory"
    )
    _add_load_limits(command)


def _add_load_limits(command):
    """Adds the options of a command that loads an agent, one for each `LoadLimits`."""
    for name in ("bytes", "layers"):
        command.add_argument(
            f"--max-{name}",
            type=argument_types.count,
            metavar="N",
            help=f"largest number of {name} of the agent file; the limit refuses files "
            "that would fill the memory",
        )


def _explain_parser(subparsers):
    command = subparsers.add_parser(
        "explain",
        help="print the gradient of one action's log-probability",
        description="Prints the characteristic eligibility, d log-probability / d "
        "parameter, in closed form beside automatic differentiation. Give --probs or "
        "--logits with --action or --counts, or --mean, --std and --sample. With "
        "--counts alone, all probabilities are equal.",
    )
    command.set_defaults(command=commands.explain)
    add = command.add_argument
    add("--probs", type=float, nargs="+", metavar="P", help="relative probabilities")
    add("--logits", type=float, nargs="+", metavar="Z")
    add("--action", type=float, metavar="A", help="the sampled category, from 0")
    add(
        "--counts",
        type=float,
        nargs="+",
        metavar="N",
        help="how often each category was sampled",
    )
    add("--mean", type=float, nargs="+", metavar="M", help="of a diagonal Gaussian")
    add("--std", type=float, nargs="+", metavar="S")
    add("--sample", type=float, nargs="+", metavar="Y")
