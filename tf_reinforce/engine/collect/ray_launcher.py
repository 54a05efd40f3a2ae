"""Starts workers on the machines of a Ray cluster, and exchanges messages with them."""

import collections
import itertools
import logging
import os
import sys
import time

import numpy as np

from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import ray_connection
from tf_reinforce.engine.collect import ray_handle
from tf_reinforce.engine.collect import ray_host
from tf_reinforce.engine.collect import ray_placement

log = logging.getLogger("tf_reinforce")

_START_SECONDS = 300.0  # without any answer, while actors wait for a machine
_PLACE_SECONDS = 2.0  # in which Ray notices that cores have become free
_GROUP_SECONDS = 20.0  # after which an actor that has not started is divided
_DEAD_SECONDS = 15.0  # in which Ray notices that a machine is lost
_POLL_SECONDS = 0.1  # between two looks at the free cores


class RayLauncher:
    """Starts workers in actors of a Ray cluster, and waits for their messages.

    One actor holds all workers that are placed on a machine at the same time. The
    launcher has the methods of `local_worker.LocalLauncher`.

    Args:
        options: `config.RayWorkers`.
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
    """

    def __init__(self, options, step_timeout):
        self.ray = ray_connection.import_ray()
        self.options = options
        self.step_timeout = step_timeout
        self.restarts_lost_hosts = options.restart_failed_workers
        self.silence = 0.0  # seconds of `wait` since the last answer of any actor
        self._session = None  # of the connection, while the launcher is open
        self._actors = []  # `ray_handle.ActorHandle`s
        self._actor_of = {}  # from numbers of workers to the actors that hold them
        self._unplaced = {}  # from numbers of workers to workers without an actor
        self._place_deadline = 0.0
        self._keys = itertools.count()

    @property
    def is_connected(self):
        """Whether the connection that `open` has made still exists."""
        return ray_connection.session_of(self.ray) == self._session is not None

    def open(self):
        """Connects to the cluster."""
        address = self.options.address
        self._session = ray_connection.connection.open(self.ray, address)
        self.silence = 0.0
        accepts_all = self.options.allow_other_versions
        self._versions = None if accepts_all else ray_host.own_versions(sys.path)
        if lack := self.describe_lack_of_cores():
            log.warning("%s The others wait for further machines.", lack)

    def start(self, number, size, first_index):
        """Returns a new `RayWorker`, which does not have its environments yet.

        A worker whose process is lost is started in the actor of that process.
        """
        one = RayWorker(self, next(self._keys), number, size, first_index)
        actor = self._actor_of.get(number)
        if actor is not None and actor.lost is None:
            actor.add(one)
        else:
            self._place_later(one)
        return one

    def share(self, message):
        """Returns a message as an object of Ray, which each machine copies once."""
        return self.ray.put(np.frombuffer(message, np.uint8))

    def wait(self, workers, seconds):
        """Waits until at least one worker has sent a message, or is lost.

        Returns:
            List of the workers that have a message or are lost; empty after `seconds`.
        """
        if self._unplaced:
            self._place()
            seconds = min(seconds, _POLL_SECONDS) if self._unplaced else seconds
        actors = dict.fromkeys(one.actor for one in workers if one.actor is not None)
        for actor in actors:
            actor.request([one.key for one in workers if one.actor is actor])
        replies = {actor.reply: actor for actor in actors if actor.reply is not None}
        if not any(one.has_message for one in workers):
            self._wait_for_any(replies, seconds)
        if replies:
            arrived, _ = self.ray.wait([*replies], num_returns=len(replies), timeout=0)
            for reply in arrived:
                replies[reply].take_reply()
        self._divide(actors)
        return [one for one in workers if one.has_message]

    def close(self):
        """Ends the connection, if this program has no other use for it."""
        for actor in self._actors:
            actor.kill()
        self._actors, self._actor_of, self._unplaced = [], {}, {}
        if self._session is not None:
            ray_connection.connection.close(self.ray, self._session)
            self._session = None

    def describe_lack_of_cores(self):
        """Returns a text if the cluster has too few cores, else `None`."""
        count, each = self.options.num_workers, self.options.num_cpus_per_worker
        cores = self._cores(is_free=False)
        placed = sum(ray_placement.place(count, each, cores).values())
        if placed == count:
            return None
        return (
            f"The Ray cluster has {sum(cores.values()):g} cores, and room for {placed} "
            f"of {count} workers with num_cpus_per_worker={each:g}. Use fewer workers, "
            "or pass a smaller `num_cpus_per_worker`."
        )

    def _wait_for_any(self, replies, seconds):
        """Waits for one of the replies of actors, at most for some seconds."""
        start, arrived = time.monotonic(), []
        if replies:
            arrived, _ = self.ray.wait([*replies], timeout=seconds)
        else:
            time.sleep(seconds)
        self.silence = 0.0 if arrived else self.silence + time.monotonic() - start

    def _place_later(self, one):
        self._unplaced[one.number] = one
        self._place_deadline = time.monotonic() + _PLACE_SECONDS

    def _place(self):
        """Starts actors for the workers that have none.

        A worker for which no machine has free cores receives an actor of its own, which
        waits for a machine.
        """
        self._actors = [one for one in self._actors if not one.is_over(_DEAD_SECONDS)]
        numbers = collections.deque(self._unplaced)
        each, free = self.options.num_cpus_per_worker, self._cores(is_free=True)
        placed = ray_placement.place(len(numbers), each, free)
        missing = len(numbers) - sum(placed.values())
        groups = [*placed.items()]
        if time.monotonic() > self._place_deadline:
            groups += [(None, 1)] * missing
        elif missing:
            return
        for node, count in groups:
            actor = ray_handle.ActorHandle(self, self._new_actor(node, count), node)
            self._actors.append(actor)
            for number in [numbers.popleft() for _ in range(count)]:
                actor.add(self._unplaced.pop(number))
                self._actor_of[number] = actor

    def _divide(self, actors):
        """Places workers again whose actor has found no machine with room for them all.

        Meanwhile, another program may have reserved cores of the machine.
        """
        for actor in actors:
            if actor.num_workers > 1 and actor.is_unstarted_after(_GROUP_SECONDS):
                for one in actor.release():
                    del self._actor_of[one.number]
                    self._place_later(one)

    def _cores(self, is_free):
        """Returns a dict from the names of machines to their cores, free ones or all.

        A machine on which an actor was lost may be dead; it has no free cores for a
        while.
        """
        from ray._private import state

        if is_free and self.options.num_cpus_per_worker:
            every = state.available_resources_per_node()
        else:
            every = state.total_resources_per_node()
        if is_free:
            own = self.ray.get_runtime_context().get_node_id()  # not dead
            suspects = {
                actor.node for actor in self._actors if actor.was_lost_in(_DEAD_SECONDS)
            }
            for node in suspects - {own}:
                every.pop(node, None)
        return {node: resources.get("CPU", 0) for node, resources in every.items()}

    def _new_actor(self, node, count):
        """Returns a new actor for some workers on a machine, or on any machine."""
        from ray.util import scheduling_strategies

        strategy, each = "SPREAD", self.options.num_cpus_per_worker
        if node is not None:
            affinity = scheduling_strategies.NodeAffinitySchedulingStrategy
            strategy = affinity(node, soft=True)  # another machine if it has left
        actor_class = self.ray.remote(ray_host.WorkerHost).options(
            max_concurrency=4,  # `ping`, `send` and `close` run beside `exchange`
            num_cpus=ray_placement.reservation(count, each),
            runtime_env={"env_vars": _actor_environ(each)},
            scheduling_strategy=strategy,
        )
        return actor_class.remote(self.step_timeout, sys.path, self._versions)


