"""Holds the options of agents and of training runs, and names of heads and baselines.

The module `config` does not import TensorFlow, so that the command line starts fast.
"""

import dataclasses
import math
from typing import Any

from tf_reinforce.support import validation

# The names of baselines, and the class of each in `baselines`.
BASELINES = {
    "leave_one_out": "LeaveOneOut",
    "mean": "Mean",
    "moving_average": "MovingAverage",
    "time_step": "TimeStep",
}

# The names of baselines in presets and on the command line; see `presets.factory`.
PRESET_BASELINES = (*BASELINES, "value", "none")

# The names of heads for a `Box` in presets and on the command line: classes in `heads`.
BOX_HEADS = ("Gaussian", "ClippedGaussian", "TanhGaussian", "Beta")

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

# The defaults of `Reinforce.for_env` that are not in `AgentOptions`.
FOR_ENV_DEFAULTS: dict[str, Any] = {
    "hidden": (64, 64),
    "learning_rate": 1e-2,
    "baseline": "leave_one_out",
    "steps_per_execution": 1,
    "jit_compile": "auto",
}
JIT_COMPILE = ("auto", True, False)  # the values of `jit_compile`

# The time limit of a Gymnasium environment that states no limit of its own.
DEFAULT_MAX_EPISODE_STEPS = 10_000

# The default of `FitOptions`, unless `steps_per_epoch` is given.
EPISODES_PER_EPOCH = 16


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """All options of `Reinforce` except policy, head and baseline.

    Raises:
        ValueError, TypeError: If an option is invalid.
    """

    gamma: float = 0.99
    gae_lambda: float = 1.0
    returns: str = "to_go"
    discount_states: bool = False
    scale_advantages: str | None = None
    scale_rewards: bool = False
    mean_over: str = "episodes"
    on_truncation: str = "bootstrap"
    minibatch_size: int | None = None
    passes: int = 1
    ratio_clip: float | tuple[float, float] = 2.0
    max_kl: float | None = None
    entropy_coef: Any = 0.0  # float, or a Keras learning-rate schedule
    normalize_observations: bool = False
    action_mask: str | None = None

    def __post_init__(self):
        for name, check, *bounds in _CHECKS:
            # Assignment by `=` fails in a frozen dataclass. The checks of the options
            # also convert their types.
            object.__setattr__(self, name, check(name, getattr(self, name), *bounds))

    def check_baseline(self, baseline, is_value_function):
        """Raises `ValueError` if the baseline or `returns` does not allow `gae_lambda`.

        A `gae_lambda` below 1 needs a value baseline and `returns="to_go"`.

        Args:
            baseline: `baselines.Baseline` of the agent, or the name of a baseline.
            is_value_function: Bool, whether the baseline predicts values.
        """
        if self.gae_lambda < 1 and not is_value_function:
            raise ValueError(
                "`gae_lambda` below 1 needs a value baseline, "
                "tfr.baselines.Value(model). Without values, `gae_lambda` would have "
                "the effect of a smaller discount. Received: "
                f"gae_lambda={self.gae_lambda}, baseline={baseline!r}"
            )
        if self.gae_lambda < 1 and self.returns == "whole":
            raise ValueError(
                '`returns="whole"` needs `gae_lambda=1`, because `returns="whole"` '
                "weights every action by all rewards, and `gae_lambda` below 1 replaces "
                f"later rewards by values. Received: gae_lambda={self.gae_lambda}"
            )


def _coefficient(name, value):
    if callable(value) and hasattr(value, "get_config"):  # a Keras schedule
        return value
    return validation.within(name, value, 0, math.inf)


def _max_kl(name, value):
    try:
        return value if value is None else validation.within(name, value, 0, math.inf)
    except (TypeError, ValueError):
        raise ValueError(
            f"`{name}` must be a finite number of at least 0, or None for no limit. "
            f"Received: {name}={value!r}"
        ) from None


def _ratio_clip(name, value):
    """Returns a float of at least 1, or a pair of floats: the two limits of a ratio."""
    if not isinstance(value, (list, tuple)):
        return validation.within(name, value, 1, math.inf)
    try:
        low, high = value
        low = validation.within("low", low, 0, 1)
        return low, validation.within("high", high, 0, math.inf)
    except (TypeError, ValueError):
        raise ValueError(
            f"`{name}` must be a number of at least 1, or a pair of numbers (low, high) "
            "with 0 <= low <= 1 and a finite high >= 0, for example (0.2, 0.2). "
            f"Received: {name}={value!r}"
        ) from None


_CHECKS = (
    ("gamma", validation.within, 0, 1),
    ("gae_lambda", validation.within, 0, 1),
    ("returns", validation.one_of, ("to_go", "whole")),
    ("discount_states", validation.boolean),
    ("scale_advantages", validation.one_of, (None, "batch", "running")),
    ("scale_rewards", validation.boolean),
    ("mean_over", validation.one_of, ("episodes", "steps")),
    ("on_truncation", validation.one_of, ("bootstrap", "terminal", "drop")),
    ("minibatch_size", validation.positive_int_or_none),
    ("passes", validation.positive_int),
    ("ratio_clip", _ratio_clip),
    ("max_kl", _max_kl),
    ("entropy_coef", _coefficient),
    ("normalize_observations", validation.boolean),
)

