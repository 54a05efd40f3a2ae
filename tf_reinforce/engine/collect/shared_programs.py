"""Shares one XLA program among traced functions with equal operations.

TensorFlow compiles a traced function with XLA when the function is first called, and
never frees the result. Without sharing, each new agent would compile its own program and
would keep several MB of memory, even if an equal agent had been trained before.
"""

import hashlib

import tensorflow as tf

from tf_reinforce.support import tracing

_PROGRAMS: dict[str, object] = {}  # concrete functions, by their digest

# Attributes that do not change what a function without gradients computes.
_IGNORED_ATTRIBUTES = {"_class", "_gradient_op_type", "_user_specified_name"}


def shared(function, signature):
    """Traces a function, and returns an equal earlier trace of the process if one exists.

    Two traces are equal if they have the same operations with the same attributes,
    connections and constants, in the same order. Names are not compared.

    Args:
        function: Function that receives and returns tensors. To be shared, a function
            must receive all variables that it reads as arguments.
        signature: List of `tf.TensorSpec`, the specs of the arguments.

    Returns:
        A concrete TensorFlow function, compiled with XLA. It belongs to `function` alone
        if the trace captured a tensor or a variable.
    """
    traced = tf.function(
        function, input_signature=signature, jit_compile=True, autograph=False
    )
    with tf.init_scope():  # independent of a graph that calls the function
        concrete = traced.get_concrete_function()
    tracing.release(concrete.graph)
    if concrete.captured_inputs:
        return concrete
    return _PROGRAMS.setdefault(digest(concrete), concrete)


def digest(concrete):
    """Returns a SHA-256 that is equal for concrete functions with equal operations."""
    library = concrete.graph.as_graph_def().library.function
    return _Digests(library).of_function(concrete.function_def)


class _Digests:
    """Computes digests of functions that can call the functions of a library."""

    def __init__(self, library):
        self._definitions = {function.signature.name: function for function in library}
        self._digests = {}  # by name

    def of_name(self, name):
        """Returns the digest of a function of the library, or an operation's name."""
        if name not in self._definitions:
            return name
        if name not in self._digests:
            self._digests[name] = self.of_function(self._definitions[name])
        return self._digests[name]

    def of_function(self, definition):
        """Returns the digest of a `FunctionDef`."""
        inputs = definition.signature.input_arg
        numbers = {node.name: str(i) for i, node in enumerate(definition.node_def)}
        numbers |= {argument.name: f"input {i}" for i, argument in enumerate(inputs)}

        def renamed(tensor):
            """Returns the parts of `name`, `name:output:number` or `^name`.

            A number replaces the name.
            """
            name, *output = tensor.removeprefix("^").split(":")
            return [tensor.startswith("^"), numbers[name], *output]

        content = [
            [argument.type for argument in inputs],
            [
                [node.device, self.of_name(node.op), *map(renamed, node.input)]
                + self._of_attributes(node.attr)
                for node in definition.node_def
            ],
            [renamed(definition.ret[x.name]) for x in definition.signature.output_arg],
            sorted(renamed(f"^{name}") for name in definition.control_ret.values()),
            self._of_attributes(definition.attr),
        ]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def _of_attributes(self, attributes):
        """Returns a sorted list of the names and values of attributes."""
        pairs = []
        for name in sorted(set(attributes) - _IGNORED_ATTRIBUTES):
            value = tf.compat.v1.AttrValue()
            value.CopyFrom(attributes[name])
            functions = [value.func] if value.HasField("func") else value.list.func
            for function in functions:
                function.name = self.of_name(function.name)
            pairs.append((name, value.SerializeToString(deterministic=True)))
        return pairs
