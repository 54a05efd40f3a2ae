"""Traces and calls the TensorFlow functions that learn from episodes."""

import functools
import numbers
import types
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.engine.update import inspection
from tf_reinforce.engine.update import train_step
from tf_reinforce.support import compiled_steps
from tf_reinforce.support import replicas
from tf_reinforce.support import tracing
from tf_reinforce.support import validation

_NO_STEP_LIMIT = 2**62  # steps
# The types of the scalar arguments of `run_updates`: `max_env_steps`, `end`, `by_steps`.
_SCALARS = tf.int64, tf.int64, tf.bool
_MICROBATCH = 65_536  # steps of which a gradient is computed at a time, to save memory
_SMALL_MICROBATCH = 8_192  # the same for several agents; it fits the cache of a core
_MIN_COMPILED_STEPS = 100  # gradient steps of an update that are worth an XLA program


def _locked(method):
    """Returns a method that holds the lock of the weights, which updates change."""

    @functools.wraps(method)
    def locked(self, *args, **kwargs):
        with self.actor.lock:
            return method(self, *args, **kwargs)

    return locked


class UpdateResult(NamedTuple):
    """The metrics of one update and statistics of its episodes, as NumPy arrays."""

    metrics: dict  # floats with the keys `train_step.METRICS`
    episode_returns: np.ndarray  # [B] float64, the sum of rewards of each episode
    lengths: np.ndarray  # [B] int32, the steps of each episode
    terminated: np.ndarray  # [B] bool: the episode terminated

    @classmethod
    def from_metrics(cls, metrics, *columns):
        """Returns an `UpdateResult` from metrics in the order of `train_step.METRICS`."""
        return cls(dict(zip(train_step.METRICS, metrics, strict=True)), *columns)


class UpdateNotFinite(FloatingPointError):
    """The error for an update with a number that is not finite.

    Attributes:
        episodes: `Episodes` of NumPy arrays, from which the update was computed.
    """

    def __init__(self, message, episodes):
        super().__init__(message)
        self.episodes = episodes


