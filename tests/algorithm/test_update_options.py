"""What learns beside the policy, what is left out, and that all of it is repeatable."""

import functools

import definitions
import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys
from definitions import DEFAULTS
from definitions import OBSERVED
from definitions import columns
from definitions import padded
from update_agents import GAMMA
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

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.algorithm import inspection
from tf_reinforce.algorithm import train_step
from tf_reinforce.data import minibatches


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def put(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


# The same again


def test_the_order_is_a_function_of_the_seed_and_the_number_of_the_update():
    agent = made("softmax", "float32", minibatch_size=6)
    episodes = record("softmax", "float32")
    variables = everything(agent)
    fresh, ends = numbers(variables), []
    for seed, update in ((0, 0), (0, 0), (1, 0), (0, 1)):
        put(variables, fresh)
        agent.counters.assign([update, 0, 0])
        agent.update(episodes, seed=seed)
        ends.append(numbers(agent.policy_variables))
    assert same(ends[0], ends[1])
    assert not any(same(ends[i], ends[j]) for i, j in ((0, 2), (0, 3), (2, 3)))


def schedule():
    return keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0)


def learner(**settings):
    """Every option that keeps or draws something."""
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    agent = tfr.Reinforce(
        policy,
        baseline=settings.pop("baseline", "moving_average"),
        scale_rewards=True,
        scale_advantages="running",
        minibatch_size=9,
        passes=2,
        entropy_coef=schedule(),
        **settings,
    )
    agent.compile(optimizer=keras.optimizers.Adam(0.05))
    return agent


def fit(agent, epochs, num_envs=4, seed=5):
    options = dict(episodes_per_epoch=4, num_envs=num_envs, seed=seed, verbose=0)
    agent.fit(toys.Lengths, epochs=epochs, **options)


def test_a_loaded_agent_goes_on_to_the_same_bits(tmp_path):
    """Orders, scales, averages and the place in the schedule: all in the file.

    It goes on with another number of environments, which changes nothing either.
    """
    live = learner()
    fit(live, 2)
    live.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert same(numbers(everything(live)), numbers(everything(loaded)))
    assert float(loaded.reward_scale.count) == float(loaded.advantage_scale.count) > 0
    weights = numbers(live.policy_variables)
    fit(live, 2)
    fit(loaded, 2, num_envs=1)
    assert same(numbers(everything(live)), numbers(everything(loaded)))
    assert not same(weights, numbers(live.policy_variables))


def test_the_options_survive_their_config():
    options = dict(
        scale_advantages="running",
        scale_rewards=True,
        on_truncation="drop",
        minibatch_size=7,
        passes=3,
        ratio_clip=1.5,
    )
    agent = made(entropy_coef=schedule(), **options)
    again = tfr.Reinforce.from_config(agent.get_config())
    assert {name: getattr(again, name) for name in options} == options
    assert again.entropy_coef.get_config() == schedule().get_config()
    assert made(entropy_coef=0.25).get_config()["entropy_coef"] == 0.25


def test_a_schedule_says_the_entropy_coefficient_of_the_number_of_the_update():
    """0.5, 0.375, …, 0: the loss of every step of update u has that of u."""
    agent, episodes = made(entropy_coef=schedule()), record()
    for update, coef in enumerate((0.5, 0.375, 0.25, 0.125, 0.0, 0.0)):
        agent.counters.assign([update, 0, 0])
        fixed = made(policy=agent.policy, entropy_coef=coef)
        close(agent.gradients(episodes)[0], fixed.gradients(episodes)[0])


# What is left out


def cut_out(episodes):
    """The record without the episodes that the clock cut."""
    return columns(episodes, np.flatnonzero(episodes.terminated))


