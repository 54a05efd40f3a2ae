"""Plays whole episodes in batched environments, in the order in which they start.

If E episodes are requested, the collector starts exactly E episodes, and finishes and
uses all of them. If the collector used the episodes that *finish* first, short episodes
would be too frequent in a batch.
"""

import math
import time

import numpy as np

from tf_reinforce.data import acting_specs
from tf_reinforce.engine.collect import buffers
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.engine.collect import progress
from tf_reinforce.engine.collect import results
from tf_reinforce.engine.collect import unbatching

_MAX_REPLACEMENTS = 50  # invalid episodes in place of one episode before an error


class CollectionLoop:
    """Steps environments, starts and ends episodes, and records all steps.

    Args:
        envs: `batched_envs.BatchedEnvs` whose method `configure` has been called.
        specs: `acting_specs.ActingSpecs` of the agent.
        episode_scheduler: `scheduler.EpisodeScheduler` or `scheduler.QueueScheduler`.
        seeds: `seeding.EpisodeSeeds`.
        policy_states: List of arrays with one row for each environment, the recurrent
            states before the first observation of an episode.
        deterministic: Bool, whether to take the most likely actions, without noise.
    """

    def __init__(
        self, envs, specs, episode_scheduler, seeds, policy_states, deterministic
    ):
        self.envs = envs
        self.scheduler = episode_scheduler
        self.seeds = seeds
        self.mask_layout, observations = None, specs.observations
        if specs.mask_reader is not None:
            self.mask_layout = specs.mask_reader.layout
            mask = acting_specs.ArraySpec((self.mask_layout.size,), "int8")
            observations = [*observations, mask]
        self.buffer = buffers.StepBuffer(envs.num_envs, observations, specs.actions)
        noise = [] if deterministic else specs.noise
        self.action_parts = range(len(noise))
        self.noise = buffers.NoiseBuffer(envs.num_envs, noise, specs.float_dtype)
        self.recurrent_states = buffers.RecurrentStates(policy_states)
        self.dropped = []  # invalid episodes, which start again
        self.active = {}  # running episodes by environment, in the order of their start
        self.idle = list(
            range(envs.num_envs)
        )  # environments in which an episode may start
        self.row = 0  # number of steps so far, see `buffers`
        self.time_limit_row = 0  # no episode reaches the time limit before this row
        self.stepping = 0.0  # seconds in the environments, including resets

    def play(self, act):
        """Plays episodes until the scheduler has enough; returns these episodes.

        Args:
            act: Function that selects actions, from `litert_runner.make_runner`.

        Raises:
            EnvironmentFault: If an environment raises an exception or returns an invalid
                value.
            OutputsNotFinite: If the policy's outputs are not finite.
        """
        try:
            return self._run(act)
        except env_outputs.IndexedFault as fault:
            place = self.describe_env(fault.env_index)
            raise results.EnvironmentFault(f"{place}: {fault}.") from fault.__cause__

    def episode_arrays(self, episodes):
        """Returns the `results.EpisodeArrays` of finished episodes."""
        rows = [self.row, *(episode.start_row for episode in self.active.values())]
        buffer, first_index = self.buffer, self.envs.first_index
        return results.episode_arrays(episodes, buffer, first_index, min(rows))

    def take_stepping(self):
        """Returns the seconds in the environments since the previous call."""
        seconds, self.stepping = self.stepping, 0.0
        return seconds

    def _run(self, act):
        envs, buffer, noise, active = self.envs, self.buffer, self.noise, self.active
        policy_states, words = self.recurrent_states.arrays, envs.progress.words
        clock, stepping = time.perf_counter, 0.0
        unbatch = unbatching.action_unbatcher(envs.action_space)
        views, count = buffer.next_row(), buffer.num_observations
        observations = views[:count]
        envs.reset(self.seeds.reset_seed(0), observations)
        self._start_episodes(observations)
        episodes = self.scheduler.result()  # a worker may have claimed no episode
        while episodes is None:
            row = self.row
            if self.mask_layout is not None:
                self._check_masks(observations)
            inputs = [*observations, *policy_states, *noise.row(row, active)]
            raw_actions, env_actions, states, finite = act(inputs)
            if not finite:
                raw_actions, env_actions, states = self._retry_without_idle(act, inputs)
            for array, part in zip(views[count:], raw_actions):
                array[:] = part
            for array, part in zip(policy_states, states):
                array[:] = part
            rewards, next_row = views[-1], row + 1
            # Views: the environments write the next observations into the buffer.
            views = buffer.next_row()
            observations = views[:count]
            is_due = next_row >= self.time_limit_row
            time_limit_envs = self._time_limit_envs(next_row) if is_due else ()
            actions = unbatch(env_actions)
            start = clock()
            ends = envs.step(actions, observations, rewards, active, time_limit_envs)
            stepping += clock() - start
            for end in ends:
                if end.fault is not None:
                    self._drop_at_end(end)
            # Only now, so that a fault of `step` names its step.
            self.row = words[progress.ROW] = next_row
            for end in ends:
                self._end_episode(end, observations)
            if ends or self.idle:
                self._start_episodes(observations)
            if ends:
                self.stepping, stepping = self.stepping + stepping, 0.0
                episodes = self.scheduler.result()
        active.clear()  # no result contains the episodes that have not ended
        return episodes

    def _check_masks(self, observations):
        masks = observations[-1]
        has_legal_action = self.mask_layout.has_legal_action(masks)
        for env_index in [*self.active] if not has_legal_action.all() else ():
            if not has_legal_action[env_index]:
                fault = env_outputs.IndexedFault(
                    env_index,
                    "the action mask has no legal action, or there is no action mask. "
                    "Expected: an action mask with at least one entry that is not "
                    f"zero. Received: {masks[env_index].tolist()}. End the episode if "
                    "no action is legal",
                )
                self.envs.recover(fault)
                episode = self._drop(fault)
                episode.restart(self.row, env_index)
                self._start(env_index, episode, observations)
                return self._check_masks(observations)

    def _time_limit_envs(self, row):
        """Returns the environments whose episodes reach the time limit at step `row`."""
        limit = self.envs.max_episode_steps
        return [i for i, x in self.active.items() if row - x.start_row >= limit]

    def _start_episodes(self, observations):
        for env_index in sorted(filter(self.envs.can_start, self.idle)):
            if self.dropped:
                episode = self.dropped.pop(0)
                episode.restart(self.row, env_index)
            else:
                episode = self.scheduler.start_next(self.row, env_index)
            if episode is None:
                if not self.scheduler.waits:
                    self.idle.clear()
                break
            self.idle.remove(env_index)
            self._start(env_index, episode, observations)
        # Episodes are in the order of their start: the first one is the oldest.
        oldest = next(iter(self.active.values()), None)
        self.time_limit_row = (
            math.inf if oldest is None else oldest.start_row + self.envs.max_episode_steps
        )

    def _start(self, env_index, episode, observations):
        """Starts an episode in an environment, again if the reset is invalid."""
        self.active[env_index] = episode
        self.recurrent_states.reset(env_index)
        report, start = self.envs.progress, time.perf_counter()
        report.start_episode(env_index, episode.number, self.row)
        while True:
            reset_seed = self.seeds.reset_seed(episode.stream_number)
            try:
                self.envs.start_episode(env_index, reset_seed, observations)
                break
            except env_outputs.IndexedFault as fault:
                self.envs.recover(fault)
                self._drop(fault).restart(self.row, env_index)
                self.active[env_index] = episode
        report.words[progress.STATE] = progress.STEP
        self.stepping += time.perf_counter() - start
        episode.generators = [
            self.seeds.action_generator(episode.stream_number, i)
            for i in self.action_parts
        ]
        self.noise.start_episode(episode, self.row)

    def _retry_without_idle(self, act, inputs):
        """Repeats an action selection that failed, with zeros for idle environments.

        The action selection failed, because policy outputs are not finite. An idle
        environment has no running episode. The inputs for idle environments are
        arbitrary, so that the policy outputs for these inputs may not be finite.
        """
        idle = [i for i in range(self.envs.num_envs) if i not in self.active]
        for array in inputs:
            array[idle] = 0
        *outputs, finite = act(inputs)
        if not finite:
            self._raise_not_finite(inputs)
        return outputs

    def _raise_not_finite(self, inputs):
        """Raises an error for a non-finite observation, else `OutputsNotFinite`."""
        for episode in self.active.values():
            steps = episode.start_row, self.row + 1, episode.env_index
            for values in self.buffer.observations(*steps):
                results.check_observations(values, episode, self.envs.first_index)
        raise results.OutputsNotFinite(
            "The policy's outputs are not finite, although its observations and weights "
            f"are finite. No action was selected. {results.OUTPUTS_REMEDY}",
            [np.array(array) for array in inputs],
        )

    def _end_episode(self, end, observations):
        episode = self.active.pop(end.env_index, None)
        if episode is not None:
            episode.finish(end, self.row, observations)
            self.idle.append(end.env_index)

    def _drop_at_end(self, end):
        """Drops an episode whose last step is invalid; its environment becomes idle."""
        self.dropped.append(self._drop(end.fault))
        self.idle.append(end.env_index)

    def _drop(self, fault):
        """Removes and returns a running episode that is invalid and starts again."""
        place = f"{self.describe_env(fault.env_index)}: {fault}"
        episode = self.active.pop(fault.env_index)
        if episode.replacements == _MAX_REPLACEMENTS:
            raise results.EnvironmentFault(
                f"{place}. The episode and its {_MAX_REPLACEMENTS} replacements were "
                "dropped, because the environment failed in each of them. Correct the "
                "environment."
            ) from fault
        episode.faults.add(results.Faults(1, int(fault.raised), first=place))
        return episode

    def describe_env(self, env_index):
        """Returns a text with environment, episode and step for an error message."""
        if env_index is None:
            return "The VectorEnv"
        place = f"Environment {self.envs.first_index + env_index}"
        episode = self.active.get(env_index)
        if episode is None:
            return place
        step = self.row - episode.start_row
        replacement = f" (replacement {x})" if (x := episode.replacements) else ""
        return f"{place}, episode {episode.number}{replacement}, step {step}"
