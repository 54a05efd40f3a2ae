"""Collects an update's episodes in one XLA program, in a tensor environment.

The program stops when the last episode has ended. Gradients do not flow through it, but
are computed afterwards from the returned episodes.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.envs import checks
from tf_reinforce.envs import legal_actions
from tf_reinforce.support import compilation

_PROGRAMS: dict[str, object] = {}  # concrete functions, by their digest

# Attributes that do not change what a function without gradients computes.
_IGNORED_ATTRIBUTES = {"_class", "_gradient_op_type", "_user_specified_name"}
_MIN_SHARD_EPISODES = 16  # with fewer, a thread waits longer than it computes


class BatchedTensorEnv(environments.Environments):
    """Runs all episodes of a collection as one batch, in TensorFlow operations.

    Args:
        env: `envs.TensorEnv` that runs the episodes.
        max_episode_steps: Int, the time limit in steps, by default that of `env`.

    Raises:
        ValueError: If a function of `env` returns a tensor of a wrong shape or type.
    """

    in_graph = True

    def __init__(self, env, max_episode_steps=None):
        checks.check(env)
        self.env = env
        self.max_episode_steps = max_episode_steps or env.max_episode_steps
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def program_key(self, request):
        # Environments with equal constants share a program, because TensorFlow never
        # frees the result of an XLA compilation.
        key = "rollout", checks.constants(self.env), self.max_episode_steps
        return (*key, request.episodes, request.deterministic, request.group_size)

    def make_program(self, actor, request):
        if request.episodes is None:
            raise ValueError(
                "A tensor environment runs a fixed number of episodes at once. Pass "
                "`episodes_per_epoch` or `episodes` instead of a number of steps."
            )
        options = request.deterministic, request.group_size
        return Rollout(self, actor, request.episodes, *options)

    def collect(self, actor, program, request):
        keys = seeding.episode_keys(seeding.rollout_keys(*request.key))
        with explain_compile_errors():
            result = program(keys, request.weights.values)
        episodes = check_result(program, result)
        return environments.CollectedEpisodes(episodes, rollout_result=result)


class RolloutResult(NamedTuple):
    """Episodes from an XLA program, and their returns, as tensors."""

    episodes: records.Episodes  # rows after the last step of an episode are padding
    episode_returns: tf.Tensor  # [B] float64, the sums of the rewards, added in order
    valid: tf.Tensor  # [B] bool: outputs, observations and rewards were all valid


class _Carry(NamedTuple):
    """The XLA program's loop variables, with the state of all episodes."""

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
    arrays: tuple  # TensorArrays: observations, and raw actions, rewards, action masks


