"""The host's loop: whole episodes from any fleet, in the order in which they start.

Start exactly E episodes, finish all E, use all E. Taking the first E to *finish*
would prefer short ones.
"""

import math
from typing import NamedTuple

import keras
import numpy as np

from tf_reinforce import episodes as records
from tf_reinforce import seeding
from tf_reinforce.collect import fleets

_BLOCK = 128  # rows of noise drawn at once
_ROWS = 256  # rows of the first buffer; it doubles


class EnvironmentFault(RuntimeError):
    """An environment raised, or answered with something that is no answer.

    The message names the environment, the episode, the step and what was wrong; the
    original exception, if there was one, is the cause. Nothing was learned from the
    episode.
    """


class Collected(NamedTuple):
    """What a collection brings home."""

    episodes: records.Episodes
    success: np.ndarray  # [B] float: 1, 0, or NaN where the environment does not say


class _Run:
    """One episode on its way: where it began and what it draws."""

    __slots__ = ("number", "begin", "slot", "generator", "length", "last", "ending")

    def __init__(self, number, begin, slot):
        self.number = number
        self.begin = begin
        self.slot = slot
        self.generator = None  # the most likely action needs no noise
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


class _Tape:
    """Time-major arrays of what happens in all slots; they grow by doubling."""

    def __init__(self, fleet, structure, head, dtype):
        size, self.length = fleet.size, _ROWS
        self.observations = [
            np.zeros((_ROWS + 1, size, *leaf.shape), leaf.dtype.as_numpy_dtype)
            for leaf in structure
        ]
        actions = head.action_dtype or dtype
        self.actions = np.zeros((_ROWS, size, *head.action_shape), actions)
        self.rewards = np.zeros((_ROWS, size))

    def grow(self):
        double = [_doubled(x, len(x) - 1) for x in self.observations]
        self.observations = double
        self.actions = _doubled(self.actions, self.length)
        self.rewards = _doubled(self.rewards, self.length)
        self.length *= 2

    def rows(self, row):
        return [array[row] for array in self.observations]


def _doubled(array, more):
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


class _Noise:
    """Rows of noise in which each episode reads its own stream, step by step."""

    def __init__(self, size, noise, dtype):
        self._kind = noise.kind
        self._shape = noise.shape
        self._block = np.full((_BLOCK, size, *noise.shape), 0.5, dtype)

    def begin(self, run, row):
        if row % _BLOCK:
            self._draw(run, row % _BLOCK)

    def row(self, row, live):
        row %= _BLOCK
        if row == 0:
            for run in live.values():
                self._draw(run, 0)
        return self._block[row]

    def _draw(self, run, first):
        if run.generator is None:
            return
        block = self._block[first:, run.slot]
        if self._kind == "uniform":
            block[:] = run.generator.random(block.shape, block.dtype)
        else:
            block[:] = run.generator.standard_normal(block.shape, block.dtype)


def collect(
    fleet, structure, act, head, dtype, *, seed, purpose, update, episodes, steps,
    deterministic=False,
):  # fmt: skip
    """Plays whole episodes.

    Args:
        fleet: `fleets.Fleet`, prepared.
        structure: `tf.TensorSpec` or structure of them: one observation.
        act: See `acting.Acting.rows`.
        head: `heads.Head`, for the shape of its noise and actions.
        dtype: Float type of noise and real actions.
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"` or `"evaluation"`.
        update: Int. Episode e of update u is a function of (seed, purpose, u, e).
        episodes: Positive int, how many to play, or `None`.
        steps: Positive int instead: the fewest episodes, in the order of their
            start, that have so many steps together.
        deterministic: Bool. True takes the most likely action and needs no noise.

    Returns:
        `Collected`.

    Raises:
        EnvironmentFault: at the first wrong answer; nothing is returned.
        FloatingPointError: when the policy's outputs are not finite.
    """
    collection = _Collection(
        fleet,
        _Queue(episodes, steps),
        _Tape(fleet, keras.tree.flatten(structure), head, dtype),
        _Noise(fleet.size, head.noise, dtype),
        seeding.EpisodeSeeds(seed, purpose, update),
        deterministic,
    )
    try:
        used = collection.run(act)
    except fleets.Fault as fault:
        where = collection.where(fault.slot)
        raise EnvironmentFault(f"{where}: {fault}.") from fault.__cause__
    return _record(used, collection.tape, structure)


