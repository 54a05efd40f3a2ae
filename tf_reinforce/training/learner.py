"""Traces the functions that learn from episodes, and calls them."""

import functools
import numbers
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.algorithm import inspection
from tf_reinforce.algorithm import train_step
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding

_NO_STEP_LIMIT = 2**62  # steps
_BLOCK = 65_536  # steps of which a gradient is computed at a time, to save memory
_SMALL_BLOCK = 8_192  # the same for several agents; it fits the cache of a core


class UpdateResult(NamedTuple):
    """One update, in NumPy."""

    metrics: dict  # floats, `train_step.METRICS`
    returns: np.ndarray  # [B] float64, the sum of rewards of each episode
    lengths: np.ndarray  # [B] int32
    terminated: np.ndarray  # [B] bool

    @classmethod
    def from_metrics(cls, metrics, *columns):
        """Returns the result from a list of the values of `train_step.METRICS`."""
        return cls(dict(zip(train_step.METRICS, metrics, strict=True)), *columns)


class Learner:
    """Traces the functions that learn from episodes, and calls them.

    Args:
        gradient_estimator: `estimator.PolicyGradientEstimator`.
        actor: `actor.ActorPolicy`, which collects the episodes.
        counters: Int64 weight `[3]`: updates, episodes and environment steps so far.
        passes, minibatch_size: See `train_step.TrainStep`.
    """

    def __init__(self, gradient_estimator, actor, counters, *, passes, minibatch_size):
        self.estimator = gradient_estimator
        self.actor = actor
        self.counters = counters
        self.passes = passes
        self.minibatch_size = minibatch_size
        self.graphs = {}  # concrete functions, by the method that calls them

    @property
    def num_updates(self):
        """The number of updates so far, an int."""
        # Indexing the variable would run an operation, which takes four times as long.
        return int(self.counters.numpy()[0])

    def update(self, optimizer, episodes, permutations):
        """Makes one update from episodes in NumPy.

        Args:
            optimizer: Keras optimizer, built on the weights of the estimator.
            episodes: `Episodes` of NumPy arrays, validated.
            permutations: See the method `permutations`.

        Returns:
            `UpdateResult`.

        Raises:
            FloatingPointError: If the update would not be finite. It is not made.
        """
        graph = self._graph(
            "update",
            lambda: self.make_train_step(optimizer),
            (self._episodes_specs(), tf.TensorSpec((None, None), tf.int32)),
            (optimizer,),
        )
        finite, *metrics = graph(_tensors(episodes), permutations).numpy().tolist()
        if not finite:
            self._raise_not_finite(episodes)
        return UpdateResult.from_metrics(
            metrics,
            episode_statistics.episode_returns(episodes),
            episodes.lengths,
            episodes.terminated,
        )

    def update_in_program(self, optimizer, rollout, seed, *, max_updates, max_steps=None):
        """Makes up to `max_updates` updates of the compiled engine in one call.

        The call ends before an update that would not be finite. Such an update raises an
        error only if it is the first of a call, so that earlier updates are reported.

        Args:
            optimizer: As for `update`.
            rollout: `compiled_rollout.Rollout`.
            seed: Int, the master seed.
            max_updates: Int, at least 1.
            max_steps: Int; no update starts after this many environment steps of the
                call. `None`: no limit.

        Returns:
            List of `UpdateResult`, at least one.

        Raises:
            FloatingPointError: If the first update would not be finite.
        """

        def make_updates():
            step = self.make_train_step(optimizer, rollout)
            return functools.partial(run_updates, rollout, step)

        graph = self._graph(
            "update_in_program",
            make_updates,
            (tf.TensorSpec((None, 4, 2), tf.uint32), tf.TensorSpec((), tf.int64)),
            (optimizer, rollout),
        )
        first = self.num_updates
        updates = range(first, first + max_updates)
        keys = [seeding.rollout_keys(seed, "training", update) for update in updates]
        limit = tf.constant(_NO_STEP_LIMIT if max_steps is None else max_steps, tf.int64)
        with compiled_rollout.explain_compile_errors():
            history = [x.numpy() for x in graph(tf.constant(np.stack(keys)), limit)]
        results = [
            UpdateResult.from_metrics(metrics, *columns)
            for (finite, *metrics), *columns in zip(history[0].tolist(), *history[1:])
            if finite
        ]
        if not results:
            rollout_result = rollout(seeding.episode_keys(keys[0]))
            self._raise_not_finite(
                compiled_rollout.validate_result(rollout, rollout_result)
            )
        return results

    def update_from_rollout(self, optimizer, rollout, rollout_result, seed):
        """Makes the update of `update_in_program` from the result of a rollout."""
        spec = tf.TensorSpec
        specs = compiled_rollout.RolloutResult(
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
            self._raise_not_finite(
                compiled_rollout.validate_result(rollout, rollout_result)
            )
        episodes = rollout_result.episodes
        columns = rollout_result.returns, episodes.lengths, episodes.terminated
        return UpdateResult.from_metrics(metrics, *(x.numpy() for x in columns))

    def per_episode_gradients(self, episodes, baseline):
        """Returns `inspection.per_episode_gradients` of validated episodes."""
        graph = self._graph(
            "per_episode_gradients",
            lambda: functools.partial(inspection.per_episode_gradients, self.estimator),
            (self._episodes_specs(), tf.TensorSpec((), tf.bool)),
        )
        return graph(_tensors(episodes), tf.constant(bool(baseline)))

    def step_statistics(self, episodes):
        """Returns `inspection.step_statistics` of validated episodes, in NumPy."""
        graph = self._graph(
            "step_statistics",
            lambda: functools.partial(inspection.step_statistics, self.estimator),
            (self._episodes_specs(),),
        )
        statistics = graph(_tensors(episodes))
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), statistics)

    def make_train_step(self, optimizer, rollout=None):
        """Returns the `train_step.TrainStep` for episodes in NumPy, or for a rollout."""
        block_size = None
        # A recurrent policy reads whole episodes, and would do so for every block.
        if rollout is not None and self.actor.recurrent is None:
            limit = _BLOCK if rollout.stacked_weights is None else _SMALL_BLOCK
            block_size = (
                limit if rollout.count * rollout.batched_env.limit > limit else None
            )
        return train_step.TrainStep(
            self.estimator,
            optimizer,
            self.counters,
            passes=self.passes,
            minibatch_size=self.minibatch_size,
            block_size=block_size,
        )

    def permutations(self, episodes, seed):
        """Returns `[num_permutations, N]` int32, random orders of the valid steps.

        Args:
            episodes: `Episodes` of NumPy arrays, validated.
            seed: Int, the master seed.
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
        raise FloatingPointError(
            f"Update {self.num_updates} would not be finite and was not made. All "
            f"weights are unchanged. {cause} Try a smaller learning rate, "
            "`global_clipnorm`, or smaller rewards."
        )

    def _episodes_specs(self):
        actor = self.actor
        return records.specs(actor.observation_spec, actor.action_spec, actor.mask_size)

    def _graph(self, name, make_function, signature, parts=()):
        """Returns a function as one concrete function, which is cached.

        A concrete function avoids the search for a trace, which takes longer than a small
        update. It is traced again if variables, a part or a Python constant of a part
        changed.

        Args:
            name: String, the method that calls it.
            make_function: Function without arguments that returns the function to trace.
                It is called only if there is no trace yet.
            signature: Tuple of `tf.TensorSpec`.
            parts: Tuple of the optimizers and rollouts that the function uses.
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
        return self.graphs[name][1]


