"""`SequenceReinforce`, a Keras model that trains language models from rewards."""

import dataclasses
import functools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.engine import agent_state
from tf_reinforce.functional import shapes
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.sampling import reward_functions
from tf_reinforce.sequences import conversation
from tf_reinforce.sequences import estimator
from tf_reinforce.sequences import language_model
from tf_reinforce.sequences import text_rewards
from tf_reinforce.sequences import training
from tf_reinforce.settings import schema
from tf_reinforce.support import locks
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version

_ACTION_KEY = 2  # of the four `rollout_keys`


@keras.saving.register_keras_serializable("tf_reinforce")
class SequenceReinforce(resumed_fit.TrainingModel):
    """Trains a causal language model of KerasHub with rewards for its completions.

        ∇J = E[ (R - b) ∇ log π(y|x) ],    R = r(x, y) - β log (π(y|x) / π_ref(y|x))

    For each prompt x, the model samples `group_size` completions y, and reward functions
    return a reward r for each completion. The baseline b of a completion is the mean of R
    over the prompt's other completions, which is known as RLOO. The KL penalty keeps the
    model close to π_ref, which is the model as it was at construction. The penalty is
    part of the reward, so no gradient flows through it.

    With default options, the update is an unbiased estimate of the gradient of
    E[r] - β KL(π ‖ π_ref), as `tfr.testing.check_sequence_gradient` proves by
    enumeration.

    Tokens are sampled from exactly the distribution that is scored, which is
    softmax(logits / temperature) over all tokens, without dropout. The sampler of
    `causal_lm.compile` is therefore not used. Every random number is a function of seed,
    update, completion and token, so training can be repeated.

    Args:
        causal_lm: `keras_hub.models.CausalLM` on TensorFlow, whose trainable weights are
            trained. After `causal_lm.backbone.enable_lora(rank)`, these weights are the
            adapters. Prompts, completions and replies are strings if the model has a
            preprocessor, and lists of token ids otherwise.
        rewards: Function `rewards(prompts, completions, completion_ids, **columns)` that
            returns a list of R floats for R completions, or a list of such functions. A
            function may be a coroutine (`async def`). Its arguments are lists of R
            entries, passed by name, and it receives only those that it names. The columns
            are those of the prompts, and `truncated`, a list of bools.
        reward_weights: List of floats, one for each reward function; `None` for ones.
        group_size: Int ≥ 2, the number of completions of each prompt in an update.
        kl_coef: Float ≥ 0, the weight β of the KL penalty. With `kl_coef=0`, no reference
            is kept.
        temperature: Float above 0 that divides logits in sampling, scoring and the
            reference.
        max_completion_length: Int, the largest number of tokens of a completion,
            including the end token and replies. A completion that reaches this length
            without an end token is truncated.
        stop_token_ids: `"auto"` for the end tokens of the tokenizer, or a list of ints.
        reply: Function that answers the model between turns, or `None` for one turn. It
            is called with the arguments of a reward function, for the completions whose
            turn ended with an end token, and returns a list with a reply or `None` for
            each of them. After a reply, the model continues the completion, while `None`
            ends it. The tokens of replies are not scored. If a reply and one more token
            do not fit, the completion is truncated.
        max_turns: Int, the largest number of turns of the model in a completion.
        passes: Int, the number of passes over the completions of an update.
        minibatch_size: Int, the approximate number of completions in a gradient step, or
            `None` for all completions of an update.
        microbatch_size: Int, the approximate number of completions whose gradient is
            computed at a time to save memory, or `None`. The result is the same.
        ratio_clip: Float ≥ 1. With several passes or minibatches, each completion is
            weighted with its likelihood ratio, at most `ratio_clip`. Clipping biases the
            gradient.
        scale_advantages: Bool, whether advantages are divided by the standard deviation
            of R over the prompt's completions, which biases the gradient.
        length_normalization: Bool, whether each completion's advantage is divided by its
            number of sampled tokens, which biases the gradient.
        seed: Int that determines all random numbers, or `None` for a random seed.
        **kwargs: Keyword arguments of `keras.Model`. The default of `dtype` is that of
            `causal_lm`, so that an optimizer of a `mixed_float16` model scales the loss.

    Example:

    >>> import keras_hub
    >>> import tf_reinforce as tfr
    >>> backbone = keras_hub.models.GPT2Backbone(
    ...     vocabulary_size=5, num_layers=1, num_heads=1, hidden_dim=8,
    ...     intermediate_dim=16, max_sequence_length=8, dropout=0.0)
    >>> causal_lm = keras_hub.models.GPT2CausalLM(backbone)  # prompts are token ids
    >>> def threes(completions):
    ...     return [completion.count(3) for completion in completions]
    >>> model = tfr.sequences.SequenceReinforce(
    ...     causal_lm, threes, kl_coef=0.0, stop_token_ids=[1],
    ...     max_completion_length=4, seed=0)
    >>> model.compile(keras.optimizers.Adam(0.03))
    >>> history = model.fit([[2, 4]] * 16, batch_size=16, epochs=20, verbose=0)
    >>> model.generate([[2, 4]])
    [[3, 3, 3, 3]]

    Reference:
        Williams (1992), Simple statistical gradient-following algorithms for
        connectionist reinforcement learning. doi:10.1007/BF00992696.
        Kool, van Hoof & Welling (2019), Buy 4 REINFORCE samples, get a baseline for free!
        Ahmadian et al. (2024), Back to basics: revisiting REINFORCE style optimization
        for learning from human feedback in LLMs. arXiv:2402.14740
    """

    def __init__(
        self,
        causal_lm: keras.Model,
        rewards: Callable | Sequence[Callable],
        *,
        reward_weights: Sequence[float] | None = None,
        group_size: int = 4,
        kl_coef: float = 0.05,
        temperature: float = 1.0,
        max_completion_length: int = 256,
        stop_token_ids: Any = "auto",
        reply: Callable | None = None,
        max_turns: int = 1,
        passes: int = 1,
        minibatch_size: int | None = None,
        microbatch_size: int | None = None,
        ratio_clip: float = 2.0,
        scale_advantages: bool = False,
        length_normalization: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        given = locals()
        if not hasattr(causal_lm, "generate_step"):
            raise TypeError(
                "`causal_lm` must be a causal language model of KerasHub. Received: "
                f"causal_lm={causal_lm!r}"
            )
        # Keras' `compile` adds loss scaling to the optimizer of a mixed_float16 model.
        super().__init__(**{"dtype": causal_lm.dtype_policy, **kwargs})
        names = schema.hints(estimator.SequenceOptions)
        self.options = estimator.SequenceOptions(**{x: given[x] for x in names})
        if not (reply is None if max_turns == 1 else callable(reply)):
            raise ValueError(
                "Several turns need both a function `reply` and `max_turns` of at least "
                f"2. Received: reply={reply!r}, max_turns={max_turns}"
            )
        self._training_lock = threading.RLock()
        self.causal_lm = causal_lm
        self.rewards = text_rewards.TextRewards(rewards, reward_weights)
        self.reply = reply
        self.encoding = conversation.Encoding(
            causal_lm, max_completion_length, stop_token_ids
        )
        seed = random.randrange(2**31) if seed is None else seed
        self.seed = validation.check_seed(seed)
        self.policy = language_model.TokenPolicy(causal_lm, temperature, self.encoding)
        self.updates = self._add_fixed("updates", tf.zeros([], tf.int64))
        reference = self.trainable_variables if kl_coef else []
        self.reference_weights = [
            self._add_fixed(f"reference_{number}", variable.value)
            for number, variable in enumerate(reference)
        ]
        self._trained_names = [variable.path for variable in self.trainable_variables]
        # Keras reads this attribute after `causal_lm`.
        self.trained_adapters = language_model.AdapterWeights(causal_lm)
        self.estimator = estimator.SequenceEstimator(
            self.policy, self.reference_weights, self.options
        )
        self.built = True

    def _add_fixed(self, name, value):
        """Creates a weight that no optimizer trains, with its first value."""
        return self.add_weight(
            name=name,
            shape=value.shape,
            dtype=value.dtype.name,
            initializer=lambda shape, dtype: tf.identity(value),
            trainable=False,
            autocast=False,
        )

    @property
    def trainable_variables(self) -> list:
        """Returns the weights that are trained, those of `causal_lm`."""
        return self.causal_lm.trainable_variables if self.trainable else []

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns the logits of the language model."""
        return self.causal_lm(inputs, training=training)

    @locks.training
    def compile(
        self,
        optimizer: Any = "adam",
        *,
        run_eagerly: bool = False,
        jit_compile: bool = False,
        auto_scale_loss: bool = True,
    ) -> None:
        """Configures the training.

        Args:
            optimizer: Keras optimizer or its name. Pretrained models need small learning
                rates, for example 1e-6 for all weights and 1e-5 for LoRA.
            run_eagerly, auto_scale_loss: As in `keras.Model.compile`.
            jit_compile: Bool, whether XLA compiles the sampling and the updates. It
                cannot compile minibatches, microbatches or several passes.

        Raises:
            ValueError: If XLA cannot compile the updates.
        """
        splits = self.options.has_minibatches or self.options.microbatch_size is not None
        if jit_compile and splits:
            raise ValueError(
                "XLA cannot compile updates with minibatches, microbatches or several "
                "passes. Received: jit_compile=True"
            )
        super().compile(
            optimizer,
            run_eagerly=run_eagerly,
            jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        optimizers.build(self.optimizer, self.trainable_variables)
        self.estimator.optimizer = self.optimizer
        self._sample, self._update = self.policy.sample, self.estimator.update
        if not run_eagerly:
            # XLA needs the number of completions.
            options = dict(jit_compile=jit_compile, reduce_retracing=not jit_compile)
            wrap = functools.partial(tf.function, autograph=False, **options)
            self._sample, self._update = wrap(self._sample), wrap(self._update)

    def get_compile_config(self) -> dict[str, Any] | None:
        if not self.compiled:
            return None
        return {
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "run_eagerly": self.run_eagerly,
            "jit_compile": self.jit_compile,
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"])
        # A `LossScaleOptimizer` is part of the config.
        self.compile(**{**config, "optimizer": optimizer}, auto_scale_loss=False)

    @locks.training
    def fit(
        self,
        prompts: Any,
        *,
        batch_size: int = 8,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        shuffle: bool = True,
        initial_epoch: int = 0,
        validation_data: Any = None,
        validation_freq: int = 1,
        callbacks: Any = None,
        verbose: Any = "auto",
        resume: Any = None,
    ) -> keras.callbacks.History:
        """Trains the language model, with one update per batch of prompts.

        If a reward function raises an error or returns an invalid reward, no weight
        changes.

        Args:
            prompts: List of P prompts, or dict of columns with P entries each, such as
                `{"prompts": [...], "answer": [...]}`. A `tf.data.Dataset` of batches is
                accepted too, whose elements are tensors of strings or dicts of columns.
            batch_size: Int, the number of prompts of an update; not for a dataset.
            epochs, steps_per_epoch, initial_epoch, callbacks, verbose: As in
                `keras.Model.fit`. Without `steps_per_epoch`, an epoch is one pass over
                the prompts.
            shuffle: Bool, whether each epoch has its own order of prompts, which depends
                on seed and epoch only; not for a dataset. Each `fit` begins with the
                order of the epoch `initial_epoch`.
            validation_data: Prompts in the same form, for which `evaluate` is called.
            validation_freq: Int, the number of epochs between two validations.
            resume: Path of the run directory, or `tfr.Checkpoints`, as in
                `Reinforce.fit`. If the folder holds a checkpoint of this training, `fit`
                continues after its last update and reaches the same bits. A dataset is
                read again up to there. After SIGINT or SIGTERM, `fit` finishes the
                current update, writes a checkpoint and ends.

        Returns:
            Keras' `History` with these log keys:

            - `reward`: the weighted sum of the reward functions, without KL penalty; if
              there are several, also `reward_NAME` for each.
            - `kl`: mean of log π(y|x) - log π_ref(y|x) over completions, in nats.
            - `entropy`: per token, in nats.
            - `loss`: the surrogate loss, whose value has no meaning.
            - `gradient_norm`: global norm, averaged over gradient steps.
            - `log_prob_difference`: how much the log-probabilities of sampled tokens
              differ between sampling and scoring, on average.
            - `completion_length`: in tokens.
            - `truncated`: share of completions.
            - `equal_reward_groups`: share of prompts whose completions have equal
              rewards, so only the KL penalty acts on them.
            - `val_…`: results of `evaluate`.

        Raises:
            FloatingPointError: If a loss, gradient or weight is not finite.
            ValueError: If the completions do not follow the scored distribution.
        """
        self._expect_ready()
        held_out = self._read(validation_data)
        validation.positive_int("validation_freq", validation_freq)
        if held_out is None and validation_freq != 1:
            raise ValueError(
                "`validation_freq` has no effect without `validation_data`: pass both. "
                f"Received: validation_freq={validation_freq}"
            )
        self._initial_epoch = None  # that of an earlier training with BackupAndRestore
        batches = training.Batches(
            self._read(prompts),
            batch_size,
            steps_per_epoch,
            self.seed if shuffle else None,
            lambda: self._initial_epoch or initial_epoch,
        )

        def validate(epoch):
            if held_out is None or (epoch + 1) % validation_freq:
                return {}
            logs = self.evaluate(held_out, batch_size=batch_size)
            return {f"val_{name}": value for name, value in logs.items()}

        means = training.Means(batches, self.train_on_prompts, validate)
        self.train_function = means
        data = dict(x=batches.dataset, shuffle=False, initial_epoch=initial_epoch)
        data["steps_per_epoch"] = steps_per_epoch
        callbacks = [means, training.Progress(), *keras.tree.flatten(callbacks or [])]
        options = dict(callbacks=callbacks, verbose=verbose, epochs=epochs)
        optimizers.begin_averages(self.optimizer)
        if resume is None:
            return super().fit(**data, **options)
        settings = {**batches.description(), "initial_epoch": initial_epoch}
        parts = self, resume, settings, means.logs, lambda seed: data
        return resumed_fit.run(*parts, held_out is not None, **options)

    def description(self) -> dict[str, Any]:
        functions = {"rewards": self.rewards.functions, "reply": self.reply}
        configs = agent_state.configs(self, {"causal_lm": self.causal_lm})
        return {**self._arguments(), **functions, **configs}

    def _arguments(self):
        """Returns the constructor's arguments that are no functions or models."""
        return {
            **dataclasses.asdict(self.options),
            "reward_weights": self.rewards.weights,
            # The tokenizer is loaded after the configuration.
            "stop_token_ids": self.encoding.end_token_ids,
            "seed": self.seed,
        }

    def _read(self, prompts):
        """Returns the columns of a table; raises an error if a prompt is too long."""
        if prompts is None or isinstance(prompts, tf.data.Dataset):
            return prompts
        table = training.read(prompts)
        for begin in range(0, len(table["prompts"]), 256):
            self.encoding.encode(table["prompts"][begin : begin + 256])
        return table

    @locks.training
    def train_on_prompts(self, columns: dict[str, list]) -> dict[str, float]:
        """Makes one update from a batch of prompts; returns its logs, as in `fit`.

        Args:
            columns: Dict of lists with P entries, among them `prompts`.
        """
        self._expect_ready()
        sampled = self.sample(columns)
        rewards, parts = self.rewards(sampled.columns)
        metrics = self.apply_rewards(sampled.completions, rewards)
        size = self.options.group_size
        texts = training.text_metrics(sampled.columns, rewards, parts, size)
        return {**texts, **metrics}

    @locks.training
    def apply_rewards(self, completions: Any, rewards: Any) -> dict[str, float]:
        """Makes one update from completions and their rewards; returns its metrics.

        No error changes a weight.

        Args:
            completions: `Completions` of R rows, `model.sample(prompts).completions`.
            rewards: `[R]` floats.

        Raises:
            FloatingPointError: If a loss, gradient or weight is not finite.
            ValueError: If the number of rewards is not R, or the completions do not
                follow the scored distribution.
        """
        self._expect_ready()
        rewards = validation.finite_numbers("rewards", np.ravel(rewards).tolist())
        shapes.expect([(rewards, "R"), (completions.truncated, "R")])
        update = int(self.updates.numpy())
        generator = seeding.generator(self.seed, "training/minibatches", update)
        count, passes = len(rewards), range(self.options.passes)
        permutations = np.array([generator.permutation(count) for _ in passes], "int32")
        rewards = tf.constant(rewards, tf.float64)
        permutations = tf.constant(permutations)
        variables = [*self.trainable_variables, *self.optimizer.variables, self.updates]
        before = [tf.identity(variable.value) for variable in variables]
        try:
            results = self._update(completions, rewards, permutations)
            is_finite, *metrics = results.numpy().tolist()
            logs = dict(zip(estimator.METRICS, metrics, strict=True))
            self._expect_valid(is_finite, logs)
            self.updates.assign_add(1)
        except BaseException:
            optimizers.assign(variables, before)
            raise
        return logs

    def _expect_valid(self, is_finite, logs):
        """Raises an error if an update must be undone."""
        # Half precision rounds coarsely.
        limit = 0.3 if "16" in self.causal_lm.compute_dtype else 0.01
        difference = logs["log_prob_difference"]
        if difference > limit:
            raise ValueError(
                "The completions must follow the distribution that is scored, with the "
                f"present weights. Received: {difference:.3g} nats of difference per "
                "token. The update changed no weight."
            )
        if not is_finite:
            raise FloatingPointError(
                "All losses, gradients and weights of an update must be finite. "
                f"Received: metrics {logs}. The update changed no weight."
            )

    def gradients(self, completions: Any, rewards: Any) -> tuple[list, dict[str, Any]]:
        """Returns the gradients of the surrogate loss, and metrics, without an update.

        All completions are computed at once, also with `microbatch_size`, and without
        likelihood ratios.

        Args:
            completions: `Completions` of R rows, `model.sample(prompts).completions`.
            rewards: `[R]` floats.

        Returns:
            List with a gradient for each of `trainable_variables`, minus the gradient
            of the expected reward; and dict of scalar tensors.
        """
        shapes.expect([(rewards, "R"), (completions.truncated, "R")])
        return self.estimator.gradients(completions, rewards)

    def sample(self, prompts: Any) -> conversation.SampledTexts:
        """Samples `group_size` completions of each prompt, as the next update does.

        Args:
            prompts: List of P prompts, or dict of columns with P entries each.

        Returns:
            `SampledTexts` of `completions`, the arrays of R = P · `group_size` rows, and
            `columns`, the arguments of reward functions.
        """
        columns = training.read(prompts)
        keys = seeding.rollout_keys(self.seed, "training", int(self.updates.numpy()))
        return self._converse(columns, self.options.group_size, keys[_ACTION_KEY])

    def generate(self, prompts: Any) -> list:
        """Completes each prompt with the most likely tokens.

        Args:
            prompts: List of P prompts, or dict of columns with P entries each.

        Returns:
            List of P completions, strings or lists of token ids.
        """
        columns = training.read(prompts)
        return self._converse(columns, 1, None).columns["completions"]

    def evaluate(
        self,
        prompts: Any,
        *,
        batch_size: int = 32,
        steps: int | None = None,
        callbacks: Any = None,
        verbose: Any = 0,
    ) -> dict[str, float]:
        """Evaluates completions that consist of the most likely tokens.

        Args:
            prompts: As in `fit`.
            batch_size: Int, the number of prompts of a batch; not for a dataset.
            steps: Int, the number of batches, or `None` for all.
            callbacks, verbose: As in `keras.Model.evaluate`.

        Returns:
            Dict of floats: `reward`, `completion_length`, `truncated`, and `reward_NAME`
            with several reward functions.
        """
        batches = training.Batches(prompts, batch_size, steps)

        def evaluate(columns):
            columns = self._converse(columns, 1, None).columns
            return training.text_metrics(columns, *self.rewards(columns))

        self.test_function = training.Means(batches, evaluate)
        options = dict(callbacks=callbacks, verbose=verbose, return_dict=True)
        return super().evaluate(batches.dataset, steps=steps, **options)

    @locks.in_usable_process
    def _converse(self, columns, group_size, key):
        sample = self._sample if self.compiled else self.policy.sample
        return conversation.converse(self, sample, columns, group_size, key)

    def _expect_ready(self):
        """Raises an error if the model is not compiled, or its reference is too old."""
        self._assert_compile_called("fit")
        names = [variable.path for variable in self.trainable_variables]
        if not names or names != self._trained_names:
            raise ValueError(
                "The language model needs trainable weights, which must not change after "
                "`SequenceReinforce(causal_lm, …)`: call `enable_lora` before. Received: "
                f"{len(names)} weights, before {len(self._trained_names)}"
            )

    def get_config(self) -> dict[str, Any]:
        causal_lm = keras.saving.serialize_keras_object(self.causal_lm)
        # KerasHub cannot restore how a causal language model was compiled.
        causal_lm.pop("compile_config", None)
        functions = [reward_functions.registered_name(x) for x in self.rewards.functions]
        reply = self.reply and reward_functions.registered_name(self.reply)
        return {
            **super().get_config(),
            "causal_lm": causal_lm,
            "training_state": language_model.training_state(self.causal_lm),
            "rewards": functions,
            "reply": reply,
            **self._arguments(),
            **version.stamp(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SequenceReinforce":
        name = "SequenceReinforce"  # also of a subclass
        config = version.unstamped(name, f"The {name}", config)
        causal_lm = keras.saving.deserialize_keras_object(config["causal_lm"])
        state = config.pop("training_state")
        language_model.restore_training_state(causal_lm, state)
        rewards = [reward_functions.find(name) for name in config["rewards"]]
        reply = config.get("reply") and reward_functions.find(config["reply"])
        parts = {"causal_lm": causal_lm, "rewards": rewards, "reply": reply}
        return cls(**{**config, **parts})
