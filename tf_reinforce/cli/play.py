"""The commands that use a trained agent: `evaluate`, `record`, `export`, `info`."""

import dataclasses
import json as json_
import os
from typing import Literal

from tf_reinforce import saving
from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.settings.schema import Count
from tf_reinforce.support import files


@dataclasses.dataclass(kw_only=True)
class EvaluateOptions(cli_options.PlayOptions):
    """The options of `evaluate`.

    Attributes:
        num_envs: Environments side by side; the result does not depend on it.
    """

    episodes: Count = 100
    num_envs: Count = 8


def evaluate(options: EvaluateOptions):
    """Evaluate a trained agent."""
    agent, env, more = _load(options)
    metrics = agent.evaluate(env, options.episodes, num_envs=options.num_envs, **more)
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
    metrics = recording.record(agent, env, out, options.episodes, **more)
    print(
        f"recorded {', '.join(map(str, paths))}: mean return "
        f"{metrics['episode_return']:.6g}, mean length {metrics['episode_length']:.6g}"
    )
    return 0


def _load(options):
    """Returns agent, environment and further arguments for `evaluate` and `record`."""
    agent, env, more = agent_files.load_with_env(options.run, options, options.max_bytes)
    more |= dict(deterministic=not options.stochastic, seed=options.seed)
    return agent, env, {**more, "workers": options.workers}


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
    more = dict(env=env, env_arg=env_arg, observations=observations)
    cli_options.expect_effect("--check", check, **more)
    env = env and agent_files.find_env(env)
    files.expect_replaceable_folder(out)
    if format == "tf_saved_model":
        files.expect_no_pattern(out)
    agent = agent_files.load(run, max_bytes)
    agent.export(out, format=format)
    names = ", log_prob" if format == "tf_saved_model" else ""
    print(f"exported to {out}: act, sample, distribution{names}")
    if not check:
        return 0
    from tf_reinforce.experiments import run_config
    from tf_reinforce.testing import export_report

    in_file, options = run_config.read_env(run, dict(env_arg))
    env = env or (in_file and agent_files.find_env(in_file))
    report = export_report.check_export(
        agent,
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
