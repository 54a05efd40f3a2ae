"""Lists the bugs that `run.py` plants in the package, one at a time.

The numbers B1 to B50 are well-known bugs of policy-gradient code. "own" are other bugs.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One small change that introduces a bug."""

    name: str
    bug: str  # "B1" to "B50" or "own", and a sentence
    function: str  # "folder/module.py::Class.method", or the module alone
    before: str  # occurs exactly once in the source of the function
    after: str

    @property
    def number(self):
        """Returns `"B1"` to `"B50"`, or `"own"`."""
        return self.bug.partition(": ")[0]

    @property
    def sentence(self):
        """Returns the description of the bug without its number."""
        return self.bug.partition(": ")[2]


GRADIENT = [
    Mutant(
        "state_discount_never",
        "B1: The factor γᵗ is missing although `discount_states` is True.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "options.discount_states",
        "False",
    ),
    Mutant(
        "state_discount_always",
        "B1: The factor γᵗ is applied although `discount_states` is False.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "if options.discount_states and",
        "if",
    ),
    Mutant(
        "state_discount_twice",
        "B1: Whole returns, which already contain the discount, are multiplied "
        "by γᵗ again.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        ' and options.returns == "to_go":',
        ":",
    ),
    Mutant(
        "whole_for_to_go",
        "B2: The return of the whole episode replaces the return to go.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        'options.returns == "whole"',
        "True",
    ),
    Mutant(
        "rewards_never_summed",
        "B2: The rewards are not summed into returns.",
        "functional/returns.py::lambda_returns",
        "returns[:-1]",
        "rewards",
    ),
    Mutant(
        "rewards_so_far",
        "B2: The return of a step is the sum of the rewards up to the step.",
        "functional/returns.py::lambda_returns",
        "returns[:-1]",
        "tf.cumsum(rewards)",
    ),
    Mutant(
        "mean_log_prob_times_sum",
        "B3: The mean of the log-probabilities is multiplied by the sum of the "
        "advantages.",
        "functional/losses.py::policy_gradient",
        "tf.reduce_sum(log_probs * advantages)",
        "tf.reduce_mean(log_probs) * tf.reduce_sum(advantages)",
    ),
    Mutant(
        "mean_over_steps",
        "B10: The loss is divided by the number of steps instead of the number "
        "of episodes.",
        "functional/losses.py::policy_gradient",
        "tf.cast(episodes, log_probs.dtype)",
        "tf.cast(tf.size(log_probs), log_probs.dtype)",
    ),
    Mutant(
        "own_length",
        "B10: The advantages of each episode are divided by the length of the episode.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "steps = valid_steps(episodes)",
        "advantages /= tf.cast(episodes.lengths, unbaselined.dtype)\n"
        "        steps = valid_steps(episodes)",
    ),
    Mutant(
        "record_broadcasts",
        "B4: Actions of shape `[T, B, 1]` are accepted where `[T, B]` is required.",
        "data/episodes.py::_array",
        "values.shape != shape",
        "False",
    ),
    Mutant(
        "loss_broadcasts",
        "B4: Log-probabilities of shape `[N]` are multiplied by advantages of "
        "shape `[N, 1]`.",
        "functional/losses.py::policy_gradient",
        '[(log_probs, "N"), (advantages, "N"), (episodes, ())]',
        "[(episodes, ())]",
    ),
    Mutant(
        "values_broadcast",
        "B4: Returns of shape `[N]` are subtracted from values of shape `[N, 1]`.",
        "functional/losses.py::value",
        '[(values, "N"), (returns, "N"), (episodes, ())]',
        "[(episodes, ())]",
    ),
    Mutant(
        "log_prob_per_dimension",
        "B5: The log-probability of a vector action is not summed over the "
        "dimensions of the action.",
        "heads/gaussian.py::Gaussian.distribution",
        "tfp.distributions.MultivariateNormalDiag(\n"
        '            loc=parameters["mean"], scale_diag=parameters["scale"]\n'
        "        )",
        'tfp.distributions.Normal(parameters["mean"], parameters["scale"])',
    ),
    Mutant(
        "log_prob_mean_over_dimensions",
        "B5: The log-probability of a vector action is the mean over its "
        "dimensions instead of the sum.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "actions.entropy()",
        "actions.entropy()\n            log_probs /= max((1, *self.head.action_shape))",
    ),
    Mutant(
        "padding_is_a_step",
        "B11: Padding counts as steps.",
        "data/episodes.py::valid",
        "tf.cast(lengths, tf.int32)",
        "rows + 0 * tf.cast(lengths, tf.int32)",
    ),
    Mutant(
        "padding_in_the_mean",
        "B11: Padding counts in the denominator of a mean.",
        "baselines/averages.py::Mean.estimate",
        "tf.reduce_sum(tf.cast(valid, returns.dtype))",
        "tf.cast(tf.size(valid), returns.dtype)",
    ),
    Mutant(
        "padding_times_zero",
        "B12: Padding is masked by a multiplication with zero, and NaN times "
        "zero is NaN.",
        "algorithm/estimator.py::PolicyGradientEstimator._rewards",
        "tf.where(valid, episodes.rewards, 0.0)",
        "episodes.rewards * tf.cast(valid, episodes.rewards.dtype)",
    ),
    Mutant(
        "z_score_always",
        "B8: The advantages are divided by their standard deviation although "
        "`scale_advantages` is None.",
        "algorithm/estimator.py::PolicyGradientEstimator._scaled_advantages",
        'self.options.scale_advantages == "batch"',
        "True",
    ),
    Mutant(
        "z_score_per_episode",
        "B9: The advantages of each episode are scaled separately.",
        "algorithm/estimator.py::PolicyGradientEstimator._scaled_advantages",
        "scale = tf.norm(advantages) / tf.sqrt(num_steps) + tolerance",
        "num_steps = tf.reduce_sum(tf.cast(valid, unbaselined.dtype), axis=0)\n"
        "            scale = tf.norm(advantages, axis=0)\n"
        "            scale = scale / tf.sqrt(num_steps) + tolerance",
    ),
    Mutant(
        "no_floor_under_the_scale",
        "B40: Advantages are divided by a deviation of zero.",
        "algorithm/estimator.py::PolicyGradientEstimator._scaled_advantages",
        "tf.norm(advantages) / tf.sqrt(num_steps) + tolerance",
        "tf.norm(advantages) / tf.sqrt(num_steps)",
    ),
    Mutant(
        "entropy_sign",
        "B22: The entropy term has the wrong sign.",
        "functional/losses.py::entropy",
        "-tf.reduce_sum(entropies)",
        "tf.reduce_sum(entropies)",
    ),
    Mutant(
        "entropy_coef_may_be_negative",
        "B22: A negative entropy coefficient is accepted.",
        "config.py::_coefficient",
        "validation.within(name, value, 0, math.inf)",
        "validation.within(name, value, -math.inf, math.inf)",
    ),
    Mutant(
        "entropy_of_the_sample",
        "B23: The negative log-probability of the sampled action replaces the entropy.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "log_probs, entropies = actions.log_prob(minibatch.actions), actions.entropy()",
        "log_probs = actions.log_prob(minibatch.actions)\n"
        "            entropies = -log_probs",
    ),
    Mutant(
        "training_mode",
        "B45: Dropout is active while log-probabilities are computed.",
        "algorithm/estimator.py::PolicyGradientEstimator.forward",
        "training=False",
        "training=True",
    ),
    Mutant(
        "half_precision",
        "B48: Log-probabilities are computed in half precision.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "actions.entropy()",
        "actions.entropy()\n"
        "            half = self.head.distribution(tf.cast(outputs, tf.float16))\n"
        "            log_probs = half.log_prob(minibatch.actions)\n"
        "            log_probs = tf.cast(log_probs, outputs.dtype)",
    ),
]

RETURNS_AND_BASELINES = [
    Mutant(
        "baseline_that_broadcasts",
        "B4: A baseline of shape `[B]` is subtracted from returns of shape `[T, B]`.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "self._check_baseline(baseline, unbaselined)",
        "pass",
    ),
    Mutant(
        "weights_without_gradient",
        "own: The gradient of a weight that does not affect the loss is None "
        "instead of zero.",
        "functional/losses.py::gradients",
        "tf.UnconnectedGradients.ZERO",
        "tf.UnconnectedGradients.NONE",
    ),
    Mutant(
        "cut_is_an_ending",
        "B16: A truncated episode is treated as terminated, so that its last "
        "value is not bootstrapped.",
        "functional/returns.py::coefficients",
        "~(last & terminated)",
        "~last",
    ),
    Mutant(
        "ending_is_a_cut",
        "B16: A terminated episode is treated as truncated, so that its last "
        "value is bootstrapped.",
        "functional/returns.py::coefficients",
        "valid & ~(last & terminated)",
        "valid",
    ),
    Mutant(
        "returns_leak",
        "B18: The return of an episode contains rewards of the next episode.",
        "functional/returns.py::lambda_returns",
        "discounts * lambdas",
        "tf.reduce_max(discounts) * lambdas",
    ),
    Mutant(
        "powers_of_gamma",
        "B39: Returns are divided by powers of γ, which underflow.",
        "functional/returns.py::discounted_returns",
        "return lambda_returns(rewards, discounts, zeros, ones)",
        "powers = tf.math.cumprod(discounts, exclusive=True)\n"
        "    return tf.cumsum(rewards * powers, reverse=True) / powers",
    ),
    Mutant(
        "float32_returns",
        "B39: Returns are computed in float32.",
        "functional/returns.py::discounted_returns",
        "zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)",
        "rewards, discounts = (tf.cast(x, tf.float32) for x in (rewards, "
        "discounts))\n"
        "    zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)",
    ),
    Mutant(
        "float32_record",
        "B39: The rewards of a record are rounded to float32.",
        "data/episodes.py::validate",
        '_array("rewards", rewards, (rows, count), "float64")',
        '_array("rewards", rewards, (rows, count), "float32")',
    ),
    Mutant(
        "baseline_divides_by_n",
        "B8: The leave-one-out baseline divides by n instead of n - 1.",
        "baselines/averages.py::LeaveOneOut.estimate",
        "axis=2, keepdims=True) - 1.0",
        "axis=2, keepdims=True)",
    ),
    Mutant(
        "baseline_sees_itself",
        "B8: The batch mean replaces the leave-one-out mean, so that the "
        "gradient is multiplied by (n - 1) / n.",
        "baselines/averages.py::LeaveOneOut.estimate",
        "axis=2, keepdims=True) - 1.0\n"
        "        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) - grouped",
        "axis=2, keepdims=True)\n"
        "        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) + 0 * "
        "grouped",
    ),
    Mutant(
        "gradient_through_advantages",
        "B19: The loss of the policy trains the baseline.",
        "functional/losses.py::policy_gradient",
        "tf.stop_gradient(tf.cast(advantages, log_probs.dtype))",
        "tf.cast(advantages, log_probs.dtype)",
    ),
    Mutant(
        "gradient_through_targets",
        "B19: The loss of the value model trains its own targets.",
        "functional/losses.py::value",
        "tf.stop_gradient(tf.cast(returns, values.dtype))",
        "tf.cast(returns, values.dtype)",
    ),
    Mutant(
        "baseline_knows_the_action",
        "B20: The baseline of a step is the value of the next observation, which "
        "depends on the action.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "self.baseline.estimate(unbaselined, valid, values[:-1])",
        "self.baseline.estimate(unbaselined, valid, values[1:])",
    ),
    Mutant(
        "baseline_learns_first",
        "B21: The baseline is fitted to a batch before the baseline is "
        "subtracted from the returns of the batch.",
        "algorithm/train_step.py::TrainStep.__call__",
        "permutation = permutations[0] if self.num_permutations else None\n",
        "permutation = permutations[0] if self.num_permutations else None\n"
        "        first = "
        "self.estimator.baseline_step(self.estimator.batch(episodes))\n"
        "        apply_gradients = self.estimator.baseline.apply_gradients\n"
        "        apply_gradients(first.gradients, first.baseline_batch)\n",
    ),
    Mutant(
        "critic_takes_one_step",
        "own: The value baseline skips every pass after the first.",
        "baselines/value.py::Value.apply_gradients",
        "minibatches.call_repeatedly(\n"
        "                self.passes - 1, lambda _: "
        "self._step_from(baseline_batch)\n"
        "            )",
        "pass",
    ),
    Mutant(
        "critic_takes_any_step",
        "own: The value baseline applies a further step although its gradients "
        "are not finite.",
        "baselines/value.py::Value._step_from",
        "finite = tf.reduce_all(finite)",
        "finite = tf.constant(True)",
    ),
    Mutant(
        "critic_without_a_unit",
        "own: The loss of a value baseline with a `scale` is not divided by the "
        "square of the scale.",
        "baselines/value.py::Value._gradients",
        "loss / self.scale**2",
        "loss",
    ),
    Mutant(
        "time_taken_for_batch",
        "own: `TimeDistributed` exchanges the axes of time and batch, as in Keras.",
        "algorithm/estimator.py::PolicyGradientEstimator.forward",
        "self.policy if self.recurrent is None else self.recurrent.sequence_model",
        "self.policy",
    ),
    Mutant(
        "means_begin_at_zero",
        "own: The initial means of actions are zero instead of the center of the bounds.",
        "agent.py::Reinforce.for_env",
        "seed, scaling,",
        "seed,",
    ),
    Mutant(
        "exported_masks_wrap",
        "own: The value 256 in an observed mask wraps to zero in the exported policy.",
        "serving/policy_functions.py::masks_in_batch",
        "tf.minimum(tf.maximum(part, -part), 3)",
        "part",
    ),
    Mutant(
        "siblings_are_everybody",
        "own: The baseline of a group uses the episodes of all groups.",
        "baselines/averages.py::LeaveOneOut.estimate",
        "self.group_size or episodes",
        "episodes",
    ),
    Mutant(
        "siblings_begin_apart",
        "own: The episodes of a group are reset with different seeds.",
        "data/seeding.py::EpisodeSeeds.reset_seed",
        "episode // self._group_size",
        "episode",
    ),
    Mutant(
        "average_forgets_what_it_did_not_see",
        "own: A batch that does not reach a time step reduces the weight of the "
        "average of this time step.",
        "baselines/averages.py::MovingAverage._add_means",
        "tf.where(weights > 0, tf.constant(self.decay, weights.dtype), 1.0)",
        "tf.constant(self.decay, weights.dtype)",
    ),
    Mutant(
        "decay_of_float32",
        "own: The decay of a moving average is rounded to float32 although the "
        "type is float64.",
        "baselines/averages.py::MovingAverage._add_means",
        "tf.constant(self.decay, weights.dtype)",
        "tf.cast(self.decay, weights.dtype)",
    ),
    Mutant(
        "normalizer_learns_first",
        "own: The normalizer is updated from a batch before the policy is updated.",
        "algorithm/train_step.py::TrainStep.__call__",
        "permutation = permutations[0] if self.num_permutations else None\n",
        "permutation = permutations[0] if self.num_permutations else None\n"
        "        self.estimator.update_normalizer(episodes)\n",
    ),
]

