"""Compares trainings by several learner replicas with trainings by one replica.

    python stress/replicated_learners.py [--only NAME] [--out FILE.json]

Each training makes 20 updates on CartPole, with two logical devices, two processes and
three processes. Each array of weights may differ from that of one replica by at most 1e-6
of its norm, in one training with float32 by 1e-5. In further trials, one of the processes
is killed or stopped. The others must name this process within 30 seconds, and end. The
training that is started again must end with the weights of a training without kills.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
UPDATES = 20
KILL_UPDATES = 40  # of a training of which a process is killed
BOUND = 1e-6  # largest difference, relative to the norm of an array
# Larger steps amplify the rounding errors of float32, 6e-8, in small arrays.
BOUNDS = {"float32, learning rate 0.01": 1e-5}
SECONDS = 30.0  # in which the other processes name a lost process
# The processes of a training, the number of the lost process, and its signal.
LOSSES = (
    ("2 processes", 1, signal.SIGKILL),
    ("2 processes", 0, signal.SIGKILL),
    ("3 processes", 1, signal.SIGKILL),
    ("2 processes", 1, signal.SIGSTOP),
    ("3 processes", 0, signal.SIGSTOP),
)
VERBS = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}
KINDS = {"2 devices": 2, "2 processes": 2, "3 processes": 3}


def _mlp(values=False, regularizer=None):
    import keras

    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(16, "tanh", kernel_regularizer=regularizer)(inputs)
    outputs = keras.layers.Dense(2)(hidden)
    if not values:
        return keras.Model(inputs, outputs)
    value = keras.layers.Dense(1)(hidden)
    return keras.Model(inputs, {"outputs": outputs, "values": value})


def _recurrent():
    import keras

    layers = [keras.layers.GRU(8, return_sequences=True), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((None, 4)), *layers])


def _baselines():
    from tf_reinforce import baselines

    return baselines


def _value(**options):
    import keras

    layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = keras.optimizers.Adam(0.01)
    return _baselines().Value(model, optimizer, scale=10.0, **options)


# Many large gradient steps would amplify the rounding errors of the first update.
MINIBATCHES = dict(minibatch_size=40, passes=2, learning_rate=1e-3)
SCALED = dict(normalize_observations=True, scale_rewards=True, clipnorm=0.5)
# The options of an agent, and those of the training: policy, episodes, optimizer.
TRAININGS = {
    "no baseline": dict(baseline=None),
    "leave_one_out": {},
    "leave_one_out with groups": dict(
        baseline=lambda: _baselines().LeaveOneOut(group_size=3)
    ),
    "mean": dict(baseline="mean"),
    "moving_average": dict(baseline="moving_average"),
    "time_step": dict(baseline="time_step"),
    "value": dict(baseline=_value, gae_lambda=0.9),
    "value with minibatches and passes": dict(
        baseline=lambda: _value(minibatch_size=30, passes=3)
    ),
    "value that shares layers": dict(
        baseline=lambda: _baselines().Value(),
        policy=lambda: _mlp(values=True),
        gae_lambda=0.9,
    ),
    "minibatches and passes": MINIBATCHES,
    "minibatches and passes, value": dict(baseline=_value, **MINIBATCHES),
    "limited change": dict(max_kl=1e-3, **{**MINIBATCHES, "passes": 5}),
    "normaliser, scales, global_clipnorm": SCALED,
    "recurrent": dict(policy=_recurrent),
    "recurrent, minibatches and passes": dict(policy=_recurrent, **MINIBATCHES),
    "regularizer, entropy bonus": dict(
        policy=lambda: _mlp(regularizer="l2"), entropy_coef=0.01
    ),
    "mean over steps, truncated episodes dropped": dict(
        mean_over="steps", on_truncation="drop", max_episode_steps=30
    ),
    "short episodes": dict(max_episode_steps=50),
    "one episode": dict(episodes=1, baseline=None),
    "compiled engine": dict(engine="compiled"),
    "float32": dict(dtype="float32", learning_rate=1e-3),
    "float32, learning rate 0.01": dict(dtype="float32"),
    "float32, minibatches, value": dict(
        baseline=_value, dtype="float32", **{**MINIBATCHES, "passes": 1}
    ),
}


def make_agent(options):
    """Returns a compiled agent, and the number of episodes of each update."""
    import keras

    import tf_reinforce as tfr

    options = {"policy": _mlp, "dtype": "float64", "episodes": 6, **options}
    keras.config.set_dtype_policy(options.pop("dtype"))
    keras.utils.set_random_seed(0)
    baseline = options.pop("baseline", "leave_one_out")
    clipnorm = options.pop("clipnorm", None)
    learning_rate = options.pop("learning_rate", 0.01)
    fit = {
        "episodes_per_epoch": options.pop("episodes"),
        "max_episode_steps": options.pop("max_episode_steps", None),
    }
    engine = options.pop("engine", "host")
    env = tfr.envs.CartPole() if engine == "compiled" else "CartPole-v1"
    policy = options.pop("policy")()
    agent = tfr.Reinforce(
        policy, baseline=baseline() if callable(baseline) else baseline, **options
    )
    agent.compile(keras.optimizers.Adam(learning_rate, global_clipnorm=clipnorm))
    return agent, env, fit


def train(options, strategy, epochs=UPDATES, **fit_options):
    """Trains an agent in the scope of a strategy, and returns its weights."""
    import numpy as np

    from tf_reinforce.engine import agent_state

    with contextlib.nullcontext() if strategy is None else strategy.scope():
        agent, env, fit = make_agent(options)
    agent.fit(env, epochs=epochs, seed=1, verbose=0, **fit, **fit_options)
    trained = [*agent.policy.weights, *agent.baseline.weights]
    trained += [] if agent.normalizer is None else agent.normalizer.weights
    own = {id(v) for v in trained}
    every = agent_state.variables(agent)
    return [np.asarray(v.numpy()) for v in every if id(v) in own]


def child(kind, names, out, folder):
    """Runs the trainings of one process, and writes their weights to a file."""
    import numpy as np
    import tensorflow as tf

    if kind == "2 devices":
        cpu = tf.config.list_physical_devices("CPU")[0]
        device = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(cpu, [device] * 2)
        strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    elif "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = None
    results = {}
    for name in names:
        fit_options = {}
        if folder:
            import tf_reinforce as tfr

            resume = tfr.Checkpoints(folder, every_updates=1)
            fit_options = dict(resume=resume, epochs=KILL_UPDATES)
        weights = train(TRAININGS[name], strategy, **fit_options)
        results.update({f"{name}/{i}": x for i, x in enumerate(weights)})
    if strategy is None or strategy.extended.should_checkpoint:
        np.savez(out, **results)


def free_ports(count):
    """Returns numbers of ports of 127.0.0.1 that no process uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start(kind, names, out, folder=""):
    """Starts the processes of trainings; returns a list of `subprocess.Popen`."""
    count = KINDS.get(kind, 1) if "processes" in kind else 1
    workers = [f"127.0.0.1:{port}" for port in free_ports(count)]
    processes = []
    for index in range(count):
        env = {k: x for k, x in os.environ.items() if k != "TF_CONFIG"}
        if count > 1:
            task = {"type": "worker", "index": index}
            cluster = {"cluster": {"worker": workers}, "task": task}
            env["TF_CONFIG"] = json.dumps(cluster)
        command = [sys.executable, __file__, "--child", kind, "--names", *names]
        command += ["--npz", str(out), "--folder", str(folder)]
        processes.append(
            subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        )
    return processes


