"""Tests estimators of `ScoreFunction` by integration over all their noise, in float64."""

import importlib
import pathlib

import keras
import numpy as np
import pytest
import sampling_models as models
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import estimators
from tf_reinforce import heads
from tf_reinforce import testing

layers = keras.layers


@pytest.mark.parametrize("name", ["exact", "disarm", "without_replacement"])
def test_policy_of_a_bandit_is_trained_with_any_estimator(name):
    """A reward without a derivative, for each action of an agent."""
    head = heads.Categorical(3)
    policy = keras.Sequential([keras.Input((2,), dtype="float64"), models.dense(3)])
    head.set_float_type("float64")
    agent = tfr.Reinforce(policy, head)
    agent.build((None, 2))
    paid = tf.constant([[0.3, -1.0, 2.0], [1.5, 0.2, -0.7]], tf.float64)

    @tf.function
    def reward(inputs, actions):
        rows = tf.cast(inputs[:, 0] > 0, tf.int64)
        return tf.gather_nd(paid, tf.stack([rows, actions], axis=1))

    function = tfr.ScoreFunction.from_agent(
        agent, reward=reward, samples=1, baseline=None, estimator=name
    )
    inputs = np.array([[0.5, -0.2], [-0.4, 0.9]])
    report = testing.check_score_function(function, inputs, tolerance=1e-10)
    assert np.abs(report.exact).max() > 0.1


def surrogate_model(sites=1, size=2):
    return keras.Sequential(
        [
            keras.Input((sites, size), dtype="float64"),
            layers.Flatten(dtype="float64"),
            models.dense(3, activation="tanh"),
            models.dense(1),
        ]
    )


UNBIASED = {
    "exact": estimators.Exact,
    "sum_and_sample": estimators.SumAndSample,
    "sum_two_and_sample": lambda: estimators.SumAndSample(k=2),
    "without_replacement": estimators.WithoutReplacement,
    "three_without_replacement": lambda: estimators.WithoutReplacement(k=3),
    "arm": estimators.Arm,
    "disarm": estimators.DisArm,
    "muprop": estimators.MuProp,
    "double_control_variates": estimators.DoubleControlVariates,
    "measure_valued": estimators.MeasureValued,
    "rebar": lambda: estimators.Rebar(temperature=0.7, scale=0.8),
}
BIASED = ("straight_through", "reinmax", "gumbel_softmax")


def draws(head, **kwargs):
    return models.sample(head, one_hot=True, **kwargs)


def latent(head, shape=(2,), **kwargs):
    """One layer of samples, and a head on them and on the inputs."""
    inputs = keras.Input(shape, dtype="float64")
    samples = draws(head, **kwargs)(models.dense(head.outputs_size)(inputs))
    both = layers.Flatten(dtype="float64")(models.concatenate(inputs, samples))
    return keras.Model(inputs, models.dense(1, activation="tanh")(both))


def chain():
    """The second choice depends on the first, and the output on both."""
    inputs = keras.Input((2,), dtype="float64")
    first = draws(heads.Categorical(3))(models.dense(3)(inputs))
    logits = models.dense(2)(models.concatenate(inputs, first))
    second = draws(heads.Categorical(2))(logits)
    both = models.concatenate(inputs, first, second)
    return keras.Model(inputs, models.dense(1, activation="tanh")(both))


def shared():
    """One layer makes the logits of both choices, from different inputs."""
    inputs, logits = keras.Input((2,), dtype="float64"), models.dense(2)
    first = draws(heads.Categorical(2))(logits(inputs))
    second = draws(heads.Categorical(2))(logits(models.concatenate(first) - inputs))
    both = models.concatenate(first, second)
    return keras.Model(inputs, models.dense(1, activation="tanh")(both))


class Subclass(keras.Model):
    def __init__(self):
        super().__init__(dtype="float64")
        self.logits, self.bits = models.dense(1), draws(heads.Bernoulli(1))
        self.last = models.dense(1)

    def call(self, inputs, training=False):
        bits = self.bits(self.logits(inputs), training=training)
        return self.last(models.concatenate(bits, bits * inputs[:, :1])) ** 2


