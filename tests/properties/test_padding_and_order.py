"""Tests that padding, order and the shape of weights change no result, in every trainer.

Each test compares the results of two inputs that mean the same: padded and unpadded, `[N,
1]` and `[N]`, permuted and permuted back. Invalid values are refused at each position.
"""

import functools

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads


def assert_close(one, other, **tolerance):
    one, other = keras.tree.flatten(one), keras.tree.flatten(other)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(x, y, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})


# Agents

LENGTHS = np.array([2, 3, 1], "int32")


def masked_agent():
    """Discrete actions with masks, a value model, and a normalizer."""

    def model(size):
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(size)])

    agent = tfr.Reinforce(
        model(3),
        heads.Categorical(3),
        tfr.baselines.Value(model(1), keras.optimizers.SGD(0.1)),
        action_mask="info/action_mask",
        normalize_observations=True,
        entropy_coef=0.1,
        gamma=0.9,
        gae_lambda=0.5,
    )
    return agent, [(0, np.int64(-1)), (0, np.int64(3))]


def nested_agent(is_recurrent=False):
    """Nested actions, and the value as second output of the policy."""
    inputs = keras.Input((None, 2) if is_recurrent else (2,))
    hidden = inputs
    if is_recurrent:
        hidden = keras.layers.GRU(3, return_sequences=True)(inputs)
    outputs = {"outputs": 4, "values": 1}
    outputs = {name: keras.layers.Dense(x)(hidden) for name, x in outputs.items()}
    head = heads.Composite((heads.Categorical(3), heads.Gaussian(1)))
    agent = tfr.Reinforce(keras.Model(inputs, outputs), head, tfr.baselines.Value())
    return agent, [(0, np.int64(3)), (1, np.float32(np.nan))]


def recurrent_agent():
    return nested_agent(is_recurrent=True)


def record(agent, rows=3):
    rng = np.random.default_rng(0)
    count = len(LENGTHS)
    actions = [rng.integers(0, 3, (rows, count))]
    masks = None
    if isinstance(agent.head, heads.Composite):
        actions.append(rng.normal(size=(rows, count, 1)).astype("float32"))
    else:
        masks = np.ones((rows, count, 3), "int8")
        masks[[0, 2], [0, 1]] = np.eye(3)[actions[0][[0, 2], [0, 1]]]
    return tfr.Episodes(
        rng.normal(size=(rows + 1, count, 2)).astype("float32"),
        tuple(actions) if len(actions) > 1 else actions[0],
        rng.normal(size=(rows, count)),
        LENGTHS,
        np.array([False, True, False]),
        masks,
    )


def padded(episodes, rows=2):
    """Adds rows, and replaces all values after the end of an episode by wrong ones."""

    def pad(array, lengths):
        wrong = np.nan if array.dtype.kind == "f" else np.array(-9, array.dtype)
        array = np.concatenate([array, np.repeat(array[-1:], rows, axis=0)])
        array[np.arange(len(array))[:, None] >= lengths] = wrong
        return array

    def pad_all(arrays, lengths=LENGTHS):
        return keras.tree.map_structure(lambda x: pad(x, lengths), arrays)

    return episodes._replace(
        observations=pad_all(episodes.observations, LENGTHS + 1),
        actions=pad_all(episodes.actions),
        rewards=pad_all(episodes.rewards),
        masks=None if episodes.masks is None else pad_all(episodes.masks),
    )


def permuted(episodes, order):
    def permute(array):
        return array[order] if array.ndim == 1 else array[:, order]

    arrays = [x for x in episodes if x is not None]
    arrays = keras.tree.map_structure(permute, arrays)
    return tfr.Episodes(*arrays, *[None] * (6 - len(arrays)))


@functools.cache
def compiled(make):
    """Returns a built agent, its first weights, and its invalid actions."""
    agent, invalid_actions = make()
    agent.compile(keras.optimizers.SGD(0.1))
    agent.gradients(record(agent))  # builds the agent
    rng = np.random.default_rng(2)
    for model in filter(None, [agent.policy, agent.baseline.model]):
        model.set_weights([rng.normal(size=x.shape) for x in model.weights])
    return agent, agent.get_weights(), invalid_actions


