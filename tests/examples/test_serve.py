"""Tests the example `serve.py` with requests, and TensorFlow's own view of an export."""

import ast
import json
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent import futures

import numpy as np
import pytest

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def agent():
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    agent.fit("CartPole-v1", epochs=2, episodes_per_epoch=4, verbose=0)
    return agent


@pytest.fixture(scope="module")
def path(agent, tmp_path_factory):
    """Returns the folder of a version, as TensorFlow Serving reads it."""
    path = tmp_path_factory.mktemp("models") / "policy" / "1"
    agent.export(path)
    return path


@pytest.fixture(scope="module")
def predict(path):
    """Yields a function that sends a request to the server in another process."""
    command = [sys.executable, ROOT / "examples" / "serve.py", path, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        port = int(server.stdout.readline().split()[-1])
        url = f"http://127.0.0.1:{port}/v1/models/policy:predict"

        def send(**request):
            with urllib.request.urlopen(url, json.dumps(request).encode()) as reply:
                return json.loads(reply.read())

        send.url, send.port = url, port
        yield send
        server.kill()


def test_server_is_short_and_imports_only_tensorflow():
    text = (ROOT / "examples" / "serve.py").read_text()
    docstring, *body = ast.parse(text).body
    imported = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert "\n".join(map(ast.unparse, imported)) == (
        "import json\nimport sys\nfrom http import server\nimport tensorflow as tf"
    )
    code = text.splitlines()[docstring.end_lineno :]
    assert sum(bool(line) for line in code) <= 46


def test_server_predicts_rows_and_columns_like_tensorflow_serving(agent, predict):
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    rows, actions = observations.tolist(), agent.act(observations, deterministic=True)
    assert predict(instances=rows) == {"predictions": actions.tolist()}
    assert predict(inputs=rows) == {"outputs": actions.tolist()}
    named = [{"observation": row} for row in rows]
    assert predict(instances=named) == {"predictions": actions.tolist()}
    sampled = agent.act(observations, seed=7).tolist()
    found = predict(signature_name="sample", inputs={"observation": rows, "seed": 7})
    assert found == {"outputs": {"action": sampled, "raw_action": sampled}}
    found = predict(signature_name="distribution", instances=rows)["predictions"]
    assert [sorted(row) for row in found] == [["logits", "probs"]] * 5


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({}, ""),
        ({"inputs": {"x": 3}}, ""),
        ({"instances": [[1, 2]]}, "observation has shape (1, 2), not (None, 4)"),
        ({"instances": [[0] * 4], "signature_name": "foo"}, "KeyError('foo')"),
    ],
)
def test_wrong_request_is_answered_with_the_reason(wrong, error, predict):
    with pytest.raises(urllib.error.HTTPError) as raised:
        predict(**wrong)
    reply = json.loads(raised.value.read())
    assert raised.value.code == 400 and reply["error"] and error in reply["error"]
    raised.value.close()
    assert predict(instances=[[0, 0, 0, 0]])["predictions"] in ([0], [1])


@pytest.mark.parametrize("number", [float("nan"), 1e39])
def test_observation_that_is_not_finite_is_refused(number, predict):
    for request in ({"instances": [[0, 0, number, 0]]}, {"inputs": [[number] * 4]}):
        with pytest.raises(urllib.error.HTTPError) as raised:
            predict(**request)
        assert raised.value.code == 400
        assert "observation is not finite" in raised.value.read().decode()


def test_fifty_concurrent_requests_are_answered(agent, predict):
    rows = np.random.default_rng(0).normal(size=(50, 1, 4)).astype("float32")
    barrier = threading.Barrier(50)

    def send(row):
        barrier.wait()
        return predict(instances=row.tolist())["predictions"]

    with futures.ThreadPoolExecutor(50) as pool:
        found = list(pool.map(send, rows))
    assert found == [agent.act(row, deterministic=True).tolist() for row in rows]


def test_request_without_content_receives_the_signatures(predict):
    with urllib.request.urlopen(predict.url) as reply:
        shown = json.loads(reply.read())
    assert set(shown["sample"]) == {"observation", "seed"}
    assert shown["act"]["observation"].startswith("TensorSpec(shape=(None, 4)")
