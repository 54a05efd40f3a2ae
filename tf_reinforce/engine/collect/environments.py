"""What `open_envs` returns, and collection in the current process."""

import abc
import time
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.settings import config
from tf_reinforce.support import validation


class CollectionRequest(NamedTuple):
    """How many episodes to collect, and how."""

    key: seeding.StreamKey  # determines all random numbers
    episodes: int | None  # the number of episodes, or `None`
    steps: int | None = None  # the least total number of steps, or `None`
    deterministic: bool = False  # whether to take the most likely actions
    group_size: int = 1  # consecutive episodes with one reset seed
    weights: acting_program.Weights | None = None  # that act; the collector sets them
    settings: config.EnvSettings = config.EnvSettings()  # without functions


class CollectedEpisodes(NamedTuple):
    """The episodes of a collection, with their success and the time they took."""

    episodes: records.Episodes
    success: np.ndarray  # [B] float: 1 or 0, or NaN if success is not reported
    seconds: dict[str, float]  # "stepping": in environments; "acting": the rest
    rollout_result: Any = None  # tensors of the same episodes, from a `Rollout`
    faults: host_loop.Faults = host_loop.Faults()  # of episodes that were dropped


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
                "`reset_options` and `env_attrs` need Gymnasium environments. Let the "
                "state of a TensorEnv contain what changes."
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

    def evaluate(self, actor, program, request):
        """Collects episodes; returns their `episode_statistics.batch_metrics`."""
        collected = self.collect(actor, program, request)
        return {
            **episode_statistics.batch_metrics(collected.episodes, collected.success),
            **collected.faults.metrics(self.fault_keys),
        }

    def close(self):
        """Closes the environments that `open_envs` made."""
        return None


class HostEnvironments(Environments):
    """Collects episodes in Python environments, in the current process.

    Args:
        batch: `batched_envs.BatchedEnvs`.
    """

    _warns_of_faults = True  # at the first one only

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
        inputs = acting_program.example_inputs(*arguments)
        return acting_program.ActingProgram(actor, inputs, request.deterministic)

    def collect(self, actor, program, request):
        runtime = program.runtime  # another thread may replace it

        def replaces_litert(inputs):
            return runtime == "litert" and program.leave_litert_if_different(
                inputs, request.weights.values
            )

        try:
            collected = self._collect_episodes(actor, program, request)
            # With new weights LiteRT may depart from Keras: compare them again.
            inputs = acting_program.recorded_inputs(
                actor, collected.episodes, request.deterministic
            )
            replaced = replaces_litert(inputs)
        except host_loop.OutputsNotFinite as error:
            replaced = replaces_litert(error.inputs)
            if not replaced:
                raise
        # Collect all of them again with TensorFlow: one runtime for every episode.
        if replaced:
            collected = self._collect_episodes(actor, program, request)
        has_faults = collected.faults.dropped_episodes
        if has_faults and self._warns_of_faults and request.key.stream == "training":
            self._warns_of_faults = False
            validation.warn(
                "An episode was dropped, and another episode replaced it. "
                f"{collected.faults.first}. This biases the gradient and the returns "
                "towards episodes without faults. The log key `dropped_episodes` counts "
                "them.",
            )
        return collected

    def _collect_episodes(self, actor, program, request):
        """Collects episodes, without comparing LiteRT with TensorFlow."""
        start, specs = time.perf_counter(), actor.acting_specs()
        act = program.for_batch(self.batch.num_envs, request.weights.values)
        self.batch.set(request.settings)
        self.batch.configure(specs.float_dtype, specs.mask_reader)
        loop = host_loop.CollectionLoop(
            self.batch,
            specs,
            host_loop.EpisodeScheduler(request.episodes, request.steps),
            seeding.EpisodeSeeds(*request.key, request.group_size),
            acting_program.initial_states(request.weights, self.batch.num_envs),
            request.deterministic,
        )
        episodes, faults = loop.play(act), host_loop.Faults()
        for episode in episodes:
            faults.add(episode.faults)
        arrays, stepping = loop.episode_arrays(episodes), loop.take_stepping()
        seconds = time.perf_counter() - start
        return to_collected(arrays, actor, stepping, seconds, faults)

    def close(self):
        for text in self.batch.close_all():
            warn_of_close(text)


def to_collected(arrays, actor, stepping, seconds, faults):
    """Returns `CollectedEpisodes`, nested like the environment's spaces.

    Args:
        arrays: `host_loop.EpisodeArrays`.
        actor: `actor.ActorPolicy` that collected the episodes.
        stepping, seconds: Floats, the time in environments, and in all.
        faults: `host_loop.Faults`.
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
    seconds = {"stepping": stepping, "acting": seconds - stepping}
    return CollectedEpisodes(episodes, arrays.success, seconds, faults=faults)


def warn_of_close(text):
    """Warns that an environment could not be closed; `text` says which."""
    validation.warn(f"{text[:1].upper()}{text[1:]}. The episodes are complete.")
