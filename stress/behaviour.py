"""Computes digests of what a hundred trainings do, to compare two versions.

    python stress/behaviour.py write FILE.json [--jobs 2] [--only NAME …]
    python stress/behaviour.py compare FILE.json [--jobs 2] [--only NAME …]

Each configuration is one short training with fixed seeds. Its digests cover the weights
and optimizer variables, the logs without times, the collected episodes, the actions, an
evaluation, the training after saving and loading, and for some the exported policy. They
depend on the machine and the wheels, so both versions must run on the same machine.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))

import gymnasium as gym
import keras
import language_models
import numpy as np
import repeatable_configurations as known
import tensorflow as tf
from repeatable_configurations import Walk

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).resolve().parents[1]
Dense = keras.layers.Dense


def digest(*values):
    """Returns a short SHA-256 of nested arrays, numbers and strings."""
    sha = hashlib.sha256()

    def add(value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                sha.update(str(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for part in value:
                add(part)
        elif value is not None:
            array = np.asarray(value)
            sha.update(repr((array.shape, array.dtype.str)).encode())
            sha.update(str(value).encode() if array.dtype == object else array.tobytes())

    add(values)
    return sha.hexdigest()[:16]


def variables(model):
    parts = [model, model.optimizer, getattr(model.baseline, "optimizer", None)]
    return [v.numpy() for part in parts if part is not None for v in part.variables]


def logs(history):
    return {k: x for k, x in history.history.items() if k != "steps_per_second"}


# ------------------------------------------------------------------------------- agents


def agent_digests(configuration, exports=False):
    """Returns the digests of a configuration of `repeatable_configurations`."""
    agent, env, fit = configuration(3)
    fit = {"episodes_per_epoch": 8, "max_episode_steps": 30, **fit}
    options = {**fit, "num_envs": 3, "seed": 7, "verbose": 0}
    if isinstance(env, gym.vector.VectorEnv):
        options.pop("num_envs")
    if isinstance(env, tfr.envs.TensorEnv):
        options.pop("num_envs")
    history = agent.fit(env, epochs=3, **options)
    digests = {"weights": digest(variables(agent)), "logs": digest(logs(history))}
    if isinstance(env, gym.vector.VectorEnv):
        return digests
    limit = {"max_episode_steps": fit["max_episode_steps"]}
    episodes = agent.collect(env, 4, seed=3, **limit)
    digests["episodes"] = digest(
        [x for x in keras.tree.flatten(episodes) if x is not None]
    )
    digests["evaluate"] = digest(agent.evaluate(env, episodes=4, seed=2, **limit))
    sampled = agent.evaluate(env, episodes=4, deterministic=False, seed=2, **limit)
    digests["evaluate sampled"] = digest(sampled)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "agent.keras")
        agent.save(path)
        loaded = tfr.load(path)
        more = loaded.fit(env, epochs=4, initial_epoch=3, **options)
        digests["continued"] = digest(variables(loaded), logs(more))
        if exports:
            digests["export"] = export_digest(agent, episodes, folder)
    return digests


def export_digest(agent, episodes, folder):
    """Returns the digest of what the functions of a SavedModel return."""
    path = os.path.join(folder, "policy")
    agent.export(path)
    module = tf.saved_model.load(path)
    results = []
    for name, function in sorted(module.signatures.items()):
        specs = function.structured_input_signature[1]
        rng = np.random.default_rng(0)
        inputs = {}
        for key, spec in sorted(specs.items()):
            shape = [4 if size is None else size for size in spec.shape]
            if spec.dtype.is_floating:
                inputs[key] = tf.constant(rng.normal(size=shape), spec.dtype)
            else:
                inputs[key] = tf.ones(shape, spec.dtype)
        outputs = function(**inputs)
        results.append([name, {k: x.numpy() for k, x in outputs.items()}])
    return digest(results)


def default(env, fit=None, **options):
    def configuration(num_envs):
        options_now = {k: x() if callable(x) else x for k, x in options.items()}
        return tfr.Reinforce.for_env(env, hidden=(8,), **options_now), env, fit or {}

    return configuration


def model(make, env="CartPole-v1", fit=None, **options):
    """Returns a configuration with the policy of a user."""

    def configuration(num_envs):
        keras.utils.set_random_seed(3)
        values = {k: x() if callable(x) else x for k, x in options.items()}
        agent = tfr.Reinforce(make(), **values)
        agent.compile(keras.optimizers.SGD(1e-2, momentum=0.9))
        return agent, env, fit or {}

    return configuration


def value_model():
    net = keras.Sequential([Dense(8, "tanh"), Dense(1)])
    return tfr.baselines.Value(net, keras.optimizers.Adam(0.01))


def decay():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def mlp(units=2, activation="tanh", **options):
    return lambda: keras.Sequential(
        [keras.Input((4,)), Dense(8, activation, **options), Dense(units, **options)]
    )


def shared():
    inputs = keras.Input((4,))
    hidden = Dense(8, "tanh")(inputs)
    return keras.Model(inputs, {"outputs": Dense(2)(hidden), "values": Dense(1)(hidden)})


def normalized():
    layers = keras.layers.BatchNormalization(), keras.layers.LayerNormalization()
    return keras.Sequential([keras.Input((4,)), Dense(8), *layers, Dense(2)])


def simple_rnn():
    inputs = keras.Input((None, 4))
    hidden = keras.layers.SimpleRNN(4, return_sequences=True)(inputs)
    return keras.Model(inputs, Dense(2)(hidden))


def images():
    layers = keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.Flatten()
    rescale = keras.layers.Rescaling(1 / 255)
    return keras.Sequential([keras.Input((8, 8, 1)), rescale, *layers, Dense(2)])


class Pictures(gym.Env):
    """Shows a bright column on one of two sides; the action names the side."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._picture(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.count += 1
        return self._picture(), reward, self.count == 5, False, {}

    def _picture(self):
        self.side = int(self.np_random.integers(2))
        picture = self.np_random.integers(100, size=(8, 8, 1), dtype=np.uint8)
        picture[:, 6 * self.side] = 255
        return picture


