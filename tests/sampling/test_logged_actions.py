"""Tests training and evaluation on logged decisions."""

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import heads

NUM_ACTIONS, SIZE = 3, 4
WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, NUM_ACTIONS))


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def make_log():
    """32 decisions of a policy that prefers bad actions slightly; rewards are 0 or 1."""
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(32, SIZE)).astype("float32")
    probs = softmax(-0.5 * contexts @ WEIGHTS)
    actions = (probs.cumsum(axis=1) > rng.random((32, 1))).argmax(axis=1)
    rewards = rng.integers(2, size=32).astype("float32")
    return contexts, actions, rewards, probs[np.arange(32), actions]


LOG = make_log()


def sampling(head, *layers):
    """Returns a compiled `ScoreFunction` with a layer of logits or means for a head."""
    contexts = outputs = keras.Input((SIZE,))
    initializer = keras.initializers.GlorotUniform(0)
    dense = keras.layers.Dense(head.outputs_size, kernel_initializer=initializer)
    for layer in (*layers, dense, tfr.layers.Sample(head, seed=0)):
        outputs = layer(outputs)
    model = tfr.ScoreFunction(keras.Model(contexts, outputs), reward=no_reward)
    model.compile(keras.optimizers.Adam(0.03))
    return model


def policy(*layers):
    return sampling(heads.Categorical(NUM_ACTIONS), *layers)


def no_reward(contexts, choices):
    return np.zeros(len(choices))


def test_callbacks_receive_the_score_function_and_can_stop_and_evaluate_it(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            options = dict(verbose=0, return_dict=True)
            assert set(self.model.evaluate(LOG[0], **options)) == {"loss", "reward"}
            assert self.model is model and np.isfinite(logs["policy_value"])
            self.model.stop_training = epoch == 1

    model = policy()
    callbacks = [Stop(), keras.callbacks.ModelCheckpoint(tmp_path / "model.keras")]
    history = model.fit_logged(*LOG, epochs=9, callbacks=callbacks, verbose=0)
    assert len(history.epoch) == 2
    with pytest.warns(UserWarning, match="'no_reward' of the saved model"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.model.weights[0], model.model.weights[0])
    assert set(model.fit(LOG[0], verbose=0).history) == {"loss", "reward", "entropy"}


def test_sampling_for_a_log_is_inference():
    """The propensities of a context are those by which `evaluate_logged` judges it."""
    model = policy(keras.layers.BatchNormalization())
    model.model.layers[1].set_weights(np.random.default_rng(0).random((4, SIZE)))
    contexts, before = LOG[0], model.model.get_weights()
    logits = model.model.layers[2](model.model.layers[1](contexts)).numpy()
    for rows in (contexts, contexts[:1]):
        actions, propensities = model.sample_actions(rows)
        expected = softmax(logits)[np.arange(len(rows)), actions]
        np.testing.assert_allclose(propensities, expected, rtol=1e-5)
    drawn = [tuple(model.sample_actions(contexts)[0]) for _ in range(2)]
    assert drawn[0] != drawn[1]
    for one, other in zip(before, model.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("has_arm", [False, True])
def test_densities_above_one_are_propensities_of_real_actions(has_arm):
    """Also those of a head that has discrete actions beside the real ones."""
    head = heads.Gaussian(1, initial_scale=0.1)
    if has_arm:
        head = heads.Composite({"arm": heads.Categorical(2), "leg": head})
    model = sampling(head)
    outputs = model.model.layers[1](LOG[0]).numpy()
    actions = outputs[:, -1:]
    densities = np.full(32, 1 / (0.1 * np.sqrt(2 * np.pi)))
    if has_arm:
        actions = {"arm": np.zeros(32, int), "leg": actions}
        densities *= softmax(outputs[:, :2])[:, 0]
    assert densities.max() > 1
    result = model.evaluate_logged(LOG[0], actions, LOG[2], densities)
    assert result["policy_value"] == pytest.approx(LOG[2].mean(), rel=1e-5)
    assert result["effective_sample_size"] == pytest.approx(1, rel=1e-5)


NESTED = heads.Composite({"arm": heads.Categorical(2), "leg": heads.Gaussian(1)})
LEGS = [[0.1], [0.2], [np.nan], [0.3]] * 8
WRONG = [
    (dict(propensities=np.r_[LOG[3][:-1], 0]), "Received: 0.0 in row 31"),
    (dict(propensities=np.r_[1.5, LOG[3][1:]]), "Received: 1.5 in row 0"),
    (dict(rewards=np.r_[np.inf, LOG[2][1:]]), "`rewards` must be finite"),
    (dict(actions=np.ma.masked_less(LOG[1], 9)), "`actions` must have no masked"),
    (dict(contexts=LOG[0].tolist()), "must be arrays with one row"),
    (dict(actions=["left", "right"] * 16), "names with np.unique"),
    (dict(actions=np.r_[3, LOG[1][1:]]), "actions of Categorical.*3 in row 0"),
    (dict(actions=LOG[1][1:]), "one row for each"),
    (dict(actions=LOG[1][:, None]), r"shape \('N',\).*Received: shape \(32, 1\)"),
    (dict(actions=LOG[1] + 0.5), "if discrete. .* float64. .*astype"),
    (dict(estimator="dm"), "`estimator` must be one of"),
    (dict(estimator="dr"), "`reward_model`"),
    (dict(clip=-1), "`clip` must be"),
    (dict(validation_split=0.1), r"no arguments \['validation_split'\]"),
    (dict(head=heads.Gaussian(1), top_k=2), "require the head `Categorical`"),
    (dict(head=NESTED, actions={"arm": ["a"] * 32, "leg": LEGS}), "must be an array"),
    (dict(head=NESTED, actions={"arm": [0] * 32, "leg": LEGS}), "nan. in row 2"),
]


@pytest.mark.parametrize("wrong, message", WRONG, ids=range(len(WRONG)))
def test_invalid_logs_and_options_are_refused_and_change_no_weight(wrong, message):
    wrong = dict(wrong)
    model = sampling(wrong.pop("head", heads.Categorical(NUM_ACTIONS)))
    before = model.model.get_weights()
    names = "contexts", "actions", "rewards", "propensities"
    with pytest.raises((TypeError, ValueError), match=message):
        model.fit_logged(**{**dict(zip(names, LOG)), **wrong}, verbose=0)
    for one, other in zip(before, model.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_models_and_predictions_that_give_no_estimate_are_refused():
    with pytest.raises(ValueError, match="at least two"):
        policy().evaluate_logged(*(x[:1] for x in LOG))
    predictions = keras.Sequential([keras.Input((SIZE,)), keras.layers.Dense(3)])
    predictions.set_weights([np.full((SIZE, 3), np.nan), np.zeros(3)])
    with pytest.raises(FloatingPointError, match="Received: nan in row 0"):
        policy().evaluate_logged(*LOG, estimator="dr", reward_model=predictions)
    first = tfr.layers.Sample(heads.Gaussian(1))
    with pytest.raises(ValueError, match="with 2 Sample layers"):
        policy(keras.layers.Dense(1), first).evaluate_logged(*LOG)
