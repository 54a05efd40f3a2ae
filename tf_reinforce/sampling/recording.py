"""Records the samples that `Sample` layers draw in a forward pass.

A layer returns only its samples, but training also needs their log-probabilities. A
training step therefore calls the model inside the context `recording`, whose recorder
receives a `RecordedSample` from each call of a `Sample` layer.
"""

import contextlib
import threading
from typing import Any, NamedTuple

import tensorflow as tf


class RecordedSample(NamedTuple):
    """One call of a `Sample` layer for `N` examples, with M samples for each example."""

    layer: Any  # the `Sample` layer
    outputs: tf.Tensor  # [N·M, P] float, the outputs that the head received
    actions: Any  # [N·M, …] raw actions of the head, or nested arrays
    log_probs: tf.Tensor  # [N] float, summed over the M samples, without padding
    entropies: tf.Tensor  # [N] float, in nats, summed over the M samples
    valid: tf.Tensor | None  # [N, M] bool, False for padding; `None` without padding


class SampleRecorder:
    """Collects a `RecordedSample` for each call of a `Sample` layer, in call order.

    Args:
        replayed: List of raw actions, one entry for each call of a `Sample` layer, which
            the layers return instead of drawing samples; or `None`.
        probe: Persistent `tf.GradientTape`, with which `expect_differentiable` tests
            whether log-probabilities have gradients, or `None`.
        draws: Bool, whether the layers draw samples also in inference.
    """

    def __init__(self, replayed=None, probe=None, draws=False):
        self.samples = []
        self.called = set()  # ids of all layers that were called, also in inference
        self.replayed = replayed
        self.probe = probe
        # Whether samples are recorded in inference, too.
        self.in_inference = draws or replayed is not None
        self._graph = _current_graph()

    def expect_all_called(self, sample_layers):
        """Raises `ValueError` if one of some `Sample` layers was not called.

        This happens inside a `tf.function` that was traced before: it runs its graph
        again without calling the layers, and their samples would be missing.
        """
        for layer in sample_layers:
            if id(layer) not in self.called:
                raise ValueError(
                    f"The `Sample` layer {layer.name!r} of the model was not called. "
                    "Remove `tf.function` from the model's methods, and unused layers."
                )

    def expect_differentiable(self):
        """Raises `ValueError` if a log-probability has no gradient on the probe.

        `tf.recompute_grad` and `keras.remat` hide operations from gradient tapes.
        """
        for sample in self.samples:
            if self.probe.gradient(sample.log_probs, sample.outputs) is None:
                raise ValueError(
                    f"The log-probabilities of {sample.layer.name!r} need gradients. Use "
                    "no `keras.remat` or `tf.recompute_grad` around the layer."
                )

    def next_replayed(self):
        """Returns the raw actions for the next call, or `None` to draw them."""
        number, replayed = len(self.samples), self.replayed or []
        return replayed[number] if number < len(replayed) else None

    def add(self, sample):
        """Adds a `RecordedSample`.

        Raises:
            ValueError: If its log-probabilities cannot be read, because the layer was
                called in the graph of a TensorFlow loop, condition or nested
                `tf.function`.
        """
        if _current_graph() is not self._graph:
            raise ValueError(
                f"The log-probabilities of {sample.layer.name!r} cannot leave a "
                "TensorFlow loop, condition or nested `tf.function`. Use a Python loop, "
                "or `unroll=True` for a `keras.layers.RNN`."
            )
        self.samples.append(sample)

    @property
    def log_probs(self):
        """Returns the log-probability of all samples of each example, `[N]`."""
        return tf.add_n([sample.log_probs for sample in self._expect_samples()])

    @property
    def entropies(self):
        """Returns the summed entropies of each example's samples, `[N]`."""
        return tf.add_n([sample.entropies for sample in self._expect_samples()])

    def _expect_samples(self):
        """Returns all samples; raises an error if no layer was called, or too few."""
        if not self.samples:
            raise ValueError(
                "The model must call a `tfr.layers.Sample` layer, whose samples the "
                "score function trains"
            )
        if self.replayed is not None and len(self.replayed) != len(self.samples):
            raise ValueError(
                f"`replayed` must have {len(self.samples)} entries, one for each call of "
                f"a `Sample` layer. Received: {len(self.replayed)} entries"
            )
        return self.samples


_ACTIVE = threading.local()


@contextlib.contextmanager
def recording(replayed=None, **options):
    """Yields a `SampleRecorder` of all calls of `Sample` layers inside the context."""
    outer = active_recorder()
    _ACTIVE.recorder = SampleRecorder(replayed, **options)
    try:
        yield _ACTIVE.recorder
    finally:
        _ACTIVE.recorder = outer


def active_recorder():
    """Returns the innermost `SampleRecorder` of a thread, or `None`.

    Keras builds a subclassed model by calling it in a scratch graph, where nothing is
    recorded.
    """
    graph = _current_graph()
    if graph is not None and graph.name.startswith("scratch_graph"):
        return None
    return getattr(_ACTIVE, "recorder", None)


def _current_graph():
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