class Observing(Walk):
    """A random walk with another observation space."""

    def __init__(self, observation_space):
        super().__init__(gym.spaces.Discrete(3))
        self.observation_space = observation_space

    def _observation(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()


OPTIONS = {
    "gamma": dict(gamma=0.5),
    "gae_lambda": dict(gae_lambda=0.5, baseline=value_model),
    "whole returns": dict(returns="whole"),
    "discount_states": dict(discount_states=True, gamma=0.8),
    "scale_advantages batch": dict(scale_advantages="batch"),
    "scale_advantages running": dict(scale_advantages="running"),
    "scale_rewards": dict(scale_rewards=True),
    "mean over steps": dict(mean_over="steps"),
    "drop": dict(on_truncation="drop"),
    "bootstrap": dict(on_truncation="bootstrap", baseline=value_model),
    "passes": dict(passes=3, minibatch_size=7),
    "ratio_clip": dict(passes=3, ratio_clip=1.1),
    "PPO clip": dict(passes=3, ratio_clip=(0.2, 0.3)),
    "max_kl": dict(passes=9, max_kl=1e-4),
    "entropy": dict(entropy_coef=decay),
    "normalize": dict(normalize_observations=True),
    "zero baseline": dict(baseline=None),
    "mean baseline": dict(baseline="mean"),
    "moving average": dict(baseline="moving_average"),
    "time step": dict(baseline="time_step"),
    "groups": dict(baseline=lambda: tfr.baselines.LeaveOneOut(group_size=2)),
    "everything": dict(
        baseline=value_model,
        gae_lambda=0.9,
        normalize_observations=True,
        scale_rewards=True,
        on_truncation="drop",
        minibatch_size=20,
        passes=3,
        max_kl=1e-3,
        entropy_coef=decay,
        mean_over="steps",
    ),
}
HEADS = ["Gaussian", "TanhGaussian", "ClippedGaussian", "Beta"]


def spaces():
    box = gym.spaces.Box(-1.0, 2.0, (2,), np.float32)
    return {
        "box": box,
        "unbounded": gym.spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "image": gym.spaces.Box(0, 255, (4, 4, 1), np.uint8),
        "discrete": gym.spaces.Discrete(5, start=2),
        "multi discrete": gym.spaces.MultiDiscrete([2, 3], start=[1, 0]),
        "multi binary": gym.spaces.MultiBinary(3),
        "dict": gym.spaces.Dict(box=box, one=gym.spaces.Discrete(3)),
        "tuple": gym.spaces.Tuple([box, gym.spaces.MultiBinary(2)]),
    }


def agents():
    """Yields `(name, configuration, whether it is exported)`."""
    for name, configuration in known.CONFIGURATIONS.items():
        yield name, configuration, name != "vector_env"
    for name, options in OPTIONS.items():
        yield f"host: {name}", default("CartPole-v1", **options), False
    for name, options in OPTIONS.items():
        env = tfr.envs.CartPole()
        yield f"xla: {name}", default(env, {"max_episode_steps": 40}, **options), False
    for head in HEADS:
        env = lambda: Walk(spaces()["box"])  # noqa: E731
        yield f"head {head}", default(env, head=head), True
    for name, space in spaces().items():
        if name not in ("image", "unbounded"):
            env = lambda space=space: Walk(space)  # noqa: E731
            yield f"actions {name}", default(env), True
        env = lambda space=space: Observing(space)  # noqa: E731
        yield f"observations {name}", default(env, normalize_observations=True), True
    yield "float16", model(mlp(dtype="mixed_float16")), False
    yield "shared", model(shared, baseline=tfr.baselines.Value), True
    yield "layers with modes", model(normalized), True
    yield "simple rnn", model(simple_rnn), True
    yield "images", model(images, Pictures), True
    yield "workers", default(tfr_walk, {"workers": 2}), False
    for name in ("Catch", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Taxi-v4"):
        env = tfr.envs.Catch() if name == "Catch" else tfr.envs.make(name)
        yield f"tensor {name}", default(env, {"max_episode_steps": 20}), False


def tfr_walk():
    return Walk(gym.spaces.Discrete(3))


# ------------------------------------------------------------- trainings of other kinds


def resumed(make, fit, after):
    """Returns the digests of a training that ends after some steps and continues."""

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.count = getattr(self, "count", 0) + 1
            if self.count == after:
                raise RuntimeError("the process ends")

    with tempfile.TemporaryDirectory() as folder:
        resume = tfr.Checkpoints(folder, every_updates=1)
        with contextlib.suppress(RuntimeError):
            fit(make(), resume=resume, callbacks=[Stop()])
        trained = make()
        history = fit(trained, resume=resume)
    return {"weights": digest(variables_of(trained)), "logs": digest(logs(history))}


def variables_of(model):
    return [v.numpy() for v in [*model.variables, *model.optimizer.variables]]


def whole(make, fit):
    trained = make()
    history = fit(trained)
    return {"weights": digest(variables_of(trained)), "logs": digest(logs(history))}


def others():
    """Yields `(name, function that returns digests)`."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(10, 4)).astype("float32")
    targets = np.arange(10.0)[:, None].astype("float32")

    def reward(inputs, choices, targets=None):
        return (inputs[:, :3].argmax(axis=1) == choices) + 0.1 * choices

    def sampler(head=None, size=3, **options):
        def make():
            keras.utils.set_random_seed(1)
            x = keras.Input((4,))
            hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
            layer = tfr.layers.Sample(head or tfr.heads.Categorical(3))
            values = {k: f() if callable(f) else f for k, f in options.items()}
            if "loss" not in options:
                values["reward"] = reward
            network = keras.Model(x, layer(Dense(size)(hidden)))
            if "loss" in options:
                network = keras.Model(x, Dense(1)(keras.ops.one_hot(network(x), 3)))
            result = tfr.ScoreFunction(network, **values)
            result.compile(keras.optimizers.Adam(0.05, use_ema=True))
            return result

        return make

    def fit(model, **options):
        defaults = dict(x=inputs, y=targets, batch_size=4, epochs=3, verbose=0)
        defaults["validation_data"] = inputs[:5], targets[:5]
        return model.fit(**{**defaults, **options})

    def fit_logged(model, **options):
        names = "contexts", "actions", "rewards", "propensities"
        data = inputs, np.arange(10) % 3, targets[:, 0], np.full(10, 0.5)
        defaults = dict(zip(names, data), batch_size=4, epochs=3, verbose=0)
        return model.fit_logged(**{**defaults, **options})

    def network():
        return keras.Sequential([keras.Input((4,)), Dense(1)])

    models = {
        "reward": sampler(samples=2),
        "moving average": sampler(baseline="moving_average"),
        "value": sampler(baseline=network, samples=3),
        "loss": sampler(loss="mse", samples=4),
    }
    for name, make in models.items():
        yield f"score function {name}", lambda make=make: whole(make, fit)
    make_value = models["value"]
    yield "score function resumed", lambda: resumed(make_value, fit, 4)
    yield "logged", lambda: whole(models["reward"], fit_logged)
    yield "logged resumed", lambda: resumed(models["reward"], fit_logged, 4)
    for estimator in ("ips", "snips", "dr"):
        yield (
            f"logged {estimator}",
            lambda estimator=estimator: {
                "result": digest(
                    logged_value(models["reward"], estimator, inputs, targets)
                )
            },
        )

    def sevens(completions):
        return [
            completion.count("7") + 0.1 * len(completion) for completion in completions
        ]

    def continued(completions):
        return ["=" if "7" not in x else None for x in completions]

    def language_model(**options):
        def make():
            defaults = dict(group_size=2, max_completion_length=3, seed=5)
            result = tfr.sequences.SequenceReinforce(
                language_models.text_gpt2(), sevens, **{**defaults, **options}
            )
            result.compile(keras.optimizers.Adam(0.05))
            return result

        return make

    def fit_prompts(model, **options):
        prompts = ["3+4=", "1+1=", "10+2="]
        return model.fit(prompts, batch_size=2, epochs=2, verbose=0, **options)

    texts = {
        "plain": {},
        "no penalty": dict(kl_coef=0.0, temperature=0.7, length_normalization=True),
        "passes": dict(passes=2, minibatch_size=2, ratio_clip=1.1, scale_advantages=True),
        "turns": dict(reply=continued, max_turns=2, max_completion_length=6),
    }
    for name, options in texts.items():
        make = language_model(**options)
        yield f"language model {name}", lambda make=make: whole(make, fit_prompts)
    make_plain = language_model()
    yield "language model resumed", lambda: resumed(make_plain, fit_prompts, 2)

    def agent():
        return tfr.Reinforce.for_env("CartPole-v1", hidden=(8,), seed=1)

    def fit_agent(model, **options):
        batch = dict(episodes_per_epoch=6, max_episode_steps=30, seed=2, verbose=0)
        return model.fit("CartPole-v1", epochs=5, **batch, **options)

    yield "agent resumed", lambda: resumed(agent, fit_agent, 3)
    yield "train_seeds", train_seeds
    yield "command line", command_line


def logged_value(make, estimator, inputs, targets):
    options = {"estimator": estimator}
    if estimator == "dr":
        keras.utils.set_random_seed(2)
        options["reward_model"] = keras.Sequential([keras.Input((4,)), Dense(3)])
    arguments = inputs, np.arange(10) % 3, targets[:, 0], np.full(10, 0.5)
    return make().evaluate_logged(*arguments, **options)


def train_seeds():
    def make(seed):
        return tfr.Reinforce.for_env(tfr.envs.CartPole(), hidden=(4,), seed=seed)

    results = tfr.train_seeds(
        make, tfr.envs.CartPole(), seeds=[0, 1], epochs=2, episodes_per_epoch=4
    )
    trained = [variables(results.agent(seed)) for seed in results.seeds]
    return {"result": digest(trained, results.history)}


def command_line():
    """Trains with the command, and reads its log and its evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        words = ["train", "CartPole-v1", "--epochs", "4", "--episodes-per-epoch", "4"]
        words += ["--eval-every", "2", "--eval-episodes", "3", "--seed", "3"]
        words += ["--run-dir", str(run), "--num-envs", "2", "--hidden", "8"]
        command = [sys.executable, "-m", "tf_reinforce", *words]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        with open(run / "log.csv", newline="") as file:
            rows = [
                {k: x for k, x in row.items() if k != "steps_per_second"}
                for row in csv.DictReader(file)
            ]
        evaluation = json.loads((run / "evaluation.json").read_text())
        weights = tfr.load(run / "agent.keras").get_weights()
    numbers = {k: x for k, x in evaluation.items() if isinstance(x, (int, float))}
    return {
        "log": digest(rows),
        "evaluation": digest(numbers),
        "weights": digest(weights),
    }


def child(part, parts, only):
    """Prints a JSON line for each configuration of a part."""
    tasks = [
        (name, lambda c=configuration, e=exported: agent_digests(c, e))
        for name, configuration, exported in agents()
    ]
    tasks += others()
    tasks = [task for task in tasks if not only or task[0] in only]
    for number, (name, run) in enumerate(tasks):
        if number % parts != part:
            continue
        keras.utils.set_random_seed(0)
        try:
            digests = run()
        except Exception as error:  # an error is a result, too
            digests = {"error": f"{type(error).__name__}: {error}"[:300]}
        print("RESULT " + json.dumps([name, digests]), flush=True)


def run_all(jobs, only):
    command = [sys.executable, __file__, "--child"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    processes = [
        subprocess.Popen(
            [*command, str(number), str(jobs), *only],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            cwd=ROOT,
        )
        for number in range(jobs)
    ]
    results = {}
    for process in processes:
        for line in io.StringIO(process.communicate()[0]):
            if line.startswith("RESULT "):
                name, digests = json.loads(line[7:])
                results[name] = digests
    return dict(sorted(results.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    results = run_all(options.jobs, options.only)
    errors = [name for name, digests in results.items() if "error" in digests]
    print(f"{len(results)} configurations, {len(errors)} with an error: {errors}")
    if options.action == "write":
        text = json.dumps(results, indent=1)
        pathlib.Path(options.file).write_text(text + "\n")
        return 0
    before = json.loads(pathlib.Path(options.file).read_text())
    if options.only:
        before = {name: before[name] for name in options.only}
    different = {
        name: [
            part for part in before[name] if before[name][part] != results[name].get(part)
        ]
        for name in before
        if before[name] != results.get(name) and name in results
    }
    missing = sorted(before.keys() - results.keys())
    print(f"{len(before) - len(different) - len(missing)} of {len(before)} are equal")
    for name, parts in different.items():
        print(f"different: {name}: {', '.join(parts)}")
    if missing:
        print(f"missing: {missing}")
    return bool(different or missing)


if __name__ == "__main__":
    if "--child" in sys.argv:
        part, parts, *only = sys.argv[2:]
        child(int(part), int(parts), only)
    else:
        sys.exit(main())
