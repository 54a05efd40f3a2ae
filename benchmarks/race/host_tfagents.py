"""TF-Agents' REINFORCE, with its own environments, driver and replay buffer.

The driver stops after a number of episodes, and short episodes end first. The next call
continues where the driver stopped, and incomplete episodes are kept. Each episode is
therefore used in exactly one update.
"""

import functools

import numpy as np
import protocol
import tensorflow as tf
from tf_agents.agents import ReinforceAgent
from tf_agents.drivers.dynamic_episode_driver import DynamicEpisodeDriver
from tf_agents.environments import suite_gym
from tf_agents.environments.batched_py_environment import BatchedPyEnvironment
from tf_agents.environments.tf_py_environment import TFPyEnvironment
from tf_agents.networks.actor_distribution_network import ActorDistributionNetwork
from tf_agents.replay_buffers.tf_uniform_replay_buffer import TFUniformReplayBuffer
from tf_agents.specs import BoundedTensorSpec
from tf_agents.trajectories import StepType
from tf_agents.trajectories import restart
from tf_agents.trajectories import time_step_spec
from tf_agents.trajectories.trajectory import from_episode
from tf_agents.utils import common

tf.config.threading.set_intra_op_parallelism_threads(1)  # faster than two
tf.config.threading.set_inter_op_parallelism_threads(1)
EPISODES, GAMMA, LEARNING_RATE = 16, 0.99, 1e-2
# Result of a search over 8 and 16 episodes and rates from 3e-3 to 2e-2, then up to 4e-2
# with 8 episodes: the fewest steps, by the median of 20 other seeds. Returns are
# normalized, which is the default. A value network made training no faster.
SOLVE_EPISODES, SOLVE_LEARNING_RATE = 8, 3e-2
EPISODE_STEPS = 500  # the most steps of an episode
OBSERVATION = tf.TensorSpec((4,), tf.float32)
ACTION = BoundedTensorSpec((), tf.int64, 0, 1)
LAYERS = {"fc_layer_params": (64, 64), "activation_fn": tf.keras.activations.tanh}


def agent_with(optimizer, **options):
    agent = ReinforceAgent(
        time_step_spec(OBSERVATION),
        ACTION,
        ActorDistributionNetwork(OBSERVATION, ACTION, **LAYERS),
        optimizer,
        gamma=GAMMA,
        **options,
    )
    agent.initialize()
    return agent


def weights_of(agent):
    return agent.collect_policy.trainable_variables


