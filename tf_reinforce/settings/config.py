"""All settings of agents and training runs, each declared once.

Checks, presets, `config.json`, the command line, search spaces and docs/options.md all
follow from these classes (see `schema`), so a new setting needs only one declaration.
TensorFlow is not imported here, because the command line should start fast.
"""

import dataclasses
import importlib
import re
import typing
from collections.abc import Callable, Sequence, Set
from typing import Annotated, Any, Literal, NotRequired

from tf_reinforce.settings import schema
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Finite
from tf_reinforce.settings.schema import Fraction
from tf_reinforce.settings.schema import NonNegative
from tf_reinforce.settings.schema import Range
from tf_reinforce.support import validation

# The names of baselines, and the class of each in `baselines`.
BASELINES = {
    "leave_one_out": "LeaveOneOut",
    "mean": "Mean",
    "moving_average": "MovingAverage",
    "time_step": "TimeStep",
}

# The settings of a value network that is given by its name, "value".
VALUE_NETWORK = {
    "kind": "value",
    "learning_rate": 0.001,
    "passes": 10,
    "minibatch_size": 64,
}

# The names of heads for a `Box` in presets and on the command line: classes in `heads`.
BOX_HEADS = ("Gaussian", "ClippedGaussian", "TanhGaussian", "Beta")
# The names of the head whose parts depend on each other: for an action of several parts.
PARTS_HEADS = ("Autoregressive", "autoregressive")
HEADS = BOX_HEADS + PARTS_HEADS

# mypy reads no names from a table.
BaselineNames: Any = Literal[(*BASELINES, "value", "none")]
HeadNames: Any = Literal[HEADS]
Changing: Any = dict | Callable | None

# The ids of environments with a twin in TensorFlow, and the class of each in `envs`.
TWINS = {
    "Acrobot-v1": "Acrobot",
    "Blackjack-v1": "Blackjack",
    "CartPole-v1": "CartPole",
    "CliffWalking-v1": "CliffWalking",
    "FrozenLake-v1": "FrozenLake",
    "MountainCar-v0": "MountainCar",
    "MountainCarContinuous-v0": "MountainCarContinuous",
    "Pendulum-v1": "Pendulum",
    "Taxi-v4": "Taxi",
}

# The time limit of a Gymnasium environment that states no limit of its own.
DEFAULT_MAX_EPISODE_STEPS = 10_000

# The default of `FitOptions`, unless `steps_per_epoch` is given.
EPISODES_PER_EPOCH = 16

# The log keys of docs/logs.md and the other columns of log files, which no key of an
# environment's info may replace.
LOG_KEYS = (
    *("loss", "policy_loss", "value_loss", "entropy", "gradient_norm"),
    *("effective_sample_size", "gradient_steps", "learning_rate", "steps_per_second"),
    *("episode_return", "episode_return_min", "episode_return_max", "episode_return_std"),
    *("episode_length", "episodes", "env_steps", "success", "dropped_episodes"),
    *("worker_restarts", "env_restarts"),
    *("epoch", "update", "episode", "terminated", "seed"),
)


def _info_keys(name, value):
    """Returns keys of an environment's info as a tuple, or raises `ValueError`."""
    keys = value if isinstance(value, (list, tuple)) else [None]
    if not all(isinstance(key, str) and key and key.isprintable() for key in keys):
        hint = f" For one key, pass [{value!r}]." if isinstance(value, str) else ""
        raise ValueError(
            f"`{name}` must be a list of printable texts.{hint} Received: {name}="
            f"{repr(value)[:200]}"
        )
    for key in value:
        if key in LOG_KEYS or key.startswith("val_") or value.count(key) > 1:
            raise ValueError(
                f"`{name}` must contain different keys, and none that the logs use: "
                f"{', '.join(LOG_KEYS)}, val_…. Received: {key!r}. Let the environment "
                "report the number under another key."
            )
    return tuple(value)