class Learner:
    """Traces and calls the TensorFlow functions that learn from episodes.

    Args:
        gradient_estimator: `estimator.PolicyGradientEstimator`.
        actor: `actor.ActorPolicy`, which collects the episodes.
        counters: Int64 weight `[3]`, the numbers of updates, episodes and environment
            steps so far.
        passes, minibatch_size: Arguments of `train_step.TrainStep`.
        jit_compile: Function without arguments that returns the argument `jit_compile` of
            `compile`: True, False or `"auto"`.

    Attributes:
        xla_note: String, which tells the gradient steps of the last update that XLA has
            compiled, or an empty string for an update of few gradient steps.
    """

    def __init__(
        self,
        gradient_estimator,
        actor,
        counters,
        *,
        passes,
        minibatch_size,
        jit_compile,
    ):
        self.estimator = gradient_estimator
        self.actor = actor
        self.counters = counters
        self.passes = passes
        self.minibatch_size = minibatch_size
        self.jit_compile = jit_compile
        self.xla_note = ""
        self.graphs = {}  # concrete functions, by the method that calls them
        self._obstacles = {}  # results of `compiled_steps.obstacle`

    @property
    def num_updates(self):
        """Returns the number of updates of the agent so far, an int."""
        # Indexing the variable would run an operation, which takes four times as long.
        return int(self.counters.numpy()[0])

    @_locked
    def update(self, optimizer, episodes, permutations):
        """Makes one update from a record of episodes.

        Args:
            optimizer: Keras optimizer, built on the weights of the estimator.
            episodes: `Episodes` of NumPy arrays, validated.
            permutations: `[num_permutations, N]` int32, random orders of the N steps to
                train on, from the method `permutations`.

        Returns:
            `UpdateResult`.

        Raises:
            UpdateNotFinite: If a number of the update is not finite. After this error,
                all weights are unchanged.
            ValueError: If XLA cannot compile a layer. All weights are unchanged.
        """
        step = self.make_train_step(optimizer)
        if self._allows_parts and np.sum(episodes.lengths) > _MICROBATCH:
            step.microbatch_size = _MICROBATCH
        compiled = self._compiled_networks(permutations.shape[1])
        step.jit_compile = "policy" in compiled
        step.jit_compile_baseline = "value network" in compiled
        name = " and ".join(["update", *compiled])
        graph = self._graph(
            f"{name} in microbatches" if step.microbatch_size else name,
            lambda: step,
            (self._episodes_specs(), tf.TensorSpec((None, None), tf.int32)),
            (optimizer, step.microbatch_size),
        )
        update = graph
        if compiled:
            update = functools.partial(_call_compiled, step, graph)
        finite, *metrics = update(_tensors(episodes), permutations).numpy().tolist()
        if not finite:
            self._raise_not_finite(episodes)
        return UpdateResult.from_metrics(
            metrics,
            episode_statistics.episode_returns(episodes),
            episodes.lengths,
            episodes.terminated,
        )

    @_locked
    def update_in_program(
        self,
        optimizer,
        rollout,
        seed,
        *,
        max_updates,
        max_env_steps=None,
        rates,
    ):
        """Makes up to `max_updates` updates, each from new episodes, in one program.

        The program ends before an update with a number that is not finite, and returns
        the results of the earlier updates. The method raises an error only if the first
        update would not be finite.

        Args:
            optimizer: Keras optimizer, as in the method `update`.
            rollout: `xla_rollout.Rollout`, which collects the episodes of each update.
            seed: Int, the master seed of all random numbers of the agent.
            max_updates: Int, the largest number of updates, at least 1.
            max_env_steps: Int, the number of environment steps of the call after which no
                update starts, or `None` for no limit.
            rates: `linear_rates.ProgramRates`. The first update uses the learning rates
                that the optimizers already have.

        Returns:
            List of `UpdateResult`, at least one.

        Raises:
            UpdateNotFinite: If the first update would not be finite.
        """
        self._note_tensor_env()

        def make_updates():
            step = self.make_train_step(optimizer, rollout)
            return functools.partial(run_updates, rollout, step, rates)

        spec = tf.TensorSpec
        graph = self._graph(
            "update_in_program",
            make_updates,
            (spec((None, 4, 2), tf.uint32), *(spec((), x) for x in _SCALARS)),
            (optimizer, rollout, rates.schedules),
        )
        first = self.num_updates
        updates = range(first, first + max_updates)
        keys = [seeding.rollout_keys(seed, "training", update) for update in updates]
        limit = _NO_STEP_LIMIT if max_env_steps is None else max_env_steps
        scalars = zip((limit, rates.end, rates.by_steps), _SCALARS, strict=True)
        scalars = [tf.constant(value, dtype) for value, dtype in scalars]
        with xla_rollout.explain_compile_errors():
            history = [x.numpy() for x in graph(tf.constant(np.stack(keys)), *scalars)]
        results = [
            UpdateResult.from_metrics(metrics, *columns)
            for (finite, *metrics), *columns in zip(history[0].tolist(), *history[1:])
            if finite
        ]
        if not results:
            rollout_result = rollout(seeding.episode_keys(keys[0]))
            self._raise_not_finite(xla_rollout.check_result(rollout, rollout_result))
        return results

    @_locked
    def update_from_rollout(self, optimizer, rollout, rollout_result, seed):
        """Makes the next update of `update_in_program` from collected episodes."""
        self._note_tensor_env()
        spec = tf.TensorSpec
        specs = xla_rollout.RolloutResult(
            self._episodes_specs(), spec((None,), tf.float64), spec((None,), tf.bool)
        )

        def make_update():
            step = self.make_train_step(optimizer, rollout)
            return lambda result, key: update_in_graph(step, result, key)[0]

        graph = self._graph(
            "update_from_rollout",
            make_update,
            (specs, spec((2,), tf.uint32)),
            (optimizer, rollout),
        )
        keys = seeding.rollout_keys(seed, "training", self.num_updates)
        key = seeding.permutation_key(keys)
        finite, *metrics = graph(rollout_result, key).numpy().tolist()
        if not finite:
            self._raise_not_finite(xla_rollout.check_result(rollout, rollout_result))
        episodes = rollout_result.episodes
        columns = rollout_result.episode_returns, episodes.lengths, episodes.terminated
        return UpdateResult.from_metrics(metrics, *(x.numpy() for x in columns))

    @_locked
    def per_episode_gradients(self, episodes, baseline):
        """Returns `inspection.per_episode_gradients`: one gradient for each episode."""
        baseline = validation.boolean("baseline", baseline)
        graph = self._graph(
            "per_episode_gradients",
            lambda: functools.partial(inspection.per_episode_gradients, self.estimator),
            (self._episodes_specs(), tf.TensorSpec((), tf.bool)),
        )
        return graph(_tensors(episodes), tf.constant(baseline))

    @_locked
    def step_statistics(self, episodes):
        """Returns `inspection.step_statistics` of each step, as NumPy arrays."""
        graph = self._graph(
            "step_statistics",
            lambda: functools.partial(inspection.step_statistics, self.estimator),
            (self._episodes_specs(),),
        )
        statistics = graph(_tensors(episodes))
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), statistics)

    @property
    def _allows_parts(self):
        """Returns whether a gradient may be the sum over parts of the steps.

        A recurrent policy reads whole episodes, and would do so for every part. A loss
        that a layer adds may be a sum over the rows of a call.
        """
        has_losses = compiled_steps.has_losses_of_inputs(self.estimator.policy)
        return self.actor.recurrent is None and not has_losses

    def make_train_step(self, optimizer, rollout=None):
        """Returns a `TrainStep` for recorded episodes, or for those of a `Rollout`."""
        microbatch_size = None
        if rollout is not None and self._allows_parts:
            limit = _MICROBATCH if rollout.stacked_weights is None else _SMALL_MICROBATCH
            microbatch_size = (
                limit
                if rollout.count * rollout.batched_env.max_episode_steps > limit
                else None
            )
        return train_step.TrainStep(
            self.estimator,
            optimizer,
            self.counters,
            passes=self.passes,
            minibatch_size=self.minibatch_size,
            microbatch_size=microbatch_size,
        )

    def _compiled_networks(self, steps):
        """Returns the networks whose gradient steps XLA compiles, and sets `xla_note`.

        The names are `"policy"` and `"value network"`. The compilation takes a few
        seconds, and pays if an update makes many gradient steps. The choice follows from
        the agent, the number of steps and the devices, so a training can be repeated and
        resumed to the bit.

        Args:
            steps: Int, the number of time steps of the batch.
        """
        setting = self.jit_compile()
        least = 1 if setting is True else _MIN_COMPILED_STEPS
        baseline, parts = self.estimator.baseline, {"policy": self}
        if isinstance(baseline, baselines.Value) and not baseline.shares_policy:
            parts["value network"] = baseline
        obstacles = {
            name: self._obstacle(name, setting)
            for name, part in parts.items()
            if part.minibatch_size is not None
            and part.passes * max(round(steps / part.minibatch_size), 1) >= least
        }
        notes = [f"{x} no ({y})" if y else f"{x} yes" for x, y in obstacles.items()]
        self.xla_note = f"XLA: {', '.join(notes)}" if notes else ""
        return [name for name, obstacle in obstacles.items() if not obstacle]

    def _note_tensor_env(self):
        """Sets `xla_note` for a program that also collects the episodes."""
        is_requested = self.jit_compile() is True
        self.xla_note = "XLA: updates no (tensor environment)" if is_requested else ""

    def _obstacle(self, network, setting):
        """Returns why XLA does not compile the gradient steps of a network."""
        estimator, is_policy = self.estimator, network == "policy"
        if setting is False:
            return "jit_compile=False"
        if replicas.strategy_of(estimator.variables) is not None:
            return "replicas"
        if is_policy and self.actor.recurrent is not None:
            return "recurrent"
        key = network, setting
        if key not in self._obstacles:
            self._obstacles[key] = compiled_steps.obstacle(
                estimator.forward if is_policy else estimator.baseline_values,
                estimator.policy if is_policy else estimator.baseline.model,
                self.actor.observation_spec,
                is_requested=setting is True,
            )
        return self._obstacles[key]

    def permutations(self, episodes, seed):
        """Returns `[num_permutations, N]` int32, random orders of N steps to train on.

        Args:
            episodes: `Episodes` of NumPy arrays, validated.
            seed: Int, the master seed of all random numbers of the agent.
        """
        seed = validation.check_seed(seed)
        count = self.make_train_step(None).num_permutations
        if not count:
            return tf.zeros([0, 0], tf.int32)
        rng = seeding.generator(seed, "training/minibatches", self.num_updates)
        lengths = np.asarray(self.estimator.learned_lengths(episodes))
        steps = np.arange(lengths.sum(), dtype="int32")
        return tf.constant(np.stack([rng.permutation(steps) for _ in range(count)]))

    def _raise_not_finite(self, episodes):
        cause = inspection.explain_non_finite(self.estimator, episodes)
        raise UpdateNotFinite(
            f"Update {self.num_updates} would not be finite and was not made. All "
            f"weights are unchanged. {cause} Try a smaller learning rate, "
            "`global_clipnorm`, or smaller rewards.",
            episodes,
        )

    def _episodes_specs(self):
        actor = self.actor
        return records.specs(actor.observation_spec, actor.action_spec, actor.mask_size)

    def _graph(self, name, make_function, signature, parts=()):
        """Returns a concrete TensorFlow function from the cache, or traces the function.

        The learner caches concrete functions, because the search of `tf.function` for a
        trace takes longer than a small update. A function is traced again if a trained
        variable, an optimizer or a rollout was replaced, or if a Python constant of an
        optimizer has changed.

        Args:
            name: String, the name of the method that calls the function.
            make_function: Function without arguments that returns the function to trace.
                `make_function` is called only if the cache contains no valid trace.
            signature: Tuple of `tf.TensorSpec`, the specs of the arguments of the traced
                function.
            parts: Tuple of the optimizers and rollouts that the traced function uses.
        """
        variables = [
            *self.estimator.variables,
            *self.estimator.baseline.trainable_variables,
        ]
        parts = getattr(self.estimator.baseline, "optimizer", None), *parts
        key = (*map(id, variables), *parts, *map(_constants, parts))
        key += _schedule(self.estimator.options.entropy_coef)
        if self.graphs.get(name, (None,))[0] != key:
            # TensorFlow warns of retracing if functions of several agents are equal.
            unique = functools.partial(make_function())
            traced = tf.function(unique, input_signature=signature, autograph=False)
            self.graphs[name] = key, traced.get_concrete_function()
            tracing.release(self.graphs[name][1].graph)
        return self.graphs[name][1]


