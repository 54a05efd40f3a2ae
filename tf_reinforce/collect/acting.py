"""Acting: from observations and noise to actions, in microseconds.

Normaliser, policy and head are traced once as one function of (observations, noise,
weights) and run by LiteRT; after an update only the weights are handed over anew.
What LiteRT cannot run, or runs differently, is left to a compiled TensorFlow function.
"""

import contextlib
import logging

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter as litert

log = logging.getLogger("tf_reinforce")

# What a decision consists of, in the order in which every engine returns it. Where the
# environment receives the raw action itself, the last field is left out.
FIELDS = ("raw", "finite", "outputs", "sent")


def decide(outputs_of, head, observations, noise):
    """One decision per row, in TensorFlow operations.

    Args:
        outputs_of: Function from observations `[N, …]` to policy outputs `[N, P]`.
        head: `heads.Head`.
        observations: Structure of arrays `[N, …]`.
        noise: `[N, *head.noise.shape]`, or `None` for the most likely action.

    Returns:
        A tensor for each of `FIELDS`: the raw actions, whether all outputs are finite,
        the outputs, and what the environment receives unless that is the same.
    """
    outputs = outputs_of(observations)
    raw = head.mode(outputs) if noise is None else head.sample(outputs, noise)
    # NaN fails the comparison too, and LiteRT knows no is_finite.
    finite = tf.reduce_all(tf.abs(outputs) <= outputs.dtype.max)
    sent = head.to_environment(raw)
    return [raw, finite, outputs] if sent is raw else [raw, finite, outputs, sent]


