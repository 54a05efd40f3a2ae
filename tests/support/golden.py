"""Small files of every kind, written once per format version and read ever after.

    python tests/support/golden.py FOLDER    # once for each format version

`tests/files/FORMAT` holds what this program wrote with that version. The tests load the
files, act with them, and train on to the recorded numbers.
"""

import contextlib
import hashlib
import io
import json
import math
import pathlib
import platform
import shutil
import sys

import gymnasium as gym
import keras
import language_models
import numpy as np

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.engine import agent_state
from tf_reinforce.support import version

ARRAYS = "expected.json"
FIT = dict(episodes_per_epoch=4, max_episode_steps=5, num_envs=2, seed=1, verbose=0)
LIMIT = dict(episodes=4, max_episode_steps=5, seed=2)
Dense = keras.layers.Dense


class Walk(gym.Env):
    """A random walk that actions of any space influence, with any observations."""

    def __init__(self, actions, observations=None):
        self.action_space = actions
        wide = gym.spaces.Box(-math.inf, math.inf, (3,))
        self.observation_space = observations or wide

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)
        return self._observation(), self._info()

    def step(self, action):
        push = float(np.sum(gym.spaces.flatten(self.action_space, action)))
        self.position = 0.9 * self.position + 0.1 * self.np_random.normal(size=3)
        self.position += 0.1 * np.tanh(push)
        reward = float(-np.sum(self.position**2) - 0.01 * push)
        return self._observation(), reward, self.position[0] > 1.5, False, self._info()

    def _info(self):
        legal = np.array([1, 1, self.position[1] > 0], np.int8)
        return {"legal": legal} if self.action_space == ONE else {}

    def _observation(self):
        return observed(self.observation_space, self.position.astype("float32"))


def observed(space, position):
    """Returns a position as an observation of a space."""
    if isinstance(space, gym.spaces.Dict):
        return {name: observed(part, position) for name, part in space.items()}
    if isinstance(space, gym.spaces.Discrete):
        return np.int64(position[0] > 0)
    if isinstance(space, gym.spaces.MultiBinary):
        return (position > 0).astype(np.int8)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return (position > 0).astype(np.int64)
    if space.dtype == np.uint8:
        image = np.clip(128 + 40 * position, 0, 255).astype(np.uint8)
        return np.broadcast_to(image, space.shape).copy()
    return position


BOX = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
REALS = gym.spaces.Box(-math.inf, math.inf, (2,))
ONE = gym.spaces.Discrete(3)
TWO = gym.spaces.MultiDiscrete([2, 3])
NESTED = gym.spaces.Dict(all=gym.spaces.Box(-9, 9, (3,)), sign=gym.spaces.Discrete(2))


def dense(size, **options):
    return keras.Sequential([keras.Input((3,)), Dense(size, **options)])


def shared():
    inputs = keras.Input((3,))
    return keras.Model(inputs, {"outputs": Dense(3)(inputs), "values": Dense(1)(inputs)})


def recurrent(layer=keras.layers.GRU):
    inputs = keras.Input((None, 3))
    return keras.Model(inputs, Dense(3)(layer(2, return_sequences=True)(inputs)))


def value():
    return tfr.baselines.Value(dense(1), keras.optimizers.Adam(0.01), passes=2)


def default(env, **options):
    return tfr.Reinforce.for_env(env, hidden=(2,), seed=3, **options)


def own(env, policy, *parts, optimizer=None, **options):
    agent = tfr.Reinforce(policy, *parts, **options)
    agent.compile(optimizer or keras.optimizers.Adam(0.01))
    return agent


def plain(make_options=dict):
    """A linear policy of three choices with other options or another optimizer."""
    return ONE, lambda env: own(env, dense(3), **{"optimizer": "sgd", **make_options()})


def headed(space, size, head, **options):
    """A linear policy with a head."""
    return space, lambda env: own(env, dense(size), head(), optimizer="sgd", **options)


optimizers, heads, baselines = keras.optimizers, tfr.heads, tfr.baselines
DECAY = optimizers.schedules.PolynomialDecay(0.1, 9, 0.0)
RATES = {"first": 0.02, "last": 0.01}

