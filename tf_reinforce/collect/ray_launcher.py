"""Starts workers on the machines of a Ray cluster, and exchanges messages with them."""

import collections
import contextlib
import logging
import os
import sys
import time

import numpy as np

from tf_reinforce.collect import local_worker
from tf_reinforce.collect import ray_connection
from tf_reinforce.collect import ray_host
from tf_reinforce.collect import ray_placement

log = logging.getLogger("tf_reinforce")

_START_SECONDS = 300.0  # without any answer, while actors wait for a machine
_PLACE_SECONDS = 2.0  # in which Ray notices that cores have become free
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
        self._is_open = False
        self._hosts = {}  # from numbers of workers to the `RayHost` that holds them
        self._unplaced = {}  # from numbers of workers to workers without a host
        self._place_deadline = 0.0

    def open(self):
        """Connects to the cluster."""
        ray_connection.connection.open(self.ray, self.options.address)
        self._is_open = True
        self.silence = 0.0
        if lack := self.describe_lack_of_cores():
            log.warning("%s The workers wait for further machines.", lack)

    def start(self, number, size, first_index):
        """Returns a new `RayWorker`, which does not have its environments yet.

        A worker whose process is lost is started in the actor of that process.
        """
        one = RayWorker(self, number, size, first_index)
        host = self._hosts.get(number)
        if host is not None and host.lost is None:
            host.add(one)
        else:
            self._unplaced[number] = one
            self._place_deadline = time.monotonic() + _PLACE_SECONDS
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
        hosts = dict.fromkeys(one.host for one in workers if one.host is not None)
        for host in hosts:
            host.request([one.number for one in workers if one.host is host])
        replies = {host.reply: host for host in hosts if host.reply is not None}
        if not any(one.has_message for one in workers):
            self._wait_for_any(replies, seconds)
        if replies:
            arrived, _ = self.ray.wait([*replies], num_returns=len(replies), timeout=0)
            for reply in arrived:
                replies[reply].take_reply()
        return [one for one in workers if one.has_message]

    def close(self):
        """Ends the connection, if this program has no other use for it."""
        self._hosts, self._unplaced = {}, {}
        if self._is_open:
            self._is_open = False
            ray_connection.connection.close(self.ray)

    def describe_lack_of_cores(self):
        """Returns a text if the cluster has too few cores, else `None`."""
        count, each = self.options.num_workers, self.options.num_cpus_per_worker
        cores = self.ray.cluster_resources().get("CPU", 0)
        if count * each <= cores:
            return None
        return (
            f"The Ray cluster has {cores:g} cores, and {count} workers with "
            f"num_cpus_per_worker={each:g} need {count * each:g}. Use fewer workers, or "
            "pass a smaller `num_cpus_per_worker`."
        )

    def _wait_for_any(self, replies, seconds):
        """Waits for one of the replies of actors, at most for some seconds."""
        start, arrived = time.monotonic(), []
        if replies:
            arrived, _ = self.ray.wait([*replies], timeout=seconds)
        else:
            time.sleep(seconds)
        self.silence = 0.0 if arrived else self.silence + time.monotonic() - start

    def _place(self):
        """Starts actors for the workers that have none.

        A worker for which no machine has free cores receives an actor of its own, which
        waits for a machine.
        """
        each = self.options.num_cpus_per_worker
        numbers = collections.deque(self._unplaced)
        placed = ray_placement.place(len(numbers), each, self._free_cores())
        missing = len(numbers) - sum(placed.values())
        groups = [*placed.items()]
        if time.monotonic() > self._place_deadline:
            groups += [(None, 1)] * missing
        elif missing:
            return
        for node, count in groups:
            host = RayHost(self, self._new_actor(node, count))
            for _ in range(count):
                number = numbers.popleft()
                host.add(self._unplaced.pop(number))
                self._hosts[number] = host

    def _free_cores(self):
        """Returns a dict from the names of machines to their free cores."""
        from ray._private import state

        every = state.total_resources_per_node()
        if self.options.num_cpus_per_worker:
            every = state.available_resources_per_node()
        return {node: resources.get("CPU", 0) for node, resources in every.items()}

    def _new_actor(self, node, count):
        """Returns a new actor for some workers on a machine, or on any machine."""
        from ray.util import scheduling_strategies

        strategy, each = "SPREAD", self.options.num_cpus_per_worker
        if node is not None:
            affinity = scheduling_strategies.NodeAffinitySchedulingStrategy
            strategy = affinity(node, soft=True)  # another machine if it is lost
        actor_class = self.ray.remote(ray_host.WorkerHost).options(
            max_concurrency=4,  # `ping`, `send` and `close` run beside `exchange`
            num_cpus=ray_placement.reservation(count, each),
            runtime_env={"env_vars": _actor_environ(each)},
            scheduling_strategy=strategy,
        )
        other = self.options.allow_other_versions
        own = None if other else ray_host.own_versions(sys.path)
        return actor_class.remote(self.step_timeout, sys.path, own)


