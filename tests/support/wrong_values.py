"""Calls of the Python interface with one wrong argument, and what makes an error clear.

An error is clear if the package or Gymnasium raises it, and it names the argument, shows
the received value, and has at most four lines.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import math
import pathlib
import re
import traceback
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import parts

import tf_reinforce as tfr
from tf_reinforce.experiments import multi_seed
from tf_reinforce.settings import config

ROOT = pathlib.Path(tfr.__file__).resolve().parent
NAN, INF = math.nan, math.inf
HUGE = 10**12
COUNTS = (0, -1, 1.5, "2", True)  # no positive ints
FLAGS = ("yes", 1, None)  # no bools
# Phrases of messages that Python, NumPy, Keras or TensorFlow raise far from the cause.
INTERNAL = re.compile(
    r"has no attribute|not supported between|unsupported operand|not iterable|"
    r"not subscriptable|object is not callable|could not be broadcast|"
    r"could not convert|cannot be interpreted|must be real number|"
    r"Attempt to convert|InvalidArgument|UnimplementedError|Traceback|"
    r"setting an array element|index out of range|takes \d+ positional"
)


# Clear messages of Keras and Python about the name or the value of an argument.
OTHERS = re.compile(
    r"unexpected keyword argument|Unrecognized keyword arguments|"
    r"Could not interpret optimizer identifier|"
    r"Error when deserializing class .*\n\nException encountered: `"
)


class Wrong(NamedTuple):
    """A call with one wrong argument.

    Attributes:
        subject: String, the class, method or function that is called.
        argument: String, the argument's name, which the error must contain.
        value: The wrong value.
        call: Function of a `World` that makes the call.
        shown: String by which the error shows the value, or `None` for its `repr`.
    """

    subject: str
    argument: str
    value: Any
    call: Any
    shown: str | None = None

    def __str__(self):
        return f"{self.subject}({self.argument}={self.value!r})"[:90]


class Shown(NamedTuple):
    """A wrong value, the text by which an error shows it, and the name in the error."""

    value: Any
    text: str
    name: str | None = None


class World:
    """The agents, records and files that the calls use.

    Args:
        folder: `pathlib.Path` of an empty folder.
    """

    def __init__(self, folder):
        self.folder = folder
        (folder / "mine.txt").write_text("text of the user")
        (folder / "full").mkdir()
        (folder / "full" / "mine.txt").write_text("text of the user")

    @functools.cached_property
    def agent(self):
        """Returns a compiled agent for CartPole with a value baseline."""
        value = keras.Sequential([keras.layers.Dense(1)])
        agent = tfr.Reinforce.for_env(
            "CartPole-v1",
            hidden=(2,),
            baseline=tfr.baselines.Value(value),
            normalize_observations=True,
        )
        agent.build_for_env(agent)  # also creates the state of the optimizers
        return agent

    @functools.cached_property
    def episodes(self):
        return self.agent.collect("CartPole-v1", 2, num_envs=1, max_episode_steps=5)

    def renew(self):
        """Drops the agent after a call has changed it."""
        for name in ("agent", "episodes"):
            self.__dict__.pop(name, None)

    def state(self):
        """Returns a digest of all weights, optimizers, counters and files."""
        agent = self.__dict__.get("agent")
        parts = [agent, agent.optimizer, agent.baseline.optimizer] if agent else []
        parts = [part for part in parts if part is not None]
        arrays = [np.asarray(x).tobytes() for part in parts for x in part.variables]
        files = sorted(
            (str(path), path.read_bytes())
            for path in self.folder.rglob("*")
            if path.is_file()
        )
        return hashlib.sha256(repr((arrays, files)).encode()).hexdigest()


def fault(world, wrong):
    """Makes a wrong call; returns the error and what is unclear about it.

    Returns:
        The message, and a list of strings, which is empty if the error is clear and the
        call changed nothing.
    """
    call = functools.partial(wrong.call, world)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            world.agent, world.episodes  # noqa: B018  # are made before the call
        before = world.state()
        try:
            call()
        except (ValueError, TypeError, OSError, ImportError, gym.error.Error) as error:
            message, raised = str(error), error
        except Exception as error:
            return f"{type(error).__name__}: {error}", ["wrong type of error"]
        else:
            return "", ["accepted"]
    faults = _faults(message, wrong)
    if not _is_ours(raised):
        faults.append("raised by another library")
    if world.state() != before:
        faults.append("something changed")
        world.renew()
    return message, faults


def _faults(message, wrong):
    faults = []
    if wrong.argument.lower() not in message.lower():
        faults.append(f"does not name {wrong.argument}")
    texts = [wrong.shown] if wrong.shown else list(_texts(wrong.value))
    if not any(text in message for text in texts):
        faults.append("does not show the received value")
    if len(message.splitlines()) > 4 or len(message) > 900:
        faults.append("is long")
    if INTERNAL.search(message):
        faults.append("speaks of internals")
    return faults


def _texts(value):
    """Yields texts by which an error may show a value."""
    yield repr(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)) and len(value) == 1:
        yield from _texts(value[0])
    elif isinstance(value, dict) and len(value) == 1:
        for key, part in value.items():
            yield f"{key}={part!r}"
            yield f"'{key}'"


def _is_ours(error):
    """Returns whether the package or Gymnasium raised an error.

    Python itself raises errors for unknown argument names.
    """
    if OTHERS.search(str(error)):
        return True
    frames = list(traceback.walk_tb(error.__traceback__))
    file = frames[-1][0].f_code.co_filename
    return str(ROOT) in file or isinstance(error, (gym.error.Error, OSError, ImportError))


def each(subject, call, **wrong_values):
    """Yields a `Wrong` for each wrong value of each argument.

    Args:
        subject: String, what is called.
        call: Function of a `World` and one keyword argument.
        **wrong_values: Sequences of wrong values for each argument.
    """
    for argument, values in wrong_values.items():
        for value in values:
            is_shown = isinstance(value, Shown)
            value, text, name = value if is_shown else (value, None, None)
            wrong_call = functools.partial(_call, call, argument, value)
            yield Wrong(subject, name or argument, value, wrong_call, text)


def _call(call, argument, value, world):
    return call(world, **{argument: value})


def method(name, **defaults):
    """Returns a function that calls a method of a `World`'s agent.

    Args:
        name: String, the method's name.
        **defaults: Its other arguments; a function receives the `World`.
    """

    def call(world, **options):
        given = {key: x(world) if callable(x) else x for key, x in defaults.items()}
        return getattr(world.agent, name)(**{**given, **options})

    return call


def calling(function, *arguments, **defaults):
    """Returns a function that calls another with these and other arguments."""
    return lambda _, **options: function(*arguments, **{**defaults, **options})


def refused(table, names):
    """Returns up to five values for each setting that do not fit its hint."""
    pool = (1.5, -1, NAN, "x", True, [0.2], [1.2, 0.2], {"a": 1}, 0, INF)
    wrong = {name: [] for name in sorted(names)}
    for name, value in itertools.product(wrong, pool):
        try:
            config.check_option(table, name, value)
        except ValueError:
            wrong[name].append(value)
    return {name: values[:5] for name, values in wrong.items()}


def policy(outputs=2, inputs=4):
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(outputs)])


TWICE = tfr.heads.Categorical(2)
DECAYS = (1.5, -0.1, NAN, "0.9", None, True)
SCALES = (0, -1.0, NAN, INF, "a", None)
NESTED = (
    3,
    None,
    (3,),
    (TWICE, TWICE),
    [TWICE],
    Shown((), "()", "action"),
    Shown({}, "{}", "action"),
    Shown({"a/b": TWICE}, "a/b", "action"),
    Shown({1: TWICE}, "1", "action"),
)
# Wrong values of the arguments of heads and baselines.
ARGUMENTS = {
    **dict.fromkeys(("n", "categories", "trials"), (*COUNTS, HUGE)),
    "size": (*COUNTS, None, HUGE),
    "sizes": (3, [0], [1.5], "34", None, [HUGE]),
    "start": (0.5, "a", None),
    "shape": ((7,), 5, "2"),
    "low": (NAN, "a", None, [1, 2, 3], [9.0, 9.0]),
    "high": (NAN, "a", None, [1, 2, 3], [-9.0, -9.0]),
    "integer": FLAGS,
    "initial_scale": (*SCALES, [1, 2, 3], [1, 0]),
    "state_dependent_scale": FLAGS,
    **dict.fromkeys(("heads", "parts"), NESTED),
    "order": (3, "b", [], ["b"], ["b", "b"], ["b", 1], ["a_0", "b"]),
    "hidden": (*COUNTS, None, HUGE),
    "masks": (3, "b", ["a_0"], {"a_0": 3}, {"a_0": "c"}, {"c": "b"}, {"b": "a_0"}),
    "key_dim": (*COUNTS, None, HUGE),
    "group_size": (*COUNTS, 1),
    "decay": DECAYS,
    "horizon": (*COUNTS, None, HUGE),
    "model": ("dense", 3, [], Shown(keras.layers.Dense, "Dense")),
    "optimizer": ("no_such", 3, [], Shown({"class_name": "No"}, "No")),
    "passes": (*COUNTS, None),
    "minibatch_size": COUNTS,
    "scale": SCALES,
    "loss_weight": (-1, NAN, INF, "x", None),
}


def constructors():
    """Yields wrong arguments of `Reinforce`, heads, baselines, layers and callbacks."""

    yield from each(
        "Reinforce",
        calling(tfr.Reinforce, policy=policy()),
        policy=(None, "dense", 3),
        head=("Gaussian", 3),
        baseline=("median", 3),
        **refused("agent", set(config.AGENT_OPTIONS) - {"action_mask"}),
        action_mask=("mask", 3, "info/", "info", "other/mask"),
        gama=(0.9,),
    )
    for name, example in (parts.HEADS | parts.BASELINES).items():
        found = {}
        for number, case in enumerate(example.cases()):
            found |= {argument: number for argument in reversed(case)}
        for argument, number in found.items():
            make = calling(example.kind, **example.cases()[number])
            yield from each(name, make, **{argument: ARGUMENTS[argument]})
    for name in parts.BOX_HEADS:
        if parts.HEADS[name].kind.needs_finite_bounds:
            example = parts.HEADS[name]
            make = calling(example.kind, **example.cases()[0])
            yield from each(name, make, low=(-INF,), high=(INF,))
    yield from each(
        "heads.for_space",
        calling(tfr.heads.for_space),
        space=(
            None,
            3,
            Shown(gym.spaces.Text(3), "Text"),
            Shown(gym.spaces.Box(1, 1, (2,)), "low=1.0"),
            Shown(gym.spaces.Tuple([]), "()"),
        ),
    )
    get = lambda _, baseline: tfr.baselines.get(baseline)  # noqa: E731
    yield from each("baselines.get", get, baseline=("median", 3, [], {}))
    yield from _callbacks_and_layers()
    yield from _tensor_envs()


def _callbacks_and_layers():
    streams, seconds = (3, "stdout"), (-1, NAN, "x", None)
    kinds = {
        tfr.callbacks.EpisodeLogger: (
            {"filename": "x.csv"},
            dict(filename=(3, None), append=FLAGS),
        ),
        tfr.callbacks.StopAtReturn: (
            {"target": 1.0},
            dict(target=(NAN, INF, "x", None, True), monitor=(3, None)),
        ),
        tfr.callbacks.ProgressLine: ({}, dict(every=seconds, stream=streams)),
        tfr.callbacks.Diagnostics: (
            {},
            dict(every=(*COUNTS, None), verbose=(3, "x", None), stream=streams),
        ),
        tfr.Checkpoints: (
            {"path": "checkpoints"},
            dict(
                path=(3, None),
                every_seconds=(*seconds, INF),
                every_updates=COUNTS,
                keep=(*COUNTS, 1, None),
                grace_seconds=seconds,
            ),
        ),
        tfr.normalization.RunningNormalization: (
            {},
            dict(epsilon=SCALES, clip=(0, -1, NAN, "x", None)),
        ),
        tfr.normalization.RunningScale: ({}, dict(centered=FLAGS, epsilon=SCALES)),
    }
    for kind, (defaults, wrong) in kinds.items():
        yield from each(kind.__name__, calling(kind, **defaults), **wrong)


def _tensor_envs():
    envs = tfr.envs
    calls = {
        "CartPole": (envs.CartPole, dict(dtype=("float16", 3, None))),
        "Bandit": (envs.Bandit, dict(values=([], 3, ["a"], [NAN], [INF], None))),
        "Corridor": (envs.Corridor, dict(length=(*COUNTS, 1, None))),
        "envs.make": (
            lambda environment: envs.make(environment),
            dict(environment=("NoSuch-v0", "CartPole-v0", 3, None, [])),
        ),
        "as_gymnasium": (envs.CartPole().as_gymnasium, dict(num_envs=(*COUNTS, None))),
    }
    for name, (make, wrong) in calls.items():
        yield from each(name, calling(make), **wrong)


ENVS = (
    None,
    3,
    Shown("NoSuch-v0", "NoSuch"),
    Shown("CartPole-v99", "v99"),
    Shown("no_such_module:Env-v0", "no_such_module"),
    Shown(lambda: None, "None"),
    Shown([], "[]"),
)
FAULTS = ("drop", 3, None, [])
ENV_KWARGS = ([3], "x", {"no_such": 1}, {"max_episode_steps": 5}, {3: 1})
ENV_SETTINGS = {
    "reset_options": ([3], "x"),
    "env_attrs": (3, "x"),
}
SEEDS = (-1, 1.0, True, "0", None, 2**63)


def methods():
    """Yields wrong arguments of an agent's methods."""
    yield from _for_env()
    yield from _fit()
    yield from _evaluate_and_collect()
    yield from _act_and_update()
    yield from _files()


