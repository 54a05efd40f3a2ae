"""Running statistics equal those of all the data at once, and act only when updated."""

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.policies import normalization


def built(shape=(None, 3), **kwargs):
    layer = normalization.RunningNormalization(**kwargs)
    layer.build(shape)
    return layer


def fed(data, chunk):
    layer = built((None, *data.shape[1:]), dtype="float64")
    for start in range(0, len(data), chunk):
        layer.update(data[start : start + chunk])
    return layer


@pytest.mark.parametrize("kind, origin", [("float64", 1e8), ("mixed_float16", 1e3)])
def test_large_observations_that_differ_by_little_stay_apart(kind, origin):
    """The statistics see what was observed, not what the policy computes in."""
    keras.config.set_dtype_policy(kind)
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, heads.Categorical(2), normalize_observations=True)
    agent.compile()
    dtype = "float64" if kind == "float64" else "float32"
    seen = (origin + np.arange(4.0) / 8)[:, None, None].astype(dtype)
    ended = dict(lengths=[3], terminated=[True])
    agent.update(tfr.Episodes(seen, np.zeros((3, 1), int), np.ones((3, 1)), **ended))
    found = agent.normalizer(seen[:3, 0]).numpy()[:, 0]
    np.testing.assert_allclose(found, [-np.sqrt(1.5), 0, np.sqrt(1.5)], rtol=1e-3)


DATA = np.random.default_rng(0).normal(3.0, 2.0, size=(600, 3))


@pytest.mark.parametrize(
    "origin, chunk",
    sweeps.some(
        [(origin, chunk) for origin in (0.0, 1e8) for chunk in (1, 7, 64, 600)],
        always=[(0.0, 7), (0.0, 600), (1e8, 7), (1e8, 64)],
    ),
)
def test_the_statistics_do_not_depend_on_how_the_data_is_split(chunk, origin):
    """Nearly constant data far from zero too, where a sum of squares loses every digit.

    The truth is computed near zero: the subtraction of the origin is exact.
    """
    data = origin + DATA
    layer, near = fed(data, chunk), data - origin
    variance = layer.squares[0].numpy() / len(data)
    np.testing.assert_allclose(layer.shifts[0], origin + near.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, near.var(axis=0), rtol=1e-12)
    assert float(layer.count) == len(data)


@pytest.mark.parametrize("chunk", [sweeps.rare(1), 7, 600])
def test_constant_data_has_no_deviation(chunk):
    layer = fed(np.full((600, 2), 1e8), chunk)
    assert not layer.squares[0].numpy().any()
    assert layer(np.full((1, 2), 1e8)).numpy().tolist() == [[0.0, 0.0]]