@dataclasses.dataclass(eq=False)
class Rollout:
    """Runs `count` episodes of a tensor environment at once.

    The episodes are divided into equal shards, at most one for each thread, and each
    shard is a call of the same XLA program. The division does not change the result,
    because an episode depends only on its number and the random keys, and not on the
    other episodes.

    Args:
        batched_env: `BatchedTensorEnv`.
        actor: `actor.ActorPolicy`.
        count: Int, the number of episodes of each agent.
        deterministic: Bool, whether to select the most likely actions instead of random
            ones.
        group_size: Int, how many consecutive episodes receive the same environment noise.
        stacked_weights: List of variables `[K, …]`, the weights of `K` agents, one for
            each of the actor's variables. The result contains the first agent's episodes,
            then the second's, and so on. `None` runs one agent with the actor's own
            variables.

    Attributes:
        mask_reader: `action_masks.MaskReader`, or `None` without action masks.
        num_agents: Int, `K`.
        num_shards: Int, the number of shards.

    Raises:
        ValueError: If the agent reads action masks and the environment has none, or if
            the environment has no time limit.
    """

    batched_env: BatchedTensorEnv
    actor: Any
    count: int
    deterministic: bool = False
    group_size: int = 1
    stacked_weights: list | None = None

    def __post_init__(self):
        if self.batched_env.max_episode_steps is None:
            raise ValueError(
                f"{self.batched_env.env!r} states no time limit, and the compiled engine "
                "waits until all episodes have ended. Set its attribute "
                "`max_episode_steps`, or pass `max_episode_steps`."
            )
        self.mask_reader, stacked = self.actor.mask_reader(), self.stacked_weights
        self.num_agents, self.num_shards = 1, _num_shards(self.count, self.group_size)
        if stacked is not None:
            self.num_agents, self.num_shards = stacked[0].shape[0], 1
        self._variables = self.actor.variables if stacked is None else stacked

    def __call__(self, keys, weights=None):
        """Runs the episodes, and returns a `RolloutResult`.

        Args:
            keys: `[3, 2]` uint32 tensor from `seeding.episode_keys`, or `[K, 3, 2]` for
                `K` agents.
            weights: List of arrays, the weights that act, by default the current ones.
        """
        keys = tf.reshape(keys, [self.num_agents, 3, 2])
        shard_size = self.count // self.num_shards
        weights = self._variables if weights is None else weights
        weights = list(map(tf.convert_to_tensor, weights))
        firsts = map(tf.constant, range(0, self.count, shard_size))
        shards = [self.program(keys, first, *weights) for first in firsts]
        return shards[0] if self.num_shards == 1 else _concatenate(shards)

    @property
    def episodes_per_shard(self):
        """Returns the number of episodes of all agents in one shard."""
        return self.num_agents * self.count // self.num_shards

    @functools.cached_property
    def program(self):
        """Returns a shard's XLA program, a concrete function that takes the weights.

        Rollouts share equal programs.
        """
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        keys = tf.TensorSpec((self.num_agents, 3, 2), tf.uint32)
        specs = [keys, tf.TensorSpec((), tf.int32), *specs]
        # A partial per rollout: otherwise TensorFlow takes the tracing of another rollout
        # for a retracing of the same function, and warns.
        return shared(functools.partial(self._run), specs)

    def _run(self, keys, first, *weights):
        """Runs the shard whose first episode has the number `first`."""
        limit = self.batched_env.max_episode_steps
        shard_size = self.count // self.num_shards
        numbers = tf.tile(first + tf.range(shard_size), [self.num_agents])
        keys = tf.repeat(keys, shard_size, axis=0)  # for each episode
        last = tf.while_loop(
            lambda carry: (carry.step < limit) & tf.reduce_any(carry.active),
            lambda carry: [self._step(carry, weights, numbers, keys)],
            [self._initial_carry(weights, numbers, keys)],
            maximum_iterations=limit,
        )[0]
        stacked = keras.tree.map_structure(lambda array: array.stack(), last.arrays)
        observations, (actions, rewards, masks) = stacked
        masks = masks or [tf.zeros([limit, self.episodes_per_shard, 0], tf.int8)]
        record = observations, actions, rewards, last.lengths, last.terminated, masks[0]
        return RolloutResult(records.Episodes(*record), last.episode_returns, last.valid)

    def _initial_carry(self, weights, numbers, keys):
        env, actor, count = self.batched_env.env, self.actor, self.episodes_per_shard
        noise = self._env_noise(env.initial_noise, keys[:, 0], numbers, 0)
        state = env.initial(noise)
        observation, mask, valid = self._observe(state)
        own = count // self.num_agents
        policy_state = self._for_each_agent(weights, lambda: actor.initial_state(own))
        observations, rows = self._empty_arrays()
        return _Carry(
            step=tf.constant(0),
            env_state=state,
            observation=observation,
            policy_state=policy_state,
            mask=mask,
            active=tf.ones([count], tf.bool),
            lengths=tf.zeros([count], tf.int32),
            terminated=tf.zeros([count], tf.bool),
            episode_returns=tf.zeros([count], tf.float64),
            valid=valid,
            arrays=(_write(observations, 0, observation), rows),
        )

    def _step(self, carry, weights, numbers, keys):
        """Steps every episode; those that have ended are not changed by it."""
        env, actor = self.batched_env.env, self.actor
        noise = self._action_noise(keys[:, 2], numbers, carry.step)
        inputs = carry.observation, carry.policy_state, noise, carry.mask
        selected = self._for_each_agent(weights, self._select_actions, *inputs)
        raw_actions, finite, policy_state = selected
        action = checks.cast_actions(env, actor.head.to_environment(raw_actions))
        env_noise = self._env_noise(env.transition_noise, keys[:, 1], numbers, carry.step)
        state = env.transition(carry.env_state, action, env_noise)
        reward = tf.cast(env.reward(carry.env_state, action, state), tf.float64)
        reward = tf.where(carry.active, reward, 0.0)
        if actor.reads_rewards:
            policy_state = [*policy_state[:-1], tf.cast(reward, policy_state[-1].dtype)]
        terminal = env.terminal(state)
        observation, mask, valid = self._observe(state)
        observations, rows = carry.arrays
        observations = _write(observations, carry.step + 1, observation)
        rows = _write(rows, carry.step, (raw_actions, reward, carry.mask))
        valid = finite & valid & tf.math.is_finite(reward)
        if carry.mask:
            layout = self.mask_reader.layout
            valid &= legal_actions.has_legal_action(layout, *carry.mask)
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
            arrays=(observations, rows),
        )

    def _empty_arrays(self):
        """Returns arrays for observations, raw actions, rewards, and any action masks."""
        actor, limit = self.actor, self.batched_env.max_episode_steps

        def empty(spec, rows):
            spec = records.with_axes(spec, self.episodes_per_shard)
            return keras.tree.map_structure(
                lambda x: tf.TensorArray(x.dtype, rows, element_shape=x.shape), spec
            )

        has_masks = self.mask_reader is not None
        masks = [tf.TensorSpec((actor.mask_size,), tf.int8)] if has_masks else []
        row = actor.action_spec, tf.TensorSpec((), tf.float64), masks
        return empty(actor.observation_spec, limit + 1), empty(row, limit)

    def _for_each_agent(self, weights, function, *inputs):
        """Calls `function` for every agent, with its weights and inputs.

        `inputs` and results are tensors `[K · count, …]` for K agents with `count`
        episodes each; `function` sees one agent's tensors `[count, …]`.
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

    def _select_actions(self, observation, policy_state, noise, mask):
        """Selects the actions of one agent's episodes at one step.

        Returns:
            The raw actions (as sampled, before conversion for the environment), whether
            each episode's policy outputs are finite, and the next recurrent states.
        """
        noise = None if self.deterministic else noise
        selected = self.actor.act(observation, mask, policy_state, noise)
        outputs, raw_actions, policy_state = selected
        finite = tf.reduce_all(tf.math.is_finite(outputs), axis=-1)
        return raw_actions, finite, policy_state

    def _observe(self, state):
        """Returns observations in the policy's types, masks, and whether both are valid.

        The masks are a list of one tensor, or `[]` without masks.
        """
        env, count = self.batched_env.env, self.episodes_per_shard
        observation = env.observation(state)
        cast = keras.tree.map_structure(
            lambda leaf, tensor: tf.cast(tensor, leaf.dtype),
            self.actor.observation_spec,
            observation,
        )
        valid = checks.is_valid_observation(env, observation)
        if self.mask_reader is None:
            return cast, [], valid
        inputs = self.mask_reader, env, state, observation, count
        return cast, [legal_actions.flat_masks(*inputs)], valid

    def _env_noise(self, spec, keys, numbers, step):
        """Returns the environments' noise; `group_size` consecutive episodes share it."""
        if spec is None:
            return None
        groups, dtype = numbers // self.group_size, self.batched_env.env.dtype
        return tensor_noise.counter_noise(keys, [spec], groups, step, dtype)[0]

    def _action_noise(self, keys, numbers, step):
        """Returns the noise for the actions, a list of tensors."""
        if self.deterministic:
            return []
        specs, dtype = self.actor.noise_specs, self.actor.dtype
        return tensor_noise.counter_noise(keys, specs, numbers, step, dtype)


