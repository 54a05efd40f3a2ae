"""Decides which episodes start, and when enough episodes have ended."""

import time

from tf_reinforce.engine.collect import results

_DELIVERY_SECONDS = 0.02  # finished episodes are sent together for this time

# Replacement k of episode n has the random streams of episode n + k * _REPLACEMENT, so
# that the streams depend neither on other episodes nor on the number of environments.
_REPLACEMENT = 2**32


class EpisodeInProgress:
    """The state of an episode during its collection.

    Attributes:
        number: Int, the position of the episode among the episodes of its collection.
        replacements: Int, how many earlier episodes with this number were dropped.
        faults: `results.Faults` of these dropped episodes.
        start_row: Int, the row of the step buffer at which the episode starts.
        env_index: Int, the index of the environment that runs the episode.
        generators: List of `np.random.Generator`, one for the noise of each part of an
            action.
        length: Int, the number of steps of the episode, or 0 until the episode has ended.
        last_observation: List of arrays, the last observation, which `finish` sets.
        end: `env_outputs.EpisodeEnd`, which `finish` sets.
    """

    __slots__ = (
        "number",
        "replacements",
        "faults",
        "start_row",
        "env_index",
        "generators",
        "length",
        "last_observation",
        "end",
    )

    def __init__(self, number, start_row, env_index):
        self.number = number
        self.replacements = 0
        self.faults = results.Faults()
        self.start_row = start_row
        self.env_index = env_index
        self.generators = []
        self.length = 0

    @property
    def stream_number(self):
        """Returns the number that selects the random streams of the episode."""
        return self.number + self.replacements * _REPLACEMENT

    def restart(self, row, env_index):
        """Starts the episode again, as a replacement after an invalid episode."""
        self.replacements += 1
        self.start_row = row
        self.env_index = env_index

    def finish(self, end, row, observations):
        """Stores the end of the episode, its length, and its last observation."""
        self.end = end
        self.length = row - self.start_row
        self.last_observation = [array[self.env_index].copy() for array in observations]


class EpisodeScheduler:
    """Decides which episodes to start, and when enough episodes have ended.

    Args:
        count: Int, the number of episodes to collect. If `steps` is an int, `count` is
            not used.
        steps: Int, the number of steps to collect, or `None`. If `steps` is an int, the
            result contains the episodes that started first: as few as are needed to have
            at least `steps` steps together.
    """

    waits = False  # an environment without an episode receives none later

    def __init__(self, count, steps):
        self._count = count
        self._steps = steps
        self.episodes = []
        # Running totals, so that no method reads all episodes again. With `steps` only.
        self.running = []  # episodes that had not ended when the last one started
        self._ended_steps = 0  # steps of the other episodes
        self._num_first = 0  # the number of first episodes of which each has ended
        self._first_steps = 0  # steps of these first episodes

    def start_next(self, row, env_index):
        """Starts the next episode; returns its `EpisodeInProgress`, or `None`.

        If no further episode is needed at step `row` of the collection, `start_next`
        starts no episode and returns `None`.
        """
        if not self._needs_episode(row):
            return None
        episode = EpisodeInProgress(len(self.episodes), row, env_index)
        self.episodes.append(episode)
        self.running.append(episode)
        return episode

    def _needs_episode(self, row):
        if self._steps is None:
            return len(self.episodes) < self._count
        self._ended_steps += sum(x.length for x in self.running)
        self.running = [x for x in self.running if not x.length]
        running_steps = sum(row - x.start_row for x in self.running)
        return self._ended_steps + running_steps < self._steps

    def result(self):
        """Returns the episodes of the collection, or `None` until all have ended."""
        if self._steps is None:
            has_all = len(self.episodes) == self._count
            complete = has_all and all(x.length for x in self.episodes)
            return self.episodes if complete else None
        for episode in self.episodes[self._num_first :]:
            if not episode.length or self._first_steps >= self._steps:
                break
            self._num_first += 1
            self._first_steps += episode.length
        has_enough = self._first_steps >= self._steps
        return self.episodes[: self._num_first] if has_enough else None


class QueueScheduler:
    """The scheduler of the episodes that one worker process plays.

    Args:
        queue: `worker.EpisodeQueue` with the numbers of the episodes to play.

    Attributes:
        deliver: Function that sends a list of finished episodes to the pool.
    """

    waits = True  # an environment without an episode may receive one later
    deliver = None

    def __init__(self, queue):
        self._queue = queue
        self._episodes = []  # running episodes, and finished ones that are not sent yet
        self._delivered = time.monotonic()

    def start_next(self, row, env_index):
        """Starts the next episode, or returns `None` if the pool has named none yet."""
        number = self._queue.take()
        if number is None:
            return None
        episode = EpisodeInProgress(number, row, env_index)
        self._episodes.append(episode)
        return episode

    def result(self):
        """Sends finished episodes; returns `[]` after the last one, else `None`.

        Finished episodes are sent together, unless an environment waits for an episode.
        """
        running = [episode for episode in self._episodes if not episode.length]
        now = time.monotonic()
        if not self._queue or now - self._delivered > _DELIVERY_SECONDS:
            finished = [episode for episode in self._episodes if episode.length]
            if finished:
                self.deliver(finished)
            self._episodes, self._delivered = running, now
        return None if self._episodes or self._queue else []
