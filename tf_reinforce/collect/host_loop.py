"""Plays whole episodes in batched environments, in the order in which they start.

Exactly E episodes are started, and all E are finished and used. Using the first E that
*finish* would prefer short episodes.
"""

import math
import time

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.collect import buffers
from tf_reinforce.collect import env_outputs
from tf_reinforce.collect import results
from tf_reinforce.collect import scheduler
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces


def _unbatch_actions(space):
    """A function from what all slots send, a list of arrays, to one action for each."""
    nested = spaces.to_nest(space)
    leaves = keras.tree.flatten(nested)
    unpack = [_leaf_unbatcher(leaf) for leaf in leaves]
    if nested is leaves[0]:
        return lambda sent: unpack[0](sent[0])
    places = keras.tree.pack_sequence_as(nested, list(range(len(leaves))))

    def pack(sent):
        columns = [of_part(part) for of_part, part in zip(unpack, sent, strict=True)]
        return [_packed(places, parts) for parts in zip(*columns, strict=True)]

    return pack


def _leaf_unbatcher(leaf):
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
    envs, decision, act, *, seed, purpose, update, episodes, steps,
    deterministic=False, group_size=1,
):  # fmt: skip
    """Plays whole episodes.

    Args:
        envs: `batched_envs.BatchedEnvs`, prepared.
        decision: `actor.ActorPolicy`, what acts.
        act: See `acting_program.ActingProgram.rows`.
        seed: Int, the master seed.
        purpose: `"training"`, `"validation"` or `"evaluation"`.
        update: Int. Episode e of update u is a function of (seed, purpose, u, e).
        episodes: Positive int, how many to play, or `None`.
        steps: Positive int instead: the fewest episodes, in the order of their
            start, that have so many steps together.
        deterministic: Bool. True takes the most likely action and needs no noise.
        group_size: Int, how many episodes in a row begin with the same seed.

    Returns:
        `CollectedEpisodes`.

    Raises:
        EnvironmentFault: at the first wrong answer; nothing is returned.
        OutputsNotFinite: when the policy's outputs are not finite.
    """
    began = time.perf_counter()
    columns, stepping = _run(
        envs,
        decision,
        act,
        scheduler.EpisodeScheduler(episodes, steps),
        seeding.EpisodeSeeds(seed, purpose, update, group_size),
        initial_states(decision, envs.size),
        deterministic,
    )
    seconds = {"stepping": stepping, "acting": time.perf_counter() - began - stepping}
    return results.CollectedEpisodes(
        results.to_episodes(columns, decision), columns.success, seconds
    )


def collect_share(
    envs, decision, act, initial, claim, most,
    *, seed, purpose, update, deterministic, group_size,
):  # fmt: skip
    """Plays what `claim` gives, as `collect` does; calls no TensorFlow operation.

    Args:
        initial: See `beginning`.
        claim, most: See `_Share`.

    Returns:
        `EpisodeArrays`, which may be of no episodes, and the seconds in the environments.
    """
    seeds = seeding.EpisodeSeeds(seed, purpose, update, group_size)
    queue = scheduler.SharedScheduler(claim, most)
    return _run(envs, decision, act, queue, seeds, initial, deterministic)


def initial_states(decision, size):
    """The states of a policy when episodes begin, a list of arrays `[size, …]`."""
    return [np.array(state) for state in decision.initial_state(size)]


def _run(envs, decision, act, queue, seeds, initial, deterministic):
    noise = [] if deterministic else decision.noise
    collection = _CollectionLoop(envs, decision, queue, noise, seeds, initial)
    try:
        runs = collection.run(act)
    except env_outputs.EnvFault as fault:
        where = collection.where(fault.slot)
        raise results.EnvironmentFault(f"{where}: {fault}.") from fault.__cause__
    return results.episode_arrays(runs, collection.tape), collection.stepping


class _CollectionLoop:
    """The loop: which episode runs in which slot, and what was written down."""

    def __init__(self, envs, decision, queue, noise, seeds, initial):
        self.envs = envs
        self.queue = queue
        self.seeds = seeds
        observed = keras.tree.flatten(decision.observation_spec)
        if decision.mask_source:
            observed.append(tf.TensorSpec((decision.mask_size,), tf.int8))
        self.tape = buffers.StepBuffer(
            envs.size, observed, keras.tree.flatten(decision.action_spec)
        )
        self.parts = range(len(noise))
        self.noise = buffers.NoiseBuffer(envs.size, noise, decision.dtype)
        self.memory = buffers.RecurrentStates(initial)
        self.masked_head = decision.head if decision.mask_source else None
        self.live = {}  # runs by slot, in the order of their start
        self.idle = list(range(envs.size))
        self.row = 0
        self.deadline = 0  # no episode is overdue before this row
        self.stepping = 0.0  # seconds in the environments, their resets included

    def run(self, act):
        """Steps all slots in turn until the queue has enough; returns its runs."""
        envs, tape, noise, live = self.envs, self.tape, self.noise, self.live
        memory, row = self.memory.arrays, 0
        clock, stepping = time.perf_counter, 0.0
        as_actions = _unbatch_actions(envs.action_space)
        observations = tape.rows(0)
        envs.reset(self.seeds.environment(0), observations)
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
            endings = envs.step(actions, observations, rewards, live, cut)
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
        choice = self.masked_head.has_legal_action(masks)
        for slot in self.live if not choice.all() else ():
            if not choice[slot]:
                raise env_outputs.EnvFault(
                    slot,
                    "the mask leaves no legal action, or there is none. Expected: at "
                    f"least one that is not zero. Received: {masks[slot].tolist()}. End "
                    "the episode where nothing can be done",
                )

    def _overdue(self, row):
        """The slots whose episodes will have lasted as long as they may."""
        limit = self.envs.limit
        return [slot for slot, run in self.live.items() if row - run.begin >= limit]

    def _begin_episodes(self, observations):
        for slot in sorted(filter(self.envs.ready, self.idle)):
            if not self.queue.wants(self.row):
                self.idle.clear()  # what is wanted never grows: these slots are done
                break
            run = self.live[slot] = self.queue.start(self.row, slot)
            run.generators = [self.seeds.action(run.number, i) for i in self.parts]
            self.memory.begin(slot)
            self.idle.remove(slot)
            began = time.perf_counter()
            self.envs.begin(slot, self.seeds.environment(run.number), observations)
            self.stepping += time.perf_counter() - began
            self.noise.begin(run, self.row)
        # Runs stand in the order of their start: the first is the oldest.
        oldest = next(iter(self.live.values()), None)
        self.deadline = math.inf if oldest is None else oldest.begin + self.envs.limit

    def _without_idle(self, act, inputs):
        """Acts anew when something was not finite: idle slots may hold anything."""
        idle = [slot for slot in range(self.envs.size) if slot not in self.live]
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
            results._check_observations(array[run.begin : row + 1, run.slot], run)
    raise results.OutputsNotFinite(
        "The policy's outputs are not finite, although its observations and weights "
        "are: it overflows. No action was taken. Train with a smaller learning rate or "
        "`global_clipnorm`, or set normalize_observations=True.",
        [np.array(array) for array in inputs],
    )
