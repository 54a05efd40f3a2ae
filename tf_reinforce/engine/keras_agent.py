"""An agent as a Keras model: building, saving and loading."""

import dataclasses
import math
import os
import threading
from typing import Any

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import heads
from tf_reinforce.data import action_masks
from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import trainer
from tf_reinforce.export import live_policy
from tf_reinforce.policies import actor as acting
from tf_reinforce.policies import models
from tf_reinforce.policies import normalization
from tf_reinforce.policies import recurrent
from tf_reinforce.settings import config
from tf_reinforce.settings import keras_arguments
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version

_UNKNOWN_HEAD = (
    "Its head depends on the action space, which is not known yet. Pass a head "
    "(`Reinforce(policy, head=tfr.heads.Categorical(2))`), call `agent.fit(env, …)`, or "
    "make the agent with `Reinforce.for_env(env)`."
)

# Arguments of `keras.Model` that an agent accepts.
_MODEL_ARGUMENTS = {"name", "trainable", "dtype", "autocast", "activity_regularizer"}
_VALUE_OPTIMIZER = "optimizer of the baseline"
# Arguments of `keras.Model.compile` without an effect, and their defaults.
_WITHOUT_EFFECT = {
    **dict.fromkeys(("loss", "loss_weights", "metrics", "weighted_metrics")),
    "run_eagerly": False,
}

# Attributes that are constants of traced programs once the agent is built.
_STATISTICS = ("normalizer", "reward_scale", "advantage_scale")
_FIXED_ATTRIBUTES = frozenset(
    {"policy", "head", "baseline", *_STATISTICS, *config.AGENT_OPTIONS}
)


