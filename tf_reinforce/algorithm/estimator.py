"""Computes the policy gradient from a batch of episodes.

Read `PolicyGradientEstimator.gradients` first. The functions that it calls are in
`functional`; everything that uses it is convenience.
"""

import types
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.functional import returns as return_functions
from tf_reinforce.policies import models

# What is known of a policy gradient.
METRICS = (
    "loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "gradient_norm",
    "effective_sample_size",
)


class Batch(NamedTuple):
    """What one update learns from, all of it fixed before the first weight moves."""

    episodes: records.Episodes
    steps: records.ValidSteps  # N of them: padding ends here
    targets: tf.Tensor  # [N] float, the returns
    advantages: tf.Tensor  # [N] float
    credited: tf.Tensor  # [N] float, what these would be without a baseline
    divisor: tf.Tensor  # scalar float: sums over steps are divided by it
    count: tf.Tensor  # scalar int, how many episodes; 1 if there is none to learn from
    samples: dict[
        str, tf.Tensor
    ]  # [N] float each, what `PolicyGradientEstimator.scales` learn from

    @property
    def actions(self):
        """`[N, …]`, as they were sampled."""
        return self.steps.gather(self.episodes.actions)

    def part(self, indices):
        """The steps at `[n]` indices. Their sum counts N / n times."""
        share = tf.size(indices) / tf.size(self.targets)
        return self._replace(
            steps=self.steps._replace(addresses=tf.gather(self.steps.addresses, indices)),
            targets=tf.gather(self.targets, indices),
            advantages=tf.gather(self.advantages, indices),
            credited=tf.gather(self.credited, indices),
            divisor=self.divisor * tf.cast(share, self.divisor.dtype),
        )

    def episode(self, column):
        """One episode's own share: its sums have their mean over `count` in the batch's.

        Args:
            column: Scalar int, the column of an episode that is learned from.
        """
        mine = tf.where(self.steps.addresses[:, 1] == tf.cast(column, tf.int32))[:, 0]
        episodes = records.select_episodes(self.episodes, column, column + 1)
        return self._replace(
            episodes=episodes,
            steps=valid_steps(episodes),
            targets=tf.gather(self.targets, mine),
            advantages=tf.gather(self.advantages, mine),
            credited=tf.gather(self.credited, mine),
            divisor=self.divisor / tf.cast(self.count, self.divisor.dtype),
            samples={},
        )