AGENT_OPTIONS = tuple(field.name for field in dataclasses.fields(AgentOptions))


@dataclasses.dataclass(frozen=True)
class RayWorkers:
    """Workers on the machines of a Ray cluster, for the argument `workers` of `fit`.

    A Ray actor on each machine holds worker processes. They are the same as those of
    `workers=N`, and need no TensorFlow. The episodes, the weights and the logs are those
    of a training in one process, to the bit, if all machines compute the same results
    from the same versions of the same packages.

    Ray must be installed on this machine (`pip install "tf-reinforce[ray]"`), and
    tf-reinforce and the packages of the environment on every machine of the cluster. The
    current process must run on one of the machines of the cluster.

    Args:
        num_workers: Positive int, the number of workers.
        address: String, the address `host:port` of the cluster, or `"auto"` for the
            cluster of this machine, or `"local"` to start a cluster on this machine that
            ends with the training. If the program has already called `ray.init`, its
            connection is used, and `address` must be `"auto"`.
        num_cpus_per_worker: Non-negative number, the processor cores that a worker
            reserves on its machine. With 0, Ray starts any number of workers.
        restart_failed_workers: Bool, whether a worker whose machine or actor is lost is
            started again on another machine. Its unfinished episodes are then played
            again, and the result of the training does not change. An environment that
            fails, or that ends its process, is handled as `on_env_error` says.
        worker_health_probe_timeout_s: Positive number of seconds. A worker whose actor
            does not answer for this time counts as lost. The time does not limit the
            episodes; the argument `step_timeout` of `fit` limits one reset or step.
        allow_other_versions: Bool, whether machines may have other versions of packages
            than this machine. With other versions, results may differ.

    Raises:
        ValueError, TypeError: If an argument is invalid.

    Example:

    >>> import tf_reinforce as tfr
    >>> tfr.collect.RayWorkers(num_workers=64).address
    'auto'
    """

    num_workers: int
    address: str = "auto"
    num_cpus_per_worker: float = 1
    restart_failed_workers: bool = True
    worker_health_probe_timeout_s: float = 30.0
    allow_other_versions: bool = False

    def __post_init__(self):
        validation.positive_int("num_workers", self.num_workers)
        validation.within("num_cpus_per_worker", self.num_cpus_per_worker, 0, math.inf)
        seconds = self.worker_health_probe_timeout_s
        validation.within("worker_health_probe_timeout_s", seconds, 0.001, math.inf)
        for name in ("restart_failed_workers", "allow_other_versions"):
            validation.instance(name, getattr(self, name), bool)
        _check_address(self.address)


def number_of_workers(workers):
    """Returns the number of workers that the argument `workers` of `fit` describes."""
    return workers.num_workers if isinstance(workers, RayWorkers) else workers


def check_workers(workers):
    """Returns the argument `workers` of `fit`; raises an error if it is invalid.

    Args:
        workers: Positive int, or `RayWorkers`.
    """
    is_ray = isinstance(workers, RayWorkers)
    return workers if is_ray else validation.positive_int("workers", workers)


def _check_address(address):
    validation.instance("address", address, str)
    host, _, port = address.rpartition(":")
    is_pair = host and port.isdecimal() and "/" not in host
    if address not in ("auto", "local") and not is_pair:
        raise ValueError(
            "`address` must be the address `host:port` of a Ray cluster, "
            '"auto" or "local". The process must run on a machine of the cluster: an '
            f"address `ray://…` of Ray Client is not supported. Received: {address!r}"
        )


@dataclasses.dataclass(frozen=True)
class EnvSettings:
    """What all environments receive before the episodes of an update.

    Args:
        reset_options: Dict, the argument `options` of each reset, or `None`; or a
            function that returns it for a number of updates.
        env_attrs: Dict from names of attributes to their values, or `None`; or a function
            that returns it for a number of updates.

    Raises:
        TypeError: If an argument is invalid.
    """

    reset_options: Any = None
    env_attrs: Any = None

    def __post_init__(self):
        for name, value in vars(self).items():
            if value is not None and not callable(value):
                _check_env_setting(name, value)

    def at(self, update):
        """Returns the dicts for an update, the results of any functions."""
        dicts = {}
        for name, value in vars(self).items():
            dicts[name] = value
            if callable(value):
                dicts[name] = value(update)
                _check_env_setting(name, dicts[name])
        return EnvSettings(**dicts)

    @property
    def constant(self):
        """Returns the settings that are dicts, without the functions."""
        return EnvSettings(*(None if callable(x) else x for x in vars(self).values()))


