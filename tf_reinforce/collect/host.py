"""The host's loop: whole episodes from any fleet, in the order in which they start.

Start exactly E episodes, finish all E, use all E. Taking the first E to *finish*
would prefer short ones.
"""

import math
import time
from typing import NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import episodes as records
from tf_reinforce import seeding, spaces
from tf_reinforce.collect import fleets

_BLOCK = 128  # rows of noise drawn at once
_ROWS = 256  # rows of the first buffer; it doubles


class EnvironmentFault(RuntimeError):
    """An environment raised, or answered with something that is no answer.

    The message names the environment, the episode, the step and what was wrong; the
    original exception, if there was one, is the cause. Nothing was learned from the
    episode.
    """


class OutputsNotFinite(FloatingPointError):
    """The outputs of the policy are not finite, although its observations are.

    Attributes:
        inputs: List of arrays `[N, …]`, what the acting program received.
    """

    def __init__(self, message, inputs):
        super().__init__(message)
        self.inputs = inputs


class Collected(NamedTuple):
    """What a collection brings home."""

    episodes: records.Episodes
    success: np.ndarray  # [B] float: 1, 0, or NaN where the environment does not say
    seconds: dict[str, float]  # `"stepping"` environments; `"acting"`: all the rest


class Columns(NamedTuple):
    """Whole episodes as flat lists of arrays: what one process hands to another."""

    numbers: np.ndarray  # [B] int, in the order of their start
    lengths: np.ndarray  # [B] int
    terminated: np.ndarray  # [B] bool
    success: np.ndarray  # [B] float
    observations: list  # [T + 1, B, …] each; a mask, where there is one, comes last
    others: list  # [T, B, …] each: the parts of the actions, and the rewards


class _Run:
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


class _Queue:
    """Which episodes to start, and when there are enough of them."""

    def __init__(self, count, steps):
        self._count = count
        self._steps = steps
        self.runs = []

    def start(self, row, slot):
        self.runs.append(_Run(len(self.runs), row, slot))
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


class _Share:
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
        self.runs.append(_Run(self._number, row, slot))
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


class _Tape:
    """Time-major arrays of what happens in all slots; they grow by doubling.

    `observations` are what a fleet writes: a mask, where there is one, comes last.
    """

    def __init__(self, size, observed, raw):
        self.length = _ROWS
        self.observations = _arrays((_ROWS + 1, size), observed)
        self.actions = _arrays((_ROWS, size), raw)
        self.rewards = np.zeros((_ROWS, size))

    def grow(self):
        self.observations = [_doubled(x, len(x) - 1) for x in self.observations]
        self.actions = [_doubled(x, self.length) for x in self.actions]
        self.rewards = _doubled(self.rewards, self.length)
        self.length *= 2

    def rows(self, row):
        return [array[row] for array in self.observations]


def _arrays(leading, specs):
    return [np.zeros((*leading, *x.shape), x.dtype.as_numpy_dtype) for x in specs]


def _doubled(array, more):
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


class _Noise:
    """Rows of noise in which each episode reads its own streams, step by step."""

    def __init__(self, size, parts, dtype):
        self._kinds = [part.kind for part in parts]
        self._blocks = [
            np.full((_BLOCK, size, *part.shape), 0.5, dtype) for part in parts
        ]

    def begin(self, run, row):
        if row % _BLOCK:
            self._draw(run, row % _BLOCK)

    def row(self, row, live):
        """The next row of each part; rows are asked for in their order."""
        if row % _BLOCK == 0:
            for run in live.values():
                self._draw(run, 0)
            self._rows = zip(*self._blocks, strict=True)
        return next(self._rows, ())

    def _draw(self, run, first):
        for kind, block, bits in zip(self._kinds, self._blocks, run.generators):
            part = block[first:, run.slot]
            if kind == "uniform":
                part[:] = bits.random(part.shape, part.dtype)
            else:
                part[:] = bits.standard_normal(part.shape, part.dtype)


