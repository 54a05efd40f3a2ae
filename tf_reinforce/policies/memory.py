"""What a policy knows of earlier steps: a window of inputs, or a recurrent state.

Acting and learning call `Memory`. It prepares the inputs of a model, which are the
observations and, if asked for, the actions and rewards before them. A `WindowedModel` or
a `recurrent.RecurrentPolicy` runs the model.
"""

import functools
import inspect
import warnings

import keras
import tensorflow as tf

from tf_reinforce.data import minibatches
from tf_reinforce.policies import recurrent

_BLOCK = 65_536  # steps in the windows from which outputs are computed at a time


class Memory:
    """Runs a policy or value model that reads the history of an episode.

    Args:
        model: Keras model of windows `[N, K, …]`, or with recurrent layers of sequences
            `[B, T, …]`.
        spec: Result of `input_spec`.
        options: `config.AgentOptions`.
        dtype: Float type of the rewards.

    Attributes:
        state_spec: List of `tf.TensorSpec` of what an episode keeps between steps: the
            state of the model and, if the model reads them, the arrays of the last raw
            action and the last reward.
        reads_rewards: Bool, whether the last state is that reward. Whoever steps the
            environment stores it there.
        is_windowed: Bool, whether the model reads windows, so that outputs at a step need
            only the K steps up to it, not the whole episode.
        runner: `WindowedModel` or `recurrent.RecurrentPolicy`, which runs the model.
    """

    def __init__(self, model, spec, options, dtype):
        names = [name for name in options.context_inputs if name != "observations"]
        self._previous = {name: spec[name] for name in names}
        self.is_windowed = options.context is not None
        kind = WindowedModel if self.is_windowed else recurrent.RecurrentPolicy
        arguments = (options.context,) if self.is_windowed else ()
        self.runner = kind(model, spec, *arguments)
        _expect_floats(model, self._previous)
        self._before, self._dtype = keras.tree.flatten(self._previous), dtype
        self.state_spec = [*self.runner.state_spec, *self._before]
        self.reads_rewards = "rewards" in self._previous

    def initial_state(self, batch_size):
        """Returns the states with which `batch_size` episodes start, as a list."""
        zeros = [tf.zeros([batch_size, *x.shape], x.dtype) for x in self._before]
        return [*self.runner.initial_state(batch_size), *zeros]

    def step(self, observations, states):
        """Returns the model's outputs for one step of N episodes, and new states.

        The new states still contain the action and the reward before this step: the head
        selects the next action from the outputs, and `remember` then stores it.
        """
        split = len(self.runner.state_spec)
        states, before = states[:split], states[split:]
        inputs = observations
        if before:
            inputs = keras.tree.pack_sequence_as(self._previous, before)
            inputs = {**inputs, "observations": observations}
        outputs, states = self.runner.step(inputs, states)
        return outputs, [*states, *before]

    def remember(self, states, raw_actions):
        """Returns the states of `step` with the raw actions selected since, if read."""
        if "actions" not in self._previous:
            return states
        actions, split = keras.tree.flatten(raw_actions), len(self.runner.state_spec)
        return [*states[:split], *actions, *states[split + len(actions) :]]

    def outputs_at(self, steps, observations, episodes, every_step, has_gradient=True):
        """Returns the model's outputs at N steps of recorded episodes, `[N, …]`.

        Args:
            steps: `records.ValidSteps`, the N steps.
            observations: The observations of `episodes`, `[T + 1, B, …]`, normalized if
                the agent does so.
            episodes: `Episodes`, whose actions and rewards the model may read.
            every_step: `records.ValidSteps`, all steps that a model of sequences reads.
            has_gradient: Bool, whether the outputs will be differentiated. Otherwise,
                windows are made in blocks, so they take little memory.
        """
        inputs = observations
        if self._previous:
            rewards = tf.cast(episodes.rewards, self._dtype)
            arrays = {"actions": episodes.actions, "rewards": rewards}
            # The inputs at row t + 1 are those of row t; at row 0, they are zero.
            inputs = {x: minibatches.pad_rows(arrays[x], 1, 0) for x in self._previous}
            inputs["observations"] = observations
        if self.is_windowed and not has_gradient:
            return self.runner.outputs_in_blocks(inputs, steps)
        return self.runner.outputs_at(inputs, steps, every_step)


def _expect_floats(model, previous):
    """Raises an error if an integer input of a model would round actions or rewards."""
    given = getattr(model, "input", None)
    for name, spec in previous.items() if isinstance(given, dict) else ():
        inputs, leaves = keras.tree.flatten(given.get(name, [])), keras.tree.flatten(spec)
        if any("int" in x.dtype and y.dtype.is_floating for x, y in zip(inputs, leaves)):
            raise ValueError(
                f"The input {name!r} of {model!r} would round its numbers. Received: an "
                "integer `dtype`. Leave it out of keras.Input."
            )