@pytest.mark.parametrize("minibatch_size", [None, 4])
def test_dropping_is_a_record_without_the_episodes_that_were_cut(minibatch_size):
    """Weights, critic and scales; what was cut may hold NaN, and NaN is its padding."""
    critic = baselines.Value(dense(1), keras.optimizers.SGD(0.1), minibatch_size=4)
    options = dict(minibatch_size=minibatch_size, scale_advantages="running")
    agent = made(baseline=critic, on_truncation="drop", scale_rewards=True, **options)
    variables, episodes = everything(agent), record()
    fresh = numbers(variables)
    agent.update(cut_out(episodes))
    agent.update(cut_out(episodes))
    expected = numbers(variables)
    rewards = np.where(episodes.terminated, episodes.rewards, np.nan)
    spoiled = episodes._replace(rewards=rewards)
    ends = []
    for given in (episodes, spoiled, padded(episodes, 5)):
        put(variables, fresh)
        for _ in range(2):
            logs = agent.update(given)
        assert np.isfinite(
            [logs[k] for k in ("loss", "gradient_norm", "value_loss")]
        ).all()
        assert agent.counters.numpy().tolist() == [2, 10, 2 * N]
        ends.append(numbers(variables))
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])
    counters = [v is agent.counters for v in variables].index(True)
    ends[0][counters] = expected[counters]
    close(ends[0], expected)
    assert not same(expected, fresh)


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean", None])
def test_a_baseline_sees_only_the_episodes_that_are_left(baseline):
    agent = made(baseline=baselines.get(baseline), on_truncation="drop")
    batch = agent.trainer.estimator.batch(agent.trainer.validate(record()))
    kept = cut_out(record())
    loop = definitions.loop_advantages(kept, baseline, DEFAULTS)
    # Rows first, as the steps stand in a batch.
    expected = [x[t] for t in range(7) for x in loop if t < len(x)]
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-12, atol=1e-12)
    assert (float(batch.divisor), int(batch.num_episodes)) == (3, 3)


def test_a_cut_counts_as_an_ending_or_is_bootstrapped_as_asked():
    """`terminal` is the record in which every episode terminated."""
    for baseline in (None, baselines.Value(dense(1))):
        agent, episodes = made(baseline=baseline), record()
        ended = episodes._replace(terminated=np.ones_like(episodes.terminated))
        expected = agent.gradients(ended)[0]
        bootstrapped = agent.gradients(episodes)[0]
        other = made(policy=agent.policy, baseline=baseline, on_truncation="terminal")
        close(other.gradients(episodes)[0], expected, 1e-15)
        assert np.array_equal(bootstrapped[0], expected[0]) == (baseline is None)


def test_a_number_that_is_none_is_blamed_where_it_is_though_it_is_left_out():
    """The normalizer would take it in; of what is left out nothing is learned."""
    for cut in (record().terminated, np.zeros_like(record().terminated)):
        agent = made(on_truncation="drop", normalize_observations=True)
        episodes = record()._replace(terminated=cut)
        column = int(np.flatnonzero(~cut)[0])
        episodes.observations[0, column, 0] = np.nan
        with pytest.raises(
            FloatingPointError, match=f"{column}, step 0, the observation"
        ):
            agent.update(episodes)


def test_of_several_numbers_that_are_none_the_first_is_named():
    """One number and one variable: what comes after them follows from them."""
    agent = made()
    episodes = agent.trainer.validate(record())
    episodes.observations[0, 0] = np.nan
    episodes.observations[0, 1] = np.inf
    episodes.rewards[0, 1] = np.nan
    said = inspection.explain_non_finite(agent.trainer.estimator, episodes)
    assert said.startswith("In episode 0, step 0, the observation is [nan")
    assert said.count("In episode") == said.count("The gradient of") == 1
    (first, *_) = agent.policy_variables
    assert said.endswith(f"The gradient of {first.path} is not finite.")


class Padded(baselines.Baseline):
    """The contract asks for nothing in particular where no step happened."""

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.ones_like(returns), np.nan)


def test_what_a_baseline_says_of_padding_changes_nothing():
    agent = made(baseline=Padded(), scale_advantages="batch")
    batch = agent.trainer.estimator.batch(agent.trainer.validate(record()))
    assert np.mean(batch.advantages.numpy() ** 2) == pytest.approx(1)


