"""`ScoreFunction`, a Keras model that trains models with `Sample` layers."""

import contextlib
import functools
import math
import threading
import types
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.types import experimental

from tf_reinforce import agent as agents
from tf_reinforce import baselines
from tf_reinforce.engine import agent_state
from tf_reinforce.functional import losses
from tf_reinforce.functional import shapes
from tf_reinforce.sampling import estimators
from tf_reinforce.sampling import example_losses
from tf_reinforce.sampling import logged_actions
from tf_reinforce.sampling import nested_rows
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.sampling import reward_functions
from tf_reinforce.sampling import sample
from tf_reinforce.support import locks
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version


class Rows(NamedTuple):
    """N examples, each repeated K times: R = N·K rows."""

    inputs: Any  # [R, …] or nested arrays
    targets: Any  # [R, …], nested arrays, or `None`
    sample_weight: Any  # [R] or [R, …], nested arrays, or `None`


class Estimate(NamedTuple):
    """The gradient of the expected loss from one batch, and what it was made from."""

    rows: Rows
    gradients: list  # one for each of the model's trainable variables
    loss: tf.Tensor  # scalar, the mean loss of the rows plus the model's own losses
    outputs: Any  # [R, …] outputs of the model, or nested arrays
    costs: tf.Tensor  # [R] float, the loss of each row, or minus its reward
    rewards: Any  # [R] float, the rewards without sample weights, or `None`
    log_probs: tf.Tensor  # [R] float, of all samples of a row
    entropies: tf.Tensor  # [R] float, in nats, of all samples of a row
    # With an estimator that draws T samples, the model's rows are T times the rows of the
    # costs and entropies, and this is the weight of each, `[R·T]`. `log_probs` is `None`.
    weights: Any = None


