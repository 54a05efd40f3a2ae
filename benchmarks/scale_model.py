"""Simulates the collection and the update of one batch with many workers.

The simulation hands out episodes with the package's own `EpisodeDispatcher`. All other
actions of the driver (the process that trains) and of the workers only take time, see
`Costs`. The simulation has no random numbers.
"""

import collections
import heapq
import itertools
from typing import NamedTuple

from tf_reinforce.engine.collect import worker_pool


class Costs(NamedTuple):
    """The seconds that driver, workers and network need for their actions."""

    collection: float  # the driver, for one collection
    prepare_byte: float  # the driver, for each byte of weights, once
    first_message: float  # the driver, for each worker: weights and first episodes
    weight_byte: float  # the driver, for each byte of weights that it sends
    record: float  # the driver, to receive an episode and to hand out the next one
    record_step: float  # the driver, for each step of a received episode
    record_byte: float  # the driver, for each byte of a received episode
    wait: float  # the driver, for each running worker, whenever it waits for messages
    update: float  # one update
    update_step: float  # the same, for each step
    start: float  # a worker, when it receives weights
    start_byte: float  # a worker, for each byte of weights
    episode: float  # a worker, for each episode: reset, and sending the record
    acting: float  # a worker, for each step, if the environment does not wait
    acting_after_wait: float  # the same, if the environment waits in each step
    latency: float = 0.0  # a message, from process to process
    network_byte: float = 0.0  # each byte, on the network connection of the driver


class Task(NamedTuple):
    """What is collected: environment, policy and episodes."""

    lengths: list  # the number of steps of each episode
    wait_seconds: float  # of one step of the environment, without using a core
    step_seconds: float  # of one step of the environment, on a core
    weight_bytes: int = 0
    step_bytes: int = 0  # of one step in the record of an episode
    copies_per_worker: float = 1.0  # of the weights, on the driver's network connection


class Result(NamedTuple):
    """The seconds of one update. All fields but `total` are parts that sum to `total`.

    Each worker goes through these parts one after another; the fields are means over the
    workers.
    """

    total: float
    start: float  # until the worker starts its first episode
    playing: float  # in episodes
    between: float  # waiting for the driver between two episodes
    slowest: float  # waiting for the workers whose episodes end last
    records: float  # from the end of the last episode until the batch is complete
    update: float


def simulate(costs, task, num_workers, *, cores=None):
    """Returns the `Result` of one update with `num_workers` workers.

    Each worker has one environment.

    Args:
        costs: `Costs`.
        task: `Task`.
        num_workers: Positive int.
        cores: Int, the number of cores that driver and workers share, or `None` if each
            process has a core of its own.
    """
    return _Simulation(costs, task, num_workers, cores).run()


def simulate_one_process(costs, task):
    """Returns the seconds of one update if one process plays all episodes."""
    steps, count = sum(task.lengths), len(task.lengths)
    playing = count * costs.episode + steps * (task.wait_seconds + _step_cpu(costs, task))
    merging = steps * costs.record_step
    return costs.collection + playing + merging + _update_seconds(costs, steps)


def _step_cpu(costs, task):
    acting = costs.acting_after_wait if task.wait_seconds else costs.acting
    return acting + task.step_seconds


def _update_seconds(costs, steps):
    return costs.update + costs.update_step * steps


class _Worker:
    def __init__(self):
        self.queue = collections.deque()  # numbers of episodes to play
        self.has_weights = False
        self.is_playing = False
        self.first_start = self.last_end = None
        self.playing = 0.0


