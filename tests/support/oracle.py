"""The documented gradient and update, computed with loops over episodes and steps.

Models and heads compute one episode at a time. All else is NumPy in float64:
returns, baselines, scales, statistics, ratios and gradient steps. Nothing else of the
package is used.
"""

import math
import types
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Step(NamedTuple):
    episode: int
    time: int
    return_: float
    advantage: float


class Oracle:
    """An agent's gradients and updates by their definition.

    Args:
        rule: `PolicyGradientEstimator`, of which only policy, head, baseline and options
            are used. A test of updates passes that of another agent with equal weights.
        **changes: Other options.

    Attributes:
        loss: The loss of the last gradient.
        sizes: Effective sample size at each gradient step of the last update.
        passes: If `max_kl` is a number, for each pass: the KL divergence from the acting
            policy, the weights after it, and the number of sizes.
    """

    def __init__(self, rule, **changes):
        self.policy, self.head, self.baseline = rule.policy, rule.head, rule.baseline
        self.options = types.SimpleNamespace(**{**vars(rule.options), **changes})
        self.kind = type(rule.baseline).__name__
        self.critic = getattr(rule.baseline, "model", None)
        self.loss, self.sizes, self.passes = 0.0, [], []
        self.observations = []  # of all updates, each as a list of arrays
        self.means = []  # of returns, for each update: over all steps, and by time
        self.samples = {"rewards": [], "advantages": []}

    # One episode

    def rows(self, record, e):
        """Returns the observations of an episode, with the one after its last step."""
        length = record.lengths[e] + 1
        rows = keras.tree.map_structure(lambda x: x[:length, e], record.observations)
        if not self.options.normalize_observations or not self.observations:
            return rows
        parts = zip(keras.tree.flatten(rows), zip(*self.observations))
        return keras.tree.pack_sequence_as(
            rows, [normalized(x, np.stack(history)) for x, history in parts]
        )

    def reads_episodes(self, model):
        return any(isinstance(x, keras.layers.RNN) for x in model.layers)

    def run(self, model, record, e):
        """Returns the results of a model for the rows of an episode."""
        inputs = self.rows(record, e)
        if not self.reads_episodes(model):
            return model(inputs)
        result = model(keras.tree.map_structure(lambda x: x[None], inputs))
        return keras.tree.map_structure(lambda x: x[0], result)

    def results(self, record, e):
        """Returns the outputs and the values for the rows of an episode."""
        result = self.run(self.policy, record, e)
        values = tf.zeros([record.lengths[e] + 1], tf.float64)
        if self.baseline.shares_policy:
            result, values = result["outputs"], result["values"][:, 0]
        elif self.critic is not None:
            values = self.run(self.critic, record, e)[:, 0] * self.baseline.scale
        return result, values

    def values(self, record, e):
        """Returns the values for the rows of an episode, as floats."""
        if self.critic is None and not self.baseline.shares_policy:
            return [0.0] * (record.lengths[e] + 1)
        return self.results(record, e)[1].numpy().tolist()

    def scores(self, record, steps):
        """Returns log-probability, entropy and value of each step."""
        scores = {e: self.scores_of(record, e) for e in {s.episode for s in steps}}
        return [[x[step.time] for x in scores[step.episode]] for step in steps]

    def scores_of(self, record, e):
        """Returns three lists, with one element for each step of an episode."""
        length = record.lengths[e]
        outputs, values = (x[:length] for x in self.results(record, e))
        if record.masks is not None:
            mask = tf.constant(record.masks[:length, e])
            outputs = self.head.mask_outputs(outputs, mask)
        distribution = self.head.distribution(outputs)
        actions = keras.tree.map_structure(
            lambda x: tf.constant(x[:length, e]), record.actions
        )
        scores = distribution.log_prob(actions), distribution.entropy(), values
        return [tf.unstack(x) for x in scores]

    def log_probs(self, record, steps):
        return [float(log_prob) for log_prob, _, _ in self.scores(record, steps)]

    # All steps

    def steps(self, record):
        """Returns the steps by time, the number of episodes, and samples of scales."""
        a = self.options
        dropped = ~record.terminated & (a.on_truncation == "drop")
        lengths = np.where(dropped, 0, record.lengths)
        rewards = [record.rewards[:n, e] for e, n in enumerate(lengths)]
        samples = {"rewards": [x for r in rewards for x in discounted(r, a.gamma)]}
        if a.scale_rewards:
            scale = scale_of(np.std, self.samples["rewards"] or samples["rewards"])
            rewards = [episode / scale for episode in rewards]
        all_values = [self.values(record, e) for e in range(len(rewards))]
        returns = [
            self.returns(episode, values, is_terminated)
            for episode, values, is_terminated in zip(
                rewards, all_values, record.terminated
            )
        ]
        credited = returns
        if a.returns == "whole":
            credited = [x[:1] * len(x) for x in returns]
        steps = []
        for e, episode in enumerate(credited):
            for t, credit in enumerate(episode):
                advantage = credit - self.baseline_at(credited, all_values[e], e, t)
                steps.append(Step(e, t, returns[e][t], advantage))
        samples["advantages"] = advantages = [step.advantage for step in steps]
        factor = 1.0
        if a.scale_advantages == "batch" and steps:
            largest = max(abs(x) for episode in credited for x in episode)
            factor = 1 / (rms(advantages) + 1e-8 + 1e-12 * largest)
        if a.scale_advantages == "running":
            factor = 1 / scale_of(rms, self.samples["advantages"] or advantages)
        for i, step in enumerate(steps):
            if a.discount_states and a.returns == "to_go":
                step = step._replace(advantage=step.advantage * a.gamma**step.time)
            steps[i] = step._replace(advantage=step.advantage * factor)
        steps.sort(key=lambda step: (step.time, step.episode))
        return steps, max(1, sum(lengths > 0)), samples

    def returns(self, rewards, values, terminated):
        """Returns Gₜ of one episode, by recursion from the end."""
        a, returns = self.options, []
        for t in reversed(range(len(rewards))):
            following = 0.0
            if t < len(rewards) - 1:
                following = (1 - a.gae_lambda) * values[t + 1] + a.gae_lambda * returns[0]
            elif not terminated and a.on_truncation == "bootstrap":
                following = values[t + 1]
            returns.insert(0, rewards[t] + a.gamma * following)
        return returns

    def baseline_at(self, returns, values, e, t):
        if self.kind == "LeaveOneOut":
            size = self.baseline.group_size or len(returns)
            others = [
                x[t]
                for j, x in enumerate(returns)
                if j != e and j // size == e // size and t < len(x)
            ]
            return np.mean(others) if others else 0.0
        if self.kind == "Mean":
            return np.mean([x for episode in returns for x in episode])
        if self.kind == "Value":
            return values[t]
        if self.kind == "MovingAverage":
            return average([overall for overall, _ in self.means], self.baseline.decay)
        if self.kind == "TimeStep":
            time = min(t, self.baseline.horizon - 1)
            means = [by_time[time] for _, by_time in self.means if time in by_time]
            return average(means, self.baseline.decay)
        return 0.0

    # Gradients

    def variables(self):
        return [*self.policy.trainable_variables, *self.head.trainable_variables]

    def gradient(self, record, steps, divisor, acting=None):
        """Returns the gradient of the loss, given log-probabilities when acting."""
        a = self.options
        log_ratios = []
        with tf.GradientTape() as tape:
            loss = 0.0
            scores = self.scores(record, steps)
            for i, (step, score) in enumerate(zip(steps, scores)):
                log_prob, entropy, value = score
                log_ratios.append(0.0 if acting is None else float(log_prob) - acting[i])
                ratio = math.exp(log_ratios[-1])
                weight = clipped(ratio, step.advantage, a.ratio_clip) * step.advantage
                loss -= (weight * log_prob + a.entropy_coef * entropy) / divisor
                if self.baseline.shares_policy:
                    error = value - step.return_
                    loss += self.baseline.loss_weight * error**2 / 2 / divisor
            loss += penalty(self.variables())
        self.loss = float(loss)
        if steps:
            # A common factor has no effect; all ratios can be too small for a float.
            ratios = np.exp(np.array(log_ratios) - max(log_ratios))
            self.sizes.append(np.mean(ratios) ** 2 / np.mean(ratios**2))
        return gradients_of(tape, loss, self.variables())

    def critic_gradient(self, record, steps, divisor):
        with tf.GradientTape() as tape:
            loss, episodes = 0.0, {step.episode for step in steps}
            values = {e: tf.unstack(self.run(self.critic, record, e)) for e in episodes}
            for step in steps:
                error = values[step.episode][step.time][0]
                error -= step.return_ / self.baseline.scale
                loss += error**2 / 2 / divisor
            loss += penalty(self.critic.trainable_variables)
        return gradients_of(tape, loss, self.critic.trainable_variables)

    def divisor(self, steps, count):
        return count if self.options.mean_over == "episodes" else max(1, len(steps))

    def gradients(self, record):
        """Returns the gradients of policy and head, and of the value model or `[]`."""
        steps, count, _ = self.steps(record)
        gradient = self.gradient(record, steps, self.divisor(steps, count))
        critic = self.critic and self.critic_gradient(record, steps, count)
        return gradient, critic or []

    def update(self, record, permutations, rate, critic_rate):
        """Makes one update with plain SGD.

        Args:
            permutations: `[passes, N]` int, random orders of the steps.
            rate, critic_rate: Floats, the learning rates.
        """
        a = self.options
        self.sizes, self.passes = [], []
        steps, count, samples = self.steps(record)
        divisor, critic_size = self.divisor(steps, count), None
        if self.critic is not None:
            critic_size = self.baseline.minibatch_size
        acting = None
        if a.passes > 1 or a.minibatch_size is not None:
            acting = self.log_probs(record, steps)
        critic_steps = []
        for _ in range(self.baseline.passes if self.critic is not None else 0):
            order = range(len(steps))
            if critic_size:
                order = self.order(self.critic, permutations[0], steps)
            critic_steps += split(order, critic_size)
        for number in range(a.passes if steps else 0):
            order = range(len(steps))
            if acting:
                order = self.order(self.policy, permutations[number], steps)
            for indices in split(order, a.minibatch_size):
                part = [steps[i] for i in indices]
                share = divisor * len(part) / len(steps)
                own = acting and [acting[i] for i in indices]
                descend(self.variables(), self.gradient(record, part, share, own), rate)
            if acting and a.max_kl is not None:
                now = self.log_probs(record, steps)
                changes = [x - y for x, y in zip(now, acting)]
                change = np.mean([math.exp(x) - 1 - x for x in changes])
                weights = [variable.numpy() for variable in self.variables()]
                self.passes.append((change, weights, len(self.sizes)))
                if change > a.max_kl:
                    break
        for indices in critic_steps if steps else ():
            part = [steps[i] for i in indices]
            share = count * len(part) / len(steps)
            gradient = self.critic_gradient(record, part, share)
            descend(self.critic.trainable_variables, gradient, critic_rate)
        self.remember(record, steps, samples)

    def order(self, model, permutation, steps):
        """Returns the order in which minibatches of a model take their steps.

        That of a recurrent model goes around a circle of episodes, ordered by the places
        of their first steps in the permutation, and starts at its first step.
        """
        if not self.reads_episodes(model) or not steps:
            return permutation
        episodes = [steps[i].episode for i in permutation if steps[i].time == 0]
        circle = [i for e in episodes for i, x in enumerate(steps) if x.episode == e]
        start = circle.index(permutation[0])
        return circle[start:] + circle[:start]

    def remember(self, record, steps, samples):
        """Adds an update to averages, scales and statistics of observations."""
        by_time, horizon = {}, getattr(self.baseline, "horizon", 1)
        for step in steps:
            by_time.setdefault(min(step.time, horizon - 1), []).append(step.return_)
        if steps:
            overall = np.mean([step.return_ for step in steps])
            self.means.append((overall, {t: np.mean(x) for t, x in by_time.items()}))
            for name, values in samples.items():
                self.samples[name] += values
        for e, length in enumerate(record.lengths):
            for t in range(length):
                row = keras.tree.map_structure(
                    lambda x: x[t, e],  # noqa: B023
                    record.observations,
                )
                self.observations.append(keras.tree.flatten(row))


