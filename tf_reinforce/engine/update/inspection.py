"""Computes statistics of each step and each episode of a batch."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.engine.update import estimator
from tf_reinforce.functional import losses


class StepStatistics(NamedTuple):
    """Statistics of the `N` valid steps of an update, computed before the update."""

    episodes: tf.Tensor  # [N] int32, the column of the episode in the record
    times: tf.Tensor  # [N] int32, steps since the start of the episode
    returns: tf.Tensor  # [N] float, the returns to go
    values: tf.Tensor  # [N] float, predictions of a value baseline, or NaN
    advantages: tf.Tensor  # [N] float, the weight of the log-probability
    unbaselined_advantages: tf.Tensor  # [N] float, the weight with a baseline of zero
    log_probs: tf.Tensor  # [N] float, ln π of the actions
    entropies: tf.Tensor  # [N] float, the entropies of the policy in nats
    max_entropies: tf.Tensor  # [N] float, of a uniform choice, or NaN for real actions
    relative_scales: tf.Tensor  # [N, R] float, see `heads.Head.relative_scale`
    at_bounds: tf.Tensor  # [N, R] bool, see `heads.Head.at_bounds`
    logits: tf.Tensor  # [N, L] float, the L outputs that are logits, before the mask


def per_episode_gradients(gradient_estimator, episodes, baseline=True):
    """Returns the gradient of the policy loss of each episode.

    The mean of the gradients of all episodes is the gradient of the batch. The policy
    loss excludes the entropy bonus, regularizers and the value loss of shared layers.

    Args:
        gradient_estimator: `estimator.PolicyGradientEstimator`.
        episodes: `Episodes`, validated.
        baseline: Bool, whether to subtract the baseline. `baseline=False` replaces the
            baseline by zero.

    Returns:
        A list with an array `[E, …]` for each of `variables`, one gradient for each of
        the E episodes that are not dropped. Each gradient uses the advantages that are
        computed from the whole batch.
    """

    def gradient(column):
        episode = batch.single_episode(column)
        with tf.GradientTape() as tape:
            distribution = gradient_estimator.distribution(episode)
            log_probs = distribution.log_prob(episode.actions)
            loss = losses.policy_gradient(log_probs, episode.advantages, episode.divisor)
        return losses.gradients(tape, loss, variables)

    variables = gradient_estimator.variables
    batch = gradient_estimator.batch(episodes)
    weights = tf.where(baseline, batch.advantages, batch.unbaselined_advantages)
    batch = batch._replace(advantages=weights)
    learned = tf.where(batch.episodes.lengths > 0)[:, 0]
    return tf.map_fn(
        gradient,
        learned,
        fn_output_signature=[tf.TensorSpec(v.shape, v.dtype) for v in variables],
        parallel_iterations=1,  # takes less memory
    )


def step_statistics(gradient_estimator, episodes):
    """Returns the `StepStatistics` of an update from a batch of whole episodes."""
    batch = gradient_estimator.batch(episodes)
    unmasked_outputs, _ = gradient_estimator.outputs_at(
        batch.steps, batch.episodes.observations, estimator.valid_steps(batch.episodes)
    )
    outputs = gradient_estimator.mask_outputs(
        unmasked_outputs, batch.steps, batch.episodes.masks
    )
    logits = np.flatnonzero(gradient_estimator.head.is_logit())
    actions = gradient_estimator.head.distribution(outputs)
    max_entropies = values = tf.fill(tf.shape(batch.returns), np.nan)
    action_specs = keras.tree.flatten(gradient_estimator.head.action_spec(outputs.dtype))
    if all(spec.dtype.is_integer for spec in action_specs):
        uniform, masks = tf.zeros_like(outputs), batch.episodes.masks
        uniform = gradient_estimator.mask_outputs(uniform, batch.steps, masks)
        max_entropies = gradient_estimator.head.distribution(uniform).entropy()
    if gradient_estimator.baseline.is_value_function:
        values = gradient_estimator.values(batch.episodes, batch.returns.dtype)[:-1]
        values = batch.steps.gather(values)
    return StepStatistics(
        batch.steps.indices[:, 1],
        batch.steps.indices[:, 0],
        batch.returns,
        values,
        batch.advantages,
        batch.unbaselined_advantages,
        actions.log_prob(batch.actions),
        actions.entropy(),
        max_entropies,
        gradient_estimator.head.relative_scale(outputs),
        gradient_estimator.head.at_bounds(batch.actions),
        tf.gather(unmasked_outputs, logits, axis=1),
    )


def explain_non_finite(gradient_estimator, episodes):
    """Returns sentences that name the first number of an update that is not finite."""
    batch = gradient_estimator.batch(episodes)
    every_step = estimator.valid_steps(
        episodes
    )  # the normalizer also uses dropped episodes
    observations = every_step.gather(episodes.observations)
    outputs, _ = gradient_estimator.outputs_at(
        batch.steps, batch.episodes.observations, batch.steps
    )
    masked_outputs = gradient_estimator.mask_outputs(
        outputs, batch.steps, batch.episodes.masks
    )
    log_probs = gradient_estimator.head.distribution(masked_outputs).log_prob(
        batch.actions
    )
    rewards = batch.steps.gather(batch.episodes.rewards)
    candidates = [
        *(("observation", x, every_step) for x in keras.tree.flatten(observations)),
        ("reward", rewards, batch.steps),
        ("outputs", outputs, batch.steps),
        ("log-probability", log_probs, batch.steps),
        ("advantage", tf.cast(batch.advantages, outputs.dtype), batch.steps),
    ]
    sentences = [_first_non_finite_step(candidates)]
    estimate = gradient_estimator.gradients(episodes)
    variables = [
        *gradient_estimator.variables,
        *gradient_estimator.baseline.trainable_variables,
    ]
    gradients = [*estimate.gradients, *estimate.baseline_step.gradients]
    for variable, gradient in zip(variables, gradients):
        if not np.isfinite(gradient).all():
            sentences.append(f"The gradient of {variable.path} is not finite.")
            break
    sentences = [sentence for sentence in sentences if sentence]
    return (
        " ".join(sentences)
        or "The first gradient step of the update is finite, but a "
        "later value is not finite."
    )


def _first_non_finite_step(candidates):
    """Returns a sentence that names the first non-finite value, or an empty string.

    Args:
        candidates: List of `(name, values, steps)`: the name of a quantity, its `[N, …]`
            values, and the `ValidSteps` of the N values. A quantity may depend on the
            quantities before it in the list.
    """
    for name, values, steps in candidates:
        finite = np.isfinite(np.asarray(values, "float64"))
        wrong = np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim))))
        if len(wrong):
            step, episode = steps.indices[wrong[0]].numpy()
            value = np.asarray(values)[wrong[0]]
            masks = name == "outputs" and np.isneginf(value).any()
            return f"In episode {episode}, step {step}, the {name} is {value}." + (
                " If the model sets logits to -inf to exclude actions, let it return "
                "finite logits, and pass `action_mask` to the agent."
            ) * bool(masks)
    return ""
