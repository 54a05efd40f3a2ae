"""Computes actions from observations and noise, with LiteRT or TensorFlow.

Normalizer, policy and head are traced once as one function of (observations, noise,
weights). LiteRT runs this function; after an update it receives the new weights. If
LiteRT cannot run the function, or its results differ, a compiled TensorFlow function
replaces it.
"""

import contextlib
import logging
import math

import keras
import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter as litert

log = logging.getLogger("tf_reinforce")


class _ActFunction:
    """One decision per row, as a flat function of flat inputs.

    The results are the raw actions, whether all outputs are finite, the outputs, what
    the environment receives wherever that is not the raw action itself, and the next
    states. Once it has been traced, `names` says what each result is, and `raw`,
    `sent`, `states` and `finite` say at which places they are.
    """

    def __init__(self, decision, greedy):
        self._decision = decision
        self._greedy = greedy
        observed = keras.tree.flatten(decision.observation_spec)
        mask = (
            [tf.TensorSpec((decision.mask_size,), tf.int8)]
            if decision.mask_source
            else []
        )
        parts = dict(observation=observed, mask=mask, state=decision.state)
        self.inputs = [
            tf.TensorSpec((None, *leaf.shape), leaf.dtype, f"{name}_{i}")
            for name, leaves in parts.items()
            for i, leaf in enumerate(leaves)
        ]
        self.noise = [
            tf.TensorSpec((None, *noise.shape), decision.dtype, f"noise_{i}")
            for i, noise in enumerate([] if greedy else decision.noise)
        ]
        self._split = np.cumsum([len(observed), len(mask)]).tolist()

    def __call__(self, inputs, noise, saturates=False):
        """The results. `saturates`: the largest number may stand for infinity."""
        decision, (first, last) = self._decision, self._split
        observations = keras.tree.pack_sequence_as(
            decision.observation_spec, inputs[:first]
        )
        mask = inputs[first] if decision.mask_source else None
        outputs, masked, states = decision.outputs(observations, mask, inputs[last:])
        raw = decision.select_actions(masked, None if self._greedy else noise)
        # NaN fails the comparison too, and LiteRT has no is_finite.
        size, largest = tf.abs(outputs), outputs.dtype.max
        finite = tf.reduce_all(size < largest if saturates else size <= largest)
        sent = keras.tree.flatten(decision.head.to_environment(raw))
        return self._laid_out(keras.tree.flatten(raw), finite, outputs, sent, states)

    def _laid_out(self, raw, finite, outputs, sent, states):
        """A list without repetitions, which LiteRT would merge."""
        known = {id(part): place for place, part in enumerate(raw)}
        more = [part for part in sent if id(part) not in known]
        results = [*raw, finite, outputs, *more, *states]
        known.update((id(part), len(raw) + 2 + i) for i, part in enumerate(more))
        self.raw = list(range(len(raw)))
        self.finite = len(raw)
        self.sent = [known[id(part)] for part in sent]
        self.states = list(range(len(results) - len(states), len(results)))
        self.names = [
            *["raw"] * len(raw), "finite", "outputs",
            *["sent"] * len(more), *["state"] * len(states),
        ]  # fmt: skip
        return results


