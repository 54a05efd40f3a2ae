"""Presets: what to train an environment with, a small TOML file each, in this folder.

A file holds nothing that Python could not say: the environment, the keywords of
`Reinforce.for_env` in `[agent]`, of `fit` in `[fit]`, and how to evaluate in
`[evaluation]`. What takes an object may be named, here and in `for_env`:

    baseline       "leave_one_out", "mean", "moving_average", "time_step", "none", or a
                   value network:
                   {kind = "value", hidden = [64, 64], learning_rate = 0.005}
    head           the name of a head for a Box, or {kind = "Gaussian", …} with keywords;
                   the bounds are those of the environment
    learning_rate  a number, or {first = 0.01, last = 0.001}: linear over the budget,
                   however long that is
"""

import math
import operator
import pathlib
import tomllib

import keras

from tf_reinforce import arguments, baselines, heads, keywords, policies, seeding

FOLDER = pathlib.Path(__file__).parent


# The keywords of `Reinforce.for_env` and `Reinforce`, and of `fit`.
TABLES = {
    "agent": {"hidden", "head", "baseline", "learning_rate", *keywords.AGENT},
    "fit": {*keywords.FIT},
    "evaluation": {"episodes", "every", "deterministic", "target", "max_episode_steps"},
}
FOR_BOX = ("Gaussian", "ClippedGaussian", "TanhGaussian", "Beta")
BOUNDS = ("size", "low", "high", "shape", "whole")  # what an action space says of them
OF_VALUE = ("epochs", "minibatch_size", "scale")
VALUE = {"kind", "hidden", "learning_rate", *OF_VALUE}
RATE = {"first", "last"}

# What an environment's constructor may be given from a file, which could be a
# stranger's: a text may be the path of anything.
HARMLESS = (bool, int, float)

NOTHING: dict = {"env_kwargs": {}, **dict.fromkeys(TABLES, {})}


def names():
    """The presets there are, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name):
    """The settings in a preset.

    Args:
        name: One of `names()`, or the path of a file of your own, ending in `.toml`.

    Returns:
        Dict: `env`, `env_kwargs`, and the tables `agent`, `fit` and `evaluation`, each
        a dict.

    Raises:
        ValueError: when there is no such preset, or it is not well-formed, or it holds
            a key that means nothing; with the key and the ones known there.
        FileNotFoundError: when there is no such file.

    Example:

    >>> read("CartPole-v1")["env"]
    'CartPole-v1'
    """
    path = pathlib.Path(name)
    if path.suffix != ".toml":
        if name not in names():
            raise ValueError(
                f"There is no preset {name!r}. There are: {', '.join(names())}. A file "
                "of your own ends in .toml."
            )
        path = FOLDER / f"{name}.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"The preset {name} is no TOML: {error}") from error
    _expect_keys(f"The preset {name}", found, {"env", "env_kwargs", *TABLES})
    env_kwargs = found.get("env_kwargs", {})
    _expect_keys(f"`env_kwargs` of the preset {name}", env_kwargs, env_kwargs)
    for table, known in TABLES.items():
        _expect_keys(f"[{table}] of the preset {name}", found.get(table, {}), known)
    if not isinstance(found.get("env"), str):
        raise ValueError(
            f'The preset {name} must name its environment: env = "CartPole-v1". '
            f"Received: env={found.get('env')!r}"
        )
    judging = found.get("evaluation", {})
    for key in judging.keys() & {"episodes", "every", "max_episode_steps"}:
        arguments.positive_int(key, judging[key])
    if "target" in judging:
        arguments.within("target", judging["target"], -math.inf, math.inf)
    if "deterministic" in judging:
        arguments.one_of("deterministic", judging["deterministic"], (True, False))
    return {**NOTHING, **found}


def _expect_keys(where, found, known):
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a table of settings. Received: {found!r}")
    for key in found:
        if key not in known:
            raise ValueError(
                f"{where} holds {key!r}, which means nothing there. "
                f"Known: {', '.join(sorted(known))}."
            )


def harmless(defaults):
    """What of an agent's defaults may come from a file; see `HARMLESS`."""
    kept = {name: x for name, x in defaults.items() if name in TABLES["fit"]}
    env_kwargs = defaults.get("env_kwargs") or {}
    plain = {name: x for name, x in env_kwargs.items() if isinstance(x, HARMLESS)}
    return {**kept, "env_kwargs": plain}


