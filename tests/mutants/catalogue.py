"""Bugs that policy-gradient code is known for, planted here one at a time.

`run.py` plants each in a copy of the package and sees the named test fail.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One small change that brings a known bug back."""

    name: str
    bug: str  # its number, "own" where it has none, and a few words
    module: str  # path inside tf_reinforce
    before: str  # occurs exactly once in the module
    after: str
    test: str  # the pytest node below tests/ that must fail


DEFINITION = "algorithm/test_estimator.py::test_the_gradient_is_its_definition"
SOFTMAX = f"{DEFINITION}[None-Categorical-float64-1e-12]"
NORMAL = f"{DEFINITION}[None-Gaussian-float64-1e-12]"
MASKED_FINITE = (
    "heads/test_masks.py::test_all_is_finite_and_nothing_reaches_what_is_illegal"
)
EVERY_RESET = (
    "collect/test_collecting.py::test_every_way_of_resetting_gives_the_same_episodes"
)

GRADIENT = [
    Mutant(
        "state_discount_never",
        "B1 factor γᵗ left out where `discount_states` asks for it",
        "algorithm/estimator.py",
        "if options.discount_states and",
        "if False and",
        SOFTMAX,
    ),
    Mutant(
        "state_discount_always",
        "B1 factor γᵗ put in where nobody asked for it",
        "algorithm/estimator.py",
        "if options.discount_states and",
        "if",
        SOFTMAX,
    ),
    Mutant(
        "state_discount_twice",
        "B1 whole returns, which hold the discount, multiplied by γᵗ again",
        "algorithm/estimator.py",
        ' and options.returns == "to_go":',
        ":",
        SOFTMAX,
    ),
    Mutant(
        "whole_for_to_go",
        "B2 the whole return in place of the reward-to-go",
        "algorithm/estimator.py",
        'if options.returns == "whole":',
        "if True:",
        SOFTMAX,
    ),
    Mutant(
        "rewards_never_summed",
        "B2 rewards, never summed into returns",
        "functional/returns.py",
        "return returns[:-1]",
        "return rewards",
        "functional/test_returns.py::test_golden_returns",
    ),
    Mutant(
        "rewards_so_far",
        "B2 rewards summed from the start instead of to the end",
        "functional/returns.py",
        "return returns[:-1]",
        "return tf.cumsum(rewards)",
        "functional/test_returns.py::test_golden_returns",
    ),
    Mutant(
        "mean_log_prob_times_sum",
        "B3 mean of log-probabilities times sum of returns",
        "functional/losses.py",
        "-tf.reduce_sum(log_probs * advantages)",
        "-tf.reduce_mean(log_probs) * tf.reduce_sum(advantages)",
        "functional/test_losses.py::"
        "test_policy_gradient_is_the_sum_over_steps_per_episode",
    ),
    Mutant(
        "mean_over_steps",
        "B10 divided by the number of steps, not of episodes",
        "functional/losses.py",
        "advantages) / tf.cast(episodes, log_probs.dtype)",
        "advantages) / tf.cast(tf.size(log_probs), log_probs.dtype)",
        "functional/test_losses.py::"
        "test_policy_gradient_is_the_sum_over_steps_per_episode",
    ),
    Mutant(
        "own_length",
        "B10 each episode divided by its own length",
        "algorithm/estimator.py",
        "        steps = valid_steps(episodes)\n",
        "        advantages /= tf.cast(episodes.lengths, unbaselined.dtype)\n"
        "        steps = valid_steps(episodes)\n",
        SOFTMAX,
    ),
    Mutant(
        "record_broadcasts",
        "B4 actions `[T, B, 1]` accepted under log-probabilities `[T, B]`",
        "data/episodes.py",
        "if values.shape != shape:",
        "if False:",
        "data/test_episodes.py::"
        "test_a_wrong_record_is_refused[actions_with_an_axis_too_many]",
    ),
    Mutant(
        "loss_broadcasts",
        "B4 log-probabilities `[N]` times advantages `[N, 1]`",
        "functional/losses.py",
        '[(log_probs, "N"), (advantages, "N"), (episodes, ())]',
        "[(episodes, ())]",
        "functional/test_losses.py::test_shapes_that_would_broadcast_are_refused"
        "[policy_gradient-shape1]",
    ),
    Mutant(
        "values_broadcast",
        "B4 values `[N, 1]` minus returns `[N]`",
        "functional/losses.py",
        '[(values, "N"), (returns, "N"), (episodes, ())]',
        "[(episodes, ())]",
        "functional/test_losses.py::"
        "test_shapes_that_would_broadcast_are_refused[value-shape1]",
    ),
    Mutant(
        "log_prob_per_dimension",
        "B5 log-probability of a vector action not summed over its dimensions",
        "heads/gaussian.py",
        "return tfp.distributions.MultivariateNormalDiag(\n"
        '            loc=parameters["mean"], scale_diag=parameters["scale"]\n'
        "        )",
        'return tfp.distributions.Normal(parameters["mean"], parameters["scale"])',
        "heads/test_heads.py::test_the_log_probability_of_a_gaussian_is_its_formula",
    ),
    Mutant(
        "log_prob_mean_over_dimensions",
        "B5 mean instead of sum over the dimensions of an action",
        "algorithm/estimator.py",
        "minibatch.actions), actions.entropy()",
        "minibatch.actions), actions.entropy()\n"
        "            log_probs /= max((1, *self.head.action_shape))",
        NORMAL,
    ),
    Mutant(
        "padding_is_a_step",
        "B11 padding counted as steps",
        "data/episodes.py",
        "< tf.cast(lengths, tf.int32)[None]",
        "< rows + 0 * tf.cast(lengths, tf.int32)[None]",
        "data/test_episodes.py::test_valid_is_true_where_a_step_happened",
    ),
    Mutant(
        "padding_in_the_mean",
        "B11 padding in the denominator of a mean",
        "baselines/averages.py",
        "steps = tf.reduce_sum(tf.cast(valid, returns.dtype))",
        "steps = tf.cast(tf.size(valid), returns.dtype)",
        "baselines/test_baselines.py::test_mean_is_the_mean_over_all_valid_steps",
    ),
    Mutant(
        "padding_times_zero",
        "B12 padding masked by multiplication: NaN times zero is NaN",
        "algorithm/estimator.py",
        "rewards = tf.where(valid, episodes.rewards, 0.0)",
        "rewards = episodes.rewards * tf.cast(valid, episodes.rewards.dtype)",
        "algorithm/test_estimator.py::test_padding_changes_no_bit_of_loss_and_gradient"
        "[Categorical-float32]",
    ),
    Mutant(
        "z_score_always",
        "B8 returns scaled by their deviation where nobody asked for it",
        "algorithm/estimator.py",
        'if self.options.scale_advantages == "batch":',
        "if True:",
        SOFTMAX,
    ),
    Mutant(
        "z_score_per_episode",
        "B9 advantages scaled inside each episode",
        "algorithm/estimator.py",
        "size = tf.norm(advantages) / tf.sqrt(steps) + noise",
        "steps = tf.cast(episodes.lengths, credited.dtype)\n"
        "            size = tf.norm(advantages, axis=0) / tf.sqrt(steps) + noise",
        SOFTMAX,
    ),
    Mutant(
        "no_floor_under_the_scale",
        "B40 no floor under a deviation of zero",
        "algorithm/estimator.py",
        "size = tf.norm(advantages) / tf.sqrt(steps) + noise",
        "size = tf.norm(advantages) / tf.sqrt(steps)",
        "algorithm/test_estimator.py::test_no_reward_teaches_nothing[None-batch]",
    ),
    Mutant(
        "entropy_sign",
        "B22 entropy with the wrong sign",
        "functional/losses.py",
        "return -tf.reduce_sum(entropies)",
        "return tf.reduce_sum(entropies)",
        "functional/test_losses.py::test_entropy_is_counted_negative_per_episode",
    ),
    Mutant(
        "entropy_coef_may_be_negative",
        "B22 a negative entropy coefficient accepted",
        "config.py",
        "validation.within(name, value, 0, math.inf)",
        "validation.within(name, value, -math.inf, math.inf)",
        "test_agent_input.py::test_settings_out_of_bounds_are_refused[entropy_coef--1.0]",
    ),
    Mutant(
        "entropy_of_the_sample",
        "B23 minus the log-probability of the sample in place of the entropy",
        "algorithm/estimator.py",
        "log_probs, entropies = actions.log_prob(minibatch.actions), actions.entropy()",
        "log_probs = actions.log_prob(minibatch.actions)\n"
        "            entropies = -log_probs",
        SOFTMAX,
    ),
    Mutant(
        "training_mode",
        "B45 dropout on where log-probabilities are computed",
        "algorithm/estimator.py",
        "policy(self._normalized(observations), training=False)",
        "policy(self._normalized(observations), training=True)",
        "test_agent.py::"
        "test_layers_with_a_training_mode_are_announced_once_and_run_without_it",
    ),
    Mutant(
        "half_precision",
        "B48 log-probabilities in half precision",
        "algorithm/estimator.py",
        "minibatch.actions), actions.entropy()",
        "minibatch.actions), actions.entropy()\n"
        "            half = self.head.distribution(tf.cast(outputs, tf.float16))\n"
        "            log_probs = half.log_prob(minibatch.actions)\n"
        "            log_probs = tf.cast(log_probs, outputs.dtype)",
        "algorithm/test_estimator.py::"
        "test_half_precision_ends_before_the_log_probabilities"
        "[mixed_float16]",
    ),
]

