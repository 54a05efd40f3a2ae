"""Tests updates with several gradient steps against a loop, and updates that fail."""

import functools
import itertools
import math

import keras
import numpy as np
import oracle
import pytest
import sweeps
import tensorflow as tf
import toys
from definitions import OBSERVED
from definitions import padded
from definitions import same_bits
from update_agents import GAMMA
from update_agents import RATE
from update_agents import A
from update_agents import N
from update_agents import close
from update_agents import complete
from update_agents import dense
from update_agents import drawn
from update_agents import everything
from update_agents import made
from update_agents import numbers
from update_agents import parts_of
from update_agents import record
from update_agents import step_of

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import minibatches
from tf_reinforce.engine.update import estimator as estimators
from tf_reinforce.engine.update import train_step
from tf_reinforce.support import optimizers


def checked(agent, episodes):
    """Returns validated episodes as tensors."""
    return keras.tree.map_structure(tf.constant, agent.trainer.check_episodes(episodes))


def restore(agent, weights):
    for variable, value in zip(agent.policy_variables, weights, strict=True):
        variable.assign(value)


# The definition


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("size", [None, 1, 3, 6, 19, 50])
def test_minibatches_contain_all_steps_and_sizes_differ_by_at_most_one(size, steps):
    order = np.random.default_rng(0).permutation(steps).astype("int32")
    parts = minibatches.Minibatches.split(tf.constant(order), size)
    arrays = [parts.minibatch(k).numpy() for k in range(int(parts.count))]
    np.testing.assert_array_equal(np.concatenate(arrays), order)
    sizes = [len(part) for part in arrays]
    assert max(sizes) - min(sizes) <= 1
    # The number of parts is the quotient of steps and size, rounded.
    quotient = steps / min(size or steps, steps)
    assert abs(len(arrays) - quotient) <= 0.5


SIZES = [(None, 3), (6, 2), (50, 2)]
KINDS = ["softmax", "masked", "gaussian"]


def truth_of(kind, episodes, permutations, rate=RATE, **options):
    """Returns the weights after an update by the definition, and its `Oracle`."""
    agent = made(kind)
    truth = oracle.Oracle(agent.trainer.estimator, **options)
    truth.update(episodes, permutations, rate, 0.0)
    return numbers(agent.policy_variables), truth


@pytest.mark.parametrize(
    "kind, mean_over, jit_compile",
    sweeps.some(
        itertools.product(KINDS, ["episodes", "steps"], [False, True]),
        always=[
            ("softmax", "episodes", True),
            ("gaussian", "steps", False),
        ],
    ),
)
def test_update_equals_a_loop_over_gradient_steps(kind, mean_over, jit_compile):
    """The test uses float64, sizes that do not divide 20, and sizes larger than 20."""
    agent, episodes = made(kind, mean_over=mean_over, ratio_clip=1.25), record(kind)
    fresh, tensors = numbers(agent.policy_variables), checked(agent, episodes)
    for size, passes in SIZES if kind == "softmax" and not jit_compile else SIZES[1:2]:
        restore(agent, fresh)
        permutations = drawn(passes)
        update = step_of(agent, passes, size, jit_compile=jit_compile)
        finite, *metrics = update(tensors, permutations)
        options = dict(passes=passes, minibatch_size=size, ratio_clip=1.25)
        options["mean_over"] = mean_over
        expected, truth = truth_of(kind, episodes, permutations, **options)
        close(numbers(agent.policy_variables), expected)
        logs = dict(zip(train_step.METRICS, np.array(metrics), strict=True))
        sizes = np.mean(truth.sizes)
        assert finite and logs["effective_sample_size"] == pytest.approx(sizes)
        if mean_over == "episodes" and passes > 1:
            assert min(truth.sizes) < 0.999  # the ratios differ