def updated(make, episodes):
    agent, weights, _ = compiled(make)
    agent.set_weights(weights)
    gradients, by_episode = (
        agent.gradients(episodes),
        agent.per_episode_gradients(episodes),
    )
    agent.update(episodes)
    others = [model.get_weights() for model in agent._models]
    inputs = np.ones([size or 1 for size in agent.policy.input_shape], "float32")
    return gradients, by_episode, [others, agent(inputs)]


AGENTS = [masked_agent, *map(sweeps.rare, [nested_agent, recurrent_agent])]


@pytest.mark.parametrize("make", AGENTS)
def test_padding_and_order_of_episodes_change_no_gradient_and_no_update(make):
    episodes, order = record(compiled(make)[0]), np.array([2, 0, 1])
    gradients, by_episode, after = updated(make, episodes)
    changed = updated(make, permuted(padded(episodes), order))
    assert_close([gradients, after], [changed[0], changed[2]])
    assert_close([x.numpy()[order] for x in by_episode], changed[1])


@pytest.mark.parametrize("make", AGENTS)
def test_invalid_value_at_each_step_is_refused(make):
    """Also if all other steps are valid, and never in the padding."""
    agent, _, invalid_actions = compiled(make)
    episodes = record(agent)
    agent.update(padded(episodes))
    before = agent.get_weights()
    for step, column in np.argwhere(np.arange(3)[:, None] < LENGTHS):
        for field, part, value in [
            ("observations", 0, np.nan),
            ("rewards", 0, np.inf),
            *(("actions", part, value) for part, value in invalid_actions),
            *[("masks", 0, 0)] * (episodes.masks is not None),
        ]:
            arrays = keras.tree.map_structure(np.copy, getattr(episodes, field))
            keras.tree.flatten(arrays)[part][step, column] = value
            wrong = episodes._replace(**{field: arrays})
            where = f"(?i)step {step}.*episode {column}|episode {column}, step {step}"
            with pytest.raises((ValueError, FloatingPointError), match=where):
                agent.update(wrong)
    assert_close(before, agent.get_weights(), rtol=0, atol=0)


# Sampling models

WORDS = np.array([[1, 2, 3], [2, 4, 0], [3, 0, 0], [1, 1, 4]])
TARGETS = np.random.default_rng(3).normal(size=(4, 3, 2)).astype("float32")
WEIGHTS = np.array([0.5, 2.0, 1.0, 0.0], "float32")
HEADS = {
    "categorical": lambda: heads.Categorical(2),
    "gaussian": lambda: heads.Gaussian(2),
    "composite": lambda: heads.Composite((heads.Bernoulli(1), heads.Gaussian(1))),
}


class OneHot(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, choices):
        return keras.ops.one_hot(choices, 2)


