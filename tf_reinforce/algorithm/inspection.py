"""Computes statistics of each step and each episode of a batch."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.algorithm import estimator
from tf_reinforce.functional import losses


class StepStatistics(NamedTuple):
    """What an update knows of each of its `N` steps, before it is made."""

    episodes: tf.Tensor  # [N] int32, the column in the record
    times: tf.Tensor  # [N] int32, steps since the episode began
    returns: tf.Tensor  # [N] float, the returns to go
    values: tf.Tensor  # [N] float, what a value baseline expects; NaN without one
    advantages: tf.Tensor  # [N] float, by which the step is weighted
    credited: tf.Tensor  # [N] float, by which it would be without a baseline
    log_probs: tf.Tensor  # [N] float, of the action, under the policy as it is
    entropies: tf.Tensor  # [N] float, in nats
    max_entropies: tf.Tensor  # [N] float, of a uniform choice; NaN for real actions
    relative_scales: tf.Tensor  # [N, R] float, see `heads.Head.spread`
    at_bounds: tf.Tensor  # [N, R] bool, see `heads.Head.at_bounds`


def per_episode_gradients(rule, episodes, baseline=True):
    """The gradient of the policy loss from each episode by itself.

    Their mean is that from the batch. What else an update may follow (entropy bonus,
    penalties, the value loss of a shared trunk) is not in it: it would pass for a signal.

    Args:
        rule: `estimator.PolicyGradientEstimator`.
        episodes: `Episodes`, checked.
        baseline: Bool. False leaves the baseline out, and all else as it is.

    Returns:
        A list with `[E, …]` for each of `variables`: ∂Lₑ/∂w for each episode that is
        learned from. Returns, baseline and scales are those of the whole batch.
    """

    def gradient(column):
        mine = batch.episode(column)
        with tf.GradientTape() as tape:
            log_probs = rule.distribution(mine).log_prob(mine.actions)
            loss = losses.policy_gradient(log_probs, mine.advantages, mine.divisor)
        return losses.gradients(tape, loss, rule.variables)

    batch = rule.batch(episodes)
    weights = tf.where(baseline, batch.advantages, batch.credited)
    batch = batch._replace(advantages=weights)
    learned = tf.where(batch.episodes.lengths > 0)[:, 0]
    return tf.map_fn(
        gradient,
        learned,
        fn_output_signature=[tf.TensorSpec(v.shape, v.dtype) for v in rule.variables],
        parallel_iterations=1,  # one after the other: less memory
    )


def step_statistics(rule, episodes):
    """What an update from these episodes would know of each step: `StepStatistics`."""
    batch = rule.batch(episodes)
    outputs, _ = rule.outputs(batch)
    actions = rule.head.distribution(outputs)
    most = values = tf.fill(tf.shape(batch.targets), np.nan)
    raw = keras.tree.flatten(rule.head.action_spec(outputs.dtype))
    if all(leaf.dtype.is_integer for leaf in raw):
        even, masks = tf.zeros_like(outputs), batch.episodes.masks
        even = rule.mask_outputs(even, batch.steps, masks)
        most = rule.head.distribution(even).entropy()
    if rule.baseline.values_states:
        values = rule.values(batch.episodes, batch.targets.dtype)[:-1]
        values = batch.steps.gather(values)
    return StepStatistics(
        batch.steps.addresses[:, 1],
        batch.steps.addresses[:, 0],
        batch.targets,
        values,
        batch.advantages,
        batch.credited,
        actions.log_prob(batch.actions),
        actions.entropy(),
        most,
        rule.head.relative_scale(outputs),
        rule.head.at_bounds(batch.actions),
    )


def explain_non_finite(rule, episodes):
    """Names the first number that is not finite, and a variable, after a refusal."""
    batch = rule.batch(episodes)
    record, steps = batch.episodes, batch.steps
    every = estimator.valid_steps(episodes)  # the normalizer sees what is dropped too
    seen = every.gather(episodes.observations)
    outputs, _ = rule.at(steps, record.observations, steps)
    masked = rule.mask_outputs(outputs, steps, record.masks)
    log_probs = rule.head.distribution(masked).log_prob(batch.actions)
    suspects = [
        *(("observation", x, every) for x in keras.tree.flatten(seen)),
        ("reward", steps.gather(record.rewards), steps),
        ("outputs", outputs, steps),
        ("log-probability", log_probs, steps),
        ("advantage", tf.cast(batch.advantages, outputs.dtype), steps),
    ]
    found = []
    for name, values, where in suspects:
        finite = np.isfinite(np.asarray(values, "float64"))
        wrong = np.flatnonzero(~finite.all(axis=tuple(range(1, finite.ndim))))
        if len(wrong):
            step, episode = where.addresses[wrong[0]].numpy()
            value = np.asarray(values)[wrong[0]]
            found += [f"In episode {episode}, step {step}, the {name} is {value}."]
            break
    gradients, baseline_gradients, *_ = rule.gradients(episodes)
    trained = [*rule.variables, *rule.baseline.trainable_variables]
    for variable, gradient in zip(trained, [*gradients, *baseline_gradients]):
        if not np.isfinite(gradient).all():
            found += [f"The gradient of {variable.path} is not finite."]
            break
    return " ".join(found) or "It began finite, and what followed was not."