def masked():
    inputs = keras.Input((2,), dtype="float64")
    legal = keras.Input((3,), dtype="int8")
    choice = draws(heads.Categorical(3))(models.dense(3)(inputs), action_mask=legal)
    output = models.dense(1, activation="tanh")(models.concatenate(choice))
    return keras.Model([inputs, legal], output)


def padded():
    inputs = keras.Input((2,), dtype="int32")
    words = layers.Embedding(5, 1, mask_zero=True, dtype="float64")(inputs)
    bits = draws(heads.Bernoulli(1))(words)
    counted = keras.ops.cast(keras.ops.not_equal(inputs, 0), "float64")
    used = keras.ops.reshape(bits, (-1, 2)) * counted  # a loss must not see padding
    return keras.Model(inputs, models.dense(1, activation="tanh")(used))


GRAPHS = {
    "bit": (lambda: latent(heads.Bernoulli(1)), models.examples(1, 2)),
    "bits": (lambda: latent(heads.Bernoulli(2)), models.examples(1, 2)),
    "category": (lambda: latent(heads.Categorical(3)), models.examples(1, 2)),
    "categories": (lambda: latent(heads.MultiCategorical([2, 3])), models.examples(1, 2)),
    "sequence": (lambda: latent(heads.Categorical(2), (2, 1)), models.examples(1, 2, 1)),
    "batch": (lambda: latent(heads.Bernoulli(1)), models.examples(2, 2)),
    "chain": (chain, models.examples(1, 2)),
    "shared": (shared, models.examples(1, 2)),
    "subclass": (Subclass, models.examples(1, 2)),
    "masked": (masked, [models.examples(1, 2), np.array([[1, 0, 1]], "int8")]),
    "padded": (padded, np.array([[3, 0]])),
    "pointer": (lambda: latent(heads.Pointer(3, key_dim=1)), models.examples(1, 2)),
}
# Combinations with too many nodes: pairs of random numbers for each bit or category.
LARGE = {"rebar": {"categories", "chain", "shared"}}


def is_quick(graph, name):
    if name == "rebar":
        return graph in {"bit", "masked"}
    return graph in {"bit", "chain"} and (graph, name) != ("chain", "measure_valued")


CASES = [
    pytest.param(graph, name, marks=[] if is_quick(graph, name) else pytest.mark.slow)
    for graph in GRAPHS
    for name in UNBIASED
    if graph not in LARGE.get(name, ())
]


def check(model, estimator, inputs, tolerance, **options):
    options = {"loss": "mse", "samples": 1, "baseline": None, **options}
    function = tfr.ScoreFunction(model, estimator=estimator, **options)
    first = keras.tree.flatten(inputs)[0]
    function.build((None, *first.shape[1:]))
    targets = np.linspace(0.7, 0.2, len(first))[:, None]
    return testing.check_score_function(function, inputs, targets, tolerance=tolerance)


@pytest.mark.parametrize("graph, name", CASES)
def test_estimate_is_unbiased(graph, name):
    make, inputs = GRAPHS[graph]
    report = check(make(), UNBIASED[name](), inputs, 1e-10)
    assert np.abs(report.exact).max() > 1e-3


def test_estimate_is_unbiased_with_baselines_samples_weights_and_regularizers():
    model = latent(heads.Bernoulli(1))
    model.layers[1].kernel_regularizer = keras.regularizers.L2(0.1)
    function = tfr.ScoreFunction(model, loss="mse", samples=2, estimator="disarm")
    function.build((None, 2))
    batch = models.examples(1, 2), np.array([[0.7]]), np.array([0.3])
    assert testing.check_score_function(function, *batch).error < 1e-12
    value = keras.Sequential([keras.Input((2,)), models.dense(1)])
    for name in ("muprop", "score_function"):
        check(chain(), name, models.examples(1, 2), 1e-12, baseline=value)


def test_layers_may_have_different_estimators():
    def model(first, second):
        inputs = keras.Input((2,), dtype="float64")
        one = draws(heads.Categorical(2), estimator=first)(models.dense(2)(inputs))
        logits = models.dense(2)(models.concatenate(inputs, one))
        two = draws(heads.Categorical(2), estimator=second)(logits)
        both = models.concatenate(inputs, one, two)
        return keras.Model(inputs, models.dense(1, activation="tanh")(both))

    names = "exact", "muprop", "disarm", "score_function", "without_replacement"
    for first, second in zip(names, (*names[2:], *names[:2]), strict=True):
        check(model(first, second), "score_function", models.examples(1, 2), 1e-12)


