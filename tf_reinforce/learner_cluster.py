"""Reads from environment variables which processes train one agent together."""

import json
import re
from typing import NamedTuple

_JOBS = ("chief", "worker")  # in the order of the numbers of their processes
_FORM = (
    '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": N}}'
)
# Ports of Slurm jobs are below the ports that Linux gives to outgoing connections.
_FIRST_PORT, _NUM_PORTS = 12_000, 20_000


class LearnerCluster(NamedTuple):
    """The processes that train one agent together.

    Attributes:
        hosts: Tuple of strings `"host:port"`, one for each process.
        number: Int, the number of the current process. Process 0 is the chief.
        source: String, the environment variables that describe the processes.
        tf_config: String, the value of `TF_CONFIG` from which TensorFlow makes a
            strategy.
    """

    hosts: tuple[str, ...]
    number: int
    source: str
    tf_config: str


def from_environment(environ):
    """Returns the `LearnerCluster` that environment variables describe.

    If `TF_CONFIG` is set, the variables of Slurm are ignored. Under Slurm, the tasks of
    one job step (`srun`) train one agent together.

    Args:
        environ: Mapping from the names of environment variables to strings.

    Returns:
        `LearnerCluster`, or `None` if the variables describe no or one process.

    Raises:
        ValueError: If the variables are inconsistent, or describe other kinds of
            processes.

    Example:

    >>> cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
    >>> task = {"type": "worker", "index": 1}
    >>> environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    >>> from_environment(environ).number
    1
    """
    if "TF_CONFIG" in environ:
        return _from_tf_config(environ["TF_CONFIG"], "TF_CONFIG")
    if environ.get("SLURM_STEP_NUM_TASKS", "1") in ("", "1"):
        return None
    return _from_tf_config(json.dumps(_slurm_config(environ)), "Slurm's variables")


def _from_tf_config(text, source):
    try:
        config = json.loads(text or "{}")
    except ValueError:
        raise _invalid("it contains no JSON", text) from None
    if not isinstance(config, dict) or not config.get("cluster"):
        if config in ({}, {"cluster": {}}):
            return None
        raise _invalid('it contains no "cluster"', text)
    cluster, task = config["cluster"], config.get("task")
    if not isinstance(cluster, dict) or not all(map(_is_job, cluster.values())):
        raise _invalid('its "cluster" contains no lists of "host:port"', text)
    others = [name for name in cluster if name not in _JOBS]
    if others:
        raise _invalid(f'its "cluster" contains the job {others[0]!r}', text)
    kind, index = _task(task, text)
    hosts = [host for job in _JOBS for host in cluster.get(job, ())]
    if not 0 <= index < len(cluster.get(kind, ())):
        raise _invalid('its "task" is not in its "cluster"', text)
    number = index + (len(cluster.get("chief", ())) if kind == "worker" else 0)
    return LearnerCluster(tuple(hosts), number, source, text) if len(hosts) > 1 else None


def _task(task, text):
    """Returns type and index of the task in `TF_CONFIG`."""
    task = task if isinstance(task, dict) else {}
    index = task.get("index")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if task.get("type") not in _JOBS or type(index) is not int:
        raise _invalid('its "task" has no type "worker" or "chief" with an index', text)
    return task["type"], index


def _is_job(hosts):
    return isinstance(hosts, list) and all(
        isinstance(host, str) and re.fullmatch(r".+:\d+", host) for host in hosts
    )


def _invalid(reason, text):
    return ValueError(
        f"The environment variable TF_CONFIG is invalid: {reason}. Expected: {_FORM}, "
        f"with the jobs {' and '.join(_JOBS)} only. Received: TF_CONFIG={text!r}. To "
        "train in one process, unset TF_CONFIG."
    )


def _slurm_config(environ):
    """Returns the content of `TF_CONFIG` for the tasks of a Slurm job step.

    The variables contain the number of tasks of each node, and the node of the current
    task. They contain the nodes of the other tasks only if tasks are numbered by node.
    """
    job = _slurm_int(environ, "SLURM_JOB_ID")
    rank = _slurm_int(environ, "SLURM_PROCID")
    node = _slurm_int(environ, "SLURM_NODEID")
    task = _slurm_int(environ, "SLURM_LOCALID")
    nodes = list(_expand(environ.get("SLURM_STEP_NODELIST", "")))
    tasks = list(_repeat(environ.get("SLURM_STEP_TASKS_PER_NODE", "")))
    port = _FIRST_PORT + job % _NUM_PORTS
    hosts = [f"{x}:{port + i}" for x, n in zip(nodes, tasks) for i in range(n)]
    expected = f"{nodes[node]}:{port + task}" if node < len(nodes) else None
    if not rank < len(hosts) or hosts[rank] != expected:
        raise ValueError(
            "Slurm's variables SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE do not "
            "determine the node of each task. Expected: tasks that are numbered by node, "
            f"`srun --distribution=block`. Received: the task {rank}, which is task "
            f"{task} of node {node}, and the tasks {hosts}. To describe the processes "
            "yourself, set TF_CONFIG."
        )
    return {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": rank}}


def _slurm_int(environ, name):
    value = environ.get(name, "")
    if not value.isdecimal():
        raise ValueError(
            "The variables of a Slurm job step with several tasks are incomplete. "
            f"Expected: {name}=N, as `srun` sets it. Received: {name}={value!r}. To "
            "train in one process, set TF_CONFIG={}."
        )
    return int(value)


def _expand(nodes):
    """Yields the names in a list of nodes, for example `"login,n[01-03,7]"`."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        prefix, bracket, rest = part.partition("[")
        if not bracket:
            yield part
            continue
        ranges, _, suffix = rest.partition("]")
        for bounds in ranges.split(","):
            first, _, last = bounds.partition("-")
            last = last or first
            if not (first.isdecimal() and last.isdecimal()):
                return
            for number in range(int(first), int(last) + 1):
                for end in _expand(suffix) if suffix else [""]:
                    yield f"{prefix}{number:0{len(first)}d}{end}"


def _repeat(counts):
    """Yields the numbers in a list of counts, for example `"2(x3),1"`."""
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        yield from [int(number)] * int(times or 1)
