"""`Sample`, a Keras layer that draws from a head's distribution, and records of samples.

The layer returns only its samples, but training also needs their log-probabilities. A
training step therefore calls the model inside the context `recording`.
"""

import contextlib
import copy
import math
import threading
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.sampling import estimators
from tf_reinforce.support import validation


class RecordedSample(NamedTuple):
    """One call of a `Sample` layer for `N` examples, with M samples for each example."""

    layer: Any  # the `Sample` layer
    outputs: tf.Tensor  # [N·M, P] float, the outputs that the head received
    actions: Any  # [N·M, …] raw actions of the head, or nested arrays
    log_probs: tf.Tensor  # [N] float, summed over the M samples, without padding
    entropies: tf.Tensor  # [N] float, in nats, summed over the M samples
    valid: tf.Tensor | None  # [N, M] bool, False for padding; `None` without padding


class Recorder:
    """Collects a `RecordedSample` for each call of a `Sample` layer, in call order.

    Args:
        replayed: List of raw actions, one entry for each call of a `Sample` layer, which
            the layers return instead of drawing samples; or `None`.
        nested: `NestedRows` if an estimator evaluates several copies, or `None`.
        tape: Persistent `tf.GradientTape` around the context, or `None`.
        draws: Bool, whether the layers draw samples also in inference.
    """

    def __init__(self, replayed=None, tape=None, draws=False, nested=None):
        self.samples = []
        self.nested = nested
        self.called = set()  # ids of all layers that were called, also in inference
        self.replayed = replayed
        self.tape = tape
        # Whether samples are recorded in inference, too.
        self.in_inference = draws or replayed is not None
        self._graph = _current_graph()

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

    def sums(self, layers=()):
        """Returns log-probability and entropy of each example's samples, `[N]` each.

        Raises:
            ValueError: If there is no sample; if some of `layers` was not called, as in a
                `tf.function` that was traced before; or if the number of calls is not
                that of the replayed actions.
        """
        missing = [layer.name for layer in layers if id(layer) not in self.called]
        if missing or not self.samples:
            raise ValueError(
                "The model must call a `tfr.layers.Sample` layer with `training=True`, "
                f"and each one outside of `tf.function`. Received: {missing} not called"
            )
        count = len(self.samples)
        if self.replayed is not None and len(self.replayed) != count:
            raise ValueError(
                f"`replayed` must have {count} entries, one for each call of a `Sample` "
                f"layer. Received: {len(self.replayed)} entries"
            )
        log_probs = tf.add_n([sample.log_probs for sample in self.samples])
        return log_probs, tf.add_n([sample.entropies for sample in self.samples])

    def expect_differentiable(self):
        """Raises `ValueError` if the tape knows no gradient of a log-probability.

        `tf.recompute_grad` and `keras.remat` hide operations from gradient tapes.
        """
        for sample in self.samples:
            if self.tape.gradient(sample.log_probs, sample.outputs) is None:
                raise ValueError(
                    f"The log-probabilities of {sample.layer.name!r} need gradients. Use "
                    "no `keras.remat` or `tf.recompute_grad` around the layer."
                )


_ACTIVE = threading.local()


@contextlib.contextmanager
def recording(replayed=None, **options):
    """Yields a `Recorder` of all calls of `Sample` layers inside the context."""
    outer = _active_recorder()
    _ACTIVE.recorder = Recorder(replayed, **options)
    try:
        yield _ACTIVE.recorder
    finally:
        _ACTIVE.recorder = outer


def _active_recorder():
    """Returns the innermost `Recorder` of a thread, or `None`.

    Keras builds a subclassed model by calling it in a scratch graph, where nothing is
    recorded.
    """
    graph = _current_graph()
    if graph is not None and graph.name.startswith("scratch_graph"):
        return None
    return getattr(_ACTIVE, "recorder", None)


def _current_graph():
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


