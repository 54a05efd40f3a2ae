"""REINFORCE: from a batch of episodes to a policy gradient.

If you read this module for the first time, begin with
`PolicyGradientEstimator.gradients`. The methods that it calls follow in the same order.
The formulas for returns and losses are in `functional`.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.functional import returns as return_functions
from tf_reinforce.policies import actor
from tf_reinforce.support import compilation

# The scalars that describe a policy gradient.
METRICS = (
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "gradient_norm",
    "effective_sample_size",
)


class Batch(NamedTuple):
    """The steps of a batch, with the returns and advantages of an update."""

    episodes: records.Episodes
    steps: records.ValidSteps  # the N valid steps, without padding
    returns: tf.Tensor  # [N] float
    values: tf.Tensor  # [N] float, zero without a value baseline
    advantages: tf.Tensor  # [N] float
    unbaselined_advantages: tf.Tensor  # [N] float, with a baseline of zero
    divisor: tf.Tensor  # scalar float that divides sums over steps
    num_episodes: tf.Tensor  # scalar int, the number of episodes, at least 1
    scale_samples: dict[str, tf.Tensor]  # from the name of a scale to [N] float
    is_padding: tf.Tensor | None = None  # [N] bool, or `None` if no step is padding

    @property
    def actions(self):
        """Returns the sampled actions of the N valid steps, `[N, …]`."""
        return self.steps.gather(self.episodes.actions)

    def _at(self, indices):
        """Returns a dict of the arrays of N steps, at some of the steps."""
        names = "returns", "values", "advantages", "unbaselined_advantages"
        return {name: tf.gather(getattr(self, name), indices) for name in names}

    def minibatch(self, indices):
        """Returns the `Batch` of n of the N steps.

        Sums over steps are divided by `divisor`, which is multiplied by n / N here. The
        loss of the n steps then estimates the loss of all N. Padding does not count as a
        step.
        """
        is_padding, share = compilation.share_of_steps(self, indices)
        return self._replace(
            **self._at(indices),
            is_padding=is_padding,
            steps=self.steps._replace(indices=tf.gather(self.steps.indices, indices)),
            divisor=self.divisor * tf.cast(share, self.divisor.dtype),
        )

    def padded(self, rows):
        """Returns the N steps as one episode of R rows, for XLA.

        The rows after N are padding. They repeat the first step, so that every value
        stays finite, and have an advantage of zero.

        Args:
            rows: Scalar int R, above N.
        """
        numbers = tf.range(rows)
        is_padding = numbers >= tf.size(self.returns)
        sources = tf.where(is_padding, 0, numbers)
        steps = self.steps._replace(indices=tf.gather(self.steps.indices, sources))

        def pad_steps(arrays):
            return keras.tree.map_structure(lambda x: x[:, None], steps.gather(arrays))

        masks = self.episodes.masks
        has_masks = masks is not None and masks.shape[-1]
        columns = self._at(sources)
        for name in ("advantages", "unbaselined_advantages"):
            zero = tf.zeros([], columns[name].dtype)
            columns[name] = tf.where(is_padding, zero, columns[name])
        return self._replace(
            **columns,
            episodes=records.Episodes(
                observations=pad_steps(self.episodes.observations),
                actions=pad_steps(self.episodes.actions),
                rewards=tf.zeros([rows, 1]),
                lengths=rows[None],
                terminated=tf.constant([True]),
                masks=pad_steps(masks) if has_masks else None,
            ),
            steps=records.valid_steps(rows[None], rows),
            scale_samples={},
            is_padding=is_padding,
        )

    def mean(self, values):
        """Averages `[N]` values, zero for padding, over the other steps."""
        if self.is_padding is None:
            return tf.reduce_mean(values)
        count = compilation.count_steps(values, self.is_padding)
        return tf.reduce_sum(values) / tf.cast(count, values.dtype)

    def without_padding(self, values, other=0.0):
        """Replaces `[N]` values by `other` where the step is padding."""
        if self.is_padding is None:
            return values
        return tf.where(self.is_padding, tf.cast(other, values.dtype), values)

    def share(self, number, count):
        """Returns one replica's share of the episodes.

        A share consists of consecutive episodes, and all shares have about equal numbers
        of steps. As in `minibatch`, the loss of a share estimates that of the whole
        batch.

        Args:
            number: Scalar int, which share, from 0.
            count: Int, the number of shares.

        Returns:
            The `Batch`, and `[n]` int, the indices of its n steps among the N.
        """
        columns = self.steps.indices[:, 1]
        lengths = tf.math.bincount(
            columns, minlength=tf.size(self.episodes.lengths), dtype=tf.int64
        )
        middles = 2 * tf.cumsum(lengths, exclusive=True) + lengths
        total = tf.maximum(2 * tf.reduce_sum(lengths), 1)
        owners = tf.cast(count * middles // total, number.dtype)
        begin = tf.math.count_nonzero(owners < number, dtype=tf.int32)
        end = tf.math.count_nonzero(owners <= number, dtype=tf.int32)
        own = tf.where((begin <= columns) & (columns < end))[:, 0]
        # A share without episodes gets one without steps, because not all layers of a
        # recurrent policy can read a batch of zero sequences.
        begin = tf.minimum(begin, tf.size(lengths) - 1)
        end = tf.maximum(end, begin + 1)
        episodes = records.select_episodes(self.episodes, begin, end)
        share = self.minibatch(own)
        indices = share.steps.indices - tf.stack([0, begin])[None]
        shape = tf.stack([self.steps.shape[0], tf.size(episodes.lengths)])
        steps = records.ValidSteps(indices, shape)
        return share._replace(episodes=episodes, steps=steps), own


class BaselineStep(NamedTuple):
    """A baseline's gradients and metrics, computed before an update."""

    baseline_batch: baselines.BaselineBatch
    gradients: list  # gradients of the baseline's own loss, or empty without own loss
    metrics: dict[str, tf.Tensor]  # `{"value_loss": scalar}`, or empty without own loss


