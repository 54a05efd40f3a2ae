"""Several gradient steps from one batch: the definition as a loop, and what fails."""

import definitions
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from definitions import DEFAULTS
from definitions import OBSERVED
from definitions import padded
from definitions import same_bits
from update_agents import GAMMA
from update_agents import RATE
from update_agents import A
from update_agents import N
from update_agents import close
from update_agents import complete
from update_agents import drawn
from update_agents import everything
from update_agents import made
from update_agents import numbers
from update_agents import parts_of
from update_agents import record

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.algorithm import train_step
from tf_reinforce.data import minibatches


def steps_of(episodes, advantages):
    """(observation, action, legal, advantage) of every step, rows first."""
    masks = np.ones((*episodes.rewards.shape, A), "int8")
    masks = masks if episodes.masks is None else episodes.masks
    return [
        (episodes.observations[t, e], episodes.actions[t, e], masks[t, e], given[t])
        for t in range(len(episodes.rewards))
        for e, given in enumerate(advantages)
        if t < len(given)
    ]


def score(weights, seen, action, legal):
    """log π(a|s) and its slopes by kernel, bias and, of a Gaussian, log σ."""
    kernel, bias, *log_scale = weights
    outputs = seen @ kernel + bias
    if log_scale:
        z = (action - outputs) / np.exp(log_scale[0])
        log_prob = sum(-0.5 * z * z - log_scale[0] - 0.5 * np.log(2 * np.pi))
        slope, rest = z / np.exp(log_scale[0]), [z * z - 1]
    else:
        probs = np.exp(outputs) * legal / (np.exp(outputs) @ legal)
        log_prob, slope, rest = np.log(probs[action]), np.eye(A)[action] - probs, []
    return log_prob, [np.outer(seen, slope), slope, *rest]


def descended(weights, steps, permutations, size, bound, divisor):
    """The weights after an update, and of each gradient step (Σρ)² / (n Σρ²)."""
    weights, sizes = [np.array(w, "float64") for w in weights], []
    acted = [score(weights, *step[:3])[0] for step in steps]
    for part in [part for order in permutations for part in parts_of(order, size)]:
        total, ratios = [np.zeros_like(w) for w in weights], []
        for i in part:
            log_prob, slopes = score(weights, *steps[i][:3])
            ratios.append(np.exp(log_prob - acted[i]))
            for sum_, slope in zip(total, slopes, strict=True):
                sum_ += min(ratios[-1], bound) * slope * steps[i][3]
        factor = RATE * len(steps) / len(part) / divisor
        weights = [w + factor * x for w, x in zip(weights, total, strict=True)]
        sizes.append(sum(ratios) ** 2 / len(ratios) / sum(r * r for r in ratios))
    return weights, sizes


# The definition


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("size", [None, 1, 3, 6, 19, 50])
def test_parts_are_all_steps_in_sizes_that_differ_by_one_at_most(size, steps):
    order = np.random.default_rng(0).permutation(steps).astype("int32")
    parts = minibatches.Minibatches.split(tf.constant(order), size)
    found = [parts.minibatch(k).numpy() for k in range(int(parts.count))]
    np.testing.assert_array_equal(np.concatenate(found), order)
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) <= 1
    # No other number of parts comes nearer to so many parts of that size.
    wanted = steps / min(size or steps, steps)
    assert abs(len(found) - wanted) <= 0.5


def test_no_step_at_all_is_one_empty_part():
    for size in (None, 4):
        parts = minibatches.Minibatches.split(tf.zeros([0], tf.int32), size)
        assert int(parts.count) == 1 and parts.minibatch(0).shape == (0,)


def test_a_body_is_repeated_with_the_numbers_from_zero_on():
    numbers = []
    minibatches.call_repeatedly(3, lambda number: numbers.append(int(number)))
    minibatches.call_repeatedly(0, lambda number: numbers.append("never"))
    assert numbers == [0, 1, 2]


SIZES = [(None, 3), (6, 3), (1, 1), (7, 2), (13, 2), (20, 1), (50, 2)]


KINDS = ["softmax", "masked", "gaussian"]


@pytest.mark.parametrize(
    "kind, mean_over",
    sweeps.some(
        [(kind, mean_over) for kind in KINDS for mean_over in ("episodes", "steps")],
        always=[("softmax", "episodes"), ("masked", "episodes"), ("gaussian", "steps")],
    ),
)
def test_an_update_is_its_definition(kind, mean_over):
    """In float64, for sizes that do not divide 20, and for larger ones."""
    agent, episodes = made(kind, mean_over=mean_over, ratio_clip=1.25), record(kind)
    advantages = definitions.loop_advantages(episodes, "leave_one_out", DEFAULTS)
    steps, divisor = steps_of(episodes, advantages), {"episodes": 5, "steps": N}
    fresh = numbers(agent.policy_variables)
    checked = agent.trainer.validate(episodes)
    for size, passes in SIZES if kind == "softmax" else SIZES[:2]:
        for variable, value in zip(agent.policy_variables, fresh, strict=True):
            variable.assign(value)
        update = train_step.TrainStep(
            agent.trainer.estimator,
            agent.optimizer,
            agent.counters,
            passes=passes,
            minibatch_size=size,
        )
        permutations = drawn(passes)
        finite, *figures = update(
            keras.tree.map_structure(tf.constant, checked), permutations
        )
        args = fresh, steps, permutations, size, 1.25, divisor[mean_over]
        expected, sizes = descended(*args)
        close(numbers(agent.policy_variables), expected)
        logs = dict(zip(train_step.METRICS, np.array(figures), strict=True))
        assert finite and logs["effective_sample_size"] == pytest.approx(np.mean(sizes))
        if mean_over == "episodes" and passes > 1:
            assert min(sizes) < 0.999  # the ratios were not all alike


