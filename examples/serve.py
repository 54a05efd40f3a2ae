"""Serves an exported policy over HTTP with plain TensorFlow, in TF Serving's format.

python examples/serve.py POLICY [PORT]
curl http://127.0.0.1:8501/v1/models/policy
curl -d '{"instances": [[0, 0, 0.1, 0]]}' http://127.0.0.1:8501/v1/models/policy:predict
"""

import json
import sys
from wsgiref import simple_server

import tensorflow as tf

path, port = [*(sys.argv[1:] or sys.exit(__doc__)), 8501][:2]
signatures = tf.saved_model.load(path).signatures
specs = {name: f.structured_input_signature[1] for name, f in signatures.items()}


def predict(instances=None, inputs=None, signature_name="act"):
    if instances and isinstance(instances[0], dict):
        instances = {name: [row[name] for row in instances] for name in instances[0]}
    columns = instances if inputs is None else inputs
    columns = columns if isinstance(columns, dict) else {"observation": columns}
    for name, spec in specs[signature_name].items():
        columns[name] = tf.constant(columns[name], spec.dtype)
        if not spec.is_compatible_with(columns[name]):
            raise ValueError(f"{name} has shape {columns[name].shape}, not {spec.shape}")
    results = signatures[signature_name](**columns)
    results = {name: result.numpy().tolist() for name, result in results.items()}
    if len(results) == 1:  # TF Serving does not name a single result
        return {"predictions" if inputs is None else "outputs": results.popitem()[1]}
    rows = [dict(zip(results, row)) for row in zip(*results.values())]
    return {"predictions": rows} if inputs is None else {"outputs": results}


def answer(request, start_response):
    try:
        body = request["wsgi.input"].read(int(request["CONTENT_LENGTH"] or 0))
        status, reply = "200 OK", predict(**json.loads(body)) if body else specs
    except Exception as error:  # the client receives the reason
        status, reply = "400 Bad Request", {"error": repr(error), "signatures": specs}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(reply, sort_keys=True, default=str).encode() + b"\n"]


with simple_server.make_server("127.0.0.1", int(port), answer) as server:
    print(f"serving {path} on port {server.server_port}", flush=True)
    server.serve_forever()