RETURNS_AND_BASELINES = [
    Mutant(
        "baseline_that_broadcasts",
        "B4 a baseline `[B]` subtracted from returns `[T, B]`",
        "algorithm/estimator.py",
        "self._check_baseline(baseline, unbaselined)",
        "pass",
        "baselines/test_baselines.py::"
        "test_a_baseline_of_another_shape_is_refused[per_episode]",
    ),
    Mutant(
        "weights_without_gradient",
        "own no gradient instead of zeros for a weight the loss does not depend on",
        "functional/losses.py",
        "zero = tf.UnconnectedGradients.ZERO",
        "zero = tf.UnconnectedGradients.NONE",
        "test_agent.py::test_weights_that_decide_nothing_stay_as_they_are",
    ),
    Mutant(
        "cut_is_an_ending",
        "B16 truncation treated as termination: nothing bootstrapped",
        "functional/returns.py",
        "valid & ~(last & terminated), gamma",
        "valid & ~last, gamma",
        "algorithm/test_estimator.py::"
        "test_a_cut_does_not_show_where_the_value_is_exact[5]",
    ),
    Mutant(
        "ending_is_a_cut",
        "B16 termination treated as truncation: bootstrapped",
        "functional/returns.py",
        "valid & ~(last & terminated), gamma",
        "valid, gamma",
        "functional/test_returns.py::"
        "test_only_a_cut_episode_bootstraps_from_what_followed[True]",
    ),
    Mutant(
        "returns_leak",
        "B18 returns flow over the end of an episode",
        "functional/returns.py",
        "slopes = discounts * lambdas\n",
        "slopes = tf.reduce_max(discounts) * lambdas\n",
        "functional/test_returns.py::"
        "test_nothing_leaks_from_one_episode_into_the_one_before"
        "[terminated]",
    ),
    Mutant(
        "powers_of_gamma",
        "B39 returns by dividing through powers of γ, which underflow",
        "functional/returns.py",
        "return lambda_returns(rewards, discounts, zeros, ones)",
        "powers = tf.math.cumprod(discounts, exclusive=True)\n"
        "    return tf.cumsum(rewards * powers, reverse=True) / powers",
        "functional/test_returns.py::"
        "test_powers_of_the_discount_may_underflow_and_returns_do_not",
    ),
    Mutant(
        "float32_returns",
        "B39 returns in float32",
        "functional/returns.py",
        "zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)",
        "rewards, discounts = (tf.cast(x, tf.float32) for x in (rewards, discounts))\n"
        "    zeros, ones = tf.zeros_like(rewards), tf.ones_like(rewards)",
        "functional/test_returns.py::test_a_million_steps_lose_no_digit",
    ),
    Mutant(
        "float32_record",
        "B39 rewards of a record cut to float32",
        "data/episodes.py",
        '_array("rewards", rewards, (rows, count), "float64")',
        '_array("rewards", rewards, (rows, count), "float32")',
        "data/test_episodes.py::test_a_right_record_comes_back_in_the_expected_types",
    ),
    Mutant(
        "baseline_divides_by_n",
        "B8 leave-one-out divides by n, not n - 1",
        "baselines/averages.py",
        "axis=2, keepdims=True) - 1.0",
        "axis=2, keepdims=True)",
        "baselines/test_baselines.py::"
        "test_leave_one_out_is_the_mean_of_the_others_still_running",
    ),
    Mutant(
        "baseline_sees_itself",
        "B8 the batch mean in place of leave-one-out: gradient shrunk by (n - 1) / n",
        "baselines/averages.py",
        "axis=2, keepdims=True) - 1.0\n"
        "        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) - grouped",
        "axis=2, keepdims=True)\n"
        "        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) + 0 * grouped",
        "baselines/test_baselines.py::"
        "test_the_expected_gradient_on_a_bandit_is_the_analytic_one[leave_one_out-3]",
    ),
    Mutant(
        "gradient_through_advantages",
        "B19 the policy's loss trains the baseline",
        "functional/losses.py",
        "advantages = tf.stop_gradient(tf.cast(advantages, log_probs.dtype))",
        "advantages = tf.cast(advantages, log_probs.dtype)",
        "functional/test_losses.py::test_only_log_probabilities_are_trained",
    ),
    Mutant(
        "gradient_through_targets",
        "B19 the value's loss trains its own targets",
        "functional/losses.py",
        "errors = values - tf.stop_gradient(tf.cast(returns, values.dtype))",
        "errors = values - tf.cast(returns, values.dtype)",
        "functional/test_losses.py::test_value_is_half_the_squared_error_per_episode",
    ),
    Mutant(
        "baseline_knows_the_action",
        "B20 the value of what followed the action as its baseline",
        "algorithm/estimator.py",
        "self.baseline.estimate(unbaselined, valid, values[:-1])",
        "self.baseline.estimate(unbaselined, valid, values[1:])",
        "algorithm/test_estimator.py::"
        "test_targets_are_generalised_advantages_plus_values[1.0]",
    ),
    Mutant(
        "baseline_learns_first",
        "B21 the baseline fitted to a batch before it corrects it",
        "algorithm/train_step.py",
        "permutation = permutations[0] if self.num_permutations else None\n",
        "permutation = permutations[0] if self.num_permutations else None\n"
        "        first = self.estimator.baseline_step(self.estimator.batch(episodes))\n"
        "        apply_gradients = self.estimator.baseline.apply_gradients\n"
        "        apply_gradients(first.gradients, first.batch)\n",
        "test_agent.py::test_every_part_of_an_update_sees_the_others_as_they_acted",
    ),
    Mutant(
        "critic_takes_one_step",
        "own: the further epochs of a critic are not taken",
        "baselines/value.py",
        "minibatches.call_repeatedly(\n                self.passes - 1, lambda _: "
        "self._step_from(baseline_batch)\n            )",
        "pass",
        "baselines/test_baselines.py::"
        "test_further_epochs_are_further_steps_towards_the_same_targets[False]",
    ),
    Mutant(
        "critic_takes_any_step",
        "own: a further step of the critic is taken though it is not finite",
        "baselines/value.py",
        "tf.cond(tf.reduce_all(finite), lambda: self._step(gradients), lambda: 0)",
        "self._step(gradients)",
        "baselines/test_baselines.py::"
        "test_a_further_step_that_is_not_finite_is_not_taken",
    ),
    Mutant(
        "critic_without_a_unit",
        "own: the loss of a critic with a unit is taken in the units of rewards",
        "baselines/value.py",
        "loss / self.scale**2",
        "loss",
        "baselines/test_baselines.py::test_a_scale_is_the_unit_of_the_model",
    ),
    Mutant(
        "time_taken_for_batch",
        "own: TimeDistributed as Keras has it: batch and time change places",
        "algorithm/estimator.py",
        "self.policy if self.recurrent is None else self.recurrent.sequence_model",
        "self.policy",
        "policies/test_memory.py::test_a_layer_for_each_step_knows_time_from_batch[4-9]",
    ),
    Mutant(
        "means_begin_at_zero",
        "own: means begin at zero, wherever the bounds are",
        "agent.py",
        "size, seed, scaling)",
        "size, seed)",
        "policies/test_default_policy.py::"
        "test_actions_far_from_zero_are_learned[off the centre]",
    ),
    Mutant(
        "exported_masks_wrap",
        "own: a mark of 256 in an observed mask wraps to zero where it is exported",
        "data/action_masks.py",
        "tf.minimum(tf.abs(tf.cast(part, tf.int64)), 3)",
        "part",
        "collect/test_masked_environments.py::"
        "test_an_observed_mask_of_large_numbers_rules_out_zeros_alone",
    ),
    Mutant(
        "siblings_are_everybody",
        "own: the baseline of a group looks at all groups",
        "baselines/averages.py",
        "size = self.group_size or episodes",
        "size = episodes",
        "baselines/test_baselines.py::"
        "test_in_groups_the_others_are_the_siblings_still_running[2]",
    ),
    Mutant(
        "siblings_begin_apart",
        "own: episodes of a group begin with different seeds",
        "data/seeding.py",
        "episode // self._group_size",
        "episode",
        "baselines/test_baselines.py::test_siblings_begin_alike_and_act_apart[1]",
    ),
    Mutant(
        "average_forgets_what_it_did_not_see",
        "own: a step that a batch did not reach counts less for it",
        "baselines/averages.py",
        "tf.where(weights > 0, tf.constant(self.decay, weights.dtype), 1.0)",
        "tf.constant(self.decay, weights.dtype)",
        "baselines/test_baselines.py::"
        "test_an_average_is_the_weighted_mean_of_earlier_batches[9-0.0]",
    ),
    Mutant(
        "decay_of_float32",
        "own: the decay of an average rounded to float32 under float64",
        "baselines/averages.py",
        "tf.constant(self.decay, weights.dtype)",
        "tf.cast(self.decay, weights.dtype)",
        "baselines/test_baselines.py::"
        "test_an_average_is_the_weighted_mean_of_earlier_batches[None-0.7]",
    ),
    Mutant(
        "normalizer_learns_first",
        "own: the normalizer learns a batch before the policy does",
        "algorithm/train_step.py",
        "permutation = permutations[0] if self.num_permutations else None\n",
        "permutation = permutations[0] if self.num_permutations else None\n"
        "        self.estimator.update_normalizer(episodes)\n",
        "test_agent.py::test_every_part_of_an_update_sees_the_others_as_they_acted",
    ),
]