class _Memory:
    """The states of a policy that remembers, `[size, …]` each."""

    def __init__(self, initial):
        self._initial = initial
        self.arrays = [state.copy() for state in self._initial]

    def begin(self, slot):
        for array, initial in zip(self.arrays, self._initial):
            array[slot] = initial[slot]


def _sender(space):
    """A function from what all slots send, a list of arrays, to one action for each."""
    nested = spaces.nest(space)
    leaves = keras.tree.flatten(nested)
    unpack = [_unpacker(leaf) for leaf in leaves]
    if nested is leaves[0]:
        return lambda sent: unpack[0](sent[0])
    places = keras.tree.pack_sequence_as(nested, list(range(len(leaves))))

    def pack(sent):
        columns = [of_part(part) for of_part, part in zip(unpack, sent, strict=True)]
        return [_packed(places, parts) for parts in zip(*columns, strict=True)]

    return pack


def _unpacker(leaf):
    """From an array to a list with the actions of this space, of its type."""
    dtype = leaf.dtype
    listed = list if leaf.shape or not isinstance(leaf, gym.spaces.Box) else _without_axes
    return lambda part: listed(part if part.dtype is dtype else part.astype(dtype))


def _without_axes(sent):
    """Arrays without axes, where a Box of shape () has them as members."""
    return [np.array(action) for action in sent]


def _packed(places, parts):
    """One action from its parts: Python tuples and dicts, as the space nests."""
    if isinstance(places, dict):
        return {key: _packed(place, parts) for key, place in places.items()}
    if isinstance(places, tuple):
        return tuple(_packed(place, parts) for place in places)
    return parts[places]


def collect(
    fleet, decision, act, *, seed, purpose, update, episodes, steps,
    deterministic=False, siblings=1,
):  # fmt: skip
    """Plays whole episodes.

    Args:
        fleet: `fleets.Fleet`, prepared.
        decision: `decision.Decision`, what acts.
        act: See `acting.Acting.rows`.
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"` or `"evaluation"`.
        update: Int. Episode e of update u is a function of (seed, purpose, u, e).
        episodes: Positive int, how many to play, or `None`.
        steps: Positive int instead: the fewest episodes, in the order of their
            start, that have so many steps together.
        deterministic: Bool. True takes the most likely action and needs no noise.
        siblings: Int, how many episodes in a row begin with the same seed.

    Returns:
        `Collected`.

    Raises:
        EnvironmentFault: at the first wrong answer; nothing is returned.
        OutputsNotFinite: when the policy's outputs are not finite.
    """
    began = time.perf_counter()
    columns, stepping = _play(
        fleet,
        decision,
        act,
        _Queue(episodes, steps),
        seeding.EpisodeSeeds(seed, purpose, update, siblings),
        beginning(decision, fleet.size),
        deterministic,
    )
    seconds = {"stepping": stepping, "acting": time.perf_counter() - began - stepping}
    return Collected(record(columns, decision), columns.success, seconds)


def share(
    fleet, decision, act, initial, claim, most,
    *, seed, purpose, update, deterministic, siblings,
):  # fmt: skip
    """Plays what `claim` gives, as `collect` does; calls no TensorFlow operation.

    Args:
        initial: See `beginning`.
        claim, most: See `_Share`.

    Returns:
        `Columns`, which may be of no episodes, and the seconds in the environments.
    """
    seeds = seeding.EpisodeSeeds(seed, purpose, update, siblings)
    queue = _Share(claim, most)
    return _play(fleet, decision, act, queue, seeds, initial, deterministic)


def beginning(decision, size):
    """The states of a policy when episodes begin, a list of arrays `[size, …]`."""
    return [np.array(state) for state in decision.initial_state(size)]


