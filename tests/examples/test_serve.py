"""Tests the example `serve.py` with real connections, also of hostile clients."""

import ast
import asyncio
import collections
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.data import spaces

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "serve.py"
PREDICT = "/v1/models/policy:predict"
ROW = b'{"instances": [[0, 0, 0.1, 0]]}'

# An ONNX Runtime whose policy returns the first number of each row, fails, or hangs.
RUNTIME = """
import threading
from unittest import mock
SessionOptions = mock.Mock()
class InferenceSession:
    def __init__(self, path, settings):
        pass
    def run(self, names, arrays):
        observation = arrays["observation"]
        if (observation == 1).any():
            raise RuntimeError("a one\\nin the observation")
        if (observation == 2).any():
            threading.Event().wait()
        return [observation[:, 0]]
"""
ARGUMENT = {"name": "observation", "shape": [None, 4], "dtype": "float32"}
RESULT = {"name": "action", "shape": [None], "dtype": "float32"}
ACT = {"inputs": [ARGUMENT], "results": [RESULT]}
SEED = {"name": "seed", "shape": [], "dtype": "int64"}


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))


@pytest.fixture(scope="module")
def paths(agent, tmp_path_factory):
    """Exports of the agent; a SavedModel in the folder of a version, as TF Serving's."""
    folder = tmp_path_factory.mktemp("models")
    paths = {"tf_saved_model": folder / "policy" / "1", "onnx": folder / "onnx"}
    for name, path in paths.items():
        agent.export(path, format=name)
    return paths


