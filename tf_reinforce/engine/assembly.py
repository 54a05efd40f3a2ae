"""Connects the parts of an agent: estimator, actor, collector and learner."""

from typing import NamedTuple

from tf_reinforce.data import action_masks
from tf_reinforce.engine import collector
from tf_reinforce.engine import learner
from tf_reinforce.engine import trainer
from tf_reinforce.engine.update import estimator
from tf_reinforce.policies import actor
from tf_reinforce.policies import recurrent
from tf_reinforce.settings import config


class AgentParts(NamedTuple):
    """The parts of a built agent, from which `make_trainer` makes a trainer."""

    policy: object  # keras.Model
    head: object  # heads.Head
    baseline: object  # baselines.Baseline
    normalizer: object  # normalization.RunningNormalization or None
    scales: dict  # normalization.RunningScale of "rewards" and "advantages"
    counters: object  # int64 weight [3]: updates, episodes, environment steps
    options: config.AgentOptions
    recurrent: recurrent.RecurrentPolicy | None
    updating_layers: list  # from compatibility.check_call_modes
    mask_source: action_masks.MaskPath | None
    observation_spec: object  # tf.TensorSpec, or a structure of them
    float_type: str  # the type of outputs, observations and real actions
    lock: object  # threading.RLock, held while weights are read or changed


def make_trainer(parts, check_episodes, jit_compile):
    """Returns a `trainer.Trainer` that trains the parts of a built agent.

    Args:
        parts: `AgentParts`.
        check_episodes: Function that checks a record of type `Episodes`, and returns the
            record with NumPy arrays.
        jit_compile: Argument of `learner.Learner`.
    """
    gradient_estimator = estimator.PolicyGradientEstimator(
        parts.policy,
        parts.head,
        parts.baseline,
        parts.normalizer,
        parts.options,
        parts.recurrent,
        scales=parts.scales,
        updating_layers=parts.updating_layers,
        num_updates=lambda: parts.counters[0],
    )
    variables, centers = [*parts.policy.variables, *parts.head.variables], None
    if parts.normalizer is not None:
        centers = parts.normalizer.centers(parts.observation_spec)
        variables += parts.normalizer.acting_variables
        variables += [variable for center in centers if center for variable in center[:2]]
    actor_policy = actor.ActorPolicy(
        gradient_estimator.recurrent_step,
        parts.head,
        parts.observation_spec,
        parts.float_type,
        variables,
        parts.mask_source,
        parts.recurrent,
        parts.lock,
        centers,
    )
    return trainer.Trainer(
        collector.Collector(actor_policy),
        learner.Learner(
            gradient_estimator,
            actor_policy,
            parts.counters,
            passes=parts.options.passes,
            minibatch_size=parts.options.minibatch_size,
            jit_compile=jit_compile,
        ),
        check_episodes,
    )
