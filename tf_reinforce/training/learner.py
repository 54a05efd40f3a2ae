"""Traces updates once, and makes them."""

import functools
import numbers
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.algorithm import inspection
from tf_reinforce.algorithm import train_step
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding

_NO_STEP_LIMIT = 2**62  # steps, where no number of them ends a call
_BLOCK = 65_536  # steps of which a gradient is summed up at a time, to save memory
_SMALL_BLOCK = 8_192  # the same where agents learn in turn: it stays in a core's cache


class UpdateResult(NamedTuple):
    """One update of the compiled engine, in NumPy."""

    logs: dict  # floats, `train_step.METRICS`
    returns: np.ndarray  # [B] float64
    lengths: np.ndarray  # [B] int32
    terminated: np.ndarray  # [B] bool


class Learner:
    """Makes updates, and says what they would be made from.

    Args:
        rule: `estimator.PolicyGradientEstimator`.
        decision: `actor.ActorPolicy`, whose records it learns from.
        counters: Int64 weight `[3]`: updates, episodes and environment steps so far.
        **steps: `passes` and `minibatch_size`; see `train_step.TrainStep`.
    """

    def __init__(self, rule, decision, counters, **steps):
        self.estimator = rule
        self.decision = decision
        self.counters = counters
        self._steps = steps
        self._graphs = {}

    def update(self, optimizer, episodes, permutations):
        """One update from a record; see `Reinforce.update`.

        Args:
            optimizer: Keras optimizer, built on the weights of the rule.
            episodes: `Episodes` of NumPy arrays, checked.
            permutations: See the method `orders`.

        Returns:
            Dict of floats, `train_step.METRICS`.
        """
        update = self.make_train_step(optimizer)
        whole = tf.TensorSpec((None, None), tf.int32)
        graph = self._graph(update, self._record(), whole, needs=(optimizer,))
        finite, *figures = graph(_tensors(episodes), permutations).numpy().tolist()
        if not finite:
            self._refuse(episodes)
        return dict(zip(train_step.METRICS, figures, strict=True))

    def train(self, optimizer, rollout, seed, *, most, steps=None):
        """Up to `most` updates of the compiled engine in one call: play, learn, again.

        An update that would not be finite ends the call without being made; only as the
        first one of a call it is an error, so that all that was made is told before.

        Args:
            optimizer: As for `update`.
            rollout: `compiled_rollout.Rollout`.
            seed: Int, the master seed.
            most: Int, at least 1.
            steps: Int; no update begins once so many steps were learned from in this
                call. `None`: as many as there are.

        Returns:
            List of `UpdateResult`, at least one.
        """
        update = self.make_train_step(optimizer, rollout)

        def train(keys, steps):
            return _updates(rollout, update, keys, steps)

        counts = tf.TensorSpec((None, 4, 2), tf.uint32), tf.TensorSpec((), tf.int64)
        graph = self._graph(train, *counts, needs=(optimizer, rollout))
        first = int(self.counters[0])
        keys = [seeding.rollout_keys(seed, "training", first + u) for u in range(most)]
        steps = tf.constant(_NO_STEP_LIMIT if steps is None else steps, tf.int64)
        with compiled_rollout.explain_compile_errors():
            made = [x.numpy() for x in graph(tf.constant(np.stack(keys)), steps)]
        found = [
            UpdateResult(dict(zip(train_step.METRICS, figures, strict=True)), *columns)
            for (finite, *figures), *columns in zip(made[0].tolist(), *made[1:])
            if finite
        ]
        if not found:
            self._refuse(compiled_rollout.validate_result(rollout, rollout(keys[0][:3])))
        return found

    def learn(self, optimizer, rollout, played, seed):
        """The one update that `train` would make from what was played."""
        update = self.make_train_step(optimizer, rollout)

        def learn(played, key):
            return update_from_rollout(update, played, key)[0]

        key = seeding.rollout_keys(seed, "training", int(self.counters[0]))[3]
        spec = tf.TensorSpec
        specs = compiled_rollout.RolloutResult(
            self._record(), spec((None,), tf.float64), spec((None,), tf.bool)
        )
        graph = self._graph(
            learn, specs, tf.TensorSpec((2,), tf.uint32), needs=(optimizer, rollout)
        )
        finite, *figures = graph(played, key).numpy().tolist()
        if not finite:
            self._refuse(compiled_rollout.validate_result(rollout, played))
        episodes = played.episodes
        columns = played.returns, episodes.lengths, episodes.terminated
        logs = dict(zip(train_step.METRICS, figures, strict=True))
        return UpdateResult(logs, *(column.numpy() for column in columns))

    def per_episode_gradients(self, episodes, baseline):
        """See `inspection.per_episode_gradients`; `episodes` are checked."""

        def per_episode_gradients(record, baseline):
            return inspection.per_episode_gradients(self.estimator, record, baseline)

        flag = tf.TensorSpec((), tf.bool)
        graph = self._graph(per_episode_gradients, self._record(), flag)
        return graph(_tensors(episodes), tf.constant(bool(baseline)))

    def step_statistics(self, episodes):
        """See `inspection.step_statistics`, in NumPy; `episodes` are checked."""

        def step_statistics(record):
            return inspection.step_statistics(self.estimator, record)

        found = self._graph(step_statistics, self._record())(_tensors(episodes))
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), found)

    def make_train_step(self, optimizer, rollout=None):
        """The `train_step.TrainStep` from a record, or from what a rollout may bring."""
        block = None
        # A memory reads episodes whole, and would do so for every block.
        if rollout is not None and self.decision.memory is None:
            block = _BLOCK if rollout.stacks is None else _SMALL_BLOCK
            block = block if rollout.count * rollout.world.limit > block else None
        steps = {**self._steps, "block": block}
        return train_step.TrainStep(self.estimator, optimizer, self.counters, **steps)

    def permutations(self, episodes, seed):
        """`[permutations, N]` int32: random orders of the steps an update learns from."""
        seed, lengths = seeding.check_seed(seed), episodes.lengths
        if self.estimator.settings["on_truncation"] == "drop":
            lengths = lengths[episodes.terminated]
        count = self.make_train_step(None).permutations
        if not count:
            return tf.zeros([0, 0], tf.int32)
        rng = seeding.generator(seed, "training/minibatches", int(self.counters[0]))
        steps = np.arange(lengths.sum(), dtype="int32")
        return tf.constant(np.stack([rng.permutation(steps) for _ in range(count)]))

    def _refuse(self, episodes):
        cause = inspection.explain_non_finite(self.estimator, episodes)
        raise FloatingPointError(
            f"Update {int(self.counters[0])} would not be finite and was not made; all "
            f"weights are as they were. {cause} Try a smaller learning rate, "
            "`global_clipnorm`, or smaller rewards."
        )

    def _record(self):
        decision = self.decision
        return records.specs(
            decision.observation_spec, decision.action_spec, decision.mask_size
        )

    def _graph(self, function, *signature, needs=()):
        """A function as one graph; made anew only for other parts.

        The one graph itself: finding it anew is slower than a small update.
        """
        name = getattr(function, "__name__", type(function).__name__)
        learning = [
            *self.estimator.variables,
            *self.estimator.baseline.trainable_variables,
        ]
        needs = getattr(self.estimator.baseline, "optimizer", None), *needs
        key = (*map(id, learning), *needs, *map(_constants, needs))
        key += _schedule(self.estimator.settings["entropy_coef"])
        if self._graphs.get(name, (None,))[0] != key:
            # A partial of its own, lest TensorFlow take each agent for a retracing.
            step = functools.partial(function)
            traced = tf.function(step, input_signature=signature, autograph=False)
            self._graphs[name] = key, traced.get_concrete_function()
        return self._graphs[name][1]