def _play(fleet, decision, act, queue, seeds, initial, deterministic):
    noise = [] if deterministic else decision.noise
    collection = _Collection(fleet, decision, queue, noise, seeds, initial)
    try:
        runs = collection.run(act)
    except fleets.Fault as fault:
        where = collection.where(fault.slot)
        raise EnvironmentFault(f"{where}: {fault}.") from fault.__cause__
    return _columns(runs, collection.tape), collection.stepping


class _Collection:
    """The loop: which episode runs in which slot, and what was written down."""

    def __init__(self, fleet, decision, queue, noise, seeds, initial):
        self.fleet = fleet
        self.queue = queue
        self.seeds = seeds
        observed = keras.tree.flatten(decision.structure)
        if decision.mask_source:
            observed.append(tf.TensorSpec((decision.mask_size,), tf.int8))
        self.tape = _Tape(fleet.size, observed, keras.tree.flatten(decision.raw))
        self.parts = range(len(noise))
        self.noise = _Noise(fleet.size, noise, decision.dtype)
        self.memory = _Memory(initial)
        self.masked_head = decision.head if decision.mask_source else None
        self.live = {}  # runs by slot, in the order of their start
        self.idle = list(range(fleet.size))
        self.row = 0
        self.deadline = 0  # no episode is overdue before this row
        self.stepping = 0.0  # seconds in the environments, their resets included

    def run(self, act):
        """Steps all slots in turn until the queue has enough; returns its runs."""
        fleet, tape, noise, live = self.fleet, self.tape, self.noise, self.live
        memory, row = self.memory.arrays, 0
        clock, stepping = time.perf_counter, 0.0
        as_actions = _sender(fleet.action_space)
        observations = tape.rows(0)
        fleet.reset(self.seeds.environment(0), observations)
        self._begin_episodes(observations)
        used = self.queue.enough()  # a share may be of no episodes
        while used is None:
            if row + 1 == tape.length:
                tape.grow()
                observations = tape.rows(row)
            if self.masked_head is not None:
                self._refuse_dead_ends(observations[-1])
            inputs = [*observations, *memory, *noise.row(row, live)]
            raw, sent, states, finite = act(inputs)
            if not finite:
                raw, sent, states = self._without_idle(act, inputs)
            for array, part in zip(tape.actions, raw):
                array[row] = part
            for array, part in zip(memory, states):
                array[:] = part
            rewards = tape.rewards[row]
            row += 1
            observations = tape.rows(row)
            cut = self._overdue(row) if row >= self.deadline else ()
            actions = as_actions(sent)
            began = clock()
            endings = fleet.step(actions, observations, rewards, live, cut)
            stepping += clock() - began
            self.row = row
            if endings or self.idle:
                for ending in endings:
                    self._end_episode(ending, observations)
                self._begin_episodes(observations)
                if endings:
                    used = self.queue.enough()
        self.stepping += stepping
        return used

    def _refuse_dead_ends(self, masks):
        choice = self.masked_head.leaves_choice(masks)
        for slot in self.live if not choice.all() else ():
            if not choice[slot]:
                raise fleets.Fault(
                    slot,
                    "the mask leaves no legal action, or there is none. Expected: at "
                    f"least one that is not zero. Received: {masks[slot].tolist()}. End "
                    "the episode where nothing can be done",
                )

    def _overdue(self, row):
        """The slots whose episodes will have lasted as long as they may."""
        limit = self.fleet.limit
        return [slot for slot, run in self.live.items() if row - run.begin >= limit]

    def _begin_episodes(self, observations):
        for slot in sorted(filter(self.fleet.ready, self.idle)):
            if not self.queue.wants(self.row):
                self.idle.clear()  # what is wanted never grows: these slots are done
                break
            run = self.live[slot] = self.queue.start(self.row, slot)
            run.generators = [self.seeds.action(run.number, i) for i in self.parts]
            self.memory.begin(slot)
            self.idle.remove(slot)
            began = time.perf_counter()
            self.fleet.begin(slot, self.seeds.environment(run.number), observations)
            self.stepping += time.perf_counter() - began
            self.noise.begin(run, self.row)
        # Runs stand in the order of their start: the first is the oldest.
        oldest = next(iter(self.live.values()), None)
        self.deadline = math.inf if oldest is None else oldest.begin + self.fleet.limit

    def _without_idle(self, act, inputs):
        """Acts anew when something was not finite: idle slots may hold anything."""
        idle = [slot for slot in range(self.fleet.size) if slot not in self.live]
        for array in inputs:
            array[idle] = 0
        *answer, finite = act(inputs)
        if not finite:
            _refuse_outputs(self.live, self.row, self.tape, inputs)
        return answer

    def _end_episode(self, ending, observations):
        run = self.live.pop(ending.slot, None)
        if run is not None:
            run.end(ending, self.row, observations)
            self.idle.append(ending.slot)

    def where(self, slot):
        """What was going on in a slot, for a message."""
        run = self.live.get(slot)
        if run is None:
            return f"Environment {slot}"
        return f"Environment {slot}, episode {run.number}, step {self.row - run.begin}"


