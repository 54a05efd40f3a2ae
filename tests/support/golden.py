"""Small files of every kind, written once per format version and read ever after.

    python tests/support/golden.py FOLDER    # once for each format version

`tests/files/FORMAT` holds what this program wrote with that version. The tests load the
files, act with them, and train on to the recorded numbers.
"""

import contextlib
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

ARRAYS = "expected.json"
FIT = dict(episodes_per_epoch=4, max_episode_steps=5, num_envs=2, seed=1, verbose=0)
LIMIT = dict(episodes=4, max_episode_steps=5, seed=2)
Dense = keras.layers.Dense


class Walk(gym.Env):
    """A random walk that actions of any space influence."""

    def __init__(self, actions, observations=None):
        self.action_space = actions
        wide = gym.spaces.Box(-math.inf, math.inf, (3,))
        self.observation_space = observations or wide

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)
        return self._observation(), {}

    def step(self, action):
        push = float(np.sum(gym.spaces.flatten(self.action_space, action)))
        self.position = 0.9 * self.position + 0.1 * self.np_random.normal(size=3)
        self.position += 0.1 * np.tanh(push)
        reward = float(-np.sum(self.position**2) - 0.01 * push)
        return self._observation(), reward, self.position[0] > 1.5, False, {}

    def _observation(self):
        position = self.position.astype("float32")
        if isinstance(self.observation_space, gym.spaces.Dict):
            return {"all": position, "sign": int(position[0] > 0)}
        return position


BOX = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
ONE = gym.spaces.Discrete(3)
NESTED = gym.spaces.Dict(all=gym.spaces.Box(-9, 9, (3,)), sign=gym.spaces.Discrete(2))


def dense(size):
    return keras.Sequential([keras.Input((3,)), Dense(size)])


def shared():
    inputs = keras.Input((3,))
    return keras.Model(inputs, {"outputs": Dense(3)(inputs), "values": Dense(1)(inputs)})


def recurrent():
    inputs = keras.Input((None, 3))
    return keras.Model(
        inputs, Dense(3)(keras.layers.GRU(2, return_sequences=True)(inputs))
    )


def value():
    return tfr.baselines.Value(dense(1), keras.optimizers.Adam(0.01), passes=2)


def default(env, **options):
    return tfr.Reinforce.for_env(env, hidden=(2,), seed=3, **options)


def own(env, policy, *parts, **options):
    agent = tfr.Reinforce(policy, *parts, **options)
    agent.compile(keras.optimizers.Adam(0.01))
    return agent


AGENTS = {  # name: environment, function of the environment
    "categorical": (ONE, lambda env: default(env, baseline="moving_average")),
    "multi_categorical": (
        gym.spaces.MultiDiscrete([2, 3]),
        lambda env: default(env, baseline=tfr.baselines.LeaveOneOut(group_size=2)),
    ),
    "bernoulli": (
        gym.spaces.MultiBinary(3),
        lambda env: default(env, baseline="time_step"),
    ),
    "multinomial": (
        gym.spaces.Box(0, 4, (3,), np.int64),
        lambda env: own(env, dense(3), tfr.heads.Multinomial(3, 4), "mean"),
    ),
    "gaussian": (
        gym.spaces.Box(-math.inf, math.inf, (2,)),
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
    "shared_values": (
        ONE,
        lambda env: own(env, shared(), baseline=tfr.baselines.Value()),
    ),
}


def world(name):
    return Walk(AGENTS[name][0], NESTED if name == "nested" else None)


def make(name):
    keras.utils.set_random_seed(3)
    return AGENTS[name][1](world(name))


def weights(model):
    """Returns each variable's sum of magnitudes, except for seeds."""
    used = [v for v in model.variables if "seed" not in v.path.rsplit("/")[-1]]
    values = [np.abs(v.numpy().astype("float64")).sum() for v in used]
    return [float(value) for value in values]


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


MODELS = {
    "score_function": (sampling_model, fit_sampling_model),
    "language_model": (language_model, fit_language_model),
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
    if kind == "agent":
        model = make("categorical")
        model.fit(world("categorical"), epochs=2, resume=tfr.Checkpoints(folder), **FIT)
    else:
        model = MODELS[kind][0]()
        MODELS[kind][1](model, epochs=2, resume=tfr.Checkpoints(folder))
    return weights(model)


def write(folder):
    """Writes every kind of file, and what its objects do next."""
    expected = {}
    folder.mkdir(parents=True)
    for name in AGENTS:
        agent = make(name)
        agent.fit(world(name), epochs=2, **FIT)
        agent.save(folder / f"{name}.keras")
        expected[name] = what_an_agent_does(agent, world(name))
    for name, (make_model, fit) in MODELS.items():
        model = make_model()
        fit(model)
        model.save(folder / f"{name}.keras")
        before = weights(model)
        fit(model)
        expected[name] = {"loaded": before, "trained": weights(model)}
    for kind in ("agent", *MODELS):
        checkpoints = tfr.Checkpoints(folder / f"checkpoints_{kind}", every_updates=1)
        if kind == "agent":
            make("categorical").fit(
                world("categorical"), epochs=1, resume=checkpoints, **FIT
            )
        else:
            MODELS[kind][1](MODELS[kind][0](), resume=checkpoints)
        copy = shutil.copytree(folder / f"checkpoints_{kind}", folder / "copy")
        expected[f"checkpoints_{kind}"] = {"trained": resumed(copy, kind)}
        shutil.rmtree(copy)
    short = "CartPole-v1", "--episodes-per-epoch", 4, "--hidden", 2, "--eval-episodes", 2
    command("train", *short, "--epochs", 2, "--run-dir", folder / "run")
    one = "--steps", 200, "--trials", 1, "--trainings", 1, "--confirm", 0
    command("tune", *short, *one, "--run-dir", folder / "search")
    for path in folder.rglob(".lock"):
        path.unlink()
    (folder / ARRAYS).write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    platform.platform = platform.system  # the files name no machine
    write(pathlib.Path(sys.argv[1]))
