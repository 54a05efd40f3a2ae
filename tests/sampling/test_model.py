"""Tests `ScoreFunction` as a Keras model: training, callbacks, files and refusals."""

import full_disk
import keras
import numpy as np
import pytest
import sampling_models as models
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads


def inputs(count=64, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")


def best_choices(array):
    return array[:, :3].argmax(axis=1)


@tf.function
def reward(array, choices):
    return tf.cast(tf.equal(tf.argmax(array[:, :3], axis=1), choices), tf.float32)


def python_reward(array, choices):
    return (best_choices(array) == choices).astype("float32")


def policy(seed=0, dtype=None):
    initializer = keras.initializers.GlorotUniform(seed)
    array = keras.Input((4,))
    logits = keras.layers.Dense(3, kernel_initializer=initializer, dtype=dtype)(array)
    choice = tfr.layers.Sample(heads.Categorical(3), seed=seed, dtype=dtype)(logits)
    return keras.Model(array, choice)


def latent(seed=0):
    initializer = keras.initializers.GlorotUniform(seed)
    array = keras.Input((4,))
    logits = keras.layers.Dense(6, kernel_initializer=initializer)(array)
    bits = tfr.layers.Sample(heads.Bernoulli(6), seed=seed)(logits)
    bits = keras.ops.cast(bits, "float32")
    outputs = keras.layers.Dense(3, kernel_initializer=initializer)(bits)
    return keras.Model(array, outputs)


def compiled(model=None, learning_rate=0.1, jit_compile=False, **options):
    options = options or {"reward": reward}
    score_function = tfr.ScoreFunction(policy() if model is None else model, **options)
    optimizer = keras.optimizers.Adam(learning_rate)
    score_function.compile(optimizer, jit_compile=jit_compile)
    return score_function


def weights(model):
    return [weight.numpy().copy() for weight in model.weights]


def assert_equal_weights(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("function", [reward, sweeps.rare(python_reward)])
def test_rewards_train_the_policy(function):
    model = compiled(reward=function)
    history = model.fit(inputs(), batch_size=8, epochs=8, verbose=0).history
    assert list(history) == ["entropy", "loss", "reward"]
    assert history["loss"][-1] == pytest.approx(-history["reward"][-1], rel=1e-6)
    assert history["reward"][0] < 0.6 and history["reward"][-1] > 0.8
    logs = model.evaluate(inputs(), verbose=0, return_dict=True)
    assert set(logs) == {"loss", "reward"} and logs["reward"] > 0.9
    found = model.predict(inputs(), verbose=0)
    assert logs["reward"] == pytest.approx(np.mean(found == best_choices(inputs())))


@pytest.mark.parametrize("scale", [None, 2.0**6])
def test_training_step_subtracts_the_gradient(scale):
    model = tfr.ScoreFunction(policy(), reward=reward, entropy_coef=0.3)
    optimizer = keras.optimizers.SGD(1.0)
    if scale is not None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
    model.compile(optimizer)
    twin = tfr.ScoreFunction(policy(), reward=reward, entropy_coef=0.3)
    model.model.layers[1].kernel.regularizer = keras.regularizers.L2(0.3)
    gradients = twin.gradients(tf.constant(inputs(8))).gradients
    gradients[0] += 2 * 0.3 * twin.model.layers[1].kernel
    expected = [v - g for v, g in zip(twin.model.trainable_variables, gradients)]
    model.fit(inputs(8), batch_size=8, shuffle=False, verbose=0)
    for variable, value in zip(model.model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-7)


def test_reward_function_receives_each_input_once_per_sample_in_one_call():
    calls = []

    def record(array, choices, targets):
        calls.append((array.copy(), choices.copy(), targets.copy()))
        return np.zeros(len(array))

    model = compiled(reward=record, samples=3)
    data = inputs(4), np.arange(4)
    model.fit(*data, batch_size=4, shuffle=False, verbose=0)
    (arguments,) = calls
    np.testing.assert_array_equal(arguments[0], np.repeat(data[0], 3, axis=0))
    np.testing.assert_array_equal(arguments[2], np.repeat(data[1], 3))
    assert arguments[1].shape == (12,)


def test_resumed_fit_without_a_step_keeps_the_weights(tmp_path):
    """Keras' `fit` ends with the averages of weights, which start at zero."""
    model = compiled()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True))
    results = [weights(model.model)]
    for epoch in (1, 0, 0):  # no step, an epoch, and nothing left
        options = dict(initial_epoch=epoch, epochs=1, resume=tmp_path / str(epoch))
        model.fit(inputs(), **options, verbose=0)
        results.append(weights(model.model))
    assert_equal_weights(*results[:2])
    assert_equal_weights(*results[2:])


def test_failed_save_keeps_the_old_file(tmp_path):
    model = compiled()
    full_disk.expect_old_files_kept(model, tmp_path)


def test_exported_model_returns_the_mode(tmp_path):
    model = compiled()
    model.fit(inputs(), epochs=3, verbose=0)
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    served = exported.serve(tf.constant(inputs()))
    np.testing.assert_array_equal(served, model.predict(inputs(), verbose=0))


