"""Tests action masks: how heads read masks, mask outputs, and check legality."""

import math
import types

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
import toy_heads

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce import testing
from tf_reinforce.data import action_masks
from tf_reinforce.engine.collect import environments
from tf_reinforce.export import policy_functions
from tf_reinforce.policies import actor
from tf_reinforce.testing import enumeration

OTHERS = {
    "forced": (heads.Categorical(3), [0, 1, 0]),
    "equal_choices": (heads.MultiCategorical([3, 3]), [1, 1, 0, 0, 0, 1]),
    "all_set": (heads.Bernoulli(2), [1, 0]),
    "one_count": (heads.Multinomial(3, trials=3), [0, 0, 1]),
}
EXAMPLES = {name: (parts.head(name), parts.HEADS[name].mask) for name in parts.HEADS}
CASES = {name: case for name, case in EXAMPLES.items() if case[1]} | OTHERS
SURE = {  # the standard deviation of the logits, and their mean
    "plain": (1.0, 0.0),
    "sure": (1e4, 0.0),
    "offset": (1.0, 1e6),
}


def legal_actions(head, mask):
    """Returns all raw actions of a head that are legal under a mask."""
    actions = enumeration.raw_actions(head)
    return enumeration.select(actions, enumeration.is_legal(head, actions, np.int8(mask)))


def outputs_under_mask(head, mask, outputs):
    """Returns the outputs of a head under one mask for all rows."""
    rows = np.tile(np.int8(mask), (len(outputs), 1))
    return head.mask_outputs(tf.constant(outputs), tf.constant(rows))


# Legality of actions


@pytest.mark.parametrize("mask", [[0, 0], [0, 0, 0, 1, 1], [1, 1, 0, 0, 0]])
def test_has_legal_action_is_false_for_a_mask_without_legal_action(mask):
    if len(mask) == 2:
        for head in (heads.Categorical(2), heads.Multinomial(2, trials=3)):
            assert not head.has_legal_action(np.int8(mask))
        return
    head = heads.MultiCategorical([2, 3])
    both = np.int8([mask, [1, 0, 0, 0, 1]])
    assert head.has_legal_action(both).tolist() == [False, True]
    pair = heads.Composite((heads.Categorical(2), heads.Categorical(3)))
    assert pair.has_legal_action(both).tolist() == [False, True]


@pytest.mark.parametrize(
    "head", [heads.Categorical(2), heads.MultiCategorical([2, 2])], ids=repr
)
def test_is_legal_accepts_any_number_in_padded_steps(head):
    actions = np.full((1, 1, *head.action_shape), 999)
    legal = head.is_legal(actions, np.ones((1, 1, head.mask_size), "int8"))
    assert (legal.shape, legal.dtype) == ((1, 1), bool)  # 999 raises no index error


# Sampling and probabilities under masks


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", SURE)
@pytest.mark.parametrize("name", CASES)
def test_samples_and_mode_of_masked_head_are_legal(name, size, dtype):
    (head, mask), (gap, offset) = CASES[name], SURE[size]
    rng, count = np.random.default_rng(0), 10_000
    outputs = gap * rng.normal(size=(count, head.outputs_size)) + offset
    outputs = outputs_under_mask(head, mask, outputs.astype(dtype))
    assert outputs.dtype == dtype and np.isfinite(outputs).all()
    noise = [
        tf.constant(rng.random((count, *noise.shape)).astype(dtype))
        for noise in keras.tree.flatten(head.noise)
    ]
    samples = head.sample(outputs, keras.tree.pack_sequence_as(head.noise, noise))
    for actions in (samples, head.mode(outputs)):
        actions = keras.tree.map_structure(np.asarray, actions)
        assert enumeration.to_matrix(head.is_valid(actions)).all()
        assert enumeration.is_legal(head, actions, np.int8(mask)).all()


