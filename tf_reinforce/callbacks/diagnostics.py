"""Reports during training the causes that keep the policy from learning."""

import contextlib
import sys
import time
from typing import Any, TextIO

import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.callbacks import training_statistics
from tf_reinforce.data import minibatches

_TIME_SHARES = ("stepping", "acting", "learning")
_LABELS = {
    "signal_to_noise": "signal / noise",
    "gradient_variance_removed": "variance removed",
    "explained_variance": "explained",
    "kl": "KL",
    "effective_sample_size": "sample size",
    "entropy_share": "entropy",
    "spread": "spread",
    "at_bounds": "at bounds",
    "bounded_logits": "bounded logits",
    "stepping_share": "stepping",
    "acting_share": "acting",
    "learning_share": "learning",
}


class Diagnostics(episode_callbacks.EpisodeCallback):
    """Measures an update in detail, and prints one sentence with a change to make.

    At the first update and at every n-th update after the first, `Diagnostics` computes
    the gradient of each episode, with and without the baseline. `Diagnostics` compares
    the policies before and after the update on the same steps. A report of `Diagnostics`
    takes about as long as a few updates. `Diagnostics` does not change the training. All
    results of training are equal bit by bit with and without the callback.
    `docs/diagnostics.md` contains the formulas of the diagnostics, their sources, and the
    thresholds.

    A report of `Diagnostics` is a dict of floats, with NaN for a value that is unknown or
    undefined:

    * `update`, the number of the update, from 0 over all calls of `fit`; `episodes`, the
      number of episodes of the update;
    * `signal`, `noise`, squared lengths of the gradient of the policy loss and of its
      error, and `signal_to_noise`, their ratio. A signal that is estimated from one
      report is rough. A signal of zero or less means that the signal is smaller than the
      error of its estimate;
    * `independent`, the number of episodes, or of groups, with a reset seed of their own;
    * `gradient_variance_removed`, `return_variance_removed`, the share of the variance
      that the baseline removes. A share of zero means that the baseline has no effect on
      the variance, and a negative share means that the baseline adds variance;
    * `explained_variance`, the share of the variance of the returns that a value baseline
      explains;
    * `kl`, the KL divergence in nats per step from the policy before the gradient steps
      to the policy after them, and `effective_sample_size`, as a share of the steps. If
      the policy has not changed, `kl` is zero and `effective_sample_size` is one. The
      compared policies before and after the update use the normalization with which the
      episodes were collected;
    * `entropy_share`, the entropy as a share of the entropy of a uniform choice, or NaN
      for real actions;
    * `spread`, the standard deviation of real actions in half widths of their bounds;
    * `at_bounds`, the share of real numbers that the environment receives at a bound;
    * `bounded_logits`, the share of [0, 1] that the logits cover. `bounded_logits` is
      zero if a logit is outside of [0, 1], one after softmax, and NaN if no output is a
      logit;
    * `return_size`, `advantage_size`, root mean squares in the unit of the (scaled)
      rewards;
    * `stepping_share`, `acting_share`, `learning_share`, shares of the time since the
      last report. The time of the first report includes tracing;
    * `learning_rate`, `gradient_steps` per update, `entropy_coef`, `value_scale`,
      `value_shared`, `rewards_scaled` and `vector_env` (1 or 0), the settings that the
      findings refer to.

    Args:
        every: Positive int, the number of updates from one report to the next.
        verbose: With 0, the callback prints nothing. With `verbose=1`, the callback
            prints one line for each report with a finding, and one line at the end of
            training. With `verbose=2`, the callback also prints the metrics of every
            report.
        stream: A text stream for the printed lines. `stream` defaults to standard output.

    Attributes:
        history: List of dicts, the reports of the last training.
        findings: List of `Finding` with `update`, `cause` and `advice`. The findings of a
            report are sorted by importance.

    Example:

    >>> import tf_reinforce as tfr
    >>> agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,), learning_rate=3.0)
    >>> diagnostics = Diagnostics()
    >>> history = agent.fit("CartPole-v1", epochs=1, callbacks=[diagnostics], verbose=0)
    Update 0: One update changed the policy by ... nats per step, and 0.05 is enough:
    use a learning rate of at most ... (now 3).
    Diagnostics: 1 of 1 reports found something; the first finding was
    learning_rate.

    Reference:
        McCandlish et al. (2018), An empirical model of large-batch training.
        arXiv:1812.06162
    """

    def __init__(
        self, every: int = 10, *, verbose: int = 1, stream: TextIO | None = None
    ) -> None:
        super().__init__()
        self.every = validation.positive_int("every", every)
        self.verbose = validation.one_of("verbose", verbose, (0, 1, 2))
        self.stream = stream
        self.history: list[dict[str, float]] = []
        self.findings: list[advice.Finding] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._out = self.stream or sys.stdout
        self._updates = 0
        self._before_update = None
        self._seconds = dict.fromkeys(_TIME_SHARES, 0.0)
        self.history, self.findings = [], []

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        self._seconds["stepping"] += logs["stepping_seconds"]
        self._seconds["acting"] += logs["acting_seconds"]
        if self._updates % self.every == 0:
            self._start_report(episodes, logs)
        self._updates += 1
        self._update_start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seconds["learning"] += time.perf_counter() - self._update_start
        if self._before_update is not None:
            self._finish_report(logs)
            self._before_update = None

    def on_train_end(self, logs: Any = None) -> None:
        if self.verbose and self.history:
            updates = {finding.update for finding in self.findings}
            undetermined = "; ".join(advice.undetermined_causes(self.history))
            self._print(
                f"Diagnostics: {len(updates)} of {len(self.history)} reports found "
                f"something; the first finding was {self.findings[0].cause}."
                if updates
                else f"Diagnostics: found nothing in {len(self.history)} reports."
                + (f" Not judged: {undetermined}." if undetermined else "")
            )

    def _start_report(self, episodes, logs):
        """Stores all values of a report that must be computed before the update."""
        agent = self.model
        steps = agent.step_statistics(episodes)
        if not len(steps.returns):
            return  # the update uses no step
        group_size = agent.baseline.reset_group_size
        gradients = agent.per_episode_gradients(episodes)
        unbaselined = agent.per_episode_gradients(episodes, baseline=False)
        coefficient = agent.entropy_coef
        if callable(coefficient):
            coefficient = coefficient(logs["update"])
        indices = tf.range(len(steps.returns))
        split = minibatches.Minibatches.split(indices, agent.minibatch_size)
        has_value = agent.baseline.values_states
        report = {
            "update": logs["update"],
            **training_statistics.batch_statistics(
                steps, gradients, unbaselined, group_size
            ),
            "gradient_steps": float(agent.passes * int(split.count)),
            "entropy_coef": float(coefficient),
            "value_scale": float(agent.baseline.scale) if has_value else float("nan"),
            "value_shared": float(agent.baseline.shares_policy),
            "rewards_scaled": float(agent.scale_rewards),
            "vector_env": float(logs["vector_env"]),
        }
        variables = agent.normalizer.acting_variables if agent.normalizer else []
        normalization = [(variable, variable.numpy()) for variable in variables]
        self._before_update = episodes, steps.log_probs, normalization, report

    def _finish_report(self, logs):
        """Adds the values after the update to the report, and prints the findings."""
        episodes, log_probs, normalization, report = self._before_update
        # Without the former normalizer, `kl` would include the change of the normalizer.
        with _assigned(normalization):
            log_probs_after = self.model.step_statistics(episodes).log_probs
        kl, sample_size = training_statistics.policy_change(log_probs, log_probs_after)
        report["kl"], report["effective_sample_size"] = kl, sample_size
        report["learning_rate"] = logs["learning_rate"]
        total = sum(self._seconds.values())
        for name, seconds in self._seconds.items():
            report[f"{name}_share"] = seconds / total if total else float("nan")
        self._seconds = dict.fromkeys(_TIME_SHARES, 0.0)
        self.history.append(report)
        findings = advice.diagnose(self.history)
        self.findings += findings
        if self.verbose > 1:
            metrics = ((label, report[name]) for name, label in _LABELS.items())
            texts = [f"{label} {x:.2g}" for label, x in metrics if x == x]  # not NaN
            self._print(f"Update {report['update']}: {' · '.join(texts)}")
        if self.verbose and findings:
            self._print(f"Update {report['update']}: {findings[0].advice}")

    def _print(self, text):
        # On a terminal, the line overwrites the progress line.
        is_tty = self._out.isatty()
        self._out.write(f"\r{text}\x1b[K\n" if is_tty else f"{text}\n")


@contextlib.contextmanager
def _assigned(pairs):
    """Assigns values to variables, and restores the former values after the block."""
    previous = [variable.numpy() for variable, _ in pairs]
    try:
        for variable, value in pairs:
            variable.assign(value)
        yield
    finally:
        for (variable, _), value in zip(pairs, previous, strict=True):
            variable.assign(value)
