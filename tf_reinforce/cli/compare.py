"""Runs the command `compare`, which compares runs in a table."""

from tf_reinforce.cli import shared_arguments


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce compare`."""
    command = subparsers.add_parser(
        "compare",
        help="compare runs in a table, and draw their curves",
        description="Prints interquartile means over the seeds of each run, with 95 %% "
        "bootstrap intervals, and the difference to the first run.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", **shared_arguments.RUNS)
    command.add_argument("--out", metavar="FILE", help="draw the curves to this file")


def run(options):
    """Runs `tf-reinforce compare` and returns the exit code."""
    from tf_reinforce.experiments import comparison
    from tf_reinforce.experiments import plots

    if options.out is not None:
        plots.check_path(options.out)
    runs = shared_arguments.read_runs(options.run)
    print(comparison.table(comparison.compare(runs)))
    if options.out is not None:
        plots.save(plots.draw(runs), options.out)
        print(f"drawn to {options.out}")
    return 0
