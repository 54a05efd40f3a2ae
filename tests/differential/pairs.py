"""Pairs of programs that should say the same; each returns what they disagree on."""

import combinations
import keras
import numpy as np
import parts
import playing
import tensorflow as tf
from comparing import Disagreement
from comparing import close
from comparing import plain
from comparing import same_bits
from definition import Definition

from tf_reinforce.algorithm import train_step

# Relative to the largest number of the sum, and to the largest that went into it: a
# sum that cancels is known no better than its terms. Nor is it known any better than
# its own type can say: both programs may be off by their rounding, which is measured
# where the first two are not enough.
TOLERANCES = {
    "float64": (1e-9, 1e-13),
    "float32": (1e-5, 3e-6),
    "mixed_float16": (1e-2, 1e-2),
    "mixed_bfloat16": (1e-1, 1e-1),
    "bfloat16": (1e-1, 1e-1),
}


def allowed(c, largest, size, rounding):
    relative, of_size = TOLERANCES[c.dtype]
    return max(relative * largest, of_size * size, 2 * rounding) + 1e-300


def gradient(c):
    """Updates and, before the last one, `agent.gradients` against the definition.

    Rounding is measured, which takes twice as long, only where they disagree.
    """
    try:
        compare_updates(c, measured=False)
    except Disagreement:
        if c.dtype == "float64":
            raise
        print(f"combination {c.seed} is compared with its rounding", flush=True)
        compare_updates(c, measured=True)


def compare_updates(c, measured):
    agent = parts.agent_of(c)
    definition = Definition(c, *weights_of(agent), measured=measured)
    updates = 1 if c.optimizer in combinations.OTHER_OPTIMIZERS else c.updates
    for number in range(updates):
        record = parts.record_of(c, number)
        last = number + 1 == updates
        if last:
            same_gradients(c, agent, definition, record)
        wanted = several(c) and c.optimizer not in combinations.OTHER_OPTIMIZERS
        if (not last or wanted) and not same_update(c, agent, definition, record, number):
            return  # it was refused: nothing has changed, and the definition is lost


def several(c):
    """Whether an update is more than one step along `agent.gradients`."""
    return c.passes > 1 or c.minibatch_size or c.baseline == "value" or c.traced


def weights_of(agent):
    """Weights of policy and critic, and of the head as one array."""
    critic = getattr(agent.baseline, "model", None)
    return agent.policy.get_weights(), critic and critic.get_weights(), own_of(agent)


def own_of(agent):
    return np.concatenate(
        [
            np.zeros(0),
            *(w.numpy().astype("float64") for w in agent.head.trainable_variables),
        ]
    )


def same_gradients(c, agent, definition, record):
    found, critic, logs = agent.gradients(record)
    sums, critic_sums, expected = definition.gradients(record)
    count = len(definition.policy.trainable_variables)
    own = np.concatenate([np.zeros(0), *(np.asarray(x) for x in found[count:])])
    if not np.isfinite(sums.largest()).all():  # weights have led out of all numbers
        if all(np.isfinite(plain(x)).all() for x in (*found[:count], own)):
            raise Disagreement("a finite gradient where that of the definition is not")
        return
    close("gradient", [*found[:count], own], sums.total, allowed(c, *sums.largest()))
    if critic_sums is not None:
        most = allowed(c, *critic_sums.largest())
        close("critic's gradient", critic, critic_sums.total, most)
    elif critic:
        raise Disagreement("gradients of a baseline that has no weights")
    some = sum(definition.episodes(record)) > 0
    same_logs(c, logs, expected, some)


def same_logs(c, logs, expected, some):
    tolerance = 100 * TOLERANCES[c.dtype][0]
    for name, figure in expected.items():
        if not some and name != "loss":
            continue  # a mean of nothing is NaN
        ours = float(logs[name])
        if np.isnan(ours) != np.isnan(figure) or abs(ours - figure) > tolerance * max(
            1.0, abs(figure)
        ):
            raise Disagreement(f"log {name}: {ours} and {figure}")


