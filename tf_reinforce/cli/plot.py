"""The commands that draw and compare runs: `plot` and `compare`."""

import sys
from typing import Annotated, Literal

from tf_reinforce import saving
from tf_reinforce.cli import agent_files
from tf_reinforce.cli import play
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Seed


def plot(
    runs: list[str],
    *,
    out: str | None = None,
    key: Annotated[tuple, str] = (),
    x: Literal["steps", "episodes", "updates", "seconds"] | None = None,
    window: Count | None = None,
    policy: bool = False,
    env: str | None = None,
    env_arg: EnvArguments = (),
    seed: Seed | None = None,
    max_episode_steps: Count | None = None,
    max_bytes: Count | None = None,
):
    """Draw the learning curves of runs, or the policy of one run.

    Each run is a line. With three or more seeds, the line is their interquartile mean,
    and the area around it the 95 % bootstrap interval. --policy draws the policy of one
    run: over all observations if they have one or two numbers, else along one episode
    with sampled actions.

    Args:
        out: PNG, SVG or PDF (RUN/curve.png, with --policy RUN/policy.png; with several
            runs curve.png).
        key: Key of log.csv, for example entropy; several times for several panels
            (episode_return).
        x: Horizontal axis (steps).
        window: Draw means of N updates (a fiftieth of all updates).
        policy: Draw the policy of one run directory or agent file.
    """
    from tf_reinforce.experiments import plots

    curve_options = dict(key=key, x=x, window=window)
    policy_options = dict(
        env=env,
        env_arg=env_arg,
        seed=seed,
        max_episode_steps=max_episode_steps,
        max_bytes=max_bytes,
    )
    for name, value in (curve_options if policy else policy_options).items():
        if value not in (None, []):
            word = "with" if policy else "without"
            text = f"--{name.replace('_', '-')} has no effect {word} --policy. Omit it."
            raise ValueError(text)
    out = play.output_path(out, runs, "policy.png" if policy else "curve.png")
    plots.check_path(out)
    if policy:
        return _draw_policy(runs, out, **policy_options)
    found = _read_runs(runs)
    keys = key or ["episode_return"]
    plots.save(plots.draw(found, keys, x or "steps", window), out)
    count = "1 run" if len(found) == 1 else f"{len(found)} runs"
    print(f"drawn to {out}: {', '.join(keys)} of {count}")
    return 0


def _draw_policy(runs, out, env, env_arg, seed, max_episode_steps, max_bytes):
    if len(runs) > 1:
        raise ValueError(f"--policy draws one run. Received: {len(runs)} runs")
    task = env, env_arg, max_episode_steps
    max_bytes = max_bytes or saving.MAX_BYTES
    agent, env, options = agent_files.load_with_env(runs[0], max_bytes, *task)
    from tf_reinforce.experiments import plots
    from tf_reinforce.experiments import policy_plots

    plots.save(policy_plots.draw(agent, env, seed=seed or 0, **options), out)
    print(f"drawn to {out}: the policy of {runs[0]}")
    return 0


def compare(runs: list[str], *, out: str | None = None):
    """Compare runs in a table, and draw their curves.

    For each run, prints the interquartile mean over its seeds with a 95 % bootstrap
    interval, and the difference to the first run.

    Args:
        out: Draw the curves to this file.
    """
    from tf_reinforce.experiments import comparison
    from tf_reinforce.experiments import plots

    if out is not None:
        plots.check_path(out)
    found = _read_runs(runs)
    print(comparison.table(comparison.compare(found)))
    if out is not None:
        plots.save(plots.draw(found), out)
        print(f"drawn to {out}")
    return 0


def _read_runs(folders):
    """Reads the `curves.Run`s of folders, and reports each folder without a log."""
    from tf_reinforce.experiments import curves

    runs, skipped = curves.read_all(folders)
    for folder in skipped:
        text = f"tf-reinforce: skipped {folder}, which contains no {curves.LOG}"
        print(text, file=sys.stderr)
    return runs
