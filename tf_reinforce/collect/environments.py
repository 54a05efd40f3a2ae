"""Defines the interface through which all environments collect episodes."""

import abc
from typing import NamedTuple

import gymnasium as gym

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import comparison_inputs
from tf_reinforce.collect import results
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding


class CollectionRequest(NamedTuple):
    """Which episodes to collect, and how."""

    key: seeding.StreamKey  # with the number of an episode, fixes its random numbers
    episodes: int | None  # how many episodes, or `None`
    steps: int | None = None  # instead: the fewest episodes that have this many steps
    deterministic: bool = False  # True takes the most likely actions
    group_size: int = 1  # how many consecutive episodes share a reset seed
    recorded: bool = True  # False allows to keep nothing but returns and lengths


class Environments(abc.ABC):
    """Environments with the same spaces, which collect episodes with a program.

    `make_envs.open_envs` makes them. A program selects actions, or plays whole episodes.
    The collector keeps a program for later requests with the same `program_key`.

    Attributes:
        observation_space, action_space: The spaces of each environment.
        spec: `gymnasium.envs.registration.EnvSpec` or `None`.
        supports_episode_seeds: Bool, whether each episode has a reset seed of its own.
        in_graph: Bool, whether a program returns tensors, so that an update can follow
            in the same TensorFlow graph.
        is_vector_env: Bool, whether a `gymnasium.vector.VectorEnv` resets itself.
    """

    spec: gym.envs.registration.EnvSpec | None = None
    supports_episode_seeds = True
    in_graph = False
    is_vector_env = False

    @abc.abstractmethod
    def program_key(self, request):
        """Returns a tuple; requests with equal tuples share a program.

        The first item is the kind of the program. The collector keeps a limited number of
        programs of each kind.
        """

    @abc.abstractmethod
    def make_program(self, actor, request):
        """Returns the program of an `actor.ActorPolicy` for requests of this kind."""

    @abc.abstractmethod
    def collect(self, actor, program, request):
        """Collects whole episodes.

        Args:
            actor: `actor.ActorPolicy`.
            program: What `make_program` returned.
            request: `CollectionRequest`.

        Returns:
            `results.CollectedEpisodes`.

        Raises:
            EnvironmentFault: if an environment fails or returns an invalid value.
            FloatingPointError: if the outputs of the policy are not finite.
        """

    def evaluate(self, actor, program, request):
        """Returns `episode_statistics.batch_metrics` of the requested episodes."""
        collected = self.collect(actor, program, request)
        return episode_statistics.batch_metrics(collected.episodes, collected.success)

    @abc.abstractmethod
    def close(self):
        """Closes the environments that were made here."""


class HostEnvironments(Environments):
    """Environments in Python, for which an `acting_program.ActingProgram` acts."""

    def program_key(self, request):
        return "acting", request.deterministic

    def make_program(self, actor, request):
        inputs, noise = comparison_inputs.example_inputs(actor, self.observation_space)
        return acting_program.ActingProgram(actor, inputs, noise, request.deterministic)

    def collect(self, actor, program, request):
        try:
            collected = self._play(actor, program, request)
            # With new weights LiteRT may depart from Keras: compare them again.
            inputs = comparison_inputs.recorded_inputs(
                actor, collected.episodes, request.deterministic
            )
            replaced = program.leave_litert_if_different(inputs)
        except results.OutputsNotFinite as error:
            replaced = program.leave_litert_if_different(error.inputs)
            if not replaced:
                raise
        # All episodes are collected again with TensorFlow: one engine for all of them.
        return self._play(actor, program, request) if replaced else collected

    @abc.abstractmethod
    def _play(self, actor, program, request):
        """Collects the episodes with the program as it is; see `collect`."""
