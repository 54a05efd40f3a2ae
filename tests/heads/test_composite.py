"""Tests `heads.Composite`: tuples and dicts of heads, nested to any depth."""

import json

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import heads

Discrete, Box = gym.spaces.Discrete, gym.spaces.Box
TREE = {
    "empty": gym.spaces.Dict({"": Discrete(2)}),
    "keywords": gym.spaces.Dict({"self": Discrete(2), "value": Box(-1, 1, (2,))}),
    "one": gym.spaces.Tuple([Discrete(3)]),
    "deep": gym.spaces.Dict(
        {
            "b": gym.spaces.Tuple(
                [
                    Discrete(3, start=5),
                    gym.spaces.Dict({"a b": Box(-1, 1, (2, 2)), "1": Discrete(2)}),
                ]
            ),
            "é.x": gym.spaces.MultiBinary((2, 1)),
            "a": gym.spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
        }
    ),
    # Gymnasium keeps this order, and TensorFlow sorts the keys.
    "ordered": gym.spaces.Dict([("z", Discrete(2)), ("a", Discrete(4))]),
}


def built(space, **kwargs):
    """Returns a built head for a space."""
    head = heads.for_space(space, **kwargs)
    head.build((None, head.outputs_size))
    return head


def outputs_noise_and_actions(head, count=5, seed=0, dtype="float64"):
    """Returns random outputs, random noise, and the raw actions that the head samples."""
    rng = np.random.default_rng(seed)
    outputs = tf.constant(rng.normal(size=(count, head.outputs_size)).astype(dtype))
    noise = keras.tree.map_structure(
        lambda noise: tf.constant(rng.random((count, *noise.shape)).astype(dtype)),
        head.noise,
    )
    return outputs, noise, head.sample(outputs, noise)


def columns(head, outputs):
    """Returns `(leaf, outputs of the leaf)` pairs, split with NumPy."""
    ends = np.cumsum([leaf.outputs_size for leaf in head.leaves])
    return zip(head.leaves, np.split(outputs, ends[:-1], axis=1), strict=True)


@pytest.mark.parametrize("name", TREE)
def test_composite_log_probability_and_entropy_are_sums_over_the_leaves(name):
    head = built(TREE[name], dtype="float64")
    outputs, _, actions = outputs_noise_and_actions(head)
    parts = keras.tree.flatten(actions)
    log_probs, entropies = np.zeros(5), np.zeros(5)
    for (leaf, numbers), part in zip(columns(head, outputs), parts, strict=True):
        log_probs += leaf.distribution(tf.constant(numbers)).log_prob(part)
        entropies += leaf.distribution(tf.constant(numbers)).entropy()
    distribution = head.distribution(outputs)
    np.testing.assert_allclose(distribution.log_prob(actions), log_probs, rtol=1e-14)
    np.testing.assert_allclose(distribution.entropy(), entropies, rtol=1e-14)


@pytest.mark.parametrize("name", TREE)
def test_composite_eligibility_sample_and_mode_equal_those_of_the_leaves(name):
    head = built(TREE[name], dtype="float64")
    outputs, noise, actions = outputs_noise_and_actions(head)
    keras.tree.assert_same_structure(head.heads, actions)
    keras.tree.assert_same_structure(head.heads, head.mode(outputs))
    noise, parts = keras.tree.flatten(noise), keras.tree.flatten(actions)
    modes = keras.tree.flatten(head.mode(outputs))
    scores = []
    for i, (leaf, numbers) in enumerate(columns(head, outputs)):
        numbers = tf.constant(numbers)
        np.testing.assert_array_equal(leaf.sample(numbers, noise[i]), parts[i])
        np.testing.assert_array_equal(leaf.mode(numbers), modes[i])
        scores.append(leaf.eligibility(numbers, parts[i]))
    eligibility = head.eligibility(outputs, actions)
    np.testing.assert_array_equal(eligibility, np.concatenate(scores, axis=1))
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        log_probs = head.distribution(outputs).log_prob(actions)
    np.testing.assert_allclose(
        tape.gradient(log_probs, outputs), eligibility, rtol=1e-13, atol=1e-14
    )