DISTRIBUTIONS = [
    Mutant(
        "log_of_softmax",
        "B25: The log-probabilities are the logarithm of a softmax, which is "
        "-inf for a logit that is 100 below the largest.",
        "heads/categorical.py::Categorical.distribution",
        "logits=outputs",
        "logits=tf.math.log(tf.nn.softmax(outputs))",
    ),
    Mutant(
        "log_of_softmax_plus_epsilon",
        "B25: The log-probabilities are the logarithm of a softmax plus 1e-8, so "
        "that unlikely actions have no gradient.",
        "heads/categorical.py::Categorical.distribution",
        "logits=outputs",
        "logits=tf.math.log(tf.nn.softmax(outputs) + 1e-8)",
    ),
    Mutant(
        "soft_labels",
        "B26: The cross-entropy uses labels that do not sum to 1, so that the "
        "loss is right and the gradient is wrong.",
        "functional/losses.py::Reinforce.call",
        "return tf.nn.sparse_softmax_cross_entropy_with_logits(actions, y_pred)",
        "labels = 2.0 * tf.one_hot(actions, y_pred.shape[-1])\n"
        "            both = tf.nn.softmax_cross_entropy_with_logits(labels, "
        "y_pred)\n"
        "            return both / 2.0",
    ),
    Mutant(
        "odds_for_probabilities",
        "B27: The probabilities of a `Categorical` do not sum to 1.",
        "heads/categorical.py::Categorical.parameters",
        "tf.nn.softmax",
        "tf.exp",
    ),
    Mutant(
        "probabilities_for_logits",
        "B28: A `Categorical` distribution receives probabilities as its logits.",
        "heads/categorical.py::Categorical.distribution",
        "logits=outputs",
        "tf.nn.softmax(outputs)",
    ),
    Mutant(
        "fractions_in_a_record",
        "B29: The action 0.5 in a record is truncated to 0.",
        "data/episodes.py::_array",
        'not np.can_cast(values.dtype, dtype, "same_kind")',
        "False",
    ),
    Mutant(
        "fractions_in_the_loss",
        "B29: The action 0.5 is truncated to 0 in the Keras loss.",
        "functional/losses.py::_to_integers",
        "integers = tf.cast(actions, dtype)",
        "return tf.cast(actions, dtype)\n    integers = tf.cast(actions, dtype)",
    ),
    Mutant(
        "action_out_of_range",
        "B30: A discrete action above the largest valid action is accepted.",
        "heads/categorical.py::Categorical.is_valid",
        "(actions >= 0) & (actions < self.size)",
        "actions >= 0",
    ),
    Mutant(
        "odds_in_the_multinomial",
        "B27: `Multinomial(probs=…)` of TensorFlow Probability receives weights, "
        "which TensorFlow Probability does not normalize.",
        "heads/multinomial.py::_MultinomialWithEntropy._log_prob",
        "super()._log_prob(counts)",
        "tfp.distributions.Multinomial(\n"
        "            self.total_count, probs=tf.exp(self.logits)\n"
        "        ).log_prob(counts)",
    ),
    Mutant(
        "counts_of_another_sum",
        "B30: Counts are accepted although their sum is not the number of trials.",
        "heads/multinomial.py::Multinomial.is_valid",
        "(actions >= 0) & correct_sum",
        "actions >= 0",
    ),
    Mutant(
        "one_noise_for_all_trials",
        "B36: All trials of a multinomial action use equal noise.",
        "heads/multinomial.py::Multinomial.sample",
        "categorical.gumbel(noise)",
        "categorical.gumbel(noise[..., :1, :] + 0.0 * noise)",
    ),
    Mutant(
        "entropy_of_sure_counts",
        "own: The entropy of counts is computed from 1 - p, and its gradient is "
        "NaN if p rounds to 1.",
        "heads/multinomial.py::_log_probs_and_complements",
        "tf.reduce_logsumexp(others, axis=-1) - total",
        "tf.math.log(1.0 - tf.exp(logits - total))",
    ),
    Mutant(
        "eligibility_of_simplex",
        "B27: The eligibility of normalized probabilities is n/p, without the "
        "term of the normalization.",
        "functional/eligibility.py::multinomial_probs",
        "_counts_over_probs(counts, probs) - trials / total",
        "_counts_over_probs(counts, probs)",
    ),
    Mutant(
        "eligibility_of_one_neuron",
        "own: Only the logit of the sampled action receives an eligibility.",
        "functional/eligibility.py::categorical_logits",
        "_one_hot(actions, logits) - tf.nn.softmax(logits)",
        "_one_hot(actions, logits) * (1.0 - tf.nn.softmax(logits))",
    ),
    Mutant(
        "eligibility_of_deviation",
        "own: The eligibility of σ lacks the term -1/σ, so that every sample "
        "increases σ.",
        "functional/eligibility.py::gaussian",
        "(z**2 - 1.0) / std",
        "z**2 / std",
    ),
    Mutant(
        "eligibility_of_squashed",
        "B7: The squashed action replaces the Gaussian sample in an eligibility.",
        "functional/eligibility.py::tanh_gaussian",
        "tf.atanh(actions)",
        "actions",
    ),
    Mutant(
        "start_ignored",
        "B31: `Discrete(start=…)` is ignored when an action is sent to the environment.",
        "heads/categorical.py::Categorical.to_environment",
        "actions + self.start if self.start else actions",
        "actions",
    ),
    Mutant(
        "bounds_ignored",
        "B32: Actions are not clipped to the bounds of their `Box`.",
        "heads/box.py::BoxHead.to_environment",
        "tf.reshape(clipped, [-1, *self.shape])",
        "tf.reshape(actions, [-1, *self.shape])",
    ),
    Mutant(
        "bounds_rounded_outwards",
        "B32: The action float32(0.1) is sent to a `Box` with the float64 bound "
        "0.1, which is smaller.",
        "heads/box.py::_round",
        "np.where(outside, inward, rounded)",
        "rounded",
    ),
    Mutant(
        "reparameterised_action",
        "B43: The gradient flows through the sampled action, so that the "
        "gradient of the mean is zero.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "log_probs, entropies = actions.log_prob(minibatch.actions), actions.entropy()",
        "taken = minibatch.actions\n"
        "            if taken.dtype.is_floating:\n"
        "                taken = outputs + tf.stop_gradient(taken - outputs)\n"
        "            log_probs, entropies = actions.log_prob(taken), "
        "actions.entropy()",
    ),
    Mutant(
        "scale_exponentiated_twice",
        "B44: The scale is exp(exp(log σ)) instead of exp(log σ).",
        "heads/normal.py::GaussianHead._scale",
        "tf.cast(self.log_scale, outputs.dtype)",
        "tf.exp(tf.cast(self.log_scale, outputs.dtype))",
    ),
    Mutant(
        "sampler_and_scorer_differ",
        "B44: The sampler computes σ by softplus, and the log-probability "
        "computes σ by exp.",
        "heads/normal.py::GaussianHead.sample",
        "self._mean(outputs) + self._scale(outputs) * noise",
        "outputs + tf.nn.softplus(tf.cast(self.log_scale, outputs.dtype)) * noise",
    ),
    Mutant(
        "infinite_masks",
        "B24: Illegal logits are -inf, so that the gradient of the entropy is NaN.",
        "heads/categorical.py::mask_logits",
        "logits.dtype.min / 2",
        "-float('inf')",
    ),
    Mutant(
        "counts_overflow_under_a_mask",
        "B24: The entropy of counts overflows when a masked logit is multiplied "
        "by the number of trials.",
        "heads/multinomial.py::_MultinomialWithEntropy._entropy",
        "tf.maximum(tf.cast(self.logits, tf.float64), _MIN_LOGIT)",
        "tf.cast(self.logits, tf.float64)",
    ),
    Mutant(
        "masks_by_a_penalty",
        "own: Illegal logits are reduced by 1000, which is too little for "
        "policies with large logits.",
        "heads/categorical.py::mask_logits",
        "tf.constant(logits.dtype.min / 2, logits.dtype)",
        "logits - 1e3",
    ),
    Mutant(
        "mask_forgotten_in_the_score",
        "own: The mask applies to samples but not to log-probabilities.",
        "algorithm/estimator.py::PolicyGradientEstimator.mask_outputs",
        "self.head.mask_outputs(outputs, steps.gather(masks))",
        "outputs",
    ),
    Mutant(
        "marks_wrap",
        "own: The value 256 in a mask wraps to 0 in int8.",
        "data/mask_layouts.py::MaskLayout.flatten",
        ".astype(bool)",
        "",
    ),
    Mutant(
        "padding_can_be_chosen",
        "B30: The logits that pad choices of different sizes can be sampled.",
        "heads/multi_categorical.py::MultiCategorical._to_block",
        "categorical.mask_logits(block, self._is_padding)",
        "block",
    ),
    Mutant(
        "choices_not_summed",
        "B5: The log-probabilities of several choices are not summed.",
        "heads/multi_categorical.py::MultiCategorical.distribution",
        "tfp.distributions.Independent(choices, 1)",
        "tfp.distributions.Independent(choices, 0)",
    ),
    Mutant(
        "one_noise_for_all_choices",
        "B36: All choices of an action use equal noise.",
        "heads/multi_categorical.py::MultiCategorical.sample",
        "self._indices",
        "self._indices - self._offsets[:, None]",
    ),
    Mutant(
        "choices_centred_together",
        "own: The logits of each choice are not centered, so that a large common "
        "offset absorbs the noise.",
        "heads/multi_categorical.py::MultiCategorical.sample",
        "categorical.center_logits(self._to_block(outputs))",
        "self._to_block(outputs)",
    ),
    Mutant(
        "starts_ignored",
        "B31: `MultiDiscrete(start=…)` is ignored when an action is sent to the "
        "environment.",
        "heads/multi_categorical.py::MultiCategorical.to_environment",
        "np.any(self.start)",
        "False",
    ),
    Mutant(
        "one_choice_of_several_out_of_range",
        "B30: A choice above its largest valid value is accepted if the value is "
        "valid for another choice.",
        "heads/multi_categorical.py::MultiCategorical.is_valid",
        "np.array(self.sizes)",
        "max(self.sizes)",
    ),
    Mutant(
        "switches_from_probabilities",
        "B25: A `Bernoulli` distribution is made from probabilities, and log 0 "
        "occurs for large logits.",
        "heads/bernoulli.py::Bernoulli.distribution",
        "logits=outputs",
        "probs=tf.sigmoid(outputs)",
    ),
    Mutant(
        "switch_on_by_zero_noise",
        "own: Noise of exactly zero turns on a switch whose probability is almost zero.",
        "heads/bernoulli.py::Bernoulli.sample",
        "noise = tf.maximum(noise, np.finfo(outputs.dtype.as_numpy_dtype).eps / 4)",
        "pass",
    ),
    Mutant(
        "sigmoid_of_huge_logits",
        "own: The sigmoid of LiteRT returns NaN for a masked logit, so that "
        "TensorFlow replaces LiteRT.",
        "heads/bernoulli.py::_sigmoid",
        "tf.clip_by_value(logits, -1e4, 1e4)",
        "logits",
    ),
    Mutant(
        "masks_compared_in_int8",
        "own: Masks are compared in int8, which LiteRT does not support, so that "
        "TensorFlow replaces LiteRT.",
        "policies/actor.py::ActorPolicy.outputs",
        "mask = tf.cast(mask, tf.int32)  # LiteRT compares no smaller integers",
        "mask = tf.cast(mask, tf.int8)",
    ),
    Mutant(
        "switch_that_must_be_on",
        'own: The mask value 1 of a `MultiBinary` means "free" instead of "must be on".',
        "heads/bernoulli.py::Bernoulli.mask_outputs",
        "tf.where(base.mask_equals(mask, mask_layouts.ON), large, outputs)",
        "outputs",
    ),
    Mutant(
        "leaves_share_a_mask",
        "own: Every leaf of a nested action uses the first elements of the mask.",
        "heads/composite.py::Composite._split_mask",
        "np.split(mask, ends[:-1], axis=-1)",
        "[mask[..., : leaf.mask_size] for leaf in self.leaves]",
    ),
    Mutant(
        "leaves_lost",
        "own: Keras does not track the weights of nested heads, so that the "
        "weights are neither trained nor saved.",
        "heads/composite.py::Composite.__init__",
        "self.leaves = keras.tree.flatten(heads)",
        "self.leaves = ()\n        self.__dict__['leaves'] = keras.tree.flatten(heads)",
    ),
    Mutant(
        "tuples_become_lists",
        "own: A tuple of heads is loaded from a file as a list.",
        "heads/composite.py::_from_config",
        'tuple(_from_config(part) for part in config["parts"])',
        '[_from_config(part) for part in config["parts"]]',
    ),
    Mutant(
        "clipped_scored_as_unclipped",
        "B6: The log-probability of a clipped action is the log-density of an "
        "unclipped Gaussian.",
        "heads/clipped.py::_ClippedNormal._log_prob",
        "tf.where(below | above, _log_cdf(tail_z), density)",
        "-(z**2) / 2 - tf.math.log(self.scale) - math.log(math.tau) / 2",
    ),
    Mutant(
        "bounds_out_of_sight",
        "own: The distance of a bound is divided by a small scale, and the "
        "gradient of the overflowing quotient is NaN.",
        "heads/clipped.py::_ClippedNormal._z_of_bound",
        "finite & (tf.abs(difference) < _MAX_Z * self.scale)",
        "finite",
    ),
    Mutant(
        "bounds_that_are_no_bounds",
        "B6: An action on a bound is treated as an action between the bounds.",
        "heads/clipped.py::_ClippedNormal._log_prob",
        "actions <= self.low, actions >= self.high",
        "actions < self.low, actions > self.high",
    ),
    Mutant(
        "tail_from_its_probability",
        "own: ln Φ is computed from Φ, which underflows to zero in the tail.",
        "heads/clipped.py::_log_cdf",
        "tf.math.log(tfp.math.erfcx(-lower / sqrt_2) / 2) - lower**2 / 2",
        "tf.math.log(tf.math.erfc(-lower / sqrt_2) / 2)",
    ),
    Mutant(
        "entropy_without_its_bounds",
        "own: The entropy of a clipped Gaussian lacks the terms of the two bounds.",
        "heads/clipped.py::_ClippedNormal._entropy",
        "normal_entropy * inside + edges / 2 - atoms[0] - atoms[1]",
        "normal_entropy * inside + edges / 2",
    ),
    Mutant(
        "eligibility_of_clipped_turned",
        "own: The eligibility of an action on a bound has the wrong sign.",
        "functional/eligibility.py::clipped_gaussian",
        "side * ratio",
        "-side * ratio",
    ),
    Mutant(
        "jacobian_left_out",
        "B7: The log-density of a squashed action lacks the derivative of the tanh.",
        "heads/tanh.py::_TanhNormal._log_prob",
        "density + 2.0 * _log_cosh(x)",
        "density",
    ),
    Mutant(
        "jacobian_turned",
        "B7: The density of a squashed action is multiplied by the derivative of "
        "the tanh instead of divided.",
        "heads/tanh.py::_TanhNormal._log_prob",
        "density + 2.0 * _log_cosh(x)",
        "density - 2.0 * _log_cosh(x)",
    ),
    Mutant(
        "jacobian_from_the_action",
        "B7: ln(1 - tanh² x) is computed from a tanh that rounds to 1.",
        "heads/tanh.py::_log_cosh",
        "x + tf.nn.softplus(-2.0 * x) - math.log(2.0)",
        "-tf.math.log1p(-(tf.tanh(x) ** 2)) / 2",
    ),
    Mutant(
        "squashed_action_unmapped",
        "B32: The squashed action is sent to the environment without the "
        "conversion to the bounds of the `Box`.",
        "heads/tanh.py::TanhGaussian.to_environment",
        "self.rescale(fractions, complements)",
        "tf.tanh(actions)",
    ),
    Mutant(
        "whole_numbers_cut",
        "B32: Actions for an integer `Box` are rounded down instead of to the "
        "nearest integer.",
        "heads/box.py::BoxHead.to_environment",
        "tf.round(actions)",
        "tf.floor(actions)",
    ),
    Mutant(
        "whole_bounds_as_floats",
        "B32: The bound 2⁶³ - 1 of an integer `Box` is stored as the float 2⁶³, "
        "which is outside the `Box`.",
        "heads/box.py::BoxHead.__init__",
        "high, math.floor if integer else float)",
        "high)",
    ),
    Mutant(
        "scale_without_a_bound",
        "own: A state-dependent scale has no upper bound.",
        "heads/normal.py::GaussianHead._scale",
        "_MAX_LOG_RATIO * tanh",
        "outputs[..., self.size :]",
    ),
    Mutant(
        "eligibility_of_unbent_scale",
        "own: The eligibility of a bounded scale lacks the derivative of the bound.",
        "heads/normal.py::GaussianHead.chain_rule",
        "slopes.log_std * (1.0 - tanh**2)",
        "slopes.log_std",
    ),
    Mutant(
        "concentrations_below_one",
        "B49: Concentrations of a Beta distribution can be below 1, so that the "
        "density is infinite at a bound.",
        "heads/beta.py::Beta.parameters",
        '{"concentration1": 1.0 + a, "concentration0": 1.0 + b}',
        '{"concentration1": a, "concentration0": b}',
    ),
    Mutant(
        "draws_at_the_border",
        "B49: Samples of a Beta distribution round to 0 or 1, where the "
        "log-density is infinite.",
        "heads/beta.py::_clip_to_open",
        "tf.clip_by_value(y, limits.tiny, 1.0 - limits.epsneg)",
        "y",
    ),
    Mutant(
        "concentrations_swapped",
        "own: The sampler of a Beta distribution exchanges α and β.",
        "heads/beta.py::Beta.sample",
        "self._excess(outputs)",
        "self._excess(outputs)[::-1]",
    ),
    Mutant(
        "every_attempt_accepted",
        "own: Rejection sampling always accepts the first proposal.",
        "heads/beta.py::sample_beta",
        "accepted = cost <=",
        "accepted = cost >= 0.0 * cost; cost <=",
    ),
    Mutant(
        "digits_lost_in_the_rejection",
        "own: The acceptance test computes ln(1 + x) and eˣ - 1 directly, which "
        "is inaccurate for large concentrations.",
        "heads/beta.py::sample_beta",
        "cost = concentration * (_log1p(p * _expm1(log_odds)) - p * log_odds)",
        "cost = concentration * (\n"
        "        tf.math.log(1.0 - p + p * tf.exp(log_odds)) - p * log_odds\n"
        "    )",
    ),
    Mutant(
        "softplus_that_overflows",
        "own: A softplus of large outputs overflows in LiteRT, which computes "
        "ln(1 + eˣ).",
        "heads/beta.py::Beta._excess",
        "tf.nn.softplus(tf.minimum(outputs, 40.0)) + tf.nn.relu(outputs - 40.0)",
        "tf.nn.softplus(outputs)",
    ),
]

