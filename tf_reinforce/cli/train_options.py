"""Lists the options of `tf-reinforce train`, and the defaults of settings."""

import argparse
from typing import Any, NamedTuple

from tf_reinforce.cli import argument_types
from tf_reinforce.cli import shared_arguments
from tf_reinforce.settings import config
from tf_reinforce.settings import toml_files

OWN_PRESET = ""  # `--preset` without a name

# Values of settings that neither a preset nor an option of the command sets.
DEFAULTS = {
    "gamma": config.AgentOptions.gamma,
    "learning_rate": config.FOR_ENV_DEFAULTS["learning_rate"],
    "hidden": list(config.FOR_ENV_DEFAULTS["hidden"]),
    "baseline": config.FOR_ENV_DEFAULTS["baseline"],
    "entropy_coef": config.AgentOptions.entropy_coef,
    "normalize_observations": config.AgentOptions.normalize_observations,
}

# Options of other programs, and what to use instead.
UNKNOWN_OPTIONS = {
    ("--lr",): "--learning-rate",
    ("--timesteps", "--total-timesteps", "--total_timesteps", "--n-timesteps"): "--steps",
    ("--env", "--env-id"): "the id as an argument: tf-reinforce train ENV",
    (
        "--batch-size",
    ): "--episodes-per-epoch, --steps-per-epoch, or --set minibatch_size=N",
    ("--episodes",): "--epochs (updates), --episodes-per-epoch or --steps",
}


class _Option(NamedTuple):
    """An option of `tf-reinforce train`.

    Attributes:
        flag: String, the option on the command line, for example `--seed`.
        settings: The settings that the option overrides, each as `"table.key"` of a
            preset. An option with `settings=()` overrides no setting; the
            command `train` reads the option.
        arguments: Dict of keyword arguments for argparse's `add_argument`.
    """

    flag: str
    settings: tuple[str, ...]
    arguments: dict[str, Any]

    @property
    def name(self):
        """Returns the attribute name of the option in the parsed options."""
        return self.arguments.get("dest", self.flag.lstrip("-").replace("-", "_"))


