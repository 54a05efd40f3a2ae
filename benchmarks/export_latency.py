"""Measures the time of one call of an exported policy, for each format.

    python benchmarks/export_latency.py [--sb3 sb3.onnx] [--rounds 15]

All policies select actions for CartPole-v1 with two hidden layers of 64 units. In each
round, every policy selects actions for 0.2 s, one policy after another, for one
observation and for 64 observations. `benchmarks/sb3_onnx.py` writes the file sb3.onnx, a
policy of Stable-Baselines3, in an environment of its own. The first round is not counted.
The program prints medians over rounds, with quartiles, in microseconds for each call.
"""

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import onnxruntime
import tensorflow as tf
from ai_edge_litert import interpreter as litert

import tf_reinforce as tfr

BATCHES = 1, 64
SECONDS = 0.2


def onnx_session(path):
    """Returns a session with one thread, because the policies are small."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def litert_invoke(path, count):
    """Returns a function that calls the methods of `Interpreter` for a fixed batch."""
    interpreter = litert.Interpreter(path, num_threads=1)
    argument = interpreter.get_input_details()[0]["index"]
    result = interpreter.get_output_details()[0]["index"]
    interpreter.resize_tensor_input(argument, (count, 4))
    interpreter.allocate_tensors()

    def act(observations):
        interpreter.set_tensor(argument, observations)
        interpreter.invoke()
        return interpreter.get_tensor(result)

    return act


def policies(folder, count, sb3):
    """Returns a dict from a name to a function from observations to actions."""
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(64, 64), seed=0)
    paths = {
        name: os.path.join(folder, f"{name}{count}") for name in ("saved", "onnx", "lite")
    }
    agent.export(paths["saved"])
    agent.export(paths["onnx"], format="onnx")
    agent.export(paths["lite"], format="litert")
    saved = tf.saved_model.load(paths["saved"])
    session = onnx_session(os.path.join(paths["onnx"], "act.onnx"))
    lite = os.path.join(paths["lite"], "act.tflite")
    runner = litert.Interpreter(lite, num_threads=1).get_signature_runner("act")
    functions = {
        "`agent.act`": lambda x: agent.act(x, deterministic=True),
        "`tf_saved_model`": lambda x: saved.act(tf.constant(x))["action"].numpy(),
        "`onnx`": lambda x: session.run(["action"], {"observation": x})[0],
        "`litert`, signature runner": lambda x: runner(observation=x)["action"],
        "`litert`, `invoke`": litert_invoke(lite, count),
    }
    if sb3:
        other = onnx_session(sb3)
        [name] = [x.name for x in other.get_inputs()]
        result = other.get_outputs()[0].name
        functions["Stable-Baselines3 in ONNX Runtime"] = lambda x: other.run(
            [result], {name: x}
        )[0]
    return functions


def microseconds(function, observations):
    """Returns the microseconds of a call, the mean of the calls of 0.2 s."""
    calls, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < SECONDS:
        function(observations)
        calls += 1
    return 1e6 * seconds / calls


def measure(count, rounds, sb3):
    """Returns the microseconds of each policy, a list with a value for each round."""
    rng = np.random.default_rng(0)
    observations = rng.normal(0.0, 0.5, (count, 4)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        functions = policies(folder, count, sb3)
        expected = functions["`agent.act`"](observations)
        for name, function in functions.items():
            actions = function(observations)
            assert actions.shape == (count,)
            if "Stable" not in name:
                np.testing.assert_array_equal(actions, expected)
        times = {name: [] for name in functions}
        for index in range(rounds + 1):
            for name, function in functions.items():
                value = microseconds(function, observations)
                if index:
                    times[name].append(value)
    return times


def spread(values):
    """Returns a text with median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:,.1f} ({low:,.1f} to {high:,.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sb3", metavar="FILE", help="ONNX file of sb3_onnx.py")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    times = {count: measure(count, options.rounds, options.sb3) for count in BATCHES}
    print("| policy | 1 observation, µs | 64 observations, µs |")
    print("|---|---|---|")
    for name in times[BATCHES[0]]:
        cells = " | ".join(spread(times[count][name]) for count in BATCHES)
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