EPISODES = [
    Mutant(
        "clipped_action_stored",
        "B6: The record contains the clipped action instead of the sampled action.",
        "collect/host_loop.py::CollectionLoop._run",
        "zip(views[count:], raw_actions)",
        "zip(views[count:], env_actions)",
    ),
    Mutant(
        "phantom_row",
        "B13: The row in which `NEXT_STEP` resets an environment is recorded as a step.",
        "collect/vector_envs.py::VectorEnvAdapter.step",
        "ended, was_reset",
        "ended, ended",
    ),
    Mutant(
        "reset_for_final_observation",
        "B14: The last observation is taken from the reset instead of from `final_obs`.",
        "collect/vector_envs.py::VectorEnvAdapter._reset_ended",
        '{i: infos["final_obs"][i] for i in env_indices}',
        "{}",
    ),
    Mutant(
        "last_observation_overwritten",
        "B14: The last observation is a view of an array that the next reset overwrites.",
        "collect/scheduler.py::EpisodeInProgress.finish",
        "array[self.env_index].copy()",
        "array[self.env_index]",
    ),
    Mutant(
        "stale_reset_flag",
        "B15: An explicit reset keeps the flags of environments that are to be reset.",
        "collect/vector_envs.py::VectorEnvAdapter.reset",
        "self._resetting = np.zeros(self.num_envs, bool)",
        'self._resetting = getattr(self, "_resetting", np.zeros(self.num_envs, bool))',
    ),
    Mutant(
        "cut_recorded_as_ending",
        "B16: An episode that reaches the time limit is recorded as terminated.",
        "collect/batched_envs.py::SyncEnvs._truncate",
        "self._episode_end(env_index, False)",
        "self._episode_end(env_index, True)",
    ),
    Mutant(
        "both_flags_are_a_cut",
        "B17: An episode that is terminated and truncated is recorded as truncated only.",
        "collect/batched_envs.py::SyncEnvs.step",
        "self._episode_end(env_index, terminated)",
        "self._episode_end(env_index, terminated and not truncated)",
    ),
    Mutant(
        "both_flags_are_a_cut_in_a_vector",
        "B17: An episode of a vector environment that is terminated and "
        "truncated is recorded as truncated only.",
        "collect/vector_envs.py::VectorEnvAdapter.step",
        "terminations[env_index]",
        "terminations[env_index] > truncations[env_index]",
    ),
    Mutant(
        "first_to_finish",
        "B33: A batch contains the first episodes to end instead of the first "
        "episodes to start.",
        "collect/scheduler.py::EpisodeScheduler",
        "return len(self.episodes) < self._count\n"
        "        self._ended_steps += sum(x.length for x in self.running)\n"
        "        self.running = [x for x in self.running if not x.length]\n"
        "        running_steps = sum(row - x.start_row for x in self.running)\n"
        "        return self._ended_steps + running_steps < self._steps\n"
        "\n"
        "    def result(self):\n"
        '        """Returns the episodes of the collection, or `None` until all have '
        'ended."""\n'
        "        if self._steps is None:\n"
        "            has_all = len(self.episodes) == self._count\n"
        "            complete = has_all and all(x.length for x in self.episodes)\n"
        "            return self.episodes if complete else None",
        "return True\n"
        "        self._ended_steps += sum(x.length for x in self.running)\n"
        "        self.running = [x for x in self.running if not x.length]\n"
        "        running_steps = sum(row - x.start_row for x in self.running)\n"
        "        return self._ended_steps + running_steps < self._steps\n"
        "\n"
        "    def result(self):\n"
        '        """Returns the episodes of the collection, or `None` until all have '
        'ended."""\n'
        "        if self._steps is None:\n"
        "            finished = [x for x in self.episodes if x.length][: self._count]\n"
        "            return finished if len(finished) == self._count else None",
    ),
    Mutant(
        "order_of_finishing",
        "own: The episodes of a batch are in the order of their ends instead of "
        "their starts.",
        "collect/scheduler.py::EpisodeScheduler.result",
        "self.episodes if complete else None",
        "sorted(self.episodes, key=lambda x: x.start_row + x.length) "
        "if complete else None",
    ),
    Mutant(
        "cut_episodes_dropped",
        "own: Truncated episodes are missing in the batch.",
        "collect/in_process.py::collect",
        "loop.play(act)",
        "[x for x in loop.play(act) if x.end.terminated]",
    ),
    Mutant(
        "empty_episodes",
        "B41: An episode without steps is accepted.",
        "data/episodes.py::validate",
        "lengths.min() < 1",
        "lengths.min() < 0",
    ),
    Mutant(
        "greedy_training",
        "B46: Training takes the most likely action instead of a sample.",
        "training/trainer.py::Trainer._request",
        "group_size=size",
        "True, group_size=size",
    ),
    Mutant(
        "drawn_evaluation",
        "B46: `evaluate` samples actions by default.",
        "agent.py::Reinforce.evaluate",
        "deterministic: bool = True",
        "deterministic: bool = False",
    ),
    Mutant(
        "drawn_validation",
        "B46: Validation samples actions.",
        "agent.py::Reinforce.fit.validate",
        "validation_episodes, settings)",
        "validation_episodes, settings, deterministic=False)",
    ),
    Mutant(
        "clipped_rewards_reported",
        "B47: The reported return is the sum of clipped rewards.",
        "data/episode_statistics.py::episode_returns",
        "episodes.rewards",
        "np.clip(episodes.rewards, -1, 1)",
    ),
    Mutant(
        "clipped_rewards_recorded",
        "B47: The record contains clipped rewards.",
        "collect/batched_envs.py::SyncEnvs.step",
        "rewards[env_index] = reward",
        "rewards[env_index] = max(-1.0, min(1.0, reward))",
    ),
    Mutant(
        "fewer_actions_than_slots",
        "B50: A vector environment receives actions for its active environments only.",
        "collect/vector_envs.py::VectorEnvAdapter.step",
        "np.stack(parts), *actions)",
        "np.stack(parts), *[actions[i] for i in active])",
    ),
]

FAULTS = [
    Mutant(
        "vector_reward_not_checked",
        "own: A reward inside a vector environment is not checked before Gymnasium "
        "converts the reward.",
        "collect/sub_envs.py::_check_step",
        "env_outputs.read_reward(env_index, reward)",
        "pass",
    ),
    Mutant(
        "replacement_repeats_the_episode",
        "own: The replacement of a dropped episode has the random streams of the "
        "dropped episode.",
        "collect/scheduler.py::EpisodeInProgress.stream_number",
        "self.replacements * _REPLACEMENT",
        "0",
    ),
    Mutant(
        "nan_kept_in_a_batch_that_drops",
        "own: An episode with an observation that is not finite is not dropped.",
        "collect/batched_envs.py::_not_finite",
        'x.dtype.kind == "f"',
        "False",
    ),
    Mutant(
        "padding_outside_the_bounds",
        "own: Padding is reported as an observation outside its bounds.",
        "collect/bounds.py::_describe",
        "((array < low) | (array > high)) & valid",
        "(array < low) | (array > high)",
    ),
]

MASKS_ON_THE_WAY = [
    Mutant(
        "mask_of_the_step_before",
        "B24: An action is sampled under the mask of the previous step.",
        "collect/host_loop.py::CollectionLoop._run",
        "[*observations, *policy_states, *noise.row(row, active)]",
        "[*observations, *policy_states, *noise.row(row, active)]\n"
        "            if self.mask_layout is not None and row:\n"
        "                previous = buffer.observation_row(row - 1)[-1]\n"
        "                inputs[len(observations) - 1] = previous",
    ),
    Mutant(
        "illegal_record_accepted",
        "B24: A record with illegal actions is accepted.",
        "heads/base.py::Head.check_actions",
        "~self.is_legal(actions, masks)",
        "False",
    ),
    Mutant(
        "state_kept_over_episodes",
        "own: The recurrent state of an episode is not reset for the next episode.",
        "collect/host_loop.py::CollectionLoop._start",
        "self.recurrent_states.reset(env_index)",
        "pass",
    ),
    Mutant(
        "state_not_handed_on",
        "own: Every action is computed from the initial recurrent state.",
        "collect/host_loop.py::CollectionLoop._run",
        "zip(policy_states, states)",
        "()",
    ),
    Mutant(
        "dead_end_acted_on",
        "B24: A mask without any legal action raises no error.",
        "collect/host_loop.py::CollectionLoop._check_masks",
        "not has_legal_action[env_index]",
        "False",
    ),
]

RANDOMNESS = [
    Mutant(
        "one_noise_for_all_episodes",
        "B36: All episodes use equal action noise.",
        "data/seeding.py::EpisodeSeeds.action_generator",
        'self.seed_words("action", episode)',
        'self.seed_words("action", 0)',
    ),
    Mutant(
        "noise_without_its_seed",
        "B36: `act` uses equal noise for every seed.",
        "data/seeding.py::stateless_noise",
        "tf.cast(seed, tf.int64)",
        "tf.zeros([], tf.int64)",
    ),
    Mutant(
        "noise_by_slot",
        "B36: Action noise depends on the index of the environment instead of "
        "the number of the episode.",
        "collect/host_loop.py::CollectionLoop._start",
        "self.seeds.action_generator(episode.stream_number, i)",
        "self.seeds.action_generator(env_index, i)",
    ),
    Mutant(
        "one_stream_for_both",
        "B37: Environments and actions use one random stream.",
        "data/seeding.py::EpisodeSeeds.__init__",
        'f"{stream}/{kind}"',
        'f"{stream}/environment"',
    ),
    Mutant(
        "actions_from_the_environment_s_seed",
        "B37: Action noise comes from the generator that the environment creates "
        "from its seed.",
        "data/seeding.py::EpisodeSeeds.action_generator",
        "np.random.Generator(bits.jumped(part) if part else bits)",
        "np.random.default_rng(self.reset_seed(episode))",
    ),
    Mutant(
        "seed_plus_i",
        "B38: Environment i of a run is seeded with seed + i.",
        "data/seeding.py::EpisodeSeeds.reset_seed",
        "int(words[0] % _NUM_ENVIRONMENT_SEEDS)",
        'self._keys["environment"][0] + episode',
    ),
    Mutant(
        "same_episodes_in_every_update",
        "B38: Every update collects episodes from equal seeds.",
        "data/seeding.py::EpisodeSeeds.__init__",
        'f"{stream}/{kind}", update)',
        'f"{stream}/{kind}", 0)',
    ),
    Mutant(
        "evaluation_plays_training_episodes",
        "B38: Evaluation uses the random stream of training.",
        "data/seeding.py::EpisodeSeeds.__init__",
        'f"{stream}/{kind}"',
        'f"training/{kind}"',
    ),
]

STATE = [
    Mutant(
        "normalizer_learns_when_called",
        "B34: The normalizer is updated in evaluation, prediction and export.",
        "policies/normalization.py::RunningNormalization.call",
        "flat = [tf.convert_to_tensor(x) for x in keras.tree.flatten(observations)]",
        "self.update(observations)\n"
        "        flat = [tf.convert_to_tensor(x) for x in "
        "keras.tree.flatten(observations)]",
    ),
    Mutant(
        "variance_without_the_gap",
        "B35: The running variance lacks the term of the difference of the means.",
        "policies/normalization.py::RunningNormalization.update",
        "old_squares + new_squares + between",
        "old_squares + new_squares",
    ),
    Mutant(
        "variance_far_from_zero",
        "B35: The running variance loses precision for data with a large mean.",
        "policies/normalization.py::RunningNormalization.update",
        "tf.where(old_count > 0, origin, leaf[0])",
        "tf.zeros_like(leaf[0])",
    ),
    Mutant(
        "not_finite_applied",
        "B42: An update is applied although its new weights are not finite.",
        "algorithm/train_step.py::TrainStep.__call__",
        'finite &= _all_finite([v for v in self.variables if "float" in v.dtype])',
        "pass",
    ),
    Mutant(
        "only_the_loss_is_checked",
        "B42: An update is applied if the loss is finite and the gradients are not.",
        "algorithm/train_step.py::TrainStep._step_finite",
        "[loss] if self._skips_overflow else [loss, *gradients]",
        "[loss]",
    ),
    Mutant(
        "only_the_policy_is_checked",
        "B42: An update is applied although the gradients of the baseline are "
        "not finite.",
        "algorithm/train_step.py::TrainStep._statistics_finite",
        "_all_finite(baseline_step.gradients) | empty",
        "tf.constant(True)",
    ),
    Mutant(
        "old_weights_act",
        "own: The acting program keeps its initial weights.",
        "collect/acting_program.py::ActingProgram.for_batch",
        "            )\n        runners[key].set_weights(weights)",
        "            )\n            runners[key].set_weights(weights)",
    ),
    Mutant(
        "file_written_in_place",
        "own: A file is written under its final name, so that a killed process "
        "leaves a part of the file.",
        "files.py::atomic_write",
        "os.path.join(temporary_folder, os.path.basename(path))",
        "path",
    ),
    Mutant(
        "file_not_flushed",
        "own: A temporary file is renamed before its content is on the disk.",
        "files.py::atomic_write",
        "_flush(temporary)\n        os.replace(temporary, path)",
        "os.replace(temporary, path)",
    ),
    Mutant(
        "optimizer_state_lost",
        "own: A loaded agent has an optimizer without its saved state.",
        "training/keras_agent.py::KerasAgent.compile_from_config",
        "if self.built:\n            self._build_optimizer()",
        "self.optimizer.load_own_variables = lambda store: None\n"
        "        self._build_optimizer()",
    ),
    Mutant(
        "optimizer_built_on_too_much",
        "own: The optimizer of a loaded agent also has slots for the weights of "
        "the baseline.",
        "training/keras_agent.py::KerasAgent.compile_from_config",
        "if self.built:\n            self._build_optimizer()",
        "super().compile_from_config(config)",
    ),
]

OBSERVATIONS = [
    Mutant(
        "one_hot_from_zero",
        "B31: `Discrete(start=…)` is ignored when an observation is encoded as one-hot.",
        "policies/default_policy.py::OneHot.__init__",
        "np.arange(n) + start for n, start",
        "np.arange(n) for n, start",
    ),
    Mutant(
        "image_not_scaled",
        "own: The convolutions receive pixel values from 0 to 255.",
        "policies/default_policy.py::_convolutions",
        "1.0 / max(float(space.high.max()), 1.0)",
        "1.0",
    ),
    Mutant(
        "frames_as_rows",
        "own: Stacked frames of shape `[C, H, W]` are treated as `[H, W, C]`.",
        "policies/default_policy.py::_image_axes",
        "(1, 2, 3) if channels_last else (2, 3, 1)",
        "(1, 2, 3)",
    ),
    Mutant(
        "bounds_of_the_type",
        "own: Integers are divided by the bounds of their type, so that all "
        "quotients are nearly zero.",
        "data/spaces.py::middle_and_half",
        "(high - low < UNBOUNDED_WIDTH) & (high > low)",
        "high > low",
    ),
    Mutant(
        "arrays_in_each_others_places",
        "own: A policy whose inputs have other names receives the arrays of an "
        "observation in the wrong inputs.",
        "policies/models.py::call_on_examples",
        'warnings.filterwarnings("error", ',
        'warnings.filterwarnings("ignore", ',
    ),
    Mutant(
        "whole_numbers_normalised",
        "own: The agent normalizes pixels.",
        "data/spaces.py::is_quantity",
        "is_image or is_flags",
        "is_flags",
    ),
    Mutant(
        "statistics_of_images",
        "own: The normalizer stores float64 statistics of every pixel.",
        "data/tensor_specs.py::normalized_shapes",
        "(None, *leaf.shape) if flag else ()",
        "(None, *leaf.shape)",
    ),
    Mutant(
        "choice_out_of_range",
        "B30: An observed choice outside its space is accepted.",
        "collect/env_outputs.py::_discrete_reader.read",
        "not start <= part < stop",
        "False",
    ),
    Mutant(
        "choices_cut_to_eight_bits",
        "B30: The observed choice 256 is recorded as 0.",
        "collect/env_outputs.py::_array_reader.read",
        "if bounds and not (",
        "if False and not (",
    ),
    Mutant(
        "keys_in_the_order_of_the_space",
        "own: The arrays of a `Dict` observation are recorded in each other's place.",
        "collect/env_outputs.py::ObservationReader._flatten",
        "sorted(nest)",
        "nest",
    ),
]

RECURRENCE = [
    Mutant(
        "state_not_carried",
        "own: Every step of a recurrent layer starts from the initial state.",
        "policies/recurrent.py::_SingleStepRNN.call",
        "flat if step_states.use_initial else step_states.pop(len(flat))",
        "flat",
    ),
    Mutant(
        "output_and_carry_swapped",
        "own: The two states of an LSTM are exchanged after every step.",
        "policies/recurrent.py::_SingleStepRNN.call",
        "keras.tree.flatten(new)",
        "keras.tree.flatten(new)[::-1]",
    ),
    Mutant(
        "state_of_another_layer",
        "own: A recurrent layer receives the state of another layer of equal size.",
        "policies/recurrent.py::_StepStates.pop",
        "self.old_states[:count], self.old_states[count:]",
        "self.old_states[-count:], self.old_states[:-count]",
    ),
    Mutant(
        "first_state_of_zeros",
        "own: An episode starts with a state of zeros instead of the learned "
        "initial state.",
        "policies/recurrent.py::_SingleStepRNN.initial_state",
        "tf.cast(state, self.rnn.cell.compute_dtype)",
        "tf.zeros_like(state, self.rnn.cell.compute_dtype)",
    ),
    Mutant(
        "masked_step_remembered",
        "own: A masked step changes the recurrent state.",
        "policies/recurrent.py::_SingleStepRNN.call",
        "[_where(valid, after, before) for after, before in zip(new, old)]",
        "list(new)",
    ),
    Mutant(
        "masked_output_not_repeated",
        "own: A masked step outputs zeros, although Keras repeats the last output.",
        "policies/recurrent.py::_SingleStepRNN.call",
        "last = last if step_states.use_initial else step_states.pop(1)[0]",
        "step_states.pop(1)",
    ),
    Mutant(
        "weights_copied",
        "own: The acting layers are copies, which are not updated by training.",
        "policies/recurrent.py::_to_single_step",
        "return layer",
        "return type(layer).from_config(layer.get_config())",
    ),
    Mutant(
        "padding_read_as_it_is",
        "B12: Padding that is not finite enters the gradient through time.",
        "data/episodes.py::ValidSteps.zero_padding.zeroed",
        "tf.where(tf.reshape(is_valid, shape), rows, tf.zeros([], rows.dtype))",
        "rows",
    ),
    Mutant(
        "check_blinded_by_zeros",
        "own: A last layer of zeros hides that a policy mixes time steps.",
        "policies/recurrent.py::RecurrentPolicy.check",
        "state_mapping=noisy",
        "",
    ),
]

