"""Repeats an update that was refused as not finite, and explains the cause."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_reinforce import version
from tf_reinforce.algorithm import estimator as estimators
from tf_reinforce.algorithm import inspection
from tf_reinforce.loading import archive
from tf_reinforce.loading import keras_file
from tf_reinforce.training import learner
from tf_reinforce.training import refused_update

# What usually causes the first number that is not finite, and the remedy.
CAUSES = {
    "observation": "The environment returned the number. Correct the environment.",
    "reward": "The environment returned the number. Correct the environment.",
    "value": "The value model of the baseline overflows. Usual causes: its learning rate "
    "is too large, or the returns are large (scale_rewards=True, or Value(scale=…)).",
    "return": "The sum of finite rewards overflows. Usual cause: the rewards are too "
    "large. Divide the rewards by a constant in the environment.",
    "advantage": "The advantage overflows in the number type of the policy. Usual cause: "
    "the rewards are too large. Divide the rewards by a constant in the environment.",
    "outputs": "The policy overflows for a finite observation. Usual causes: the "
    "learning rate is too large (use `global_clipnorm`), or the observations are large "
    "(normalize_observations=True).",
    "log-probability": "The head returns no finite log-probability for the action. Usual "
    "causes: the probability of the action is zero, a standard deviation is zero or "
    "infinite, or a custom head takes the logarithm of a negative number.",
    "entropy": "The head returns no finite entropy. Usual cause: a custom head takes the "
    "logarithm of zero or of a negative number.",
    "entropy_coef": "The schedule of `entropy_coef` returned the number. Correct the "
    "schedule.",
    "gradient of the baseline": "The derivative of the value loss overflows. Usual "
    "cause: the returns are too large (scale_rewards=True, or Value(scale=…)).",
    "gradient": "All numbers of the steps are finite, and a loss or a derivative is not. "
    "Usual causes: the derivative of a square root or norm at zero, a `tf.where` whose "
    "other branch is not finite, a regularizer that overflows, or large advantages.",
    "later gradient step": "The earlier gradient steps of the update changed the policy "
    "too much. Usual causes: the learning rate is too large, or not finite after a "
    "number of steps (a schedule), or the update makes many gradient steps.",
    "weight": "The gradients are finite, and the weight after the last gradient step is "
    "not. Usual causes: a learning rate that is too large or not finite (a schedule), "
    "or an optimizer whose sums of squares overflow.",
    "running statistics": "The sum of squares of a running statistic overflows. Usual "
    "cause: rewards or observations beyond 1e150.",
}
_AROUND = 2  # steps before and after the first invalid step that are shown


class GradientStep(NamedTuple):
    """One computation of gradients in the repeated update."""

    loss: float
    gradient_norm: float
    largest_ratio: float  # likelihood ratio of current and acting policy; 1 at first
    variable: str  # path of the first variable whose gradient is not finite, or ""


class Replay(NamedTuple):
    """The result of a repeated update; `print` shows a readable account.

    Attributes:
        error: String, the message of the repeated error, or `None` if the repeated update
            is finite.
        original_error: String, the message of the original error.
        cause: String, a key of `CAUSES`, or `None` if the repeated update is finite.
        where: String, the episode and step or the variable of the first number that is
            not finite, or an empty string.
        episodes, times: `[N]` ints, the episode and the time of each valid step.
        steps: Dict from the name of a quantity, in the order of the computation, to
            `[N]` float64. The entry of a step is its number with the largest magnitude,
            or its first number that is not finite.
        gradient_steps: List of `GradientStep`, up to the step that was refused.
        rates: Dict with the float values of `learning_rate` and `entropy_coef`.
        versions: Dict from the names of packages to pairs of the original and the
            current version, if the versions differ.
    """

    error: str | None
    original_error: str
    cause: str | None
    where: str
    episodes: np.ndarray
    times: np.ndarray
    steps: dict[str, np.ndarray]
    gradient_steps: list[GradientStep]
    rates: dict[str, float]
    versions: dict[str, tuple]

    def __str__(self) -> str:
        return _text(self)


def replay(
    path: str | os.PathLike,
    custom_objects: Mapping[str, Any] | None = None,
    limits: archive.LoadLimits | None = None,
) -> Replay:
    """Repeats an update that was refused, because a number was not finite.

    `fit` with the argument `resume`, and `tf-reinforce train`, write a refused update to
    the folder `refused_update_N` of the training.

    Args:
        path: Path of the folder `refused_update_N`.
        custom_objects: Dict from names to the custom classes of the policy.
        limits: `tfr.LoadLimits` of the agent file, as in `tfr.load`.

    Returns:
        `Replay`, whose text explains the first number that is not finite.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is damaged.
    """
    agent, refused, manifest = refused_update.read(
        pathlib.Path(path), lambda file: keras_file.load(file, custom_objects, limits)
    )
    original = manifest["error"]
    trainer, optimizer = agent.trainer, agent.optimizer
    statistics = inspection.step_statistics(trainer.estimator, refused.episodes)
    coefficient = agent.entropy_coef
    if callable(coefficient):
        coefficient = coefficient(tf.constant(agent.updates, tf.int64))
    rates = {"learning_rate": float(optimizer.learning_rate)}
    rates["entropy_coef"] = float(coefficient)
    steps = _quantities(trainer.estimator, refused.episodes, statistics)
    try:
        trainer.learner.update(optimizer, *refused)
        error, gradient_steps, cause, where = None, [], None, ""
    except learner.UpdateNotFinite as not_finite:
        error = str(not_finite)
        gradient_steps, late_cause = _repeat_eagerly(trainer, optimizer, refused)
        cause, where = _first_cause(steps, statistics, rates) or late_cause
    versions = {
        name: (manifest["versions"].get(name), current)
        for name, current in version.installed().items()
    }
    versions = {name: pair for name, pair in versions.items() if pair[0] != pair[1]}
    episodes, times = statistics.episodes.numpy(), statistics.times.numpy()
    return Replay(
        error, original, cause, where, episodes, times, steps, gradient_steps, rates,
        versions,
    )  # fmt: skip


def _quantities(estimator, episodes, statistics):
    """Returns the dict `Replay.steps`, from `inspection.step_statistics`."""
    batch = estimator.batch(episodes)
    observations = tf.nest.flatten(batch.steps.gather(batch.episodes.observations))
    every_step = estimators.valid_steps(batch.episodes)
    outputs, _ = estimator.outputs_at(
        batch.steps, batch.episodes.observations, every_step
    )
    columns = {
        "observation": np.concatenate([_rows(x) for x in observations], axis=1),
        "reward": _rows(batch.steps.gather(batch.episodes.rewards)),
        "value": _rows(statistics.values),
        "return": _rows(statistics.returns),
        "advantage": _rows(tf.cast(statistics.advantages, outputs.dtype)),
        "outputs": _rows(outputs),
        "log-probability": _rows(statistics.log_probs),
        "entropy": _rows(statistics.entropies),
    }
    if not estimator.baseline.is_value_function:
        del columns["value"]
    return {name: _largest(rows) for name, rows in columns.items()}


def _rows(values):
    """Returns `[N, …]` numbers as a float64 matrix of N rows."""
    return np.asarray(values, "float64").reshape(len(values), -1)


def _largest(rows):
    """Returns the number of largest magnitude of each of N rows; NaN is the largest."""
    magnitudes = np.where(np.isfinite(rows), abs(rows), np.inf)
    return np.take_along_axis(rows, magnitudes.argmax(1)[:, None], axis=1)[:, 0]


def _first_cause(steps, statistics, rates):
    """Returns name and place of the first invalid number of the steps, or `None`."""
    for name, values in steps.items():
        invalid = np.flatnonzero(~np.isfinite(values))
        if len(invalid) and (name != "entropy" or rates["entropy_coef"]):
            first = invalid[0]
            episode, time = statistics.episodes[first], statistics.times[first]
            return name, f"episode {episode}, step {time}"
    if not np.isfinite(rates["entropy_coef"]):
        return "entropy_coef", f"{rates['entropy_coef']}"
    return None


def _repeat_eagerly(trainer, optimizer, refused):
    """Repeats the update in eager mode, and records its gradient steps.

    Returns:
        List of `GradientStep`, and the pair `(cause, where)` of the first number that a
        gradient step computes and that is not finite. `cause` is `None` if eager mode
        rounds in another way, so that all numbers are finite.
    """
    step = trainer.learner.make_train_step(optimizer)
    step.microbatch_size = refused.microbatch_size
    gradient_steps, weights = [], []
    step_gradients = step.step_gradients

    def record(batch, indices=None, behavior_log_probs=None):
        gradients, metrics = step_gradients(batch, indices, behavior_log_probs)
        ratio = _largest_ratio(step.estimator, batch, indices, behavior_log_probs)
        loss, norm = float(metrics["loss"]), float(metrics["gradient_norm"])
        variable = _first_not_finite(step.estimator.variables, gradients)
        gradient_steps.append(GradientStep(loss, norm, ratio, variable))
        return gradients, metrics

    def restore(before):
        weights.append(_first_not_finite(step.variables, step.variables))
        restore_weights(before)

    restore_weights = step.restore
    step.step_gradients, step.restore = record, restore
    step(refused.episodes, refused.permutations)
    if not weights:
        return gradient_steps, (None, "")
    return gradient_steps, _late_cause(step, refused, gradient_steps, *weights)


def _late_cause(step, refused, gradient_steps, weight):
    """Returns the cause and the place of a number that a gradient step computes."""
    batch = step.estimator.batch(refused.episodes)
    squares = step.estimator.sums_of_squares(refused.episodes, batch)
    if not np.isfinite([float(x) for x in squares]).all():
        return "running statistics", ""
    gradients = step.estimator.baseline_step(batch).gradients
    variables = step.estimator.baseline.trainable_variables
    if variable := _first_not_finite(variables, gradients):
        return "gradient of the baseline", variable
    last = gradient_steps[-1]
    if last.variable or not np.isfinite(last.loss):
        is_first = len(gradient_steps) == 1 or refused.microbatch_size is not None
        return "gradient" if is_first else "later gradient step", last.variable
    return "weight", weight


def _largest_ratio(estimator, batch, indices, behavior_log_probs):
    """Returns the largest likelihood ratio of a minibatch, before it is clipped."""
    if behavior_log_probs is None:
        return 1.0
    part = batch.minibatch(indices)
    log_probs = estimator.distribution(part).log_prob(part.actions)
    return float(
        tf.exp(tf.reduce_max(log_probs - tf.gather(behavior_log_probs, indices)))
    )


def _first_not_finite(variables, values):
    """Returns the path of the first variable with a value that is not finite, or ""."""
    for variable, value in zip(variables, values):
        if not np.isfinite(np.asarray(value, "float64")).all():
            return variable.path
    return ""


def _text(result):
    """Returns the account of a `Replay` as text."""
    if result.error is None:
        headline = "The repeated update is finite. The original error was:"
    elif result.error == result.original_error:
        headline = "The repeated update is refused with the same error:"
    else:
        headline = "The repeated update is refused with another error. The original:"
    lines = [headline, f"  {result.original_error}"]
    if result.error not in (None, result.original_error):
        lines += ["The repeated error:", f"  {result.error}"]
    for name, (original, current) in result.versions.items():
        lines.append(f"Another version of {name}: {current} instead of {original}.")
    if result.cause is not None:
        where = f" ({result.where})" if result.where else ""
        lines += ["", f"First number that is not finite: {result.cause}{where}."]
        lines.append(CAUSES[result.cause])
    lines += ["", *_ranges(result), "", *_gradient_steps(result), "", *_neighbors(result)]
    return "\n".join(lines)


def _ranges(result):
    """Returns the lines of a table with the smallest and the largest number of steps."""
    lines = [f"{'quantity':16}{'smallest':>12}{'largest':>12}  not finite"]
    for name, values in result.steps.items():
        finite = values[np.isfinite(values)]
        ends = [f"{x:12.4g}" for x in (finite.min(), finite.max())] if len(finite) else []
        ends = "".join(ends) or f"{'-':>12}{'-':>12}"
        lines.append(
            f"{name:16}{ends}  {len(values) - len(finite)} of {len(values)} steps"
        )
    return lines


def _gradient_steps(result):
    """Returns lines with the rates of the update and its last gradient steps."""
    rates = ", ".join(f"{name} {value:.6g}" for name, value in result.rates.items())
    lines = [rates]
    for number, step in list(enumerate(result.gradient_steps, 1))[-3:]:
        lines.append(
            f"gradient step {number}: loss {step.loss:.6g}, gradient norm "
            f"{step.gradient_norm:.6g}, largest likelihood ratio {step.largest_ratio:.4g}"
        )
    return lines


def _neighbors(result):
    """Returns the lines of a table of the steps around the first invalid step.

    If the numbers of all steps are finite, the table shows the steps around the largest
    advantage.
    """
    invalid = ~np.isfinite(result.steps.get(result.cause, np.zeros(1)))
    advantages = np.nan_to_num(abs(result.steps["advantage"]))
    center = int(invalid.argmax() if invalid.any() else advantages.argmax())
    episode, time = result.episodes[center], result.times[center]
    near = (result.episodes == episode) & (abs(result.times - time) <= _AROUND)
    names = "".join(f"{name:>16}" for name in result.steps)
    lines = [f"Episode {episode}, steps around step {time}:", f"{'step':>8}{names}"]
    for row in np.flatnonzero(near):
        numbers = "".join(f"{values[row]:16.6g}" for values in result.steps.values())
        lines.append(f"{result.times[row]:8}{numbers}")
    return lines
