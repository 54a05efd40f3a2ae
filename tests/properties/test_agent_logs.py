"""Recomputes every log of an agent with NumPy in float64, from the episodes played.

The environment stores each episode that ends, and advances a clock. A callback records
the weights before each update and each validation. Episodes, updates and minibatches have
unequal sizes, so a mean over the wrong things is another number.
"""

import collections
import functools
import math
import time
import types
from typing import NamedTuple

import definitions
import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import update_agents

import tf_reinforce as tfr
from tf_reinforce import heads

SEED, OBSERVED, START = 5, 2, 3
LENGTHS, TERMINATED = [3, 1, 5, 2, 6, 2, 4], [True, False, True, True, False]
schedule = keras.optimizers.schedules.PiecewiseConstantDecay


class Episode(NamedTuple):
    observations: np.ndarray  # [n + 1, 2]
    actions: np.ndarray  # [n, …], from zero
    rewards: np.ndarray  # [n]
    terminated: bool
    success: bool | None  # `None` if the end of the episode reports nothing
    stage: str = "training"


class Story:
    """What has happened: the episodes that ended, faults, and the time."""

    def __init__(self):
        self.episodes, self.faults = [], collections.Counter()
        self.seconds, self.resets, self.epoch = collections.Counter(), 0, 0

    def pass_seconds(self, where, seconds):
        self.seconds[where] += seconds

    def now(self):
        return sum(self.seconds.values())