class Learner:
    """Environments, their driver and an agent, which are compiled once and reused."""

    def __init__(self, env, num_envs, episodes, learning_rate):
        # Gym limits the steps of an episode itself, so that the limit here is disabled.
        self.envs = [suite_gym.load(env, max_episode_steps=0) for _ in range(num_envs)]
        batched_env = BatchedPyEnvironment(self.envs, multithreading=False)
        self.environment = TFPyEnvironment(batched_env)
        optimizer = tf.keras.optimizers.Adam(learning_rate)
        self.agent = agent_with(optimizer)
        optimizer.build(weights_of(self.agent))
        self.slots = optimizer.variables
        self.initial_slots = [slot.numpy() for slot in self.slots]
        # The first and the last episode may be incomplete, and resets need a row each.
        max_steps = (EPISODE_STEPS + 1) * (episodes // num_envs + 2)
        spec = self.agent.collect_data_spec
        self.buffer = TFUniformReplayBuffer(spec, num_envs, max_length=max_steps)
        driver = DynamicEpisodeDriver(
            self.environment,
            self.agent.collect_policy,
            [self.buffer.add_batch],
            num_episodes=episodes,
        )
        self.collect = common.function(driver.run)
        any_size = tf.nest.map_structure(
            lambda spec_: tf.TensorSpec([None, None, *spec_.shape], spec_.dtype), spec
        )
        self.learn = common.function(self.agent.train, input_signature=[any_size])
        self.greedy_action = common.function(self.agent.policy.action)

    def reset(self, seed):
        """Resets weights, optimizer, environments and buffer."""
        tf.random.set_seed(seed)
        for number, env in enumerate(self.envs):
            env.seed(seed * len(self.envs) + number)
        initial_weights = weights_of(agent_with(None))
        variables = [*weights_of(self.agent), *self.slots]
        for variable, value in zip(
            variables, [*initial_weights, *self.initial_slots], strict=True
        ):
            variable.assign(value)
        self.buffer.clear()
        self.time_step, self.incomplete = (
            self.environment.reset(),
            [None] * len(self.envs),
        )

    def update(self):
        """Collects episodes, makes one update, and returns the number of steps."""
        self.time_step, _ = self.collect(self.time_step)
        frames = tf.nest.map_structure(
            lambda part: part.numpy(), self.buffer.gather_all()
        )
        self.buffer.clear()
        self.learn(padded(whole_episodes(frames, self.incomplete)))
        return (frames.step_type != StepType.LAST).sum()

    def greedy(self, observations):
        return self.greedy_action(restart(observations, len(observations))).action


def whole_episodes(frames, incomplete):
    """Returns the complete episodes, and keeps the others in `incomplete`.

    Args:
        frames: Trajectory of arrays `[num_envs, steps, ...]`.
        incomplete: List `[num_envs]` of trajectories `[steps, ...]` or None; it is
            changed.
    """
    complete = []
    for row, earlier_steps in enumerate(incomplete):
        episode = tf.nest.map_structure(lambda part, row=row: part[row], frames)
        if earlier_steps is not None:
            episode = tf.nest.map_structure(
                lambda *parts: np.concatenate(parts), earlier_steps, episode
            )
        # The other rows are resets.
        steps = np.flatnonzero(episode.step_type != StepType.LAST)
        last = episode.next_step_type[steps] == StepType.LAST
        for indices in np.split(steps, np.flatnonzero(last) + 1):
            complete.append(
                tf.nest.map_structure(
                    lambda part, indices=indices: part[indices], episode
                )
            )
        incomplete[row] = complete.pop()
    return complete


def padded(episodes):
    """Returns a trajectory `[episodes, steps, ...]`; the agent masks the padding."""
    longest = max(len(episode.reward) for episode in episodes)

    def pad(*parts):
        batch = np.zeros((len(parts), longest, *parts[0].shape[1:]), parts[0].dtype)
        for row, part in zip(batch, parts):
            row[: len(part)] = part
        return tf.constant(batch)

    return tf.nest.map_structure(pad, *episodes)


@functools.cache
def cached_learner(*arguments):
    return Learner(*arguments)


def train(env, num_envs, steps, seed):
    """Trains from the initial weights for at least `steps` steps."""
    learner = cached_learner(env, num_envs, EPISODES, LEARNING_RATE)
    learner.reset(seed)
    return protocol.time_training(learner.update, steps)


def solve(num_envs, seed, limit):
    learner = cached_learner("CartPole-v1", num_envs, SOLVE_EPISODES, SOLVE_LEARNING_RATE)
    learner.reset(seed)
    return protocol.train_until_solved(learner.update, learner.greedy, limit)


def episode_of(observations, actions):
    return from_episode(observations, actions, (), np.ones(len(actions), "float32"))


class GradientRecorder:
    """An optimizer that stores the gradients that it receives."""

    def apply_gradients(self, pairs):
        self.gradients = [gradient.numpy().tolist() for gradient, _ in pairs]


def gradient(weights, observations, actions, lengths):
    """Returns the gradient that training applies, which is a mean over episodes."""
    recorder = GradientRecorder()
    agent = agent_with(recorder, normalize_returns=False)
    for variable, value in zip(weights_of(agent), weights, strict=True):
        variable.assign(value)
    observations, actions = np.array(observations, "float32"), np.array(actions)
    episodes = [
        episode_of(observations[:length, number], actions[:length, number])
        for number, length in enumerate(lengths)
    ]
    agent.train(padded(episodes))
    return {"gradients": recorder.gradients}


if __name__ == "__main__":
    operations = {"train": train, "solve": solve}
    protocol.serve({**operations, "gradient": gradient})