@contextlib.contextmanager
def serving(path, *options, modules=None, before=""):
    """Yields the port of a server in another process, which imports these modules.

    A shell runs the command `before` in the same process.
    """
    folder = path.parent / f"modules_of_{path.name}"
    folder.mkdir(exist_ok=True)
    for name, text in (modules or {}).items():
        (folder / f"{name}.py").write_text(text)
    command = ["sh", "-c", f'{before} exec "$0" "$@"', sys.executable, SCRIPT, path, "0"]
    command += options
    env = {**os.environ, "PYTHONPATH": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            yield int(server.stdout.readline().split()[-1])
        finally:
            server.kill()


BOTH = ["onnx", pytest.param("tf_saved_model", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=BOTH)
def any_port(request, paths):
    """The port of a server that cannot import tf_reinforce or the other runtime."""
    other = {"tf_saved_model": "onnxruntime", "onnx": "tensorflow"}[request.param]
    modules = dict.fromkeys([other, "tf_reinforce"], "raise ImportError")
    with serving(paths[request.param], modules=modules) as port:
        yield port


@pytest.fixture(scope="module")
def port(paths):
    with serving(paths["onnx"]) as port:
        yield port


@pytest.fixture
def serving_runtime(tmp_path):
    """Returns a function that serves the policy of `RUNTIME` with these options."""
    path = tmp_path / "onnx"
    path.mkdir()
    # A client that does not read its replies fills its buffers soon.
    metadata = {"format": "onnx", "functions": {"act": ACT}, "padding": "x" * 10**5}
    metadata["observation_space"] = {"kind": "Box"}
    (path / "policy.json").write_text(json.dumps(metadata))
    return lambda *options: serving(path, *options, modules={"onnxruntime": RUNTIME})


def ask(port, path=PREDICT, **request):
    """Returns the status and the content of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        body = json.dumps(request) if request else None
        connection.request("POST" if path == PREDICT else "GET", path, body)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def connect(port, data=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(data)
    return connection


def answered(connection, event=select.POLLIN, milliseconds=0):
    """Waits for data or the end of a connection, or only for its end (`POLLRDHUP`)."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(milliseconds))


def post(body=b"", *headers, length=None):
    """Returns the bytes of a request, which is complete without another length."""
    length = len(body) if length is None else length
    lines = f"POST {PREDICT} HTTP/1.1", "Host: policy", f"Content-Length: {length}"
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def test_server_is_short_and_imports_no_library_but_the_policys():
    """TensorFlow and ONNX Runtime are imported by the policies that need them."""
    text = SCRIPT.read_text()
    docstring, *body = ast.parse(text).body
    imported = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(x, "module", None) or x.names[0].name for x in imported}
    used = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert used == {"numpy", "starlette", "uvicorn"}
    code = text.splitlines()[docstring.end_lineno :]
    assert sum(bool(line) for line in code) <= 260


def test_server_predicts_rows_and_columns_like_tensorflow_serving(agent, any_port):
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    rows, actions = observations.tolist(), agent.act(observations, deterministic=True)
    actions = actions.tolist()
    assert ask(any_port, instances=rows) == (200, {"predictions": actions})
    assert ask(any_port, inputs=rows) == (200, {"outputs": actions})
    status, reply = ask(any_port, inputs=[rows[0]] * 1024)  # as many as are allowed
    assert (status, reply) == (200, {"outputs": actions[:1] * 1024})
    named = [{"observation": row} for row in rows]
    assert ask(any_port, instances=named) == (200, {"predictions": actions})
    _, reply = ask(any_port, signature_name="distribution", instances=rows)
    assert [[*row] for row in reply["predictions"]] == [["logits", "probs"]] * 5
    _, columns = ask(any_port, signature_name="distribution", inputs=rows)
    assert columns["outputs"]["probs"] == [x["probs"] for x in reply["predictions"]]


def test_seed_or_noise_decides_which_action_is_sampled(agent, any_port):
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    inputs = {"observation": observations.tolist(), "seed": 7}
    status, reply = ask(any_port, signature_name="sample", inputs=inputs)
    if status == 200:
        actions = agent.act(observations, seed=7).tolist()
    else:  # ONNX draws no random numbers
        assert reply == {"error": "`sample` takes exactly the inputs observation, noise"}
        # The Gumbel-max trick: logits, and then a number, of which 0.999 is nearly sure.
        actions, noise = [0, 1, 0, 1, 1], np.full((5, 2), 1e-6)
        noise[range(5), actions] = 0.999999
        inputs = {"observation": inputs["observation"], "noise": noise.tolist()}
        _, reply = ask(any_port, signature_name="sample", inputs=inputs)
    assert reply == {"outputs": {"action": actions, "raw_action": actions}}


def test_metadata_and_health_are_answered(any_port):
    (version,) = ask(any_port, "/v1/models/policy")[1]["model_version_status"]
    assert version["state"] == "AVAILABLE"
    assert ask(any_port, "/health")[0] == 200
    _, metadata = ask(any_port, "/v1/models/policy/metadata")
    (argument,) = metadata["functions"]["act"]["inputs"]
    assert argument == {**ARGUMENT, "role": "observation"}
    assert ask(any_port, "/v1/models/other") == (404, {"error": "Not Found"})


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"x": 3}, "the body must be an object with `instances` or `inputs`"),
        ({"inputs": 1, "instances": [1]}, "the body must be an object with"),
        ({"instances": {"observation": [[0] * 4]}}, "`instances` must be a list of rows"),
        ({"instances": None}, "`instances` must be a list of rows"),
        ({"inputs": {"x": 3}}, "`act` takes exactly the inputs observation"),
        (
            {"inputs": {"observation": [[0] * 4], "x": 3}},
            "`act` takes exactly the inputs",
        ),
        ({"instances": [{"observation": [0] * 4}, {}]}, "`act` takes exactly the inputs"),
        (
            {"instances": [[1, 2]]},
            "numbers of shape (None, 4). Received: an array of shape",
        ),
        ({"instances": [[0] * 4, [0] * 3]}, "Received: an array of shape (2,)"),
        ({"instances": []}, "Received: an array of shape (0,)"),
        ({"instances": [[0, 0, "0", 0]]}, "must be finite float32 numbers of shape"),
        ({"instances": [[0, 0, True, 0]]}, "must be finite float32 numbers"),
        ({"instances": [[0, 0, None, 0]]}, "must be finite float32 numbers"),
        ({"instances": [[0, 0, float("nan"), 0]]}, "Received: a number that is NaN or"),
        ({"inputs": [[0, 0, float("inf"), 0]]}, "Received: a number that is NaN or out"),
        ({"inputs": [[0, 0, 1e39, 0]]}, "Received: a number that is NaN or out of range"),
        ({"inputs": [[0, 0, 10**400, 0]]}, "a number that is NaN or out of range"),
        ({"inputs": [[0] * 4] * 1025}, "equally many rows, 1 to 1024"),
        (
            {"instances": [[0] * 4], "signature_name": "foo"},
            "`signature_name` must be one",
        ),
        ({"instances": [[0] * 4], "signature_name": []}, "`signature_name` must be one"),
        (
            {
                "inputs": {"observation": [[0] * 4], "noise": [[0, 0]] * 2},
                "signature_name": "sample",
            },
            "all inputs must have equally many rows",
        ),
    ],
)
def test_wrong_request_is_refused_with_one_line(wrong, error, port):
    status, reply = ask(port, **wrong)
    assert status == 400 and [*reply] == ["error"]
    assert error in reply["error"] and "\n" not in reply["error"]
    assert ask(port, instances=[[0, 0, 0, 0]])[0] == 200