DISTRIBUTIONS = [
    Mutant(
        "log_of_softmax",
        "B25 logarithm of a softmax: -inf from a gap of 100 on",
        "heads/categorical.py",
        "tfp.distributions.Categorical(logits=outputs)",
        "tfp.distributions.Categorical(logits=tf.math.log(tf.nn.softmax(outputs)))",
        "heads/test_heads.py::"
        "test_the_score_is_one_hot_minus_probabilities_however_sure_the_policy"
        "[float32-10000.0]",
    ),
    Mutant(
        "log_of_softmax_plus_epsilon",
        "B25 the same with 1e-8 added: no gradient where the policy is sure",
        "heads/categorical.py",
        "tfp.distributions.Categorical(logits=outputs)",
        "tfp.distributions.Categorical("
        "logits=tf.math.log(tf.nn.softmax(outputs) + 1e-8))",
        "heads/test_heads.py::"
        "test_the_score_is_one_hot_minus_probabilities_however_sure_the_policy"
        "[float32-100.0]",
    ),
    Mutant(
        "soft_labels",
        "B26 cross-entropy with labels that do not sum to 1: right loss, wrong gradient",
        "functional/losses.py",
        "return tf.nn.sparse_softmax_cross_entropy_with_logits(actions, y_pred)",
        "labels = 2.0 * tf.one_hot(actions, y_pred.shape[-1])\n"
        "            both = tf.nn.softmax_cross_entropy_with_logits(labels, y_pred)\n"
        "            return both / 2.0",
        "functional/test_losses.py::test_fit_takes_the_step_of_reinforce[logits-graph]",
    ),
    Mutant(
        "odds_for_probabilities",
        "B27 probabilities that do not sum to 1",
        "heads/categorical.py",
        '"probs": tf.nn.softmax(outputs)',
        '"probs": tf.exp(outputs)',
        "heads/test_heads.py::test_a_categorical_names_its_parameters",
    ),
    Mutant(
        "probabilities_for_logits",
        "B28 probabilities where `Categorical` takes logits",
        "heads/categorical.py",
        "tfp.distributions.Categorical(logits=outputs)",
        "tfp.distributions.Categorical(tf.nn.softmax(outputs))",
        "heads/test_heads.py::test_a_categorical_policy_is_the_softmax_of_its_logits",
    ),
    Mutant(
        "fractions_in_a_record",
        "B29 action 0.5 cut to 0 in a record",
        "data/episodes.py",
        'if not np.can_cast(values.dtype, dtype, "same_kind"):',
        "if False:",
        "data/test_episodes.py::test_a_wrong_record_is_refused[fractions_as_actions]",
    ),
    Mutant(
        "fractions_in_the_loss",
        "B29 action 0.5 cut to 0 in the Keras loss",
        "functional/losses.py",
        "integers = tf.cast(actions, dtype)\n",
        "return tf.cast(actions, dtype)\n    integers = tf.cast(actions, dtype)\n",
        "functional/test_losses.py::test_fractions_of_an_action_are_refused[logits-True]",
    ),
    Mutant(
        "action_out_of_range",
        "B30 an action that does not exist accepted",
        "heads/categorical.py",
        "return (actions >= 0) & (actions < self.size)",
        "return actions >= 0",
        "heads/test_heads.py::test_an_action_no_categorical_can_have_sampled_is_named[3]",
    ),
    Mutant(
        "odds_in_the_multinomial",
        "B27 TFP's `Multinomial(probs=…)`, which does not normalise",
        "heads/multinomial.py",
        "super()._log_prob(counts)",
        "tfp.distributions.Multinomial(\n"
        "            self.total_count, probs=tf.exp(self.logits)\n"
        "        ).log_prob(counts)",
        "heads/test_multinomial.py::"
        "test_probabilities_entropy_and_mode_are_those_of_the_definition[0]",
    ),
    Mutant(
        "counts_of_another_sum",
        "B30 counts accepted that do not add up to the trials",
        "heads/multinomial.py",
        "return (actions >= 0) & correct_sum",
        "return actions >= 0",
        "heads/test_multinomial.py::test_counts_that_do_not_add_up_are_refused",
    ),
    Mutant(
        "one_noise_for_all_trials",
        "B36 every trial of a multinomial draws the same noise",
        "heads/multinomial.py",
        "categorical.gumbel(noise)",
        "categorical.gumbel(noise[..., :1, :] + 0.0 * noise)",
        "heads/test_multinomial.py::test_samples_follow_the_probabilities",
    ),
    Mutant(
        "entropy_of_sure_counts",
        "own entropy of counts from 1 - p, whose gradient is NaN where p rounds to 1",
        "heads/multinomial.py",
        "return logits - total, tf.reduce_logsumexp(others, axis=-1) - total",
        "return logits - total, tf.math.log(1.0 - tf.exp(logits - total))",
        "heads/test_multinomial.py::"
        "test_the_entropy_and_its_gradient_stay_finite_and_exact[5-float32]",
    ),
    Mutant(
        "eligibility_of_simplex",
        "B27 eligibility n/p where probabilities are normalised inside",
        "functional/eligibility.py",
        "return _counts_over_probs(counts, probs) - trials / total",
        "return _counts_over_probs(counts, probs)",
        "functional/test_eligibility.py::"
        "test_a_discrete_closed_form_is_the_derivative_of_the_definition"
        "[multinomial_probs]",
    ),
    Mutant(
        "eligibility_of_one_neuron",
        "own eligibility sent to the neuron of the sampled action only",
        "functional/eligibility.py",
        "return _one_hot(actions, logits) - tf.nn.softmax(logits)",
        "return _one_hot(actions, logits) * (1.0 - tf.nn.softmax(logits))",
        "functional/test_eligibility.py::"
        "test_an_expected_eligibility_is_zero_or_leaves_the_simplex[categorical_logits]",
    ),
    Mutant(
        "eligibility_of_deviation",
        "own eligibility of σ without its -1/σ: every sample widens",
        "functional/eligibility.py",
        "(z**2 - 1.0) / std, z",
        "z**2 / std, z",
        "functional/test_eligibility.py::"
        "test_a_continuous_expected_eligibility_is_zero[gaussian]",
    ),
    Mutant(
        "eligibility_of_squashed",
        "B7 the squashed action in place of the sample under it",
        "functional/eligibility.py",
        "gaussian(mean, std, tf.atanh(actions))",
        "gaussian(mean, std, actions)",
        "functional/test_eligibility.py::"
        "test_a_continuous_closed_form_is_the_derivative_of_the_density[tanh_gaussian]",
    ),
    Mutant(
        "start_ignored",
        "B31 `Discrete(start=…)` ignored",
        "heads/categorical.py",
        "return actions + self.start if self.start else actions",
        "return actions",
        "heads/test_heads.py::test_the_environment_hears_its_own_names_of_the_actions",
    ),
    Mutant(
        "bounds_ignored",
        "B32 actions not clipped to the bounds of their Box",
        "heads/box.py",
        "return tf.reshape(clipped, [-1, *self.shape])",
        "return tf.reshape(actions, [-1, *self.shape])",
        "heads/test_heads.py::test_the_head_of_a_box_speaks_its_language[half_infinite]",
    ),
    Mutant(
        "bounds_rounded_outwards",
        "B32 float32(0.1) sent to a Box that ends at 0.1 in float64",
        "heads/box.py",
        "return np.where(outside, inward, rounded)",
        "return rounded",
        "heads/test_heads.py::test_no_type_leaves_the_bounds_of_the_environment"
        "[-0.1-0.1-float32]",
    ),
    Mutant(
        "reparameterised_action",
        "B43 the gradient flows through the sampled action: that of the mean is zero",
        "algorithm/estimator.py",
        "log_probs, entropies = actions.log_prob(minibatch.actions), actions.entropy()",
        "taken = minibatch.actions\n"
        "            if taken.dtype.is_floating:\n"
        "                taken = outputs + tf.stop_gradient(taken - outputs)\n"
        "            log_probs, entropies = actions.log_prob(taken), actions.entropy()",
        NORMAL,
    ),
    Mutant(
        "scale_exponentiated_twice",
        "B44 exp(exp(log σ))",
        "heads/normal.py",
        "return tf.exp(tf.cast(self.log_scale, outputs.dtype))",
        "return tf.exp(tf.exp(tf.cast(self.log_scale, outputs.dtype)))",
        "heads/test_heads.py::test_the_log_probability_of_a_gaussian_is_its_formula",
    ),
    Mutant(
        "sampler_and_scorer_differ",
        "B44 softplus in the sampler, exp in the score",
        "heads/normal.py",
        "return self._mean(outputs) + self._scale(outputs) * noise",
        "return outputs + tf.nn.softplus(tf.cast(self.log_scale, outputs.dtype)) * noise",
        "heads/test_heads.py::test_a_gaussian_sample_is_mean_plus_scale_times_noise",
    ),
    Mutant(
        "infinite_masks",
        "B24 -inf in place of illegal logits: the entropy's slope is NaN",
        "heads/categorical.py",
        "tf.constant(logits.dtype.min / 2, logits.dtype)",
        "tf.constant(-float('inf'), logits.dtype)",
        f"{MASKED_FINITE}[one_choice-float32-1.0]",
    ),
    Mutant(
        "counts_overflow_under_a_mask",
        "B24 N times a masked logit overflows in the entropy of counts",
        "heads/multinomial.py",
        "tf.maximum(tf.cast(self.logits, tf.float64), _MIN_LOGIT)",
        "tf.cast(self.logits, tf.float64)",
        f"{MASKED_FINITE}[counts-float64-1.0]",
    ),
    Mutant(
        "masks_by_a_penalty",
        "own: a penalty on illegal logits that surer ones outweigh",
        "heads/categorical.py",
        "tf.where(illegal, tf.constant(logits.dtype.min / 2, logits.dtype), logits)",
        "tf.where(illegal, logits - 1e3, logits)",
        "heads/test_masks.py::test_ten_thousand_samples_and_the_mode_are_legal"
        "[one_choice-sure-float32]",
    ),
    Mutant(
        "mask_forgotten_in_the_score",
        "own: the mask rules the draws and not the scores",
        "algorithm/estimator.py",
        "return self.head.mask_outputs(outputs, steps.gather(masks))",
        "return outputs",
        "heads/test_masks.py::"
        "test_the_expected_update_is_the_gradient_under_masks[one_choice]",
    ),
    Mutant(
        "marks_wrap",
        "own: a mark of 256 becomes 0 in int8",
        "heads/base.py",
        'return (flat != 0).astype("int8")',
        'return flat.astype("int8")',
        "heads/test_masks.py::test_a_mark_that_int8_would_wrap_to_zero_is_not_zero",
    ),
    Mutant(
        "padding_can_be_chosen",
        "B30 choices of different sizes padded with logits that can be drawn",
        "heads/multi_categorical.py",
        "return categorical.mask_logits(block, self._is_padding)",
        "return block",
        "heads/test_discrete_heads.py::"
        "test_the_probability_of_several_choices_is_the_product_of_theirs",
    ),
    Mutant(
        "choices_not_summed",
        "B5 log-probabilities of several choices not added up",
        "heads/multi_categorical.py",
        "tfp.distributions.Independent(choices, 1)",
        "tfp.distributions.Independent(choices, 0)",
        "heads/test_discrete_heads.py::"
        "test_the_probability_of_several_choices_is_the_product_of_theirs",
    ),
    Mutant(
        "one_noise_for_all_choices",
        "B36 all choices of an action draw the same noise",
        "heads/multi_categorical.py",
        "noise = tf.gather(noise, self._indices, axis=-1)",
        "noise = tf.gather(noise, self._indices - self._offsets[:, None], axis=-1)",
        "heads/test_discrete_heads.py::"
        "test_choices_are_drawn_independently_of_each_other",
    ),
    Mutant(
        "choices_centred_together",
        "own: one offset for all choices: a large one swallows the noise of another",
        "heads/multi_categorical.py",
        "logits = categorical.center_logits(self._to_block(outputs))",
        "logits = self._to_block(outputs)",
        "heads/test_discrete_heads.py::"
        "test_a_common_offset_of_one_choice_does_not_swallow_the_noise",
    ),
    Mutant(
        "starts_ignored",
        "B31 `MultiDiscrete(start=…)` ignored",
        "heads/multi_categorical.py",
        "if np.any(self.start):",
        "if False:",
        "heads/test_discrete_heads.py::"
        "test_the_environment_hears_its_own_names_of_all_choices[started]",
    ),
    Mutant(
        "one_choice_of_several_out_of_range",
        "B30 a choice that does not exist accepted",
        "heads/multi_categorical.py",
        "return (actions >= 0) & (actions < np.array(self.sizes))",
        "return (actions >= 0) & (actions < max(self.sizes))",
        "heads/test_discrete_heads.py::"
        "test_a_choice_that_does_not_exist_is_named[action1]",
    ),
    Mutant(
        "switches_from_probabilities",
        "B25 switches by their probabilities: log 0 where the policy is sure",
        "heads/bernoulli.py",
        "Bernoulli(logits=outputs, dtype=tf.int64)",
        "Bernoulli(probs=tf.sigmoid(outputs), dtype=tf.int64)",
        "heads/test_discrete_heads.py::"
        "test_sure_switches_have_right_log_probabilities_and_scores[float32-10000.0]",
    ),
    Mutant(
        "switch_on_by_zero_noise",
        "own: noise of exactly zero turns on a switch that is on all but never",
        "heads/bernoulli.py",
        "noise = tf.maximum(noise, np.finfo(logits.dtype.as_numpy_dtype).eps / 4)",
        "pass",
        "heads/test_discrete_heads.py::"
        "test_noise_of_exactly_zero_turns_on_only_what_is_that_likely[float32-24]",
    ),
    Mutant(
        "sigmoid_of_huge_logits",
        "own: LiteRT's sigmoid of a masked logit is NaN: acting falls back on TensorFlow",
        "heads/bernoulli.py",
        "logits = tf.clip_by_value(outputs, -1e4, 1e4)",
        "logits = outputs",
        "heads/test_masks.py::test_litert_follows_the_mask[switches]",
    ),
    Mutant(
        "masks_compared_in_int8",
        "own: masks compared in int8: acting falls back on TensorFlow",
        "policies/actor.py",
        "mask = tf.cast(mask, tf.int32)  # LiteRT compares no smaller integers",
        "mask = tf.cast(mask, tf.int8)",
        "heads/test_masks.py::test_litert_follows_the_mask[one_choice]",
    ),
    Mutant(
        "switch_that_must_be_on",
        "own: mark 1 of a MultiBinary read as free, as in every other mask",
        "heads/bernoulli.py",
        "return tf.where(base.mask_equals(mask, _ON), large, outputs)",
        "return outputs",
        "heads/test_masks.py::test_ten_thousand_samples_and_the_mode_are_legal"
        "[switches-plain-float32]",
    ),
    Mutant(
        "leaves_share_a_mask",
        "own: every leaf of a nested action is judged by the first marks of the mask",
        "heads/composite.py",
        "return np.split(mask, ends[:-1], axis=-1)",
        "return [mask[..., : leaf.mask_size] for leaf in self.leaves]",
        "heads/test_composite.py::test_an_illegal_action_is_named_with_its_leaf",
    ),
    Mutant(
        "leaves_lost",
        "own: weights of nested heads that Keras does not find are neither trained nor "
        "saved",
        "heads/composite.py",
        "self.leaves = keras.tree.flatten(heads)",
        "self.leaves = ()\n        self.__dict__['leaves'] = keras.tree.flatten(heads)",
        "heads/test_composite.py::test_the_leaves_are_trained_and_their_weights_kept",
    ),
    Mutant(
        "tuples_become_lists",
        "own: a tuple of heads comes back from a file as a list",
        "heads/composite.py",
        'return tuple(_from_config(part) for part in config["parts"])',
        'return [_from_config(part) for part in config["parts"]]',
        "heads/test_composite.py::test_a_composite_survives_its_config[deep]",
    ),
    Mutant(
        "clipped_scored_as_unclipped",
        "B6 the clipped action scored by the density of an unclipped one",
        "heads/clipped.py",
        "return tf.where(below | above, _log_cdf(tail_z), density)",
        "return -(z**2) / 2 - tf.math.log(self.scale) - math.log(math.tau) / 2",
        "properties/test_truth_heads.py::test_a_head_is_the_distribution_it_says_it_is"
        "[probabilities-clipped]",
    ),
    Mutant(
        "bounds_out_of_sight",
        "own: the slope of a quotient too large for the type, which is no number",
        "heads/clipped.py",
        "near = finite & (tf.abs(difference) < _MAX_Z * self.scale)",
        "near = finite",
        "heads/test_bounded_heads.py::test_bounds_as_far_as_numbers_go_are_none[1.0]",
    ),
    Mutant(
        "bounds_that_are_no_bounds",
        "B6 an action on a bound counted as one between them",
        "heads/clipped.py",
        "below, above = actions <= self.low, actions >= self.high",
        "below, above = actions < self.low, actions > self.high",
        "heads/test_bounded_heads.py::"
        "test_a_bound_however_far_away_is_scored_exactly[-5.0-float64-1e-12]",
    ),
    Mutant(
        "tail_from_its_probability",
        "own ln Φ from Φ, which is zero far out",
        "heads/clipped.py",
        "tail = tf.math.log(tfp.math.erfcx(-lower / sqrt_2) / 2) - lower**2 / 2",
        "tail = tf.math.log(tf.math.erfc(-lower / sqrt_2) / 2)",
        "heads/test_bounded_heads.py::"
        "test_a_bound_however_far_away_is_scored_exactly[-50.0-float32-1e-05]",
    ),
    Mutant(
        "entropy_without_its_bounds",
        "own entropy of a clipped Gaussian without the two bounds",
        "heads/clipped.py",
        "return normal_entropy * inside + edges / 2 - atoms[0] - atoms[1]",
        "return normal_entropy * inside + edges / 2",
        "properties/test_truth_heads.py::test_a_head_is_the_distribution_it_says_it_is"
        "[entropy-clipped]",
    ),
    Mutant(
        "eligibility_of_clipped_turned",
        "own eligibility at a bound with the wrong sign",
        "functional/eligibility.py",
        "at_bound = (side * ratio / std,",
        "at_bound = (-side * ratio / std,",
        "functional/test_eligibility.py::"
        "test_a_continuous_closed_form_is_the_derivative_of_the_density"
        "[clipped_gaussian]",
    ),
    Mutant(
        "jacobian_left_out",
        "B7 the squashed action without the slope of the tanh",
        "heads/tanh.py",
        "return density + 2.0 * _log_cosh(x)",
        "return density",
        "properties/test_truth_heads.py::test_a_head_is_the_distribution_it_says_it_is"
        "[probabilities-tanh]",
    ),
    Mutant(
        "jacobian_turned",
        "B7 the slope of the tanh multiplied where it divides",
        "heads/tanh.py",
        "return density + 2.0 * _log_cosh(x)",
        "return density - 2.0 * _log_cosh(x)",
        "heads/test_bounded_heads.py::"
        "test_the_density_of_a_squashed_action_is_exact_wherever_it_is"
        "[0.3-float64-1e-13]",
    ),
    Mutant(
        "jacobian_from_the_action",
        "B7 ln(1 - tanh² x) from a tanh that is rounded to one",
        "heads/tanh.py",
        "return x + tf.nn.softplus(-2.0 * x) - math.log(2.0)",
        "return -tf.math.log1p(-(tf.tanh(x) ** 2)) / 2",
        "heads/test_bounded_heads.py::"
        "test_the_density_of_a_squashed_action_is_exact_wherever_it_is"
        "[8.0-float32-1e-05]",
    ),
    Mutant(
        "squashed_action_unmapped",
        "B32 the tanh sent as it is, not in the units of the Box",
        "heads/tanh.py",
        "return super().to_environment(self.rescale(fractions, complements))",
        "return super().to_environment(tf.tanh(actions))",
        "heads/test_bounded_heads.py::"
        "test_the_environment_receives_the_squashed_action_in_its_own_units",
    ),
    Mutant(
        "whole_numbers_cut",
        "B32 numbers for an integer Box cut, not rounded",
        "heads/box.py",
        "tf.round(actions) if self.integer",
        "tf.floor(actions) if self.integer",
        "heads/test_bounded_heads.py::test_whole_numbers_are_the_nearest_ones",
    ),
    Mutant(
        "whole_bounds_as_floats",
        "B32 the bound 2⁶³ - 1 kept as a float: 2⁶³, which is outside",
        "heads/box.py",
        "high, math.floor if integer else float)",
        "high)",
        "heads/test_bounded_heads.py::test_whole_numbers_are_sent_whole_and_inside"
        "[space11-float64-gaussian]",
    ),
    Mutant(
        "scale_without_a_bound",
        "own a scale that depends on the state, and explodes",
        "heads/normal.py",
        "tf.exp(_MAX_LOG_RATIO * tanh)",
        "tf.exp(outputs[..., self.size :])",
        "heads/test_bounded_heads.py::"
        "test_the_scale_starts_where_asked_follows_its_output_and_stays_in_bounds"
        "[gaussian]",
    ),
    Mutant(
        "eligibility_of_unbent_scale",
        "own eligibility of that scale without the slope of its bound",
        "heads/normal.py",
        "slopes.log_std * (1.0 - tanh**2)",
        "slopes.log_std",
        "heads/test_bounded_heads.py::"
        "test_the_eligibility_is_the_derivative_of_the_log_probability[gaussian]",
    ),
    Mutant(
        "concentrations_below_one",
        "B49 concentrations below one: densities without end at the border",
        "heads/beta.py",
        'return {"concentration1": 1.0 + a, "concentration0": 1.0 + b}',
        'return {"concentration1": a, "concentration0": b}',
        "heads/test_bounded_heads.py::test_concentrations_stay_above_one_and_finite",
    ),
    Mutant(
        "draws_at_the_border",
        "B49 draws that are rounded to 0 or 1, which have no log-density",
        "heads/beta.py",
        "return tf.clip_by_value(y, limits.tiny, 1.0 - limits.epsneg)",
        "return y",
        "heads/test_bounded_heads.py::"
        "test_a_million_draws_are_inside_the_interval_and_can_be_scored[excess2]",
    ),
    Mutant(
        "concentrations_swapped",
        "own α drawn where β is scored",
        "heads/beta.py",
        "return sample_beta(*self._excess(outputs), noise)",
        "return sample_beta(*self._excess(outputs)[::-1], noise)",
        "properties/test_truth_heads.py::"
        "test_a_head_is_the_distribution_it_says_it_is[sample-beta]",
    ),
    Mutant(
        "every_attempt_accepted",
        "own the first proposal taken, accepted or not",
        "heads/beta.py",
        "accepted = cost <=",
        "accepted = cost >= 0.0 * cost; cost <=",
        "heads/test_bounded_heads.py::"
        "test_beta_samples_follow_their_distribution_function[float64-excess5]",
    ),
    Mutant(
        "digits_lost_in_the_rejection",
        "own ln(1 + x) and eˣ - 1 as they stand: wrong for large concentrations",
        "heads/beta.py",
        "cost = concentration * (_log1p(p * _expm1(log_odds)) - p * log_odds)",
        "cost = concentration * (\n"
        "        tf.math.log(1.0 - p + p * tf.exp(log_odds)) - p * log_odds\n"
        "    )",
        "heads/test_bounded_heads.py::"
        "test_single_precision_accepts_the_attempts_that_double_precision_does[excess0]",
    ),
    Mutant(
        "softplus_that_overflows",
        "own a softplus that LiteRT works out as ln(1 + eˣ)",
        "heads/beta.py",
        "tf.nn.softplus(tf.minimum(outputs, 40.0)) + tf.nn.relu(outputs - 40.0)",
        "tf.nn.softplus(outputs)",
        "heads/test_bounded_heads.py::"
        "test_litert_acts_on_huge_outputs_as_keras_does[sampled-beta]",
    ),
]

