"""The commands besides `train` and `tune`: they use a run, an environment or a preset."""

import dataclasses
import json as json_
import os
import re
from typing import Annotated, Literal

from tf_reinforce import saving
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import plans
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.experiments import seed_processes
from tf_reinforce.settings import config
from tf_reinforce.settings import run_config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Finite
from tf_reinforce.settings.schema import Seed
from tf_reinforce.support import files
from tf_reinforce.support import own_code
from tf_reinforce.support import startup
from tf_reinforce.support import validation


@dataclasses.dataclass(kw_only=True)
class EvaluateOptions(cli_options.PlayOptions):
    """The options of `evaluate`.

    Attributes:
        num_envs: Environments side by side; the result does not depend on it.
        info_keys: Numbers of an episode's last info to average (those of the run).
    """

    episodes: Count = 100
    num_envs: Count = 8
    info_keys: config.InfoKeys | None = None


def evaluate(options: EvaluateOptions):
    """Evaluate a trained agent."""
    agent, env, more = _load(options)
    more |= dict(num_envs=options.num_envs)
    if options.info_keys is not None:
        more["info_keys"] = options.info_keys
    metrics = agent.evaluate(env, options.episodes, **more)
    print(json_.dumps(metrics, indent=2))
    return 0


@dataclasses.dataclass(kw_only=True)
class RecordOptions(cli_options.PlayOptions):
    """The options of `record`.

    Attributes:
        out: Video, with the extension .mp4 (RUN/video.mp4); several videos end in _1, _2
            and so on.
        workers: Processes that play and render.
    """

    out: str | None = None
    workers: Count = 2


def record(options: RecordOptions):
    """Record videos of a trained agent.

    Plays the first episodes of `evaluate` with the same seed, and writes each of them as
    an MP4 video. No display is needed.
    """
    from tf_reinforce.experiments import recording

    out = output_path(options.out, [options.run], "video.mp4")
    paths = recording.video_paths(out, options.episodes)
    agent, env, more = _load(options)
    del more["info_keys"]
    metrics = recording.record(agent, env, out, options.episodes, **more)
    print(
        f"recorded {', '.join(map(str, paths))}: mean return "
        f"{metrics['episode_return']:.6g}, mean length {metrics['episode_length']:.6g}"
    )
    return 0


def _load(options):
    """Loads the agent of a run, and finds the environment in which it plays.

    Modules that a file of the run names are not imported.

    Args:
        options: Options of `evaluate` or `record`.

    Returns:
        The `Reinforce`, the environment id, and a dict of further arguments of
        `Reinforce.evaluate`.

    Raises:
        ValueError: If neither the user nor the run names an environment that may be used.
    """
    run, env = options.run, options.env and plans.find_env(options.env)
    if options.agent is not None:
        own_code.load("--agent", options.agent)  # its module has the classes of the agent
    _agent_file(run, options.max_bytes)
    in_file, more = run_config.read_env(run, dict(options.env_arg))
    if env is None and in_file is None:
        named = str(run_config.read(run).get("env", ""))[:100]
        example = named if re.search(r"-v\d+$", named) else "MODULE:ID"
        raise ValueError(
            f"{run} names no environment that a command may make by itself. Name one "
            "that is registered with Gymnasium, and its module only if you trust it: "
            f"--env {example}"
        )
    if options.max_episode_steps is not None:
        more["max_episode_steps"] = options.max_episode_steps
    if options.stochastic is not None:
        more["deterministic"] = not options.stochastic
    more |= dict(seed=options.seed, workers=options.workers)
    return load(run, options.max_bytes), env or plans.find_env(in_file), more


def output_path(out, runs, name):
    """Returns the path of the file that a command writes.

    Args:
        out: The value of `--out FILE`, or `None`.
        runs: List of the paths of the runs that the command reads.
        name: File name without `--out`. It goes to the run's folder, or to the current
            one for several runs or an agent file.
    """
    is_folder = len(runs) == 1 and os.path.isdir(runs[0])
    return out or (os.path.join(runs[0], name) if is_folder else name)


