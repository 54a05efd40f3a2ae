"""Kills workers during trainings, and compares the results with those without kills.

    python stress/worker_kills.py [--kills 200] [--seed 0] [--kinds local ray]

Half of the kills end workers of this machine, and half end parts of a Ray cluster: the
process of a worker, its actor, or a whole node, which is then replaced. SIGKILL comes at
random moments, and before, within and after messages, most often those with the weights.
The trainings have `on_env_error="restart"`. The digests of their weights, logs and
episodes must equal those of a training in one process without kills. The log must count
each killed worker as a restart, except for those that die after the last collection: a
warning names them. No process may remain after a training.
"""

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import itertools
import json
import logging
import math
import os
import pathlib
import random
import signal
import struct
import sys
import threading
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import worker_trainings

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
import ray_cluster

import tf_reinforce as tfr
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import ray_handle
from tf_reinforce.engine.collect import ray_launcher

UPDATES, WORKERS = 6, 3
MAX_KILLS = 4  # in one update; an episode may lose ten workers
STEP_TIMEOUT = 20.0  # a worker that ends for this reason is no kill
TIME_LIMIT = 600  # seconds of one training
# Of a kill at a message, by the kind of the message. Other messages are rare.
PROBABILITIES = {"weights": 0.25, "collect": 0.05, "episodes": 0.02}
NAMES = [name for name in worker_trainings.TRAININGS if name != "HalfCheetah-v5"]
# Of messages on a cluster, those whose moment is used first.
MAIN_KINDS = "weights", "program", "factory", "episodes", "collect", "environments"
REPORTS = "killed by the signal SIGKILL", "lost with its actor or its machine"