def _constants(optimizer):
    """Returns the Python constants of an optimizer that a trace includes, as a tuple."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return ()
    plain = numbers.Number, str, type(None)
    constants = [(k, v) for k, v in vars(optimizer).items() if isinstance(v, plain)]
    public = [(name, value) for name, value in constants if not name.startswith("_")]
    inner = getattr(optimizer, "inner_optimizer", None)
    return *public, *_schedule(optimizer._learning_rate), _constants(inner)


def _schedule(rate):
    """Returns the constants of a learning rate or entropy coefficient, as a tuple.

    A learning rate that is no schedule is a variable, which the trace reads.
    """
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return (id(rate),)
    return rate, repr(vars(rate))


def _tensors(episodes):
    return keras.tree.map_structure(tf.constant, episodes)


def run_updates(rollout, step, keys, max_steps):
    """Makes updates in the graph; returns metrics, returns, lengths and `terminated`.

    Args:
        rollout: `compiled_rollout.Rollout`.
        step: `train_step.TrainStep`.
        keys: `[U, 4, 2]` uint32, see `seeding.rollout_keys`.
        max_steps: Scalar int64; no update starts after this many environment steps.

    Returns:
        List of tensors `[u, …]`, u ≤ U, as `update_in_graph` returns them.
    """
    count = tf.shape(keys)[0]

    def update(number, finite, steps, history):
        result = rollout(seeding.episode_keys(keys[number]))
        row = update_in_graph(step, result, seeding.permutation_key(keys[number]))
        steps += tf.reduce_sum(tf.cast(result.episodes.lengths, tf.int64))
        return number + 1, row[0][0] > 0, steps, write_history(history, number, row)

    *_, history = tf.while_loop(
        lambda number, finite, steps, _: (number < count) & finite & (steps < max_steps),
        update,
        (0, True, tf.constant(0, tf.int64), history_arrays(count, rollout.count)),
        parallel_iterations=1,
    )
    return [array.stack() for array in history]


def update_in_graph(step, rollout_result, key):
    """Makes the update from the result of a rollout in the graph, if it is valid.

    Args:
        step: `train_step.TrainStep`.
        rollout_result: `compiled_rollout.RolloutResult`.
        key: `[2]` uint32, of the permutations; see `seeding.rollout_keys`.

    Returns:
        The result of `step`, and returns, lengths and `terminated` of the episodes.
    """
    episodes = records.trim(rollout_result.episodes)
    permutations = permutations_in_graph(key, step, episodes)
    metrics = tf.cond(
        tf.reduce_all(rollout_result.valid),
        lambda: step(episodes, permutations),
        lambda: tf.zeros([1 + len(train_step.METRICS)], tf.float64),
    )
    return metrics, rollout_result.returns, episodes.lengths, episodes.terminated


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
    """Returns the arrays with the results of one more update."""
    return [array.write(number, x) for array, x in zip(history, row, strict=True)]


def permutations_in_graph(key, step, episodes):
    """Returns `[num_permutations, N]` int32, random orders of the valid steps."""
    if not step.num_permutations:
        return tf.zeros([0, 0], tf.int32)
    lengths = step.estimator.learned_lengths(episodes)
    steps, spec = tf.range(tf.reduce_sum(lengths)), [seeding.NoiseSpec("uniform", ())]
    return tf.stack(
        [
            tf.argsort(seeding.counter_noise(key, spec, steps, number, "float64")[0])
            for number in range(step.num_permutations)
        ]
    )