STEPS_OF_AN_UPDATE = [
    Mutant(
        "part_counts_once",
        "own: The sum over a minibatch is divided by the number of episodes of "
        "the whole batch.",
        "algorithm/estimator.py::Batch.minibatch",
        "self.divisor * tf.cast(share, self.divisor.dtype)",
        "self.divisor",
    ),
    Mutant(
        "ratio_of_the_last_step",
        "own: The likelihood ratio compares with the policy before the gradient "
        "step instead of the acting policy.",
        "algorithm/train_step.py::TrainStep._gradient_steps.step",
        "offsets), behavior_log_probs",
        "offsets), self.estimator.distribution(batch).log_prob(batch.actions)",
    ),
    Mutant(
        "entropy_of_the_next_policy",
        "own: The logged entropy is the entropy of the policy after the update.",
        "algorithm/train_step.py::TrainStep._passes",
        '"entropy": entropy',
        '"entropy": tf.reduce_mean(self.estimator.distribution(batch).entropy())',
    ),
    Mutant(
        "ratio_not_bounded",
        "own: The likelihood ratio is not clipped.",
        "algorithm/estimator.py::clipped_ratios",
        "return tf.minimum(ratios, ratio_clip)",
        "return ratios",
    ),
    Mutant(
        "ratio_upside_down",
        "own: The likelihood ratio is μ/π instead of π/μ.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "tf.exp(log_ratios)",
        "tf.exp(-log_ratios)",
    ),
    Mutant(
        "ratios_clipped_on_both_sides",
        "own: With a pair of limits, a step also stops to count on the side from which "
        "its advantage points.",
        "algorithm/estimator.py::clipped_ratios",
        "tf.where(advantages >= 0, ratios > 1 + high, ratios < 1 - low)",
        "(ratios > 1 + high) | (ratios < 1 - low)",
    ),
    Mutant(
        "ratios_clipped_on_the_wrong_side",
        "own: With a pair of limits, a good action stops to count if it has become less "
        "likely.",
        "algorithm/estimator.py::clipped_ratios",
        "advantages >= 0, ratios",
        "advantages < 0, ratios",
    ),
    Mutant(
        "ratio_limits_exchanged",
        "own: The lower limit of a pair is used as the upper limit.",
        "algorithm/estimator.py::clipped_ratios",
        "low, high = ratio_clip",
        "high, low = ratio_clip",
    ),
    Mutant(
        "clipped_ratios_count_with_their_limit",
        "own: With a pair of limits, a step beyond a limit counts with the weight 1.",
        "algorithm/estimator.py::clipped_ratios",
        "tf.where(is_enough, tf.zeros_like(ratios), ratios)",
        "tf.where(is_enough, tf.ones_like(ratios), ratios)",
    ),
    Mutant(
        "max_kl_ignored",
        "own: An update makes all passes, however much the policy has changed.",
        "algorithm/train_step.py::TrainStep._exceeds_max_kl",
        "self._kl_divergence(batch, behavior_log_probs) > max_kl",
        "tf.constant(False)",
    ),
    Mutant(
        "max_kl_after_each_minibatch",
        "own: An update may end within a pass.",
        "algorithm/train_step.py::TrainStep._gradient_steps",
        "tf.equal(number % parts.count, 0) & (number < last)",
        "number < last",
    ),
    Mutant(
        "divergence_of_the_acting_policy",
        "own: The divergence is measured with exchanged policies.",
        "algorithm/estimator.py::PolicyGradientEstimator.kl_divergence",
        "tf.math.expm1(log_ratios) - log_ratios",
        "tf.math.expm1(-log_ratios) + log_ratios",
    ),
    Mutant(
        "divergence_of_small_changes",
        "own: The divergence is half the mean square of the logarithms of the ratios.",
        "algorithm/estimator.py::PolicyGradientEstimator.kl_divergence",
        "tf.math.expm1(log_ratios) - log_ratios",
        "log_ratios**2 / 2",
    ),
    Mutant(
        "infinite_divergence_ends_an_update",
        "own: An update ends without an error after an action became impossible.",
        "algorithm/estimator.py::PolicyGradientEstimator.kl_divergence",
        "tf.where(tf.math.is_finite(log_ratios), log_ratios, nan)",
        "log_ratios",
    ),
    Mutant(
        "padding_in_the_divergence",
        "own: The divergence contains the padding of a compiled gradient step.",
        "algorithm/estimator.py::PolicyGradientEstimator.kl_divergence",
        "batch.without_padding(log_probs - behavior_log_probs)",
        "log_probs - behavior_log_probs",
    ),
    Mutant(
        "metrics_divided_by_steps_not_made",
        "own: The metrics of an update that ended early are divided by all its steps.",
        "algorithm/train_step.py::TrainStep._gradient_steps",
        "return finite, sums, number",
        "return finite, sums, tf.cast(last, number.dtype)",
    ),
    Mutant(
        "padding_in_the_entropy_bonus",
        "own: The entropy bonus of a compiled gradient step contains padding.",
        "algorithm/estimator.py::PolicyGradientEstimator.policy_gradients",
        "entropies = minibatch.without_padding(entropies)",
        "pass",
    ),
    Mutant(
        "padding_counts_as_steps",
        "own: The divisor of a compiled gradient step counts padding as steps.",
        "algorithm/estimator.py::Batch.minibatch",
        "compiled_steps.count_steps(indices, is_padding)",
        "tf.size(indices)",
    ),
    Mutant(
        "padding_with_advantages",
        "own: Padding of a compiled gradient step has the advantage of the first step.",
        "algorithm/estimator.py::Batch.padded",
        "tf.where(is_padding, tf.zeros([], x.dtype), pad(x))",
        "pad(x)",
    ),
    Mutant(
        "padding_in_the_metrics",
        "own: The metrics of a compiled gradient step count padding as steps.",
        "algorithm/estimator.py::Batch.mean",
        "compiled_steps.count_steps(values, self.is_padding)",
        "tf.size(values)",
    ),
    Mutant(
        "padding_in_the_shared_value_loss",
        "own: The value loss of shared layers contains padding in compiled steps.",
        "algorithm/estimator.py::PolicyGradientEstimator._with_value_loss",
        "batch.without_padding(tf.cast(batch.returns, values.dtype), values)",
        "batch.returns",
    ),
    Mutant(
        "padding_in_the_value_loss",
        "own: The loss of a value model contains padding in compiled gradient steps.",
        "baselines/value.py::Value._gradients",
        "tf.where(baseline_batch.is_padding, values, returns)",
        "returns",
    ),
    Mutant(
        "padding_counts_for_the_baseline",
        "own: The divisor of a compiled gradient step of the baseline counts padding.",
        "baselines/base.py::BaselineBatch.minibatch",
        "compiled_steps.count_steps(indices, is_padding)",
        "tf.size(indices)",
    ),
    Mutant(
        "last_steps_not_compiled",
        "own: Compiled minibatches have the size of the integer quotient.",
        "data/minibatches.py::Minibatches.offsets",
        "-(-self.num_steps // self.count)",
        "self.num_steps // self.count",
    ),
    Mutant(
        "xla_program_for_each_count",
        "own: XLA compiles a program for each number of minibatches.",
        "algorithm/train_step.py::TrainStep._gradient_steps",
        "tf.gather(permutations, number // parts.count)",
        "permutations[number // parts.count]",
    ),
    Mutant(
        "xla_program_for_each_size",
        "own: XLA compiles a program for minibatches of 64 steps, and one for 65.",
        "data/minibatches.py::Minibatches.offsets",
        "largest + unit // 2",
        "largest",
    ),
    Mutant(
        "padding_in_losses_of_layers",
        "own: Losses that layers add from their inputs contain padding.",
        "compiled_steps.py::has_losses_of_inputs",
        "len(model.losses) > len(regularized)",
        "False",
    ),
    Mutant(
        "weights_changed_by_an_update_that_xla_refuses",
        "own: The steps of the policy remain if XLA cannot compile the value model.",
        "training/learner.py::_call_compiled",
        "step.restore(before)",
        "pass",
    ),
    Mutant(
        "xla_although_switched_off",
        "own: XLA compiles gradient steps also with `jit_compile=False`.",
        "training/learner.py::Learner._obstacle",
        "setting is False",
        "False",
    ),
    Mutant(
        "dealer_draws_once_more",
        "own: The dealer of Blackjack also draws with a value of 17.",
        "envs/blackjack.py::Blackjack.transition",
        "_value(dealer) < 17",
        "_value(dealer) <= 17",
    ),
    Mutant(
        "late_twenty_one_is_natural",
        "own: A hand of more than two cards with the value 21 is a natural.",
        "envs/blackjack.py::_is_natural",
        'tf.equal(hand["count"], 2) & tf.equal',
        "tf.equal",
    ),
    Mutant(
        "outcomes_shifted_by_one",
        "own: An environment from a table draws the last outcome too often.",
        "envs/tabular.py::Tabular.transition",
        "noise[:, None] >= bounds",
        "noise[:, None] >= bounds - 0.1",
    ),
    Mutant(
        "impossible_outcomes_drawn",
        "own: An environment from a table draws outcomes of probability zero, if "
        "probabilities add up to a little less than one.",
        "envs/tabular.py::_bounds",
        "np.where(later[..., 1:] > 0, sums[..., :-1], 2.0)",
        "sums[..., :-1]",
    ),
    Mutant(
        "same_order_in_every_pass",
        "own: Every pass uses the permutation of the first pass.",
        "algorithm/train_step.py::TrainStep._gradient_steps.step",
        "number // parts.count",
        "0",
    ),
    Mutant(
        "same_order_in_every_update",
        "own: Every update uses the permutation of the first update.",
        "training/learner.py::Learner.permutations",
        "self.num_updates",
        "0",
    ),
    Mutant(
        "last_part_too_small",
        "own: All minibatches have the size of the integer quotient, and the "
        "remaining steps are lost.",
        "data/minibatches.py::Minibatches.minibatch",
        "end = (index + 1) * self.num_steps // self.count",
        "end = begin + self.num_steps // self.count",
    ),
    Mutant(
        "half_an_update_kept",
        "own: If a step of an update is not finite, the earlier steps of the "
        "update remain applied.",
        "algorithm/train_step.py::TrainStep.__call__",
        "_run_if(~finite, lambda: self.restore(before))",
        "pass",
    ),
    Mutant(
        "slots_not_put_back",
        "own: The slots of the optimizer are not restored after a rejected update.",
        "algorithm/train_step.py::TrainStep.variables",
        "parts = [self.optimizer, self.estimator.baseline,",
        "parts = [self.estimator.baseline,",
    ),
    Mutant(
        "critic_not_put_back",
        "own: The weights of the value baseline are not restored after a "
        "rejected update.",
        "algorithm/train_step.py::TrainStep.variables",
        "parts = [self.optimizer, self.estimator.baseline,",
        "parts = [self.optimizer,",
    ),
    Mutant(
        "overflow_in_a_scale",
        "own: A reward whose square overflows makes a running scale infinite.",
        "algorithm/train_step.py::TrainStep._statistics_finite",
        "finite & _all_finite(squares)",
        "finite",
    ),
    Mutant(
        "nan_into_the_normalizer",
        "own: A NaN observation of a dropped episode enters the statistics of "
        "the normalizer.",
        "algorithm/estimator.py::PolicyGradientEstimator.sums_of_squares",
        "samples += [x for x in flat if x.dtype.is_floating]",
        "pass",
    ),
    Mutant(
        "nothing_is_an_error",
        "own: An update whose episodes are all dropped changes weights.",
        "algorithm/train_step.py::TrainStep._single_step",
        "finite & ~empty",
        "finite",
    ),
    Mutant(
        "dropped_episodes_counted",
        "own: The mean over episodes counts dropped episodes.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "tf.math.count_nonzero(episodes.lengths, dtype=tf.int32)",
        "tf.size(episodes.lengths)",
    ),
    Mutant(
        "scale_sees_its_batch",
        "own: A running scale is updated from a batch before the scale divides "
        "the batch.",
        "policies/normalization.py::RunningScale.call",
        "tf.cond(self.count > 0, running_scale, scale_of_samples)",
        "scale_of_samples()",
    ),
    Mutant(
        "scale_without_the_gap",
        "own: The running deviation lacks the term of the difference of the means.",
        "policies/normalization.py::RunningScale._statistics_with",
        "self.squares.value + new_squares + between",
        "self.squares.value + new_squares",
    ),
    Mutant(
        "critic_part_counts_once",
        "own: The loss of a minibatch of the value baseline is divided by the "
        "number of all episodes.",
        "baselines/base.py::BaselineBatch.minibatch",
        "tf.cast(self.episodes, fraction.dtype) * fraction",
        "self.episodes",
    ),
    Mutant(
        "memory_of_a_part",
        "own: A recurrent policy receives only the steps of the minibatch.",
        "algorithm/estimator.py::PolicyGradientEstimator.outputs_at",
        "every_step.zero_padding",
        "steps.zero_padding",
    ),
    Mutant(
        "schedule_stands_still",
        "own: A schedule of the entropy coefficient always returns its initial value.",
        "training/assembly.py::make_trainer",
        "parts.counters[0]",
        "0",
    ),
]

DIAGNOSTICS = [
    Mutant(
        "noise_taken_for_signal",
        "own: The squared norm of a mean gradient includes its own noise and is "
        "reported as signal.",
        "callbacks/training_statistics.py::signal_and_noise",
        "squared_norm - noise",
        "squared_norm",
    ),
    Mutant(
        "noise_of_one_episode",
        "own: The noise of the gradient of one episode replaces the noise of the "
        "mean gradient.",
        "callbacks/training_statistics.py::signal_and_noise",
        "ddof=1))) / num_groups",
        "ddof=1)))",
    ),
    Mutant(
        "siblings_as_strangers",
        "own: The noise of a gradient treats the episodes of a group as independent.",
        "callbacks/training_statistics.py::signal_and_noise",
        "num_groups = len(gradients[0]) // group_size",
        "num_groups, group_size = len(gradients[0]), 1",
    ),
    Mutant(
        "share_of_an_episode",
        "own: The gradient of an episode is divided by the number of episodes twice.",
        "algorithm/estimator.py::Batch.single_episode",
        "self.divisor / tf.cast(self.num_episodes, self.divisor.dtype)",
        "self.divisor",
    ),
    Mutant(
        "units_mixed",
        "own: Scaled advantages are compared with returns that are not scaled.",
        "algorithm/estimator.py::PolicyGradientEstimator._scaled_advantages",
        "unbaselined / scale",
        "unbaselined",
    ),
    Mutant(
        "noise_of_other_batches",
        "own: The noise of batches of other sizes is used for the size of the "
        "last batch.",
        "callbacks/advice.py::advise_on_noise",
        'r["independent"]',
        'measured[-1]["independent"]',
    ),
    Mutant(
        "passes_blamed_on_the_rate",
        "own: The change by several gradient steps is treated as the change by "
        "one gradient step.",
        "callbacks/advice.py::advise_on_learning_rate",
        'last["kl"] / last["gradient_steps"] ** 2',
        'last["kl"]',
    ),
    Mutant(
        "stepping_counted_twice",
        "own: The time in environments also counts as time for acting.",
        "collect/in_process.py::collect",
        "time.perf_counter() - start - stepping",
        "time.perf_counter() - start",
    ),
    Mutant(
        "share_in_the_order_of_finishing",
        "own: The episodes of several processes are in the order in which the "
        "processes returned the episodes.",
        "collect/worker_pool.py::_merge_shares",
        "np.argsort(numbers)",
        "np.arange(len(numbers))",
    ),
    Mutant(
        "every_other_claimed",
        "own: With several processes, every second episode is not collected.",
        "collect/dispatcher.py::EpisodeDispatcher._take_one",
        "self._next, self._next + 1",
        "self._next, self._next + 2",
    ),
    Mutant(
        "old_weights_in_workers",
        "own: Worker processes act with their initial weights.",
        "collect/worker_pool.py::WorkerPool._weights_message",
        "request.weights.values",
        'self.__dict__.setdefault("first", request.weights.values)',
    ),
    Mutant(
        "surplus_episodes_kept",
        "own: Several processes keep more episodes than a number of steps requires.",
        "collect/worker_pool.py::_merge_shares",
        "np.searchsorted(total_steps, steps) + 1",
        "len(total_steps)",
    ),
    Mutant(
        "stale_answers",
        "own: After a failure, the result of the previous request is used for "
        "the next request.",
        "collect/worker_pool.py::WorkerPool._collect_episodes",
        "self._busy or not self._workers",
        "not self._workers",
    ),
    Mutant(
        "first_come",
        "own: The first worker process receives an episode for each of its "
        "environments, so that too few are left for the other processes.",
        "collect/dispatcher.py::EpisodeDispatcher.take",
        "math.ceil(left / waiting)",
        "left",
    ),
    Mutant(
        "unreceived_episode_lost",
        "own: An episode that a dying worker process could not receive counts as lost "
        "with the episode that it was playing.",
        "collect/worker_pool.py::WorkerPool._hand_out",
        "run.dispatcher.put_back(one.number, numbers)",
        "numbers.clear()",
    ),
    Mutant(
        "late_before_a_message",
        "own: On a cluster, a worker process counts as hanging before a message has "
        "reached it.",
        "collect/ray_host.py::WorkerHost.exchange",
        "self._expected &= set(busy)",
        "self._expected = set(busy)",
    ),
    Mutant(
        "message_overtakes",
        "own: On a cluster, a message for a worker can overtake an earlier one.",
        "collect/ray_handle.py::ActorHandle.request",
        "any(one.inbox for one in self._workers.values())",
        "False",
    ),
    Mutant(
        "one_machine_for_all",
        "own: The first machine of a cluster receives workers for all of its cores "
        "before another machine receives one.",
        "collect/ray_placement.py::place",
        "cores + (cores_each or 1)",
        "cores",
    ),
]

