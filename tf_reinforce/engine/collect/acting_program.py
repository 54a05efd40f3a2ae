"""Computes actions from observations and noise, with LiteRT or TensorFlow.

Normalizer, policy and head (the action distribution) are converted to LiteRT once, as one
function of observations, noise and weights. Every collection passes the weights that act,
a copy that later updates do not change. If LiteRT cannot run the policy, or if LiteRT and
TensorFlow compute different results, a traced TensorFlow function selects the actions.
"""

import contextlib
import itertools
import logging
import math
import threading
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import litert_runner
from tf_reinforce.support import startup

log = logging.getLogger("tf_reinforce")

_EXAMPLES = 8  # random observations for the comparison of a new program
_COMPARED = 64  # steps of every collection that are compared


class Weights(NamedTuple):
    """A copy of what acts: the weights of an `ActorPolicy` between two updates."""

    values: list  # arrays, one for each of the actor's variables
    states: list  # arrays [1, …], the recurrent states before the first step


def read_weights(actor):
    """Returns the `Weights` of an actor; raises an error if a weight is not finite."""
    with actor.lock:
        values = finite_weights(actor.variables)
        return Weights(values, [np.array(state) for state in actor.initial_state(1)])


def initial_states(weights, size):
    """Returns initial recurrent states for `size` environments, a list of arrays."""
    return [np.repeat(state, size, axis=0) for state in weights.states]


class _Runners(threading.local):
    """The runners of one thread: a runner selects actions for one thread at a time."""

    def __init__(self):
        self.acting, self.comparison = {}, {}


class _ActFunction:
    """Selects one action per row of a batch; arguments and results are flat lists.

    The first results are the raw actions (as sampled, not yet converted for the
    environment), a bool that is True if all policy outputs are finite, and the policy
    outputs. The last results are the actions converted for the environment, if the
    conversion changes the actions, and the next recurrent states.

    Args:
        actor: `actor.ActorPolicy`.
        deterministic: Bool, whether to select the most likely actions instead of random
            actions. With `deterministic=True`, the list of noise is empty.

    Attributes:
        inputs, noise: Lists of `tf.TensorSpec`, the specs of the arguments `inputs` and
            `noise` of a call.
    """

    def __init__(self, actor, deterministic):
        self._actor = actor
        self._deterministic = deterministic
        observation = keras.tree.flatten(actor.observation_spec)
        mask = [tf.TensorSpec((actor.mask_size,), tf.int8)] if actor.mask_source else []
        specs = dict(observation=observation, mask=mask, state=actor.state_spec)
        self.inputs = [
            tf.TensorSpec((None, *leaf.shape), leaf.dtype, f"{name}_{i}")
            for name, leaves in specs.items()
            for i, leaf in enumerate(leaves)
        ]
        self.noise = [
            tf.TensorSpec((None, *noise.shape), actor.dtype, f"noise_{i}")
            for i, noise in enumerate([] if deterministic else actor.noise_specs)
        ]
        self._split = np.cumsum([len(observation), len(mask)]).tolist()

    def trace(self, for_litert=False):
        """Returns a concrete function that selects actions, and its `Layout`.

        The concrete function receives the lists of inputs, noise and weights. For LiteRT,
        inputs with a center are already centered, in float32.
        """
        layouts, variables = [], self._actor.variables
        inputs, centers = self.inputs, self._actor.centers if for_litert else []
        inputs = [
            tf.TensorSpec(spec.shape, tf.float32, spec.name) if center else spec
            for spec, center in itertools.zip_longest(inputs, centers)
        ]
        shifts = [center[2] for center in centers if center]

        def act(inputs, noise, weights):
            pairs = list(zip(variables, weights, strict=True))
            pairs += [(shift, tf.zeros(shift.shape)) for shift in shifts]
            with keras.StatelessScope(state_mapping=pairs):
                results, layout = self(inputs, noise, max_is_infinite=for_litert)
            layouts.append(layout)
            return results

        weights = [
            tf.TensorSpec(v.shape, v.dtype, f"weight_{i}")
            for i, v in enumerate(variables)
        ]
        traced = tf.function(act, autograph=False)
        traced = traced.get_concrete_function(inputs, self.noise, weights)
        return traced, layouts[-1]

    def __call__(self, inputs, noise, max_is_infinite=False):
        """Returns a list of actions, policy outputs and next states, and its `Layout`.

        Args:
            inputs: List of tensors: observations, the action mask if the policy has one,
                and recurrent states.
            noise: List of tensors, the noise for sampling the actions.
            max_is_infinite: Bool, whether the largest number of a float type counts as
                infinite. LiteRT can replace infinity by the largest number of the type.
        """
        actor, (mask_index, state_index) = self._actor, self._split
        observations = inputs[:mask_index]
        observations = keras.tree.pack_sequence_as(actor.observation_spec, observations)
        mask = inputs[mask_index] if actor.mask_source else None
        states = inputs[state_index:]
        outputs, masked_outputs, states = actor.outputs(observations, mask, states)
        raw_actions = actor.select_actions(
            masked_outputs, None if self._deterministic else noise
        )
        # The comparison is false for NaN too. LiteRT has no `is_finite`.
        magnitudes, largest = tf.abs(outputs), outputs.dtype.max
        finite = tf.reduce_all(
            magnitudes < largest if max_is_infinite else magnitudes <= largest
        )
        env_actions = keras.tree.flatten(actor.head.to_environment(raw_actions))
        raw_actions = keras.tree.flatten(raw_actions)
        return self._unique_results(raw_actions, finite, outputs, env_actions, states)

    def _unique_results(self, raw_actions, finite, outputs, env_actions, states):
        """Returns results without repeated tensors, which LiteRT would merge into one."""
        indices = {id(tensor): index for index, tensor in enumerate(raw_actions)}
        changed = [tensor for tensor in env_actions if id(tensor) not in indices]
        results = [*raw_actions, finite, outputs, *changed, *states]
        indices.update((id(x), len(raw_actions) + 2 + i) for i, x in enumerate(changed))
        numbers = {id(variable): i for i, variable in enumerate(self._actor.variables)}
        centers = [
            tuple(numbers[id(variable)] for variable in center[:2]) if center else ()
            for center in self._actor.centers
        ]
        return results, litert_runner.Layout(
            _arguments(self.inputs, centers),
            _arguments(self.noise),
            names=[
                *["raw_action"] * len(raw_actions), "finite", "outputs",
                *["action"] * len(changed), *["state"] * len(states),
            ],
            raw_actions=list(range(len(raw_actions))),
            finite=len(raw_actions),
            env_actions=[indices[id(tensor)] for tensor in env_actions],
            states=list(range(len(results) - len(states), len(results))),
        )  # fmt: skip


