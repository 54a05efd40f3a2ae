"""Compares updates with and without XLA, and with `fit` of Keras.

    python benchmarks/updates.py [--rounds 7] [NAME …]

Each case is an update of many gradient steps on minibatches of 64 steps, from random
episodes. In each round, the update runs with `jit_compile="auto"`, True and False. For
images, `fit` of plain Keras follows: the same networks, losses and minibatches, with the
policy and the value network as two models. The first round compiles and is not counted.
With XLA, an update of images makes 25 gradient steps instead of 250.

The program prints medians over rounds: the milliseconds of a gradient step, the ratio of
the automatic choice to the better choice, and the ratio of the update to `fit` of Keras.
The ratios are medians of the ratios within a round. Ratios of the processor time follow
in parentheses.
"""

import argparse
import functools
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

MINIBATCH = 64
EPISODES = 8
ACTIONS = 4


def images(*shape):
    return gym.spaces.Box(0, 255, shape, np.uint8)


def vectors(*shape):
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def dense(sizes, observations=(17,), last=ACTIONS):
    layers = [keras.layers.Dense(size, "tanh") for size in sizes]
    return keras.Sequential(
        [keras.Input(observations), *layers, keras.layers.Dense(last)]
    )


def convolutional(space, last):
    """Returns the default network of an image, with `last` outputs."""
    env = lambda: Frames(space)  # noqa: E731
    agent = tfr.Reinforce.for_env(env, hidden=(64, 64))
    features = agent.policy.layers[-2].output
    return keras.Model(agent.policy.inputs, keras.layers.Dense(last)(features))


def recurrent(layer, last):
    return keras.Sequential([keras.Input((8, 6)), layer, keras.layers.Dense(last)])


class Frames(gym.Env):
    """An environment of which only the spaces matter."""

    def __init__(self, space):
        self.observation_space = space
        self.action_space = gym.spaces.Discrete(ACTIONS)


def value(model, passes):
    return tfr.baselines.Value(model, passes=passes, minibatch_size=MINIBATCH)


def agent_of(name, jit_compile):
    """Returns the agent of a case, its observation space, and its batch in steps."""
    steps, passes, options = 3_200, 10, {}
    if name == "mlp":
        space, policy, baseline = vectors(17), dense((64, 64)), None
    elif name == "wide mlp":
        space, policy, baseline = vectors(17), dense((512, 512)), None
    elif name == "value network":
        space, policy = vectors(17), dense((64, 64))
        baseline = value(dense((64, 64), last=1), passes)
    elif name == "value network only":
        space, policy = vectors(17), dense((64, 64))
        baseline, options = value(dense((64, 64), last=1), 10), {"minibatch_size": None}
        passes = 1
    elif name == "gru":
        space, policy = vectors(8, 6), recurrent(keras.layers.GRU(32), ACTIONS)
        baseline, passes = None, 4
    elif name.startswith("image"):
        size = int(name.split()[1])
        space = images(size, size, 4 if size == 84 else 2)
        steps, passes = (8_000, 2) if name.endswith("twice") else (1_600, 10)
        if jit_compile is True:  # fewer steps, because each is slow
            steps, passes = 1_600, 1
        policy = convolutional(space, ACTIONS)
        baseline = value(convolutional(space, 1), passes)
    options = {"minibatch_size": MINIBATCH, "passes": passes, **options}
    agent = tfr.Reinforce(
        policy,
        tfr.heads.Categorical(ACTIONS),
        baseline=baseline,
        ratio_clip=(0.2, 0.2),
        mean_over="steps",
        **options,
    )
    agent.compile(keras.optimizers.Adam(1e-4), jit_compile=jit_compile)
    return agent, space, steps


CASES = (
    "mlp",
    "wide mlp",
    "value network",
    "value network only",
    "gru",
    "image 24",
    "image 84",
    "image 84 twice",
)


def random_episodes(space, steps):
    rng, rows = np.random.default_rng(0), steps // EPISODES
    shape = rows + 1, EPISODES, *space.shape
    if space.dtype == np.uint8:
        observations = rng.integers(0, 256, shape, np.uint8)
    else:
        observations = rng.normal(size=shape).astype("float32")
    return tfr.Episodes(
        observations,
        rng.integers(0, ACTIONS, (rows, EPISODES)),
        rng.normal(size=(rows, EPISODES)),
        np.full(EPISODES, rows, "int32"),
        np.ones(EPISODES, bool),
    )


def keras_fit(agent, episodes):
    """Returns a function that trains the networks of an agent with `fit` of Keras."""
    observations = episodes.observations[:-1]
    observations = observations.reshape(-1, *observations.shape[2:])
    actions, returns = episodes.actions.ravel(), episodes.rewards.ravel()
    policy = keras.models.clone_model(agent.policy)
    policy.compile(keras.optimizers.Adam(1e-4), tfr.losses.Reinforce())
    network = keras.models.clone_model(agent.baseline.model)
    network.compile(keras.optimizers.Adam(1e-4), "mse")
    options = dict(batch_size=MINIBATCH, verbose=0)

    def fit():
        policy.fit(
            observations,
            actions,
            sample_weight=returns,
            epochs=agent.passes,
            **options,
        )
        passes = agent.baseline.passes
        network.fit(observations, returns, epochs=passes, **options)

    return fit


def seconds(function):
    """Returns the wall time and the processor time of a call, in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(name, rounds):
    calls, counts = {}, {}
    for jit_compile in ("auto", True, False):
        keras.utils.set_random_seed(0)
        agent, space, steps = agent_of(name, jit_compile)
        episodes = random_episodes(space, steps)
        calls[jit_compile] = functools.partial(agent.update, episodes)
        passes = agent.passes if agent.minibatch_size else agent.baseline.passes
        counts[jit_compile] = passes * steps // MINIBATCH
    if name.startswith("image"):
        calls["keras"], counts["keras"] = keras_fit(agent, episodes), counts[False]
    for call in calls.values():
        call()
    # Milliseconds of a gradient step in each round: wall time, processor time.
    times = [
        {
            key: [1e3 * x / counts[key] for x in seconds(call)]
            for key, call in calls.items()
        }
        for _ in range(rounds)
    ]

    def ratio(key, other, clock):
        return statistics.median(row[key][clock] / row[other][clock] for row in times)

    medians = {key: statistics.median(row[key][0] for row in times) for key in calls}
    better = min((True, False), key=medians.get)
    parts = [name, str(counts["auto"])]
    parts += [f"{medians[key]:.2f}" for key in ("auto", True, False)]
    pairs = [("auto", better)] + [("auto", "keras")] * ("keras" in calls)
    parts += [f"{ratio(*pair, 0):.2f} ({ratio(*pair, 1):.2f})" for pair in pairs]
    print("| " + " | ".join(parts) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(
        "| update | gradient steps | auto, ms per step | XLA | TensorFlow "
        "| auto ÷ better | auto ÷ fit of Keras |\n|---|---|---|---|---|---|---|"
    )
    for name in options.names or CASES:
        measure(name, options.rounds)


if __name__ == "__main__":
    main()
