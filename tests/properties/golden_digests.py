"""Computes digests of training results, to compare them before and after a change.

    python tests/properties/golden_digests.py record /tmp/golden.json
    python tests/properties/golden_digests.py check /tmp/golden.json [--only NAME ...]

A digest is the SHA-256 of the bits of weights, optimizer state, log rows, episodes,
actions, or outputs of exported functions. Digests are valid for one machine and one set
of wheels. Record them on the commit before the change, on the same machine. Two processes
compute them.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import logging
import multiprocessing
import os
import pathlib
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS / "differential"), str(TESTS)]

import combinations  # noqa: E402
import gymnasium as gym  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import parts  # noqa: E402
import playing  # noqa: E402
import scores  # noqa: E402
import tensorflow as tf  # noqa: E402
import worlds  # noqa: E402

import tf_reinforce as tfr  # noqa: E402
from tf_reinforce import envs  # noqa: E402

PLAIN = dataclasses.replace(
    combinations.draw(0, pair="environments"),
    policy="functional",
    head="categorical",
    baseline="leave_one_out",
    dtype="float32",
    action_mask=None,
    gamma=0.9,
    gae_lambda=1.0,
    returns="to_go",
    discount_states=False,
    scale_advantages=None,
    scale_rewards=False,
    mean_over="episodes",
    on_truncation="bootstrap",
    minibatch_size=None,
    passes=1,
    ratio_clip=2.0,
    entropy_coef=1 / 64,
    entropy_schedule=False,
    normalize_observations=False,
    value_epochs=1,
    value_minibatch=None,
    optimizer="adam",
    learning_rate=1 / 64,
    spaces=True,
)


def digest(arrays):
    """Returns the SHA-256 of shapes, types and bits, for any order of the arrays."""
    digests = []
    for array in arrays:
        array = np.ascontiguousarray(array)
        head = f"{array.shape} {array.dtype} ".encode()
        digests.append(hashlib.sha256(head + array.tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()[:16]


def flat(nested):
    leaves = [x for x in nested if x is not None] if isinstance(nested, tuple) else nested
    return [np.asarray(x) for x in keras.tree.flatten(leaves)]


def state_digest(agent):
    return digest(playing.all_variables(agent))


def log_digest(history):
    rows = {k: v for k, v in history.items() if k != "steps_per_second"}
    return digest([np.asarray([k, *map(float.hex, v)]) for k, v in rows.items()])


# Combinations of the differential test in environments with any space


def combination(**options):
    return functools.partial(train_combination, dataclasses.replace(PLAIN, **options))


def train_combination(c):
    """Makes two updates; returns digests of weights, logs, episodes and actions."""
    agent, make = parts.agent_of(c), functools.partial(worlds.RandomEnv, c)
    budget = dict(epochs=2, episodes_per_epoch=6, num_envs=3, seed=c.seed, verbose=0)
    history = agent.fit(make, **budget).history
    record = agent.collect(make, 6, num_envs=2, seed=c.seed)
    gradients, critic_gradients, logs = agent.gradients(record)
    digests = {
        "state": state_digest(agent),
        "log": log_digest(history),
        "episodes": digest(flat(tuple(record))),
        "gradients": digest([*gradients, *critic_gradients, *logs.values()]),
        "evaluation": log_digest({k: [v] for k, v in agent.evaluate(make, 4).items()}),
    }
    return {**digests, "answers": digest(answers(c, agent, record))}


def answers(c, agent, record):
    """Returns outputs of the agent and of its export for the first observations."""
    with tempfile.TemporaryDirectory() as folder:
        agent.export(os.path.join(folder, "policy"))
        policy = tf.saved_model.load(os.path.join(folder, "policy"))
    observations = keras.tree.map_structure(lambda x: x[0], record.observations)
    count, extra_inputs, options = len(record.lengths), [], {}
    if c.action_mask == "info":
        rng = np.random.default_rng(5)
        draw = parts.score_of(c.head).draw
        extra_inputs.append(np.stack([draw(rng, "float32")[1] for _ in range(count)]))
        options["action_mask"] = extra_inputs[0]
    if c.recurrent:
        extra_inputs.append(dict(policy.initial_state(tf.constant(count))))
    seed = tf.constant(3, tf.int64)
    exported = [
        policy.act(observations, *extra_inputs),
        policy.sample(observations, seed, *extra_inputs),
    ]
    exported.append(policy.distribution(observations, *extra_inputs))
    agent_answers = [
        agent.act(observations, True, **options),
        agent.act(observations, False, 3, **options),
    ]
    if c.recurrent:
        agent_answers = [
            *agent_answers,
            *agent.act(observations, False, 4, state=agent_answers[1][1], **options),
        ]
    return flat(exported) + [np.asarray(x) for x in scores_leaves(agent_answers)]


def scores_leaves(nested):
    return [x for part in nested for x in scores.leaves(part)]


# Named environments


def cartpole(**options):
    return functools.partial(_cartpole, options)


def _cartpole(options):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(16,), baseline="value")
    history = agent.fit(
        "CartPole-v1", epochs=2, episodes_per_epoch=8, seed=1, verbose=0, **options
    ).history
    return {"state": state_digest(agent), "log": log_digest(history)}


def vector(mode):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(16,))
    env = gym.vector.SyncVectorEnv(
        [lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode
    )
    history = agent.fit(env, epochs=2, episodes_per_epoch=7, seed=1, verbose=0).history
    record = agent.collect(env, 5, seed=2)
    env.close()
    episodes = digest(flat(tuple(record)))
    return {
        "state": state_digest(agent),
        "log": log_digest(history),
        "episodes": episodes,
    }


def compiled(make_env, updates=1, **options):
    return functools.partial(_compiled, make_env, updates, options)


def _compiled(make_env, updates, options):
    agent = tfr.Reinforce.for_env(make_env(), hidden=(8,), seed=2, **options)
    agent.compile(keras.optimizers.Adam(0.01), steps_per_execution=updates)
    limit = dict(episodes_per_epoch=6, max_episode_steps=60, seed=4, verbose=0)
    history = agent.fit(make_env(), epochs=4, **limit).history
    record = agent.collect(make_env(), 5, seed=2, max_episode_steps=60)
    episodes = digest(flat(tuple(record)))
    return {
        "state": state_digest(agent),
        "log": log_digest(history),
        "episodes": episodes,
    }


def several_seeds():
    def make(seed):
        return tfr.Reinforce.for_env(envs.CartPole(), hidden=(8,), seed=seed)

    results = tfr.train_seeds(make, envs.CartPole(), [3, 8, 1], epochs=2)
    digests = {
        name: state_digest(results.agent(seed)) for name, seed in zip("abc", [3, 8, 1])
    }
    columns = [v for k, v in sorted(results.history.items()) if k != "steps_per_second"]
    return {**digests, "log": digest(columns)}


def resumed():
    """Saves and loads the agent between two calls of `fit`."""
    agent = tfr.Reinforce.for_env("Pendulum-v1", preset="Pendulum-v1")
    options = dict(epochs=1, episodes_per_epoch=3, seed=1, verbose=0)
    agent.fit("Pendulum-v1", **options)
    with tempfile.TemporaryDirectory() as folder:
        agent.save(os.path.join(folder, "agent.keras"))
        agent = tfr.load(os.path.join(folder, "agent.keras"))
    history = agent.fit("Pendulum-v1", **options).history
    return {"state": state_digest(agent), "log": log_digest(history)}


def validated():
    """Trains with validation, and with a number of steps per update."""
    agent = tfr.Reinforce.for_env("CartPole-v1", preset="CartPole-v1")
    options = dict(validation_env="CartPole-v1", validation_episodes=3, seed=2)
    options |= dict(steps=900, steps_per_epoch=300, episodes_per_epoch=None)
    history = agent.fit("CartPole-v1", verbose=0, **options).history
    record = agent.collect("CartPole-v1", 6)
    statistics = digest(flat(tuple(fields_of(agent.step_statistics(record)))))
    episode_gradients = digest(agent.per_episode_gradients(record))
    digests = {"inspection": statistics, "of_each_episode": episode_gradients}
    return {"state": state_digest(agent), "log": log_digest(history), **digests}


def fields_of(record):
    return record if isinstance(record, tuple) else vars(record).values()


VALUED = dict(baseline="value", gae_lambda=0.7)
CONFIGURATIONS = {
    "host 1": cartpole(num_envs=1),
    "host 4": cartpole(num_envs=4),
    "host 16": cartpole(num_envs=16),
    "host workers": cartpole(num_envs=4, workers=2),
    **{
        f"vector {mode.name}": functools.partial(vector, mode)
        for mode in gym.vector.AutoresetMode
    },
    "compiled": compiled(envs.CartPole),
    "compiled several": compiled(envs.CartPole, 3, baseline="value", gae_lambda=0.9),
    "compiled everything": compiled(
        envs.CartPole,
        2,
        baseline="value",
        normalize_observations=True,
        scale_rewards=True,
        minibatch_size=50,
        passes=2,
    ),
    "compiled continuous": compiled(
        envs.MountainCarContinuous,
        baseline=tfr.baselines.MovingAverage(),
        scale_advantages="running",
    ),
    "seeds": several_seeds,
    "resumed": resumed,
    "validated": validated,
    **{f"head {name}": combination(head=name) for name in combinations.HEADS},
    **{
        f"baseline {name}": combination(baseline=name)
        for name in combinations.BASELINES
        if name != "leave_one_out"
    },
    **{
        f"policy {name}": combination(policy=name)
        for name in (*combinations.PLAIN, *combinations.RECURRENT)
        if name != "functional"
    },
    "mask info": combination(action_mask="info", head="multi"),
    "mask observation": combination(action_mask="observation", policy="gru"),
    "mask nested": combination(action_mask="info", head="nested"),
    "float64": combination(dtype="float64", head="tanh_state"),
    "mixed": combination(dtype="mixed_bfloat16"),
    "lambda": combination(**VALUED),
    "whole": combination(returns="whole"),
    "states": combination(discount_states=True, mean_over="steps"),
    "drop": combination(on_truncation="drop", scale_rewards=True),
    "terminal": combination(on_truncation="terminal", scale_advantages="batch"),
    "running": combination(scale_advantages="running", normalize_observations=True),
    "minibatches": combination(minibatch_size=7, passes=2, ratio_clip=1.25, **VALUED),
    "value minibatches": combination(
        value_epochs=2, value_minibatch=5, entropy_schedule=True, **VALUED
    ),
    "clipped norm": combination(optimizer="clipped", head="beta"),
    "loss scaled": combination(optimizer="loss_scaled", head="gaussian"),
}


def compute(name):
    """Returns the digests of one configuration, or the error that it raised."""
    logging.getLogger("tf_reinforce").setLevel(logging.ERROR)
    keras.utils.set_random_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return CONFIGURATIONS[name]()
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("record", "check"))
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=list(CONFIGURATIONS))
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        digests = dict(zip(arguments.only, pool.map(compute, arguments.only)))
    errors = [f"{name}: {d['error']}" for name, d in digests.items() if "error" in d]
    print(*errors, sep="\n")
    if arguments.verb == "record":
        arguments.file.write_text(json.dumps(digests, indent=1))
        print(f"{len(digests)} configurations, {sum(map(len, digests.values()))} digests")
        return bool(errors)
    recorded = json.loads(arguments.file.read_text())
    different = {name: d for name, d in digests.items() if d != recorded[name]}
    for name, results in different.items():
        kinds = [
            kind for kind in recorded[name] if results.get(kind) != recorded[name][kind]
        ]
        print(f"{name}: different {', '.join(kinds)}")
    print(
        f"{len(digests) - len(different)} of {len(digests)} configurations are unchanged"
    )
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