# The options of `tf-reinforce train`, from which parser and settings are made.
TRAIN_OPTIONS = (
    _Option(
        "env",
        (),
        dict(metavar="ENV", nargs="?", help="environment id, also module:Id-v0"),
    ),
    _Option(
        "--preset",
        (),
        dict(
            metavar="NAME",
            nargs="?",
            const=OWN_PRESET,
            help="a preset of docs/presets.md, or FILE.toml (without NAME: that of ENV)",
        ),
    ),
    _Option("--env-arg", (), shared_arguments.ENV_ARG),
    _Option(
        "--import",
        (),
        dict(
            dest="imported",
            metavar="MODULE",
            help="module that registers ENV; the same as the id MODULE:ENV",
        ),
    ),
    _Option(
        "--set",
        (),
        dict(
            action="append",
            type=argument_types.setting,
            metavar="NAME=VALUE",
            help="any setting of docs/presets.md, for example --set gae_lambda=0.95 or "
            "--set baseline.passes=4; the option may be repeated",
        ),
    ),
    _Option(
        "--epochs",
        ("fit.epochs",),
        dict(type=argument_types.count, help="number of updates"),
    ),
    _Option(
        "--steps",
        ("fit.steps",),
        dict(
            type=argument_types.count,
            help="number of environment steps, instead of --epochs",
        ),
    ),
    _Option(
        "--episodes-per-epoch",
        ("fit.episodes_per_epoch",),
        dict(
            type=argument_types.count,
            help=f"episodes per update ({config.EPISODES_PER_EPOCH})",
        ),
    ),
    _Option(
        "--steps-per-epoch",
        ("fit.steps_per_epoch",),
        dict(type=argument_types.count, help="steps per update, instead of episodes"),
    ),
    _Option(
        "--num-envs",
        ("fit.num_envs",),
        dict(
            type=argument_types.count,
            help=f"environments side by side ({config.FitOptions.num_envs}); with the "
            "compiled engine, in evaluations only",
        ),
    ),
    _Option(
        "--workers",
        ("fit.workers",),
        dict(
            type=argument_types.count,
            help="processes that collect the episodes "
            f"({config.FitOptions.workers}); host only; with --seeds, for evaluations",
        ),
    ),
    _Option(
        "--ray",
        (),
        dict(
            metavar="ADDRESS",
            help="run the --workers on the machines of a Ray cluster: its address "
            "host:port, `auto` for the cluster of this machine, or `local` for a new one",
        ),
    ),
    _Option(
        "--num-cpus-per-worker",
        (),
        dict(
            type=float,
            metavar="N",
            help="with --ray, the cores that a worker reserves on its machine "
            f"({config.RayWorkers.num_cpus_per_worker}); 0: any number of workers",
        ),
    ),
    _Option(
        "--engine",
        (),
        dict(
            choices=("auto", "host", "compiled"),
            default="auto",
            help="compiled: all episodes in one XLA program, if there is an equal "
            "environment in TensorFlow; host: Gymnasium's environment; auto: compiled if "
            "the registered environment equals the one in TensorFlow, and an update has "
            "a number of episodes",
        ),
    ),
    _Option(
        "--seed",
        (),
        dict(type=argument_types.count, help="number for all random draws (0)"),
    ),
    _Option(
        "--seeds",
        (),
        dict(
            type=argument_types.count,
            metavar="K",
            help="train K seeds, from --seed on: in one program if there is an equal "
            "environment in TensorFlow and --epochs is set, else in processes",
        ),
    ),
    _Option(
        "--jobs",
        (),
        dict(
            type=argument_types.count,
            metavar="N",
            help="with --seeds, the processes at the same time (number of cores)",
        ),
    ),
    _Option(
        "--learning-rate",
        ("agent.learning_rate",),
        dict(
            type=float,
            help=f"learning rate (plain REINFORCE: {DEFAULTS['learning_rate']:g})",
        ),
    ),
    _Option(
        "--gamma",
        ("agent.gamma",),
        dict(
            type=float, help=f"discount factor (plain REINFORCE: {DEFAULTS['gamma']:g})"
        ),
    ),
    _Option(
        "--hidden",
        ("agent.hidden",),
        dict(
            type=argument_types.count,
            nargs="*",
            help=f"hidden layer sizes ({' '.join(map(str, DEFAULTS['hidden']))})",
        ),
    ),
    _Option(
        "--head",
        ("agent.head",),
        dict(
            metavar="NAME",
            help=f"head for a Box: {', '.join(config.BOX_HEADS[:2])}, …",
        ),
    ),
    _Option(
        "--baseline",
        ("agent.baseline",),
        dict(
            choices=(*config.BASELINES, "value", "none"),
            help="baseline (without a preset, the environment determines the default; "
            f"plain REINFORCE: {DEFAULTS['baseline']})",
        ),
    ),
    _Option(
        "--entropy-coef",
        ("agent.entropy_coef",),
        dict(
            type=float,
            help=f"coefficient of the entropy bonus ({DEFAULTS['entropy_coef']:g})",
        ),
    ),
    _Option(
        "--normalize-observations",
        ("agent.normalize_observations",),
        dict(action=argparse.BooleanOptionalAction),
    ),
    _Option(
        "--jit-compile",
        ("agent.jit_compile",),
        dict(
            action=argparse.BooleanOptionalAction,
            help="compile gradient steps with XLA (by default, those of at least 100 per "
            "update without convolutions)",
        ),
    ),
    _Option(
        "--max-episode-steps",
        ("fit.max_episode_steps", "evaluation.max_episode_steps"),
        dict(type=argument_types.count, help="time limit (that of the environment)"),
    ),
    _Option(
        "--on-bad-env",
        ("fit.on_bad_env",),
        dict(
            choices=("raise", "drop_episode"),
            help="if the environment returns an invalid value: stop with an error, or "
            f"replace the episode ({config.FitOptions.on_bad_env}); host only",
        ),
    ),
    _Option(
        "--on-env-error",
        ("fit.on_env_error",),
        dict(
            choices=("raise", "restart"),
            help="if the environment raises an exception: stop with an error, or make "
            "the environment again and replace the episode "
            f"({config.FitOptions.on_env_error}); host only",
        ),
    ),
    _Option(
        "--step-timeout",
        ("fit.step_timeout",),
        dict(
            type=float,
            metavar="SECONDS",
            help="longest time for one reset or step in a worker "
            f"({config.FitOptions.step_timeout:g})",
        ),
    ),
    _Option(
        "--target-return",
        ("evaluation.target",),
        dict(type=float, help="target (the environment's reward threshold)"),
    ),
    _Option(
        "--require-target",
        (),
        dict(
            action="store_const",
            const=True,
            help="exit with code 1 if the best agent misses the target; with --seeds, if "
            "the median of the seeds misses it",
        ),
    ),
    _Option(
        "--eval-every",
        ("evaluation.every",),
        dict(
            type=argument_types.count,
            metavar="N",
            help="updates from one evaluation to the next (10)",
        ),
    ),
    _Option(
        "--eval-episodes",
        ("evaluation.episodes",),
        dict(
            type=argument_types.count,
            metavar="N",
            help="episodes of each evaluation (100)",
        ),
    ),
    _Option(
        "--run-dir",
        (),
        dict(metavar="DIR", help="folder of this run (runs/ENV/DATE_seedN)"),
    ),
    _Option(
        "--resume",
        (),
        dict(metavar="DIR", help="continue the run in this folder, with its settings"),
    ),
    _Option(
        "--diagnose",
        (),
        dict(
            action="store_const",
            const=True,
            help="print advice if the policy does not learn (docs/diagnostics.md)",
        ),
    ),
    _Option(
        "--tensorboard",
        (),
        dict(
            nargs="?",
            const="scalars",
            choices=("scalars", "histograms"),
            help="write logs for TensorBoard to RUN/tensorboard; histograms: also of "
            "weights and actions",
        ),
    ),
    _Option(
        "--video",
        (),
        dict(
            type=argument_types.count,
            nargs="?",
            const=100,
            metavar="N",
            help="record a video to RUN/videos before training and every N updates (100)",
        ),
    ),
    _Option(
        "--checkpoint-every",
        (),
        dict(
            type=argument_types.interval,
            metavar="N",
            help="updates (10) or seconds (60s) from one checkpoint to the next (60s)",
        ),
    ),
    _Option(
        "--grace",
        (),
        dict(
            type=float,
            metavar="SECONDS",
            help="after SIGTERM, end at the latest after this time (30)",
        ),
    ),
    _Option(
        "--export",
        (),
        dict(
            metavar="DIR",
            nargs="?",
            const="",
            help="also write the best policy as a SavedModel (RUN/policy)",
        ),
    ),
)


def unknown_options():
    """Returns a dict from option strings that `train` rejects to what to use instead.

    These are options of other programs, and settings without an option of their own.
    """
    flags = {option.flag for option in TRAIN_OPTIONS}
    names = toml_files.TABLE_KEYS["agent"] | toml_files.TABLE_KEYS["fit"]
    flagless = {f"--{name.replace('_', '-')}": name for name in sorted(names)}
    use = {(x,): f"--set {name}=VALUE" for x, name in flagless.items() if x not in flags}
    return {**use, **UNKNOWN_OPTIONS}