@pytest.mark.parametrize("changed", ["optimizer", "trainable"])
def test_a_critic_that_is_changed_learns_as_it_is_then(changed):
    agent = made(baseline=baselines.Value(dense(1), keras.optimizers.SGD(0.1)))
    agent.update(record())
    if changed == "optimizer":
        agent.baseline.optimizer = keras.optimizers.SGD(0.0)
    else:
        agent.baseline.model.trainable = False
    before = numbers(agent.baseline.model.variables)
    agent.update(record())
    assert same(before, numbers(agent.baseline.model.variables))


def test_a_critic_in_half_precision_has_a_loss_that_is_not():
    """2,000 returns near 100: the sum of their squares is beyond float16."""
    critic = keras.Sequential([keras.layers.Dense(1, dtype="mixed_float16")])
    baseline = baselines.Value(critic)
    baseline.build((None, 2))
    targets = np.full(2000, 100.0)
    baseline_batch = baselines.BaselineBatch(
        np.ones((2000, 2), "float32"), targets, targets, 10
    )
    loss, gradients = baseline.gradients(baseline_batch)
    assert loss.dtype == tf.float32 and 9e5 < float(loss) < 1.1e6
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_two_models_that_share_weights_are_refused():
    """Their file could not be read again."""
    trunk = keras.layers.Dense(3, dtype="float64")
    policy, critic = (
        keras.Sequential(
            [
                keras.Input((OBSERVED,), dtype="float64"),
                trunk,
                keras.layers.Dense(size, dtype="float64"),
            ]
        )
        for size in (A, 1)
    )
    with pytest.raises(ValueError, match="must not share weights.*in common.*one policy"):
        made(policy=policy, baseline=baselines.Value(critic))


class Charged(keras.layers.Layer):
    """A penalty that is the mean over a batch, of which there may be none."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x))
        return x


class Endless(toys.Observing):
    """Five steps of images, after which only the clock ends an episode."""

    def __init__(self):
        super().__init__(gym.spaces.Box(0, 255, (8, 8, 1), np.uint8))

    def step(self, action):
        observation, reward, ended, _, info = super().step(action)
        return observation, reward, False, ended, info


@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4}, {"baseline": "value"}])
def test_convolutions_may_have_no_step_to_learn_from(options):
    """TensorFlow's own give a batch of none the shape of their input."""
    options = dict(on_truncation="drop", **options)
    agent = tfr.Reinforce.for_env(Endless, hidden=(4,), **options)
    before = numbers(agent.policy_variables)
    history = agent.fit(Endless, epochs=1, episodes_per_epoch=2, verbose=0).history
    assert history["loss"] == history["gradient_norm"] == [0.0]
    for old, new in zip(before, numbers(agent.policy_variables), strict=True):
        np.testing.assert_array_equal(new, old)


class Occupied(keras.layers.Layer):
    """Refuses a batch of no rows."""

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(x)[0])]):
            return tf.identity(x)


@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4, "passes": 2}], ids=str)
def test_no_model_is_called_on_no_rows(options):
    models = [
        keras.Sequential([keras.Input((1,)), Occupied(), keras.layers.Dense(size)])
        for size in (2, 1)
    ]
    baseline = baselines.Value(models[1], keras.optimizers.SGD(0.1))
    agent = tfr.Reinforce(models[0], baseline=baseline, on_truncation="drop", **options)
    agent.compile(keras.optimizers.SGD(0.1))
    limit = dict(epochs=1, episodes_per_epoch=2, max_episode_steps=2, verbose=0)
    assert agent.fit(toys.Clock, **limit).history["loss"] == [0.0]


def test_a_function_of_rows_is_called_with_one_at_least():
    seen = []

    def doubled(rows):
        seen.append(len(rows["x"]))
        return 2 * rows["x"], None

    for count in (0, 1, 3):
        rows = {"x": tf.range(2.0 * count)}
        found, nothing = minibatches.call_on_rows(doubled, rows)
        assert nothing is None
        np.testing.assert_array_equal(found, 2 * np.arange(2 * count))
    assert seen == [1, 2, 6]


