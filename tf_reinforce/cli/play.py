"""The commands that use a trained agent: `evaluate`, `record`, `export`, `info`."""

import json as json_
import os
from typing import Literal

from tf_reinforce import saving
from tf_reinforce.cli import agent_files
from tf_reinforce.cli.options import EnvArguments
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Seed
from tf_reinforce.support import files

_NUM_OBSERVATIONS = 1000  # of `export --check`


def evaluate(
    run: str,
    *,
    episodes: Count = 100,
    env: str | None = None,
    env_arg: EnvArguments = (),
    seed: Seed = 0,
    num_envs: Count = 8,
    workers: Count = 1,
    max_episode_steps: Count | None = None,
    stochastic: bool = False,
    max_bytes: Count = saving.MAX_BYTES,
):
    """Evaluate a trained agent.

    Args:
        num_envs: Environments side by side; the result does not depend on it.
    """
    task = env, env_arg, max_episode_steps
    agent, env, options = agent_files.load_with_env(run, max_bytes, *task)
    options |= dict(deterministic=not stochastic, seed=seed, workers=workers)
    metrics = agent.evaluate(env, episodes, num_envs=num_envs, **options)
    print(json_.dumps(metrics, indent=2))
    return 0


def record(
    run: str,
    *,
    out: str | None = None,
    episodes: Count = 1,
    env: str | None = None,
    env_arg: EnvArguments = (),
    seed: Seed = 0,
    workers: Count = 2,
    max_episode_steps: Count | None = None,
    stochastic: bool = False,
    max_bytes: Count = saving.MAX_BYTES,
):
    """Record videos of a trained agent.

    Plays the first episodes of `evaluate` with the same seed, and writes each as an MP4
    video. No display is needed.

    Args:
        out: Video, with the extension .mp4 (RUN/video.mp4); several videos end in _1, _2
            and so on.
        workers: Processes that play and render.
    """
    from tf_reinforce.experiments import recording

    out = output_path(out, [run], "video.mp4")
    paths = recording.video_paths(out, episodes)
    task = env, env_arg, max_episode_steps
    agent, env, options = agent_files.load_with_env(run, max_bytes, *task)
    options |= dict(deterministic=not stochastic, seed=seed, workers=workers)
    metrics = recording.record(agent, env, out, episodes, **options)
    text = f"{episodes} episodes in {paths[0]} to {paths[-1]}"
    text = f"1 episode in {paths[0]}" if episodes == 1 else text
    print(
        f"recorded {text}: mean return {metrics['episode_return']:.6g}, "
        f"mean length {metrics['episode_length']:.6g}"
    )
    return 0


def output_path(out, runs, name):
    """Returns the path of the file that a command writes.

    Args:
        out: The value of `--out FILE`, or `None`.
        runs: List of the paths of the runs that the command reads.
        name: File name without `--out`. It goes to the run's folder, or to the current
            one for several runs or an agent file.
    """
    if out is not None:
        return out
    is_folder = len(runs) == 1 and os.path.isdir(runs[0])
    return os.path.join(runs[0], name) if is_folder else name


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
        check: Load the files in a process without tf_reinforce, and compare their results
            with the agent on observations that it plays (random without an environment);
            the exit code is 1 if they differ by more than 1e-5.
        observations: Number of observations for --check (1000).
    """
    for name, value in dict(env=env, env_arg=env_arg, observations=observations).items():
        if value and not check:
            raise ValueError(f"--{name.replace('_', '-')} needs --check.")
    env = env and agent_files.resolve_env(env)
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
    env = env or in_file
    report = export_report.check_export(
        agent,
        out,
        env and agent_files.find_env(env),
        observations=observations or _NUM_OBSERVATIONS,
        env_kwargs=options["env_kwargs"],
    )
    print(report)
    return int(not report.passed)


def info(run: str, *, json: bool = False, max_bytes: Count = saving.MAX_BYTES):
    """Print settings, last log row and evaluation of a run.

    The log row has the last number in each column. Of an agent file, only the settings
    are printed. TensorFlow is not imported.
    """
    from tf_reinforce.experiments import curves

    facts = curves.info(run, max_bytes)
    print(json_.dumps(facts, indent=2) if json else curves.info_table(facts))
    return 0