class RayHost:
    """An actor of a machine, as the process of the launcher sees it.

    Args:
        launcher: `RayLauncher`.
        actor: Handle of an actor of the class `ray_host.WorkerHost`.
    """

    def __init__(self, launcher, actor):
        self.reply = None  # the object of Ray that `exchange` will return
        self.lost = None  # text if the actor does not answer
        self.has_started = False
        self._launcher = launcher
        self._actor = actor
        self._workers = {}  # by number
        self._orders = []  # for the actor, with their messages
        self._ping = actor.ping.remote()
        self._pinged = time.monotonic()
        self._closing = None  # the object of Ray that `close` will return
        self._problems = None  # what `close` returned
        self._is_killed = False

    def add(self, one):
        """Starts the process of a worker."""
        self._workers[one.number] = one
        one.host = self
        self._orders.append((("start", one.number, one.size, one.first_index), None))
        for message in one.take_outbox():
            self.send(one.number, message)

    def send(self, number, message):
        """Sends a message to a worker, at the latest when the launcher waits."""
        self._orders.append((("send", number), message))

    def request(self, busy):
        """Asks the actor for the next messages, unless they are already expected.

        A worker receives a message only after all of its messages have been read, and
        therefore after the actor has received earlier messages for it: their order
        cannot change.

        Args:
            busy: List of the numbers of workers that must send a message.
        """
        if self.lost or any(one.inbox for one in self._workers.values()):
            return
        if self.reply is None:
            self.reply = self._actor.exchange.remote(busy, *self._take_orders())
        elif self._orders:
            self._actor.send.remote(*self._take_orders())

    def _take_orders(self):
        """Returns the orders and their messages, each message once."""
        orders, messages = [], {}
        for order, message in self._orders:
            if message is not None:
                index, _ = messages.setdefault(id(message), (len(messages), message))
                order = (*order, index)
            orders.append(order)
        self._orders = []
        return orders, *(message for _, message in messages.values())

    def take_reply(self):
        """Reads the answer of the actor, which has arrived."""
        reply, self.reply = self.reply, None
        try:
            events = self._launcher.ray.get(reply)
        except self._launcher.ray.exceptions.RayError as error:
            self.lost = ray_connection.describe_error(error)
            return
        self.has_started = True
        for number, content in events:
            self._workers[number].note(content)

    def check(self):
        """Notes that the actor is lost if it does not answer."""
        now, ray = time.monotonic(), self._launcher.ray
        limit = self._launcher.options.worker_health_probe_timeout_s
        if self._ping is None:
            if now - self._pinged > limit / 4:
                self._ping, self._pinged = self._actor.ping.remote(), now
        elif ray.wait([self._ping], timeout=0)[0]:
            self._take_ping()
        elif self.has_started and now - self._pinged > limit:
            self.kill()
            self.lost = (
                "is lost: its actor did not answer within "
                f"worker_health_probe_timeout_s={limit:g} s"
            )

    def _take_ping(self):
        ping, self._ping = self._ping, None
        with contextlib.suppress(self._launcher.ray.exceptions.RayError):
            self._launcher.ray.get(ping)  # `take_reply` reports the error
            self.has_started = True
            self._launcher.silence = 0.0

    def close(self, seconds, interrupted):
        """Asks the actor to end all of its processes."""
        if self._closing is not None or self._is_killed or self.lost is not None:
            return
        if self._launcher.ray.is_initialized():
            self.check()
            if self.has_started:  # else it still waits for a machine
                self._closing = self._actor.close.remote(seconds, interrupted)

    def join(self, deadline):
        """Waits until the processes have ended, and kills the actor at the deadline.

        Returns:
            Dict from numbers of workers to lists of texts, one for each problem.
        """
        ray = self._launcher.ray
        if self._problems is None:
            self._problems = {}
            if self._closing is not None and ray.is_initialized():
                seconds = max(0.0, deadline + 2.0 - time.monotonic())
                try:
                    self._problems = ray.get(self._closing, timeout=seconds)
                except ray.exceptions.RayError as error:  # or it did not end in time
                    text = ray_connection.describe_error(error)
                    for number in self._workers:
                        log.warning("Worker %d %s", number, text)
        self.kill()
        return self._problems

    def kill(self):
        """Kills the actor, whose guard then ends the processes."""
        if self._is_killed:
            return
        self._is_killed = True
        if self._launcher.ray.is_initialized():  # else Ray would connect again
            with contextlib.suppress(Exception):  # the cluster may be lost
                self._launcher.ray.kill(self._actor)


