"""Compares pairs of programs that should be equal; raises `Disagreement` if not."""

import combinations
import keras
import numpy as np
import parts
import playing
import tensorflow as tf
from comparing import Disagreement
from comparing import as_float64
from comparing import assert_close
from comparing import assert_equal_bits
from definition import Definition

from tf_reinforce.engine.update import train_step

# Relative to the largest element of the sum, and to the largest sum of absolute values: a
# sum that cancels is only as accurate as its terms. If a gradient exceeds both limits,
# the rounding error of its type is measured. Each of the programs may have that error.
TOLERANCES = {
    "float64": (1e-9, 1e-13),
    "float32": (1e-5, 3e-6),
    "mixed_float16": (1e-2, 1e-2),
    "mixed_bfloat16": (1e-1, 1e-1),
    "bfloat16": (1e-1, 1e-1),
}


def tolerance_of(c, largest, size, rounding):
    relative, of_size = TOLERANCES[c.dtype]
    return max(relative * largest, of_size * size, 2 * rounding) + 1e-300


def gradient(c):
    """Compares updates, and `agent.gradients` before the last one, with the definition.

    The rounding error is measured only after a disagreement, because it takes time.
    """
    try:
        compare_updates(c, measure_rounding=False)
    except Disagreement:
        if c.dtype == "float64":
            raise
        print(f"combination {c.seed} is compared with its rounding", flush=True)
        compare_updates(c, measure_rounding=True)


def compare_updates(c, measure_rounding):
    agent = parts.agent_of(c)
    definition = Definition(c, *weights_of(agent), measure_rounding=measure_rounding)
    updates = 1 if c.optimizer in combinations.OTHER_OPTIMIZERS else c.updates
    for number in range(updates):
        record = parts.record_of(c, number)
        last = number + 1 == updates
        if last:
            compare_gradients(c, agent, definition, record)
        needs_update = (
            has_several_steps(c) and c.optimizer not in combinations.OTHER_OPTIMIZERS
        )
        if (not last or needs_update) and not compare_update(
            c, agent, definition, record, number
        ):
            return  # the update was an error, and the definition has invalid weights


def has_several_steps(c):
    """Returns whether an update is more than one step along `agent.gradients`."""
    return c.passes > 1 or c.minibatch_size or c.baseline == "value" or c.traced


def weights_of(agent):
    """Returns the weights of policy and critic, and of the head as one array."""
    critic = getattr(agent.baseline, "model", None)
    return (
        agent.policy.get_weights(),
        critic and critic.get_weights(),
        head_weights_of(agent),
    )


def head_weights_of(agent):
    return np.concatenate(
        [
            np.zeros(0),
            *(w.numpy().astype("float64") for w in agent.head.trainable_variables),
        ]
    )


def compare_gradients(c, agent, definition, record):
    gradients, critic, logs = agent.gradients(record)
    sums, critic_sums, expected = definition.gradients(record)
    count = len(definition.policy.trainable_variables)
    head_gradient = np.concatenate(
        [np.zeros(0), *(np.asarray(x) for x in gradients[count:])]
    )
    if not np.isfinite(sums.largest()).all():  # the weights are too large
        if all(
            np.isfinite(as_float64(x)).all() for x in (*gradients[:count], head_gradient)
        ):
            raise Disagreement(
                "the gradient is finite, but that of the definition is not"
            )
        return
    assert_close(
        "gradient",
        [*gradients[:count], head_gradient],
        sums.total,
        tolerance_of(c, *sums.largest()),
    )
    if critic_sums is not None:
        limit = tolerance_of(c, *critic_sums.largest())
        assert_close("critic's gradient", critic, critic_sums.total, limit)
    elif critic:
        raise Disagreement("gradients of a baseline without weights")
    has_steps = sum(definition.episodes(record)) > 0
    compare_logs(c, logs, expected, has_steps)


def compare_logs(c, logs, expected, has_steps):
    tolerance = 100 * TOLERANCES[c.dtype][0]
    for name, expected_value in expected.items():
        if not has_steps and name != "loss":
            continue  # the mean over no steps is NaN
        value = float(logs[name])
        if np.isnan(value) != np.isnan(expected_value) or abs(
            value - expected_value
        ) > tolerance * max(1.0, abs(expected_value)):
            raise Disagreement(f"log {name}: {value} and {expected_value}")


