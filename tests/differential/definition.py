"""Computes the documented estimator with loops over episodes and steps, in float64.

This module does not use the package. Keras computes the outputs of a policy and of a
critic for one observation (for one episode, if the policy is recurrent), and propagates
derivatives back to the weights. Returns, baselines, weights of steps, padding, statistics
and gradient steps are loops in NumPy.
"""

import dataclasses
import math
from typing import NamedTuple

import keras
import numpy as np
import parts
import tensorflow as tf


class Step(NamedTuple):
    """The return and the advantage of one step."""

    episode: int
    time: int
    return_: float
    advantage: float
    magnitude: float  # sum of the absolute values of return and baseline


class ActingLogProbs(NamedTuple):
    """Log-probabilities of steps under the acting policy, also from float64 networks."""

    log_probs: list
    exact: list | None

    def select(self, indices):
        """Returns the log-probabilities of the steps with these indices."""
        selected = [None if x is None else [x[i] for i in indices] for x in self]
        return ActingLogProbs(*selected)


class Sums:
    """A sum of gradients, and of their absolute values, which limit its accuracy."""

    def __init__(self, shapes):
        self.total = [np.zeros(shape) for shape in shapes]
        self.magnitude = [np.zeros(shape) for shape in shapes]
        self.rounding = [np.zeros(shape) for shape in shapes]
        self.terms = []

    def add(self, gradients, factor=1.0):
        """Adds gradients; `factor` is the ratio of their terms to their sum."""
        self.terms.append(gradients)
        for total, magnitude, gradient in zip(
            self.total, self.magnitude, gradients, strict=True
        ):
            total += gradient
            magnitude += factor * np.abs(gradient)

    def measure_rounding(self, exact, others):
        """Adds the rounding error of each term: the largest distance from `exact`.

        Args:
            exact: `Sums`, the same sum in float64.
            others: List of `Sums`, the same sum with other rounding errors.
        """
        for index, terms in enumerate(exact.terms):
            for part, term in enumerate(terms):
                differences = [
                    np.abs(other.terms[index][part] - term) for other in others
                ]
                self.rounding[part] += np.max(differences, axis=0)

    def largest(self):
        """Returns the largest elements of the sum, the magnitude and the rounding."""
        arrays = [np.abs(x) for x in self.total], self.magnitude, self.rounding
        return [max(np.max(x, initial=0.0) for x in part) for part in arrays]


class Network:
    """A Keras model for one observation or one episode at a time, and its derivative.

    The model is traced, because eager mode takes a hundred times as long.
    """

    def __init__(self, model, c, recurrent):
        self.model = model
        self.weights = model.trainable_variables
        self.recurrent = recurrent
        real = parts.real_type(c)
        time_axis = (None,) if recurrent else ()

        def spec(leaf, _):
            dtype = real if leaf[1] == "float32" else leaf[1]
            return tf.TensorSpec((1, *time_axis, *leaf[0]), dtype)

        self.input_specs = parts.map_structure(spec, parts.observation_specs(c))
        output_grads = tf.TensorSpec((1, *time_axis, None), "float64")
        signature = [self.input_specs, output_grads, output_grads]
        self.compiled = tf.function(
            self._outputs_and_gradients, signature, autograph=False
        )

    def _outputs_and_gradients(self, observation, output_grads, value_grads):
        with tf.GradientTape() as tape:
            result = self.model(observation, training=False)
            outputs = [result]
            if isinstance(result, dict):
                outputs = [result["outputs"], result["values"]]
        output_grads = [
            tf.cast(x, y.dtype) for x, y in zip([output_grads, value_grads], outputs)
        ]
        gradients = tape.gradient(
            outputs,
            [weight.value for weight in self.weights],
            [tf.reshape(x, tf.shape(y)) for x, y in zip(output_grads, outputs)],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.cast(tf.convert_to_tensor(x), tf.float64) for x in gradients]
        return [tf.cast(x, tf.float64) for x in outputs], gradients

    def forward(self, observation, size):
        """Returns outputs `[..., size]`, and values `[...]` or `None`."""
        rows = len(keras.tree.flatten(observation)[0]) if self.recurrent else 0
        shape = (1, rows) if self.recurrent else (1,)
        zeros = np.zeros((*shape, size)), np.zeros((*shape, 1))
        outputs, *values = self._run(observation, *zeros)[0]
        return outputs.numpy()[0], values[0].numpy()[0, ..., 0] if values else None

    def backward(self, observation, output_grads, value_grads):
        """Returns ∂/∂w of Σ output_grads × outputs + Σ value_grads × values."""
        gradients = output_grads[None], value_grads[None, ..., None]
        return [x.numpy() for x in self._run(observation, *gradients)[1]]

    def _run(self, observation, *output_gradients):
        batch = keras.tree.map_structure(
            lambda x, spec: tf.constant(x[None].astype(spec.dtype.as_numpy_dtype)),
            observation,
            self.input_specs,
        )
        return self.compiled(batch, *map(tf.constant, output_gradients))


