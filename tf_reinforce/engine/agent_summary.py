"""Prints the summary of an agent: its parts in the order in which they compute."""

import keras


class _Row:
    """A layer of the agent, as `keras.Model.summary` reads the layer.

    Args:
        layer: Keras layer, from which all other attributes are read.
        output_shape: Tuple or structure of tuples, the shape of the output.
        layers: List of layers that `expand_nested=True` shows below the row.
    """

    def __init__(self, layer, output_shape, layers=()):
        self.layer = layer
        self.layers = list(layers)
        self._output_shape = output_shape

    def __getattr__(self, name):
        return getattr(self.layer, name)

    @property  # type: ignore[misc]
    def __class__(self):
        return type(self.layer)  # whose name is shown

    def compute_output_shape(self, **shapes):
        return self._output_shape


class _Rows:
    """An agent whose `layers` are the rows of its summary."""

    def __init__(self, agent, layers):
        self.agent = agent
        self.layers = layers

    def __getattr__(self, name):
        return getattr(self.agent, name)


def print_summary(agent, *args, **kwargs):
    """Prints normalizer, policy, head, baseline and running scales, one row for each.

    The output of a head are raw actions, and the output of a baseline is one number for
    each step. A part that is not known before the agent is built has no row.

    Args:
        agent: A `Reinforce`.
        *args, **kwargs: Arguments of `keras.Model.summary`.
            `expand_nested=True` also shows the layers of the policy, the heads of a
            `Composite`, and the network of a `Value` baseline.
    """
    value_model = getattr(agent.baseline, "model", None)
    rows = [
        _normalizer_row(agent),
        agent.policy,
        None if agent.head is None else _head_row(agent.head),
        _Row(agent.baseline, (None,), [] if value_model is None else [value_model]),
        agent.reward_scale,
        agent.advantage_scale,
    ]
    keras.Model.summary(
        _Rows(agent, [row for row in rows if row is not None]), *args, **kwargs
    )


def _normalizer_row(agent):
    if agent.normalizer is None or not agent.built:
        return agent.normalizer
    return _Row(agent.normalizer, _shapes(agent.trainer.collector.actor.observation_spec))


def _head_row(head):
    shapes = _shapes(head.action_spec("float32"))
    return _Row(head, shapes, [_head_row(leaf) for leaf in getattr(head, "leaves", [])])


def _shapes(spec):
    return keras.tree.map_structure(lambda leaf: (None, *leaf.shape), spec)
