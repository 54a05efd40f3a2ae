"""Runs all commands but `train`, for example `evaluate` and `export`."""

import json
import os

from tf_reinforce import files
from tf_reinforce import startup
from tf_reinforce import validation
from tf_reinforce.cli import env_ids


def evaluate(options):
    """Runs `tf-reinforce evaluate` and returns the exit code."""
    _check_evaluate_options(options)
    limits = _load_limits(options)
    path = _agent_file(options.run, limits)
    startup.import_tensorflow()
    from tf_reinforce.experiments import runs
    from tf_reinforce.loading import keras_file

    agent = keras_file.load(path, limits=limits)
    env, env_options = runs.read_env(options.run, dict(options.env_arg or ()))
    env = options.env or env
    if env is None:
        raise ValueError(
            f"{options.run} contains no environment id, or an id of the form "
            "`module:Id`. For safety, `evaluate` imports no module that a run "
            "directory names. Give --env."
        )
    metrics = agent.evaluate(
        env_ids.find_env(env),
        options.episodes,
        deterministic=not options.stochastic,
        seed=options.seed,
        num_envs=options.num_envs,
        workers=options.workers,
        env_kwargs=env_options["env_kwargs"],
        max_episode_steps=options.max_episode_steps or env_options["max_episode_steps"],
    )
    print(json.dumps(metrics, indent=2))
    return 0


def _check_evaluate_options(options):
    for name in ("episodes", "num_envs", "workers"):
        validation.positive_int(name, getattr(options, name))
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    validation.check_seed(options.seed)
    if options.env is not None:
        options.env = env_ids.resolve_env(options.env)


def export(options):
    """Runs `tf-reinforce export` and returns the exit code."""
    files.expect_replaceable_folder(options.out)
    limits = _load_limits(options)
    path = _agent_file(options.run, limits)
    startup.import_tensorflow()
    from tf_reinforce.loading import keras_file

    keras_file.load(path, limits=limits).export(options.out)
    print(f"exported to {options.out}: act, sample, distribution, log_prob")
    return 0


def _load_limits(options):
    """Returns the `LoadLimits` that `--max-bytes` and `--max-layers` set."""
    from tf_reinforce.loading import archive

    limits = {name: getattr(options, name) for name in ("max_bytes", "max_layers")}
    return archive.LoadLimits(**{k: x for k, x in limits.items() if x is not None})


def _agent_file(run, limits):
    """Returns the path of the agent file of a run; raises an error if it is damaged."""
    from tf_reinforce.experiments import run_config
    from tf_reinforce.loading import archive

    path = run_config.agent_file(run)
    _expect_path(path)
    with archive.name_file(path):
        archive.read(os.fspath(path), limits)
    return path


def _expect_path(path):
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")


def check_env(options):
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


def bench_env(options):
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


def plot(options):
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


def compare(options):
    """Runs `tf-reinforce compare` and returns the exit code."""
    from tf_reinforce.experiments import comparison
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import plots

    if options.out is not None:
        plots.check_path(options.out)
    runs = [curves.read(run) for run in options.run]
    print(comparison.table(comparison.compare(runs)))
    if options.out is not None:
        plots.save(plots.draw(runs), options.out)
        print(f"drawn to {options.out}")
    return 0


def replay(options):
    """Runs `tf-reinforce replay` and returns the exit code."""
    _expect_path(options.update)
    limits = _load_limits(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import replay as replays

    result = replays.replay(options.update, limits=limits)
    print(result)
    return 0 if result.error is None else 1


def explain(options):
    """Runs `tf-reinforce explain` and returns the exit code."""
    from tf_reinforce.functional import explained_action

    arguments = {
        name: getattr(options, name)
        for name in ("probs", "logits", "action", "counts", "mean", "std", "sample")
        if getattr(options, name) is not None
    }
    explained_action.check(**arguments)
    startup.import_tensorflow()
    from tf_reinforce.functional import explanation

    print(explanation.text(**arguments))
    return 0