@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4, "passes": 2}], ids=str)
def test_where_all_were_cut_nothing_moves_but_counters_and_normalizer(options):
    optimizer = keras.optimizers.Adam(0.1, weight_decay=0.1)
    inside = keras.layers.Dense(A)
    policy = keras.Sequential([keras.Input((OBSERVED,)), Charged(), inside])
    agent = complete(optimizer, policy, on_truncation="drop", **options)
    episodes = record("gaussian", "float32")
    agent.update(episodes)
    variables = everything(agent)
    before = numbers(variables)
    episodes = episodes._replace(
        terminated=np.zeros(5, bool), observations=episodes.observations + 1
    )
    logs = agent.update(padded(episodes, 3))
    moved = {
        variable.path.split("/")[-2].rstrip("_0123456789")
        for variable, old in zip(variables, before, strict=True)
        if not np.array_equal(variable.numpy(), old)
    }
    assert moved == {"reinforce", "running_normalization"}
    assert agent.counters.numpy().tolist() == [2, 10, 40]
    figures = [logs[k] for k in ("loss", "policy_loss", "gradient_norm")]
    assert figures == [0.0, 0.0, 0.0]
    assert np.isnan([logs["entropy"], logs["effective_sample_size"]]).all()
    agent.update(record("gaussian", "float32"))
    assert all(np.isfinite(x).all() for x in numbers(variables))


def test_nan_seen_in_an_episode_that_is_dropped_does_not_reach_the_normalizer():
    agent = complete(keras.optimizers.SGD(0.1), on_truncation="drop")
    episodes = record("gaussian", "float32")
    observations = episodes.observations.copy()
    observations[0, 1] = np.nan
    assert not episodes.terminated[1]
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes._replace(observations=observations))
    assert same(before, numbers(everything(agent)))


class Steep(keras.layers.Layer):
    """Puts out what it is given, with a slope that is infinite."""

    def call(self, inputs):
        @tf.custom_gradient
        def steep(x):
            return tf.identity(x), lambda slope: tf.fill(tf.shape(slope), np.inf)

        return steep(inputs)


def test_an_infinite_gradient_is_refused_where_the_optimizer_would_cut_it_to_a_number():
    episodes = record("softmax", "float32")
    policy = keras.Sequential([keras.Input((OBSERVED,)), keras.layers.Dense(A), Steep()])
    agent = tfr.Reinforce(policy, heads.Categorical(A))
    agent.compile(keras.optimizers.SGD(0.1, clipvalue=1.0))
    agent.build((None, OBSERVED))
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes)
    assert same(before, numbers(everything(agent)))


def test_padding_changes_no_bit_with_minibatches():
    agent = complete(keras.optimizers.Adam(0.1), minibatch_size=4, passes=2)
    episodes, variables = record("gaussian", "float32"), everything(agent)
    fresh, ends = numbers(variables), []
    for rows in (0, 1, 64):
        put(variables, fresh)
        for _ in range(2):
            agent.update(padded(episodes, rows) if rows else episodes)
        ends.append(numbers(variables))
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])
    assert not same(ends[0], fresh)


# The critic


@pytest.mark.parametrize("size, epochs", [(6, 1), (6, 3), (7, 2), (50, 2), (None, 2)])
def test_a_critic_descends_in_minibatches_of_the_order_it_is_given(size, epochs):
    """A loop in NumPy: the same order in each epoch, sums times N / n, per episode."""
    critic = baselines.Value(
        dense(1), keras.optimizers.SGD(1 / 16), passes=epochs, minibatch_size=size
    )
    critic.build((None, OBSERVED))
    rng, order = np.random.default_rng(0), drawn(1)[0]
    observations, targets = rng.normal(size=(N, OBSERVED)), rng.normal(size=N)
    kernel, bias = critic.model.get_weights()
    for part in parts_of(order, size) * epochs:
        x = observations[part]
        errors = (x @ kernel + bias)[:, 0] - targets[part]
        factor = N / len(part) / 5 / 16
        kernel = kernel - factor * x.T @ errors[:, None]
        bias = bias - factor * errors.sum()
    times = np.arange(N, dtype="int32")
    baseline_batch = baselines.BaselineBatch(
        observations, tf.constant(targets), times, 5, order
    )
    _, gradients = critic.gradients(baseline_batch)
    critic.apply_gradients(gradients, baseline_batch)
    close(critic.model.get_weights(), [kernel, bias])