def _context_inputs(name, value):
    """Returns the inputs of a policy as a tuple, or raises `ValueError`."""
    known = "observations", "actions", "rewards"
    names = list(value) if isinstance(value, (list, tuple)) else []
    if known[0] not in names or names != [x for x in known if x in names]:
        text = (
            '("observations",), or add "actions", "rewards" or both to it, in this order'
        )
        raise schema.wrong(name, text, value)
    return tuple(names)


ContextInputs: Any = Annotated[tuple[str, ...], _context_inputs]
Repeats = Annotated[int, Range(1, validation.MAX_REPEATS)]  # of one call, in files
InfoKeys: Any = Annotated[tuple[str, ...], _info_keys]
Sizes = Annotated[list, validation.layer_sizes]
Low = Annotated[float, Range(0, 1)]


@typing.runtime_checkable
class Schedule(typing.Protocol):
    """A Keras learning-rate schedule."""

    def __call__(self, step): ...

    def get_config(self): ...


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """All options of `Reinforce` except policy, head and baseline.

    Attributes:
        gamma: Discount factor.
        gae_lambda: Mixes rewards (1) and predicted values (0) in the returns of a value
            baseline.
        returns: Weights an action by the rewards that follow it, or by all of its
            episode.
        discount_states: Weights step t by gamma to the power t, for the exact discounted
            gradient.
        scale_advantages: Divides advantages by their standard deviation, in the update or
            so far.
        scale_rewards: Divides rewards by the running standard deviation of the returns.
        mean_over: Divides the loss by the number of episodes or steps.
        on_truncation: Ends a truncated episode with its predicted value or with zero, or
            drops the episode.
        minibatch_size: Steps per gradient step (all steps of the update).
        passes: Passes over the steps of an update.
        ratio_clip: Largest likelihood ratio, or the limits (low, high) of PPO.
        max_kl: Ends an update's passes beyond this KL divergence, in nats per step.
        entropy_coef: Coefficient of the entropy bonus.
        normalize_observations: Normalizes observations by their running mean and
            variance.
        action_mask: Where to find the mask of legal actions, info/KEY or observation/KEY.
        context: Number of the last observations that the policy reads (one, or all with
            recurrent layers).
        context_inputs: What the policy reads of each step; besides the observations, it
            can be the actions and the rewards before.

    Raises:
        ValueError: If an option is invalid.
    """

    gamma: Fraction = 0.99
    gae_lambda: Fraction = 1.0
    returns: Literal["to_go", "whole"] = "to_go"
    discount_states: bool = False
    scale_advantages: Literal["batch", "running"] | None = None
    scale_rewards: bool = False
    mean_over: Literal["episodes", "steps"] = "episodes"
    on_truncation: Literal["bootstrap", "terminal", "drop"] = "bootstrap"
    minibatch_size: Count | None = None
    passes: Count = 1
    ratio_clip: Annotated[float, Range(1)] | tuple[Low, NonNegative] = 2.0
    max_kl: NonNegative | None = None
    entropy_coef: NonNegative | Schedule = 0.0
    normalize_observations: bool = False
    action_mask: str | None = None
    context: Repeats | None = None
    context_inputs: ContextInputs = ("observations",)

    def __post_init__(self):
        schema.check_fields(self)

    def check_baseline(self, baseline, is_value_function):
        """Raises `ValueError` if `gae_lambda` does not go with the baseline or `returns`.

        Args:
            baseline: `baselines.Baseline`, or its name.
            is_value_function: Bool, whether it predicts values.
        """
        if self.gae_lambda < 1 and (not is_value_function or self.returns == "whole"):
            raise ValueError(
                "`gae_lambda` below 1 needs a value baseline, "
                'tfr.baselines.Value(model), and `returns="to_go"`. Received: gae_lambda='
                f"{self.gae_lambda}, baseline={baseline!r}, returns={self.returns!r}"
            )


class Rates(typing.TypedDict):
    """A learning rate that changes linearly over the budget of `fit`."""

    first: NonNegative
    last: NonNegative


