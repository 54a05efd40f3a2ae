"""Serves an exported policy over HTTP with plain TensorFlow, in TF Serving's format.

python examples/serve.py POLICY [PORT]
curl http://127.0.0.1:8501/v1/models/policy
curl -d '{"instances": [[0, 0, 0.1, 0]]}' http://127.0.0.1:8501/v1/models/policy:predict
"""

import json
import sys
from http import server

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
        if not tf.reduce_all(tf.math.is_finite(tf.cast(columns[name], "float64"))):
            raise ValueError(f"{name} is not finite")
    results = signatures[signature_name](**columns)
    results = {name: result.numpy().tolist() for name, result in results.items()}
    if len(results) == 1:  # TF Serving does not name a single result
        return {"predictions" if inputs is None else "outputs": results.popitem()[1]}
    rows = [dict(zip(results, row)) for row in zip(*results.values())]
    return {"predictions": rows} if inputs is None else {"outputs": results}


class Handler(server.BaseHTTPRequestHandler):
    timeout = 10  # seconds without data, after which a connection ends

    def do_POST(self):
        try:
            size = int(self.headers["Content-Length"] or 0)
            if not 0 <= size <= 2**24:
                raise ValueError(f"Content-Length must be 0 to 16 MiB, not {size}")
            body = self.rfile.read(size)
            code, reply = 200, predict(**json.loads(body)) if body else specs
        except TimeoutError:
            raise
        except Exception as error:  # the client receives the reason
            code, reply = 400, {"error": repr(error), "signatures": specs}
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(reply, sort_keys=True, default=str).encode() + b"\n")

    do_GET = do_POST


server.ThreadingHTTPServer.request_queue_size = 1024  # connections that wait
with server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler) as http:
    print(f"serving {path} on port {http.server_port}", flush=True)
    http.serve_forever()