def make(actor, observation_space, deterministic):
    """Returns an `ActingProgram`, compared on examples from the observation space."""
    inputs, noise = example_inputs(actor, observation_space)
    return ActingProgram(actor, inputs, noise, deterministic)


class ActingProgram:
    """Selects the actions of one policy, for batches of any size.

    Args:
        actor: `actor.ActorPolicy`.
        examples: List of arrays `[N, …]`, N example inputs to compare LiteRT with
            TensorFlow: observations, the action mask if the policy has one, and recurrent
            states.
        noise: List of arrays `[N, …]`, the noise for sampling N actions.
        deterministic: Bool, whether to select the most likely actions and ignore the
            noise.

    Attributes:
        runtime: `"litert"` or `"tensorflow"`, the library that selects the actions.
        model: Bytes, the LiteRT model.
        layout: `litert_runner.Layout` of the arguments and results.
    """

    @startup.kept(at_once=False)  # Ctrl-C is no reason to leave LiteRT
    def __init__(self, actor, examples, noise, deterministic):
        self._variables = actor.variables
        self._act_function = _ActFunction(actor, deterministic)
        self._concrete_function, self.layout = self._act_function.trace()
        self._runners = _Runners()
        self.runtime = "litert"
        weights = finite_weights(self._variables)
        try:
            if actor.dtype == "float64":
                raise ValueError("the policy computes in float64, and LiteRT does not")
            self.model = self._convert()
            inputs = [*examples, *(() if deterministic else noise)]
            if difference := self._difference(inputs, weights):
                raise ValueError(difference)
        # Converter and interpreter raise many types of errors. TensorFlow can always act.
        except Exception as error:
            self._leave_litert(*str(error).strip().splitlines()[:1])
        else:
            log.info("Acting through LiteRT.")

    def for_batch(self, count, weights=None):
        """Returns a function that selects actions for a batch of `count` rows.

        Args:
            count: Positive int, the number of rows of the batch.
            weights: List of arrays from `finite_weights`, or `None` for the current
                weights of the policy.

        Returns:
            A function with four results. The argument of the returned function is a list
            of arrays `[count, …]`: observations, the action mask if the policy has one,
            recurrent states and noise. The first three results of the returned function
            are lists of arrays: raw actions (as sampled), actions for the environment,
            and next recurrent states. The fourth result of the returned function is a
            bool, whether all policy outputs are finite.
        """
        if weights is None:
            weights = finite_weights(self._variables)
        runners, key = self._runners.acting, (self.runtime, count)
        if key not in runners:
            runners[key] = (
                litert_runner.make_runner(self.model, self.layout, count)
                if self.runtime == "litert"
                else _TensorFlowRunner(self._concrete_function, self.layout)
            )
        runners[key].set_weights(weights)
        return runners[key]

    def _convert(self):
        traced, _ = self._act_function.trace(for_litert=True)
        if any(tensor.dtype == tf.resource for tensor in traced.captured_inputs):
            raise ValueError("a layer keeps weights that are not Keras variables")
        # absl recommends to convert from a SavedModel instead.
        with _quiet("absl"), startup.without_messages():
            return tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()

    def leave_litert_if_different(self, inputs, weights):
        """Replaces LiteRT by TensorFlow if their results differ.

        The collector calls `leave_litert_if_different` after every collection. Policy
        outputs and recurrent states are compared, but not actions, because a rounding
        error can change an action if two actions are equally likely. The tolerance is ten
        times as large as in the comparison by the constructor, so that rounding errors
        alone do not replace LiteRT.

        Args:
            inputs: List of arrays `[N, …]` for a batch of N rows: observations, action
                mask, recurrent states and noise.
            weights: List of arrays, the weights of the collection.

        Returns:
            Bool, whether TensorFlow has replaced LiteRT.
        """
        names = "finite", "outputs", "state"
        difference = self._difference(inputs, weights, names, tolerance=10.0)
        if difference:
            self._leave_litert(difference)
        return bool(difference)

    def _leave_litert(self, reason=""):
        self.runtime, self._runners = "tensorflow", _Runners()
        log.warning("The policy acts through TensorFlow instead of LiteRT: %s", reason)

    def _difference(self, inputs, weights, names=None, tolerance=1.0):
        """Describes a difference between results of LiteRT and TensorFlow, or returns "".

        A result may differ by 1e-4 of TensorFlow's value plus 1e-5 of the largest input
        of its row. An input below 1 counts as 1. The tolerance grows with the inputs,
        because large terms can cancel to a small result with a large rounding error. Rows
        for which TensorFlow's policy outputs are not finite have no action and are
        ignored.

        Args:
            inputs: List of arrays `[N, …]` for a batch of N rows, noise last.
            weights: List of arrays from `finite_weights`.
            names: The names of the results to compare, or `None` for all results.
            tolerance: Float, the factor by which the allowed difference is multiplied.
        """
        count, runners = len(inputs[0]), self._runners.comparison
        if count not in runners:
            runner = litert_runner.LiteRTRunner(self.model, self.layout, count)
            runners[count] = runner
        runner = runners[count]
        runner.set_weights(weights)
        runner(inputs)
        results = runner.results()
        expected = call_concrete_function(
            self._concrete_function, self.layout, inputs, weights
        )
        if len(results) != len(expected):
            return "LiteRT merged results of the acting program"
        inputs = runner.centered(inputs)
        floats = [_as_matrix(x) for x in inputs if x.dtype.kind == "f"]
        sizes = [np.ones(len(inputs[0])), *(abs(x).max(1) for x in floats)]
        sizes = np.max(sizes, axis=0)
        all_names = self.layout.names
        outputs = _as_matrix(expected[all_names.index("outputs")])
        finite = np.isfinite(outputs).all(1)
        for name, a, b in zip(all_names, results, expected):
            if names is not None and name not in names:
                continue
            if name == "finite":
                differ = finite.all() and not a
            else:
                a, b = (_as_matrix(x).astype("float64")[finite] for x in (a, b))
                allowed = 1e-5 * sizes[finite, None] + 1e-4 * abs(b)
                differ = not (abs(a - b) <= tolerance * allowed).all()
            if differ:
                return f"the result `{name}` of LiteRT differs from that of Keras"
        return ""