class ActingProgram:
    """The acting program of one decision, for any number of rows.

    Args:
        decision: `actor.ActorPolicy`.
        examples: A few inputs, a list of arrays `[N, …]`: observations, the mask if
            there is one, and states; to compare the engines on.
        noise: A list of noise for them, `[N, …]` each.
        greedy: Bool. True takes the most likely actions and ignores the noise.

    Attributes:
        engine: `"litert"` or `"compiled"`.
        conversions: Int, how often a LiteRT model was made: at most once.
    """

    def __init__(self, decision, examples, noise, greedy):
        self.conversions = 0
        self._variables = decision.variables
        program = self._program = _ActFunction(decision, greedy)

        def decide(inputs, noise):  # traced once, as a function of these two alone
            return program(inputs, noise)

        compiled = tf.function(decide, autograph=False)
        self._compiled = compiled.get_concrete_function(program.inputs, program.noise)
        self._rows, self._comparing = {}, {}
        self.engine = "litert"
        weights = finite_weights(self._variables)
        try:
            if decision.dtype == "float64":
                raise ValueError("the policy computes in float64, and LiteRT does not")
            self._model = self._convert()
            inputs = [*examples, *(() if greedy else noise)]
            if difference := self._difference(inputs, weights):
                raise ValueError(difference)
        # Converter and interpreter fail in many ways; the compiled engine has none.
        except Exception as error:
            self._leave_litert(*str(error).strip().splitlines()[:1])
        else:
            log.info("Acting through LiteRT.")

    def rows(self, count, weights=None):
        """A function that acts for `count` rows.

        Args:
            count: Positive int.
            weights: What `finite_weights` returned; `None` for those of this moment.

        Returns:
            `act(inputs)`, from a list of arrays `[count, …]`, observations, mask, states
            and noise, to lists of arrays: raw actions, what the environment receives,
            next states; and whether the outputs were finite.
        """
        if weights is None:
            weights = finite_weights(self._variables)
        if count not in self._rows:
            self._rows[count] = (
                self._lite_rows(count)
                if self.engine == "litert"
                else _TensorFlowRunner(self._compiled, self._program)
            )
        self._rows[count].refresh(weights)
        return self._rows[count]

    def _lite_rows(self, count):
        """Rows whose bits do not depend on their number.

        LiteRT adds up a single row in another order than several, and convolutions in
        an order that depends on how many there are.
        """
        images = any(spec.shape.rank > 2 for spec in self._program.inputs)
        size = 1 if images else max(count, 2)
        rows = _LiteRTRunner(self._model, self._program, size)
        return rows if size == count else _ChunkedRunner(rows, size, count)

    def _convert(self):
        program = self._program

        def stateless(inputs, noise, weights):
            pairs = list(zip(self._variables, weights, strict=True))
            with keras.StatelessScope(state_mapping=pairs):
                return program(inputs, noise, saturates=True)

        weights = [
            tf.TensorSpec(v.shape, v.dtype, f"weight_{i}")
            for i, v in enumerate(self._variables)
        ]
        traced = tf.function(stateless, autograph=False)
        traced = traced.get_concrete_function(program.inputs, program.noise, weights)
        if any(tensor.dtype == tf.resource for tensor in traced.captured_inputs):
            raise ValueError("a layer keeps weights that are not Keras variables")
        self.conversions += 1
        with _quiet("absl"):  # it would have us convert by way of a SavedModel
            return tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()

    def compare(self, inputs):
        """Leaves LiteRT for good if it departs from Keras on some rows.

        This is asked after every collection, where rounding alone must change no engine:
        only outputs and states count, as a choice may be a tie, and they may be off ten
        times as far as before the first action.

        Args:
            inputs: A list of arrays `[N, …]`: observations, mask, states and noise.

        Returns:
            Bool: whether the engine is another one now.
        """
        if self.engine != "litert":
            return False
        weights, names = finite_weights(self._variables), ("finite", "outputs", "state")
        difference = self._difference(inputs, weights, names, slack=10.0)
        if difference:
            self._leave_litert(difference)
        return bool(difference)

    def _leave_litert(self, reason=""):
        self.engine, self._rows, self._comparing = "compiled", {}, {}
        log.warning("Acting through TensorFlow, not LiteRT: %s", reason)

    def _difference(self, inputs, weights, names=None, slack=1.0):
        """What LiteRT gives otherwise than Keras on these rows, or an empty text.

        A result may be off by 1e-4 of itself and by 1e-5 of the largest number in its
        row of inputs: terms of that size cancel. Rows where the outputs of Keras
        are not finite do not count: no engine acts on them.

        Args:
            names: The results that count; `None` for all.
            slack: Float, by which a result may be off further.
        """
        count = len(inputs[0])
        if count not in self._comparing:
            self._comparing[count] = _LiteRTRunner(self._model, self._program, count)
        rows = self._comparing[count]
        rows.refresh(weights)
        rows(inputs)
        ours = rows.results()
        theirs = _called(self._compiled, self._program, inputs)
        if len(ours) != len(theirs):
            return "LiteRT merged outputs of the program"
        reals = [_in_rows(x) for x in inputs if x.dtype.kind == "f"]
        sizes = np.max([np.ones(len(inputs[0])), *(abs(x).max(1) for x in reals)], axis=0)
        outputs = _in_rows(theirs[self._program.names.index("outputs")])
        finite = np.isfinite(outputs).all(1)
        for name, a, b in zip(self._program.names, ours, theirs):
            if names is not None and name not in names:
                continue
            if name == "finite":
                differ = finite.all() and not a
            else:
                a, b = (_in_rows(x).astype("float64")[finite] for x in (a, b))
                allowed = 1e-5 * sizes[finite, None] + 1e-4 * abs(b)
                differ = not (abs(a - b) <= slack * allowed).all()
            if differ:
                return f"LiteRT gives another `{name}` than Keras"
        return ""


