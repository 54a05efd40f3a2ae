"""Defines the interface through which all environments collect episodes."""

import abc
from typing import NamedTuple

import gymnasium as gym

from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import bounds
from tf_reinforce.engine.collect import comparison_inputs
from tf_reinforce.engine.collect import results
from tf_reinforce.settings import config
from tf_reinforce.support import user_warnings


class CollectionRequest(NamedTuple):
    """The number of episodes to collect, and the options of the collection."""

    key: seeding.StreamKey  # determines all random numbers
    episodes: int | None  # the number of episodes, or `None`
    steps: int | None = None  # the least total number of steps, or `None`
    deterministic: bool = False  # whether to take the most likely actions
    group_size: int = 1  # consecutive episodes with one reset seed
    recorded: bool = True  # whether to record steps, not only returns
    weights: acting_program.Weights | None = None  # that act; the collector sets them
    settings: config.EnvSettings = config.EnvSettings()  # without functions


class Environments(abc.ABC):
    """Collects episodes in environments with equal spaces.

    The function `make_envs.open_envs` makes `Environments`. The method `make_program`
    makes a program that selects actions or runs whole episodes. The collector keeps the
    result of `make_program` for later requests with an equal `program_key`.

    Attributes:
        observation_space, action_space: The spaces of each environment.
        spec: `gymnasium.envs.registration.EnvSpec` of the environments, or `None`.
        supports_episode_seeds: Bool, whether each episode has a reset seed of its own.
        in_graph: Bool, whether the episodes are tensors, so that an update can follow in
            the same TensorFlow graph.
        is_vector_env: Bool, whether the environments are a `gymnasium.vector.VectorEnv`.
        fault_keys: Tuple of the log keys that count dropped episodes and restarts.
    """

    spec: gym.envs.registration.EnvSpec | None = None
    supports_episode_seeds = True
    in_graph = False
    is_vector_env = False
    fault_keys: tuple[str, ...] = ()

    def check_settings(self, settings):
        """Raises `ValueError` if the environments cannot receive `config.EnvSettings`."""
        if self.in_graph and settings != config.EnvSettings():
            raise ValueError(
                "`reset_options` and `env_attrs` need Gymnasium environments: the method "
                "`reset` of a TensorEnv has no `options`, and its attributes are "
                "constants of one program. Leave the option out, and let the state of "
                "the TensorEnv contain what changes."
            )

    @abc.abstractmethod
    def program_key(self, request):
        """Returns a key for a request; requests with equal keys use the same program.

        The key is a tuple whose first item names the kind of the program, for example
        "acting". The collector keeps a limited number of programs of each kind.
        """

    @abc.abstractmethod
    def make_program(self, actor, request):
        """Returns a new program for all requests with the `program_key` of `request`."""

    @abc.abstractmethod
    def collect(self, actor, program, request):
        """Collects whole episodes.

        Args:
            actor: `actor.ActorPolicy`.
            program: The program that `make_program` returned.
            request: `CollectionRequest`.

        Returns:
            `collected.CollectedEpisodes`.

        Raises:
            EnvironmentFault: If an environment fails or returns an invalid value.
            FloatingPointError: If the outputs of the policy are not finite.
        """

    def evaluate(self, actor, program, request):
        """Collects episodes; returns their `episode_statistics.batch_metrics`."""
        collected = self.collect(actor, program, request)
        return {
            **episode_statistics.batch_metrics(collected.episodes, collected.success),
            **collected.faults.metrics(self.fault_keys),
        }

    @abc.abstractmethod
    def close(self):
        """Closes the environments that `open_envs` made."""


class HostEnvironments(Environments):
    """Collects episodes in Python environments with an `ActingProgram`."""

    _warns_of_faults = _warns_of_bounds = True  # one warning of each kind

    def program_key(self, request):
        return "acting", request.deterministic

    def make_program(self, actor, request):
        inputs, noise = comparison_inputs.example_inputs(actor, self.observation_space)
        return acting_program.ActingProgram(actor, inputs, noise, request.deterministic)

    def collect(self, actor, program, request):
        runtime = program.runtime  # another thread may replace it

        def replaces_litert(inputs):
            return runtime == "litert" and program.leave_litert_if_different(
                inputs, request.weights.values
            )

        try:
            collected = self._collect_episodes(actor, program, request)
            # With new weights LiteRT may depart from Keras: compare them again.
            inputs = comparison_inputs.recorded_inputs(
                actor, collected.episodes, request.deterministic
            )
            replaced = replaces_litert(inputs)
        except results.OutputsNotFinite as error:
            replaced = replaces_litert(error.inputs)
            if not replaced:
                raise
        # All episodes are collected again with TensorFlow: one runtime for all of them.
        if replaced:
            collected = self._collect_episodes(actor, program, request)
        if request.key.stream == "training":
            self._warn(collected)
        return collected

    def _warn(self, collected):
        """Warns once of dropped episodes, and once of observations outside bounds."""
        if self._warns_of_faults and collected.faults.dropped_episodes:
            self._warns_of_faults = False
            user_warnings.warn(
                f"An episode was dropped, and another episode replaced it. "
                f"{collected.faults.first}. Dropping episodes biases the gradient and "
                "the logged returns towards episodes without faults. The log key "
                "`dropped_episodes` counts all dropped episodes.",
            )
        if self._warns_of_bounds:
            text = bounds.outside_bounds(self.observation_space, collected.episodes)
            if text is not None:
                self._warns_of_bounds = False
                name = "" if self.spec is None else f"{self.spec.id}, "
                user_warnings.warn(f"{name}{text}")

    @abc.abstractmethod
    def _collect_episodes(self, actor, program, request):
        """Collects the requested episodes, without comparing LiteRT with TensorFlow."""
