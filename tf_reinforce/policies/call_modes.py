"""What the layers of a model do in training mode and in inference mode."""

import collections
import contextlib
import inspect
import re
from typing import NamedTuple

import keras
import tensorflow as tf

# Layers of Keras that take `training` only to pass it on, or for their dropout.
_PASSING = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.GRUCell,
    keras.layers.LSTMCell,
    keras.layers.RNN,
    keras.layers.SimpleRNNCell,
    keras.layers.StackedRNNCells,
    keras.layers.TimeDistributed,
)


class CallModes(NamedTuple):
    """What a Keras model computes when it is called, read from the graph's operations."""

    is_random: bool  # whether the outputs depend on random numbers in inference mode
    differing: list  # names of the layers whose outputs differ in training mode
    updating: list  # layers that in training mode only change their own variables


def call_modes(model, observation_spec):
    """Returns the `CallModes` of a built Keras model.

    Args:
        model: Keras model.
        observation_spec: `tf.TensorSpec` of one input without batch axis, or a structure
            of them.
    """
    layers = list(model._flatten_layers())
    if all(map(_is_known, layers)):  # a graph takes longer to make than most models
        return CallModes(False, [], [])
    trained = [
        layer
        for layer in layers
        if not isinstance(layer, keras.Model)
        and "training" in inspect.signature(layer.call).parameters
    ]
    inference = _Graph(model, observation_spec)
    differing, updating, done = [], [], set()
    for layer in trained:  # outer layers come before their inner layers
        if id(layer) in done:
            continue
        inner = {id(x) for x in layer._flatten_layers()}
        group = [x for x in trained if id(x) in inner]
        with training_mode(group):
            graph = _Graph(model, observation_spec)
        if graph.used != inference.used:
            differing.append(layer.name)
            done |= inner
        elif graph.assigns:
            updating += group
            done |= inner
    return CallModes(inference.is_random(), differing, updating)


def _is_known(layer):
    """Returns whether a layer is Keras' own, not random, and without a training mode."""
    module = type(layer).__module__
    if module.startswith("keras.src.models"):
        return True
    if not module.startswith("keras.src.layers") or isinstance(
        layer, keras.layers.Lambda
    ):
        return False
    dropouts = [getattr(layer, x, 0) for x in ("dropout", "recurrent_dropout")]
    passes = isinstance(layer, _PASSING) and not any(dropouts)
    return passes or "training" not in inspect.signature(layer.call).parameters


@contextlib.contextmanager
def training_mode(layers):
    """Runs the given layers in training mode while their model runs in inference mode."""

    def train(call):
        return lambda *args, **kwargs: call(*args, **{**kwargs, "training": True})

    for layer in layers:
        vars(layer)["call"] = train(layer.call)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["call"]


_RANDOM = re.compile("Random|Multinomial|NonDeterministic|TruncatedNormal|Stateful|Rng")


class _Graph:
    """The operations of a model in inference mode.

    Args:
        model, observation_spec: As in `call_modes`.

    Attributes:
        used: Counter of the operations, with constants, that the outputs depend on.
        assigns: Bool, whether the model changes a variable.
    """

    def __init__(self, model, observation_spec):
        specs = keras.tree.map_structure(
            lambda x: tf.TensorSpec((2, *x.shape), x.dtype), observation_spec
        )
        call = tf.function(lambda x: model(x, training=False), autograph=False)
        graph = call.get_concrete_function(specs).graph
        definition = graph.as_graph_def()
        self._functions = {x.signature.name: x for x in definition.library.function}
        nodes = {node.name: node for node in definition.node}
        reachable = _reachable(nodes, [x.op.name for x in graph.outputs])
        texts = {name: list(self._texts(node)) for name, node in nodes.items()}
        self.used = collections.Counter(x for name in reachable for x in texts[name])
        self.assigns = any("Assign" in x for part in texts.values() for x in part)

    def is_random(self):
        """Returns whether the outputs depend on random numbers.

        A stateless operation draws new numbers only if its seed is a variable that
        changes.
        """
        operations = [text.partition(" ")[0] for text in self.used]
        drawn = [x for x in operations if _RANDOM.search(x)]
        return any(self.assigns or not x.startswith("Stateless") for x in drawn)

    def _texts(self, node):
        """Yields a text for a node, and for each node in the functions that it calls."""
        value = node.attr["value"].tensor if node.op == "Const" else ""
        yield f"{node.op} {value}"
        for attribute in node.attr.values():
            for function in [attribute.func, *attribute.list.func]:
                definition = self._functions.get(function.name)
                for inner in definition.node_def if definition else ():
                    yield from self._texts(inner)


def _reachable(nodes, outputs):
    """Returns the names of the nodes that the outputs depend on."""
    names, waiting = set(), list(outputs)
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        node = nodes[name]
        inputs = [x.partition(":")[0] for x in node.input if not x.startswith("^")]
        if node.op in ("Select", "SelectV2") and nodes[inputs[0]].op == "Const":
            is_first = bool(tf.make_ndarray(nodes[inputs[0]].attr["value"].tensor).all())
            inputs = inputs[1:2] if is_first else inputs[2:]
        waiting += inputs
    return names