def adopt_orphans():
    """Makes orphans among the descendants of this process its children."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def living_processes():
    """Returns a dict from the numbers of all living processes to those of their parents.

    Ended processes that nobody has waited for are left out.
    """
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(path.parent.name)] = int(parent)
    return parents


def descendants(pid, parents):
    """Returns the numbers of the living processes that descend from a process."""
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def worker_processes(parents):
    """Returns a dict from worker processes of this program to numbers of workers."""
    found = {}
    for pid in descendants(os.getpid(), parents):
        environment = _read(pid, "environ").split(b"\0")
        numbers = [x for x in environment if x.startswith(b"TF_REINFORCE_WORKER=")]
        if numbers:
            found[pid] = int(numbers[0].partition(b"=")[2])
    return found


def _read(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def wait_for_end(find):
    """Waits until a function finds no process; returns the processes that remain."""
    deadline = time.monotonic() + 10
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [(pid, _read(pid, "cmdline").decode()[:200]) for pid in found]


def workers_and_guards():
    """Returns the processes of workers and of their guards."""
    parents = living_processes()
    others = descendants(os.getpid(), parents)
    guards = [pid for pid in others if b"worker_guard" in _read(pid, "cmdline")]
    return [*worker_processes(parents), *guards]


def kind_of(message):
    """Returns the kind of a message that `channel.encode` returned."""
    (length,) = struct.unpack("!Q", message[:8])
    return json.loads(bytes(message[8 : 8 + length]))[0]["kind"]


class Killer(keras.callbacks.Callback):
    """Kills workers of a training at moments that a random number generator selects.

    Args:
        rng: `random.Random`.
        max_kills: Int, the number of workers to kill in this training.

    Attributes:
        num_kills: Int, the number of workers that were killed.
        num_unreported: Int, how many of them may remain without a report: the cluster
            may start an actor again itself that has not answered yet, and the training
            may end without workers that have no more episodes to play.
        num_lost_hosts: Int, the number of actors and nodes that were killed. Workers
            that were beginning to start there are lost too, and are no kills.
        moments: Counter of the kills, by moment.
    """

    def __init__(self, rng, max_kills):
        super().__init__()
        self.num_kills, self.num_unreported, self.num_lost_hosts = 0, 0, 0
        self.moments = collections.Counter()
        self._rng = rng
        self._max_kills = max_kills
        self._left = MAX_KILLS  # in the current update, and while the workers start
        self._workers = {}  # from numbers to workers
        self._killed = set()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._playing = threading.Event()  # set when a worker receives episodes
        self._thread = threading.Thread(target=self._kill_at_random_moments)

    def __enter__(self):
        self._replaced = [
            (owner, name, getattr(owner, name)) for owner, name in self.hooks
        ]
        for owner, name, original in self._replaced:
            setattr(owner, name, self._hook(getattr(self, name), original))
        self._thread.start()
        return self

    def __exit__(self, *_):
        for owner, name, original in self._replaced:
            setattr(owner, name, original)
        self._end()
        self._thread.join()

    def _hook(self, method, original):
        return lambda *args: method(original, *args)

    def on_epoch_begin(self, epoch, logs=None):
        with self._lock:
            self._left = MAX_KILLS

    def on_train_end(self, logs=None):
        self._end()  # afterwards, the pool ends its workers

    def draw(self, kind):
        """Returns when to kill the worker that receives a message, or `None`."""
        if kind == "episodes":
            self._playing.set()
        if self._rng.random() < PROBABILITIES.get(kind, 0.1):
            return self._rng.choice(("before", "within", "after"))
        return None

    def kill(self, one, moment):
        """Kills a worker that is alive, if the training has not yet lost enough."""
        with self._lock:
            is_over = self._ended.is_set() or self.num_kills >= self._max_kills
            if is_over or one in self._killed or self._left <= 0:
                return
            form, victims = self.end(one)
            self._killed.update(victims)
            self._left -= len(victims)
            self.num_kills += len(victims)
            if victims:
                self.moments[f"{form} {moment}"] += 1

    def _kill_at_random_moments(self):
        while not self._ended.is_set():
            workers = [*self._workers.values()]
            if self._rng.random() < 0.5:
                self._playing.clear()
                self._playing.wait(1.0)
                self._ended.wait(self._rng.uniform(0.0, 0.1))
                workers = [one for one in workers if self.may_play(one)]
            else:
                self._ended.wait(self._rng.uniform(0.0, 1.0))
            if workers:
                one = self._rng.choice(workers)
                self.kill(one, self.describe(one))

    def _end(self):
        with self._lock:
            self._ended.set()


class LocalKiller(Killer):
    """Kills worker processes of this machine."""

    hooks = ((local_worker.LocalWorker, "send"),)

    def send(self, original, one, message):
        """Sends a message to a worker, which may be killed before, within or after it."""
        self._workers[one.number] = one
        moment = self.draw(kind := kind_of(message))
        if moment == "before":
            self.kill(one, f"before {kind}")
        if moment == "within":
            count = self._rng.randrange(1, len(message))
            original(one, message[:count])
            self.kill(one, f"within {kind}")
            message = message[count:]
        original(one, message)
        if moment == "after":
            self.kill(one, f"after {kind}")

    def may_play(self, one):
        return one._progress.is_in_episode()

    def describe(self, one):
        return f"in {one._progress.describe(0).split()[0]}"

    def end(self, one):
        """Kills a worker; returns the kind of the kill, and a set of killed workers."""
        if one.pid not in living_processes():
            return "", set()
        os.kill(one.pid, signal.SIGKILL)
        while self._rng.random() < 0.9 and one.pid in living_processes():
            time.sleep(0.001)  # often, the pool must notice it at once
        return "process", {one}


class RayKiller(Killer):
    """Kills worker processes, actors and nodes of a Ray cluster.

    Args:
        cluster: `ray.cluster_utils.Cluster`, in which all nodes but the head have cores.
        rng, max_kills: As for `Killer`.
    """

    hooks = (
        (ray_launcher.RayLauncher, "start"),
        (ray_launcher.RayLauncher, "share"),
        (ray_handle.ActorHandle, "request"),
    )

    def __init__(self, cluster, rng, max_kills):
        super().__init__(rng, max_kills)
        self._cluster = cluster
        self._kinds = {}  # from objects of Ray to kinds of messages
        self._lost_node = None
        self._is_last_update = False

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch)
        self._is_last_update = epoch == UPDATES - 1
        self._replace_lost_node()

    def __exit__(self, *args):
        super().__exit__(*args)
        self._replace_lost_node()

    def _replace_lost_node(self):
        node = self._lost_node
        if node in self._cluster.worker_nodes:
            self._cluster.remove_node(node, allow_graceful=False)
            ray_cluster.add_node(self._cluster, WORKERS)
        self._lost_node = None  # only now, another node may be killed

    def start(self, original, launcher, number, *args):
        self._workers[number] = one = original(launcher, number, *args)
        return one

    def share(self, original, launcher, message):
        shared = original(launcher, message)
        self._kinds[shared.hex()] = kind_of(message)
        return shared

    def request(self, original, actor, busy):
        """Requests messages of an actor, whose worker may be killed before or after."""
        orders = () if actor.reply is not None else actor._orders
        sent = [(self._kind(x), order[1]) for order, x in orders if x is not None]
        sent.sort(key=lambda pair: MAIN_KINDS.index(pair[0]))
        kind, key = sent[0] if sent else (None, None)
        one = next((x for x in self._workers.values() if x.key == key), None)
        moment = None if one is None else self.draw(kind)
        if moment == "before":
            self.kill(one, f"before {kind}")
        original(actor, busy)
        if moment in ("within", "after"):  # soon, the message arrives
            self._ended.wait(self._rng.uniform(0.0, 0.02) * (moment == "after"))
            self.kill(one, f"after {kind}")

    def _kind(self, message):
        is_shared = not isinstance(message, bytes)
        return self._kinds[message.hex()] if is_shared else kind_of(message)

    def may_play(self, one):
        return has_started(one)  # what the worker does is not known

    def describe(self, one):
        return "at a random moment"

    def end(self, one):
        """Kills a worker with its process, its actor or its node.

        Returns:
            The kind of the kill, and a set of the killed workers.
        """
        parents = living_processes()
        processes = {  # by numbers of workers, without those of lost actors
            number: pid
            for pid, number in worker_processes(parents).items()
            if _read(parents[pid], "cmdline").startswith(b"ray::")
        }
        is_current = self._workers[one.number] is one and one.actor is not None
        if one.number not in processes or not is_current:
            return "", set()  # a process of its predecessor may still be alive
        process = processes[one.number]
        actor, form = parents[process], self._rng.choice(("process", "actor", "node"))
        nodes = {raylet_of(node): node for node in self._cluster.worker_nodes}
        node = nodes.get(raylet := parents[actor])
        if form == "node" and self._lost_node is None and node is not None:
            self._lost_node = node
            is_sudden = self._rng.random() < 0.5  # otherwise only the raylet is killed
            pids = [raylet, *(descendants(raylet, parents) if is_sudden else ())]
            lost = {n for n, pid in processes.items() if parents[parents[pid]] == raylet}
        elif form != "process" and has_started(one):
            form, pids = "actor", [actor]
            lost = {n for n, pid in processes.items() if parents[pid] == actor}
        else:
            form, pids, lost = "process", [process], {one.number}
        victims = {self._workers[number] for number in lost} - self._killed
        victims = {victim for victim in victims if victim.actor is not None}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if form != "process":
            self.num_lost_hosts += 1
            is_reported = lambda x: has_started(x) and not self._is_last_update  # noqa: E731
            self.num_unreported += sum(not is_reported(x) for x in victims)
        return form, victims


def has_started(one):
    """Returns whether the actor of a worker on a cluster has started."""
    return one.actor is not None and one.actor.has_started


def raylet_of(node):
    """Returns the process number of the raylet of a node."""
    return node.all_processes["raylet"][0].process.pid


class LogMessages(logging.Handler):
    """Keeps the messages that the package logs, such as the reasons of restarts."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@contextlib.contextmanager