@keras.saving.register_keras_serializable("tf_reinforce")
class ScoreFunction(resumed_fit.TrainingModel):
    """Trains a Keras model that draws samples, with the score-function estimator.

        ∇E[L] = E[ ∇L + (L - b) ∇ log p(z) ]

    In this formula, L is the loss of an example, z are the samples that
    `tfr.layers.Sample` layers draw for the example, and b is the baseline. The first term
    back-propagates the loss through everything that follows the samples. The second term
    trains the layers before the samples, because it weights the log-probabilities of the
    samples with the loss minus the baseline.

    The gradient is unbiased if an example's loss depends on its own samples only, and the
    baseline is not `"mean"`. It is biased if a layer after the samples mixes examples, as
    `BatchNormalization` does, or if the losses of layers (`add_loss`, activity
    regularizers) depend on samples. Use `tfr.testing.check_score_function` to find such a
    bias in your model.

    The methods `fit`, `evaluate`, `predict`, `save` and `export` work as in Keras. In
    training, the model draws `samples` samples for each example. In `evaluate`, `predict`
    and `export`, it uses the modes of the distributions instead.

    Args:
        model: Keras model that calls one or more `Sample` layers, functional or
            subclassed. It may return the samples, or a function of them.
        loss: Keras loss, its name, or a function of targets and outputs that returns the
            losses of N examples, `[N, …]`. The loss of an example is the mean over all
            other axes. If the outputs are a list or dict, pass a list or dict of losses.
        reward: Function `reward(inputs, outputs)`, or `reward(inputs, outputs, targets)`
            if `fit` receives targets. It is called once per batch and returns one reward
            for each row, `[N·K]`, in which each example fills K = `samples` consecutive
            rows. A `tf.function` is compiled into the training step, and any other
            function receives NumPy arrays. No gradient flows through rewards. Pass `loss`
            or `reward`, or neither to train with `fit_logged` only.
        samples: Int K, how many samples the model draws for each example of a batch.
        baseline: Baseline of the reward, or of minus the loss. The default,
            `"leave_one_out"`, is the mean over the example's other samples, or with
            `samples=1`, over the other examples of the batch. Other choices are
            `"moving_average"`, `None`, a `tfr.baselines.Baseline`, or a Keras model that
            predicts one number `[N, 1]` from the inputs.
        estimator: Name or `tfr.estimators.Estimator`, for all `Sample` layers without
            one. `"score_function"` draws one sample in each of the K rows of an example;
            `"leave_one_out"` is the same with `samples` ≥ 2 and the default baseline.
            `"vimco"` maximizes log 1/K Σ exp(-L) over the K rows. Others draw several
            samples for each row, so the model computes more rows. `fit_logged` draws no
            samples, and has an `estimator` of its own.
        entropy_coef: Float ≥ 0, the weight of an entropy bonus. The bonus is the sum of
            the entropies of an example's samples, averaged over examples. A layer learns
            from its own entropy, not from those of layers that read its samples.
        **kwargs: Keyword arguments of `keras.Model`.

    Example:

    >>> import tf_reinforce as tfr
    >>> inputs = keras.Input((4,))
    >>> logits = keras.layers.Dense(3)(inputs)
    >>> choice = tfr.layers.Sample(tfr.heads.Categorical(3), seed=0)(logits)
    >>> @tf.function
    ... def reward(inputs, choices):
    ...     return tf.cast(tf.equal(choices, 2), tf.float32)
    >>> model = tfr.ScoreFunction(keras.Model(inputs, choice), reward=reward)
    >>> model.compile(keras.optimizers.Adam(0.1))
    >>> history = model.fit(tf.ones([64, 4]), epochs=10, verbose=0)
    >>> model.predict(tf.ones([2, 4]), verbose=0).tolist()
    [2, 2]

    Reference:
        Williams (1992), Simple statistical gradient-following algorithms for
        connectionist reinforcement learning. doi:10.1007/BF00992696.
        Schulman, Heess, Weber & Abbeel (2015), Gradient estimation using stochastic
        computation graphs. arXiv:1506.05254
    """

    train_function: Any
    test_function: Any

    def __init__(
        self,
        model: keras.Model,
        *,
        loss: Any = None,
        reward: Any = None,
        samples: int = 4,
        baseline: Any = "leave_one_out",
        entropy_coef: float = 0.0,
        estimator: Any = "score_function",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if loss is not None and reward is not None:
            raise ValueError("Pass `loss` or `reward`, but not both. Received: both")
        self._training_lock = threading.RLock()
        self.model = validation.instance("model", model, keras.Model)
        found = sample.sample_layers(self.model)
        if len({id(layer.head) for layer in found}) < len(found):  # no file restores this
            raise ValueError(
                "Each `Sample` layer must have a head of its own. To share a head, call "
                "one layer several times."
            )
        if getattr(self._distribute_strategy, "num_replicas_in_sync", 1) > 1:
            raise ValueError("A `ScoreFunction` trains on one device. Received: several")
        self.example_loss = keras.tree.map_structure(keras.losses.get, loss)
        self.reward = reward
        if reward is not None:
            if not callable(reward):
                raise TypeError(f"`reward` must be a function. Received: {reward!r}")
            # In float32, a mean of large rewards would lose their differences.
            self._reward_tracker = keras.metrics.Mean(name="reward", dtype="float64")
            self._is_compiled = isinstance(reward, experimental.PolymorphicFunction)
            self.supports_jit = self._is_compiled  # XLA cannot call Python
        self.samples = validation.positive_int("samples", samples)
        self.baseline = _get_baseline(baseline, self.samples)
        self.estimator = _get_estimator(estimator, self.baseline, self.samples, found)
        self.entropy_coef = validation.within("entropy_coef", entropy_coef, 0, math.inf)
        self._entropy_tracker = keras.metrics.Mean(name="entropy")
        # XLA cannot raise an error, so a step notes here whether its values are finite.
        self._is_finite = tf.Variable(True, trainable=False)
        self._reward_error = None  # which TensorFlow replaces by one of its own
        self._logged = None  # `options` and `metrics`, while `fit_logged` runs
        if self.model.built and hasattr(self.model, "input_shape"):
            self.build(self.model.input_shape)

    @classmethod
    def from_agent(cls, agent: agents.Reinforce, **kwargs: Any) -> "ScoreFunction":
        """Makes a `ScoreFunction` that trains an agent's policy and head.

        The agent and the `ScoreFunction` share their weights, so training one of them
        trains the other as well. The inputs are the agent's observations, and the outputs
        are actions. If the agent normalizes observations, the `ScoreFunction` normalizes
        them too, but its training does not change the normalizer.

        Args:
            agent: `tfr.Reinforce` with a head, and with a functional or sequential
                policy.
            **kwargs: Arguments of `ScoreFunction`, at least `reward` or `loss`.
        """
        validation.instance("agent", agent, agents.Reinforce)
        policy, head = agent.policy, agent.head
        is_recurrent = isinstance(getattr(policy, "output_shape", {}), dict)
        if head is None or not policy.built or is_recurrent:
            raise ValueError(
                "`agent` must be built, with a head and a functional or sequential "
                f"policy. Received: {type(policy).__name__} and head={head!r}"
            )
        symbolic = getattr(policy, "_functional", policy)._inputs_struct
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), symbolic
        )
        observations = inputs if agent.normalizer is None else agent.normalizer(inputs)
        actions = sample.Sample(head)(policy(observations))
        return cls(keras.Model(inputs, actions), **kwargs)

    def to_agent(self, **kwargs: Any) -> agents.Reinforce:
        """Makes a `tfr.Reinforce` agent from the model's policy and head.

        The agent shares its weights with the model and is not compiled. It is built
        unless the model's inputs are a dict.

        Args:
            **kwargs: Options of `tfr.Reinforce`.

        Raises:
            ValueError: If the model is not a functional Keras model whose only `Sample`
                layer returns the output of the model.
        """
        outputs = keras.tree.flatten(getattr(self.model, "output", None))
        histories: list[Any] = [getattr(x, "_keras_history", None) for x in outputs]
        found, node = sample.sample_layers(self.model), None
        if [*{x and x.operation for x in histories}] == found:
            node = found[0]._inbound_nodes[histories[0].node_index]
        if node is None or len(node.input_tensors) > 1:
            raise ValueError(
                "The model must be functional, and its only `Sample` layer, without "
                f"`action_mask`, must return its output. Received: {self.model.name!r} "
                f"with {len(found)} Sample layers. Use `tfr.Reinforce(policy, head)`."
            )
        policy = keras.Model(self.model._inputs_struct, node.input_tensors[0])
        agent = agents.Reinforce(policy, found[0].head, **kwargs)
        if not isinstance(agent.policy.input, dict):  # the environment has the spaces
            agent.build(self.model.input_shape)
        return agent

    def build(self, inputs_shape: Any) -> None:
        # `_build_for` or the first call builds a subclassed model.
        if not self.baseline.built:
            self.baseline.build(inputs_shape)
        self.built = True

    def _build_for(self, inputs):
        """Builds model and baseline for the inputs of a training step, if necessary."""

        def symbol(x):
            return keras.KerasTensor((None, *x.shape[1:]), x.dtype.name)

        if not (self.built and self.model.built):
            with tf.init_scope():
                self(keras.tree.map_structure(symbol, inputs))

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.model(inputs, training=training)

    @property
    def trainable_variables(self) -> list:
        """Returns the weights that the optimizer trains, without those of the baseline.

        A `Value` baseline has its own optimizer.
        """
        return self.model.trainable_variables

    def gradients(
        self,
        inputs: Any,
        targets: Any = None,
        sample_weight: Any = None,
        replayed: Any = None,
        scale_loss: Any = tf.identity,
    ) -> Estimate:
        """Returns the gradient of a batch's expected loss, without an update.

        As in any call with `training=True`, the model's moving statistics change.

        Args:
            inputs, targets, sample_weight: N examples, as in `fit`.
            replayed: List with the raw actions for each call of a `Sample` layer, in N·K
                rows for K = `samples` repetitions; or `None` to draw samples. With other
                estimators than the score function, a function that takes the place of
                `Sample.uniform_noise` in all layers.
            scale_loss: Function that multiplies the loss by the optimizer's loss scale,
                which the gradients then contain.

        Returns:
            `Estimate` with the `gradients` of the model's trainable variables, the
            `loss`, and for each of the N·K rows the `costs` (losses or minus rewards),
            `log_probs` and `entropies`.
        """

        def repeat(array):  # each example K times, one after another
            is_single = array is None or self.samples == 1
            return array if is_single else tf.repeat(array, self.samples, axis=0)

        rows = keras.tree.map_structure(repeat, Rows(inputs, targets, sample_weight))
        if self.is_nested:
            if isinstance(replayed, list):
                raise ValueError(
                    "Actions cannot be replayed with this estimator, which draws several "
                    "samples. Received: replayed=[…]. Pass a function that replaces "
                    "`Sample.uniform_noise`."
                )
            return self._nested_gradients(rows, replayed, scale_loss)
        with tf.GradientTape(persistent=True) as tape:
            with sample.recording(replayed, tape=tape) as recorder:
                outputs = self.model(rows.inputs, training=True)
            log_probs, entropies = recorder.sums(sample.sample_layers(self.model))
            costs, rewards = self.costs(rows, outputs)
            advantages = self._advantages(-costs, rows.inputs)
            costs = tf.cast(costs, log_probs.dtype)
            count = tf.size(costs)
            loss = tf.reduce_mean(costs)
            if isinstance(self.estimator, estimators.Vimco):
                if sample_weight is not None:
                    raise ValueError("'vimco' takes no `sample_weight`. Received: one")
                groups = tf.reshape(costs, [-1, self.samples])
                objective, factors = self.estimator.objective(groups)
                loss = -tf.reduce_mean(objective)
                advantages = self.samples * tf.reshape(factors, [-1])
            loss += self.penalties(costs.dtype)
            surrogate = loss + losses.policy_gradient(log_probs, advantages, count)
            if self.entropy_coef:
                surrogate += self.entropy_coef * losses.entropy(entropies, count)
            scaled = scale_loss(surrogate)
        if not tf.executing_eagerly():  # costs nothing while a graph is traced
            recorder.expect_differentiable()
        result = losses.gradients(tape, scaled, self.model.trainable_variables)
        return Estimate(rows, result, loss, outputs, costs, rewards, log_probs, entropies)

    @property
    def is_nested(self) -> bool:
        """Returns whether a layer has another estimator than the score function."""
        layers = sample.sample_layers(self.model)
        found = [layer.estimator or self.estimator for layer in layers]
        # A subclass of `Score` has draws and a surrogate of its own.
        plain = [type(x) is estimators.Score for x in found]
        return not (all(plain) or isinstance(self.estimator, estimators.Vimco))

    def _nested_gradients(self, rows, noise, scale_loss):
        """Returns what `gradients` does, with several samples for each row."""
        layers = sample.sample_layers(self.model)
        inputs = rows.inputs
        with tf.GradientTape(persistent=True) as tape:
            nested = nested_rows.NestedRows(layers, self.estimator, tape, noise)
            rows = keras.tree.map_structure(
                lambda x: None if x is None else tf.repeat(x, nested.size, axis=0), rows
            )
            with sample.recording(nested=nested, tape=tape):
                outputs = self.model(rows.inputs, training=True)
            costs, rewards = self.costs(rows, outputs)
            costs = tf.cast(costs, nested.calls[0].parameters.dtype)

            def level(values):
                return values + tf.cast(self._advantages(-values, inputs), values.dtype)

            total, values, entropies, weights = nested.surrogate(costs, level)
            count = tf.cast(tf.size(values), costs.dtype)
            loss = tf.reduce_sum(tf.stop_gradient(weights) * costs) / count
            loss += self.penalties(costs.dtype)
            surrogate = loss + total / count
            if self.entropy_coef:
                surrogate += self.entropy_coef * losses.entropy(entropies, count)
            scaled = scale_loss(surrogate)
        result = losses.gradients(tape, scaled, self.model.trainable_variables)
        estimate = rows, result, loss, outputs, values, rewards, None, entropies
        return Estimate(*estimate, tf.stop_gradient(weights))

    def _advantages(self, returns, inputs):
        """Returns the returns `[R]` of rows minus their baseline, in float64."""
        # In float64, returns that are equal have advantages of exactly zero.
        returns = tf.cast(returns, tf.float64)
        values = tf.zeros_like(returns)
        if self.baseline.is_value_function:
            values = tf.cast(self.baseline.values(inputs), returns.dtype)
        # A row is an episode of one step.
        one_step = returns[None], tf.ones_like(returns, tf.bool)[None], values[None]
        return returns - self.baseline.estimate(*one_step)[0]

    def penalties(self, dtype: Any) -> tf.Tensor:
        """Returns the sum of the model's own losses (regularizers, `add_loss`)."""
        penalties = [tf.cast(tf.reduce_sum(x), dtype) for x in self.model.losses]
        return tf.add_n(penalties) if penalties else tf.zeros([], dtype)

    def costs(self, rows: Rows, outputs: Any) -> tuple[tf.Tensor, Any]:
        """Returns the losses of R rows, or minus their weighted rewards; and rewards."""
        is_defined = self.example_loss is not None or self.reward is not None
        if self._compile_loss is not None or not is_defined:
            raise ValueError(
                "`fit` and `evaluate` need `ScoreFunction(model, loss=…)` or `reward=…`, "
                "instead of a loss in `compile`"
            )
        if self.reward is None:
            costs = example_losses.example_losses(
                self.example_loss, rows.targets, outputs, rows.sample_weight
            )
            return costs, None
        arguments = rows.inputs, outputs, rows.targets
        rewards = self._rewards([x for x in arguments if x is not None])
        if rows.sample_weight is None:
            return -rewards, rewards
        weights = tf.cast(rows.sample_weight, rewards.dtype)
        return -rewards * tf.reshape(weights, tf.shape(rewards)), rewards

    def _rewards(self, arguments):
        """Returns the rewards of R rows, `[R]` float64, without gradients."""
        flat = keras.tree.flatten(arguments)
        if self._is_compiled:
            rewards = tf.cast(self.reward(*arguments), tf.float64)
            shapes.expect([(rewards, "R")])
            # The reshape fails if there is not one reward for each row.
            return tf.stop_gradient(tf.reshape(rewards, tf.shape(flat[0])[:1]))

        def call(*arrays):
            arrays = [array.copy() for array in arrays]  # the function may change them
            try:
                rewards = self.reward(*keras.tree.pack_sequence_as(arguments, arrays))
                return reward_functions.checked(self.reward, rewards, len(arrays[0]))
            except Exception as error:
                self._reward_error = error
                raise

        rewards = tf.numpy_function(call, flat, tf.float64)
        rewards.set_shape([None])
        return tf.stop_gradient(rewards)

    predict = locks.in_usable_process(keras.Model.predict)

    @property
    def metrics(self) -> list:
        """Returns the metrics of the present training."""
        return super().metrics if self._logged is None else self._logged.metrics

    def train_step(self, data: Any) -> dict[str, Any]:
        data = keras.utils.unpack_x_y_sample_weight(data)
        self._build_for(data[0])
        # Moving statistics and random generators, which a forward pass may change.
        states = [(v, tf.identity(v)) for v in self.model.non_trainable_variables]
        step = self._step if self._logged is None else self._logged_step
        return step(data, states)

    def _step(self, data, states):
        """Makes a step with examples; returns the logs."""
        estimate = self.gradients(*data, scale_loss=self.optimizer.scale_loss)
        rows, gradients, loss, outputs, costs, rewards, _, entropies, weights = estimate
        size, inputs = tf.size(costs), rows.inputs
        if weights is not None:
            copies = tf.size(weights) // size
            inputs = keras.tree.map_structure(lambda x: x[::copies], inputs)
        # `fit` has shuffled the examples, so their order is a random permutation.
        batch = baselines.BaselineBatch(
            inputs,
            tf.stop_gradient(-costs),
            tf.zeros_like(costs, tf.int32),
            size,
            tf.range(size),
        )
        _, others = self.baseline.gradients(batch)
        update = functools.partial(self.baseline.apply_gradients, others, batch)
        self._apply_if_finite(gradients, states, [costs, *others], update)
        self._entropy_tracker.update_state(entropies)
        return self._updated_metrics(rows, loss, outputs, costs, rewards, weights)

    def _logged_step(self, data, states):
        """Makes a step with logged decisions; returns the logs."""
        contexts, (*columns, _), _ = data
        gradients, values, weights, entropies = logged_actions.estimate(
            self.model,
            logged_actions.LoggedBatch(contexts, *columns),
            self._logged.options,
            lambda loss: self.optimizer.scale_loss(loss + self.penalties(loss.dtype)),
        )
        self._apply_if_finite(gradients, states, [values])
        value, sizes, entropy = self.metrics
        value.update_state(values)
        entropy.update_state(entropies)
        weights = tf.cast(weights, tf.float64)  # float32 has no larger squares
        share = tf.math.divide_no_nan(
            tf.reduce_mean(weights) ** 2, tf.reduce_mean(weights**2)
        )
        sizes.update_state(share, tf.size(weights))
        return self.get_metrics_result()

    def _updated_metrics(self, rows, loss, outputs, costs, rewards, weights=None):
        """Adds a batch to the metrics, with `[R]` weights of rows; returns the logs."""
        self._loss_tracker.update_state(loss, tf.size(costs))
        if rewards is not None:
            self._reward_tracker.update_state(rewards, weights)
        if weights is not None:  # metrics see the row of each example that counts most
            weights = tf.reshape(weights, [tf.size(costs), -1])
            first = tf.range(tf.size(weights, tf.int64), delta=tf.size(weights[0]))
            chosen = first + tf.argmax(weights, axis=1)
            rows, outputs = keras.tree.map_structure(
                lambda x: x if x is None else tf.gather(x, chosen), (rows, outputs)
            )
        return self.compute_metrics(
            rows.inputs, rows.targets, outputs, rows.sample_weight
        )

    def _apply_if_finite(self, gradients, states, others, update=lambda: None):
        """Applies gradients if all values of a step are finite; else restores `states`.

        Args:
            gradients: List with a gradient for each trainable variable of the model.
            states: List of pairs of a variable and its value before the forward pass.
            others: List of tensors that must be finite, too.
            update: Function that makes a further update.
        """
        variables = self.model.trainable_variables
        with tf.init_scope():  # a conditional update cannot create the optimizer's state
            optimizers.build(self.optimizer, variables)
        # An optimizer with loss scaling itself skips a step that overflows.
        skips_overflow = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        is_finite = self._noted([*others, *([] if skips_overflow else gradients)])

        def apply():
            self.optimizer.apply(gradients, variables)
            update()
            return 0

        def restore():
            for variable, value in states:
                variable.assign(value)
            return 0

        tf.cond(is_finite, apply, restore)

    def _noted(self, values):
        """Returns whether a step's values are finite, and notes it.

        With several steps in one call, the first invalid step prevents all later steps.
        """
        self._is_finite.assign(self._is_finite & shapes.all_finite(values))
        return self._is_finite.read_value()

    def _make_function(self, step_function):
        """Makes Keras' training or test function, with an error for an invalid step."""
        function = super()._make_function(step_function)

        def run(iterator):
            self._reward_error = None
            self._is_finite.assign(True)
            try:
                result = function(iterator)
            except Exception as error:
                if self._reward_error is None:
                    raise
                raise self._reward_error from error
            if not self._is_finite.numpy():
                raise FloatingPointError(
                    "All losses, rewards and gradients of a training step must be "
                    "finite. Received: NaN or infinity. The step changed no weight."
                )
            return result

        return run

    @locks.training
    def fit(
        self, *args: Any, resume: Any = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """Trains the model as `keras.Model.fit` does.

        Args:
            *args, **kwargs: Arguments of `keras.Model.fit`.
            resume: Path of the run directory, or `tfr.Checkpoints`, as in
                `Reinforce.fit`. An update is a step of Keras. If the folder holds a
                checkpoint of this training, `fit` continues after its step and reaches
                the same bits. Up to there, the data is read again. Arrays are shuffled as
                before, and a `tf.data.Dataset` must return the same elements. After
                SIGINT or SIGTERM, `fit` finishes the current step, writes a checkpoint
                and ends.

        Returns:
            Keras' `History`.

        Raises:
            FloatingPointError: If a loss, reward or gradient is not finite. The step then
                changes no weight.
            ValueError: If the folder belongs to another training, or the data cannot be
                read again.
        """
        with self._steps_of(None):
            return self._fit(resume, *args, **kwargs)

    def _fit(self, resume, *args, **kwargs):
        if resume is None:
            return super().fit(*args, **kwargs)
        return resumed_fit.fit(self, resume, *args, **kwargs)

    @locks.in_usable_process
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the model as `keras.Model.evaluate` does."""
        with self._steps_of(None):
            return super().evaluate(*args, **kwargs)

    def variables_of_training(self) -> list:
        variables = super().variables_of_training()
        if self._logged is not None:
            variables = [*self.model.variables, *self.optimizer.variables]
        variables = [*variables, *self.metrics_variables]
        return list({id(variable): variable for variable in variables}.values())

    def description(self) -> dict[str, Any]:
        parts = {"model": self.model, "baseline": self.baseline}
        return {
            "samples": self.samples,
            "entropy_coef": self.entropy_coef,
            **self._estimator_config(),
            "reward": self.reward,
            "loss": keras.tree.map_structure(
                keras.saving.serialize_keras_object, self.example_loss
            ),
            **({} if self._logged is None else vars(self._logged.options)),
            "metrics": [metric.name for metric in self.metrics],
            "steps per call": self.steps_per_execution,
            **agent_state.configs(self, parts),
        }

    @locks.training
    def fit_logged(
        self,
        contexts: Any,
        actions: Any,
        rewards: Any,
        propensities: Any,
        *,
        estimator: str = "ips",
        clip: float | None = None,
        top_k: int | None = None,
        reward_model: keras.Model | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Trains the model on decisions that another policy has made.

            ∇V = 1/N Σₙ wₙ Aₙ ∇ log π(aₙ|xₙ),    wₙ = min(π(aₙ|xₙ) / pₙ, clip)

        Training maximizes V, an estimate of the policy's expected reward. The available
        estimators are described in `functional.off_policy`.

        Args:
            contexts: `[N, …]` inputs of the model, or nested arrays.
            actions: `[N, …]` raw actions for the head of the only `Sample` layer, before
                `head.to_environment`: counted from 0 for `Categorical`, before tanh for
                `TanhGaussian`.
            rewards: `[N]` floats.
            propensities: `[N]` floats in (0, 1], the probabilities with which the logging
                policy chose the actions; densities for heads with real actions.
            estimator: `"ips"`, inverse propensity scoring, with A = r; `"snips"`,
                self-normalized, with A = (r - V) / w̄ in each batch; or `"dr"`, doubly
                robust, with A = r - q(x, a) for the rewards q of `reward_model`.
            clip: Float above 0, the largest importance weight, which biases the gradient;
                or `None`.
            top_k: Int K, or `None`. The policy learns to choose a set of K actions, of
                which the best counts: each term is multiplied by K (1 - π(a|x))ᴷ⁻¹.
            reward_model: Keras model that predicts the rewards of all actions, `[N, K]`,
                for `"dr"`. It is not trained.
            **kwargs: `batch_size`, `epochs`, `initial_epoch`, `steps_per_epoch`,
                `shuffle`, `verbose` and `callbacks`, as in `keras.Model.fit`; and
                `resume`, as in `fit`.

        Returns:
            Keras' `History` with the log keys `policy_value`, `effective_sample_size` (as
            a share of the batch) and `entropy`.

        Raises:
            ValueError: If a propensity is not in (0, 1], a reward is not finite, or an
                action is not one of the head.
        """
        allowed = "epochs batch_size initial_epoch steps_per_epoch shuffle verbose"
        unknown = sorted(kwargs.keys() - {*allowed.split(), "callbacks", "resume"})
        if unknown:
            raise TypeError(
                f"`fit_logged` has no arguments {unknown}. Use `evaluate_logged` for a "
                "validation log."
            )
        options = logged_actions.LoggedOptions(estimator, clip, top_k, reward_model)
        columns = contexts, actions, rewards, propensities
        contexts, *columns = logged_actions.validated(self.model, options, *columns)
        columns = *columns, np.arange(len(rewards))  # part of the checkpoints' digests
        # The loss has no tracker, because its value has no meaning.
        names = "policy_value", "effective_sample_size", "entropy"
        metrics = [keras.metrics.Mean(name=name) for name in names]
        with self._steps_of(types.SimpleNamespace(options=options, metrics=metrics)):
            return self._fit(kwargs.pop("resume", None), contexts, columns, **kwargs)

    @contextlib.contextmanager
    def _steps_of(self, logged):
        """Trains with logged decisions, or examples for `None`, in the `with` block."""
        before = self._logged, self.train_function
        if logged is not self._logged:
            self._logged, self.train_function = logged, None
        try:
            yield
        finally:
            if logged is not before[0]:
                self._logged, self.train_function = before

    @locks.in_usable_process
    def evaluate_logged(
        self,
        contexts: Any,
        actions: Any,
        rewards: Any,
        propensities: Any,
        *,
        estimator: str = "ips",
        clip: float | None = None,
        reward_model: keras.Model | None = None,
        confidence: float = 0.95,
    ) -> dict[str, float]:
        """Estimates the policy's expected reward from logged decisions.

        The policy is stochastic: it samples its actions, as in training.

        Args:
            contexts, actions, rewards, propensities: As in `fit_logged`.
            estimator, clip, reward_model: As in `fit_logged`.
            confidence: Float in (0, 1), the probability with which the interval shall
                contain the expected reward.

        Returns:
            Dict of floats: `policy_value`; `policy_value_lower` and `policy_value_upper`,
                an interval from the normal approximation of the mean; and
                `effective_sample_size`, (Σw)² / (N Σw²), the share of the log on which
                the estimate rests. If it is small, the interval is too narrow.

        Raises:
            ValueError: As `fit_logged`, and if the log has less than two decisions.
            FloatingPointError: If an estimate is not finite.
        """
        options = logged_actions.LoggedOptions(estimator, clip, None, reward_model)
        columns = contexts, actions, rewards, propensities
        batch = logged_actions.validated(self.model, options, *columns)
        return logged_actions.evaluate(self.model, batch, options, confidence)

    @locks.in_usable_process
    def sample_actions(self, contexts: Any) -> tuple[Any, Any]:
        """Samples an action for each context, to act with the policy and to write a log.

        All other layers run as in inference, so an action and its propensity depend on
        their own context only.

        Args:
            contexts: `[N, …]` inputs of the model, or nested arrays.

        Returns:
            NumPy arrays of N raw actions and their `[N]` propensities, the arguments of
            `fit_logged`. `head.to_environment` converts raw actions to the layer's
            outputs.
        """
        logged_actions.sample_layer(self.model)
        contexts = keras.tree.map_structure(keras.ops.convert_to_tensor, contexts)
        with sample.recording(draws=True) as recorder:
            self.model(contexts, training=False)
        actions = keras.tree.map_structure(
            keras.ops.convert_to_numpy, recorder.samples[0].actions
        )
        return actions, np.exp(recorder.sums()[0])

    def test_step(self, data: Any) -> dict[str, Any]:
        rows = Rows(*keras.utils.unpack_x_y_sample_weight(data))
        self._build_for(rows.inputs)
        outputs = self.model(rows.inputs, training=False)
        costs, rewards = self.costs(rows, outputs)
        self._noted([costs])
        loss = tf.reduce_mean(costs) + self.penalties(costs.dtype)
        metrics = self._updated_metrics(rows, loss, outputs, costs, rewards)
        return {name: x for name, x in metrics.items() if name != "entropy"}

    def export(self, *args: Any, **kwargs: Any) -> None:
        """Exports the model, which returns the modes of its `Sample` layers.

        Args:
            *args, **kwargs: Arguments of `keras.Model.export`.
        """
        self.model.export(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "model": serialize(self.model),
            "loss": keras.tree.map_structure(serialize, self.example_loss),
            "reward": self.reward and reward_functions.registered_name(self.reward),
            "samples": self.samples,
            "baseline": serialize(self.baseline),
            "entropy_coef": self.entropy_coef,
            **self._estimator_config(),
            **version.stamp(),
        }

    def _estimator_config(self):
        """Returns the estimator, unless it is the default, which old files lack."""
        if type(self.estimator) is estimators.Score:
            return {}
        return {"estimator": keras.saving.serialize_keras_object(self.estimator)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ScoreFunction":
        name = "ScoreFunction"  # also of a subclass
        config = version.unstamped(name, f"The {name}", config)
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in config.keys() & {"model", "loss", "baseline", "estimator"}
        }
        if config.get("reward") is not None:
            parts["reward"] = reward_functions.find(config["reward"])
        return cls(**{**config, **parts})


def _get_baseline(baseline, samples):
    """Returns the `Baseline` for the argument `baseline` of `ScoreFunction`."""
    if isinstance(baseline, keras.Model):
        return baselines.Value(baseline)
    if baseline == "leave_one_out" and samples > 1:
        return baselines.LeaveOneOut(group_size=samples)
    baseline = baselines.get(baseline)
    if baseline.shares_policy:
        raise ValueError(
            "A `Value` baseline of a `ScoreFunction` needs a model of its own: "
            "Value(model)"
        )
    return baseline


def _get_estimator(estimator, baseline, samples, layers):
    """Returns the `Estimator` for the argument `estimator` of `ScoreFunction`."""
    is_leave_one_out = isinstance(estimator, str) and estimator == "leave_one_out"
    result = estimators.get("score_function" if is_leave_one_out else estimator)
    is_vimco = isinstance(result, estimators.Vimco)
    is_own = getattr(baseline, "group_size", None) == samples > 1
    if (is_leave_one_out or is_vimco) and not is_own:
        raise ValueError(
            f"The estimator {estimator!r} compares at least two samples of an example, "
            f"and has its own baseline. Received: samples={samples} and {baseline!r}. "
            "Pass `samples=K`, and leave out `baseline`."
        )
    own = [layer.name for layer in layers if layer.estimator is not None]
    if is_vimco and own:
        raise ValueError(
            f"'vimco' is the objective of all layers. Received: {own} with estimators"
        )
    if isinstance(result, estimators.Relax):
        raise ValueError(
            "Pass `Relax` to the layer: Sample(head, estimator=Relax(model))"
        )
    return result