def input_spec(observation_spec, options, head, dtype):
    """Returns the spec of a model's input at one step.

    With `context_inputs` beyond observations, it is a dict with these names as keys. Its
    arrays of the action and the reward before are named as in an export.

    Args:
        observation_spec: `tf.TensorSpec` of one observation, as the model receives it, or
            a structure of them.
        options, dtype: As in `Memory`.
        head: `heads.Head`, whose raw actions the model may read.
    """
    if len(options.context_inputs) == 1:
        return observation_spec
    action_spec = head.action_spec(dtype)
    leaves = keras.tree.flatten(action_spec)
    numbers = [f"_{i}" for i in range(len(leaves))] if len(leaves) > 1 else [""]
    names = [f"previous_action{number}" for number in numbers]
    actions = [tf.TensorSpec(x.shape, x.dtype, y) for x, y in zip(leaves, names)]
    parts = {
        "observations": observation_spec,
        "actions": keras.tree.pack_sequence_as(action_spec, actions),
        "rewards": tf.TensorSpec((), dtype, "previous_reward"),
    }
    return {name: parts[name] for name in options.context_inputs}


class WindowedModel:
    """Runs a model of the last K inputs as a function of one input and a state.

    Places before the first step of an episode hold zeros. A Keras mask `[N, K]`, which is
    False there, tells layers that support masks.

    Args:
        model: Keras model from N windows `[N, K, …]` to outputs `[N, P]`.
        input_spec: `tf.TensorSpec` of one step's input, or a structure of them.
        size: Positive int, K.

    Attributes:
        state_spec: List of `tf.TensorSpec`: the last K - 1 inputs, and how many of them
            are steps of the episode. It is empty if K is 1.
        sequence_model: The model.
    """

    def __init__(self, model, input_spec, size):
        self.sequence_model, self._size = model, size
        recurrent.expect_inputs(model, input_spec, size)
        leaves = keras.tree.flatten(input_spec)
        specs = [((size - 1, *leaf.shape), leaf.dtype) for leaf in leaves]
        specs = [*specs, ((), tf.int32)] if size > 1 else []
        self.state_spec = [tf.TensorSpec(*x, f"state_{i}") for i, x in enumerate(specs)]

    def initial_state(self, batch_size):
        """Returns the state before the first step: zeros, none of them a step."""
        return [tf.zeros([batch_size, *x.shape], x.dtype) for x in self.state_spec]

    def step(self, inputs, states):
        """Returns the outputs for one input of N episodes, and the list of new states."""
        windows = keras.tree.map_structure(lambda x: tf.expand_dims(x, 1), inputs)
        count = tf.zeros([tf.shape(keras.tree.flatten(inputs)[0])[0]], tf.int32)
        if states:
            *earlier, count = states
            earlier = keras.tree.pack_sequence_as(windows, earlier)
            windows = keras.tree.map_structure(
                lambda x, y: tf.concat([x, y], axis=1), earlier, windows
            )
            kept = [x[:, 1:] for x in keras.tree.flatten(windows)]
            states = [*kept, tf.minimum(count + 1, self._size - 1)]
        valid = tf.range(self._size) >= self._size - 1 - count[:, None]
        return self._call(windows, valid), states

    def outputs_at(self, inputs, steps, every_step):
        """Returns the outputs at N steps of time-major inputs; see `Memory`."""
        return self._outputs(inputs, steps.indices)

    def outputs_in_blocks(self, inputs, steps):
        """Returns the same, with no more than `_BLOCK` steps in windows at a time."""
        size, count = max(_BLOCK // self._size, 1), tf.shape(steps.indices)[0]
        call = functools.partial(self._outputs, inputs)
        spec = keras.tree.map_structure(
            lambda x: tf.TensorSpec((size, *x.shape[1:]), x.dtype),
            call(steps.indices[:0]),
        )

        def blocks():
            rows = tf.range(-(-count // size))[:, None] * size + tf.range(size)
            indices = tf.gather(steps.indices, tf.minimum(rows, count - 1))
            options = dict(fn_output_signature=spec, parallel_iterations=1)
            return keras.tree.map_structure(
                lambda x: tf.reshape(x, [-1, *x.shape[2:]])[:count],
                tf.map_fn(call, indices, **options),
            )

        return tf.cond(count > size, blocks, lambda: call(steps.indices))

    def _outputs(self, inputs, indices):
        """Returns the outputs at steps with `[N, 2]` indices (row, column)."""
        rows = indices[:, :1] + tf.range(1 - self._size, 1)
        columns = tf.broadcast_to(indices[:, 1:], tf.shape(rows))
        places, valid = tf.stack([tf.maximum(rows, 0), columns], axis=-1), rows >= 0

        def window(array):
            is_step = tf.reshape(valid, [-1, self._size, *[1] * (len(array.shape) - 2)])
            taken = tf.gather_nd(array, places)
            return tf.where(is_step, taken, tf.zeros([], taken.dtype))

        windows = keras.tree.map_structure(window, inputs)
        return minibatches.call_on_rows(lambda x: self._call(*x), (windows, valid))

    def _call(self, windows, valid):
        model, options = self.sequence_model, {}
        if "mask" in inspect.signature(model.call).parameters:
            options["mask"] = keras.tree.map_structure(lambda _: valid, windows)
        with warnings.catch_warnings():
            # A layer such as Flatten then reads the zeros of the steps before the start.
            text = ".*does not support masking and will therefore destroy.*"
            warnings.filterwarnings("ignore", text, UserWarning)
            return model(windows, training=False, **options)


def expect_window(context, limit):
    """Raises `ValueError` if a window is longer than an environment's time limit."""
    if context is not None and limit is not None and context > limit:
        raise ValueError(
            f"`context` must be at most the time limit of {limit} steps, because no "
            f"episode is longer. Received: context={context}"
        )