def _in_rows(array):
    """`[N, …]` as `[N, n]`."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def finite_weights(variables):
    """The variables as NumPy arrays, or an error: lost weights choose no action."""
    # The outputs prove little: a fused ReLU and a clip turn NaN into a number.
    weights = [variable.numpy() for variable in variables]
    for variable, numbers in zip(variables, weights, strict=True):
        if not np.isfinite(numbers).all():
            raise FloatingPointError(
                f"The weights {variable.path} are not finite: they have been lost, "
                "and no action is taken. Load an earlier file, and train with a "
                "smaller learning rate or `global_clipnorm`."
            )
    return weights


@contextlib.contextmanager
def _quiet(name):
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class _LiteRTRunner:
    """A LiteRT interpreter for a fixed number of rows."""

    def __init__(self, model, program, count):
        self._lite = litert.Interpreter(model_content=model, num_threads=1)
        inputs = {d["name"]: d["index"] for d in self._lite.get_input_details()}
        # What does not decide, as the mask of a head that needs none, is not there.
        specs = [*program.inputs, *program.noise]
        self._inputs = [
            (place, inputs[spec.name])
            for place, spec in enumerate(specs)
            if spec.name in inputs
        ]
        for place, index in self._inputs:
            shape = (count, *specs[place].shape[1:])
            self._lite.resize_tensor_input(index, shape)
        self._lite.allocate_tensors()
        self._results = [d["index"] for d in self._lite.get_output_details()]
        self._raw = [self._results[place] for place in program.raw]
        self._sent = [self._results[place] for place in program.sent]
        self._states = [self._results[place] for place in program.states]
        self._finite = self._results[program.finite]
        self._changed = self._sent != self._raw
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

    def __call__(self, inputs):
        put, get = self._put, self._get
        for place, index in self._inputs:
            put(index, inputs[place])
        self._invoke()
        raw = list(map(get, self._raw))
        sent = list(map(get, self._sent)) if self._changed else raw
        return raw, sent, list(map(get, self._states)), get(self._finite)

    def results(self):
        """All results of the last call, in the order of the program."""
        return [self._lite.get_tensor(index) for index in self._results]


class _ChunkedRunner:
    """Any number of rows through an interpreter of another size; the rest is idle."""

    def __init__(self, rows, size, count):
        self._rows = rows
        self._count = count
        self._chunks = [
            np.arange(first, first + size) % count for first in range(0, count, size)
        ]
        self.refresh = rows.refresh

    def __call__(self, inputs):
        answers = [
            self._rows([array[chunk] for array in inputs]) for chunk in self._chunks
        ]
        if len(answers) == 1:
            raw, sent, states, finite = answers[0]
            used = [array[: self._count] for array in raw]
            changed = used if sent is raw else [array[: self._count] for array in sent]
            return used, changed, [array[: self._count] for array in states], finite
        *lists, finite = zip(*answers, strict=True)
        raw, sent, states = (self._joined(parts) for parts in lists)
        return raw, sent, states, all(finite)

    def _joined(self, parts):
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]


class _TensorFlowRunner:
    """The same through a concrete TensorFlow function, which reads the weights itself."""

    def __init__(self, function, program):
        self._function = function
        self._program = program

    def refresh(self, weights):
        pass

    def __call__(self, inputs):
        program = self._program
        results = _called(self._function, program, inputs)
        raw, sent, states = (
            [results[place] for place in places]
            for places in (program.raw, program.sent, program.states)
        )
        return raw, sent, states, results[program.finite]


def _called(function, program, inputs):
    """The results of the compiled function, in NumPy.

    It is called as it was traced: TensorFlow would take a flat list too, but only after
    it has written out all the numbers for an error that nobody sees.
    """
    tensors, count = [tf.constant(x) for x in inputs], len(program.inputs)
    return [x.numpy() for x in function(tensors[:count], tensors[count:])]