def _for_env():
    yield from each(
        "for_env",
        calling(tfr.Reinforce.for_env, env="CartPole-v1", hidden=(2,)),
        env=ENVS,
        hidden=(64, "64", [0], [-1], [1.5], [True], [HUGE], [10**5, 10**5], {}),
        seed=SEEDS,
        learning_rate=(
            -1,
            NAN,
            "fast",
            {"first": 1.0},
            Shown({"first": 1.0, "last": -1.0}, "-1.0"),
        ),
        preset=("NoSuch", 3, "/nowhere/own.toml", [], "Pendulum-v1"),
        env_kwargs=ENV_KWARGS,
        baseline=(
            "median",
            {"kind": "mean"},
            Shown({"kind": "value", "depth": 2}, "depth"),
            3,
        ),
        head=("Gaussian", "Normal", 3),
        gama=(0.9,),
        gamma=(1.5,),
    )
    value = "value"
    yield from each(
        "for_env",
        calling(tfr.Reinforce.for_env, "Pendulum-v1", (2,)),
        head=("Normal", Shown({"kind": "Gaussian", "size": 3}, "size"), {"scale": 1}, 3),
        baseline=(
            Shown({"kind": value, "hidden": 3}, "3"),
            Shown({"kind": value, "hidden": [HUGE]}, str(HUGE)),
            Shown({"kind": value, "learning_rate": "x"}, "'x'"),
            Shown({"kind": value, "passes": 0}, "0", "passes"),
        ),
    )