EPISODES = [
    Mutant(
        "clipped_action_stored",
        "B6 the clipped action stored and scored",
        "collect/host_loop.py",
        "zip(buffer.actions, raw):",
        "zip(buffer.actions, env_actions):",
        "collect/test_collecting.py::"
        "test_what_is_stored_is_what_was_sampled_before_it_was_clipped",
    ),
    Mutant(
        "phantom_row",
        "B13 the row with which NEXT_STEP resets kept as a step",
        "collect/vector_envs.py",
        "self._resetting, self._can_start = ended, was_reset",
        "self._resetting, self._can_start = ended, ended",
        f"{EVERY_RESET}[AutoresetMode.NEXT_STEP-3-2]",
    ),
    Mutant(
        "reset_for_final_observation",
        "B14 the last observation taken from the reset, not from `final_obs`",
        "collect/vector_envs.py",
        'finals = {i: infos["final_obs"][i] for i in env_indices}',
        "finals = {}",
        f"{EVERY_RESET}[AutoresetMode.SAME_STEP-3-2]",
    ),
    Mutant(
        "last_observation_overwritten",
        "B14 the last observation kept as a view, which the next reset overwrites",
        "collect/scheduler.py",
        "[array[self.env_index].copy() for array in observations]",
        "[array[self.env_index] for array in observations]",
        f"{EVERY_RESET}[None-1-2]",
    ),
    Mutant(
        "stale_reset_flag",
        "B15 what was to be reset is remembered over an explicit reset",
        "collect/vector_envs.py",
        "self._resetting = np.zeros(self.size, bool)",
        'self._resetting = getattr(self, "_resetting", np.zeros(self.size, bool))',
        "collect/test_collecting.py::"
        "test_a_second_collection_from_one_vector_env_begins_afresh"
        "[AutoresetMode.NEXT_STEP-1]",
    ),
    Mutant(
        "cut_recorded_as_ending",
        "B16 an episode that the clock cut recorded as terminated",
        "collect/batched_envs.py",
        "ends += [self._episode_end(env_index, False) for env_index in env_indices]",
        "ends += [self._episode_end(env_index, True) for env_index in env_indices]",
        "collect/test_collecting.py::"
        "test_a_time_limit_cuts_at_its_step_unless_the_task_ends_there[3-3-False]",
    ),
    Mutant(
        "both_flags_are_a_cut",
        "B17 both flags set: truncation wins",
        "collect/batched_envs.py",
        "ends.append(self._episode_end(env_index, terminated))",
        "ends.append(self._episode_end(env_index, terminated and not truncated))",
        "collect/test_collecting.py::"
        "test_where_both_flags_are_set_the_task_ended_the_episode"
        "[True-True-3-True-None]",
    ),
    Mutant(
        "both_flags_are_a_cut_in_a_vector",
        "B17 the same in a vector environment",
        "collect/vector_envs.py",
        "bool(terminations[env_index]),",
        "bool(terminations[env_index] > truncations[env_index]),",
        "collect/test_collecting.py::"
        "test_where_both_flags_are_set_the_task_ended_the_episode"
        "[True-True-3-True-AutoresetMode.SAME_STEP]",
    ),
    Mutant(
        "first_to_finish",
        "B33 the first episodes to finish instead of the first to start",
        "collect/scheduler.py",
        "return len(self.episodes) < self._count\n"
        "        total = sum(x.length or row - x.start_row for x in self.episodes)\n"
        "        return total < self._steps\n"
        "\n"
        "    def result(self):\n"
        '        """Returns the episodes to use, or `None` until they have ended."""\n'
        "        if self._steps is None:\n"
        "            has_all = len(self.episodes) == self._count\n"
        "            complete = has_all and all(x.length for x in self.episodes)\n"
        "            return self.episodes if complete else None\n",
        "return True\n"
        "        total = sum(x.length or row - x.start_row for x in self.episodes)\n"
        "        return total < self._steps\n"
        "\n"
        "    def result(self):\n"
        "        if self._steps is None:\n"
        "            finished = [x for x in self.episodes if x.length][: self._count]\n"
        "            return finished if len(finished) == self._count else None\n",
        "collect/test_collecting.py::"
        "test_exactly_the_wanted_episodes_in_order_of_starting[16]",
    ),
    Mutant(
        "order_of_finishing",
        "own: episodes in another order than they started",
        "collect/scheduler.py",
        "complete = has_all and all(x.length for x in self.episodes)\n            "
        "return self.episodes if complete else None",
        "complete = has_all and all(x.length for x in self.episodes)\n            "
        "return sorted(self.episodes, key=lambda x: x.start_row + x.length)"
        " if complete else None",
        "collect/test_collecting.py::"
        "test_the_number_of_environments_does_not_change_one_number",
    ),
    Mutant(
        "cut_episodes_dropped",
        "own: episodes that the clock cut are left out of the batch",
        "collect/host_loop.py",
        "episodes = loop.run(act)",
        "episodes = [x for x in loop.run(act) if x.end.terminated]",
        "collect/test_collecting.py::"
        "test_episodes_that_are_cut_keep_their_place_among_the_others",
    ),
    Mutant(
        "empty_episodes",
        "B41 an episode without steps accepted",
        "data/episodes.py",
        "if lengths.min() < 1 or",
        "if lengths.min() < 0 or",
        "data/test_episodes.py::test_a_wrong_record_is_refused[no_length]",
    ),
    Mutant(
        "greedy_training",
        "B46 the most likely action while training",
        "training/trainer.py",
        "(key, episodes, steps, group_size=size)",
        "(key, episodes, steps, True, group_size=size)",
        "test_agent.py::test_training_draws_and_evaluation_takes_the_most_likely_action",
    ),
    Mutant(
        "drawn_evaluation",
        "B46 `evaluate` draws its actions unless told otherwise",
        "agent.py",
        "deterministic: bool = True",
        "deterministic: bool = False",
        "test_agent.py::test_training_draws_and_evaluation_takes_the_most_likely_action",
    ),
    Mutant(
        "drawn_validation",
        "B46 validation draws its actions",
        "agent.py",
        "key, validation_episodes)",
        "key, validation_episodes, deterministic=False)",
        "test_agent.py::test_training_draws_and_evaluation_takes_the_most_likely_action",
    ),
    Mutant(
        "clipped_rewards_reported",
        "B47 the reported return summed from clipped rewards",
        "data/episode_statistics.py",
        "np.cumsum(episodes.rewards, axis=0",
        "np.cumsum(np.clip(episodes.rewards, -1, 1), axis=0",
        "data/test_episode_statistics.py::"
        "test_rewards_count_as_the_environment_gave_them",
    ),
    Mutant(
        "clipped_rewards_recorded",
        "B47 rewards clipped when they arrive",
        "collect/batched_envs.py",
        "rewards[env_index] = reward\n",
        "rewards[env_index] = max(-1.0, min(1.0, reward))\n",
        "test_agent.py::test_figures_are_those_of_the_episodes",
    ),
    Mutant(
        "fewer_actions_than_slots",
        "B50 a vector environment gets actions for its live slots only",
        "collect/vector_envs.py",
        "np.stack(parts), *actions)",
        "np.stack(parts), *[actions[i] for i in active])",
        "collect/test_collecting.py::test_a_vector_env_may_be_larger_than_what_is_wanted"
        "[AutoresetMode.DISABLED]",
    ),
]

MASKS_ON_THE_WAY = [
    Mutant(
        "mask_of_the_step_before",
        "B24 an action is chosen under the mask of the step before",
        "collect/host_loop.py",
        "inputs = [*observations, *policy_states, *noise.row(row, active)]",
        "inputs = [*observations, *policy_states, *noise.row(row, active)]\n"
        "            if self.masked_head is not None and row:\n"
        "                previous = buffer.observation_row(row - 1)[-1]\n"
        "                inputs[len(observations) - 1] = previous",
        "collect/test_masked_environments.py::"
        "test_no_illegal_action_is_ever_sent_and_every_mask_is_recorded"
        "[None-info/action_mask]",
    ),
    Mutant(
        "illegal_record_accepted",
        "B24 a record whose actions were illegal is learned from",
        "heads/base.py",
        "valid_steps & ~self.is_legal(actions, masks)",
        "valid_steps & False",
        "collect/test_masked_environments.py::"
        "test_a_record_and_an_agent_agree_about_masks",
    ),
    Mutant(
        "state_kept_over_episodes",
        "own: what was remembered of one episode is remembered in the next",
        "collect/host_loop.py",
        "self.recurrent_states.reset(env_index)",
        "pass",
        "policies/test_memory.py::test_acting_step_by_step_is_the_whole_column[LSTM]",
    ),
    Mutant(
        "state_not_handed_on",
        "own: every action is taken from the first state",
        "collect/host_loop.py",
        "for array, part in zip(policy_states, states):",
        "for array, part in ():",
        "policies/test_memory.py::test_acting_step_by_step_is_the_whole_column[GRU]",
    ),
    Mutant(
        "dead_end_acted_on",
        "B24 a mask without a legal action is acted on in silence",
        "collect/host_loop.py",
        "if not has_legal_action[env_index]:",
        "if False:",
        "collect/test_masked_environments.py::"
        "test_a_mask_that_is_none_is_an_error_that_names_the_step[nothing_legal]",
    ),
]