@pytest.mark.parametrize(
    "kind, size, jit_compile",
    sweeps.some(
        [*itertools.product(KINDS, [None, 6], [False]), ("masked", 6, True)],
        always=[("softmax", 6, False)],
    ),
)
def test_passes_end_after_the_first_that_exceeds_max_kl(kind, size, jit_compile):
    """The limits lie just above and below the change after the second pass."""
    rate = RATE / 256 if kind == "gaussian" else RATE  # the change grows with each pass
    options = dict(mean_over="steps", ratio_clip=1.25)
    agent = made(kind, optimizer=keras.optimizers.SGD(rate), **options)
    episodes, permutations = record(kind), drawn(4)
    fresh, tensors = numbers(agent.policy_variables), checked(agent, episodes)
    options |= dict(passes=4, minibatch_size=size, max_kl=math.inf)
    _, truth = truth_of(kind, episodes, permutations, rate, **options)
    change = truth.passes[1][0]
    for number, max_kl in enumerate((0.0, change * (1 - 1e-6), change * (1 + 1e-6))):
        toys.set_options(agent.trainer.estimator, max_kl=max_kl)
        restore(agent, fresh)
        update = step_of(agent, 4, size, jit_compile=jit_compile)
        finite, *metrics = update(tensors, permutations)
        _, expected, steps = truth.passes[number]
        close(numbers(agent.policy_variables), expected)
        logs = dict(zip(train_step.METRICS, np.array(metrics), strict=True))
        sizes = np.mean(truth.sizes[:steps])
        assert finite and logs["effective_sample_size"] == pytest.approx(sizes)
        assert logs["gradient_steps"] == steps


@pytest.mark.parametrize("max_kl", [sweeps.rare(None), 0.05])
def test_update_after_which_an_action_is_impossible_is_undone(max_kl):
    """The first pass makes a log-probability infinite, and the second pass finds it."""
    options = dict(optimizer=keras.optimizers.SGD(10.0), passes=2, max_kl=max_kl)
    agent = made("gaussian", "float32", **options)
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="would not be finite"):
        agent.update(record("gaussian"))
    same_bits(numbers(everything(agent)), before)


# Gradient steps that XLA compiles


def shared_policy(penalty=None):
    """Returns a policy that returns values, with the regularizer or layer `penalty`."""
    layer = functools.partial(keras.layers.Dense, dtype="float64")
    inputs = keras.Input((OBSERVED,), dtype="float64")
    regularizer = keras.regularizers.L2(0.1) if penalty is None else None
    hidden = layer(3, "tanh", kernel_regularizer=regularizer)(inputs)
    hidden = hidden if penalty is None else penalty(hidden)
    ends = {"outputs": layer(A, name="outputs")(hidden), "values": layer(1)(hidden)}
    model = keras.Model(inputs, ends)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.weights])
    return model


def decreasing():
    return keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0)


def value_with_minibatches(model=None):
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    return baselines.Value(model or dense(1), optimizer, passes=5, minibatch_size=7)


COMPILED = {
    "shared value": dict(
        policy=shared_policy, baseline=baselines.Value, entropy_coef=0.2, passes=10
    ),
    "shared value, limited change": dict(
        policy=shared_policy, baseline=baselines.Value, max_kl=0.5
    ),
    "own value": dict(
        kind="gaussian",
        baseline=value_with_minibatches,
        ratio_clip=(0.2, 0.2),
        scale_advantages="batch",
        normalize_observations=True,
        entropy_coef=decreasing,
    ),
    "masked": dict(kind="masked", baseline=value_with_minibatches, mean_over="steps"),
    "limited change": dict(baseline=value_with_minibatches, max_kl=0.5),
    "dropped": dict(baseline=value_with_minibatches, on_truncation="drop"),
}


def steps_until(agent, episodes, jit_compile, updates=2):
    """Returns all weights after some updates, with their metrics."""
    agent.compile(keras.optimizers.SGD(0.05, momentum=0.9), jit_compile=jit_compile)
    logs = [agent.update(episodes) for _ in range(updates)]
    assert agent.jit_compile == jit_compile
    return numbers(everything(agent)), logs