class GradientEstimate(NamedTuple):
    """What `PolicyGradientEstimator.gradients` returns."""

    gradients: list  # gradients of the surrogate loss, for each of `variables`
    metrics: dict[str, tf.Tensor]  # scalars with the keys `METRICS`
    batch: Batch
    baseline_step: BaselineStep


@dataclasses.dataclass(eq=False)
class PolicyGradientEstimator:
    """Estimates the policy gradient from whole episodes, without an update.

        ∇J ≈ 1/E Σₑ Σₜ ∇ log π(aₜ|sₜ) (Gₜ - bₜ)

    The sums run over the E episodes of a batch and over their time steps t. The return
    from step t on is Gₜ, and bₜ is the baseline.

    Args:
        policy: Keras model from observations to outputs, or to a dict of `"outputs"` and
            `"values"`.
        head: `heads.Head`.
        baseline: `baselines.Baseline`.
        normalizer: `normalization.RunningNormalization` or `None`.
        options: `config.AgentOptions`.
        memory: `memory.Memory` of a policy that reads earlier steps, or `None`.
        value_memory: The same for the model of the baseline.
        scales: Dict from `"rewards"` and `"advantages"` to the `RunningScale` that
            divides them. What has no entry is not scaled.
        updating_layers: The `SpectralNormalization` layers of policy and value model.
        num_updates: Function without arguments that returns the agent's number of
            updates.
    """

    policy: keras.Model
    head: Any
    baseline: Any
    normalizer: Any
    options: Any
    memory: Any = None
    value_memory: Any = None
    _: dataclasses.KW_ONLY
    scales: dict = dataclasses.field(default_factory=dict)
    updating_layers: tuple | list = ()
    num_updates: Callable = lambda: 0

    @property
    def variables(self):
        """Returns the trainable weights of policy and head."""
        return [*self.policy.trainable_variables, *self.head.trainable_variables]

    def gradients(self, episodes, permutation=None, sum_gradients=None):
        """Computes the policy gradient of a batch of episodes (Williams 1992, eq. 11).

        The first step is to compute returns, baseline and advantages, with the weights
        that collected the episodes. In the surrogate loss, each advantage then weights
        the log-probability of an action, and counts as a constant when the loss is
        differentiated. If an update makes many gradient steps, it computes the advantages
        only once, and calls `policy_gradients` for each minibatch.

        Args:
            episodes: `Episodes`, validated.
            permutation: `[N]` int32, a random order of the N valid steps for a baseline
                that learns from minibatches, or `None`.
            sum_gradients: Function that replaces `policy_gradients` and sums its results
                over replicas or blocks of steps, or `None`.

        Returns:
            `GradientEstimate`.
        """
        batch = self.batch(episodes)
        baseline_step = self.baseline_step(batch, permutation)
        gradients, metrics = (sum_gradients or self.policy_gradients)(batch)
        metrics = {**metrics, **baseline_step.metrics}
        return GradientEstimate(gradients, metrics, batch, baseline_step)

    def batch(self, episodes):
        """Computes returns, baseline and advantages, as a `Batch`.

        In the code, `unbaselined` is the advantage for a baseline of zero. This is either
        the return from the step on, or the return of the whole episode.
        """
        options = self.options
        episodes = records.trim(episodes)
        episodes = episodes._replace(lengths=self.learned_lengths(episodes))
        valid = records.valid(episodes.lengths, tf.shape(episodes.rewards)[0])
        rewards, discounts, lambdas, samples = self._rewards(episodes, valid)
        values = self.values(episodes, rewards.dtype)
        returns = return_functions.lambda_returns(rewards, discounts, values[1:], lambdas)
        unbaselined = returns
        if options.returns == "whole":
            unbaselined = tf.where(valid, returns[:1], 0.0)
        baseline = self.baseline.estimate(unbaselined, valid, values[:-1])
        self._check_baseline(baseline, unbaselined)
        advantages = tf.where(valid, unbaselined - baseline, 0.0)
        scaled = self._scaled_advantages(advantages, unbaselined, valid, samples)
        advantages, unbaselined, samples = scaled
        if options.discount_states and options.returns == "to_go":
            times = tf.range(tf.cast(tf.shape(unbaselined)[0], unbaselined.dtype))
            powers = tf.constant(options.gamma, unbaselined.dtype) ** times[:, None]
            advantages, unbaselined = advantages * powers, unbaselined * powers
        steps = valid_steps(episodes)
        columns = returns, values[:-1], advantages, unbaselined
        columns, samples = steps.gather((columns, samples))
        count = tf.math.count_nonzero(episodes.lengths, dtype=tf.int32)
        count, length = tf.maximum(count, 1), tf.maximum(tf.size(columns[0]), 1)
        divisor = count if options.mean_over == "episodes" else length
        divisor = tf.cast(divisor, returns.dtype)
        return Batch(episodes, steps, *columns, divisor, count, samples)

    def learned_lengths(self, episodes):
        """Returns the lengths of B episodes, `[B]` int, zero for dropped ones."""
        if self.options.on_truncation == "drop":
            return tf.where(episodes.terminated, episodes.lengths, 0)
        return episodes.lengths

    def _rewards(self, episodes, valid):
        """Returns the rewards, discounts and λ of every step, each `[T, B]`.

        The fourth result is a dict for the running scale of rewards. If rewards are
        scaled, the dict contains the discounted returns before scaling, otherwise
        nothing.
        """
        rewards = tf.where(valid, episodes.rewards, 0.0)
        terminated = episodes.terminated
        if self.options.on_truncation == "terminal":
            terminated = tf.ones_like(terminated)
        discounts, lambdas = return_functions.coefficients(
            valid,
            episodes.lengths,
            terminated,
            self.options.gamma,
            self.options.gae_lambda,
            rewards.dtype,
        )
        samples = {}
        if "rewards" in self.scales:
            samples["rewards"] = return_functions.discounted_returns(rewards, discounts)
            rewards = self.scales["rewards"](rewards, samples["rewards"][valid])
        return rewards, discounts, lambdas, samples

    def values(self, episodes, dtype):
        """Returns the values of all observations, or zeros without a value baseline.

        The shape is `[T + 1, B]`, because an episode has one observation more than steps.
        The return of a truncated episode needs the value of its last observation. No
        gradient flows through the values.
        """
        rows = tf.shape(episodes.rewards)[0] + 1
        if not self.baseline.is_value_function:
            return tf.zeros([rows, tf.size(episodes.lengths)], dtype)
        steps = records.valid_steps(episodes.lengths + 1, rows)
        if self.baseline.shares_policy:
            _, values = self.outputs_at(steps, episodes, steps, has_gradient=False)
        elif self.value_memory is not None:
            indices, call_model = self._value_inputs(steps, episodes, steps, False)
            values = self.baseline.values(indices, call_model)
        else:
            values = self.baseline_values(steps.gather(episodes.observations))
        return steps.scatter(tf.stop_gradient(tf.cast(values, dtype)))

    def _value_inputs(self, steps, episodes, every_step, has_gradient=True):
        """Returns the arguments of `Value.values` for a value model with a memory.

        They are `[N, 2]` indices of steps in place of observations, and the function that
        calls the model at such steps.
        """
        observations = self._normalized(episodes.observations)

        def call_model(indices):
            own = steps._replace(indices=indices)
            return self.value_memory.outputs_at(
                own, observations, episodes, every_step, has_gradient
            )

        return steps.indices, call_model

    def baseline_values(self, observations):
        """Returns `[N]` values of N observations, from the baseline's own model."""
        return self.baseline.values(self._normalized(observations))

    def _check_baseline(self, baseline, returns):
        """Raises an error unless there is one baseline per return, of its type."""
        requirement = (
            f"`{type(self.baseline).__name__}.estimate` must return an array [T, B], one "
            f"baseline per return, of type {returns.dtype.name}. Received: {baseline}"
        )
        if baseline.dtype != returns.dtype or baseline.shape.rank != 2:
            raise ValueError(requirement)
        tf.debugging.assert_equal(tf.shape(baseline), tf.shape(returns), requirement)

    def _scaled_advantages(self, advantages, unbaselined, valid, samples):
        """Divides advantages by their scale, if `scale_advantages` is set.

        Returns:
            The advantages, those with a baseline of zero, and `samples`, to which
            `scale_advantages="running"` adds the advantages before scaling.
        """
        if self.options.scale_advantages == "batch":
            num_steps = tf.reduce_sum(tf.cast(valid, unbaselined.dtype))
            # Differences of equal returns are rounding errors, which must stay small.
            tolerance = 1e-8 + 1e-12 * tf.reduce_max(tf.abs(unbaselined))
            scale = tf.norm(advantages) / tf.sqrt(num_steps) + tolerance
            return advantages / scale, unbaselined / scale, samples
        if "advantages" in self.scales:
            scale, batch_samples = self.scales["advantages"], advantages[valid]
            samples = {**samples, "advantages": advantages}
            scaled = [scale(x, batch_samples) for x in (advantages, unbaselined)]
            return *scaled, samples
        return advantages, unbaselined, samples

    def baseline_step(self, batch, permutation=None):
        """Computes the baseline's own loss and its gradients, as a `BaselineStep`.

        A baseline that shares the policy's layers has no loss of its own, because its
        value loss is part of the surrogate loss.
        """
        observations = self._normalized(batch.steps.gather(batch.episodes.observations))
        call_model = None
        if permutation is not None:
            orders = self.minibatch_orders(permutation[None], batch, self.value_memory)
            permutation = orders[0]
        if self.value_memory is not None:
            every_step = valid_steps(batch.episodes)
            observations, call_model = self._value_inputs(
                batch.steps, batch.episodes, every_step
            )
        baseline_batch = baselines.BaselineBatch(
            observations,
            batch.returns,
            batch.steps.indices[:, 0],
            batch.num_episodes,
            permutation,
            values=batch.values,
            call_model=call_model,
        )
        if self.baseline.shares_policy:
            return BaselineStep(baseline_batch, [], {})
        value_loss, gradients = self.baseline.gradients(baseline_batch)
        return BaselineStep(baseline_batch, gradients, {"value_loss": value_loss})

    def minibatch_orders(self, permutations, batch, memory):
        """Returns the orders of steps from which minibatches of a model are cut.

        Args:
            permutations: `[P, N]` int32, random permutations of the N steps.
            batch: `Batch`.
            memory: `memory.Memory` of the model, or `None`.
        """
        if memory is None or memory.is_windowed:
            return permutations
        return tf.map_fn(lambda x: minibatches.in_episodes(x, batch.steps), permutations)

    def policy_gradients(
        self, batch, indices=None, behavior_log_probs=None, scale_loss=tf.identity
    ):
        """Differentiates the surrogate loss of a batch or minibatch.

        Args:
            batch: `Batch`.
            indices: `[n]` int, which of the N steps to use, or `None` for all. Sums over
                a minibatch are multiplied by N / n, so the mean over random minibatches
                is the gradient of the batch.
            behavior_log_probs: `[N]` float, the actions' log-probabilities when they were
                taken. Each step is then weighted by its likelihood ratio, limited by
                `ratio_clip`. `None` while the policy is still the one that acted.
            scale_loss: Function that multiplies the loss by the optimizer's loss scale,
                so small gradients do not vanish in half precision. The returned gradients
                are divided by it again.

        Returns:
            A list with a gradient for each of `variables`, and a dict of scalars with the
            keys `METRICS`.
        """
        minibatch = batch if indices is None else batch.minibatch(indices)
        if behavior_log_probs is not None and indices is not None:
            behavior_log_probs = tf.gather(behavior_log_probs, indices)
        with tf.GradientTape() as tape:
            outputs, values = self.outputs(minibatch)
            actions = minibatch.actions
            log_probs, entropies = self.head.log_prob_and_entropy(outputs, actions)
            advantages, log_ratios = minibatch.advantages, tf.zeros_like(log_probs)
            if behavior_log_probs is not None:
                log_ratios = log_probs - behavior_log_probs
                ratios = tf.cast(tf.exp(log_ratios), advantages.dtype)
                advantages *= clipped_ratios(ratios, advantages, self.options.ratio_clip)
            policy_loss = losses.policy_gradient(log_probs, advantages, minibatch.divisor)
            # The losses of the policy's layers are regularizers and `add_loss`.
            penalties = (tf.cast(x, policy_loss.dtype) for x in self.policy.losses)
            loss = policy_loss + sum(penalties)
            entropies = minibatch.without_padding(entropies)
            loss = self._with_entropy_bonus(loss, entropies, minibatch.divisor)
            loss, value_loss = self._with_value_loss(loss, values, minibatch)
            scaled_loss = scale_loss(loss)
        gradients = losses.gradients(tape, scaled_loss, self.variables)
        scale = scale_loss(tf.ones([], loss.dtype))
        gradients = [gradient / tf.cast(scale, gradient.dtype) for gradient in gradients]
        return gradients, {
            "loss": loss,
            "policy_loss": policy_loss,
            # NaN without values of the policy: `gradients` then inserts the loss of the
            # baseline, if it has one.
            "value_loss": value_loss,
            "entropy": minibatch.mean(entropies),
            "gradient_norm": losses.global_norm(gradients),
            "effective_sample_size": _effective_sample_size(log_ratios, minibatch),
        }

    def _with_entropy_bonus(self, loss, entropies, divisor):
        """Subtracts `entropy_coef`, or its schedule, times the entropy from the loss."""
        coefficient = self.options.entropy_coef
        if not coefficient:
            return loss
        if callable(coefficient):
            coefficient = tf.cast(coefficient(self.num_updates()), loss.dtype)
        bonus = losses.entropy(entropies, divisor)
        return loss + tf.convert_to_tensor(coefficient, loss.dtype) * bonus

    def _with_value_loss(self, loss, values, batch):
        """Adds the weighted value loss, and returns the sum and the value loss itself.

        Without values, the loss stays the same, and the value loss is NaN.
        """
        if values is None:
            return loss, tf.constant(float("nan"), loss.dtype)
        returns = batch.without_padding(tf.cast(batch.returns, values.dtype), values)
        value_loss = losses.value(values, returns, batch.divisor)
        return loss + self.baseline.loss_weight * value_loss, value_loss

    def outputs(self, batch, has_gradient=True):
        """Returns `[N, P]` policy outputs with action masks applied, and `[N]` values.

        The values are `None` if the policy returns none.
        """
        episodes = batch.episodes
        every_step = valid_steps(episodes)
        outputs, values = self.outputs_at(batch.steps, episodes, every_step, has_gradient)
        return self.mask_outputs(outputs, batch.steps, episodes.masks), values

    def outputs_at(self, steps, episodes, every_step, has_gradient=True):
        """Returns the outputs at some steps, before the mask, and the values.

        Args:
            steps: `ValidSteps`, the N steps of interest.
            episodes: `Episodes`.
            every_step: `ValidSteps`, all valid steps, which a recurrent policy has to
                read.
            has_gradient: Bool, whether the outputs will be differentiated.
        """
        if self.memory is None:
            observations = steps.gather(episodes.observations)
            return minibatches.call_on_rows(self.forward, observations)
        observations = self._normalized(episodes.observations)
        outputs = self.memory.outputs_at(
            steps, observations, episodes, every_step, has_gradient
        )
        return self.split_outputs(outputs)

    def distribution(self, batch):
        """Returns the TFP distribution over actions at the N steps of a batch."""
        return self.head.distribution(self.outputs(batch)[0])

    def kl_divergence(self, batch, behavior_log_probs):
        """Estimates KL(μ‖π) per step, in nats, from the actions of a batch.

            KL(μ‖π) ≈ 1/N Σₙ (ρₙ - 1 - log ρₙ),    ρ = π(a|s) / μ(a|s)

        Here μ is the policy that acted and π is the current one. No term of the sum is
        negative. Each term is unbiased if π was chosen independently of the action,
        because the mean of ρ under μ is 1. The estimate is NaN if a log-probability is
        not finite.

        Args:
            batch: `Batch`.
            behavior_log_probs: `[N]` float, log μ of the actions.
        """
        outputs, _ = self.outputs(batch, has_gradient=False)
        log_probs = self.head.distribution(outputs).log_prob(batch.actions)
        log_ratios = batch.without_padding(log_probs - behavior_log_probs)
        nan = tf.constant(float("nan"), log_ratios.dtype)
        log_ratios = tf.where(tf.math.is_finite(log_ratios), log_ratios, nan)
        return batch.mean(tf.math.expm1(log_ratios) - log_ratios)

    def mask_outputs(self, outputs, steps, masks):
        """Applies the action masks at N steps, if there are any, to outputs `[N, P]`."""
        if masks is None or not masks.shape[-1]:
            return outputs
        return self.head.mask_outputs(outputs, steps.gather(masks))

    def forward(self, observations):
        """Calls the policy; returns P outputs `[..., P]`, and values `[...]` or `None`.

        The layers of the policy run in inference mode. Half-precision outputs are cast to
        the agent's float type.
        """
        policy = self.policy
        if self.memory is not None:
            policy = self.memory.runner.sequence_model
        return self.split_outputs(policy(self._normalized(observations), training=False))

    def step(self, observations, states):
        """Returns `[N, P]` outputs for N observations, and the next recurrent states."""
        if self.memory is None:
            return self.forward(observations)[0], states
        outputs, states = self.memory.step(self._normalized(observations), states)
        return self.split_outputs(outputs)[0], states

    def split_outputs(self, outputs):
        """Splits a policy model's result into outputs, and values or `None`."""
        values = None
        if isinstance(outputs, dict):
            outputs, values = outputs["outputs"], outputs["values"][..., 0]
        dtype = actor.float_type(self.policy)
        return tf.cast(outputs, dtype), None if values is None else tf.cast(values, dtype)

    def _normalized(self, observations):
        return observations if self.normalizer is None else self.normalizer(observations)

    def update_statistics(self, batch, baseline_step, jit_compile=False):
        """Updates the baseline and the running scales, after the gradient steps.

        With `jit_compile`, XLA compiles the gradient steps of the baseline.
        """
        baseline_batch = baseline_step.baseline_batch._replace(jit_compile=jit_compile)
        self.baseline.apply_gradients(baseline_step.gradients, baseline_batch)
        for name, scale in self.scales.items():
            scale.update(batch.scale_samples[name])

    def update_layers(self):
        """Lets `SpectralNormalization` normalize its kernel, whatever the inputs are."""
        for layer in self.updating_layers:
            # As in its `call`, whose inputs may need any size.
            vector, kernel = tf.cond(
                tf.reduce_any(layer.kernel.value != 0),
                layer.normalized_weights,
                lambda layer=layer: (layer.vector_u.value, layer.kernel.value),
            )
            layer.vector_u.assign(vector)
            layer.kernel.assign(kernel)

    def update_normalizer(self, episodes):
        """Updates the observation normalizer from all steps, even of dropped episodes."""
        if self.normalizer is not None:
            self.normalizer.update(valid_steps(episodes).gather(episodes.observations))

    def sums_of_squares(self, episodes, batch):
        """Sums the squares of all numbers that enter running statistics.

        If the sums are finite, the statistics will be too.
        """
        samples = list(batch.scale_samples.values())
        if self.normalizer is not None:
            observations = valid_steps(episodes).gather(episodes.observations)
            flat = keras.tree.flatten(observations)
            samples += [x for x in flat if x.dtype.is_floating]
        return [tf.reduce_sum(tf.square(tf.cast(x, tf.float64))) for x in samples]