RANDOMNESS = [
    Mutant(
        "one_noise_for_all_episodes",
        "B36 every episode draws the same action noise",
        "data/seeding.py",
        'self._words("action", episode)',
        'self._words("action", 0)',
        "data/test_seeding.py::test_no_two_episodes_share_action_noise",
    ),
    Mutant(
        "noise_without_its_seed",
        "B36 `act` draws the same noise for every seed",
        "data/seeding.py",
        "tf.stack([tf.cast(seed, tf.int64), tf.constant(part, tf.int64)])",
        "tf.stack([tf.zeros([], tf.int64), tf.constant(part, tf.int64)])",
        "data/test_seeding.py::test_noise_depends_on_its_seed_alone[float32-uniform]",
    ),
    Mutant(
        "noise_by_slot",
        "B36 action noise by the slot, not by the episode",
        "collect/host_loop.py",
        "self.seeds.action(number, i)",
        "self.seeds.action(env_index, i)",
        "collect/test_collecting.py::"
        "test_the_number_of_environments_does_not_change_one_number",
    ),
    Mutant(
        "one_stream_for_both",
        "B37 environment and actions address one stream",
        "data/seeding.py",
        'f"{stream}/{kind}"',
        'f"{stream}/environment"',
        "data/test_seeding.py::test_environments_and_actions_have_streams_of_their_own",
    ),
    Mutant(
        "actions_from_the_environment_s_seed",
        "B37 action noise from the generator that the environment makes of its seed",
        "data/seeding.py",
        "return np.random.Generator(bits.jumped(part) if part else bits)",
        "return np.random.default_rng(self.environment(episode))",
        "data/test_seeding.py::"
        "test_action_noise_is_not_the_randomness_of_the_environment",
    ),
    Mutant(
        "seed_plus_i",
        "B38 environment i of a run is seeded with seed + i",
        "data/seeding.py",
        "return int(words[0] % _NUM_ENVIRONMENT_SEEDS)",
        'return self._keys["environment"][0] + episode',
        "data/test_seeding.py::test_no_environment_seed_appears_twice_in_a_hundred_runs",
    ),
    Mutant(
        "same_episodes_in_every_update",
        "B38 every update plays the same episodes",
        "data/seeding.py",
        'f"{stream}/{kind}", update)',
        'f"{stream}/{kind}", 0)',
        "data/test_seeding.py::test_purposes_and_updates_share_no_environment",
    ),
    Mutant(
        "evaluation_plays_training_episodes",
        "B38 evaluation plays the episodes of training",
        "data/seeding.py",
        'f"{stream}/{kind}"',
        'f"training/{kind}"',
        "data/test_seeding.py::test_purposes_and_updates_share_no_environment",
    ),
]

STATE = [
    Mutant(
        "normalizer_learns_when_called",
        "B34 the normalizer learns in evaluation, prediction and export",
        "policies/normalization.py",
        "flat = [tf.convert_to_tensor(x) for x in keras.tree.flatten(observations)]",
        "self.update(observations)\n"
        "        flat = [tf.convert_to_tensor(x)"
        " for x in keras.tree.flatten(observations)]",
        "policies/test_normalization.py::test_calling_changes_nothing",
    ),
    Mutant(
        "variance_without_the_gap",
        "B35 running variance without the distance between the means",
        "policies/normalization.py",
        "self.squares[index] + new_squares + between",
        "self.squares[index] + new_squares",
        "policies/test_normalization.py::"
        "test_the_statistics_do_not_depend_on_how_the_data_is_split[0.0-7]",
    ),
    Mutant(
        "variance_far_from_zero",
        "B35 running variance that loses its digits far from zero",
        "policies/normalization.py",
        "origin = tf.where(old_count > 0, self.origins[index], leaf[0])",
        "origin = tf.zeros_like(leaf[0])",
        "policies/test_normalization.py::"
        "test_the_statistics_do_not_depend_on_how_the_data_is_split[100000000.0-7]",
    ),
    Mutant(
        "not_finite_applied",
        "B42 an update that leaves weights that are not finite is made",
        "algorithm/train_step.py",
        'finite &= _all_finite([v for v in self._variables if "float" in v.dtype])',
        "pass",
        "test_agent_input.py::"
        "test_finite_gradients_do_not_excuse_weights_that_are_not_finite[weights]",
    ),
    Mutant(
        "only_the_loss_is_checked",
        "B42 gradients that are not finite under a finite loss",
        "algorithm/train_step.py",
        "return _all_finite([loss] if self._skips_overflow else [loss, *gradients])",
        "return _all_finite([loss])",
        "test_agent_input.py::"
        "test_a_finite_loss_does_not_excuse_gradients_that_are_not_finite[policy]",
    ),
    Mutant(
        "only_the_policy_is_checked",
        "B42 a baseline's gradients that are not finite",
        "algorithm/train_step.py",
        "finite = _all_finite(baseline_step.gradients) | empty",
        "finite = tf.constant(True)",
        "test_agent_input.py::"
        "test_a_finite_loss_does_not_excuse_gradients_that_are_not_finite[critic]",
    ),
    Mutant(
        "old_weights_act",
        "own: the acting program keeps the weights it was made with",
        "collect/acting_program.py",
        "            )\n        self._runners[count].set_weights(weights)",
        "            )\n            self._runners[count].set_weights(weights)",
        "collect/test_acting_program.py::"
        "test_new_weights_act_at_once_without_a_new_conversion[dense]",
    ),
    Mutant(
        "file_written_in_place",
        "own: a file is written in its place, where a kill leaves half of it",
        "files.py",
        "temporary = os.path.join(temporary_folder, name)",
        "temporary = path",
        "test_files.py::"
        "test_a_failure_leaves_the_old_file_and_nothing_beside_it[True-RuntimeError]",
    ),
    Mutant(
        "file_not_flushed",
        "own: a file takes its name before its bytes are on the disk",
        "files.py",
        "_flush(temporary)\n        os.replace(temporary, path)",
        "os.replace(temporary, path)",
        "test_files.py::test_a_file_is_on_the_disk_before_it_takes_its_name",
    ),
    Mutant(
        "optimizer_state_lost",
        "own: the optimizer begins anew in a loaded agent",
        "training/keras_agent.py",
        "self.compile(**keras.saving.deserialize_keras_object(config))\n"
        "        if self.built:\n"
        "            self._build_optimizer()",
        "self.compile(**keras.saving.deserialize_keras_object(config))\n"
        "        self.optimizer.load_own_variables = lambda store: None\n"
        "        self._build_optimizer()",
        "test_saving.py::test_a_loaded_agent_learns_on_to_the_same_bits"
        "[without baseline weights]",
    ),
    Mutant(
        "optimizer_built_on_too_much",
        "own: a loaded optimizer is built on the baseline's weights too",
        "training/keras_agent.py",
        "        if self.built:\n            self._build_optimizer()\n"
        "        self._rates",
        "        super().compile_from_config(config)\n        self._rates",
        "test_saving.py::test_a_loaded_agent_learns_on_to_the_same_bits[with a critic]",
    ),
]

OBSERVATIONS = [
    Mutant(
        "one_hot_from_zero",
        "B31 `Discrete(start=…)` ignored where an observation is made one-hot",
        "policies/default_policy.py",
        "np.arange(n) + start for n, start",
        "np.arange(n) for n, start",
        "policies/test_default_policy.py::"
        "test_a_choice_is_seen_one_hot_from_its_start[2]",
    ),
    Mutant(
        "image_not_scaled",
        "own: pixels from 0 to 255 enter the convolutions",
        "policies/default_policy.py",
        "scale = 1.0 / max(float(space.high.max()), 1.0)",
        "scale = 1.0",
        "policies/test_default_policy.py::"
        "test_an_image_is_scaled_before_the_convolutions",
    ),
    Mutant(
        "frames_as_rows",
        "own: stacked frames `[C, H, W]` taken for `[H, W, C]`",
        "policies/default_policy.py",
        "axes = (1, 2, 3) if channels_last else (2, 3, 1)",
        "axes = (1, 2, 3)",
        "policies/test_default_policy.py::test_the_channels_of_an_image_are_found",
    ),
    Mutant(
        "bounds_of_the_type",
        "own: whole numbers divided by bounds as wide as their type, all to zero",
        "data/spaces.py",
        "bounded = (high - low < UNBOUNDED_WIDTH) & (high > low)",
        "bounded = high > low",
        "policies/test_default_policy.py::test_whole_numbers_are_seen_from_their_bounds",
    ),
    Mutant(
        "arrays_in_each_others_places",
        "own: a policy with inputs of other names reads whatever comes first",
        "policies/models.py",
        'warnings.filterwarnings("error", ',
        'warnings.filterwarnings("ignore", ',
        "policies/test_default_policy.py::"
        "test_a_policy_that_would_read_arrays_in_each_others_places_is_refused",
    ),
    Mutant(
        "whole_numbers_normalised",
        "own: the normalizer moves choices and pixels",
        "policies/normalization.py",
        "if not leaf.dtype.is_floating:",
        "if False:",
        "policies/test_normalization.py::test_whole_numbers_pass_through[kept]",
    ),
    Mutant(
        "statistics_of_images",
        "own: the normalizer keeps float64 statistics of every pixel",
        "data/spaces.py",
        "(None, *leaf.shape) if leaf.dtype.is_floating else ()",
        "(None, *leaf.shape)",
        "collect/test_observations.py::test_the_normalizer_touches_reals_alone",
    ),
    Mutant(
        "choice_out_of_range",
        "B30 an observed choice that its space does not have",
        "collect/env_outputs.py",
        "if not start <= part < stop:",
        "if False:",
        "collect/test_observations.py::test_a_choice_outside_its_space_is_refused[6]",
    ),
    Mutant(
        "choices_cut_to_eight_bits",
        "B30 choice 256 recorded as 0",
        "collect/env_outputs.py",
        "if bounds and not (",
        "if False and not (",
        "collect/test_observations.py::"
        "test_choices_and_flags_outside_their_space_are_refused",
    ),
    Mutant(
        "keys_in_the_order_of_the_space",
        "own: the arrays of a Dict recorded in each other's rows",
        "collect/env_outputs.py",
        "for key in sorted(nest):",
        "for key in nest:",
        "collect/test_observations.py::test_nested_arrays_are_recorded_by_their_keys",
    ),
]

WHOLE_SEQUENCE = "policies/test_recurrent.py::test_single_steps_are_the_whole_sequence"

RECURRENCE = [
    Mutant(
        "state_not_carried",
        "own: every step begins with the first state",
        "policies/recurrent.py",
        "old = flat if step.use_initial else step.pop(len(flat))",
        "old = flat",
        f"{WHOLE_SEQUENCE}[lstm]",
    ),
    Mutant(
        "output_and_carry_swapped",
        "own: the two states of an LSTM change places from step to step",
        "policies/recurrent.py",
        "new, output_spec = keras.tree.flatten(new), None",
        "new, output_spec = keras.tree.flatten(new)[::-1], None",
        f"{WHOLE_SEQUENCE}[lstm]",
    ),
    Mutant(
        "state_of_another_layer",
        "own: a layer is given the state of another one of the same size",
        "policies/recurrent.py",
        "self.old_states[:count], self.old_states[count:]",
        "self.old_states[-count:], self.old_states[:-count]",
        f"{WHOLE_SEQUENCE}[several]",
    ),
    Mutant(
        "first_state_of_zeros",
        "own: an episode begins with zeros, whatever its cell has learned",
        "policies/recurrent.py",
        "lambda state: tf.cast(state, self.rnn.cell.compute_dtype),",
        "lambda state: tf.zeros_like(state, self.rnn.cell.compute_dtype),",
        f"{WHOLE_SEQUENCE}[learned_start]",
    ),
    Mutant(
        "masked_step_remembered",
        "own: a step that is masked changes the state",
        "policies/recurrent.py",
        "[_where(unmasked, after, before) for after, before in zip(new, old)]",
        "list(new)",
        f"{WHOLE_SEQUENCE}[masked_to_zero]",
    ),
    Mutant(
        "masked_output_not_repeated",
        "own: a step that is masked puts out zeros, where Keras repeats the last output",
        "policies/recurrent.py",
        "last = last if step.use_initial else step.pop(1)[0]",
        "step.pop(1)",
        f"{WHOLE_SEQUENCE}[masked]",
    ),
    Mutant(
        "weights_copied",
        "own: the layers that act are copies, and never learn",
        "policies/recurrent.py",
        "    return layer\n",
        "    return type(layer).from_config(layer.get_config())\n",
        "policies/test_recurrent.py::test_the_weights_are_those_of_the_policy",
    ),
    Mutant(
        "padding_read_as_it_is",
        "B12 padding that is not finite gets into the gradient through time",
        "data/episodes.py",
        "tf.where(tf.reshape(is_valid, shape), rows, tf.zeros([], rows.dtype))",
        "rows",
        "policies/test_recurrent.py::test_padding_has_no_part_in_a_gradient[lstm]",
    ),
    Mutant(
        "check_blinded_by_zeros",
        "own: a last layer of zeros hides that steps are mixed",
        "policies/recurrent.py",
        "keras.StatelessScope(state_mapping=noisy)",
        "keras.StatelessScope()",
        "policies/test_recurrent.py::"
        "test_time_steps_mixed_in_other_ways_are_refused[convolution-zeros]",
    ),
]

