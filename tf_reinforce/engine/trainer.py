"""What an epoch of `fit` does: collect episodes, and update from them."""

import functools
import numbers
import operator
import time
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.engine.update import estimator
from tf_reinforce.engine.update import inspection
from tf_reinforce.engine.update import program as update_program
from tf_reinforce.engine.update import train_step
from tf_reinforce.export import live_policy
from tf_reinforce.policies import actor
from tf_reinforce.settings import config
from tf_reinforce.support import compilation
from tf_reinforce.support import locks
from tf_reinforce.support import validation

_PROGRAMS = 8  # programs of each kind that are kept
_NO_SETTINGS = config.EnvSettings()
_NO_STEP_LIMIT = 2**62  # steps
_MICROBATCH = 65_536  # steps of which a gradient is computed at a time, to save memory
_SMALL_MICROBATCH = 8_192  # the same for several agents; it fits the cache of a core
_MIN_COMPILED_STEPS = 100  # gradient steps of an update that are worth an XLA program


class UpdateResult(NamedTuple):
    """The metrics of one update and statistics of its episodes, as NumPy arrays."""

    metrics: dict  # floats with the keys `train_step.METRICS`
    episode_returns: np.ndarray  # [B] float64, the sum of rewards of each episode
    lengths: np.ndarray  # [B] int32, the steps of each episode
    terminated: np.ndarray  # [B] bool: the episode terminated


class UpdateNotFinite(FloatingPointError):
    """A number of the update is not finite.

    Attributes:
        episodes: `Episodes` of NumPy arrays, from which the update was computed.
    """

    def __init__(self, message, episodes):
        super().__init__(message)
        self.episodes = episodes


