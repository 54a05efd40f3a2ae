"""`Reinforce`, a Keras model that learns from whole episodes.

`engine.building` makes its parts, `engine.loop.run_loop` is the epoch loop,
`engine.trainer.Trainer` collects episodes and makes updates, and
`engine.update.estimator` holds the REINFORCE algorithm.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.data import action_masks
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.engine import building
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import loop
from tf_reinforce.engine import run_directory
from tf_reinforce.engine import trainer as trainers
from tf_reinforce.engine import validation as validations
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.export import formats
from tf_reinforce.policies import default_policy
from tf_reinforce.policies import memory
from tf_reinforce.policies import normalization
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import keras_arguments
from tf_reinforce.settings import toml_files
from tf_reinforce.support import compilation
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version

# For `env` of these types, `env_kwargs` defaults to that of `for_env` or its preset.
_IDS = (str, gym.envs.registration.EnvSpec)
# Arguments of `keras.Model` that an agent accepts.
_MODEL_ARGUMENTS = {"name", "trainable", "dtype", "autocast", "activity_regularizer"}
_PARTS = "policy", "head", "baseline", "normalizer", "reward_scale", "advantage_scale"
# Arguments of `keras.Model.compile` without an effect.
_WITHOUT_EFFECT = "loss", "loss_weights", "metrics", "weighted_metrics", "run_eagerly"


@keras.saving.register_keras_serializable("tf_reinforce")
class Reinforce(compilation.FixedArguments, keras.Model):
    """A Keras model that learns from whole episodes with REINFORCE.

        ∇J = E[ Σₜ ∇ log π(aₜ|sₜ) (Gₜ - bₜ) ],    Gₜ = Σ_{k≥t} γᵏ⁻ᵗ rₖ

    The policy can be any Keras model whose outputs are the parameters of a distribution
    over actions. Use the method `act` to get actions. To get the outputs of the policy,
    for example logits, call the agent like a function, or use `predict`. A policy with a
    memory takes sequences or windows there, and `act` single observations.

    The policy that is trained must be the same as the one that acts. Dropout,
    BatchNormalization and other layers with a training mode therefore always run in
    inference mode. A `SpectralNormalization` layer normalizes its kernel once at the end
    of each update.

    Like most implementations, the default settings leave out the factor γᵗ that the
    gradient of the expected discounted return has at step t. With γ < 1, the result is
    then not the gradient of any function. If you need an unbiased estimate of the
    gradient of the expected discounted return, set `gamma=1`, `discount_states=True` or
    `returns="whole"`, and use no option that `docs/estimators.md` calls biased.

    Args:
        policy: Keras model that returns P outputs for each of N observations, `[N, P]`.
            If a `Value` baseline shares its layers, the model returns a dict of
            `"outputs"` and `"values"`. A layer's Python attribute that changes after the
            first call has no effect on acting, so use a weight with `trainable=False` and
            its `assign` instead.
        head: `tfr.heads.Head`, which turns the outputs into a distribution over actions.
            By default, the standard head of the action space.
        baseline: Baseline bₜ, which is subtracted from returns: `"leave_one_out"`,
            `"mean"`, `"moving_average"`, `"time_step"`, `None` or a
            `tfr.baselines.Baseline`.
        gamma: Float in [0, 1], the discount γ. With 0, the return is the next reward.
        gae_lambda: Float in [0, 1], the λ of generalized advantage estimation. Below 1,
            it mixes returns with predictions of a value baseline. This reduces the
            variance, and adds a bias unless the predictions are exact.
        returns: `"to_go"` weights each action by the return from its step on. `"whole"`
            weights it by the return of the whole episode, G₀, which has more variance.
        discount_states: Bool, whether `returns="to_go"` weights the step at time t by γᵗ.
        scale_advantages: `"batch"` divides advantages by their root mean square in the
            batch, which is biased. `"running"` divides them by that of all earlier
            batches, which keeps the direction of the expected gradient.
        scale_rewards: Bool, whether to divide rewards by the running standard deviation
            of discounted returns.
        mean_over: `"episodes"` divides the sum of all steps' gradients by the number of
            episodes. `"steps"` divides it by the number of steps, which is biased,
            because this number depends on the actions.
        on_truncation: `"bootstrap"` values the rest of a truncated episode with the value
            baseline, or as zero if there is none. `"terminal"` always values it as zero.
            `"drop"` ignores truncated episodes, which is biased.
        minibatch_size: Int, the approximate number of time steps in a gradient step, or
            `None` for all of the batch. The steps are random. Only those of a model that
            reads whole episodes are consecutive steps of random episodes.
        passes: Int, the passes over the batch in each update.
        ratio_clip: Float ≥ 1, the largest likelihood ratio ρ = π(aₜ|sₜ) / μ(aₜ|sₜ) of the
            current policy π and the policy μ that acted. After the first gradient step of
            an update, the ratio weights each time step, and the gradient steps are biased
            (docs/estimators.md). A pair `(low, high)` selects PPO's clip instead: ρ
            becomes zero if the advantage is positive and ρ > 1 + high, or negative and ρ
            < 1 - low.
        max_kl: Float ≥ 0, or `None` for no limit. If a pass ends with a larger estimated
            KL(μ‖π) in nats per step, the update makes no further pass.
        entropy_coef: Float ≥ 0, or a Keras learning-rate schedule of the number of
            updates. Adds `entropy_coef` × Σₜ ∇H(π(·|sₜ)) to the policy gradient, as if
            the visited observations did not depend on the policy.
        normalize_observations: Bool, whether a `RunningNormalization` layer in front of
            policy and `Value` baseline normalizes the reals and integers of a `Box`.
            Flags (0 to 1) and images (uint8 with at least two axes) are not normalized.
        action_mask: Where the mask of legal actions is: `"info/<key>"`,
            `"observation/<key>"`, or `None`. The mask has the format of Gymnasium's
            `Space.sample(mask=…)`, in which zero marks an illegal action.
        context: Int K, for a policy of windows of the last K observations, `[N, K, …]`. A
            value model takes the same windows. Places before the first step of an episode
            hold zeros. For layers that support Keras masks, the mask `[N, K]` is False
            there.
        context_inputs: What a policy with a `context` or recurrent layers reads of each
            step. The tuple `("observations",)` may be followed by `"actions"`,
            `"rewards"` or both. The policy and a value model then receive a dict with
            these keys: the observation, the raw action of the step before and its reward,
            both zero at the first step.

    Attributes:
        counters: Int64 weight, created in `build`: the numbers of updates, episodes and
            environment steps.
        updates, episodes_seen, env_steps: Ints, the same numbers.

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

    _fixed = frozenset((*_PARTS, *config.AGENT_OPTIONS))

    def __init__(
        self,
        policy: keras.Model,
        head: heads.Head | None = None,
        baseline: str | baselines.Baseline | None = "leave_one_out",
        *,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        returns: Literal["to_go", "whole"] = "to_go",
        discount_states: bool = False,
        scale_advantages: Literal["batch", "running"] | None = None,
        scale_rewards: bool = False,
        mean_over: Literal["episodes", "steps"] = "episodes",
        on_truncation: Literal["bootstrap", "terminal", "drop"] = "bootstrap",
        minibatch_size: int | None = None,
        passes: int = 1,
        ratio_clip: float | tuple[float, float] = 2.0,
        max_kl: float | None = None,
        entropy_coef: float | keras.optimizers.schedules.LearningRateSchedule = 0.0,
        normalize_observations: bool = False,
        action_mask: str | None = None,
        context: int | None = None,
        context_inputs: Sequence[str] = ("observations",),
        name: str = "reinforce",
        **kwargs: Any,
    ) -> None:
        """Makes an agent from a policy; `help(Reinforce)` explains all arguments."""
        kwargs = keras_arguments.renamed("Reinforce", kwargs)
        given = {**locals(), **kwargs}
        validation.instance("policy", policy, keras.Model)
        if head is not None:
            validation.instance("head", head, heads.Head)
        options = config.AgentOptions(**{x: given[x] for x in config.AGENT_OPTIONS})
        kwargs = {x: y for x, y in kwargs.items() if x not in config.AGENT_OPTIONS}
        for unknown in kwargs.keys() - _MODEL_ARGUMENTS:
            owner, names = type(self).__name__, config.AGENT_OPTIONS
            raise keras_arguments.unknown(owner, unknown, kwargs[unknown], names)
        # The policy casts its inputs to its own dtype. A cast in `Reinforce` would round
        # the inputs of a float64 policy.
        super().__init__(name=name, **{"autocast": False, **kwargs})
        learner_processes.check_strategy(self._distribute_strategy)
        self.policy = policy
        self.head = head
        self.baseline = baselines.get(baseline)
        options.check_baseline(self.baseline, self.baseline.is_value_function)
        for option in config.AGENT_OPTIONS:
            setattr(self, option, getattr(options, option))
        where = options.action_mask
        self._mask_source = where and action_masks.MaskPath(where)
        self.normalizer = self.reward_scale = self.advantage_scale = None
        if options.normalize_observations:
            self.normalizer = normalization.RunningNormalization()
        if options.scale_rewards:
            scale = normalization.RunningScale(centered=True, name="reward_scale")
            self.reward_scale = scale
        if options.scale_advantages == "running":
            self.advantage_scale = normalization.RunningScale(name="advantage_scale")
        self.observation_space: Any = None
        self.action_space: Any = None
        self._learning_rates: list = []  # `for_env` sets all three for `fit`
        self._fit_defaults: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}
        self._normalizes_integers = True
        self._training_lock = threading.RLock()
        self._weights_lock = threading.RLock()  # an update holds it

    @classmethod
    def for_env(
        cls,
        env: Any,
        hidden: Sequence[int] | None = None,
        seed: int = 0,
        *,
        learning_rate: float | Mapping[str, float] | None = None,
        preset: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> "Reinforce":
        """Makes a built and compiled agent with a default policy for an environment.

        Args:
            env: Environment, in any form that `fit` accepts.
            hidden: Sizes of the hidden tanh layers, by default (64, 64). They follow one
                branch for each array of an observation (`default_policy`).
            seed: Int, which determines the initial weights.
            learning_rate: Float, of Adam, by default 0.01, and 0.003 with
                `memory="attention"`. A dict of floats `first` and `last` changes it
                linearly, from the agent's first update to the end of `fit`.
            preset: Name of a preset (`tfr.presets.names()`), or path of a preset file,
                with default arguments for `for_env` and `fit`. `"auto"` takes that of the
                environment, if there is one for these `env_kwargs`.
            env_kwargs: Dict of keyword arguments for the environment's constructor.
            **kwargs: Further arguments of `Reinforce`, and of `compile`. For a `Box`,
                `head` may be the name of a head class, and for an action of several
                parts, `"autoregressive"`. `baseline="value"` makes a value network, and
                without a preset it also chooses all other settings by the environment.
                `head` and `baseline` may be dicts (docs/presets.md).
                `memory` lets policy and value network read earlier observations: an int
                K the last K (the `context`), `"gru"` all with a GRU as the last hidden
                layer, and `"attention"` up to 256 with a `CausalSelfAttention` layer
                after the hidden ones (docs/howto_memory.md).

        Example:

        >>> agent = Reinforce.for_env("CartPole-v1", hidden=(32,))
        >>> agent(keras.ops.zeros([5, 4])).shape
        TensorShape([5, 2])
        >>> agent = Reinforce.for_env("Pendulum-v1", preset="Pendulum-v1")
        >>> type(agent.head).__name__, agent.gae_lambda
        ('Beta', 0.95)
        """
        seed = validation.check_seed(seed)
        name, preset = preset, toml_files.read_for_env(preset, env, False, env_kwargs)
        has_preset = preset is not toml_files.EMPTY_PRESET
        if name == "auto":
            name = toml_files.own_name(preset["env"]) if has_preset else None
        if env_kwargs is None and isinstance(env, _IDS):
            env_kwargs = preset["env_kwargs"]
        arguments = {"hidden": hidden, "learning_rate": learning_rate, **kwargs}
        with make_envs.open_envs(env, 1, env_kwargs=env_kwargs) as envs:
            env_spaces = envs.observation_space, envs.action_space
            parts = spaces.flatten(spaces.to_nest(envs.observation_space))
            has_quantities = any(map(spaces.is_quantity, parts))
            options, fit = default_settings.merge(preset, arguments, envs, has_quantities)
            limit = envs.max_episode_steps
        spaces.check_action_space(env_spaces[1])
        stored = run_directory.agent_settings(options)
        options, rates = building.parts_of_settings(options, *env_spaces, seed, limit)
        head, hidden, rate = map(options.pop, ("head", "hidden", "learning_rate"))
        compiling = {x: options.pop(x) for x in ("steps_per_execution", "jit_compile")}
        network = building.network_options(options, limit)
        if isinstance(options.pop("memory", None), int):
            options["context"] = network["memory"]
        parts = hidden, head.outputs_size, seed, head.output_scaling()
        policy = default_policy.default_policy(env_spaces[0], *parts, **network)
        agent = cls(policy, head, **options)
        agent._fit_defaults = {**fit, "env_kwargs": env_kwargs or {}}
        if has_preset:
            agent._fit_defaults["evaluation"] = preset["evaluation"]
        agent.build_for_spaces(*env_spaces)
        agent.compile(keras.optimizers.Adam(rate), **compiling)
        agent._build_optimizers()
        agent._learning_rates = rates
        agent._settings = {"preset": name and os.fspath(name), "agent": stored}
        return agent

    @locks.training
    def compile(
        self,
        optimizer: str | dict | keras.optimizers.Optimizer = "rmsprop",
        **kwargs: Any,
    ) -> None:
        """Sets the optimizer, which ends a linear learning rate of `for_env`.

        Args:
            optimizer: Keras optimizer, its name, or its config.
            **kwargs: `steps_per_execution` and `auto_scale_loss`, as in Keras, and
                `jit_compile`: True, False, or `"auto"` (docs/options.md).

        Raises:
            ValueError: If an argument of Keras would have no effect: `loss`,
                `loss_weights`, `metrics`, `weighted_metrics`, `run_eagerly`.
        """
        for name in _WITHOUT_EFFECT:
            if (value := kwargs.get(name)) not in (None, False):
                raise ValueError(
                    f"`{name}` of `compile` has no effect on an agent, which learns from "
                    f"the policy gradient. Omit it. Received: {name}={value!r}"
                )
        updates = kwargs.get("steps_per_execution", 1)
        validation.positive_int("steps_per_execution", updates)
        if optimizer is None:
            raise ValueError("`optimizer` must be a Keras optimizer. Received: None")
        self._learning_rates = [x for x in self._learning_rates if x[0] != "optimizer"]
        self._settings = {}
        super().compile(optimizer=optimizer, **kwargs)
        self.jit_compile = kwargs.get("jit_compile", "auto")

    # Learning

    def gradients(
        self, episodes: records.Episodes
    ) -> tuple[list, list, dict[str, tf.Tensor]]:
        """Returns the policy gradient of a batch of episodes, without an update.

        The returns, the baseline and the values count as constants when the loss is
        differentiated.

        Args:
            episodes: `Episodes`. An agent with a head need not be built before.

        Returns:
            A list with the surrogate loss's gradient for each of `policy_variables`, a
            list with the gradients of the baseline's own loss, and a dict of scalar
            tensors: `loss`, `policy_loss`, `value_loss`, `entropy` (mean over steps, in
            nats), `gradient_norm` and `effective_sample_size` (always 1).
        """
        trainer = self._trainer_for(episodes)
        estimate = trainer.estimator.gradients(trainer.check_episodes(episodes))
        return estimate.gradients, estimate.baseline_step.gradients, estimate.metrics

    def per_episode_gradients(
        self, episodes: records.Episodes, baseline: bool = True
    ) -> list[tf.Tensor]:
        """Returns each episode's gradient of the policy loss, without an update.

        The variance of these gradients over the episodes shows how noisy the gradient of
        the batch is. Their mean is the gradient of the batch, because the advantages are
        computed from all episodes together. The entropy bonus, regularizers and the value
        loss of shared layers are left out.

        Args:
            episodes: `Episodes`.
            baseline: Bool, whether to subtract the baseline, or zero instead.

        Returns:
            A list with a tensor `[E, …]` for each of `policy_variables`, a row for each
            of the E episodes that `on_truncation="drop"` keeps.
        """
        baseline = tf.constant(validation.boolean("baseline", baseline))
        trainer = self._trainer_for(episodes)
        return trainer.inspect("per_episode_gradients", episodes, baseline)

    def step_statistics(self, episodes: records.Episodes) -> Any:
        """Returns every step's return, advantage, log-probability and entropy.

        An update from the same `episodes` would use these numbers, but no update is made.

        Args:
            episodes: `Episodes`.

        Returns:
            `inspection.StepStatistics` of NumPy arrays, a row for each step that is
            neither padding nor of a dropped episode.
        """
        statistics = self._trainer_for(episodes).inspect("step_statistics", episodes)
        return keras.tree.map_structure(lambda tensor: tensor.numpy(), statistics)

    @locks.training
    def update(self, episodes: records.Episodes, seed: int = 0) -> dict[str, float]:
        """Makes one update from a batch of whole episodes.

        An update first computes the gradients and checks that they are finite. The
        optimizer then changes the weights, and at the end, the baseline and the
        observation normalizer are updated too.

        Args:
            episodes: `Episodes` to learn from.
            seed: Int, which together with the attribute `updates` determines the
                minibatches.

        Returns:
            Dict from log keys (docs/logs.md) to floats.

        Raises:
            ValueError: If the agent is not compiled, or `episodes` is invalid.
            FloatingPointError: If the loss or a gradient of any gradient step is not
                finite. All weights are restored. The attribute `episodes` of the error
                holds the episodes.
        """
        self._require_optimizer("update")
        trainer = self._trainer_for(episodes)
        self._build_optimizers()
        result = trainer.update(trainer.check_episodes(episodes), seed)
        metrics = episode_statistics.metrics(result.episode_returns, result.lengths)
        return {**metrics, **result.metrics}

    @keras_arguments.explained
    @locks.training
    def fit(
        self,
        env: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        episodes_per_epoch: int | None = None,
        steps_per_epoch: int | None = None,
        num_envs: int | None = None,
        workers: int | config.RayWorkers | None = None,
        seed: int = 0,
        callbacks: Any = None,
        validation_env: Any = None,
        validation_freq: int | Sequence[int] | None = None,
        validation_episodes: int | None = None,
        validation_deterministic: bool | None = None,
        initial_epoch: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        reset_options: Any = None,
        env_attrs: Any = None,
        max_episode_steps: int | None = None,
        resume: Any = None,
        on_bad_env: str | None = None,
        on_env_error: str | None = None,
        step_timeout: float | None = None,
        info_keys: Sequence[str] | None = None,
        verbose: str | int = "auto",
    ) -> keras.callbacks.History:
        """Trains on an environment: one epoch is one update from whole episodes.

        Arguments that are `None` take their values from the preset that was passed to
        `for_env`.

        Args:
            env: Environment id (also `module:Id-v0`), `EnvSpec`, callable,
                `gymnasium.Env` (which you close), `VectorEnv`, or `tfr.envs.TensorEnv`.
                All episodes of an update on a `TensorEnv` run in one XLA program. After
                `compile(steps_per_execution=U)`, U updates run before their callbacks.
            epochs: Int, the number of the last epoch.
            steps: Int, the environment steps to train for, instead of `epochs`.
            episodes_per_epoch: Int, the episodes of each update, by default 16.
            steps_per_epoch: Int, instead of `episodes_per_epoch`. An update then takes
                the fewest episodes with at least that many steps. The number of episodes
                depends on their lengths, which biases the gradient by the order of 1 /
                (number of episodes).
            num_envs: Int, how many environments are stepped as one batch, by default 8.
                The number does not change the result, and a `TensorEnv` ignores it.
            workers: Int, the number of processes that run the environments, or
                `tfr.collect.RayWorkers` for a Ray cluster. By default, the current
                process runs them. The number does not change the result. Several workers
                need an environment id, spec or callable.
            seed: Int for all random numbers. The same seed, machine and package versions
                give the same weights, to the bit.
            callbacks: Keras callback, or list of callbacks. `mode="auto"` maximizes
                returns and `success`.
            validation_env: Environment in which the policy is validated, with the
                `env_kwargs` and `max_episode_steps` of `env`, and in the current process.
                By default, `env` itself with `resume`, and none without.
            validation_freq: Int, the epochs between validations, or list of epochs (from
                1), by default 1, and 10 with `resume`.
            validation_episodes: Int, the episodes of each validation, by default 10, and
                100 with `resume`.
            validation_deterministic: Bool, whether validation takes the most likely
                actions, by default True. If sampled ones return clearly more, a hint says
                so.
            initial_epoch: Int, the number of the first epoch.
            env_kwargs: Dict of keyword arguments for the environment's constructor.
            reset_options: Dict that each `reset` receives as `options`, or function from
                the number of updates so far to such a dict. Validation uses a dict, but
                not a function (docs/howto_changing_environments.md).
            env_attrs: Dict of attributes to set in all environments before the episodes
                of an update, or function from the number of updates so far to such a
                dict. Validation uses a dict, but not a function.
            max_episode_steps: Int, after which an episode is truncated, by default the
                environment's time limit. A longer episode of a `VectorEnv` raises an
                error.
            resume: Path of the run directory (docs/command_line.md), or
                `tfr.Checkpoints`. `fit` then writes all files of a run. If the folder
                contains checkpoints of this training, `fit` continues from the newest
                one, to the same bits as without an interruption. After SIGINT or SIGTERM,
                it finishes the current update, and its validation if one is due, writes a
                checkpoint and ends.
            on_bad_env: `"raise"`, or `"drop_episode"` to replace an episode in which a
                plain environment returned an invalid value (`docs/environments.md`).
            on_env_error: `"raise"`, or `"restart"` to make an environment that raised an
                exception again, and to replace its episode. A worker process that dies is
                replaced too, and its episodes are played again.
            step_timeout: Float, the seconds, by default 300, after which a reset or step
                in a worker process counts as hanging.
            info_keys: Keys of numbers in the last `info` of an episode. Their means are
                logged under the same keys (docs/logs.md).
            verbose: 0 prints nothing, 1 or `"auto"` shows progress, 2 prints each epoch.

        Returns:
            Keras' `History`, with the metrics of every epoch.

        Raises:
            ValueError, TypeError: If an argument is invalid.
            EnvironmentFault: If the environment fails or returns an invalid value.
            FloatingPointError: If the loss or a gradient is not finite. The attribute
                `episodes` of the error holds the episodes of the update.
        """
        given = locals()
        options = {name: given[name] for name in config.FIT_OPTIONS}
        options["env_settings"] = config.EnvSettings(reset_options, env_attrs)
        defaults = self._fit_defaults
        options = config.FitOptions(**config.merge_options(defaults, options))
        first = validation.whole_number("initial_epoch", initial_epoch, low=0)
        given |= {"seed": validation.check_seed(seed), "initial_epoch": first}
        validation.one_of("verbose", verbose, ("auto", 0, 1, 2))
        limit, evaluation = options.max_episode_steps, defaults.get("evaluation")
        table = config.validation_table(given, evaluation, limit)
        callbacks = self._own_callbacks(callbacks, verbose)
        self._require_optimizer("fit")
        validator = validations.requested(self, given, options, table)
        opened: Any = contextlib.nullcontext()
        if resume is not None:
            opened = run_directory.of_agent(self, given, options, table, callbacks)
        with opened as run:
            history = self._train(given, options, callbacks, validator, run)
            if run is not None:
                run.finish(validator)
        return history

    def _train(
        self, given: Any, options: Any, callbacks: list, validator: Any, run: Any
    ) -> keras.callbacks.History:
        """Opens the environments of `fit`, and trains."""
        limits = {"env_kwargs": given["env_kwargs"], **options.limits}
        counts = dict(num_envs=options.num_envs, workers=options.workers)
        with self._open(given["env"], trains=True, **counts, **limits) as envs:
            envs.check_settings(options.env_settings)
            self._build_optimizers()
            if given["validation_env"] is not None:
                validator.check()
            callbacks = [*callbacks, *(run.callbacks if run else [])]
            return loop.run_loop(self, envs, given, options, callbacks, validator, run)

    def _own_callbacks(self, callbacks: Any, verbose: Any) -> list:
        """Returns the callbacks of `fit`, and a line of progress if it is `verbose`."""
        callbacks = [] if callbacks is None else keras.tree.flatten(callbacks)
        for callback in callbacks:
            validation.instance("callbacks", callback, keras.callbacks.Callback)
        if verbose == 2:
            callbacks.append(episode_callbacks.ProgressLine(every=0, live=False))
        elif verbose:
            callbacks.append(episode_callbacks.ProgressLine())
        return callbacks

    # Acting

    @keras_arguments.explained
    def evaluate(
        self,
        env: Any,
        episodes: int = 100,
        deterministic: bool = True,
        seed: int = 0,
        *,
        num_envs: int = 8,
        workers: int | config.RayWorkers = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        reset_options: Any = None,
        env_attrs: Any = None,
        max_episode_steps: int | None = None,
        on_bad_env: str = "raise",
        on_env_error: str = "raise",
        info_keys: Sequence[str] = (),
        per_episode: bool = False,
    ) -> dict[str, Any]:
        """Evaluates the policy on whole episodes, without an update.

        Every episode that starts is played to its end and counted, so that short episodes
        get no more weight than long ones. Even if you pass the seed of the training, the
        evaluation uses other random numbers than the training and its validation.

        Args:
            env: Environment, in any form that `fit` accepts.
            episodes: Int, the number of episodes.
            deterministic: Bool, whether to take the most likely actions.
            seed: Int for environments and actions.
            num_envs, workers, env_kwargs, max_episode_steps: As in `fit`.
            reset_options, env_attrs, on_bad_env, on_env_error: As in `fit`.
            info_keys: As in `fit`; a key that no episode has gives NaN and a warning.
            per_episode: Bool, whether to return an array with a number for each episode
                instead of statistics.

        Returns:
            Dict of floats: `episode_return`, `episode_return_min`, `episode_return_max`,
            `episode_return_std`, `episode_length`, `episodes`, `env_steps`, `info_keys`,
            and others of `docs/logs.md` if the environment reports success or episodes
            are replaced. With `per_episode`, dict of NumPy arrays for
            `pandas.DataFrame`, in the order in which the episodes started:
            `episode_return`, `episode_length`, `terminated`, `info_keys`, and `success`
            if the environment reports it.
        """
        key = seeding.StreamKey(validation.check_seed(seed), "evaluation", 0)
        episodes = validation.positive_int("episodes", episodes)
        per_episode = validation.boolean("per_episode", per_episode)
        num_envs = min(validation.positive_int("num_envs", num_envs), episodes)
        settings = config.EnvSettings(reset_options, env_attrs, info_keys)
        faults = dict(on_bad_env=on_bad_env, on_env_error=on_env_error)
        counts = dict(num_envs=num_envs, workers=workers)
        limits = dict(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps)
        with self._open(env, **counts, **limits, **faults) as envs:
            envs.check_settings(settings)
            options = deterministic, per_episode
            return self.trainer.evaluate(envs, key, episodes, settings, *options)

    def collect(
        self,
        env: Any,
        episodes: int | None = None,
        *,
        steps: int | None = None,
        num_envs: int = 8,
        workers: int | config.RayWorkers = 1,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        reset_options: Any = None,
        env_attrs: Any = None,
        max_episode_steps: int | None = None,
    ) -> records.Episodes:
        """Collects the episodes of the next update, without making it.

        Args:
            env: Environment in any form that `fit` accepts, or what
                `tfr.collect.open_envs` returns, which several calls can share.
            episodes: Int, the number of episodes, by default 16.
            steps: Int, instead of `episodes`. The result then has the fewest episodes
                with at least that many steps.
            num_envs, workers, seed, env_kwargs, max_episode_steps: As in `fit`.
            reset_options, env_attrs: As in `fit`.

        Returns:
            `Episodes`, for `update`.
        """
        settings = config.EnvSettings(reset_options, env_attrs)
        options = config.FitOptions(
            epochs=1,
            episodes_per_epoch=episodes,
            steps_per_epoch=steps,
            env_settings=settings,
        )
        seed = validation.check_seed(seed)
        more = dict(num_envs=num_envs, workers=workers, env_kwargs=env_kwargs)
        with self._open(env, max_episode_steps=max_episode_steps, **more) as envs:
            envs.check_settings(settings)
            return self.trainer.collect(envs, seed, *options.collection).episodes

    @contextlib.contextmanager
    def _open(self, env: Any, *, trains: Any = False, **options: Any) -> Iterator[Any]:
        """Opens environments, by default with the `env_kwargs` of `for_env`.

        The agent is built for their spaces. The options are those of `open_envs`.
        """
        if options["env_kwargs"] is None and isinstance(env, _IDS):
            options["env_kwargs"] = self._fit_defaults.get("env_kwargs")
        with make_envs.open_envs(env, **options) as envs:
            if trains:
                memory.expect_window(self.context, envs.max_episode_steps)
            self.build_for_spaces(envs.observation_space, envs.action_space)
            yield envs

    @keras_arguments.explained
    @locks.between_updates
    def act(
        self,
        observations: Any,
        deterministic: bool = False,
        seed: int | None = None,
        *,
        action_mask: ArrayLike | None = None,
        state: Any = None,
    ) -> Any:
        """Returns actions for a batch of observations, in the environment's units.

        Args:
            observations: N observations `[N, …]`, nested like the observation space.
            deterministic: Bool, whether to return the most likely actions.
            seed: Int. The same seed draws the same actions, also in the exported
                SavedModel. With `None`, every call draws other actions.
            action_mask: N masks if `info` contains the masks: `[N, M]`, or nested like
                those of `info` with N rows in each array, or a list of nested masks.
            state: What the previous call returned, for a policy with a memory. With
                `None`, new episodes start. To start one in row i only, set row i of each
                array to that of `state=None`, which is zero for the layers of Keras. If
                the policy reads rewards, store the N rewards for the last actions as
                `state["previous_reward"]` before each call.

        Returns:
            NumPy array of N actions, `[N, …]`, in the environment's units and type,
            nested like the action space. For a policy with a memory, the pair `(actions,
            state)`, where the state is a dict of arrays with N rows.

        Raises:
            ValueError: If the agent is not built, an argument has a wrong shape, or a
                mask has no legal action.
            FloatingPointError: If the outputs of the policy are not finite.
        """
        self._require_built()
        options = deterministic, seed, action_mask, state
        return self.trainer.live_policy().act(observations, *options)

    @locks.between_updates
    def export(self, filepath: str | os.PathLike, format: str = "tf_saved_model") -> None:
        """Writes the policy in a format that needs only TensorFlow, ONNX or LiteRT.

        The exported files contain a function for each of these tasks:

        - `act(observation) -> action` returns the most likely actions.
        - `distribution(observation) -> parameters` returns for example probabilities.
        - `sample(observation, seed) -> action, raw_action` draws random actions. In ONNX
          and LiteRT, the function takes noise instead of the seed.
        - `log_prob(observation, raw_action) -> log_prob` exists only in a SavedModel.

        A raw action is the sample of the head before it is clipped or rounded. All
        functions normalize observations as the agent does, and accept any batch size. If
        observations are nested, each of their arrays is an argument of its own.
        `docs/export.md` describes the files.

        Args:
            filepath: Path of a folder. If it contains an earlier export, this is replaced
                atomically. A folder with other files is refused.
            format: `"tf_saved_model"`, `"onnx"` or `"litert"`.
        """
        validation.one_of("format", format, tuple(formats.WRITERS))
        validation.path("filepath", filepath)
        self._require_built()
        layers = [self.policy, self.head, self.normalizer]
        formats.write(
            format, filepath, self.trainer.live_policy(), layers, self.observation_space
        )

    # Keras life cycle

    @property
    def jit_compile(self) -> bool | str:
        """Returns the argument `jit_compile` of `compile`: True, False or `"auto"`.

        Keras would replace `"auto"` by False on a machine without a GPU. This property
        keeps it, because XLA makes updates of many gradient steps several times faster.
        """
        return "auto" if self._jit_compile is None else self._jit_compile

    @jit_compile.setter
    def jit_compile(self, value: bool | str) -> None:
        validation.one_of("jit_compile", value, config.JIT_COMPILE)
        self._jit_compile = value if value == "auto" else bool(value)

    predict = locks.in_usable_process(keras.Model.predict)

    def build(self, observations_shape: Any) -> None:
        """Builds the agent for N observations of a shape `[N, …]`, or nested shapes."""
        self._trainer = building.build(self, observations_shape)

    def call(self, observations: Any, training: bool = False) -> Any:
        return self.trainer.estimator.forward(observations)[0]

    updates = property(lambda self: self._counted()[0])
    episodes_seen = property(lambda self: self._counted()[1])
    env_steps = property(lambda self: self._counted()[2])

    def _counted(self) -> list[int]:
        return self.counters.numpy().tolist() if self.built else [0, 0, 0]

    @property
    def policy_variables(self) -> list[keras.Variable]:
        """Returns the trainable weights of policy and head, for the optimizer."""
        return self.trainer.estimator.variables

    @property
    @locks.between_updates
    def trainer(self) -> trainers.Trainer:
        """Returns the `engine.trainer.Trainer` of a built agent.

        The traced programs of a trainer contain constants. If one of them has changed,
        for example because `adapt` of a normalization layer was called, the trainer is
        renewed.
        """
        self._trainer = self._trainer.current()
        return self._trainer

    @property
    def _options(self) -> config.AgentOptions:
        names = config.AGENT_OPTIONS
        return config.AgentOptions(**{name: getattr(self, name) for name in names})

    @property
    def _models(self) -> list[keras.Model]:
        """Returns a list of the policy, and of the baseline's model if it has one."""
        value_model = getattr(self.baseline, "model", None)
        return [self.policy] if value_model is None else [self.policy, value_model]

    def build_for_env(self, env: Any) -> None:
        """Builds a compiled agent, and its optimizer, for an environment.

        Args:
            env: Object with `observation_space` and `action_space`.

        Raises:
            ValueError: If the agent is not compiled, was built for other spaces, or the
                environment has none.
        """
        self._require_optimizer()
        if not hasattr(env, "action_space"):
            raise ValueError(f"`env` must have spaces. Received: env={env!r}")
        self.build_for_spaces(env.observation_space, env.action_space)
        self._build_optimizers()

    @locks.between_updates
    def build_for_spaces(
        self, observation_space: gym.Space, action_space: gym.Space
    ) -> None:
        """Builds the agent for two spaces; raises if it was built for others.

        Args:
            observation_space, action_space: `gymnasium.Space`.
        """
        previous = self.observation_space, self.action_space
        if self.built and previous == (observation_space, action_space):
            return
        spaces.check_same_spaces(previous, (observation_space, action_space))
        if self.head is None:
            spaces.check_action_space(action_space)
        else:
            self.head.check_space(action_space)
        spec = records.observation_spec(observation_space, "float32")
        if self.built:
            records.expect_shapes(self.trainer.actor.observation_spec, spec)
        self.observation_space, self.action_space = observation_space, action_space
        if self.built:
            return
        try:
            self.build(records.shapes_with_axes(spec, None))
        except Exception:
            # The agent can still be built for other spaces.
            self.observation_space, self.action_space = previous
            raise

    def _trainer_for(self, episodes: records.Episodes) -> trainers.Trainer:
        """Returns the trainer, and builds the agent from `episodes` before if need be."""
        validation.instance("episodes", episodes, records.Episodes)
        if not self.built:
            arrays = keras.tree.map_structure(np.asarray, episodes.observations)
            self.build(keras.tree.map_structure(lambda x: (None, *x.shape[2:]), arrays))
        return self.trainer

    def _build_optimizers(self) -> None:
        """Builds the optimizers of policy and value model, unless they are built."""
        owners = [(self, self.policy_variables)]
        if len(self._models) > 1:  # its optimizer may have been replaced
            owners.append((self.baseline, self._models[1].trainable_variables))
        for owner, variables in owners:
            optimizer = getattr(owner, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                strategy, own = self._distribute_strategy, optimizer.variables
                learner_processes.check_same_scope(strategy, {"optimizer": own})
                with learner_processes.scope(strategy):
                    optimizers.build(optimizer, variables)

    def _require_optimizer(self, method: str | None = None) -> None:
        if method is not None and tf.distribute.has_strategy():
            learner_processes.check_outside_scope(method)
        if getattr(self, "optimizer", None) is None:
            raise ValueError(
                "The agent is not compiled. Call "
                "`agent.compile(optimizer=keras.optimizers.Adam(1e-2))` first."
            )

    def _require_built(self) -> None:
        if not self.built:
            raise ValueError(f"The agent is not built. {building.UNKNOWN_HEAD}")

    @locks.between_updates
    def save(
        self, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any
    ) -> None:
        """Writes the agent to a `.keras` file, with all weights and optimizer states.

        If writing fails, an existing file stays unchanged. Only numbers and booleans of
        the `env_kwargs` of `for_env` are stored, so other values must be passed to `fit`
        again after loading.

        Raises:
            ValueError: If the file name does not end in `.keras`, or the agent is not
                built.
            FileExistsError: If the file exists and `overwrite` is False.
        """
        self._require_built()
        target = filepath, overwrite, ".keras", "an agent"
        with files.atomic_model_file(*target) as temporary_path:
            self._build_optimizers()
            super().save(temporary_path, **kwargs)

    @locks.between_updates
    def save_weights(self, filepath: str | os.PathLike, overwrite: bool = True) -> None:
        """Writes the weights to one file atomically, in the format of Keras."""
        self._require_built()
        self._build_optimizers()
        target = filepath, overwrite, ".weights.h5", "weights", self
        with files.atomic_model_file(*target) as temporary_path:
            super().save_weights(temporary_path)

    @locks.between_updates
    def load_weights(self, filepath: str | os.PathLike, **kwargs: Any) -> None:
        """Loads weights as in Keras, and the optimizer state if the agent is compiled."""
        self._require_built()
        self._build_optimizers()
        super().load_weights(filepath, **kwargs)

    get_weights = locks.between_updates(keras.Model.get_weights)
    set_weights = locks.between_updates(keras.Model.set_weights)
    __reduce__ = locks.between_updates(keras.Model.__reduce__)  # for copies

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "policy": serialize(self.policy),
            "head": serialize(self.head),
            "baseline": serialize(self.baseline),
            **{name: getattr(self, name) for name in config.AGENT_OPTIONS},
            "entropy_coef": serialize(self.entropy_coef),
            "learning_rates": [list(rate) for rate in self._learning_rates],
            "fit_defaults": toml_files.safe_defaults(self._fit_defaults),
            "observation_space": spaces.to_config(self.observation_space),
            "action_space": spaces.to_config(self.action_space),
            **version.stamp(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Reinforce":
        config = version.unstamped("Reinforce", "The agent", config)
        for part in config.keys() & {"policy", "head", "baseline", "entropy_coef"}:
            config[part] = keras.saving.deserialize_keras_object(config[part])
        own_spaces = [config.pop(f"{x}_space", None) for x in ("observation", "action")]
        rates = config.pop("learning_rates", [])
        defaults = config.pop("fit_defaults", {"env_kwargs": {}})
        agent = cls(**config)
        agent._learning_rates = building.check_rates(rates, agent.baseline)
        agent._fit_defaults = toml_files.check_defaults(defaults)
        agent.observation_space, agent.action_space = map(spaces.from_config, own_spaces)
        if agent.action_space is not None and agent.head is not None:
            agent.head.check_space(agent.action_space)
        return agent

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        return config and {**config, "normalizes_integers": self._normalizes_integers}

    def build_from_config(self, config: dict[str, Any]) -> None:
        # Agents of earlier versions do not normalize integers.
        self._normalizes_integers = config.get("normalizes_integers", False)
        self.build(config["input_shape"])  # Keras would ignore an error of `build`

    def get_compile_config(self) -> dict[str, Any] | None:
        config = super().get_compile_config()
        return config and {**config, "jit_compile": self.jit_compile}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        # Keras saves all arguments.
        config = {k: x for k, x in config.items() if k not in _WITHOUT_EFFECT}
        # Keras would also build the optimizer on the weights of the baseline, and then
        # discard the saved state.
        rates = self._learning_rates
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self._build_optimizers()
        self._learning_rates = rates