def _fit():
    budget = {"epochs": 1, "episodes_per_epoch": 2, "verbose": 0}
    yield from each(
        "fit",
        method("fit", env="CartPole-v1", **budget),
        env=(*ENVS, Shown("Pendulum-v1", "(3,)")),
        **refused("fit", config.FIT_OPTIONS),
        seed=SEEDS,
        callbacks=(3, "x", [3], keras.callbacks.EarlyStopping, [None]),
        validation_env=(
            Shown(3, "3", "env"),
            Shown("NoSuch-v0", "NoSuch", "Environment"),
            Shown("Pendulum-v1", "(3,)", "environment"),
        ),
        validation_freq=(0, 1.5, "2", [0]),
        validation_episodes=COUNTS,
        validation_deterministic=(1, "True"),
        initial_epoch=(-1, 1.5, "0", None, True),
        env_kwargs=ENV_KWARGS,
        **ENV_SETTINGS,
        verbose=("x", 3, -1, None),
        resume=(3, []),
        epoch=(Shown(3, "epoch"),),
    )


def _evaluate_and_collect():
    evaluate = method("evaluate", env="CartPole-v1", episodes=1)
    collect = method("collect", env="CartPole-v1", episodes=1)

    def open_envs(_, **options):
        with tfr.collect.open_envs(**{"env": "CartPole-v1", "num_envs": 1, **options}):
            pass

    common = dict(
        env=ENVS[:5],
        num_envs=(*COUNTS, None),
        workers=(*COUNTS, None),
        env_kwargs=ENV_KWARGS,
        max_episode_steps=COUNTS,
    )
    faults = dict(on_bad_env=FAULTS, on_env_error=FAULTS)
    yield from each(
        "evaluate",
        evaluate,
        episodes=(*COUNTS, None),
        deterministic=("yes", 2, None),
        info_keys=refused("fit", ["info_keys"])["info_keys"],
        per_episode=("yes", 2, None),
        seed=SEEDS,
        **ENV_SETTINGS,
        **common,
        **faults,
    )
    counts = dict(episodes=COUNTS, steps=(1,), seed=SEEDS)
    yield from each("collect", collect, **counts, **ENV_SETTINGS, **common)
    yield from each("open_envs", open_envs, **common, **faults)


