"""Defines `Reinforce`, a Keras model that learns from whole episodes.

The algorithm is `algorithm.estimator.PolicyGradientEstimator.gradients`. This module
holds the duties of a Keras model: it builds, compiles, fits, saves, loads and exports.
"""

import functools
import os
import time

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce import callbacks as episode_callbacks
from tf_reinforce import config
from tf_reinforce import files
from tf_reinforce import heads
from tf_reinforce import optimizers
from tf_reinforce import presets
from tf_reinforce import validation
from tf_reinforce.algorithm import estimator
from tf_reinforce.callbacks import learning_rate
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import make_envs
from tf_reinforce.collect import tensor_envs
from tf_reinforce.collect import vector_envs
from tf_reinforce.data import action_masks
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.policies import actor
from tf_reinforce.policies import compatibility
from tf_reinforce.policies import default_policy
from tf_reinforce.policies import models
from tf_reinforce.policies import normalization
from tf_reinforce.policies import recurrent
from tf_reinforce.presets import factory
from tf_reinforce.presets import toml_files
from tf_reinforce.serving import saved_model
from tf_reinforce.training import collector
from tf_reinforce.training import learner
from tf_reinforce.training import loop

_WAYS_OUT = (
    "Its head depends on the action space, which is not known yet. Three ways out: "
    "give the head (`Reinforce(policy, head=tfr.heads.Categorical(2))`), call "
    "`agent.fit(env, …)`, which asks the environment, or make the agent with "
    "`Reinforce.for_env(env)`."
)

# What is made into environments by us, with keywords.
_IDS = (str, gym.envs.registration.EnvSpec)

# What is built in once the agent is built.
_STATISTICS = ("normalizer", "reward_scale", "advantage_scale")
_FIXED = frozenset({"policy", "head", "baseline", *_STATISTICS, *config.AGENT})


