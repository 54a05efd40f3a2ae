"""Calls an actor that holds the workers of a machine of a Ray cluster."""

import contextlib
import logging
import time

from tf_reinforce.engine.collect import ray_connection

log = logging.getLogger("tf_reinforce")

_PING_SECONDS = 5.0
_CALL_SECONDS = 300.0  # in which a machine receives the weights, so that a call begins


class ActorHandle:
    """Calls a `ray_host.WorkerHost` for the workers that it holds.

    One call of `exchange` is outstanding while a worker must send a message. Calls of
    `ping` find out whether the actor lives.

    Args:
        launcher: `ray_launcher.RayLauncher`.
        actor: Handle of Ray for the actor.
        node: String, the machine on which the actor was placed, or `None`.
    """

    def __init__(self, launcher, actor, node):
        self.node = node
        self.reply = None  # the object of Ray that `exchange` will return
        self.lost = None  # text if the actor does not answer
        self.has_started = False  # whether the actor itself has answered
        self._launcher = launcher
        self._actor = actor
        self._workers = {}  # by key
        self._orders = []  # for the actor, with their messages
        self._num_calls = 0  # of `exchange`
        self._since = self._created = time.monotonic()  # `_since`: the last call
        self._ping, self._ping_sent = actor.ping.remote(), self._created
        self._lost_at = None
        self._closing = None  # the object of Ray that `close` will return
        self._problems = None  # what `close` returned
        self._is_killed = False

    @property
    def num_workers(self):
        return len(self._workers)

    def is_unstarted_after(self, seconds):
        """Returns whether the actor has not started for some seconds."""
        if self.has_started or self.lost or time.monotonic() < self._created + seconds:
            return False
        self.probe()
        return not self.has_started

    def was_lost_in(self, seconds):
        """Returns whether the actor was lost in the last seconds."""
        return self._lost_at is not None and time.monotonic() < self._lost_at + seconds

    def is_over(self, seconds):
        """Returns whether the actor was killed, and was not lost in the last seconds."""
        return self._is_killed and not self.was_lost_in(seconds)

    def add(self, one):
        """Starts the process of a worker."""
        predecessors = [x.key for x in self._workers.values() if x.number == one.number]
        for key in predecessors:
            del self._workers[key]
        self._workers[one.key] = one
        one.actor = self
        order = "start", one.key, one.number, one.size, one.first_index
        self._orders.append((order, None))
        for message in one.first_messages:
            self.send(one, message)

    def release(self):
        """Kills an actor that has not started; returns the workers to place again."""
        self.kill()
        released, self._workers = [*self._workers.values()], {}
        for one in released:
            one.actor = None
        return released

    def send(self, one, message):
        """Sends a message to a worker, at the latest when the launcher waits."""
        self._orders.append((("send", one.key), message))

    def request(self, busy):
        """Asks the actor for the next messages, unless they are already expected.

        The next call waits until the pool has read all messages of the last one. A
        worker therefore has answered each message before the next one is sent to it.

        Args:
            busy: List of the keys of workers that must send a message.
        """
        if self.lost or any(one.inbox for one in self._workers.values()):
            return
        if self.reply is None:
            self._num_calls, self._since = self._num_calls + 1, time.monotonic()
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
            self._lose(ray_connection.describe_error(error))
            return
        self.has_started = True
        for key, content in events:
            if key in self._workers:
                self._workers[key].note(content)

    def probe(self):
        """Notes that the actor is lost if it does not answer."""
        now, ray = time.monotonic(), self._launcher.ray
        limit = self._launcher.options.worker_health_probe_timeout_s
        if self._ping is None:
            if now - self._ping_sent > min(_PING_SECONDS, limit / 4):
                self._ping, self._ping_sent = self._actor.ping.remote(), now
        elif ray.wait([self._ping], timeout=0)[0]:
            self._take_ping(now)
        elif self.has_started and now - self._ping_sent > limit:
            self._lose(
                "is lost: its actor did not answer within "
                f"worker_health_probe_timeout_s={limit:g} s"
            )

    def _take_ping(self, now):
        ping, self._ping = self._ping, None
        with contextlib.suppress(self._launcher.ray.exceptions.RayError):
            num_begun = self._launcher.ray.get(ping)  # `take_reply` reports the error
            self.has_started = True
            self._launcher.silence = 0.0
            if num_begun < self._num_calls and now - self._since > _CALL_SECONDS:
                self._lose(
                    "is lost: its machine has not received the environment, the "
                    f"program or the weights within {_CALL_SECONDS:g} s"
                )

    def _lose(self, text):
        self.lost, self._lost_at = text, time.monotonic()
        self.kill()  # it may live

    def close(self, seconds, interrupted):
        """Asks the actor to end all of its processes."""
        if self._closing is not None or self._is_killed:
            return
        if self._launcher.is_connected:
            self.probe()
            if self.has_started:  # else it still waits for a machine
                self._closing = self._actor.close.remote(seconds, interrupted)

    def join(self, deadline):
        """Waits until the processes have ended, and kills the actor.

        Returns:
            Dict from keys of workers to lists of texts, one for each problem.
        """
        ray = self._launcher.ray
        if self._problems is None:
            self._problems = {}
            if self._closing is not None and self._launcher.is_connected:
                seconds = max(0.0, deadline + 2.0 - time.monotonic())
                try:
                    self._problems = ray.get(self._closing, timeout=seconds)
                except ray.exceptions.RayError as error:  # or it did not end in time
                    text = ray_connection.describe_error(error)
                    for one in self._workers.values():
                        log.warning("Worker %d %s", one.number, text)
        self.kill()
        return self._problems

    def kill(self):
        """Kills the actor, whose guard then ends the processes."""
        if self._is_killed:
            return
        self._is_killed = True
        if self._launcher.is_connected:  # else Ray would connect again
            with contextlib.suppress(Exception):  # the cluster may be lost
                self._launcher.ray.kill(self._actor)