def same_update(c, agent, definition, record, number):
    """Whether the update was made: one that leads to no finite number is refused."""
    before = playing.everything(agent)
    try:
        permutations = moved(c, agent, record)
    except FloatingPointError:
        permutations = None
    if permutations is None:
        same_bits("after a refusal", playing.everything(agent), before)
        permutations = agent._permutations(agent._checked(record), seed=c.seed).numpy()
        refused(c, definition, record, permutations)
        return False
    steps, critic_steps = definition.update(record, permutations)
    for which, made in (("policy", steps), ("critic", critic_steps)):
        model = getattr(definition, which)
        if model is None:
            continue
        ours = agent.policy if which == "policy" else agent.baseline.model
        far, size, rounding = (sum(one[i] for one in made) for i in range(3))
        size += max(np.abs(w).max(initial=0.0) for w in model.get_weights())
        most = allowed(c, far, size, rounding)
        close(
            f"{which} after update {number}",
            ours.get_weights(),
            model.get_weights(),
            most,
        )
    own = own_of(agent)
    far, size, rounding = (sum(one[i] for one in steps) for i in range(3))
    most = allowed(c, far, size + np.abs(own).max(initial=0.0), rounding)
    close(f"head after update {number}", [own], [definition.own], most)
    definition.take(*weights_of(agent))
    return True


# Beyond these e to the power of a weight, or a product of weights, may overflow.
FAR = {"float64": 300.0, "float32": 40.0}


def refused(c, definition, record, permutations):
    """Raises unless the definition, too, leads where no number is finite."""
    try:
        with np.errstate(all="ignore"):
            definition.update(record, permutations)
    except (OverflowError, ZeroDivisionError, ValueError):
        return  # of Python's own floats
    models = definition.policy, definition.critic
    found = [w for model in models if model is not None for w in model.get_weights()]
    found = [w.astype("float64") for w in found] + [definition.own]
    most = max(np.abs(w).max(initial=0.0) for w in found)
    if most <= FAR.get(c.dtype, 10.0):
        raise Disagreement(
            f"an update was refused, and its definition ends at weights up to {most:.3g}"
        )


def moved(c, agent, record):
    """Makes one update, in eager mode or as `agent.update` does; the orders it took."""
    checked = agent._checked(record)
    permutations = agent._permutations(checked, seed=c.seed)
    if c.traced:
        agent.update(record, seed=c.seed)
        return permutations.numpy()
    update = agent._learner.make_train_step(agent.optimizer)
    finite, *_ = update(
        keras.tree.map_structure(tf.constant, checked), permutations
    ).numpy()
    if not finite:
        raise FloatingPointError("The update would not be finite.")
    assert len(train_step.METRICS) == len(_)
    return permutations.numpy()


BESIDE = {
    "resumed": lambda c: playing.resumed(c, moved),
    "acting": playing.acting,
    "environments": playing.environments,
    "workers": playing.workers,
    "engines": playing.engines,
    "seeds": playing.seeds,
}


def compare(c):
    """All that is compared for one combination."""
    gradient(c)
    if c.pair is not None:
        BESIDE[c.pair](c)


MEANING = {
    "gradient": "`agent.gradients` and updates, and the definition: see the tolerances",
    "resumed": "straight on, and saved and loaded in between: to the bit",
    "acting": "`act` and the export to the bit; Keras in eager mode within 1e-5",
    "environments": "1, 3 and 8 environments to the bit; all modes of a `VectorEnv`",
    "workers": "two processes and one: records and trained weights to the bit",
    "engines": "the compiled engine's update and the host's: weights within 1e-5",
    "seeds": "`train_seeds` and one seed alone: weights within 1e-4",
}


def names(c):
    """Which pairs are compared for a combination."""
    return ["gradient", *([c.pair] if c.pair else [])]
