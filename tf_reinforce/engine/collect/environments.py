"""What `open_envs` returns, and collection in the current process.

The normalizer, the policy and the head are converted to LiteRT once, as one function of
observations, noise and weights. Each collection passes its own copy of the weights, so
later updates cannot change the weights that act. If LiteRT cannot run the policy, or its
results differ from those of TensorFlow, a traced TensorFlow function acts instead.
"""

import abc
import contextlib
import logging
import math
import threading
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.settings import config
from tf_reinforce.support import locks
from tf_reinforce.support import startup
from tf_reinforce.support import validation

log = logging.getLogger("tf_reinforce")

_EXAMPLES = 15  # random observations for the comparison of a new program
_COMPARED = 64  # steps of every collection that are compared


class Weights(NamedTuple):
    """A copy of an `ActorPolicy`'s weights between two updates."""

    values: list  # arrays, one for each of the actor's variables
    states: list  # arrays [1, …], the recurrent states before the first step


class CollectionRequest(NamedTuple):
    """How many episodes to collect, and how."""

    key: seeding.StreamKey  # determines all random numbers
    episodes: int | None  # the number of episodes, or `None`
    steps: int | None = None  # the least total number of steps, or `None`
    deterministic: bool = False  # whether to take the most likely actions
    group_size: int = 1  # consecutive episodes with one reset seed
    weights: Weights | None = None  # that act; the collector sets them
    settings: config.EnvSettings = config.EnvSettings()  # without functions


class CollectedEpisodes(NamedTuple):
    """The episodes of a collection, with what they reported, and faults."""

    episodes: records.Episodes
    info: dict[str, np.ndarray] = {}  # [B] float: `success` and `info_keys`, or NaN
    faults: dict[str, float] = {}  # counts of dropped episodes and restarts, by log key
    info_names: frozenset[str] = frozenset()  # keys of infos in which one is missing
    rollout_result: Any = None  # tensors of the same episodes, from a `Rollout`

    def describe_missing(self, known=()):
        """Returns a text about the first of `info_keys` that no info had, or `""`.

        Args:
            known: Strings, keys that earlier episodes have had.
        """
        for key, values in self.info.items():
            is_missing = np.isnan(values).all() and key not in self.info_names
            if key != "success" and is_missing and key not in known:
                names = ", ".join(sorted(self.info_names)) or "no keys"
                return (
                    f"`info_keys`: no episode ended with info[{key!r}]. The final info "
                    f"had: {names}."
                )
        return ""


class Environments(abc.ABC):
    """Collects episodes in environments with equal spaces.

    There are four kinds: environments in this process, a `VectorEnv`, a pool of worker
    processes, and a tensor environment. For each kind, a program selects actions or runs
    whole episodes. The program is kept and used again for later requests with an equal
    `program_key`.

    Attributes:
        observation_space, action_space: The spaces of each environment.
        spec: `gymnasium.envs.registration.EnvSpec` of the environments, or `None`.
        in_graph: Bool, whether episodes are tensors, so an update can follow in the same
            TensorFlow graph.
        is_vector_env: Bool, whether this is a `gymnasium.vector.VectorEnv`, which seeds
            its episodes itself.
        fault_keys: Tuple of the log keys that count dropped episodes and restarts.
    """

    spec: gym.envs.registration.EnvSpec | None = None
    in_graph = False
    is_vector_env = False
    fault_keys: tuple[str, ...] = ()

    def check_settings(self, settings):
        """Raises `ValueError` if these environments cannot receive `settings`."""
        if self.in_graph and settings != config.EnvSettings():
            raise ValueError(
                "`reset_options`, `env_attrs` and `info_keys` need Gymnasium "
                "environments. Let the state of a TensorEnv contain what changes, and "
                "its observation what you want to log. Received: "
                f"{vars(settings)}"
            )

    @abc.abstractmethod
    def program_key(self, request):
        """Returns a key that is equal for requests with the same program.

        The key is a tuple that starts with the kind of program, for example `"acting"`.
        The collector keeps a limited number of programs of each kind.
        """

    @abc.abstractmethod
    def make_program(self, actor, request):
        """Returns a new program for all requests with the same `program_key`."""

    @abc.abstractmethod
    def collect(self, actor, program, request):
        """Collects whole episodes.

        Args:
            actor: `actor.ActorPolicy`.
            program: Result of `make_program`.
            request: `CollectionRequest`.

        Returns:
            `CollectedEpisodes`.

        Raises:
            EnvironmentFault: If an environment fails or returns an invalid value.
            FloatingPointError: If policy outputs are not finite.
        """

    def close(self):
        """Closes the environments that `open_envs` made."""
        return None


