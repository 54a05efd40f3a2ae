"""The policy gradient of a language model's completions, and updates with it."""

import dataclasses
from typing import Annotated, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.functional import shapes
from tf_reinforce.sequences import language_model
from tf_reinforce.settings import schema

METRICS = "loss", "entropy", "log_prob_difference", "gradient_norm", "kl"  # of an update


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """Options of `SequenceReinforce`, which documents them."""

    group_size: Annotated[int, schema.Range(2)]  # the baseline needs another completion
    kl_coef: schema.NonNegative
    temperature: Annotated[float, schema.Range(2.0**-126)]
    max_completion_length: schema.Count
    max_turns: schema.Count
    passes: schema.Count
    minibatch_size: schema.Count | None
    microbatch_size: schema.Count | None
    ratio_clip: Annotated[float, schema.Range(1)]
    scale_advantages: bool
    length_normalization: bool

    def __post_init__(self):
        schema.check_fields(self)

    @property
    def has_minibatches(self):
        """Returns whether an update may make more than one gradient step."""
        return self.passes > 1 or self.minibatch_size is not None


class SequenceBatch(NamedTuple):
    """R completions, with the advantages that an update uses."""

    completions: language_model.Completions
    kl: tf.Tensor  # [R] float, log π(completion) - log π_ref(completion)
    advantages: tf.Tensor  # [R] float
    kl_weights: tf.Tensor  # [R] float, the factor of the KL penalty in the advantage

    def rows(self, indices):
        """Returns the `SequenceBatch` of some rows."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self)


class SequenceEstimator:
    """Estimates the gradient of the completions' expected reward, minus a KL penalty.

        ∇J = E[ (R - b) ∇ log π(y|x) ],    R = r(x, y) - β log (π(y|x) / π_ref(y|x))

    A completion y of a prompt x is treated as one action, whose log-probability is the
    sum over its sampled tokens. The baseline b of a completion is the mean of R over the
    prompt's other completions, which is known as RLOO. The result is an unbiased estimate
    of the gradient of E[r] - β KL(π ‖ π_ref), because E[∇ log π] = 0.

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
        self.optimizer = None  # that of the compiled `SequenceReinforce`

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
        metrics = dict(zip(METRICS, metrics))
        return gradients, {**metrics, "kl": tf.reduce_mean(batch.kl)}

    def batch(self, completions, rewards):
        """Returns the `SequenceBatch` with penalized, centered and scaled rewards."""
        rewards = self._centered(rewards)
        kl = self.log_ratios_to_reference(completions)
        returns = rewards - self.options.kl_coef * kl
        one_step = returns[None], tf.ones_like(returns, tf.bool)[None], None
        scales = tf.ones_like(returns)
        if self.options.scale_advantages:
            groups = tf.reshape(returns, [-1, self.options.group_size])
            deviations = tf.math.reduce_std(groups, axis=1) + 1e-4
            scales = tf.repeat(deviations, self.options.group_size)
        advantages = (returns - self.baseline.estimate(*one_step)[0]) / scales
        kl_weights = self.options.kl_coef / scales
        return SequenceBatch(completions, kl, advantages, kl_weights)

    def log_ratios_to_reference(self, completions):
        """Returns log π(y|x) - log π_ref(y|x) of R completions, `[R]`; zeros without KL.

        π is the policy that sampled the completions.
        """
        if not self.options.kl_coef:
            return tf.zeros_like(completions.row_log_probs)
        weights = [variable.value for variable in self.reference_weights]
        count = tf.shape(completions.token_ids)[0]

        def reference(rows):
            part = completions.rows(rows)
            scores = tf.reduce_sum(self.policy.log_probs(part, weights)[0], axis=1)
            return [tf.scatter_nd(rows[:, None], scores, [count])]

        zeros = [tf.zeros_like(completions.row_log_probs)]
        return completions.row_log_probs - self._added_up(count, reference, zeros)[0]

    def _added_up(self, count, terms, zeros):
        """Returns the sums of `terms(rows)` over microbatches of `count` rows.

        Args:
            count: Scalar int.
            terms: Function of `[n]` row numbers that returns a list of tensors.
            zeros: List of zeros like the result.
        """
        if self.options.microbatch_size is None:
            return terms(tf.range(count))
        size = self.options.microbatch_size
        split = minibatches.Minibatches.split(tf.range(count), size)

        def body(number, sums):
            parts = terms(split.minibatch(number))
            return number + 1, [x + y for x, y in zip(sums, parts, strict=True)]

        start = tf.constant(0, tf.int64), zeros
        return tf.while_loop(lambda number, _: number < split.count, body, start)[1]

    def _centered(self, rewards):
        """Returns rewards minus the first reward of the same prompt, `[R]`.

        Adding a number to all rewards of a prompt changes no advantage, so the first
        reward can be subtracted. The difference is exact in float64, which means that
        equal rewards have no effect and large rewards lose no digits.
        """
        groups = tf.cast(rewards, tf.float64)
        groups = tf.reshape(groups, [-1, self.options.group_size])
        return tf.cast(tf.reshape(groups - groups[:, :1], [-1]), self.policy.dtype)

    def policy_gradients(
        self, batch, count=None, uses_ratios=False, scale_loss=tf.identity
    ):
        """Returns the gradients of the surrogate loss of n completions, and metrics.

        Args:
            batch: `SequenceBatch` of n completions.
            count: Scalar int by which sums over completions are divided; `None` for n.
            uses_ratios: Bool, whether completions are weighted with their likelihood
                ratios (present probability divided by that at sampling), at most
                `ratio_clip`.
            scale_loss: Function that multiplies the loss by the optimizer's loss scale,
                which the gradients then contain.

        Returns:
            List with a gradient for each of `variables`; and the first three `METRICS`,
            each a sum over completions or tokens, divided by `count`.
        """
        completions = batch.completions
        count = tf.size(batch.kl) if count is None else count
        with tf.GradientTape() as tape:
            token_log_probs, entropies = self.policy.log_probs(completions)
            log_probs = _sum(token_log_probs)
            advantages = batch.advantages
            log_ratios = tf.stop_gradient(log_probs) - completions.row_log_probs
            if uses_ratios:
                # The KL penalty of the present policy, not of the one that has sampled.
                advantages -= batch.kl_weights * log_ratios
                advantages *= tf.minimum(tf.exp(log_ratios), self.options.ratio_clip)
            lengths = _sum(tf.cast(completions.sampled, log_probs.dtype))
            if self.options.length_normalization:
                advantages = tf.math.divide_no_nan(advantages, lengths)
            loss = losses.policy_gradient(log_probs, advantages, count)
            scaled = scale_loss(loss)
        gradients = losses.gradients(tape, scaled, self.variables)
        differences = tf.abs(token_log_probs - completions.log_probs)
        per_token = [
            tf.reduce_sum(tf.math.divide_no_nan(_sum(x), lengths))
            for x in (entropies, differences)
        ]
        sums = [loss * tf.cast(count, loss.dtype), *per_token]
        return gradients, [x / tf.cast(count, x.dtype) for x in sums]

    def update(self, completions, rewards, permutations):
        """Makes one update, which the caller undoes if a value is not finite.

        All gradient steps use the same rewards and advantages.

        Args:
            completions: `Completions` of R rows.
            rewards: `[R]` float.
            permutations: `[passes, R]` int32, random permutations of the rows. They are
                used only with minibatches or several passes.

        Returns:
            `[1 + len(METRICS)]` float64: one if all losses, gradients and weights are
            finite, else zero; and the values of `METRICS`.
        """
        batch = self.batch(completions, rewards)
        if self.options.has_minibatches:
            is_finite, metrics = self._minibatch_steps(batch, permutations)
        else:
            is_finite, metrics = self._step(batch, uses_ratios=False)
        variables = [*self.variables, *self.optimizer.variables]
        is_finite &= shapes.all_finite([v.value for v in variables if "float" in v.dtype])
        metrics = [*metrics, tf.reduce_mean(batch.kl)]
        return tf.stack([tf.cast(x, tf.float64) for x in (is_finite, *metrics)])

    def _step(self, batch, uses_ratios):
        """Makes a gradient step from the rows of a batch.

        Returns:
            Whether loss and gradients are finite, and a list of the first four `METRICS`.
        """
        count = tf.size(batch.kl)

        def terms(rows):
            gradients, metrics = self.policy_gradients(
                batch.rows(rows), count, uses_ratios, self.optimizer.scale_loss
            )
            return [*gradients, *metrics]

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.variables]
        zeros += [tf.zeros([], self.policy.dtype)] * 3
        sums = self._added_up(count, terms, zeros)
        gradients, metrics = sums[:-3], sums[-3:]
        norm = losses.global_norm(gradients)
        scale = self.optimizer.scale_loss(tf.ones([], norm.dtype))
        self.optimizer.apply(gradients, self.variables)
        # An optimizer with loss scaling itself skips a step that overflows.
        skips = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        is_finite = shapes.all_finite([metrics[0], *([] if skips else gradients)])
        return is_finite, [*metrics, norm / scale]

    def _minibatch_steps(self, batch, permutations):
        """Makes a gradient step from each minibatch of each pass."""
        size = self.options.minibatch_size
        count = minibatches.Minibatches.split(permutations[0], size).count

        def step(index, are_finite, sums, first):
            parts = minibatches.Minibatches.split(permutations[index // count], size)
            rows = parts.minibatch(index % count)
            is_finite, metrics = self._step(batch.rows(rows), uses_ratios=True)
            sums = [x + y for x, y in zip(sums, metrics, strict=True)]
            first = [tf.where(index == 0, y, x) for x, y in zip(first, metrics)]
            return index + 1, are_finite & is_finite, sums, first

        steps = count * self.options.passes
        zeros = [tf.zeros([], self.policy.dtype)] * 3
        zeros.append(losses.global_norm(zeros[:1]))
        start = tf.constant(0, tf.int64), tf.constant(True), zeros, zeros
        _, are_finite, sums, first = tf.while_loop(lambda i, *_: i < steps, step, start)
        means = [x / tf.cast(steps, x.dtype) for x in sums]
        # Entropy and difference describe the policy that has sampled the completions.
        return are_finite, [means[0], first[1], first[2], means[3]]


def _sum(tokens):
    return tf.reduce_sum(tokens, axis=1)