@pytest.mark.parametrize("kind", sweeps.some(KINDS, always=["masked"]))
def test_an_agent_draws_its_orders_from_its_seed_and_the_number_of_its_update(kind):
    """The traced update, twice: the second order is that of update 1."""
    agent, episodes = made(kind, minibatch_size=6, passes=2), record(kind)
    advantages = definitions.loop_advantages(episodes, "leave_one_out", DEFAULTS)
    expected, steps = numbers(agent.policy_variables), steps_of(episodes, advantages)
    for number in range(2):
        agent.update(episodes, seed=9)
        permutations = drawn(2, 9, number)
        expected, _ = descended(expected, steps, permutations, 6, 2.0, 5)
        close(numbers(agent.policy_variables), expected)
    assert int(agent.optimizer.iterations) == 2 * 2 * 3


def log_probs(rule, batch):
    return rule.distribution(batch).log_prob(batch.actions)


def test_the_entropy_is_that_of_the_policy_that_acted():
    """However many steps follow."""
    entropies = [
        made(**options).update(record())["entropy"]
        for options in ({}, {"passes": 3}, {"passes": 2, "minibatch_size": 6})
    ]
    assert entropies[1] == entropies[0]
    assert entropies[2] == entropies[0]


def test_the_ratio_is_held_constant_and_bounded():
    """The gradient is Σ min(π/μ, c) A ∇ log π: a loop over μ, with c at and above 1."""
    agent, episodes = made(), record()
    rule = agent.trainer.estimator
    batch = rule.batch(agent.trainer.validate(episodes))
    acted = log_probs(rule, batch) + np.linspace(-1, 1, N)
    advantages = definitions.loop_advantages(episodes, "leave_one_out", DEFAULTS)
    steps, weights = steps_of(episodes, advantages), numbers(agent.policy_variables)
    for bound in (1.0, 1.5, 1e6):
        toys.set_ratio_clip(rule, bound)
        found, logs = rule.policy_gradients(batch, None, acted)
        total, ratios = [np.zeros_like(w) for w in weights], []
        for step, before in zip(steps, acted.numpy(), strict=True):
            log_prob, slopes = score(weights, *step[:3])
            ratios.append(np.exp(log_prob - before))
            for sum_, slope in zip(total, slopes, strict=True):
                sum_ -= min(ratios[-1], bound) * step[3] * slope / 5
        close(found, total)
        size = sum(ratios) ** 2 / N / sum(r * r for r in ratios)
        np.testing.assert_allclose(logs["effective_sample_size"], size, rtol=1e-12)


def test_a_bound_does_not_make_the_sample_larger():
    """Ratios 100, 50 and 3 under the bound 2; and such as no number can hold."""
    agent = made(ratio_clip=2.0)
    rule = agent.trainer.estimator
    batch, part = rule.batch(agent.trainer.validate(record())), np.arange(3)
    now, ratios = log_probs(rule, batch).numpy(), np.array([100.0, 50.0, 3.0])
    for shift in (0.0, 1e4):
        acted = now - np.pad(np.log(ratios) + shift, (0, N - 3))
        _, logs = rule.policy_gradients(batch, part, acted)
        size = sum(ratios) ** 2 / 3 / sum(ratios**2)
        np.testing.assert_allclose(logs["effective_sample_size"], size, rtol=1e-9)


def test_one_step_per_update_is_all_sample():
    logs = made().update(record())
    assert logs["effective_sample_size"] == 1.0


@pytest.mark.parametrize("mean_over", ["episodes", "steps"])
def test_the_parts_of_one_order_have_the_gradient_of_the_batch_as_their_mean(mean_over):
    """Σ n/N gᵢ = g, also of what is added to the loss; `acted` only from then on."""
    agent = made("gaussian", mean_over=mean_over, entropy_coef=0.3)
    rule = agent.trainer.estimator
    batch = rule.batch(agent.trainer.validate(record("gaussian")))
    whole, logs = rule.policy_gradients(batch)
    for size in (6, 20):
        total, loss = [0.0] * len(whole), 0.0
        for part in parts_of(drawn(1)[0], size):
            found, said = rule.policy_gradients(batch, part, log_probs(rule, batch))
            total = [s + len(part) / N * x for s, x in zip(total, found, strict=True)]
            loss += len(part) / N * said["loss"]
        close([*total, loss], [*whole, logs["loss"]])


