"""Collects episodes from batched environments in the current process."""

import time

import numpy as np

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import collected
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import results
from tf_reinforce.engine.collect import scheduler
from tf_reinforce.support import user_warnings


class InProcessEnvironments(environments.HostEnvironments):
    """Collects episodes from batched environments in the current process.

    Args:
        batch: `batched_envs.BatchedEnvs`.
    """

    def __init__(self, batch):
        self.batch = batch
        self.observation_space = batch.observation_space
        self.action_space = batch.action_space
        self.spec = batch.spec
        self.supports_episode_seeds = batch.supports_episode_seeds
        self.is_vector_env = batch.is_vector_env
        self.fault_keys = batch.fault_keys
        self.max_episode_steps = batch.max_episode_steps

    def _collect_episodes(self, actor, program, request):
        act = program.for_batch(self.batch.num_envs, request.weights.values)
        self.batch.set(request.settings)
        with self.batch.checked(actor.dtype):
            return collect(self.batch, actor, act, request)

    def close(self):
        for text in self.batch.close_all():
            warn_of_close(text)


def warn_of_close(text):
    """Warns that an environment could not be closed.

    Args:
        text: String that names the environment and the error.
    """
    user_warnings.warn(
        f"{text[:1].upper()}{text[1:]}. The episodes are complete. Correct the method "
        "`close` of the environment.",
    )


def warn_of_copy(model):
    """Warns that environments contain a copy of a Keras model, for example of the agent.

    Args:
        model: `keras.Model` that is among the arguments of the environments.
    """
    user_warnings.warn(
        f"The environments contain copies of the {type(model).__name__} {model.name!r}, "
        "which keep the weights that it has now. If it changes in training, as the "
        "opponent in self-play does, set its weights with `env_attrs` instead "
        "(docs/howto_changing_environments.md). A model that never changes can be loaded "
        "by the callable that makes the environment.",
    )


def collect(batch, actor, act, request):
    """Collects whole episodes in the current process.

    Args:
        batch: `batched_envs.BatchedEnvs`.
        actor: `actor.ActorPolicy` that contains the specs and the head of the policy.
        act: Function that selects actions, from `acting_program.ActingProgram.for_batch`.
        request: `environments.CollectionRequest`.

    Returns:
        `collected.CollectedEpisodes`.

    Raises:
        EnvironmentFault: If an environment raises an exception or returns an invalid
            value.
        OutputsNotFinite: If the policy's outputs are not finite.
    """
    start, specs = time.perf_counter(), actor.acting_specs()
    batch.configure(specs.float_dtype, specs.mask_reader)
    loop = host_loop.CollectionLoop(
        batch,
        specs,
        scheduler.EpisodeScheduler(request.episodes, request.steps),
        seeding.EpisodeSeeds(*request.key, request.group_size),
        initial_states(request.weights, batch.num_envs),
        request.deterministic,
    )
    episodes = loop.play(act)
    arrays, stepping = loop.episode_arrays(episodes), loop.take_stepping()
    faults = results.Faults()
    for episode in episodes:
        faults.add(episode.faults)
    seconds = {"stepping": stepping, "acting": time.perf_counter() - start - stepping}
    return collected.CollectedEpisodes(
        collected.to_episodes(arrays, actor), arrays.success, seconds, faults=faults
    )


def initial_states(weights, size):
    """Returns initial recurrent states for `size` environments, a list of arrays."""
    return [np.repeat(state, size, axis=0) for state in weights.states]
