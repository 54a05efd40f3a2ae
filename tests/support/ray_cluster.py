"""A Ray cluster of several nodes on this machine, bound to 127.0.0.1, for tests.

    python tests/support/ray_cluster.py NODES CORES_PER_NODE

This starts a cluster, prints its address, and reads commands from standard input: "kill"
kills a node other than the first, "add" adds one. The cluster ends with the input.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

ENVIRON = {
    # Ray uses another address of the machine instead of 127.0.0.1 unless this is 0.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # avoids a warning about accelerators
}
_STORE = 100_000_000  # bytes of the object store of each node


class Cluster:
    """A cluster that another process runs.

    Attributes:
        address: String.
    """

    def __init__(self, nodes, cores, **environ):
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(nodes), str(cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, **ENVIRON, **environ},
        )
        self.address = self._read()

    def kill_node(self):
        """Kills the processes of a node other than the first with SIGKILL."""
        self._request("kill")

    def add_node(self):
        self._request("add")

    def close(self):
        """Ends all nodes."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _request(self, text):
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        assert self._read() == text

    def _read(self):
        line = self._process.stdout.readline().strip()
        if not line:
            self._process.stdin.close()
            self._process.stdout.close()
            self._process.wait()
            raise RuntimeError("The Ray cluster has not started.")
        return line


@contextlib.contextmanager
def running(nodes, cores, **environ):
    """Yields a `Cluster`, to which this process can connect with RayWorkers."""
    before = {name: os.environ.get(name) for name in ENVIRON}
    os.environ.update(ENVIRON)
    cluster = Cluster(nodes, cores, **environ)
    try:
        yield cluster
    finally:
        if "ray" in sys.modules:  # else the next cluster would be refused
            sys.modules["ray"].shutdown()
        cluster.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def start(cores):
    """Yields a `ray.cluster_utils.Cluster` in this process.

    Args:
        cores: List of ints, one for each node. The first node is the head.
    """
    os.environ.update(ENVIRON)
    from ray import cluster_utils

    # Ray writes the address of the cluster to this folder, and does not create it.
    default_folder = pathlib.Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray")
    default_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        options = {"include_dashboard": False, "temp_dir": folder, **_node(cores[0])}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=options)
        try:
            for count in cores[1:]:
                add_node(cluster, count)
            yield cluster
        finally:
            cluster.shutdown()


def add_node(cluster, cores):
    """Adds a node to a `ray.cluster_utils.Cluster`, and returns it."""
    return cluster.add_node(**_node(cores))


def _node(cores):
    address = {"node_ip_address": "127.0.0.1"}
    return {"num_cpus": cores, "object_store_memory": _STORE, **address}


def main(nodes, cores):
    with start([cores] * nodes) as cluster:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            if line.strip() == "kill":
                node = next(iter(cluster.worker_nodes))
                cluster.remove_node(node, allow_graceful=False)
            else:
                add_node(cluster, cores)
            print(line.strip(), flush=True)


if __name__ == "__main__":
    sys.path.remove(str(pathlib.Path(__file__).parent))
    main(*map(int, sys.argv[1:]))