class HostEnvironments(Environments):
    """Collects episodes in Python environments, in the current process.

    Args:
        batch: `batched_envs.BatchedEnvs`.
    """

    def __init__(self, batch):
        self.batch = batch
        self.observation_space = batch.observation_space
        self.action_space = batch.action_space
        self.spec = batch.spec
        self.is_vector_env = batch.is_vector_env
        self.fault_keys = batch.fault_keys
        self.max_episode_steps = batch.max_episode_steps

    def program_key(self, request):
        return "acting", request.deterministic

    def make_program(self, actor, request):
        arguments = actor, self.observation_space, request.deterministic
        inputs = example_inputs(*arguments)
        return ActingProgram(actor, inputs, request.deterministic)

    def collect(self, actor, program, request):
        runtime = program.runtime  # another thread may replace it
        try:
            collected, failure = self._collect_episodes(actor, program, request), None
            inputs = recorded_inputs(actor, collected.episodes, request.deterministic)
        except host_loop.OutputsNotFinite as error:
            failure, inputs = error, error.inputs
        # With new weights LiteRT may depart from Keras: compare them again.
        weights = request.weights.values
        if runtime == "litert" and program.leave_litert_if_different(inputs, weights):
            # Collect all of them again with TensorFlow: one runtime for every episode.
            return self._collect_episodes(actor, program, request)
        if failure is not None:
            raise failure
        return collected

    def _collect_episodes(self, actor, program, request):
        """Collects episodes, without comparing LiteRT with TensorFlow."""
        specs, weights = actor.acting_specs(), request.weights
        act = program.for_batch(self.batch.num_envs, weights.values)
        self.batch.configure(specs.float_dtype, specs.mask_reader)
        loop = host_loop.CollectionLoop(
            self.batch,
            specs,
            host_loop.EpisodeScheduler(request.episodes, request.steps),
            seeding.EpisodeSeeds(*request.key, request.group_size),
            weights.states,
            request.deterministic,
        )
        self.batch.set(request.settings)  # an instance does not keep the attributes
        try:
            arrays = loop.episode_arrays(loop.play(act))
        except BaseException:
            with contextlib.suppress(ValueError):  # the environment may have failed
                self.batch.set(config.EnvSettings())
            raise
        self.batch.set(config.EnvSettings())
        return self._to_collected(arrays, actor, request.settings.info_keys)

    def _to_collected(self, arrays, actor, info_keys, worker_restarts=0):
        """Returns `CollectedEpisodes`, nested like the environment's spaces.

        Args:
            arrays: `host_loop.EpisodeArrays`.
            actor: `actor.ActorPolicy` that collected the episodes.
            info_keys: Tuple of strings, the keys whose numbers the arrays contain.
            worker_restarts: Int, the number of worker processes that were replaced.
        """
        observations, masks = arrays.observations, None
        if actor.mask_source:
            *observations, masks = observations
        *actions, rewards = arrays.others
        episodes = records.Episodes(
            keras.tree.pack_sequence_as(actor.observation_spec, observations),
            keras.tree.pack_sequence_as(actor.action_spec, actions),
            rewards,
            arrays.lengths,
            arrays.terminated,
            None if masks is None else masks[:-1],
        )
        counts = *arrays.faults.sum(0).tolist(), worker_restarts
        names = "dropped_episodes", "env_restarts", "worker_restarts"
        counts = dict(zip(names, map(float, counts), strict=True))
        faults = {key: counts[key] for key in self.fault_keys}
        info = dict(zip(("success", *info_keys), arrays.info.T, strict=True))
        names = frozenset().union(*arrays.info_names)
        return CollectedEpisodes(episodes, info, faults, names)

    def close(self):
        for text in self.batch.close_all():
            warn_of_close(text)


def warn_of_close(text):
    """Warns that an environment could not be closed; `text` says which."""
    validation.warn(f"{text[:1].upper()}{text[1:]}. The episodes are complete.")


