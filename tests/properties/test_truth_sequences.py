"""Tests the gradient of `SequenceReinforce` by enumeration of completions, in float64.

The vocabulary has three tokens: 0 is the padding, and can also be sampled; 1 is a word;
2 is the end token. Completions have at most three tokens: fifteen completions, of which
eight are truncated.
"""

import keras
import numpy as np
import pytest
import sweeps

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')
import language_models
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import testing
from tf_reinforce.testing.token_sequences import all_completions

END = 2


def reward(prompts, completion_ids, truncated):
    """A reward that differs for all completions, and depends on the prompt."""
    return [
        float(np.sin(np.dot([1.0, 2.1, 4.3, 0.4, 1.9][: len(ids)], np.add(ids, 1))))
        + prompt[0]
        - 0.7 * is_truncated
        for prompt, ids, is_truncated in zip(prompts, completion_ids, truncated)
    ]


def make(causal_lm=None, *, reference_seed=None, **options):
    """A model whose reference differs from its policy if there is a KL penalty."""
    causal_lm = causal_lm or language_models.gpt2()
    defaults = dict(group_size=2, kl_coef=0.0, max_completion_length=3, seed=0)
    defaults["stop_token_ids"] = [END]
    model = tfr.sequences.SequenceReinforce(causal_lm, reward, **{**defaults, **options})
    for number, weight in enumerate(model.reference_weights):
        noise = keras.random.normal(weight.shape, seed=77 + number)
        weight.assign(weight + 0.3 * keras.ops.cast(noise, weight.dtype))
    return model


def check(model, prompts, tolerance=1e-11):
    report = testing.check_sequence_gradient(model, prompts, tolerance=tolerance)
    assert np.abs(report.exact).max() > 1e-2
    return report


@pytest.mark.parametrize("kl_coef", [sweeps.rare(0.0), 0.3])
@pytest.mark.parametrize("temperature", [sweeps.rare(1.0), 0.6, sweeps.rare(2.0)])
def test_expected_gradient_is_that_of_the_penalized_reward(kl_coef, temperature):
    report = check(make(kl_coef=kl_coef, temperature=temperature), [[1, 0]])
    assert report.trajectories == 15


@pytest.mark.parametrize("length", [sweeps.rare(1), 2])
def test_expected_gradient_with_truncated_completions(length):
    report = check(make(kl_coef=0.2, max_completion_length=length), [[0, 1, 1]])
    assert report.trajectories == [0, 3, 7][length]


def test_three_completions_of_a_group_are_unbiased():
    model = make(group_size=3, kl_coef=0.1, max_completion_length=2)
    assert check(model, [[1]]).batches == 7**3


def test_prompts_of_different_lengths_share_a_batch():
    """The shorter prompt is padded behind its completion, not before it.

    Two end tokens leave 625 batches to enumerate instead of 2401.
    """
    options = dict(kl_coef=0.3, max_completion_length=2, stop_token_ids=[1, END])
    report = check(make(**options), [[1], [0, 1, 1]])
    assert report.trajectories == 2 * 5


def test_two_end_tokens_end_completions():
    causal_lm = language_models.gpt2(vocabulary_size=4)
    model = make(causal_lm, stop_token_ids=[2, 3], max_completion_length=2)
    report = check(model, [[1]])
    assert report.trajectories == 2 + 2 * 4
    columns = model.sample([[1]] * 8).columns
    assert {ids[-1] for ids in columns["completion_ids"]} >= {2, 3}
    without = [[x for x in ids if x < 2] for ids in columns["completion_ids"]]
    assert columns["completions"] == without


def ask_again(prompts, completion_ids):
    """Replies with a word to completions that begin with a word."""
    return [[1] if ids[0] == 1 else None for ids in completion_ids]


@pytest.mark.parametrize("kl_coef", [sweeps.rare(0.0), 0.3])
def test_replies_are_not_scored(kl_coef):
    """Word and end token, the reply, and one more token."""
    model = make(reply=ask_again, max_turns=2, max_completion_length=4, kl_coef=kl_coef)
    check(model, [[1, 0]])
    ids = model.sample([[1, 0]] * 50).columns["completion_ids"]
    assert any(x[:3] == [1, END, 1] and len(x) == 4 for x in ids)


def test_weights_of_lora_receive_the_gradient():
    """Keras stores adapters and their gradients in float32."""
    causal_lm = language_models.gpt2()
    causal_lm.backbone.enable_lora(1)
    language_models.random_weights(causal_lm, seed=3)
    model = make(causal_lm, kl_coef=0.2, max_completion_length=2)
    assert len(model.trainable_variables) == len(model.reference_weights)
    # KerasHub also trains the biases of the layers that have adapters.
    names = [v.path.rpartition("/")[2] for v in model.trainable_variables]
    assert set(names) == {"lora_kernel_a", "lora_kernel_b", "bias"}
    report = check(model, [[1]], tolerance=1e-6)
    assert report.relative_error < 3e-7  # rounding errors of float32


def test_dropout_is_not_active():
    causal_lm = language_models.gpt2(dropout=0.5)
    check(make(causal_lm, max_completion_length=2), [[1]])


# Biased options, with their exact bias.