def valid_steps(episodes):
    """Returns the `ValidSteps` of `Episodes`: the indices of all steps but padding."""
    return records.valid_steps(episodes.lengths, tf.shape(episodes.rewards)[0])


def clipped_ratios(ratios, advantages, ratio_clip):
    """Limits the likelihood ratios that weight the advantages of n steps.

    Args:
        ratios: `[n]` float, the likelihood ratios ρ.
        advantages: `[n]` float.
        ratio_clip: Float c, for min(ρ, c). Or a pair (low, high), for PPO's clip: zero if
            the advantage is positive and ρ > 1 + high, or negative and ρ < 1 - low, where
            the policy has already moved far enough; otherwise ρ. The gradient is then
            that of min(ρ A, clip(ρ, 1 - low, 1 + high) A) (Schulman et al., 2017, eq. 7).
    """
    if not isinstance(ratio_clip, tuple):
        return tf.minimum(ratios, ratio_clip)
    low, high = ratio_clip
    is_enough = tf.where(advantages >= 0, ratios > 1 + high, ratios < 1 - low)
    return tf.where(is_enough, tf.zeros_like(ratios), ratios)


def _effective_sample_size(log_ratios, batch):
    """Returns (Σρ)² / (n Σρ²) of n unclipped likelihood ratios, given as log ρ."""
    log_ratios = batch.without_padding(log_ratios, -math.inf)
    # A common factor cancels; dividing by the largest ratio avoids an overflow.
    ratios = tf.exp(log_ratios - tf.reduce_max(log_ratios))
    return batch.mean(ratios) ** 2 / batch.mean(ratios**2)