@pytest.mark.parametrize("name", CASES)
def test_check_head_passes_for_masked_head(name):
    head, mask = CASES[name]
    report = testing.check_head(head, mask=mask)
    assert report["legality"] == 0 and report["expected_eligibility"] <= 1e-15


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"Autoregressive"}))
def test_masked_probabilities_are_renormalized_over_legal_actions(name):
    """Legal actions keep their ratios: π(a | legal) = π(a) / Σ_legal π."""
    head, mask = CASES[name]
    row = np.random.default_rng(0).normal(size=head.outputs_size)
    actions = enumeration.raw_actions(head)
    legal = enumeration.is_legal(head, actions, np.int8(mask))
    outputs = np.tile(row, (len(legal), 1))
    unmasked_probs = np.exp(head.distribution(tf.constant(outputs)).log_prob(actions))
    masked_probs = np.exp(
        head.distribution(outputs_under_mask(head, mask, outputs)).log_prob(actions)
    )
    expected = np.where(legal, unmasked_probs, 0) / np.sum(unmasked_probs[legal])
    np.testing.assert_allclose(masked_probs, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("gap", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_masked_head_has_finite_values_and_no_gradient_to_illegal_outputs(
    name, dtype, gap
):
    """With -inf for illegal logits, the entropy and its gradient would contain 0 · ∞."""
    head, mask = CASES[name]
    actions = legal_actions(head, mask)
    row = gap * np.cos(np.arange(head.outputs_size))
    outputs = np.tile(row, (enumeration.count(actions), 1)).astype(dtype)
    masked_outputs = outputs_under_mask(head, mask, outputs)
    watched = tf.constant(outputs)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(watched)
        distribution = head.distribution(outputs_under_mask(head, mask, watched))
        log_probs, entropy = distribution.log_prob(actions), distribution.entropy()
    values = {
        "log_prob": log_probs,
        "entropy": entropy,
        "slope": tape.gradient(log_probs, watched),
        "entropy_slope": tape.gradient(entropy, watched),
        "eligibility": head.eligibility(masked_outputs, actions),
    }
    assert {key for key, x in values.items() if not np.isfinite(x).all()} == set()
    if head.appended_size:  # the mask is appended, not in the outputs
        return
    changed_by_mask = masked_outputs[0] != outputs[0]
    for key in ("slope", "entropy_slope", "eligibility"):
        assert not np.any(values[key].numpy()[:, changed_by_mask]), key
    np.testing.assert_allclose(values["slope"], values["eligibility"], atol=1e-5)


# Reading masks


def bytes_of(*marks):
    return np.array(marks, "int8")


READ = {
    "discrete": (gym.spaces.Discrete(3), bytes_of(1, 0, 1), [1, 0, 1]),
    "multi": (
        gym.spaces.MultiDiscrete([2, 3]),
        (bytes_of(0, 1), bytes_of(1, 0, 1)),
        [0, 1, 1, 0, 1],
    ),
    "matrix": (
        gym.spaces.MultiDiscrete([[2, 1], [1, 3]], start=[[4, 0], [0, -1]]),
        ((bytes_of(0, 1), bytes_of(1)), (bytes_of(1), bytes_of(1, 1, 0))),
        [0, 1, 1, 1, 1, 1, 0],
    ),
    "binary": (gym.spaces.MultiBinary((2, 2)), np.int8([[0, 1], [2, 2]]), [0, 1, 2, 2]),
    "nested": (
        gym.spaces.Dict(
            {
                "b": gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Box(0, 1)]),
                "a b": gym.spaces.MultiDiscrete([2, 2]),
                "1": gym.spaces.MultiBinary(2),
                "free": gym.spaces.Dict(x=gym.spaces.Discrete(2)),
            }
        ),
        {
            "b": (bytes_of(0, 1), None),
            "a b": (bytes_of(1, 0), bytes_of(0, 1)),
            "1": None,
            "free": None,
        },
        [2, 2, 1, 0, 0, 1, 0, 1, 1, 1],
    ),
}