class RayWorker(local_worker.Worker):
    """A worker process that an actor of Ray holds.

    Args:
        launcher: `RayLauncher`.
        number, size, first_index: As for `local_worker.Worker`.
    """

    def __init__(self, launcher, number, size, first_index):
        super().__init__(number, size, first_index)
        self.host = None  # the `RayHost`, as soon as the worker is placed
        self._launcher = launcher
        self._outbox = []  # messages for the process, until it is placed
        self.inbox = collections.deque()  # messages of the process
        self._lost = None  # text if the process is lost

    @property
    def has_message(self):
        is_host_lost = self.host is not None and self.host.lost is not None
        return bool(self.inbox) or self._lost is not None or is_host_lost

    def take_outbox(self):
        """Returns the messages for the process that were not sent yet."""
        messages, self._outbox = self._outbox, []
        return messages

    def note(self, content):
        """Keeps a message, or the text that the process is lost."""
        if isinstance(content, str):
            self._lost = content
        else:
            self.inbox.append(content)

    def send(self, message):
        """Sends a message; raises `WorkerLost` or `HostLost`."""
        self._expect_alive()
        if self.host is None:
            self._outbox.append(message)
        else:
            self.host.send(self.number, message)

    def receive(self):
        """Returns the header and the arrays of the next message; raises `WorkerLost`."""
        if not self.inbox:
            self._expect_alive()
        return self.inbox.popleft()

    def check_progress(self):
        """Raises `HostLost` if the actor does not answer."""
        if self.host is not None:
            self.host.check()
            self._expect_alive()
        if self.host is None or not self.host.has_started:
            self._expect_start()

    def _expect_alive(self):
        if self.host is not None and self.host.lost is not None:
            raise local_worker.HostLost(self.host.lost)
        if self._lost is not None:
            raise local_worker.WorkerLost(self._lost)

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
        """Asks the process to close its environments and to end."""
        if self.host is not None:
            self.host.close(local_worker.CLOSE_TIMEOUT, interrupted=False)

    def terminate(self):
        """Asks the process to end in the middle of an episode."""
        if self.host is not None:
            self.host.close(local_worker.END_TIMEOUT, interrupted=True)

    def join(self, deadline):
        """Waits until the process has ended, and kills the actor at the deadline.

        Returns:
            List of texts, one for each problem, as for `local_worker.LocalWorker`.
        """
        problems = {} if self.host is None else self.host.join(deadline)
        return problems.get(self.number, [])

    def kill(self):
        """Kills the actor."""
        if self.host is not None:
            self.host.kill()


def _actor_environ(cores):
    """Returns environment variables of the processes of actors."""
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, int(cores))))
    return {
        # Otherwise Ray would kill the guard together with the actor.
        "RAY_kill_child_processes_on_worker_exit": "0",
        # Ray would set it to the cores of the actor, which are those of many workers.
        "OMP_NUM_THREADS": threads,
    }