DIAGNOSTICS = [
    Mutant(
        "noise_taken_for_signal",
        "own: the squared length of a mean, with its own noise in it, taken for signal",
        "callbacks/training_statistics.py",
        "return squared_norm - noise, noise",
        "return squared_norm, noise",
        "callbacks/test_diagnostics.py::test_a_planted_signal_comes_out",
    ),
    Mutant(
        "noise_of_one_episode",
        "own: the noise of one episode's gradient in place of that of their mean",
        "callbacks/training_statistics.py",
        "ddof=1))) / num_groups",
        "ddof=1)))",
        "callbacks/test_diagnostics.py::test_signal_and_noise_are_their_definition",
    ),
    Mutant(
        "siblings_as_strangers",
        "own: episodes that began alike counted as independent",
        "callbacks/training_statistics.py",
        "num_groups = len(gradients[0]) // group_size\n    if",
        "num_groups, group_size = len(gradients[0]), 1\n    if",
        "callbacks/test_diagnostics.py::test_siblings_count_as_one",
    ),
    Mutant(
        "share_of_an_episode",
        "own: an episode's gradient divided by the number of episodes once more",
        "algorithm/estimator.py",
        "divisor=self.divisor / tf.cast(self.num_episodes, self.divisor.dtype)",
        "divisor=self.divisor",
        "callbacks/test_diagnostics.py::"
        "test_the_mean_over_the_episodes_is_the_gradient[{}]",
    ),
    Mutant(
        "units_mixed",
        "own: advantages in one unit compared with returns in another",
        "algorithm/estimator.py",
        "return advantages / size, unbaselined / size",
        "return advantages / size, unbaselined",
        "callbacks/test_diagnostics.py::"
        "test_scales_are_the_same_with_and_without_the_baseline",
    ),
    Mutant(
        "noise_of_other_batches",
        "own: the noise of batches of other sizes taken for that of this one",
        "callbacks/advice.py",
        'r["noise"] * r["independent"]) for',
        'r["noise"] * measured[-1]["independent"]) for',
        "callbacks/test_diagnostics.py::"
        "test_noise_is_compared_at_the_size_of_the_batch_there_is",
    ),
    Mutant(
        "passes_blamed_on_the_rate",
        "own: the change by many gradient steps taken for that by one",
        "callbacks/advice.py",
        'kl_per_step = last["kl"] / last["gradient_steps"] ** 2',
        'kl_per_step = last["kl"]',
        "callbacks/test_diagnostics.py::test_too_many_passes",
    ),
    Mutant(
        "stepping_counted_twice",
        "own: the time in environments counted as time for acting too",
        "collect/host_loop.py",
        "time.perf_counter() - start - stepping}",
        "time.perf_counter() - start}",
        "callbacks/test_diagnostics.py::test_the_time_is_divided_among_three",
    ),
    Mutant(
        "share_in_the_order_of_finishing",
        "own: episodes of several processes in the order in which these were done",
        "collect/worker_pool.py",
        "permutation = np.argsort(numbers)",
        "permutation = np.arange(len(numbers))",
        "collect/test_worker_pool.py::test_few_episodes_or_many_are_the_same[40]",
    ),
    Mutant(
        "every_other_claimed",
        "own: every other episode is played by none of several processes",
        "collect/worker.py",
        "self._counter.value = number + 1",
        "self._counter.value = number + 2",
        "collect/test_worker_pool.py::test_few_episodes_or_many_are_the_same[40]",
    ),
    Mutant(
        "old_weights_in_workers",
        "own: other processes act with the weights they began with",
        "collect/worker_pool.py",
        "weights = acting_program.finite_weights(actor.variables)",
        'weights = self.__dict__.setdefault(\n            "first", '
        "acting_program.finite_weights(actor.variables)\n        )",
        "collect/test_worker_pool.py::"
        "test_the_number_of_processes_changes_no_bit_of_a_training"
        "[CartPole-v1]",
    ),
    Mutant(
        "surplus_episodes_kept",
        "own: of a number of steps, all episodes that several processes played",
        "collect/worker_pool.py",
        "permutation = permutation[: np.searchsorted(total_steps, steps) + 1]",
        "permutation = permutation[: len(total_steps)]",
        "collect/test_worker_pool.py::test_a_number_of_steps_takes_the_same_episodes[13]",
    ),
    Mutant(
        "stale_answers",
        "own: after a failure the answer to the question before is taken for this one's",
        "collect/worker_pool.py",
        "if self._pending or self._program is not program:",
        "if self._program is not program:",
        "collect/test_worker_pool.py::test_after_a_failure_a_crew_begins_afresh",
    ),
    Mutant(
        "first_come",
        "own: the first process takes as many episodes as it has environments",
        "collect/scheduler.py",
        "if row == 0 and len(self.episodes) == self._max_initial:",
        "if False:",
        "collect/test_worker_pool.py::test_every_worker_gets_its_part",
    ),
]

A_LOOP = (
    "algorithm/test_train_step.py::test_an_update_is_its_definition[softmax-episodes]"
)
ALL_BACK = (
    "algorithm/test_train_step.py::"
    "test_a_step_that_is_not_finite_takes_all_of_the_update_back"
)
DROPPED = (
    "algorithm/test_update_options.py::"
    "test_dropping_is_a_record_without_the_episodes_that_were_cut"
)

STEPS_OF_AN_UPDATE = [
    Mutant(
        "part_counts_once",
        "own: the sum over a minibatch divided as that over the batch: shorter steps",
        "algorithm/estimator.py",
        "divisor=self.divisor * tf.cast(share, self.divisor.dtype),",
        "divisor=self.divisor,",
        A_LOOP,
    ),
    Mutant(
        "ratio_of_the_last_step",
        "own: the ratio to the policy of the step before, not to the one that acted",
        "algorithm/train_step.py",
        "parts.minibatch(number % first.count), acting_log_probs",
        "parts.minibatch(number % first.count), "
        "self.estimator.distribution(batch).log_prob(batch.actions)",
        A_LOOP,
    ),
    Mutant(
        "entropy_of_the_next_policy",
        "own: the entropy after the update's steps said of the policy that acted",
        "algorithm/train_step.py",
        '"entropy": tf.reduce_mean(entropy)}, finite',
        '"entropy": tf.reduce_mean(self.estimator.distribution(batch).entropy())}, '
        "finite",
        "algorithm/test_train_step.py::test_the_entropy_is_that_of_the_policy_that_acted",
    ),
    Mutant(
        "ratio_not_bounded",
        "own: the ratio without its bound",
        "algorithm/estimator.py",
        "tf.minimum(tf.exp(log_ratios), self.options.ratio_clip)",
        "tf.exp(log_ratios)",
        A_LOOP,
    ),
    Mutant(
        "ratio_upside_down",
        "own: μ/π in the place of π/μ",
        "algorithm/estimator.py",
        "tf.exp(log_ratios)",
        "tf.exp(-log_ratios)",
        A_LOOP,
    ),
    Mutant(
        "same_order_in_every_pass",
        "own: every pass goes through the steps in the order of the first",
        "algorithm/train_step.py",
        "permutations[number // first.count]",
        "permutations[0]",
        A_LOOP,
    ),
    Mutant(
        "same_order_in_every_update",
        "own: every update draws the order of the first",
        "training/learner.py",
        'rng = seeding.generator(seed, "training/minibatches", self.num_updates)',
        'rng = seeding.generator(seed, "training/minibatches", 0)',
        "algorithm/test_update_options.py::"
        "test_the_order_is_a_function_of_the_seed_and_the_number_of_the_update",
    ),
    Mutant(
        "last_part_too_small",
        "own: parts of equal size and a remainder, down to one step",
        "data/minibatches.py",
        "index * steps // self.count : (index + 1) * steps // self.count",
        "index * (steps // self.count) : (index + 1) * (steps // self.count)",
        "algorithm/test_train_step.py::"
        "test_parts_are_all_steps_in_sizes_that_differ_by_one_at_most[6-20]",
    ),
    Mutant(
        "half_an_update_kept",
        "own: the steps before one that is not finite stay made",
        "algorithm/train_step.py",
        "_run_if(~finite, lambda: self._restore(before))",
        "pass",
        ALL_BACK,
    ),
    Mutant(
        "slots_not_put_back",
        "own: what the optimizer remembers of a refused update stays",
        "algorithm/train_step.py",
        "parts = [self.optimizer, self.estimator.baseline,",
        "parts = [self.estimator.baseline,",
        ALL_BACK,
    ),
    Mutant(
        "critic_not_put_back",
        "own: the last step of a critic leaves weights that are not finite",
        "algorithm/train_step.py",
        "parts = [self.optimizer, self.estimator.baseline,",
        "parts = [self.optimizer,",
        "test_agent_input.py::"
        "test_finite_gradients_do_not_excuse_weights_that_are_not_finite[critic]",
    ),
    Mutant(
        "overflow_in_a_scale",
        "own: a reward whose square overflows ends a running scale for good",
        "algorithm/train_step.py",
        "return finite & _all_finite(squares)",
        "return finite",
        "algorithm/test_train_step.py::test_statistics_are_finite_and_so_is_their_size",
    ),
    Mutant(
        "nan_into_the_normalizer",
        "own: NaN seen in an episode that is dropped gets into the normalizer",
        "algorithm/estimator.py",
        "samples += [x for x in flat if x.dtype.is_floating]",
        "pass",
        "algorithm/test_update_options.py::"
        "test_nan_seen_in_an_episode_that_is_dropped_does_not_reach_the_normalizer",
    ),
    Mutant(
        "nothing_is_an_error",
        "own: an update of which all episodes are dropped is refused, or moves weights",
        "algorithm/train_step.py",
        "_run_if(finite & ~empty, lambda: self._apply(",
        "_run_if(finite, lambda: self._apply(",
        "algorithm/test_update_options.py::"
        "test_where_all_were_cut_nothing_moves_but_counters_and_normalizer[{}]",
    ),
    Mutant(
        "dropped_episodes_counted",
        "own: dropped episodes make the mean over episodes smaller",
        "algorithm/estimator.py",
        "count = tf.math.count_nonzero(episodes.lengths, dtype=tf.int32)",
        "count = tf.size(episodes.lengths)",
        f"{DROPPED}[4]",
    ),
    Mutant(
        "scale_sees_its_batch",
        "own: a running scale learns a batch before it divides it",
        "policies/normalization.py",
        "tf.cond(self.count > 0, running_scale, scale_of_samples)",
        "scale_of_samples()",
        "policies/test_running_scale.py::"
        "test_samples_give_their_own_size_before_the_first_update_and_never_again[False]",
    ),
    Mutant(
        "scale_without_the_gap",
        "own: a running deviation without the distance between the means",
        "policies/normalization.py",
        "self.squares.value + new_squares + between",
        "self.squares.value + new_squares",
        "policies/test_running_scale.py::"
        "test_it_is_the_size_of_all_samples[True-7-1.0-float64-1e-12]",
    ),
    Mutant(
        "critic_part_counts_once",
        "own: a critic's minibatch divided by all episodes: shorter steps",
        "baselines/base.py",
        "tf.cast(self.episodes, fraction.dtype) * fraction,",
        "self.episodes,",
        "algorithm/test_update_options.py::"
        "test_a_critic_descends_in_minibatches_of_the_order_it_is_given[6-3]",
    ),
    Mutant(
        "memory_of_a_part",
        "own: a memory reads the steps of the minibatch only",
        "algorithm/estimator.py",
        "every_step.zero_padding(observations)",
        "steps.zero_padding(observations)",
        "algorithm/test_train_step.py::"
        "test_a_step_s_part_of_a_memory_is_its_part_of_the_whole",
    ),
    Mutant(
        "schedule_stands_still",
        "own: a schedule of the entropy coefficient is asked for its start only",
        "training/assembly.py",
        "updates=lambda: parts.counters[0],",
        "updates=lambda: 0,",
        "algorithm/test_update_options.py::"
        "test_a_schedule_says_the_entropy_coefficient_of_the_number_of_the_update",
    ),
]

