"""Decides which episodes start, and when there are enough."""


class EpisodeInProgress:
    """One episode on its way: where it began and what it draws."""

    __slots__ = ("number", "begin", "slot", "generators", "length", "last", "ending")

    def __init__(self, number, begin, slot):
        self.number = number
        self.begin = begin
        self.slot = slot
        self.generators = []  # one for each part of an action
        self.length = 0

    def end(self, ending, row, observations):
        self.ending = ending
        self.length = row - self.begin
        self.last = [array[self.slot].copy() for array in observations]


class EpisodeScheduler:
    """Which episodes to start, and when there are enough of them."""

    def __init__(self, count, steps):
        self._count = count
        self._steps = steps
        self.runs = []

    def start(self, row, slot):
        self.runs.append(EpisodeInProgress(len(self.runs), row, slot))
        return self.runs[-1]

    def wants(self, row):
        """Whether another episode has to start before this row."""
        if self._steps is None:
            return len(self.runs) < self._count
        taken = sum(run.length or row - run.begin for run in self.runs)
        return taken < self._steps

    def enough(self):
        """The episodes to use, or `None` while they are not all there."""
        if self._steps is None:
            done = len(self.runs) == self._count and all(r.length for r in self.runs)
            return self.runs if done else None
        taken = 0
        for number, run in enumerate(self.runs):
            if not run.length:
                return None
            taken += run.length
            if taken >= self._steps:
                return self.runs[: number + 1]
        return None


class SharedScheduler:
    """The same where several processes take their episodes from one counter.

    Args:
        claim: Function without arguments: the number of the next episode that nobody
            plays yet, or `None` when there is no more.
        most: Int, how many to begin with, so that something is left for the others.
    """

    def __init__(self, claim, most):
        self._claim = claim
        self._most = most
        self._none_left = False
        self.runs = []

    def start(self, row, slot):
        self.runs.append(EpisodeInProgress(self._number, row, slot))
        return self.runs[-1]

    def wants(self, row):
        if row == 0 and len(self.runs) == self._most:
            return False
        self._number = self._claim()
        self._none_left = self._number is None
        return not self._none_left

    def enough(self):
        done = self._none_left and all(run.length for run in self.runs)
        return self.runs if done else None
