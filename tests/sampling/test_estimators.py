"""Tests estimators in training: numbers of rows, metrics, files, and wrong arguments."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import estimators
from tf_reinforce import heads

layers = keras.layers


def model(head=None, seed=0, **kwargs):
    keras.utils.set_random_seed(seed)
    head = head or heads.Bernoulli(3)
    inputs = keras.Input((4,))
    logits = layers.Dense(head.outputs_size)(inputs)
    kwargs = {"one_hot": True, **kwargs}
    samples = tfr.layers.Sample(head, seed=seed, **kwargs)(logits)
    return keras.Model(inputs, layers.Dense(1)(layers.Reshape((-1,))(samples)))


def data(count=32):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(count, 4)).astype("float32")
    return inputs, np.sin(inputs[:, :1])


NAMES = sorted({*estimators.NAMES} - {"pathwise"})


def trained(estimator, epochs=2, make=model, **options):
    function = tfr.ScoreFunction(
        make(), loss="mse", samples=2, estimator=estimator, **options
    )
    function.compile(keras.optimizers.Adam(0.01), metrics=["mse"])
    history = function.fit(*data(), epochs=epochs, batch_size=16, verbose=0)
    return function, history.history


QUICK = {"disarm", "rebar", "vimco", "straight_through"}
CASES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in NAMES
]


@pytest.mark.parametrize("name", CASES)
def test_estimator_trains_and_survives_a_file(name, tmp_path):
    function, logs = trained(name)
    assert np.isfinite([*logs["loss"], *logs["entropy"]]).all()
    if name in ("score_function", "straight_through", "reinmax"):  # one row each
        np.testing.assert_allclose(logs["mse"], logs["loss"], rtol=1e-5)
    path = tmp_path / "model.keras"
    function.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded.estimator) is type(function.estimator)
    inputs, targets = data()
    for one in (function, loaded):  # the same noise, too
        one.fit(inputs, targets, batch_size=16, shuffle=False, verbose=0)
    for one, other in zip(function.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        *(x.predict(inputs, verbose=0) for x in (function, loaded))
    )


def drawn(estimator, log_probs):
    rng = np.random.default_rng(0)
    count = len(log_probs)

    def draw(shape, cuts, is_step):
        return tf.constant(rng.random((count, *shape)), log_probs.dtype)

    return estimator.draw(log_probs, estimators.Noise(draw))


@pytest.mark.parametrize("sites, size", [(200, 2), (20, 10)])
@pytest.mark.parametrize(
    "estimator", [estimators.WithoutReplacement(4), estimators.SumAndSample(3)]
)
def test_values_among_too_many_to_list_are_different(estimator, sites, size):
    logits = np.random.default_rng(1).normal(size=(50, sites, size), scale=3.0)
    logits[:25] *= 20.0  # so likely that the first values have nearly all probability
    log_probs = tf.nn.log_softmax(tf.constant(logits, tf.float32))
    samples = drawn(estimator, log_probs)
    values = samples.vectors.numpy()
    np.testing.assert_array_equal(np.sum(values, axis=-1), 1.0)
    for row in values:
        assert len({x.tobytes() for x in row}) == 4
    assert (samples.weights.numpy() >= 0.0).all()
    np.testing.assert_allclose(np.sum(samples.weights, axis=1), 1.0, rtol=1e-4)


def test_sum_and_sample_sums_the_most_likely_values():
    logits = np.random.default_rng(1).normal(size=(30, 4, 3))
    log_probs = tf.nn.log_softmax(tf.constant(logits))
    whole = estimators.Exact(limit=81).draw(log_probs, None)
    for k in (1, 2, 7):
        weights = drawn(estimators.SumAndSample(k), log_probs).weights
        top = np.sort(whole.weights, axis=1)[:, ::-1][:, :k]
        np.testing.assert_allclose(weights[:, :k], top, rtol=1e-12)
        np.testing.assert_allclose(weights[:, k], 1.0 - top.sum(axis=1), rtol=1e-12)


def test_unlikely_category_has_a_finite_gradient():
    """Of probability 2e-27, whose square is zero in float32."""
    for name in sorted(set(NAMES) - {"vimco"}):
        logits = tf.constant([[[0.0, -60.0, 1.0], [80.0, 1.0, 0.0]]])
        with tf.GradientTape() as tape:
            tape.watch(logits)
            log_probs = tf.nn.log_softmax(logits)
            samples = drawn(estimators.get(name), log_probs)
            costs = tf.ones_like(samples.vectors[:, :, 0, 0])
            known = samples._replace(costs=costs, slopes=samples.vectors)
            result = estimators.get(name).surrogate(log_probs, known)
            if samples.passes:
                result += tf.reduce_sum(samples.vectors**2)
        assert np.isfinite(tape.gradient(result, logits)).all(), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["pathwise", "measure_valued", "score_function"])
def test_real_samples_are_finite_for_all_noise(name, dtype):
    """A uniform number can be the least or the greatest in (0, 1)."""
    limits = np.finfo(dtype)
    layer = tfr.layers.Sample(heads.Gaussian(1), seed=0)
    for head in (heads.Gaussian(1), heads.Beta(1, 0.0, 1.0)):
        estimator = estimators.get(name).for_head(head)
        for number in (limits.tiny, 1.0 - limits.epsneg):

            def draw(shape, cuts, is_step, number=number):
                return tf.fill([1, *shape], tf.constant(number, dtype))

            parameters = tf.constant([[[1.5, 2.5]]], dtype)
            samples = estimator.draw(parameters, estimators.Noise(draw))
            assert np.isfinite(samples.vectors).all(), (head, number)
    noise = layer.uniform_noise(1000, dtype)((1000,), None, False).numpy()
    assert limits.tiny <= noise.min() and noise.max() <= 1.0 - limits.epsneg


@pytest.mark.parametrize("k", range(2, 9))
def test_weights_of_small_probabilities_are_precise_in_float32(k):
    p = np.array([1.0 - 7e-6, *[1e-6] * 7])
    found = estimators.unordered_set(*map(tf.constant, (p[None, :k], [p[k:].sum()])))
    single = (tf.cast(p[None, :k], tf.float32), tf.constant([p[k:].sum()], tf.float32))
    for one, other in zip(estimators.unordered_set(*single), found, strict=True):
        assert one.dtype == tf.float32
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(tf.reduce_sum(found[1], axis=-1), 1.0, rtol=1e-12)
    # p(s) R(S, s) is at least p(s), and p(s) if s is all that was drawn.
    assert (found[0][0].numpy() >= p[:k] * (1 - 1e-12)).all()


def test_layer_of_integers_behind_a_relaxed_sample_is_refused():
    inputs = keras.Input((4,))
    first = tfr.layers.Sample(heads.Bernoulli(2), one_hot=True)(layers.Dense(2)(inputs))
    second = tfr.layers.Sample(heads.Categorical(3))(layers.Dense(3)(first))
    both = layers.Concatenate()([first, keras.ops.cast(second, "float32")[:, None]])
    wrapped = keras.Model(inputs, layers.Dense(1)(both))
    function = tfr.ScoreFunction(wrapped, loss="mse", samples=1, estimator="rebar")
    with pytest.raises(ValueError, match="follows a relaxed sample.*one_hot=True"):
        function.gradients(*map(tf.constant, data()))


def test_relax_trains_its_own_model():
    surrogate = keras.Sequential(
        [keras.Input((3, 2)), layers.Flatten(), layers.Dense(8, "tanh"), layers.Dense(1)]
    )
    before = [x.copy() for x in surrogate.get_weights()]
    estimator = estimators.Relax(surrogate)
    function, _ = trained("score_function", make=lambda: model(estimator=estimator))
    assert all((x != y).any() for x, y in zip(before, surrogate.get_weights()))


def test_leave_one_out_has_the_bits_of_the_baseline():
    results = []
    for options in (
        {"estimator": "leave_one_out"},
        {"estimator": "score_function", "baseline": "leave_one_out"},
    ):
        results.append(trained(**options)[0].get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


REAL = {
    "gaussian": lambda: heads.Gaussian(1, state_dependent_scale=True),
    "clipped": lambda: heads.ClippedGaussian(1, -2.0, 2.0, state_dependent_scale=True),
    "tanh": lambda: heads.TanhGaussian(1, -2.0, 2.0, state_dependent_scale=True),
    "beta": lambda: heads.Beta(1, -2.0, 2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_estimators_of_real_numbers_train_their_distribution(kind, jit_compile):
    """Towards 0.7, where the mean squared error is least."""
    for name in ("pathwise", "measure_valued", "score_function"):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((1,))
        samples = tfr.layers.Sample(REAL[kind](), seed=3)(layers.Dense(2)(inputs))
        function = tfr.ScoreFunction(
            keras.Model(inputs, samples), loss="mse", samples=8, estimator=name
        )
        rate = 0.3 if kind == "beta" else 0.1  # α and β must become large
        function.compile(keras.optimizers.Adam(rate), jit_compile=jit_compile)
        ones = np.ones((64, 1), "float32")
        loss = function.fit(ones, 0.7 * ones, epochs=60, verbose=0).history["loss"]
        assert loss[0] > 0.5 and loss[-1] < max(0.1, 0.1 * loss[0])
        assert abs(function.predict(ones[:1], verbose=0).item() - 0.7) < 0.15


@pytest.mark.parametrize("kind", [*REAL, "bits", "categories"])
def test_entropies_are_those_of_the_heads(kind):
    more = {
        "bits": lambda: heads.Bernoulli(2),
        "categories": lambda: heads.MultiCategorical([2, 3]),
    }
    head = (REAL | more)[kind]()
    places, size = 3, head.outputs_size
    inputs = keras.Input((places, size))
    mask = keras.Input((places,), dtype="bool")
    layer = tfr.layers.Sample(head, seed=0)
    samples = keras.ops.cast(layer(inputs, mask=mask), "float32")
    sums = keras.ops.sum(samples, axis=[1, 2], keepdims=True)[:, 0]
    wrapped = keras.Model([inputs, mask], layers.Dense(1)(sums))
    name = "pathwise" if kind in REAL else "disarm"
    function = tfr.ScoreFunction(wrapped, loss="mse", samples=1, estimator=name)
    outputs = np.random.default_rng(0).normal(size=(2, places, size)).astype("float32")
    legal = np.array([[True, True, False], [True, False, True]])
    zeros = tf.zeros([2, 1])
    found = function.gradients([tf.constant(outputs), tf.constant(legal)], zeros)
    each = head.distribution(outputs.reshape(-1, size)).entropy().numpy().reshape(2, -1)
    np.testing.assert_allclose(found.entropies, (each * legal).sum(axis=1), rtol=1e-5)


WRONG = {
    "one sample": (
        lambda: tfr.ScoreFunction(model(), loss="mse", samples=1, estimator="vimco"),
        "at least two samples.*Received: samples=1",
    ),
    "leave one out of one": (
        lambda: tfr.ScoreFunction(
            model(), loss="mse", samples=1, estimator="leave_one_out"
        ),
        "at least two samples.*Received: samples=1",
    ),
    "another baseline": (
        lambda: tfr.ScoreFunction(
            model(), loss="mse", baseline=None, estimator="leave_one_out"
        ),
        "has its own baseline",
    ),
    "large support": (
        lambda: trained("exact", make=lambda: model(heads.Bernoulli(40))),
        r"at most limit=256 values. Received: 2\*\*40.*'disarm'",
    ),
    "integers": (
        lambda: trained("rebar", make=lambda: model(one_hot=False)),
        "differentiable in the samples.*one_hot=True",
    ),
    "another head": (
        lambda: trained("disarm", make=lambda: model(heads.Gaussian(2), one_hot=False)),
        "needs a head of independent choices.*Gaussian",
    ),
    "one sample of two": (
        lambda: estimators.DoubleControlVariates(k=1),
        "at least 2. Received: k=1",
    ),
    "replayed actions": (
        lambda: tfr.ScoreFunction(model(), loss="mse", estimator="disarm").gradients(
            *map(tf.constant, data()), replayed=[np.zeros(4)]
        ),
        "cannot be replayed with this estimator",
    ),
    "not normal": (lambda: trained("pathwise"), "needs a head of real numbers"),
    "a subclass for categories": (
        lambda: trained(
            type("Own", (estimators.Score,), {})(),
            make=lambda: model(heads.Gaussian(2), one_hot=False),
        ),
        "needs a head of independent choices.*Gaussian",
    ),
    "surrogate of another shape": (
        lambda: trained(
            "score_function",
            make=lambda: model(
                estimator=estimators.Relax(keras.Sequential([layers.Flatten()]))
            ),
        ),
        r"must return one number per example.*Dense\(1\)",
    ),
    "objective of a layer": (
        lambda: tfr.layers.Sample(heads.Bernoulli(1), estimator="vimco"),
        "is an objective",
    ),
    "weights of a bound": (
        lambda: tfr.ScoreFunction(
            model(), loss="mse", samples=2, estimator="vimco"
        ).gradients(*map(tf.constant, (*data(), np.ones(32, "float32")))),
        "takes no `sample_weight`",
    ),
    "one-hot reals": (
        lambda: trained(
            "score_function", make=lambda: model(heads.Gaussian(2), one_hot=True)
        ),
        "`one_hot=True` .* needs a head of independent choices",
    ),
    "unknown": (lambda: estimators.get("reinforce"), "`estimator` must be one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_estimator_raises_an_error_with_a_remedy(name):
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make()


@pytest.mark.parametrize("name", ["muprop", "rebar", "straight_through"])
def test_reward_without_a_gradient_is_refused_before_a_weight_changes(name):
    function = tfr.ScoreFunction(
        model(), reward=lambda x, z: np.zeros(len(x)), estimator=name
    )
    function.compile("sgd")
    before = function.get_weights()
    with pytest.raises(ValueError, match="differentiable in the samples"):
        function.fit(data()[0], verbose=0)
    for one, other in zip(before, function.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_layer_that_is_called_twice_is_refused():
    inputs = keras.Input((2,))
    bits = tfr.layers.Sample(heads.Bernoulli(2), one_hot=True)
    twice = keras.Model(inputs, layers.Dense(1)(bits(bits(inputs))))
    function = tfr.ScoreFunction(twice, loss="mse", estimator="disarm")
    function.compile("sgd")
    with pytest.raises(ValueError, match="must be called once"):
        function.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)


def test_random_layer_before_the_samples_is_refused():
    inputs = keras.Input((64,))
    logits = layers.Dense(2)(layers.Dropout(0.5)(inputs))
    bits = tfr.layers.Sample(heads.Bernoulli(2), one_hot=True)(logits)
    function = tfr.ScoreFunction(
        keras.Model(inputs, layers.Dense(1)(bits)), loss="mse", estimator="disarm"
    )
    function.compile("sgd")
    with pytest.raises(tf.errors.InvalidArgumentError, match="Remove random"):
        function.fit(np.ones((4, 64)), np.ones((4, 1)), verbose=0)


def test_metrics_see_the_row_that_counts_most():
    """With all values of a bit, the row of the more likely one."""
    inputs = keras.Input((1,))
    bits = tfr.layers.Sample(heads.Bernoulli(1), one_hot=True)(layers.Dense(1)(inputs))
    function = tfr.ScoreFunction(
        keras.Model(inputs, bits), loss="mse", samples=1, estimator="exact"
    )
    function.compile(keras.optimizers.SGD(0.0), metrics=["mse"])
    function.model.set_weights([np.array([[2.0]]), np.array([0.0])])
    ones = np.array([[1.0], [-1.0], [1.0], [1.0]])
    logs = function.fit(ones, np.ones((4, 1)), batch_size=4, verbose=0).history
    p = 1 / (1 + np.exp(-2.0))
    np.testing.assert_allclose(logs["mse"], [0.25])  # the value 0 for the second
    np.testing.assert_allclose(logs["loss"], [(3 * (1 - p) + p) / 4], rtol=1e-6)


def test_baseline_lowers_the_costs_of_all_samples():
    """A loss that is larger by a constant, and a baseline that is so too."""

    def gradient(constant):
        baseline = tfr.baselines.MovingAverage()
        baseline.build(None)
        baseline.sums.assign(-constant)  # of returns, which are minus the costs
        baseline.shares.assign(1.0)
        function = tfr.ScoreFunction(
            model(),
            loss=lambda y, x: (x - y) ** 2 + constant,
            samples=1,
            baseline=baseline,
            estimator=estimators.Rebar(scale=0.5),
        )
        batch = map(tf.constant, data())
        return function.gradients(*batch).gradients

    for one, other in zip(gradient(0.0), gradient(5.0), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


class Twice(estimators.Score):
    """Two independent samples."""

    def copies(self, sites, size):
        return 2

    def draw(self, parameters, noise):
        probs = tf.exp(parameters)
        vectors = tf.stack([noise.choose(probs), noise.choose(probs)], axis=1)
        return estimators.Samples(vectors, tf.constant([[0.5, 0.5]]))


def test_subclass_of_the_score_function_draws_its_own_samples():
    function = tfr.ScoreFunction(model(), loss="mse", samples=1, estimator=Twice())
    estimate = function.gradients(*map(tf.constant, data()))
    assert estimate.weights.shape == (64,) and len(estimate.outputs) == 64