class _Simulation:
    """A discrete-event simulation; each method is an event at the time `self.now`."""

    def __init__(self, costs, task, num_workers, cores):
        self.costs, self.task = costs, task
        self.step_cpu = _step_cpu(costs, task)
        self.dispatcher = worker_pool.EpisodeDispatcher(
            [1] * num_workers, len(task.lengths), None, None
        )
        self.workers = [_Worker() for _ in range(num_workers)]
        self.free = None if cores is None else [0.0] * cores  # when each core is free
        self.inbox = []  # messages that have arrived at the driver
        self.is_waiting = False  # whether the driver waits for a message
        self.num_received = self.num_running = 0  # episodes; workers with an episode
        self.connection_free = 0.0  # when the driver's network connection is free
        self.now, self.events, self.order = 0.0, [], itertools.count()

    def run(self):
        prepare = self.task.weight_bytes * self.costs.prepare_byte
        self.after_cpu(self.costs.collection + prepare, self.send_first, 0)
        while self.events:
            self.now, _, function, arguments = heapq.heappop(self.events)
            function(*arguments)
        merged = self.now
        update = _update_seconds(self.costs, sum(self.task.lengths))
        used = [worker for worker in self.workers if worker.has_weights]
        last_end, count = max(worker.last_end for worker in used), len(used)
        start = sum(worker.first_start for worker in used) / count
        playing = sum(worker.playing for worker in used) / count
        slowest = last_end - sum(worker.last_end for worker in used) / count
        between = last_end - start - playing - slowest
        return Result(
            merged + update, start, playing, between, slowest, merged - last_end, update
        )

    def at(self, time, function, *arguments):
        heapq.heappush(self.events, (time, next(self.order), function, arguments))

    def after_cpu(self, seconds, function, *arguments):
        """Calls a function after a process has had a core for some seconds."""
        start = self.now
        if self.free is not None:  # the process that asks first receives a core first
            start = max(start, heapq.heappop(self.free))
            heapq.heappush(self.free, start + seconds)
        self.at(start + seconds, function, *arguments)

    def transfer(self, size, function, *arguments):
        """Calls a function after a message has passed the driver's connection."""
        start = max(self.now, self.connection_free)
        self.connection_free = start + size * self.costs.network_byte
        self.at(self.connection_free + self.costs.latency, function, *arguments)

    # The driver.

    def send_first(self, index):
        """Sends weights and the first episodes to worker `index`, if there are any."""
        if index == len(self.workers):
            return self.wait()
        numbers = self.dispatcher.take(index, len(self.workers) - index)
        if not numbers:
            return self.at(self.now, self.send_first, index + 1)
        self.num_running += 1
        size = self.task.weight_bytes
        seconds = self.costs.first_message + size * self.costs.weight_byte
        self.after_cpu(seconds, self.sent_first, index, numbers, size)

    def sent_first(self, index, numbers, size):
        size *= self.task.copies_per_worker
        self.transfer(size, self.receive_numbers, index, numbers)
        self.send_first(index + 1)

    def wait(self):
        """Waits for messages; examines every worker that plays an episode."""
        if self.num_received == len(self.task.lengths):
            task, costs = self.task, self.costs
            return self.after_cpu(sum(task.lengths) * costs.record_step, lambda: None)
        if not self.inbox:
            self.is_waiting = True
            return
        messages, self.inbox = self.inbox, []
        self.after_cpu(self.num_running * self.costs.wait, self.handle, messages)

    def handle(self, messages):
        """Handles the first message, then the others."""
        if not messages:
            return self.wait()
        index, number = messages[0]
        size = self.task.lengths[number] * self.task.step_bytes
        seconds = self.costs.record + size * self.costs.record_byte
        self.after_cpu(seconds, self.handled, messages)

    def handled(self, messages):
        index, number = messages[0]
        self.num_received += 1
        self.dispatcher.finish(index, [number], [self.task.lengths[number]])
        numbers = self.dispatcher.take(index)
        if numbers:
            self.transfer(0, self.receive_numbers, index, numbers)
        self.num_running -= not self.dispatcher.running(index)
        self.handle(messages[1:])

    def receive_record(self, index, number):
        self.inbox.append((index, number))
        if self.is_waiting:
            self.is_waiting = False
            self.wait()

    # The workers.

    def receive_numbers(self, index, numbers):
        worker = self.workers[index]
        worker.queue.extend(numbers)
        if not worker.is_playing:
            worker.is_playing = True
            seconds = 0.0
            if not worker.has_weights:
                worker.has_weights = True
                size = self.task.weight_bytes
                seconds = self.costs.start + size * self.costs.start_byte
            self.after_cpu(seconds, self.start_episode, index)

    def start_episode(self, index):
        worker = self.workers[index]
        if not worker.queue:
            worker.is_playing = False
            return
        if worker.first_start is None:
            worker.first_start = self.now
        number = worker.queue.popleft()
        steps = self.task.lengths[number]
        if self.free is None:
            seconds = steps * (self.task.wait_seconds + self.step_cpu)
            self.at(self.now + seconds, self.end_steps, index, number, self.now)
        else:
            self.wait_in_step(index, number, self.now, steps)

    def wait_in_step(self, index, number, start, steps):
        if not steps:
            return self.end_steps(index, number, start)
        arguments = index, number, start, steps
        self.at(self.now + self.task.wait_seconds, self.use_core, *arguments)

    def use_core(self, index, number, start, steps):
        arguments = index, number, start, steps - 1
        self.after_cpu(self.step_cpu, self.wait_in_step, *arguments)

    def end_steps(self, index, number, start):
        arguments = index, number, start
        self.after_cpu(self.costs.episode, self.send_record, *arguments)

    def send_record(self, index, number, start):
        worker = self.workers[index]
        worker.playing += self.now - start
        worker.last_end = self.now
        size = self.task.lengths[number] * self.task.step_bytes
        self.transfer(size, self.receive_record, index, number)
        self.start_episode(index)
