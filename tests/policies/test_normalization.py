"""Tests that running statistics equal those of all data, and change in updates only."""

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.policies import normalization


def new_layer(shape=(None, 3), **kwargs):
    layer = normalization.RunningNormalization(**kwargs)
    layer.build(shape)
    return layer


def updated_layer(data, chunk):
    layer = new_layer((None, *data.shape[1:]), dtype="float64")
    for start in range(0, len(data), chunk):
        layer.update(data[start : start + chunk])
    return layer


@pytest.mark.parametrize("kind, origin", [("float64", 1e8), ("mixed_float16", 1e3)])
def test_small_differences_of_large_observations_are_normalized(kind, origin):
    """The statistics use observations that are not cast to the type of the policy."""
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
def test_statistics_do_not_depend_on_how_the_data_are_split(chunk, origin):
    """The test includes nearly constant data far from zero.

    The expected values are computed near zero, because the subtraction is exact.
    """
    data = origin + DATA
    layer, near = updated_layer(data, chunk), data - origin
    variance = layer.squares[0].numpy() / len(data)
    np.testing.assert_allclose(layer.shifts[0], origin + near.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, near.var(axis=0), rtol=1e-12)
    assert float(layer.count) == len(data)


def test_statistics_of_single_observations_equal_those_of_all():
    layer, data = updated_layer(DATA[:4], 1), DATA[:4]
    np.testing.assert_allclose(layer.shifts[0], data.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(layer.squares[0] / 4, data.var(axis=0), rtol=1e-12)


@pytest.mark.parametrize("chunk", [sweeps.rare(1), 7, 600])
def test_constant_data_have_zero_variance(chunk):
    layer = updated_layer(np.full((600, 2), 1e8), chunk)
    assert not layer.squares[0].numpy().any()
    assert layer(np.full((1, 2), 1e8)).numpy().tolist() == [[0.0, 0.0]]


def test_normalized_data_equal_the_formula():
    layer = updated_layer(DATA, 50)
    truth = (DATA - DATA.mean(axis=0)) / np.sqrt(DATA.var(axis=0) + 1e-8)
    np.testing.assert_allclose(
        layer(DATA), np.clip(truth, -10, 10), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_observations_are_unchanged_before_the_first_update(dtype):
    observations = np.array([[0.1, -1e30, 3e38]], dtype)
    normalized = new_layer(dtype=dtype)(observations)
    assert normalized.dtype == dtype
    np.testing.assert_array_equal(normalized, observations)


def test_normalized_data_are_clipped_after_the_first_update():
    layer = new_layer(clip=2.0)
    layer.update(DATA)
    far = DATA.mean(axis=0) + np.array([[-1e6, 0.0, 1e6]])
    np.testing.assert_allclose(layer(far), [[-2.0, 0.0, 2.0]], atol=1e-5)


def test_calling_the_layer_changes_no_variable():
    layer = updated_layer(DATA, 100)
    before = layer.get_weights()
    layer(DATA + 5.0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_call_depends_on_the_acting_variables_only():
    """Only these variables are copied to the acting program after an update."""
    layer, far = updated_layer(DATA, 100), DATA * 9.0
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


def test_statistics_are_not_trainable():
    assert not new_layer().trainable_variables


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


def test_each_float_array_of_a_nested_observation_has_its_own_statistics():
    layer, data = new_layer(NESTED, dtype="float64"), nested()
    layer.update(data)
    found = layer(data)
    keras.tree.assert_same_structure(found, data)
    for real in (found["z"], found["a"][0], found["a"][1]["b"]):
        np.testing.assert_allclose(np.mean(real, axis=0), 0.0, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(np.std(real, axis=0), 1.0, atol=1e-5)


BARE = {"z": (None, 2), "a": ((None, 2, 2), {"n": (), "b": (None, 3)})}


@pytest.mark.parametrize("shapes", [NESTED, BARE], ids=["kept", "nothing kept"])
def test_integer_observations_are_not_normalized(shapes):
    layer, data = new_layer(shapes), nested()
    layer.update(data)
    whole = layer(data)["a"][1]["n"]
    assert whole.dtype == "int64"
    np.testing.assert_array_equal(whole, data["a"][1]["n"])


def test_integer_observations_without_shape_have_no_statistics():
    """The statistics of an image would be several times as large as the image."""
    layer, bare, data = new_layer(NESTED), new_layer(BARE), nested()
    for one in (layer, bare):
        one.update(data)
    assert len(bare.means) == len(layer.means) - 1 and bare.count == 50
    for one, other in zip(
        *(keras.tree.flatten(x(data)) for x in (layer, bare)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_update_with_integers_only_changes_the_count():
    layer = new_layer(())
    layer.update(np.array([3, 4]))
    assert float(layer.count) == 2 and layer.means == []
    assert layer(np.array([3, 4])).numpy().tolist() == [3, 4]


def test_statistics_of_nested_chunks_equal_those_of_all_data():
    whole, split = (new_layer(NESTED, dtype="float64") for _ in range(2))
    data = nested()
    whole.update(data)
    for start in range(0, 50, 9):
        split.update(keras.tree.map_structure(lambda x, s=start: x[s : s + 9], data))
    for one, other in zip(whole.variables, split.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_update_in_a_graph_equals_the_eager_update():
    eager, traced = (new_layer(dtype="float64") for _ in range(2))
    step = tf.function(traced.update)
    for start in range(0, 600, 200):
        eager.update(DATA[start : start + 200])
        step(tf.constant(DATA[start : start + 200]))
    for one, other in zip(eager.variables, traced.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_statistics_are_float64_for_every_compute_type():
    for dtype in ("float32", "mixed_float16"):
        layer = new_layer(dtype=dtype)
        layer.update(DATA)
        variance = layer.squares[0] / layer.count
        np.testing.assert_allclose(variance, DATA.var(axis=0), rtol=1e-14)


def test_normalizer_is_restored_from_its_config():
    layer = new_layer(epsilon=0.5, clip=3.0, name="mine")
    config = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(config)
    assert (again.epsilon, again.clip, again.name) == (0.5, 3.0, "mine")
    assert layer.compute_output_shape((None, 3)) == (None, 3)


def test_epsilon_bounds_the_factor_of_constant_data():
    layer = new_layer(epsilon=0.25, dtype="float64")
    layer.update(np.zeros((4, 3)))
    np.testing.assert_allclose(layer(np.ones((1, 3))), 2.0 * np.ones((1, 3)))


@pytest.mark.parametrize("name", ["epsilon", "clip"])
@pytest.mark.parametrize("number", [0.0, -1.0, np.nan])
def test_epsilon_and_clip_raise_unless_positive(name, number):
    with pytest.raises(ValueError, match=f"`{name}` must be a finite number in .1e-300"):
        normalization.RunningNormalization(**{name: number})


def test_clip_below_one_is_accepted():
    layer = normalization.RunningNormalization(epsilon=0.5, clip=0.25)
    assert (layer.epsilon, layer.clip) == (0.5, 0.25)