@pytest.mark.parametrize(
    "name",
    sweeps.some(COMPILED, always=["shared value, limited change"]),
)
def test_compiled_gradient_steps_equal_gradient_steps_of_a_graph(name):
    """All steps have padding: 20 steps in 3 minibatches, and 12 steps if some drop."""
    ends = []
    for jit_compile in (False, True):
        options = {k: x() if callable(x) else x for k, x in COMPILED[name].items()}
        options = {"passes": 50, **options}
        agent = made(**options, minibatch_size=6)
        episodes = record(options.get("kind", "softmax"))
        ends.append(steps_until(agent, episodes, jit_compile))
    for plain, compiled in zip(ends[0][0], ends[1][0], strict=True):
        np.testing.assert_allclose(compiled, plain, rtol=1e-8, atol=1e-9)
    for plain, compiled in zip(ends[0][1], ends[1][1], strict=True):
        assert compiled == pytest.approx(plain, rel=1e-9, nan_ok=True)
    whole = [count * options["passes"] for count in (2, 3)]
    ended_early = ends[0][1][0]["gradient_steps"] not in whole
    assert ended_early == ("limited change" in name)


class Activity(keras.layers.Layer):
    """Adds a loss of its inputs, which must not contain padding."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


class WithoutXLA(keras.layers.Layer):
    """Returns its inputs, by an operation that XLA cannot compile."""

    def call(self, x):
        zeros = tf.zeros_like(tf.strings.length(tf.strings.as_string(x)))
        return x + tf.cast(zeros, x.dtype)


@pytest.mark.slow
def test_losses_of_layers_do_not_contain_padding():
    """A model whose layers add losses of their inputs is not compiled."""
    ends = []
    for jit_compile in (False, True):
        model = keras.Sequential([*dense(1).layers, Activity(dtype="float64")])
        policy = keras.Sequential([Activity(dtype="float64"), *dense(A).layers])
        baseline = value_with_minibatches(model)
        agent = made(policy=policy, baseline=baseline, passes=50, minibatch_size=6)
        ends.append(steps_until(agent, record(), jit_compile))
    close(ends[1][0], ends[0][0], 1e-12)
    assert ends[0][1][0]["loss"] != ends[0][1][0]["policy_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["policy", "value"])
def test_layer_without_xla_raises_and_leaves_all_weights_unchanged(part):
    """The value model is compiled after the gradient steps of the policy."""
    policy, model = dense(A), dense(1)
    spoiled = model if part == "value" else policy
    layers = [WithoutXLA(name="texts", dtype="float64"), *spoiled.layers]
    spoiled = keras.Sequential([keras.Input((OBSERVED,), dtype="float64"), *layers])
    policy, model = (policy, spoiled) if part == "value" else (spoiled, model)
    options = dict(passes=50, minibatch_size=6)
    agent = made(policy=policy, baseline=value_with_minibatches(model), **options)
    agent.compile(keras.optimizers.SGD(0.01), jit_compile=True)
    agent.optimizer.build(agent.policy_variables)
    before = numbers(everything(agent))
    with pytest.raises(ValueError, match="texts.*` cannot be.*jit_compile=False"):
        agent.update(record())
    same_bits(numbers(everything(agent)), before)


@pytest.mark.parametrize("size", sweeps.some([32, 64, 128, 256], always=[64]))
def test_minibatches_of_one_size_have_one_number_of_offsets(size):
    """The number of minibatches is the number of steps divided by the size, rounded.

    XLA then compiles one program for all of them.
    """
    sizes = set()
    for steps in range(17 * size, 34 * size, 7):
        parts = minibatches.Minibatches.split(tf.range(steps), size)
        sizes.add(len(parts.offsets()))
        assert -(-steps // int(parts.count)) <= min(sizes)
    assert len(sizes) == 1 and sizes.pop() <= 1.0625 * size


def log_probs(rule, batch):
    return rule.distribution(batch).log_prob(batch.actions)


def test_logged_entropy_is_that_of_the_policy_before_the_update():
    """The number of gradient steps has no effect."""
    entropies = [
        made(**options).update(record())["entropy"]
        for options in ({}, {"passes": 3}, {"passes": 2, "minibatch_size": 6})
    ]
    assert entropies[1] == entropies[0]
    assert entropies[2] == entropies[0]


@pytest.mark.parametrize("limits", [1.0, 1.5, 1e6, (0.2, 0.2), (0.0, 0.5), (1.0, 1e6)])
def test_gradient_uses_clipped_probability_ratio_as_a_constant(limits):
    """The gradient is Σ ρ A ∇ log π, with the clipped ratio ρ."""
    agent, episodes = made(), record()
    rule = agent.trainer.estimator
    batch = rule.batch(agent.trainer.check_episodes(episodes))
    acting = log_probs(rule, batch) + np.linspace(-1, 1, N)
    toys.set_options(rule, ratio_clip=limits)
    gradients, logs = rule.policy_gradients(batch, None, acting)
    truth = oracle.Oracle(rule)
    steps, count, _ = truth.steps(episodes)
    close(gradients, truth.gradient(episodes, steps, count, acting.numpy().tolist()))
    size = float(logs["effective_sample_size"])
    assert size == pytest.approx(truth.sizes[-1])


def test_advantage_of_zero_has_no_weight_also_if_its_ratio_overflows():
    ratios, zero = tf.constant([np.inf, 0.0, 3.0]), tf.zeros([3])
    for limits in (2.0, (0.2, 0.2)):
        factors = estimators.clipped_ratios(ratios, zero, limits)
        np.testing.assert_array_equal(factors * zero, zero)


def test_minibatch_gradient_of_recurrent_policy_masks_other_advantages():
    """Other advantages count as zero, and the rest is scaled by N / n."""
    model = keras.Sequential(
        [
            keras.Input((None, OBSERVED), dtype="float64"),
            keras.layers.GRU(4, return_sequences=True, dtype="float64"),
            keras.layers.Dense(A, dtype="float64"),
        ]
    )
    agent = tfr.Reinforce(model, heads.Categorical(A, dtype="float64"), gamma=GAMMA)
    agent.build((None, OBSERVED))
    estimator, episodes = agent.trainer.estimator, padded(record(), 2)
    episodes = episodes._replace(actions=np.abs(episodes.actions) % A)
    batch = estimator.batch(agent.trainer.check_episodes(episodes))
    for part in parts_of(drawn(1)[0], 6):
        gradients, _ = estimator.policy_gradients(batch, part)
        in_part = np.isin(np.arange(N), part)
        alone = batch._replace(advantages=batch.advantages * in_part * N / len(part))
        close(gradients, estimator.policy_gradients(alone)[0])
        assert np.abs(gradients[0]).max() > 1e-3


# An update that fails changes nothing


@keras.saving.register_keras_serializable("tests")
class NaNSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is NaN at one step."""

    def __init__(self, rate=0.05, at=10**6):
        variable = tf.Variable(at, dtype=tf.int64, trainable=False)
        self.rate = rate
        # In a function, the value of the variable is no constant that causes a new trace.
        self.variable = lambda: variable

    @property
    def at(self):
        return self.variable()

    def __call__(self, step):
        bad = tf.cast(step, tf.int64) == self.at
        return tf.where(bad, np.float32("nan"), np.float32(self.rate))

    def get_config(self):
        return {"rate": self.rate}