class RayWorker(local_worker.Worker):
    """A worker process that an actor of Ray holds.

    Args:
        launcher: `RayLauncher`.
        key: Int that no other worker of the launcher has, nor a predecessor of this one.
        number, size, first_index: As for `local_worker.Worker`.
    """

    def __init__(self, launcher, key, number, size, first_index):
        super().__init__(number, size, first_index)
        self.key = key
        self.actor = None  # the `ActorHandle`, as soon as the worker is placed
        self.inbox = collections.deque()  # messages of the process
        self.first_messages = []  # for the process, sent before the worker was placed
        self._launcher = launcher
        self._lost = None  # the `WorkerLost` if the process is lost
        self._is_reported = False  # whether `WorkerLost` was raised

    @property
    def waits_for_machine(self):
        is_placed = self.actor is None or self.actor.node is not None
        return not is_placed and not self.actor.has_started

    @property
    def has_message(self):
        """Whether `receive` returns a message or raises an error."""
        is_actor_lost = self.actor is not None and self.actor.lost is not None
        return bool(self.inbox) or self._lost is not None or is_actor_lost

    def note(self, content):
        """Keeps a message, or the error of a process that is lost."""
        if isinstance(content, local_worker.WorkerLost):
            self._lost = content
        else:
            self.inbox.append(content)

    def send(self, message):
        """Sends a message; raises `WorkerLost` or `HostLost`."""
        self._expect_alive()
        if self.actor is None:
            self.first_messages.append(message)
        else:
            self.actor.send(self, message)

    def receive(self):
        """Returns the header and the arrays of the next message; raises `WorkerLost`."""
        if not self.inbox:
            self._expect_alive()
        return self.inbox.popleft()

    def check_progress(self):
        """Raises `HostLost` if the actor does not answer."""
        if self.actor is not None:
            self.actor.probe()
            self._expect_alive()
        if self.actor is None or not self.actor.has_started:
            self._expect_start()

    def _expect_alive(self):
        if self.actor is not None and self.actor.lost is not None:
            raise local_worker.HostLost(self.actor.lost)
        if self._lost is not None:
            self._is_reported = True
            raise self._lost

    def _expect_start(self):
        if self._launcher.silence > _START_SECONDS:
            lack = self._launcher.describe_lack_of_cores() or (
                "Look at `ray status`: other actors may have reserved the cores. "
                "Workers with num_cpus_per_worker=0 reserve none."
            )
            raise TimeoutError(
                f"Worker {self.number} has not started within {_START_SECONDS:g} s, "
                f"and no other worker has sent a message. {lack}"
            )

    def stop(self):
        """Asks the actor to close all of its environments, and to end its processes."""
        if self.actor is not None:
            self.actor.close(local_worker.CLOSE_TIMEOUT, interrupted=False)

    def terminate(self):
        """Asks the actor to end all of its processes in the middle of an episode."""
        if self.actor is not None:
            self.actor.close(local_worker.END_TIMEOUT, interrupted=True)

    def join(self, deadline):
        """Waits until the actor has ended its processes, and kills it.

        Args:
            deadline: Float, a time of `time.monotonic`, after which it does not wait.

        Returns:
            List of texts, one for each problem, as for `local_worker.LocalWorker`.
        """
        problems = {} if self.actor is None else self.actor.join(deadline)
        if self._lost is not None and not self._is_reported:
            return [f"worker {self.number}: the process {self._lost}"]
        return problems.get(self.key, [])

    def kill(self):
        """Kills the actor, and with it all of its workers."""
        if self.actor is not None:
            self.actor.kill()


def _actor_environ(cores):
    """Returns environment variables of the processes of actors."""
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, int(cores))))
    return {
        # Otherwise Ray would kill the guard together with the actor.
        "RAY_kill_child_processes_on_worker_exit": "0",
        # Ray would set it to the cores of the actor, which are those of many workers.
        "OMP_NUM_THREADS": threads,
    }
