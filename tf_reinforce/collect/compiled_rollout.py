"""Plays all episodes of an update in one XLA program, in a tensor environment.

The program stops when the last episode has ended. No gradient passes through it: an
update learns from the record that it returns.
"""

import contextlib
import functools
import os
import re
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.collect import results
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.envs import checks

_FEWEST = 16  # episodes for a thread: with fewer it has less to do than to wait for


class RolloutResult(NamedTuple):
    """What a rollout brings home, as tensors."""

    episodes: records.Episodes  # rows behind the last step of an episode are padding
    returns: tf.Tensor  # [B] float64, the sums of the rewards in their order
    sound: tf.Tensor  # [B] bool: whether outputs, observations and rewards were in order


class _Carry(NamedTuple):
    """Where all episodes stand, between two steps."""

    step: tf.Tensor  # scalar int32
    state: object  # of the environment
    observation: object  # of that state, in the types of the policy
    memory: list  # of the policy
    alive: tf.Tensor  # [B] bool
    lengths: tf.Tensor  # [B] int32
    terminated: tf.Tensor  # [B] bool
    returns: tf.Tensor  # [B] float64
    sound: tf.Tensor  # [B] bool
    tapes: list  # TensorArrays: observations, raw actions, rewards


class Rollout:
    """Plays `count` episodes of a world at once, with the weights of the moment.

    What an episode is depends on its number and the keys alone, not on how many run
    beside it. So they are dealt to as many threads as there are, by the same program.

    Args:
        world: `tensor_envs.TensorEnvs`.
        decision: `actor.ActorPolicy`.
        count: Int, how many episodes an agent plays.
        greedy: Bool. True takes the most likely actions.
        group_size: Int, how many episodes in a row begin alike.
        recorded: Bool. False keeps returns, lengths and endings, and nothing else.
        stacks: List of variables `[K, …]`, for each of the decision's variables the
            values that K agents have; all of them play, one after another in `B`, the
            axis of the episodes. `None`: one agent, with the variables themselves.

    Raises:
        ValueError: when the agent reads masks, or nothing limits the episodes.
    """

    def __init__(
        self,
        world,
        decision,
        count,
        *,
        greedy=False,
        group_size=1,
        recorded=True,
        stacks=None,
    ):
        if decision.mask_source is not None:
            raise ValueError(
                "The compiled engine knows no masks of illegal actions. Received: "
                f"action_mask={decision.mask_source.where!r}. Train on the host: "
                "`agent.fit(env.as_gymnasium(num_envs), …)`."
            )
        if world.limit is None:
            raise ValueError(
                f"{world.env!r} states no time limit, and an episode that never ends "
                "would never be learned from. Set its `max_episode_steps`, or pass "
                "`max_episode_steps` to `fit`, `evaluate` or `collect`."
            )
        self.world = world
        self.decision = decision
        self.count = count
        self.greedy = greedy
        self.group_size = group_size
        self.recorded = recorded
        self.stacks = stacks
        self.agents = 1 if stacks is None else stacks[0].shape[0]
        self.parts = _num_shards(count, group_size) if stacks is None else 1
        # A partial of its own, lest TensorFlow take each rollout for a retracing.
        self.graph = tf.function(
            functools.partial(self._played),
            input_signature=[
                tf.TensorSpec((self.agents, 3, 2), tf.uint32),
                tf.TensorSpec((), tf.int32),
            ],
            jit_compile=True,
            autograph=False,
        )

    def __call__(self, keys):
        """Plays; `keys` are `[3, 2]`, or `[K, 3, 2]`, see `seeding.rollout_keys`."""
        keys = tf.reshape(keys, [self.agents, 3, 2])
        each = self.count // self.parts
        played = [self.graph(keys, part * each) for part in range(self.parts)]
        return played[0] if self.parts == 1 else _concatenate(played)

    @property
    def episodes(self):
        """How many episodes one part of them has."""
        return self.agents * self.count // self.parts

    def _played(self, keys, first):
        limit, each = self.world.limit, self.count // self.parts
        numbers = tf.tile(first + tf.range(each), [self.agents])
        keys = tf.repeat(keys, each, axis=0)  # for each episode
        last = tf.while_loop(
            lambda now: (now.step < limit) & tf.reduce_any(now.alive),
            lambda now: [self._stepped(now, numbers, keys)],
            [self._begun(numbers, keys)],
            maximum_iterations=limit,
        )[0]
        columns = [tape.stack() for tape in last.tapes]
        seen = len(keras.tree.flatten(self.decision.observation_spec))
        observations = actions = rewards = None
        if self.recorded:
            nested = keras.tree.pack_sequence_as
            observations = nested(self.decision.observation_spec, columns[:seen])
            actions = nested(self.decision.action_spec, columns[seen:-1])
            rewards = columns[-1]
        masks = tf.zeros([limit, self.episodes, 0], tf.int8)
        record = observations, actions, rewards, last.lengths, last.terminated, masks
        return RolloutResult(records.Episodes(*record), last.returns, last.sound)

    def _begun(self, numbers, keys):
        env, count = self.world.env, self.episodes
        state = env.initial(self._chance(env.initial_noise, keys[:, 0], numbers, 0))
        observation, fine = self._observed(state)
        tapes = self._tapes() if self.recorded else []
        seen = keras.tree.flatten(observation)
        return _Carry(
            step=tf.constant(0),
            state=state,
            observation=observation,
            memory=self._first_states(),
            alive=tf.ones([count], tf.bool),
            lengths=tf.zeros([count], tf.int32),
            terminated=tf.zeros([count], tf.bool),
            returns=tf.zeros([count], tf.float64),
            sound=fine,
            tapes=_write(tapes[: len(seen)], 0, seen) + tapes[len(seen) :],
        )

    def _stepped(self, now, numbers, keys):
        """One step of every episode; those that are over walk on unseen."""
        env, decision = self.world.env, self.decision
        noise = [] if self.greedy else self._noise(keys[:, 2], numbers, now.step)
        raw, finite, memory = self._decided(now.observation, now.memory, noise)
        action = checks.cast_actions(env, decision.head.to_environment(raw))
        chance = self._chance(env.transition_noise, keys[:, 1], numbers, now.step)
        state = env.transition(now.state, action, chance)
        reward = tf.cast(env.reward(now.state, action, state), tf.float64)
        reward = tf.where(now.alive, reward, 0.0)
        over = env.terminal(state)
        observation, fine = self._observed(state)
        tapes = now.tapes
        if self.recorded:
            seen, done = map(keras.tree.flatten, (observation, raw))
            tapes = [
                *_write(tapes[: len(seen)], now.step + 1, seen),
                *_write(tapes[len(seen) :], now.step, [*done, reward]),
            ]
        sound = finite & fine & tf.math.is_finite(reward)
        return _Carry(
            step=now.step + 1,
            state=state,
            observation=observation,
            memory=memory,
            alive=now.alive & ~over,
            lengths=now.lengths + tf.cast(now.alive, tf.int32),
            terminated=now.terminated | (now.alive & over),
            returns=now.returns + reward,
            sound=now.sound & (sound | ~now.alive),
            tapes=tapes,
        )

    def _tapes(self):
        count, limit, decision = self.episodes, self.world.limit, self.decision
        seen, done = map(
            keras.tree.flatten, (decision.observation_spec, decision.action_spec)
        )
        specs = [(leaf, limit + 1) for leaf in seen]
        specs += [(leaf, limit) for leaf in (*done, tf.TensorSpec((), tf.float64))]
        return [
            tf.TensorArray(leaf.dtype, rows, element_shape=(count, *leaf.shape))
            for leaf, rows in specs
        ]

    def _first_states(self):
        """The states of the policy when episodes begin: a cell may have learned them."""
        if self.stacks is None:
            return self.decision.initial_state(self.episodes)
        return self._of_each_agent(lambda: self.decision.initial_state(self.count), ())

    def _decided(self, *given):
        """Raw actions, whether the outputs were finite, and what is remembered next."""
        if self.stacks is None:
            return self._decide(*given)
        return self._of_each_agent(self._decide, given)

    def _of_each_agent(self, function, given):
        """A function of an agent's own rows of `given`, with its weights, for all agents.

        Structures of `[K · count, …]` tensors go in and come out.
        """
        shape = self.agents, self.count

        def apart(x):
            return tf.reshape(x, [*shape, *x.shape[1:]])

        def together(x):
            return tf.reshape(x, [self.episodes, *x.shape[2:]])

        def one(values):
            weights, mine = values
            pairs = list(zip(self.decision.variables, weights, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return function(*mine)

        weights = [stack.read_value() for stack in self.stacks]
        mine = keras.tree.map_structure(apart, given)
        found = tf.vectorized_map(one, (weights, mine), fallback_to_while_loop=False)
        return keras.tree.map_structure(together, found)

    def _decide(self, observation, memory, noise):
        outputs, _, memory = self.decision.outputs(observation, None, memory)
        raw = self.decision.select_actions(outputs, None if self.greedy else noise)
        return raw, tf.reduce_all(tf.math.is_finite(outputs), axis=-1), memory

    def _observed(self, state):
        """What is seen, in the types of the policy; and whether it may be seen."""
        seen = self.world.env.observation(state)
        cast = keras.tree.map_structure(
            lambda leaf, tensor: tf.cast(tensor, leaf.dtype),
            self.decision.observation_spec,
            seen,
        )
        return cast, checks.is_valid_observation(self.world.env, seen)

    def _chance(self, noise, keys, numbers, step):
        """Noise for the world; the episodes of a group share it."""
        if noise is None:
            return None
        begins, dtype = numbers // self.group_size, self.world.env.dtype
        return seeding.counter_noise(keys, [noise], begins, step, dtype)[0]

    def _noise(self, keys, numbers, step):
        parts, dtype = self.decision.noise, self.decision.dtype
        return seeding.counter_noise(keys, parts, numbers, step, dtype)


def num_threads():
    """How many operations TensorFlow runs side by side."""
    return tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count()


def _num_shards(count, group_size):
    """Into how many parts of one size episodes are dealt: at most one for each thread."""
    fitting = [
        parts
        for parts in range(1, num_threads() + 1)
        if count % (parts * group_size) == 0 and count // parts >= _FEWEST
    ]
    return max(fitting, default=1)


def _concatenate(played):
    """What all parts brought home, one part's episodes after the other's."""
    parts = [one.episodes for one in played]
    ends = zip(*((one.lengths, one.terminated) for one in parts), strict=True)
    record = records.Episodes(None, None, None, *(tf.concat(x, 0) for x in ends))
    if parts[0].rewards is not None:
        rows = tf.reduce_max(record.lengths)
        record = records.concatenate([records.trim(one, rows) for one in parts])
    told = zip(*((one.returns, one.sound) for one in played), strict=True)
    return RolloutResult(record, *(tf.concat(x, 0) for x in told))


def _write(tapes, row, values):
    return [tape.write(row, x) for tape, x in zip(tapes, values)]


def collect(rollout, *, seed, purpose, update):
    """Plays whole episodes, as `host_loop.collect` does.

    Returns:
        `RolloutResult`, and the same episodes as `results.CollectedEpisodes` of NumPy
        arrays. All seconds count as `"acting"`: those of the environment are unknown.

    Raises:
        EnvironmentFault: when a reward or an observation is no such thing.
        FloatingPointError: when the policy's outputs are not finite.
    """
    began = time.perf_counter()
    with explain_compile_errors():
        played = rollout(seeding.rollout_keys(seed, purpose, update)[:3])
    episodes = validate_result(rollout, played)
    seconds = {"stepping": 0.0, "acting": time.perf_counter() - began}
    success = np.full(rollout.count, np.nan)
    return played, results.CollectedEpisodes(episodes, success, seconds)


# How TensorFlow says that an operation cannot be compiled, and that it cannot be stacked.
_REFUSALS = {
    "compiled": r"unsupported operations.*\{\{node (?:while/)?([^}]+)\}\}",
    "stacked": r'No pfor vectorization[^"]*name: "(?:loop_body/)?([^"]+)"',
    "stacked, having several filters,": r"op '(\w+)' expected to be loop invariant",
}


@contextlib.contextmanager
def explain_compile_errors():
    """Says which layer it was, when the policy cannot be compiled or stacked."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        found = {done: re.search(p, str(error)) for done, p in _REFUSALS.items()}
        found = [(done, place[1]) for done, place in found.items() if place]
        if not found:
            raise
        done, place = found[0]
        *scopes, operation = place.split("/")
        culprit = f"The layer `{scopes[-1]}`" if scopes else "A part of the program"
        raise ValueError(
            f"{culprit} cannot be {done} because of its operation {operation!r}. Train "
            "on the host, `agent.fit(id, …)`, or make the layer of other operations. "
            f"Received: {place}"
        ) from error


def validate_result(rollout, played):
    """The episodes as NumPy arrays without spare rows, or what is wrong with them."""
    rows = int(tf.reduce_max(played.episodes.lengths))
    trimmed = records.trim(played.episodes)
    episodes = keras.tree.map_structure(lambda tensor: tensor.numpy(), trimmed)
    seen = keras.tree.flatten(episodes.observations)
    leaves = keras.tree.flatten(spaces.to_nest(rollout.world.observation_space))
    suspects = [("observation", *pair) for pair in zip(seen, leaves, strict=True)]
    happened = np.arange(rows + 1)[:, None] <= episodes.lengths
    for name, values, space in [*suspects, ("reward", episodes.rewards, None)]:
        first = len(values) - rows  # observations have a row 0, which no step made
        wrong = np.argwhere(happened[1 - first :] & ~_is_valid(values, space))
        if len(wrong):
            row, episode = wrong[0].tolist()
            where = f"step {row - first}: the" if row >= first else "the first"
            whole = values.dtype.kind != "f"
            raise results.EnvironmentFault(
                f"Episode {episode}, {where} {name} is "
                f"{f'none of {space}' if whole else 'not finite'}: "
                f"{values[row, episode]}. Nothing was learned from this batch. Repair "
                "the environment."
            )
    if not tf.reduce_all(played.sound):
        raise FloatingPointError(
            "The policy's outputs are not finite, although its observations are: it "
            "overflows. Nothing was learned from this batch. Train with a smaller "
            "learning rate or `global_clipnorm`."
        )
    return episodes


def _is_valid(values, space):
    """`[T, B]` bool: which numbers are finite, or choices of their space."""
    if values.dtype.kind == "f":
        fine = np.isfinite(values)
    else:
        low, high = checks.category_bounds(space) or (values.min(), values.max())
        fine = (low <= values) & (values <= high)
    return fine.reshape(*values.shape[:2], -1).all(-1)