def _act_and_update():
    rows = np.zeros((2, 4), "float32")
    yield from each(
        "act",
        method("act", observations=rows),
        observations=(Shown(None, "()"), Shown("text", "()"), Shown({"a": rows}, "()")),
        deterministic=("yes", 2, None),
        seed=(-1, 1.0, True, "0", 2**63),
        action_mask=(Shown(np.ones((2, 2)), "array([[1., 1.]"), 3),
        state=(3, {"state_0": 1}),
    )
    wrong = {"update": {"seed": SEEDS}, "gradients": {}, "step_statistics": {}}
    wrong["per_episode_gradients"] = {"baseline": ("no", 1, None)}
    for name, more in wrong.items():
        call = method(name, episodes=lambda world: world.episodes)
        yield from each(name, call, episodes=(None, 3, {}), **more)
    yield from each(
        "compile",
        method("compile", optimizer="adam"),
        optimizer=(3, "no_such", [], None),
        loss=("mse",),
        loss_weights=([1.0],),
        metrics=(["mae"],),
        weighted_metrics=(["mae"],),
        run_eagerly=(True,),
        steps_per_execution=COUNTS,
        learning_rate=(Shown(0.1, "learning_rate"),),
    )


def _files():
    save = method("save", filepath=lambda world: world.folder / "agent.keras")
    paths, flags = ("agent.h5", 3, None), ("no", 1, None)
    yield from each("save", save, filepath=paths, overwrite=flags)
    call = method("save_weights")
    yield from each("save_weights", call, filepath=("weights.txt", 3, None))
    yield from each(
        "export",
        method("export", filepath=lambda world: world.folder / "new"),
        filepath=(3, None),
        format=("torch", 3, None, []),
    )
    yield Wrong(
        "export", "full", "full", lambda w: w.agent.export(w.folder / "full"), "mine.txt"
    )
    yield from each(
        "load",
        lambda world, path: tfr.load(path),
        path=(
            Shown("/nowhere/agent.keras", "/nowhere/agent.keras", "file"),
            Shown("/tmp", "/tmp", "loaded"),
            3,
            None,
        ),
    )
    yield from each(
        "load",
        lambda world, **options: tfr.load(world.folder / "no.keras", **options),
        custom_objects=(5, "Layer", []),
        max_bytes=(*COUNTS, None),
    )
    yield Wrong(
        "load", "mine.txt", "", lambda w: tfr.load(w.folder / "mine.txt"), "mine.txt"
    )
    for name in ("observation_space", "action_space"):
        space = name.replace("_", " ")
        call = method(
            "build_for_spaces",
            observation_space=lambda world: world.agent.observation_space,
            action_space=lambda world: world.agent.action_space,
        )
        wrong = Shown(3, "3", space), Shown(None, "None", space)
        yield from each("build_for_spaces", call, **{name: wrong})
    yield from each("build_for_env", method("build_for_env"), env=(None, 3))