def to_raw_action(space, action):
    """Returns the raw action of an action that Gymnasium sampled."""
    if isinstance(space, gym.spaces.Dict):
        return {key: to_raw_action(part, action[key]) for key, part in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(map(to_raw_action, space, action))
    action = action - getattr(space, "start", 0)
    return np.ravel(action) if space.shape else np.asarray(action)


@pytest.mark.parametrize("name", READ)
def test_gymnasium_samples_under_a_mask_are_exactly_the_legal_actions(name):
    """200 samples of the space contain every legal action of an integer head."""
    space, mask, truth = READ[name]
    head = heads.for_space(space)
    read = head.flatten_mask(mask)
    assert read.dtype == "int8" and read.tolist() == truth
    samples = [to_raw_action(space, space.sample(mask=mask)) for _ in range(200)]
    samples = keras.tree.map_structure(lambda *leaves: np.stack(leaves), *samples)
    assert enumeration.is_legal(head, samples, read).all()
    if enumeration.is_integer(head):
        every = enumeration.to_matrix(legal_actions(head, read))
        assert {*map(tuple, every)} == {*map(tuple, enumeration.to_matrix(samples))}


def test_flatten_mask_of_none_makes_every_action_legal():
    assert heads.Categorical(3).flatten_mask(None).tolist() == [1, 1, 1]
    assert heads.Bernoulli(2).flatten_mask(None).tolist() == [2, 2]
    assert heads.Gaussian(2).flatten_mask(None).tolist() == []


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool", "float32"])
def test_an_array_is_flattened_like_a_list_of_its_numbers(dtype):
    head, mask = heads.Categorical(6), np.array([[1, 0, 1], [1, 0, 1]], dtype)
    flat = head.flatten_mask(mask)
    assert flat.dtype == "int8" and not np.shares_memory(flat, mask)
    np.testing.assert_array_equal(flat, head.flatten_mask([list(row) for row in mask]))
    for wrong in (mask[0], np.zeros((), dtype), np.zeros(7, dtype)):
        with pytest.raises(ValueError, match="must have 6 entries, 0 or 1"):
            head.flatten_mask(wrong)


def test_mark_256_is_not_read_as_zero():
    assert heads.Categorical(2).flatten_mask(np.array([256, 0])).tolist() == [1, 0]


PAIR = heads.Composite({"a": heads.Categorical(2), "b": (heads.Bernoulli(1),)})
UNREADABLE = {
    "short": (heads.Categorical(3), [1, 0], "must have 3 entries, 0 or 1"),
    "real": (heads.Categorical(2), [0.5, 1.0], "must have 2 entries, 0 or 1"),
    "masked": (
        heads.Categorical(2),
        np.ma.masked_equal([0, 1], 0),
        "must have 2 entries",
    ),
    "nothing": (heads.Categorical(2), (), "must have 2 entries, 0 or 1"),
    "parts": (
        heads.MultiCategorical([2, 3]),
        (bytes_of(1, 1, 1), bytes_of(1, 1)),
        r"in parts of the sizes \(2, 3\). Received: ",
    ),
    "listed": (
        heads.MultiCategorical([2, 3]),
        [[1, 0, 1], bytes_of(1, 1)],
        r"in parts of the sizes \(2, 3\). Received: ",
    ),
    "mark": (heads.Bernoulli(2), [0, 3], "0, 1 or 2 for a flag. Received: .0, 3"),
    "minus": (heads.Bernoulli(1), [-1], "1 entries"),
    "marks": (heads.Bernoulli(2), [0], "2 entries"),
    "box": (heads.Gaussian(1), [1], "must have 0 entries, 0 or 1"),
    "part": (
        PAIR,
        {"a": [1, 1], "b": ([7],)},
        "in the part 'b_0' of the mask, an action mask of Bernoulli",
    ),
    "keys": (PAIR, {"a": [1, 1]}, "must be a dict with the keys .'a', 'b'"),
    "tuple": (PAIR, {"a": None, "b": [[2]]}, "must be a tuple of 1"),
    "flat": (PAIR, [1, 1, 2], "must be a dict"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_flatten_mask_raises_for_mask_of_wrong_structure_or_marks(name):
    head, mask, message = UNREADABLE[name]
    with pytest.raises(ValueError, match=message):
        head.flatten_mask(mask)


# Errors that check_head reports


class Open(heads.Categorical):
    """Ignores the mask in `mask_outputs`."""

    def mask_outputs(self, outputs, mask):
        return outputs


class Infinite(heads.Categorical):
    def mask_outputs(self, outputs, mask):
        return tf.where(tf.equal(mask, 0), -math.inf, outputs)


class Stubborn(heads.MultiCategorical):
    """Checks the legality of only one of two choices."""

    def is_legal(self, actions, mask):
        return mask[..., 0] == (actions[..., 0] == 0)


@pytest.mark.parametrize("head", [Open(3), Infinite(3), Stubborn([1, 2])])
def test_check_head_raises_if_head_violates_its_mask(head):
    with pytest.raises(AssertionError, match="^`legality` of .* an error of at most 0"):
        testing.check_head(head, mask=[1, 1, 0])


# Acting programs, gradients, and sources of masks


WITH_REALS = heads.Composite({"real": heads.Gaussian(2), "way": heads.Categorical(3)})


@pytest.mark.parametrize("name", [*CASES, "with_reals"])
def test_litert_samples_under_mask_are_legal_and_equal_keras_samples(name):
    head, mask = {**CASES, "with_reals": (WITH_REALS, [0, 1, 1])}[name]
    toy_heads.built(head)
    rng, count = np.random.default_rng(0), 64
    rows = rng.normal(size=(count, head.outputs_size)).astype("float32")
    policy = actor.ActorPolicy(
        lambda observations, states: (1.5 * observations, states),
        head,
        tf.TensorSpec((head.outputs_size,)),
        "float32",
        head.variables,
        action_masks.MaskPath("info/action_mask"),
    )
    flags = np.tile(np.int8(mask), (count, 1))
    noise = [rng.random((count, *n.shape), "float32") for n in policy.noise_specs]
    program = environments.ActingProgram(policy, [rows, flags, *noise], False)
    assert program.runtime == "litert"
    weights = environments.finite_weights(head.variables)
    raw, *_ = program.for_batch(count, weights)([rows, flags, *noise])
    outputs = head.mask_outputs(tf.constant(1.5 * rows), tf.constant(flags))
    for ours, theirs in zip(
        raw, keras.tree.flatten(policy.select_actions(outputs, noise))
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    samples = keras.tree.pack_sequence_as(head.noise, raw)
    assert enumeration.is_legal(head, samples, np.int8(mask)).all()


def build_float64(kind, *args, **kwargs):
    return kind(*args, dtype="float64", **kwargs)


def nested():
    leaves = {
        "a b": build_float64(heads.Categorical, 2),
        "1": (build_float64(heads.Bernoulli, 2),),
    }
    return heads.Composite(leaves, dtype="float64")


GRADIENTS = {
    "one_choice": (
        lambda: build_float64(heads.Categorical, 3),
        [[1, 0, 1], [0, 1, 1]],
        9,
    ),
    "choices": (
        lambda: build_float64(heads.MultiCategorical, [2, 2]),
        [[1, 0, 1, 1], [1, 1, 0, 1]],
        9,
    ),
    "switches": (lambda: build_float64(heads.Bernoulli, 2), [[2, 0], [1, 2]], 8),
    "counts": (
        lambda: build_float64(heads.Multinomial, 3, 2),
        [[1, 0, 1], [0, 1, 1]],
        18,
    ),
    "nested": (nested, [[0, 2, 1, 1], [2, 2, 0, 1]], 21),
    # In the first state, only moves that end the episode are legal.
    "short": (
        lambda: build_float64(heads.Categorical, 4),
        [[0, 0, 1, 1], [1, 1, 1, 1]],
        2,
    ),
}


@pytest.mark.parametrize("name", sweeps.some(GRADIENTS, always=["switches", "short"]))
def test_expected_update_under_masks_equals_exact_gradient(name):
    """Each state of the task has its own mask."""
    make, states, count = GRADIENTS[name]
    report = testing.check_gradient(make(), masks=states)
    assert report.trajectories == count and np.abs(report.exact).max() > 1e-3


@pytest.mark.parametrize(
    "where", [None, 3, "", "info", "info/", "observation//x", "reward/mask", "info/a/"]
)
def test_invalid_action_mask_path_raises(where):
    with pytest.raises(ValueError, match="`action_mask` must be None or"):
        action_masks.MaskPath(where)


def test_mask_path_finds_a_part_by_keys_and_indices():
    observation = {"b": ({"1": "named"}, ["first", "second"]), "_x": 4}
    for where, part in (
        ("observation/b/0/1", "named"),
        ("observation/b/1", ["first", "second"]),
        ("observation/_x", 4),
    ):
        assert action_masks.MaskPath(where).lookup(observation, {"b": "not this"}) == part
        assert action_masks.MaskPath(where.replace("observation", "info")).lookup(
            {}, observation
        )
    for where in ("b/2", "b/x", "c", "b/1/0/x", "_x/y"):
        for kind in ("observation", "info"):
            with pytest.raises(KeyError, match=f"{kind}/{where}"):
                action_masks.MaskPath(f"{kind}/{where}").lookup(observation, observation)


def test_observation_mask_path_must_name_a_part_of_the_observation():
    structure = {"board": tf.TensorSpec((3,)), "legal": tf.TensorSpec((2,), tf.int8)}
    action_masks.MaskPath("observation/legal").expect_in(structure)
    action_masks.MaskPath("info/legal").expect_in(tf.TensorSpec((3,)))
    for wrong in (structure["board"], {"board": structure["board"]}):
        with pytest.raises(ValueError, match="must name a part of the observation"):
            action_masks.MaskPath("observation/legal").expect_in(wrong)


def vector_infos(infos):
    """Returns the infos that a `VectorEnv` builds from the infos of its environments."""
    vector, result = gym.vector.VectorEnv(), {}
    vector.num_envs = len(infos)
    for slot, info in enumerate(infos):
        result = vector._add_info(result, info, slot)
    return result


def test_mask_of_one_environment_is_read_from_vector_infos():
    """A key may start with an underscore, may be nested, and may be missing for some
    environments.
    """
    infos = [
        {"legal": np.array([1, 0]), "more": {"_deep": np.array([1, 1]), "x": 2}},
        {"other": 3, "a": {"ab": 6, "b": 7}},
        {"legal": np.array([0, 1]), "more": {"x": 5}, "a": {"b": 8}},
    ]
    reader = action_masks.MaskReader(
        action_masks.MaskPath("info/legal"), heads.Categorical(2).mask_layout
    )
    for slot in (0, 2):
        mask = reader.read_env(slot, None, vector_infos(infos))
        np.testing.assert_array_equal(mask, infos[slot]["legal"])
        np.testing.assert_array_equal(mask, reader.read(None, infos[slot]))
    deep = action_masks.MaskPath("info/more/_deep")
    np.testing.assert_array_equal(deep.lookup_env(0, None, vector_infos(infos)), [1, 1])
    assert (
        action_masks.MaskPath("info/more/x").lookup_env(2, None, vector_infos(infos)) == 5
    )
    assert (
        action_masks.MaskPath("info/a").lookup_env(1, None, vector_infos(infos))
        == infos[1]["a"]
    )
    assert (
        action_masks.MaskPath("info/a").lookup_env(2, None, vector_infos(infos))
        == infos[2]["a"]
    )
    for slot, where in ((1, "legal"), (1, "more/x"), (2, "more/_deep"), (0, "other")):
        with pytest.raises(KeyError):
            action_masks.MaskPath(f"info/{where}").lookup_env(
                slot, None, vector_infos(infos)
            )


def test_mask_of_one_environment_is_its_row_of_the_observation_mask():
    observations = {"legal": (np.eye(3, dtype="int8"), np.arange(3)), "board": None}
    reader = action_masks.MaskReader(
        action_masks.MaskPath("observation/legal"),
        types.SimpleNamespace(flatten=lambda mask: mask),
    )
    env_mask = reader.read_env(1, observations, {"legal": "not this"})
    np.testing.assert_array_equal(env_mask[0], [0, 1, 0])
    assert env_mask[1] == 1
    assert reader.read({"legal": "this"}, {"legal": "not this"}) == "this"


def test_masks_from_batch_are_flat_and_invalid_marks_stay_invalid():
    """In int8, 256 becomes 0 and 255 becomes -1.

    Neither number may count as a mark from 0 to 2.
    """
    parts = (np.array([[[0, 1], [2, 1]]]), np.array([[256, -1, 3, 7]]))
    path = action_masks.MaskPath("observation/legal")
    masks = policy_functions.masks_in_batch(path, {"legal": parts})
    assert masks.dtype == tf.int8
    np.testing.assert_array_equal(masks, [[0, 1, 2, 1, 3, 1, 3, 3]])


# Acting and exports


def heads_with_masks():
    parts_of_actions = {"unit": heads.Pointer(3, 2), "target": heads.Categorical(4)}
    rules = dict(order=("unit", "target"), masks={"target": "unit"})
    return {
        "Categorical": heads.Categorical(5),
        "MultiCategorical": heads.MultiCategorical([3, 2]),
        "Bernoulli": heads.Bernoulli(3),
        "Pointer": heads.Pointer(4, 2),
        "Composite": heads.Composite((heads.Pointer(3, 2), heads.Bernoulli(2))),
        "Autoregressive": heads.Autoregressive(parts_of_actions, **rules),
    }


@pytest.mark.parametrize("place", ["info/mask", "observation/mask"])
@pytest.mark.parametrize("name", heads_with_masks())
def test_act_and_exported_functions_select_legal_actions_only(name, place):
    head, rng = heads_with_masks()[name], np.random.default_rng(0)
    masks = rng.integers(0, 2, (500, head.mask_size)).astype("int8")
    masks = masks[head.has_legal_action(masks)][:60]
    x = rng.normal(size=(len(masks), 3)).astype("float32")
    inputs = {"x": keras.Input((3,), name="x")}
    if place == "observation/mask":
        inputs["mask"] = keras.Input((head.mask_size,), name="mask")
    outputs = keras.layers.Dense(head.outputs_size)(inputs["x"])
    agent = tfr.Reinforce(keras.Model(inputs, outputs), head, action_mask=place)
    agent.build({name: tuple(array.shape) for name, array in inputs.items()})
    observations, extra = {"x": x}, [masks]
    if place == "observation/mask":
        observations, extra = {"x": x, "mask": masks.astype("float32")}, []
    policy, seed = agent.trainer.live_policy(), tf.constant(3, tf.int64)
    spec = policy.actor.action_spec
    for function, kind, own in (("act", "action", []), ("sample", "raw_action", [seed])):
        results = policy.functions[function](observations, *own, *extra)
        names = policy_functions.signature_names(spec, kind)
        actions = keras.tree.map_structure(lambda x, r=results: r[x].numpy()[None], names)
        assert head.is_legal(actions, masks[None]).all(), function
    given = {"action_mask": masks} if extra else {}
    ours = agent.act(observations, seed=3, **given)
    for array, other in zip(*map(keras.tree.flatten, (ours, actions)), strict=True):
        np.testing.assert_array_equal(array, other[0])
