"""Reads from `TF_CONFIG` which processes train one agent together."""

import json
from typing import NamedTuple

_JOBS = ("chief", "worker")  # in the order of the numbers of their processes


class LearnerCluster(NamedTuple):
    """The processes that train one agent together.

    Attributes:
        hosts: Tuple of strings `"host:port"`, one for each process.
        number: Int, the number of the current process. Process 0 is the chief.
    """

    hosts: tuple[str, ...]
    number: int


def from_environment(environ):
    """Returns the `LearnerCluster` of `TF_CONFIG`, or `None` for one process.

    TensorFlow has a resolver for it, but the command line needs it before the import.

    Raises:
        ValueError: If `TF_CONFIG` is invalid, or describes other kinds of processes.

    Example:

    >>> cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
    >>> task = {"type": "worker", "index": 1}
    >>> environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    >>> from_environment(environ).number
    1
    """
    text = environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        if config in ({}, {"cluster": {}}):
            return None
        jobs, task = config["cluster"], config["task"]
        tasks = [(job, i) for job in _JOBS for i in range(len(jobs.get(job, ())))]
        number = tasks.index((task["type"], int(task["index"])))
        hosts = tuple(jobs[job][i] for job, i in tasks)
        if jobs.keys() - {*_JOBS} or not all(host.partition(":")[2] for host in hosts):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            'TF_CONFIG must be {"cluster": {"worker": ["host:port", …]}, "task": '
            '{"type": "worker", "index": N}}, with the jobs chief and worker only. '
            f"Received: TF_CONFIG={text!r}. To train in one process, unset TF_CONFIG."
        ) from error
    return LearnerCluster(hosts, number) if len(hosts) > 1 else None
