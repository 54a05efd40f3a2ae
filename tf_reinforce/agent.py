"""REINFORCE on one page: what a newcomer reads first.

`Reinforce.gradients` is the algorithm; everything below this floor is mathematics,
everything above it convenience.
"""

import os
import time

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import (
    baselines,
    callbacks as episode_callbacks,
    checkpoints,
    evaluation,
    export,
    heads,
    losses,
    normalization,
    policies,
    returns as return_functions,
    seeding,
    spaces,
    training,
)
from tf_reinforce import episodes as records
from tf_reinforce.collect import acting, fleets, host

_WAYS_OUT = (
    "Its head depends on the action space, which is not known yet. Three ways out: "
    "give the head (`Reinforce(policy, head=tfr.heads.Categorical(2))`), call "
    "`agent.fit(env, …)`, which asks the environment, or make the agent with "
    "`Reinforce.for_env(env)`."
)


@keras.saving.register_keras_serializable("tf_reinforce")
class Reinforce(keras.Model):
    """A Keras model that learns from whole episodes with REINFORCE.

        ∇J = E[ Σₜ ∇ log π(aₜ|sₜ) (Gₜ - b) ],    Gₜ = Σ_{k≥t} γᵏ⁻ᵗ rₖ

    The policy is any Keras model; its outputs become a distribution over actions.
    With γ = 1, with `discount_states=True` or with `returns="whole"` the update is an
    unbiased estimate of the gradient of the expected discounted return. Without them
    (the field's habit, and the default) the factor γᵗ is left out: each step counts
    as much as the first, and the update follows no function exactly.

    Layers with a training mode (Dropout, BatchNormalization) run in inference mode
    everywhere: the policy that acts and the one that learns must be the same.

    Args:
        policy: Keras model from observations to `[N, P]` outputs, or to a dict with
            `"outputs"` and `"values"` where a `Value` baseline shares its trunk.
        head: `tfr.heads.Head`. Defaults to the one for the environment's actions.
        baseline: `"leave_one_out"`, `"mean"`, `None`, or a `tfr.baselines.Baseline`.
        gamma: Float in [0, 1], the discount. Zero: only the next reward counts.
        gae_lambda: Float in [0, 1]. Below 1 the return leans on a value baseline:
            less variance, biased unless the value is exact.
        returns: `"to_go"`: an action answers for what follows it. `"whole"`: for
            the whole episode's return G₀; unbiased for the discounted return, and
            noisier.
        discount_states: Bool. True weights step t of `"to_go"` by γᵗ.
        scale_advantages: `None`, or `"batch"`: divides by the batch's root mean
            square. With `baseline="mean"` this is z-scoring. Biased.
        entropy_coef: Float ≥ 0. Adds `entropy_coef` × E[Σₜ H(π(·|sₜ))] to the
            objective.
        normalize_observations: Bool. True puts a `RunningNormalization` in front of
            the policy and of a `Value` baseline.

    Attributes:
        updates: Int64 weight, how many updates were made. Update u draws from the
            random streams of update u, also after loading.
        episodes_seen, env_steps: Int64 weights, what they were made from.

    Example:

    >>> policy = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> agent = Reinforce(policy, gamma=0.99)
    >>> agent.compile(optimizer=keras.optimizers.Adam(1e-2))
    >>> history = agent.fit("CartPole-v1", epochs=2, episodes_per_epoch=4, verbose=0)
    >>> len(history.history["episode_return"]), int(agent.updates)
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
        entropy_coef=0.0,
        normalize_observations=False,
        name="reinforce",
        **kwargs,
    ):
        # The policy casts for itself; casting here would blunt a float64 policy.
        super().__init__(name=name, **{"autocast": False, **kwargs})
        self.policy = _instance("policy", policy, keras.Model)
        self.head = head if head is None else _instance("head", head, heads.Head)
        self.baseline = baselines.get(baseline)
        self.gamma = _within("gamma", gamma, 0, 1)
        self.gae_lambda = _within("gae_lambda", gae_lambda, 0, 1)
        self.returns = _one_of("returns", returns, ("to_go", "whole"))
        self.discount_states = bool(discount_states)
        self.scale_advantages = _one_of(
            "scale_advantages", scale_advantages, (None, "batch")
        )
        self.entropy_coef = _within("entropy_coef", entropy_coef, 0, np.inf)
        self.normalize_observations = bool(normalize_observations)
        self.normalizer = (
            normalization.RunningNormalization() if normalize_observations else None
        )
        self.observation_space = self.action_space = None
        self._acting = {}  # acting programs, by whether they are greedy
        self._traced = self._functions = None
        if gae_lambda < 1 and not self.baseline.values_states:
            raise ValueError(
                "`gae_lambda` below 1 needs a baseline that values states, "
                "tfr.baselines.Value(model): without one it would only discount more. "
                f"Received: gae_lambda={gae_lambda}, baseline={baseline!r}"
            )

    @classmethod
    def for_env(cls, env, hidden=(64, 64), seed=0, *, learning_rate=1e-2, **kwargs):
        """An agent with a default policy of the right shape, built and compiled.

        Tanh layers with orthogonal weights from the seed; the last one is scaled by
        0.01, so that training starts from a nearly even policy.

        Args:
            env: Whatever `fit` takes.
            hidden: Sizes of the hidden layers.
            seed: Int; the initial weights are a function of it.
            learning_rate: Float, of Adam.
            **kwargs: As for `Reinforce`.

        Example:

        >>> agent = Reinforce.for_env("CartPole-v1", hidden=(32,))
        >>> agent(np.zeros([5, 4], "float32")).shape
        TensorShape([5, 2])
        """
        seed = seeding.check_seed(seed)
        with fleets.open_fleet(env, 1) as fleet:
            observation_space, action_space = fleet.observation_space, fleet.action_space
        head = kwargs.pop("head", None)
        head = head or heads.for_space(spaces.check_action_space(action_space))
        structure = spaces.structure(observation_space, "float32")
        policy = policies.default(structure, hidden, head.outputs_size, seed)
        agent = cls(policy, head, **kwargs)
        agent._meet(observation_space, action_space)
        agent.compile(optimizer=keras.optimizers.Adam(learning_rate))
        return agent

    # The algorithm

    def gradients(self, episodes):
        """The policy gradient of one batch of episodes, and what is known about it.

        Nothing is changed. Gradients stop at returns, baseline and values.

        Args:
            episodes: `Episodes`; a record made by hand is checked by `update`.

        Returns:
            A list with ∂L/∂w for each of `policy_variables`, where -L is the
            objective; a list for `baseline.learn`; and a dict of scalars: `loss`,
            `policy_loss`, `value_loss`, `entropy` (mean over steps, in nats) and
            `gradient_norm`.
        """
        episodes = records.trim(episodes)
        count = tf.size(episodes.lengths)
        steps = records.steps(episodes.lengths, tf.shape(episodes.rewards)[0])
        observations = steps.pick(self._first_rows(episodes.observations))
        targets, advantages = self._targets(episodes)
        targets, advantages = steps.pick(targets), steps.pick(advantages)

        with tf.GradientTape() as tape:
            outputs, values = self._forward(observations)
            actions = self.head.distribution(outputs)
            log_probs = actions.log_prob(steps.pick(episodes.actions))
            entropies = actions.entropy()
            policy_loss = losses.policy_gradient(log_probs, advantages, count)
            loss = policy_loss + _sum(self.policy.losses, policy_loss.dtype)
            if self.entropy_coef:
                loss += self.entropy_coef * losses.entropy(entropies, count)
            value_loss = tf.constant(np.nan, loss.dtype)
            if values is not None:
                value_loss = losses.value(values, targets, count)
                loss += self.baseline.loss_weight * value_loss
            scaled = self._scale_loss(loss)
        gradients = tape.gradient(scaled, self.policy_variables)
        unscale = 1.0 / self._scale_loss(tf.ones([], loss.dtype))
        gradients = [
            tf.zeros_like(v) if g is None else tf.cast(unscale, g.dtype) * g
            for g, v in zip(gradients, self.policy_variables, strict=True)
        ]
        if self._separate_values:
            value_loss, baseline_gradients = self.baseline.gradients(
                self._normalized(observations), targets, count
            )
        else:
            baseline_gradients = []
        logs = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": tf.reduce_mean(entropies),
            "gradient_norm": tf.linalg.global_norm(gradients),
        }
        return gradients, baseline_gradients, logs

    def update(self, episodes):
        """Makes one update from a record, collected here or by you.

        Gradients, finite check, step, `baseline.learn`, normaliser, in this order:
        every part of one update sees the parts as they acted.

        Args:
            episodes: `Episodes`. No environment is needed when the head was given.

        Returns:
            Dict of floats under the log keys.

        Raises:
            ValueError: when the agent is not compiled, or the record is misshapen.
            FloatingPointError: when loss or gradients are not finite. All weights
                are then as they were.
        """
        self._ready(episodes)
        episodes = records.check(
            episodes,
            self._structure,
            self.head.action_shape,
            self.head.action_dtype or self._float,
        )
        self.head.check_actions(episodes.actions, episodes.lengths)
        finite, logs = self._update_function()(episodes)
        if not finite:
            raise FloatingPointError(self._diagnosis(episodes))
        logs = {name: float(value) for name, value in logs.items()}
        logs.update(evaluation.figures(episodes))
        logs["env_steps"] = float(self.env_steps)
        logs["learning_rate"] = float(self.optimizer.learning_rate)
        return logs

    def _targets(self, episodes):
        """Returns and advantages, `[T, B]` each, in the type of the rewards."""
        rows = tf.shape(episodes.rewards)[0]
        valid = records.valid(episodes.lengths, rows)
        rewards = tf.where(valid, episodes.rewards, 0.0)
        values = self._values(episodes, rewards.dtype)
        discounts, lambdas = return_functions.coefficients(
            valid,
            episodes.lengths,
            episodes.terminated,
            self.gamma,
            self.gae_lambda,
            rewards.dtype,
        )
        targets = return_functions.lambda_returns(
            rewards, discounts, values[1:], lambdas
        )
        credited = targets
        if self.returns == "whole":
            credited = tf.where(valid, targets[:1], 0.0)
        baseline = self.baseline.estimate(credited, valid, values[:-1])
        advantages = credited - baseline
        if self.discount_states and self.returns == "to_go":
            powers = tf.range(tf.cast(rows, rewards.dtype))[:, None]
            advantages *= tf.constant(self.gamma, rewards.dtype) ** powers
        if self.scale_advantages == "batch":
            square = tf.reduce_sum(tf.square(advantages))
            count = tf.reduce_sum(tf.cast(valid, rewards.dtype))
            advantages /= tf.sqrt(square / count) + 1e-8
        return targets, advantages

    def _values(self, episodes, dtype):
        """`[T + 1, B]`: what a value baseline expects; zeros without one."""
        rows = tf.shape(episodes.rewards)[0] + 1
        if not self.baseline.values_states:
            return tf.zeros([rows, tf.size(episodes.lengths)], dtype)
        # The observation after the last action counts too: it may be bootstrapped.
        steps = records.steps(episodes.lengths + 1, rows)
        observations = steps.pick(episodes.observations)
        if self._separate_values:
            values = self.baseline.values(self._normalized(observations))
        else:
            _, values = self._forward(observations)
        return steps.spread(tf.stop_gradient(tf.cast(values, dtype)))

    def _step(self, episodes):
        """One update as a graph: nothing changes unless everything is finite."""
        gradients, baseline_gradients, logs = self.gradients(episodes)
        finite = tf.math.is_finite(logs["loss"])
        # Keras' own loss scaling meets overflows by skipping the step itself.
        skips = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        checked = baseline_gradients if skips else [*gradients, *baseline_gradients]
        for gradient in checked:
            finite &= tf.reduce_all(tf.math.is_finite(gradient))

        def apply():
            scale = self._scale_loss(tf.ones([], logs["loss"].dtype))
            self.optimizer.apply(
                [tf.cast(scale, g.dtype) * g for g in gradients], self.policy_variables
            )
            self.baseline.learn(baseline_gradients)
            if self.normalizer is not None:
                steps = records.steps(episodes.lengths, tf.shape(episodes.rewards)[0])
                self.normalizer.update(
                    steps.pick(self._first_rows(episodes.observations))
                )
            self.updates.assign_add(1)
            self.episodes_seen.assign_add(tf.size(episodes.lengths, tf.int64))
            steps = tf.reduce_sum(tf.cast(episodes.lengths, tf.int64))
            self.env_steps.assign_add(steps)
            return finite

        return tf.cond(finite, apply, lambda: finite), logs

    # The loop

    def fit(
        self,
        env,
        *,
        epochs=None,
        steps=None,
        episodes_per_epoch=None,
        steps_per_epoch=None,
        num_envs=8,
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

        Args:
            env: Environment id (also `module:Id-v0`), `EnvSpec`, callable,
                `gymnasium.Env` (runs alone, its owner closes it) or `VectorEnv`.
            epochs: Int, the number of the last epoch.
            steps: Int instead: train until so many environment steps were learned.
            episodes_per_epoch: Int, episodes per update. Defaults to 16.
            steps_per_epoch: Int instead: the fewest episodes with so many steps.
                Then the number of episodes depends on their lengths, and their mean
                is biased by a term of order 1 / episodes.
            num_envs: Int, environments side by side. Does not change the result.
            seed: Int. Same seed, machine and versions: same weights, to the bit.
            callbacks: List of Keras callbacks. Those that monitor a log key of ours
                with `mode="auto"` get the right mode.
            validation_env: As `env`; the greedy policy is evaluated on it.
            validation_freq: Int, or list of epochs (counted from 1).
            validation_episodes: Int.
            initial_epoch: Int; only numbers the epochs for the callbacks.
            env_kwargs: Dict for the environment's constructor.
            max_episode_steps: Int, a time limit. Defaults to the environment's own.
            verbose: 0 silent, 1 or `"auto"` a progress line.

        Returns:
            Keras' `History`.

        Raises:
            ValueError, TypeError: when an argument is not acceptable.
            EnvironmentFault: when the environment fails or answers with nonsense.
            FloatingPointError: when an update would not be finite.
        """
        epochs, steps, episodes, batch_steps = training.budget(
            epochs, steps, episodes_per_epoch, steps_per_epoch
        )
        seed = seeding.check_seed(seed)
        num_envs = training.positive_int("num_envs", num_envs)
        options = dict(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps)

        def epoch():
            began = time.perf_counter()
            collected = self._collect(
                fleet, "training", self.updates, seed, episodes, batch_steps
            )
            first, update = int(self.episodes_seen), int(self.updates)
            logs = self.update(collected.episodes)
            logs.update(evaluation.successes(collected.success))
            taken = int(collected.episodes.lengths.sum())
            logs["steps_per_second"] = taken / (time.perf_counter() - began)
            return logs, evaluation.rows(collected.episodes, first, update)

        def validate():
            return self._play(
                validation_env,
                "validation",
                self.updates,
                seed,
                validation_episodes,
                num_envs,
                options,
            )

        callbacks = list(callbacks or [])
        if verbose:
            callbacks.append(episode_callbacks.ProgressLine())
        with fleets.open_fleet(env, num_envs, **options) as fleet:
            self._meet(fleet.observation_space, fleet.action_space)
            self._ready()
            return training.run(
                self,
                epoch,
                validate if validation_env is not None else None,
                callbacks,
                epochs=epochs,
                steps=steps,
                initial_epoch=initial_epoch,
                freq=validation_freq,
            )

    def evaluate(
        self,
        env,
        episodes=100,
        deterministic=True,
        seed=0,
        *,
        num_envs=8,
        env_kwargs=None,
        max_episode_steps=None,
    ):
        """Plays whole episodes and changes nothing in the agent.

        Exactly `episodes` episodes are started, finished and counted, so that short
        ones are not preferred. They are other episodes than those of training and
        validation under the same seed.

        Args:
            env: As for `fit`.
            episodes: Int.
            deterministic: Bool. True takes the most likely action.
            seed: Int.
            num_envs, env_kwargs, max_episode_steps: As for `fit`.

        Returns:
            Dict of floats: `episode_return`, `_min`, `_max`, `_std`,
            `episode_length`, `episodes`, `env_steps`, and `success` where the
            environment reports it.
        """
        options = dict(env_kwargs=env_kwargs, max_episode_steps=max_episode_steps)
        seed = seeding.check_seed(seed)
        return self._play(
            env, "evaluation", 0, seed, episodes, num_envs, options, deterministic
        )

    def act(self, observations, deterministic=False, seed=None):
        """Actions for a batch of observations, ready for the environment.

        Args:
            observations: `[N, …]` array, or the structure of the space with arrays.
            deterministic: Bool. True takes the most likely actions.
            seed: Int; the same seed draws the same actions, here and in the export.
                `None` draws fresh ones.

        Returns:
            `[N, …]` NumPy array in the environment's units and type.
        """
        if not self.built:
            raise ValueError(f"The agent is not built. {_WAYS_OUT}")
        observations = self._batch(observations)
        functions = self._endpoints()
        if deterministic:
            return functions["act"](observations)["action"].numpy()
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
        seed = tf.constant(seeding.check_seed(seed), tf.int64)
        return functions["sample"](observations, seed)["action"].numpy()

    # Being a Keras model

    def build(self, observations_shape):
        if self.head is None and self.action_space is None:
            raise ValueError(f"The agent cannot be built. {_WAYS_OUT}")
        if not self.policy.built:
            self.policy.build(observations_shape)
        double = any(w.dtype == "float64" for w in self.policy.weights)
        self._float = "float64" if double else "float32"
        self._structure = (
            spaces.structure(self.observation_space, self._float)
            if self.observation_space is not None
            else spaces.of_shapes(observations_shape, self._float)
        )
        if self.head is None:
            self.head = heads.for_space(self.action_space, dtype=self._float)
        if self.normalizer is not None and not self.normalizer.built:
            self.normalizer.build(observations_shape)
        self._check_policy()
        if not self.head.built:
            self.head.build((None, self.head.outputs_size))
        if not self.baseline.built:
            self.baseline.build(observations_shape)
        count = dict(shape=(), initializer="zeros", dtype="int64", trainable=False)
        self.updates = self.add_weight(name="updates", **count)
        self.episodes_seen = self.add_weight(name="episodes_seen", **count)
        self.env_steps = self.add_weight(name="env_steps", **count)
        policies.announce_inference(self.policy)

    def call(self, observations, training=False):
        return self._forward(observations)[0]

    @property
    def policy_variables(self):
        """The trainable weights of policy and head, which the optimizer owns."""
        return [*self.policy.trainable_variables, *self.head.trainable_variables]

    def save(self, filepath, overwrite=True, **kwargs):
        """Writes the whole agent to a `.keras` file: all that decides and all that learns.

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
        if not self.built:
            raise ValueError(f"The agent is not built. {_WAYS_OUT}")
        if not overwrite and os.path.exists(path):
            raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it.")
        with checkpoints.replacing(path) as aside:
            super().save(aside, **kwargs)

    def save_weights(self, filepath, overwrite=True, **kwargs):
        path = os.fspath(filepath)
        if not overwrite and os.path.exists(path):
            raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it.")
        with checkpoints.replacing(path) as aside:
            super().save_weights(aside, **kwargs)

    def export(self, filepath, format="tf_saved_model"):
        """Writes the policy as a SavedModel that needs only TensorFlow.

        Signatures: `act(observation) -> action`, `sample(observation, seed) ->
        action, raw_action`, `distribution(observation) -> its parameters`,
        `log_prob(observation, raw_action) -> log_prob`. Any batch size; actions in
        the environment's units; normaliser, head and bounds inside. A nested
        observation enters by name.

        Args:
            filepath: Path of the folder. One that is there is replaced whole.
            format: `"tf_saved_model"`.
        """
        _one_of("format", format, ("tf_saved_model",))
        if not self.built:
            raise ValueError(f"The agent is not built. {_WAYS_OUT}")
        deciding = [self.policy, self.head, self.normalizer]
        layers = [layer for layer in deciding if layer is not None and layer.variables]
        export.saved_model(filepath, self._endpoints(), layers)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "policy": serialize(self.policy),
            "head": serialize(self.head),
            "baseline": serialize(self.baseline),
            "gamma": self.gamma,
            "gae_lambda": self.gae_lambda,
            "returns": self.returns,
            "discount_states": self.discount_states,
            "scale_advantages": self.scale_advantages,
            "entropy_coef": self.entropy_coef,
            "normalize_observations": self.normalize_observations,
            "observation_space": spaces.to_config(self.observation_space),
            "action_space": spaces.to_config(self.action_space),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in ("policy", "head", "baseline"):
            config[part] = keras.saving.deserialize_keras_object(config[part])
        known = [config.pop(f"{name}_space", None) for name in ("observation", "action")]
        agent = cls(**config)
        agent.observation_space, agent.action_space = map(spaces.from_config, known)
        return agent

    def compile_from_config(self, config):
        # Keras would build the optimizer on the baseline's weights too, and then
        # drop the state it saved.
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.policy_variables)

    # What the parts above lean on

    def _forward(self, observations):
        """Outputs `[N, P]` and values `[N]`, or `None` where the policy has none."""
        outputs = self.policy(self._normalized(observations), training=False)
        values = None
        if isinstance(outputs, dict):
            outputs, values = outputs["outputs"], outputs["values"][:, 0]
        if outputs.dtype in (tf.float16, tf.bfloat16):
            outputs = tf.cast(outputs, tf.float32)
        if values is not None:
            values = tf.cast(values, outputs.dtype)
        return outputs, values

    def _normalized(self, observations):
        return observations if self.normalizer is None else self.normalizer(observations)

    def _first_rows(self, observations):
        return keras.tree.map_structure(lambda array: array[:-1], observations)

    def _scale_loss(self, loss):
        optimizer = getattr(self, "optimizer", None)
        return loss if optimizer is None else optimizer.scale_loss(loss)

    @property
    def _separate_values(self):
        return self.baseline.values_states and self.baseline.model is not None

    def _meet(self, observation_space, action_space):
        """Takes the spaces of an environment, or refuses other ones than before."""
        met = observation_space, action_space
        spaces.expect_spaces((self.observation_space, self.action_space), met)
        if self.head is None:
            spaces.check_action_space(action_space)
        self.observation_space, self.action_space = met
        if not self.built:
            structure = spaces.structure(observation_space, "float32")
            self.build(
                keras.tree.map_structure(lambda x: (None, *x.shape), structure)
            )

    def _ready(self, episodes=None):
        """Whatever an update needs: built, compiled, and the optimizer's state made."""
        if getattr(self, "optimizer", None) is None:
            raise ValueError(
                "The agent is not compiled. Call "
                "`agent.compile(optimizer=keras.optimizers.Adam(1e-2))` first."
            )
        if not self.built:
            shapes = keras.tree.map_structure(
                lambda array: (None, *np.shape(array)[2:]), episodes.observations
            )
            self.build(shapes)
        if not self.optimizer.built:
            self.optimizer.build(self.policy_variables)

    def _check_policy(self):
        outputs = policies.try_out(self.policy, self._structure)
        shared = self.baseline.values_states and self.baseline.model is None
        if shared != isinstance(outputs, dict):
            raise ValueError(
                'A policy with two outputs, {"outputs": …, "values": …}, and a '
                "`Value()` baseline without a model belong together. Received: "
                f"outputs {keras.tree.map_structure(lambda x: x.shape, outputs)} and "
                f"the baseline {type(self.baseline).__name__}"
            )
        self.head.check_outputs((outputs["outputs"] if shared else outputs).shape)

    def _update_function(self):
        """The traced update; made anew only for another optimizer or other weights."""
        key = (self.optimizer, *map(id, self.policy_variables))
        if self._traced is None or self._traced[0] != key:
            spec = tf.TensorSpec
            record = records.Episodes(
                keras.tree.map_structure(
                    lambda x: spec((None, None, *x.shape), x.dtype), self._structure
                ),
                spec(
                    (None, None, *self.head.action_shape),
                    self.head.action_dtype or self._float,
                ),
                spec((None, None), tf.float64),
                spec((None,), tf.int32),
                spec((None,), tf.bool),
            )
            function = tf.function(
                self._step, input_signature=[record], autograph=False
            )
            self._traced = (key, function)
        return self._traced[1]

    def _collect(self, fleet, purpose, update, seed, episodes, steps, greedy=False):
        if greedy not in self._acting:
            self._acting[greedy] = self._make_acting(greedy)
        structure = fleet.prepare(self._float)
        return host.collect(
            fleet,
            structure,
            self._acting[greedy].rows(fleet.size),
            self.head,
            self._float,
            seed=seed,
            purpose=purpose,
            update=int(update),
            episodes=episodes,
            steps=steps,
            deterministic=greedy,
        )

    def _play(
        self, env, purpose, update, seed, episodes, num_envs, options, greedy=True
    ):
        episodes = training.positive_int("episodes", episodes)
        num_envs = min(training.positive_int("num_envs", num_envs), episodes)
        with fleets.open_fleet(env, num_envs, **options) as fleet:
            self._meet(fleet.observation_space, fleet.action_space)
            played = self._collect(fleet, purpose, update, seed, episodes, None, greedy)
        return evaluation.figures(played.episodes, played.success)

    def _make_acting(self, greedy):
        rng = seeding.generator(0, "parity")
        return acting.Acting(
            lambda observations: self._forward(observations)[0],
            self.head,
            self._structure,
            self._float,
            [
                *self.policy.variables,
                *self.head.variables,
                *(self.normalizer.acting_variables if self.normalizer else ()),
            ],
            spaces.examples(self.observation_space, self._float, 8, rng),
            rng.random((8, *self.head.noise.shape)).astype(self._float),
            greedy,
        )

    def _endpoints(self):
        if self._functions is None:
            action_dtype = self.head.action_dtype or self._float
            if self.action_space is not None:
                action_dtype = self.action_space.dtype
            self._functions = export.endpoints(
                lambda observations: self._forward(observations)[0],
                self.head,
                self._structure,
                action_dtype,
                self._float,
            )
        return self._functions

    def _batch(self, observations):
        def tensor(leaf, array):
            array = np.asarray(array)
            if array.shape[1:] != tuple(leaf.shape) or array.ndim != len(leaf.shape) + 1:
                raise ValueError(
                    "`observations` must be a batch of shape "
                    f"{(None, *leaf.shape)}. Received: shape {array.shape}. "
                    "Give a single observation as `observation[None]`."
                )
            return tf.constant(array, leaf.dtype)

        return keras.tree.map_structure(tensor, self._structure, observations)

    def _diagnosis(self, episodes):
        """Names the first step, and the variable, at which an update is not finite."""
        episodes = records.trim(episodes)
        steps = records.steps(episodes.lengths, tf.shape(episodes.rewards)[0])
        observations = steps.pick(self._first_rows(episodes.observations))
        outputs, _ = self._forward(observations)
        actions = self.head.distribution(outputs)
        log_probs = actions.log_prob(steps.pick(episodes.actions))
        _, advantages = self._targets(episodes)
        suspects = {
            "observation": keras.tree.flatten(observations)[0],
            "reward": steps.pick(episodes.rewards),
            "outputs": outputs,
            "log-probability": log_probs,
            "advantage": steps.pick(advantages),
        }
        blame = ""
        for name, values in suspects.items():
            rows = np.reshape(values, (len(values), -1))
            wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if len(wrong):
                step, episode = steps.addresses[wrong[0]].numpy()
                value = np.asarray(values)[wrong[0]]
                blame = f" In episode {episode}, step {step}, the {name} is {value}."
                break
        gradients, baseline_gradients, _ = self.gradients(episodes)
        trained = [*self.policy_variables, *self.baseline.trainable_variables]
        for variable, gradient in zip(trained, [*gradients, *baseline_gradients]):
            if not np.isfinite(gradient).all():
                blame += f" The gradient of {variable.path} is not finite."
                break
        return (
            f"Update {int(self.updates)} would not be finite and was not made; all "
            f"weights are as they were.{blame} Try a smaller learning rate, "
            "`global_clipnorm`, or smaller rewards."
        )


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
    agent = keras.saving.load_model(path, custom_objects=custom_objects)
    if not isinstance(agent, Reinforce):
        raise ValueError(
            f"{path} holds a {type(agent).__name__}, not an agent. Wrap it: "
            "tfr.Reinforce(model)."
        )
    return agent


def _sum(tensors, dtype):
    return tf.add_n([tf.zeros([], dtype), *(tf.cast(x, dtype) for x in tensors)])


def _instance(name, value, kind):
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a {kind.__module__.split('.')[0]}.{kind.__name__}. "
            f"Received: {name}={value!r} of type {type(value).__name__}"
        )
    return value


def _within(name, value, low, high):
    if not low <= value <= high or not np.isfinite(value):
        raise ValueError(
            f"`{name}` must be finite and lie in [{low}, {high}]. "
            f"Received: {name}={value}"
        )
    return float(value)


def _one_of(name, value, allowed):
    if value not in allowed:
        raise ValueError(
            f"`{name}` must be one of {allowed}. Received: {name}={value!r}"
        )
    return value