def test_layers_behind_a_relaxed_sample_return_their_means():
    """REBAR's control variate must be a smooth function of the relaxed sample."""
    inputs = keras.Input((2,), dtype="float64")
    found, parts = inputs, [inputs]
    for size, estimator in ((3, estimators.Rebar(0.9)), (2, "exact"), (2, "exact")):
        head = heads.Categorical(size)
        parts.append(draws(head, estimator=estimator)(models.dense(size)(found)))
        found = models.concatenate(*parts)
    model = keras.Model(inputs, models.dense(1, activation="tanh")(found))
    check(model, "score_function", models.examples(1, 2), 1e-10)


@pytest.mark.parametrize("name", ["exact", "disarm", "muprop", "straight_through"])
def test_padding_has_no_gradient(name):
    model = padded()
    function = tfr.ScoreFunction(model, loss="mse", samples=3, estimator=name)
    function.build((None, 2))
    batch = tf.constant([[3, 0], [2, 0]]), tf.constant([[0.7], [0.1]], tf.float64)
    rows = function.gradients(*batch).gradients[0].numpy()
    assert (rows[0] == 0).all() and (rows[2:4] != 0).all()


@pytest.mark.parametrize(
    "head, weight",
    [(heads.Bernoulli(1), 0.0), (heads.Bernoulli(1), 1.7), (heads.Categorical(3), 1.0)],
)
def test_relax_is_unbiased_for_any_weights_of_its_model(head, weight):
    surrogate = surrogate_model(size=3 if isinstance(head, heads.Categorical) else 2)
    model = latent(head, estimator=estimators.Relax(surrogate))
    surrogate.set_weights([weight * x for x in surrogate.get_weights()])
    report = check(model, "score_function", models.examples(1, 2), None)
    own = {id(x) for x in surrogate.trainable_variables}
    is_own = [[id(x) in own] * int(np.prod(x.shape)) for x in model.trainable_variables]
    errors = np.abs(report.expected - report.exact)[~np.concatenate(is_own)]
    assert errors.max() < 1e-10 and len(errors) > 5


def cubic(targets, outputs):
    return (outputs - 0.4) ** 3 + outputs


def slope(x):
    return 3.0 * (x - 0.4) ** 2 + 1.0


@pytest.mark.parametrize("name", BIASED)
def test_bias_is_what_the_docstring_says(name):
    """With one bit of probability p, all gradients are multiples of p (1 - p)."""
    inputs = keras.Input((1,), dtype="float64")
    bits = draws(heads.Bernoulli(1))(models.dense(1)(inputs))
    model = keras.Model(inputs, bits)
    model.set_weights([np.array([[0.6]]), np.array([0.2])])
    report = check(model, name, np.ones((1, 1)), None, loss=cubic)
    p = 1 / (1 + np.exp(-0.8))
    t = np.linspace(-60.0, 60.0, 200_001)
    density = np.exp(-t) / (1.0 + np.exp(-t)) ** 2
    soft = 1 / (1 + np.exp(-(0.8 + t) / 0.5))
    expected = {
        "straight_through": p * (1 - p) * (p * slope(1.0) + (1 - p) * slope(0.0)),
        "reinmax": p * (1 - p) * (slope(0.0) + slope(1.0)) / 2,
        "gumbel_softmax": np.sum(density * slope(soft) * soft * (1 - soft)) / 0.5 * 6e-4,
    }
    np.testing.assert_allclose(report.expected, [expected[name]] * 2, rtol=1e-8)
    exact = p * (1 - p) * (0.6**3 + 1.0 + 0.4**3)
    np.testing.assert_allclose(report.exact, [exact] * 2, rtol=1e-12)


