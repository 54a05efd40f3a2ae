"""Tests `heads.Autoregressive`, by enumeration of dependent parts under masks."""

import copy
import itertools
import json

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce import heads
from tf_reinforce import testing
from tf_reinforce.envs import legal_actions
from tf_reinforce.heads import autoregressive
from tf_reinforce.testing import enumeration

# Each row is the mask of `target` for one `unit`. Unit 2 is illegal, and has none.
TABLE = np.int8([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
UNITS = np.int8([1, 1, 0])
MASK = np.int8([*TABLE.ravel(), *UNITS])  # in the order of the names


@keras.saving.register_keras_serializable("test_autoregressive")
def reachable(earlier):
    """The rows of a table in which every unit has a target."""
    assert set(earlier) == {"unit"}
    table = tf.constant([[True, True, False], [False, True, True], [True, False, True]])
    return tf.gather(table, earlier["unit"])


@keras.saving.register_keras_serializable("test_autoregressive")
def nothing_above_one(earlier):
    """No value is legal after a number above one."""
    return tf.repeat(earlier["amount"] <= 1.0, 3, axis=-1)


class Buyer(toys.Clock):
    action_space = gym.spaces.Dict(
        amount=gym.spaces.Box(-np.inf, np.inf, (1,)), item=gym.spaces.Discrete(3)
    )


@keras.saving.register_keras_serializable("test_autoregressive")
def never_after_one(earlier):
    return tf.stack([earlier["unit"] != 1] * 3, axis=-1)


@keras.saving.register_keras_serializable("test_autoregressive")
def two_entries(earlier):
    return tf.ones([*earlier["unit"].shape, 2], tf.bool)


@keras.saving.register_keras_serializable("test_autoregressive")
def one_axis_too_few(earlier):
    return earlier["unit"] != tf.range(3, dtype=tf.int64)


@keras.saving.register_keras_serializable("test_autoregressive")
def three_entries(earlier):
    return tf.ones([*earlier["unit"].shape, 3], tf.bool)


def unregistered(earlier):
    return reachable(earlier)


def pair(rule="unit", **options):
    """Returns a built head whose targets depend on the units, in float64."""
    leaves = {"target": heads.Categorical(3), "unit": heads.Categorical(3)}
    masks = None if rule is None else {"target": rule}
    options = {"order": ("unit", "target"), "masks": masks, "hidden": 4, **options}
    return ready(heads.Autoregressive(leaves, **options, dtype="float64"))


def ready(head):
    """Returns the head with its weights, none of which is zero."""
    head.build((None, head.outputs_size))
    return parts.dependent(head)


def numbers(head, count=1, seed=0):
    return np.random.default_rng(seed).normal(size=(count, head.outputs_size))


def repeated(row, count):
    return tf.constant(np.tile(row, (count, 1)))


def weights(head, name):
    """Returns E and V of one part, as arrays."""
    found = {variable.name: variable.numpy() for variable in head.weights}
    return found[f"{name}_E"], found[f"{name}_V"]


def conditioned(head, name, own, context, features):
    """The formula of the class, z + V tanh(h + Σ E x)."""
    first, last = weights(head, name)
    return own + np.tanh(context + np.concatenate(features) @ first) @ last


def log_softmax(logits, legal):
    odds = np.where(legal, np.exp(logits), 0.0)
    return np.log(odds / odds.sum(), where=odds > 0, out=np.full(len(odds), -np.inf))


def by_hand(head, row, table=None, units=None):
    """Returns the log-probabilities `[unit, target]` of a `pair`, in a loop."""
    table = np.ones((3, 3)) if table is None else table
    target, unit, context = row[:3], row[3:6], row[6:]
    first = log_softmax(unit, np.ones(3) if units is None else units)
    result = np.full((3, 3), -np.inf)
    for choice in range(3):
        logits = conditioned(head, "target", target, context, [np.eye(3)[choice]])
        if table[choice].any():
            result[choice] = first[choice] + log_softmax(logits, table[choice])
    return result


# Probabilities


@pytest.mark.parametrize("masked", [False, True])
def test_probabilities_follow_the_chain_rule_under_the_row_of_the_choice(masked):
    head = pair()
    actions = enumeration.raw_actions(head)
    for row in numbers(head, 5):
        outputs = repeated(row, 9)
        expected = by_hand(head, row)
        if masked:
            outputs = head.mask_outputs(outputs, tf.constant(np.tile(MASK, (9, 1))))
            expected = by_hand(head, row, TABLE, UNITS)
        probs = np.exp(head.distribution(outputs).log_prob(actions))
        expected = np.exp(expected)[actions["unit"], actions["target"]]
        np.testing.assert_allclose(probs, expected, rtol=1e-13, atol=1e-300)
        np.testing.assert_allclose(probs.sum(), 1.0, rtol=1e-14)


def test_each_kind_of_part_shows_its_action_to_the_later_parts():
    """Numbers in units of the bounds, one-hot categories, and the key of a row."""
    leaves = {
        "b": heads.Bernoulli(2),
        "g": heads.Gaussian(2, low=[0.0, 1.0], high=[4.0, 9.0], initial_scale=1.5),
        "k": heads.Pointer(3, key_dim=2),
        "m": heads.MultiCategorical([2, 3]),
    }
    order = ("k", "g", "m", "b")
    head = ready(heads.Autoregressive(leaves, order=order, hidden=5, dtype="float64"))
    row = numbers(head)[0]
    own = dict(zip("bgkm", np.split(row, [2, 4, 12, 17]), strict=False))
    context, keys = row[17:], own["k"][2:].reshape(3, 2)
    action = {"b": [1, 0], "g": [3.0, 2.0], "k": 2, "m": [1, 0]}
    action = {name: np.asarray(x)[None] for name, x in action.items()}
    seen = [keys[2], [(3.0 - 2.0) / 2.0, (2.0 - 5.0) / 4.0], [0.0, 1.0, 1.0, 0.0, 0.0]]
    expected = head.leaves[2].distribution(tf.constant(own["k"][None])).log_prob([2])
    for position, name in enumerate("gmb"):
        scale = [2.0, 4.0] if name == "g" else 1.0
        shift = conditioned(head, name, 0.0, context, seen[: position + 1])
        outputs = tf.constant((own[name] + scale * shift)[None])
        leaf = head.leaves["bgkm".index(name)]
        expected += leaf.distribution(outputs).log_prob(action[name])
    log_prob = head.distribution(tf.constant(row[None])).log_prob(action)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)


@pytest.mark.parametrize("order", [*itertools.permutations("abc")])
def test_first_part_of_any_order_depends_on_the_observation_only(order):
    leaves = {"a": heads.Categorical(2), "b": heads.Categorical(3)}
    leaves["c"] = heads.Categorical(2)
    head = ready(heads.Autoregressive(leaves, order=order, hidden=4, dtype="float64"))
    row, actions = numbers(head)[0], enumeration.raw_actions(head)
    probs = np.exp(head.distribution(repeated(row, 12)).log_prob(actions))
    own = dict(zip("abc", np.split(row, [2, 5, 7]), strict=False))[order[0]]
    marginal = np.bincount(actions[order[0]], probs)
    np.testing.assert_allclose(np.log(marginal), log_softmax(own, own < 99), rtol=1e-12)
    assert [x.numpy().tolist() for x in head.mode(tf.constant(row[None])).values()]


def test_new_head_equals_a_composite_bit_for_bit():
    def leaves():
        return heads.Categorical(3), {"g": heads.Gaussian(2), "p": heads.Pointer(2, 3)}

    new, old = heads.Autoregressive(leaves(), hidden=4), heads.Composite(leaves())
    for head in (new, old):
        head.build((None, head.outputs_size))
    outputs = numbers(new, 50).astype("float32")
    pairs = [(new, tf.constant(outputs)), (old, tf.constant(outputs[:, :-4]))]
    noise = parts.noise_of(new, 50, "float32")
    actions = new.sample(pairs[0][1], noise)
    results = [
        [
            *keras.tree.flatten(head.sample(x, noise)),
            *keras.tree.flatten(head.mode(x)),
            *head.parameters(x).values(),
            head.log_prob_and_entropy(x, actions)[0],
            head.eligibility(x, actions)[:, : outputs.shape[1] - 4],
            head.relative_scale(x),
        ]
        for head, x in pairs
    ]
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    entropies = [head.log_prob_and_entropy(x, actions)[1] for head, x in pairs]
    np.testing.assert_allclose(*entropies, rtol=1e-6)


def test_each_part_is_sampled_from_its_own_noise_given_the_earlier_parts():
    head, count = pair(), 500
    rng = np.random.default_rng(3)
    rows, noise = numbers(head, count, 4), parts.noise_of(head, count)
    tables = rng.integers(0, 2, (count, 3, 3)).astype("int8")
    tables[..., 0] |= ~tables.any(-1)
    masks = [np.r_[table.ravel(), 1, 1, 1].astype("int8") for table in tables]
    outputs = head.mask_outputs(tf.constant(rows), tf.constant(np.stack(masks)))
    samples, modes = head.sample(outputs, noise), head.mode(outputs)
    gumbel = {name: -np.log(-np.log(x.numpy())) for name, x in noise.items()}
    for i, row in enumerate(rows):
        unit = np.argmax(row[3:6] + gumbel["unit"][i])
        logits = conditioned(head, "target", row[:3], row[6:], [np.eye(3)[unit]])
        legal = np.where(tables[i, unit], logits, -np.inf)
        assert samples["unit"][i] == unit
        assert samples["target"][i] == np.argmax(legal + gumbel["target"][i])
        unit = np.argmax(row[3:6])
        logits = conditioned(head, "target", row[:3], row[6:], [np.eye(3)[unit]])
        assert modes["unit"][i] == unit  # greedy, part by part
        assert modes["target"][i] == np.argmax(np.where(tables[i, unit], logits, -np.inf))


def test_mask_function_equals_the_table_of_its_values():
    table, function = pair(), pair(reachable)
    assert function.mask_size == 3 and table.mask_size == 12
    rows, actions = numbers(table), enumeration.raw_actions(table)
    outputs = repeated(rows[0], 9)
    legal = reachable({"unit": tf.range(3)}).numpy().astype("int8")
    mask = np.r_[legal.ravel(), UNITS].astype("int8")
    both = []
    for head, own in ((table, mask), (function, UNITS)):
        masked = head.mask_outputs(outputs, tf.constant(np.tile(own, (9, 1))))
        log_probs, entropies = head.log_prob_and_entropy(masked, actions)
        both.append([log_probs, entropies, enumeration.is_legal(head, actions, own)])
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert both[0][2].sum() == 4


# Gradients


HEADS = {
    "table": (pair, MASK),
    "function": (lambda: pair(reachable), UNITS),
    "estimated": (
        lambda: ready(
            heads.Autoregressive(
                {x: heads.Categorical(n) for x, n in dict(a=5, b=2, c=4).items()},
                order=("c", "a", "b"),
                hidden=3,
                dtype="float64",
            )
        ),
        None,
    ),
    "pointer_first": (
        lambda: ready(
            heads.Autoregressive(
                (heads.Pointer(3, key_dim=2), heads.Multinomial(2, trials=2)),
                hidden=3,
                dtype="float64",
            )
        ),
        np.int8([1, 0, 1, 1, 1]),
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_head_with_dependent_parts_has_every_property_of_check_head(name):
    make, mask = HEADS[name]
    report = testing.check_head(make(), mask=mask)
    assert report["expected_eligibility"] < 1e-14 and report["entropy"] < 1e-13


@pytest.mark.parametrize("name", ["table", "function", "pointer_first"])
def test_expected_update_is_the_exact_gradient(name):
    make, mask = HEADS[name]
    other = np.int8([0, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1]) if name == "table" else mask
    settings = dict(baseline=None, batch_size=1, masks=[mask, other])
    report = testing.check_gradient(make(), tolerance=1e-12, **settings)
    assert report.error < 1e-12


@pytest.mark.parametrize("is_estimated", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_entropy_and_its_gradient_are_those_of_the_joint_distribution(
    name, is_estimated, monkeypatch
):
    """Σ π(a) ∇[what an update differentiates] = -∇ Σ π ln π, for outputs and weights."""
    if is_estimated:
        monkeypatch.setattr(autoregressive, "_MAX_EXACT", 0)
    make, mask = HEADS[name]
    head = make()
    actions = enumeration.raw_actions(head)
    mask = None if mask is None else mask
    if mask is not None:
        legal = enumeration.is_legal(head, actions, mask)
        actions = enumeration.select(actions, legal)
    count = enumeration.count(actions)
    row = tf.constant(numbers(head))
    watched = [row, *head.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(row)
        outputs = tf.repeat(row, count, axis=0)
        if mask is not None:
            outputs = head.mask_outputs(outputs, tf.constant(np.tile(mask, (count, 1))))
        log_probs, entropies = head.log_prob_and_entropy(outputs, actions)
        probs = tf.exp(log_probs)
        ours = tf.reduce_sum(tf.stop_gradient(probs) * entropies)
        exact = -tf.reduce_sum(probs * log_probs)
    spread = np.ptp(entropies)
    assert (spread > 1e-3) == (is_estimated or name == "estimated")
    np.testing.assert_allclose(ours, exact, rtol=1e-13)
    for one, other in zip(tape.gradient(ours, watched), tape.gradient(exact, watched)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def test_entropy_without_closed_form_raises_and_names_the_estimate():
    head = HEADS["estimated"][0]()
    with pytest.raises(NotImplementedError, match="more than 16.*log_prob_and_entropy"):
        head.distribution(tf.constant(numbers(head))).entropy()


def test_largest_entropy_counts_the_legal_values_along_the_action():
    head = pair()
    table = np.int8([[1, 1, 1], [0, 1, 0], [0, 0, 0]])
    masks = tf.constant(np.stack([np.r_[table.ravel(), UNITS]] * 2))
    outputs = head.mask_outputs(tf.zeros([2, 10], tf.float64), masks)
    actions = {"unit": np.array([0, 1]), "target": np.array([1, 1])}
    found = head.max_entropy(outputs, actions)
    np.testing.assert_allclose(np.exp(found), [6.0, 2.0], rtol=1e-14)


# Masks


def allows(mask):
    """The definition: a unit is legal, and each legal unit has a legal target."""
    table, units = mask[:9].reshape(3, 3), mask[9:]
    return units.any() and all(table[i].any() for i in range(3) if units[i])


def test_legality_of_tables_equals_the_definition_in_numpy_and_tensorflow():
    head = pair()
    masks = np.int8(list(itertools.product([0, 1], repeat=12)))
    expected = [allows(mask) for mask in masks]
    np.testing.assert_array_equal(head.has_legal_action(masks), expected)
    found = legal_actions.has_legal_action(head.mask_layout, tf.constant(masks))
    np.testing.assert_array_equal(found, expected)


def test_legality_of_a_table_whose_choice_has_a_table():
    """A row is required if legal choices lead to it."""
    leaves = tuple(heads.Categorical(2) for _ in "abc")
    rules = {"action_1": "action_0", "action_2": "action_1"}
    head = ready(heads.Autoregressive(leaves, masks=rules, dtype="float64"))
    masks = np.int8(list(itertools.product([0, 1], repeat=10)))
    assert head.mask_size == head.mask_layout.size == 10
    first, second, third = masks[:, :2], masks[:, 2:6], masks[:, 6:]
    second, third = second.reshape(-1, 2, 2), third.reshape(-1, 2, 2)
    rows_of_second = (second.any(2) | (first == 0)).all(1)
    reached = (second * first[..., None]).any(1)
    rows_of_third = (third.any(2) | ~reached).all(1)
    expected = first.any(1) & rows_of_second & rows_of_third
    np.testing.assert_array_equal(head.has_legal_action(masks), expected)
    found = legal_actions.has_legal_action(head.mask_layout, tf.constant(masks))
    np.testing.assert_array_equal(found, expected)
    masks = masks[expected]
    outputs = head.mask_outputs(tf.constant(numbers(head, len(masks))), masks)
    samples = head.sample(outputs, parts.noise_of(head, len(masks)))
    one_each = keras.tree.map_structure(lambda x: x.numpy()[None], samples)
    assert head.is_legal(one_each, masks[None]).all()


def test_each_choice_of_a_part_needs_a_legal_value_in_the_row_of_a_table():
    leaves = heads.Categorical(2), heads.MultiCategorical([2, 3])
    rules = {"action_1": "action_0"}
    head = ready(heads.Autoregressive(leaves, masks=rules, dtype="float64"))
    masks = np.int8(list(itertools.product([0, 1], repeat=12)))
    first, rows = masks[:, :2], masks[:, 2:].reshape(-1, 2, 5)
    is_complete = rows[..., :2].any(2) & rows[..., 2:].any(2)
    expected = first.any(1) & (is_complete | (first == 0)).all(1)
    np.testing.assert_array_equal(head.has_legal_action(masks), expected)
    masks = masks[first.sum(1) == 1]  # so the first choice is known
    outputs = head.mask_outputs(tf.constant(numbers(head, len(masks))), masks)
    log_probs = head.distribution(outputs).log_prob(head.mode(outputs))
    expected = expected[first.sum(1) == 1]
    np.testing.assert_array_equal(np.isfinite(log_probs), expected)


WRONG_MASKS = {
    "transposed": ({"unit": None, "target": np.ones((3, 2))}, r"the shape \(2, 3\)"),
    "flat": ({"unit": None, "target": np.ones(6)}, r"the shape \(2, 3\)"),
    "ragged": ({"unit": None, "target": [[1, 1, 1], [1, 1]]}, r"the shape \(2, 3\)"),
    "entry": ({"unit": None, "target": [[1, 1, 1], ["a", 1, 1]]}, "6 entries, 0 or 1"),
}


@pytest.mark.parametrize("name", WRONG_MASKS)
def test_table_of_another_shape_raises_and_names_the_part(name):
    mask, message = WRONG_MASKS[name]
    leaves = {"target": heads.Categorical(3), "unit": heads.Categorical(2)}
    rules = dict(order=("unit", "target"), masks={"target": "unit"})
    head = heads.Autoregressive(leaves, **rules)
    with pytest.raises(ValueError, match=f"the part 'target' of the mask, .*{message}"):
        head.flatten_mask(mask)
    rows = {"unit": np.int8([1, 0]), "target": [[1, 0, 1], [0, 0, 0]]}
    assert head.flatten_mask(rows).tolist() == [1, 0, 1, 0, 0, 0, 1, 0]


def test_part_with_a_function_has_no_mask_of_its_own():
    leaves = {"unit": heads.Categorical(2), "target": heads.Categorical(3)}
    rules = dict(order=("unit", "target"), masks={"target": three_entries})
    head = heads.Autoregressive(leaves, **rules)
    assert head.flatten_mask({"unit": [1, 0], "target": None}).tolist() == [1, 0]
    with pytest.raises(
        ValueError, match="'target' of the mask, .* must be None, because"
    ):
        head.flatten_mask({"unit": [1, 0], "target": [1, 1, 1]})


def test_tables_without_a_source_of_masks_raise_before_training():
    """Else the rules would be ignored, and illegal actions played."""
    agent = tfr.Reinforce(keras.Sequential([keras.layers.Dense(7)]), pair())
    with pytest.raises(ValueError, match='rules `masks` .*action_mask="info/action_mask'):
        agent.build((None, 2))


def test_recorded_actions_are_legal_under_the_row_of_their_unit():
    head = pair()
    actions = {"unit": np.array([[0], [1]]), "target": np.array([[1], [1]])}
    lengths, masks = np.array([2]), np.tile(MASK, (2, 1, 1))
    head.check_actions(actions, lengths, masks)
    actions["target"][1] = 0
    with pytest.raises(ValueError, match="part 'target' .*legal .*step 1 of episode 0"):
        head.check_actions(actions, lengths, masks)
    actions["unit"][1] = 99  # padding
    head.check_actions(actions, np.array([1]), masks)
    by_function = pair(reachable)
    with pytest.raises(ValueError, match="part 'target' .*legal .*step 0 of episode 0"):
        wrong = {"unit": np.array([[2]]), "target": np.array([[1]])}
        by_function.check_actions(wrong, np.array([1]))


def test_function_without_legal_value_gives_nan_instead_of_a_choice():
    leaves = {"amount": heads.Gaussian(1), "item": heads.Categorical(3)}
    head = heads.Autoregressive(leaves, masks={"item": nothing_above_one})
    head = ready(head)
    outputs = tf.constant(numbers(head, 2).astype("float32"))
    actions = {"amount": tf.constant([[0.5], [1.5]]), "item": tf.constant([1, 1])}
    for numbers_of_rows in head.log_prob_and_entropy(outputs, actions):
        assert np.isnan(numbers_of_rows).tolist() == [False, True]
    head = heads.Autoregressive(
        {"amount": heads.Gaussian(1, initial_scale=9.0), "item": heads.Categorical(3)},
        masks={"item": nothing_above_one},
    )
    layer = keras.layers.Dense(head.outputs_size, kernel_initializer="zeros")
    agent = tfr.Reinforce(keras.Sequential([keras.Input((1,)), layer]), head)
    agent.compile("sgd")
    with pytest.raises(FloatingPointError, match="the log-probability is nan.*'item'"):
        agent.fit(Buyer, epochs=1, verbose=0)
    with pytest.raises(ValueError, match="'item' must leave a legal value.*'unit': 1"):
        heads.Autoregressive(
            {"unit": heads.Categorical(2), "item": heads.Categorical(3)},
            order=("unit", "item"),
            masks={"item": never_after_one},
        )


# Engines and files


class Squad(envs.TensorEnv):
    """Three steps; the reward is one for a target that is one above the unit."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Dict(
        unit=gym.spaces.Discrete(3), target=gym.spaces.Discrete(3, start=1)
    )
    max_episode_steps = 3
    initial_noise = heads.NoiseSpec("uniform", (3,))
    table = np.int8([[1, 1, 0], [0, 1, 1], [1, 0, 1]])

    def initial(self, noise):
        return 2.0 * noise - 1.0

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        return tf.roll(state, 1, axis=1)

    def reward(self, state, action, next_state):
        legal = tf.gather_nd(
            self.table, tf.stack([action["unit"], action["target"] - 1], axis=1)
        )
        aim = tf.equal(action["target"] % 3, action["unit"] - 1)
        return tf.where(legal > 0, tf.cast(aim, self.dtype), -100.0)

    def terminal(self, state):
        return tf.zeros(tf.shape(state)[:1], tf.bool)

    def action_mask(self, state):
        count = tf.shape(state)[0]
        units = tf.cast(state > -0.9, tf.int8)
        units = tf.where(tf.reduce_any(units > 0, 1)[:, None], units, 1)
        table = tf.tile(tf.constant(self.table)[None], [count, 1, 1])
        return {"unit": units, "target": table}


class Drill(Squad):
    def initial(self, noise):
        return tf.constant([0.3, -0.95, 0.6], noise.dtype) + 0.0 * noise


def squad_agent(**options):
    leaves = {"target": heads.Categorical(3, start=1), "unit": heads.Categorical(3)}
    rules = dict(order=("unit", "target"), masks={"target": "unit"}, hidden=4)
    head = heads.Autoregressive(leaves, **rules)
    initializer = keras.initializers.GlorotUniform(1)
    layer = keras.layers.Dense(head.outputs_size, kernel_initializer=initializer)
    policy = keras.Sequential([keras.Input((3,)), layer])
    options = {"entropy_coef": 0.01, "action_mask": "info/action_mask", **options}
    agent = tfr.Reinforce(policy, head, **options)
    agent.compile(keras.optimizers.SGD(0.5))
    agent.build_for_env(Squad())
    parts.dependent(agent.head)
    return agent


def test_both_engines_file_and_export_choose_the_same_legal_actions(tmp_path):
    agent = squad_agent()
    for env in (Squad(), Squad().as_gymnasium(2)):
        record = agent.collect(env, 30)
        assert record.rewards.min() == 0.0 and record.rewards.max() == 1.0
    greedy = [
        agent.evaluate(env, episodes=2, deterministic=True)["episode_return"]
        for env in (Drill(), Drill().as_gymnasium(2))
    ]
    assert greedy[0] == greedy[1] >= 0.0
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    for one, other in zip(agent.head.weights, loaded.head.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    agent.export(tmp_path / "policy")
    exported = tf.saved_model.load(tmp_path / "policy")
    observations = np.random.default_rng(0).uniform(-1, 1, (40, 3)).astype("float32")
    masks = np.tile(
        agent.head.flatten_mask({"unit": None, "target": Squad.table}), (40, 1)
    )
    ours = agent.act(observations, action_mask=masks, seed=7)
    nested = {"unit": None, "target": np.tile(Squad.table[None], (40, 1, 1))}
    again = loaded.act(observations, action_mask=nested, seed=7)
    listed = [{"unit": None, "target": Squad.table}] * 40
    listed = loaded.act(observations, action_mask=listed, seed=7)
    for wrong in (nested, {"unit": None, "target": Squad.table}):
        with pytest.raises(ValueError, match="with 2 rows in each array"):
            loaded.act(observations[:2], action_mask=wrong)
    theirs = exported.sample(
        observation=observations, seed=tf.constant(7, tf.int64), action_mask=masks
    )
    for name in ("unit", "target"):
        np.testing.assert_array_equal(ours[name], theirs[f"action_{name}"])
        np.testing.assert_array_equal(ours[name], again[name])
        np.testing.assert_array_equal(ours[name], listed[name])
    assert Squad.table[ours["unit"], ours["target"] - 1].all()


@pytest.mark.slow
def test_many_seeds_equal_single_trainings():
    """Each update makes several gradient steps, compiled by XLA."""

    def make(seed):
        agent = squad_agent(minibatch_size=16, passes=2)
        agent.head.weights[0].assign_add(0.1 * seed + 0.0 * agent.head.weights[0])
        agent.compile(keras.optimizers.SGD(0.5), jit_compile=True)
        return agent

    budget = dict(epochs=2, episodes_per_epoch=8)
    results = tfr.train_seeds(make, Squad(), [0, 1], **budget)
    for seed in (0, 1):
        agent, alone = results.agent(seed), make(seed)
        history = alone.fit(Squad(), seed=seed, verbose=0, **budget).history
        assert np.isfinite(history["entropy"]).all()
        for one, other in zip(agent.head.weights, alone.head.weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_one_part_alone_is_an_ordinary_head():
    head, leaf = heads.Autoregressive((heads.Categorical(3),)), heads.Categorical(3)
    head.build((None, head.outputs_size))
    outputs, actions = tf.constant(numbers(head, 4)), np.array([0, 2, 1, 1])
    ours = head.log_prob_and_entropy(outputs, (actions,))
    theirs = leaf.log_prob_and_entropy(outputs[:, :3], actions)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)


def test_weights_of_any_part_have_names_that_exports_accept():
    leaves = {"a b": heads.Categorical(2), "é": heads.Categorical(2)}
    names = [weight.name for weight in ready(heads.Autoregressive(leaves)).weights]
    assert names == ["key__E", "key__V"]


class Hopeless(toys.Clock):
    """Unit 1 has no target."""

    action_space = gym.spaces.Dict(
        unit=gym.spaces.Discrete(2), target=gym.spaces.Discrete(2)
    )

    def reset(self, **options):
        mask = {"unit": np.ones(2, "int8"), "target": np.int8([[1, 1], [0, 0]])}
        return super().reset(**options)[0], {"action_mask": mask}


def test_error_of_a_mask_without_legal_value_names_the_part():
    settings = {"kind": "autoregressive", "order": ["unit", "target"]}
    settings["masks"] = {"target": "unit"}
    agent = tfr.Reinforce.for_env(Hopeless, head=settings, action_mask="info/action_mask")
    text = r"in the part 'target', row 1 of its table\. Received"
    with pytest.raises(tfr.collect.EnvironmentFault, match=text):
        agent.fit(Hopeless, epochs=1, verbose=0)


@pytest.mark.parametrize("case", range(3))
def test_head_from_its_json_config_is_equal(case):
    head = parts.HEADS["Autoregressive"].make(case)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(head)))
    restored = keras.saving.deserialize_keras_object(config)
    assert restored.get_config() == head.get_config() and repr(restored) == repr(head)
    assert restored.masks == head.masks and restored.mask_layout.size == head.mask_size


def test_numbers_of_a_multi_discrete_are_parts_of_one_array():
    space = gym.spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-1, 5]])
    leaves = [heads.Categorical(n, start=k) for n, k in [(2, 0), (3, 1), (4, -1), (2, 5)]]
    head = ready(heads.Autoregressive(tuple(leaves), shape=(2, 2), hidden=4))
    assert head.names == ("action_0", "action_1", "action_2", "action_3")
    assert head.matches_space(space) and not head.matches_space(gym.spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"Pass shape=\(2, 2\) to the head"):
        heads.Autoregressive(tuple(map(copy.deepcopy, leaves))).check_space(space)
    leaves = [*map(copy.deepcopy, leaves[:3]), heads.Categorical(4, start=9)]
    with pytest.raises(ValueError, match=r"part 'action_3', .*start=9.*space Discrete"):
        heads.Autoregressive(tuple(leaves), shape=(2, 2)).check_space(space)
    outputs = tf.constant(numbers(head, 999).astype("float32"))
    sent = head.to_environment(head.sample(outputs, parts.noise_of(head, 999, "float32")))
    assert sent.shape == (999, 2, 2) and all(map(space.contains, sent.numpy()))
    assert len(np.unique(sent.numpy().reshape(-1, 4), axis=0)) == 48


@pytest.mark.parametrize("name", ["autoregressive", "Autoregressive"])
def test_for_env_makes_a_head_of_the_parts_of_the_space(name):
    one, two = (tfr.Reinforce.for_env(Hopeless, head=name) for _ in range(2))
    assert one.head.order == ("target", "unit") and one.head.hidden == 64
    for ours, theirs in zip(weights(one.head, "unit"), weights(two.head, "unit")):
        np.testing.assert_array_equal(ours, theirs)
    outputs = one.policy(np.ones((1, *Hopeless.observation_space.shape), "float32"))
    assert (outputs.numpy() != 0).all()  # also those that join the parts
    with pytest.raises(ValueError, match="an action of several parts. .*Discrete"):
        tfr.Reinforce.for_env("CartPole-v1", head=name)
    with pytest.raises(ValueError, match="invalid key 'hiden'.*hidden"):
        tfr.Reinforce.for_env(Hopeless, head={"kind": name, "hiden": 3})


# Wrong arguments


TWICE = heads.Categorical(2)
LEAVES = {"unit": 3, "target": 3, "real": None}
REFUSED = {
    "missing": (dict(order=("unit", "target")), "`order` must name each part .* once"),
    "repeated": (
        dict(order=("unit", "target", "real", "unit")),
        "`order` must name each",
    ),
    "unknown": (dict(order=("unit", "target", "reel")), "`order` must name each part"),
    "text": (dict(order="unit"), "`order` must name each part"),
    "hidden": (dict(hidden=0), "`hidden` must be"),
    "fraction": (dict(hidden=1.5), "`hidden` must be"),
    "later": (dict(masks={"target": "unit"}), "but 'unit' is not chosen before 'target'"),
    "itself": (dict(masks={"target": "target"}), "not chosen before 'target'"),
    "unmasked": (dict(masks={"unit": "real"}), "'real' is not one choice"),
    "no_mask": (dict(masks={"real": "unit"}), "but the part 'real' takes no mask"),
    "first": (
        dict(masks={"unit": reachable}, order=("unit", "real", "target")),
        "but the part 'unit' is the first",
    ),
    "nothing": (dict(masks={"unit": "reel"}), "rule of 'unit' is 'reel', which is no"),
    "stranger": (dict(masks={"units": "target"}), "but there is no part 'units'"),
    "lambda": (
        dict(masks={"unit": unregistered}),
        "of 'unit' needs the decorator keras.saving.register",
    ),
    "masks": (dict(masks=["unit"]), "`masks` must be"),
    "shape": (dict(shape=(2,)), "does not hold 3 numbers"),
    "size": (
        dict(masks={"target": two_entries}, order=("unit", "target", "real")),
        "'target' must return 3 entries for each action",
    ),
    "axes": (
        dict(masks={"target": one_axis_too_few}, order=("unit", "target", "real")),
        r"for each action, an array of 2 axes. Received: shape \(3,\)",
    ),
    "twice": (dict(parts=(TWICE, TWICE)), "Each of `parts` must be a different object"),
    "nested": (dict(parts=(heads.Composite((TWICE,)),)), "nest its heads"),
    "list": (dict(parts=[TWICE]), "`parts` must be a tuple or a dict"),
}


@keras.saving.register_keras_serializable("test_autoregressive")
def of_a_later_part(earlier):
    return earlier["target"][..., None] != tf.range(3, dtype=tf.int64)


def test_error_of_a_mask_function_names_its_part():
    leaves = {name: heads.Categorical(3) for name in ("unit", "target", "real")}
    order, masks = ("real", "unit", "target"), {"unit": of_a_later_part}
    message = "of the part 'unit' must take.*{'real': 'int64'}. It raised KeyError"
    with pytest.raises(ValueError, match=message):
        heads.Autoregressive(leaves, order=order, masks=masks)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_raise(name):
    arguments, message = REFUSED[name]
    leaves = {
        key: heads.Categorical(size) if size else heads.Gaussian(1)
        for key, size in LEAVES.items()
    }
    with pytest.raises((TypeError, ValueError), match=message):
        heads.Autoregressive(**{"parts": leaves, **arguments})