def run(kind, names, out, folder=""):
    """Runs trainings, and returns a dict from their names to their weights."""
    import numpy as np

    processes = start(kind, names, out, folder)
    errors = [process.communicate()[1] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{kind}: {''.join(errors)[-4000:]}")
    arrays = np.load(out)
    return {
        name: [arrays[f] for f in arrays.files if f.rpartition("/")[0] == name]
        for name in names
    }


def difference(expected, received):
    """Returns the norm of the difference of an array, relative to that of the array.

    The result is the largest value of all arrays of weights.
    """
    import numpy as np

    norm, largest = np.linalg.norm, 0.0
    for a, b in zip(expected, received, strict=True):
        if not (a == b).all():
            a, b = a.astype("float64"), b.astype("float64")
            largest = max(largest, float(norm(b - a) / norm(a)))
    return largest


def loss_trial(root, expected, kind, victim, number, name="short episodes"):
    """Kills or stops one process of a training, and starts the training again.

    Args:
        root: `pathlib.Path` of a folder for the trials.
        expected: Dict from each kind to the weights of a training without kills, which
            the function completes.
        kind: String, the processes of the training.
        victim: Int, the number of the process that receives the signal.
        number: Int, the signal.
        name: String, the training.

    Returns:
        Dict with the seconds until all other processes have ended, whether each noticed
        the loss, and whether the resumed training gives the same weights.
    """
    folder = root / f"{kind} {victim} {number}"
    if kind not in expected:
        weights = run(kind, [name], root / "expected.npz", folder / "expected")
        expected[kind] = weights[name]
    processes = start(kind, [name], root / "killed.npz", folder / "killed")
    checkpoints = folder / "killed" / "checkpoints"
    while not list(checkpoints.glob("*[5-9]")):
        if any(process.poll() is not None for process in processes):
            raise RuntimeError(processes[0].communicate()[1][-4000:])
        time.sleep(0.05)
    processes[victim].send_signal(number)
    began, ended = time.monotonic(), len(list(checkpoints.iterdir()))
    others = [x for i, x in enumerate(processes) if i != victim]
    messages = [x.communicate()[1] for x in others]
    seconds = time.monotonic() - began
    processes[victim].kill()  # also a stopped process
    processes[victim].communicate()
    named = ["Another process of" in x for x in messages]
    received = run(kind, [name], root / "resumed.npz", folder / "killed")[name]
    equal = all((a == b).all() for a, b in zip(expected[kind], received, strict=True))
    return {
        "seconds": seconds,
        "named": all(named),
        "exit codes": [x.returncode for x in others],
        "resumed to equal weights": equal,
        "checkpoints": ended,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--only", help="part of the name of a training, or `kill` for the losses"
    )
    parser.add_argument("--out", help="JSON file for the counts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--npz", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.names, options.npz, options.folder)
        return 0
    names = [x for x in TRAININGS if not options.only or options.only in x]
    results, without_kills, failed = {}, {}, False
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        expected = run("one", names, root / "one.npz") if names else {}
        for kind in KINDS if names else ():
            received = run(kind, names, root / "several.npz")
            for name in names:
                value = difference(expected[name], received[name])
                failed |= not value <= BOUNDS.get(name, BOUND)
                results[f"{kind}: {name}"] = value
                print(f"{kind}: {name}: {value:.1e}", flush=True)
        if not options.only or options.only == "kill":
            for kind, victim, number in LOSSES:
                result = loss_trial(root, without_kills, kind, victim, number)
                failed |= not (result["named"] and result["seconds"] <= SECONDS)
                failed |= not (result["resumed to equal weights"])
                failed |= not all(result["exit codes"])
                trial = f"{kind}: process {victim} {VERBS[number]}"
                results[trial] = result
                print(f"{trial}: {result}", flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
