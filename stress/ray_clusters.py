"""Starts Ray clusters of several nodes on this machine, for the programs of `stress/`."""

import contextlib
import os
import tempfile

import keras


@contextlib.contextmanager
def start(cores):
    """Yields a `ray.cluster_utils.Cluster`, and ends its processes afterwards.

    Args:
        cores: List of ints, the cores of each node. The first node is the head.
    """
    os.environ.update(
        RAY_AUTH_MODE="disabled",  # no other machine can reach the cluster
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # keeps 127.0.0.1 as the address
        RAY_USAGE_STATS_ENABLED="0",
    )
    from ray import cluster_utils

    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={
                "node_ip_address": "127.0.0.1",
                "num_cpus": cores[0],
                "include_dashboard": False,
                "temp_dir": folder,
            },
        )
        try:
            for count in cores[1:]:
                add_node(cluster, count)
            yield cluster
        finally:
            cluster.shutdown()


def add_node(cluster, cores):
    """Adds a node to a cluster, and returns it."""
    return cluster.add_node(node_ip_address="127.0.0.1", num_cpus=cores)


class NodesOfActors(keras.callbacks.Callback):
    """Collects the ids of the nodes on which actors run, in the attribute `ids`."""

    def __init__(self):
        super().__init__()
        self.ids = set()

    def on_epoch_end(self, epoch, logs=None):
        from ray._private import state

        for actor in state.actors().values():
            if actor["State"] == "ALIVE":
                self.ids.add(actor["Address"]["NodeID"])