def penalty(variables):
    return sum(w.regularizer(w) for w in variables if w.regularizer is not None)


def gradients_of(tape, loss, variables):
    values = [variable.value for variable in variables]
    return tape.gradient(loss, values, unconnected_gradients="zero")


def descend(variables, gradients, rate):
    for variable, gradient in zip(variables, gradients, strict=True):
        variable.assign(variable - rate * tf.cast(gradient, variable.dtype))


def normalized(x, history):
    deviation = np.sqrt(history.var(axis=0) + 1e-8)
    return np.clip((x - history.mean(axis=0)) / deviation, -10, 10)


def average(means, decay):
    """Averages means, weighted less the older they are."""
    weights = [decay**k for k in reversed(range(len(means)))]
    return np.dot(weights, means) / sum(weights) if means else 0.0


def discounted(rewards, gamma):
    total, sums = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        sums.insert(0, total)
    return sums


def rms(numbers):
    return math.sqrt(sum(x * x for x in numbers) / len(numbers))


def scale_of(function, numbers):
    """Returns a scale, or 1 if all numbers are equal or zero."""
    scale = float(function(numbers)) if len(numbers) else 0.0
    return scale if scale > 1e-8 * abs(np.mean(numbers or [1.0])) else 1.0


def split(indices, size):
    """Splits indices into parts of about `size`, which differ by at most one."""
    total = len(indices)
    count = max(1, int(total / size + 0.5)) if size else 1
    bounds = [k * total // count for k in range(count + 1)]
    return [list(indices[a:b]) for a, b in zip(bounds, bounds[1:])]


def clipped(ratio, advantage, limits):
    """Returns the factor of an advantage, for a limit or a pair of limits."""
    if not isinstance(limits, tuple):
        return min(ratio, limits)
    low, high = limits
    inside = ratio <= 1 + high if advantage > 0 else ratio >= 1 - low
    return ratio if inside else 0.0
