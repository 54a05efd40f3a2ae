"""Tests `ScoreFunction` as a Keras model: training, callbacks, files and refusals."""

import itertools
import subprocess
import sys

import full_disk
import gymnasium as gym
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


@pytest.mark.slow
def test_losses_train_the_layers_before_and_after_the_samples():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(latent(), 0.05, loss=loss)
    before = weights(model.model)
    data = inputs(), best_choices(inputs())
    options = dict(batch_size=8, epochs=10, validation_data=data, verbose=0)
    history = model.fit(*data, **options).history
    assert list(history) == ["entropy", "loss", "val_loss"]
    assert history["val_loss"][-1] < 0.5 < history["val_loss"][0]
    changed = [np.abs(x - y).max() for x, y in zip(before, weights(model.model))]
    assert changed[0] > 0.1 and changed[2] > 0.1


@pytest.mark.parametrize("scale", [None, 2.0**6])
def test_training_step_subtracts_the_gradient(scale):
    model = tfr.ScoreFunction(policy(), reward=reward, entropy_coef=0.3)
    optimizer = keras.optimizers.SGD(1.0)
    if scale is not None:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, scale)
    model.compile(optimizer)
    twin = tfr.ScoreFunction(policy(), reward=reward, entropy_coef=0.3)
    plain = tfr.ScoreFunction(policy(), reward=reward, entropy_coef=0.3)
    for one in (model, twin):
        one.model.layers[1].kernel.regularizer = keras.regularizers.L2(0.3)
    gradients = [x.gradients(tf.constant(inputs(8))).gradients for x in (twin, plain)]
    decay = 2 * 0.3 * twin.model.layers[1].kernel
    np.testing.assert_allclose(gradients[0][0], gradients[1][0] + decay, atol=1e-6)
    expected = [v - g for v, g in zip(twin.model.trainable_variables, gradients[0])]
    model.fit(inputs(8), batch_size=8, shuffle=False, verbose=0)
    for variable, value in zip(model.model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("samples", [3, 4])
def test_equal_rewards_have_no_effect(samples):
    """Also with a reward whose mean is rounded; Adam would enlarge any difference."""
    constant = {"reward": lambda array, choices: np.full(len(choices), 12345.678)}
    model = compiled(samples=samples, **constant)
    before = weights(model.model)
    model.fit(inputs(8), batch_size=8, verbose=0)
    for one, other in zip(before, weights(model.model), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_large_rewards_lose_no_digits():
    def gradients(constant):
        numbers = np.random.default_rng(0).integers(0, 9, 24) + constant
        model = tfr.ScoreFunction(policy(), reward=lambda *_: numbers, samples=3)
        return [np.array(x) for x in model.gradients(inputs(8)).gradients]

    assert_equal_weights(gradients(0.0), gradients(3.0 * 2**40))


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


@pytest.mark.slow
def test_datasets_of_every_kind_give_equal_weights():
    class Dataset(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return (inputs()[16 * index : 16 * index + 16],)

    dataset = tf.data.Dataset.from_tensor_slices(inputs()).batch(16).prefetch(2)
    results = []
    for data, options in [
        (inputs(), {"batch_size": 16, "shuffle": False}),
        (dataset, {"shuffle": False}),
        (Dataset(), {"shuffle": False}),
    ]:
        model = compiled()
        model.fit(data, epochs=2, verbose=0, **options)
        results.append(weights(model.model))
    assert_equal_weights(results[0], results[1])
    assert_equal_weights(results[0], results[2])


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_equal_seeds_train_equal_weights(jit_compile):
    results = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = compiled(jit_compile=jit_compile)
        model.fit(inputs(), epochs=3, verbose=0)
        results.append(weights(model.model))
    assert_equal_weights(*results)


def test_xla_and_several_steps_per_execution_train_nearly_equal_weights():
    results = []
    for options in ({}, {"jit_compile": True}, {"steps_per_execution": 4}):
        model = tfr.ScoreFunction(policy(), reward=reward)
        options = {"jit_compile": False, **options}
        model.compile(keras.optimizers.Adam(0.1), **options)
        model.fit(inputs(), batch_size=16, epochs=2, shuffle=False, verbose=0)
        results.append(model.model.get_weights())
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_mixed_precision_trains():
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        model = compiled(policy(dtype="mixed_float16"))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    history = model.fit(inputs(), epochs=30, verbose=0).history
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert history["reward"][-1] > 0.8


@pytest.mark.slow
def test_stock_callbacks_of_keras_work(tmp_path):
    callbacks = keras.callbacks
    stock = [
        callbacks.BackupAndRestore(tmp_path / "backup"),
        callbacks.CSVLogger(tmp_path / "log.csv"),
        callbacks.EarlyStopping("loss", patience=50),
        callbacks.History(),
        callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        callbacks.LearningRateScheduler(lambda epoch: 0.05),
        callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True),
        callbacks.ProgbarLogger(),
        callbacks.ReduceLROnPlateau("loss"),
        callbacks.SwapEMAWeights(),
        callbacks.TensorBoard(tmp_path / "events"),
        callbacks.TerminateOnNaN(),
    ]
    model = tfr.ScoreFunction(policy(), reward=register(reward))
    model.compile(keras.optimizers.Adam(0.1, use_ema=True))
    model.fit(inputs(), epochs=2, callbacks=stock, verbose=0)
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert loaded.fit(inputs(), verbose=0).history["reward"]


def register(function):
    return keras.saving.register_keras_serializable("tests")(function)


@pytest.mark.slow
def test_saved_and_loaded_training_continues_to_equal_weights(tmp_path):
    """The file contains optimizer, baseline and the state of the random numbers."""
    register(python_reward)
    options = dict(reward=python_reward, baseline="moving_average", entropy_coef=0.01)
    model = compiled(**options)
    model.fit(inputs(), epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert (loaded.samples, loaded.entropy_coef) == (4, 0.01)
    for one in (model, loaded):
        one.fit(inputs(), epochs=2, shuffle=False, verbose=0)
    assert_equal_weights(weights(model), weights(loaded))


def test_failed_save_keeps_the_old_file(tmp_path):
    model = compiled(reward=register(reward))
    full_disk.expect_old_files_kept(model, tmp_path)


@pytest.mark.slow
def test_new_process_loads_a_file_after_the_import_of_both_packages(tmp_path):
    model = compiled(latent(), loss="mse")
    model.fit(inputs(8), np.zeros([8, 3]), verbose=0)
    model.save(tmp_path / "model.keras")
    program = (
        "import keras, tf_reinforce\n"
        "model = keras.saving.load_model('model.keras')\n"
        "print(type(model).__name__, model.samples)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout == "ScoreFunction 4\n", result.stderr


@pytest.mark.slow
def test_nested_losses_and_value_baseline_survive_saving(tmp_path):
    array = keras.Input((4,))
    bits = tfr.layers.Sample(heads.Bernoulli(2))(keras.layers.Dense(2)(array))
    bits = keras.ops.cast(bits, "float32")
    outputs = {"a": keras.layers.Dense(1)(bits), "b": keras.layers.Dense(2)(bits)}
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = compiled(
        keras.Model(array, outputs), loss={"a": "mse", "b": "mae"}, baseline=value
    )
    targets = {"a": np.ones([64, 1]), "b": np.zeros([64, 2])}
    model.fit(inputs(), targets, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_weights(weights(model), weights(loaded))
    assert loaded.evaluate(inputs(), targets, verbose=0) == pytest.approx(
        model.evaluate(inputs(), targets, verbose=0)
    )


def test_exported_model_returns_the_mode(tmp_path):
    model = compiled()
    model.fit(inputs(), epochs=3, verbose=0)
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    served = exported.serve(tf.constant(inputs()))
    np.testing.assert_array_equal(served, model.predict(inputs(), verbose=0))


def test_value_baseline_learns_the_mean_reward():
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    baseline = tfr.baselines.Value(value, keras.optimizers.Adam(0.05), minibatch_size=4)
    model = compiled(reward=constant_reward, baseline=baseline, samples=1)
    model.fit(inputs(), batch_size=8, epochs=15, verbose=0)
    np.testing.assert_allclose(value(inputs()), 2.0, rtol=0, atol=0.05)


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


def test_policy_and_agent_with_named_inputs_have_equal_inputs():
    array = {name: keras.Input((size,), name=name) for name, size in (("b", 2), ("a", 3))}
    logits = keras.layers.Dense(4)(keras.layers.Concatenate()([array["b"], array["a"]]))
    sample = tfr.layers.Sample(heads.Categorical(4))
    model = tfr.ScoreFunction(keras.Model(array, sample(logits)), reward=reward)
    agent = model.to_agent()
    again = tfr.ScoreFunction.from_agent(agent, reward=reward)
    rows = {"a": inputs()[:, :3], "b": inputs(seed=1)[:, :2]}
    expected = model.predict(rows, verbose=0)
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(again.predict(rows, verbose=0), expected)
    space = {name: gym.spaces.Box(-9, 9, x.shape[1:]) for name, x in rows.items()}
    agent.build_for_spaces(gym.spaces.Dict(space), gym.spaces.Discrete(4))
    np.testing.assert_array_equal(agent.act(rows, deterministic=True), expected)


@pytest.mark.parametrize(
    "make", [latent, models.Loop, models.masked], ids=lambda make: make.__name__
)
def test_models_that_are_no_policy_do_not_become_agents(make):
    with pytest.raises(ValueError, match="Sample"):
        tfr.ScoreFunction(make(), loss="mse").to_agent()


FAULTS = {
    "none": (lambda x, z: None, TypeError, "must return.*Received: None"),
    "number": (lambda x, z: [1.0], ValueError, r"\(1,\) for 32 rows"),
    "column": (lambda x, z: np.ones([32, 1]), ValueError, r"\(32, 1\)"),
    "text": (lambda x, z: ["a"] * 32, TypeError, "<U1"),
    "error": (lambda x, z: 1 / 0, ZeroDivisionError, "division by zero"),
    "nan": (
        lambda x, z: np.where(np.arange(32) == 9, np.nan, 1.0),
        FloatingPointError,
        "reward of example 2",
    ),
    "compiled nan": (
        tf.function(lambda x, z: tf.where(tf.range(32) == 9, np.nan, 1.0)),
        FloatingPointError,
        "reward of example 2",
    ),
    "compiled shape": (
        tf.function(lambda x, z: tf.zeros([32, 1])),
        ValueError,
        r"\(32, 1\)",
    ),
    "compiled number": (tf.function(lambda x, z: tf.zeros([3])), ValueError, "3"),
}


@pytest.mark.filterwarnings("ignore:.*AutoGraph could not")
@pytest.mark.parametrize(
    "method, fault",
    sweeps.some(
        itertools.product(["fit", "evaluate"], FAULTS),
        always=[
            *(("evaluate", "nan"), ("fit", "none"), ("fit", "column"), ("fit", "error")),
            *(("fit", "nan"), ("fit", "compiled nan"), ("fit", "compiled shape")),
        ],
    ),
)
def test_faulty_rewards_raise_an_error_and_change_no_weight(fault, method):
    function, kind, message = FAULTS[fault]
    model = compiled(reward=function, samples=4 if method == "fit" else 1)
    model.build((None, 4))
    before = weights(model.model)
    count = 8 if method == "fit" else 32
    if method == "evaluate" and "nan" in fault:
        message = "reward of example 9"
    with pytest.raises(kind, match=message):
        getattr(model, method)(inputs(count), batch_size=count, verbose=0)
    assert_equal_weights(before, weights(model.model))


def error_with_root(targets, outputs):
    """Its gradient, but not its value, is NaN if a target is zero."""
    roots = tf.sqrt(targets * (1.0 + outputs**2))
    return tf.reduce_mean((targets - outputs) ** 2 + roots, axis=-1)


@pytest.mark.parametrize("jit_compile", [False, sweeps.rare(True)])
def test_training_continues_after_a_step_that_is_not_finite(jit_compile):
    """The error names the first example of several steps in one call.

    No later step of the call hides a step whose gradient is not finite.
    """
    model = tfr.ScoreFunction(latent(), loss=error_with_root)
    model.compile("adam", jit_compile=jit_compile, steps_per_execution=3)
    targets = np.ones([12, 3], "float32")
    options = dict(batch_size=4, shuffle=False, verbose=0)
    model.fit(inputs(12), targets, **options)
    before = weights(model.model)
    with pytest.raises(FloatingPointError, match="example 3"):
        bad = targets.copy()
        bad[[3, 5]] = np.nan  # the examples 3 and 1 of the first two steps
        model.fit(inputs(12), bad, **options)
    with pytest.raises(FloatingPointError, match="Received: a gradient"):
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
        (dict(reward=reward, entropy_coef=-1), "`entropy_coef` must be"),
        (dict(reward=reward, baseline="median"), "`baseline` must be"),
        (dict(reward=reward, baseline=tfr.baselines.Value()), "a model of its own"),
        (
            dict(reward=reward, baseline=tfr.baselines.LeaveOneOut(3)),
            "group_size=3, samples=4",
        ),
        (dict(loss="no_such_loss"), "no_such_loss"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        tfr.ScoreFunction(policy(), **options)


def test_description_of_a_training_has_the_options_of_the_objective():
    network, options = policy(), [dict(reward=reward), dict(reward=python_reward)]
    options += [dict(reward=reward, samples=3), dict(reward=reward, entropy_coef=0.1)]
    options += [dict(loss="mse"), dict(loss="mae")]
    descriptions = [tfr.ScoreFunction(network, **x).description for x in options]
    assert all(x != y for x, y in itertools.combinations(descriptions, 2))


def test_invalid_arguments_of_compile_are_refused():
    model = tfr.ScoreFunction(policy(), reward=python_reward)
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("adam", jit_compile=True)
    assert model.fit(inputs(), verbose=0)
    model.compile("adam", loss="mse")
    with pytest.raises(ValueError, match="argument of its constructor"):
        model.fit(inputs(), verbose=0)


def test_file_with_an_unknown_reward_function_predicts_and_names_the_remedy(tmp_path):
    model = compiled(reward=constant_reward)
    model.fit(inputs(), verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    with pytest.warns(UserWarning, match="register_keras_serializable"):
        loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(
        loaded.predict(inputs(), verbose=0), model.predict(inputs(), verbose=0)
    )
    with pytest.raises(ValueError, match="need a `loss` or a `reward`"):
        loaded.fit(inputs(), verbose=0)
    functions = {"constant_reward": constant_reward}
    loaded = keras.saving.load_model(path, custom_objects=functions)
    assert_equal_weights(weights(model), weights(loaded))


def test_model_without_sample_layers_is_refused():
    model = tfr.ScoreFunction(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), loss="mse"
    )
    model.compile("adam")
    with pytest.raises(ValueError, match="must call a `tfr.layers.Sample` layer"):
        model.fit(inputs(), np.zeros([64, 1]), verbose=0)


def test_baseline_gradient_that_is_not_finite_changes_no_weight():
    """The values, the square roots of zero, are finite."""
    layer = keras.layers.Dense(1, keras.ops.sqrt, kernel_initializer="zeros")
    model = compiled(baseline=keras.Sequential([keras.Input((4,)), layer]), reward=reward)
    model.compile("sgd", run_eagerly=True)
    before = weights(model.model)
    with pytest.raises(FloatingPointError, match="Received: a gradient"):
        model.fit(inputs(8), verbose=0)
    assert_equal_weights(before, weights(model.model))
    np.testing.assert_array_equal(layer.kernel, np.zeros([4, 1]))


class Cached(keras.Model):
    """Calls its first sample in a `tf.function`, which is traced once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(2), keras.layers.Dense(2)
        self.choices = [tfr.layers.Sample(heads.Categorical(2)) for _ in range(2)]
        self.cached = tf.function(self.choose)

    def build(self, inputs_shape):
        self.first.build(inputs_shape)
        self.choices[0].build((None, 2))

    def choose(self, array):
        return self.choices[0](self.first(array), training=True)

    def call(self, inputs, training=False):
        first = tf.one_hot(self.cached(inputs), 2)
        return self.choices[1](self.second(first), training=training)


def test_sample_in_a_function_that_was_traced_before_is_refused():
    network = Cached()
    network(tf.constant(inputs(4)))
    with pytest.raises(ValueError, match="was not called. Remove `tf.function`"):
        model = tfr.ScoreFunction(network, reward=reward, samples=1)
        model.gradients(tf.constant(inputs(4)))


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    """A subclassed model without a method `build`."""

    def __init__(self):
        super().__init__()
        self.logits, self.values = keras.layers.Dense(2), keras.layers.Dense(1)
        self.choice = tfr.layers.Sample(heads.Categorical(2))

    def call(self, inputs, training=False):
        choice = tf.one_hot(self.choice(self.logits(inputs), training=training), 2)
        return self.values(tf.concat([choice, choice * inputs[:, :2]], axis=1))

    def get_config(self):
        return {}


@pytest.mark.slow
def test_subclassed_model_keeps_its_weights_when_it_is_saved(tmp_path):
    model = compiled(Subclassed(), loss="mse", baseline="moving_average")
    model.fit(inputs(8), np.ones([8, 1]), epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_equal_weights(weights(model), weights(loaded))
    model.export(tmp_path / "export", verbose=False)
    exported = tf.saved_model.load(tmp_path / "export")
    served = exported.serve(tf.constant(inputs(8)))
    np.testing.assert_allclose(served, model.predict(inputs(8), verbose=0), rtol=1e-6)


class Recomputed(keras.Model):
    """Hides its sample from gradient tapes."""

    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Dense(3)
        self.choice = tfr.layers.Sample(heads.Categorical(3))
        self.logits.build((None, 4))
        self.choice.build((None, 3))

    def call(self, inputs, training=False):
        def draw(array):
            return tf.cast(self.choice(self.logits(array), training=training), tf.float32)

        return tf.cast(tf.recompute_grad(draw)(inputs), tf.int64)


def test_sample_without_gradients_is_refused():
    model = compiled(Recomputed())
    with pytest.raises(ValueError, match="must have gradients.*recompute_grad"):
        model.fit(inputs(8), verbose=0)


def test_sample_of_a_constant_distribution_needs_no_gradient():
    class Random(keras.Model):
        def __init__(self):
            super().__init__()
            self.choice = tfr.layers.Sample(heads.Categorical(4))
            self.value = keras.layers.Dense(1)

        def call(self, inputs, training=False):
            choice = self.choice(tf.zeros_like(inputs), training=training)
            return self.value(inputs * tf.one_hot(choice, 4))

    model = compiled(Random(), loss="mse")
    assert model.fit(inputs(8), np.zeros([8, 1]), verbose=0)


class Normalized(keras.Model):
    """A subclassed model with moving statistics."""

    def __init__(self):
        super().__init__()
        self.normalize = keras.layers.BatchNormalization()
        self.logits = keras.layers.Dense(3)
        self.choice = tfr.layers.Sample(heads.Categorical(3))

    def call(self, inputs, training=False):
        logits = self.logits(self.normalize(inputs, training=training))
        return self.choice(logits, training=training)


def normalized():
    array = keras.Input((4,))
    return keras.Model(array, Normalized()(array))


@pytest.mark.parametrize("make", [sweeps.rare(Normalized), normalized])
def test_step_that_is_not_finite_restores_moving_statistics(make):
    model = compiled(make())
    bad = inputs(8)
    bad[3] = np.nan
    with pytest.raises(FloatingPointError, match="changed no weight"):
        model.fit(bad, verbose=0)
    layer = next(x for x in model.model._flatten_layers() if hasattr(x, "moving_mean"))
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(4))
    np.testing.assert_array_equal(layer.moving_variance, np.ones(4))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_weights_of_examples_multiply_their_rewards(shape):
    model = tfr.ScoreFunction(policy(), reward=lambda x, z, y: 1.0 * (z == y), samples=2)
    example_weights = np.array([0.0, 1.0, 2.0, 3.0])
    targets, choices = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 0, 1, 1, 2, 1])
    estimate = model.gradients(
        tf.constant(inputs(4)),
        tf.constant(targets),
        tf.constant(example_weights.reshape(shape)),
        replayed=[choices],
    )
    expected = -np.repeat(example_weights, 2) * (choices == np.repeat(targets, 2))
    np.testing.assert_allclose(estimate.costs, expected)
    np.testing.assert_allclose(estimate.rewards, choices == np.repeat(targets, 2))


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


def test_metrics_need_targets_and_loss_weights_are_refused():
    model = tfr.ScoreFunction(policy(), reward=reward)
    model.compile("sgd", metrics=["accuracy"])
    with pytest.raises(ValueError, match="metrics of `compile`.*no targets"):
        model.fit(inputs(8), verbose=0)
    model.compile("sgd", loss_weights=[2.0])
    with pytest.raises(ValueError, match="`loss_weights` in `compile`"):
        model.evaluate(inputs(8), verbose=0)


def test_layers_that_share_a_head_are_refused():
    array, head = keras.Input((4,)), heads.Gaussian(1)
    first = tfr.layers.Sample(head)(keras.layers.Dense(1)(array))
    second = tfr.layers.Sample(head)(keras.layers.Dense(1)(first))
    with pytest.raises(ValueError, match="a head of its own.*2 layers have 1 heads"):
        tfr.ScoreFunction(keras.Model(array, second), loss="mse")


@pytest.mark.slow
def test_strategy_with_several_replicas_is_refused():
    """TensorFlow splits a processor into devices only before it starts."""
    program = """
import keras, tensorflow as tf, tf_reinforce as tfr
cpu = tf.config.list_physical_devices("CPU")[0]
parts = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, parts)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    array = keras.Input((4,))
    choice = tfr.layers.Sample(tfr.heads.Categorical(4))(array)
    try:
        tfr.ScoreFunction(keras.Model(array, choice), loss="mse")
    except ValueError as error:
        print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert "2 replicas" in result.stdout, result.stderr


def test_error_of_an_earlier_call_is_not_raised_again():
    model = compiled(reward=lambda array, choices: 1 / 0)
    with pytest.raises(Exception, match="division by zero"):
        model.gradients(tf.constant(inputs(8)))
    with pytest.raises(ValueError, match="incompatible"):
        model.fit(np.ones([8, 3]), verbose=0)


def test_targets_are_needed_for_a_loss():
    model = compiled(latent(), loss="mse")
    with pytest.raises(ValueError, match="Received: no targets"):
        model.fit(inputs(8), verbose=0)


def test_weights_of_rewards_must_be_one_for_each_example():
    model = compiled(reward=lambda array, choices, targets: np.zeros(len(array)))
    with pytest.raises(ValueError, match=r"`sample_weight`.*\(None, 2\)"):
        model.fit(inputs(8), np.zeros(8), sample_weight=np.ones([8, 2]), verbose=0)


def test_sample_layer_in_a_tensorflow_loop_is_refused_with_the_remedy():
    model = tfr.ScoreFunction(models.recurrent(unroll=False), loss="mse")
    model.compile("adam")
    with pytest.raises(ValueError, match="`unroll=True`"):
        model.fit(np.zeros([4, 3, 2]), np.zeros([4, 1]), verbose=0)