TENSORS = [
    Mutant(
        "threefry_without_its_count",
        "own: the keys of Threefry enter without the number of their group",
        "data/seeding.py",
        "x[1] += keys[(group + 2) % 3] + np.uint32(group + 1)",
        "x[1] += keys[(group + 2) % 3]",
        "data/test_seeding.py::test_threefry_gives_the_known_answers",
    ),
    Mutant(
        "steps_share_noise",
        "own: the noise of a step begins one number behind that of the last",
        "data/seeding.py",
        "tf.uint32) * np.uint32(blocks)",
        "tf.uint32)",
        "data/test_seeding.py::test_no_two_addresses_of_tensors_share_their_noise",
    ),
    Mutant(
        "beginning_and_course_share_noise",
        "own: how an episode goes on is drawn from the key of how it begins",
        "envs/vector.py",
        "seeding.counter_noise(keys[:, 1], *noise_args)",
        "seeding.counter_noise(keys[:, 0], *noise_args)",
        "envs/test_envs.py::"
        "test_how_an_episode_begins_and_how_it_goes_on_are_drawn_apart",
    ),
    Mutant(
        "one_seed_for_all_of_a_vector",
        "own: all tensor environments of a VectorEnv draw from one seed",
        "envs/vector.py",
        "return [seed + i for i in range(self.num_envs)]",
        "return [seed] * self.num_envs",
        "envs/test_envs.py::test_every_environment_of_a_vector_has_its_own_seed",
    ),
    Mutant(
        "phantom_step_rewarded",
        "own: the step that resets a tensor environment is rewarded",
        "envs/vector.py",
        "rewards = tf.where(ended, tf.zeros_like(rewards), rewards)",
        "rewards = rewards",
        "envs/test_envs.py::test_a_vector_env_resets_in_the_step_after_an_end",
    ),
    Mutant(
        "pole_falls_at_its_angle_only",
        "own: the twin of CartPole knows no end of the track",
        "envs/cartpole.py",
        "(tf.abs(state[:, 0]) > MAX_POSITION) | (tf.abs(state[:, 2]) > MAX_ANGLE)",
        "tf.abs(state[:, 2]) > MAX_ANGLE",
        "envs/test_envs.py::test_a_twin_ends_where_its_original_ends[CartPole-v1]",
    ),
    Mutant(
        "no_wall_in_the_valley",
        "own: the twin of MountainCar keeps its speed at the wall",
        "envs/mountain_car.py",
        "velocity = tf.where(stopped, tf.zeros_like(velocity), velocity)",
        "velocity = velocity",
        "envs/test_envs.py::test_a_twin_ends_where_its_original_ends[MountainCar-v0]",
    ),
    Mutant(
        "last_step_not_counted",
        "own: the compiled engine does not count the step that ends an episode",
        "collect/compiled_rollout.py",
        "lengths=carry.lengths + tf.cast(carry.active, tf.int32)",
        "lengths=carry.lengths + tf.cast(carry.active & ~terminal, tf.int32)",
        "collect/test_compiled_rollout.py::"
        "test_an_episode_is_what_its_definition_says[a choice-1]",
    ),
    Mutant(
        "rewards_after_the_end",
        "own: an episode of the compiled engine earns on after its end",
        "collect/compiled_rollout.py",
        "reward = tf.where(carry.active, reward, 0.0)",
        "reward = reward",
        "collect/test_compiled_rollout.py::"
        "test_callbacks_hear_of_every_episode_and_every_update",
    ),
    Mutant(
        "siblings_begin_apart_of_tensors",
        "own: groups of the compiled engine begin from noise of their own",
        "collect/compiled_rollout.py",
        "numbers // self.group_size, self.batched_env.env.dtype",
        "numbers, self.batched_env.env.dtype",
        "collect/test_compiled_rollout.py::test_groups_of_siblings_begin_alike",
    ),
    Mutant(
        "every_thread_plays_the_same",
        "own: all threads play the first part of a batch",
        "collect/compiled_rollout.py",
        "self.graph(keys, shard * shard_size)",
        "self.graph(keys, 0 * shard_size)",
        "collect/test_compiled_rollout.py::test_parts_of_a_batch_are_the_batch",
    ),
    Mutant(
        "last_observation_unseen",
        "own: an observation that is none is not noticed where no action follows",
        "collect/compiled_rollout.py",
        "valid = finite & valid & tf.math.is_finite(reward)",
        "valid = finite & tf.math.is_finite(reward)",
        "collect/test_compiled_rollout.py::"
        "test_what_is_seen_last_is_looked_at_too[nan-alone]",
    ),
    Mutant(
        "one_order_in_a_call_of_many",
        "own: all updates of a call draw the minibatches of its first",
        "training/learner.py",
        "permutation_key(keys[number]))",
        "permutation_key(keys[0]))",
        "collect/test_compiled_rollout.py::"
        "test_how_many_updates_a_call_makes_changes_no_bit[everything]",
    ),
    Mutant(
        "a_call_spends_more_than_there_is",
        "own: a call makes all its updates, though the budget of steps is spent",
        "training/learner.py",
        "(number < count) & finite & (steps < max_steps)",
        "(number < count) & finite",
        "collect/test_compiled_rollout.py::"
        "test_a_budget_of_steps_ends_at_the_same_update_whatever_a_call_makes",
    ),
    Mutant(
        "validation_waits_for_the_call",
        "own: a call of several updates goes on where a validation is due",
        "training/loop.py",
        "_updates_until_validation(epoch, epochs, validate and freq)",
        "_updates_until_validation(epoch, epochs, None)",
        "collect/test_compiled_rollout.py::test_a_call_ends_where_a_validation_is_due",
    ),
    Mutant(
        "rates_of_the_first_update",
        "own: linear rates stand still while a call makes several updates",
        "training/keras_agent.py",
        "return 1 if self._rates else self.steps",
        "return self.steps",
        "collect/test_compiled_rollout.py::test_linear_rates_are_set_before_every_update",
    ),
    Mutant(
        "blocks_of_one_weight",
        "own: blocks of a batch count alike, whatever their sizes",
        "algorithm/train_step.py",
        "share = tf.size(block) / tf.size(steps)",
        "share = 1 / blocks.count",
        "algorithm/test_update_options.py::"
        "test_a_gradient_summed_up_in_blocks_is_that_of_the_batch[7]",
    ),
    Mutant(
        "seeds_of_the_first_agent",
        "own: many seeds at once all learn with the settings of the first",
        "experiments/multi_seed.py",
        "_check_same_signature(self.signature, _signature(agent))",
        "_signature(agent)",
        "experiments/test_multi_seed.py::test_agents_must_be_alike",
    ),
    Mutant(
        "updates_counted_from_zero",
        "own: agents that have learned before draw the streams of a beginning",
        "experiments/multi_seed.py",
        'seeding.rollout_keys(seed, "training", first + u)',
        'seeding.rollout_keys(seed, "training", u)',
        "experiments/test_multi_seed.py::"
        "test_averaged_weights_and_agents_that_have_learned_before_are_as_alone",
    ),
    Mutant(
        "averages_left_out",
        "own: an agent out of many keeps its last weights, not their average",
        "experiments/multi_seed.py",
        "optimizers.finalize(agent.optimizer)",
        "pass",
        "experiments/test_multi_seed.py::"
        "test_averaged_weights_and_agents_that_have_learned_before_are_as_alone",
    ),
]

SURVIVORS = [
    Mutant(
        "parts_of_an_action_in_one_stream",
        "own: parts of a composite action that is collected draw the same numbers",
        "data/seeding.py",
        "return np.random.Generator(bits.jumped(part) if part else bits)",
        "return np.random.Generator(bits)",
        "properties/test_streams.py::test_no_two_streams_draw_the_same_numbers",
    ),
    Mutant(
        "parts_of_an_act_in_one_stream",
        "own: parts of a composite action of `act` draw the same numbers",
        "policies/actor.py",
        "tf.stack([count, *spec.shape]), self.dtype, leaf",
        "tf.stack([count, *spec.shape]), self.dtype, 0",
        "properties/test_streams.py::"
        "test_parts_of_a_composite_action_are_independent_when_it_is_drawn",
    ),
    Mutant(
        "validation_plays_training",
        "own: validation plays the episodes of training",
        "agent.py",
        'seeding.StreamKey(seed, "validation", self.updates)',
        'seeding.StreamKey(seed, "training", self.updates)',
        "properties/test_streams.py::"
        "test_a_run_asks_for_the_streams_of_its_purpose_and_for_none_twice",
    ),
    Mutant(
        "one_epoch_of_minibatches",
        "own: a critic with minibatches goes through a batch once",
        "baselines/value.py",
        "self.passes * batches.count",
        "batches.count",
        "baselines/test_baselines.py::test_every_epoch_goes_through_all_minibatches",
    ),
    Mutant(
        "one_permutation_for_all_passes",
        "own: every pass of the compiled engine takes the same permutation",
        "training/learner.py",
        'seeding.counter_noise(key, spec, steps, number, "float64")',
        'seeding.counter_noise(key, spec, steps, 0, "float64")',
        "properties/test_streams.py::"
        "test_every_pass_of_the_compiled_engine_has_a_permutation_of_its_own",
    ),
    Mutant(
        "episodes_numbered_anew",
        "own: episodes are numbered from the same number in each update of a call",
        "training/trainer.py",
        "first_episode, update = first_episode + len(returns), update + 1",
        "update = update + 1",
        "properties/test_streams.py::"
        "test_episodes_are_numbered_over_the_updates_of_one_call_and_over_calls[3]",
    ),
    Mutant(
        "uniform_choice_without_masks",
        "own: the entropy of a uniform choice counts illegal actions",
        "algorithm/inspection.py",
        "uniform = gradient_estimator.mask_outputs(uniform, batch.steps, masks)",
        "pass",
        "callbacks/test_diagnostics.py::"
        "test_the_entropy_of_a_uniform_choice_is_among_the_legal_actions[False]",
    ),
    Mutant(
        "overflow_that_saturates",
        "own: an output that overflows acts as the largest number",
        "collect/acting_program.py",
        "size < largest if saturates else size <= largest",
        "size <= largest",
        "collect/test_acting_program.py::"
        "test_outputs_that_overflow_are_refused_though_litert_saturates[1]",
    ),
    Mutant(
        "first_collection_not_compared",
        "own: LiteRT is not compared on observations that were played",
        "collect/environments.py",
        "replaced = program.leave_litert_if_different(inputs)",
        "replaced = False and program.leave_litert_if_different(inputs)",
        "collect/test_acting_program.py::"
        "test_what_only_the_first_collection_shows_changes_the_engine[plain]",
    ),
    Mutant(
        "compared_but_once",
        "own: LiteRT is compared with Keras before the first action, and never again",
        "collect/environments.py",
        "replaced = program.leave_litert_if_different(inputs)",
        "replaced = not program.conversions and "
        "program.leave_litert_if_different(inputs)",
        "collect/test_acting_program.py::"
        "test_litert_is_compared_again_in_every_collection",
    ),
    Mutant(
        "averages_of_no_step",
        "own: averages that no step has been taken into replace the weights",
        "optimizers.py",
        "inner.use_ema and steps > 0 and now != since",
        "inner.use_ema",
        "callbacks/test_keras_callbacks.py::test_without_a_step_there_is_no_average",
    ),
    Mutant(
        "averages_of_many_without_a_step",
        "own: an agent out of many that made no step gets averages that are zero",
        "optimizers.py",
        "steps > 0 and now != since",
        "now != since",
        "experiments/test_multi_seed.py::test_seeds_that_made_no_step_keep_their_weights",
    ),
    Mutant(
        "averages_of_other_layers",
        "own: averages are paired with the variables that are trainable by now",
        "optimizers.py",
        "zip(inner._trainable_variables, averages, strict=True)",
        "zip([v for v in inner._trainable_variables if v.trainable], averages)",
        "callbacks/test_keras_callbacks.py::"
        "test_a_layer_that_was_frozen_keeps_its_weights",
    ),
    Mutant(
        "silence_is_failure",
        "own: an episode of a VectorEnv that reports no success has failed",
        "collect/vector_envs.py",
        "reported is not None and not reported[env_index]",
        "False",
        "collect/test_collecting.py::"
        "test_success_is_known_only_of_episodes_that_report_it[AutoresetMode.NEXT_STEP]",
    ),
    Mutant(
        "first_state_of_the_first_agent",
        "own: all seeds begin with the learned state of the first",
        "collect/compiled_rollout.py",
        "self._for_each_agent(lambda: self.actor.initial_state(self.count), ())",
        "self.actor.initial_state(self.episodes_per_shard)",
        "experiments/test_multi_seed.py::"
        "test_each_seed_begins_its_episodes_from_the_state_that_it_has_learned",
    ),
]