def test_nonfinite_gradient_step_reverts_the_whole_update():
    """Any of the six steps may fail.

    Policy, head, optimizer, value model, statistics and counters are restored.
    """
    schedule, episodes = NaNSchedule(), record("gaussian", "float32")
    agent = complete(keras.optimizers.Adam(schedule), minibatch_size=7, passes=2)
    agent.update(episodes)
    before = numbers(everything(agent))
    assert int(agent.optimizer.iterations) == 6
    for number in range(6):
        schedule.at.assign(6 + number)
        with pytest.raises(FloatingPointError, match="Update 1 would not be finite"):
            agent.update(episodes)
        same_bits(before, numbers(everything(agent)))
    schedule.at.assign(10**6)
    other = episodes._replace(observations=episodes.observations + 1)
    agent.update(other._replace(rewards=2 * episodes.rewards))
    after = numbers(everything(agent))
    unmoved = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    names = {v.path.split("/")[-1] for v, same in zip(everything(agent), unmoved) if same}
    assert [
        name for name in names if not name.endswith(("learning_rate", "bound", "origin"))
    ] == []


def test_advantage_with_overflowing_square_reverts_the_update():
    """The mean of the squares overflows, although each square is finite."""
    agent = made(scale_advantages="running", gamma=0, baseline=None)
    episodes, before = record(), numbers(everything(agent))
    wrong = np.resize([1.6e154, 1.05e154], episodes.rewards.shape)
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes._replace(rewards=wrong))
    same_bits(before, numbers(everything(agent)))