def test_critic_and_policy_learn_nothing_from_each_other_s_loss():
    """Each moves as beside a partner that does not move at all."""
    own = keras.optimizers.SGD(0.1)
    critic = baselines.Value(dense(1, seed=4), own, passes=2, minibatch_size=6)
    agent = made(baseline=critic, minibatch_size=6, passes=2)
    parts = [agent.policy_variables, critic.trainable_variables]
    fresh, ends = [numbers(part) for part in parts], []
    for rates in ((0.1, 0.1), (0.0, 0.1), (0.1, 0.0)):
        for part, start, optimizer, rate in zip(
            parts, fresh, (agent.optimizer, own), rates, strict=True
        ):
            put(part, start)
            optimizer.learning_rate.assign(rate)
        agent.counters.assign([0, 0, 0])
        agent.update(record())
        ends.append([numbers(part) for part in parts])
    both, critic_only, policy_only = ends
    assert same(both[0], policy_only[0]) and same(both[1], critic_only[1])
    assert same(critic_only[0], fresh[0]) and same(policy_only[1], fresh[1])
    assert not same(both[0], fresh[0]) and not same(both[1], fresh[1])


def test_parts_of_a_shared_trunk_have_its_gradient_as_their_mean():
    """Policy, entropy and value loss: Σ n/N gᵢ = g; and the steps are a loop of them."""
    agent = tfr.Reinforce(
        definitions.shared_network(),
        heads.Categorical(2, dtype="float64"),
        baselines.Value(loss_weight=0.7),
        gamma=GAMMA,
        entropy_coef=0.2,
        minibatch_size=6,
        passes=2,
    )
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    rule, episodes = agent.trainer.estimator, agent.trainer.validate(definitions.record())
    batch = rule.batch(episodes)
    whole, permutations = rule.policy_gradients(batch)[0], drawn(2)
    acted, total = rule.distribution(batch).log_prob(batch.actions), [0.0] * len(whole)
    fresh = numbers(agent.policy_variables)
    for part in parts_of(permutations[0], 6):
        found, _ = rule.policy_gradients(batch, part, acted)
        total = [s + len(part) / N * x for s, x in zip(total, found, strict=True)]
    close(total, whole)
    for part in [p for o in permutations for p in parts_of(o, 6)]:
        found, _ = rule.policy_gradients(batch, part, acted)
        moved = [v - x / 16 for v, x in zip(agent.policy_variables, found, strict=True)]
        put(agent.policy_variables, moved)
    expected = numbers(agent.policy_variables)
    put(agent.policy_variables, fresh)
    agent.update(episodes)
    close(numbers(agent.policy_variables), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "float32"])
def test_blocks_are_for_every_type_and_for_frozen_policies(dtype):
    layers = [keras.layers.Dense(n, "tanh", dtype=dtype) for n in (4, 2)]
    policy = keras.Sequential([keras.Input((OBSERVED,)), *layers])
    policy.trainable = dtype != "float32"
    agent = tfr.Reinforce(policy, heads.Categorical(2), gamma=GAMMA)
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    episodes = agent.trainer.validate(definitions.record(dtype="float32"))
    batch = agent.trainer.estimator.batch(episodes)
    update = train_step.TrainStep(
        agent.trainer.estimator, None, None, passes=1, block_size=6
    )
    update.optimizer = agent.optimizer
    found, logs = update._gradients_by_blocks(batch)
    whole, said = agent.trainer.estimator.policy_gradients(batch)
    tolerance = 1e-6 if dtype == "float32" else 0.1
    for ours, theirs in zip(found, whole, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.array(ours, "float32"), np.array(theirs, "float32"), atol=tolerance
        )
    np.testing.assert_allclose(float(logs["loss"]), float(said["loss"]), rtol=0.05)


