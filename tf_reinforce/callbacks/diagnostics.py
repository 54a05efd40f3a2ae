"""Reports during training the causes that keep the policy from learning."""

import contextlib
import math
import sys
import time
from typing import Any, TextIO

import numpy as np

from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.callbacks import live_display
from tf_reinforce.callbacks import training_statistics
from tf_reinforce.support import validation

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
    """Measures updates in detail, and prints advice on how to improve the training.

    With `every=10`, `Diagnostics` makes a report at the first update and then at every
    tenth update. A report contains statistics of the gradient of each episode, with and
    without the baseline. A report also compares the policy before the update with the
    policy after the update, on the steps of the update. A report takes about as long as a
    few updates. The results of training are equal to the bit with and without
    `Diagnostics`. `docs/diagnostics.md` contains the formulas of the statistics, their
    sources, and the thresholds.

    A report of `Diagnostics` is a dict of floats, with NaN for a value that is unknown or
    undefined:

    * `update` is the number of the update, from 0 over all calls of `fit`, and `episodes`
      is the number of its episodes.

    * `signal` estimates the squared length of the true gradient of the policy loss.
      `noise` estimates the expected squared length of the error of the batch's gradient.
      `signal_to_noise` is `signal` divided by `noise`. The `signal` of a single report is
      a rough estimate. A `signal` of zero or less means that the true signal is smaller
      than the error of its estimate.

    * `independent` is the number of independent samples of the gradient: the number of
      episodes, or of groups of episodes with equal reset seeds.

    * `gradient_variance_removed` and `return_variance_removed` are the shares of the
      variance of gradient and returns that the baseline removes. A negative share means
      that the baseline increases the variance.

    * `explained_variance` is the share of the variance of the returns that a value
      baseline explains.

    * `kl` is the KL divergence in nats per step from the policy before to the policy
      after the gradient steps of the update. `effective_sample_size` is the effective
      sample size for importance sampling with the updated policy, as a share of the
      steps. If the policy has not changed, `kl` is zero and `effective_sample_size` is
      one. For `kl` and `effective_sample_size`, the old and the new policy normalize
      observations as during the collection of the episodes.

    * `entropy_share` is the entropy of the policy divided by the entropy of a uniform
      choice, or NaN for real actions.

    * `spread` is the standard deviation of real actions, divided by half the width of
      their bounds.

    * `at_bounds` is the share of real action components that reach the environment at a
      bound of the action space.

    * `bounded_logits` is the share of [0, 1] that the logits cover. `bounded_logits` is
      zero if a logit is outside of [0, 1], one after softmax, and NaN if no output is a
      logit.

    * `return_size` and `advantage_size` are the root mean squares of the returns and of
      the advantages. The options `scale_rewards` and `scale_advantages` act before this
      measurement.

    * `stepping_share`, `acting_share` and `learning_share` are the shares of the time
      since the last report that stepping environments, selecting actions and updating
      took. The times in the first report include the tracing of TensorFlow functions.

    * The other keys are settings on which the advice depends: `learning_rate`,
      `gradient_steps` (per update), `entropy_coef`, `value_scale`, and the flags
      `value_shared`, `rewards_scaled` and `vector_env` (1 or 0).

    Args:
        every: Positive int, the number of updates from one report to the next.
        verbose: `verbose=0` prints nothing. `verbose=1` prints the most important finding
            of a report, once for each cause and not while the mean return rises, and one
            line at the end of training. `verbose=2` also prints the metrics of every
            report.
        stream: A text stream for the printed lines. `stream` defaults to standard output.

    Attributes:
        history: List of dicts, the reports of the last call of `fit`.
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

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(
        self, every: int = 10, *, verbose: int = 1, stream: TextIO | None = None
    ) -> None:
        super().__init__()
        self.every = validation.positive_int("every", every)
        self.verbose = validation.one_of("verbose", verbose, (0, 1, 2))
        self.stream = validation.stream("stream", stream)
        self.history: list[dict[str, float]] = []
        self.findings: list[advice.Finding] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._updates = 0
        self._before_update = None
        self._seconds = dict.fromkeys(_TIME_SHARES, 0.0)
        self.history, self.findings = [], []
        self._printed: set[str] = set()  # the causes of printed findings
        self._returns: list[float] = []  # mean returns since the last report
        self._last_return = math.nan  # mean of the returns before the last report

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the callback for a checkpoint."""
        return {
            "updates": self._updates,
            "history": self.history,
            "findings": [list(finding) for finding in self.findings],
            "printed": sorted(self._printed),
            "returns": self._returns,
            "last_return": self._last_return,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the result of `get_state`."""
        self._updates = state["updates"]
        self.history = state["history"]
        self.findings = [advice.Finding(*finding) for finding in state["findings"]]
        self._printed = set(state.get("printed", ()))
        self._returns = list(state.get("returns", ()))
        self._last_return = state.get("last_return", math.nan)

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        self._seconds["stepping"] += logs["stepping_seconds"]
        self._seconds["acting"] += logs["acting_seconds"]
        if self._updates % self.every == 0:
            self._start_report(episodes, logs)
        self._updates += 1
        self._update_start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seconds["learning"] += time.perf_counter() - self._update_start
        self._returns.append(logs.get("episode_return", math.nan))
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
        has_value = agent.baseline.is_value_function
        report = {
            "update": logs["update"],
            **training_statistics.batch_statistics(
                steps, gradients, unbaselined, group_size
            ),
            "entropy_coef": float(coefficient),
            "value_scale": float(agent.baseline.scale) if has_value else float("nan"),
            "value_shared": float(agent.baseline.shares_policy),
            "rewards_scaled": float(agent.scale_rewards),
            "vector_env": float(logs["vector_env"]),
        }
        variables = agent.normalizer.variables if agent.normalizer else []
        normalization = [(variable, variable.numpy()) for variable in variables]
        self._before_update = episodes, steps.log_probs, normalization, report

    def _finish_report(self, logs):
        """Completes the report after the update, and prints the findings."""
        episodes, log_probs, normalization, report = self._before_update
        # Without the former normalizer, `kl` would include the change of the normalizer.
        with _assigned(normalization):
            log_probs_after = self.model.step_statistics(episodes).log_probs
        kl, sample_size = training_statistics.policy_change(log_probs, log_probs_after)
        report["kl"], report["effective_sample_size"] = kl, sample_size
        for name in ("gradient_steps", "learning_rate"):
            report[name] = logs[name]
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
        self._print_first(findings)

    def _print_first(self, findings):
        """Prints a finding if its cause is new and the mean return does not rise.

        What costs only time is printed also while the return rises.
        """
        mean = float(np.mean(self._returns))
        rises, self._last_return, self._returns = mean > self._last_return, mean, []
        for update, cause, text in findings[:1] if self.verbose else ():
            if cause not in self._printed and (not rises or cause == "environment"):
                self._printed.add(cause)
                self._print(f"Update {update}: {text}")

    def _print(self, text):
        # In a terminal, `ProgressLine` replaces `sys.stdout` during the training.
        stream = live_display.LenientStream(self.stream or sys.stdout)
        print(text, file=stream, flush=True)


@contextlib.contextmanager
def _assigned(pairs):
    """Assigns values to variables for a `with` block, then restores the old values."""
    previous = [variable.numpy() for variable, _ in pairs]
    try:
        for variable, value in pairs:
            variable.assign(value)
        yield
    finally:
        for (variable, _), value in zip(pairs, previous, strict=True):
            variable.assign(value)
