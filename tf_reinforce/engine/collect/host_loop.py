"""Plays whole episodes in batched environments, and stores their steps as arrays.

LiteRT selects the actions. Nothing here imports TensorFlow or Keras.

To collect E episodes, exactly E episodes are started, and all of them are finished and
used. If more were started and only the first E that finish were kept, short episodes
would have an advantage.
"""

import collections
import dataclasses
import math
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from ai_edge_litert import interpreter as litert

from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.support import startup
from tf_reinforce.support import validation

BLOCK_ROWS = 256  # rows of each block of a `StepBuffer`

# Replacement k of episode n has the random streams of episode n + k * _REPLACEMENT: they
# depend neither on other episodes nor on the number of environments.
_REPLACEMENT = 2**32
_NOISE_ROWS = 128  # rows of noise that are drawn at once
_MAX_REPLACEMENTS = 50  # invalid episodes in place of one episode before an error

# What to do about infinite or NaN outputs despite finite observations and weights.
OUTPUTS_REMEDY = (
    "Exclude actions with `action_mask`, not with logits of -inf. If the policy "
    "overflows, use a smaller learning rate, `global_clipnorm` or "
    "normalize_observations=True."
)


class EnvironmentFault(RuntimeError):
    """An environment raised an exception or returned an invalid value.

    The message names the environment, the episode and the step, as far as they are known.
    The exception of the environment is the cause of this error. If the exception was
    raised in a worker process, the cause is a `RuntimeError` with its traceback. The
    agent does not learn from the episodes of the batch.
    """


class OutputsNotFinite(FloatingPointError):
    """Policy outputs are not finite, although the observations are.

    Attributes:
        inputs: List of arrays `[N, …]`, the observations, action masks, recurrent states
            and noise of N environments, from which the outputs were computed.
    """

    def __init__(self, message, inputs):
        super().__init__(message)
        self.inputs = inputs


def zeros(shape, dtype):
    """Returns an array of zeros whose memory the system gets back when it is deleted.

    The memory of an array from `np.zeros` can stay in the process after the array is
    deleted, if it lies between arrays that are still used.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(size, 1)))


class StepBuffer:
    """Stores all environments' steps in blocks of time-major arrays.

    The buffer grows by whole blocks, so steps are never copied to make room. Blocks are
    also freed one by one, as described in `episode_arrays`.

    Args:
        size: Int, the number of environments.
        observation_specs: List of `ArraySpec`, one per array of an observation; if
            actions can be illegal, the last one describes the masks.
        action_specs: List of `ArraySpec`, one per array of a raw action: as sampled,
            before its conversion for the environment.

    Attributes:
        blocks: List of lists of arrays `[256, size, …]`: the observations, with any
            action masks last, the raw actions, and the rewards in float64. Row i of the
            buffer is row i % 256 of block i // 256. A freed block is an empty list.
        num_observations: Int, how many arrays of a block are observations.
    """

    def __init__(self, size, observation_specs, action_specs):
        rewards = spaces.ArraySpec((), "float64")
        self._size, self._specs = size, [*observation_specs, *action_specs, rewards]
        self.num_observations = len(observation_specs)
        self.blocks, self._rows = [], iter(())

    def next_row(self):
        """Returns a tuple of views of the next row, starting with row 0."""
        views = next(self._rows, None)
        if views is None:
            shape = BLOCK_ROWS, self._size
            arrays = [zeros((*shape, *x.shape), x.dtype) for x in self._specs]
            self.blocks.append(arrays)
            self._rows = zip(*arrays, strict=True)
            views = next(self._rows)
        return views


class EpisodeArrays(NamedTuple):
    """`B` whole episodes as lists of arrays, which workers can send to their pool."""

    numbers: np.ndarray  # [B] int, the numbers of the episodes in starting order
    lengths: np.ndarray  # [B] int, the numbers of steps
    terminated: np.ndarray  # [B] bool, False for truncated episodes
    info: np.ndarray  # [B, 1 + K] float: success and K numbers of the info, or NaN
    info_names: np.ndarray  # [B] sets, the keys of an info in which one is missing
    faults: np.ndarray  # [B, 2] int, episodes dropped in its place, and restarts for them
    observations: list  # [T + 1, B, …] observations, with any action masks last
    others: list  # [T, B, …] arrays of actions, then rewards


@dataclasses.dataclass(slots=True, eq=False)
class EpisodeInProgress:
    """The state of an episode during its collection."""

    number: int  # position among the episodes of its collection
    start_row: int  # row of the step buffer at which the episode starts
    env_index: int  # index of the environment that runs the episode
    replacements: int = 0  # how many earlier episodes with this number were dropped
    restarts: int = 0  # how many of these were dropped because of an exception
    generators: Sequence = ()  # `np.random.Generator`s of the noise for its actions
    length: int = 0  # number of steps, or 0 until the episode has ended
    end: batched_envs.EpisodeEnd | None = None  # set by `finish`
    last_observation: Sequence = ()  # arrays, set by `finish`

    @property
    def stream_number(self):
        """Returns the number that selects the episode's random streams."""
        return self.number + self.replacements * _REPLACEMENT

    def finish(self, end, row, observations):
        """Stores how the episode ended, its length and its last observation."""
        self.end = end
        self.length = row - self.start_row
        self.last_observation = [array[self.env_index].copy() for array in observations]