def test_the_result_is_the_formula():
    layer = fed(DATA, 50)
    truth = (DATA - DATA.mean(axis=0)) / np.sqrt(DATA.var(axis=0) + 1e-8)
    np.testing.assert_allclose(
        layer(DATA), np.clip(truth, -10, 10), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_before_the_first_update_observations_pass_through(dtype):
    observations = np.array([[0.1, -1e30, 3e38]], dtype)
    normalized = built(dtype=dtype)(observations)
    assert normalized.dtype == dtype
    np.testing.assert_array_equal(normalized, observations)


def test_the_result_is_clipped_after_the_first_update():
    layer = built(clip=2.0)
    layer.update(DATA)
    far = DATA.mean(axis=0) + np.array([[-1e6, 0.0, 1e6]])
    np.testing.assert_allclose(layer(far), [[-2.0, 0.0, 2.0]], atol=1e-5)


def test_calling_changes_nothing():
    layer = fed(DATA, 100)
    before = layer.get_weights()
    layer(DATA + 5.0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_acting_reads_only_the_acting_variables():
    """They are what travels to the acting program after an update, and no more."""
    layer, far = fed(DATA, 100), DATA * 9.0
    before = layer(far).numpy()
    acting = {id(variable) for variable in layer.acting_variables}
    for variable in layer.variables:
        if id(variable) not in acting:
            variable.assign(variable + 7.0)
    np.testing.assert_array_equal(layer(far), before)
    for variable in layer.acting_variables:
        kept = variable.numpy()
        variable.assign(kept * 0.5)
        assert (layer(far).numpy() != before).any()
        variable.assign(kept)


def test_no_statistic_is_trained():
    assert not built().trainable_variables


NESTED = {"z": (None, 2), "a": ((None, 2, 2), {"n": (None, 1), "b": (None, 3)})}


def nested(count=50):
    rng = np.random.default_rng(1)
    return {
        "z": rng.normal(1.0, 5.0, size=(count, 2)),
        "a": (
            rng.normal(-9.0, 0.1, size=(count, 2, 2)),
            {
                "n": rng.integers(0, 9, size=(count, 1)).astype("int64"),
                "b": rng.normal(size=(count, 3)),
            },
        ),
    }


def test_every_real_array_of_a_nested_observation_has_its_own_statistics():
    layer, data = built(NESTED, dtype="float64"), nested()
    layer.update(data)
    found = layer(data)
    keras.tree.assert_same_structure(found, data)
    for real in (found["z"], found["a"][0], found["a"][1]["b"]):
        np.testing.assert_allclose(np.mean(real, axis=0), 0.0, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(np.std(real, axis=0), 1.0, atol=1e-5)


BARE = {"z": (None, 2), "a": ((None, 2, 2), {"n": (), "b": (None, 3)})}


@pytest.mark.parametrize("shapes", [NESTED, BARE], ids=["kept", "nothing kept"])
def test_whole_numbers_pass_through(shapes):
    layer, data = built(shapes), nested()
    layer.update(data)
    whole = layer(data)["a"][1]["n"]
    assert whole.dtype == "int64"
    np.testing.assert_array_equal(whole, data["a"][1]["n"])


def test_nothing_is_kept_for_whole_numbers_and_the_rest_stays_the_same():
    """The statistics of an image would be many times as large as the image."""
    layer, bare, data = built(NESTED), built(BARE), nested()
    for one in (layer, bare):
        one.update(data)
    assert len(bare.means) == len(layer.means) - 1 and bare.count == 50
    for one, other in zip(
        *(keras.tree.flatten(x(data)) for x in (layer, bare)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_where_all_are_whole_numbers_only_the_count_changes():
    layer = built(())
    layer.update(np.array([3, 4]))
    assert float(layer.count) == 2 and layer.means == []
    assert layer(np.array([3, 4])).numpy().tolist() == [3, 4]


def test_nested_chunks_equal_the_whole():
    whole, split = (built(NESTED, dtype="float64") for _ in range(2))
    data = nested()
    whole.update(data)
    for start in range(0, 50, 9):
        split.update(keras.tree.map_structure(lambda x, s=start: x[s : s + 9], data))
    for one, other in zip(whole.variables, split.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_traced_update_is_the_same_update():
    eager, traced = (built(dtype="float64") for _ in range(2))
    step = tf.function(traced.update)
    for start in range(0, 600, 200):
        eager.update(DATA[start : start + 200])
        step(tf.constant(DATA[start : start + 200]))
    for one, other in zip(eager.variables, traced.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_the_statistics_stay_in_float64_whatever_the_policy_computes_in():
    for dtype in ("float32", "mixed_float16"):
        layer = built(dtype=dtype)
        layer.update(DATA)
        variance = layer.squares[0] / layer.count
        np.testing.assert_allclose(variance, DATA.var(axis=0), rtol=1e-14)


def test_a_normalizer_survives_its_config_and_keeps_its_shape():
    layer = built(epsilon=0.5, clip=3.0, name="mine")
    config = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(config)
    assert (again.epsilon, again.clip, again.name) == (0.5, 3.0, "mine")
    assert layer.compute_output_shape((None, 3)) == (None, 3)


def test_epsilon_bounds_the_factor_of_constant_data():
    layer = built(epsilon=0.25, dtype="float64")
    layer.update(np.zeros((4, 3)))
    np.testing.assert_allclose(layer(np.ones((1, 3))), 2.0 * np.ones((1, 3)))


@pytest.mark.parametrize("name", ["epsilon", "clip"])
@pytest.mark.parametrize("number", [0.0, -1.0, np.nan])
def test_numbers_that_are_not_positive_are_refused(name, number):
    with pytest.raises(ValueError, match="`epsilon` and `clip` must be positive"):
        normalization.RunningNormalization(**{name: number})


def test_bounds_below_one_deviation_are_fine():
    layer = normalization.RunningNormalization(epsilon=0.5, clip=0.25)
    assert (layer.epsilon, layer.clip) == (0.5, 0.25)