def log_messages():
    """Yields the list of the messages that the package logs, instead of printing them."""
    log, handler = logging.getLogger("tf_reinforce"), LogMessages()
    log.addHandler(handler)
    log.propagate = False
    yield handler.texts
    log.propagate = True
    log.removeHandler(handler)


def train(name, workers, killer):
    """Trains with kills; returns a dict with counts and the digests."""
    with (
        warnings.catch_warnings(record=True) as caught,
        log_messages() as logged,
        killer,
    ):
        warnings.simplefilter("always")
        _, history, digests = worker_trainings.train(
            name,
            UPDATES,
            without=["worker_restarts"],
            callbacks=[killer],
            workers=workers,
            on_env_error="restart",
            step_timeout=STEP_TIMEOUT,
        )
    messages = [str(x.message) for x in caught]
    return {
        "kills": killer.num_kills,
        "unreported": killer.num_unreported,
        "lost hosts": killer.num_lost_hosts,
        "restarts": int(sum(history.history["worker_restarts"])),
        "logged restarts": sum(x.endswith("It is started again.") for x in logged),
        "named at the end": sum(map(is_kill, messages)),
        "other messages": [x for x in (*logged, *messages) if not is_kill(x)],
        "digests": digests,
    }


def is_kill(text):
    """Returns whether a message names a killed worker."""
    return any(report in text for report in REPORTS)