class ValueBaseline(typing.TypedDict):
    """A value network's settings."""

    kind: Literal["value"]
    hidden: NotRequired[Sizes]
    learning_rate: NotRequired[NonNegative | Rates]
    passes: NotRequired[Repeats | None]
    minibatch_size: NotRequired[Count | None]
    scale: NotRequired[Finite]


def _head_table(name, value):
    """Checks that a head is known; its other arguments are checked when it is made."""
    if value.get("kind") not in HEADS:
        raise ValueError(
            f"`{name}` must have a `kind`, one of {HEADS}. Received: {name}={value!r}"
        )
    return value


@dataclasses.dataclass(frozen=True)
class AgentSettings(AgentOptions):
    """Arguments of `Reinforce.for_env` that a preset or the command line may set.

    Attributes:
        passes: Passes over the steps of an update.
        hidden: Hidden layer sizes.
        learning_rate: Learning rate, or {first = 0.01, last = 0.001}.
        baseline: Baseline; {kind = "value", passes = 4} sets options of a value network
            (leave_one_out, but `train` without a preset mostly takes value).
        head: Head for a Box; autoregressive: for parts of an action that depend on each
            other; {kind = "Gaussian", initial_scale = 0.5} sets its arguments.
        memory: Memory of the default policy: gru, attention, or the number of the last
            observations that it reads.
        steps_per_execution: Updates per call of a TensorFlow program.
        jit_compile: Compiles gradient steps with XLA; auto: if an update makes at least
            100 of them and the network has no convolutions.
    """

    passes: Repeats = 1
    hidden: Sizes = (64, 64)  # type: ignore[assignment]
    learning_rate: NonNegative | Rates = 1e-2
    baseline: BaselineNames | ValueBaseline = "leave_one_out"
    head: HeadNames | Annotated[dict, _head_table] | None = None
    memory: Literal["gru", "attention"] | Repeats | None = None
    steps_per_execution: Repeats = 1
    jit_compile: Literal["auto", True, False] = "auto"


AGENT_OPTIONS = tuple(field.name for field in dataclasses.fields(AgentOptions))
JIT_COMPILE = typing.get_args(schema.hints(AgentSettings)["jit_compile"])
# The defaults of `Reinforce.for_env` that are not in `AgentOptions`.
FOR_ENV_DEFAULTS: dict[str, Any] = {
    field.name: field.default
    for field in dataclasses.fields(AgentSettings)
    if field.name not in AGENT_OPTIONS and field.default is not None
}


def learning_rates(setting):
    """Returns the first and last learning rate of a checked setting."""
    is_linear = isinstance(setting, dict)
    return (setting["first"], setting["last"]) if is_linear else (setting, setting)


@dataclasses.dataclass(frozen=True)
class RayWorkers:
    """Collects episodes on the machines of a Ray cluster: `fit(workers=RayWorkers(…))`.

    If one machine is too slow to collect the episodes, a cluster can share the work. The
    result of the training stays the same, to the bit, provided that all machines have the
    same package versions and compute the same results from them.

    The machine that trains must belong to the cluster and have Ray, which `pip install
    "tf-reinforce[ray]"` installs. All machines need tf-reinforce and the packages of the
    environment. TensorFlow is not needed to collect episodes.

    Args:
        num_workers: Positive int, the number of workers.
        address: String, the cluster's `host:port`, `"auto"` for the cluster of this
            machine, or `"local"` for a new one that ends with the program. After your
            own `ray.init`, it must be `"auto"`, and your connection is used.
        num_cpus_per_worker: Non-negative number, the cores that a worker reserves on its
            machine. With 0, Ray starts any number of workers.
        restart_failed_workers: Bool, whether to restart a worker elsewhere when its
            machine or actor is lost. Its unfinished episodes are played again, with the
            same result. If an environment fails or ends its process, `on_env_error`
            applies.
        worker_health_probe_timeout_s: Positive number of seconds after which a silent
            actor counts as lost. The time of an episode is not limited. To limit the time
            of one reset or step, use `step_timeout` of `fit`.
        allow_other_versions: Bool, whether package versions may differ from those of this
            machine. Results may then differ too.

    Raises:
        ValueError: If an argument is invalid.

    Example:

    >>> import tf_reinforce as tfr
    >>> tfr.collect.RayWorkers(num_workers=64).address
    'auto'
    """

    num_workers: Count
    address: str = "auto"
    num_cpus_per_worker: NonNegative = 1
    restart_failed_workers: bool = True
    worker_health_probe_timeout_s: Annotated[float, Range(0.001)] = 30.0
    allow_other_versions: bool = False

    def __post_init__(self):
        schema.check_fields(self)
        if not re.fullmatch(r"auto|local|[^/]+:\d+", self.address):
            raise ValueError(
                "`address` must be the address `host:port` of a Ray cluster, on one of "
                'whose machines this process runs, "auto" or "local". Received: '
                f"{self.address!r}"
            )

    def launcher(self, step_timeout: float) -> Any:
        """Returns the launcher that starts a pool's workers in the cluster.

        The engine is a lower layer and must not import the cluster, so it receives the
        launcher from here.

        Args:
            step_timeout: Float, the argument of `fit`.
        """
        module = importlib.import_module("tf_reinforce.cluster.ray_workers")
        return module.RayLauncher(self, step_timeout)


