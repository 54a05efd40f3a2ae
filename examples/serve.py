"""Serves an exported policy over HTTP, with the API of TensorFlow Serving.

python examples/serve.py POLICY [PORT]
curl http://127.0.0.1:8501/v1/models/policy/metadata
curl -d '{"instances": [[0, 0, 0.1, 0]]}' http://127.0.0.1:8501/v1/models/policy:predict

POLICY is a SavedModel, which needs TensorFlow, or an ONNX export, which needs
onnxruntime. Both need starlette and uvicorn, and neither needs tf_reinforce.
"""

import argparse
import asyncio
import collections
import contextlib
import copy
import json
import pathlib
import resource
import socket

import numpy as np
import uvicorn
from starlette import applications
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing
from uvicorn.protocols.http import h11_impl


def load_policy(folder):
    """Returns `policy.json`, and a function of a name and arrays that runs the policy."""
    metadata = json.loads(pathlib.Path(folder, "policy.json").read_text())
    functions = metadata["functions"]
    functions.pop("initial_state", None)  # a large `count` would fill the memory
    names = {key: [x["name"] for x in f["results"]] for key, f in functions.items()}
    if metadata["format"] == "onnx":
        import onnxruntime

        settings = onnxruntime.SessionOptions()  # idle threads leave the cores to others
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        paths = {name: pathlib.Path(folder, f"{name}.onnx") for name in functions}
        load = onnxruntime.InferenceSession
        sessions = {name: load(path, settings) for name, path in paths.items()}

        def run(name, arrays):
            return dict(zip(names[name], sessions[name].run(names[name], arrays)))

    elif metadata["format"] == "tf_saved_model":
        import tensorflow as tf

        signatures = tf.saved_model.load(folder).signatures

        def run(name, arrays):
            tensors = {key: tf.constant(array) for key, array in arrays.items()}
            results = signatures[name](**tensors)
            return {key: results[key].numpy() for key in names[name]}

    else:
        raise SystemExit(f"{folder} must be a SavedModel or an ONNX export")
    return metadata, run


def category_bounds(space):
    """Returns the lowest and the highest number of each array of an observation."""
    if (parts := space.get("parts")) is not None:
        parts = (
            [parts[key] for key in sorted(parts)] if "Dict" in space["kind"] else parts
        )
        return [bounds for part in parts for bounds in category_bounds(part)]
    if space["kind"] == "Box":  # many environments exceed its bounds slightly
        return [(-np.inf, np.inf)]
    low = np.array(space.get("start", 0))
    size = 2 if space["kind"] == "MultiBinary" else space.get("n", space.get("nvec"))
    return [(low, low + np.array(size) - 1)]


def with_bounds(metadata):
    """Returns the functions, with the bounds of their first inputs, the observation."""
    functions = copy.deepcopy(metadata["functions"])
    for function in functions.values():
        bounds = category_bounds(metadata["observation_space"])
        for argument, (low, high) in zip(function["inputs"], bounds):
            argument.update(low=low, high=high)
    return functions


async def read_body(request, max_bytes):
    """Returns the body of a request, of which it reads no more than `max_bytes`."""
    error = exceptions.HTTPException(413, f"the body has more than {max_bytes} bytes")
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise error
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise error
    return bytes(body)


def read_request(body, functions, max_rows):
    """Returns the function to call, its arrays, and whether they came row by row."""
    request = json.loads(body)
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise ValueError("the body must be an object with `instances` or `inputs`")
    name = request.get("signature_name", "act")
    if not isinstance(name, str) or name not in functions:
        raise ValueError(f"`signature_name` must be one of {', '.join(functions)}")
    arguments = {argument["name"]: argument for argument in functions[name]["inputs"]}
    by_row = "instances" in request
    parts = request["instances"] if by_row else [request["inputs"]]
    if not isinstance(parts, list):
        raise ValueError("`instances` must be a list of rows")
    first = next(iter(arguments))  # the only argument needs no name
    parts = [part if isinstance(part, dict) else {first: part} for part in parts]
    if any(part.keys() != arguments.keys() for part in parts):
        raise ValueError(f"`{name}` takes exactly the inputs {', '.join(arguments)}")
    columns = {key: [part[key] for part in parts] for key in arguments}
    columns = columns if by_row else parts[0]
    arrays = {key: to_array(columns[key], **arguments[key]) for key in arguments}
    rows = {len(array) for array in arrays.values() if array.ndim}
    if len(rows) != 1 or not 0 < max(rows) <= max_rows:
        raise ValueError(f"all inputs must have equally many rows, 1 to {max_rows}")
    return name, arrays, by_row


def to_array(values, name, shape, dtype, low=-np.inf, high=np.inf, **_):
    array = np.array(values, object)  # with another dtype, NumPy would parse strings
    fits = [size in (None, found) for size, found in zip(shape, array.shape)]
    number = {int, float} if "float" in dtype else {int, bool}
    rule = f"finite {dtype} numbers of shape {tuple(shape)}"
    received = f"an array of shape {array.shape}"
    if len(shape) == array.ndim and all(fits) and number >= {*map(type, array.flat)}:
        received = "a number that is NaN or out of range"
        with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
            converted = array.astype(dtype)
            if np.isfinite(converted).all():
                is_valid = (low <= converted) & (converted <= high)
                if is_valid.all():
                    return converted
                rule = f"from {np.array(low).tolist()} to {np.array(high).tolist()}"
                received = converted[~is_valid][0]
    raise ValueError(f"`{name}` must be {rule}. Received: {received}")