# Name: the action space, and a function of the environment.
AGENTS = {
    "categorical": (ONE, lambda env: default(env, baseline="moving_average")),
    "multi_categorical": (
        TWO,
        lambda env: default(env, baseline=baselines.LeaveOneOut(group_size=2)),
    ),
    "bernoulli": (
        gym.spaces.MultiBinary(3),
        lambda env: default(env, baseline="time_step"),
    ),
    "multinomial": (
        gym.spaces.Box(0, 4, (3,), np.int64),
        lambda env: own(env, dense(3), heads.Multinomial(3, 4), "mean"),
    ),
    "gaussian": (
        REALS,
        lambda env: default(env, head="Gaussian", scale_rewards=True, baseline=value()),
    ),
    "tanh_gaussian": (BOX, lambda env: default(env, head="TanhGaussian", baseline=None)),
    "clipped_gaussian": (
        BOX,
        lambda env: default(
            env, head="ClippedGaussian", passes=2, minibatch_size=5, ratio_clip=(0.2, 0.3)
        ),
    ),
    "beta": (
        BOX,
        lambda env: default(env, head="Beta", normalize_observations=True, max_kl=0.1),
    ),
    "composite": (
        gym.spaces.Dict(box=BOX, one=ONE),
        lambda env: default(env, entropy_coef=0.01, scale_advantages="running"),
    ),
    "nested": (ONE, lambda env: default(env, normalize_observations=True)),
    "recurrent": (ONE, lambda env: own(env, recurrent(), gamma=0.9)),
    "shared_values": (ONE, lambda env: own(env, shared(), baseline=baselines.Value())),
}
MORE_AGENTS = {  # since format 2
    "start": headed(
        gym.spaces.Discrete(3, start=2), 3, lambda: heads.Categorical(3, start=2)
    ),
    "multi_discrete_2d": (
        gym.spaces.MultiDiscrete([[2, 3], [2, 2]]),
        lambda env: default(env, learning_rate=RATES),
    ),
    "tuple": (gym.spaces.Tuple([ONE, BOX]), lambda env: default(env)),
    "own_scale": headed(
        REALS, 4, lambda: heads.Gaussian(2, state_dependent_scale=True, initial_scale=0.3)
    ),
    "integers": headed(
        gym.spaces.Box(0, 9, (1,), np.int64),
        1,
        lambda: heads.ClippedGaussian(1, [0], [9], integer=True),
    ),
    "no_baseline": plain(lambda: dict(baseline=None)),
    "leave_one_out": plain(),
    "mean": plain(lambda: dict(baseline="mean")),
    "moving_average": plain(lambda: dict(baseline=baselines.MovingAverage(0.5))),
    "time_step": plain(lambda: dict(baseline=baselines.TimeStep(9))),
    "value": (ONE, lambda env: default(env, baseline="value")),
    "value_scale": plain(
        lambda: dict(
            baseline=baselines.Value(dense(1), "sgd", minibatch_size=3, scale=2.0),
            gae_lambda=0.5,
        )
    ),
    "image": (ONE, lambda env: default(env)),
    "flags": (ONE, lambda env: default(env)),
    "category": (ONE, lambda env: default(env)),
    "categories": (ONE, lambda env: default(env)),
    "lstm": (ONE, lambda env: own(env, recurrent(keras.layers.LSTM))),
    "rnn": (ONE, lambda env: own(env, recurrent(keras.layers.SimpleRNN))),
    "whole": plain(lambda: dict(returns="whole")),
    "discount_states": plain(lambda: dict(gamma=0.8, discount_states=True)),
    "drop": plain(lambda: dict(on_truncation="drop", mean_over="steps")),
    "terminal": plain(lambda: dict(on_truncation="terminal", scale_advantages="batch")),
    "schedule": plain(lambda: dict(entropy_coef=DECAY)),
    "passes": plain(lambda: dict(passes=2, minibatch_size=4, ratio_clip=1.5, max_kl=9.0)),
    "mask": plain(lambda: dict(action_mask="info/legal")),
    "float64": (ONE, lambda env: own(env, dense(3, dtype="float64"), optimizer="sgd")),
    "frozen": (ONE, lambda env: own(env, frozen(), optimizer="sgd")),
    "subclass": (ONE, lambda env: own(env, Doubled(), optimizer="sgd")),
    "momentum": plain(
        lambda: dict(optimizer=optimizers.SGD(0.1, momentum=0.9, nesterov=True))
    ),
    "averages": plain(
        lambda: dict(optimizer=optimizers.AdamW(0.1, use_ema=True, ema_momentum=0.5))
    ),
    "lion": plain(lambda: dict(optimizer=optimizers.Lion(0.01, clipnorm=1.0))),
    "decay": plain(lambda: dict(optimizer=optimizers.RMSprop(DECAY))),
    "accumulation": plain(
        lambda: dict(optimizer=optimizers.Adam(gradient_accumulation_steps=2))
    ),
}
OBSERVATIONS = {
    "nested": NESTED,
    "image": gym.spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "flags": gym.spaces.MultiBinary(3),
    "category": gym.spaces.Discrete(2),
    "categories": gym.spaces.MultiDiscrete([2, 2, 2]),
}