def test_composite_parameter_names_contain_the_path_of_the_leaf():
    head = built(TREE["deep"])
    parameters = head.parameters(tf.zeros([2, head.outputs_size]))
    assert set(parameters) == {
        "a_logits", "a_probs", "b_0_logits", "b_0_probs", "b_1_1_logits",
        "b_1_1_probs", "b_1_a b_mean", "b_1_a b_scale", "é.x_logits", "é.x_probs",
    }  # fmt: skip
    assert parameters["b_1_a b_mean"].shape == (2, 4)


# Records


def test_check_actions_error_names_leaf_of_impossible_action():
    head = heads.Composite({"a": heads.Categorical(2), "b": (heads.Bernoulli(1),)})
    actions = {"a": np.array([[0], [1]]), "b": (np.array([[[1]], [[2]]]),)}
    head.check_actions(actions, np.array([1]))
    with pytest.raises(
        ValueError, match="part 'b_0' of the action: .*raw actions of Bern.*step 1"
    ):
        head.check_actions(actions, np.array([2]))
    possible = head.is_valid(actions)
    assert possible["a"].all() and possible["b"][0].tolist() == [[[True]], [[False]]]


def test_check_actions_error_names_leaf_of_illegal_action():
    """Each leaf has its own columns of the masks, in the order of the outputs."""
    pair = {"z": heads.Categorical(2), "a": heads.Categorical(3), "m": heads.Gaussian(1)}
    head = heads.Composite(pair)
    actions = {"z": np.array([[1]]), "a": np.array([[2]]), "m": np.zeros((1, 1, 1))}
    length = np.array([1])
    for marks, part in {"a": [1, 1, 0, 1, 1], "z": [1, 1, 1, 1, 0]}.items():
        masks = np.int8([[part]])
        assert head.is_legal(actions, masks).tolist() == [[False]]
        with pytest.raises(ValueError, match=f"part '{marks}' of .*legal actions of Cat"):
            head.check_actions(actions, length, masks)
    for masks in (None, np.zeros((1, 1, 0), "int8"), np.ones((1, 1, 5), "int8")):
        head.check_actions(actions, length, masks)


# Weights and config


def test_weights_of_nested_leaves_are_saved_and_loaded(tmp_path):
    """Keras saves one level of a list or dict.

    `Composite` must save deeper leaves as well.
    """

    def model():
        kept = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        kept.head = built(TREE["deep"])
        return kept

    first, second = model(), model()
    (scale,) = first.head.trainable_variables
    scale.assign([0.1, 0.2, 0.3, 0.4])
    first.save_weights(tmp_path / "all.weights.h5")
    second.load_weights(tmp_path / "all.weights.h5")
    np.testing.assert_array_equal(second.head.trainable_variables[0], scale)


@pytest.mark.parametrize("name", TREE)
def test_composite_restored_from_json_config_is_equal(name):
    """JSON has no tuples, but the restored config contains tuples again."""
    head = heads.for_space(TREE[name])
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(head)))
    restored = keras.saving.deserialize_keras_object(config)
    assert repr(restored) == repr(head)
    keras.tree.assert_same_structure(restored.heads, head.heads)
    assert restored.matches_space(TREE[name]) and restored.noise == head.noise
    assert restored.get_config() == head.get_config()


TWICE = heads.Categorical(2)
REFUSED = {
    "leaf": (heads.Categorical(2), "`heads` must be a tuple or a dict"),
    "list": ([heads.Categorical(2)], "`heads` must be a tuple or a dict"),
    "inner_list": (
        ([heads.Categorical(2)],),
        "`heads` must be heads in tuples and dicts",
    ),
    "number": ((heads.Categorical(2), 3), "Received: 3 in"),
    "composite": ((heads.Composite((heads.Categorical(2),)),), "nest its heads"),
    "twice": ((TWICE, TWICE), "must be a different object"),
    "empty": ({}, "must not be empty"),
    "empty_part": ((heads.Categorical(2), ()), "must not be empty"),
    "slash": ({"a/b": heads.Categorical(2)}, "strings without '/'"),
    "mixed": ({1: heads.Categorical(2), "a": heads.Categorical(2)}, "must be strings"),
    "same": (
        {"a_0": heads.Categorical(2), "a": (heads.Categorical(2),)},
        "a different name for each",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_structure_of_heads_raises(name):
    structure, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message):
        heads.Composite(structure)