class PolicyGradientEstimator:
    """REINFORCE as a pure function of a policy, its parts and a record.

        ∇J ≈ 1/E Σₑ Σₜ ∇ log π(aₜ|sₜ) (Gₜ - bₜ)

    Args:
        policy: Keras model from observations to outputs, or to a dict with
            `"outputs"` and `"values"`.
        head: `heads.Head`.
        baseline: `baselines.Baseline`.
        normalizer: `normalization.RunningNormalization` or `None`.
        settings: Dict with `gamma`, `gae_lambda`, `returns`, `discount_states`,
            `scale_advantages`, `mean_over`, `on_truncation`, `entropy_coef` and
            `ratio_clip`; see `Reinforce`.
        memory: `recurrent.RecurrentPolicy` of a policy that reads whole episodes, or
            `None`.
        scales: Dict of `normalization.RunningScale`: by what `"rewards"` and
            `"advantages"` are divided, where they are.
        updates: Function without arguments: how many updates were made before.
    """

    def __init__(
        self,
        policy,
        head,
        baseline,
        normalizer,
        settings,
        memory=None,
        *,
        scales=types.MappingProxyType({}),
        updates=lambda: 0,
    ):
        self.policy = policy
        self.head = head
        self.baseline = baseline
        self.normalizer = normalizer
        self.settings = dict(settings)
        self.memory = memory
        self.scales = scales
        self.updates = updates

    @property
    def variables(self):
        """The trainable weights of policy and head."""
        return [*self.policy.trainable_variables, *self.head.trainable_variables]

    def gradients(self, episodes):
        """The policy gradient of a batch of episodes, and what is known about it.

        Args:
            episodes: `Episodes`, checked.

        Returns:
            A list with ∂L/∂w for each of `variables`, L being the surrogate loss; a
            list with the gradients of the baseline's own loss; the
            `baselines.BaselineBatch` it learns from; and a dict of scalars.
        """
        batch = self.batch(episodes)
        gradients, logs = self.policy_gradients(batch)
        baseline_batch = self.baseline_batch(batch)
        value_loss, baseline_gradients = self.baseline_gradients(baseline_batch)
        if not self.baseline.shares_policy:
            logs["value_loss"] = value_loss
        return gradients, baseline_gradients, baseline_batch, logs

    def policy_gradients(self, batch, part=None, acted=None, scale_loss=tf.identity):
        """The gradient from a batch, or as a part of its steps estimates it.

        Args:
            batch: `Batch`.
            part: `[n]` int, which of the `N` steps; `None` for all. Their sum counts
                N / n times: chosen at random, its mean is the sum over all.
            acted: `[N]` float, the log-probabilities under the policy that acted, once
                the policy is another. Each step then counts by how much more likely
                its action has become since, but at most `ratio_clip` times.
            scale_loss: Function by which an optimizer makes a loss larger to save
                small gradients; undone in the result.

        Returns:
            A list with ∂L/∂w for each of `variables`, and a dict of scalars.
        """
        chosen = batch if part is None else batch.part(part)
        with tf.GradientTape() as tape:
            outputs, values = self.outputs(chosen)
            actions = self.head.distribution(outputs)
            log_probs = actions.log_prob(chosen.actions)
            entropies = actions.entropy()
            advantages, changes = chosen.advantages, tf.zeros_like(log_probs)
            if acted is not None:
                changes = log_probs - (acted if part is None else tf.gather(acted, part))
                ratios = tf.exp(changes)
                ratios = tf.minimum(ratios, self.settings["ratio_clip"])
                advantages *= tf.cast(ratios, advantages.dtype)
            policy_loss = losses.policy_gradient(log_probs, advantages, chosen.divisor)
            loss = policy_loss + self._penalties(policy_loss.dtype)
            if self.settings["entropy_coef"]:
                bonus = losses.entropy(entropies, chosen.divisor)
                loss += self._entropy_coef(loss.dtype) * bonus
            value_loss = tf.constant(float("nan"), loss.dtype)
            if values is not None:
                value_loss = losses.value(values, chosen.targets, chosen.divisor)
                loss += self.baseline.loss_weight * value_loss
            scaled = scale_loss(loss)
        gradients = losses.gradients(tape, scaled, self.variables)
        scale = scale_loss(tf.ones([], loss.dtype))
        gradients = [gradient / tf.cast(scale, gradient.dtype) for gradient in gradients]
        return gradients, {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": tf.reduce_mean(entropies),
            "gradient_norm": losses.global_norm(gradients),
            "effective_sample_size": _sample_size(changes),
        }

    def distribution(self, batch):
        """TFP distribution over actions, at the N steps of a batch, as the policy is."""
        return self.head.distribution(self.outputs(batch)[0])

    def baseline_batch(self, batch, order=None):
        """What a batch teaches the baseline; see `baselines.BaselineBatch`."""
        observations = batch.steps.gather(batch.episodes.observations)
        return baselines.BaselineBatch(
            self._normalized(observations),
            batch.targets,
            batch.steps.addresses[:, 0],
            batch.count,
            order,
        )

    def baseline_gradients(self, baseline_batch):
        """The baseline's own loss and gradients; none where the policy has the values."""
        if self.baseline.shares_policy:
            return tf.constant(float("nan"), baseline_batch.targets.dtype), []
        return self.baseline.gradients(baseline_batch)

    def learn(self, baseline_gradients, baseline_batch, batch):
        """What learns once an update is made: the baseline, and the running scales."""
        self.baseline.apply_gradients(baseline_gradients, baseline_batch)
        for name, scale in self.scales.items():
            scale.update(batch.samples[name])

    def update_normalizer(self, episodes):
        """What the normalizer learns, from every step that happened."""
        if self.normalizer is not None:
            self.normalizer.update(valid_steps(episodes).gather(episodes.observations))

    def statistics_squares(self, episodes, batch):
        """Sums of the squares of what the running statistics would take in.

        Where these are finite, so are the statistics and the sizes made of them.
        """
        samples = list(batch.samples.values())
        if self.normalizer is not None:
            seen = valid_steps(episodes).gather(episodes.observations)
            samples += [x for x in keras.tree.flatten(seen) if x.dtype.is_floating]
        return [tf.reduce_sum(tf.square(tf.cast(x, tf.float64))) for x in samples]

    def batch(self, episodes):
        """What one update learns from, as the acting policy and baseline saw it."""
        episodes = records.trim(episodes)
        if self.settings["on_truncation"] == "drop":
            lengths = tf.where(episodes.terminated, episodes.lengths, 0)
            episodes = episodes._replace(lengths=lengths)
        steps = valid_steps(episodes)
        targets, advantages, credited, samples = steps.gather(self.targets(episodes))
        count = tf.math.count_nonzero(episodes.lengths, dtype=tf.int32)
        count, length = tf.maximum(count, 1), tf.maximum(tf.size(targets), 1)
        divisor = count if self.settings["mean_over"] == "episodes" else length
        divisor = tf.cast(divisor, targets.dtype)
        return Batch(
            episodes, steps, targets, advantages, credited, divisor, count, samples
        )

    def targets(self, episodes):
        """Returns, advantages, and what these would be without a baseline.

        `[T, B]` each, in the type of the rewards. And in a dict what they were divided
        by: samples for `scales`.
        """
        valid, targets, credited, baselines, samples = self._credit(episodes)
        advantages = tf.where(valid, credited - self._alike(baselines, credited), 0.0)
        if self.settings["scale_advantages"] == "batch":
            steps = tf.reduce_sum(tf.cast(valid, credited.dtype))
            # Equal returns differ in their last bits only: noise that must stay small.
            noise = 1e-8 + 1e-12 * tf.reduce_max(tf.abs(credited))
            size = tf.norm(advantages) / tf.sqrt(steps) + noise
            advantages, credited = advantages / size, credited / size
        if "advantages" in self.scales:
            samples["advantages"] = advantages
            scale, own = self.scales["advantages"], advantages[valid]
            advantages, credited = scale(advantages, own), scale(credited, own)
        if self.settings["discount_states"] and self.settings["returns"] == "to_go":
            gamma = tf.constant(self.settings["gamma"], credited.dtype)
            rows = tf.cast(tf.shape(credited)[0], credited.dtype)
            powers = gamma ** tf.range(rows)[:, None]
            advantages, credited = advantages * powers, credited * powers
        return targets, advantages, credited, samples

    def _credit(self, episodes):
        """What happened, the returns, what an action answers for, and the baseline."""
        rows = tf.shape(episodes.rewards)[0]
        valid = records.valid(episodes.lengths, rows)
        rewards = tf.where(valid, episodes.rewards, 0.0)
        terminated = episodes.terminated
        if self.settings["on_truncation"] == "terminal":
            terminated = tf.ones_like(terminated)
        discounts, lambdas = return_functions.coefficients(
            valid,
            episodes.lengths,
            terminated,
            self.settings["gamma"],
            self.settings["gae_lambda"],
            rewards.dtype,
        )
        samples = {}
        if "rewards" in self.scales:
            samples["rewards"] = return_functions.discounted_returns(rewards, discounts)
            rewards = self.scales["rewards"](rewards, samples["rewards"][valid])
        values = self.values(episodes, rewards.dtype)
        targets = return_functions.lambda_returns(rewards, discounts, values[1:], lambdas)
        credited = targets
        if self.settings["returns"] == "whole":
            credited = tf.where(valid, targets[:1], 0.0)
        baselines = self.baseline.estimate(credited, valid, values[:-1])
        return valid, targets, credited, baselines, samples

    def _alike(self, baselines, credited):
        """What the baseline estimated, if it is one number for each return."""
        name = type(self.baseline).__name__
        wanted = f"`{name}.estimate` must return a baseline for each return, [T, B]"
        if baselines.dtype != credited.dtype or baselines.shape.rank != 2:
            raise ValueError(
                f"{wanted}, of type {credited.dtype.name}. Received: shape "
                f"{baselines.shape} of type {baselines.dtype.name}. Nothing is broadcast."
            )
        tf.debugging.assert_equal(tf.shape(baselines), tf.shape(credited), wanted)
        return baselines

    def outputs(self, batch):
        """Outputs `[N, P]`, masked, and values `[N]` or `None`, for a batch's steps."""
        episodes = batch.episodes
        happened = valid_steps(episodes)
        outputs, values = self.at(batch.steps, episodes.observations, happened)
        return self.mask_outputs(outputs, batch.steps, episodes.masks), values

    def at(self, steps, columns, happened):
        """Outputs `[N, P]` and values `[N]` or `None`, for steps of `[T, B, …]`.

        `happened` are all the steps there are; `steps` may be some of them.
        """
        if self.memory is None:
            return minibatches.on_rows(self.forward, steps.gather(columns))
        # A memory reads whole episodes, `[B, T, …]`: nothing comes back from padding.
        both = self.forward(_swapped(happened.zero_padding(columns)))
        return tuple(x if x is None else steps.gather(_swapped(x)) for x in both)

    def mask_outputs(self, outputs, steps, masks):
        """Outputs `[N, P]` under the masks `[T, B, M]`; as they are without any."""
        if masks is None or not masks.shape[-1]:
            return outputs
        return self.head.mask_outputs(outputs, steps.gather(masks))

    def forward(self, observations):
        """Outputs `[..., P]`, and values `[...]` or `None` where the policy has none.

        Layers with a training mode are in inference mode; half precision ends here.
        """
        policy = self.policy if self.memory is None else self.memory.whole
        return self.parts(policy(self._normalized(observations), training=False))

    def step(self, observations, states):
        """Outputs `[N, P]` for one observation `[N, …]` each, and the next states."""
        if self.memory is None:
            return self.forward(observations)[0], states
        outputs, states = self.memory.step(self._normalized(observations), states)
        return self.parts(outputs)[0], states

    def parts(self, outputs):
        """What a policy put out as outputs and values."""
        values = None
        if isinstance(outputs, dict):
            outputs, values = outputs["outputs"], outputs["values"][..., 0]
        dtype = models.float_type(self.policy)
        return tf.cast(outputs, dtype), None if values is None else tf.cast(values, dtype)

    def values(self, episodes, dtype):
        """`[T + 1, B]`: what a value baseline expects; zeros without one."""
        rows = tf.shape(episodes.rewards)[0] + 1
        if not self.baseline.values_states:
            return tf.zeros([rows, tf.size(episodes.lengths)], dtype)
        # The observation after the last action counts too: it may be bootstrapped.
        steps = records.valid_steps(episodes.lengths + 1, rows)
        if self.baseline.shares_policy:
            _, values = self.at(steps, episodes.observations, steps)
        else:
            observations = self._normalized(steps.gather(episodes.observations))
            values = self.baseline.values(observations)
        return steps.scatter(tf.stop_gradient(tf.cast(values, dtype)))

    def _entropy_coef(self, dtype):
        """The coefficient, of this update where a schedule says it."""
        coefficient = self.settings["entropy_coef"]
        if callable(coefficient):
            return tf.cast(coefficient(self.updates()), dtype)
        return tf.constant(coefficient, dtype)

    def _normalized(self, observations):
        return observations if self.normalizer is None else self.normalizer(observations)

    def _penalties(self, dtype):
        """What the policy's layers add by themselves: regularizers and `add_loss`."""
        penalties = [tf.cast(x, dtype) for x in self.policy.losses]
        return tf.add_n(penalties) if penalties else tf.zeros([], dtype)


def valid_steps(episodes):
    """The addresses of the steps that happened; see `episodes.ValidSteps`."""
    return records.valid_steps(episodes.lengths, tf.shape(episodes.rewards)[0])


def _sample_size(changes):
    """(Σρ)² / (n Σρ²) of ratios before any bound, from their `[n]` logarithms."""
    # Their common factor does not count: with the largest at one none overflows.
    ratios = tf.exp(changes - tf.reduce_max(changes))
    return tf.reduce_mean(ratios) ** 2 / tf.reduce_mean(ratios**2)


def _swapped(columns):
    """`[B, T, …]` from `[T, B, …]`, and back, for every array of a structure."""

    def swap(array):
        return tf.transpose(array, [1, 0, *range(2, array.shape.rank)])

    return keras.tree.map_structure(swap, columns)
