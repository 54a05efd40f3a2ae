"""Runs the command `plot`, which draws the learning curves of runs."""

from tf_reinforce import validation
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce plot`."""
    command = subparsers.add_parser(
        "plot",
        help="draw the learning curves of runs",
        description="Draws a line for each run. With three or more seeds, the line is "
        "the interquartile mean over the seeds, and the area is its 95 %% bootstrap "
        "interval.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", **shared_arguments.RUNS)
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


def run(options):
    """Runs `tf-reinforce plot` and returns the exit code."""
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import plots

    plots.check_path(options.out)
    if options.window is not None:
        validation.positive_int("window", options.window)
    runs = [curves.read(run) for run in options.run]
    keys = options.key or ["episode_return"]
    plots.save(plots.draw(runs, keys, options.x, options.window), options.out)
    print(f"drawn to {options.out}: {', '.join(keys)} of {len(runs)} runs")
    return 0