def network_of(c, make, recurrent):
    """Returns a network for the combination, traced once for equal architectures.

    The network is shared, so that the caller must set its weights.
    """
    key = make, c.policy, c.dtype, c.action_mask == "observation"
    sizes = parts.score_of(c.head).outputs_size, parts.score_of(c.head).mask_size
    key = *key, *sizes, c.baseline == "shared"
    if key not in NETWORKS:
        NETWORKS[key] = Network(make(c), c, recurrent)
        while len(NETWORKS) > 256:
            del NETWORKS[next(iter(NETWORKS))]
    return NETWORKS[key]


NETWORKS = {}
ROUNDINGS = 8  # number of evaluations that measure the rounding error of a gradient


class Definition:
    """The definition of an agent, with its own policy and critic.

    Args:
        measure_rounding: Bool. Whether to compute every gradient also with networks in
            float64, and again with perturbed last bits of weights and observations. The
            differences are the rounding error in the type of the combination.
    """

    def __init__(self, c, policy, critic, head_weights, measure_rounding=False):
        self.c = c
        self.exact, self.random = None, None
        if measure_rounding:
            float64_options = dataclasses.replace(c, dtype="float64")
            self.exact = Definition(float64_options, policy, critic, head_weights)
        self.network = network_of(c, parts.policy_of, c.recurrent)
        self.policy, self.critic, self.critic_network = self.network.model, None, None
        if c.baseline == "value":
            self.critic_network = network_of(c, parts.critic_of, False)
            self.critic = self.critic_network.model
        self.score = parts.score_of(c.head)
        self.set_weights(policy, critic, head_weights)
        self.rewards, self.advantages, self.observations = [], [], []
        self.means = []  # of returns, by update: over all steps, and by time
        self.momentum_slots = {}
        self.updates = 0

    def set_weights(self, policy, critic, head_weights):
        """Sets the weights of policy and critic, and of the head as one array."""
        self.policy.set_weights(policy)
        self.head_weights = np.array(head_weights)
        if self.critic is not None:
            self.critic.set_weights(critic)

    def float64_definition(self):
        """Returns this definition in float64, or `None` if rounding is not measured."""
        if self.exact is not None:
            models = self.policy, self.critic
            weights = [m and [np.asarray(w, "float64") for w in m.get_weights()]
                       for m in models]  # fmt: skip
            self.exact.set_weights(*weights, self.head_weights)
            self.exact.observations, self.exact.updates = self.observations, self.updates
        return self.exact

    def perturbed_results(self, model, compute):
        """Yields results of `compute` with perturbed last bits of weights and inputs.

        TensorFlow's functions such as tanh differ in their last bits between a graph,
        which fuses some of them, and eager mode. Both modes are used.
        """
        weights, self.random = model.get_weights(), np.random.default_rng(0)
        for number in range(ROUNDINGS):
            model.set_weights([perturb_last_bits(w, self.random) for w in weights])
            tf.config.run_functions_eagerly(number % 2 == 0)
            yield compute()
        tf.config.run_functions_eagerly(False)
        model.set_weights(weights)
        self.random = None

    # Episodes

    def episodes(self, record):
        """Returns the lengths of episodes, zero for episodes that are dropped."""
        drop = self.c.on_truncation == "drop"
        return [
            0 if drop and not terminated else int(n)
            for n, terminated in zip(record.lengths, record.terminated)
        ]

    def normalized(self, observation):
        """Returns one normalized observation."""
        if not self.c.normalize_observations or not self.observations:
            return observation
        flat = keras.tree.flatten(observation)
        history = zip(*self.observations, strict=True)  # for each array, over all steps
        return keras.tree.pack_sequence_as(
            observation,
            [normalize(x, np.stack(values)) for x, values in zip(flat, history)],
        )

    def observation_at(self, record, t, e):
        """Returns one normalized observation; perturbed while rounding is measured."""
        observation = keras.tree.map_structure(lambda x: x[t, e], record.observations)
        observation = self.normalized(observation)
        if self.random is None:
            return observation
        return keras.tree.map_structure(
            lambda x: perturb_last_bits(x, self.random), observation
        )

    def sequence(self, record, e, steps):
        rows = [self.observation_at(record, t, e) for t in range(steps)]
        return keras.tree.map_structure(lambda *x: np.stack(x), *rows)

    def values(self, record, lengths):
        """Returns v(s) by episode, also for the observation after the last action."""
        values = []
        for e, length in enumerate(lengths):
            if self.c.baseline not in ("value", "shared"):
                values.append([0.0] * (length + 1))
            elif self.critic is None and self.c.recurrent:
                sequence = self.sequence(record, e, length + 1)
                values.append(self.outputs(sequence)[1].tolist())
            elif self.critic is None:
                rows = (self.observation_at(record, t, e) for t in range(length + 1))
                values.append([float(self.outputs(row)[1]) for row in rows])
            else:
                rows = (self.observation_at(record, t, e) for t in range(length + 1))
                values.append([self.value(row) for row in rows])
        return values

    def outputs(self, observation):
        return self.network.forward(observation, self.score.outputs_size)

    def value(self, observation):
        return self.c.value_scale * float(
            self.critic_network.forward(observation, 1)[0][0]
        )

    # Returns and advantages

    def returns(self, rewards, values, terminated):
        """Returns Gₜ of one episode, by recursion from the end."""
        c, returns = self.c, []
        for t in reversed(range(len(rewards))):
            next_return = 0.0
            if t < len(rewards) - 1:
                bootstrapped = (1 - c.gae_lambda) * values[t + 1]
                next_return = bootstrapped + c.gae_lambda * returns[0]
            elif not terminated and c.on_truncation == "bootstrap":
                next_return = values[t + 1]
            returns.insert(0, rewards[t] + c.gamma * next_return)
        return returns

    def baselines(self, returns, values):
        """Returns the baselines by episode and step."""
        c = self.c
        all_returns = [x for episode_returns in returns for x in episode_returns]
        baselines = [[0.0] * len(episode_returns) for episode_returns in returns]
        for e, episode_returns in enumerate(returns):
            group = range(len(returns))
            if c.baseline == "groups":
                group = [j for j in group if j // 2 == e // 2]
            for t in range(len(episode_returns)):
                others = [returns[j][t] for j in group
                          if j != e and t < len(returns[j])]  # fmt: skip
                if c.baseline in ("leave_one_out", "groups") and others:
                    baselines[e][t] = sum(others) / len(others)
                elif c.baseline == "mean":
                    baselines[e][t] = sum(all_returns) / len(all_returns)
                elif c.baseline in ("value", "shared"):
                    baselines[e][t] = values[e][t]
                elif c.baseline == "moving_average":
                    baselines[e][t] = self.average([overall for overall, _ in self.means])
                elif c.baseline == "time_step":
                    time = min(t, c.horizon - 1)
                    earlier_means = [by_time.get(time) for _, by_time in self.means]
                    baselines[e][t] = self.average(
                        [x for x in earlier_means if x is not None]
                    )
        return baselines

    def average(self, means):
        """Returns the average with weights that decay with age."""
        weights = [self.c.decay**k for k in range(len(means))][::-1]
        weighted_sum = sum(w * m for w, m in zip(weights, means))
        return weighted_sum / sum(weights) if means else 0.0

    def steps(self, record):
        """Returns steps ordered by time, the number of episodes, and scale samples."""
        c, lengths = self.c, self.episodes(record)
        rewards = [record.rewards[:n, e].tolist() for e, n in enumerate(lengths)]
        samples = {
            "rewards": [
                x for episode in rewards for x in discounted_sums(episode, c.gamma)
            ]
        }
        if c.scale_rewards:
            scale = deviation(self.rewards or samples["rewards"])
            rewards = [[x / scale for x in episode] for episode in rewards]
        values = self.values(record, lengths)
        returns = [
            self.returns(episode, v, terminated)
            for episode, v, terminated in zip(rewards, values, record.terminated)
        ]
        is_whole = c.returns == "whole"
        credited_returns = [x[:1] * len(x) if is_whole else x for x in returns]
        baselines = self.baselines(credited_returns, values)
        steps = [
            Step(e, t, returns[e][t], x - b, abs(x) + abs(b))
            for e, episode in enumerate(credited_returns)
            for t, (x, b) in enumerate(zip(episode, baselines[e]))
        ]
        samples["advantages"] = [step.advantage for step in steps]
        factor = 1.0
        if c.scale_advantages == "batch" and steps:
            largest = max(abs(x) for episode in credited_returns for x in episode)
            # Differences of equal returns are rounding errors, which must stay small.
            factor = 1 / (rms(samples["advantages"]) + 1e-8 + 1e-12 * largest)
        if c.scale_advantages == "running":
            factor = 1 / scale_or_one(rms, self.advantages or samples["advantages"])
        for i, step in enumerate(steps):
            power = c.gamma**step.time if c.discount_states and not is_whole else 1.0
            steps[i] = step._replace(
                advantage=step.advantage * factor * power,
                magnitude=step.magnitude * factor * power,
            )
        steps.sort(key=lambda step: (step.time, step.episode))
        count = max(1, sum(n > 0 for n in lengths))
        return steps, count, samples

    # Gradients

    def behavior_log_probs(self, record, steps):
        """Returns the `ActingLogProbs` of steps under the current policy."""
        rows, exact = self.output_rows(record, steps), self.float64_definition()
        log_probs = [
            self.score_step(record, step, row).log_prob for step, row in zip(steps, rows)
        ]
        return ActingLogProbs(
            log_probs, exact and exact.behavior_log_probs(record, steps).log_probs
        )

    def output_rows(self, record, steps):
        if not self.c.recurrent:
            return [
                self.outputs(self.observation_at(record, s.time, s.episode))[0]
                for s in steps
            ]
        lengths = self.episodes(record)
        outputs_by_episode = {
            e: self.outputs(self.sequence(record, e, n))[0]
            for e, n in enumerate(lengths)
            if n
        }
        return [outputs_by_episode[s.episode][s.time] for s in steps]

    def score_step(self, record, step, outputs):
        t, e = step.time, step.episode
        action = keras.tree.map_structure(lambda x: x[t, e], record.actions)
        mask = record.masks[t, e] if self.c.action_mask else None
        return self.score.score(outputs, self.head_weights, action, mask)

    def gradient(self, record, steps, divisor, acting=None):
        """Returns `gradient_of` steps, with its rounding error if that is measured.

        Args:
            acting: `ActingLogProbs` of the steps if an earlier policy acted, or `None`.
        """

        def compute():
            log_probs = acting and acting.log_probs
            return self.gradient_of(record, steps, divisor, log_probs)

        sums, logs = compute()
        if (exact := self.float64_definition()) is not None:
            terms = exact.gradient_of(record, steps, divisor, acting and acting.exact)[0]
            perturbed = [
                result for result, _ in self.perturbed_results(self.policy, compute)
            ]
            sums.measure_rounding(terms, [sums, *perturbed])
        return sums, logs

    def gradient_of(self, record, steps, divisor, acting):
        """Returns ∂L/∂w of policy and head over steps, as `Sums`, and the logs.

        Args:
            acting: Log-probabilities under the policy that acted, or `None` if it is
                the current policy.
        """
        weights = self.network.weights
        sums = Sums([*(w.shape for w in weights), self.head_weights.shape])
        coef = self.entropy_coef() / divisor
        logs = dict.fromkeys(("policy_loss", "entropy", "value_loss"), 0.0)
        log_ratios = []
        for group in self.groups(record, steps):
            inputs = self.group_inputs(record, group)
            outputs, values = self.outputs(inputs)
            output_grads, factor = np.zeros(outputs.shape), 1.0
            value_grads = np.zeros(outputs.shape[:-1])
            for index, step in group:
                row = step.time if self.c.recurrent else ...
                score = self.score_step(record, step, outputs[row])
                log_ratios.append(
                    0.0 if acting is None else score.log_prob - acting[index]
                )
                ratio = math.exp(min(log_ratios[-1], 700.0))
                ratio = clipped(ratio, step.advantage, self.c.ratio_clip)
                weight = ratio * step.advantage / divisor
                output_grads[row] = (
                    -weight * score.log_prob_grads - coef * score.entropy_grads
                )
                head_gradient = (
                    -weight * score.head_log_prob_grads - coef * score.head_entropy_grads
                )
                logs["policy_loss"] -= weight * score.log_prob
                logs["entropy"] += score.entropy / len(steps)
                if values is not None:
                    value_error = float(values[row]) - step.return_
                    logs["value_loss"] += value_error**2 / 2 / divisor
                    value_grads[row] = self.c.loss_weight * value_error / divisor
                cancellation = (
                    step.magnitude / abs(step.advantage) if step.advantage else 1.0
                )
                if acting is not None:  # a ratio is as accurate as both logarithms
                    cancellation *= max(1.0, abs(score.log_prob))
                factor = max(factor, min(cancellation, 1e12))
                sums.add(
                    [*(np.zeros(w.shape) for w in weights), head_gradient], cancellation
                )
            gradients = self.network.backward(inputs, output_grads, value_grads)
            sums.add([*gradients, np.zeros_like(self.head_weights)], factor)
        penalty = 0.0
        for index, weight in enumerate(weights):
            if weight.regularizer is not None:
                values_of_weight = weight.numpy().astype("float64")
                sums.total[index] += 0.125 * values_of_weight
                sums.magnitude[index] += 0.125 * np.abs(values_of_weight)
                penalty += 0.0625 * (values_of_weight**2).sum()
        logs["loss"] = logs["policy_loss"] + penalty
        logs["loss"] -= coef * logs["entropy"] * len(steps)
        logs["loss"] += self.c.loss_weight * logs["value_loss"]
        logs["effective_sample_size"] = sample_size(log_ratios)
        return sums, logs

    def entropy_coef(self):
        coef = self.c.entropy_coef
        if self.c.entropy_schedule:  # Keras computes it in float32
            return float(np.float32(coef / (1 + 0.5 * self.updates)))
        return coef

    def groups(self, record, steps):
        """Groups the steps for one call of the policy: single steps, or one episode."""
        numbered = list(enumerate(steps))
        if not self.c.recurrent:
            return [[pair] for pair in numbered]
        episodes = sorted({step.episode for step in steps})
        return [[pair for pair in numbered if pair[1].episode == e] for e in episodes]

    def group_inputs(self, record, group):
        step = group[0][1]
        if not self.c.recurrent:
            return self.observation_at(record, step.time, step.episode)
        return self.sequence(record, step.episode, int(record.lengths[step.episode]))

    def critic_gradient(self, record, steps, divisor):
        """Returns `critic_gradient_of` steps, with its rounding error if measured."""

        def compute():
            return self.critic_gradient_of(record, steps, divisor)

        sums, loss = compute()
        if (exact := self.float64_definition()) is not None:
            terms = exact.critic_gradient_of(record, steps, divisor)[0]
            perturbed = [
                result for result, _ in self.perturbed_results(self.critic, compute)
            ]
            sums.measure_rounding(terms, [sums, *perturbed])
        return sums, loss

    def critic_gradient_of(self, record, steps, divisor):
        """Returns the gradient of Σ (v - G)² / 2 in units of `scale`, and the loss."""
        weights, scale = self.critic_network.weights, self.c.value_scale
        sums, loss = Sums([w.shape for w in weights]), 0.0
        for step in steps:
            observation = self.observation_at(record, step.time, step.episode)
            value = self.value(observation)
            error = value - step.return_
            loss += error**2 / 2 / divisor
            value_grad = np.array([error / scale / divisor])
            gradients = self.critic_network.backward(
                observation, value_grad, np.zeros(())
            )
            cancellation = (abs(value) + abs(step.return_)) / (abs(error) or 1.0)
            sums.add(gradients, min(max(cancellation, 1), 1e12))
        for index, weight in enumerate(weights):
            if weight.regularizer is not None:
                sums.total[index] += 0.125 * weight.numpy()
                sums.magnitude[index] += 0.125 * np.abs(weight.numpy())
        return sums, loss

    def divisor(self, steps, count):
        return count if self.c.mean_over == "episodes" else max(1, len(steps))

    def gradients(self, record):
        """Returns the correct `agent.gradients`: sums, sums of the critic, logs."""
        steps, count, _ = self.steps(record)
        sums, logs = self.gradient(record, steps, self.divisor(steps, count))
        critic = None
        if self.critic is not None:
            critic, logs["value_loss"] = self.critic_gradient(record, steps, count)
        elif self.c.baseline != "shared":
            logs["value_loss"] = math.nan
        return sums, critic, logs

    # Updates

    def update(self, record, permutations):
        """Makes one update of the policy and the critic of this definition.

        Args:
            permutations: `[permutations, N]` int, the random orders of the steps.

        Returns:
            Two lists, for policy and head, and for the critic: `(distance, magnitude,
            rounding)` of each gradient step.
        """
        steps, count, samples = self.steps(record)
        divisor = self.divisor(steps, count)
        policy_steps, critic_steps = [], []
        if steps:
            has_several_steps = self.c.passes > 1 or self.c.minibatch_size is not None
            acting = self.behavior_log_probs(record, steps) if has_several_steps else None
            step_orders = (
                permutations[: self.c.passes]
                if has_several_steps
                else [range(len(steps))]
            )
            critic_parts = self.critic_minibatches(steps, permutations)
            # The advantages were computed before the first step of the critic.
            for permutation in step_orders:
                for indices in split(permutation, self.c.minibatch_size):
                    part_divisor = divisor * len(indices) / len(steps)
                    minibatch = [steps[i] for i in indices]
                    behavior_log_probs = acting and acting.select(indices)
                    sums, _ = self.gradient(
                        record, minibatch, part_divisor, acting=behavior_log_probs
                    )
                    policy_steps.append(
                        self.optimizer_step("policy", sums, self.c.learning_rate)
                    )
                if acting is not None and self.exceeds_max_kl(record, steps, acting):
                    break
            for indices in critic_parts:
                part_divisor = count * len(indices) / len(steps)
                sums, _ = self.critic_gradient(
                    record, [steps[i] for i in indices], part_divisor
                )
                critic_rate = 0.25 * self.c.learning_rate
                critic_steps.append(self.optimizer_step("critic", sums, critic_rate))
            self.update_averages(steps, samples)
        for e, n in enumerate(record.lengths):
            for t in range(n):
                observation = keras.tree.map_structure(
                    lambda x, t=t, e=e: x[t, e], record.observations
                )
                self.observations.append(keras.tree.flatten(observation))
        self.updates += 1
        return policy_steps, critic_steps

    def exceeds_max_kl(self, record, steps, acting):
        """Returns whether the policy has changed by more than `max_kl`."""
        if self.c.max_kl is None:
            return False
        now = self.behavior_log_probs(record, steps).log_probs
        changes = [x - y for x, y in zip(now, acting.log_probs, strict=True)]
        kl = sum(math.exp(min(x, 700.0)) - 1 - x for x in changes) / len(steps)
        return kl > self.c.max_kl

    def critic_minibatches(self, steps, permutations):
        if self.critic is None:
            return []
        size = self.c.value_minibatch
        permutation = range(len(steps)) if size is None else permutations[0]
        return split(permutation, size) * self.c.value_epochs

    def update_averages(self, steps, samples):
        """Adds the returns and samples of an update to averages and scales."""
        by_time = {}
        for step in steps:
            time = min(step.time, self.c.horizon - 1)
            by_time.setdefault(time, []).append(step.return_)
        mean_return = sum(step.return_ for step in steps) / len(steps)
        self.means.append((mean_return, {t: sum(x) / len(x) for t, x in by_time.items()}))
        self.rewards += samples["rewards"]
        self.advantages += samples["advantages"]

    def optimizer_step(self, which, sums, rate):
        """Makes one step; returns its distance, magnitude and rounding error."""
        gradients, (_, magnitude, rounding) = sums.total, sums.largest()
        if self.c.optimizer == "clipped":
            norm = math.sqrt(sum((x**2).sum() for x in gradients))
            rate *= 0.5 / max(norm, 0.5)
        if self.c.optimizer == "momentum":
            slots = self.momentum_slots.get(which, [np.zeros_like(x) for x in gradients])
            self.momentum_slots[which] = [
                0.5 * v - rate * x for v, x in zip(slots, gradients)
            ]
            steps = self.momentum_slots[which]
        else:
            steps = [-rate * x for x in gradients]
        model = self.policy if which == "policy" else self.critic
        for variable, step in zip(model.trainable_variables, steps):
            variable.assign(variable.numpy() + step.astype(variable.dtype))
        if which == "policy":
            self.head_weights = self.head_weights + steps[-1]
        distance = max(np.abs(x).max(initial=0.0) for x in steps)
        return distance, rate * magnitude, rate * rounding


def perturb_last_bits(array, random):
    """Replaces each number by the next larger or smaller number of its type."""
    if array.dtype.kind in "biu":
        return array
    directions = np.where(random.random(array.shape) < 0.5, -np.inf, np.inf)
    return np.nextafter(array, directions.astype(array.dtype))


def normalize(x, history):
    if x.dtype.kind != "f":
        return x
    history = history.astype("float64")
    factor = 1 / np.sqrt(history.var(axis=0) + 1e-8)
    return np.clip((x - history.mean(axis=0)) * factor, -10, 10).astype(x.dtype)


def discounted_sums(rewards, gamma):
    """Returns Σ γᵏ rₖ from each step on, without bootstrapping."""
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        sums.insert(0, total)
    return sums


def rms(numbers):
    return math.sqrt(sum(x * x for x in numbers) / len(numbers)) if numbers else 0.0


def deviation(numbers):
    return scale_or_one(np.std, numbers)


def scale_or_one(scale_of, numbers):
    """Returns the scale of numbers, or 1 if they are all equal or all zero."""
    if not numbers:
        return 1.0
    scale = float(scale_of(numbers))
    return scale if scale > 1e-8 * abs(np.mean(numbers)) else 1.0


def split(indices, size):
    """Splits indices into parts of about `size`, which differ by one at most."""
    total = len(indices)
    count = max(1, int(total / size + 0.5)) if size else 1
    bounds = [k * total // count for k in range(count + 1)]
    return [list(indices[a:b]) for a, b in zip(bounds, bounds[1:])]


def clipped(ratio, advantage, limits):
    """Returns the factor of an advantage, for a limit or a pair of limits."""
    if not isinstance(limits, tuple):
        return min(ratio, limits)
    low, high = limits
    if advantage > 0:
        return ratio if ratio <= 1 + high else 0.0
    return ratio if ratio >= 1 - low else 0.0


def sample_size(log_ratios):
    """Returns (Σρ)² / (n Σρ²)."""
    ratios = np.exp(np.array(log_ratios) - max(log_ratios, default=0.0))
    return ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum()) if len(ratios) else 0.0
