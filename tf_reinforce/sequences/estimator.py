"""Computes the policy gradient of the completions of a language model."""

from typing import NamedTuple

import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.sequences import completions as records


class SequenceBatch(NamedTuple):
    """R completions, with the rewards and advantages that an update uses."""

    completions: records.Completions
    rewards: tf.Tensor  # [R] float, minus the first reward of the prompt, without KL
    kl: tf.Tensor  # [R] float, log π(completion) - log π_ref(completion)
    advantages: tf.Tensor  # [R] float
    kl_weights: tf.Tensor  # [R] float, the factor of the KL penalty in the advantage

    def rows(self, indices):
        """Returns the `SequenceBatch` of some rows."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self)


class SequenceEstimator:
    """Estimates the gradient of the expected reward of completions, minus a KL penalty.

        ∇J = E[ (R - b) ∇ log π(y|x) ],    R = r(x, y) - β log (π(y|x) / π_ref(y|x))

    The completion y of a prompt x is one action, whose log-probability is the sum over
    its sampled tokens. The baseline b is the mean of R over the other completions of the
    same prompt (RLOO). The gradient is an unbiased estimate of the gradient of
    E[r] - β KL(π ‖ π_ref), because E[∇ log π] = 0.

    Args:
        policy: `TokenPolicy`.
        reference_weights: List of variables, the trainable weights of the reference, or
            an empty list for `kl_coef=0`.
        options: `SequenceOptions`.

    Reference:
        Williams (1992). doi:10.1007/BF00992696. Kool, van Hoof & Welling (2019), Buy 4
        REINFORCE samples, get a baseline for free! Ahmadian et al. (2024), Back to
        basics: revisiting REINFORCE style optimization. arXiv:2402.14740
    """

    def __init__(self, policy, reference_weights, options):
        self.policy = policy
        self.reference_weights = reference_weights
        self.options = options
        self.baseline = baselines.LeaveOneOut(group_size=options.group_size)

    @property
    def variables(self):
        """Returns the weights that are trained."""
        return self.policy.causal_lm.trainable_variables

    def gradients(self, completions, rewards):
        """Returns the gradients of the surrogate loss, and metrics.

        Args:
            completions: `Completions` of R rows, consecutive rows for each prompt.
            rewards: `[R]` float.
        """
        batch = self.batch(completions, rewards)
        gradients, metrics = self.policy_gradients(batch)
        return gradients, {**metrics, "kl": tf.reduce_mean(batch.kl)}

    def batch(self, completions, rewards):
        """Returns the `SequenceBatch` with penalized, centered and scaled rewards."""
        rewards = self._centered(rewards)
        kl = self.log_ratios_to_reference(completions)
        returns = rewards - self.options.kl_coef * kl
        scales = tf.ones_like(returns)
        if self.options.scale_advantages:
            scales = self._deviations(returns)
        advantages = (returns - self._baselines(returns)) / scales
        kl_weights = self.options.kl_coef / scales
        return SequenceBatch(completions, rewards, kl, advantages, kl_weights)

    def log_ratios_to_reference(self, completions):
        """Returns log π(y|x) - log π_ref(y|x) of R completions, `[R]`; zeros without KL.

        The log-probabilities π are those with which the completions were sampled.
        """
        if not self.options.kl_coef:
            return tf.zeros_like(completions.row_log_probs)
        weights = [variable.value for variable in self.reference_weights]
        rows = tf.range(tf.shape(completions.token_ids)[0])
        split = minibatches.Minibatches.split(rows, self.options.microbatch_size)

        def add(number, reference):
            indices = split.minibatch(number)
            part, _ = self.policy.log_probs(completions.rows(indices), weights)
            part = tf.reduce_sum(part, axis=1)
            return number + 1, tf.tensor_scatter_nd_update(
                reference, indices[:, None], part
            )

        if self.options.microbatch_size is None:
            reference = tf.reduce_sum(
                self.policy.log_probs(completions, weights)[0], axis=1
            )
        else:
            zeros = tf.zeros_like(completions.row_log_probs)
            start = tf.constant(0, tf.int64), zeros
            _, reference = tf.while_loop(lambda i, _: i < split.count, add, start)
        return completions.row_log_probs - reference

    def _centered(self, rewards):
        """Returns rewards minus the first reward of their prompts, `[R]`.

        Advantages do not depend on a number that is added to all rewards of a prompt. The
        difference in float64 is exact: equal rewards have no effect, and large rewards
        lose no digits.
        """
        groups = tf.cast(rewards, tf.float64)
        groups = tf.reshape(groups, [-1, self.options.group_size])
        return tf.cast(tf.reshape(groups - groups[:, :1], [-1]), self.policy.dtype)

    def _baselines(self, returns):
        """Returns the mean return of the other completions of the same prompt, `[R]`."""
        one_step = returns[None], tf.ones_like(returns, tf.bool)[None], None
        return self.baseline.estimate(*one_step)[0]

    def _deviations(self, returns):
        """Returns the standard deviation of the returns of the same prompt, `[R]`."""
        groups = tf.reshape(returns, [-1, self.options.group_size])
        deviations = tf.math.reduce_std(groups, axis=1) + 1e-4
        return tf.repeat(deviations, self.options.group_size)

    def policy_gradients(
        self, batch, count=None, uses_ratios=False, scale_loss=tf.identity
    ):
        """Returns the gradients of the surrogate loss of n completions, and metrics.

        Args:
            batch: `SequenceBatch` of n completions.
            count: Scalar int, the number of completions by which the sum over n
                completions is divided; `None` for n.
            uses_ratios: Bool, whether each completion is weighted with its likelihood
                ratio, at most `ratio_clip`. The likelihood ratio is the probability of
                the completion, divided by its probability when it was sampled.
            scale_loss: Function that multiplies the loss by the loss scale of the
                optimizer. The gradients contain the loss scale.

        Returns:
            List with a gradient for each of `variables`; and dict of metrics, each a sum
            over completions or tokens, divided by `count`.
        """
        completions = batch.completions
        count = tf.size(batch.rewards) if count is None else count
        with tf.GradientTape() as tape:
            token_log_probs, entropies = self.policy.log_probs(completions)
            log_probs = tf.reduce_sum(token_log_probs, axis=1)
            advantages = batch.advantages
            log_ratios = tf.stop_gradient(log_probs) - completions.row_log_probs
            if uses_ratios:
                # The KL penalty of the present policy, not of the one that has sampled.
                advantages -= batch.kl_weights * log_ratios
                advantages *= tf.minimum(tf.exp(log_ratios), self.options.ratio_clip)
            lengths = _lengths(completions, log_probs.dtype)
            if self.options.length_normalization:
                advantages = tf.math.divide_no_nan(advantages, lengths)
            loss = losses.policy_gradient(log_probs, advantages, count)
            scaled = scale_loss(loss)
        gradients = losses.gradients(tape, scaled, self.variables)
        differences = tf.abs(token_log_probs - completions.log_probs)
        sums = {
            "loss": loss * tf.cast(count, loss.dtype),
            "entropy": tf.reduce_sum(tf.math.divide_no_nan(_sum(entropies), lengths)),
            "log_prob_difference": tf.reduce_sum(
                tf.math.divide_no_nan(_sum(differences), lengths)
            ),
        }
        metrics = {name: x / tf.cast(count, x.dtype) for name, x in sums.items()}
        return gradients, metrics


def _sum(tokens):
    return tf.reduce_sum(tokens, axis=1)


def _lengths(completions, dtype):
    """Returns the number of sampled tokens of each completion, `[R]` float."""
    return tf.reduce_sum(tf.cast(completions.sampled, dtype), axis=1)
