"""Runs the command `plot`, which draws the learning curves or the policy of runs."""

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments
from tf_reinforce.support import validation


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce plot`."""
    command = subparsers.add_parser(
        "plot",
        help="draw the learning curves of runs, or the policy of one run",
        description="Draws a line for each run. With three or more seeds, the line is "
        "the interquartile mean over the seeds, and the area is its 95 %% bootstrap "
        "interval. With --policy, draws the policy of one run: over all observations, if "
        "an observation has one or two numbers, else along one episode with sampled "
        "actions.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", **shared_arguments.RUNS)
    command.add_argument(
        "--out",
        metavar="FILE",
        help="PNG, SVG or PDF (RUN/curve.png, with --policy RUN/policy.png; with "
        "several runs curve.png)",
    )
    _add_curve_options(command.add_argument_group("learning curves"))
    _add_policy_options(command.add_argument_group("policy"))


def _add_curve_options(group):
    group.add_argument(
        "--key",
        action="append",
        metavar="KEY",
        help="key of log.csv, for example entropy; several times for several panels "
        "(episode_return)",
    )
    group.add_argument(
        "--x",
        choices=("steps", "episodes", "updates", "seconds"),
        help="horizontal axis (steps)",
    )
    group.add_argument(
        "--window",
        type=argument_types.count,
        metavar="N",
        help="draw means of N updates (a fiftieth of all updates)",
    )


def _add_policy_options(group):
    group.add_argument(
        "--policy",
        action="store_true",
        help="draw the policy of one run directory or agent file",
    )
    group.add_argument("--env", help="environment id (that of the run)")
    group.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    group.add_argument("--seed", type=argument_types.count, help="(0)")
    group.add_argument(
        "--max-episode-steps",
        type=argument_types.count,
        metavar="N",
        help="time limit (that of the run)",
    )
    agent_files.add_max_bytes(group)


# The options that have no effect with --policy, and those that have none without.
_CURVE_OPTIONS = "key", "x", "window"
_POLICY_OPTIONS = "env", "env_arg", "seed", "max_episode_steps", "max_bytes"


def run(options):
    """Runs `tf-reinforce plot` and returns the exit code."""
    from tf_reinforce.experiments import plots

    unused = _CURVE_OPTIONS if options.policy else _POLICY_OPTIONS
    for name in unused:
        if getattr(options, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} has no effect "
                f"{'with' if options.policy else 'without'} --policy. Omit the option."
            )
    name = "policy.png" if options.policy else "curve.png"
    options.out = shared_arguments.output_path(options.out, options.run, name)
    plots.check_path(options.out)
    return _draw_policy(options) if options.policy else _draw_curves(options)


def _draw_curves(options):
    from tf_reinforce.experiments import plots

    if options.window is not None:
        validation.positive_int("window", options.window)
    runs = shared_arguments.read_runs(options.run)
    keys, axis = options.key or ["episode_return"], options.x or "steps"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    plots.save(plots.draw(runs, keys, axis, options.window), options.out)
    print(f"drawn to {options.out}: {', '.join(keys)} of {count}")
    return 0


def _draw_policy(options):
    if len(options.run) > 1:
        raise ValueError(
            f"--policy draws the policy of one run. Received: {len(options.run)} runs"
        )
    [run] = options.run
    seed = validation.check_seed(options.seed or 0)
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    agent, env, env_options = agent_files.load_with_env(options, run)
    from tf_reinforce.experiments import plots
    from tf_reinforce.experiments import policy_plots

    figure = policy_plots.draw(agent, env, seed=seed, **env_options)
    plots.save(figure, options.out)
    print(f"drawn to {options.out}: the policy of {run}")
    return 0