def _constants(optimizer):
    """What a traced update holds of an optimizer as constants, as a tuple to compare."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return ()
    plain = numbers.Number, str, type(None)
    found = [(k, v) for k, v in vars(optimizer).items() if isinstance(v, plain)]
    found = [(name, value) for name, value in found if not name.startswith("_")]
    inner = getattr(optimizer, "inner_optimizer", None)
    return *found, *_schedule(optimizer._learning_rate), _constants(inner)


def _schedule(rate):
    """What a traced update holds of a learning rate or an entropy coefficient.

    A rate that is no schedule is a variable, which the update reads.
    """
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return (id(rate),)
    return rate, repr(vars(rate))


def _tensors(episodes):
    return keras.tree.map_structure(tf.constant, episodes)


def _updates(rollout, update, keys, steps):
    """`[U, …]` each: what updates say of themselves; returns, lengths, endings."""
    count = tf.shape(keys)[0]

    def one(number, finite, taken, told):
        played = rollout(keys[number, :3])
        made = update_from_rollout(update, played, keys[number, 3])
        taken += tf.reduce_sum(tf.cast(played.episodes.lengths, tf.int64))
        return number + 1, made[0][0] > 0, taken, write_history(told, number, made)

    *_, told = tf.while_loop(
        lambda number, finite, taken, told: (number < count) & finite & (taken < steps),
        one,
        (0, True, tf.constant(0, tf.int64), history_arrays(count, rollout.count)),
        parallel_iterations=1,
    )
    return [tape.stack() for tape in told]


def update_from_rollout(update, played, key):
    """The update from what was played, if that is sound: what it says, in the graph.

    Args:
        update: `train_step.TrainStep`.
        played: `compiled_rollout.RolloutResult`.
        key: `[2]` uint32, of the order of minibatches; see `seeding.rollout_keys`.

    Returns:
        What `train_step.TrainStep` returns; returns, lengths and endings of the episodes.
    """
    episodes = records.trim(played.episodes)
    permutations = _permutations(key, update, episodes)
    nothing = tf.zeros([1 + len(train_step.METRICS)], tf.float64)
    sound = tf.reduce_all(played.sound)
    figures = tf.cond(sound, lambda: update(episodes, permutations), lambda: nothing)
    return figures, played.returns, episodes.lengths, episodes.terminated


def history_arrays(updates, episodes):
    """Where `learn_from` is written down for so many updates of so many episodes."""
    figures = [1 + len(train_step.METRICS)]
    specs = [(tf.float64, figures), (tf.float64, [episodes])]
    specs += [(dtype, [episodes]) for dtype in (tf.int32, tf.bool)]
    return [tf.TensorArray(dtype, updates, element_shape=shape) for dtype, shape in specs]


def write_history(told, number, made):
    """The tapes, after one more update."""
    return [tape.write(number, x) for tape, x in zip(told, made, strict=True)]


def _permutations(key, update, episodes):
    """`[permutations, N]` int32: random orders of the steps an update learns from."""
    lengths = episodes.lengths
    if update.estimator.settings["on_truncation"] == "drop":
        lengths = tf.where(episodes.terminated, lengths, 0)
    if not update.permutations:
        return tf.zeros([0, 0], tf.int32)
    steps, one = tf.range(tf.reduce_sum(lengths)), [seeding.NoiseSpec("uniform", ())]
    return tf.stack(
        [
            tf.argsort(seeding.counter_noise(key, one, steps, number, "float64")[0])
            for number in range(update.permutations)
        ]
    )
