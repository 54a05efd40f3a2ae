"""Reports during training on what keeps the policy from learning."""

import math
import sys
from typing import Any, TextIO

import numpy as np

from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.callbacks import training_statistics
from tf_reinforce.support import validation


def examine(agent: Any, episodes: Any) -> list[advice.Finding]:
    """Returns what keeps a trained policy from learning, without an update.

    Args:
        agent: Built `Reinforce`.
        episodes: `Episodes` of its next update.
    """
    diagnostics = Diagnostics(verbose=0)
    diagnostics.set_model(agent)
    diagnostics.on_train_begin()
    diagnostics._start_report(episodes, {"update": agent.updates})
    if diagnostics._before_update is None:
        return []
    unknown = ("kl", "effective_sample_size", "gradient_steps", "learning_rate")
    report = dict.fromkeys(unknown, math.nan) | diagnostics._before_update[3]
    return advice.diagnose([report])


class Diagnostics(episode_callbacks.EpisodeCallback):
    """Measures updates in detail, and prints advice on how to improve the training.

    A report is made at the first update and then at every `every`-th. For a report, the
    gradient of each episode is computed with and without the baseline, and the policy
    before the update is compared with the one after it. This takes about as long as a few
    updates, and does not change the result of the training. The formulas, sources and
    thresholds are in `docs/diagnostics.md`.

    Each report is a dict of floats, in which NaN stands for what is unknown or undefined:

    - `update`: number of the update, from 0 over all calls of `fit`.
    - `episodes`: number of episodes.
    - `signal`: estimated squared length of the true gradient of the policy loss.
    - `noise`: expected squared error of the batch's gradient.
    - `signal_to_noise`: their quotient, a rough estimate.
    - `independent`: number of episodes, or of groups with equal reset seeds.
    - `gradient_variance_removed`: share of the variance that the baseline removes.
    - `return_variance_removed`: the same for the returns.
    - `explained_variance`: share of the returns' variance that the values explain.
    - `kl`: KL divergence from the policy before the gradient steps to that after, in nats
      per step.
    - `effective_sample_size`: of importance sampling with the new policy, a share.
    - `entropy_share`: entropy divided by that of a uniform choice, NaN for real actions.
    - `spread`: standard deviation of real actions, in half widths of their bounds.
    - `at_bounds`: share of real numbers that reach the environment at a bound.
    - `return_size`: root mean square, after `scale_rewards`.
    - `advantage_size`: root mean square, after `scale_advantages`.
    - `learning_rate`, `entropy_coef`: as in the update.
    - `gradient_steps`: number in the update.
    - `value_scale`: `scale` of a `Value` baseline.

    The estimate of `signal` can be zero or negative, which means that it is smaller than
    its error. A removed share of the variance is negative if the baseline adds variance
    instead.

    Args:
        every: Positive int, the number of updates from one report to the next.
        verbose: `verbose=0` prints nothing. `verbose=1` prints one line at the end of
            training, and before that the most important finding of each report. It is
            printed once until its cause changes, and not while the mean return rises.
        stream: A text stream for the printed lines, by default standard output.

    Attributes:
        history: List of dicts, the reports of the last call of `fit`.
        findings: List of `Finding` with `update`, `cause` and `advice`, of each report
            the most important one first.

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
        self.verbose = validation.one_of("verbose", verbose, (0, 1))
        self.stream = validation.stream("stream", stream)
        self.history: list[dict[str, float]] = []
        self.findings: list[advice.Finding] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._before_update = None
        self.history, self.findings = [], []
        # The causes of printed findings in order, the returns since the last report, and
        # the mean of those before it.
        self._progress: dict[str, Any] = {"updates": 0, "printed": [], "returns": []}
        self._progress["last_return"] = math.nan

    def get_state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        findings = [list(finding) for finding in self.findings]
        return {"history": self.history, "findings": findings, **self._progress}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the result of `get_state`."""
        self.history = state["history"]
        self.findings = [advice.Finding(*finding) for finding in state["findings"]]
        self._progress |= {name: state[name] for name in self._progress if name in state}

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        if self._progress["updates"] % self.every == 0:
            self._start_report(episodes, logs)
        self._progress["updates"] += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._progress["returns"].append(logs.get("episode_return", math.nan))
        if self._before_update is not None:
            self._finish_report(logs)

    def on_train_end(self, logs: Any = None) -> None:
        if self.verbose and self.history:
            updates = {finding.update for finding in self.findings}
            self._print(
                f"Diagnostics: {len(updates)} of {len(self.history)} reports found "
                f"something; the first finding was {self.findings[0].cause}."
                if updates
                else f"Diagnostics: found nothing in {len(self.history)} reports."
            )

    def _start_report(self, episodes, logs):
        """Stores what a report must compute before the update."""
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
        report = {
            "update": logs["update"],
            **training_statistics.batch_statistics(
                steps, gradients, unbaselined, group_size
            ),
            "entropy_coef": float(coefficient),
            "value_scale": float(getattr(agent.baseline, "scale", math.nan)),
        }
        normalization = agent.normalizer.get_weights() if agent.normalizer else []
        self._before_update = episodes, steps.log_probs, normalization, report

    def _finish_report(self, logs):
        """Completes the report after the update, and prints the findings."""
        episodes, log_probs, normalization, report = self._before_update
        self._before_update = None
        report["kl"], report["effective_sample_size"] = training_statistics.policy_change(
            log_probs, self._log_probs(episodes, normalization)
        )
        report |= {name: logs[name] for name in ("gradient_steps", "learning_rate")}
        self.history.append(report)
        findings = advice.diagnose(self.history)
        self.findings += findings
        mean, printed = np.mean(self._progress["returns"]), self._progress["printed"]
        rises = mean > self._progress["last_return"]
        self._progress |= {"last_return": float(mean), "returns": []}
        for update, cause, text in findings[:1] if self.verbose else ():
            if printed[-1:] != [cause] and not rises:
                printed.append(cause)
                self._print(f"Update {update}: {text}")

    def _log_probs(self, episodes, normalization):
        """Returns log-probabilities with the normalization of the collection.

        Otherwise, `kl` would include the change of the normalizer.
        """
        normalizer = self.model.normalizer
        current = normalizer.get_weights() if normalizer else []
        try:
            if normalizer:
                normalizer.set_weights(normalization)
            return self.model.step_statistics(episodes).log_probs
        finally:
            if normalizer:
                normalizer.set_weights(current)

    def _print(self, text):
        # In a terminal, `ProgressLine` replaces `sys.stdout` during the training. What is
        # printed to the original would overwrite the display.
        original = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
        stream = sys.stdout if self.stream in (None, original) else self.stream
        print(text, file=stream, flush=True)