@pytest.mark.parametrize("block", [3, 7, 50])
def test_a_gradient_summed_up_in_blocks_is_that_of_the_batch(block):
    """Policy, entropy, value loss, penalties of weights and of what layers put out."""
    head = heads.Categorical(2, dtype="float64")
    dense = functools.partial(keras.layers.Dense, dtype="float64")
    seen = keras.Input((OBSERVED,), dtype="float64")
    hidden = dense(3, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(seen)
    hidden = Charged(dtype="float64")(hidden)
    ends = {"outputs": dense(2, name="outputs")(hidden), "values": dense(1)(hidden)}
    policy = keras.Model(seen, ends)
    shared = baselines.Value(loss_weight=0.7)
    agent = tfr.Reinforce(policy, head, shared, gamma=GAMMA, entropy_coef=0.2)
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    rule, episodes = agent.trainer.estimator, agent.trainer.validate(definitions.record())
    batch = rule.batch(episodes)
    whole, logs = rule.policy_gradients(batch)
    update = train_step.TrainStep(
        rule, agent.optimizer, agent.counters, passes=1, block_size=block
    )
    found, said = update._gradients_by_blocks(batch)
    close(found, whole)
    for name, figure in logs.items():
        close([said[name]], [figure])
    assert logs["loss"] != logs["policy_loss"] and logs["value_loss"] > 0


# What is refused


@pytest.mark.parametrize(
    "setting, value, said",
    [
        ("minibatch_size", 0, "whole number of at least 1"),
        ("minibatch_size", 2.0, "whole number of at least 1"),
        ("minibatch_size", True, "whole number of at least 1"),
        ("passes", 0, "whole number of at least 1"),
        ("passes", None, "whole number of at least 1"),
        ("ratio_clip", 0.99, r"finite number in \[1, inf\]"),
        ("ratio_clip", np.inf, r"finite number in \[1, inf\]"),
        ("ratio_clip", np.nan, r"finite number in \[1, inf\]"),
        ("on_truncation", "cut", "one of .'bootstrap', 'terminal', 'drop'."),
        ("on_truncation", None, "one of .'bootstrap', 'terminal', 'drop'."),
        ("scale_advantages", "std", "one of .None, 'batch', 'running'."),
        ("entropy_coef", "linear", r"finite number in \[0, inf\]"),
    ],
)
def test_what_an_option_cannot_be_is_refused(setting, value, said):
    with pytest.raises(ValueError, match=f"`{setting}` must be.* {said}.*Received: "):
        tfr.Reinforce(dense(A), **{setting: value})


@pytest.mark.parametrize("seed, error", [(-1, ValueError), (1.0, TypeError)])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_seed_that_is_none_is_refused_whether_it_is_needed_or_not(passes, seed, error):
    agent = made(passes=passes)
    with pytest.raises(error, match="`seed` must"):
        agent.update(record(), seed)


def test_a_critic_that_shares_the_trunk_has_no_minibatches_of_its_own():
    with pytest.raises(ValueError, match="minibatch_size=4"):
        baselines.Value(minibatch_size=4)
    with pytest.raises(ValueError, match="`minibatch_size` must be a whole number"):
        baselines.Value(dense(1), minibatch_size=0)


@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4}], ids=["none", "one"])
def test_an_order_is_drawn_where_somebody_asks_for_it(options, monkeypatch):
    agent = made("softmax", "float32", baseline="moving_average", **options)
    told, learn = [], agent.baseline.apply_gradients

    def listening(gradients, baseline_batch):
        told.append(baseline_batch.permutation)
        return learn(gradients, baseline_batch)

    monkeypatch.setattr(agent.baseline, "apply_gradients", listening)
    agent.update(record("softmax", "float32"))
    assert [order is None for order in told] == [not options]


def test_a_batch_with_blocks_is_gone_through_in_blocks(monkeypatch):
    agent = made("softmax", "float32")
    batch = agent.trainer.estimator.batch(
        agent.trainer.validate(record("softmax", "float32"))
    )
    update = train_step.TrainStep(
        agent.trainer.estimator, agent.optimizer, None, passes=1, block_size=6
    )
    gradients, parts = update._gradients, []

    def listening(batch, *part):
        parts.append(len(part))
        return gradients(batch, *part)

    monkeypatch.setattr(update, "_gradients", listening)
    update._gradients_by_blocks(batch)
    assert set(parts) == {1}
