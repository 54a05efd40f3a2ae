"""Selects actions with a LiteRT policy; needs only NumPy and ai-edge-litert.

python examples/litert_policy.py POLICY [act|sample]

Each line of the input is an observation as JSON: an array, or an object with an array for
each part. Each line of the output is the action as JSON. An empty line starts a new
episode.
"""

import json
import pathlib
import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter

folder, name = [*(sys.argv[1:] or sys.exit(__doc__)), "act"][:2]
policy = json.loads(pathlib.Path(folder, "policy.json").read_text())
interpreter = Interpreter(f"{folder}/{name}.tflite")
run = interpreter.get_signature_runner(name)
rng = np.random.default_rng()
draw = {"uniform": rng.random, "normal": rng.standard_normal}
state = policy["initial_state"]

for line in sys.stdin:
    if not line.strip():
        state = policy["initial_state"]
        continue
    parts = json.loads(line)
    parts = {**(parts if isinstance(parts, dict) else {"observation": parts}), **state}
    inputs = {}
    for x in policy["functions"][name]["inputs"]:
        shape = [1, *x["shape"][1:]]
        kind = x.get("distribution")  # of noise, which has no name in the observation
        values = draw[kind](shape, x["dtype"]) if kind else parts[x["name"]]
        inputs[x["name"]] = np.asarray(values, x["dtype"]).reshape(shape)
    results = run(**inputs)
    state = {key: results[f"next_{key}"][0] for key in state}
    actions = {k: x[0].tolist() for k, x in results.items() if k.startswith("action")}
    print(json.dumps(actions.get("action", actions)), flush=True)