@pytest.fixture
def variances(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("estimator_variances")


QUICK_TASKS = "(b - 0.499)², p = 0.5", "two bits, p = 0.2, 0.8", "four, one likely"
TASKS = {
    "quick": lambda task: task in QUICK_TASKS,
    "all": lambda task: task not in QUICK_TASKS,
}


@pytest.mark.parametrize("which", ["quick", pytest.param("all", marks=pytest.mark.slow)])
def test_variances_have_the_published_order(variances, which):
    """Dong et al. (2020), propositions 1 and 2, and Kool et al. (2020)."""
    for task, (logits, costs_of) in variances.TASKS.items():
        if not TASKS[which](task):
            continue
        exact, none = variances.moments(estimators.Exact(), logits, costs_of)
        assert none < 1e-15
        mean, independent = variances.leave_one_out(logits, costs_of, 2)
        np.testing.assert_allclose(mean, exact, atol=1e-14)
        found = {}
        names = "arm", "disarm", "without_replacement", "sum_and_sample", "muprop"
        for name in (*names, "double_control_variates"):
            mean, found[name] = variances.moments(estimators.get(name), logits, costs_of)
            np.testing.assert_allclose(mean, exact, atol=1e-13)
        assert found["disarm"] <= found["arm"] + 1e-15, task
        assert found["without_replacement"] <= independent + 1e-15, task
        if np.shape(logits)[1] == 2:
            assert found["disarm"] <= independent + 1e-15, task
        if task == "four, one likely":
            assert found["sum_and_sample"] < independent / 3
        if task in ("four, one likely", "four categories"):  # nearly linear costs
            assert found["muprop"] < independent / 15
            assert found["double_control_variates"] < independent / 15
        if task == "(b - 0.499)², p = 0.5":  # f(1) - f(0) = 0.002
            np.testing.assert_allclose(found["arm"], 0.002**2 / 24, rtol=1e-9)


def test_limits_of_estimators_agree(variances):
    for task in QUICK_TASKS:
        logits, costs_of = variances.TASKS[task]
        exact = variances.moments(estimators.Exact(), logits, costs_of)[0]
        sites, size = np.shape(logits)
        whole = size**sites
        for estimator in (
            estimators.SumAndSample(k=whole - 1),
            estimators.SumAndSample(k=whole + 3),
            estimators.WithoutReplacement(k=whole),
        ):
            assert estimator.copies(sites, size) == whole
            mean, none = variances.moments(estimator, logits, costs_of)
            np.testing.assert_allclose(mean, exact, atol=1e-13)
            assert abs(none) < 1e-14, task
        independent = variances.leave_one_out(logits, costs_of, 2)
        double = estimators.DoubleControlVariates(2, scale=0.0)
        found = variances.moments(double, logits, costs_of)
        np.testing.assert_allclose(found[0], independent[0], atol=1e-14)
        np.testing.assert_allclose(found[1], independent[1], rtol=1e-11)


@pytest.mark.parametrize("samples", [2, 3])
def test_vimco_ascends_its_objective(samples):
    inputs, target = models.examples(1, 2), np.array([[0.7]])
    model = latent(heads.Categorical(3))
    function = tfr.ScoreFunction(model, loss="mse", samples=samples, estimator="vimco")
    function.build((None, 2))
    with tf.GradientTape() as tape:
        log_probs = tf.nn.log_softmax(model.layers[1](inputs))[0]
        eye = tf.eye(3, dtype=tf.float64)
        both = models.concatenate(tf.repeat(inputs, 3, axis=0), eye)
        costs = (model.layers[-1](both)[:, 0] - target[0, 0]) ** 2
        exact = 0.0
        for index in np.ndindex(*[3] * samples):
            f = tf.gather(costs, index)
            value = tf.reduce_logsumexp(-f) - np.log(samples)
            exact -= tf.exp(tf.reduce_sum(tf.gather(log_probs, index))) * value
    exact = tape.gradient(exact, model.trainable_variables)
    total = [0.0] * len(exact)
    for index in np.ndindex(*[3] * samples):
        estimate = function.gradients(
            tf.constant(inputs), tf.constant(target), replayed=[np.array(index)]
        )
        weight = tf.exp(tf.reduce_sum(estimate.log_probs))
        total = [x + weight * g for x, g in zip(total, estimate.gradients, strict=True)]
    for one, other in zip(total, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13)


def nodes(count):
    """Returns nodes and weights on (0, 1) for functions that are smooth inside."""
    t = np.linspace(-3.0, 3.0, count)
    x = 0.5 + 0.5 * np.tanh(np.pi / 2 * np.sinh(t))
    weights = np.cosh(t) / np.cosh(np.pi / 2 * np.sinh(t)) ** 2
    return x, weights / weights.sum()


def halves():
    """Returns Gauss nodes and weights of both halves of (0, 1)."""
    x, weights = np.polynomial.legendre.leggauss(6)
    x = (x + 1) / 4
    return np.concatenate([x, x + 0.5]), np.tile(weights / 4, 2)


def mean_of_grid(estimator, dimensions, parameters):
    """Returns the mean gradient of two parameters over a grid of uniform numbers.

    Args:
        estimator: Estimator of real numbers.
        dimensions: List of nodes and weights for each of its numbers.
        parameters: Two floats.
    """
    grid = np.stack(np.meshgrid(*(x for x, _ in dimensions), indexing="ij"), axis=-1)
    weights = np.array(1.0)
    for _, each in dimensions:
        weights = np.multiply.outer(weights, each)
    columns = iter(grid.reshape(-1, len(dimensions)).T)

    def draw(shape, cuts, is_step):
        numbers = [next(columns) for _ in range(int(np.prod(shape)))]
        return tf.constant(np.stack(numbers, axis=1).reshape(-1, *shape))

    parameters = tf.constant([[parameters]], tf.float64)
    parameters = tf.repeat(parameters, grid[..., 0].size, axis=0)

    @tf.function(autograph=False)
    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            samples = estimator.draw(parameters, estimators.Noise(draw))
            costs = samples.vectors[..., 0, 0] ** 3 / 3 - samples.vectors[..., 0, 0] ** 2
            result = costs[:, 0]
            if not samples.passes:
                samples = samples._replace(costs=tf.stop_gradient(costs))
                result = estimator.surrogate(parameters, samples)
        return tape.gradient(result, parameters)[:, 0]

    return weights.ravel() @ gradient().numpy()


def test_estimates_of_normal_numbers_have_the_gradient_of_a_polynomial():
    """E[z³ / 3 - z²] = μ³ / 3 + μσ² - μ² - σ²."""
    mean, scale = 0.3, 0.7
    exact = mean**2 + scale**2 - 2 * mean, 2 * mean * scale - 2 * scale
    head, one = heads.Gaussian(1), (np.array([0.4]), np.array([1.0]))
    for name in ("pathwise", "score_function"):
        estimator = estimators.get(name).for_head(head)
        found = mean_of_grid(estimator, [nodes(121)], (mean, scale))
        np.testing.assert_allclose(found, exact, atol=1e-10)
    measure = estimators.get("measure_valued").for_head(head)
    found = mean_of_grid(measure, [one, nodes(121), one, one, one], (mean, scale))
    np.testing.assert_allclose(found[0], exact[0], atol=1e-10)
    found = mean_of_grid(
        measure, [one, one, nodes(61), nodes(61), halves()], (mean, scale)
    )
    np.testing.assert_allclose(found[1], exact[1], atol=1e-10)


@pytest.mark.parametrize("name", ["pathwise", "score_function", "measure_valued"])
@pytest.mark.parametrize("numbers", [(1.7, 2.6), (6.0, 1.1)])
def test_estimates_of_beta_numbers_have_the_gradient_of_a_polynomial(name, numbers):
    """E[zⁿ] = Π (α + i) / (α + β + i) over i < n."""
    parameters = tf.constant(numbers, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(parameters)
        alpha, total = parameters[0], tf.reduce_sum(parameters)
        second = alpha * (alpha + 1) / (total * (total + 1))
        third = second * (alpha + 2) / (total + 2)
        expected = third / 3 - second
    exact = tape.gradient(expected, parameters)
    estimator = estimators.get(name).for_head(heads.Beta(1, 0.0, 1.0))
    found = mean_of_grid(estimator, [nodes(161)], numbers)
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_objective_of_vimco_is_its_definition():
    """Mnih & Rezende (2016), equation 7, with the geometric mean of the others."""
    costs = np.random.default_rng(0).normal(size=(2, 3))
    objective, factors = estimators.Vimco().objective(tf.constant(costs))
    for n, k in np.ndindex(2, 3):
        others = [-costs[n, j] for j in range(3) if j != k]
        bound = np.log(np.mean(np.exp(-costs[n])))
        without = np.log(np.mean(np.exp([*others, np.mean(others)])))
        np.testing.assert_allclose(objective[n], bound, rtol=1e-12)
        np.testing.assert_allclose(factors[n, k], bound - without, rtol=1e-12)