def read_weights(actor):
    """Returns an actor's `Weights`; raises an error if one is not finite."""
    with actor.lock:
        values = finite_weights(actor.variables)
        return Weights(values, [np.array(state) for state in actor.initial_state(1)])


def _trace(actor, deterministic, for_litert=False):
    """Traces a function that selects one action per row of a batch.

    The first result contains the raw actions, as they were sampled, before they are
    converted for the environment. The second is a bool that says whether all policy
    outputs are finite, followed by the outputs themselves. The converted actions come
    next, if they differ from the raw ones, and the next recurrent states come last.

    Args:
        actor: `actor.ActorPolicy`.
        deterministic: Bool, whether to select the most likely actions, without noise.
        for_litert: Bool, whether inputs with a center arrive centered, in float32, and a
            float type's largest number counts as infinite, because LiteRT may put it in
            place of infinity.

    Returns:
        A concrete function and its `Layout`. The function takes two lists, arguments
        (observations, the action mask if the policy has one, recurrent states, noise) and
        weights.
    """
    groups, arguments, specs = _arguments(actor, deterministic, for_litert)
    layouts = []

    def act(inputs, weights):
        inputs = iter(inputs)
        parts = ([next(inputs) for _ in leaves] for leaves in groups.values())
        observations, masks, states, noise = parts
        noise = None if deterministic else noise
        observations = keras.tree.pack_sequence_as(actor.observation_spec, observations)
        pairs = list(zip(actor.variables, weights, strict=True))
        if for_litert:
            shifts = [center[2] for center in actor.centers if center]
            pairs += [(shift, tf.zeros(shift.shape)) for shift in shifts]
        with keras.StatelessScope(state_mapping=pairs):
            selected = actor.act(observations, masks, states, noise)
            outputs, raw_actions, states = selected
            # The comparison is false for NaN too. LiteRT has no `is_finite`.
            magnitudes, largest = tf.abs(outputs), outputs.dtype.max
            finite = magnitudes < largest if for_litert else magnitudes <= largest
            finite = tf.reduce_all(finite)
            env_actions = actor.head.to_environment(raw_actions)
        results = _results(raw_actions, finite, outputs, env_actions, states)
        layouts.append(host_loop.Layout(arguments, *results[1:]))
        return results[0]

    pairs = enumerate(actor.variables)
    weights = [tf.TensorSpec(v.shape, v.dtype, f"weight_{i}") for i, v in pairs]
    traced = tf.function(act, autograph=False).get_concrete_function(specs, weights)
    return traced, layouts[-1]


def _arguments(actor, deterministic, for_litert):
    """Returns the arguments of `_trace.act` by group, as a list, and their specs."""
    groups = {
        "observation": keras.tree.flatten(actor.observation_spec),
        "mask": [tf.TensorSpec((actor.mask_size,), tf.int8)] if actor.mask_source else [],
        "state": actor.state_spec,
        "noise": [] if deterministic else actor.noise_specs,
    }
    numbers = {id(variable): i for i, variable in enumerate(actor.variables)}
    arguments, specs = [], []
    for name, leaves in groups.items():
        for i, leaf in enumerate(leaves):
            center = actor.centers[i] if name == "observation" else None
            weights = tuple(numbers[id(x)] for x in center[:2]) if center else ()
            argument = host_loop.Argument(f"{name}_{i}", tuple(leaf.shape), weights)
            dtype = actor.dtype if name == "noise" else leaf.dtype
            dtype = tf.float32 if for_litert and center else dtype
            arguments.append(argument)
            specs.append(tf.TensorSpec((None, *leaf.shape), dtype, argument.name))
    return groups, arguments, specs


def _results(raw_actions, finite, outputs, env_actions, states):
    """Returns the results as a list, their names, and where `env_actions` are in it."""
    raw_actions, env_actions = map(keras.tree.flatten, (raw_actions, env_actions))
    # LiteRT would merge repeated tensors into one result.
    is_raw = {id(tensor) for tensor in raw_actions}
    changed = [tensor for tensor in env_actions if id(tensor) not in is_raw]
    results = [*raw_actions, finite, outputs, *changed, *states]
    names = ["raw_action"] * len(raw_actions) + ["finite", "outputs"]
    names += ["action"] * len(changed) + ["state"] * len(states)
    numbers = {id(tensor): i for i, tensor in reversed([*enumerate(results)])}
    return results, names, [numbers[id(tensor)] for tensor in env_actions]