@keras.saving.register_keras_serializable("tf_reinforce")
class Sample(keras.layers.Layer):
    """Draws a sample in training, and returns the mode in inference.

        z ~ p(z|outputs)  if `training`,    z = arg max p(z|outputs)  otherwise

    No gradient flows from a sample back to the outputs, so Keras' own `fit` would not
    train the layers before this layer. Wrap the model in `tfr.ScoreFunction(model, …)`,
    which trains these layers with the gradient of the samples' log-probabilities.

    Args:
        head: `tfr.heads.Head`, which makes the distribution from P numbers per sample.
        seed: Int, or `None` for a seed from Keras' global generator, which
            `keras.utils.set_random_seed` sets.
        one_hot: Bool, whether samples are float one-hot vectors instead of integers; for
            `Bernoulli`, floats 0 and 1. Relaxed samples need it.
        estimator: Name or `tfr.estimators.Estimator`, which `ScoreFunction` uses for this
            layer in place of its own.

    Call arguments:
        outputs: `[N, …, P]` float tensor, the parameters of the distributions, for
            example logits. All axes between the first and the last count samples.
        action_mask: `[N, …, head.mask_size]` integer or bool tensor, or `None`. Zero
            marks an illegal value, which gets probability zero. Each sample needs at
            least one legal value.
        mask: `[N, …]` bool tensor, or `None`. False marks padding, whose samples do not
            count in the log-probability. Keras passes the mask of the `outputs`.
        training: Bool, whether to draw samples.

    Returns:
        `[N, …, *shape of an action]`, the samples in the units of the head's action
        space and in the head's type; nested for a `Composite` head.

    Example:

    >>> layer = Sample(heads.Categorical(3), seed=0)
    >>> layer(tf.constant([[0.0, 9.0, 0.0]])).numpy().tolist()
    [1]
    >>> layer(tf.zeros([2, 4, 3]), training=True).shape
    TensorShape([2, 4])

    Reference:
        Schulman, Heess, Weber & Abbeel (2015), Gradient estimation using stochastic
        computation graphs. arXiv:1506.05254
    """

    def __init__(
        self,
        head: heads.Head,
        *,
        seed: int | None = None,
        one_hot: bool = False,
        estimator: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})
        self.one_hot = validation.boolean("one_hot", one_hot)
        self.estimator = None if estimator is None else estimators.get(estimator)
        if isinstance(self.estimator, estimators.Vimco):
            raise ValueError("'vimco' is an objective: ScoreFunction(estimator='vimco')")
        self.head = validation.instance("head", head, heads.Head)
        self.seed = seed if seed is None else validation.check_seed(seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self.samples_shape: tuple = (None,)  # unknown before `build`
        self.supports_masking = True

    def build(self, outputs_shape: Any) -> None:
        if outputs_shape[-1] != self.head.outputs_size:
            raise ValueError(
                f"{self.head!r} needs inputs of shape (batch, …, "
                f"{self.head.outputs_size}). Received: shape {tuple(outputs_shape)}"
            )
        self.samples_shape = tuple(outputs_shape[1:-1])
        if not self.head.built:
            self.head.set_float_type(_float_type(self.compute_dtype).name)
            self.head.build((None, self.head.outputs_size))

    def call(
        self,
        outputs: tf.Tensor,
        action_mask: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        training: bool = False,
    ) -> Any:
        shape = tf.shape(outputs)[:-1]
        rows = tf.reshape(outputs, [-1, self.head.outputs_size])
        rows = tf.cast(rows, _float_type(outputs.dtype))
        if action_mask is not None:
            if action_mask.shape[-1] != self.head.mask_size or not self.head.mask_size:
                raise ValueError(
                    f"`action_mask` of {self.head!r} must have {self.head.mask_size} "
                    f"entries for each sample. Received: shape {action_mask.shape}"
                )
            legal = tf.reshape(tf.cast(action_mask, tf.int8), [-1, self.head.mask_size])
            rows = self.head.mask_outputs(rows, legal)
        if mask is None:
            mask = getattr(outputs, "_keras_mask", None)
        samples = self._samples(rows, shape, mask, training)

        def unflatten(rows):  # the axes of the outputs
            result = tf.reshape(rows, tf.concat([shape, tf.shape(rows)[1:]], axis=0))
            result.set_shape([*outputs.shape[:-1], *rows.shape[1:]])
            return result

        return keras.tree.map_structure(unflatten, samples)

    def _samples(self, rows, shape, mask, training):
        """Returns a sample for each row of outputs `[R, P]`."""
        recorder = _active_recorder()
        if recorder is not None:
            recorder.called.add(id(self))
        if recorder is None or not (training or recorder.in_inference):
            actions = self._draw(rows, training, _call_number(self, training))
        elif recorder.nested is None:
            actions = self._draw_recorded(recorder, rows, shape, mask)
        else:
            vectors = self._draw_nested(recorder.nested, rows, mask)
            if self.one_hot:
                return self.head.from_vectors(vectors)
            if vectors.shape[-1] == 1:
                return self.head.to_environment(vectors[..., 0])
            indices = tf.argmax(vectors, axis=-1, output_type=self.head.action_dtype)
            actions = tf.reshape(indices, [-1, *self.head.action_shape])
        if not self.one_hot:
            return self.head.to_environment(actions)
        sites, size = self.head.category_log_probs(rows[:1]).shape[1:]
        indices = tf.reshape(actions, [-1, sites])
        return self.head.from_vectors(tf.one_hot(indices, size, dtype=rows.dtype))

    def copies(self, estimator: estimators.Estimator) -> int:
        """Returns how many samples an estimator draws for an example."""
        if None in self.samples_shape:
            raise ValueError(
                f"The estimator of {self.name!r} needs inputs of a fixed shape. "
                f"Received: {self.samples_shape} between the first and the last axis"
            )
        outputs = tf.zeros([1, self.head.outputs_size], self.head.compute_dtype)
        sites, size = self._parameters(outputs, estimator).shape[1:]
        return estimator.copies(math.prod(self.samples_shape) * sites, size)

    def _parameters(self, rows, estimator):
        """Returns the parameters of the sites of a sample, `[R, D, K]`."""
        if estimator.family == "categories":
            return self.head.category_log_probs(rows)
        if self.head.family != estimator.family:
            raise ValueError(
                f"The estimator {type(estimator).__name__} needs a head of real numbers: "
                "Gaussian, ClippedGaussian, TanhGaussian or Beta. Received: "
                f"{self.head!r}"
            )
        return tf.stack([*self.head.parameters(rows).values()], axis=-1)

    def _draw_nested(self, nested, rows, mask):
        """Returns the samples that an estimator draws for the rows, `[R, D, K]`."""
        estimator = nested.estimator_of(self)
        parameters = self._parameters(rows, estimator)
        entropies = self.head.distribution(rows).entropy()
        sites, size = parameters.shape[1:]
        if mask is not None:  # padding has no choice, and no gradient
            certain = tf.one_hot(0, size, 0.0, rows.dtype.min / 2, dtype=rows.dtype)
            if estimator.family != "categories":
                certain = tf.ones([2], rows.dtype)
            mask = tf.reshape(mask, [-1])
            parameters = tf.where(mask[:, None, None], parameters, certain)
            entropies = tf.where(mask, entropies, 0.0)
        places = math.prod(self.samples_shape)
        entropies = tf.reduce_sum(tf.reshape(entropies, [-1, places]), axis=1)
        parameters = tf.reshape(parameters, [-1, places * sites, size])
        vectors = nested.draw(self, estimator, parameters, entropies)
        return tf.reshape(vectors, [-1, sites, vectors.shape[-1]])

    def uniform_noise(self, count: tf.Tensor, dtype: Any) -> Any:
        """Returns a function that draws new uniform numbers `[count, *shape]`."""

        def draw(shape: tuple, cuts: Any, is_step: bool) -> tf.Tensor:
            key = tf.cast(self.seed_generator.next(), tf.uint32)
            spec = seeding.NoiseSpec("uniform", shape)
            index = tf.range(count)
            [numbers] = tensor_noise.counter_noise(key, [spec], index, 0, dtype)
            limits = np.finfo(tf.as_dtype(dtype).as_numpy_dtype)  # never exactly 0
            return tf.clip_by_value(numbers, limits.tiny, 1.0 - limits.epsneg)

        return draw

    def _draw(self, rows, training, call):
        """Returns raw actions for outputs `[R, P]`: samples, or modes in inference.

        The key of the noise includes the number of the call in a forward pass. Two layers
        with equal seeds therefore draw independent samples in one model.
        """
        if not training:
            return _constants(self.head.mode(rows))
        specs = keras.tree.flatten(self.head.noise)
        index = tf.range(tf.shape(rows)[0])
        key = tf.cast(self.seed_generator.next(), tf.uint32)
        noise = tensor_noise.counter_noise(key, specs, index, call, rows.dtype)
        noise = keras.tree.pack_sequence_as(self.head.noise, noise)
        return _constants(self.head.sample(rows, noise))

    def _draw_recorded(self, recorder, rows, shape, mask):
        """Returns samples or replayed actions, and adds them to a recorder."""
        number, replayed = len(recorder.samples), recorder.replayed or []
        if number >= len(replayed):
            actions = self._draw(rows, True, number)
        else:
            actions, spec = replayed[number], self.head.action_spec(rows.dtype)
            actions = keras.tree.map_structure(
                lambda x, spec: tf.cast(x, spec.dtype), actions, spec
            )
            counts = tf.shape(keras.tree.flatten(actions)[0])[0], tf.shape(rows)[0]
            tf.debugging.assert_equal(*counts, "Replayed actions and rows must be equal")
        if recorder.tape is not None:
            recorder.tape.watch(rows)  # the outputs may be constants
        log_probs, entropies = self.head.log_prob_and_entropy(rows, actions)
        valid = None if mask is None else tf.reshape(mask, [shape[0], -1])

        def total(numbers):
            numbers = tf.reshape(numbers, [shape[0], -1])
            if valid is not None:
                numbers = tf.where(valid, numbers, 0.0)
            return tf.reduce_sum(numbers, axis=1)

        sums = total(log_probs), total(entropies)
        recorder.add(RecordedSample(self, rows, actions, *sums, valid))
        return actions

    def compute_mask(self, outputs: tf.Tensor, previous_mask: Any) -> Any:
        if previous_mask is None:
            return None
        spec = self.head.action_spec("float32")
        return keras.tree.map_structure(lambda _: previous_mask, spec)

    # Keras saves no state of a `SeedGenerator`. Without its state, a loaded layer would
    # draw the first samples again, and a resumed training would differ.
    def save_own_variables(self, store: Any) -> None:
        store["seed_state"] = self.seed_generator.state.numpy()

    def load_own_variables(self, store: Any) -> None:
        self.seed_generator.state.assign(store["seed_state"])

    def get_config(self) -> dict[str, Any]:
        head = keras.saving.serialize_keras_object(self.head)
        config = {**super().get_config(), "head": head, "seed": self.seed}
        if self.one_hot:  # old files lack both
            config["one_hot"] = True
        if self.estimator is not None:
            config["estimator"] = keras.saving.serialize_keras_object(self.estimator)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Sample":
        config = copy.deepcopy(config)  # Keras removes entries of a model's config
        parts = {
            name: keras.saving.deserialize_keras_object(config[name])
            for name in config.keys() & {"head", "estimator"}
        }
        return cls(**{**config, **parts})


def sample_layers(model: keras.Model) -> list:
    """Returns the `Sample` layers of a model, also nested ones."""
    return [x for x in model._flatten_layers() if isinstance(x, Sample)]


def _call_number(layer, training):
    """Returns how many times `Sample` layers drew before in the outermost Keras call."""
    context = layer._get_call_context()
    number = getattr(context, "num_samples", 0)
    context.num_samples = number + bool(training)
    layer._maybe_reset_call_context()  # ends a context that began here
    return number


def _constants(actions):
    return keras.tree.map_structure(tf.stop_gradient, actions)


def _float_type(dtype):
    """Returns float64 for float64, and float32 for all other types."""
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32