class Batcher:
    """Joins the calls of a function that wait at the same time."""

    def __init__(self, functions, run, max_rows):
        self.run, self.max_rows, self.queue = run, max_rows, asyncio.Queue(4096)
        self.joinable = set()  # a seed has no rows, and belongs to one call
        for name, function in functions.items():
            arrays = [*function["inputs"], *function["results"]]
            if all(array["shape"][:1] == [None] for array in arrays):
                self.joinable.add(name)

    async def call(self, name, arrays):
        future = asyncio.get_running_loop().create_future()
        await self.queue.put((name, arrays, future))
        result = await future
        if isinstance(result, Exception):
            raise ValueError(f"the policy failed: {result}") from result
        return result

    async def work(self):
        while True:
            waiting = [await self.queue.get()]
            waiting += [self.queue.get_nowait() for _ in range(self.queue.qsize())]
            groups = {}
            for name, arrays, future in waiting:
                key = name if name in self.joinable else future
                if not future.done():  # the client still waits
                    groups.setdefault(key, []).append((name, arrays, future))
            for group in groups.values():
                names, calls, futures = zip(*group)
                results = await asyncio.to_thread(self.results, names[0], calls)
                for future, result in zip(futures, results):
                    if not future.done():
                        future.set_result(result)

    def results(self, name, calls):
        """Returns a dict of arrays for each call, or the error that it raised."""
        try:
            return self.joined(name, calls) if calls[1:] else [self.run(name, *calls)]
        except Exception as error:
            if len(calls) == 1:
                return [error]
            # A call that fails must not harm the others.
            return [result for call in calls for result in self.results(name, [call])]

    def joined(self, name, calls):
        ends = np.cumsum([len(next(iter(arrays.values()))) for arrays in calls])
        joined = {key: np.concatenate([x[key] for x in calls]) for key in calls[0]}
        parts = [
            self.run(name, {key: x[i : i + self.max_rows] for key, x in joined.items()})
            for i in range(0, ends[-1], self.max_rows)
        ]
        columns = {key: np.concatenate([x[key] for x in parts]) for key in parts[0]}
        rows = zip(*[np.split(column, ends[:-1]) for column in columns.values()])
        return [dict(zip(columns, row)) for row in rows]


class Reply(responses.JSONResponse):
    """JSON in which, as in TensorFlow Serving's, a result may be NaN or Infinity."""

    def render(self, content):
        return json.dumps(content).encode() + b"\n"


def make_app(metadata, run, options):
    functions, max_rows = with_bounds(metadata), options.max_rows
    batcher = Batcher(functions, run, max_rows)

    async def predict(request):
        code, reason = 408, "the body took too long"
        try:
            async with asyncio.timeout(options.timeout):
                body = await read_body(request, options.max_bytes)
                code, reason = 503, "the policy took too long"
                name, arrays, by_row = read_request(body, functions, max_rows)
                results = await batcher.call(name, arrays)
        except TimeoutError as error:
            close = {"Connection": "close"}
            raise exceptions.HTTPException(code, reason, close) from error
        results = {key: result.tolist() for key, result in results.items()}
        if len(results) == 1:  # TensorFlow Serving does not name a single result
            [results] = results.values()
        elif by_row:
            results = [dict(zip(results, row)) for row in zip(*results.values())]
        return Reply({"predictions" if by_row else "outputs": results})

    async def health(request):
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": "1", "state": "AVAILABLE", "status": status}
        return Reply({"model_version_status": [version]})

    async def describe(request):
        return Reply(metadata)

    async def refuse(request, error):
        if isinstance(error, exceptions.HTTPException):
            return Reply({"error": error.detail}, error.status_code, error.headers)
        return Reply({"error": str(error).partition("\n")[0]}, 400)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        worker = asyncio.create_task(batcher.work())
        yield
        worker.cancel()

    refused = ValueError, RecursionError, requests.ClientDisconnect
    return applications.Starlette(
        routes=[
            routing.Route("/health", health),
            routing.Route("/v1/models/policy", health),
            routing.Route("/v1/models/policy/metadata", describe),
            routing.Route("/v1/models/policy:predict", predict, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys([exceptions.HTTPException, *refused], refuse),
        lifespan=lifespan,
    )


class Protocol(h11_impl.H11Protocol):
    """Closes connections that complete no request in time, or are too many."""

    most = 1000
    waiting = collections.OrderedDict()  # from connection to timer, the oldest first

    def connection_made(self, transport):
        super().connection_made(transport)
        self.watch()
        if len(self.waiting) > self.most:
            oldest = next(iter(self.waiting))
            oldest.unwatch()
            oldest.transport.abort()

    def watch(self):
        self.unwatch()
        seconds = 2 * self.timeout_keep_alive  # to be idle, and for a request
        self.waiting[self] = self.loop.call_later(seconds, self.transport.abort)

    def unwatch(self):
        if self in self.waiting:
            self.waiting.pop(self).cancel()

    def on_response_complete(self):
        self.watch()
        super().on_response_complete()

    def connection_lost(self, exc):
        self.unwatch()
        super().connection_lost(exc)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("policy")
    parser.add_argument("port", nargs="?", type=int, default=8501)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--max-bytes", type=int, default=2**20, help="of a body")
    parser.add_argument("--max-rows", type=int, default=1024, help="of a request")
    parser.add_argument("--timeout", type=float, default=10, help="in seconds")
    options = parser.parse_args()
    app = make_app(*load_policy(options.policy), options)
    files = min(10240, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    Protocol.most = max(1000, files // 2)  # asyncio accepts 2,048 before we count them
    server = {"http": Protocol, "ws": "none", "log_level": "error"}
    config = uvicorn.Config(app, timeout_keep_alive=options.timeout, **server)
    with socket.create_server((options.host, options.port), backlog=2048) as listener:
        print(f"serving {options.policy} on port {listener.getsockname()[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