class ActingProgram:
    """Selects one policy's actions, for batches of any size.

    Args:
        actor: `actor.ActorPolicy`.
        examples: List of arrays `[N, …]`, the arguments of `_trace` for N examples on
            which LiteRT is compared with TensorFlow.
        deterministic: Bool, whether to select the most likely actions, without noise.

    Attributes:
        runtime: `"litert"` or `"tensorflow"`, the library that selects the actions.
        model: Bytes, the LiteRT model.
        layout: `host_loop.Layout` of the arguments and results.
    """

    @locks.kept(at_once=False)  # Ctrl-C is no reason to leave LiteRT
    def __init__(self, actor, examples, deterministic):
        self._concrete_function, self.layout = _trace(actor, deterministic)
        self._runners = threading.local()  # several threads must not share one
        self.runtime = "litert"
        weights = finite_weights(actor.variables)
        try:
            if actor.dtype == "float64":
                raise ValueError("the policy computes in float64, and LiteRT does not")
            traced, _ = _trace(actor, deterministic, for_litert=True)
            self.model = _convert(traced)
            if difference := self._difference(examples, weights):
                raise ValueError(difference)
        # Converter and interpreter raise many types of errors. TensorFlow can always act.
        except Exception as error:
            self._leave_litert(*str(error).strip().splitlines()[:1])

    def for_batch(self, count, weights):
        """Returns a function that selects actions for a batch.

        Args:
            count: Positive int, the rows of the batch.
            weights: List of arrays from `finite_weights`.

        Returns:
            A function of a list of arrays `[count, …]`: observations, the action mask if
            the policy has one, recurrent states and noise. It returns three lists of
            arrays, raw actions as sampled, actions for the environment and next recurrent
            states, and a bool, whether all policy outputs are finite.
        """
        runners, key = vars(self._runners), (self.runtime, count)
        if key not in runners and self.runtime == "litert":
            runners[key] = host_loop.make_runner(self.model, self.layout, count)
        elif key not in runners:
            runners[key] = _TensorFlowRunner(self._concrete_function, self.layout)
        runners[key].set_weights(weights)
        return runners[key]

    def leave_litert_if_different(self, inputs, weights):
        """Replaces LiteRT by TensorFlow if their results on a collection's steps differ.

        Only policy outputs and recurrent states are compared. Actions are not compared,
        because a rounding error can change an action if two are equally likely. The
        tolerance is ten times that of the constructor's comparison, so that rounding
        alone does not count as a difference.

        Args:
            inputs: List of arrays `[N, …]`: observations, action mask, recurrent states
                and noise.
            weights: List of arrays, the weights of the collection.

        Returns:
            Bool, whether LiteRT was replaced.
        """
        names = "finite", "outputs", "state"
        difference = self._difference(inputs, weights, names, tolerance=10.0)
        if difference:
            self._leave_litert(difference)
        return bool(difference)

    def _leave_litert(self, reason=""):
        self.runtime, self._runners = "tensorflow", threading.local()
        log.warning("The policy acts through TensorFlow instead of LiteRT: %s", reason)

    def _difference(self, inputs, weights, names=None, tolerance=1.0):
        """Describes a difference between LiteRT and TensorFlow, or returns `""`.

        The allowed difference is 1e-4 times TensorFlow's value plus 1e-5 times the row's
        largest input (at least 1). The second term is needed because large terms can
        cancel to a small result with a large rounding error. Rows with policy outputs
        that are not finite in TensorFlow are ignored.

        Args:
            inputs: List of arrays `[N, …]`, noise last.
            weights: List of arrays from `finite_weights`.
            names: The results to compare, or `None` for all.
            tolerance: Float, which multiplies the allowed difference.
        """
        count, runners = len(inputs[0]), vars(self._runners)
        key = "comparison", count
        if key not in runners:
            runners[key] = (
                host_loop.LiteRTRunner(self.model, self.layout, count),
                _TensorFlowRunner(self._concrete_function, self.layout),
            )
        for runner in runners[key]:
            runner.set_weights(weights)
        results, expected = (runner.results(inputs) for runner in runners[key])
        if len(results) != len(expected):
            return "LiteRT merged results of the acting program"
        inputs = runners[key][0].centered(inputs)
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