def num_threads():
    """Returns how many operations TensorFlow can run in parallel."""
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
    parts, *columns = zip(*shards, strict=True)
    rows = tf.reduce_max([part.lengths for part in parts])
    record = records.concatenate([records.trim(part, rows) for part in parts])
    return RolloutResult(record, *(tf.concat(column, 0) for column in columns))


def _write(arrays, row, values):
    return keras.tree.map_structure(lambda array, x: array.write(row, x), arrays, values)


# TensorFlow's messages if an operation cannot be compiled by XLA, or vectorized over
# agents. The groups are its path.
_NOT_COMPILABLE = re.compile(
    r"unsupported operations.*\{\{node (?:while/)?([^}]+)\}\}"
    r'|No pfor vectorization[^"]*name: "(?:loop_body/)?([^"]+)"'
    r"|op '(\w+)' expected to be loop invariant"
)


@contextlib.contextmanager
def explain_compile_errors(
    remedy="Train on the Gymnasium environment, `agent.fit(id, …)`",
):
    """Replaces an XLA or vectorization error by one that names the operation.

    Args:
        remedy: String, what the user can do, without a period.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        if not (match := _NOT_COMPILABLE.search(str(error))):
            raise
        raise ValueError(
            f"The operation `{match[match.lastindex]}` cannot be compiled. {remedy}, or "
            "write its layer with other operations."
        ) from error


def check_result(rollout, result):
    """Returns the episodes as NumPy arrays, trimmed to the longest one.

    Raises:
        EnvironmentFault: If a reward, an observation or an action mask is invalid.
        FloatingPointError: If policy outputs are not finite.
    """
    trimmed = records.trim(result.episodes)
    episodes = keras.tree.map_structure(lambda tensor: tensor.numpy(), trimmed)
    rows = len(episodes.rewards)
    observations = keras.tree.flatten(episodes.observations)
    leaves = keras.tree.flatten(spaces.to_nest(rollout.batched_env.observation_space))
    pairs = zip(observations, leaves, strict=True)
    columns = [("observation", x, *_is_valid(x, leaf)) for x, leaf in pairs]
    columns.append(("reward", episodes.rewards, *_is_valid(episodes.rewards)))
    if rollout.mask_reader is not None:  # first: else, states are arbitrary
        inputs = rollout.mask_reader.layout, tf.constant(episodes.masks)
        valid = legal_actions.has_legal_action(*inputs).numpy()
        problem = "has no legal action, or an invalid entry, which is shown as -1"
        columns.insert(0, ("action mask", episodes.masks, valid, problem))
    is_step = np.arange(rows + 1)[:, None] <= episodes.lengths
    for name, values, valid, problem in columns:
        first = len(values) - rows  # 1 for observations: row 0 precedes the first step
        invalid = np.argwhere(is_step[1 - first :] & ~valid)
        if len(invalid):
            row, episode = invalid[0].tolist()
            where = f"step {row - first}: the" if row >= first else "the first"
            raise host_loop.EnvironmentFault(
                f"Episode {episode}, {where} {name} {problem}. Received: "
                f"{values[row, episode]}. The agent did not learn from the failed batch."
            )
    if not tf.reduce_all(result.valid):
        raise FloatingPointError(
            "The policy's outputs are not finite, although its observations are "
            "finite. The agent did not learn from the failed batch. "
            f"{host_loop.OUTPUTS_REMEDY}"
        )
    return episodes


def _is_valid(values, space=None):
    """Returns which of `[T, B, …]` values are valid, `[T, B]`, and what is wrong if not.

    Floats must be finite, and categories in the space.
    """
    if values.dtype.kind == "f":
        valid, problem = np.isfinite(values), "is not finite"
    else:
        low, high = spaces.category_bounds(space) or (values.min(), values.max())
        valid, problem = (low <= values) & (values <= high), f"is not in {space}"
    return valid.reshape(*values.shape[:2], -1).all(-1), problem


def shared(function, signature):
    """Traces a function, or returns an equal earlier trace of this process.

    Two traces are equal if they have the same operations in the same order, with the same
    attributes, connections and constants. Their names do not matter.

    Args:
        function: Function that receives and returns tensors. It is shared only if it
            receives all variables that it reads as arguments.
        signature: List of `tf.TensorSpec`, the specs of the arguments.

    Returns:
        A concrete TensorFlow function, compiled with XLA. One that captured a tensor or
        variable belongs to `function` alone.
    """
    traced = tf.function(function, signature, jit_compile=True, autograph=False)
    with tf.init_scope():  # independent of a graph that calls the function
        concrete = traced.get_concrete_function()
    compilation.release(concrete.graph)
    if concrete.captured_inputs:
        return concrete
    return _PROGRAMS.setdefault(digest(concrete), concrete)


def digest(concrete):
    """Returns a SHA-256 that is equal for concrete functions with equal operations."""
    library = concrete.graph.as_graph_def().library.function
    definitions = {function.signature.name: function for function in library}

    @functools.cache
    def of_name(name):
        """Returns the digest of a library function, or an operation's name."""
        return of_function(definitions[name]) if name in definitions else name

    def of_function(definition):
        inputs = definition.signature.input_arg
        named = [*inputs, *definition.node_def]
        numbers = {one.name: str(i) for i, one in enumerate(named)}

        def renamed(tensor):
            """Returns the parts of `name:output:number` or `^name`, with a number."""
            name, *output = tensor.removeprefix("^").split(":")
            return [tensor.startswith("^"), numbers[name], *output]

        content = [
            [argument.type for argument in inputs],
            [
                [node.device, of_name(node.op), *map(renamed, node.input)]
                + of_attributes(node.attr)
                for node in definition.node_def
            ],
            [renamed(definition.ret[x.name]) for x in definition.signature.output_arg],
            sorted(renamed(f"^{name}") for name in definition.control_ret.values()),
            of_attributes(definition.attr),
        ]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def of_attributes(attributes):
        """Returns a sorted list of the names and values of attributes."""
        pairs = []
        for name in sorted(set(attributes) - _IGNORED_ATTRIBUTES):
            value = tf.compat.v1.AttrValue()
            value.CopyFrom(attributes[name])
            for function in [value.func] if value.HasField("func") else value.list.func:
                function.name = of_name(function.name)
            pairs.append((name, value.SerializeToString(deterministic=True)))
        return pairs

    return of_function(concrete.function_def)