class KerasAgent(keras.Model):
    """Builds, saves and loads an agent as a Keras model.

    `Reinforce` derives from it. It has one argument for each option, and adds the methods
    that train and act.

    Args:
        policy, head, baseline: As in `Reinforce`.
        options: `config.AgentOptions`, each of which becomes an attribute.
        **kwargs: Keyword arguments of `keras.Model`.
    """

    def __init__(self, policy, head, baseline, options, **kwargs):
        for name in kwargs.keys() - _MODEL_ARGUMENTS:
            owner, names = type(self).__name__, config.AGENT_OPTIONS
            raise keras_arguments.unknown(owner, name, kwargs[name], names)
        super().__init__(**kwargs)
        learner_processes.check_strategy(self._distribute_strategy)
        self.policy = policy
        self.head = head
        self.baseline = baseline
        options.check_baseline(baseline, baseline.is_value_function)
        for option in config.AGENT_OPTIONS:
            setattr(self, option, getattr(options, option))
        mask = options.action_mask
        self._mask_source = None if mask is None else action_masks.MaskPath(mask)
        scale = normalization.RunningScale
        self.normalizer = self.reward_scale = self.advantage_scale = None
        if options.normalize_observations:
            self.normalizer = normalization.RunningNormalization()
        if options.scale_rewards:
            self.reward_scale = scale(centered=True, name="reward_scale")
        if options.scale_advantages == "running":
            self.advantage_scale = scale(name="advantage_scale")
        self.observation_space = self.action_space = None
        self._learning_rates, self._fit_defaults = [], {}  # `for_env` sets them for `fit`
        self._normalizes_integers = True
        self._training_lock = threading.RLock()
        self._weights_lock = threading.RLock()  # an update holds it

    def __repr__(self) -> str:
        """Shows parts, changed options, and how much the agent has been trained."""
        policy = f"<{type(self.policy).__name__} {self.policy.name!r}>"
        parts = [f"policy={policy}", f"head={self.head!r}"]
        parts += [f"baseline={type(self.baseline).__name__}"]
        parts += [
            f"{option.name}={getattr(self, option.name)!r}"
            for option in dataclasses.fields(config.AgentOptions)
            if getattr(self, option.name) != option.default
        ]
        state = "{} updates, {} episodes, {} steps".format(*self._counted())
        state = state if self.built else "not built"
        return f"<{type(self).__name__}({', '.join(parts)}): {state}>"

    def __setattr__(self, name, value):
        if name in _FIXED_ATTRIBUTES and getattr(self, "built", False):
            raise AttributeError(
                f"`{name}` of an agent is fixed once the agent is built. Received: "
                f"{name}={value!r}. To change `entropy_coef` or the learning rate "
                "during training, pass a Keras learning-rate schedule. For another "
                "option, make another agent, and copy the weights: `other.set_weights("
                "agent.get_weights())`."
            )
        super().__setattr__(name, value)

    predict = locks.in_usable_process(keras.Model.predict)

    def build(self, observations_shape):
        if self.head is None and self.action_space is None:
            raise ValueError(f"The agent cannot be built. {_UNKNOWN_HEAD}")
        self._is_normalized = self._normalized_arrays()
        self._build_model(self.policy, observations_shape, "policy")
        float_type = acting.float_type(self.policy)
        observation_spec = self._observation_spec(observations_shape, float_type)
        # Validate first, so that a failed build can be tried again.
        head = self.head
        if head is None:
            head = heads.for_space(self.action_space)
        if self._mask_source is not None:
            self._mask_source.expect_in(observation_spec)
        recurrent_policy, updating_layers = self._check_models(
            head, observation_spec, float_type
        )
        models.warn_bounded_logits(self.policy, head)
        self._check_scope({"policy": self.policy, "head": head})
        self.head = head
        with learner_processes.scope(self._distribute_strategy):
            self._build_parts(observation_spec, float_type)
        self._constants = acting.constants(*self._models)
        self._live_policies = {}  # keys: whether the action space is known
        self._trainer = trainer.Trainer(
            self, observation_spec, recurrent_policy, updating_layers
        )

    def _check_models(self, head, observation_spec, float_type):
        """Checks policy and value model, and builds the value model.

        Returns:
            The results of `models.check_model_shapes` and `check_layers`.
        """
        shapes = keras.tree.map_structure(lambda x: (None, *x.shape), observation_spec)
        spec = records.with_floats(observation_spec, self._is_normalized, float_type)
        recurrent_policy = models.check_model_shapes(
            self.policy, head, self.baseline, spec
        )
        for value_model in self._models[1:]:
            self._build_model(value_model, shapes, "value model")
        return recurrent_policy, models.check_layers(self._models, spec, recurrent_policy)

    def _observation_spec(self, observations_shape, float_type):
        """Returns the `tf.TensorSpec`s of one recorded observation."""
        if self.observation_space is not None:
            return records.observation_spec(
                self.observation_space, float_type, self.normalize_observations
            )
        spec = records.specs_from_shapes(observations_shape, float_type)
        spec = recurrent.remove_time_axis(spec, self.policy)
        count = len(keras.tree.flatten(spec))
        self._is_normalized = [self.normalizer is not None] * count
        return spec

    def _normalized_arrays(self):
        """Returns, for each array of the observation space, whether to normalize it."""
        if self.observation_space is None:
            return []
        if self.normalizer is None:
            nested = spaces.to_nest(self.observation_space)
            return [False] * len(keras.tree.flatten(nested))
        return models.normalized_arrays(
            self.observation_space, self._models, self._normalizes_integers
        )

    def _build_model(self, model, observations_shape, name):
        """Builds the policy or the value model, unless it is built already."""
        if not model.built:
            spec = self.observation_space and records.with_floats(
                records.observation_spec(self.observation_space, "float32"),
                self._is_normalized,
                "float32",
            )
            with learner_processes.scope(self._distribute_strategy):
                models.build(model, observations_shape, spec, name)

    def _build_parts(self, observation_spec, float_type):
        """Creates the weights of head, baseline, running statistics, and `counters`."""
        self._check_scope({"baseline": self.baseline})
        self._check_scope({_VALUE_OPTIMIZER: getattr(self.baseline, "optimizer", None)})
        if not self.head.built:
            self.head.set_float_type(float_type)
            self.head.build((None, self.head.outputs_size))
        if not self.baseline.built:
            shapes = keras.tree.map_structure(
                lambda x: (None, *x.shape), observation_spec
            )
            self.baseline.build(shapes)
        if self.normalizer is not None:
            # In half precision, large numbers with small differences would be equal.
            self.normalizer.dtype_policy = float_type
            self.normalizer.build(
                records.normalized_shapes(observation_spec, self._is_normalized)
            )
        for scale in self._scales.values():
            scale.build()
        self.counters = self.add_weight(
            name="counters",
            shape=(3,),
            initializer="zeros",
            dtype="int64",
            trainable=False,
        )

    @property
    def _scales(self):
        scales = {"rewards": self.reward_scale, "advantages": self.advantage_scale}
        return {name: scale for name, scale in scales.items() if scale is not None}

    @property
    def _agent_options(self):
        return config.AgentOptions(
            **{name: getattr(self, name) for name in config.AGENT_OPTIONS}
        )

    def call(self, observations, training=False):
        return self.trainer.estimator.forward(observations)[0]

    updates = property(lambda self: self._counted()[0])
    episodes_seen = property(lambda self: self._counted()[1])
    env_steps = property(lambda self: self._counted()[2])

    def _counted(self):
        return self.counters.numpy().tolist() if self.built else [0, 0, 0]

    @property
    def policy_variables(self) -> list[keras.Variable]:
        """Returns the trainable weights of policy and head, for the optimizer."""
        return self.trainer.estimator.variables

    @property
    @locks.between_updates
    def trainer(self):
        """Returns the `engine.trainer.Trainer` of a built agent.

        It is renewed when a constant of its traced programs has changed, for example by
        calling `adapt` of a normalization layer of the policy.
        """
        constants = acting.constants(*self._models)
        if constants != self._constants:
            self._constants, self._live_policies = constants, {}
            self._trainer = self._trainer.renewed()
        return self._trainer

    @property
    def _xla_note(self):
        return self.trainer.xla_note

    @property
    @locks.between_updates
    def _live_policy(self):
        actor = self.trainer.actor
        has_space = self.action_space is not None
        if has_space not in self._live_policies:
            self._live_policies[has_space] = live_policy.LivePolicy(
                actor, self.action_space
            )
        return self._live_policies[has_space]

    @property
    def _models(self):
        """Returns a list of the policy, and of the baseline's model if it has one."""
        value_model = getattr(self.baseline, "model", None)
        return [self.policy] if value_model is None else [self.policy, value_model]

    def build_for_env(self, env: Any) -> None:
        """Builds a compiled agent, and its optimizer, for an environment.

        Args:
            env: Object with `observation_space` and `action_space`.

        Raises:
            ValueError: If the agent is not compiled, or was built for other spaces.
        """
        self._require_optimizer()
        if not hasattr(env, "observation_space") or not hasattr(env, "action_space"):
            raise TypeError(
                "`env` must have the attributes `observation_space` and `action_space`. "
                f"Received: env={env!r} of type {type(env).__name__}"
            )
        self.build_for_spaces(env.observation_space, env.action_space)
        self._build_optimizer()

    @locks.between_updates
    def build_for_spaces(
        self, observation_space: gym.Space, action_space: gym.Space
    ) -> None:
        """Builds the agent for two spaces; raises if it was built for others.

        Args:
            observation_space, action_space: `gymnasium.Space`.
        """
        previous = self.observation_space, self.action_space
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
            self.build(keras.tree.map_structure(lambda x: (None, *x.shape), spec))
        except Exception:
            # The agent can still be built for other spaces.
            self.observation_space, self.action_space = previous
            raise

    def _trainer_for(self, episodes):
        """Returns the trainer, and builds the agent from `episodes` before if need be."""
        validation.instance("episodes", episodes, records.Episodes)
        if not self.built:
            self.build(
                keras.tree.map_structure(
                    lambda array: (None, *np.shape(array)[2:]), episodes.observations
                )
            )
        return self.trainer

    def _build_optimizer(self):
        pairs = [("optimizer", getattr(self, "optimizer", None), self.policy_variables)]
        value_model = getattr(self.baseline, "model", None)
        if value_model is not None:  # its optimizer may have been replaced
            variables = value_model.trainable_variables
            pairs.append((_VALUE_OPTIMIZER, self.baseline.optimizer, variables))
        with learner_processes.scope(self._distribute_strategy):
            for name, optimizer, variables in pairs:
                if optimizer is not None and not optimizer.built:
                    self._check_scope({name: optimizer})
                    optimizers.build(optimizer, variables)

    def _check_scope(self, parts):
        """Raises `ValueError` if a part was made in another scope than the agent."""
        variables = {name: x.variables for name, x in parts.items() if x is not None}
        learner_processes.check_same_scope(self._distribute_strategy, variables)

    def _require_optimizer(self, method=None):
        if method is not None:
            learner_processes.check_outside_scope(method)
        if getattr(self, "optimizer", None) is None:
            raise ValueError(
                "The agent is not compiled. Call "
                "`agent.compile(optimizer=keras.optimizers.Adam(1e-2))` first."
            )

    def _require_built(self):
        if not self.built:
            raise ValueError(f"The agent is not built. {_UNKNOWN_HEAD}")

    @locks.between_updates
    def save(
        self, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any
    ) -> None:
        """Writes the agent to a `.keras` file, with all weights and optimizer states.

        An error leaves an existing file unchanged. Of the `env_kwargs` of `for_env`, only
        numbers and booleans are stored; pass others to `fit` again after loading.

        Raises:
            ValueError: If the file name does not end in `.keras`, or the agent is not
                built.
            FileExistsError: If the file exists and `overwrite` is False.
        """
        self._require_built()
        target = filepath, overwrite, ".keras", "an agent"
        with files.atomic_model_file(*target) as temporary_path:
            self._build_optimizer()
            super().save(temporary_path, **kwargs)

    @locks.between_updates
    def save_weights(self, filepath: str | os.PathLike, overwrite: bool = True) -> None:
        """Writes the weights to one file atomically, in the format of Keras."""
        self._require_built()
        self._build_optimizer()
        target = filepath, overwrite, ".weights.h5", "weights", self
        with files.atomic_model_file(*target) as temporary_path:
            super().save_weights(temporary_path)

    @locks.between_updates
    def load_weights(self, filepath: str | os.PathLike, **kwargs: Any) -> None:
        """Loads weights as in Keras, and the optimizer state if the agent is compiled."""
        self._require_built()
        self._build_optimizer()
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
    def from_config(cls, config):
        config = version.unstamped("Reinforce", "The agent", config)
        for part in config.keys() & {"policy", "head", "baseline", "entropy_coef"}:
            config[part] = keras.saving.deserialize_keras_object(config[part])
        own_spaces = [config.pop(f"{x}_space", None) for x in ("observation", "action")]
        rates = config.pop("learning_rates", [])
        defaults = config.pop("fit_defaults", {"env_kwargs": {}})
        agent = cls(**config)
        agent._learning_rates = _check_rates(rates, agent.baseline)
        agent._fit_defaults = toml_files.check_defaults(defaults)
        agent.observation_space, agent.action_space = map(spaces.from_config, own_spaces)
        if agent.action_space is not None and agent.head is not None:
            agent.head.check_space(agent.action_space)
        return agent

    def get_build_config(self):
        config = super().get_build_config()
        return config and {**config, "normalizes_integers": self._normalizes_integers}

    def build_from_config(self, config):
        # Agents of earlier versions do not normalize integers.
        self._normalizes_integers = config.get("normalizes_integers", False)
        self.build(config["input_shape"])  # Keras would ignore an error of `build`

    def _check_compile(self, arguments):
        """Raises `ValueError` if there is no optimizer, or an argument has no effect."""
        if arguments["optimizer"] is None:
            raise ValueError(
                "`optimizer` must be a Keras optimizer, its name or its config, for "
                "example keras.optimizers.Adam(1e-2). Received: optimizer=None"
            )
        for name, default in _WITHOUT_EFFECT.items():
            value = arguments.get(name, default)
            if value is not default and value != default:
                raise ValueError(
                    f"`{name}` of `compile` has no effect on an agent, which uses the "
                    "policy gradient and the log keys of docs/logs.md, in compiled "
                    f"updates. Omit it. Received: {name}={value!r}"
                )
        updates = arguments.get("steps_per_execution", 1)
        validation.positive_int("steps_per_execution", updates)

    @property
    def jit_compile(self):
        """Returns the argument `jit_compile` of `compile`: True, False or `"auto"`.

        Without a GPU, Keras would replace `"auto"` by False, although XLA makes updates
        of many gradient steps several times faster.
        """
        return "auto" if self._jit_compile is None else self._jit_compile

    @jit_compile.setter
    def jit_compile(self, value):
        validation.one_of("jit_compile", value, config.JIT_COMPILE)
        self._jit_compile = value if value == "auto" else bool(value)

    def get_compile_config(self):
        config = super().get_compile_config()
        return config and {**config, "jit_compile": self.jit_compile}

    def compile_from_config(self, config):
        # Keras saves all arguments.
        config = {k: x for k, x in config.items() if k not in _WITHOUT_EFFECT}
        # Keras would also build the optimizer on the weights of the baseline, and then
        # discard the saved state.
        rates = self._learning_rates
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self._build_optimizer()
        self._learning_rates = rates


def _check_rates(schedules, baseline):
    """Returns the linear learning rates from a config, or raises `ValueError`."""
    names = ["optimizer", "baseline.optimizer"][: 1 + hasattr(baseline, "optimizer")]
    if not isinstance(schedules, list) or not all(
        isinstance(x, list) and len(x) == 3 and x[0] in names for x in schedules
    ):
        raise ValueError(
            f"`learning_rates` must be a list of [optimizer, first, last], with {names}. "
            f"Received: {repr(schedules)[:100]}"
        )
    for name, *rates in schedules:
        for rate in rates:
            validation.within(f"learning_rates of {name}", rate, 0, math.inf)
    return schedules
