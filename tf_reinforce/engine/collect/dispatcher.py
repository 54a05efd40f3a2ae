"""Decides which worker plays which episodes of a collection."""

import math


class EpisodeDispatcher:
    """Hands out the numbers of the episodes of one collection to workers.

    For given weights and a given seed, an episode depends only on its number. Therefore
    the result does not depend on which worker plays which episode. If few episodes are
    left, they are handed out one at a time, so that no worker waits for another one.

    Args:
        sizes: List of positive ints, the number of environments of each worker.
        episodes: Int, the number of episodes to collect, or `None`.
        steps: Int, the number of steps to collect, if `episodes` is `None`. The
            collection then needs the first episodes that have this many steps together.
        expected: Dict from numbers of episodes to their lengths in an earlier collection
            with the same random numbers. The longest episodes start first.
        mean_length: Float, the mean length of earlier episodes, or `None`.
    """

    def __init__(self, sizes, episodes, steps, expected, mean_length):
        self._sizes = sizes
        self._episodes = episodes
        self._steps = steps
        self._mean_length = mean_length
        self._running = [set() for _ in sizes]
        self._lengths = {}
        self._lost = []  # numbers of episodes whose worker has died
        self._next = 0
        self._order = None
        if episodes is not None:
            numbers = range(episodes)
            self._order = sorted(numbers, key=lambda n: -expected.get(n, 0))

    def take(self, worker, waiting=1):
        """Returns the numbers of the episodes that a worker plays next, a list.

        Args:
            worker: Int, the index of the worker.
            waiting: Int, the number of workers, this one included, that have not yet
                received an episode in this collection.
        """
        left, size = self._num_left(), self._sizes[worker]
        ahead = min(size, left // (2 * len(self._sizes)))
        count = size + ahead - len(self._running[worker])
        numbers = [self._take_one() for _ in range(min(count, math.ceil(left / waiting)))]
        self._running[worker].update(numbers)
        return numbers

    def finish(self, worker, numbers, lengths):
        """Notes that a worker has played episodes of the given lengths."""
        if not self._running[worker].issuperset(numbers):
            running = sorted(self._running[worker])
            raise RuntimeError(
                f"Worker {worker} returned the episodes {numbers}, but was playing "
                f"{running}. This is an error of tf_reinforce; please report it."
            )
        self._running[worker].difference_update(numbers)
        self._lengths.update(zip(numbers, lengths))

    def lose(self, worker):
        """Notes that a worker has died; returns the numbers of its episodes."""
        lost = sorted(self._running[worker])
        self.put_back(worker, lost)
        return lost

    def put_back(self, worker, numbers):
        """Notes that a worker has not received episodes that `take` returned for it."""
        self._running[worker].difference_update(numbers)
        self._lost = sorted([*self._lost, *numbers])

    def running(self, worker=None):
        """Returns the number of episodes that a worker, or all workers, play now."""
        if worker is not None:
            return len(self._running[worker])
        return sum(map(len, self._running))

    @property
    def complete(self):
        """Returns whether no episode runs, and no further episode is needed."""
        return not self.running() and self._num_left() <= 0

    def _take_one(self):
        if self._lost:  # the other episodes wait for none longer than for these
            return self._lost.pop(0)
        number, self._next = self._next, self._next + 1
        return number if self._order is None else self._order[number]

    def _num_left(self):
        """Returns the number of episodes to hand out, an estimate if steps are wanted."""
        if self._order is not None:
            return len(self._lost) + len(self._order) - self._next
        steps, mean_length = sum(self._lengths.values()), self._mean_length
        if self._lengths:
            mean_length = steps / len(self._lengths)
        if mean_length is None:  # one episode in each environment, to learn the length
            return len(self._lost) + max(0, sum(self._sizes) - self._next)
        missing = self._steps - steps - self.running() * mean_length
        return max(len(self._lost), math.ceil(missing / mean_length))