def _arguments(specs, centers=()):
    """Returns the `Argument`s of batched `tf.TensorSpec`s; the first have `centers`."""
    return [
        litert_runner.Argument(spec.name, tuple(spec.shape[1:]), center)
        for spec, center in itertools.zip_longest(specs, centers, fillvalue=())
    ]


def _as_matrix(array):
    """Reshapes an array `[N, …]` to a matrix of N rows."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def finite_weights(variables):
    """Returns variables as NumPy arrays; raises an error if a value is not finite."""
    # Outputs can be finite if weights are not: a fused ReLU and a clip replace NaN.
    weights = [variable.numpy() for variable in variables]
    for variable, values in zip(variables, weights, strict=True):
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"The weights {variable.path} are not finite, so no action can be "
                "selected. Load an earlier file of the agent."
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


class _TensorFlowRunner:
    """Selects actions with a concrete TensorFlow function.

    Args:
        concrete_function: The concrete function, from `_ActFunction.trace`.
        layout: `litert_runner.Layout` of the arguments and results of the function.
    """

    def __init__(self, concrete_function, layout):
        self._concrete_function = concrete_function
        self.layout = layout

    def set_weights(self, weights):
        self._weights = list(map(tf.constant, weights))

    def __call__(self, inputs):
        layout = self.layout
        results = call_concrete_function(
            self._concrete_function, layout, inputs, self._weights
        )
        raw_actions, env_actions, states = (
            [results[i] for i in indices]
            for indices in (layout.raw_actions, layout.env_actions, layout.states)
        )
        return raw_actions, env_actions, states, results[layout.finite]


def call_concrete_function(concrete_function, layout, inputs, weights):
    """Returns the results of a concrete TensorFlow function as NumPy arrays.

    The function was traced with three lists: inputs, noise and weights. A call with one
    flat list would be slow, because TensorFlow would first format all values for an error
    message.

    Args:
        concrete_function: The concrete TensorFlow function.
        layout: `litert_runner.Layout` of the arguments and results of the function.
        inputs: List of arrays, the inputs of the concrete function followed by the noise.
        weights: List of arrays or tensors, the weights that act.
    """
    tensors, count = [tf.constant(x) for x in inputs], len(layout.inputs)
    lists = tensors[:count], tensors[count:], list(map(tf.convert_to_tensor, weights))
    return [x.numpy() for x in concrete_function(*lists)]


def example_inputs(actor, observation_space):
    """Returns inputs to compare LiteRT with TensorFlow before the first episode.

    Args:
        actor: `actor.ActorPolicy` that selects the actions.
        observation_space: `gymnasium.Space` of the observations.

    Returns:
        Two lists of arrays `[N, …]` for N example observations. The first list contains
        observations, action masks and recurrent states. The second list contains the
        noise for sampling actions.
    """
    rng = seeding.generator(0, "engine_comparison")
    drawn = [
        spaces.sample_observations(observation_space, actor.dtype, _EXAMPLES, rng),
        spaces.edge_observations(observation_space, actor.dtype),
    ]
    specs = keras.tree.flatten(actor.observation_spec)
    observations = [
        np.concatenate(parts).astype(spec.dtype.as_numpy_dtype)
        for spec, *parts in zip(specs, *map(keras.tree.flatten, drawn), strict=True)
    ]
    count = len(observations[0])
    states, noise = _states_and_noise(actor, count, rng)
    masks = []
    if actor.mask_source is not None:
        masks.append(np.tile(actor.head.flatten_mask(None), (count, 1)))
    return [*observations, *masks, *states], noise


def recorded_inputs(actor, episodes, deterministic):
    """Returns inputs to compare LiteRT with TensorFlow, from steps of episodes.

    Args:
        actor: `actor.ActorPolicy` that selects the actions.
        episodes: `Episodes` of NumPy arrays.
        deterministic: Bool, whether to leave the noise out of the list.

    Returns:
        List of arrays `[64, …]`: observations and action masks of 64 evenly spread steps
        of the episodes, random recurrent states, and random noise.
    """
    valid = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
    steps = np.argwhere(valid)
    steps = steps[np.linspace(0, len(steps) - 1, _COMPARED).astype(int)]
    columns = keras.tree.flatten(episodes.observations)
    if actor.mask_source is not None:
        columns.append(episodes.masks)
    rng = seeding.generator(0, "engine_comparison", 1)
    states, noise = _states_and_noise(actor, _COMPARED, rng)
    rows = [np.asarray(column)[tuple(steps.T)] for column in columns]
    return [*rows, *states, *([] if deterministic else noise)]


def _states_and_noise(actor, count, rng):
    """Returns two lists of random arrays `[count, …]`: recurrent states, and noise."""
    # All states differ, because with zeros, the comparison would not detect that two
    # states are exchanged.
    states = [
        rng.uniform(-1, 1, state.shape).astype(state.dtype.as_numpy_dtype)
        for state in actor.initial_state(count)
    ]
    noise = [
        rng.random((count, *part.shape)).astype(actor.dtype) for part in actor.noise_specs
    ]
    return states, noise