class World(gym.Env):
    """Episodes of a fixed sequence of lengths and ends, with normal observations.

    Success is reported in odd epochs only, by the last step of two of three episodes.
    Earlier steps report it always, which does not count. Each fifth episode is faulty if
    the world `has_faults`. With `truncates`, no episode of epoch 2 terminates.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVED,), np.float64)

    def __init__(
        self, story, action_space, has_faults=False, truncates=False, stage="training"
    ):
        self.story, self.action_space, self.stage = story, action_space, stage
        self.has_faults, self.truncates = has_faults, truncates

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.story.pass_seconds("environment", 0.25)
        number = self.story.resets = self.story.resets + 1
        self.length = LENGTHS[number % len(LENGTHS)]
        self.fault = self.has_faults and number % 5 == 4 and number % 3
        self.actions, self.rewards = [], []
        self.observations = [self.np_random.normal(size=OBSERVED)]
        return self.observations[0], {}

    def step(self, action):
        story = self.story
        story.pass_seconds("environment", 1.0)
        is_end = len(self.rewards) + 1 == self.length
        first, second = self.observations[-1]
        reward = 10.0 + 2 * first - second**2 + 0.7 * np.sum(action)
        self.observations.append(self.np_random.normal(size=OBSERVED))
        if is_end and self.fault:
            story.faults["dropped_episodes"] += 1
            story.faults["env_restarts"] += self.fault == 1
            if self.fault == 1:
                raise RuntimeError("The world ends.")
            reward = np.nan
        discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self.actions.append(action - START if discrete else action)
        self.rewards.append(reward)
        number, success = len(story.episodes), None if is_end else True
        terminated = is_end and TERMINATED[number % len(TERMINATED)]
        if is_end and story.epoch % 2:
            success = [True, None, False][number % 3]
        if self.truncates and story.epoch == 2:
            terminated = False
        if is_end and not self.fault:
            arrays = map(np.array, (self.observations, self.actions, self.rewards))
            story.episodes.append(Episode(*arrays, terminated, success, self.stage))
        info = {} if success is None else {"is_success": success}
        return self.observations[-1], reward, terminated, is_end, info


class TensorWorld(tfr.envs.TensorEnv):
    """Episodes of one to five steps, in a TensorFlow program."""

    observation_space, action_space = World.observation_space, gym.spaces.Discrete(3)
    max_episode_steps = 5
    initial_noise = transition_noise = tfr.envs.NoiseSpec("normal", (OBSERVED,))

    def initial(self, noise):
        return noise

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        return noise + state / 2

    def reward(self, state, action, next_state):
        return 10 + 2 * state[:, 0] + 0.7 * tf.cast(action, self.dtype)

    def terminal(self, state):
        return state[:, 1] > 1


class SlowSGD(keras.optimizers.SGD):
    """Takes three seconds for each gradient step."""

    def __init__(self, story, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pass_seconds = functools.partial(story.pass_seconds, "update", 3.0)

    def apply(self, gradients, variables=None):
        tf.numpy_function(self.pass_seconds, [], [])
        return super().apply(gradients, variables)


def weights_of(model):
    return [] if model is None else [x.numpy() for x in model.trainable_variables]


class Record(tfr.callbacks.EpisodeCallback):
    """Records each epoch: weights, episodes, faults, seconds and logs."""

    def __init__(self, story):
        super().__init__()
        self.story, self.epochs, self.ended = story, [], []

    def start(self, stage):
        weights = [x.numpy() for x in self.model.policy_variables]
        values = weights_of(getattr(self.model.baseline, "model", None))
        self.stage = self.epoch[stage] = dict(weights=weights, values=values)
        self.before = len(self.story.episodes), self.story.faults.copy()
        self.seconds_before = self.story.seconds.copy()

    def end(self):
        episodes, faults = self.before
        self.stage["episodes"] = self.story.episodes[episodes:]
        self.stage["faults"] = self.story.faults - faults
        self.stage["seconds"] = self.story.seconds - self.seconds_before

    def on_epoch_begin(self, epoch, logs=None):
        self.story.epoch, self.epoch = epoch, {}
        self.epochs.append(self.epoch)

    def on_train_batch_begin(self, batch, logs=None):
        self.start("training")

    def on_episodes_collected(self, episodes, logs):
        self.epoch["collected"] = dict(logs)
        self.story.pass_seconds("callbacks", 100.0)

    def on_episode_end(self, episode, logs):
        self.ended.append((episode, dict(logs)))

    def on_train_batch_end(self, batch, logs=None):
        self.end()

    def on_test_begin(self, logs=None):
        self.start("validation")

    def on_test_end(self, logs=None):
        self.end()

    def on_epoch_end(self, epoch, logs=None):
        self.epoch["logs"] = dict(logs)


def log_probs(weights, observations, actions):
    """The log-probabilities of actions, and the entropies, `[n]` each."""
    outputs = observations @ weights[0] + weights[1]
    if actions.ndim == 1:
        all_log_probs = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
        entropies = -(np.exp(all_log_probs) * all_log_probs).sum(axis=1)
        return all_log_probs[np.arange(len(actions)), actions], entropies
    log_scale = weights[2]
    noise = (actions - outputs) / np.exp(log_scale)
    constant = log_scale + np.log(2 * np.pi) / 2
    entropies = np.sum(constant + 0.5) * np.ones(len(actions))
    return -(noise**2 / 2 + constant).sum(axis=1), entropies


def slopes(function, weights):
    """The derivatives of a function, to the last digits, by complex steps."""
    results = [np.zeros_like(weight) for weight in weights]
    for index, weight in enumerate(weights):
        for place in np.ndindex(weight.shape):
            changed = [x.astype(complex) for x in weights]
            changed[index][place] += 1e-40j
            results[index][place] = function(changed).imag / 1e-40
    return results


def size_of_sample(ratios):
    return ratios.sum() ** 2 / len(ratios) / (ratios**2).sum()


class Definition:
    """The updates of an agent, from the definitions in docs/estimators.md.

    Args:
        agent: `Reinforce`, of which only options are read.
        rate: Function from a number of gradient steps to the learning rate.
        clip: Float, the norm to which the optimizer clips gradients.
        penalty: Float, the weight of the squared kernel of the policy in the loss.
    """

    def __init__(self, agent, rate=lambda step: 0.125, clip=np.inf, penalty=0.0):
        self.agent, self.rate, self.clip, self.penalty = agent, rate, clip, penalty
        self.updates = self.iterations = self.env_steps = 0
        self.observations, self.mean_returns = [], []
        self.samples = {"rewards": [], "advantages": []}

    def normalized(self, observations):
        if not (self.agent.normalize_observations and self.observations):
            return observations
        earlier = np.concatenate(self.observations)
        deviations = np.sqrt(earlier.var(axis=0) + 1e-8)
        return np.clip((observations - earlier.mean(axis=0)) / deviations, -10, 10)

    def values(self, weights, value_weights, observations):
        baseline = self.agent.baseline
        if not isinstance(baseline, tfr.baselines.Value):
            return np.zeros(len(observations))
        kernel, bias = value_weights or weights[2:]
        return baseline.scale * (observations @ kernel + bias)[:, 0]

    def scale(self, name, own):
        """The size of earlier samples, or of the samples of the first batch."""
        samples = np.concatenate(self.samples[name] or [own])
        is_centered = name == "rewards"
        return np.sqrt(np.mean((samples - is_centered * samples.mean()) ** 2))

    def targets(self, rewards, values, ended):
        """The λ-returns of the steps of an episode."""
        agent, following, results = self.agent, 0.0 if ended else values[-1], []
        for reward, value in zip(rewards[::-1], values[:-1][::-1], strict=True):
            results.insert(0, reward + agent.gamma * following)
            following = agent.gae_lambda * results[0] + (1 - agent.gae_lambda) * value
        return results

    def batch(self, weights, value_weights, episodes):
        """The steps of an update in the order of their times, as arrays."""
        agent, rows = self.agent, []
        drops, ends = (agent.on_truncation == x for x in ("drop", "terminal"))
        learned = [x for x in episodes if x.terminated or not drops]
        if not learned:
            return None
        discounted = [
            definitions.loop_returns(x.rewards.tolist(), agent.gamma) for x in learned
        ]
        new = {"rewards": np.concatenate(discounted)}
        scale = self.scale("rewards", new["rewards"]) if agent.scale_rewards else 1.0
        for column, episode in enumerate(learned):
            observations = self.normalized(episode.observations)
            values = self.values(weights, value_weights, observations)
            ended = episode.terminated or ends
            targets = credits = self.targets(episode.rewards / scale, values, ended)
            if agent.returns == "whole":
                credits = targets[:1] * len(targets)
            times = range(len(targets))
            columns = [column] * len(targets)
            parts = observations, episode.actions, credits, values, targets
            rows += zip(times, columns, *parts)
        rows.sort(key=lambda row: row[:2])
        names = "time", "column", "observations", "actions", "credit", "value", "target"
        arrays = map(np.array, zip(*rows, strict=True))
        batch = types.SimpleNamespace(**dict(zip(names, arrays, strict=True)))
        batch.size, batch.episodes, batch.new = len(rows), len(learned), new
        batch.divisor = len(rows if agent.mean_over == "steps" else learned)
        batch.advantages, batch.unbaselined = self.advantages(batch)
        return batch

    def advantages(self, batch):
        """The weights of the log-probabilities, with the baseline and without."""
        agent, credit = self.agent, batch.credit
        advantages = batch.new["advantages"] = credit - self.baseline(batch)
        factors = np.ones(batch.size)
        if agent.scale_advantages == "batch":
            least = 1e-8 + 1e-12 * abs(credit).max()
            factors /= np.sqrt(np.mean(advantages**2)) + least
        if agent.scale_advantages == "running":
            factors /= self.scale("advantages", advantages)
        if agent.discount_states and agent.returns == "to_go":
            factors *= agent.gamma**batch.time
        return advantages * factors, credit * factors

    def baseline(self, batch):
        baseline = self.agent.baseline
        if isinstance(baseline, tfr.baselines.Value):
            return batch.value
        if isinstance(baseline, tfr.baselines.Mean):
            return batch.credit.mean()
        if isinstance(baseline, tfr.baselines.MovingAverage) and self.mean_returns:
            ages = np.arange(len(self.mean_returns))[::-1]
            return np.average(self.mean_returns, weights=baseline.decay**ages)
        return 0.0

    def update(self, before, episodes, seed=SEED):
        """Returns the logs of an update, and changes the running statistics."""
        weights, value_weights = before["weights"], before["values"]
        batch = self.batch(weights, value_weights, episodes)
        rate, own = self.rate(self.iterations), np.nan
        if value_weights:
            own = 0.0 if batch is None else self.value_loss(batch.value, batch)
        logs = dict(loss=0.0, policy_loss=0.0, gradient_norm=0.0, gradient_steps=0.0)
        logs |= dict(entropy=np.nan, effective_sample_size=np.nan, value_loss=np.nan)
        if batch is not None:
            logs |= self.gradient_steps(batch, weights, seed)
            self.report = self.diagnostics(batch, weights)
            self.mean_returns.append(batch.target.mean())
            for name, samples in self.samples.items():
                samples.append(batch.new[name])
        self.observations += [x.observations[:-1] for x in episodes]
        self.updates += 1
        self.env_steps += sum(len(x.rewards) for x in episodes)
        own_loss = {} if np.isnan(own) else {"value_loss": own}
        return logs | own_loss | dict(learning_rate=rate, env_steps=self.env_steps)

    def value_loss(self, values, batch):
        return ((values - batch.target) ** 2).sum() / 2 / batch.episodes

    def gradient_steps(self, batch, weights, seed):
        """Returns the logs of the gradient steps, of which most are means."""
        agent, rows = self.agent, []
        orders = [np.arange(batch.size)]
        if agent.passes > 1 or agent.minibatch_size is not None:
            arguments = agent.passes, seed, self.updates, batch.size
            orders = update_agents.drawn(*arguments)
        behavior, entropies = log_probs(weights, batch.observations, batch.actions)
        for order in orders:
            for part in update_agents.parts_of(order, agent.minibatch_size):
                logs, gradients = self.gradient_step(batch, weights, part, behavior)
                rows.append(logs)
                factor = min(1.0, self.clip / logs["gradient_norm"])
                factor *= self.rate(self.iterations)
                weights = [w - factor * x for w, x in zip(weights, gradients)]
                self.iterations += 1
            current = log_probs(weights, batch.observations, batch.actions)[0]
            kl = np.mean(np.exp(current - behavior) - 1 - (current - behavior))
            if agent.max_kl is not None and kl > agent.max_kl:
                break
        batch.after = weights
        means = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
        return means | dict(entropy=entropies.mean(), gradient_steps=len(rows))

    def gradient_step(self, batch, weights, part, behavior):
        """Returns the logs and the gradients of one gradient step."""
        agent = self.agent
        advantages = batch.advantages[part]
        inputs = batch.observations[part], batch.actions[part]
        ratios = np.exp(log_probs(weights, *inputs)[0] - behavior[part])
        if isinstance(agent.ratio_clip, tuple):
            low, high = agent.ratio_clip
            far = np.where(advantages >= 0, ratios > 1 + high, ratios < 1 - low)
            factors = np.where(far, 0.0, ratios)
        else:
            factors = np.minimum(ratios, agent.ratio_clip)
        share = len(part) / batch.size
        is_shared = len(weights) == 4

        def losses(weights):
            own, entropies = log_probs(weights, *inputs)
            policy_loss = -(own * advantages * factors).sum() / batch.divisor / share
            bonus = self.entropy_coef() * entropies.sum() / batch.divisor / share
            loss = policy_loss - bonus + self.penalty * (weights[0] ** 2).sum()
            value_loss = np.nan
            if is_shared:
                errors = self.values(weights, None, inputs[0]) - batch.target[part]
                value_loss = (errors**2).sum() / 2 / batch.divisor / share
                loss = loss + agent.baseline.loss_weight * value_loss
            return loss, policy_loss, value_loss

        gradients = slopes(lambda changed: losses(changed)[0], weights)
        logs = dict(zip(("loss", "policy_loss", "value_loss"), losses(weights)))
        logs["gradient_norm"] = np.sqrt(sum((x**2).sum() for x in gradients))
        logs["effective_sample_size"] = size_of_sample(ratios)
        return logs, gradients

    def diagnostics(self, batch, weights):
        """The statistics of `Diagnostics` that follow from the batch of an update."""
        agent, inputs = self.agent, (batch.observations, batch.actions)
        own, entropies = log_probs(weights, *inputs)
        signal, noise = self.signal_and_noise(batch, weights, batch.advantages)
        _, unbaselined = self.signal_and_noise(batch, weights, batch.unbaselined)
        changes = log_probs(batch.after, *inputs)[0] - own
        variance = batch.advantages.var() / batch.unbaselined.var()
        outputs = batch.observations @ weights[0] + weights[1]
        report = {
            "episodes": batch.episodes,
            "independent": batch.episodes,
            "signal": signal,
            "noise": noise,
            "signal_to_noise": signal / noise,
            "gradient_variance_removed": 1 - noise / unbaselined,
            "return_variance_removed": 1 - variance,
            "return_size": np.sqrt(np.mean(batch.target**2)),
            "advantage_size": np.sqrt(np.mean(batch.advantages**2)),
            "kl": np.mean(np.exp(changes) - 1 - changes),
            "effective_sample_size": size_of_sample(np.exp(changes)),
            "entropy_coef": self.entropy_coef(),
            "rewards_scaled": float(agent.scale_rewards),
            "vector_env": 0.0,
            "value_shared": float(len(weights) == 4),
        }
        names = "spread", "at_bounds", "entropy_share", "bounded_logits"
        report |= dict.fromkeys((*names, "explained_variance", "value_scale"), np.nan)
        if isinstance(agent.baseline, tfr.baselines.Value):
            errors = batch.target - batch.value
            report["explained_variance"] = 1 - errors.var() / batch.target.var()
            report["value_scale"] = agent.baseline.scale
        if batch.actions.ndim == 1:
            is_bounded = outputs.min() >= 0 and outputs.max() <= 1
            report["bounded_logits"] = np.ptp(outputs) * is_bounded
            return report | {"entropy_share": entropies.mean() / np.log(3)}
        spread = np.mean(np.exp(weights[2]) / agent.head.initial_scale)
        return report | {"spread": spread, "at_bounds": 0.0}

    def signal_and_noise(self, batch, weights, advantages):
        """The unbiased estimates from the gradient of each episode."""
        rows = []
        for column in range(batch.episodes):
            own = batch.column == column
            inputs = batch.observations[own], batch.actions[own]

            def loss(weights, own=own, inputs=inputs):
                terms = log_probs(weights, *inputs)[0] * advantages[own]
                return -terms.sum() / batch.divisor * batch.episodes

            rows.append(np.concatenate([x.ravel() for x in slopes(loss, weights)]))
        noise = np.var(rows, axis=0, ddof=1).sum() / len(rows)
        return (np.mean(rows, axis=0) ** 2).sum() - noise, noise

    def entropy_coef(self):
        coefficient = self.agent.entropy_coef
        return float(coefficient(self.updates) if callable(coefficient) else coefficient)


# The logs


def total(episode):
    return sum(episode.rewards.tolist())


def length(episode):
    return len(episode.rewards)


def statistics(episodes):
    returns, lengths = ([f(x) for x in episodes] for f in (total, length))
    mean = sum(returns) / len(returns)
    return {
        "episode_return": mean,
        "episode_return_min": min(returns),
        "episode_return_max": max(returns),
        "episode_return_std": math.sqrt(
            sum((x - mean) ** 2 for x in returns) / len(returns)
        ),
        "episode_length": sum(lengths) / len(lengths),
        "episodes": len(returns),
        "env_steps": sum(lengths),
    }


def success(episodes, is_known=False):
    """The share of successful episodes, once an episode has reported success."""
    reports = [x.success for x in episodes]
    if reports.count(None) == len(reports) and not is_known:
        return {}
    return {"success": reports.count(True) / len(reports)}


def faults(stage, options):
    """The counts of faults that the options of `fit` make appear."""
    keys = ["dropped_episodes"] if "on_bad_env" in options else []
    if "on_env_error" in options:
        keys = ["dropped_episodes", "worker_restarts", "env_restarts"]
    return {key: stage["faults"][key] for key in keys}


def assert_logs(logs, expected):
    """Compares all logs; fails for a log key that is not recomputed."""
    assert set(logs) == set(expected)
    for name, value in expected.items():
        tolerance = dict(rel=1e-9, abs=1e-12, nan_ok=True)
        assert logs[name] == pytest.approx(value, **tolerance), name


def assert_greedy(definition, weights, episodes, is_greedy=True):
    """The actions are the most likely ones, or are not all."""
    same = []
    for episode in episodes:
        observations = definition.normalized(episode.observations[:-1])
        modes = observations @ weights[0] + weights[1]
        if episode.actions.ndim == 1:
            modes = modes.argmax(axis=1)
        same.append(np.allclose(episode.actions, modes, rtol=1e-9, atol=1e-12))
    assert all(same) == is_greedy


def model(size, dtype="float64", **options):
    inputs = keras.Input((OBSERVED,), dtype=dtype)
    layer = functools.partial(keras.layers.Dense, dtype=dtype, **options)
    sizes = size if isinstance(size, dict) else {"outputs": size}
    outputs = {name: layer(n, name=name)(inputs) for name, n in sizes.items()}
    outputs = outputs if isinstance(size, dict) else outputs["outputs"]
    result, rng = keras.Model(inputs, outputs), np.random.default_rng(7)
    result.set_weights([rng.normal(size=x.shape) for x in result.weights])
    return result


def discrete(story):
    space = gym.spaces.Discrete(3, start=START)
    return functools.partial(World, story, space)


def categorical_with_minibatches(story):
    agent = tfr.Reinforce(
        model(3, kernel_regularizer=keras.regularizers.L2(0.125)),
        heads.Categorical(3, start=START, dtype="float64"),
        tfr.baselines.MovingAverage(decay=0.5),
        gamma=0.9,
        passes=2,
        minibatch_size=4,
        ratio_clip=1.0625,
        entropy_coef=schedule([1], [2.0, 0.5]),
    )
    rates = schedule([7], [0.125, 0.0625])
    agent.compile(SlowSGD(story, rates, global_clipnorm=0.5))
    rate = lambda step: 0.125 if step <= 7 else 0.0625  # noqa: E731
    definition = Definition(agent, rate, clip=0.5, penalty=0.125)
    options = dict(episodes_per_epoch=5, num_envs=1, validation_freq=[2, 4])
    return definition, discrete(story), options


def gaussian_with_value_network(story):
    critic = SlowSGD(story, 0.001)
    agent = tfr.Reinforce(
        model(2),
        heads.Gaussian(2, initial_scale=[0.5, 2.0], dtype="float64"),
        tfr.baselines.Value(model(1), critic, passes=2, minibatch_size=5, scale=3.0),
        gamma=0.9,
        gae_lambda=0.75,
        passes=4,
        minibatch_size=6,
        ratio_clip=(0.25, 0.25),
        max_kl=0.1,
        mean_over="steps",
        normalize_observations=True,
        scale_rewards=True,
        scale_advantages="running",
    )
    agent.compile(SlowSGD(story, 0.0625))
    definition = Definition(agent, rate=lambda step: 0.0625)
    space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    world = functools.partial(World, story, space)
    return definition, world, dict(steps_per_epoch=9, num_envs=1)


def categorical_with_shared_values(story, start=START):
    agent = tfr.Reinforce(
        model({"outputs": 3, "values": 1}),
        heads.Categorical(3, start=start, dtype="float64"),
        tfr.baselines.Value(loss_weight=0.25),
        gamma=0.9,
        entropy_coef=0.5,
        mean_over="steps",
        on_truncation="terminal",
        scale_advantages="batch",
        discount_states=True,
    )
    agent.compile(SlowSGD(story, 0.125))
    return Definition(agent), discrete(story), dict(episodes_per_epoch=5, num_envs=3)


def categorical_with_dropped_episodes(story):
    agent = tfr.Reinforce(
        model(3),
        heads.Categorical(3, start=START, dtype="float64"),
        "mean",
        gamma=0.9,
        returns="whole",
        on_truncation="drop",
    )
    agent.compile(SlowSGD(story, 0.125, global_clipnorm=0.5))
    replaced = dict(on_bad_env="drop_episode", on_env_error="restart")
    world = functools.partial(discrete(story), has_faults=True, truncates=True)
    definition = Definition(agent, clip=0.5)
    return definition, world, dict(episodes_per_epoch=6, num_envs=1, **replaced)


AGENTS = [
    categorical_with_minibatches,
    gaussian_with_value_network,
    categorical_with_shared_values,
    categorical_with_dropped_episodes,
]


@pytest.fixture
def story(monkeypatch):
    """Replaces the clock."""
    story = Story()
    monkeypatch.setattr(time, "perf_counter", story.now)
    return story


@pytest.mark.filterwarnings("ignore:An episode was dropped")
@pytest.mark.parametrize("make", AGENTS)
def test_logs_of_an_agent(make, story):
    definition, world, options = make(story)
    agent, record = definition.agent, Record(story)
    diagnostics = tfr.callbacks.Diagnostics(every=1, verbose=0)
    history = agent.fit(
        world,
        epochs=4,
        seed=SEED,
        callbacks=[record, diagnostics],
        validation_env=functools.partial(world, stage="validation"),
        validation_episodes=4,
        verbose=0,
        **options,
    ).history
    assert_logs_of_training(definition, record, options, diagnostics.history)
    for key, values in history.items():
        logs = [x["logs"][key] for x in record.epochs if key in x["logs"]]
        np.testing.assert_array_equal(values, logs)
    sizes = {len(epoch["training"]["episodes"]) for epoch in record.epochs}
    assert len(sizes) == 1 + ("steps_per_epoch" in options)
    assert {*history} >= {"success", "val_success"}
    if agent.max_kl is not None:
        assert len(set(history["gradient_steps"])) > 1
    if "on_bad_env" in options:
        assert 0 < sum(history["env_restarts"]) < sum(history["dropped_episodes"])
    assert_logs_of_evaluations(definition, world, options)
    assert_logs_of_update(definition, functools.partial(world, has_faults=False))


def assert_logs_of_training(definition, record, options, reports):
    """Compares the logs of `fit`, with those of its validations and episodes."""
    reports = {report["update"]: report for report in reports}
    ended, since = [], collections.Counter()
    reported = {"success": False, "val_success": False}
    for update, epoch in enumerate(record.epochs):
        training = epoch["training"]
        episodes, seconds = training["episodes"], training["seconds"]
        assert {x.stage for x in episodes} == {"training"}
        expected = {**statistics(episodes), **definition.update(training, episodes)}
        elapsed = seconds["environment"] + seconds["update"]
        expected["steps_per_second"] = sum(map(length, episodes)) / elapsed
        expected |= faults(training, options)
        expected |= success(episodes, reported["success"])
        if "validation" in epoch:
            validation = epoch["validation"]
            assert {x.stage for x in validation["episodes"]} == {"validation"}
            assert_greedy(definition, validation["weights"], validation["episodes"])
            metrics = statistics(validation["episodes"]) | faults(validation, options)
            metrics |= success(validation["episodes"], reported["val_success"])
            expected |= {f"val_{key}": value for key, value in metrics.items()}
        assert_logs(epoch["logs"], expected)
        since += seconds
        if expected["gradient_steps"]:
            elapsed = since["environment"] + since["update"]
            report = definition.report | {
                "update": update,
                "stepping_share": since["environment"] / elapsed,
                "acting_share": 0.0,
                "learning_share": since["update"] / elapsed,
                "gradient_steps": expected["gradient_steps"],
                "learning_rate": expected["learning_rate"],
            }
            assert_logs(reports.pop(update), report)
            since = collections.Counter()  # the time since the last report
        reported = {key: x or key in expected for key, x in reported.items()}
        assert epoch["collected"] == {
            "update": update,
            "stepping_seconds": seconds["environment"],
            "acting_seconds": 0.0,
            "vector_env": False,
        }
        ended += [(update, x) for x in episodes]
    assert not reports
    assert [number for number, _ in record.ended] == list(range(len(ended)))
    # Of several environments, the first episode to start may not be the first to end.
    ended.sort(key=lambda pair: (pair[0], total(pair[1])))
    own_logs = [logs for _, logs in record.ended]
    own_logs.sort(key=lambda logs: (logs["update"], logs["episode_return"]))
    for (update, episode), logs in zip(ended, own_logs, strict=True):
        expected = {"episode_return": total(episode), "episode_length": length(episode)}
        expected |= {"terminated": episode.terminated, "update": update}
        assert_logs(logs, expected)


def assert_logs_of_evaluations(definition, world, options):
    agent, story = definition.agent, world.args[0]
    weights = [x.numpy() for x in agent.policy_variables]
    names = "on_bad_env", "on_env_error"
    replaced = {name: options[name] for name in names if name in options}
    for epoch, is_greedy in ((0, True), (1, False)):
        story.epoch = epoch
        before, faults_before = len(story.episodes), story.faults.copy()
        logs = agent.evaluate(world, 5, is_greedy, num_envs=1, **replaced)
        recent = story.episodes[before:]
        stage = {"faults": story.faults - faults_before}
        assert_logs(logs, statistics(recent) | success(recent) | faults(stage, options))
        assert_greedy(definition, weights, recent, is_greedy)


def assert_logs_of_update(definition, world):
    agent, record = definition.agent, Record(world.args[0])
    record.set_model(agent)
    record.on_epoch_begin(3)
    record.start("training")
    episodes = agent.collect(world, 5, num_envs=1)
    record.end()
    logs, recent = agent.update(episodes, seed=9), record.stage["episodes"]
    assert_logs(logs, statistics(recent) | definition.update(record.stage, recent, 9))


class TensorRecord(Record):
    """Stores the episodes that the program has collected."""

    def on_episodes_collected(self, episodes, logs):
        for column, size in enumerate(episodes.lengths):
            arrays = episodes.observations[: size + 1], *episodes[1:3]
            arrays = [x[:, column] for x in arrays]
            facts = bool(episodes.terminated[column]), None
            rows = arrays[0], *(x[:size] for x in arrays[1:])
            self.story.episodes.append(Episode(*rows, *facts))
        super().on_episodes_collected(episodes, logs)


class Ended(tfr.callbacks.EpisodeCallback):
    """Records the logs of each episode, without ending a program after one update."""

    def __init__(self):
        super().__init__()
        self.ended = []

    def on_episode_end(self, episode, logs):
        self.ended.append((episode, dict(logs)))


@pytest.mark.slow
def test_logs_of_updates_in_one_program(story):
    """A program of four updates reports one speed, and else the logs of the updates."""
    histories, ended = [], Ended()
    definition, *_ = categorical_with_shared_values(story, start=0)
    record = TensorRecord(story)
    diagnostics = tfr.callbacks.Diagnostics(every=1, verbose=0)
    for updates, callbacks in ((1, [record, diagnostics]), (4, [ended])):
        agent = categorical_with_shared_values(story, start=0)[0].agent
        agent.compile(agent.optimizer, steps_per_execution=updates)
        options = dict(epochs=4, episodes_per_epoch=5, seed=SEED, verbose=0)
        env = TensorWorld(dtype="float64")
        histories.append(agent.fit(env, callbacks=callbacks, **options).history)
    assert_logs_of_training(definition, record, {}, diagnostics.history)
    assert ended.ended == record.ended
    speeds = [history.pop("steps_per_second") for history in histories]
    assert speeds[1] == pytest.approx([histories[0]["env_steps"][-1] / 12] * 4)
    # TensorFlow may add the terms of `loss` in another order in another program.
    assert histories[1].keys() == histories[0].keys()
    for key, values in histories[0].items():
        assert histories[1][key] == pytest.approx(values, rel=1e-14, nan_ok=True), key