TENSORS = [
    Mutant(
        "threefry_without_its_count",
        "own: The key schedule of Threefry lacks the number of the group.",
        "data/seeding.py::threefry",
        "keys[(group + 2) % 3] + np.uint32(group + 1)",
        "keys[(group + 2) % 3]",
    ),
    Mutant(
        "steps_share_noise",
        "own: The noise of consecutive steps overlaps, because their counters "
        "differ by 1.",
        "data/seeding.py::counter_noise",
        "tf.uint32) * np.uint32(blocks)",
        "tf.uint32)",
    ),
    Mutant(
        "beginning_and_course_share_noise",
        "own: The noise of the steps of an episode uses the key of the noise of "
        "its reset.",
        "envs/vector.py::TensorVectorEnv._next_states",
        "tensor_noise.counter_noise(keys[:, 1], *noise_args)",
        "tensor_noise.counter_noise(keys[:, 0], *noise_args)",
    ),
    Mutant(
        "one_seed_for_all_of_a_vector",
        "own: All tensor environments of a `VectorEnv` use one seed.",
        "envs/vector.py::TensorVectorEnv._env_seeds",
        "[seed + i for i in range(self.num_envs)]",
        "[seed] * self.num_envs",
    ),
    Mutant(
        "phantom_step_rewarded",
        "own: The step that resets a tensor environment has a reward.",
        "envs/vector.py::TensorVectorEnv._next_states",
        "tf.where(ended, tf.zeros_like(rewards), rewards)",
        "rewards",
    ),
    Mutant(
        "pole_falls_at_its_angle_only",
        "own: The tensor version of CartPole does not terminate at the end of the track.",
        "envs/cartpole.py::CartPole.terminal",
        "(tf.abs(state[:, 0]) > MAX_POSITION) | (tf.abs(state[:, 2]) > MAX_ANGLE)",
        "tf.abs(state[:, 2]) > MAX_ANGLE",
    ),
    Mutant(
        "no_wall_in_the_valley",
        "own: The tensor version of MountainCar keeps its velocity at the wall.",
        "envs/mountain_car.py::_next_state",
        "tf.where(stopped, tf.zeros_like(velocity), velocity)",
        "velocity",
    ),
    Mutant(
        "last_step_not_counted",
        "own: The compiled engine does not count the last step of an episode.",
        "collect/xla_rollout.py::Rollout._step",
        "tf.cast(carry.active, tf.int32)",
        "tf.cast(carry.active & ~terminal, tf.int32)",
    ),
    Mutant(
        "rewards_after_the_end",
        "own: The compiled engine adds rewards after the end of an episode.",
        "collect/xla_rollout.py::Rollout._step",
        "tf.where(carry.active, reward, 0.0)",
        "reward",
    ),
    Mutant(
        "siblings_begin_apart_of_tensors",
        "own: The compiled engine resets the episodes of a group with different noise.",
        "collect/xla_rollout.py::Rollout._env_noise",
        "numbers // self.group_size",
        "numbers",
    ),
    Mutant(
        "every_thread_plays_the_same",
        "own: All threads collect the first part of a batch.",
        "collect/xla_rollout.py::Rollout.__call__",
        "shard * shard_size",
        "0 * shard_size",
    ),
    Mutant(
        "constants_are_all_the_same",
        "own: Programs that differ only in a constant are shared.",
        "collect/shared_programs.py::_Digests._of_attributes",
        "pairs.append((name, value.SerializeToString(deterministic=True)))",
        "pairs.append((name, name))",
    ),
    Mutant(
        "called_functions_are_all_the_same",
        "own: Programs whose inner functions differ are shared.",
        "collect/shared_programs.py::_Digests.of_name",
        "return self._digests[name]",
        "return 'function'",
    ),
    Mutant(
        "captured_variables_of_another_agent",
        "own: A program with a captured variable of one agent is shared with others.",
        "collect/shared_programs.py::shared",
        "if concrete.captured_inputs:",
        "if False:",
    ),
    Mutant(
        "last_observation_unseen",
        "own: A NaN in the last observation of an episode raises no error.",
        "collect/xla_rollout.py::Rollout._step",
        "finite & valid & tf.math.is_finite(reward)",
        "finite & tf.math.is_finite(reward)",
    ),
    Mutant(
        "one_order_in_a_call_of_many",
        "own: All updates of a call use the permutation of the first update.",
        "training/learner.py::run_updates.update",
        "permutation_key(keys[number])",
        "permutation_key(keys[0])",
    ),
    Mutant(
        "a_call_spends_more_than_there_is",
        "own: A call makes all its updates although the maximum number of steps "
        "is reached.",
        "training/learner.py::run_updates",
        "(number < count) & finite & (steps < max_env_steps)",
        "(number < count) & finite",
    ),
    Mutant(
        "validation_waits_for_the_call",
        "own: A call of several updates continues past an update that requires "
        "validation.",
        "training/loop.py::run_loop",
        "validate and freq",
        "None",
    ),
    Mutant(
        "rates_of_the_first_update",
        "own: A linear learning rate does not change while a call makes several updates.",
        "training/learner.py::run_updates.update",
        "if rates.schedules:",
        "if False:",
    ),
    Mutant(
        "rates_by_updates_in_a_call",
        "own: In a call of several updates, a linear learning rate counts updates "
        "instead of environment steps.",
        "training/learner.py::run_updates.set_rates",
        "tf.where(by_steps, counters[2], counters[0])",
        "counters[0]",
    ),
    Mutant(
        "rate_of_the_user_in_a_call",
        "own: In a call of several updates, the first update does not use the learning "
        "rate that a callback has set.",
        "training/learner.py::run_updates.update",
        "number > 0",
        "number >= 0",
    ),
    Mutant(
        "rates_at_each_epoch",
        "own: A callback sets the learning rate of the next update after a call, and a "
        "saved agent contains this rate.",
        "training/loop.py::run_loop",
        "                if number:\n                    epoch_calls.begin()",
        "                if number:\n"
        "                    rates.set(progress.epoch, callbacks.params.get(END))\n"
        "                    epoch_calls.begin()",
    ),
    Mutant(
        "evaluated_after_the_call",
        "own: A call of several updates continues past an update whose agent is to be "
        "evaluated.",
        "callbacks/evaluation.py::EvaluationCallback.updates_until_due",
        "self.every - epoch % self.every",
        "1000",
    ),
    Mutant(
        "target_seen_after_the_call",
        "own: A call of several updates continues past an update whose training return "
        "has reached the target, and the agent of the last update is evaluated.",
        "callbacks/evaluation.py::EvaluationCallback.updates_until_due",
        "if self.target is None else 1",
        "",
    ),
    Mutant(
        "video_after_the_call",
        "own: A video shows the agent of a later update of the same call.",
        "experiments/video_recorder.py::VideoRecorder.updates_until_due",
        "self.every - epoch % self.every",
        "1000",
    ),
    Mutant(
        "calls_of_one_process",
        "own: A process without the callbacks of the chief makes more updates in a call "
        "than the chief, and waits for ever.",
        "training/loop.py::CallbackList.updates_until_due",
        "in self._of_all_processes",
        "in self.callbacks",
    ),
    Mutant(
        "trial_sees_the_call",
        "own: A search compares the environment steps of one update with the agent of a "
        "later one.",
        "experiments/tuning_trial.py::TrialCallback.updates_until_due",
        "return 1",
        "return 1000",
    ),
    Mutant(
        "rates_ignore_callbacks",
        "own: If a callback makes an update, a linear learning rate reaches its last "
        "value before the end of the training.",
        "training/linear_rates.py::LinearRates.set",
        "else progress + self.epochs - epoch",
        'else vars(self).setdefault("end", progress + self.epochs - epoch)',
    ),
    Mutant(
        "blocks_of_one_weight",
        "own: All blocks of a batch have equal weight although their sizes differ.",
        "algorithm/train_step.py::TrainStep.gradients_by_microbatches.add",
        "tf.size(microbatch) / tf.size(steps)",
        "1 / microbatches.count",
    ),
    Mutant(
        "seeds_of_the_first_agent",
        "own: Agents with different settings are trained together with the "
        "settings of the first agent.",
        "experiments/multi_seed.py::_SeedProgram.__init__",
        "check_same_signature(self.signature, agent_state.signature(agent))",
        "agent_state.signature(agent)",
    ),
    Mutant(
        "updates_counted_from_zero",
        "own: Agents that were trained before use the random streams of a new training.",
        "experiments/multi_seed.py::_SeedProgram.train",
        'seeding.rollout_keys(seed, "training", first + u)',
        'seeding.rollout_keys(seed, "training", u)',
    ),
    Mutant(
        "averages_left_out",
        "own: An agent of `train_seeds` keeps its last weights instead of their average.",
        "experiments/multi_seed.py::SeedResults.agent",
        "optimizers.finalize(agent.optimizer)",
        "pass",
    ),
    Mutant(
        "masks_ignored_in_the_graph",
        "own: The compiled engine samples illegal actions.",
        "collect/xla_rollout.py::Rollout._select_agent_actions",
        "masked_outputs, None if",
        "outputs, None if",
    ),
    Mutant(
        "masks_of_the_next_step_recorded",
        "own: The compiled engine records the mask after the action.",
        "collect/xla_rollout.py::Rollout._step",
        "[*actions, reward, *carry.mask]",
        "[*actions, reward, *mask]",
    ),
    Mutant(
        "masks_unchecked_in_the_graph",
        "own: The compiled engine learns from a step without a legal action.",
        "collect/xla_rollout.py::Rollout._step",
        "valid &= self.masks.has_legal_action(*carry.mask)",
        "pass",
    ),
    Mutant(
        "masks_of_the_ended_episode",
        "own: After a reset, a tensor environment returns the mask of the last state.",
        "envs/vector.py::TensorVectorEnv._next_states",
        "env.action_mask(state)",
        "env.action_mask(next_state)",
    ),
    Mutant(
        "choices_of_the_first_part",
        "own: Nested masks are checked at the entries of their first part.",
        "data/mask_layouts.py::NestedMask.choices",
        "(int(start) + first, int(start) + end)",
        "(first, end)",
    ),
    Mutant(
        "one_hot_of_equal_sizes_from_zero",
        "own: `Discrete(start=…)` is ignored if all numbers have equally many values.",
        "policies/default_policy.py::OneHot.call",
        "inputs - np.array(self.starts)",
        "inputs",
    ),
]

# No test detected these bugs when they were planted for the first time.
SURVIVORS = [
    Mutant(
        "parts_of_an_action_in_one_stream",
        "own: The parts of a collected composite action use equal noise.",
        "data/seeding.py::EpisodeSeeds.action_generator",
        "bits.jumped(part) if part else bits",
        "bits",
    ),
    Mutant(
        "parts_of_an_act_in_one_stream",
        "own: The parts of a composite action of `act` use equal noise.",
        "policies/actor.py::ActorPolicy.sample_noise",
        "tf.stack([count, *spec.shape]), self.dtype, leaf",
        "tf.stack([count, *spec.shape]), self.dtype, 0",
    ),
    Mutant(
        "validation_plays_training",
        "own: Validation uses the random stream of training.",
        "agent.py::Reinforce.fit.validate",
        '"validation"',
        '"training"',
    ),
    Mutant(
        "one_epoch_of_minibatches",
        "own: A value baseline with minibatches makes a single pass although "
        "`passes` is larger.",
        "baselines/value.py::Value._minibatch_steps",
        "self.passes * batches.count",
        "batches.count",
    ),
    Mutant(
        "one_permutation_for_all_passes",
        "own: Every pass of the compiled engine uses the permutation of the first pass.",
        "training/learner.py::permutations_in_graph",
        'tensor_noise.counter_noise(key, spec, steps, number, "float64")',
        'tensor_noise.counter_noise(key, spec, steps, 0, "float64")',
    ),
    Mutant(
        "episodes_numbered_anew",
        "own: The numbers of the episodes start again with each update of a call.",
        "training/trainer.py::Trainer._logs",
        "first_episode, update = first_episode + len(episode_returns), update + 1",
        "update = update + 1",
    ),
    Mutant(
        "uniform_choice_without_masks",
        "own: The entropy of a uniform choice includes illegal actions.",
        "algorithm/inspection.py::step_statistics",
        "uniform = gradient_estimator.mask_outputs(uniform, batch.steps, masks)",
        "pass",
    ),
    Mutant(
        "overflow_that_saturates",
        "own: An output that overflows is accepted as the largest number of its type.",
        "collect/acting_program.py::_ActFunction.__call__",
        "magnitudes < largest if max_is_infinite else magnitudes <= largest",
        "magnitudes <= largest",
    ),
    Mutant(
        "first_collection_not_compared",
        "own: LiteRT is not compared with Keras on collected observations.",
        "collect/environments.py::HostEnvironments.collect",
        "replaces_litert(inputs)\n        except",
        "False\n        except",
    ),
    Mutant(
        "compared_but_once",
        "own: LiteRT is compared with Keras before the first action only.",
        "collect/environments.py::HostEnvironments.collect",
        "replaces_litert(inputs)\n        except",
        "not program.conversions and replaces_litert(inputs)\n        except",
    ),
    Mutant(
        "averages_of_no_step",
        "own: The averages of the weights replace the weights although the "
        "optimizer has made no step.",
        "optimizers.py::finalize",
        "inner.use_ema and steps > 0 and now != since",
        "inner.use_ema",
    ),
    Mutant(
        "averages_of_many_without_a_step",
        "own: An agent of `train_seeds` that made no step receives averages that "
        "are zero.",
        "optimizers.py::finalize",
        "steps > 0 and now != since",
        "now != since",
    ),
    Mutant(
        "averages_of_other_layers",
        "own: Averages are assigned to the variables that are trainable now "
        "instead of the variables that were averaged.",
        "optimizers.py::finalize",
        "zip(inner._trainable_variables, averages, strict=True)",
        "zip([v for v in inner._trainable_variables if v.trainable], averages)",
    ),
    Mutant(
        "silence_is_failure",
        "own: An episode of a `VectorEnv` that does not report success is "
        "recorded as a failure.",
        "collect/vector_envs.py::VectorEnvAdapter._success",
        "reported is not None and not reported[env_index]",
        "False",
    ),
    Mutant(
        "first_state_of_the_first_agent",
        "own: All seeds start with the learned initial state of the first seed.",
        "collect/xla_rollout.py::Rollout._initial_policy_state",
        "return self._for_each_agent(weights, lambda: self.actor.initial_state(count))",
        "return self.actor.initial_state(self.episodes_per_shard)",
    ),
]

