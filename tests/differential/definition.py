"""The estimator as its documents say it: loops over episodes and steps, in float64.

Nothing here uses the package. Keras computes the outputs of a policy and of a critic for
one observation (or one episode, where the policy is recurrent) and carries a derivative
back to the weights; returns, baselines, weights of steps, padding, statistics and
gradient steps are loops in NumPy.
"""

import dataclasses
import math
from typing import NamedTuple

import keras
import numpy as np
import parts
import tensorflow as tf


class Step(NamedTuple):
    """What one step counts for."""

    episode: int
    time: int
    target: float  # the return
    advantage: float
    size: float  # of the numbers that the advantage is a difference of


class Acted(NamedTuple):
    """Log-probabilities of steps when they happened; and as float64 knows them."""

    log_probs: list
    exact: list | None

    def of(self, places):
        """The same of the steps in some places."""
        some = [None if x is None else [x[i] for i in places] for x in self]
        return Acted(*some)


class Sums:
    """A sum of gradients; and of their sizes, which says how well it can be known."""

    def __init__(self, shapes):
        self.total = [np.zeros(shape) for shape in shapes]
        self.size = [np.zeros(shape) for shape in shapes]
        self.rounding = [np.zeros(shape) for shape in shapes]
        self.terms = []

    def add(self, gradients, size=1.0):
        """`size` is by how much more the terms were before they cancelled."""
        self.terms.append(gradients)
        for total, sizes, gradient in zip(self.total, self.size, gradients, strict=True):
            total += gradient
            sizes += size * np.abs(gradient)

    def compare(self, exact, rounded):
        """Takes the rounding of each term from what it is exactly and from `rounded`.

        Args:
            exact: The same sum as `Sums`, in float64.
            rounded: List of the same sum as `Sums`, each rounded in another way.
        """
        for place, terms in enumerate(exact.terms):
            for part, term in enumerate(terms):
                apart = [np.abs(one.terms[place][part] - term) for one in rounded]
                self.rounding[part] += np.max(apart, axis=0)

    def largest(self):
        """The largest number in the sum, the largest that went into it, and rounding."""
        sums = [np.abs(x) for x in self.total], self.size, self.rounding
        return [max(np.max(x, initial=0.0) for x in part) for part in sums]