@keras.saving.register_keras_serializable("golden")
class Doubled(keras.Model):
    """A model of a user."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = Dense(3)

    def call(self, inputs):
        return 2 * self.layer(inputs)


def frozen():
    policy = keras.Sequential([keras.Input((3,)), Dense(4, "tanh"), Dense(3)])
    policy.layers[0].trainable = False
    return policy


def world(name):
    return Walk((AGENTS | MORE_AGENTS)[name][0], OBSERVATIONS.get(name))


def make(name):
    keras.utils.set_random_seed(3)
    return (AGENTS | MORE_AGENTS)[name][1](world(name))


def weights(model):
    """Returns each variable's sum of magnitudes, except for seeds."""
    used = [v for v in model.variables if "seed" not in v.path.rsplit("/")[-1]]
    values = [np.abs(v.numpy().astype("float64")).sum() for v in used]
    return [float(value) for value in values]


def bits(model):
    """Returns a digest of all that a training depends on."""
    digest = hashlib.sha256()
    for variable in agent_state.variables(model):
        digest.update(np.asarray(variable.numpy()).tobytes())
    return digest.hexdigest()


def machine():
    """Returns a digest of what determines bits: packages and processor."""
    facts = {**version.installed(), "processor": version.flags()["processor"]}
    del facts["tf-reinforce"], facts["platform"]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def what_an_agent_does(agent, env):
    """Acts and trains on; returns numbers that show both."""
    before = weights(agent)
    result = agent.evaluate(env, deterministic=False, **LIMIT)
    agent.fit(env, epochs=3, initial_epoch=2, **FIT)
    return {
        "loaded": before,
        "return": float(result["episode_return"]),
        "trained": weights(agent),
    }


def next_update(agent, env):
    """Acts in four episodes and learns from them; returns numbers and bits of both."""
    episodes = agent.collect(env, 4, max_episode_steps=4, num_envs=2, seed=1)
    actions = [np.asarray(x) for x in keras.tree.flatten(episodes.actions)]
    agent.update(episodes, seed=1)
    digest = hashlib.sha256(b"".join(x.tobytes() for x in actions)).hexdigest()
    numbers = {"actions": [float(x.sum()) for x in actions], "trained": weights(agent)}
    return numbers, {"actions": digest, "trained": bits(agent)}


def sampling_model():
    keras.utils.set_random_seed(1)
    x = keras.Input((3,))
    layer = tfr.layers.Sample(tfr.heads.Categorical(3), name="choice")
    model = tfr.ScoreFunction(
        keras.Model(x, Dense(1)(keras.ops.one_hot(layer(Dense(3)(x)), 3))),
        loss="mse",
        baseline="moving_average",
    )
    model.compile(keras.optimizers.Adam(0.05))
    return model


@keras.saving.register_keras_serializable("golden")
def sevens(completions):
    return [completion.count("7") + 0.1 * len(completion) for completion in completions]


def language_model():
    model = tfr.sequences.SequenceReinforce(
        language_models.text_gpt2(), sevens, group_size=2, max_completion_length=3, seed=5
    )
    model.compile(keras.optimizers.Adam(0.05))
    return model


def fit_sampling_model(model, **options):
    x = np.linspace(-1, 1, 18).reshape(6, 3).astype("float32")
    options = {"epochs": 1, **options}
    return model.fit(x, x[:, :1], batch_size=3, shuffle=False, verbose=0, **options)


def fit_language_model(model, **options):
    options = {"epochs": 1, **options}
    return model.fit(["3+4=", "1+1="], batch_size=2, verbose=0, **options)


@keras.saving.register_keras_serializable("golden")
def nearest(inputs, choices):
    return -np.abs(inputs - choices).sum(axis=-1).astype("float32")


def rewarded(head, size, **options):
    """Returns a function that makes a model of one sample, with a reward function."""

    def make_model():
        keras.utils.set_random_seed(1)
        x = keras.Input((3,))
        model = keras.Model(x, tfr.layers.Sample(head(), seed=3)(Dense(size)(x)))
        model = tfr.ScoreFunction(model, reward=nearest, **options)
        model.compile(keras.optimizers.SGD(0.05))
        return model

    return make_model


def fit_rewarded_model(model, **options):
    x = np.linspace(-1, 1, 18).reshape(6, 3).astype("float32")
    options = {"epochs": 1, **options}
    return model.fit(x, batch_size=3, shuffle=False, verbose=0, **options)


def short_language_model():
    model = tfr.sequences.SequenceReinforce(
        language_models.text_gpt2(), [sevens], kl_coef=0.0, passes=2, seed=5,
        group_size=2, max_completion_length=2, temperature=0.7, reward_weights=[0.5],
    )  # fmt: skip
    model.compile(keras.optimizers.SGD(0.05))
    return model