FURTHER_SURVIVORS = [
    Mutant(
        "policy_of_no_rows",
        "own: The policy is called with zero rows if all episodes are dropped.",
        "algorithm/estimator.py::PolicyGradientEstimator.outputs_at",
        "minibatches.call_on_rows(self.forward, steps.gather(observations))",
        "self.forward(steps.gather(observations))",
    ),
    Mutant(
        "critic_of_no_rows",
        "own: The value model is called with zero rows if all episodes are dropped.",
        "baselines/value.py::Value.values",
        "minibatches.call_on_rows(call_model, observations)",
        "call_model(observations)",
    ),
    Mutant(
        "draws_while_evaluating",
        "own: An evaluation on a tensor environment samples actions by default.",
        "collect/batched_tensor_env.py::BatchedTensorEnv.make_program",
        "request.deterministic",
        "False",
    ),
    Mutant(
        "clock_of_another_call",
        "own: A compiled program keeps the time limit of the first call.",
        "collect/batched_tensor_env.py::BatchedTensorEnv.program_key",
        "checks.constants(self.env), self.max_episode_steps",
        "checks.constants(self.env)",
    ),
    Mutant(
        "stale_first_state",
        "own: `act` keeps the initial state of the first call although training "
        "has changed the initial state.",
        "serving/live_policy.py::LivePolicy._state",
        "initial_state = policy_functions.state_dict(self.actor.initial_state(count))",
        'known = self.__dict__.setdefault("fresh", {})\n'
        "        fresh = "
        "policy_functions.state_dict(self.actor.initial_state(count))\n"
        "        initial_state = known.setdefault(count, fresh)",
    ),
    Mutant(
        "type_of_an_unknown_space",
        "own: Actions keep their first type after the agent receives an action space.",
        "training/keras_agent.py::KerasAgent._live_policy",
        "self.action_space is not None",
        "True",
    ),
    Mutant(
        "rate_of_one_fit",
        "own: The second `fit` uses the last learning rate of the first `fit`.",
        "training/linear_rates.py::LinearRates.set",
        "progress + self.epochs - epoch",
        "self.epochs",
    ),
    Mutant(
        "rate_set_last",
        "own: A linear learning rate overwrites the learning rate that the "
        "callback of a user sets.",
        "training/loop.py::run_loop",
        "            epoch_calls.begin()\n            limit",
        "            epoch_calls.begin()\n"
        "            rates.set(progress.epoch, callbacks.params.get(END))\n"
        "            limit",
    ),
    Mutant(
        "validated_as_trained",
        "own: The validation environment is made with the keyword arguments of "
        "the training environment.",
        "agent.py::Reinforce._open_training",
        "(env, validation_env)",
        "(env, env)",
    ),
    Mutant(
        "listed_validations_late",
        "own: A call continues past an update that requires validation if "
        "`validation_freq` is a list.",
        "training/loop.py::_updates_until_validation",
        "if freq:",
        "if isinstance(freq, int):",
    ),
    Mutant(
        "checkpoint_of_a_later_update",
        "own: The checkpoints of several updates contain the weights of the last update.",
        "training/loop.py",
        "    keras.callbacks.ModelCheckpoint,\n",
        "",
    ),
    Mutant(
        "restored_twice",
        "own: A `fit` after a restored `fit` starts at the restored epoch again.",
        "training/loop.py::run_loop",
        "progress.epoch, agent._initial_epoch = "
        "agent._initial_epoch or progress.epoch, None",
        "progress.epoch = agent._initial_epoch or progress.epoch",
    ),
    Mutant(
        "budget_of_steps_anew",
        "own: A restored run makes an update after its maximum number of steps.",
        "training/loop.py::run_loop.remaining",
        "steps and steps - (agent.env_steps - progress.first_step)",
        "steps",
    ),
    Mutant(
        "clock_goes_on",
        "own: A reset during an episode does not reset the number of steps.",
        "envs/vector.py::TensorVectorEnv.reset",
        'self._lengths = np.zeros(self.num_envs, "int32")',
        'if is_first:\n            self._lengths = np.zeros(self.num_envs, "int32")',
    ),
    Mutant(
        "coefficient_of_this_fit",
        "own: The reported entropy coefficient belongs to the number of the "
        "update within `fit` instead of the number of updates of the agent.",
        "callbacks/diagnostics.py::Diagnostics._start_report",
        'coefficient(logs["update"])',
        "coefficient(self._updates)",
    ),
    Mutant(
        "reports_by_the_agents_count",
        "own: Reports are scheduled by the number of updates of the agent "
        "instead of the number within `fit`.",
        "callbacks/diagnostics.py::Diagnostics.on_episodes_collected",
        "self._updates % self.every",
        'logs["update"] % self.every',
    ),
    Mutant(
        "shares_since_the_start",
        "own: The reported shares of time include the time before the last report.",
        "callbacks/diagnostics.py::Diagnostics._finish_report",
        "self._seconds = dict.fromkeys(_TIME_SHARES, 0.0)\n        self.history.append",
        "self.history.append",
    ),
    Mutant(
        "groups_count_as_episodes",
        "own: Diagnostics treat the episodes of a group as independent.",
        "callbacks/diagnostics.py::Diagnostics._start_report",
        "agent.baseline.reset_group_size",
        "1",
    ),
    Mutant(
        "critic_of_the_past",
        "own: The advice about a value baseline uses all reports instead of the "
        "last reports.",
        "callbacks/advice.py::advise_on_value_baseline",
        "_after_warmup(reports)[-VALUE_BASELINE_REPORTS:]",
        "_after_warmup(reports)",
    ),
    Mutant(
        "chosen_where_it_is_judged",
        "own: The best agent is selected with the episodes of the final evaluation.",
        "callbacks/evaluation.py::EvaluationCallback.evaluate",
        "rng.integers(2**31)",
        "self.seed",
    ),
    Mutant(
        "always_greedy",
        "own: A preset cannot evaluate with sampled actions.",
        "experiments/runs.py::evaluation_options",
        'evaluation_settings.get("deterministic", True)',
        "True",
    ),
]

LAST_SURVIVORS = [
    Mutant(
        "advantages_of_padding",
        "own: The baseline at padding enters the scale of the advantages.",
        "algorithm/estimator.py::PolicyGradientEstimator.batch",
        "tf.where(valid, unbaselined - baseline, 0.0)",
        "unbaselined - baseline",
    ),
    Mutant(
        "half_precision_of_values",
        "own: The loss of a half-precision value model is computed in half precision.",
        "baselines/value.py::Value.values",
        "(tf.float16, tf.bfloat16)",
        "()",
    ),
    Mutant(
        "critic_of_the_first_trace",
        "own: An update keeps the optimizer of the value baseline from its first trace.",
        "training/learner.py::Learner._graph",
        'getattr(self.estimator.baseline, "optimizer", None), *parts',
        "parts",
    ),
    Mutant(
        "shared_weights",
        "own: A policy and a value model that share weights are accepted, and "
        "their file cannot be loaded.",
        "policies/compatibility.py::_check_value_model",
        "if common:",
        "if not policy.variables:",
    ),
    Mutant(
        "optimizer_of_loaded_weights",
        "own: `load_weights` does not load the state of the optimizer.",
        "training/keras_agent.py::KerasAgent.load_weights",
        "self._build_optimizer()\n        super().load_weights",
        "super().load_weights",
    ),
    Mutant(
        "normalizer_in_half_precision",
        "own: Under mixed precision, observations are cast to half precision "
        "before the mean is subtracted.",
        "training/keras_agent.py::KerasAgent._build_parts",
        "            self.normalizer.dtype_policy = float_type\n",
        "",
    ),
    Mutant(
        "normalizer_in_single_precision",
        "own: A float64 policy receives observations that were normalized in float32.",
        "training/keras_agent.py::KerasAgent._build_parts",
        "self.normalizer.dtype_policy = float_type",
        'self.normalizer.dtype_policy = "float32"',
    ),
    Mutant(
        "lost_signal",
        "own: Ctrl-C does not end a training that writes checkpoints.",
        "training/learner_processes.py::SingleProcess.agree_on_end",
        "agent.stop_training or record.interrupted",
        "agent.stop_training",
    ),
    Mutant(
        "bound_to_another_shape",
        "own: An agent that was built for a shape accepts an environment with "
        "other shapes.",
        "training/keras_agent.py::KerasAgent.build_for_spaces",
        "if self.built:\n            tensor_specs.expect_shapes(",
        "if False:\n            tensor_specs.expect_shapes(",
    ),
    Mutant(
        "setting_that_does_nothing",
        "own: A new value of a fixed setting is accepted after the agent is "
        "built, and has no effect.",
        "training/keras_agent.py::KerasAgent.__setattr__",
        'name in _FIXED_ATTRIBUTES and getattr(self, "built", False)',
        "name in ()",
    ),
    Mutant(
        "told_too_late",
        "own: A learning rate that is set before an update takes effect at a "
        "later update.",
        "training/loop.py::CallbackList.updates_until_due",
        "isinstance(callback, _EVERY_UPDATE)",
        "False",
    ),
    Mutant(
        "world_that_writes_into_its_state",
        "own: An environment can change the state from which its reward is computed.",
        "envs/checks.py::_call",
        "[*map(id, before)] != [*map(id, after)]",
        "False",
    ),
]

RESUMED = [
    Mutant(
        "callbacks_start_again",
        "own: A resumed training forgets the states of its callbacks.",
        "training/recorder.py::Recorder.restore_callbacks",
        "self._checkpoint is not None",
        "False",
    ),
    Mutant(
        "log_rows_twice",
        "own: Log rows after a checkpoint stay, and are written a second time.",
        "training/callback_states.py::truncate_logs",
        'os.truncate(_log_path(callback), state["log_bytes"])',
        "None",
    ),
    Mutant(
        "checkpoint_without_optimizers",
        "own: A checkpoint does not contain the states of optimizers.",
        "training/agent_state.py::variables",
        "optimizers(agent)",
        "[]",
    ),
    Mutant(
        "stopped_training_goes_on",
        "own: A training that a callback has stopped goes on when it is resumed.",
        "training/loop.py::run_loop",
        "progress.stopped = agent.stop_training",
        "progress.stopped = False",
    ),
    Mutant(
        "damaged_checkpoint_trusted",
        "own: A checkpoint with a changed bit is loaded.",
        "training/checkpoints.py::read",
        "hashlib.sha256(content).hexdigest() != digest",
        "False",
    ),
    Mutant(
        "one_checkpoint",
        "own: Only the newest checkpoint is kept.",
        "training/checkpoints.py::Checkpoints.write",
        "older[1 - self.keep :]",
        "[]",
    ),
    Mutant(
        "leftovers_stay",
        "own: The temporary folders of killed processes are never removed.",
        "files.py::_temporary_folder",
        "_TEMPORARY_NAME.fullmatch(other)",
        "False",
    ),
    Mutant(
        "another_training_continued",
        "own: A training continues from the checkpoint of another training.",
        "training/recorder.py::_compare",
        "json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)",
        "True",
    ),
]

REPLICAS = [
    Mutant(
        "replicas_weigh_alike",
        "own: The gradient of a batch is the mean over replicas, although replicas have "
        "different numbers of steps.",
        "algorithm/train_step.py::_mean_over_shares",
        "*(tf.cast(tf.size(x), tf.float64) for x in (own, batch.returns))",
        "tf.constant(1.0, tf.float64), tf.constant(num_replicas, tf.float64)",
    ),
    Mutant(
        "replica_uses_other_log_probs",
        "own: The likelihood ratios of a replica use the log-probabilities of the first "
        "steps of the minibatch instead of its own.",
        "algorithm/train_step.py::TrainStep.gradients_by_replicas",
        "tf.gather(behavior_log_probs, own)",
        "behavior_log_probs[: tf.size(own)]",
    ),
    Mutant(
        "episode_of_no_replica",
        "own: No replica computes the gradient of the first episode of its share.",
        "algorithm/estimator.py::Batch.share",
        "(begin <= columns)",
        "(begin < columns)",
    ),
    Mutant(
        "replica_without_episodes_adds_nan",
        "own: A replica without episodes adds zero times NaN to the gradient.",
        "replicas.py::sum_over_replicas",
        "tf.math.multiply_no_nan(x, tf.cast(weight, x.dtype))",
        "x * tf.cast(weight, x.dtype)",
    ),
]

EXPORTS = [
    Mutant(
        "export_ignores_masks",
        "own: The exported functions return the policy outputs before the action masks "
        "are applied.",
        "serving/policy_functions.py::PolicyFunctions.outputs",
        "_, outputs, states = self.actor.outputs",
        "outputs, _, states = self.actor.outputs",
    ),
    Mutant(
        "export_ignores_masks_in_observations",
        "own: The exported functions apply only action masks that are arguments, and "
        "none in the observation.",
        "serving/policy_functions.py::PolicyFunctions.outputs",
        "else masks_in_batch(source, observation)",
        "else None",
    ),
    Mutant(
        "one_kind_of_noise",
        "own: The metadata of an export name the distribution of the first noise for "
        "all parts of an action.",
        "serving/policy_metadata.py::_inputs",
        "kinds.pop(0)",
        "kinds[0]",
    ),
    Mutant(
        "exported_state_is_zero",
        "own: The initial recurrent state in the metadata of an export is zero, although "
        "the policy has learned it.",
        "serving/policy_metadata.py::write",
        "array.numpy()[0].tolist()",
        "(0 * array.numpy()[0]).tolist()",
    ),
    Mutant(
        "every_difference_is_a_tie",
        "own: Every difference between an export and its agent counts as a tie.",
        "testing/export_report.py::_Nearby.remove_ties",
        "large[row] & is_near",
        "large[row]",
    ),
]

SEARCHES = [
    Mutant(
        "processes_share_a_seed",
        "own: The trainings of several seeds in processes all use the first seed.",
        "experiments/seed_processes.py::prepare",
        '{**config, "seed": seed}',
        '{**config, "seed": seeds[0]}',
    ),
    Mutant(
        "trials_share_seeds",
        "own: The trainings of neighboring trials of a search use the same seeds.",
        "experiments/tuning_trial.py::TrialTask.seeds",
        "index * self.num_seeds",
        "index",
    ),
    Mutant(
        "confirmed_with_the_seeds_of_trials",
        "own: The best trials of a search are confirmed with seeds on which they were "
        "selected.",
        "experiments/tuning_trial.py::confirm",
        "_CONFIRMATION_SEED + task.seed",
        "task.seed",
    ),
    Mutant(
        "pruned_by_one_training",
        "own: The pruner receives the value of the current training instead of the mean "
        "over the trainings of the trial.",
        "experiments/tuning_trial.py::run",
        "float(np.mean([*values, value]))",
        "value",
    ),
    Mutant(
        "late_target_costs_more_than_a_missed_one",
        "own: A training that reaches the target in its last update has a worse value "
        "than a training that misses it.",
        "experiments/tuning_trial.py::TrialCallback._value",
        'float(min(logs["env_steps"], self.objective.budget))',
        'float(logs["env_steps"])',
    ),
    Mutant(
        "optimizer_of_another_training",
        "own: The second training of a trial starts with the optimizers and the "
        "normalizer of the first training.",
        "experiments/tuning_trial.py::_make_agent",
        "map(agent_state.variables, (trained, agent))",
        "(one.policy.variables for one in (trained, agent))",
    ),
    Mutant(
        "search_without_a_time_limit",
        "own: A search evaluates agents on a compiled twin without the time limit of the "
        "settings.",
        "experiments/tuning_trial.py::_evaluation_options",
        '"deterministic", "max_episode_steps"',
        '"deterministic"',
    ),
    Mutant(
        "settings_of_an_interrupted_search",
        "own: After an interruption, a search draws other settings than without an "
        "interruption.",
        "experiments/tuning.py::Search._sampler",
        '"tuning", index',
        '"tuning", len(self.study.trials)',
    ),
    Mutant(
        "incomplete_line_of_a_killed_search",
        "own: A killed search leaves an incomplete line, and cannot continue.",
        "experiments/tuning.py::repair",
        'rfind(b"\\n") + 1',
        "__len__()",
    ),
    Mutant(
        "preset_of_an_unconfirmed_trial",
        "own: A search writes the settings of the trial with the best selected value, "
        "although another trial was confirmed as better.",
        "experiments/tuning_report.py::write_preset",
        "best = search.best()",
        "best = search.ranked()[0]",
    ),
    Mutant(
        "whole_numbers_without_logarithm",
        "own: A search draws whole numbers uniformly, although the range is logarithmic.",
        "experiments/search_space.py::Range.suggest",
        "suggest_int(self.name, self.low, self.high, log=self.log)",
        "suggest_int(self.name, self.low, self.high)",
    ),
]

REPORTED_RUNS = [
    Mutant(
        "interval_of_90_percent",
        "own: An interval leaves out five percent of the resamples on each side, so that "
        "its confidence is 90 %.",
        "experiments/intervals.py::_bootstrap",
        "confidence_level=_CONFIDENCE",
        "confidence_level=2 * _CONFIDENCE - 1",
    ),
    Mutant(
        "video_with_another_time_limit",
        "own: A video shows episodes without the time limit that the user has passed.",
        "experiments/recording.py::record",
        "            max_episode_steps=max_episode_steps,\n",
        "",
    ),
    Mutant(
        "samples_of_a_head_share_noise",
        "own: The mean and the deviation of a custom head are estimated from samples "
        "with equal noise.",
        "experiments/action_parts.py::_sampled_moments",
        "seed, head.noise.kind",
        "0, head.noise.kind",
    ),
    Mutant(
        "picture_ignores_masks",
        "own: The picture of a policy shows probabilities without the action masks.",
        "experiments/policy_plots.py::_draw_episode",
        "    outputs = estimator.mask_outputs(outputs, steps, episodes.masks)\n",
        "",
    ),
    Mutant(
        "evaluation_with_the_limit_of_training",
        "own: The commands for a run use the time limit of its training instead of the "
        "limit of its evaluation.",
        "experiments/run_config.py::read_env",
        'config.get("evaluation", {})',
        'config.get("fit", {})',
    ),
    Mutant(
        "limit_of_the_user_ignored",
        "own: A command evaluates a run without the time limit that the user has passed.",
        "cli/agent_files.py::load_with_env",
        'env_options["max_episode_steps"] = options.max_episode_steps',
        'env_options.setdefault("max_episode_steps", options.max_episode_steps)',
    ),
    Mutant(
        "events_over_updates",
        "own: The x axis of the events for TensorBoard is updates instead of environment "
        "steps.",
        "callbacks/tensorboard.py::TensorBoardLogger.on_epoch_end",
        'step=int(logs["env_steps"])',
        "step=epoch",
    ),
    Mutant(
        "unread_episode_counts_as_lost",
        "own: An episode that a dead worker had not read counts as lost.",
        "collect/worker_pool.py::WorkerPool._replace",
        "lost if error.in_episode else []",
        "lost",
    ),
    Mutant(
        "subclassed_model_without_weights",
        "own: A subclassed model is marked as built before it has weights.",
        "policies/models.py::build",
        "type(model).build is not keras.Model.build",
        'hasattr(model, "build")',
    ),
]