def _refuse_outputs(live, row, tape, inputs):
    """The policy put out something that is not finite: whose fault is it?"""
    for run in live.values():
        for array in tape.observations:
            _check_observations(array[run.begin : row + 1, run.slot], run)
    raise OutputsNotFinite(
        "The policy's outputs are not finite, although its observations and weights "
        "are: it overflows. No action was taken. Train with a smaller learning rate or "
        "`global_clipnorm`, or set normalize_observations=True.",
        [np.array(array) for array in inputs],
    )


def _check_observations(values, run):
    """Row 0 came with the reset, row t + 1 with the answer to action t."""
    _check_finite("first observation", values[:1], run)
    _check_finite("observation", values[1:], run)


def _check_finite(name, values, run):
    """Refuses numbers that are none; row t came with the answer to action t."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        step = int(np.argwhere(~np.isfinite(values))[0][0])
        raise EnvironmentFault(
            f"Environment {run.slot}, episode {run.number}, step {step}: the {name} is "
            f"not finite: {values[step]}. Nothing was learned from this batch. Repair "
            "the environment."
        )


def _columns(runs, tape):
    """The runs as `Columns`, in the order of their start."""
    lengths = np.array([run.length for run in runs], "int32")
    rows, count = lengths.max(initial=0), len(runs)

    def columns(array, rows):
        return np.zeros((rows, count, *array.shape[2:]), array.dtype)

    observations = [columns(array, rows + 1) for array in tape.observations]
    others = [*tape.actions, tape.rewards]
    columns_of_others = [columns(array, rows) for array in others]
    for b, run in enumerate(runs):
        here = (slice(run.begin, run.begin + run.length), run.slot)
        for to, array, last in zip(observations, tape.observations, run.last):
            to[: run.length, b] = array[here]
            to[run.length, b] = last
        for to, array in zip(columns_of_others, others):
            to[: run.length, b] = array[here]
        for array in observations:
            _check_observations(array[: run.length + 1, b], run)
        _check_finite("reward", columns_of_others[-1][: run.length, b], run)
    return Columns(
        np.array([run.number for run in runs], "int64"),
        lengths,
        np.array([run.ending.terminated for run in runs], bool),
        np.array([_known(run.ending.success) for run in runs], "float64"),
        observations,
        columns_of_others,
    )


def _known(success):
    return math.nan if success is None else float(success)


def record(columns, decision):
    """`Columns` as `Episodes`, nested as the spaces of a `decision.Decision`."""
    observations, masks = columns.observations, None
    if decision.mask_source:
        *observations, masks = observations
    *actions, rewards = columns.others
    return records.Episodes(
        keras.tree.pack_sequence_as(decision.structure, observations),
        keras.tree.pack_sequence_as(decision.raw, actions),
        rewards,
        columns.lengths,
        columns.terminated,
        None if masks is None else masks[:-1],
    )