def moments(model, prompts):
    """Returns the probabilities, rewards and gradients of log π of all completions."""
    completions, rewards, _ = all_completions(model, {"prompts": prompts})
    policy = model.policy
    scores = []
    for row in range(len(rewards)):
        with tf.GradientTape() as tape:
            log_probs = policy.log_probs(completions.rows([row]))[0]
            total = tf.reduce_sum(log_probs)
        gradient = tape.gradient(
            total,
            [v.value for v in model.trainable_variables],
            unconnected_gradients="zero",
        )
        flat = [np.ravel(tf.convert_to_tensor(x)) for x in gradient]
        scores.append(np.concatenate(flat))
    probs = np.exp(completions.row_log_probs.numpy())
    lengths = np.array([sum(row) for row in completions.sampled.numpy()])
    return probs, rewards, np.array(scores), lengths


@pytest.mark.slow
def test_length_normalization_weights_completions_by_one_over_their_length():
    """E[g] = -Σ_y π(y) (r(y) - E[r]) ∇ log π(y) / |y|."""
    model = make(length_normalization=True)
    probs, rewards, scores, lengths = moments(model, [[1]])
    report = testing.check_sequence_gradient(model, [[1]], tolerance=None)
    mean = probs @ rewards
    expected = -((probs * (rewards - mean) / lengths) @ scores)
    np.testing.assert_allclose(report.expected, expected, rtol=0, atol=1e-12)
    assert report.relative_error > 0.05


@pytest.mark.slow
def test_scaled_advantages_are_the_sign_of_the_difference_of_two():
    """With two completions, (r₁ - r₂) / (|r₁ - r₂| / 2 + 1e-4) is almost ±2."""
    model = make(scale_advantages=True, max_completion_length=2)
    probs, rewards, scores, _ = moments(model, [[1]])
    difference = rewards[:, None] - rewards[None, :]
    advantages = difference / (np.abs(difference) / 2 + 1e-4)
    weights = probs * (advantages @ probs)
    report = testing.check_sequence_gradient(model, [[1]], tolerance=None)
    np.testing.assert_allclose(report.expected, -(weights @ scores), rtol=0, atol=1e-12)
    assert report.relative_error > 0.05


def behavior_batch(model, behavior, prompts):
    """Returns all completions, recorded with the log-probabilities of other weights."""
    completions, rewards, _ = all_completions(behavior, {"prompts": prompts})
    probs = np.exp(completions.row_log_probs.numpy())
    return completions, tf.constant(rewards), probs


def ratio_gradient(model, completions, rewards, probs):
    """Returns the expected gradient with ratios, for groups of two completions."""
    total, count = 0.0, len(probs)

    @tf.function(autograph=False)
    def gradient(rows):
        batch = model.estimator.batch(completions.rows(rows), tf.gather(rewards, rows))
        return model.estimator.policy_gradients(batch, uses_ratios=True)[0]

    for first in range(count):
        for second in range(count):
            values = gradient(tf.constant([first, second]))
            flat = np.concatenate([np.ravel(x) for x in values])
            total = total + probs[first] * probs[second] * flat
    return total


@pytest.mark.parametrize("kl_coef", [sweeps.rare(0.0), 0.3])
def test_unclipped_ratios_correct_completions_of_other_weights(kl_coef):
    """Each completion is sampled from a model with other weights."""
    model = make(ratio_clip=1e9, max_completion_length=2, kl_coef=kl_coef)
    behavior = make(language_models.gpt2(seed=5), max_completion_length=2)
    exact = testing.check_sequence_gradient(model, [[1]]).exact
    found = ratio_gradient(model, *behavior_batch(model, behavior, [[1]]))
    # The baseline is the mean reward of the completions of the other weights.
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-11)


def test_clipped_ratios_have_their_exact_bias():
    """E[g] = -Σ_y μ(y) min(π(y)/μ(y), c) (r(y) - E_μ[r]) ∇ log π(y)."""
    model = make(ratio_clip=1.1, max_completion_length=2)
    behavior = make(language_models.gpt2(seed=5), max_completion_length=2)
    completions, rewards, mu = behavior_batch(model, behavior, [[1]])
    probs, _, scores, _ = moments(model, [[1]])
    weights = mu * np.minimum(probs / mu, 1.1) * (rewards.numpy() - mu @ rewards.numpy())
    found = ratio_gradient(model, completions, rewards, mu)
    np.testing.assert_allclose(found, -(weights @ scores), rtol=0, atol=1e-12)
    exact = testing.check_sequence_gradient(model, [[1]]).exact
    assert np.linalg.norm(found - exact) > 0.02 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "options, relative_error, cosine",
    [
        sweeps.rare({"length_normalization": True}, 0.679, 0.9597),
        sweeps.rare({"scale_advantages": True}, 0.823, 0.7706),
        ({"scale_advantages": True, "length_normalization": True}, 1.123, 0.1584),
    ],
)
def test_biases_are_those_of_the_document(options, relative_error, cosine):
    """docs/correctness.md lists these figures."""
    model = make(**options)
    report = testing.check_sequence_gradient(model, [[1]], tolerance=None)
    assert report.relative_error == pytest.approx(relative_error, abs=5e-4)
    assert report.cosine == pytest.approx(cosine, abs=5e-5)
