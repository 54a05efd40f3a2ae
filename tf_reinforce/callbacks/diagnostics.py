"""Reports during training what keeps the policy from learning."""

import contextlib
import sys
import time

import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.callbacks import training_statistics
from tf_reinforce.data import minibatches

_PARTS = ("stepping", "acting", "learning")
_SHOWN = {
    "signal_to_noise": "signal / noise",
    "gradient_variance_removed": "variance removed",
    "explained_variance": "explained",
    "kl": "KL",
    "effective_sample_size": "sample size",
    "entropy_share": "entropy",
    "spread": "spread",
    "at_bounds": "at bounds",
    "stepping_share": "stepping",
    "acting_share": "acting",
    "learning_share": "learning",
}


class Diagnostics(episode_callbacks.EpisodeCallback):
    """Measures what a log cannot show, and says in one sentence what to change.

    At the first update and at every n-th from there it takes the gradient of each
    episode by itself, with and without the baseline, and compares the policy after the
    update with the one before on the same steps. That takes about as long as a few
    updates more, and changes nothing: a training with and without it is the same, to the
    bit. `docs/diagnostics.md` has the formulas, their sources, and the limits.

    A report is a dict of floats; NaN where a figure is not known or means nothing:

    * `update`, from 0 over the agent's life; `episodes`, how many were learned from;
    * `signal`, `noise`, squared lengths of the policy loss's gradient and of its error,
      and `signal_to_noise`, their ratio; one report alone is rough, and zero or less
      means that none can be told;
    * `independent`, how many episodes or groups begin with a reset seed of their own;
    * `gradient_variance_removed`, `return_variance_removed`, by the baseline, as a share
      of what it would be without; zero: it is of no use; below: it does harm;
    * `explained_variance`, of the returns by a value baseline;
    * `kl`, nats per step from the policy before the gradient steps to the one after, and
      `effective_sample_size`, the share of the steps that still count. Zero and one:
      nothing has changed. Observations are normalised as they were for acting;
    * `entropy_share`, of that of a uniform choice; NaN where actions are real;
    * `spread`, the deviation of real actions in half widths of their bounds;
    * `at_bounds`, the share of real numbers that the environment receives at a bound;
    * `return_size`, `advantage_size`, root mean squares, in the unit of the rewards
      (or as they were scaled);
    * `stepping_share`, `acting_share`, `learning_share`, of the time since the last
      report. The first one contains tracing;
    * `learning_rate`, `gradient_steps` per update, `entropy_coef`, `value_scale`,
      `value_shared`, `rewards_scaled` and `vector_env` (1 or 0): what the findings
      refer to.

    Args:
        every: Positive int, updates from one report to the next.
        verbose: 0: silent. 1: one line for each report that finds something, and one
            at the end. 2: also the figures of every report.
        stream: Where to write. Defaults to standard output.

    Attributes:
        history: List of dicts, the reports of the last training.
        findings: List of `Finding`: `update`, `cause` and `advice`. Of each report the
            most important one comes first.

    Example:

    >>> import tf_reinforce as tfr
    >>> agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,), learning_rate=3.0)
    >>> diagnostics = Diagnostics()
    >>> history = agent.fit("CartPole-v1", epochs=1, callbacks=[diagnostics], verbose=0)
    Update 0: One update changed the policy by ... nats per step, and 0.05 are plenty:
    use a learning rate of at most ... (now 3).
    Diagnostics: 1 of 1 reports found something; the first, learning_rate.

    Reference:
        McCandlish et al. (2018), An empirical model of large-batch training.
        arXiv:1812.06162
    """

    def __init__(self, every=10, *, verbose=1, stream=None):
        super().__init__()
        self.every = validation.positive_int("every", every)
        self.verbose = validation.one_of("verbose", verbose, (0, 1, 2))
        self.stream = stream
        self.history = []
        self.findings = []

    def on_train_begin(self, logs=None):
        self._out = self.stream or sys.stdout
        self._updates = 0
        self._before = None
        self._seconds = dict.fromkeys(_PARTS, 0.0)
        self.history, self.findings = [], []

    def on_episodes_collected(self, episodes, logs=None):
        self._seconds["stepping"] += logs["stepping_seconds"]
        self._seconds["acting"] += logs["acting_seconds"]
        if self._updates % self.every == 0:
            self._look(episodes, logs)
        self._updates += 1
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._seconds["learning"] += time.perf_counter() - self._began
        if self._before is not None:
            self._report(logs)
            self._before = None

    def on_train_end(self, logs=None):
        if self.verbose and self.history:
            wrong = {finding.update for finding in self.findings}
            unknown = "; ".join(advice.unjudged(self.history))
            self._say(
                f"Diagnostics: {len(wrong)} of {len(self.history)} reports found "
                f"something; the first, {self.findings[0].cause}."
                if wrong
                else f"Diagnostics: found nothing in {len(self.history)} reports."
                + (f" Not judged: {unknown}." if unknown else "")
            )

    def _look(self, episodes, logs):
        """Keeps what can be seen before the update only."""
        agent = self.model
        seen = agent.step_statistics(episodes)
        if not len(seen.returns):
            return  # nothing is learned from this batch
        group, value = agent.baseline.reset_group_size, agent.baseline.values_states
        gradients = agent.per_episode_gradients(episodes)
        plain = agent.per_episode_gradients(episodes, baseline=False)
        coefficient = agent.entropy_coef
        if callable(coefficient):
            coefficient = coefficient(logs["update"])
        order = tf.range(len(seen.returns))
        parts = int(minibatches.Minibatches.of(order, agent.minibatch_size).count)
        report = {
            "update": logs["update"],
            **training_statistics.of_batch(seen, gradients, plain, group),
            "gradient_steps": float(agent.passes * parts),
            "entropy_coef": float(coefficient),
            "value_scale": float(agent.baseline.scale) if value else float("nan"),
            "value_shared": float(agent.baseline.shares_policy),
            "rewards_scaled": float(agent.scale_rewards),
            "vector_env": float(logs["vector_env"]),
        }
        statistics = agent.normalizer.acting_variables if agent.normalizer else []
        acted = [(variable, variable.numpy()) for variable in statistics]
        self._before = episodes, seen.log_probs, acted, report

    def _report(self, logs):
        episodes, before, acted, report = self._before
        # What the normalizer has learned is no work of the gradient steps.
        with _put(acted):
            after = self.model.step_statistics(episodes).log_probs
        report["kl"], share = training_statistics.divergence(before, after)
        report["effective_sample_size"] = share
        report["learning_rate"] = logs["learning_rate"]
        whole = sum(self._seconds.values())
        for name, seconds in self._seconds.items():
            report[f"{name}_share"] = seconds / whole if whole else float("nan")
        self._seconds = dict.fromkeys(_PARTS, 0.0)
        self.history.append(report)
        found = advice.diagnose(self.history)
        self.findings += found
        if self.verbose > 1:
            known = ((word, report[name]) for name, word in _SHOWN.items())
            words = [f"{word} {x:.2g}" for word, x in known if x == x]
            self._say(f"Update {report['update']}: {' · '.join(words)}")
        if self.verbose and found:
            self._say(f"Update {report['update']}: {found[0].advice}")

    def _say(self, text):
        # A live progress line may stand where this is written.
        live = self._out.isatty()
        self._out.write(f"\r{text}\x1b[K\n" if live else f"{text}\n")


@contextlib.contextmanager
def _put(pairs):
    """Variables with other values, for as long as it takes."""
    now = [variable.numpy() for variable, _ in pairs]
    try:
        for variable, value in pairs:
            variable.assign(value)
        yield
    finally:
        for (variable, _), value in zip(pairs, now, strict=True):
            variable.assign(value)
