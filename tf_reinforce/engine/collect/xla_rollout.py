"""Collects all episodes of an update in one XLA program, in a tensor environment.

The XLA program stops when the last episode has ended. An update computes gradients from
the episodes that the XLA program returns, and not through the program itself.
"""

import contextlib
import functools
import math
import os
import re
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import collected
from tf_reinforce.engine.collect import results
from tf_reinforce.engine.collect import shared_programs
from tf_reinforce.envs import checks
from tf_reinforce.envs import legal_actions

_MIN_SHARD_EPISODES = 16  # with fewer, a thread waits longer than it computes


class RolloutResult(NamedTuple):
    """The episodes that an XLA program collects, and their returns, as tensors."""

    episodes: records.Episodes  # rows after the last step of an episode are padding
    episode_returns: tf.Tensor  # [B] float64, the sums of the rewards, added in order
    valid: tf.Tensor  # [B] bool: outputs, observations and rewards were all valid


class _Carry(NamedTuple):
    """The loop variables of the XLA program, which contain the state of all episodes."""

    step: tf.Tensor  # scalar int32, the number of the step
    env_state: object  # the states of the environment
    observation: object  # observations in the types of the policy
    policy_state: list  # the recurrent states of the policy
    mask: list  # the action masks [B, M] int8, or an empty list without masks
    active: tf.Tensor  # [B] bool: the episode has not ended
    lengths: tf.Tensor  # [B] int32, the steps of each episode so far
    terminated: tf.Tensor  # [B] bool: the episode has terminated
    episode_returns: tf.Tensor  # [B] float64, the sums of rewards so far
    valid: tf.Tensor  # [B] bool: all values so far are valid
    arrays: list  # TensorArrays: observations, raw actions, rewards, action masks


