"""Tests the record of episodes: valid steps, trimming, and errors of invalid records."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.data import episodes as records

LENGTHS = [2, 4, 1]
RAW = tf.TensorSpec((), tf.int64)
STRUCTURE = {
    "image": tf.TensorSpec((2, 2), tf.uint8),
    "speed": tf.TensorSpec((3,), tf.float32),
}


def record(rows=5, **changed):
    """Returns three episodes of lengths 2, 4 and 1 in `rows` rows; all numbers differ."""
    count = len(LENGTHS)

    def array(shape, dtype):
        return np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    facts = records.Episodes(
        observations={
            "image": array((rows + 1, count, 2, 2), "uint8"),
            "speed": array((rows + 1, count, 3), "float32"),
        },
        actions=array((rows, count), "int32") % 2,
        rewards=array((rows, count), "float32"),
        lengths=np.array(LENGTHS),
        terminated=np.array([True, False, True]),
    )
    return facts._replace(**changed)


def check(episodes, structure=STRUCTURE):
    return records.validate(episodes, structure, RAW)


def valid_indices():
    """Returns `(t, b)` of all valid steps, ordered by time."""
    return [(t, b) for t in range(5) for b, length in enumerate(LENGTHS) if t < length]


def test_valid_is_true_for_steps_before_the_length():
    truth = [[t < length for length in LENGTHS] for t in range(5)]
    for lengths in (LENGTHS, np.array(LENGTHS), tf.constant(LENGTHS, tf.int64)):
        np.testing.assert_array_equal(records.valid(lengths, 5), truth)


def test_gather_returns_valid_steps_row_by_row():
    episodes = record()
    steps = records.valid_steps(episodes.lengths, 5)
    picked = steps.gather({"rewards": episodes.rewards, **episodes.observations})
    for t, (row, column) in enumerate(valid_indices()):
        assert picked["rewards"][t] == episodes.rewards[row, column]
        for name, array in episodes.observations.items():
            np.testing.assert_array_equal(picked[name][t], array[row, column])
    assert all(len(x) == sum(LENGTHS) for x in picked.values())


def test_scatter_restores_gathered_values_and_fills_zeros():
    steps = records.valid_steps(LENGTHS, 5)
    whole = np.arange(1.0, 16.0).reshape(5, 3)
    truth = np.where(records.valid(LENGTHS, 5), whole, 0.0)
    np.testing.assert_array_equal(steps.scatter(steps.gather(whole)), truth)


def assert_same_records(found, truth):
    """Raises unless two records have equal numbers in every field."""
    keras.tree.assert_same_structure(found._asdict(), truth._asdict())
    keras.tree.map_structure(np.testing.assert_array_equal, found, truth)


def record_with_masks(rows=5):
    """Returns the record with masks of two choices, in which all numbers differ."""
    masks = np.arange(rows * len(LENGTHS) * 2).reshape(rows, len(LENGTHS), 2)
    return record(rows, masks=masks.astype("int8"))


@pytest.mark.parametrize("begin, end", [(0, 1), (1, 3), (0, 3)])
def test_select_episodes_returns_the_columns_of_whole_episodes(begin, end):
    whole = record_with_masks()
    part = slice(begin, end)
    truth = records.Episodes(
        {name: x[:, part] for name, x in whole.observations.items()},
        whole.actions[:, part],
        whole.rewards[:, part],
        whole.lengths[part],
        whole.terminated[part],
        whole.masks[:, part],
    )
    assert_same_records(records.select_episodes(whole, begin, end), truth)
    bare = records.select_episodes(record(), begin, end)
    assert bare.masks is None
    assert_same_records(bare._replace(masks=truth.masks), truth)


def test_concatenate_of_selected_episodes_is_the_record():
    whole = record_with_masks()
    parts = [records.select_episodes(whole, *ends) for ends in ((0, 1), (1, 3))]
    assert_same_records(records.concatenate(parts), whole)


def test_trim_removes_rows_that_are_padding_in_every_episode():
    whole = record(rows=9)
    cut = records.trim(whole)
    keras.tree.map_structure(
        lambda short, long: np.testing.assert_array_equal(short, long[:5]),
        cut.observations,
        whole.observations,
    )
    np.testing.assert_array_equal(cut.actions, whole.actions[:4])
    np.testing.assert_array_equal(cut.rewards, whole.rewards[:4])
    np.testing.assert_array_equal(cut.lengths, whole.lengths)
    np.testing.assert_array_equal(cut.terminated, whole.terminated)


def test_validate_converts_a_record_to_the_expected_types():
    tensors = [keras.tree.map_structure(tf.constant, field) for field in record()[:5]]
    checked = check(records.Episodes(*tensors))
    assert checked.rewards.dtype == "float64"
    assert (checked.actions.dtype, checked.lengths.dtype) == ("int64", "int32")
    assert checked.observations["image"].dtype == "uint8"
    keras.tree.map_structure(np.testing.assert_array_equal, checked[:5], record()[:5])
    assert checked.masks.shape == (5, 3, 0)


def test_specs_are_compatible_with_validated_records():
    signature = records.specs(STRUCTURE, RAW, 0)
    checked = keras.tree.map_structure(tf.constant, check(record()))
    for spec, tensor in zip(
        keras.tree.flatten(signature), keras.tree.flatten(checked), strict=True
    ):
        assert spec.is_compatible_with(tensor)
        assert spec.shape.rank == tensor.shape.rank


def test_validate_converts_masks_to_int8():
    kept = record_with_masks()
    for masks in (
        kept.masks,
        kept.masks.astype("int64"),
        kept.masks > 3,
        kept.masks.tolist(),
    ):
        checked = records.validate(
            kept._replace(masks=masks), STRUCTURE, RAW, mask_size=2
        )
        assert checked.masks.dtype == "int8"
        np.testing.assert_array_equal(checked.masks, masks)
    empty = record(masks=np.zeros((5, 3, 0), "int8"))
    assert check(empty).masks.shape == (5, 3, 0)


@pytest.mark.parametrize(
    "masks, size, message",
    [
        (None, 2, "have `masks` if and only if"),
        (np.ones((5, 3, 2), "int8"), 0, "have `masks` if and only if"),
        (np.ones((5, 3, 1), "int8"), 2, "`masks` must have the shape"),
        (np.ones((5, 3, 2)), 2, "`masks` must be of type int8"),
    ],
)
def test_validate_raises_if_masks_do_not_fit_the_agent(masks, size, message):
    with pytest.raises(ValueError, match=message):
        records.validate(record(masks=masks), STRUCTURE, RAW, mask_size=size)


WRONG = {
    "no_time_axis": (dict(rewards=np.ones(3)), r"`rewards` must be \[T, B\]"),
    "ragged": (dict(rewards=[[1.0], [1.0, 2.0]]), "`rewards` must be an array"),
    "no_steps": (dict(rewards=np.ones((0, 3))), "at least one step"),
    "no_episodes": (dict(rewards=np.ones((5, 0))), "at least one step"),
    "actions_with_an_axis_too_many": (
        dict(actions=np.zeros((5, 3, 1), "int32")),
        r"`actions` must have the shape \(5, 3\).*shape \(5, 3, 1\)",
    ),
    "actions_by_episode": (dict(actions=np.zeros((3, 5), "int32")), "`actions`.*shape"),
    "fractions_as_actions": (
        dict(actions=np.full((5, 3), 0.5)),
        "`actions` must be of type int64.*float64",
    ),
    "no_length": (
        dict(lengths=np.array([2, 0, 1])),
        r"must lie between 1 and 5.*\[2, 0, 1\]",
    ),
    "too_long": (
        dict(lengths=np.array([2, 6, 1])),
        r"must lie between 1 and 5.*\[2, 6, 1\]",
    ),
    "one_length_for_all": (dict(lengths=np.array([5])), "`lengths` must have the shape"),
    "fractions_as_lengths": (dict(lengths=np.ones(3)), "`lengths` must be of type int32"),
    "terminated_per_step": (
        dict(terminated=np.zeros((5, 3), bool)),
        "`terminated` must have the shape",
    ),
    **{
        f"masked_{name}": (
            {name: np.ma.masked_array(np.ones(shape, dtype), np.eye(*shape))},
            f"`{name}` must have no masked entries.*Received: 3 masked",
        )
        for name, shape, dtype in [("rewards", (5, 3), "f"), ("actions", (5, 3), "int32")]
    },
    "numbers_as_terminated": (
        dict(terminated=np.array([0, 1, 2])),
        "`terminated` must be of type bool",
    ),
}


@pytest.mark.parametrize("changed, message", WRONG.values(), ids=WRONG.keys())
def test_validate_raises_if_a_field_has_wrong_shape_or_type(changed, message):
    with pytest.raises(ValueError, match=message):
        check(record(**changed))


@pytest.mark.parametrize("names", [["speed"], ["speed", "image", "sound"], []])
def test_validate_raises_if_observations_have_another_structure(names):
    """As every error of `validate`, the error names the field."""
    parts = {name: np.zeros((6, 3, 3), "float32") for name in names}
    with pytest.raises(ValueError, match="`observations`"):
        check(record(observations=parts or np.zeros((6, 3, 3), "float32")))
