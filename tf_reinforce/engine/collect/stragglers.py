"""Reports workers that make the other workers wait at the end of a collection."""

import logging
import statistics
import time

log = logging.getLogger("tf_reinforce")

IDLE_SHARE = 0.5  # of the workers' time, above which a collection is reported
MIN_SECONDS = 1.0  # of a collection that is reported


class IdleTimes:
    """Measures how long the workers of one collection have no episode to play.

    Args:
        num_workers: Positive int.
    """

    def __init__(self, num_workers):
        self._num_workers = num_workers
        self._start = time.monotonic()
        self._idle_since = {}  # from numbers of workers to times
        self._last = None  # the last worker that finished, and its episodes
        self._steps, self._seconds = {}, {}  # of each worker

    def finish(self, worker, numbers, lengths, seconds):
        """Notes that a worker has played episodes.

        Args:
            worker: Int, the number of the worker.
            numbers, lengths: Lists of ints, the numbers and lengths of the episodes.
            seconds: Float, the time that their resets and steps took.
        """
        self._last = worker, numbers, lengths
        self._steps[worker] = self._steps.get(worker, 0) + sum(lengths)
        self._seconds[worker] = self._seconds.get(worker, 0.0) + seconds

    def set_idle(self, workers):
        """Notes the numbers of all workers that have no episode to play."""
        now, before = time.monotonic(), self._idle_since
        self._idle_since = {worker: before.get(worker, now) for worker in workers}

    def describe(self):
        """Returns a text about the end of the collection, or `None` if all is well."""
        end = time.monotonic()
        total = end - self._start
        idle = sum(end - since for since in self._idle_since.values())
        share = idle / (self._num_workers * total)
        if total < MIN_SECONDS or share <= IDLE_SHARE:
            return None
        worker, numbers, lengths = self._last
        text = (
            f"In a collection of {total:.1f} s, the workers had no episode to play for "
            f"{share:.0%} of their time. The last to finish was worker {worker}, with "
            f"episode {numbers[-1]} of {lengths[-1]:,} steps. Use more episodes for each "
            "update, or fewer workers."
        )
        seconds = self._seconds
        rates = {one: x / max(seconds[one], 1e-9) for one, x in self._steps.items()}
        median = statistics.median(rates.values())
        if rates[worker] < median / 2:
            text += (
                f" Environments of worker {worker} make {rates[worker]:,.0f} steps/s; "
                f"the median of the workers is {median:,.0f} steps/s."
            )
        return text