def words_model(name, masks, **options):
    """A model that draws samples for each word of a sentence, and then mixes none."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((None,), dtype="int32")
    uniform = keras.initializers.RandomNormal(stddev=1.0)
    if masks == "Embedding":
        x = keras.layers.Embedding(5, 3, uniform, mask_zero=True)(inputs)
    else:
        words = keras.ops.one_hot(inputs, 5) * keras.ops.cast(
            inputs[..., None] > 0, float
        )
        x = keras.layers.Masking()(words)
        x = keras.layers.LSTM(3, return_sequences=True, kernel_initializer=uniform)(x)
    head = HEADS[name]()
    logits = keras.layers.Dense(head.outputs_size, kernel_initializer=uniform)(x)
    arguments = {}
    if name == "categorical":  # an action mask must not hide the mask of the words
        arguments["action_mask"] = keras.ops.ones_like(logits, "int8")
    outputs = tfr.layers.Sample(head, seed=1)(logits, **arguments)
    if name == "categorical":
        outputs = OneHot()(outputs)
    if "loss" in options:  # whose gradient then reaches this layer
        outputs = keras.layers.Dense(2, kernel_initializer=uniform)(outputs)
    model = tfr.ScoreFunction(keras.Model(inputs, outputs), **options)
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    return model


def raw_actions(name, rows, columns=3):
    rng = np.random.default_rng(4)
    choices = rng.integers(0, 2, (4, 3, 1))
    reals = rng.normal(size=(4, 3, 2)).astype("float32")
    actions = {
        "categorical": choices[..., 0],
        "gaussian": reals,
        "composite": (choices.astype("int32"), reals[..., :1]),
    }[name]

    def arrange(array):
        filler = np.ones((4, columns - 3, *array.shape[2:]), array.dtype)
        array = np.concatenate([array, filler], axis=1)[rows]
        return array.reshape(-1, *array.shape[2:])

    return [keras.tree.map_structure(arrange, actions)]


def total(inputs, outputs):
    """The sum of the outputs of all words, without padding."""
    parts = [np.asarray(x, "float64") for x in keras.tree.flatten(outputs)]
    valid = (inputs > 0).astype("float64")
    if parts[0].shape[:2] != valid.shape:
        return parts[0].sum(-1)
    return sum((x.reshape(*valid.shape, -1).sum(-1) * valid).sum(-1) for x in parts)


KINDS = [
    (name, masks, kind)
    for name, masks in [("categorical", "Embedding"), ("gaussian", "Masking")]
    for kind in ("loss", "reward")
] + [("composite", "Embedding", "reward")]


@pytest.mark.parametrize("name, masks, kind", sweeps.some(KINDS, always=KINDS[3:4]))
def test_padding_order_and_shape_of_weights_change_no_score_function(name, masks, kind):
    rows, order = np.arange(4), np.array([3, 1, 0, 2])
    options = {"loss": {"loss": "mse"}, "reward": {"reward": total}}[kind]
    model = words_model(name, masks, samples=1, entropy_coef=0.1, **options)

    def estimate(rows, columns=3, weights=WEIGHTS):
        words = np.pad(WORDS, [[0, 0], [0, columns - 3]])[rows]
        targets = np.pad(TARGETS, [[0, 0], [0, columns - 3], [0, 0]])[rows]
        targets[words == 0] = np.nan
        targets = targets if kind == "loss" else None
        weights = None if weights is None else weights[rows]
        actions = raw_actions(name, rows, columns)
        result = model.gradients(words, targets, weights, replayed=actions)
        by_row = result.costs, result.log_probs, result.entropies
        return [tf.convert_to_tensor(x) for x in result.gradients], by_row

    plain = estimate(rows)
    assert all(np.isfinite(x).all() for x in plain[0])
    assert_close(plain, estimate(rows, columns=5))
    assert_close(plain, estimate(rows, weights=WEIGHTS[:, None]))
    gradients, by_row = estimate(order)
    assert_close(plain[0], gradients)
    assert_close([x.numpy()[order] for x in plain[1]], by_row)
    ones = np.ones(4, "float32")
    assert_close(estimate(rows, weights=None), estimate(rows, weights=ones))
    assert_close(plain[1][0][3], 0.0)  # its weight is zero
    mask = model.model(WORDS)
    for part in keras.tree.flatten(mask):
        np.testing.assert_array_equal(part._keras_mask, WORDS > 0)


# Logged decisions


def logged_model():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,), dtype="int32")
    words = keras.layers.Embedding(5, 3, "random_normal", mask_zero=True)(inputs)
    hidden = keras.layers.LSTM(4, kernel_initializer="random_normal")(words)
    outputs = keras.layers.Dense(3)(hidden)
    sample = tfr.layers.Sample(heads.Categorical(3), seed=2)(outputs)
    model = tfr.ScoreFunction(keras.Model(inputs, sample))
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    return model


LOG = dict(
    contexts=WORDS,
    actions=np.array([0, 1, 2, 1]),
    rewards=np.array([1.0, -2.0, 0.5, 3.0]),
    propensities=np.array([0.2, 0.5, 1.0, 0.25]),
)


@pytest.mark.parametrize("estimator", [sweeps.rare("ips"), "snips"])
def test_padding_and_order_change_no_result_of_logged_decisions(estimator):
    order = np.array([3, 1, 0, 2])
    wide = np.pad(WORDS, [[0, 0], [0, 2]])
    logs = [
        LOG,
        {**LOG, "contexts": wide},
        {name: values[order] for name, values in LOG.items()},
    ]
    results = []
    for log in logs:
        model = logged_model()
        before = model.evaluate_logged(**log, estimator=estimator)
        history = model.fit_logged(
            **log, estimator=estimator, epochs=2, shuffle=False, verbose=0
        )
        after = [list(history.history.values()), model.get_weights()]
        results.append([list(before.values()), after])
    for result in results[1:]:
        assert_close(results[0], result)