def compare_update(c, agent, definition, record, number):
    """Compares an update; returns False if the update failed with values not finite."""
    before = playing.all_variables(agent)
    try:
        permutations = make_update(c, agent, record)
    except FloatingPointError:
        permutations = None
    if permutations is None:
        assert_equal_bits("after a failed update", playing.all_variables(agent), before)
        permutations = agent.trainer.learner.permutations(
            agent.trainer.check_episodes(record), seed=c.seed
        ).numpy()
        check_overflow(c, definition, record, permutations)
        return False
    steps, critic_steps = definition.update(record, permutations)
    for part, part_steps in (("policy", steps), ("critic", critic_steps)):
        model = getattr(definition, part)
        if model is None:
            continue
        agent_model = agent.policy if part == "policy" else agent.baseline.model
        distance, size, rounding = (sum(step[i] for step in part_steps) for i in range(3))
        size += max(np.abs(w).max(initial=0.0) for w in model.get_weights())
        limit = tolerance_of(c, distance, size, rounding)
        assert_close(
            f"{part} after update {number}",
            agent_model.get_weights(),
            model.get_weights(),
            limit,
        )
    head_weights = head_weights_of(agent)
    distance, size, rounding = (sum(step[i] for step in steps) for i in range(3))
    limit = tolerance_of(
        c, distance, size + np.abs(head_weights).max(initial=0.0), rounding
    )
    assert_close(
        f"head after update {number}", [head_weights], [definition.head_weights], limit
    )
    definition.set_weights(*weights_of(agent))
    return True


# With larger weights, an exponential or a product of weights may overflow.
LARGEST_WEIGHTS = {"float64": 300.0, "float32": 40.0}


def check_overflow(c, definition, record, permutations):
    """Raises unless the definition overflows, or ends with very large weights."""
    try:
        with np.errstate(all="ignore"):
            definition.update(record, permutations)
    except (OverflowError, ZeroDivisionError, ValueError):
        return  # errors of Python floats
    models = definition.policy, definition.critic
    weights = [w for model in models if model is not None for w in model.get_weights()]
    weights = [w.astype("float64") for w in weights] + [definition.head_weights]
    largest = max(np.abs(w).max(initial=0.0) for w in weights)
    if largest <= LARGEST_WEIGHTS.get(c.dtype, 10.0):
        raise Disagreement(
            f"an update failed, but the definition ends with weights up to {largest:.3g}"
        )


def make_update(c, agent, record):
    """Makes one update, eager or with `agent.update`; returns the permutations."""
    validated = agent.trainer.check_episodes(record)
    permutations = agent.trainer.learner.permutations(validated, seed=c.seed)
    if c.traced:
        agent.update(record, seed=c.seed)
        return permutations.numpy()
    step = agent.trainer.learner.make_train_step(agent.optimizer)
    finite, *metrics = step(
        keras.tree.map_structure(tf.constant, validated), permutations
    ).numpy()
    if not finite:
        raise FloatingPointError("The update would not be finite.")
    assert len(train_step.METRICS) == len(metrics)
    return permutations.numpy()


SECOND_PROGRAMS = {
    "resumed": lambda c: playing.resumed(c, make_update),
    "acting": playing.acting,
    "environments": playing.environments,
    "workers": playing.workers,
    "engines": playing.engines,
    "seeds": playing.seeds,
}


def compare(c):
    """Compares the programs of one combination."""
    gradient(c)
    if c.pair is not None:
        SECOND_PROGRAMS[c.pair](c)


DESCRIPTIONS = {
    "gradient": "`agent.gradients` and updates, with the definition: see the tolerances",
    "resumed": "training with and without saving and loading: to the bit",
    "acting": "`act` and the export to the bit; eager Keras within 1e-5 (float32)",
    "environments": "1, 3 and 8 environments to the bit; all modes of a `VectorEnv`",
    "workers": "two processes and one process: records and trained weights to the bit",
    "engines": "an update of compiled and host engine: weights within 1e-5 (float32)",
    "seeds": "`train_seeds` and one seed alone: weights within 1e-4 (float32)",
}


def names(c):
    """Returns the names of the pairs that are compared for a combination."""
    return ["gradient", *([c.pair] if c.pair else [])]
