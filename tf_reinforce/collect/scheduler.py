"""Decides which episodes start, and when enough episodes have ended."""

# Replacement k of episode n has the random streams of episode n + k * _REPLACEMENT, so
# that the streams depend neither on other episodes nor on the number of environments.
_REPLACEMENT = 2**32


class EpisodeInProgress:
    """The state of an episode during its collection.

    Attributes:
        number: Int, the position of the episode among the episodes of its collection.
        replacements: Int, how many earlier episodes with this number were dropped.
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


class SharedScheduler:
    """Decides which episodes one worker starts; all workers share one counter.

    Args:
        claim_episode: Function without arguments that returns the number of the next
            episode that no process has claimed, or `None` if no episode is left.
        max_initial: Int, the largest number of episodes to start at step 0, so that
            one process does not claim the episodes of all processes.
    """

    def __init__(self, claim_episode, max_initial):
        self._claim_episode = claim_episode
        self._max_initial = max_initial
        self._none_left = False
        self.episodes = []

    def start_next(self, row, env_index):
        """Starts the next episode, or returns `None` if no episode is left to start.

        If no episode is left, or if this process has started its `max_initial` episodes
        at step 0, `start_next` starts no episode and returns `None`.
        """
        if row == 0 and len(self.episodes) == self._max_initial:
            return None
        number = self._claim_episode()
        self._none_left = number is None
        if self._none_left:
            return None
        self.episodes.append(EpisodeInProgress(number, row, env_index))
        return self.episodes[-1]

    def result(self):
        """Returns the episodes of this process, or `None` until the last has ended."""
        complete = self._none_left and all(x.length for x in self.episodes)
        return self.episodes if complete else None