def functions():
    """Yields wrong arguments of the package's functions."""
    check = calling(tfr.check_env, "CartPole-v1", episodes=1)
    yield from each("check_env", check, episodes=(*COUNTS, None), seed=SEEDS)
    yield from _train_seeds()


def _train_seeds():
    def make(seed):
        return tfr.Reinforce.for_env(tfr.envs.Bandit(), (2,), seed)

    defaults = {"make": make, "env": tfr.envs.Bandit(), "seeds": [0, 1], "epochs": 1}
    yield from each(
        "train_seeds",
        calling(tfr.train_seeds, **defaults),
        make=(3, None, Shown(lambda seed: None, "None")),
        env=("CartPole-v1", 3, None),
        seeds=(
            [],
            [0, 0],
            3,
            None,
            Shown([1.5], "1.5", "seed"),
            Shown(["a"], "'a'", "seed"),
            Shown([-1], "-1", "seed"),
        ),
        epochs=(*COUNTS, None),
        episodes_per_epoch=(*COUNTS, None),
        max_episode_steps=COUNTS,
    )
    results = multi_seed.SeedResults(make, [], {}, {}, 0)
    yield from each("SeedResults.agent", calling(results.agent), seed=(99, "0", None))


def all_cases():
    """Returns all wrong arguments of the Python interface."""
    groups = constructors(), methods(), functions()
    return [case for group in groups for case in group]