def test_a_step_s_part_of_a_memory_is_its_part_of_the_whole():
    """The gradient from some steps: all others' advantages are zero, and N / n."""
    model = keras.Sequential(
        [
            keras.Input((None, OBSERVED), dtype="float64"),
            keras.layers.GRU(4, return_sequences=True, dtype="float64"),
            keras.layers.Dense(A, dtype="float64"),
        ]
    )
    agent = tfr.Reinforce(model, heads.Categorical(A, dtype="float64"), gamma=GAMMA)
    agent.build((None, OBSERVED))
    rule, episodes = agent.trainer.estimator, padded(record(), 2)
    episodes = episodes._replace(actions=np.abs(episodes.actions) % A)
    batch = rule.batch(agent.trainer.validate(episodes))
    for part in parts_of(drawn(1)[0], 6):
        found, _ = rule.policy_gradients(batch, part)
        here = np.isin(np.arange(N), part)
        alone = batch._replace(advantages=batch.advantages * here * N / len(part))
        close(found, rule.policy_gradients(alone)[0])
        assert np.abs(found[0]).max() > 1e-3


# All or nothing


@keras.saving.register_keras_serializable("tests")
class Bomb(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that is no number at one step."""

    def __init__(self, rate=0.05, at=10**6):
        self.rate = rate
        self.at = tf.Variable(at, dtype=tf.int64, trainable=False)

    def __call__(self, step):
        bad = tf.cast(step, tf.int64) == self.at
        return tf.where(bad, np.float32("nan"), np.float32(self.rate))

    def get_config(self):
        return {"rate": self.rate}


def test_a_step_that_is_not_finite_takes_all_of_the_update_back():
    """Any of six, the last too: policy, head, slots, critic, statistics, counters."""
    bomb, episodes = Bomb(), record("gaussian", "float32")
    agent = complete(keras.optimizers.Adam(bomb), minibatch_size=7, passes=2)
    agent.update(episodes)
    before = numbers(everything(agent))
    assert int(agent.optimizer.iterations) == 6
    for number in range(6):
        bomb.at.assign(6 + number)
        with pytest.raises(
            FloatingPointError, match="Update 1 would.*first gradient step is finite"
        ):
            agent.update(episodes)
        same_bits(before, numbers(everything(agent)))
    bomb.at.assign(10**6)
    other = episodes._replace(observations=episodes.observations + 1)
    agent.update(other._replace(rewards=2 * episodes.rewards))
    after = numbers(everything(agent))
    unmoved = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    names = {v.path.split("/")[-1] for v, same in zip(everything(agent), unmoved) if same}
    assert [
        name for name in names if not name.endswith(("learning_rate", "bound", "origin"))
    ] == []


def test_a_reward_whose_square_overflows_gets_into_no_scale():
    """In float64 its gradient is finite; NaN in the statistics would divide nothing."""
    agent = made(scale_rewards=True, scale_advantages="running")
    episodes, wrong = record(), record().rewards
    agent.update(episodes)
    wrong[0, 0] = 1e200
    for fresh in (False, True):
        if fresh:
            for scale in (agent.reward_scale, agent.advantage_scale):
                scale.set_weights([np.zeros(()) for _ in scale.weights])
        before = numbers(everything(agent))
        with pytest.raises(FloatingPointError, match="Update 1 would not be finite"):
            agent.update(episodes._replace(rewards=wrong))
        same_bits(before, numbers(everything(agent)))


def test_statistics_are_finite_and_so_is_their_size():
    """Deviations from a mean may have squares where the mean itself has none."""
    agent = made(scale_advantages="running", gamma=0, baseline=None)
    episodes, before = record(), numbers(everything(agent))
    wrong = np.resize([1.6e154, 1.05e154], episodes.rewards.shape)
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes._replace(rewards=wrong))
    same_bits(before, numbers(everything(agent)))


def test_a_scaled_loss_makes_the_same_steps_and_skips_what_overflows():
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
    # Halved until it fits: the first of six steps at least is skipped, and no NaN stays.
    assert float(optimizer.dynamic_scale) < 1e38
    assert int(optimizer.inner_optimizer.iterations) < 6
    assert all(np.isfinite(w).all() for w in ends[1e38])
    assert not np.array_equal(fresh[0], ends[None][0])


def test_a_scale_of_losses_is_put_back_too():
    bomb = Bomb()
    inner = keras.optimizers.SGD(bomb, momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, 2.0**10, 2)
    agent = made("softmax", "float32", optimizer, minibatch_size=7)
    bomb.at.assign(1)
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(record("softmax", "float32"))
    same_bits(before, numbers(everything(agent)))
    assert float(optimizer.dynamic_scale) == 2.0**10
