"""Statistics of single steps and episodes, and the cause of non-finite updates."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.engine.update import estimator
from tf_reinforce.functional import losses


class StepStatistics(NamedTuple):
    """What an update would use at each of its N valid steps."""

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


def per_episode_gradients(rule, episodes, baseline=True):
    """Returns each episode's gradient of the policy loss.

    The advantages are computed from all episodes together, so the mean of these gradients
    is the gradient of the batch. The entropy bonus, regularizers and the value loss of
    shared layers are left out.

    Args:
        rule: `estimator.PolicyGradientEstimator`.
        episodes: `Episodes`, validated.
        baseline: Bool, whether to subtract the baseline, or zero instead.

    Returns:
        A list with an array `[E, …]` for each of `variables`, a row for each of the E
        episodes that are not dropped.
    """

    def gradient(column):
        own_steps = tf.where(columns == tf.cast(column, columns.dtype))[:, 0]
        own = records.select_episodes(batch.episodes, column, column + 1)
        episode = batch.minibatch(own_steps)._replace(
            episodes=own, steps=estimator.valid_steps(own), divisor=divisor
        )
        with tf.GradientTape() as tape:
            log_probs = rule.distribution(episode).log_prob(episode.actions)
            loss = losses.policy_gradient(log_probs, episode.advantages, episode.divisor)
        return losses.gradients(tape, loss, rule.variables)

    batch = rule.batch(episodes)
    weights = tf.where(baseline, batch.advantages, batch.unbaselined_advantages)
    batch = batch._replace(advantages=weights)
    divisor = batch.divisor / tf.cast(batch.num_episodes, batch.divisor.dtype)
    columns = batch.steps.indices[:, 1]
    return tf.map_fn(
        gradient,
        tf.where(batch.episodes.lengths > 0)[:, 0],
        fn_output_signature=[tf.TensorSpec(v.shape, v.dtype) for v in rule.variables],
        parallel_iterations=1,  # takes less memory
    )


def _unmasked_outputs(rule, batch):
    every_step = estimator.valid_steps(batch.episodes)
    return rule.outputs_at(batch.steps, batch.episodes, every_step, False)[0]


def step_statistics(rule, episodes):
    """Returns the `StepStatistics` of an update from a batch of whole episodes."""
    batch, head = rule.batch(episodes), rule.head
    steps, masks = batch.steps, batch.episodes.masks
    unmasked = _unmasked_outputs(rule, batch)
    outputs = rule.mask_outputs(unmasked, steps, masks)
    log_probs, entropies = head.log_prob_and_entropy(outputs, batch.actions)
    max_entropies = values = tf.fill(tf.shape(batch.returns), np.nan)
    action_specs = keras.tree.flatten(head.action_spec(outputs.dtype))
    if all(spec.dtype.is_integer for spec in action_specs):
        uniform = rule.mask_outputs(tf.zeros_like(unmasked), steps, masks)
        max_entropies = head.max_entropy(uniform, batch.actions)
    if rule.baseline.is_value_function:
        values = rule.values(batch.episodes, batch.returns.dtype)[:-1]
        values = steps.gather(values)
    return StepStatistics(
        steps.indices[:, 1],
        steps.indices[:, 0],
        batch.returns,
        values,
        batch.advantages,
        batch.unbaselined_advantages,
        log_probs,
        entropies,
        max_entropies,
        head.relative_scale(outputs),
        head.at_bounds(batch.actions),
    )


def _illegal_action(head, episodes):
    """Returns a sentence about the first illegal action, or nothing without one."""
    actions = keras.tree.map_structure(np.asarray, episodes.actions)
    masks = episodes.masks if episodes.masks is None else np.asarray(episodes.masks)
    try:
        head.check_actions(actions, np.asarray(episodes.lengths), masks)
    except ValueError as error:
        return f" {error}."
    return ""


def explain_non_finite(rule, episodes):
    """Returns a sentence that names the first number of an update that is not finite.

    Quantities are searched in the order of computation.
    """
    batch = rule.batch(episodes)
    steps = batch.steps
    every_step = estimator.valid_steps(episodes)  # the normalizer uses dropped ones too
    outputs = _unmasked_outputs(rule, batch)
    masked_outputs = rule.mask_outputs(outputs, steps, batch.episodes.masks)
    log_probs = rule.head.distribution(masked_outputs).log_prob(batch.actions)
    observations = keras.tree.flatten(every_step.gather(episodes.observations))
    for name, values, own_steps in (
        *(("observation", x, every_step) for x in observations),
        ("reward", steps.gather(batch.episodes.rewards), steps),
        ("outputs", outputs, steps),
        ("log-probability", log_probs, steps),
        ("advantage", tf.cast(batch.advantages, outputs.dtype), steps),
    ):
        values = np.asarray(values)
        wrong = np.argwhere(~np.isfinite(values.astype("float64")))
        if len(wrong):
            step, episode = own_steps.indices[wrong[0, 0]].numpy()
            value = values[wrong[0, 0]]
            sentence = f"In episode {episode}, step {step}, the {name} is {value}."
            if name == "outputs" and np.isneginf(value).any():
                sentence += (
                    " If the model sets logits to -inf to exclude actions, let it return "
                    "finite logits, and pass `action_mask` to the agent."
                )
            if name == "log-probability":
                sentence += _illegal_action(rule.head, batch.episodes)
            return sentence
    estimate = rule.gradients(episodes)
    variables = [*rule.variables, *rule.baseline.trainable_variables]
    gradients = [*estimate.gradients, *estimate.baseline_step.gradients]
    for variable, gradient in zip(variables, gradients):
        if not np.isfinite(gradient).all():
            return f"The gradient of {variable.path} is not finite."
    return "The first gradient step is finite, but a later value is not."