WHOLE_LIFE_OF_A_RUN = [
    Mutant(
        "worker_keeps_old_steps",
        "own: A worker keeps the steps of old collections in its memory.",
        "collect/worker.py::EpisodeWorker._play",
        "share.deliver = None",
        "pass",
    ),
    Mutant(
        "incomplete_row_read",
        "own: A row that the training still writes is read as complete.",
        "experiments/curves.py::_read_table",
        'text[: text.rfind("\\n") + 1]',
        "text",
    ),
    Mutant(
        "window_one_too_long",
        "own: A smoothed curve averages over one update more than its window.",
        "experiments/curves.py::smooth",
        "totals[:, window:] -= totals[:, :-window]",
        "totals[:, window + 1 :] -= totals[:, : -window - 1]",
    ),
    Mutant(
        "curves_beyond_the_shortest",
        "own: Curves of several seeds are drawn beyond the end of the shortest one.",
        "experiments/curves.py::on_common_grid",
        "min(x[-1]",
        "max(x[-1]",
    ),
    Mutant(
        "episodes_not_added_up",
        "own: The x axis of episodes shows the episodes of each update.",
        "experiments/curves.py::Curve.x",
        'np.cumsum(self.column("episodes"))',
        'self.column("episodes")',
    ),
    Mutant(
        "difference_to_another_environment",
        "own: Runs on different environments are subtracted.",
        "experiments/comparison.py::compare",
        "elif run.env == first[0]:",
        "else:",
    ),
    Mutant(
        "last_update_for_the_last_tenth",
        "own: The return of the last tenth is that of the last update.",
        "experiments/comparison.py::_last_return",
        "max(1, round(_LAST * len(values)))",
        "1",
    ),
    Mutant(
        "map_ignores_the_start",
        "own: The map of a policy over a Discrete space begins at zero.",
        "experiments/observation_axes.py::_bounds",
        "(int(leaf.start), int(leaf.start + leaf.n - 1), True)",
        "(0, int(leaf.n - 1), True)",
    ),
    Mutant(
        "map_with_exchanged_axes",
        "own: The two axes of the map of a policy are exchanged.",
        "experiments/observation_axes.py::grid",
        "zip(columns, axes)",
        "zip(columns[::-1], axes)",
    ),
    Mutant(
        "toml_override_stays_text",
        "own: An override in the form of TOML stays text.",
        "presets/overrides.py::_value",
        'return tomllib.loads(f"value = {text}")["value"]',
        "return text",
    ),
    Mutant(
        "horizon_without_limits",
        "own: The default discount of a short or a very long task has no limits.",
        "presets/default_settings.py::gamma",
        "min(max(1 - 5 / max_episode_steps, _MIN_GAMMA), _MAX_GAMMA)",
        "1 - 5 / max_episode_steps",
    ),
    Mutant(
        "clipped_without_bounds",
        "own: Unbounded actions get the head that clips at the bounds.",
        "presets/default_settings.py::for_task",
        "is_box and space.is_bounded()",
        "is_box",
    ),
    Mutant(
        "one_rate_for_all_actions",
        "own: Continuous actions get the learning rate of discrete actions.",
        "presets/default_settings.py::for_task",
        "(3e-4, 0.8) if is_box",
        "(1e-3, 0.8) if is_box",
    ),
    Mutant(
        "defaults_although_there_is_a_preset",
        "own: The settings of the preset are replaced by the default settings.",
        "presets/default_settings.py::merge",
        "preset is toml_files.EMPTY_PRESET and ",
        "",
    ),
    Mutant(
        "value_baseline_on_every_twin",
        "own: `tf-reinforce train CartPole-v1` does not train plain REINFORCE.",
        "cli/train_defaults.py::task_of",
        "baseline is None and options.env in config.TWINS and is_discrete",
        "False",
    ),
    Mutant(
        "both_budgets_set",
        "own: An override of the steps keeps the number of updates.",
        "presets/overrides.py::apply",
        "config.merge_options(others, {last: value})",
        "{**others, last: value}",
    ),
    Mutant(
        "override_changes_its_input",
        "own: An override changes the settings that were passed.",
        "presets/overrides.py::apply",
        "copy.deepcopy(settings)",
        "settings",
    ),
    Mutant(
        "video_one_update_early",
        "own: The videos of a training show one update less than their name.",
        "experiments/video_recorder.py::VideoRecorder.on_epoch_end",
        "(epoch + 1) % self.every",
        "epoch % self.every",
    ),
    Mutant(
        "worst_confirmed_trial",
        "own: Of confirmed trials, the one with the worst mean is the best.",
        "experiments/tuning.py::Search.best",
        "return min(confirmed",
        "return max(confirmed",
    ),
    Mutant(
        "selection_left_out_of_the_mean",
        "own: The mean of a confirmed trial lacks its first trainings.",
        "experiments/tuning.py::Search.confirmed",
        '[*values, *(x["value"] for x in trial.user_attrs["trainings"])]',
        "[*values]",
    ),
    Mutant(
        "names_that_litert_mixes_up",
        "own: Arguments that differ in upper case only are written for LiteRT.",
        "serving/formats.py::write",
        'name == "onnx"',
        "True",
    ),
    Mutant(
        "entry_point_wrappers_listed",
        "own: The spec of a collector lists the wrappers of the entry point.",
        "collect/make_envs.py::_spec_without_checkers",
        "registered.additional_wrappers",
        "spec.additional_wrappers",
    ),
    Mutant(
        "model_without_config_accepted",
        "own: A model without `get_config` is saved without a warning.",
        "policies/layer_classes.py::_problem",
        "and missing and not has_config",
        "and False",
    ),
    Mutant(
        "objective_not_checked",
        "own: A log key that does not exist is found after the search has begun.",
        "experiments/tuning_trial.py::check_objective",
        "if task.objective.needs_evaluation:",
        "if True:",
    ),
    Mutant(
        "seeds_share_no_section",
        "own: `compare` skips a run that contains several seeds.",
        "experiments/curves.py::_folders_of_logs",
        'folder.glob(f"*/{LOG}")',
        "folder.glob(LOG)",
    ),
]

ERRORS_WITH_A_REMEDY = [
    Mutant(
        "place_of_the_caller",
        "own: An error of an environment names the outermost line of the environment.",
        "collect/error_places.py::place",
        "frames[-1]",
        "frames[0]",
    ),
    Mutant(
        "hint_at_a_used_mask",
        "own: An exception of an environment names an action mask that the agent uses.",
        "collect/batched_envs.py::SyncEnvs._step_fault",
        "fault.raised and self._mask_reader is None and path is not None",
        "fault.raised and path is not None",
    ),
    Mutant(
        "info_of_an_earlier_step",
        "own: An action mask in the info of the first reset is not seen.",
        "collect/batched_envs.py::SyncEnvs.start_episode",
        "self._infos[env_index] = outputs[1]",
        "pass",
    ),
    Mutant(
        "warning_of_a_library",
        "own: A warning shows a line of a library.",
        "user_warnings.py::warn",
        "stacklevel=level",
        "stacklevel=2",
    ),
    Mutant(
        "no_last_words",
        "own: A second Ctrl-C does not print how to continue.",
        "training/interruption.py::GracefulStop._watch",
        "_print_last(self.last_words)",
        "pass",
    ),
    Mutant(
        "first_seed_for_all",
        "own: `info` shows the log of the first seed for each seed of one program.",
        "experiments/run_info.py::_last_row",
        "for key, x in curve.columns.items()",
        "for key, x in found[0].columns.items()",
    ),
    Mutant(
        "first_row_is_the_best",
        "own: The table of a search marks the trial with the best first value.",
        "experiments/tuning_report.py::table",
        "trial.number == best.number",
        "trial.number == search.ranked()[0].number",
    ),
]


SAMPLES_AND_LOGS = [
    Mutant(
        "gradient_through_a_sample",
        "own: Gradients flow through a sample to the outputs, and count twice.",
        "layers/sample.py::_constants",
        "keras.tree.map_structure(tf.stop_gradient, actions)",
        "actions",
    ),
    Mutant(
        "padding_of_samples_scored",
        "own: The log-probability of an example contains the samples of the padding.",
        "layers/sample.py::Sample._draw_recorded",
        "if valid is not None:",
        "if False:",
    ),
    Mutant(
        "illegal_samples",
        "own: A `Sample` layer draws illegal choices.",
        "layers/sample.py::Sample.call",
        "rows = self.head.mask_outputs(rows, flat)",
        "pass",
    ),
    Mutant(
        "rows_with_equal_noise",
        "own: All rows of a `Sample` layer have equal noise.",
        "layers/sample.py::Sample._draw",
        "index = tf.range(tf.shape(rows)[0])",
        "index = tf.zeros_like(tf.range(tf.shape(rows)[0]))",
    ),
    Mutant(
        "state_of_samples_not_loaded",
        "own: A loaded `Sample` layer draws its first samples again.",
        "layers/sample.py::Sample.load_own_variables",
        'self.seed_generator.state.assign(store["seed_state"])',
        "pass",
    ),
    Mutant(
        "samples_in_inference",
        "own: A `Sample` layer draws samples in inference.",
        "layers/sample.py::Sample._draw",
        "if not training:",
        "if False:",
    ),
    Mutant(
        "samples_of_a_loop_lost",
        "own: The samples in a TensorFlow loop are recorded, although they cannot "
        "be read.",
        "layers/recording.py::SampleRecorder.add",
        "if _current_graph() is not self._graph:",
        "if False:",
    ),
    Mutant(
        "only_the_first_sample_scored",
        "own: Only the first of several samples of a model learns.",
        "layers/recording.py::SampleRecorder.log_probs",
        "for sample in self._expect_samples()]",
        "for sample in self._expect_samples()[:1]]",
    ),
    Mutant(
        "own_sample_in_the_baseline",
        "own: The baseline of a sample contains the loss of the sample.",
        "score_function/model.py::_get_baseline",
        "baselines.LeaveOneOut(group_size=samples)",
        "baselines.Mean()",
    ),
    Mutant(
        "losses_ascended",
        "own: The samples with the largest losses become more likely.",
        "score_function/estimator.py::ScoreFunctionEstimator.gradients",
        "returns = -tf.cast(costs, tf.float64)",
        "returns = tf.cast(costs, tf.float64)",
    ),
    Mutant(
        "loss_not_back_propagated",
        "own: The layers after the samples do not learn.",
        "score_function/estimator.py::ScoreFunctionEstimator.gradients",
        "surrogate = loss + losses",
        "surrogate = tf.stop_gradient(loss) + losses",
    ),
    Mutant(
        "samples_of_an_example_scattered",
        "own: The samples of an example are not consecutive rows, so that its group "
        "is mixed.",
        "score_function/estimator.py::ScoreFunctionEstimator.repeat",
        "tf.repeat(array, self.samples, axis=0)",
        "tf.concat([array] * self.samples, axis=0)",
    ),
    Mutant(
        "entropy_of_samples_minimized",
        "own: The entropy bonus makes the samples more certain.",
        "score_function/estimator.py::ScoreFunctionEstimator.gradients",
        "surrogate += self.entropy_coef",
        "surrogate -= self.entropy_coef",
    ),
    Mutant(
        "example_weights_ignored",
        "own: The weights of examples do not change their losses.",
        "score_function/example_losses.py::_mean_of_elements",
        "elements *= _append_axes(weights, rank)",
        "pass",
    ),
    Mutant(
        "padding_in_the_loss",
        "own: The loss of an example contains its padding.",
        "score_function/example_losses.py::_mean_of_elements",
        "if mask is not None and mask.shape.rank <= rank:",
        "if False:",
    ),
    Mutant(
        "rewards_minimized",
        "own: The samples with the smallest rewards become more likely.",
        "score_function/model.py::ScoreFunction._costs",
        "return -rewards, rewards",
        "return rewards, rewards",
    ),
    Mutant(
        "reward_of_no_number_applied",
        "own: A reward that is NaN changes the weights.",
        "score_function/checked_steps.py::CheckedSteps.run_if_finite",
        "tf.cond(finite, lambda: call(update), lambda: call(restore))",
        "call(update)",
    ),
    Mutant(
        "invalid_step_reported_for_ever",
        "own: After a loss that is not finite, every later step raises the error again.",
        "score_function/checked_steps.py::CheckedSteps._raise_if_invalid",
        "self._first_invalid.assign(-1)",
        "pass",
    ),
    Mutant(
        "evaluation_of_samples",
        "own: `evaluate` of a `ScoreFunction` draws samples.",
        "score_function/model.py::ScoreFunction.test_step",
        "outputs = self.model(rows.inputs, training=False)",
        "outputs = self.model(rows.inputs, training=True)",
    ),
    Mutant(
        "normalizer_of_the_agent_lost",
        "own: A `ScoreFunction` of an agent does not normalize observations.",
        "score_function/conversion.py::sampling_model",
        "inputs if agent.normalizer is None else agent.normalizer(inputs)",
        "inputs",
    ),
    Mutant(
        "weights_clipped_from_below",
        "own: Small importance weights are raised to `clip`.",
        "functional/off_policy.py::importance_weights",
        "tf.minimum(weights,",
        "tf.maximum(weights,",
    ),
    Mutant(
        "top_k_power_too_large",
        "own: The top-K correction has the power K in place of K - 1.",
        "functional/off_policy.py::top_k_multipliers",
        "others ** (k - 1)",
        "others**k",
    ),
    Mutant(
        "propensities_of_other_actions",
        "own: A logged action has the propensity of another action of the log.",
        "functional/off_policy.py::importance_weights",
        "tf.cast(propensities, log_probs.dtype)",
        "tf.cast(propensities[::-1], log_probs.dtype)",
    ),
    Mutant(
        "predicted_value_not_trained",
        "own: The doubly robust gradient lacks the gradient of the predicted value.",
        "score_function/logged_actions.py::surrogate",
        'if options.estimator == "dr":',
        "if False:",
    ),
    Mutant(
        "self_normalized_without_baseline",
        "own: The self-normalized gradient lacks its baseline, the estimated value.",
        "score_function/logged_actions.py::terms",
        "advantages = (rewards - tf.reduce_mean(values))",
        "advantages = rewards",
    ),
    Mutant(
        "propensities_above_one",
        "own: A propensity above one is accepted.",
        "score_function/logged_actions.py::LoggedBatch.validated",
        "invalid |= propensities > 1",
        "pass",
    ),
    Mutant(
        "modes_scored",
        "own: A mode that a model takes in training counts as a sample.",
        "layers/sample.py::Sample.call",
        "not (training or recorder.in_inference)",
        "False",
    ),
    Mutant(
        "equal_seeds_of_two_layers",
        "own: Two `Sample` layers with equal seeds draw equal samples in one model.",
        "layers/sample.py::Sample._draw_recorded",
        "self._draw(rows, True, len(recorder.samples))",
        "self._draw(rows, True)",
    ),
    Mutant(
        "equal_seeds_outside_of_score_function",
        "own: Two `Sample` layers draw equal samples outside of a `ScoreFunction`.",
        "layers/sample.py::_call_number",
        "number + bool(training)",
        "0",
    ),
    Mutant(
        "log_of_a_training_call",
        "own: Sampling for a log runs the model in training mode.",
        "score_function/model.py::ScoreFunction.sample_actions",
        "self.model(contexts, training=False)",
        "self.model(contexts, training=True)",
    ),
    Mutant(
        "wrong_row_blamed",
        "own: An input that is not finite is blamed on the first row of the batch.",
        "score_function/checked_steps.py::CheckedSteps.run_if_finite",
        "tf.logical_and(invalid, _not_finite(inputs, invalid))",
        "invalid",
    ),
    Mutant(
        "reward_writes_into_tensors",
        "own: A reward function can change the tensors of the training step.",
        "score_function/reward_functions.py::RewardFunction._python_rewards",
        "[array.copy() for array in arrays]",
        "list(arrays)",
    ),
    Mutant(
        "predicted_value_of_one_action",
        "own: With the top-K correction, the predicted value is that of one action.",
        "score_function/logged_actions.py::_predictions",
        "in_set = probs if k == 1 else 1.0 - (1.0 - probs) ** k",
        "in_set = probs",
    ),
    Mutant(
        "moving_statistics_not_restored",
        "own: A step that is not finite leaves its moving statistics in the model.",
        "score_function/checked_steps.py::states",
        "[(v, tf.identity(v)) for v in model.non_trainable_variables]",
        "[]",
    ),
    Mutant(
        "regularizers_without_effect_on_logs",
        "own: The regularizers of a model do not count in training on logs.",
        "score_function/logged_training.py::LoggedTraining.train_step",
        "loss += self.owner.estimator.penalties(loss.dtype)",
        "pass",
    ),
    Mutant(
        "interval_of_one_confidence",
        "own: The interval of an estimate does not depend on the confidence.",
        "score_function/logged_actions.py::evaluate",
        "inv_cdf((1 + confidence) / 2)",
        "inv_cdf(0.9999)",
    ),
    Mutant(
        "column_of_actions_broadcast",
        "own: A column of logged actions is broadcast against all rows.",
        "score_function/logged_actions.py::_actions",
        "values.shape[1:] != tuple(spec.shape)",
        "False",
    ),
    Mutant(
        "evaluation_without_regularizers",
        "own: `evaluate` omits the regularizers that `fit` adds to the loss.",
        "score_function/model.py::ScoreFunction.test_step",
        "tf.reduce_mean(costs) + self.estimator.penalties(costs.dtype)",
        "tf.reduce_mean(costs)",
    ),
]