def _convert(traced):
    """Converts a concrete function to a LiteRT model, as bytes."""
    if any(tensor.dtype == tf.resource for tensor in traced.captured_inputs):
        raise ValueError("a layer keeps weights that are not Keras variables")
    logger = logging.getLogger("absl")  # it recommends to convert from a SavedModel
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with startup.without_messages():
            return tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()
    finally:
        logger.setLevel(level)


class _TensorFlowRunner:
    """Selects actions with a concrete function and `Layout` from `_trace`."""

    def __init__(self, concrete_function, layout):
        self._concrete_function = concrete_function
        raw_actions, states = layout.indices("raw_action"), layout.indices("state")
        self._indices = raw_actions, layout.env_actions, states
        (self._finite,) = layout.indices("finite")

    def set_weights(self, weights):
        self._weights = list(map(tf.constant, weights))

    def __call__(self, inputs):
        results = self.results(inputs)
        lists = ([results[i] for i in indices] for indices in self._indices)
        return *lists, results[self._finite]

    def results(self, inputs):
        """Returns all results for a batch, in the order of `Layout.names`."""
        # With one flat list, TensorFlow would first format all values for an error.
        inputs = list(map(tf.constant, inputs))
        return [x.numpy() for x in self._concrete_function(inputs, self._weights)]


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


def example_inputs(actor, observation_space, deterministic):
    """Returns inputs for comparing LiteRT with TensorFlow before the first episode.

    Args:
        actor: `actor.ActorPolicy`.
        observation_space: `gymnasium.Space` from which to draw observations.
        deterministic: Bool, whether to leave out the noise.

    Returns:
        List of arrays `[N, …]` for N examples: observations, action masks, recurrent
        states and noise.
    """
    rng = seeding.generator(0, "engine_comparison")
    scales = 0.0, 1.0, 300.0
    drawn = spaces.sample_observations(
        observation_space, actor.dtype, _EXAMPLES, rng, scales
    )
    specs = keras.tree.flatten(actor.observation_spec)
    pairs = zip(specs, keras.tree.flatten(drawn), strict=True)
    columns = [array.astype(spec.dtype.as_numpy_dtype) for spec, array in pairs]
    count = len(columns[0])
    if actor.mask_source is not None:
        columns.append(np.tile(actor.head.flatten_mask(None), (count, 1)))
    return [*columns, *_states_and_noise(actor, count, rng, deterministic)]


def recorded_inputs(actor, episodes, deterministic):
    """Returns inputs for comparing LiteRT with TensorFlow on recorded steps.

    Args:
        actor: `actor.ActorPolicy`.
        episodes: `Episodes` of NumPy arrays.
        deterministic: Bool, whether to leave out the noise.

    Returns:
        List of arrays `[64, …]`: observations and action masks of 64 evenly spread steps,
        random recurrent states and random noise.
    """
    valid = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
    steps = np.argwhere(valid)
    steps = steps[np.linspace(0, len(steps) - 1, _COMPARED).astype(int)]
    columns = keras.tree.flatten(episodes.observations)
    if actor.mask_source is not None:
        columns.append(episodes.masks)
    rng = seeding.generator(0, "engine_comparison", 1)
    rows = [np.asarray(column)[tuple(steps.T)] for column in columns]
    return [*rows, *_states_and_noise(actor, _COMPARED, rng, deterministic)]


def _states_and_noise(actor, count, rng, deterministic):
    """Returns random arrays `[count, …]`: recurrent states, and any noise."""
    # All states differ: with zeros, exchanging two of them would go unnoticed.
    states = [
        rng.uniform(-1, 1, x.shape).astype(x.dtype.as_numpy_dtype)
        if x.dtype.is_floating
        else rng.integers(0, 3, x.shape).astype(x.dtype.as_numpy_dtype)
        for x in actor.initial_state(count)
    ]
    specs = [] if deterministic else actor.noise_specs
    noise = [rng.random((count, *x.shape)).astype(actor.dtype) for x in specs]
    return states + noise