MODELS = {
    "score_function": (sampling_model, fit_sampling_model),
    "language_model": (language_model, fit_language_model),
}
MORE_MODELS = {  # since format 2
    "score_gaussian": (rewarded(lambda: heads.Gaussian(3), 3), fit_rewarded_model),
    "score_mean": (
        rewarded(lambda: heads.Gaussian(3), 3, samples=3, baseline="mean"),
        fit_rewarded_model,
    ),
    "score_entropy": (
        rewarded(lambda: heads.Bernoulli(3), 3, entropy_coef=0.1, baseline=None),
        fit_rewarded_model,
    ),
    "score_groups": (
        rewarded(lambda: heads.MultiCategorical([2, 2, 2]), 6, samples=2),
        fit_rewarded_model,
    ),
    "language_passes": (short_language_model, fit_language_model),
}


def loaded(path):
    """Returns a Keras model; naming the classes imports them, which registers them."""
    assert tfr.ScoreFunction and tfr.sequences.SequenceReinforce
    return keras.saving.load_model(path)


def command(*arguments):
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        assert cli.main([str(argument) for argument in arguments]) == 0


def resumed(folder, kind):
    """Trains with the checkpoints in a folder, up to a second epoch."""
    resume = tfr.Checkpoints(folder)
    if kind in MODELS | MORE_MODELS:
        make_model, fit = (MODELS | MORE_MODELS)[kind]
        model = make_model()
        fit(model, epochs=2, resume=resume)
        return model
    name = "categorical" if kind == "agent" else kind
    model = make(name)
    options = {} if kind == "agent" else {"validation_freq": []}
    model.fit(world(name), epochs=2, resume=resume, **options, **FIT)
    return model


CHECKPOINTS = "agent", *MODELS  # in format 1
MORE_CHECKPOINTS = "value_scale", "lstm", "averages", "score_gaussian"
EXPORTS = "onnx", "litert", "tf_saved_model"


def write(folder):
    """Writes every kind of file, and what its objects do next."""
    expected, exact = {}, {}
    folder.mkdir(parents=True)
    for name in AGENTS | MORE_AGENTS:
        agent = make(name)
        agent.fit(world(name), epochs=1, **FIT)
        agent.save(folder / f"{name}.keras")
        loaded_agent = tfr.load(folder / f"{name}.keras")
        expected[name], exact[name] = next_update(loaded_agent, world(name))
    for name, (make_model, fit) in (MODELS | MORE_MODELS).items():
        model = make_model()
        fit(model)
        model.save(folder / f"{name}.keras")
        before = weights(model)
        fit(model)
        expected[name] = {"loaded": before, "trained": weights(model)}
        exact[name] = {"trained": bits(model)}
    for kind in (*CHECKPOINTS, *MORE_CHECKPOINTS):
        write_checkpoints(folder / f"checkpoints_{kind}", kind)
        copy = shutil.copytree(folder / f"checkpoints_{kind}", folder / "copy")
        model = resumed(copy, kind)
        expected[f"checkpoints_{kind}"] = {"trained": weights(model)}
        exact[f"checkpoints_{kind}"] = {"trained": bits(model)}
        shutil.rmtree(copy)
    write_runs(folder)
    agent = tfr.load(folder / "no_baseline.keras")
    for kind in EXPORTS:
        agent.export(folder / f"export_{kind}", format=kind)
    for path in folder.rglob(".lock"):
        path.unlink()
    content = {**expected, "machine": machine(), "exact": exact}
    (folder / ARRAYS).write_text(json.dumps(content, indent=1) + "\n")


def write_checkpoints(folder, kind):
    """Begins a training in a folder, and keeps its checkpoints only."""
    checkpoints = tfr.Checkpoints(folder, every_updates=1)
    if kind in MODELS | MORE_MODELS:
        make_model, fit = (MODELS | MORE_MODELS)[kind]
        fit(make_model(), resume=checkpoints)
    else:
        name = "categorical" if kind == "agent" else kind
        options = {"validation_freq": [], "resume": checkpoints, **FIT}
        make(name).fit(world(name), epochs=1, **options)
    for path in folder.iterdir():
        if path.name not in ("checkpoints", "config.json", "log.csv", "episodes.csv"):
            path.unlink()


def write_runs(folder):
    """Writes run directories and searches of the command line."""
    short = "CartPole-v1", "--episodes-per-epoch", 4, "--hidden", 2, "--eval-episodes", 2
    short += ("--no-preset",)
    command("train", *short, "--epochs", 2, "--run-dir", folder / "run")
    more = "--engine", "host", "--max-episode-steps", 9, "--epochs", 2
    command("train", *short, *more, "--run-dir", folder / "run_host")
    more = "--seeds", 2, "--epochs", 2, "--max-episode-steps", 9
    command("train", *short, *more, "--run-dir", folder / "run_seeds")
    one = "--steps", 200, "--trials", 1, "--trainings", 1, "--confirm", 0
    command("tune", *short[:-1], *one, "--run-dir", folder / "search")


if __name__ == "__main__":
    platform.platform = platform.system  # the files name no machine
    write(pathlib.Path(sys.argv[1]))