def problems_of(result, expected):
    """Returns the list of texts that describe what is wrong with a training."""
    problems = [
        f"the {part} differ"
        for part, digest in expected.items()
        if result["digests"][part] != digest
    ]
    most = result["kills"] if not result["lost hosts"] else math.inf
    reported = result["restarts"] + result["named at the end"]
    is_reported = result["kills"] - result["unreported"] <= reported <= most
    if not is_reported or result["restarts"] != result["logged restarts"]:
        counts = {key: x for key, x in result.items() if key != "digests"}
        problems.append(f"the reports differ from the kills: {counts}")
    if remaining := wait_for_end(workers_and_guards):
        problems.append(f"processes remain: {remaining}")
    return problems


class Trials:
    """Trains again and again, until enough workers were killed.

    Args:
        seed: Int for the moments of the kills.
        names: List of names of trainings.
    """

    def __init__(self, seed, names):
        self.results, self.problems = {}, {}
        self._rng = random.Random(seed)
        self._names = names
        self._expected = {}

    def run(self, kind, kills, workers, make_killer):
        """Kills workers of one kind.

        Args:
            kind: Name of the kind of workers.
            kills: Int, the number of kills.
            workers: Argument of `fit`.
            make_killer: Function that returns a `Killer` for a generator and a number.
        """
        totals, moments = collections.Counter(), collections.Counter()
        for name in itertools.cycle(self._names):
            if totals["kills"] >= kills:
                break
            faulthandler.dump_traceback_later(TIME_LIMIT, exit=True)
            killer = make_killer(self._rng, kills - totals["kills"])
            expected = self._digests_without_kills(name)
            result = train(name, workers, killer)
            problems = problems_of(result, expected)
            faulthandler.cancel_dump_traceback_later()
            keys = "kills", "unreported", "lost hosts", "restarts", "named at the end"
            totals.update({key: result[key] for key in keys})
            totals.update(trainings=1, equal=int(result["digests"] == expected))
            moments.update(killer.moments)
            print(f"{kind}, {name}: {result['kills']} kills", *problems, flush=True)
            if problems:
                self.problems[f"{kind} {totals['trainings']}, {name}"] = problems
        self.results[kind] = {**totals, "moments": dict(sorted(moments.items()))}

    def _digests_without_kills(self, name):
        if name not in self._expected:
            _, _, self._expected[name] = worker_trainings.train(
                name, UPDATES, without=["worker_restarts"], on_env_error="restart"
            )
        return self._expected[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=("local", "ray"), default=[])
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE.json")
    options = parser.parse_args()
    adopt_orphans()
    trials, kinds = Trials(options.seed, options.only), options.kinds or ["local", "ray"]
    kills = -(-options.kills // len(kinds))
    if "local" in kinds:
        trials.run("local", kills, WORKERS, LocalKiller)
    if "ray" in kinds:
        with ray_cluster.start([0, WORKERS, WORKERS]) as cluster:
            workers = tfr.collect.RayWorkers(WORKERS, address=cluster.address)
            make_killer = lambda *args: RayKiller(cluster, *args)  # noqa: E731
            trials.run("ray", kills, workers, make_killer)
        everything = lambda: descendants(os.getpid(), living_processes())  # noqa: E731
        if remaining := wait_for_end(everything):
            trials.problems["end of the cluster"] = remaining
    result = {**trials.results, "problems": trials.problems}
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(trials.problems))


if __name__ == "__main__":
    sys.exit(main())