@keras.saving.register_keras_serializable("tf_reinforce")
class Reinforce(keras.Model):
    """A Keras model that learns from whole episodes with REINFORCE.

        ∇J = E[ Σₜ ∇ log π(aₜ|sₜ) (Gₜ - bₜ) ],    Gₜ = Σ_{k≥t} γᵏ⁻ᵗ rₖ

    The policy is any Keras model; its outputs become a distribution over actions.
    With γ = 1, with `discount_states=True` or with `returns="whole"`, and the other
    options at their defaults, the update is an unbiased estimate of the gradient of the
    expected discounted return. Otherwise (the field's habit, and the default) the factor
    γᵗ is left out: each step counts as much as the first, and the update is not exactly
    the gradient of anything. `docs/estimators.md` says of each option what it follows.

    Layers with a training mode (Dropout, BatchNormalization) run in inference mode
    everywhere: the policy that acts and the one that learns must be the same.

    Args:
        policy: Keras model from observations to outputs `[N, P]`. If a `Value` baseline
            shares its layers, the model returns a dict with `"outputs"` and `"values"`.
        head: `tfr.heads.Head`. Defaults to the standard head of the action space.
        baseline: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, `None`,
            or a `tfr.baselines.Baseline`.
        gamma: Float in [0, 1], the discount γ. With zero only the next reward counts.
        gae_lambda: Float in [0, 1], λ. Below 1, returns are mixed with the values of a
            value baseline: less variance, and biased unless the values are exact.
        returns: `"to_go"` weights each action by the return from its step on, `"whole"`
            by the return G₀ of the whole episode, which has more variance.
        discount_states: Bool. True weights step t of `"to_go"` by γᵗ.
        scale_advantages: `None`; `"batch"` divides by the root mean square of the batch
            (with `baseline="mean"` this is z-scoring), which is biased; `"running"`
            divides by that of all earlier batches, which changes the length of a
            gradient step and not its direction.
        scale_rewards: Bool. True divides rewards by the running standard deviation of
            discounted returns, so that values and gradients are of size one in any task.
        mean_over: `"episodes"` divides a sum over all steps by the number of episodes,
            which is the policy gradient. `"steps"` divides by the number of steps, which
            depends on the actions: gradient steps of about one length for any episode
            length, and biased.
        on_truncation: How to value the rest of a truncated episode. `"bootstrap"`: by
            the value baseline at the last observation, or by zero without one;
            `"terminal"`: by zero; `"drop"`: the episode is left out, which is biased.
        minibatch_size: Int, about how many steps make a gradient step, drawn at random;
            `None` takes all.
        passes: Int, the number of passes over each batch.
        ratio_clip: Float ≥ 1. After the first gradient step of an update, the policy π
            differs from the policy μ that acted. Each step is then weighted by the
            likelihood ratio π(aₜ|sₜ) / μ(aₜ|sₜ), at most `ratio_clip`. The ratio corrects
            the probability of the action and not that of the observation, so only the
            first gradient step of an update is unbiased.
        entropy_coef: Float ≥ 0, or a Keras learning-rate schedule of the number of
            updates. Adds `entropy_coef` × Σₜ ∇H(π(·|sₜ)) at the visited observations.
            Its effect on which observations are visited is left out.
        normalize_observations: Bool. True puts a `RunningNormalization` in front of
            the policy and of a `Value` baseline.
        action_mask: Where the environment gives the mask of legal actions: `None` for
            no mask, `"info/<key>"` or `"observation/<key>"`. Zero marks an illegal
            action; the form is that of `Space.sample(mask=…)`. Illegal actions have
            probability zero.

    Attributes:
        counters: Int64 weight, created in `build`: how many updates were made, of how
            many episodes and environment steps.
        updates, episodes_seen, env_steps: The three numbers as ints. Update u draws from
            the random streams of update u, also after loading.

    Example:

    >>> policy = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> agent = Reinforce(policy, gamma=0.99)
    >>> agent.compile(optimizer=keras.optimizers.Adam(1e-2))
    >>> history = agent.fit("CartPole-v1", epochs=2, episodes_per_epoch=4, verbose=0)
    >>> len(history.history["episode_return"]), agent.updates
    (2, 2)

    Reference:
        Williams (1992), Simple statistical gradient-following algorithms for
        connectionist reinforcement learning. doi:10.1007/BF00992696
    """

    def __init__(
        self,
        policy,
        head=None,
        baseline="leave_one_out",
        *,
        gamma=0.99,
        gae_lambda=1.0,
        returns="to_go",
        discount_states=False,
        scale_advantages=None,
        scale_rewards=False,
        mean_over="episodes",
        on_truncation="bootstrap",
        minibatch_size=None,
        passes=1,
        ratio_clip=2.0,
        entropy_coef=0.0,
        normalize_observations=False,
        action_mask=None,
        name="reinforce",
        **kwargs,
    ):
        # The policy casts for itself; casting here would blunt a float64 policy.
        super().__init__(name=name, **{"autocast": False, **kwargs})
        self.policy = validation.instance("policy", policy, keras.Model)
        self.head = (
            head if head is None else validation.instance("head", head, heads.Head)
        )
        self.baseline = baselines.get(baseline)
        self.gamma = validation.within("gamma", gamma, 0, 1)
        self.gae_lambda = validation.within("gae_lambda", gae_lambda, 0, 1)
        self.returns = validation.one_of("returns", returns, ("to_go", "whole"))
        self.discount_states = validation.boolean("discount_states", discount_states)
        self.scale_advantages = validation.one_of(
            "scale_advantages", scale_advantages, (None, "batch", "running")
        )
        self.scale_rewards = validation.boolean("scale_rewards", scale_rewards)
        self.mean_over = validation.one_of("mean_over", mean_over, ("episodes", "steps"))
        self.on_truncation = validation.one_of(
            "on_truncation", on_truncation, ("bootstrap", "terminal", "drop")
        )
        self.minibatch_size = validation.positive_int_or_none(
            "minibatch_size", minibatch_size
        )
        self.passes = validation.positive_int("passes", passes)
        self.ratio_clip = validation.within("ratio_clip", ratio_clip, 1, np.inf)
        self.entropy_coef = _coefficient(entropy_coef)
        self.normalize_observations = validation.boolean(
            "normalize_observations", normalize_observations
        )
        self._make_statistics()
        self.action_mask = action_mask
        self._mask_source = (
            None if action_mask is None else action_masks.MaskPath(action_mask)
        )
        self.observation_space = self.action_space = None
        self._rates, self._defaults = [], {}  # what `for_env` leaves for `fit`
        self._check_lambda()

    def __setattr__(self, name, value):
        if name in _FIXED and getattr(self, "built", False):
            raise AttributeError(
                f"`{name}` is fixed once the agent is built. Received: {name}={value!r}. "
                "What is to change while it trains may be a Keras schedule "
                "(`entropy_coef`, the learning rate). Else make another agent: `other = "
                f"tfr.Reinforce.from_config({{**agent.get_config(), {name!r}: …}})`, "
                "`other.build_from_config(agent.get_build_config())`, and "
                "`other.set_weights(agent.get_weights())`."
            )
        super().__setattr__(name, value)

    def _make_statistics(self):
        """The parts that learn what is usual, where there are any."""
        self.normalizer = self.reward_scale = self.advantage_scale = None
        if self.normalize_observations:
            self.normalizer = normalization.RunningNormalization()
        if self.scale_rewards:
            self.reward_scale = normalization.RunningScale(centered=True)
        if self.scale_advantages == "running":
            self.advantage_scale = normalization.RunningScale()

    def _check_lambda(self):
        if self.gae_lambda < 1 and not self.baseline.values_states:
            raise ValueError(
                "`gae_lambda` below 1 needs a baseline that values states, "
                "tfr.baselines.Value(model): without one it would only discount more. "
                f"Received: gae_lambda={self.gae_lambda}, baseline={self.baseline!r}"
            )
        if self.gae_lambda < 1 and self.returns == "whole":
            raise ValueError(
                '`returns="whole"` needs the rewards themselves, `gae_lambda=1`: a value '
                "in their place would leave later actions without their share. "
                f"Received: gae_lambda={self.gae_lambda}"
            )

    @classmethod
    def for_env(
        cls,
        env,
        hidden=None,
        seed=0,
        *,
        learning_rate=None,
        preset=None,
        env_kwargs=None,
        **kwargs,
    ):
        """An agent with a default policy of the right shape, built and compiled.

        Args:
            env: Whatever `fit` takes.
            hidden: Sizes of the hidden tanh layers, behind one branch for each array of
                an observation (`default_policy.default_policy` says which). Defaults to
                (64, 64).
            seed: Int; the initial weights are a function of it.
            learning_rate: Float, of Adam, or a dict with the floats `first` and `last`:
                linear over the agent's life, up to the end of a `fit`. Defaults to 0.01.
            preset: Name of a preset (`tfr.presets.names()`), or path of a file
                of your own: where the defaults come from, here and in `fit`.
            env_kwargs: Dict for the environment's constructor.
            **kwargs: As for `Reinforce`. A head for a Box may be named, and
                `baseline="value"` is a network with two hidden layers of 64 and
                Adam(0.01), whatever the policy has; either may be a dict with `kind`
                and keywords (docs/presets.md).

        Returns:
            `Reinforce`.

        Example:

        >>> agent = Reinforce.for_env("CartPole-v1", hidden=(32,))
        >>> agent(np.zeros([5, 4], "float32")).shape
        TensorShape([5, 2])
        >>> agent = Reinforce.for_env("Pendulum-v1", preset="Pendulum-v1")
        >>> type(agent.head).__name__, agent.gae_lambda
        ('Beta', 0.95)
        """
        seed = seeding.check_seed(seed)
        settings = toml_files.EMPTY if preset is None else presets.read(preset)
        given = {"hidden": hidden, "learning_rate": learning_rate}
        given = {name: value for name, value in given.items() if value is not None}
        usual = {"hidden": (64, 64), "learning_rate": 1e-2}
        chosen = {**usual, **settings["agent"], **given, **kwargs}
        if env_kwargs is None and isinstance(env, _IDS):
            env_kwargs = settings["env_kwargs"]
        with make_envs.open_envs(env, 1, env_kwargs=env_kwargs) as envs:
            met = envs.observation_space, envs.action_space
        spaces.check_action_space(met[1])
        chosen, rates = factory.build_parts(chosen, *met, seed)
        head, hidden = chosen.pop("head"), chosen.pop("hidden")
        learning_rate = chosen.pop("learning_rate")
        size, units = head.outputs_size, head.output_scaling()
        agent = cls(
            default_policy.default_policy(met[0], hidden, size, seed, units),
            head,
            **chosen,
        )
        agent._defaults = {**settings["fit"], "env_kwargs": env_kwargs or {}}
        agent._build_for_spaces(*met)
        agent.compile(optimizer=keras.optimizers.Adam(learning_rate))
        agent._rates = rates
        return agent

    def compile(self, optimizer="rmsprop", **kwargs):
        """As in Keras; a linear learning rate of `for_env` goes with its optimizer."""
        updates = kwargs.get("steps_per_execution", 1)
        validation.positive_int("steps_per_execution", updates)
        self._rates = [rate for rate in self._rates if rate[0] != "optimizer"]
        super().compile(optimizer=optimizer, **kwargs)

    # Learning

    def gradients(self, episodes):
        """Returns the policy gradient of one batch of episodes; changes nothing.

        Gradients stop at returns, baseline and values.

        Args:
            episodes: `Episodes`; no environment is needed when the head was given.

        Returns:
            A list with ∂L/∂w for each of `policy_variables`, L being the surrogate
            loss; a list with the gradients of the baseline's own loss; and a dict of
            scalar tensors: `loss`, `policy_loss`, `value_loss`, `entropy` (mean over
            steps, in nats), `gradient_norm` and `effective_sample_size`, here 1.
        """
        self._build_for(episodes)
        checked = self._checked(episodes)
        gradients, baseline_gradients, _, logs = self._estimator.gradients(checked)
        return gradients, baseline_gradients, logs

    def per_episode_gradients(self, episodes, baseline=True):
        """Returns the gradient of `policy_loss` of each episode; changes nothing.

        Returns, baseline and scales are those of the whole batch. So the mean of these
        gradients is the gradient of the batch, and their variance is its noise. Entropy
        bonus, regularizers and the value loss of shared layers, which `gradients`
        includes, are left out.

        Args:
            episodes: `Episodes`.
            baseline: Bool. False leaves the baseline out, and all else as it is.

        Returns:
            A list with a tensor `[E, …]` for each of `policy_variables`, one row for
            each episode that is learned from.
        """
        self._build_for(episodes)
        return self._learner.per_episode_gradients(self._checked(episodes), baseline)

    def step_statistics(self, episodes):
        """Returns what an update from these episodes computes for each step.

        Args:
            episodes: `Episodes`.

        Returns:
            `inspection.StepStatistics` of NumPy arrays, one row for each step that is
            learned from.
        """
        self._build_for(episodes)
        return self._learner.step_statistics(self._checked(episodes))

    def update(self, episodes, seed=0):
        """Makes one update from a record, collected here or by you.

        The order is: gradients, finite check, optimizer step,
        `baseline.apply_gradients`, normalizer. So every part of one update sees the
        other parts as they were when the episodes were collected.

        Args:
            episodes: `Episodes`.
            seed: Int; the order of minibatches is a function of it and of the number
                of the update.

        Returns:
            Dict of floats under the log keys.

        Raises:
            ValueError: when the agent is not compiled, or the record is misshapen.
            FloatingPointError: when loss or gradients are not finite, of any gradient
                step that the update takes. All weights are then as they were.
        """
        self._require_optimizer()
        self._build_for(episodes)
        self._build_optimizer()
        episodes = self._checked(episodes)
        permutations = self._permutations(episodes, seed)
        logs = self._learner.update(self.optimizer, episodes, permutations)
        return {**episode_statistics.batch_metrics(episodes), **logs}

    def _permutations(self, episodes, seed):
        return self._learner.permutations(episodes, seed)

    def fit(
        self,
        env,
        *,
        epochs=None,
        steps=None,
        episodes_per_epoch=None,
        steps_per_epoch=None,
        num_envs=None,
        workers=None,
        seed=0,
        callbacks=None,
        validation_env=None,
        validation_freq=1,
        validation_episodes=10,
        initial_epoch=0,
        env_kwargs=None,
        max_episode_steps=None,
        verbose="auto",
    ):
        """Trains on an environment: one epoch is one update from whole episodes.

        An agent made with a preset takes the arguments that are not given from it.

        Args:
            env: Environment id (also `module:Id-v0`), `EnvSpec`, callable,
                `gymnasium.Env` (which the caller closes), `VectorEnv`, or
                `tfr.envs.TensorEnv`. With a `TensorEnv` all episodes of an update run in
                one XLA program, and `compile(steps_per_execution=U)` makes U updates in
                one call; callbacks are called for each of them afterwards.
            epochs: Int, the number of the last epoch.
            steps: Int, instead of `epochs`: trains for this many environment steps.
            episodes_per_epoch: Int, episodes per update. Defaults to 16.
            steps_per_epoch: Int, instead of `episodes_per_epoch`: the fewest episodes
                that have this many steps. The number of episodes then depends on their
                lengths, which biases a mean over them by a term of order 1 / episodes.
            num_envs: Int, environments side by side. Does not change the result.
                Defaults to 8. A `TensorEnv` does not use it.
            workers: Int, processes that share the environments; more than the number of
                cores do not help. Does not change the result. Defaults to 1, this
                process. Needs an id, spec or callable, and a system that forks.
                Environments that run TensorFlow or Keras hang in such a process.
            seed: Int. Same seed, machine and versions: same weights, to the bit.
            callbacks: List of Keras callbacks, or one. With `mode="auto"`, returns and
                `success` are maximized, `value_loss` and `gradient_norm` minimized.
            validation_env: As `env`, with the same `env_kwargs` and limit; the greedy
                policy is evaluated on it, in this process.
            validation_freq: Int, or list of epochs (counted from 1).
            validation_episodes: Int.
            initial_epoch: Int; only numbers the epochs for the callbacks.
            env_kwargs: Dict for the environment's constructor.
            max_episode_steps: Int, a time limit. Defaults to the environment's own. In a
                `VectorEnv`, which cannot be truncated from outside, an episode of this
                length is an error.
            verbose: 0 silent; 1, 2 or `"auto"` a progress line.

        Returns:
            Keras' `History`.

        Raises:
            ValueError, TypeError: when an argument is not acceptable.
            EnvironmentFault: when the environment fails or returns an invalid value.
            FloatingPointError: when an update would not be finite.
        """
        given = dict(
            epochs=epochs,
            steps=steps,
            episodes_per_epoch=episodes_per_epoch,
            steps_per_epoch=steps_per_epoch,
            num_envs=num_envs,
            workers=workers,
            max_episode_steps=max_episode_steps,
        )
        chosen = loop.merge_options(self._defaults, given).get
        epochs, steps, *batch = loop.check_budget(*map(chosen, loop.BUDGET))
        num_envs = validation.positive_int("num_envs", chosen("num_envs", 8))
        workers = validation.positive_int("workers", chosen("workers", 1))
        max_episode_steps = chosen("max_episode_steps")
        seed = seeding.check_seed(seed)
        loop.check_validation(validation_episodes, validation_freq)
        verbose = validation.one_of("verbose", verbose, ("auto", 0, 1, 2))
        self._require_optimizer()
        options = self._options(env, env_kwargs, max_episode_steps)

        def validate():
            at = "validation", self.updates, seed
            return self._play(validation_env, at, validation_episodes, num_envs, other)

        listening = keras.tree.flatten(callbacks) if callbacks else []
        if self._rates:
            end = steps and self.env_steps + steps
            rate = learning_rate.LinearLearningRate(self._rates, end, epochs)
            listening.insert(0, rate)
        if verbose:
            listening.append(episode_callbacks.ProgressLine())
        with make_envs.open_envs(env, num_envs, workers=workers, **options) as envs:
            self.build_for_env(envs)
            other = self._opened_once(validation_env, env_kwargs, max_episode_steps)
            return loop.run_loop(
                self,
                lambda *now: self._epochs(envs, seed, *batch, *now),
                validate if validation_env is not None else None,
                listening,
                epochs=epochs,
                steps=steps,
                initial_epoch=initial_epoch,
                freq=validation_freq,
                verbose=verbose,
            )

    def _epoch(self, envs, seed, episodes, steps, tell):
        """Collects, tells what, and learns: logs of the update, and its episodes'."""
        began = time.perf_counter()
        update, first, _ = self._counted()
        played = self._collect(envs, update, seed, episodes, steps)
        seconds = time.perf_counter() - began
        record = played.episodes
        if tell is not None:
            tell(record, {"update": update, **_told(envs, played)})
        began = time.perf_counter()
        logs = self.update(record, seed)
        logs.update(episode_statistics.success_metrics(played.success))
        seconds += time.perf_counter() - began
        logs["steps_per_second"] = int(record.lengths.sum()) / seconds
        told = (
            episode_statistics.episode_returns(record),
            record.lengths,
            record.terminated,
        )
        return logs, episode_statistics.episode_logs(*told, first, update)

    def _epochs(self, envs, seed, episodes, batch_steps, tell, most, steps):
        """One update on the host; of a tensor environment up to so many in one call."""
        if isinstance(envs, tensor_envs.TensorEnvs):
            self._group_size(envs, episodes, batch_steps)
            most = 1 if tell or self._rates else min(most, self.steps_per_execution)
            return self._compiled_epochs(envs, seed, episodes, tell, most, steps)
        return [self._epoch(envs, seed, episodes, batch_steps, tell)]

    def _compiled_epochs(self, world, seed, episodes, tell, most, steps):
        """The same as `_epoch` in one program, for up to `most` updates."""
        began, seconds = time.perf_counter(), 0.0
        update, first, _ = self._counted()
        group_size = self.baseline.reset_group_size
        rollout = self._collector.rollout(world, episodes, group_size=group_size)
        if tell is None:
            options = dict(most=most, steps=steps)
            made = self._learner.train(self.optimizer, rollout, seed, **options)
        else:
            address = dict(seed=seed, purpose="training", update=update)
            played, collected = compiled_rollout.collect(rollout, **address)
            seconds = time.perf_counter() - began
            tell(collected.episodes, {"update": update, **_told(world, collected)})
            began = time.perf_counter()
            made = [self._learner.learn(self.optimizer, rollout, played, seed)]
        seconds += time.perf_counter() - began
        rate = sum(int(one.lengths.sum()) for one in made) / seconds
        for number, (logs, *columns) in enumerate(made):
            logs = {
                **episode_statistics.metrics(*columns[:2]),
                **logs,
                "steps_per_second": rate,
            }
            began_with = first + number * episodes
            yield (
                logs,
                episode_statistics.episode_logs(*columns, began_with, update + number),
            )

    # Playing

    def evaluate(
        self,
        env,
        episodes=100,
        deterministic=True,
        seed=0,
        *,
        num_envs=8,
        workers=1,
        env_kwargs=None,
        max_episode_steps=None,
    ):
        """Evaluates the policy on whole episodes; changes no weight.

        Exactly `episodes` episodes are started, finished and counted, so that short
        episodes are not preferred. They differ from those of training and validation
        with the same seed.

        Args:
            env: As for `fit`.
            episodes: Int.
            deterministic: Bool. True takes the most likely action.
            seed: Int.
            num_envs, workers, env_kwargs, max_episode_steps: As for `fit`.

        Returns:
            Dict of floats: `episode_return`, `_min`, `_max`, `_std`,
            `episode_length`, `episodes`, `env_steps`, and `success` where the
            environment reports it.
        """
        address = "evaluation", 0, seeding.check_seed(seed)
        options = self._options(env, env_kwargs, max_episode_steps)
        options["workers"] = workers
        return self._play(env, address, episodes, num_envs, options, deterministic)

    def collect(
        self,
        env,
        episodes=None,
        *,
        steps=None,
        num_envs=8,
        workers=1,
        seed=0,
        env_kwargs=None,
        max_episode_steps=None,
    ):
        """Collects the episodes of the next update; changes no weight.

        Args:
            env: As for `fit`, or what `tfr.collect.open_envs` yields: in a loop of your
                own, the environments are then made only once.
            episodes: Int. Defaults to 16.
            steps: Int instead: the fewest episodes with so many steps.
            num_envs, workers, seed, env_kwargs, max_episode_steps: As for `fit`.

        Returns:
            `Episodes`, for `update`.
        """
        _, _, episodes, steps = loop.check_budget(1, None, episodes, steps)
        seed = seeding.check_seed(seed)
        num_envs = validation.positive_int("num_envs", num_envs)
        options = self._options(env, env_kwargs, max_episode_steps)
        with make_envs.open_envs(env, num_envs, workers=workers, **options) as envs:
            self._build_for_spaces(envs.observation_space, envs.action_space)
            return self._collect(envs, self.updates, seed, episodes, steps).episodes

    def act(
        self,
        observations,
        deterministic=False,
        seed=None,
        *,
        action_mask=None,
        state=None,
    ):
        """Actions for a batch of observations, ready for the environment.

        Args:
            observations: `[N, …]` array, or the structure of the space with arrays.
            deterministic: Bool. True takes the most likely actions.
            seed: Int; the same seed draws the same actions, here and in the export.
                `None` draws fresh ones.
            action_mask: `[N, M]`, where the agent reads masks from `info`.
            state: What the last call returned, for a policy with recurrent layers;
                `None` begins episodes.

        Returns:
            `[N, …]` NumPy array in the environment's units and type, nested as the action
            space; with it the next state, `(actions, state)`, where there is one.

        Raises:
            ValueError: when the agent is not built, or the batch is misshapen.
            FloatingPointError: when the policy's outputs are not finite.
        """
        self._require_built()
        observations = self._collector.batch(observations)
        count = len(keras.tree.flatten(observations)[0])
        more = self._collector.more(count, action_mask, state)
        if not deterministic:
            if seed is None:
                seed = np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1
            more.insert(0, tf.constant(seeding.check_seed(seed), tf.int64))
        name = "act" if deterministic else "sample"
        act = self._collector.checked(name, self.action_space)
        results, finite = act(observations, *more)
        if not finite:
            raise FloatingPointError(
                "The policy's outputs are not finite, or its weights: there is no action "
                "to take. Look at the observations, or load an earlier file."
            )
        return self._collector.answer(results)

    def _collect(self, envs, update, seed, episodes, steps):
        """The episodes of one update."""
        group_size = self._group_size(envs, episodes, steps)
        counts = dict(episodes=episodes, steps=steps, group_size=group_size)
        return self._collector.collect(envs, "training", update, seed, **counts)

    def _group_size(self, envs, episodes, steps):
        """How many episodes in a row begin alike, if that can be."""
        group_size = self.baseline.reset_group_size
        if group_size > 1 and (steps or episodes % group_size or not envs.seeds_episodes):
            raise ValueError(
                f"The baseline needs groups of {group_size} episodes with the same reset "
                "seed. Expected: `episodes_per_epoch` as a multiple of "
                f"{group_size}, and plain environments, because a VectorEnv chooses its "
                "own reset seeds. Received: episodes="
                f"{episodes}, steps={steps}, {type(envs).__name__} environments"
            )
        return group_size

    def _options(self, env, env_kwargs, max_episode_steps):
        """Keywords for `make_envs.open_envs`; what is made already needs no defaults."""
        if env_kwargs is None and isinstance(env, _IDS):
            env_kwargs = self._defaults.get("env_kwargs")
        if max_episode_steps is not None:
            validation.positive_int("max_episode_steps", max_episode_steps)
        return {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}

    def _opened_once(self, env, env_kwargs, max_episode_steps):
        """Options of an environment, which is opened now so that an error comes early."""
        options = self._options(env, env_kwargs, max_episode_steps)
        if env is not None:
            with make_envs.open_envs(env, 1, **options) as envs:
                self._build_for_spaces(envs.observation_space, envs.action_space)
        return options

    def _play(self, env, address, episodes, num_envs, options, greedy=True):
        episodes = validation.positive_int("episodes", episodes)
        num_envs = min(validation.positive_int("num_envs", num_envs), episodes)
        with make_envs.open_envs(env, num_envs, **options) as envs:
            self._build_for_spaces(envs.observation_space, envs.action_space)
            return self._collector.play(envs, *address, episodes=episodes, greedy=greedy)

    # Being a Keras model

    def build(self, observations_shape):
        if self.head is None and self.action_space is None:
            raise ValueError(f"The agent cannot be built. {_WAYS_OUT}")
        if not self.policy.built:
            self.policy.build(observations_shape)
        self._float = models.float_type(self.policy)
        structure = (
            recurrent.one_observation(
                spaces.of_shapes(observations_shape, self._float), self.policy
            )
            if self.observation_space is None
            else spaces.observation_spec(self.observation_space, self._float)
        )
        shapes = keras.tree.map_structure(lambda leaf: (None, *leaf.shape), structure)
        # What may refuse comes first: who mends it can build again.
        head = self.head
        if head is None:
            head = heads.for_space(self.action_space)
        if self._mask_source is not None:
            self._mask_source.expect_in(structure)
        memory = compatibility.check_model_shapes(
            self.policy, head, self.baseline, structure
        )
        models.warn_inference_layers(self.policy)
        self.head = head
        if not head.built:
            head.set_float_type(self._float)
            head.build((None, head.outputs_size))
        if not self.baseline.built:
            self.baseline.build(shapes)
        if self.normalizer is not None:
            # In half precision large numbers that differ by little would be one.
            self.normalizer.dtype_policy = self._float
            self.normalizer.build(spaces.real_shapes(structure))
        for scale in (self.reward_scale, self.advantage_scale):
            if scale is not None:
                scale.build()
        self.counters = self.add_weight(
            name="counters",
            shape=(3,),
            initializer="zeros",
            dtype="int64",
            trainable=False,
        )
        self._assemble(structure, memory)

    def call(self, observations, training=False):
        return self._estimator.forward(observations)[0]

    updates = property(lambda self: self._counted()[0])
    episodes_seen = property(lambda self: self._counted()[1])
    env_steps = property(lambda self: self._counted()[2])

    def _counted(self):
        return self.counters.numpy().tolist() if self.built else [0, 0, 0]

    @property
    def policy_variables(self):
        """The trainable weights of policy and head, which the optimizer owns."""
        return self._estimator.variables

    def save(self, filepath, overwrite=True, **kwargs):
        """Writes the agent to a `.keras` file: all that decides and all that learns.

        Of `env_kwargs` given to `for_env` it keeps numbers and booleans; give others to
        `fit` again.
        The file appears whole or not at all; one that was there stays until then.

        Raises:
            ValueError: when the name does not end in `.keras`, or the agent is not
                built.
            FileExistsError: when the file exists and `overwrite` is False.
        """
        path = os.fspath(filepath)
        if not path.endswith(".keras"):
            raise ValueError(
                f"An agent is saved to a file that ends in .keras. Received: {path!r}"
            )
        self._require_built()
        with files.atomic_write(path, overwrite) as aside:
            self._build_optimizer()
            super().save(aside, **kwargs)

    def save_weights(self, filepath, overwrite=True):
        """As in Keras, into one file, which appears whole or not at all."""
        self._require_built()
        with files.atomic_write(filepath, overwrite) as aside:
            self._build_optimizer()
            super().save_weights(aside)

    def load_weights(self, filepath, **kwargs):
        """As in Keras; the state of a compiled agent's optimizer is read too."""
        self._require_built()
        self._build_optimizer()
        super().load_weights(filepath, **kwargs)

    def export(self, filepath, format="tf_saved_model"):
        """Writes the policy as a SavedModel that needs only TensorFlow.

        Signatures: `act(observation) -> action`, `sample(observation, seed) ->
        action, raw_action`, `distribution(observation) -> its parameters`,
        `log_prob(observation, raw_action) -> log_prob`. Any batch size; actions in
        the environment's units; normalizer, head and bounds inside. A nested
        observation enters by name.

        Args:
            filepath: Path of the folder. An earlier export is replaced whole; a folder
                that holds anything else is refused.
            format: `"tf_saved_model"`.
        """
        validation.one_of("format", format, ("tf_saved_model",))
        self._require_built()
        deciding = [self.policy, self.head, self.normalizer]
        layers = [layer for layer in deciding if layer is not None and layer.variables]
        functions = self._collector.functions(self.action_space)
        saved_model.write(filepath, functions, layers)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "policy": serialize(self.policy),
            "head": serialize(self.head),
            "baseline": serialize(self.baseline),
            **{name: getattr(self, name) for name in config.AGENT},
            "entropy_coef": serialize(self.entropy_coef),
            "rates": [list(rate) for rate in self._rates],
            "defaults": toml_files.safe_defaults(self._defaults),
            "observation_space": spaces.to_config(self.observation_space),
            "action_space": spaces.to_config(self.action_space),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in ("policy", "head", "baseline", "entropy_coef"):
            config[part] = keras.saving.deserialize_keras_object(config[part])
        known = [config.pop(f"{name}_space", None) for name in ("observation", "action")]
        rates, defaults = config.pop("rates"), config.pop("defaults")
        agent = cls(**config)
        agent._rates, agent._defaults = rates, toml_files.safe_defaults(defaults)
        agent.observation_space, agent.action_space = map(spaces.from_config, known)
        return agent

    def compile_from_config(self, config):
        # Keras would build the optimizer on the baseline's weights too, and then
        # drop the state it saved.
        rates = self._rates
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self._build_optimizer()
        self._rates = rates

    @property
    def _collector(self):
        self._keep_up()
        return self._latest_collector

    @property
    def _learner(self):
        self._keep_up()
        return self._latest_learner

    def _keep_up(self):
        """Makes a new collector and learner if a constant of their programs changed."""
        if models.constants(*self._models) != self._constants:
            self._assemble_again()

    @property
    def _models(self):
        """The Keras models inside, of which anybody may change a layer."""
        critic = getattr(self.baseline, "model", None)
        return [self.policy] if critic is None else [self.policy, critic]

    def _assemble(self, structure, memory):
        """Makes the estimator and the collector: plain objects around the parts."""
        self._assemble_again = functools.partial(self._assemble, structure, memory)
        self._constants = models.constants(*self._models)
        scales = {"rewards": self.reward_scale, "advantages": self.advantage_scale}
        self._estimator = estimator.PolicyGradientEstimator(
            self.policy,
            self.head,
            self.baseline,
            self.normalizer,
            {name: getattr(self, name) for name in config.ESTIMATOR},
            memory,
            scales={k: scale for k, scale in scales.items() if scale is not None},
            updates=lambda: self.counters[0],
        )
        deciding = [*self.policy.variables, *self.head.variables]
        if self.normalizer is not None:
            deciding += self.normalizer.acting_variables
        decided = actor.ActorPolicy(
            self._estimator.step,
            self.head,
            structure,
            self._float,
            deciding,
            self._mask_source,
            memory,
        )
        self._latest_collector = collector.Collector(decided)
        self._latest_learner = learner.Learner(
            self._estimator,
            decided,
            self.counters,
            passes=self.passes,
            minibatch_size=self.minibatch_size,
        )

    def build_for_env(self, world):
        """Makes a compiled agent ready for an environment: built, its optimizer too.

        Args:
            world: Whatever has an `observation_space` and an `action_space`.

        Raises:
            ValueError: when it is not compiled, or knows other spaces.
        """
        self._require_optimizer()
        self._build_for_spaces(world.observation_space, world.action_space)
        self._build_optimizer()

    def _build_for_spaces(self, observation_space, action_space):
        """Takes the spaces of an environment, or refuses other ones than before."""
        known = self.observation_space, self.action_space
        met = observation_space, action_space
        spaces.expect_spaces(known, met)
        if self.head is None:
            spaces.check_action_space(action_space)
        else:
            self.head.check_space(action_space)
        structure = spaces.observation_spec(observation_space, "float32")
        if self.built:
            spaces.expect_shapes(self._collector.decision.observation_spec, structure)
            self.observation_space, self.action_space = met
            return
        self.observation_space, self.action_space = met
        try:
            self.build(keras.tree.map_structure(lambda x: (None, *x.shape), structure))
        except Exception:
            # A policy that does not fit must not bind the agent to this environment.
            self.observation_space, self.action_space = known
            raise

    def _build_for(self, episodes):
        validation.instance("episodes", episodes, records.Episodes)
        if not self.built:
            self.build(
                keras.tree.map_structure(
                    lambda array: (None, *np.shape(array)[2:]), episodes.observations
                )
            )

    def _build_optimizer(self):
        optimizer = getattr(self, "optimizer", None)
        if optimizer is not None:
            optimizers.build(optimizer, self.policy_variables)
        critic = getattr(self.baseline, "model", None)
        if critic is not None:  # its optimizer may be another by now
            optimizers.build(self.baseline.optimizer, critic.trainable_variables)

    def _require_optimizer(self):
        if getattr(self, "optimizer", None) is None:
            raise ValueError(
                "The agent is not compiled. Call "
                "`agent.compile(optimizer=keras.optimizers.Adam(1e-2))` first."
            )

    def _require_built(self):
        if not self.built:
            raise ValueError(f"The agent is not built. {_WAYS_OUT}")

    def _checked(self, episodes):
        deciding = self._collector.decision
        episodes = records.validate(
            episodes, deciding.observation_spec, deciding.action_spec, deciding.mask_size
        )
        self.head.check_actions(episodes.actions, episodes.lengths, episodes.masks)
        return episodes