@pytest.mark.slow
def test_value_baseline_learns_the_mean_reward():
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    baseline = tfr.baselines.Value(value, keras.optimizers.Adam(0.05), minibatch_size=4)
    model = compiled(reward=constant_reward, baseline=baseline, samples=1)
    model.fit(inputs(), batch_size=8, epochs=15, verbose=0)
    np.testing.assert_allclose(value(inputs()), 2.0, rtol=0, atol=0.05)


def test_value_baseline_takes_a_gradient_step_to_the_mean_reward():
    """The loss is ½ (b + wᵀx - 2)², averaged over the inputs, and b = w = 0."""
    value = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(1, None, True, "zeros")]
    )
    baseline = tfr.baselines.Value(value, keras.optimizers.SGD(0.1))
    model = tfr.ScoreFunction(policy(), reward=constant_reward, baseline=baseline)
    model.compile("sgd", run_eagerly=True)
    model.fit(inputs(8), batch_size=8, verbose=0)
    kernel, bias = value.get_weights()
    np.testing.assert_allclose(bias, [0.2], rtol=1e-6)
    np.testing.assert_allclose(kernel[:, 0], 0.2 * inputs(8).mean(axis=0), rtol=1e-5)


@tf.function
def constant_reward(array, choices):
    return tf.fill(tf.shape(choices), 2.0)


def test_agent_and_score_function_share_their_weights():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(network, heads.Categorical(2), normalize_observations=True)
    agent.build((None, 4))
    statistics = 3 + 2 * inputs(seed=1)
    agent.normalizer.update(statistics)
    array = inputs()
    normalized = (array - statistics.mean(axis=0)) / statistics.std(axis=0)
    expected = np.argmax(network(normalized), axis=1)
    assert (expected != np.argmax(network(array), axis=1)).any()
    model = tfr.ScoreFunction.from_agent(agent, reward=lambda _, x: 1.0 * (x == 0))
    np.testing.assert_array_equal(model.model(array), expected)
    model.compile(keras.optimizers.Adam(1.0), run_eagerly=True)
    model.fit(array, epochs=5, verbose=0)
    np.testing.assert_array_equal(np.argmax(network(normalized), axis=1), np.zeros(64))
    assert agent.act(array, deterministic=True).tolist() == [0] * 64


def test_trained_policy_becomes_an_agent_that_trains_the_same_weights():
    array = keras.Input((4,))
    sample = tfr.layers.Sample(heads.Categorical(2))
    network = keras.layers.Dense(2)
    model = compiled(keras.Model(array, sample(network(array))), reward=constant_reward)
    model.fit(inputs(), verbose=0)
    agent = model.to_agent(gamma=0.9)
    agent.compile(keras.optimizers.Adam(1e-2))
    before = network.kernel.numpy()
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0)
    assert agent.gamma == 0.9 and agent.head is sample.head
    assert np.abs(network.kernel.numpy() - before).max() > 0
    np.testing.assert_array_equal(
        model.predict(inputs(), verbose=0), agent.act(inputs(), deterministic=True)
    )


@pytest.mark.parametrize(
    "make", [latent, models.Loop, models.masked], ids=lambda make: make.__name__
)
def test_models_that_are_no_policy_do_not_become_agents(make):
    with pytest.raises(ValueError, match="Sample"):
        tfr.ScoreFunction(make(), loss="mse").to_agent()


FAULTS = {
    "none": (lambda x, z: None, ValueError, r"must return.*Received: shape \(\)"),
    "column": (lambda x, z: np.ones([32, 1]), ValueError, r"\(32, 1\)"),
    "error": (lambda x, z: 1 / 0, ZeroDivisionError, "division by zero"),
    "nan": (lambda x, z: np.r_[np.nan, np.ones(31)], FloatingPointError, "be finite"),
    "compiled nan": (
        tf.function(lambda x, z: tf.where(tf.range(32) == 9, np.nan, 1.0)),
        FloatingPointError,
        "must be finite",
    ),
    "compiled shape": (tf.function(lambda x, z: tf.zeros([32, 1])), ValueError, "32, 1"),
}


@pytest.mark.filterwarnings("ignore:.*AutoGraph could not")
@pytest.mark.parametrize("fault", sweeps.some(FAULTS, always=["column", "compiled nan"]))
@pytest.mark.parametrize("method", ["fit", sweeps.rare("evaluate")])
def test_faulty_rewards_raise_an_error_and_change_no_weight(method, fault):
    function, kind, message = FAULTS[fault]
    model = compiled(reward=function, samples=4 if method == "fit" else 1)
    model.build((None, 4))
    before, count = weights(model.model), 8 if method == "fit" else 32
    with pytest.raises(kind, match=message):
        getattr(model, method)(inputs(count), batch_size=count, verbose=0)
    assert_equal_weights(before, weights(model.model))


