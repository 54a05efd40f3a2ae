"""Serves an exported policy over HTTP with plain TensorFlow, in TF Serving's format.

python examples/serve.py POLICY [PORT]
curl -d '{"instances": [[0, 0, 0.1, 0]]}' http://127.0.0.1:8501/v1/models/policy:predict
"""

import http.server
import json
import sys

import tensorflow as tf

signatures = tf.saved_model.load(sys.argv[1]).signatures


def predict(instances=None, inputs=None, signature_name="act"):
    signature, columns = signatures[signature_name], inputs
    if inputs is None:
        names = instances[0] if isinstance(instances[0], dict) else ()
        columns = {name: [row[name] for row in instances] for name in names} or instances
    if not isinstance(columns, dict):
        columns = {"observation": columns}
    specs = signature.structured_input_signature[1]
    results = signature(**{k: tf.constant(columns[k], specs[k].dtype) for k in specs})
    results = {name: results[name].numpy().tolist() for name in sorted(results)}
    if len(results) == 1:  # TF Serving does not name a single result
        return {"outputs" if instances is None else "predictions": results.popitem()[1]}
    if instances is None:
        return {"outputs": results}
    rows = zip(*results.values(), strict=True)
    return {"predictions": [dict(zip(results, row, strict=True)) for row in rows]}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            length = int(self.headers["Content-Length"])
            status, reply = 200, predict(**json.loads(self.rfile.read(length)))
        except Exception as error:  # the client receives the reason
            status, reply = 400, {"error": f"{type(error).__name__}: {error}"}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())


port = int(sys.argv[2]) if len(sys.argv) > 2 else 8501
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print(f"serving {sys.argv[1]} on port {server.server_port}", flush=True)
server.serve_forever()