def load(path, custom_objects=None):
    """The agent in a file written by `agent.save`.

    Args:
        path: Path of the `.keras` file.
        custom_objects: Dict from names to classes of your own layers.

    Returns:
        `Reinforce`, compiled if it was, with the state of its optimizers.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when it is not whole, or holds something else.
    """
    files.check_archive(path)
    try:
        agent = keras.saving.load_model(path, custom_objects=custom_objects)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} could not be read. If it holds layers of your own, pass them: "
            "tfr.load(path, custom_objects={'Name': Name}), or register their classes "
            "with keras.saving.register_keras_serializable. Keras says above what it "
            f"missed ({type(error).__name__})."
        ) from error
    if not isinstance(agent, Reinforce):
        raise ValueError(
            f"{path} holds a {type(agent).__name__}, not an agent. Wrap it: "
            "tfr.Reinforce(model)."
        )
    return agent


def _coefficient(entropy_coef):
    if isinstance(entropy_coef, keras.optimizers.schedules.LearningRateSchedule):
        return entropy_coef
    return validation.within("entropy_coef", entropy_coef, 0, np.inf)


def _told(envs, played):
    """What callbacks hear of a collection beside its episodes."""
    seconds = {f"{name}_seconds": x for name, x in played.seconds.items()}
    return {**seconds, "vector_env": isinstance(envs, vector_envs.VectorEnvAdapter)}
