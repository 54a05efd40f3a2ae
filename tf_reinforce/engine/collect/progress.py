"""Records what a process that plays episodes does at the moment.

A worker process writes its progress into memory that it shares with its pool. If the
worker dies or hangs, the pool reads there which environment, episode and step it was.
"""

WORDS = 3  # words of a `Progress` before those of the environments
STATE, ENV, ROW = range(WORDS)
IDLE, STARTING, RESET, STEP, CLOSING = range(5)  # values of the word `STATE`
_CALLS = {STARTING: "start", RESET: "reset", STEP: "step"}


class Progress:
    """What a process does at the moment, as 64-bit integers.

    Args:
        num_envs: Int, the number of environments of the process.
        buffer: Writable buffer of at least `size(num_envs)` bytes, or `None` for memory
            of the current process.

    Attributes:
        words: `memoryview` of integers: the state of the process, the index of the
            environment that is called, the number of the collection's current step, and,
            for each environment, the number of its episode plus one and the step of the
            collection at which the episode started. Zero as the number of an episode
            means that the environment has played no episode.
    """

    def __init__(self, num_envs, buffer=None):
        buffer = bytearray(size(num_envs)) if buffer is None else buffer
        self.words = memoryview(buffer).cast("q")

    def start_episode(self, env_index, number, row):
        """Records that an environment is reset for an episode at a step."""
        words, first = self.words, WORDS + 2 * env_index
        words[first], words[first + 1] = number + 1, row
        words[ENV], words[STATE] = env_index, RESET

    def snapshot(self):
        """Returns the present state as bytes; equal bytes mean that nothing happened."""
        return self.words[:WORDS].tobytes()

    def is_in_episode(self):
        """Returns whether an environment makes a reset or steps."""
        return self.words[STATE] in (RESET, STEP)

    def describe(self, first_index):
        """Returns a text that names the call, the environment, the episode and the step.

        Args:
            first_index: Int, the index of the first environment of the process.
        """
        state, env_index, row = self.words[:WORDS]
        if state == CLOSING:
            return f"close of environment {first_index + env_index}"
        if not self.is_in_episode():
            return _CALLS.get(state, "waiting for a request")
        number, start_row = self.words[WORDS + 2 * env_index : WORDS + 2 * env_index + 2]
        place = f"environment {first_index + env_index}, episode {number - 1}"
        step = f", step {row - start_row}" if state == STEP else ""
        return f"{_CALLS[state]} of {place}{step}"


def size(num_envs):
    """Returns the number of bytes of a `Progress` of `num_envs` environments."""
    return 8 * (WORDS + 2 * num_envs)
