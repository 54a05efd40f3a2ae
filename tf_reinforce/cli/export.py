"""Runs the command `export`, which writes the policy of a run."""

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import shared_arguments
from tf_reinforce.support import files
from tf_reinforce.support import validation

_NUM_OBSERVATIONS = 1000  # of --check
_FORMATS = "tf_saved_model", "onnx", "litert"


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce export`."""
    command = subparsers.add_parser(
        "export",
        help="write the policy as a SavedModel, ONNX or LiteRT",
        description="Writes the policy to files that need TensorFlow, ONNX Runtime or "
        "LiteRT, but not tf_reinforce. docs/export.md describes the files.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    command.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="format of the files (tf_saved_model)",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="load the files in a process without tf_reinforce, and compare the results "
        "with the agent; the exit code is 1 if they differ by more than 1e-5",
    )
    command.add_argument(
        "--env",
        help="environment id (that of the run), in which the agent plays the "
        "observations of --check",
    )
    command.add_argument("--env-arg", **shared_arguments.ENV_ARG)
    command.add_argument(
        "--observations",
        type=argument_types.count,
        metavar="N",
        help=f"number of observations of --check ({_NUM_OBSERVATIONS})",
    )
    agent_files.add_max_bytes(command)


def run(options):
    """Runs `tf-reinforce export` and returns the exit code."""
    _check_options(options)
    agent = agent_files.load(options, options.run)
    agent.export(options.out, format=options.format)
    names = "act, sample, distribution"
    names += ", log_prob" if options.format == "tf_saved_model" else ""
    print(f"exported to {options.out}: {names}")
    return _check_export(agent, options) if options.check else 0


def _check_options(options):
    for name in ("env", "env_arg", "observations"):
        if getattr(options, name) is not None and not options.check:
            option = name.replace("_", "-")
            raise ValueError(
                f"--{option} needs --check. Add --check, or omit --{option}."
            )
    validation.positive_int_or_none("observations", options.observations)
    if options.env is not None:
        options.env = env_ids.resolve_env(options.env)
    files.expect_replaceable_folder(options.out)
    if options.format == "tf_saved_model":
        files.expect_no_pattern(options.out)


def _check_export(agent, options):
    """Prints the report of `check_export`, and returns the exit code."""
    import gymnasium

    from tf_reinforce.experiments import run_config
    from tf_reinforce.testing import export_report

    env, env_options = run_config.read_env(options.run, dict(options.env_arg or ()))
    env = options.env or env
    arguments = dict(observations=options.observations or _NUM_OBSERVATIONS)
    try:
        env_id = None if env is None else env_ids.find_env(env)
        env_kwargs = env_options["env_kwargs"]
        report = export_report.check_export(
            agent, options.out, env_id, env_kwargs=env_kwargs, **arguments
        )
    except (gymnasium.error.Error, ImportError) as error:
        if options.env is not None:
            raise
        print(f"The environment {env} cannot be made ({error}).")
        report = export_report.check_export(agent, options.out, **arguments)
    print(report)
    if not report.played and env is None:
        print(
            "The observations are random, because the environment is not imported. To "
            "compare on observations that the agent plays, add --env ENV or MODULE:ENV."
        )
    return int(not report.passed)