class Rollout:
    """Runs `count` episodes of a tensor environment at once.

    The episodes are divided into equal shards, at most one for each thread. Each shard is
    a call of the same XLA program. An episode depends only on its number and the keys of
    the random numbers, and not on the other episodes.

    Args:
        batched_env: `batched_tensor_env.BatchedTensorEnv`.
        actor: `actor.ActorPolicy`.
        count: Int, the number of episodes of each agent.
        deterministic: Bool, whether to select the most likely actions instead of random
            actions.
        group_size: Int, the number of consecutive episodes whose environments receive the
            same noise.
        recorded: Bool, whether to record all steps. With `recorded=False`, observations,
            actions and rewards are `None`, and the result contains only returns, lengths,
            `terminated` and `valid`.
        stacked_weights: List of variables `[K, …]` with the weights of `K` agents, one
            for each of the actor's variables. The result contains the episodes of the
            first agent, then those of the second, and so on. `stacked_weights=None` runs
            one agent with the actor's own variables.

    Attributes:
        masks: `legal_actions.MaskInGraph`, or `None` without action masks.
        num_agents: Int, the number of agents, `K`.
        num_shards: Int, the number of shards, into which the episodes are divided.

    Raises:
        ValueError: If the agent reads action masks and the environment has none, if the
            environment has no time limit, or if the recorded steps do not fit into the
            memory of the machine.
    """

    def __init__(
        self,
        batched_env,
        actor,
        count,
        *,
        deterministic=False,
        group_size=1,
        recorded=True,
        stacked_weights=None,
    ):
        if batched_env.max_episode_steps is None:
            raise ValueError(
                f"{batched_env.env!r} states no time limit. The compiled engine "
                "requires a time limit, because it waits until all episodes have "
                "ended. Set the attribute `max_episode_steps` of the environment, or "
                "pass `max_episode_steps` to `fit`, `evaluate` or `collect`."
            )
        self.batched_env = batched_env
        self.actor = actor
        self.masks = None
        if actor.mask_source is not None:
            self.masks = legal_actions.MaskInGraph(
                batched_env.env, actor.mask_source, actor.head.mask_layout
            )
        self.count = count
        self.deterministic = deterministic
        self.group_size = group_size
        self.recorded = recorded
        self.stacked_weights = stacked_weights
        is_stacked = stacked_weights is not None
        self.num_agents = stacked_weights[0].shape[0] if is_stacked else 1
        self.num_shards = 1 if is_stacked else _num_shards(count, group_size)
        self._variables = stacked_weights if is_stacked else actor.variables
        if recorded:
            self._check_size()

    def _check_size(self):
        """Raises `ValueError` if the arrays of the steps exceed the physical memory.

        The XLA program reserves rows for the longest possible episode. Collecting takes
        1.5 times the memory of the arrays (measured with 150,000 episodes), and the
        update copies the valid steps. Therefore the arrays are counted twice.
        """
        limit, episodes = self.batched_env.max_episode_steps, self.num_agents * self.count
        bytes_per_step = sum(
            leaf.dtype.size * max(leaf.shape.num_elements(), 1)
            for leaf, _ in self._array_specs()
        )
        needed, available = 2 * bytes_per_step * limit * episodes, total_ram()
        if needed > available:
            raise ValueError(
                f"The compiled engine would keep {episodes:,} episodes of up to "
                f"{limit:,} steps in memory, which takes {needed:,} bytes. Expected: at "
                f"most the memory of this machine, {available:,} bytes. Pass a smaller "
                "`episodes_per_epoch` or `max_episode_steps`, or train on the Gymnasium "
                "environment, `agent.fit(id, …)`."
            )

    def __call__(self, keys, weights=None):
        """Runs the episodes, and returns a `RolloutResult`.

        Args:
            keys: uint32 tensor `[3, 2]`, the keys of the random numbers from
                `seeding.episode_keys`, or `[K, 3, 2]` for `K` agents.
            weights: List of arrays, the weights that act, by default the current ones.
        """
        keys = tf.reshape(keys, [self.num_agents, 3, 2])
        shard_size = self.count // self.num_shards
        weights = self._variables if weights is None else weights
        weights = list(map(tf.convert_to_tensor, weights))
        shards = [
            self.program(keys, tf.constant(shard * shard_size), *weights)
            for shard in range(self.num_shards)
        ]
        return shards[0] if self.num_shards == 1 else _concatenate(shards)

    @property
    def episodes_per_shard(self):
        """Returns the number of episodes of all agents in one shard."""
        return self.num_agents * self.count // self.num_shards

    @functools.cached_property
    def program(self):
        """Returns the XLA program of a shard, a concrete TensorFlow function.

        Rollouts share an equal program. It reads the weights from its arguments.
        """
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        keys = tf.TensorSpec((self.num_agents, 3, 2), tf.uint32)
        specs = [keys, tf.TensorSpec((), tf.int32), *specs]
        # Each rollout has its own partial. Otherwise TensorFlow counts the tracing of
        # another rollout as a retracing of the same function, and warns.
        return shared_programs.shared(functools.partial(self._run), specs)

    def _run(self, keys, first, *weights):
        """Runs the shard whose first episode has the number `first`."""
        limit, shard_size = (
            self.batched_env.max_episode_steps,
            self.count // self.num_shards,
        )
        numbers = tf.tile(first + tf.range(shard_size), [self.num_agents])
        keys = tf.repeat(keys, shard_size, axis=0)  # for each episode
        last = tf.while_loop(
            lambda carry: (carry.step < limit) & tf.reduce_any(carry.active),
            lambda carry: [self._step(carry, weights, numbers, keys)],
            [self._initial_carry(weights, numbers, keys)],
            maximum_iterations=limit,
        )[0]
        stacked = [array.stack() for array in last.arrays]
        split = len(keras.tree.flatten(self.actor.observation_spec))
        observations = actions = rewards = None
        masks = tf.zeros([limit, self.episodes_per_shard, 0], tf.int8)
        if self.recorded and self.masks is not None:
            *stacked, masks = stacked
        if self.recorded:
            pack = keras.tree.pack_sequence_as
            observations = pack(self.actor.observation_spec, stacked[:split])
            actions = pack(self.actor.action_spec, stacked[split:-1])
            rewards = stacked[-1]
        record = observations, actions, rewards, last.lengths, last.terminated, masks
        return RolloutResult(records.Episodes(*record), last.episode_returns, last.valid)

    def _initial_carry(self, weights, numbers, keys):
        env, count = self.batched_env.env, self.episodes_per_shard
        noise = self._env_noise(env.initial_noise, keys[:, 0], numbers, 0)
        state = env.initial(noise)
        observation, mask, valid = self._observe(state)
        arrays = self._empty_arrays() if self.recorded else []
        leaves = keras.tree.flatten(observation)
        split = len(leaves)
        return _Carry(
            step=tf.constant(0),
            env_state=state,
            observation=observation,
            policy_state=self._initial_policy_state(weights),
            mask=mask,
            active=tf.ones([count], tf.bool),
            lengths=tf.zeros([count], tf.int32),
            terminated=tf.zeros([count], tf.bool),
            episode_returns=tf.zeros([count], tf.float64),
            valid=valid,
            arrays=_write(arrays[:split], 0, leaves) + arrays[split:],
        )

    def _step(self, carry, weights, numbers, keys):
        """Makes one step of every episode, and ignores the steps of ended episodes."""
        env, actor = self.batched_env.env, self.actor
        noise = [] if self.deterministic else self._noise(keys[:, 2], numbers, carry.step)
        raw_actions, finite, policy_state = self._select_actions(
            weights, carry.observation, carry.policy_state, noise, carry.mask
        )
        action = checks.cast_actions(env, actor.head.to_environment(raw_actions))
        env_noise = self._env_noise(env.transition_noise, keys[:, 1], numbers, carry.step)
        state = env.transition(carry.env_state, action, env_noise)
        reward = tf.cast(env.reward(carry.env_state, action, state), tf.float64)
        reward = tf.where(carry.active, reward, 0.0)
        terminal = env.terminal(state)
        observation, mask, valid = self._observe(state)
        arrays = carry.arrays
        if self.recorded:
            leaves, actions = map(keras.tree.flatten, (observation, raw_actions))
            row = [*actions, reward, *carry.mask]
            arrays = [
                *_write(arrays[: len(leaves)], carry.step + 1, leaves),
                *_write(arrays[len(leaves) :], carry.step, row),
            ]
        valid = finite & valid & tf.math.is_finite(reward)
        if carry.mask:
            valid &= self.masks.has_legal_action(*carry.mask)
        return _Carry(
            step=carry.step + 1,
            env_state=state,
            observation=observation,
            policy_state=policy_state,
            mask=mask,
            active=carry.active & ~terminal,
            lengths=carry.lengths + tf.cast(carry.active, tf.int32),
            terminated=carry.terminated | (carry.active & terminal),
            episode_returns=carry.episode_returns + reward,
            valid=carry.valid & (valid | ~carry.active),
            arrays=arrays,
        )

    def _array_specs(self):
        """Returns pairs of the spec of one episode's row, and the number of rows."""
        actor, limit = self.actor, self.batched_env.max_episode_steps
        observation, action = map(
            keras.tree.flatten, (actor.observation_spec, actor.action_spec)
        )
        pairs = [(leaf, limit + 1) for leaf in observation]
        row = [*action, tf.TensorSpec((), tf.float64)]
        if self.masks is not None:
            row.append(tf.TensorSpec((self.masks.size,), tf.int8))
        return pairs + [(x, limit) for x in row]

    def _empty_arrays(self):
        count = self.episodes_per_shard
        return [
            tf.TensorArray(leaf.dtype, rows, element_shape=(count, *leaf.shape))
            for leaf, rows in self._array_specs()
        ]

    def _initial_policy_state(self, weights):
        """Returns the recurrent states of the policy before the first step."""
        count = self.episodes_per_shard // self.num_agents
        return self._for_each_agent(weights, lambda: self.actor.initial_state(count))

    def _select_actions(self, weights, *inputs):
        """Selects the actions of all episodes at one step.

        Returns:
            The raw actions (as sampled, not yet converted for the environment), whether
            the policy outputs of each episode are finite, and the next recurrent states.
        """
        return self._for_each_agent(weights, self._select_agent_actions, *inputs)

    def _for_each_agent(self, weights, function, *inputs):
        """Calls a function for every agent, with the weights and inputs of the agent.

        `_for_each_agent` receives and returns tensors `[K · count, …]`, for K agents with
        `count` episodes each. The argument `function` receives and returns tensors
        `[count, …]` of one agent.
        """

        def call(agent):
            agent_weights, agent_inputs = agent
            pairs = list(zip(self.actor.variables, agent_weights, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return function(*agent_inputs)

        if self.stacked_weights is None:
            return call((weights, inputs))
        leading_shape = self.num_agents, self.count

        def split(x):
            return tf.reshape(x, [*leading_shape, *x.shape[1:]])

        def merge(x):
            return tf.reshape(x, [self.episodes_per_shard, *x.shape[2:]])

        agents = list(weights), keras.tree.map_structure(split, inputs)
        outputs = tf.vectorized_map(call, agents, fallback_to_while_loop=False)
        return keras.tree.map_structure(merge, outputs)

    def _select_agent_actions(self, observation, policy_state, noise, mask):
        """Selects the actions of one agent; `_select_actions` describes the results."""
        outputs, masked_outputs, policy_state = self.actor.outputs(
            observation, mask[0] if mask else None, policy_state
        )
        raw_actions = self.actor.select_actions(
            masked_outputs, None if self.deterministic else noise
        )
        return (
            raw_actions,
            tf.reduce_all(tf.math.is_finite(outputs), axis=-1),
            policy_state,
        )

    def _observe(self, state):
        """Returns observations in the policy's types, masks, and whether both are valid.

        The masks are a list of one tensor, or an empty list without masks.
        """
        observation = self.batched_env.env.observation(state)
        cast = keras.tree.map_structure(
            lambda leaf, tensor: tf.cast(tensor, leaf.dtype),
            self.actor.observation_spec,
            observation,
        )
        valid = checks.is_valid_observation(self.batched_env.env, observation)
        if self.masks is None:
            return cast, [], valid
        mask = self.masks.flat(state, observation, self.episodes_per_shard)
        return cast, [mask], valid

    def _env_noise(self, spec, keys, numbers, step):
        """Returns the environments' noise; `group_size` consecutive episodes share it."""
        if spec is None:
            return None
        groups, dtype = numbers // self.group_size, self.batched_env.env.dtype
        return tensor_noise.counter_noise(keys, [spec], groups, step, dtype)[0]

    def _noise(self, keys, numbers, step):
        """Returns a list of tensors, the noise for the actions."""
        specs, dtype = self.actor.noise_specs, self.actor.dtype
        return tensor_noise.counter_noise(keys, specs, numbers, step, dtype)


def total_ram():
    """Returns the memory of the machine in bytes, or infinity if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # an operating system without sysconf
        return math.inf


def num_threads():
    """Returns the number of operations that TensorFlow can run in parallel."""
    return tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count()


def _num_shards(count, group_size):
    """Returns how many equal shards `count` episodes form, at most one per thread."""
    candidates = [
        shards
        for shards in range(1, num_threads() + 1)
        if count % (shards * group_size) == 0 and count // shards >= _MIN_SHARD_EPISODES
    ]
    return max(candidates, default=1)


def _concatenate(shards):
    """Joins the `RolloutResult`s of all shards in the order of the episodes."""
    parts = [shard.episodes for shard in shards]
    ends = zip(*((part.lengths, part.terminated) for part in parts), strict=True)
    record = records.Episodes(None, None, None, *(tf.concat(x, 0) for x in ends))
    if parts[0].rewards is not None:
        rows = tf.reduce_max(record.lengths)
        record = records.concatenate([records.trim(part, rows) for part in parts])
    columns = zip(
        *((shard.episode_returns, shard.valid) for shard in shards), strict=True
    )
    return RolloutResult(record, *(tf.concat(x, 0) for x in columns))


def _write(arrays, row, values):
    return [array.write(row, x) for array, x in zip(arrays, values)]


def collect(rollout, key, weights=None):
    """Collects whole episodes in a tensor environment.

    Args:
        rollout: `Rollout` that runs the episodes.
        key: `seeding.StreamKey` of the random numbers.
        weights: Argument of `Rollout.__call__`.

    Returns:
        `collected.CollectedEpisodes` of NumPy arrays, with the `RolloutResult`. All
        seconds count as `"acting"`, because one XLA program selects actions and steps the
        environment.

    Raises:
        EnvironmentFault: If a reward, an observation or an action mask is invalid.
        FloatingPointError: If the policy's outputs are not finite.
    """
    start = time.perf_counter()
    with explain_compile_errors():
        result = rollout(seeding.episode_keys(seeding.rollout_keys(*key)), weights)
    episodes = check_result(rollout, result)
    seconds = {"stepping": 0.0, "acting": time.perf_counter() - start}
    success = np.full(rollout.count, np.nan)
    return collected.CollectedEpisodes(episodes, success, seconds, result)


# TensorFlow's messages if an operation cannot be compiled by XLA, or cannot be stacked,
# that is, vectorized over agents. The group is the path of the operation.
_ERROR_PATTERNS = {
    "compiled": r"unsupported operations.*\{\{node (?:while/)?([^}]+)\}\}",
    "stacked": r'No pfor vectorization[^"]*name: "(?:loop_body/)?([^"]+)"',
    "stacked, having several filters,": r"op '(\w+)' expected to be loop invariant",
}


@contextlib.contextmanager
def explain_compile_errors(
    remedy="Train on the Gymnasium environment, `agent.fit(id, …)`",
):
    """Replaces an XLA or vectorization error by an error that names the layer.

    Args:
        remedy: String, what the user can do, without a period.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        matches = {
            transformation: re.search(pattern, str(error))
            for transformation, pattern in _ERROR_PATTERNS.items()
        }
        matches = [
            (transformation, match[1])
            for transformation, match in matches.items()
            if match
        ]
        if not matches:
            raise
        transformation, path = matches[0]
        *scopes, operation = path.split("/")
        name = f"The layer `{scopes[-1]}`" if scopes else "A part of the program"
        raise ValueError(
            f"{name} cannot be {transformation} because of its operation {operation!r}. "
            f"{remedy}, or write the layer with other operations. Received: {path}"
        ) from error


def check_result(rollout, result):
    """Returns the episodes as NumPy arrays, trimmed to the longest episode.

    Raises:
        EnvironmentFault: If a reward, an observation or an action mask is invalid.
        FloatingPointError: If the policy's outputs are not finite.
    """
    rows = int(tf.reduce_max(result.episodes.lengths))
    trimmed = records.trim(result.episodes)
    episodes = keras.tree.map_structure(lambda tensor: tensor.numpy(), trimmed)
    observations = keras.tree.flatten(episodes.observations)
    leaves = keras.tree.flatten(spaces.to_nest(rollout.batched_env.observation_space))
    columns = [("observation", *x) for x in zip(observations, leaves, strict=True)]
    is_step = np.arange(rows + 1)[:, None] <= episodes.lengths
    if rollout.masks is not None:  # without a legal action, the next state is arbitrary
        _check_masks(rollout.masks, episodes.masks, is_step[1:])
    for name, values, space in [*columns, ("reward", episodes.rewards, None)]:
        first = len(values) - rows  # 1 for observations: row 0 precedes the first step
        invalid = np.argwhere(is_step[1 - first :] & ~_is_valid(values, space))
        if len(invalid):
            row, episode = invalid[0].tolist()
            where = f"step {row - first}: the" if row >= first else "the first"
            is_float = values.dtype.kind == "f"
            raise results.EnvironmentFault(
                f"Episode {episode}, {where} {name} is "
                f"{'not finite' if is_float else f'not in {space}'}: "
                f"{values[row, episode]}. The agent did not learn from the failed "
                "batch. Correct the environment."
            )
    if not tf.reduce_all(result.valid):
        raise FloatingPointError(
            "The policy's outputs are not finite, although its observations are "
            "finite. The agent did not learn from the failed batch. "
            f"{results.OUTPUTS_REMEDY}"
        )
    return episodes


def _check_masks(masks_in_graph, masks, is_step):
    """Raises `EnvironmentFault` unless the masks `[T, B, M]` of all steps are valid."""
    rows = tf.reshape(masks, [-1, masks.shape[-1]])
    valid = masks_in_graph.has_legal_action(rows).numpy().reshape(is_step.shape)
    invalid = np.argwhere(is_step & ~valid)
    if len(invalid):
        step, episode = invalid[0].tolist()
        mask = masks[step, episode].tolist()
        raise results.EnvironmentFault(
            f"{masks_in_graph.env!r}, episode {episode}, step {step}: the action mask "
            "has no legal action, or an invalid entry, which is shown as -1. Expected: "
            "for each choice, at least one entry that is not zero; for each flag, 0, 1 "
            f"or 2. Received: {mask}. The agent did not learn from the failed batch. End "
            "the episode if no action is legal."
        )


def _is_valid(values, space):
    """Returns whether floats are finite, and whether categories are in the space.

    The result is a bool array `[T, B]`, for T steps of B episodes.
    """
    if values.dtype.kind == "f":
        valid = np.isfinite(values)
    else:
        low, high = spaces.category_bounds(space) or (values.min(), values.max())
        valid = (low <= values) & (values <= high)
    return valid.reshape(*values.shape[:2], -1).all(-1)