COMPLETIONS = [
    Mutant(
        "prompts_of_other_lengths_overwritten",
        "own: The prompt of a longer row is overwritten, because the tokens of the "
        "shortest row are sampled first.",
        "sequences/token_sampler.py::TokenSampler.__call__",
        "is_new = ~ended & (index >= used)",
        "is_new = ~ended",
    ),
    Mutant(
        "end_token_ends_nothing",
        "own: A row continues behind its end token.",
        "sequences/token_sampler.py::TokenSampler.__call__",
        "is_end | (index + 1 >= self.limits)",
        "index + 1 >= self.limits",
    ),
    Mutant(
        "one_token_above_the_limit",
        "own: A completion has one token more than its limit.",
        "sequences/token_sampler.py::TokenSampler.__call__",
        "(index + 1 >= self.limits)",
        "(index >= self.limits)",
    ),
    Mutant(
        "end_token_not_scored",
        "own: The end token of a completion is not scored.",
        "sequences/token_sampler.py::TokenSampler.__call__",
        "sampled | here, ended",
        "sampled | (here & ~is_end[:, None]), ended",
    ),
    Mutant(
        "one_number_for_a_completion",
        "own: All tokens of a completion are selected by one random number.",
        "sequences/token_sampler.py::sample_tokens",
        "rows, index, tf.float64",
        "rows, 0, tf.float64",
    ),
    Mutant(
        "one_number_for_all_rows",
        "own: The tokens of all completions are selected by one random number.",
        "sequences/token_sampler.py::sample_tokens",
        "tf.range(tf.shape(outputs)[0])",
        "tf.zeros(tf.shape(outputs)[:1], tf.int32)",
    ),
    Mutant(
        "impossible_first_token",
        "own: A first token of probability zero is selected by the number zero.",
        "sequences/token_sampler.py::inverse_cdf",
        "cdf <= uniform",
        "cdf < uniform",
    ),
    Mutant(
        "temperature_in_sampling_only",
        "own: The temperature divides the logits in sampling, but not in scoring.",
        "sequences/language_model.py::TokenPolicy.log_probs",
        "self.outputs(logits[:, :-1])",
        "tf.cast(logits[:, :-1], self.dtype)",
    ),
    Mutant(
        "token_scored_by_itself",
        "own: A token is scored with the distribution of the token behind it.",
        "sequences/language_model.py::TokenPolicy.log_probs",
        "completions.token_ids[:, 1:]",
        "completions.token_ids[:, :-1]",
    ),
    Mutant(
        "scored_with_dropout",
        "own: Completions are scored with dropout, and sampled without.",
        "sequences/language_model.py::TokenPolicy.log_probs",
        "model(inputs, training=False)",
        "model(inputs, training=True)",
    ),
    Mutant(
        "padding_scored",
        "own: Prompt and padding are scored as if they were sampled.",
        "sequences/language_model.py::TokenPolicy.log_probs",
        "completions.sampled[:, 1:]",
        "tf.ones_like(completions.sampled[:, 1:])",
    ),
    Mutant(
        "prompt_tokens_scored",
        "own: The tokens of the prompt are scored.",
        "sequences/completions.py::from_prompts",
        "tf.zeros_like(padding_mask)",
        "padding_mask",
    ),
    Mutant(
        "reference_is_the_policy",
        "own: The log-probabilities of the reference are those of the trained model.",
        "sequences/language_model.py::TokenPolicy.log_probs",
        "if weights is None:",
        "if True:",
    ),
    Mutant(
        "every_completion_truncated",
        "own: A completion with an end token counts as truncated.",
        "sequences/language_model.py::TokenPolicy.sample",
        "continues & ~tf.reduce_any(new & is_end, axis=1)",
        "continues",
    ),
    Mutant(
        "completion_masked_as_padding",
        "own: The tokens of a completion are masked when they are scored.",
        "sequences/language_model.py::TokenPolicy.sample",
        "completions.padding_mask | new",
        "completions.padding_mask",
    ),
    Mutant(
        "first_turn_forgotten",
        "own: The log-probabilities of the first turn are lost in the second.",
        "sequences/language_model.py::TokenPolicy.sample",
        "completions.log_probs + log_probs",
        "log_probs",
    ),
    Mutant(
        "completion_in_its_own_baseline",
        "own: The baseline of a completion contains its own reward.",
        "sequences/estimator.py::SequenceEstimator.__init__",
        "baselines.LeaveOneOut(group_size=options.group_size)",
        "baselines.Mean()",
    ),
    Mutant(
        "baseline_of_all_prompts",
        "own: The baseline of a completion is the mean over all prompts of the batch.",
        "sequences/estimator.py::SequenceEstimator.__init__",
        "group_size=options.group_size",
        "group_size=None",
    ),
    Mutant(
        "penalty_rewards_distance",
        "own: The KL penalty is added to the reward.",
        "sequences/estimator.py::SequenceEstimator.batch",
        "rewards - self.options.kl_coef * kl",
        "rewards + self.options.kl_coef * kl",
    ),
    Mutant(
        "gradient_of_the_penalty_leaks",
        "own: A gradient also flows through the KL penalty.",
        "sequences/estimator.py::SequenceEstimator.policy_gradients",
        "loss = losses.policy_gradient(log_probs, advantages, count)",
        "loss = losses.policy_gradient(log_probs, advantages, count)\n"
        "            loss += self.options.kl_coef * tf.reduce_mean(log_probs)",
    ),
    Mutant(
        "lengths_always_normalized",
        "own: Advantages are divided by the length of the completion without the option.",
        "sequences/estimator.py::SequenceEstimator.policy_gradients",
        "if self.options.length_normalization:",
        "if True:",
    ),
    Mutant(
        "ratio_of_completions_upside_down",
        "own: The likelihood ratio is that of the old to the new policy.",
        "sequences/estimator.py::SequenceEstimator.policy_gradients",
        "tf.stop_gradient(log_probs) - completions.row_log_probs",
        "completions.row_log_probs - tf.stop_gradient(log_probs)",
    ),
    Mutant(
        "penalty_of_the_old_policy",
        "own: Later gradient steps use the KL penalty of the policy that has sampled.",
        "sequences/estimator.py::SequenceEstimator.policy_gradients",
        "advantages -= batch.kl_weights * log_ratios",
        "pass",
    ),
    Mutant(
        "norm_with_loss_scale",
        "own: The logged norm of the gradient contains the loss scale.",
        "sequences/update.py::SequenceUpdate._step",
        "norm / scale",
        "norm",
    ),
    Mutant(
        "ratio_of_completions_not_clipped",
        "own: `ratio_clip` is ignored for completions.",
        "sequences/estimator.py::SequenceEstimator.policy_gradients",
        "tf.minimum(tf.exp(log_ratios), self.options.ratio_clip)",
        "tf.exp(log_ratios)",
    ),
    Mutant(
        "group_order_broken_by_shuffling",
        "own: The completions are shuffled before their baselines are computed.",
        "sequences/update.py::SequenceUpdate.__call__",
        "self.estimator.batch(completions, rewards)",
        "self.estimator.batch(\n            completions.rows(permutations[0]), "
        "tf.gather(rewards, permutations[0])\n        )",
    ),
    Mutant(
        "microbatches_each_a_mean",
        "own: The gradients of microbatches are means that are added.",
        "sequences/update.py::SequenceUpdate._gradients",
        "rows, count, uses_ratios, scale_loss",
        "rows, None, uses_ratios, scale_loss",
    ),
    Mutant(
        "earlier_minibatches_kept",
        "own: An update whose later gradient step is invalid keeps its earlier steps.",
        "sequences/update.py::SequenceUpdate.restored_on_error",
        "variable.assign(value)",
        "pass",
    ),
    Mutant(
        "interrupted_update_kept",
        "own: An update that Ctrl-C interrupts keeps its earlier gradient steps.",
        "sequences/update.py::SequenceUpdate.restored_on_error",
        "except BaseException:",
        "except Exception:",
    ),
    Mutant(
        "noise_of_equal_rewards_learned",
        "own: Equal large rewards differ from their rounded mean.",
        "sequences/estimator.py::SequenceEstimator._centered",
        "groups - groups[:, :1]",
        "groups",
    ),
    Mutant(
        "rewards_rounded_before_centering",
        "own: Large rewards lose their digits before the baseline is subtracted.",
        "sequences/estimator.py::SequenceEstimator._centered",
        "tf.cast(rewards, tf.float64)",
        "tf.cast(tf.cast(rewards, tf.float32), tf.float64)",
    ),
    Mutant(
        "ended_completion_asked_again",
        "own: A completion that has ended without a reply continues in a later turn.",
        "sequences/conversation.py::Conversation.__call__",
        "continues &= ~completions",
        "continues = ~completions",
    ),
    Mutant(
        "arguments_shared_by_functions",
        "own: A reward function changes the arguments of the next one.",
        "sequences/text_rewards.py::_call",
        "_copied(values) for",
        "values for",
    ),
    Mutant(
        "other_distribution_accepted",
        "own: Completions of another distribution make an update.",
        "sequences/update.py::SequenceUpdate._step",
        "tf.where(is_other, OTHER_DISTRIBUTION, new)",
        "new",
    ),
    Mutant(
        "updates_of_one_number",
        "own: All updates have the same number and the same random numbers.",
        "sequences/update.py::SequenceUpdate.__call__",
        "self.updates.assign_add(1)",
        "self.updates.assign_add(0)",
    ),
    Mutant(
        "replies_scored",
        "own: The tokens of replies are scored.",
        "sequences/conversation.py::Conversation._append",
        "truncated=tf.constant(truncated),",
        "truncated=tf.constant(truncated),\n            sampled=completions.sampled\n"
        "            | (tf.constant(padding_mask) & ~completions.padding_mask),",
    ),
    Mutant(
        "columns_of_other_prompts",
        "own: Reward functions receive the columns of other prompts.",
        "sequences/conversation.py::Conversation.__call__",
        "[x for x in values for _ in range(group_size)]",
        "list(values) * group_size",
    ),
    Mutant(
        "limit_of_the_longest_prompt",
        "own: Completions of shorter prompts exceed their limit.",
        "sequences/encoding.py::Encoding.encode",
        "(lengths + self.max_completion_length)",
        "(0 * lengths + lengths.max() + self.max_completion_length)",
    ),
    Mutant(
        "every_epoch_in_one_order",
        "own: The prompts have the same order in every epoch.",
        "sequences/training.py::Batches._pass",
        "self.prompts.permutation(self.seed, number)",
        "self.prompts.permutation(self.seed, 0)",
    ),
    Mutant(
        "continued_from_the_first_prompts",
        "own: A continued training begins with the prompts of the first epoch.",
        "sequences/training.py::Batches.after",
        "self.of_epochs(epoch)",
        "self.of_epochs(0)",
    ),
    Mutant(
        "reward_weights_ignored",
        "own: The rewards of several functions are added without weights.",
        "sequences/text_rewards.py::TextRewards.__call__",
        "sum(weight * values for",
        "sum(values for",
    ),
    Mutant(
        "adapters_of_zeros",
        "own: A loaded model has adapters of zeros, which never learn.",
        "sequences/language_model.py::AdapterWeights.load_own_variables",
        "for name, variable in self._named():",
        "for name, variable in ():",
    ),
    Mutant(
        "reference_of_the_present_weights",
        "own: With microbatches, the reference is the present model.",
        "sequences/estimator.py::SequenceEstimator.log_ratios_to_reference",
        "completions.rows(indices), weights)",
        "completions.rows(indices))",
    ),
    Mutant(
        "kl_weights_without_their_scale",
        "own: The KL penalty of later gradient steps is not divided by the scale.",
        "sequences/estimator.py::SequenceEstimator.batch",
        "self.options.kl_coef / scales",
        "self.options.kl_coef * tf.ones_like(scales)",
    ),
    Mutant(
        "alpha_of_adapters_lost",
        "own: A loaded model scales its adapters with their rank alone.",
        "sequences/language_model.py::restore_training_state",
        "enable_lora(rank, lora_alpha=alpha)",
        "enable_lora(rank)",
    ),
    Mutant(
        "state_of_constants",
        "own: A checkpoint lacks attributes of callbacks that `on_train_begin` makes.",
        "training/callback_states.py::_changed",
        "name not in constants or",
        "name in constants and",
    ),
    Mutant(
        "monitor_set_twice",
        "own: A resumed `EarlyStopping` negates its `min_delta` again.",
        "training/callback_states.py::_set_state",
        'if state["attributes"].get(_MONITOR):',
        "if False:",
    ),
    Mutant(
        "epoch_begins_without_its_callbacks",
        "own: A training that continues within an epoch does not begin it for callbacks.",
        "score_function/resumed_fit.py::RecordedCallbacks.on_train_begin",
        "if self.target.step:",
        "if False:",
    ),
    Mutant(
        "metrics_of_an_epoch_start_again",
        "own: A training that continues within an epoch forgets the metrics before.",
        "score_function/resumed_fit.py::RecordedCallbacks._run_step",
        "self.record.assign_variables()",
        "pass",
    ),
    Mutant(
        "data_read_from_its_beginning",
        "own: A training that continues within an epoch reads its first data again.",
        "score_function/resumed_fit.py::RecordedCallbacks._run_step",
        "_read(iterator, self.trained.steps_per_execution)",
        "pass",
    ),
    Mutant(
        "means_of_an_epoch_start_again",
        "own: The logs of an epoch of a language model forget the steps before a kill.",
        "sequences/training.py::run_epochs",
        "[*callbacks.callbacks, means]",
        "[*callbacks.callbacks]",
    ),
    Mutant(
        "batches_of_equal_weight_in_logs",
        "own: The logs of an epoch ignore the numbers of prompts of its batches.",
        "sequences/training.py::_run_epoch",
        'len(columns["prompts"]))',
        "1)",
    ),
    Mutant(
        "order_of_a_pass_repeated",
        "own: Every pass over the completions has the same minibatches.",
        "sequences/model.py::SequenceReinforce.apply_rewards",
        "for _ in range(self.options.passes)\n        ]",
        "][:1] * self.options.passes",
    ),
    Mutant(
        "minibatches_share_the_stream_of_prompts",
        "own: Minibatches and the order of the prompts use one stream.",
        "sequences/model.py::SequenceReinforce.apply_rewards",
        '"training/minibatches"',
        '"training/prompts"',
    ),
    Mutant(
        "every_evaluation_plays_the_first_episodes",
        "own: All evaluations of a run play the same episodes.",
        "callbacks/evaluation.py::EvaluationCallback.evaluate",
        "stream, self.evaluated_update)",
        "stream, 0)",
    ),
    Mutant(
        "logged_batches_of_equal_weight",
        "own: The effective sample size of an epoch ignores the sizes of its batches.",
        "score_function/logged_training.py::LoggedTraining.train_step",
        "update_state(share, tf.size(weights))",
        "update_state(share)",
    ),
    Mutant(
        "squared_weights_in_float32",
        "own: Squares of large importance weights are infinite.",
        "score_function/logged_training.py::LoggedTraining.train_step",
        "tf.cast(terms.weights, tf.float64)",
        "terms.weights",
    ),
    Mutant(
        "evaluation_sums_in_float32",
        "own: The evaluation of a log adds in the type of the model.",
        "score_function/logged_actions.py::evaluate",
        "tf.cast(x, tf.float64)",
        "x",
    ),
    Mutant(
        "only_the_chief_stops",
        "own: A callback of another process than the chief does not end the training.",
        "training/learner_processes.py::LearnerProcesses.agree_on_end",
        "bool(rows[:, 1].any())",
        "bool(rows[0, 1])",
    ),
    Mutant(
        "files_of_every_process",
        "own: All processes write the files of their callbacks.",
        "training/learner_processes.py::LearnerProcesses.own_callbacks",
        "not isinstance(x, _WRITERS) and not",
        "not",
    ),
    Mutant(
        "limits_of_own_callbacks_only",
        "own: A process makes more updates in a call if it leaves out a callback.",
        "training/loop.py::CallbackList.updates_until_due",
        "self._of_all_processes:",
        "self.callbacks:",
    ),
]


CHANGING_ENVIRONMENTS = [
    Mutant(
        "options_shared_by_episodes",
        "own: All resets receive one dict, which an environment may change.",
        "collect/batched_envs.py::reset_arguments",
        "copy.deepcopy(options)",
        "options",
    ),
    Mutant(
        "new_environment_unchanged",
        "own: An environment that is made again keeps its original attributes.",
        "collect/batched_envs.py::SyncEnvs._restart",
        "self._settings.env_attrs or {}",
        "{}",
    ),
    Mutant(
        "attributes_left_over",
        "own: Attributes of an earlier collection stay in the environments.",
        "collect/batched_envs.py::_set_attributes",
        "{**restored, **attributes}",
        "attributes",
    ),
    Mutant(
        "attributes_of_vector_envs_left_over",
        "own: Attributes of an earlier collection stay in a VectorEnv.",
        "collect/vector_envs.py::VectorEnvAdapter.set",
        "if name not in attributes",
        "if False",
    ),
    Mutant(
        "autoreset_without_options",
        "own: A SyncVectorEnv resets an environment without options.",
        "collect/sub_envs.py::_CheckedEnv.reset",
        "batched_envs.reset_arguments(self._settings)",
        "{}",
    ),
    Mutant(
        "masked_reset_without_options",
        "own: A reset of some environments of a VectorEnv receives no options.",
        "collect/vector_envs.py::VectorEnvAdapter._reset_ended",
        '**arguments.get("options", {})',
        "**{}",
    ),
    Mutant(
        "validated_on_a_curriculum",
        "own: A function of the number of updates changes the validation environment.",
        "config.py::EnvSettings.constant",
        "None if callable(x) else x",
        "x",
    ),
    Mutant(
        "functions_see_the_first_update",
        "own: A function always receives the number of the first update.",
        "config.py::EnvSettings.at",
        "value(update)",
        "value(0)",
    ),
]

MUTANTS = [
    *GRADIENT,
    *RETURNS_AND_BASELINES,
    *DISTRIBUTIONS,
    *EPISODES,
    *FAULTS,
    *MASKS_ON_THE_WAY,
    *RANDOMNESS,
    *STATE,
    *OBSERVATIONS,
    *RECURRENCE,
    *STEPS_OF_AN_UPDATE,
    *DIAGNOSTICS,
    *TENSORS,
    *SURVIVORS,
    *FURTHER_SURVIVORS,
    *LAST_SURVIVORS,
    *RESUMED,
    *REPLICAS,
    *EXPORTS,
    *SEARCHES,
    *REPORTED_RUNS,
    *WHOLE_LIFE_OF_A_RUN,
    *ERRORS_WITH_A_REMEDY,
    *SAMPLES_AND_LOGS,
    *COMPLETIONS,
    *CHANGING_ENVIRONMENTS,
]

# docs/correctness.md shows these ten.
TELLING = (
    "state_discount_always",
    "mean_over_steps",
    "record_broadcasts",
    "cut_is_an_ending",
    "baseline_sees_itself",
    "infinite_masks",
    "clipped_scored_as_unclipped",
    "first_to_finish",
    "parts_of_an_action_in_one_stream",
    "half_an_update_kept",
)
