"""The commands that draw and compare runs: `plot` and `compare`."""

import dataclasses
from typing import Annotated, Literal

from tf_reinforce import saving
from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import play
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Seed


@dataclasses.dataclass
class PlotOptions:
    """The options of `plot`.

    Attributes:
        runs: Run directory, or a folder with a run directory for each seed.
        out: PNG, SVG or PDF (RUN/curve.png, with --policy RUN/policy.png; with several
            runs curve.png).
        key: Key of log.csv, for example entropy; several times for several panels
            (episode_return).
        x: Horizontal axis (steps).
        window: Draw means of N updates (a fiftieth of all updates).
        policy: Draw the policy of one run directory or agent file.
    """

    runs: list[str]
    _: dataclasses.KW_ONLY
    out: str | None = None
    key: Annotated[tuple, str] = ()
    x: Literal["steps", "episodes", "updates", "seconds"] | None = None
    window: Count | None = None
    policy: bool = False
    env: str | None = None
    env_arg: EnvArguments = ()
    seed: Seed | None = None
    max_episode_steps: Count | None = None
    max_bytes: Count | None = None


_FOR_CURVES = "key", "x", "window"
_FOR_POLICIES = "env", "env_arg", "seed", "max_episode_steps", "max_bytes"


def plot(options: PlotOptions):
    """Draw the learning curves of runs, or the policy of one run.

    Each run is a line. If a run has three or more seeds, its line shows their
    interquartile mean, and the area around the line is the 95 % bootstrap interval.

    With --policy, the policy of one run is drawn instead. If observations have one or two
    numbers, the plot shows the policy over all observations. Otherwise, it shows the
    policy along one episode with sampled actions.
    """
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import plots

    runs, name = options.runs, "policy.png" if options.policy else "curve.png"
    for unused in _FOR_CURVES if options.policy else _FOR_POLICIES:
        if getattr(options, unused) not in (None, []):
            word = "with" if options.policy else "without"
            unused = cli_options.flag(unused)
            raise ValueError(f"{unused} has no effect {word} --policy. Omit it.")
    out = play.output_path(options.out, runs, name)
    if options.policy:
        return _draw_policy(options, out)
    found, keys = [*map(curves.read, runs)], options.key or ["episode_return"]
    plots.save(plots.draw(found, keys, options.x or "steps", options.window), out)
    count = "1 run" if len(found) == 1 else f"{len(found)} runs"
    print(f"drawn to {out}: {', '.join(keys)} of {count}")
    return 0


def _draw_policy(options, out):
    if len(options.runs) > 1:
        raise ValueError(f"--policy draws one run. Received: {len(options.runs)} runs")
    [run], max_bytes = options.runs, options.max_bytes or saving.MAX_BYTES
    agent, env, more = agent_files.load_with_env(run, options, max_bytes)
    from tf_reinforce.experiments import plots
    from tf_reinforce.experiments import policy_plots

    plots.save(policy_plots.draw(agent, env, seed=options.seed or 0, **more), out)
    print(f"drawn to {out}: the policy of {run}")
    return 0


def compare(runs: list[str], *, out: str | None = None):
    """Compare runs in a table, and draw their curves.

    The table shows the interquartile mean over the seeds of each run with a 95 %
    bootstrap interval, and the difference from the first run.

    Args:
        runs: Run directory, or a folder with a run directory for each seed.
        out: Draw the curves to this file.
    """
    from tf_reinforce.experiments import comparison
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import plots

    found = [*map(curves.read, runs)]
    print(comparison.table(comparison.compare(found)))
    if out is not None:
        plots.save(plots.draw(found), out)
        print(f"drawn to {out}")
    return 0