HEAD = f"POST {PREDICT} HTTP/1.1\r\nHost: policy\r\n"
CHUNKED = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
HOSTILE = {
    "nothing": (post(), 400),
    "negative length": (post(length=-1), 400),
    "length of 30 digits": (post(length=10**30), 400),
    "two lengths": (post(ROW, "Content-Length: 3"), 400),
    "length of a petabyte": (post(ROW, length=10**15), 413),
    "too long": (post(b" " * (2**20 + 1)), 413),
    "too long in chunks": (CHUNKED + b"100001\r\n" + b" " * (2**20 + 1), 413),
    "no chunk": (CHUNKED + b"x\r\n", 400),
    "long header": (f"{HEAD}X: {'x' * 2**17}".encode(), 400),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\xfc\x03\r\n\r\n", 400),
    "invalid UTF-8": (post(b'{"instances": "\xff"}'), 400),
    "lone surrogate": (post(rb'{"inputs": 0, "signature_name": "\ud800"}'), 400),
    "nested": (post(b'{"instances": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"), 400),
    "nested less": (post(b'{"instances": ' + b"[" * 500 + b"]" * 500 + b"}"), 400),
    "many digits": (post(b'{"instances": [[0, 0, 0, ' + b"9" * 10**6 + b"]]}"), 400),
    "large exponent": (post(b'{"instances": [[0, 0, 0, 1e999999999]]}'), 400),
    # As an array of strings, this would fill 500 GB.
    "strings": (
        post(json.dumps({"inputs": ["x" * 500_000] + [""] * 10**5}).encode()),
        400,
    ),
    "compressed": (post(b"\x1f\x8b\x08\x00", "Content-Encoding: gzip"), 400),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_request_is_refused_and_others_are_served(name, port):
    data, status = HOSTILE[name]
    with (
        connect(port, data) as connection,
        contextlib.closing(http.client.HTTPResponse(connection)) as reply,
    ):
        reply.begin()
        assert reply.status == status
        assert status != 413 or [*json.loads(reply.read())] == ["error"]
    assert ask(port, instances=[[0, 0, 0, 0]])[0] == 200


def test_pipelined_requests_are_answered_in_order(agent, port):
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    bodies = [json.dumps({"instances": [row]}).encode() for row in rows.tolist()]
    last = post(bodies.pop(), "Connection: close")
    with connect(port, b"".join(map(post, bodies)) + last) as connection:
        replies = connection.makefile("rb").read().split(b"HTTP/1.1 200 OK")
    found = [json.loads(x.partition(b"\r\n\r\n")[2])["predictions"] for x in replies[1:]]
    assert np.concatenate(found).tolist() == agent.act(rows, deterministic=True).tolist()


async def load(port, bodies):
    """Sends requests at the same time; returns the seconds and the reply of each."""

    async def send(body):
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(body, "Connection: close"))
        reply = await reader.read()
        seconds = time.perf_counter() - start
        writer.close()
        await writer.wait_closed()
        return seconds, reply

    return await asyncio.gather(*map(send, bodies))


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_concurrent_requests_are_answered_with_the_actions_of_the_agent(
    count, agent, any_port
):
    rows = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    bodies = [json.dumps({"instances": [row]}).encode() for row in rows.tolist()]
    seconds, replies = zip(*asyncio.run(load(any_port, bodies)))
    p50, p99 = np.percentile(seconds, [50, 99])
    print(f"{count} requests: p50 {p50:.3f} s, p99 {p99:.3f} s")  # shown by pytest -s
    found = [json.loads(x.partition(b"\r\n\r\n")[2])["predictions"] for x in replies]
    assert np.concatenate(found).tolist() == agent.act(rows, deterministic=True).tolist()


def test_slow_clients_are_cut_off_and_others_are_served(serving_runtime):
    """They send no headers, or not all, or no body, or nothing after a reply."""
    head, body = post(ROW)[:30], post(ROW)[:-1]
    with serving_runtime("--timeout", "1") as port:
        waiting = [connect(port, data) for data in (b"", head, body, post(ROW))]
        dripping = [connect(port, data) for data in (head, post(ROW, length=10**5))]
        mute = connect(port)  # does not read the replies
        mute.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                mute.send(b"GET /v1/models/policy/metadata HTTP/1.1\r\nHost: x\r\n\r\n")
        while ask(port, instances=[[0, 0, 0, 0]])[0] != 200:
            pass  # a busy machine needs more than a second

        for client in dripping:
            with contextlib.suppress(ConnectionError):  # the client is cut off
                drops = itertools.repeat(b"0", 1000)
                while not answered(client, milliseconds=50):
                    client.sendall(next(drops))
        replies = []
        for client in waiting + dripping:
            with client, contextlib.suppress(ConnectionError):
                replies.append(client.makefile("rb").read().partition(b"\r\n")[0])
        assert replies.count(b"HTTP/1.1 408 Request Timeout") == 2
        with mute:
            assert answered(mute, select.POLLRDHUP, milliseconds=60_000)


def test_policy_that_fails_is_no_reason_to_stop(serving_runtime):
    with serving_runtime() as port:
        failed = {"error": "the policy failed: a one"}
        assert ask(port, instances=[[0, 0, 0, 1]]) == (400, failed)
        assert ask(port, instances=[[3, 0, 0, 0]]) == (200, {"predictions": [3]})


def test_request_ends_although_the_policy_hangs(serving_runtime):
    with serving_runtime("--timeout", "1") as port:
        late = 503, {"error": "the policy took too long"}
        assert ask(port, instances=[[0, 0, 0, 2]]) == late
        assert ask(port, instances=[[0, 0, 0, 0]]) == late
        assert ask(port, instances=[[0, 0, 0]])[0] == 400
        assert ask(port, "/health")[0] == 200


@pytest.mark.slow
def test_thousands_of_half_open_connections_leave_others_served(paths):
    """With at most 5,000 open files, the server keeps 2,500 connections."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 5000:
        pytest.skip("the client needs a file for each connection")
    with contextlib.ExitStack() as stack:
        options = "--timeout", "60"
        server = serving(paths["onnx"], *options, before="ulimit -n 5000;")
        port = stack.enter_context(server)
        clients = []
        for number in range(4000):
            client = connect(port, post(ROW)[: number % 100])
            clients.append(stack.enter_context(client))
        for _ in range(50):
            assert ask(port, instances=[[0, 0, 0, 0]])[0] == 200
        assert all(answered(client) for client in clients[:1000])
        assert not any(answered(client) for client in clients[3000:])


@pytest.fixture
def serve(monkeypatch):
    """The module of the example."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import serve

    return serve


def results(serve, calls, *, max_rows=1024):
    """Returns the results of calls that wait together, and the rows of each run."""
    runs = []

    def run(name, arrays):
        runs.append(len(arrays["observation"]))
        if (arrays["observation"] < 0).any():
            raise RuntimeError("negative")
        if name == "scales":
            return {"action": np.arange(2)}
        return {"action": arrays["observation"] + arrays.get("seed", 0)}

    async def gather():
        batcher = serve.Batcher(functions, run, max_rows)
        worker = asyncio.create_task(batcher.work())
        waiting = [batcher.call(*call) for call in calls]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*waiting, return_exceptions=True)
        worker.cancel()
        return found

    seeded = {"inputs": [ARGUMENT, SEED], "results": [RESULT]}
    constant = {"inputs": [ARGUMENT], "results": [{**RESULT, "shape": [2]}]}
    functions = {"act": ACT, "greet": ACT, "sample": seeded, "scales": constant}
    found = asyncio.run(gather())
    return [x if isinstance(x, Exception) else x["action"].tolist() for x in found], runs


def call(name, *rows, **seed):
    return name, {"observation": np.array(rows), **seed}


def test_calls_of_one_function_are_joined_and_each_receives_its_rows(serve):
    calls = [call("act", 1, 2), call("greet", 3), call("act", 4), call("act", 5, 6, 7)]
    found, runs = results(serve, calls)
    assert found == [[1, 2], [3], [4], [5, 6, 7]]
    assert runs == [6, 1]


def test_joined_rows_are_split_at_the_largest_number_of_rows(serve):
    calls = [call("act", 1, 2), call("act", 3, 4, 5), call("act", 6, 7)]
    assert results(serve, calls, max_rows=3) == ([[1, 2], [3, 4, 5], [6, 7]], [3, 3, 1])


def test_calls_with_a_seed_are_not_joined(serve):
    """Rows of one call differ in their noise, so even equal seeds belong apart."""
    calls = [call("sample", 1, seed=np.array(10)), call("sample", 2, seed=np.array(10))]
    assert results(serve, calls) == ([[11], [12]], [1, 1])


def test_calls_whose_result_has_no_rows_are_not_joined(serve):
    calls = [call("scales", 1), call("scales", 2)]
    assert results(serve, calls) == ([[0, 1], [0, 1]], [1, 1])


def test_call_that_fails_does_not_harm_those_it_is_joined_with(serve):
    found, runs = results(serve, [call("act", 1), call("act", -2), call("act", 3)])
    assert [found[0], found[2]] == [[1], [3]]
    assert str(found[1]) == "the policy failed: negative"
    assert runs == [3, 1, 1, 1]


def test_client_that_leaves_while_the_policy_runs_ends_no_other_call(serve):
    async def leave():
        loop = asyncio.get_running_loop()

        def run(name, arrays):
            loop.call_soon_threadsafe(gone.cancel)
            return {"action": arrays["observation"]}

        batcher = serve.Batcher({"act": ACT}, run, 1024)
        worker = asyncio.create_task(batcher.work())
        gone = asyncio.create_task(batcher.call(*call("act", 1)))
        await asyncio.wait([gone])
        stays = asyncio.create_task(batcher.call(*call("act", 2)))
        await asyncio.wait([stays, worker], return_when=asyncio.FIRST_COMPLETED)
        assert gone.cancelled() and not worker.done()
        return stays.result()["action"].tolist()

    assert asyncio.run(leave()) == [2]


def test_each_connection_has_one_timer_and_the_oldest_are_cut_off(serve, monkeypatch):
    """A request starts the timer of its connection again."""
    monkeypatch.setattr(serve.h11_impl.H11Protocol, "connection_made", mock.Mock())
    monkeypatch.setattr(serve.Protocol, "waiting", collections.OrderedDict())
    monkeypatch.setattr(serve.Protocol, "most", 2)

    def connected():
        protocol = object.__new__(serve.Protocol)
        protocol.timeout_keep_alive, protocol.transport = 1, mock.Mock()
        protocol.loop = mock.Mock(**{"call_later.side_effect": lambda *_: mock.Mock()})
        protocol.connection_made(protocol.transport)
        return protocol

    clients = [connected() for _ in range(5)]
    assert [x.transport.abort.call_count for x in clients] == [1, 1, 1, 0, 0]
    timer = serve.Protocol.waiting[clients[3]]
    clients[3].watch()
    timer.cancel.assert_called_once_with()
    assert [*serve.Protocol.waiting] == [clients[4], clients[3]]


def test_saved_model_runs_every_function(agent, paths, serve):
    metadata, run = serve.load_policy(paths["tf_saved_model"])
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    inputs = {"observation": observations}
    actions = agent.act(observations, deterministic=True)
    np.testing.assert_array_equal(run("act", inputs)["action"], actions)
    sampled = run("sample", {**inputs, "seed": np.array(7)})
    np.testing.assert_array_equal(sampled["action"], agent.act(observations, seed=7))
    log_prob = run("log_prob", {**inputs, "raw_action": actions})["log_prob"]
    probs = run("distribution", inputs)["probs"][range(5), actions]
    np.testing.assert_allclose(log_prob, np.log(probs), rtol=1e-5)
    assert [*metadata["functions"]] == ["act", "sample", "distribution", "log_prob"]


def test_categories_outside_of_the_observation_space_are_refused(serve):
    """Not those of a Box, whose bounds many environments exceed slightly."""
    parts = {
        "d": gym.spaces.Discrete(4, start=1),
        "c": gym.spaces.MultiDiscrete([4, 2], start=[0, 3]),
        "b": gym.spaces.Tuple([gym.spaces.MultiBinary(2)]),
        "a": gym.spaces.Box(-1, 1, (1,), np.int64),
    }
    space = spaces.to_config(gym.spaces.Dict(parts))
    shapes = {"a": [None, 1], "b": [None, 2], "c": [None, 2], "d": [None]}
    inputs = [{"name": x, "shape": y, "dtype": "int64"} for x, y in shapes.items()]
    functions = {"act": {"inputs": inputs, "results": []}}
    functions = serve.with_bounds({"functions": functions, "observation_space": space})
    row = {"a": [9], "b": [0, 1], "c": [3, 4], "d": 4}
    serve.read_request(json.dumps({"instances": [row]}), functions, 9)
    for name, value, message in (
        ("d", 0, "`d` must be from 1 to 4. Received: 0"),
        ("d", 5, "from 1 to 4. Received: 5"),
        ("c", [4, 3], "from \\[0, 3\\] to \\[3, 4\\]. Received: 4"),
        ("c", [0, 2], "Received: 2"),
        ("b", [0, -1], "from 0 to 1. Received: -1"),
    ):
        body = json.dumps({"instances": [row, {**row, name: value}]})
        with pytest.raises(ValueError, match=message):
            serve.read_request(body, functions, 9)


def test_masked_results_that_are_infinite_are_written_like_tensorflow_serving_does(serve):
    assert serve.Reply({"x": -np.inf}).body == b'{"x": -Infinity}\n'


def test_number_of_recurrent_states_is_not_offered(serve, tmp_path):
    """`initial_state` would allocate any `count`; `policy.json` contains the state."""
    functions = {"act": ACT, "initial_state": ACT}
    metadata = {"format": "onnx", "functions": functions}
    (tmp_path / "policy.json").write_text(json.dumps(metadata))
    with mock.patch.dict(sys.modules, onnxruntime=mock.Mock()):
        metadata, _ = serve.load_policy(tmp_path)
    assert [*metadata["functions"]] == ["act"]


def test_export_for_litert_is_refused(serve, tmp_path):
    (tmp_path / "policy.json").write_text('{"format": "litert", "functions": {}}')
    with pytest.raises(SystemExit, match="must be a SavedModel or an ONNX export"):
        serve.load_policy(tmp_path)


@pytest.mark.slow
def test_client_plays_an_episode_over_one_connection(agent, port):
    script = ROOT / "examples" / "serve_client.py"
    command = [sys.executable, script, "CartPole-v1", str(port)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)
    steps, ended = 0, False
    while not ended:
        action = agent.act(observation[None], deterministic=True)[0]
        observation, _, terminated, truncated, _ = env.step(action)
        steps, ended = steps + 1, terminated or truncated
    assert result.stdout == f"return {steps}.0 after {steps} steps\n"


def test_ctrl_c_ends_the_server_without_a_traceback(paths):
    command = [sys.executable, SCRIPT, paths["onnx"], "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as server:
        ask(int(server.stdout.readline().split()[-1]), "/health")
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate()
    assert server.returncode == 0 and errors == ""