# Bugs that an adversary found no test for, and faults of other processors
FURTHER_SURVIVORS = [
    Mutant(
        "policy_of_no_rows",
        "own: the policy is called on no rows where all episodes are dropped",
        "algorithm/estimator.py",
        "minibatches.call_on_rows(self.forward, steps.gather(observations))",
        "self.forward(steps.gather(observations))",
        "algorithm/test_update_options.py::test_no_model_is_called_on_no_rows[{}]",
    ),
    Mutant(
        "critic_of_no_rows",
        "own: a critic is called on no rows where all episodes are dropped",
        "baselines/value.py",
        "values = minibatches.call_on_rows(call_model, observations)",
        "values = call_model(observations)",
        "algorithm/test_update_options.py::test_no_model_is_called_on_no_rows[{}]",
    ),
    Mutant(
        "draws_while_evaluating",
        "own: an evaluation on a tensor environment draws its actions",
        "collect/batched_tensor_env.py",
        "deterministic=request.deterministic,",
        "deterministic=False,",
        "collect/test_compiled_rollout.py::"
        "test_an_evaluation_takes_the_most_likely_actions_unless_told_otherwise",
    ),
    Mutant(
        "clock_of_another_call",
        "own: a compiled program keeps the time limit of the first call",
        "collect/batched_tensor_env.py",
        "checks.constants(self.env), self.limit",
        "checks.constants(self.env)",
        "collect/test_compiled_rollout.py::"
        "test_each_evaluation_has_the_time_limit_of_its_call",
    ),
    Mutant(
        "stale_first_state",
        "own: `act` begins from the initial state of the first call",
        "serving/live_policy.py",
        "initial_state = policy_functions.state_dict(self.actor.initial_state(count))",
        'known = self.__dict__.setdefault("fresh", {})\n'
        "        fresh = policy_functions.state_dict(self.actor.initial_state(count))\n"
        "        initial_state = known.setdefault(count, fresh)",
        "policies/test_memory.py::"
        "test_an_action_begins_from_the_state_that_is_learned_by_then",
    ),
    Mutant(
        "type_of_an_unknown_space",
        "own: actions keep the type they had before the space was known",
        "training/keras_agent.py",
        "= self.action_space is not None",
        "= True",
        "test_agent.py::test_actions_get_the_type_of_the_space_that_is_met_later",
    ),
    Mutant(
        "rate_of_one_fit",
        "own: the second `fit` learns with the last rate of the first",
        "callbacks/learning_rate.py",
        "progress + self.epochs - epoch",
        "self.epochs",
        "presets/test_presets.py::"
        "test_a_learning_rate_goes_linearly_over_the_life_of_an_agent",
    ),
    Mutant(
        "rate_set_last",
        "own: a linear rate overrules the callback of a user",
        "training/keras_agent.py",
        "callbacks.insert(0, rates)",
        "callbacks.append(rates)",
        "presets/test_presets.py::"
        "test_a_callback_of_ones_own_has_the_last_word_on_the_learning_rate",
    ),
    Mutant(
        "validated_as_trained",
        "own: validation takes the keywords of the training's environment",
        "agent.py",
        "self._open(validation_env, size, **validation_options)",
        "self._open(validation_env, size, **env_options)",
        "presets/test_presets.py::"
        "test_an_environment_of_ones_own_is_validated_on_as_it_is",
    ),
    Mutant(
        "listed_validations_late",
        "own: a call goes on where a validation of a list is due",
        "training/loop.py",
        "    if freq:",
        "    if isinstance(freq, int):",
        "collect/test_compiled_rollout.py::"
        "test_a_call_ends_where_one_of_several_validations_is_due",
    ),
    Mutant(
        "checkpoint_of_a_later_update",
        "own: files of several updates hold the weights of the last",
        "training/loop.py",
        "    keras.callbacks.ModelCheckpoint,\n",
        "",
        "collect/test_compiled_rollout.py::"
        "test_every_callback_of_keras_that_works_on_the_agent_meets_every_update[ModelCheckpoint]",
    ),
    Mutant(
        "restored_twice",
        "own: the `fit` after a restored one begins where that did",
        "training/loop.py",
        "epoch, agent._initial_epoch = agent._initial_epoch or initial_epoch, None",
        "epoch = agent._initial_epoch or initial_epoch",
        "callbacks/test_keras_callbacks.py::"
        "test_a_fit_after_a_restored_one_begins_with_its_first_epoch",
    ),
    Mutant(
        "budget_of_steps_anew",
        "own: a restored run makes an update beyond its steps",
        "training/loop.py",
        "steps and steps - (agent.env_steps - first_step)",
        "steps",
        "callbacks/test_keras_callbacks.py::"
        "test_a_restored_run_makes_no_update_beyond_its_steps",
    ),
    Mutant(
        "clock_goes_on",
        "own: a reset in the middle of an episode keeps its clock",
        "envs/vector.py",
        'self._lengths = np.zeros(self.num_envs, "int32")',
        'if is_first:\n            self._lengths = np.zeros(self.num_envs, "int32")',
        "envs/test_envs.py::"
        "test_a_reset_in_the_middle_of_an_episode_starts_its_clock_anew",
    ),
    Mutant(
        "coefficient_of_this_fit",
        "own: the coefficient of an update of this `fit`, not of the agent's",
        "callbacks/diagnostics.py",
        'coefficient(logs["update"])',
        "coefficient(self._updates)",
        "callbacks/test_diagnostics.py::"
        "test_reports_count_updates_from_the_beginning_of_a_fit",
    ),
    Mutant(
        "reports_by_the_agents_count",
        "own: reports are due by the number of the agent's updates",
        "callbacks/diagnostics.py",
        "if self._updates % self.every == 0:",
        'if logs["update"] % self.every == 0:',
        "callbacks/test_diagnostics.py::"
        "test_reports_count_updates_from_the_beginning_of_a_fit",
    ),
    Mutant(
        "shares_since_the_start",
        "own: shares of time since the training began",
        "callbacks/diagnostics.py",
        "        self._seconds = dict.fromkeys(_TIME_SHARES, 0.0)\n"
        "        self.history.append",
        "        self.history.append",
        "callbacks/test_diagnostics.py::"
        "test_shares_of_time_are_those_since_the_last_report",
    ),
    Mutant(
        "groups_count_as_episodes",
        "own: episodes of a group count as independent",
        "callbacks/diagnostics.py",
        "group_size = agent.baseline.reset_group_size",
        "group_size = 1",
        "callbacks/test_diagnostics.py::test_episodes_of_a_group_are_not_independent",
    ),
    Mutant(
        "critic_of_the_past",
        "own: a critic is judged by all its reports",
        "callbacks/advice.py",
        "late = _after_warmup(reports)[-VALUE_BASELINE_REPORTS:]",
        "late = _after_warmup(reports)",
        "callbacks/test_diagnostics.py::test_a_critic_is_judged_by_its_last_reports",
    ),
    Mutant(
        "chosen_where_it_is_judged",
        "own: the best agent is chosen by the episodes of the evaluation",
        "callbacks/evaluation.py",
        "evaluate(self.env, seed=rng.integers(2**31), **self.options)",
        "evaluate(self.env, seed=self.seed, **self.options)",
        "test_cli.py::"
        "test_the_best_agent_is_chosen_by_other_episodes_than_those_of_the_evaluation",
    ),
    Mutant(
        "always_greedy",
        "own: a preset cannot evaluate with drawn actions",
        "experiments/runs.py",
        'evaluation_settings.get("deterministic", True)',
        "True",
        "test_cli.py::test_a_preset_may_evaluate_with_drawn_actions",
    ),
]

MUTANTS = [
    *GRADIENT,
    *RETURNS_AND_BASELINES,
    *DISTRIBUTIONS,
    *EPISODES,
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
    Mutant(
        "advantages_of_padding",
        "own: what a baseline says where no step happened reaches the scale",
        "algorithm/estimator.py",
        "tf.where(valid, unbaselined - baseline, 0.0)",
        "unbaselined - baseline",
        "algorithm/test_update_options.py::"
        "test_what_a_baseline_says_of_padding_changes_nothing",
    ),
    Mutant(
        "half_precision_of_values",
        "own: the loss of a half-precision critic is half precision too",
        "baselines/value.py",
        "if values.dtype in (tf.float16, tf.bfloat16):",
        "if values.dtype in ():",
        "algorithm/test_update_options.py::"
        "test_a_critic_in_half_precision_has_a_loss_that_is_not",
    ),
    Mutant(
        "critic_of_the_first_trace",
        "own: an update goes on with the critic's optimizer of its first trace",
        "training/learner.py",
        'parts = getattr(self.estimator.baseline, "optimizer", None), *parts',
        "parts = parts",
        "algorithm/test_update_options.py::"
        "test_a_critic_that_is_changed_learns_as_it_is_then"
        "[optimizer]",
    ),
    Mutant(
        "shared_weights",
        "own: policy and critic share weights, and their file cannot be read",
        "policies/compatibility.py",
        "if common:",
        "if not policy.variables:",
        "algorithm/test_update_options.py::"
        "test_two_models_that_share_weights_are_refused",
    ),
    Mutant(
        "optimizer_of_loaded_weights",
        "own: weights are loaded without the optimizer's state",
        "training/keras_agent.py",
        "self._build_optimizer()\n        super().load_weights",
        "super().load_weights",
        "test_saving.py::test_the_optimizer_s_state_comes_with_the_weights",
    ),
    Mutant(
        "normalizer_in_half_precision",
        "own: under mixed precision observations are cast before the mean is subtracted",
        "training/keras_agent.py",
        "            self.normalizer.dtype_policy = float_type\n",
        "",
        "policies/test_normalization.py::"
        "test_large_observations_that_differ_by_little_stay_apart"
        "[mixed_float16-1000.0]",
    ),
    Mutant(
        "normalizer_in_single_precision",
        "own: a float64 policy sees observations that were normalised in float32",
        "training/keras_agent.py",
        "self.normalizer.dtype_policy = float_type",
        'self.normalizer.dtype_policy = "float32"',
        "policies/test_normalization.py::"
        "test_large_observations_that_differ_by_little_stay_apart"
        "[float64-100000000.0]",
    ),
    Mutant(
        "lost_signal",
        "own: Ctrl-C before the first update is forgotten",
        "experiments/runs.py",
        "agent.stop_training |= bool(signals)",
        "agent.stop_training |= False",
        "test_cli.py::test_ctrl_c_before_the_first_update_is_not_lost",
    ),
    Mutant(
        "bound_to_another_shape",
        "own: an agent built by shape takes the space of any environment",
        "training/keras_agent.py",
        "if self.built:\n            spaces.expect_shapes(",
        "if False:\n            spaces.expect_shapes(",
        "test_agent.py::test_an_agent_built_by_shape_is_not_bound_to_other_observations",
    ),
    Mutant(
        "setting_that_does_nothing",
        "own: a setting is assigned to a built agent, and nothing follows",
        "training/keras_agent.py",
        'if name in _FIXED_ATTRIBUTES and getattr(self, "built", False):',
        "if name in ():",
        "test_agent.py::test_what_is_built_in_is_refused_later_and_stays[gamma]",
    ),
    Mutant(
        "told_too_late",
        "own: a rate set before an update is that of a later one",
        "training/loop.py",
        "1 if each else _updates",
        "_updates",
        "collect/test_compiled_rollout.py::"
        "test_callbacks_that_work_on_the_agent_meet_every_update[rate]",
    ),
    Mutant(
        "world_that_writes_into_its_state",
        "own: a world changes the state that its reward is made from",
        "envs/checks.py",
        "if [*map(id, before)] != [*map(id, after)]:",
        "if False:",
        "envs/test_envs.py::test_a_world_that_changes_what_it_is_given_is_refused[state]",
    ),
]


def number(bug):
    """`"B7"` of `"B7 tanh …"`; `"own"` where the bug has none."""
    return bug.split()[0].rstrip(":")


def planted(mutant, source):
    """The source with the bug in it, or `None` where it no longer fits."""
    if source.count(mutant.before) != 1:
        return None
    return source.replace(mutant.before, mutant.after)


# Ten of them, which docs/correctness.md shows.
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


def table(names=None):
    """Returns the planted bugs of these names, or all, as lines of Markdown."""
    lines = ["| bug | planted | in | killed by |", "|---|---|---|---|"]
    for mutant in sorted(MUTANTS, key=_order):
        if names is None or mutant.name in names:
            words = mutant.bug.split(maxsplit=1)[1]
            where = f"`{mutant.module}` | `{mutant.test}`"
            lines.append(f"| {number(mutant.bug)} | {words} | {where} |")
    return lines


def _order(mutant):
    """By number; those of our own come last."""
    digits = number(mutant.bug).removeprefix("B")
    return int(digits) if digits.isdigit() else 10**6
