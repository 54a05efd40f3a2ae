"""The agent: REINFORCE as a Keras model.

The algorithm itself is `estimator.Estimator.gradients`; this is its life in Keras:
built, compiled, fitted on environments, saved, loaded and exported.
"""

import functools
import os
import time

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import (
    arguments,
    baselines,
    checkpoints,
    decision,
    estimator,
    evaluation,
    export,
    fitting,
    heads,
    keywords,
    learning,
    masks,
    normalization,
    optimizers,
    playing,
    policies,
    presets,
    recurrence,
    seeding,
    spaces,
    training,
)
from tf_reinforce import callbacks as episode_callbacks
from tf_reinforce import episodes as records
from tf_reinforce.collect import compiled, fleets, opening, worlds

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
_FIXED = frozenset({"policy", "head", "baseline", *_STATISTICS, *keywords.AGENT})


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
        policy: Keras model from observations to `[N, P]` outputs, or to a dict with
            `"outputs"` and `"values"` where a `Value` baseline shares its trunk.
        head: `tfr.heads.Head`. Defaults to the one for the environment's actions.
        baseline: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, `None`,
            or a `tfr.baselines.Baseline`.
        gamma: Float in [0, 1], the discount. Zero: only the next reward counts.
        gae_lambda: Float in [0, 1]. Below 1 the return leans on a value baseline:
            less variance, biased unless the value is exact.
        returns: `"to_go"`: an action answers for what follows it. `"whole"`: for
            the whole episode's return G₀; noisier.
        discount_states: Bool. True weights step t of `"to_go"` by γᵗ.
        scale_advantages: `None`; `"batch"`: divides by the batch's root mean square
            (with `baseline="mean"` this is z-scoring), biased; `"running"`: by that of
            all earlier batches, which changes the size of steps and no direction.
        scale_rewards: Bool. True divides rewards by the running deviation of discounted
            returns, so that values and gradients are of about one size in any task.
        mean_over: `"episodes"`: losses are sums over an episode, and their mean over
            the batch is the gradient. `"steps"` divides by the number of steps instead,
            which the actions decide: steps of about one size whatever the length of
            the episodes, and biased.
        truncation: What an episode is worth that the clock cut. `"bootstrap"`: what a
            value baseline expects after the cut, else nothing more; `"terminal"`:
            nothing more; `"drop"`: it is not learned from, which is biased.
        minibatch_size: Int, about how many steps make a gradient step, drawn at random;
            `None`: all of them.
        passes: Int, how often each batch is gone through.
        ratio_bound: Float ≥ 1. From the second gradient step on, the policy is not the
            one that acted: each step counts as often as its action has become more
            likely since, π(aₜ|sₜ) / μ(aₜ|sₜ), but at most this often. It corrects the
            action, not the way there; only the first step of an update is unbiased.
        entropy_coef: Float ≥ 0, or a Keras learning rate schedule, of the number of
            updates. Adds `entropy_coef` × Σₜ ∇H(π(·|sₜ)) at the visited
            observations; that it also changes which are visited is not followed.
        normalize_observations: Bool. True puts a `RunningNormalization` in front of
            the policy and of a `Value` baseline.
        action_mask: Where the environment says which actions are legal: `None` for
            nowhere, `"info/<key>"` or `"observation/<key>"`. Zero is illegal; the form
            is that of `Space.sample(mask=…)`. Illegal actions have no probability.

    Attributes:
        counters: Int64 weight, there once built: how many updates were made, of how
            many episodes and environment steps.
        updates, episodes_seen, env_steps: The three, as ints. Update u draws from the
            random streams of update u, also after loading.

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
        truncation="bootstrap",
        minibatch_size=None,
        passes=1,
        ratio_bound=2.0,
        entropy_coef=0.0,
        normalize_observations=False,
        action_mask=None,
        name="reinforce",
        **kwargs,
    ):
        # The policy casts for itself; casting here would blunt a float64 policy.
        super().__init__(name=name, **{"autocast": False, **kwargs})
        self.policy = arguments.instance("policy", policy, keras.Model)
        self.head = head if head is None else arguments.instance("head", head, heads.Head)
        self.baseline = baselines.get(baseline)
        self.gamma = arguments.within("gamma", gamma, 0, 1)
        self.gae_lambda = arguments.within("gae_lambda", gae_lambda, 0, 1)
        self.returns = arguments.one_of("returns", returns, ("to_go", "whole"))
        self.discount_states = arguments.boolean("discount_states", discount_states)
        self.scale_advantages = arguments.one_of(
            "scale_advantages", scale_advantages, (None, "batch", "running")
        )
        self.scale_rewards = arguments.boolean("scale_rewards", scale_rewards)
        self.mean_over = arguments.one_of("mean_over", mean_over, ("episodes", "steps"))
        self.truncation = arguments.one_of(
            "truncation", truncation, ("bootstrap", "terminal", "drop")
        )
        self.minibatch_size = arguments.positive_int_or_none(
            "minibatch_size", minibatch_size
        )
        self.passes = arguments.positive_int("passes", passes)
        self.ratio_bound = arguments.within("ratio_bound", ratio_bound, 1, np.inf)
        self.entropy_coef = _coefficient(entropy_coef)
        self.normalize_observations = arguments.boolean(
            "normalize_observations", normalize_observations
        )
        self._make_statistics()
        self.action_mask = action_mask
        self._mask_source = None if action_mask is None else masks.Source(action_mask)
        self.observation_space = self.action_space = None
        self.rates, self.defaults = [], {}  # what `for_env` leaves for `fit`
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
                an observation (`tf_reinforce.policies.default` says which). Defaults to
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
        settings = presets.NOTHING if preset is None else presets.read(preset)
        given = {"hidden": hidden, "learning_rate": learning_rate}
        given = {name: value for name, value in given.items() if value is not None}
        usual = {"hidden": (64, 64), "learning_rate": 1e-2}
        chosen = {**usual, **settings["agent"], **given, **kwargs}
        if env_kwargs is None and isinstance(env, _IDS):
            env_kwargs = settings["env_kwargs"]
        with opening.open_fleet(env, 1, env_kwargs=env_kwargs) as fleet:
            met = fleet.observation_space, fleet.action_space
        spaces.check_action_space(met[1])
        chosen, rates = presets.parts(chosen, *met, seed)
        head, hidden = chosen.pop("head"), chosen.pop("hidden")
        learning_rate = chosen.pop("learning_rate")
        size, units = head.outputs_size, head.units()
        agent = cls(policies.default(met[0], hidden, size, seed, units), head, **chosen)
        agent.defaults = {**settings["fit"], "env_kwargs": env_kwargs or {}}
        agent._meet(*met)
        agent.compile(optimizer=keras.optimizers.Adam(learning_rate))
        agent.rates = rates
        return agent

    def compile(self, optimizer="rmsprop", **kwargs):
        """As in Keras; a linear learning rate of `for_env` goes with its optimizer."""
        updates = kwargs.get("steps_per_execution", 1)
        arguments.positive_int("steps_per_execution", updates)
        self.rates = [rate for rate in self.rates if rate[0] != "optimizer"]
        super().compile(optimizer=optimizer, **kwargs)

    # Learning

    def gradients(self, episodes):
        """The policy gradient of one batch of episodes. Nothing is changed.

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

    def episode_gradients(self, episodes, baseline=True):
        """The gradient of `policy_loss` from each episode by itself. Nothing is changed.

        Their mean is that from the batch, their scatter is its noise: returns, baseline
        and scales are those of the whole batch. Entropy bonus, regularisers and the value
        loss of a shared trunk, which `gradients` has on top, are left out.

        Args:
            episodes: `Episodes`.
            baseline: Bool. False leaves the baseline out, and all else as it is.

        Returns:
            A list with a tensor `[E, …]` for each of `policy_variables`, one row for
            each episode that is learned from.
        """
        self._build_for(episodes)
        return self._learner.episode_gradients(self._checked(episodes), baseline)

    def inspect(self, episodes):
        """What an update from these episodes would know of each step.

        Args:
            episodes: `Episodes`.

        Returns:
            `inspection.Inspection` of NumPy arrays, one row for each step learned from.
        """
        self._build_for(episodes)
        return self._learner.inspect(self._checked(episodes))

    def update(self, episodes, seed=0):
        """Makes one update from a record, collected here or by you.

        Gradients, finite check, step, `baseline.learn`, normaliser, in this order:
        every part of one update sees the other parts as they acted.

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
        orders = self._orders(episodes, seed)
        logs = self._learner.update(self.optimizer, episodes, orders)
        return {**evaluation.figures(episodes), **logs}

    def _orders(self, episodes, seed):
        return self._learner.orders(episodes, seed)

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

        An agent made with a preset trains as that says, where nothing else is given.

        Args:
            env: Environment id (also `module:Id-v0`), `EnvSpec`, callable,
                `gymnasium.Env` (runs alone, its owner closes it), `VectorEnv`, or
                `tfr.envs.TensorEnv`: all episodes of an update run at once then, in one
                XLA program, and `compile(steps_per_execution=U)` makes U updates in one
                call, of which the callbacks hear when it is over.
            epochs: Int, the number of the last epoch.
            steps: Int instead: train until so many environment steps were learned.
            episodes_per_epoch: Int, episodes per update. Defaults to 16.
            steps_per_epoch: Int instead: the fewest episodes with so many steps.
                Their number then depends on their lengths, and the mean over them is
                biased by a term of order 1 / episodes.
            num_envs: Int, environments side by side. Does not change the result.
                Defaults to 8; not for a `TensorEnv`.
            workers: Int, processes that share these environments and play for
                themselves; one for each core is the most that helps. Does not change
                the result. Defaults to 1, this process; for an id, spec or callable.
                Needs a system that forks; environments that run TensorFlow or Keras
                themselves hang in such a process.
            seed: Int. Same seed, machine and versions: same weights, to the bit.
            callbacks: List of Keras callbacks, or one. Those that monitor a log key of
                ours with `mode="auto"` get the right mode.
            validation_env: As `env`, with the same `env_kwargs` and limit; the greedy
                policy is evaluated on it, in this process.
            validation_freq: Int, or list of epochs (counted from 1).
            validation_episodes: Int.
            initial_epoch: Int; only numbers the epochs for the callbacks.
            env_kwargs: Dict for the environment's constructor.
            max_episode_steps: Int, a time limit. Defaults to the environment's own. A
                `VectorEnv` cannot be cut: an episode that long is an error.
            verbose: 0 silent; 1, 2 or `"auto"` a progress line.

        Returns:
            Keras' `History`.

        Raises:
            ValueError, TypeError: when an argument is not acceptable.
            EnvironmentFault: when the environment fails or answers with nonsense.
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
        chosen = training.chosen(self.defaults, given).get
        epochs, steps, *batch = training.budget(*map(chosen, training.BUDGET))
        num_envs = arguments.positive_int("num_envs", chosen("num_envs", 8))
        workers = arguments.positive_int("workers", chosen("workers", 1))
        max_episode_steps = chosen("max_episode_steps")
        seed = seeding.check_seed(seed)
        training.check_validation(validation_episodes, validation_freq)
        verbose = arguments.one_of("verbose", verbose, ("auto", 0, 1, 2))
        self._require_optimizer()
        options = self._options(env, env_kwargs, max_episode_steps)

        def validate():
            at = "validation", self.updates, seed
            return self._play(validation_env, at, validation_episodes, num_envs, other)

        listening = keras.tree.flatten(callbacks) if callbacks else []
        if self.rates:
            end = steps and self.env_steps + steps
            listening.insert(0, presets.LinearRates(self.rates, end, epochs))
        if verbose:
            listening.append(episode_callbacks.ProgressLine())
        with opening.open_fleet(env, num_envs, workers=workers, **options) as fleet:
            self.meet(fleet)
            other = self._opened_once(validation_env, env_kwargs, max_episode_steps)
            return training.run(
                self,
                lambda *now: self._epochs(fleet, seed, *batch, *now),
                validate if validation_env is not None else None,
                listening,
                epochs=epochs,
                steps=steps,
                initial_epoch=initial_epoch,
                freq=validation_freq,
                verbose=verbose,
            )

    def _epoch(self, fleet, seed, episodes, steps, tell):
        """Collects, tells what, and learns: logs of the update, and its episodes'."""
        began = time.perf_counter()
        update, first, _ = self._counted()
        played = self._collect(fleet, update, seed, episodes, steps)
        seconds = time.perf_counter() - began
        record = played.episodes
        if tell is not None:
            tell(record, {"update": update, **_told(fleet, played)})
        began = time.perf_counter()
        logs = self.update(record, seed)
        logs.update(evaluation.successes(played.success))
        seconds += time.perf_counter() - began
        logs["steps_per_second"] = int(record.lengths.sum()) / seconds
        told = evaluation.per_episode(record), record.lengths, record.terminated
        return logs, evaluation.rows(*told, first, update)

    def _epochs(self, fleet, seed, episodes, batch_steps, tell, most, steps):
        """One update on the host; of a tensor environment up to so many in one call."""
        if isinstance(fleet, worlds.World):
            self._siblings(fleet, episodes, batch_steps)
            most = 1 if tell or self.rates else min(most, self.steps_per_execution)
            return self._compiled_epochs(fleet, seed, episodes, tell, most, steps)
        return [self._epoch(fleet, seed, episodes, batch_steps, tell)]

    def _compiled_epochs(self, world, seed, episodes, tell, most, steps):
        """The same as `_epoch` in one program, for up to `most` updates."""
        began, seconds = time.perf_counter(), 0.0
        update, first, _ = self._counted()
        siblings = self.baseline.siblings
        rollout = self._player.rollout(world, episodes, siblings=siblings)
        if tell is None:
            options = dict(most=most, steps=steps)
            made = self._learner.train(self.optimizer, rollout, seed, **options)
        else:
            address = dict(seed=seed, purpose="training", update=update)
            played, collected = compiled.collect(rollout, **address)
            seconds = time.perf_counter() - began
            tell(collected.episodes, {"update": update, **_told(world, collected)})
            began = time.perf_counter()
            made = [self._learner.learn(self.optimizer, rollout, played, seed)]
        seconds += time.perf_counter() - began
        rate = sum(int(one.lengths.sum()) for one in made) / seconds
        for number, (logs, *columns) in enumerate(made):
            logs = {**evaluation.summary(*columns[:2]), **logs, "steps_per_second": rate}
            began_with = first + number * episodes
            yield logs, evaluation.rows(*columns, began_with, update + number)

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
        """Plays whole episodes and changes nothing that an agent has learned.

        Exactly `episodes` episodes are started, finished and counted, so that short
        ones are not preferred. They are other episodes than those of training and
        validation under the same seed.

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
        """Plays the episodes that `fit` would learn from next, and learns nothing.

        Args:
            env: As for `fit`; in a loop of your own an open fleet saves making the
                environments anew (`tfr.collect.open_fleet`).
            episodes: Int. Defaults to 16.
            steps: Int instead: the fewest episodes with so many steps.
            num_envs, workers, seed, env_kwargs, max_episode_steps: As for `fit`.

        Returns:
            `Episodes`, for `update`.
        """
        _, _, episodes, steps = training.budget(1, None, episodes, steps)
        seed = seeding.check_seed(seed)
        num_envs = arguments.positive_int("num_envs", num_envs)
        options = self._options(env, env_kwargs, max_episode_steps)
        with opening.open_fleet(env, num_envs, workers=workers, **options) as fleet:
            self._meet(fleet.observation_space, fleet.action_space)
            return self._collect(fleet, self.updates, seed, episodes, steps).episodes

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
        observations = self._player.batch(observations)
        count = len(keras.tree.flatten(observations)[0])
        more = self._player.more(count, action_mask, state)
        if not deterministic:
            if seed is None:
                seed = np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1
            more.insert(0, tf.constant(seeding.check_seed(seed), tf.int64))
        name = "act" if deterministic else "sample"
        act = self._player.checked(name, self.action_space)
        results, finite = act(observations, *more)
        if not finite:
            raise FloatingPointError(
                "The policy's outputs are not finite, or its weights: there is no action "
                "to take. Look at the observations, or load an earlier file."
            )
        return self._player.answer(results)

    def _collect(self, fleet, update, seed, episodes, steps):
        """The episodes of one update."""
        siblings = self._siblings(fleet, episodes, steps)
        counts = dict(episodes=episodes, steps=steps, siblings=siblings)
        return self._player.collect(fleet, "training", update, seed, **counts)

    def _siblings(self, fleet, episodes, steps):
        """How many episodes in a row begin alike, if that can be."""
        siblings = self.baseline.siblings
        if siblings > 1 and (steps or episodes % siblings or not fleet.seeds_episodes):
            raise ValueError(
                f"The baseline needs groups of {siblings} episodes that begin alike. "
                f"Expected: `episodes_per_epoch` as a multiple of {siblings}, and plain "
                "environments: a VectorEnv resets its own. Received: episodes="
                f"{episodes}, steps={steps}, {type(fleet).__name__} environments"
            )
        return siblings

    def _options(self, env, env_kwargs, max_episode_steps):
        """Keywords for `opening.open_fleet`; what is made already needs no defaults."""
        if env_kwargs is None and isinstance(env, _IDS):
            env_kwargs = self.defaults.get("env_kwargs")
        if max_episode_steps is not None:
            arguments.positive_int("max_episode_steps", max_episode_steps)
        return {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}

    def _opened_once(self, env, env_kwargs, max_episode_steps):
        """Options of an environment, which is opened now so that an error comes early."""
        options = self._options(env, env_kwargs, max_episode_steps)
        if env is not None:
            with opening.open_fleet(env, 1, **options) as fleet:
                self._meet(fleet.observation_space, fleet.action_space)
        return options

    def _play(self, env, address, episodes, num_envs, options, greedy=True):
        episodes = arguments.positive_int("episodes", episodes)
        num_envs = min(arguments.positive_int("num_envs", num_envs), episodes)
        with opening.open_fleet(env, num_envs, **options) as fleet:
            self._meet(fleet.observation_space, fleet.action_space)
            return self._player.play(fleet, *address, episodes=episodes, greedy=greedy)

    # Being a Keras model

    def build(self, observations_shape):
        if self.head is None and self.action_space is None:
            raise ValueError(f"The agent cannot be built. {_WAYS_OUT}")
        if not self.policy.built:
            self.policy.build(observations_shape)
        self._float = policies.float_type(self.policy)
        structure = (
            recurrence.one_observation(
                spaces.of_shapes(observations_shape, self._float), self.policy
            )
            if self.observation_space is None
            else spaces.structure(self.observation_space, self._float)
        )
        shapes = keras.tree.map_structure(lambda leaf: (None, *leaf.shape), structure)
        # What may refuse comes first: who mends it can build again.
        head = self.head
        if head is None:
            head = heads.for_space(self.action_space)
        if self._mask_source is not None:
            self._mask_source.expect_in(structure)
        memory = fitting.check(self.policy, head, self.baseline, structure)
        policies.announce_inference(self.policy)
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
        with checkpoints.replacing(path, overwrite) as aside:
            self._build_optimizer()
            super().save(aside, **kwargs)

    def save_weights(self, filepath, overwrite=True):
        """As in Keras, into one file, which appears whole or not at all."""
        self._require_built()
        with checkpoints.replacing(filepath, overwrite) as aside:
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
        the environment's units; normaliser, head and bounds inside. A nested
        observation enters by name.

        Args:
            filepath: Path of the folder. An earlier export is replaced whole; a folder
                that holds anything else is refused.
            format: `"tf_saved_model"`.
        """
        arguments.one_of("format", format, ("tf_saved_model",))
        self._require_built()
        deciding = [self.policy, self.head, self.normalizer]
        layers = [layer for layer in deciding if layer is not None and layer.variables]
        functions = self._player.functions(self.action_space)
        export.saved_model(filepath, functions, layers)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "policy": serialize(self.policy),
            "head": serialize(self.head),
            "baseline": serialize(self.baseline),
            **{name: getattr(self, name) for name in keywords.AGENT},
            "entropy_coef": serialize(self.entropy_coef),
            "rates": [list(rate) for rate in self.rates],
            "defaults": presets.harmless(self.defaults),
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
        agent.rates, agent.defaults = rates, presets.harmless(defaults)
        agent.observation_space, agent.action_space = map(spaces.from_config, known)
        return agent

    def compile_from_config(self, config):
        # Keras would build the optimizer on the baseline's weights too, and then
        # drop the state it saved.
        rates = self.rates
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self._build_optimizer()
        self.rates = rates

    @property
    def _player(self):
        self._keep_up()
        return self._latest_player

    @property
    def _learner(self):
        self._keep_up()
        return self._latest_learner

    def _keep_up(self):
        """Makes player and learner anew once a constant of their programs has changed."""
        if policies.constants(*self._models) != self._constants:
            self._assemble_again()

    @property
    def _models(self):
        """The Keras models inside, of which anybody may change a layer."""
        critic = getattr(self.baseline, "model", None)
        return [self.policy] if critic is None else [self.policy, critic]

    def _assemble(self, structure, memory):
        """The estimator and the player: plain objects around the parts."""
        self._assemble_again = functools.partial(self._assemble, structure, memory)
        self._constants = policies.constants(*self._models)
        scales = {"rewards": self.reward_scale, "advantages": self.advantage_scale}
        self._estimator = estimator.Estimator(
            self.policy,
            self.head,
            self.baseline,
            self.normalizer,
            {name: getattr(self, name) for name in keywords.ESTIMATOR},
            memory,
            scales={k: scale for k, scale in scales.items() if scale is not None},
            updates=lambda: self.counters[0],
        )
        deciding = [*self.policy.variables, *self.head.variables]
        if self.normalizer is not None:
            deciding += self.normalizer.acting_variables
        decided = decision.Decision(
            self._estimator.step,
            self.head,
            structure,
            self._float,
            deciding,
            self._mask_source,
            memory,
        )
        self._latest_player = playing.Player(decided)
        self._latest_learner = learning.Learner(
            self._estimator,
            decided,
            self.counters,
            passes=self.passes,
            minibatch_size=self.minibatch_size,
        )

    def meet(self, world):
        """Makes a compiled agent ready for an environment: built, its optimizer too.

        Args:
            world: Whatever has an `observation_space` and an `action_space`.

        Raises:
            ValueError: when it is not compiled, or knows other spaces.
        """
        self._require_optimizer()
        self._meet(world.observation_space, world.action_space)
        self._build_optimizer()

    def _meet(self, observation_space, action_space):
        """Takes the spaces of an environment, or refuses other ones than before."""
        known = self.observation_space, self.action_space
        met = observation_space, action_space
        spaces.expect_spaces(known, met)
        if self.head is None:
            spaces.check_action_space(action_space)
        else:
            self.head.check_space(action_space)
        structure = spaces.structure(observation_space, "float32")
        if self.built:
            spaces.expect_shapes(self._player.decision.structure, structure)
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
        arguments.instance("episodes", episodes, records.Episodes)
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
        deciding = self._player.decision
        episodes = records.check(
            episodes, deciding.structure, deciding.raw, deciding.mask_size
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
    checkpoints.check_archive(path)
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
    return arguments.within("entropy_coef", entropy_coef, 0, np.inf)


def _told(fleet, played):
    """What callbacks hear of a collection beside its episodes."""
    seconds = {f"{name}_seconds": x for name, x in played.seconds.items()}
    return {**seconds, "vector_env": isinstance(fleet, fleets.Vector)}