class _Collection:
    """The loop: which episode runs in which slot, and what was written down."""

    def __init__(self, fleet, queue, tape, noise, seeds, deterministic):
        self.fleet = fleet
        self.queue = queue
        self.tape = tape
        self.noise = noise
        self.seeds = seeds
        self.deterministic = deterministic
        self.live = {}  # runs by slot, in the order of their start
        self.idle = list(range(fleet.size))
        self.row = 0
        self.deadline = 0  # no episode is overdue before this row

    def run(self, act):
        """Steps all slots in turn until the queue has enough; returns its runs."""
        fleet, tape, noise, live = self.fleet, self.tape, self.noise, self.live
        wanted, row = fleet.action_space.dtype, 0
        unpack = list if fleet.action_space.shape or wanted.kind == "i" else _arrays
        observations = tape.rows(0)
        fleet.reset(self.seeds.environment(0), observations)
        self._begin_episodes(observations)
        while True:
            if row + 1 == tape.length:
                tape.grow()
                observations = tape.rows(row)
            drawn = noise.row(row, live)
            raw, sent, finite = act(observations, drawn)
            if not finite:
                raw, sent = self._without_idle(act, observations, drawn)
            tape.actions[row] = raw
            actions = unpack(sent if sent.dtype is wanted else sent.astype(wanted))
            rewards = tape.rewards[row]
            row += 1
            observations = tape.rows(row)
            cut = self._overdue(row) if row >= self.deadline else ()
            endings = fleet.step(actions, observations, rewards, live, cut)
            self.row = row
            if endings or self.idle:
                for ending in endings:
                    self._end_episode(ending, observations)
                self._begin_episodes(observations)
                if endings and (used := self.queue.enough()):
                    return used

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
            if not self.deterministic:
                run.generator = self.seeds.action(run.number)
            self.idle.remove(slot)
            self.fleet.begin(slot, self.seeds.environment(run.number), observations)
            self.noise.begin(run, self.row)
        # Runs stand in the order of their start: the first is the oldest.
        oldest = next(iter(self.live.values()), None)
        self.deadline = math.inf if oldest is None else oldest.begin + self.fleet.limit

    def _without_idle(self, act, observations, drawn):
        """Acts anew when something was not finite: idle slots may hold anything."""
        idle = [slot for slot in range(self.fleet.size) if slot not in self.live]
        for array in observations:
            array[idle] = 0
        raw, sent, finite = act(observations, drawn)
        if not finite:
            _refuse_outputs(self.live, self.row, self.tape)
        return raw, sent

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


def _arrays(sent):
    """Arrays without axes, where a Box of shape () has them as members."""
    return [np.array(action) for action in sent]


def _refuse_outputs(live, row, tape):
    """The policy put out something that is not finite: whose fault is it?"""
    for run in live.values():
        for array in tape.observations:
            _check_observations(array[run.begin : row + 1, run.slot], run)
    raise FloatingPointError(
        "The policy's outputs are not finite, although its observations and weights "
        "are: it overflows. No action was taken. Train with a smaller learning rate or "
        "`global_clipnorm`, or set normalize_observations=True."
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


def _record(runs, tape, structure):
    """The runs as columns, in the order of their start."""
    lengths = np.array([run.length for run in runs], "int32")
    rows, count = lengths.max(), len(runs)

    def columns(array, rows):
        return np.zeros((rows, count, *array.shape[2:]), array.dtype)

    observations = [columns(array, rows + 1) for array in tape.observations]
    actions, rewards = columns(tape.actions, rows), columns(tape.rewards, rows)
    for b, run in enumerate(runs):
        here = (slice(run.begin, run.begin + run.length), run.slot)
        for to, array, last in zip(observations, tape.observations, run.last):
            to[: run.length, b] = array[here]
            to[run.length, b] = last
        actions[: run.length, b] = tape.actions[here]
        rewards[: run.length, b] = tape.rewards[here]
        for array in observations:
            _check_observations(array[: run.length + 1, b], run)
        _check_finite("reward", rewards[: run.length, b], run)
    observations = keras.tree.pack_sequence_as(structure, observations)
    terminated = np.array([run.ending.terminated for run in runs])
    success = [run.ending.success for run in runs]
    return Collected(
        records.Episodes(observations, actions, rewards, lengths, terminated),
        np.array([np.nan if s is None else float(s) for s in success]),
    )
