"""Tests training and evaluation on logged decisions."""

import re

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads

NUM_ACTIONS, SIZE = 3, 4
WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, NUM_ACTIONS))


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def expected_rewards(contexts):
    """The probabilities of a reward of one, `[N, 3]`."""
    return 1 / (1 + np.exp(-2 * contexts @ WEIGHTS))


def make_log(count, seed):
    """A logging policy that prefers bad actions slightly; rewards are 0 or 1."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(count, SIZE)).astype("float32")
    probs = softmax(-0.5 * contexts @ WEIGHTS)
    actions = (probs.cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
    rows = np.arange(count)
    rewards = rng.random(count) < expected_rewards(contexts)[rows, actions]
    return contexts, actions, rewards.astype("float32"), probs[rows, actions]


def policy(seed=0):
    initializer = keras.initializers.GlorotUniform(seed)
    contexts = keras.Input((SIZE,))
    logits = keras.layers.Dense(NUM_ACTIONS, kernel_initializer=initializer)(contexts)
    choice = tfr.layers.Sample(heads.Categorical(NUM_ACTIONS), seed=seed)(logits)
    model = tfr.ScoreFunction(keras.Model(contexts, choice), reward=no_reward)
    model.compile(keras.optimizers.Adam(0.03))
    return model


def no_reward(contexts, choices):
    return np.zeros(len(choices))


def value(model, contexts):
    """The expected reward of the policy, exact for the contexts."""
    logits = model.model.layers[1](contexts).numpy()
    return (softmax(logits) * expected_rewards(contexts)).sum(axis=1).mean()


def reward_model(contexts, actions, rewards):
    """A model of the rewards of all actions, trained at the logged actions."""
    model = keras.Sequential(
        [
            keras.Input((SIZE,)),
            keras.layers.Dense(16, "relu"),
            keras.layers.Dense(NUM_ACTIONS),
        ]
    )

    def squared_error(targets, predictions):
        logged = keras.ops.one_hot(keras.ops.cast(targets[:, 0], "int32"), NUM_ACTIONS)
        return (targets[:, 1] - keras.ops.sum(logged * predictions, axis=1)) ** 2

    model.compile("adam", squared_error)
    model.fit(contexts, np.stack([actions, rewards], 1), epochs=3, verbose=0)
    return model


@pytest.mark.parametrize("is_sparse", [False, True])
def test_texts_and_sparse_arrays_are_inputs(is_sparse):
    """Texts are the contexts of a log; only a dataset has sparse batches."""
    inputs = (
        keras.Input((3,), sparse=True) if is_sparse else keras.Input((), dtype="string")
    )
    layer = keras.layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    hidden = inputs if is_sparse else layer(inputs)
    choice = tfr.layers.Sample(heads.Categorical(2))(keras.layers.Dense(2)(hidden))
    reward = tf.function(lambda inputs, choices: 0.0 * tf.cast(choices, tf.float32))
    model = tfr.ScoreFunction(keras.Model(inputs, choice), reward=reward, samples=1)
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    if is_sparse:
        rows = tf.sparse.from_dense(np.eye(3, dtype="float32"))
        data = tf.data.Dataset.from_tensors(rows)
        assert model.evaluate(data, verbose=0, return_dict=True)["reward"] == 0.0
        model.fit(data, shuffle=False, verbose=0)
        return
    for texts in (np.array(["a", "b", "a"]), np.array(["a", "b", "a"], object)):
        log = texts, [0, 1, 0], [1.0, 0.0, 1.0], [0.5, 0.5, 0.5]
        before = model.evaluate_logged(*log)["policy_value"]
        model.fit_logged(*log, epochs=3, verbose=0)
        assert model.evaluate_logged(*log)["policy_value"] > before


@pytest.mark.parametrize(
    "options", [{}, {"estimator": "snips"}, sweeps.rare({"estimator": "dr"})]
)
def test_training_on_a_log_beats_the_logging_policy(options):
    log, contexts = make_log(4000, 1), make_log(4000, 2)[0]
    if options.get("estimator") == "dr":
        options = {**options, "reward_model": reward_model(*log[:3])}
    model = policy()
    before = value(model, contexts)
    history = model.fit_logged(*log, epochs=4, batch_size=64, verbose=0, **options)
    assert set(history.history) == {"policy_value", "effective_sample_size", "entropy"}
    logging = (softmax(-0.5 * contexts @ WEIGHTS) * expected_rewards(contexts)).sum(1)
    best = expected_rewards(contexts).max(axis=1).mean()
    learned = value(model, contexts)
    assert learned > before and learned > logging.mean() + 0.7 * (best - logging.mean())


@pytest.mark.parametrize("estimator", ["ips", "snips", "dr"])
def test_interval_contains_the_exact_value(estimator):
    """Twenty logs with intervals of 99.9 %, of which all should contain the value."""
    model, contexts = policy(seed=5), make_log(200_000, 99)[0]
    truth = value(model, contexts)
    options = {"estimator": estimator, "confidence": 0.999}
    if estimator == "dr":
        options["reward_model"] = reward_model(*make_log(1000, 50)[:3])
    for seed in range(20):
        result = model.evaluate_logged(*make_log(2000, seed), **options)
        assert result["policy_value_lower"] < truth < result["policy_value_upper"]
        assert 0.05 < result["effective_sample_size"] <= 1


@pytest.mark.parametrize("scale", [None, 2.0**6])
@pytest.mark.parametrize(
    "options", [{}, {"clip": 0.7}, {"top_k": 3}, {"clip": 0.7, "top_k": 3}]
)
def test_step_of_training_follows_the_gradient_and_the_regularizers(options, scale):
    """One step of gradient descent, computed from the formula with NumPy."""
    contexts = keras.Input((SIZE,))
    regularizer = keras.regularizers.L2(0.3)
    dense = keras.layers.Dense(NUM_ACTIONS, kernel_regularizer=regularizer)
    choice = tfr.layers.Sample(heads.Categorical(NUM_ACTIONS))(dense(contexts))
    model = tfr.ScoreFunction(keras.Model(contexts, choice))
    optimizer = keras.optimizers.SGD(1.0)
    if scale is not None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
    model.compile(optimizer)
    log, kernel = make_log(32, 0), dense.kernel.numpy().astype("float64")
    probs = softmax(dense(log[0]).numpy().astype("float64"))
    rows = np.arange(32)
    logged = probs[rows, log[1]]
    weights = np.minimum(logged / log[3], options.get("clip", np.inf))
    k = options.get("top_k", 1)
    weights = weights * k * (1 - logged) ** (k - 1)
    eligibilities = np.eye(NUM_ACTIONS)[log[1]] - probs
    gradient = log[0].T @ (eligibilities * (weights * log[2])[:, None]) / 32
    model.fit_logged(*log, batch_size=32, shuffle=False, verbose=0, **options)
    expected = kernel + gradient - 2 * 0.3 * kernel
    np.testing.assert_allclose(dense.kernel, expected, rtol=1e-4, atol=1e-6)


def test_sampled_actions_and_propensities_make_a_log():
    """The estimate of the policy that wrote the log is the mean reward, exactly."""
    model, contexts = policy(), LOG[0]
    actions, propensities = model.sample_actions(contexts)
    probs = softmax(model.model.layers[1](contexts).numpy())
    np.testing.assert_allclose(propensities, probs[np.arange(32), actions], rtol=1e-5)
    result = model.evaluate_logged(contexts, actions, LOG[2], propensities)
    assert result["policy_value"] == pytest.approx(LOG[2].mean(), rel=1e-5)


def test_clipped_weights_reduce_estimates_of_positive_rewards():
    log, model = make_log(2000, 0), policy()
    plain, clipped = (model.evaluate_logged(*log, clip=clip) for clip in (None, 0.5))
    assert clipped["policy_value"] < plain["policy_value"]
    assert clipped["effective_sample_size"] > plain["effective_sample_size"]


def test_callbacks_receive_the_score_function_and_can_stop_it(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            assert self.model is model and "policy_value" in logs
            self.model.stop_training = epoch == 1

    model = policy()
    path = tmp_path / "model.weights.h5"
    callbacks = [Stop(), keras.callbacks.ModelCheckpoint(path, save_weights_only=True)]
    history = model.fit_logged(*make_log(64, 0), epochs=9, callbacks=callbacks, verbose=0)
    assert len(history.epoch) == 2
    other = policy(seed=9)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(path)
    np.testing.assert_array_equal(other.model.weights[0], model.model.weights[0])


@pytest.mark.slow
def test_equal_seeds_train_equal_weights():
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = policy()
        model.fit_logged(*make_log(256, 0), epochs=2, verbose=0)
        results.append(model.model.get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


LOG = make_log(32, 0)
WRONG = [
    (dict(propensities=np.r_[LOG[3][:-1], 0]), "Received: 0.0 in row 31"),
    (dict(propensities=np.r_[1.5, LOG[3][1:]]), "Received: 1.5 in row 0"),
    (dict(propensities=np.r_[np.nan, LOG[3][1:]]), "Received: nan in row 0"),
    (dict(rewards=np.r_[np.inf, LOG[2][1:]]), "`rewards` must be finite"),
    (dict(rewards=np.ma.masked_less(LOG[2], 9)), "`rewards` must have no masked"),
    (dict(actions=np.ma.masked_less(LOG[1], 9)), "`actions` must have no masked"),
    (dict(rewards=LOG[2][:, None]), r"shape \(32, 1\)"),
    (
        dict(actions=np.r_[3, LOG[1][1:]]),
        "raw actions of Categorical.*Received: 3 in row 0",
    ),
    (dict(actions=LOG[1][1:]), "one row for each"),
    (dict(actions=LOG[1][:, None]), r"shape \(N.*Received: shape \(32, 1\)"),
    (dict(actions=LOG[1] + 0.5), "must be whole numbers. Received: .*5 in row 0"),
    (dict(estimator="dm"), "`estimator` must be one of"),
    (dict(estimator="dr"), "`reward_model`"),
    (dict(clip=-1), "`clip` must be"),
    (dict(top_k=0), "`top_k` must be"),
]


@pytest.mark.parametrize(
    "wrong, message", WRONG, ids=[re.sub(r"[^\w ]", "", x[1]) for x in WRONG]
)
def test_invalid_logs_and_options_are_refused_and_change_no_weight(wrong, message):
    model = policy()
    before = model.model.get_weights()
    names = "contexts", "actions", "rewards", "propensities"
    with pytest.raises(ValueError, match=message):
        model.fit_logged(**{**dict(zip(names, LOG)), **wrong}, verbose=0)
    for one, other in zip(before, model.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_that_are_no_numbers_are_refused_with_column_and_row():
    """Tables have names of arms, missing values, lists, and columns of objects."""
    model, names = policy(), ("contexts", "actions", "rewards", "propensities")
    log = [x[:8] for x in LOG]
    for number, column in enumerate(names):
        for value in ("left", None, [1, 2], {"arm": 1}):
            values = log[number].tolist()
            values[5] = value
            columns = [*log[:number], np.array(values, object), *log[number + 1 :]]
            for method in (model.fit_logged, model.evaluate_logged):
                with pytest.raises(ValueError) as raised:
                    method(*columns)
                assert f"`{column}` must " in str(raised.value), (value, raised.value)
                assert "in row 5, counted from 0" in str(raised.value)
    with pytest.raises(ValueError, match="'left' in row 0, counted from 0.* np.unique"):
        model.fit_logged(log[0], ["left", "right"] * 4, *log[2:])
    with pytest.raises(ValueError, match="`contexts` must be an array, or nested arrays"):
        model.fit_logged(log[0].tolist(), *log[1:])
    expected = model.evaluate_logged(*log)
    objects = [np.array([*x, None], object)[:-1] for x in log]
    assert model.evaluate_logged(*objects) == expected
    assert model.evaluate_logged(log[0], *(x.tolist() for x in log[1:])) == expected


def test_columns_of_nested_actions_are_named():
    head = heads.Composite({"arm": heads.Categorical(2), "leg": heads.Gaussian(1)})
    contexts = keras.Input((SIZE,))
    action = tfr.layers.Sample(head)(keras.layers.Dense(3)(contexts))
    model = tfr.ScoreFunction(keras.Model(contexts, action), reward=no_reward)
    arms, legs = [0, 1, 1, 0], [[0.1], [0.2], [np.nan], [0.3]]
    for actions, message in (
        ({"arm": [0, 1, "a", 0], "leg": legs}, "`actions_arm` must be numbers.*row 2"),
        ({"arm": arms, "leg": legs}, "raw actions of Gaussian.*nan. in row 2"),
        ({"arm": arms}, "must be nested like the actions of the head.*actions_leg"),
        ([{"arm": 0, "leg": [0.1]}] * 4, "with a column in place of each.*list"),
    ):
        with pytest.raises(ValueError, match=message):
            model.evaluate_logged(LOG[0][:4], actions, LOG[2][:4], LOG[3][:4])


def normalized_policy():
    contexts = keras.Input((SIZE,))
    hidden = keras.layers.BatchNormalization()(contexts)
    logits = keras.layers.Dense(NUM_ACTIONS)(hidden)
    choice = tfr.layers.Sample(heads.Categorical(NUM_ACTIONS), seed=0)(logits)
    model = tfr.ScoreFunction(keras.Model(contexts, choice), reward=no_reward)
    model.compile(keras.optimizers.Adam(0.03))
    return model


@pytest.mark.parametrize(
    "method, steps_per_execution",
    [("fit_logged", 1), ("fit", 2), sweeps.rare("fit_logged", 2), sweeps.rare("fit", 1)],
)
def test_context_that_is_not_finite_changes_nothing_and_its_row_is_named(
    method, steps_per_execution
):
    """Batch normalization spreads one NaN over all rows of a batch."""
    model = normalized_policy()
    optimizer = keras.optimizers.Adam(0.03)
    model.compile(optimizer, steps_per_execution=steps_per_execution)
    log = [x[:8] for x in LOG]
    data = log if method == "fit_logged" else log[:1]
    getattr(model, method)(*data, batch_size=8, verbose=0)
    variables = [*model.model.variables, *optimizer.variables]
    before = [np.array(x) for x in variables]
    data[0] = data[0].copy()
    data[0][3, 1] = np.nan
    message = "row 3 .* of the log" if method == "fit_logged" else "a gradient"
    options = dict(batch_size=8, shuffle=method == "fit_logged", verbose=0)
    with pytest.raises(FloatingPointError, match=message):
        getattr(model, method)(*data, **options)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_sampling_for_a_log_is_inference():
    """The propensities of a context are those by which `evaluate_logged` judges it."""
    model = normalized_policy()
    model.model.layers[1].set_weights(np.random.default_rng(0).random((4, SIZE)))
    contexts, before = LOG[0], model.model.get_weights()
    logits = model.model.layers[2](model.model.layers[1](contexts)).numpy()
    for rows in (contexts, contexts[:1]):
        actions, propensities = model.sample_actions(rows)
        expected = softmax(logits)[np.arange(len(rows)), actions]
        np.testing.assert_allclose(propensities, expected, rtol=1e-5)
    drawn = [tuple(model.sample_actions(contexts)[0]) for _ in range(2)]
    assert drawn[0] != drawn[1]
    for one, other in zip(before, model.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_arguments_without_effect_are_refused():
    model = policy()
    with pytest.raises(TypeError, match="Received: validation_split=0.1"):
        model.fit_logged(*LOG, validation_split=0.1)
    with pytest.raises(ValueError, match="must be compiled"):
        tfr.ScoreFunction(model.model, reward=no_reward).fit_logged(*LOG)


def test_interval_needs_two_logged_actions_and_finite_estimates():
    model = policy()
    with pytest.raises(ValueError, match="at least two"):
        model.evaluate_logged(*(x[:1] for x in LOG))
    predictions = keras.Sequential([keras.Input((SIZE,)), keras.layers.Dense(3)])
    predictions.set_weights([np.full((SIZE, 3), np.nan), np.zeros(3)])
    with pytest.raises(FloatingPointError, match="Received: nan in row 0"):
        model.evaluate_logged(*LOG, estimator="dr", reward_model=predictions)


def test_logged_actions_need_one_sample_layer_and_listed_actions():
    contexts = keras.Input((SIZE,))
    first = tfr.layers.Sample(heads.Gaussian(1))(keras.layers.Dense(1)(contexts))
    model = tfr.ScoreFunction(keras.Model(contexts, first), reward=no_reward)
    arguments = LOG[0], LOG[2][:, None], LOG[2], LOG[3]
    with pytest.raises(ValueError, match="require the head `Categorical`"):
        model.evaluate_logged(*arguments, estimator="dr", reward_model=keras.Model())
    second = tfr.layers.Sample(heads.Gaussian(1))(keras.layers.Dense(1)(first))
    model = tfr.ScoreFunction(keras.Model(contexts, second), reward=no_reward)
    with pytest.raises(ValueError, match="with 2 Sample layers"):
        model.evaluate_logged(*arguments)


@pytest.mark.parametrize("has_arm", [False, True])
def test_densities_above_one_are_propensities_of_real_actions(has_arm):
    """Also those of a head that has discrete actions beside the real ones."""
    contexts = keras.Input((SIZE,))
    head = heads.Gaussian(1, initial_scale=0.1)
    if has_arm:
        head = heads.Composite({"arm": heads.Categorical(2), "leg": head})
    dense = keras.layers.Dense(3 if has_arm else 1)
    action = tfr.layers.Sample(head)(dense(contexts))
    model = tfr.ScoreFunction(keras.Model(contexts, action), reward=no_reward)
    outputs = dense(LOG[0]).numpy()
    actions = outputs[:, -1:]
    densities = np.full(32, 1 / (0.1 * np.sqrt(2 * np.pi)))
    if has_arm:
        actions = {"arm": np.zeros(32, int), "leg": actions}
        densities *= softmax(outputs[:, :2])[:, 0]
    assert densities.max() > 1
    result = model.evaluate_logged(LOG[0], actions, LOG[2], densities)
    assert result["policy_value"] == pytest.approx(LOG[2].mean(), rel=1e-5)
    assert result["effective_sample_size"] == pytest.approx(1, rel=1e-5)