def idle_workers(workers):
    """Returns workers for evaluations; those of the training are idle, and have cores."""
    if isinstance(workers, RayWorkers):
        return dataclasses.replace(workers, num_cpus_per_worker=0)
    return workers


@dataclasses.dataclass(frozen=True)
class EnvSettings:
    """What environments receive before each update's episodes, and what they report.

    Each dict may also be a function that returns it, given the number of updates so far.

    Args:
        reset_options: Dict for the argument `options` of each reset, or `None`.
        env_attrs: Dict from attribute names to values, or `None`.
        info_keys: Tuple of the keys to read from the last info of each episode.

    Raises:
        ValueError: If an argument is invalid.
    """

    reset_options: Changing = None
    env_attrs: Changing = None
    info_keys: InfoKeys = ()

    def __post_init__(self):
        schema.check_fields(self)

    def at(self, update):
        """Returns the settings of an update, after calling any functions."""
        values = vars(self).values()
        return EnvSettings(*(x(update) if callable(x) else x for x in values))

    @property
    def constant(self):
        """Returns the settings without the functions."""
        return EnvSettings(*(None if callable(x) else x for x in vars(self).values()))


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Options of `Reinforce.fit` for the budget and the environments.

    The budget is given by `epochs` or by `steps`, and the other one of the two is `None`.
    The size of an update is given by `episodes_per_epoch` or by `steps_per_epoch` in the
    same way. All numbers have upper limits, because the options may come from a preset,
    an agent file or a `config.json` of a stranger.

    Attributes:
        epochs: Number of updates.
        steps: Number of environment steps, instead of epochs.
        episodes_per_epoch: Episodes per update (16).
        steps_per_epoch: Steps per update, instead of episodes.
        num_envs: Environments side by side; with the compiled engine, in evaluations
            only.
        workers: Processes that collect episodes; host engine only.
        max_episode_steps: Time limit (that of the environment).
        on_bad_env: When an environment returns an invalid value, stop with an error or
            replace the episode; host engine only.
        on_env_error: When an environment raises an exception, stop with an error, or make
            it again and replace the episode; host engine only.
        step_timeout: Longest time in seconds for one reset or step in a worker.
        info_keys: Numbers of an episode's last info to log; host engine only.

    Raises:
        ValueError: If an option is invalid.
    """

    epochs: Annotated[int, Range(1, 10**7)] | None = None
    steps: Annotated[int, Range(1, 10**12)] | None = None
    episodes_per_epoch: Annotated[int, Range(1, 10**6)] | None = None
    steps_per_epoch: Annotated[int, Range(1, 10**9)] | None = None
    num_envs: Annotated[int, Range(1, 4096)] = 8
    workers: Annotated[int, Range(1, 256)] | RayWorkers = 1
    max_episode_steps: Annotated[int, Range(1, 10**9)] | None = None
    on_bad_env: Literal["raise", "drop_episode"] = "raise"
    on_env_error: Literal["raise", "restart"] = "raise"
    step_timeout: Annotated[float, Range(0.001)] = 300.0
    info_keys: InfoKeys = ()
    env_settings: EnvSettings = EnvSettings()

    def __post_init__(self):
        schema.check_fields(self)
        settings = dataclasses.replace(self.env_settings, info_keys=self.info_keys)
        object.__setattr__(self, "env_settings", settings)
        if self.episodes_per_epoch is None and self.steps_per_epoch is None:
            object.__setattr__(self, "episodes_per_epoch", EPISODES_PER_EPOCH)
        for names in _ALTERNATIVES:
            first, second = (getattr(self, name) for name in names)
            if (first is None) == (second is None):
                raise ValueError(
                    f"Give either `{names[0]}` or `{names[1]}`. Received: "
                    f"{names[0]}={first!r}, {names[1]}={second!r}"
                )
        count = getattr(self.workers, "num_workers", self.workers)
        episodes = self.episodes_per_epoch
        if episodes is not None and count > episodes:
            raise ValueError(
                "`workers` must be at most `episodes_per_epoch`, because only one worker "
                f"plays an episode. Received: workers={count}, "
                f"episodes_per_epoch={episodes}"
            )

    @property
    def collection(self):
        """Returns the further arguments of `Trainer.training_request`."""
        return self.episodes_per_epoch, self.steps_per_epoch, self.env_settings

    @property
    def limits(self):
        """Returns the options that `open_envs` takes, as a dict."""
        names = "max_episode_steps", *FAULT_OPTIONS, "step_timeout"
        return {name: getattr(self, name) for name in names}


# The options of `fit` that a preset or the command line can set.
FIT_OPTIONS = tuple(x for x in schema.hints(FitOptions) if x != "env_settings")
# What to do if an environment returns an invalid value, or raises an exception.
FAULT_OPTIONS = ("on_bad_env", "on_env_error")
# The options of `fit` that determine each update. They must not change in a training.
_SIZES = "episodes_per_epoch", "steps_per_epoch"
RESULT_OPTIONS = (*_SIZES, "max_episode_steps", *FAULT_OPTIONS)
_ALTERNATIVES = ("epochs", "steps"), _SIZES


def merge_options(defaults, options):
    """Fills in defaults where options of `fit` are `None`.

    An option for `steps` also replaces a default for `epochs`, because both set the
    budget. In the same way, `steps_per_epoch` replaces `episodes_per_epoch`. Each pair
    also works the other way round.

    Example:

    >>> merge_options({"epochs": 5, "num_envs": 4}, {"epochs": None, "steps": 100})
    {'num_envs': 4, 'steps': 100}
    """
    options = {name: value for name, value in options.items() if value is not None}
    pairs = [pair for pair in _ALTERNATIVES if options.keys() & set(pair)]
    names = set(FIT_OPTIONS).difference(*pairs)
    return {**{x: value for x, value in defaults.items() if x in names}, **options}


class Evaluation(typing.TypedDict, total=False):
    """How a training run evaluates its agent.

    Attributes:
        episodes: Episodes per evaluation (100).
        every: Updates from one evaluation to the next (10).
        deterministic: Takes the most likely actions instead of sampling them (True).
        target: Target return (the reward threshold of the environment).
        max_episode_steps: Time limit (that of the environment).
    """

    episodes: Count
    every: Count
    deterministic: bool
    target: Finite
    max_episode_steps: Count | None


# How `fit` validates without and with a run directory.
VALIDATION: dict[str, Any] = {
    "every": 1,
    "episodes": 10,
    "deterministic": True,
    "max_episode_steps": None,
}
RUN_EVALUATION = {**VALIDATION, "every": 10, "episodes": 100}


def validation_table(given, defaults, limit):
    """Returns how `fit` validates, as the table `evaluation` of a run's settings.

    Args:
        given: Dict of the arguments of `fit`.
        defaults: Dict, the table `evaluation` of a preset, or `None` without one.
        limit: Int, the time limit of the training, or `None`.
    """
    in_run = given["resume"] is not None
    table = dict(RUN_EVALUATION if in_run else VALIDATION)
    if in_run and defaults is not None:
        table |= {name: x for name, x in defaults.items() if name in table}
    if given["max_episode_steps"] is not None or not in_run or defaults is None:
        table["max_episode_steps"] = limit
    names = dict(every="freq", episodes="episodes", deterministic="deterministic")
    explicit = {key: given[f"validation_{name}"] for key, name in names.items()}
    table |= {key: x for key, x in explicit.items() if x is not None}
    # Python's own numbers, which JSON can store.
    checks = validation_freq, validation.positive_int, validation.boolean
    for (key, name), check in zip(names.items(), checks, strict=True):
        table[key] = check(f"validation_{name}", table[key])
    return table


def validation_freq(name, value):
    """Returns a positive int, or a sorted list of several, or raises `ValueError`."""
    if isinstance(value, (Sequence, Set)) and not isinstance(value, str):
        return sorted({validation.positive_int(name, one) for one in value})
    return validation.positive_int(name, value)


class CheckpointSettings(typing.TypedDict, total=False):
    """When a training run writes checkpoints.

    Attributes:
        every_seconds: Seconds from one checkpoint to the next (60).
        every_updates: Updates from one checkpoint to the next.
        grace_seconds: Seconds that the run may take to end after SIGTERM (30).
    """

    every_seconds: NonNegative | None
    every_updates: Count | None
    grace_seconds: NonNegative


class CallbackSettings(typing.TypedDict, total=False):
    """Which callbacks a training run uses.

    Attributes:
        diagnose: Print advice if the policy does not learn (docs/diagnostics.md).
        tensorboard: Write logs for TensorBoard to RUN/tensorboard; histograms: also of
            weights and actions.
        stop_at_return: End the training when an evaluation reaches this return.
    """

    diagnose: bool
    tensorboard: Literal["scalars", "histograms"]
    stop_at_return: Finite


# The classes of the tables of a run, of which a preset has the first three.
CLASSES = {
    "agent": AgentSettings,
    "fit": FitOptions,
    "evaluation": Evaluation,
    "checkpoint": CheckpointSettings,
    "callbacks": CallbackSettings,
}
TABLES = {name: dict(schema.hints(cls)) for name, cls in CLASSES.items()}
del TABLES["fit"]["env_settings"]
PRESET_TABLES = ("agent", "fit", "evaluation")


def check_tables(settings, place="", own_agent=False):
    """Raises `ValueError` if a table of settings contains an invalid value.

    A head's arguments are checked later, when it is made for an environment.

    Args:
        settings: Dict of tables, at least `agent`.
        place: String that follows the name of a table in messages.
        own_agent: Bool, whether the table `agent` contains the keyword arguments of a
            function of the user, which are not checked.
    """
    for table, hints in TABLES.items():
        if table != "agent" or not own_agent:
            schema.check_table(f"[{table}]{place}", hints, settings.get(table, {}))
    if own_agent:
        return
    agent = settings["agent"]
    options = {name: x for name, x in agent.items() if name in AGENT_OPTIONS}
    baseline = agent.get("baseline", AgentSettings.baseline)
    is_value_function = baseline == "value" or isinstance(baseline, dict)
    AgentOptions(**options).check_baseline(baseline, is_value_function)


def check_option(table, name, value):
    """Checks one setting, and returns its value."""
    return schema.check(name, TABLES[table][name], value)


def check_twin(id):
    """Raises `ValueError` unless an environment has a twin in TensorFlow."""
    if not isinstance(id, str) or id not in TWINS:
        raise ValueError(
            f"There is no tensor environment for {id!r}. Expected one of {list(TWINS)}. "
            "Train in the Gymnasium environment instead (`agent.fit(id)`, `--engine "
            "host`), or write a tensor environment: docs/your_tensor_env.md."
        )