def parts(chosen, observation_space, action_space, seed):
    """The keywords of `Reinforce.for_env` with objects in place of names.

    Args:
        chosen: Dict, of which `head`, `baseline` and `learning_rate` may be as in a
            preset.
        observation_space, action_space: `gymnasium.Space`.
        seed: Int; the initial weights of a value network are a function of it.

    Returns:
        The dict with a `Head`, a `Baseline` and a float; and a list with
        `(optimizer, first, last)` for each learning rate that changes.

    Raises:
        ValueError, TypeError: when a setting is not acceptable.
    """
    chosen = dict(chosen)
    first, last = _rate(chosen["learning_rate"])
    baseline = chosen.get("baseline", "leave_one_out")
    baseline, baseline_rates = _baseline(baseline, observation_space, seed)
    head = chosen.get("head")
    if not isinstance(head, heads.Head):
        head = _head(head, action_space)
    goals = [("optimizer", first, last)]
    if baseline_rates:
        goals.append(("baseline.optimizer", *baseline_rates))
    chosen.update(head=head, baseline=baseline, learning_rate=first)
    return chosen, [goal for goal in goals if goal[1] != goal[2]]


def _rate(setting):
    """The first and the last learning rate."""
    if isinstance(setting, keras.optimizers.schedules.LearningRateSchedule):
        return setting, setting
    if not isinstance(setting, dict):
        setting = arguments.within("learning_rate", setting, 0, math.inf)
        return setting, setting
    _expect_keys("A learning rate that changes", setting, RATE)
    if set(setting) != RATE:
        raise ValueError(
            "A learning rate that changes is {first = 0.01, last = 0.001}. "
            f"Received: {setting!r}"
        )
    return [
        arguments.within(f"learning_rate.{name}", setting[name], 0, math.inf)
        for name in ("first", "last")
    ]


def _baseline(setting, observation_space, seed):
    """What a baseline is called, or a value network with its two learning rates."""
    if setting == "value":
        setting = {"kind": "value"}
    if not isinstance(setting, dict):
        return None if setting == "none" else setting, ()
    _expect_keys("A baseline that learns", setting, VALUE)
    if setting.get("kind") != "value":
        raise ValueError(
            'A baseline that learns has kind = "value". '
            f"Received: kind={setting.get('kind')!r}"
        )
    rate = _rate(setting.get("learning_rate", 1e-2))
    # The same network as the policy's, from other draws.
    other = int(seeding.generator(seed, "weights", 1).integers(2**31))
    model = policies.default(observation_space, setting.get("hidden", (64, 64)), 1, other)
    optimizer = keras.optimizers.Adam(rate[0])
    more = {name: setting[name] for name in OF_VALUE if name in setting}
    return baselines.Value(model, optimizer, **more), rate


def _head(setting, action_space):
    """The head of that name for a Box, or an error that lists those there are."""
    usual = heads.for_space(action_space)
    if setting is None:
        return usual
    options = dict(setting) if isinstance(setting, dict) else {"kind": setting}
    kind = options.pop("kind", None)
    if not isinstance(usual, heads.Gaussian) or kind not in FOR_BOX:
        raise ValueError(
            f"`head` names one for a Box, of {', '.join(FOR_BOX)}. "
            f"Received: head={setting!r} for {action_space!r}"
        )
    further = () if kind == "Beta" else ("initial_scale", "state_dependent_scale")
    _expect_keys(f"The head {kind}", options, further)
    told = BOUNDS
    if kind in ("Gaussian", "ClippedGaussian"):
        told = (*BOUNDS, "initial_scale")  # in units of the action, as the bounds are
    known = {name: getattr(usual, name) for name in told}
    return getattr(heads, kind)(**{**known, **options})


class LinearRates(keras.callbacks.Callback):
    """Learning rates that change linearly over an agent's life.

    Args:
        goals: List of `(optimizer, first, last)`: where the agent has it, and two floats.
        steps: Int, the environment steps at its end, or `None`.
        epochs: Int instead, the number of the last epoch.
    """

    def __init__(self, goals, steps, epochs):
        super().__init__()
        self.goals = goals
        self.steps = steps
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        taken = self.model.env_steps if self.steps else self.model.updates
        # A callback that restores a training says late which epoch is the first.
        end = self.steps or taken + self.epochs - epoch
        share = min(taken / end, 1.0)
        for optimizer, first, last in self.goals:
            found = operator.attrgetter(optimizer)(self.model)
            found.learning_rate = first + (last - first) * share