class Acting:
    """The acting program of one policy and head, for any number of rows.

    Args:
        outputs_of: See `decide`.
        head: `heads.Head`, built.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        dtype: Float type of the policy's outputs.
        variables: The Keras variables that decide.
        examples: A few observations `[N, …]`, to compare the engines on.
        noise: Noise for them, `[N, *head.noise.shape]`.
        greedy: Bool. True takes the most likely actions and ignores the noise.

    Attributes:
        engine: `"litert"` or `"compiled"`.
        conversions: Int, how often a LiteRT model was made: at most once.
    """

    def __init__(
        self, outputs_of, head, structure, dtype, variables, examples, noise, greedy
    ):
        self.head = head
        self.conversions = 0
        self._variables = list(variables)
        batched = [
            tf.TensorSpec((None, *leaf.shape), leaf.dtype, f"observation_{i}")
            for i, leaf in enumerate(keras.tree.flatten(structure))
        ]
        self._shapes = [tuple(spec.shape[1:]) for spec in batched]
        drawn = tf.TensorSpec((None, *head.noise.shape), dtype, "noise")

        def program(observations, noise):
            nested = keras.tree.pack_sequence_as(structure, observations)
            return decide(outputs_of, head, nested, None if greedy else noise)

        compiled = tf.function(program, autograph=False)
        self._compiled = compiled.get_concrete_function(batched, drawn)
        self._rows = {}
        self.engine = "litert"
        weights = self._finite_weights()
        try:
            self._model = self._convert(program, batched, drawn)
            self._compare(keras.tree.flatten(examples), noise, weights)
        # Converter and interpreter fail in many ways; the compiled engine has none.
        except Exception as error:
            self.engine, self._rows = "compiled", {}
            reason = str(error).strip().splitlines()[:1]
            log.warning("Acting through TensorFlow, not LiteRT: %s", *reason)
        else:
            log.info("Acting through LiteRT.")

    def rows(self, count):
        """A function that acts for `count` rows, with the weights of this moment.

        Args:
            count: Positive int.

        Returns:
            `act(observations, noise)`, from a list of arrays and the noise to raw
            actions, what the environment receives, and whether the outputs were
            finite.
        """
        weights = self._finite_weights()
        if count not in self._rows:
            self._rows[count] = (
                self._lite_rows(count)
                if self.engine == "litert"
                else _CompiledRows(self._compiled)
            )
        self._rows[count].refresh(weights)
        return self._rows[count]

    def _finite_weights(self):
        # The outputs prove little: a fused ReLU and a clip turn NaN into a number.
        weights = [variable.numpy() for variable in self._variables]
        for variable, numbers in zip(self._variables, weights, strict=True):
            if not np.isfinite(numbers).all():
                raise FloatingPointError(
                    f"The weights {variable.path} are not finite: they have been lost, "
                    "and no action is taken. Load an earlier file, and train with a "
                    "smaller learning rate or `global_clipnorm`."
                )
        return weights

    def _lite_rows(self, count):
        """Rows whose bits do not depend on their number.

        LiteRT adds up a single row in another order than several, and convolutions in
        an order that depends on how many there are.
        """
        images = any(len(shape) > 1 for shape in self._shapes)
        size = 1 if images else max(count, 2)
        rows = _LiteRows(self._model, self._shapes, self.head.noise.shape, size)
        return rows if size == count else _Batched(rows, size, count)

    def _convert(self, program, batched, drawn):
        def stateless(observations, noise, weights):
            pairs = list(zip(self._variables, weights, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return program(observations, noise)

        weights = [
            tf.TensorSpec(v.shape, v.dtype, f"weight_{i}")
            for i, v in enumerate(self._variables)
        ]
        traced = tf.function(stateless, autograph=False)
        traced = traced.get_concrete_function(batched, drawn, weights)
        if any(tensor.dtype == tf.resource for tensor in traced.captured_inputs):
            raise ValueError("a layer keeps weights that are not Keras variables")
        self.conversions += 1
        with _quiet("absl"):  # it would have us convert by way of a SavedModel
            return tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()

    def _compare(self, examples, noise, weights):
        """Both engines must say the same on the examples."""
        rows = _LiteRows(self._model, self._shapes, self.head.noise.shape, len(noise))
        rows.refresh(weights)
        rows(examples, noise)
        arrays = (tf.constant(array) for array in (*examples, noise))
        theirs = self._compiled(*arrays)
        ours = rows.fields()
        if len(ours) != len(theirs):
            raise ValueError("LiteRT merged outputs of the program")
        for name, a, b in zip(FIELDS, ours, theirs):
            if not np.allclose(a, b, rtol=1e-4, atol=1e-5):
                raise ValueError(f"LiteRT gives another `{name}` than Keras")


@contextlib.contextmanager
def _quiet(name):
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _LiteRows:
    """A LiteRT interpreter for a fixed number of rows."""

    def __init__(self, model, shapes, noise_shape, count):
        self._lite = litert.Interpreter(model_content=model, num_threads=1)
        inputs = {d["name"]: d["index"] for d in self._lite.get_input_details()}
        self._noise = inputs.get("noise")  # a greedy program has none
        if self._noise is not None:
            self._lite.resize_tensor_input(self._noise, (count, *noise_shape))
        self._observations = [inputs[f"observation_{i}"] for i in range(len(shapes))]
        for index, shape in zip(self._observations, shapes, strict=True):
            self._lite.resize_tensor_input(index, (count, *shape))
        self._lite.allocate_tensors()
        self._fields = [d["index"] for d in self._lite.get_output_details()]
        self._raw, self._finite, _, *self._sent = self._fields
        # A call takes microseconds: looking names up would be a part of it.
        self._put, self._get = self._lite.set_tensor, self._lite.get_tensor
        self._invoke = self._lite.invoke
        self._weights = {
            int(name.removeprefix("weight_")): index
            for name, index in inputs.items()
            if name.startswith("weight_")
        }

    def refresh(self, weights):
        for number, index in self._weights.items():
            self._lite.set_tensor(index, weights[number])

    def __call__(self, observations, noise):
        put, get = self._put, self._get
        for index, array in zip(self._observations, observations):
            put(index, array)
        if self._noise is not None:
            put(self._noise, noise)
        self._invoke()
        raw = get(self._raw)
        return raw, get(self._sent[0]) if self._sent else raw, get(self._finite)

    def fields(self):
        """All fields of the last call; see `FIELDS`."""
        return [self._lite.get_tensor(index) for index in self._fields]


class _Batched:
    """Any number of rows through an interpreter of another size; the rest is idle."""

    def __init__(self, rows, size, count):
        self._rows = rows
        self._count = count
        self._chunks = [
            np.arange(first, first + size) % count for first in range(0, count, size)
        ]
        self.refresh = rows.refresh

    def __call__(self, observations, noise):
        answers = [
            self._rows([array[chunk] for array in observations], noise[chunk])
            for chunk in self._chunks
        ]
        raw, sent, finite = zip(*answers, strict=True)
        raw, sent = (np.concatenate(parts)[: self._count] for parts in (raw, sent))
        return raw, sent, all(finite)


class _CompiledRows:
    """The same through a concrete TensorFlow function, which reads the weights itself."""

    def __init__(self, function):
        self._function = function

    def refresh(self, weights):
        pass

    def __call__(self, observations, noise):
        tensors = (tf.constant(array) for array in (*observations, noise))
        raw, finite, _, *sent = (x.numpy() for x in self._function(*tensors))
        return raw, sent[0] if sent else raw, finite