def error_with_root(targets, outputs):
    """Its gradient, but not its value, is NaN if a target is zero."""
    roots = tf.sqrt(targets * (1.0 + outputs**2))
    return tf.reduce_mean((targets - outputs) ** 2 + roots, axis=-1)


@pytest.mark.parametrize("jit_compile", [False, sweeps.rare(True)])
def test_training_continues_after_a_step_that_is_not_finite(jit_compile):
    """No later step of the same call hides one that is not finite."""
    model = tfr.ScoreFunction(latent(), loss=error_with_root)
    model.compile("adam", jit_compile=jit_compile, steps_per_execution=3)
    targets = np.ones([12, 3], "float32")
    options = dict(batch_size=4, shuffle=False, verbose=0)
    model.fit(inputs(12), targets, **options)
    before = weights(model.model)
    with pytest.raises(FloatingPointError, match="changed no weight"):
        bad = targets.copy()
        bad[3] = np.nan
        model.fit(inputs(12), bad, **options)
    with pytest.raises(FloatingPointError, match="changed no weight"):
        bad = targets.copy()
        bad[3] = 0.0
        model.fit(inputs(12), bad, **options)
    assert_equal_weights(before, weights(model.model))
    model.fit(inputs(12), targets, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(loss="mse", reward=reward), "but not both"),
        (dict(reward=3), "`reward` must be a function"),
        (dict(reward=reward, samples=0), "`samples` must be a whole number"),
        (dict(reward=reward, baseline="median"), "`baseline` must be"),
        (dict(reward=reward, baseline=tfr.baselines.Value()), "a model of its own"),
        (dict(loss="no_such_loss"), "no_such_loss"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tfr.ScoreFunction(policy(), **options)


class Cached(keras.Model):
    """Calls its first sample in a `tf.function`, which is traced once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = policy(), policy()
        self.cached = tf.function(lambda array: self.first(array, training=True))

    def call(self, inputs, training=False):
        self.cached(inputs)
        return self.second(inputs, training=training)


class Recomputed(keras.Model):
    """Hides its sample from gradient tapes."""

    def __init__(self):
        super().__init__()
        self.policy = policy()

    def call(self, inputs, training=False):
        def draw(array):
            return tf.cast(self.policy(array, training=training), tf.float32)

        return tf.cast(tf.recompute_grad(draw)(inputs), tf.int64)


@pytest.mark.parametrize(
    "method, columns",
    [sweeps.rare("fit", []), ("fit_logged", [np.zeros(8, int), np.ones(8), np.ones(8)])],
)
def test_step_that_is_not_finite_restores_moving_statistics(method, columns):
    """Batch normalization spreads one NaN over all rows of a batch."""
    array = keras.Input((4,))
    logits = keras.layers.Dense(3)(keras.layers.BatchNormalization()(array))
    model = compiled(keras.Model(array, tfr.layers.Sample(heads.Categorical(3))(logits)))
    bad = inputs(8)
    bad[3] = np.nan
    with pytest.raises(FloatingPointError, match="changed no weight"):
        getattr(model, method)(bad, *columns, shuffle=False, verbose=0)
    layer = model.model.layers[1]
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
    np.testing.assert_array_equal(layer.moving_variance, np.ones(4))


@pytest.mark.slow
def test_reward_function_may_change_its_arrays():
    def changes(array, choices):
        result = python_reward(array, choices)
        choices[:] = 0
        array[:] = 1e3
        return result

    results = []
    for function in (python_reward, changes):
        model = compiled(reward=function)
        model.fit(inputs(), shuffle=False, verbose=0)
        results.append(weights(model.model))
    assert_equal_weights(*results)


def without_samples():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def in_a_loop():
    return models.recurrent(unroll=False)


def with_one_head():
    array, head = keras.Input((4,)), heads.Gaussian(1)
    first = tfr.layers.Sample(head)(keras.layers.Dense(1)(array))
    return keras.Model(array, tfr.layers.Sample(head)(keras.layers.Dense(1)(first)))


@pytest.mark.parametrize(
    "make, message",
    [
        (without_samples, "must call a `tfr.layers.Sample` layer"),
        (Cached, r"outside of `tf.function`. Received: \['sample"),
        (Recomputed, "need gradients.*recompute_grad"),
        (in_a_loop, "`unroll=True`"),
        (with_one_head, "a head of its own"),
    ],
)
def test_models_whose_samples_cannot_be_trained_are_refused(make, message):
    network = make()
    array = np.ones((4, 3, 2) if make is in_a_loop else (4, 4), "float32")
    network(tf.constant(array))
    with pytest.raises(ValueError, match=message):
        model = compiled(network, reward=reward, samples=1)
        if make is Cached:  # `fit` would trace the function again
            model.gradients(tf.constant(array))
        model.fit(array, verbose=0)


def test_data_and_options_of_compile_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="Received: no targets"):
        compiled(latent(), loss="mse").fit(inputs(8), verbose=0)
    model = tfr.ScoreFunction(policy(), reward=reward)
    model.compile("sgd", loss="mse")
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match="instead of a loss in `compile`"):
            method(inputs(8), verbose=0)