def export(
    run: str,
    *,
    out: str,
    format: Literal["tf_saved_model", "onnx", "litert"] = "tf_saved_model",
    check: bool = False,
    env: str | None = None,
    env_arg: EnvArguments = (),
    agent: str | None = None,
    observations: Count | None = None,
    max_bytes: Count = saving.MAX_BYTES,
):
    """Write the policy as a SavedModel, ONNX or LiteRT.

    The files run with TensorFlow, ONNX Runtime or LiteRT, without tf_reinforce: see
    docs/export.md.

    Args:
        out: Folder to write.
        format: Format of the files.
        check: Load the files, and compare their results with the agent on observations
            that it plays (random without an environment); the exit code is 1 if they
            differ by more than 1e-5.
        env: With --check, the environment id (that of the run).
        observations: With --check, the number of observations (1000).
    """
    if not check:
        more = dict(env=env, env_arg=env_arg, observations=observations)
        cli_options.expect_none("without --check", **more)
    env = env and plans.find_env(env)
    files.expect_replaceable_folder(out)
    if agent is not None:
        own_code.load("--agent", agent)
    trained = load(run, max_bytes)
    trained.export(out, format=format)
    names = ", log_prob" if format == "tf_saved_model" else ""
    print(f"exported to {out}: act, sample, distribution{names}")
    if not check:
        return 0
    from tf_reinforce.testing import export_report

    in_file, options = run_config.read_env(run, dict(env_arg))
    env = env or (in_file and plans.find_env(in_file))
    report = export_report.check_export(
        trained,
        out,
        env,
        observations=observations or 1000,
        env_kwargs=options["env_kwargs"],
    )
    print(report)
    return int(not report.passed)


def info(run: str, *, json: bool = False, max_bytes: Count = saving.MAX_BYTES):
    """Print settings, last log row and evaluation of a run.

    The log row contains the last number in each column. For an agent file, only the
    settings are printed. The command starts fast, because TensorFlow is not imported.

    Args:
        json: Print JSON.
    """
    from tf_reinforce.experiments import curves

    facts = curves.info(run, max_bytes)
    print(json_.dumps(facts, indent=2) if json else curves.info_table(facts))
    return 0


def plot(
    runs: list[str],
    *,
    out: str | None = None,
    key: Annotated[tuple, str] = (),
    x: Literal["steps", "episodes", "updates", "seconds"] | None = None,
    window: Count | None = None,
):
    """Draw the learning curves of runs.

    Each run is a line. If a run has three or more seeds, its line shows their
    interquartile mean, and the area around the line is the 95 % bootstrap interval.

    Args:
        runs: Run directory, or a folder with a run directory for each seed.
        out: PNG, SVG or PDF (RUN/curve.png; with several runs curve.png).
        key: Key of log.csv, for example entropy; several times for several panels
            (episode_return, or reward of other models).
        x: Horizontal axis (steps, or updates of other models).
        window: Draw means of N updates (a fiftieth of all updates).
    """
    out = output_path(out, runs, "curve.png")
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import plots

    found = [*map(curves.read, runs)]
    first = found[0].curves[0]
    keys = key or [first.score]
    x = x or ("steps" if "env_steps" in first.columns else "updates")
    plots.save(plots.draw(found, keys, x, window), out)
    count = "1 run" if len(found) == 1 else f"{len(found)} runs"
    print(f"drawn to {out}: {', '.join(keys)} of {count}")
    return 0


def compare(runs: list[str]):
    """Compare runs in a table.

    The table shows the interquartile mean over the seeds of each run with a 95 %
    bootstrap interval, and the difference from the first run. A second one has the
    settings that differ.

    Args:
        runs: Run directory, or a folder with a run directory for each seed.
    """
    from tf_reinforce.experiments import comparison
    from tf_reinforce.experiments import curves

    read = [*map(curves.read, runs)]
    print(comparison.table(comparison.compare(read)))
    if text := comparison.differences(read):
        print(f"\n{text}")
    return 0


def check_env(
    env: str,
    *,
    env_arg: EnvArguments = (),
    episodes: Count = 5,
    seed: Seed = 0,
    max_episode_steps: Count | None = None,
    action_mask: str | None = None,
    head: str | None = None,
):
    """Check an environment, and explain what to correct.

    Collects episodes with a random policy, as a training does, and prints errors,
    warnings and notes. The last notes say how long a step takes, and recommend values for
    --num-envs and --workers. The exit code is 1 if there is an error.
    docs/environments.md lists the rules.

    Args:
        env: Environment id, also module:Id-v0.
        max_episode_steps: Time limit (that of the environment).
        action_mask: Where to find the mask of legal actions, for example
            info/action_mask.
        head: Head of the actions, as in a preset.
    """
    env = plans.find_env(env)
    if head is not None:
        head = schema.read("head", config.TABLES["agent"]["head"], head)
    startup.import_tensorflow()
    from tf_reinforce.testing import environments

    report = environments.check_env(
        env,
        episodes=episodes,
        seed=seed,
        env_kwargs=dict(env_arg),
        max_episode_steps=max_episode_steps,
        action_mask=action_mask,
        head=head,
    )
    print(report)
    return int(bool(report.errors))