def _constants(optimizer):
    """Returns the Python constants of an optimizer that a trace contains, as a tuple."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return ()
    plain = numbers.Number, str, type(None)
    constants = [(k, v) for k, v in vars(optimizer).items() if isinstance(v, plain)]
    public = [(name, value) for name, value in constants if not name.startswith("_")]
    inner = getattr(optimizer, "inner_optimizer", None)
    return *public, *_schedule(optimizer._learning_rate), _constants(inner)


def _schedule(rate):
    """Returns the constants of a learning rate or entropy coefficient, as a tuple.

    If a learning rate is a variable and not a schedule, the traced function reads the
    variable, and does not contain the learning rate as a constant.
    """
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return (id(rate),)
    return rate, repr(vars(rate))


def _tensors(episodes):
    return keras.tree.map_structure(_tensor, episodes)


def _tensor(array):
    """Returns an array as a tensor, which shares the memory of large observations."""
    is_large = getattr(array, "nbytes", 0) > 2**20 and array.dtype.kind in "fiu"
    # TensorFlow requires the alignment.
    if is_large and array.flags.carray and array.ctypes.data % 64 == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.constant(array)


def _call_compiled(step, graph, *arguments):
    """Calls the traced function of an update, whose gradient steps XLA compiles.

    XLA compiles during the call, after other operations of the update. If XLA cannot
    compile a layer, all weights are restored. An interruption arrives after the whole
    update, which is kept.
    """
    before = [tf.identity(variable) for variable in step.variables]
    try:
        with xla_rollout.explain_compile_errors(
            "Compile the agent with `agent.compile(…, jit_compile=False)`"
        ):
            return graph(*arguments)
    except Exception:
        step.restore(before)
        raise


def run_updates(rollout, step, rates, keys, max_env_steps, end, by_steps):
    """Makes up to U updates in the graph, one for each entry of `keys`.

    Args:
        rollout: `xla_rollout.Rollout`.
        step: `train_step.TrainStep`.
        rates: `linear_rates.ProgramRates`, of which the graph contains the schedules.
        keys: `[U, 4, 2]` uint32, for each of up to U updates, the random keys from
            `seeding.rollout_keys`.
        max_env_steps: Scalar int64, the number of environment steps after which no update
            starts.
        end, by_steps: Scalar tensors, the attributes of `rates`.

    Returns:
        List of tensors `[U, …]`, the results of `update_in_graph`. Each tensor has
        zeros in the rows of updates that did not start.
    """
    count = tf.shape(keys)[0]
    parts = types.SimpleNamespace(
        optimizer=step.optimizer, baseline=step.estimator.baseline
    )

    def set_rates():
        counters = step.counters.value.read_value()
        progress = tf.where(by_steps, counters[2], counters[0])
        rates.set_in_graph(parts, progress, end)

    def update(number, finite, steps, history):
        if rates.schedules:
            tf.cond(number > 0, set_rates, lambda: None)
        result = rollout(seeding.episode_keys(keys[number]))
        row = update_in_graph(step, result, seeding.permutation_key(keys[number]))
        steps += tf.reduce_sum(tf.cast(result.episodes.lengths, tf.int64))
        return number + 1, row[0][0] > 0, steps, write_history(history, number, row)

    *_, history = tf.while_loop(
        lambda number, finite, steps, _: (
            (number < count) & finite & (steps < max_env_steps)
        ),
        update,
        (0, True, tf.constant(0, tf.int64), history_arrays(count, rollout.count)),
        parallel_iterations=1,
    )
    return [array.stack() for array in history]


def update_in_graph(step, rollout_result, key):
    """Makes an update in the graph from collected episodes, if all episodes are valid.

    Args:
        step: `train_step.TrainStep`.
        rollout_result: `xla_rollout.RolloutResult`.
        key: `[2]` uint32, the key of the permutations, from `seeding.permutation_key`.

    Returns:
        Tuple of four tensors: the result of `step`, and the returns, the lengths and
        `terminated` of the episodes.
    """
    episodes = records.trim(rollout_result.episodes)
    permutations = permutations_in_graph(key, step, episodes)
    metrics = tf.cond(
        tf.reduce_all(rollout_result.valid),
        lambda: step(episodes, permutations),
        lambda: tf.zeros([1 + len(train_step.METRICS)], tf.float64),
    )
    return metrics, rollout_result.episode_returns, episodes.lengths, episodes.terminated


def history_arrays(updates, episodes):
    """Returns `tf.TensorArray`s for the results of `update_in_graph`.

    Args:
        updates: Int or scalar int tensor, the number of updates.
        episodes: Int, the number of episodes of an update.
    """
    metrics = [1 + len(train_step.METRICS)]
    specs = [(tf.float64, metrics), (tf.float64, [episodes])]
    specs += [(dtype, [episodes]) for dtype in (tf.int32, tf.bool)]
    return [tf.TensorArray(dtype, updates, element_shape=shape) for dtype, shape in specs]


def write_history(history, number, row):
    """Writes the results of one update to `tf.TensorArray`s, and returns the arrays."""
    return [array.write(number, x) for array, x in zip(history, row, strict=True)]


def permutations_in_graph(key, step, episodes):
    """Returns `[num_permutations, N]` int32, random orders of N steps to train on."""
    if not step.num_permutations:
        return tf.zeros([0, 0], tf.int32)
    lengths = step.estimator.learned_lengths(episodes)
    steps, spec = tf.range(tf.reduce_sum(lengths)), [seeding.NoiseSpec("uniform", ())]
    return tf.stack(
        [
            tf.argsort(tensor_noise.counter_noise(key, spec, steps, number, "float64")[0])
            for number in range(step.num_permutations)
        ]
    )