class Network:
    """A Keras model for one observation or one episode at a time, and its derivative.

    Traced: in eager mode Keras takes a hundred times as long for one observation.
    """

    def __init__(self, model, c, recurrent):
        self.model = model
        self.weights = model.trainable_variables
        self.recurrent = recurrent
        real = parts.real_type(c)
        time = (None,) if recurrent else ()

        def spec(leaf, _):
            dtype = real if leaf[1] == "float32" else leaf[1]
            return tf.TensorSpec((1, *time, *leaf[0]), dtype)

        self.seen = parts.mapped(spec, parts.seen_by(c))
        slopes = tf.TensorSpec((1, *time, None), "float64")
        signature = [self.seen, slopes, slopes]
        self.both = tf.function(self._both, signature, autograph=False)

    def _both(self, observation, slopes, value_slopes):
        with tf.GradientTape() as tape:
            found = self.model(observation, training=False)
            ends = [found]
            if isinstance(found, dict):
                ends = [found["outputs"], found["values"]]
        slopes = [tf.cast(x, y.dtype) for x, y in zip([slopes, value_slopes], ends)]
        gradients = tape.gradient(
            ends,
            [weight.value for weight in self.weights],
            [tf.reshape(x, tf.shape(y)) for x, y in zip(slopes, ends)],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        gradients = [tf.cast(tf.convert_to_tensor(x), tf.float64) for x in gradients]
        return [tf.cast(x, tf.float64) for x in ends], gradients

    def forward(self, observation, size):
        """Outputs, and values or `None`: `[..., size]` and `[...]`."""
        rows = len(keras.tree.flatten(observation)[0]) if self.recurrent else 0
        shape = (1, rows) if self.recurrent else (1,)
        given = np.zeros((*shape, size)), np.zeros((*shape, 1))
        outputs, *values = self._run(observation, *given)[0]
        return outputs.numpy()[0], values[0].numpy()[0, ..., 0] if values else None

    def back(self, observation, slopes, value_slopes):
        """∂/∂w of Σ slopes × outputs + Σ value_slopes × values."""
        given = slopes[None], value_slopes[None, ..., None]
        return [x.numpy() for x in self._run(observation, *given)[1]]

    def _run(self, observation, *slopes):
        one = keras.tree.map_structure(
            lambda x, spec: tf.constant(x[None].astype(spec.dtype.as_numpy_dtype)),
            observation,
            self.seen,
        )
        return self.both(one, *map(tf.constant, slopes))


def network_of(c, make, recurrent):
    """A network like that of the combination, traced once for all that are alike.

    Its weights are those of who used it last: they have to be set.
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
ROUNDINGS = 8  # evaluations that show how well a gradient is known


class Definition:
    """What an agent should do, beside a policy and a critic of its own.

    Args:
        measured: Whether to compute every gradient also by networks in float64, and
            again with weights and observations that differ in their last bits, which
            shows how well the type of the combination knows it.
    """

    def __init__(self, c, policy, critic, own, measured=False):
        self.c = c
        self.exact, self.random = None, None
        if measured:
            twin = dataclasses.replace(c, dtype="float64")
            self.exact = Definition(twin, policy, critic, own)
        self.network = network_of(c, parts.policy_of, c.recurrent)
        self.policy, self.critic, self.valuing = self.network.model, None, None
        if c.baseline == "value":
            self.valuing = network_of(c, parts.critic_of, False)
            self.critic = self.valuing.model
        self.score = parts.score_of(c.head)
        self.take(policy, critic, own)
        self.rewards, self.advantages, self.observations = [], [], []
        self.means = []  # of returns, for each update: of all steps, and by time
        self.slots = {}
        self.updates = 0

    def take(self, policy, critic, own):
        """The weights of an agent: policy's, critic's, and its head's as one array."""
        self.policy.set_weights(policy)
        self.own = np.array(own)
        if self.critic is not None:
            self.critic.set_weights(critic)

    def exactly(self):
        """The same definition in float64, where this one is; `None` if not measured."""
        if self.exact is not None:
            models = self.policy, self.critic
            weights = [m and [np.asarray(w, "float64") for w in m.get_weights()]
                       for m in models]  # fmt: skip
            self.exact.take(*weights, self.own)
            self.exact.observations, self.exact.updates = self.observations, self.updates
        return self.exact

    def rounded(self, model, compute):
        """What `compute` returns after changes of the last bit of weights and inputs.

        TensorFlow's own functions (tanh) differ in their last bits between a graph,
        which fuses some of them, and eager mode: it is asked in both.
        """
        weights, self.random = model.get_weights(), np.random.default_rng(0)
        for number in range(ROUNDINGS):
            model.set_weights([neighbour(w, self.random) for w in weights])
            tf.config.run_functions_eagerly(number % 2 == 0)
            yield compute()
        tf.config.run_functions_eagerly(False)
        model.set_weights(weights)
        self.random = None

    # What happened

    def episodes(self, record):
        """Lengths of the episodes that are learned from; zero for the others."""
        dropped = self.c.on_truncation == "drop"
        return [
            0 if dropped and not ended else int(n)
            for n, ended in zip(record.lengths, record.terminated)
        ]

    def normalized(self, observation):
        """One observation as the policy sees it."""
        if not self.c.normalize_observations or not self.observations:
            return observation
        flat = keras.tree.flatten(observation)
        seen = zip(*self.observations, strict=True)  # by array, all steps
        return keras.tree.pack_sequence_as(
            observation, [clipped(x, np.stack(past)) for x, past in zip(flat, seen)]
        )

    def at(self, record, t, e):
        """One observation, normalised; or its neighbour, while rounding is measured."""
        seen = keras.tree.map_structure(lambda x: x[t, e], record.observations)
        seen = self.normalized(seen)
        if self.random is None:
            return seen
        return keras.tree.map_structure(lambda x: neighbour(x, self.random), seen)

    def sequence(self, record, e, steps):
        rows = [self.at(record, t, e) for t in range(steps)]
        return keras.tree.map_structure(lambda *x: np.stack(x), *rows)

    def values(self, record, lengths):
        """v(s), by episode, for all observations up to the one after the last action."""
        found = []
        for e, length in enumerate(lengths):
            if self.c.baseline not in ("value", "shared"):
                found.append([0.0] * (length + 1))
            elif self.critic is None and self.c.recurrent:
                whole = self.sequence(record, e, length + 1)
                found.append(self.outputs(whole)[1].tolist())
            elif self.critic is None:
                rows = (self.at(record, t, e) for t in range(length + 1))
                found.append([float(self.outputs(row)[1]) for row in rows])
            else:
                rows = (self.at(record, t, e) for t in range(length + 1))
                found.append([self.value(row) for row in rows])
        return found

    def outputs(self, observation):
        return self.network.forward(observation, self.score.outputs_size)

    def value(self, observation):
        return self.c.value_scale * float(self.valuing.forward(observation, 1)[0][0])

    # Returns and advantages

    def returns(self, rewards, values, terminated):
        """Gₜ of one episode, by its recursion from the end."""
        c, found = self.c, []
        for t in reversed(range(len(rewards))):
            following = 0.0
            if t < len(rewards) - 1:
                mixed = (1 - c.gae_lambda) * values[t + 1]
                following = mixed + c.gae_lambda * found[0]
            elif not terminated and c.on_truncation == "bootstrap":
                following = values[t + 1]
            found.insert(0, rewards[t] + c.gamma * following)
        return found

    def baselines(self, credited, values):
        """b, by episode and step."""
        c, every = self.c, [x for given in credited for x in given]
        found = [[0.0] * len(given) for given in credited]
        for e, given in enumerate(credited):
            group = range(len(credited))
            if c.baseline == "groups":
                group = [j for j in group if j // 2 == e // 2]
            for t in range(len(given)):
                others = [credited[j][t] for j in group
                          if j != e and t < len(credited[j])]  # fmt: skip
                if c.baseline in ("leave_one_out", "groups") and others:
                    found[e][t] = sum(others) / len(others)
                elif c.baseline == "mean":
                    found[e][t] = sum(every) / len(every)
                elif c.baseline in ("value", "shared"):
                    found[e][t] = values[e][t]
                elif c.baseline == "moving_average":
                    found[e][t] = self.average([whole for whole, _ in self.means])
                elif c.baseline == "time_step":
                    place = min(t, c.horizon - 1)
                    earlier = [by_time.get(place) for _, by_time in self.means]
                    found[e][t] = self.average([x for x in earlier if x is not None])
        return found

    def average(self, means):
        """The last ones count most."""
        weights = [self.c.decay**k for k in range(len(means))][::-1]
        together = sum(w * m for w, m in zip(weights, means))
        return together / sum(weights) if means else 0.0

    def steps(self, record):
        """What is learned from, rows first; the divisor; and samples of the scales."""
        c, lengths = self.c, self.episodes(record)
        rewards = [record.rewards[:n, e].tolist() for e, n in enumerate(lengths)]
        samples = {
            "rewards": [x for given in rewards for x in discounted(given, c.gamma)]
        }
        if c.scale_rewards:
            size = deviation(self.rewards or samples["rewards"])
            rewards = [[x / size for x in given] for given in rewards]
        values = self.values(record, lengths)
        targets = [
            self.returns(given, v, ended)
            for given, v, ended in zip(rewards, values, record.terminated)
        ]
        whole = c.returns == "whole"
        credited = [x[:1] * len(x) if whole else x for x in targets]
        baselines = self.baselines(credited, values)
        found = [
            Step(e, t, targets[e][t], x - b, abs(x) + abs(b))
            for e, given in enumerate(credited)
            for t, (x, b) in enumerate(zip(given, baselines[e]))
        ]
        samples["advantages"] = [step.advantage for step in found]
        factor = 1.0
        if c.scale_advantages == "batch" and found:
            largest = max(abs(x) for given in credited for x in given)
            # Equal returns differ in their last bits only: noise that must stay small.
            factor = 1 / (rms(samples["advantages"]) + 1e-8 + 1e-12 * largest)
        if c.scale_advantages == "running":
            factor = 1 / unless_noise(rms, self.advantages or samples["advantages"])
        for i, step in enumerate(found):
            power = c.gamma**step.time if c.discount_states and not whole else 1.0
            found[i] = step._replace(
                advantage=step.advantage * factor * power, size=step.size * factor * power
            )
        found.sort(key=lambda step: (step.time, step.episode))
        count = max(1, sum(n > 0 for n in lengths))
        return found, count, samples

    # Gradients

    def acted(self, record, steps):
        """`Acted` of some steps under the policy as it is."""
        rows, exact = self.rows(record, steps), self.exactly()
        log_probs = [
            self.one_score(record, step, row).log_prob for step, row in zip(steps, rows)
        ]
        return Acted(log_probs, exact and exact.acted(record, steps).log_probs)

    def rows(self, record, steps):
        if not self.c.recurrent:
            return [self.outputs(self.at(record, s.time, s.episode))[0] for s in steps]
        lengths = self.episodes(record)
        found = {
            e: self.outputs(self.sequence(record, e, n))[0]
            for e, n in enumerate(lengths)
            if n
        }
        return [found[s.episode][s.time] for s in steps]

    def one_score(self, record, step, outputs):
        t, e = step.time, step.episode
        action = keras.tree.map_structure(lambda x: x[t, e], record.actions)
        mask = record.masks[t, e] if self.c.action_mask else None
        return self.score.score(outputs, self.own, action, mask)

    def gradient(self, record, steps, divisor, acted=None):
        """`gradient_of` some steps, with its rounding if that is measured.

        Args:
            acted: `Acted` of the steps, if another policy acted than the one that is.
        """

        def compute():
            before = acted and acted.log_probs
            return self.gradient_of(record, steps, divisor, before)

        sums, logs = compute()
        if (exact := self.exactly()) is not None:
            terms = exact.gradient_of(record, steps, divisor, acted and acted.exact)[0]
            others = [other for other, _ in self.rounded(self.policy, compute)]
            sums.compare(terms, [sums, *others])
        return sums, logs

    def gradient_of(self, record, steps, divisor, acted):
        """∂L/∂w of weights and of the head's own, over some steps; and what is known.

        Args:
            acted: Log-probabilities under the policy that acted, if it was another.
        """
        weights = self.network.weights
        sums = Sums([*(w.shape for w in weights), self.own.shape])
        coef = self.entropy_coef() / divisor
        logs = dict.fromkeys(("policy_loss", "entropy", "value_loss"), 0.0)
        log_ratios = []
        for some in self.pieces(record, steps):
            observation = self.piece(record, some)
            outputs, values = self.outputs(observation)
            slopes, size = np.zeros(outputs.shape), 1.0
            value_slopes = np.zeros(outputs.shape[:-1])
            for place, step in some:
                at = step.time if self.c.recurrent else ...
                score = self.one_score(record, step, outputs[at])
                log_ratios.append(0.0 if acted is None else score.log_prob - acted[place])
                ratio = min(math.exp(min(log_ratios[-1], 700.0)), self.c.ratio_clip)
                weight = ratio * step.advantage / divisor
                slopes[at] = -weight * score.slopes - coef * score.bends
                own = -weight * score.own_slopes - coef * score.own_bends
                logs["policy_loss"] -= weight * score.log_prob
                logs["entropy"] += score.entropy / len(steps)
                if values is not None:
                    error = float(values[at]) - step.target
                    logs["value_loss"] += error**2 / 2 / divisor
                    value_slopes[at] = self.c.loss_weight * error / divisor
                more = step.size / abs(step.advantage) if step.advantage else 1.0
                if acted is not None:  # a ratio is known as well as both logarithms
                    more *= max(1.0, abs(score.log_prob))
                size = max(size, min(more, 1e12))
                sums.add([*(np.zeros(w.shape) for w in weights), own], more)
            carried = self.network.back(observation, slopes, value_slopes)
            sums.add([*carried, np.zeros_like(self.own)], size)
        penalty = 0.0
        for place, weight in enumerate(weights):
            if weight.regularizer is not None:
                numbers = weight.numpy().astype("float64")
                sums.total[place] += 0.125 * numbers
                sums.size[place] += 0.125 * np.abs(numbers)
                penalty += 0.0625 * (numbers**2).sum()
        logs["loss"] = logs["policy_loss"] + penalty
        logs["loss"] -= coef * logs["entropy"] * len(steps)
        logs["loss"] += self.c.loss_weight * logs["value_loss"]
        logs["effective_sample_size"] = sample_size(log_ratios)
        return sums, logs

    def entropy_coef(self):
        given = self.c.entropy_coef
        if self.c.entropy_schedule:  # of Keras, in float32
            return float(np.float32(given / (1 + 0.5 * self.updates)))
        return given

    def pieces(self, record, steps):
        """Steps that go through the policy together: one, or those of an episode."""
        numbered = list(enumerate(steps))
        if not self.c.recurrent:
            return [[one] for one in numbered]
        episodes = sorted({step.episode for step in steps})
        return [[one for one in numbered if one[1].episode == e] for e in episodes]

    def piece(self, record, some):
        step = some[0][1]
        if not self.c.recurrent:
            return self.at(record, step.time, step.episode)
        return self.sequence(record, step.episode, int(record.lengths[step.episode]))

    def critic_gradient(self, record, steps, divisor):
        """`critic_gradient_of` some steps, with its rounding if that is measured."""

        def compute():
            return self.critic_gradient_of(record, steps, divisor)

        sums, loss = compute()
        if (exact := self.exactly()) is not None:
            terms = exact.critic_gradient_of(record, steps, divisor)[0]
            others = [other for other, _ in self.rounded(self.critic, compute)]
            sums.compare(terms, [sums, *others])
        return sums, loss

    def critic_gradient_of(self, record, steps, divisor):
        """Of Σ (v - G)² / 2, in units of its scale, by the critic's weights."""
        weights, scale = self.valuing.weights, self.c.value_scale
        sums, loss = Sums([w.shape for w in weights]), 0.0
        for step in steps:
            seen = self.at(record, step.time, step.episode)
            value = self.value(seen)
            error = value - step.target
            loss += error**2 / 2 / divisor
            slope = np.array([error / scale / divisor])
            found = self.valuing.back(seen, slope, np.zeros(()))
            more = (abs(value) + abs(step.target)) / (abs(error) or 1.0)
            sums.add(found, min(max(more, 1), 1e12))
        for place, weight in enumerate(weights):
            if weight.regularizer is not None:
                sums.total[place] += 0.125 * weight.numpy()
                sums.size[place] += 0.125 * np.abs(weight.numpy())
        return sums, loss

    def divisor(self, steps, count):
        return count if self.c.mean_over == "episodes" else max(1, len(steps))

    def gradients(self, record):
        """What `agent.gradients` should say: sums, sums of the critic, logs."""
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
        """One update, made with this definition's own policy and critic.

        Args:
            permutations: `[permutations, N]` int, the random orders of the steps.

        Returns:
            How far weights moved, how large the numbers were on the way, and how they
            were rounded, `(moved, size, rounding)` of each step, of policy and head, and
            of the critic.
        """
        steps, count, samples = self.steps(record)
        divisor = self.divisor(steps, count)
        moved, critic_moved = [], []
        if steps:
            several = self.c.passes > 1 or self.c.minibatch_size is not None
            acted = self.acted(record, steps) if several else None
            batches = permutations[: self.c.passes] if several else [range(len(steps))]
            lessons = self.lessons(steps, permutations)
            # The critic's first step was taken from the values that were subtracted.
            for order in batches:
                for part in cut(order, self.c.minibatch_size):
                    share = divisor * len(part) / len(steps)
                    some = [steps[i] for i in part]
                    before = acted and acted.of(part)
                    sums, _ = self.gradient(record, some, share, acted=before)
                    moved.append(self.descend("policy", sums, self.c.learning_rate))
            for part in lessons:
                share = count * len(part) / len(steps)
                sums, _ = self.critic_gradient(record, [steps[i] for i in part], share)
                rate = 0.25 * self.c.learning_rate
                critic_moved.append(self.descend("critic", sums, rate))
            self.learn(steps, samples)
        for e, n in enumerate(record.lengths):
            for t in range(n):
                whole = keras.tree.map_structure(
                    lambda x, t=t, e=e: x[t, e], record.observations
                )
                self.observations.append(keras.tree.flatten(whole))
        self.updates += 1
        return moved, critic_moved

    def lessons(self, steps, permutations):
        if self.critic is None:
            return []
        size = self.c.value_minibatch
        order = range(len(steps)) if size is None else permutations[0]
        return cut(order, size) * self.c.value_epochs

    def learn(self, steps, samples):
        """What averages and scales take in."""
        by_time = {}
        for step in steps:
            place = min(step.time, self.c.horizon - 1)
            by_time.setdefault(place, []).append(step.target)
        whole = sum(step.target for step in steps) / len(steps)
        self.means.append((whole, {t: sum(x) / len(x) for t, x in by_time.items()}))
        self.rewards += samples["rewards"]
        self.advantages += samples["advantages"]

    def descend(self, which, sums, rate):
        """One step of the optimizer: how far it went, how far at most, its rounding."""
        gradients, (_, size, rounding) = sums.total, sums.largest()
        if self.c.optimizer == "clipped":
            norm = math.sqrt(sum((x**2).sum() for x in gradients))
            rate *= 0.5 / max(norm, 0.5)
        if self.c.optimizer == "momentum":
            slots = self.slots.get(which, [np.zeros_like(x) for x in gradients])
            self.slots[which] = [0.5 * v - rate * x for v, x in zip(slots, gradients)]
            steps = self.slots[which]
        else:
            steps = [-rate * x for x in gradients]
        model = self.policy if which == "policy" else self.critic
        for variable, step in zip(model.trainable_variables, steps):
            variable.assign(variable.numpy() + step.astype(variable.dtype))
        if which == "policy":
            self.own = self.own + steps[-1]
        far = max(np.abs(x).max(initial=0.0) for x in steps)
        return far, rate * size, rate * rounding


def neighbour(array, random):
    """The next larger or smaller number of its type, for each number of an array."""
    if array.dtype.kind in "biu":
        return array
    ends = np.where(random.random(array.shape) < 0.5, -np.inf, np.inf)
    return np.nextafter(array, ends.astype(array.dtype))


def clipped(x, past):
    if x.dtype.kind != "f":
        return x
    past = past.astype("float64")
    factor = 1 / np.sqrt(past.var(axis=0) + 1e-8)
    return np.clip((x - past.mean(axis=0)) * factor, -10, 10).astype(x.dtype)


def discounted(rewards, gamma):
    """Σ γᵏ rₖ from each step on, without what a value would add."""
    total, found = 0.0, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        found.insert(0, total)
    return found


def rms(numbers):
    return math.sqrt(sum(x * x for x in numbers) / len(numbers)) if numbers else 0.0


def deviation(numbers):
    return unless_noise(np.std, numbers)


def unless_noise(size_of, numbers):
    """The size of numbers; 1 where they are all alike, or all zero."""
    if not numbers:
        return 1.0
    size = float(size_of(numbers))
    return size if size > 1e-8 * abs(np.mean(numbers)) else 1.0


def cut(order, size):
    """Parts of about so many steps, whose sizes differ by one at the most."""
    total = len(order)
    count = max(1, int(total / size + 0.5)) if size else 1
    cuts = [k * total // count for k in range(count + 1)]
    return [list(order[a:b]) for a, b in zip(cuts, cuts[1:])]


def sample_size(log_ratios):
    """(Σρ)² / (n Σρ²)."""
    ratios = np.exp(np.array(log_ratios) - max(log_ratios, default=0.0))
    return ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum()) if len(ratios) else 0.0