def _check_env_setting(name, value):
    is_dict = isinstance(value, dict) and all(isinstance(x, str) for x in value)
    if not is_dict:
        raise TypeError(
            f"`{name}` must be a dict with texts as keys, or a function from the number "
            f"of updates so far to such a dict. Received: {name}={value!r} of type "
            f"{type(value).__name__}"
        )


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """Options of `Reinforce.fit` for the amount of training and the environments.

    Exactly one of `epochs` and `steps`, and exactly one of `episodes_per_epoch` and
    `steps_per_epoch`, is not `None`.

    Raises:
        ValueError, TypeError: If an option is invalid.
    """

    epochs: int | None = None
    steps: int | None = None
    episodes_per_epoch: int | None = None
    steps_per_epoch: int | None = None
    num_envs: int = 8
    workers: int | RayWorkers = 1
    max_episode_steps: int | None = None
    on_bad_env: str = "raise"
    on_env_error: str = "raise"
    step_timeout: float = 300.0
    env_settings: EnvSettings = EnvSettings()

    def __post_init__(self):
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                "Give either `epochs` (updates) or `steps` (environment steps). "
                f"Received: epochs={self.epochs!r}, steps={self.steps!r}"
            )
        if self.episodes_per_epoch is not None and self.steps_per_epoch is not None:
            raise ValueError(
                "Give either `episodes_per_epoch` or `steps_per_epoch`. Received: "
                f"episodes_per_epoch={self.episodes_per_epoch!r}, "
                f"steps_per_epoch={self.steps_per_epoch!r}"
            )
        if self.episodes_per_epoch is None and self.steps_per_epoch is None:
            object.__setattr__(self, "episodes_per_epoch", EPISODES_PER_EPOCH)
        check_fault_options(vars(self))
        check_step_timeout(self.step_timeout)
        object.__setattr__(self, "workers", check_workers(self.workers))
        for name in FIT_OPTIONS:
            if name in FAULT_OPTIONS or name in ("step_timeout", "workers"):
                continue
            value = getattr(self, name)
            if value is not None or name == "num_envs":
                object.__setattr__(self, name, validation.positive_int(name, value))
        episodes, count = self.episodes_per_epoch, number_of_workers(self.workers)
        if episodes is not None and count > episodes:
            raise ValueError(
                "`workers` must be at most `episodes_per_epoch`, because only one worker "
                f"plays an episode. Received: workers={count}, "
                f"episodes_per_epoch={episodes}. Use more episodes for each update, or "
                "fewer workers."
            )

    @property
    def collection(self):
        """Returns the further arguments of `Trainer.training_request`."""
        return self.episodes_per_epoch, self.steps_per_epoch, self.env_settings

    @property
    def env_options(self):
        """Returns the limits and the fault options of the environments."""
        faults = self.on_bad_env, self.on_env_error
        return self.max_episode_steps, *faults, self.step_timeout


# What to do if an environment returns an invalid value, or raises an exception.
FAULT_OPTIONS = {
    "on_bad_env": ("raise", "drop_episode"),
    "on_env_error": ("raise", "restart"),
}


def check_fault_options(options):
    """Raises `ValueError` if an option of `FAULT_OPTIONS` has an invalid value."""
    for name, allowed in FAULT_OPTIONS.items():
        validation.one_of(name, options[name], allowed)


def check_step_timeout(value):
    """Raises `ValueError` unless a value is a number of seconds of at least 0.001."""
    validation.within("step_timeout", value, 0.001, math.inf)


def merge_options(defaults, options):
    """Returns the options of `fit` as a dict, with defaults for options that are `None`.

    An option that is not `None` replaces its own default. `epochs` or `steps` replaces
    the defaults of both `epochs` and `steps`. `episodes_per_epoch` or `steps_per_epoch`
    replaces the defaults of both `episodes_per_epoch` and `steps_per_epoch`.

    Example:

    >>> merge_options({"epochs": 5, "num_envs": 4}, {"epochs": None, "steps": 100})
    {'num_envs': 4, 'steps': 100}
    """
    options = {name: value for name, value in options.items() if value is not None}
    replaced = {
        name for pair in _ALTERNATIVES if options.keys() & set(pair) for name in pair
    }
    kept = {
        name: value
        for name, value in defaults.items()
        if name in FIT_OPTIONS and name not in replaced
    }
    return {**kept, **options}


def check_twin(id):
    """Raises `ValueError` unless an environment has a twin in TensorFlow."""
    if not isinstance(id, str) or id not in TWINS:
        raise ValueError(
            f"There is no tensor environment for {id!r}. Expected one of {list(TWINS)}. "
            "Train in the Gymnasium environment instead (`agent.fit(id)`, `--engine "
            "host`), or write a tensor environment: docs/your_tensor_env.md."
        )


# The options of `fit` that a preset or the command line can set.
FIT_OPTIONS = tuple(
    field.name for field in dataclasses.fields(FitOptions) if field.name != "env_settings"
)
# The options of `fit` that determine each update. They must not change in a training.
RESULT_OPTIONS = (
    "episodes_per_epoch",
    "steps_per_epoch",
    "max_episode_steps",
    "on_bad_env",
    "on_env_error",
)
_ALTERNATIVES = ("epochs", "steps"), ("episodes_per_epoch", "steps_per_epoch")