class EpisodeScheduler:
    """Decides which episodes to start, and when enough have ended.

    Args:
        count: Int, the number of episodes to collect; not used if `steps` is an int.
        steps: Int, the number of steps to collect, or `None`. The result then contains as
            few episodes as have at least `steps` steps together, in starting order.
    """

    waits = False  # an environment without an episode receives none later

    def __init__(self, count, steps):
        self._count = count
        self._steps = steps
        self.episodes = []
        # Running totals, so that no method reads all episodes again.
        self.running = []  # episodes that had not ended when the last one started
        self._ended_steps = 0  # steps of the other episodes
        self._num_first = 0  # the number of first episodes of which each has ended
        self._first_steps = 0  # steps of these first episodes

    def start_next(self, row, env_index):
        """Starts the next episode, or returns `None` if no further one is needed.

        Args:
            row: Int, the collection's current step.
            env_index: Int, the environment that will run the episode.

        Returns:
            Its `EpisodeInProgress`, or `None`.
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
        for episode in self.episodes[self._num_first :]:
            if not episode.length or self._has_enough():
                break
            self._num_first += 1
            self._first_steps += episode.length
        return self.episodes[: self._num_first] if self._has_enough() else None

    def _has_enough(self):
        """Returns whether the first episodes, of which each has ended, are enough."""
        if self._steps is None:
            return self._num_first == self._count
        return self._first_steps >= self._steps


class CollectionLoop:
    """Steps environments, starts and ends episodes, and records all steps.

    Args:
        envs: `batched_envs.BatchedEnvs`, already configured with `configure`.
        specs: `spaces.ActingSpecs` of the agent.
        episode_scheduler: `EpisodeScheduler`, or a `worker.EpisodeWorker`.
        seeds: `seeding.EpisodeSeeds`.
        policy_states: List of arrays `[1, …]`, the recurrent states before an episode's
            first observation.
        deterministic: Bool, whether to take the most likely actions, without noise.
    """

    def __init__(
        self, envs, specs, episode_scheduler, seeds, policy_states, deterministic
    ):
        self.envs = envs
        self.scheduler = episode_scheduler
        self.seeds = seeds
        self.mask_layout, observations = None, specs.observations
        if specs.mask_reader is not None:
            self.mask_layout = specs.mask_reader.layout
            mask = spaces.ArraySpec((self.mask_layout.size,), "int8")
            observations = [*observations, mask]
        self.buffer = StepBuffer(envs.num_envs, observations, specs.actions)
        noise = [] if deterministic else specs.noise
        self.action_parts = range(len(noise))
        self.noise = NoiseBuffer(envs.num_envs, noise, specs.float_dtype)
        self.reads_rewards = specs.reads_rewards
        self.initial_states = policy_states
        self.policy_states = [np.repeat(x, envs.num_envs, 0) for x in policy_states]
        self.dropped = []  # invalid episodes, which start again
        self.active = {}  # running episodes by environment, in the order of their start
        self.idle = [*range(envs.num_envs)]  # in which an episode may start
        self.row = 0  # number of steps so far
        self.time_limit_row = 0  # no episode reaches the time limit before this row

    def play(self, act):
        """Plays episodes until the scheduler has enough, and returns these.

        Args:
            act: Function that selects actions, from `make_runner`.

        Raises:
            EnvironmentFault: If an environment raises an exception or returns an invalid
                value.
            OutputsNotFinite: If policy outputs are not finite.
        """
        try:
            return self._run(act)
        except batched_envs.IndexedFault as fault:
            place = self._describe_env(fault.env_index)
            raise EnvironmentFault(f"{place}: {fault}.") from fault.__cause__

    def _run(self, act):
        envs, buffer, noise, active = self.envs, self.buffer, self.noise, self.active
        policy_states, words = self.policy_states, envs.progress.words
        unbatch = _action_unbatcher(envs.action_space)
        views, count = buffer.next_row(), buffer.num_observations
        observations = views[:count]
        envs.reset(self.seeds.reset_seed(0), observations)
        self._start_episodes(observations)
        episodes = self.scheduler.result()  # a worker may have claimed no episode
        while episodes is None:
            row = self.row
            if self.mask_layout is not None:
                self._check_masks(observations)
            inputs = [*observations, *policy_states, *noise.row(row, active)]
            raw_actions, env_actions, states, finite = act(inputs)
            if not finite:
                raw_actions, env_actions, states = self._retry_without_idle(act, inputs)
            for array, part in zip(views[count:], raw_actions):
                array[:] = part
            policy_states[:] = states  # not copied: a cache of keys and values is large
            rewards, next_row = views[-1], row + 1
            # Views: the environments write the next observations into the buffer.
            views = buffer.next_row()
            observations = views[:count]
            is_due = next_row >= self.time_limit_row
            time_limit_envs = self._time_limit_envs(next_row) if is_due else ()
            actions = unbatch(env_actions)
            ends = envs.step(actions, observations, rewards, active, time_limit_envs)
            if self.reads_rewards:
                policy_states[-1][:] = rewards
            if ends:
                self._end_episodes(ends, next_row, observations)
            self.row = words[batched_envs.ROW] = next_row
            if ends or self.idle:
                self._start_episodes(observations)
            if ends:
                episodes = self.scheduler.result()
        active.clear()  # no result contains the episodes that have not ended
        return episodes

    def _time_limit_envs(self, row):
        """Returns the environments whose episodes reach the time limit at step `row`."""
        first_row = row - self.envs.max_episode_steps
        return [i for i, x in self.active.items() if x.start_row <= first_row]

    def _end_episodes(self, ends, next_row, observations):
        for end in ends:
            if end.fault is not None:  # it replaces another end of the same episode
                self.dropped.append(self._drop(end.fault))
                self.idle.append(end.env_index)
        for end in ends:
            episode = self.active.pop(end.env_index, None)
            if episode is not None:
                episode.finish(end, next_row, observations)
                self.idle.append(end.env_index)

    def _check_masks(self, observations):
        masks = observations[-1]
        has_legal_action = self.mask_layout.has_legal_action(masks)
        for env_index in [*self.active] if not has_legal_action.all() else ():
            if not has_legal_action[env_index]:
                mask = masks[env_index]
                cause = "" if mask.any() else ", or there is no action mask"
                fault = batched_envs.IndexedFault(
                    env_index,
                    "the action mask has no legal action"
                    f"{self.mask_layout.illegal_part(mask)}{cause}. "
                    f"Received: {mask.tolist()}. End the episode if no action is legal",
                )
                self.envs.recover(fault)
                self._start(env_index, self._drop(fault), observations)
                return self._check_masks(observations)

    def _start_episodes(self, observations):
        for env_index in sorted(filter(self.envs.can_start, self.idle)):
            if self.dropped:
                episode = self.dropped.pop(0)
            else:
                episode = self.scheduler.start_next(self.row, env_index)
            if episode is None:
                if not self.scheduler.waits:
                    self.idle.clear()
                break
            self.idle.remove(env_index)
            self._start(env_index, episode, observations)
        # Episodes are in the order of their start: the first one is the oldest.
        oldest, limit = next(iter(self.active.values()), None), math.inf
        if oldest is not None:
            limit = oldest.start_row + self.envs.max_episode_steps
        self.time_limit_row = limit

    def _start(self, env_index, episode, observations):
        """Starts an episode in an environment, again if the reset is invalid."""
        episode.env_index, episode.start_row = env_index, self.row
        for array, initial in zip(self.policy_states, self.initial_states):
            array[env_index] = initial[0]
        report = self.envs.progress
        report.start_episode(env_index, episode.number, self.row)
        while True:
            self.active[env_index] = episode
            reset_seed = self.seeds.reset_seed(episode.stream_number)
            try:
                self.envs.start_episode(env_index, reset_seed, observations)
                break
            except batched_envs.IndexedFault as fault:
                self.envs.recover(fault)
                self._drop(fault)
        report.words[batched_envs.STATE] = batched_envs.STEP
        generator, number = self.seeds.action_generator, episode.stream_number
        episode.generators = [generator(number, i) for i in self.action_parts]
        self.noise.start_episode(episode, self.row)

    def _drop(self, fault):
        """Removes and returns a running episode that is invalid and starts again."""
        place = f"{self._describe_env(fault.env_index)}: {fault}"
        episode = self.active.pop(fault.env_index)
        if episode.replacements == _MAX_REPLACEMENTS:
            raise EnvironmentFault(
                f"{place}. The episode and its {_MAX_REPLACEMENTS} replacements were "
                "dropped, because the environment failed in each of them."
            ) from fault
        episode.replacements += 1
        episode.restarts += fault.raised
        if self.envs.warns_of_faults:
            self.envs.warns_of_faults = False
            validation.warn(
                f"An episode was dropped, and another episode replaces it. {place}. This "
                "biases the results towards episodes without faults.",
            )
        return episode

    def _retry_without_idle(self, act, inputs):
        """Selects actions again, with zeros as inputs of idle environments.

        The inputs of idle environments are arbitrary and may be the only cause of outputs
        that are not finite. If outputs are still not finite, the error names an
        observation that is not finite, or else the policy.
        """
        idle = [i for i in range(self.envs.num_envs) if i not in self.active]
        for array in inputs:
            array[idle] = 0
        *outputs, finite = act(inputs)
        if finite:
            return outputs
        for episode in self.active.values():
            step = self.row - episode.start_row - 1
            for array in inputs[: self.buffer.num_observations]:
                values = array[[episode.env_index]]
                self._check_finite("observation", values, episode, step)
        raise OutputsNotFinite(
            "The policy's outputs are not finite, although its observations and weights "
            f"are finite. No action was selected. {OUTPUTS_REMEDY}",
            [np.array(array) for array in inputs],
        )

    def _describe_env(self, env_index):
        """Returns environment, episode and step as a text for an error message."""
        if env_index is None:
            return "The VectorEnv"
        if (episode := self.active.get(env_index)) is None:
            return f"Environment {self.envs.first_index + env_index}"
        return self._place(episode, self.row - episode.start_row)

    def _place(self, episode, step):
        replacement = f" (replacement {x})" if (x := episode.replacements) else ""
        place = f"Environment {self.envs.first_index + episode.env_index}, episode "
        return f"{place}{episode.number}{replacement}, step {step}"

    def episode_arrays(self, episodes):
        """Moves finished episodes into arrays with one episode per column.

        Long episodes should not be in memory twice. Blocks of the buffer that no running
        episode needs are therefore freed right after they are copied.

        Returns:
            `EpisodeArrays`, in the order of `episodes`.

        Raises:
            EnvironmentFault: If an observation or a reward is not finite.
        """
        lengths = np.array([episode.length for episode in episodes], "int32")
        rows, split = lengths.max(initial=0), self.buffer.num_observations
        copies = [
            zeros((rows + (i < split), len(episodes), *array.shape[2:]), array.dtype)
            for i, array in enumerate(self.buffer.blocks[-1])
        ]
        self._move_steps(episodes, copies)
        for b, episode in enumerate(episodes):
            for copy, last in zip(copies, episode.last_observation):
                copy[episode.length, b] = last
                observations = copy[: episode.length + 1, b]
                self._check_finite("observation", observations, episode, -1)
            self._check_finite("reward", copies[-1][: episode.length, b], episode, 0)
        return EpisodeArrays(
            np.array([episode.number for episode in episodes], "int64"),
            lengths,
            np.array([episode.end.terminated for episode in episodes], bool),
            np.array([episode.end.info for episode in episodes], "float64"),
            np.array([episode.end.info_names for episode in episodes], object),
            np.array([(x.replacements, x.restarts) for x in episodes]).reshape(-1, 2),
            copies[:split],
            copies[split:],
        )

    def _move_steps(self, episodes, copies):
        in_block = collections.defaultdict(list)  # the columns of the episodes
        for b, episode in enumerate(episodes):
            stop = episode.start_row + episode.length
            for number in range(episode.start_row // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
                in_block[number].append(b)
        needed_row = min([self.row, *(x.start_row for x in self.active.values())])
        for number, block in enumerate(self.buffer.blocks):
            first_row, next_row = number * BLOCK_ROWS, (number + 1) * BLOCK_ROWS
            for b in in_block[number]:
                start, env_index = episodes[b].start_row, episodes[b].env_index
                first, stop = max(start, first_row), start + episodes[b].length
                stop = min(stop, next_row)
                for copy, array in zip(copies, block):
                    steps = array[first - first_row : stop - first_row, env_index]
                    copy[first - start : stop - start, b] = steps
            if next_row <= needed_row:
                block.clear()

    def _check_finite(self, name, values, episode, step):
        """Raises `EnvironmentFault` if a number is not finite.

        Args:
            name: String, what the numbers are.
            values: `[n, …]` array of consecutive steps.
            episode: `EpisodeInProgress`.
            step: Int, the step of `values[0]`: -1 for the observation of the reset.
        """
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            name = f"first {name}" if step + row < 0 else name
            raise EnvironmentFault(
                f"{self._place(episode, max(step + row, 0))}: the {name} is not finite: "
                f"{values[row]}. The agent did not learn from the failed batch."
            )


class NoiseBuffer:
    """Draws the noise for sampling actions from each episode's random generators.

    Args:
        size: Int, the number of environments.
        noise_specs: List of `seeding.NoiseSpec`, one per part of an action.
        dtype: Float type of the noise.
    """

    def __init__(self, size, noise_specs, dtype):
        self._kinds = [spec.kind for spec in noise_specs]
        shapes = [(_NOISE_ROWS, size, *spec.shape) for spec in noise_specs]
        self._blocks = [np.full(shape, 0.5, dtype) for shape in shapes]

    def start_episode(self, episode, row):
        """Draws a new episode's noise for the remaining rows of the buffer.

        At the first row of the buffer, nothing is drawn, because the method `row` then
        draws the noise for all running episodes.
        """
        if row % _NOISE_ROWS:
            self._draw(episode, row % _NOISE_ROWS)

    def row(self, row, active):
        """Returns one step's noise in all environments, an array per action part.

        Args:
            row: Int, the number of the step. Successive calls must pass 0, 1, 2, …
            active: Dict from environment indices to running episodes.
        """
        if row % _NOISE_ROWS == 0:
            for episode in active.values():
                self._draw(episode, 0)
            self._rows = zip(*self._blocks, strict=True)
        return next(self._rows, ())

    def _draw(self, episode, first):
        for kind, block, generator in zip(self._kinds, self._blocks, episode.generators):
            noise = block[first:, episode.env_index]
            if kind == "uniform":
                noise[:] = generator.random(noise.shape, noise.dtype)
            else:
                noise[:] = generator.standard_normal(noise.shape, noise.dtype)


def _action_unbatcher(space):
    """Returns a function that splits arrays `[size, …]` into a list of `size` actions."""
    nest = spaces.to_nest(space)
    leaves = spaces.flatten(nest)
    unbatchers = [_leaf_unbatcher(leaf) for leaf in leaves]
    if nest is leaves[0]:
        return lambda env_actions: unbatchers[0](env_actions[0])

    def unbatch(env_actions):
        columns = [f(array) for f, array in zip(unbatchers, env_actions, strict=True)]
        return [spaces.pack(nest, list(parts)) for parts in zip(*columns, strict=True)]

    return unbatch


def _leaf_unbatcher(leaf):
    """Returns a function that lists an array's rows in the number type of a space.

    For a `Box` of shape (), these are arrays of shape (), like the space's members.
    """
    dtype = leaf.dtype
    if isinstance(leaf, gym.spaces.Box) and not leaf.shape:
        return lambda array: [np.array(x, dtype) for x in array]
    return lambda array: list(array if array.dtype is dtype else array.astype(dtype))


class Argument(NamedTuple):
    """An argument of a LiteRT model: its name and the shape of one row."""

    name: str
    shape: tuple
    # The numbers of two weights. Their sum is subtracted in float64, which LiteRT does
    # not support, before the argument is rounded to float32.
    center: tuple = ()


class Layout(NamedTuple):
    """The order of arguments and results of a function that selects actions."""

    arguments: list  # `Argument`s: observations, action mask, states and noise
    names: list  # of the results: "raw_action", "finite", "outputs", "action", "state"
    env_actions: list  # indices of the actions for the environment among the results

    def indices(self, name):
        """Returns the indices of the results called `name`."""
        return [i for i, other in enumerate(self.names) if other == name]


def make_runner(model, layout, count):
    """Returns a runner for batches of `count` rows.

    The results for a row must not depend on the other rows, nor on how many there are. In
    LiteRT itself they would, because the order in which a matrix product or a convolution
    adds up its terms depends on the batch size. A single row therefore runs as two rows,
    and images run one by one.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of its arguments and results.
        count: Int, the rows of a batch.

    Returns:
        A function with four results, see `environments.ActingProgram.for_batch`, and a
        method `set_weights`.
    """
    inputs = [x for x in layout.arguments if not x.name.startswith(("noise", "state"))]
    has_images = any(len(argument.shape) > 1 for argument in inputs)
    size = 1 if has_images else max(count, 2)
    runner = LiteRTRunner(model, layout, size)
    return runner if size == count else _ChunkedRunner(runner, size, count)


class LiteRTRunner:
    """Runs a LiteRT model on batches of fixed size.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of its arguments and results.
        count: Int, the rows of a batch.
    """

    def __init__(self, model, layout, count):
        self._interpreter = litert.Interpreter(model_content=model, num_threads=1)
        details = self._interpreter.get_input_details()
        tensor_indices = {d["name"]: d["index"] for d in details}
        # The converter removes unused inputs, for example a mask that the head ignores.
        self._inputs = [
            (position, tensor_indices[argument.name])
            for position, argument in enumerate(layout.arguments)
            if argument.name in tensor_indices
        ]
        for position, index in self._inputs:
            shape = (count, *layout.arguments[position].shape)
            self._interpreter.resize_tensor_input(index, shape)
        with startup.without_messages():
            self._interpreter.allocate_tensors()
        self._results = [d["index"] for d in self._interpreter.get_output_details()]
        self._centers = []  # from `set_weights`
        centers = enumerate(argument.center for argument in layout.arguments)
        self._centered = [(i, center) for i, center in centers if center]
        self._raw_actions, (self._finite,), self._states = (
            [self._results[i] for i in layout.indices(name)]
            for name in ("raw_action", "finite", "state")
        )
        self._env_actions = [self._results[i] for i in layout.env_actions]
        self._env_actions_differ = self._env_actions != self._raw_actions
        # A call takes microseconds, so attribute lookups would matter.
        self._set, self._get = self._interpreter.set_tensor, self._interpreter.get_tensor
        self._invoke = self._interpreter.invoke
        self._weights = {
            int(name.removeprefix("weight_")): index
            for name, index in tensor_indices.items()
            if name.startswith("weight_")
        }

    def set_weights(self, weights):
        for number, index in self._weights.items():
            self._interpreter.set_tensor(index, weights[number])
        self._centers = [(i, weights[a] + weights[b]) for i, (a, b) in self._centered]

    def centered(self, inputs):
        """Returns a call's inputs as the model receives them."""
        inputs = list(inputs)
        for position, center in self._centers:
            inputs[position] = np.subtract(inputs[position], center).astype("float32")
        return inputs

    def __call__(self, inputs):
        set_tensor, get = self._set, self._get
        if self._centered:
            inputs = self.centered(inputs)
        for position, index in self._inputs:
            set_tensor(index, inputs[position])
        self._invoke()
        raw_actions = list(map(get, self._raw_actions))
        env_actions = raw_actions
        if self._env_actions_differ:
            env_actions = list(map(get, self._env_actions))
        return raw_actions, env_actions, list(map(get, self._states)), get(self._finite)

    def results(self, inputs):
        """Returns all results for a batch, in the order of `Layout.names`."""
        self(inputs)
        return [self._interpreter.get_tensor(index) for index in self._results]


class _ChunkedRunner:
    """Runs a LiteRT model on `count` rows, in chunks of `size` rows.

    If `count` is less than `size`, rows are repeated, and the results of the repeated
    rows are dropped.

    Args:
        runner: `LiteRTRunner` for `size` rows.
        size: Int, the rows of a chunk, either a divisor of `count` or above `count`.
        count: Int, the rows of a batch.
    """

    def __init__(self, runner, size, count):
        self._runner = runner
        self._count = count
        firsts = range(0, count, size)
        self._chunks = [np.arange(first, first + size) % count for first in firsts]
        self.set_weights = runner.set_weights

    def __call__(self, inputs):
        chunks = ([array[chunk] for array in inputs] for chunk in self._chunks)
        *lists, finite = zip(*map(self._runner, chunks), strict=True)
        lists = [[self._join(x) for x in zip(*parts)] for parts in lists]
        return *lists, all(finite)

    def _join(self, arrays):
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return array[: self._count]