_ESTIMATE = "estimator", "logits", "costs", "seed"


def explain(
    *,
    probs: list[float] | None = None,
    logits: list[float] | None = None,
    action: Finite | None = None,
    counts: list[float] | None = None,
    mean: list[float] | None = None,
    std: list[float] | None = None,
    sample: list[float] | None = None,
    estimator: str | None = None,
    costs: list[float] | None = None,
    seed: int | None = None,
):
    """Print the gradient of one action's log-probability.

    This gradient is the characteristic eligibility, d log-probability / d parameter. It
    is computed twice, in closed form and by automatic differentiation.

    For categories, give --probs or --logits together with --action or --counts. If you
    give only --counts, all probabilities are equal. For a Gaussian, give --mean, --std
    and --sample. With --estimator, --logits and --costs, one estimate of the gradient of
    the expected cost is printed beside the exact one.

    Args:
        probs: Relative probabilities.
        logits: Their logarithms.
        action: The sampled category, from 0.
        counts: How often each category was sampled.
        mean: Mean of a diagonal Gaussian.
        std: Its standard deviations.
        sample: A sample of the Gaussian.
        estimator: Name of an estimator of docs/estimator_choice.md.
        costs: The cost of each category, linear between them.
        seed: Of the noise of the estimate.
    """
    arguments = {name: value for name, value in locals().items() if value is not None}
    startup.import_tensorflow()
    if {"estimator", "costs", "seed"} & arguments.keys():
        from tf_reinforce.sampling import estimators

        if not {"estimator", "logits", "costs"} <= arguments.keys() <= {*_ESTIMATE}:
            raise ValueError(
                "Pass --estimator with --logits, --costs and, if you like, --seed. "
                f"Received: {', '.join(sorted(arguments))}."
            )
        arguments["name"] = arguments.pop("estimator")
        print(estimators.explain(**arguments))
        return 0
    from tf_reinforce.functional import explanation

    print(explanation.text(**arguments))
    return 0


_MAKE_AGENT = '''"""The agent of the preset {name}, to change it.

tf-reinforce train {env} --preset {name} --agent MODULE:make_agent
"""

import tf_reinforce as tfr


def make_agent(env, seed):
    return tfr.Reinforce.for_env(
        env,
        seed=seed,
{arguments}
    )'''


def presets(name: str | None = None, *, python: bool = False):
    """List the presets and the returns that they reach.

    The returns were measured as described in docs/presets.md and docs/results.md. With
    NAME, the settings of this preset are printed in the form of a preset file.

    Args:
        name: Name of a preset.
        python: Print a module with the function `make_agent` instead, for --agent.
    """
    if name is None:
        cli_options.expect_none("without NAME", python=python or None)
        _list_presets(toml_files.names())
        return 0
    preset = toml_files.read(name)  # raises an error if it is invalid
    text = toml_files.path_of(name).read_text("utf-8").rstrip().expandtabs()
    if python:
        lines = (f"        {key}={x!r}," for key, x in preset["agent"].items())
        values = {"name": name, "env": preset["env"], "arguments": "\n".join(lines)}
        text = _MAKE_AGENT.format(**values)
    print(validation.printable(text))
    return 0


def _list_presets(names):
    width = max(map(len, names))
    print(f"{'preset':<{width}}    steps  mean return when trained")
    for name in names:
        result = re.sub(r" \(.*?\)", "", toml_files.read(name)["result"])
        value, _, steps = result.removesuffix(" steps").partition(" after ")
        print(f"{name:<{width}}  {steps.rpartition(',')[0] + 'k':>7}  {value}")


def load(run, max_bytes):
    """Loads the agent of a run, which may come from a stranger."""
    path = _agent_file(run, max_bytes)
    startup.import_tensorflow()
    return saving.load(path, max_bytes=max_bytes)


def _agent_file(run, max_bytes):
    """Returns the path of a run's agent file; raises an error if it is damaged."""
    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    path = run_config.find(run)
    saving.read(os.fspath(path), max_bytes)
    return path