class Trainer:
    """What a built agent acts and learns with: actor, estimator and traced programs.

    Traced programs contain Python constants of the agent's layers. When one of these
    constants has changed, the programs are no longer valid, and `current` returns a
    trainer without programs.

    Args:
        agent: A built `Reinforce`.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        model_memories: List with the `memory.Memory` of the policy and, if the baseline
            has one, of the value model; `None` for a model without memory.
        updating_layers: Result of `models.check_layers`.

    Attributes:
        actor: `actor.ActorPolicy`.
        estimator: `estimator.PolicyGradientEstimator`.
        programs: Dict from `Environments.program_key` to the programs that collect
            episodes, last used last.
        graphs: Dict from names to traced functions, each with the key of its trace.
        strategy: `tf.distribute.Strategy` with several replicas, or `None`.
    """

    def __init__(self, agent, observation_spec, model_memories, updating_layers):
        self.agent = agent
        self._weights_lock = agent._weights_lock
        self._constants = actor.constants(*agent._models)
        strategy = agent._distribute_strategy
        has_replicas = strategy is not None and strategy.num_replicas_in_sync > 1
        self.strategy = strategy if has_replicas else None
        scales = {"rewards": agent.reward_scale, "advantages": agent.advantage_scale}
        self.estimator = estimator.PolicyGradientEstimator(
            agent.policy,
            agent.head,
            agent.baseline,
            agent.normalizer,
            agent._options,
            *model_memories,
            scales={name: x for name, x in scales.items() if x is not None},
            updating_layers=updating_layers,
            num_updates=lambda: agent.counters[0],
        )
        variables, centers = [*agent.policy.variables, *agent.head.variables], None
        if agent.normalizer is not None:
            centers = agent.normalizer.centers(observation_spec)
            variables += agent.normalizer.acting_variables
            variables += [v for center in centers if center for v in center[:2]]
        self.actor = actor.ActorPolicy(
            self.estimator.step,
            agent.head,
            observation_spec,
            actor.float_type(agent.policy),
            variables,
            agent._mask_source,
            self.estimator.memory,
            agent._weights_lock,
            centers,
        )
        self.programs, self.graphs = {}, {}
        self._obstacles, self._live_policies = {}, {}

    def current(self):
        """Returns the same trainer, or one without programs if a constant has changed."""
        if actor.constants(*self.agent._models) == self._constants:
            return self
        rule, spec = self.estimator, self.actor.observation_spec
        memories = rule.memory, rule.value_memory
        return Trainer(self.agent, spec, memories, rule.updating_layers)

    @locks.between_updates
    def live_policy(self):
        """Returns the `live_policy.LivePolicy` with the functions of an export."""
        space = self.agent.action_space
        has_space = space is not None
        if has_space not in self._live_policies:
            self._live_policies[has_space] = live_policy.LivePolicy(self.actor, space)
        return self._live_policies[has_space]

    @property
    def totals(self):
        """Returns the updates, episodes and environment steps so far, as three ints."""
        return self.agent.counters.numpy().tolist()

    # Collecting

    def training_request(self, envs, seed, episodes, steps=None, settings=_NO_SETTINGS):
        """Returns the `CollectionRequest` for the episodes of the next update.

        Args:
            envs: `environments.Environments`.
            seed: Int, the master seed of all random numbers of training.
            episodes: Int, the number of episodes, or `None`.
            steps: Int, instead of `episodes`: the fewest episodes with as many steps.
            settings: `config.EnvSettings`.

        Raises:
            ValueError: If the baseline needs groups of episodes with equal reset seeds,
                which these arguments do not give.
        """
        size = self.estimator.baseline.reset_group_size
        incomplete = steps or (episodes or 0) % size or envs.is_vector_env
        if size > 1 and (incomplete or "dropped_episodes" in envs.fault_keys):
            raise ValueError(
                f"The baseline needs groups of {size} episodes with the same reset seed. "
                f"Pass `episodes_per_epoch` as a multiple of {size}, plain environments "
                '(no VectorEnv), on_bad_env="raise" and on_env_error="raise". Received: '
                f"episodes={episodes}, steps={steps}, {type(envs).__name__}"
            )
        update = self.totals[0]
        key = seeding.StreamKey(seed, "training", update)
        options = dict(group_size=size, settings=settings.at(update))
        return environments.CollectionRequest(key, episodes, steps, **options)

    def program(self, envs, request):
        """Returns the program for a `CollectionRequest`, from the cache or a new one."""
        key = envs.program_key(request)
        with self._weights_lock:
            program = self.programs.pop(key, None)
            self.programs[key] = program or envs.make_program(self.actor, request)
            same_kind = [other for other in self.programs if other[0] == key[0]]
            if len(same_kind) > _PROGRAMS:
                del self.programs[same_kind[0]]
            return self.programs[key]

    def _prepared(self, envs, request):
        """Returns the program for a request, and the request with the current weights."""
        with self._weights_lock:
            request = request._replace(weights=environments.read_weights(self.actor))
            return self.program(envs, request), request

    def play(self, envs, request):
        """Collects the requested episodes, as `CollectedEpisodes`."""
        return envs.collect(self.actor, *self._prepared(envs, request))

    def collect(self, envs, seed, *counts):
        """Collects the episodes of the next update, while other threads may train."""
        with self._weights_lock:  # the request contains the number of the update
            request = self.training_request(envs, seed, *counts)
            prepared = self._prepared(envs, request)
        return envs.collect(self.actor, *prepared)

    def evaluate(
        self, envs, key, episodes, settings, deterministic=True, per_episode=False
    ):
        """Plays episodes, and returns their `episode_statistics.batch_metrics`.

        Args:
            envs: `environments.Environments`.
            key: `seeding.StreamKey`, which determines all random numbers.
            episodes: Int, the number of episodes.
            settings: `config.EnvSettings`.
            deterministic: Bool, whether to take the most likely actions.
            per_episode: Bool, whether to return `episode_statistics.episode_columns`.
        """
        request = environments.CollectionRequest(
            key,
            episodes,
            deterministic=validation.boolean("deterministic", deterministic),
            settings=settings.at(self.totals[0]),
        )
        collected = self.play(envs, request)
        if text := collected.describe_missing():  # an error would lose the episodes
            validation.warn(text)
        info = episode_statistics.reported(collected.info)
        if per_episode:
            return episode_statistics.episode_columns(collected.episodes, info)
        metrics = episode_statistics.batch_metrics(collected.episodes, info)
        return {**metrics, **collected.faults}

    # Training

    def train(self, envs, seed, counts, limits, notify, rates):
        """Collects episodes and makes one update, or several in one TensorFlow program.

        Args:
            envs: `environments.Environments`.
            seed: Int, the master seed of all random numbers of training.
            counts: The further arguments of `training_request`.
            limits: The most updates in one program, an int; and the environment steps
                after which no update starts, an int or `None`.
            notify: Function that receives the `Episodes` and logs before an update is
                made, or `None`.
            rates: Arguments of `set_rates`, for a program of several updates.

        Returns:
            Iterator with a pair for each update: its logs, and an iterator of
            `(episode, logs)` from `episode_statistics.episode_logs`.
        """
        update, first_episode, _ = self.totals
        request = self.training_request(envs, seed, *counts)
        began, others, info = time.perf_counter(), {}, {}
        if envs.in_graph and notify is None:
            program = self.program(envs, request)
            results = self._update_in_program(program, seed, *limits, rates)
        else:
            collected = self.play(envs, request)
            if text := collected.describe_missing(self.agent.history.history):
                raise ValueError(text)
            if notify is not None:
                paused = time.perf_counter()
                notify(collected.episodes, {"update": update})
                began += time.perf_counter() - paused
            rollout = self.program(envs, request) if envs.in_graph else None
            result = self.update(collected.episodes, seed, rollout=rollout)
            if rollout is not None:
                returns = collected.rollout_result.episode_returns.numpy()
                result = result._replace(episode_returns=returns)
            results = [result]
            info = episode_statistics.reported(collected.info)
            others = {**episode_statistics.info_metrics(info), **collected.faults}
        num_steps = sum(int(result.lengths.sum()) for result in results)
        others["steps_per_second"] = num_steps / (time.perf_counter() - began)
        return _logs(results, others, info, update, first_episode)

    def set_rates(self, end, by_steps):
        """Sets the learning rates that change linearly until a training ends.

        Args:
            end: Int, or int tensor in a graph: the agent's number of updates, or of
                environment steps, at which the last rate is reached.
            by_steps: Bool, whether `end` counts environment steps.
        """
        for path, first, last in self.agent._learning_rates:
            done = self.agent.counters.value.read_value()[2 if by_steps else 0]
            share = tf.cast(done, tf.float64) / tf.cast(end, tf.float64)
            optimizer = operator.attrgetter(path)(self.agent)
            optimizer.learning_rate = first + (last - first) * tf.minimum(share, 1.0)

    def check_episodes(self, episodes):
        """Returns NumPy `Episodes` in the agent's types; raises an error if invalid."""
        actor = self.actor
        specs = actor.observation_spec, actor.action_spec, actor.mask_size
        episodes = records.validate(episodes, *specs)
        actor.head.check_actions(episodes.actions, episodes.lengths, episodes.masks)
        return episodes

    @locks.between_updates
    def update(self, episodes, seed, permutations=None, rollout=None):
        """Makes one update from a record of episodes, and returns its `UpdateResult`.

        Args:
            episodes: `Episodes` of NumPy arrays in the agent's types (`check_episodes`).
            seed: Int, the master seed of all random numbers of training.
            permutations: `[num_permutations, N]` int32, random orders of the N steps to
                train on, by default from the method `permutations`.
            rollout: `xla_rollout.Rollout` that has collected the episodes, or `None`.

        Raises:
            UpdateNotFinite: If a number of the update is not finite.
            ValueError: If XLA cannot compile a layer. After either error, all weights are
                unchanged.
        """
        if episodes.masks is None:
            masks = np.zeros((*episodes.rewards.shape, 0), "int8")
            episodes = episodes._replace(masks=masks)
        step = self.train_step(rollout, np.sum(episodes.lengths))
        if rollout is not None:
            keys = seeding.rollout_keys(seed, "training", self.totals[0])
            key = tf.constant(seeding.permutation_key(keys))
            permutations = update_program.permutations_in_graph(key, step, episodes)
        else:
            if permutations is None:
                permutations = self.permutations(episodes, seed)
            rule, steps = self.estimator, permutations.shape[1]
            step.jit_compile = self._is_compiled(rule.options, steps)
            step.jit_compile_baseline = self._is_compiled(rule.baseline, steps)
        is_compiled = step.jit_compile, step.jit_compile_baseline
        graph = self._graph(
            ("update", rollout is None, step.microbatch_size, *is_compiled),
            lambda: step,
            (self._episodes_specs(), tf.TensorSpec((None, None), tf.int32)),
            (step.optimizer, rollout),
        )
        arguments = keras.tree.map_structure(_tensor, episodes), permutations
        call = functools.partial(_call_compiled, step, graph)
        outputs = call(*arguments) if any(is_compiled) else graph(*arguments)
        finite, *metrics = outputs.numpy().tolist()
        if not finite:
            self._raise_not_finite(episodes)
        return UpdateResult(
            dict(zip(train_step.METRICS, metrics, strict=True)),
            episode_statistics.episode_returns(episodes),
            episodes.lengths,
            episodes.terminated,
        )

    @locks.between_updates
    def _update_in_program(self, rollout, seed, max_updates, max_env_steps, rates):
        """Makes up to `max_updates` updates, each from new episodes, in one program.

        The program ends before an update with a number that is not finite.
        `UpdateNotFinite` is raised only if that is the first update. The first update
        uses the learning rates that the optimizers already have.

        Args:
            rollout: `xla_rollout.Rollout`, which collects the episodes of each update.
            seed, max_updates, max_env_steps, rates: As in `train`.

        Returns:
            List of `UpdateResult`, at least one.
        """
        environments.finite_weights(self.actor.variables)
        optimizer = self.agent.optimizer

        def updates_in_graph(keys, max_env_steps, end):
            step = self.train_step(rollout)
            arguments = rollout, step, keys, tf.constant([True]), max_env_steps
            return update_program.run_updates(
                *arguments, set_rates=lambda: self.set_rates(end, by_steps)
            )

        end, by_steps = rates
        limit = _NO_STEP_LIMIT if max_env_steps is None else max_env_steps
        scalars = [tf.constant(x, tf.int64) for x in (limit, end)]
        schedules = tuple(map(tuple, self.agent._learning_rates))
        graph = self._graph(
            "update_in_program",
            lambda: updates_in_graph,
            (
                tf.TensorSpec((None, 1, 4, 2), tf.uint32),
                *map(tf.TensorSpec.from_tensor, scalars),
            ),
            (optimizer, rollout, schedules, by_steps),
        )
        first = self.totals[0]
        updates = range(first, first + min(max_updates, self.agent.steps_per_execution))
        keys = [[seeding.rollout_keys(seed, "training", update)] for update in updates]
        with xla_rollout.explain_compile_errors():
            tensors = graph(tf.constant(np.stack(keys)), *scalars)
            history = [tensor.numpy()[:, 0] for tensor in tensors]
        results = [
            UpdateResult(dict(zip(train_step.METRICS, metrics, strict=True)), *columns)
            for (finite, *metrics), *columns in zip(history[0].tolist(), *history[1:])
            if finite
        ]
        if not results:
            result = rollout(seeding.episode_keys(keys[0][0]))
            self._raise_not_finite(xla_rollout.check_result(rollout, result))
        return results

    def permutations(self, episodes, seed):
        """Returns random orders of N steps to train on, `[num_permutations, N]`.

        Args:
            episodes: `Episodes` of NumPy arrays, validated.
            seed: Int, the master seed of all random numbers of the agent.
        """
        seed = validation.check_seed(seed)
        count = self.train_step().num_permutations
        if not count:
            return tf.zeros([0, 0], tf.int32)
        rng = seeding.generator(seed, "training/minibatches", self.totals[0])
        lengths = np.asarray(self.estimator.learned_lengths(episodes))
        steps = np.arange(lengths.sum(), dtype="int32")
        return tf.constant(np.stack([rng.permutation(steps) for _ in range(count)]))

    def _raise_not_finite(self, episodes):
        cause = inspection.explain_non_finite(self.estimator, episodes)
        raise UpdateNotFinite(
            f"Update {self.totals[0]} would not be finite and was not made. All weights "
            f"are unchanged. {cause} Try a smaller learning rate, `global_clipnorm`, or "
            "smaller rewards.",
            episodes,
        )

    # Statistics of episodes, without an update

    @locks.between_updates
    def inspect(self, name, episodes, *arguments):
        """Returns the result of a function of `inspection`, traced once.

        Args:
            name: String, the name of the function.
            episodes: `Episodes`.
            *arguments: Scalar tensors, further arguments of the function.
        """
        graph = self._graph(
            name,
            lambda: functools.partial(getattr(inspection, name), self.estimator),
            (self._episodes_specs(), *map(tf.TensorSpec.from_tensor, arguments)),
        )
        episodes = self.check_episodes(episodes)
        return graph(keras.tree.map_structure(_tensor, episodes), *arguments)

    # Traced functions

    def train_step(self, rollout=None, num_steps=0):
        """Returns a `TrainStep` for recorded episodes, or for those of a `Rollout`.

        The gradient of many steps is the sum over parts, to save memory. Two kinds of
        policies do not allow this: a recurrent one would have to read the whole episodes
        again for each part, and a loss that a layer adds may be a sum over the rows of a
        call, and would depend on the parts.

        Args:
            rollout: `xla_rollout.Rollout`, or `None`.
            num_steps: Int, the steps of the recorded episodes.
        """
        optimizer = getattr(self.agent, "optimizer", None)
        parts = self.estimator, optimizer, self.agent.counters
        step = train_step.TrainStep(*parts, self.strategy)
        limit = _MICROBATCH
        if rollout is not None:
            num_steps = rollout.count * rollout.batched_env.max_episode_steps
            limit = limit if rollout.stacked_weights is None else _SMALL_MICROBATCH
        allows_parts, context = True, self.estimator.options.context
        if self.actor.memory is not None:  # one that is recurrent reads whole episodes
            allows_parts, limit = context is not None, max(limit // (context or 1), 1)
        allows_parts = allows_parts and num_steps > limit
        if allows_parts and not compilation.has_losses_of_inputs(self.estimator.policy):
            step.microbatch_size = limit
        return step

    def _is_compiled(self, part, steps):
        """Returns whether XLA compiles the gradient steps of policy or value network.

        Compilation takes a few seconds, so it is useful only if an update makes many
        gradient steps. The choice depends on nothing but the agent, the number of steps
        and the devices, so that a training can be repeated and resumed to the bit.

        Args:
            part: The estimator's options, or its baseline.
            steps: Int, the number of time steps of the batch.
        """
        rule, setting = self.estimator, self.agent.jit_compile
        is_policy = part is rule.options
        has_passes = is_policy or isinstance(part, baselines.Value)
        if not has_passes or part.minibatch_size is None:
            return False
        if setting is False or self.strategy is not None:
            return False
        least = 1 if setting is True else _MIN_COMPILED_STEPS
        num_steps = part.passes * max(round(steps / part.minibatch_size), 1)
        memory = rule.memory if is_policy else rule.value_memory
        if num_steps < least or memory is not None:
            return False
        key = is_policy, setting
        if key not in self._obstacles:
            self._obstacles[key] = compilation.obstacle(
                rule.forward if is_policy else rule.baseline_values,
                rule.policy if is_policy else rule.baseline.model,
                records.with_axes(self.actor.observation_spec, None),
                is_requested=setting is True,
            )
        return not self._obstacles[key]

    def _episodes_specs(self):
        actor = self.actor
        return records.specs(actor.observation_spec, actor.action_spec, actor.mask_size)

    def _graph(self, name, make_function, signature, parts=()):
        """Returns a concrete TensorFlow function from the cache, or traces it.

        The cache exists because `tf.function` would take longer to find a trace than a
        small update takes. A function is traced again if a trained variable, an optimizer
        or a rollout was replaced, or if a Python constant of an optimizer has changed.

        Args:
            name: String, the name of the function.
            make_function: Function without arguments that returns the function to trace,
                called only if the cache has no valid trace.
            signature: Tuple of `tf.TensorSpec`, one for each argument.
            parts: Tuple of the optimizers and other objects that the function uses.
        """
        baseline = self.estimator.baseline
        variables = [*self.estimator.variables, *baseline.trainable_variables]
        parts = getattr(baseline, "optimizer", None), *parts
        key = (*map(id, variables), *parts, *map(_constants, parts))
        key += _schedule(self.estimator.options.entropy_coef)
        if self.graphs.get(name, (None,))[0] != key:
            # TensorFlow warns of retracing if functions of several agents are equal.
            unique = functools.partial(make_function())
            traced = tf.function(unique, input_signature=signature, autograph=False)
            self.graphs[name] = key, traced.get_concrete_function()
            compilation.release(self.graphs[name][1].graph)
        return self.graphs[name][1]


def _logs(results, others, info, update, first_episode):
    """Yields the logs of each update, and those of its episodes."""
    for metrics, *columns in results:
        # `env_steps` of the update, of all updates so far, replaces that of the episodes.
        statistics = episode_statistics.metrics(*columns[:2])
        episodes = episode_statistics.episode_logs(*columns, info, first_episode, update)
        yield {**statistics, **metrics, **others}, episodes
        first_episode, update = first_episode + len(columns[0]), update + 1


def _constants(optimizer):
    """Returns the Python constants of an optimizer that a trace contains, as a tuple."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return ()
    plain = numbers.Number, str, type(None)
    own = [x for x in vars(optimizer).items() if isinstance(x[1], plain)]
    public = [(name, value) for name, value in own if not name.startswith("_")]
    inner = getattr(optimizer, "inner_optimizer", None)
    return *public, *_schedule(optimizer._learning_rate), _constants(inner)


def _schedule(rate):
    """Returns the constants of a learning rate or entropy coefficient, as a tuple.

    If a learning rate is a variable, the traced function reads it, so it is not a
    constant of the function.
    """
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return (id(rate),)
    return rate, repr(vars(rate))


def _tensor(array):
    """Returns an array as a tensor, without copying large observations."""
    is_large = getattr(array, "nbytes", 0) > 2**20 and array.dtype.kind in "fiu"
    # TensorFlow requires the alignment.
    if is_large and array.flags.carray and array.ctypes.data % 64 == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.constant(array)


def _call_compiled(step, graph, *arguments):
    """Calls the traced function of an update, whose gradient steps XLA compiles.

    XLA compiles during the call, after other operations of the update have run. If XLA
    cannot compile a layer, all weights are restored. An interruption takes effect only
    after the whole update, which is kept.
    """
    before = [tf.identity(variable) for variable in step.variables]
    remedy = "Compile the agent with `agent.compile(…, jit_compile=False)`"
    try:
        with xla_rollout.explain_compile_errors(remedy):
            return graph(*arguments)
    except Exception:
        step.restore(before)
        raise