def test_loss_scale_optimizer_gives_equal_steps_and_skips_overflows():
    episodes = record("softmax", "float32")
    ends = {}
    for scale in (None, 2.0**10, 1e38):
        optimizer = keras.optimizers.SGD(0.1)
        if scale is not None:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
        agent = made("softmax", "float32", optimizer, minibatch_size=7, passes=2)
        fresh = numbers(agent.policy_variables)
        agent.update(episodes)
        assert agent.updates == 1
        ends[scale] = numbers(agent.policy_variables)
    close(ends[2.0**10], ends[None], 1e-6)
    # The scale is halved until the loss fits. At least the first step is skipped.
    assert float(optimizer.dynamic_scale) < 1e38
    assert int(optimizer.inner_optimizer.iterations) < 6
    assert all(np.isfinite(w).all() for w in ends[1e38])
    assert not np.array_equal(fresh[0], ends[None][0])


def simulate_replicas(monkeypatch, count, agent):
    """Computes the results of several replicas one after another, on one device."""

    def sum_over_replicas(strategy, function):
        sums = []
        for replica in range(count):
            weight, tensors = function(tf.constant(replica), count)
            terms = [
                tf.math.multiply_no_nan(x, tf.cast(weight, x.dtype)) for x in tensors
            ]
            sums.append(terms)
        return [tf.add_n(list(terms)) for terms in zip(*sums, strict=True)]

    agent.trainer.strategy = "a strategy"
    monkeypatch.setattr(optimizers, "strategy_of", lambda variables: "a strategy")
    monkeypatch.setattr(optimizers, "sum_over_replicas", sum_over_replicas)


def replica_results(minibatch, mean_over="episodes", simulate=lambda agent: None):
    """Returns gradients of policy and value baseline, and metrics, as arrays."""
    critic = baselines.Value(dense(1, seed=4), keras.optimizers.SGD(0.1))
    agent, episodes = made(baseline=critic, mean_over=mean_over), record()
    simulate(agent)
    estimator = agent.trainer.estimator
    update = step_of(agent)
    batch = estimator.batch(agent.trainer.check_episodes(episodes))
    arguments = ()
    if minibatch:
        # The policy has changed since the log-probabilities were computed.
        behavior_log_probs = log_probs(estimator, batch) + np.linspace(-1, 1, N)
        arguments = tf.constant([15, 2, 7, 3, 19, 11, 4]), behavior_log_probs
    gradients, metrics = update.gradients_by_replicas(batch, *arguments)
    value = estimator.baseline_step(batch).gradients
    names = "loss", "policy_loss", "entropy", "gradient_norm"
    return numbers([*gradients, *value, *(metrics[name] for name in names)])


@pytest.mark.parametrize(
    "mean_over, minibatch", [("episodes", False), ("episodes", True), ("steps", False)]
)
@pytest.mark.parametrize("count", [3, 9])
def test_replicas_sum_to_the_gradient_of_the_batch(
    monkeypatch, count, mean_over, minibatch
):
    """The five episodes have different lengths, and nine replicas are more than five."""
    simulate = functools.partial(simulate_replicas, monkeypatch, count)
    results = replica_results(minibatch, mean_over, simulate)
    monkeypatch.undo()
    close(results, replica_results(minibatch, mean_over))
