"""TF-Agents' REINFORCE, with its own environments, driver and replay buffer.

Its driver stops at a number of episodes, of which short ones come first; here it goes on
where it stopped, and what has not ended waits: each episode is learnt from once.
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
EPISODES, GAMMA, RATE = 16, 0.99, 1e-2
# A search over 8 and 16 episodes, and rates from 3e-3 to 2e-2, then with 8 up to 4e-2:
# fewest steps in the median of 20 other seeds. Returns are normalized, as is the default;
# a value network made it no faster.
SOLVE_EPISODES, SOLVE_RATE = 8, 3e-2
PIECE = 500  # most steps of an episode
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
    """Environments, their driver and an agent, compiled once and used again."""

    def __init__(self, env, envs, episodes, rate):
        # Gym limits the steps of an episode itself; the library's limit is left out.
        self.worlds = [suite_gym.load(env, max_episode_steps=0) for _ in range(envs)]
        batch = BatchedPyEnvironment(self.worlds, multithreading=False)
        self.environment = TFPyEnvironment(batch)
        optimizer = tf.keras.optimizers.Adam(rate)
        self.agent = agent_with(optimizer)
        optimizer.build(weights_of(self.agent))
        self.slots = optimizer.variables
        self.unused = [slot.numpy() for slot in self.slots]
        # Each environment may be within an episode at either end, and resets count.
        most = (PIECE + 1) * (episodes // envs + 2)
        spec = self.agent.collect_data_spec
        self.buffer = TFUniformReplayBuffer(spec, envs, max_length=most)
        driver = DynamicEpisodeDriver(
            self.environment,
            self.agent.collect_policy,
            [self.buffer.add_batch],
            num_episodes=episodes,
        )
        self.drive = common.function(driver.run)
        any_size = tf.nest.map_structure(
            lambda one: tf.TensorSpec([None, None, *one.shape], one.dtype), spec
        )
        self.learn = common.function(self.agent.train, input_signature=[any_size])
        self.likely = common.function(self.agent.policy.action)

    def begin(self, seed):
        """Forgets all that was learnt."""
        tf.random.set_seed(seed)
        for number, world in enumerate(self.worlds):
            world.seed(seed * len(self.worlds) + number)
        fresh = weights_of(agent_with(None))
        variables = [*weights_of(self.agent), *self.slots]
        for variable, value in zip(variables, [*fresh, *self.unused], strict=True):
            variable.assign(value)
        self.buffer.clear()
        self.now, self.begun = self.environment.reset(), [None] * len(self.worlds)

    def update(self):
        """Collects and learns; returns the steps of the environments."""
        self.now, _ = self.drive(self.now)
        frames = tf.nest.map_structure(
            lambda part: part.numpy(), self.buffer.gather_all()
        )
        self.buffer.clear()
        self.learn(padded(whole_episodes(frames, self.begun)))
        return (frames.step_type != StepType.LAST).sum()

    def greedy(self, observations):
        return self.likely(restart(observations, len(observations))).action


def whole_episodes(frames, begun):
    """Episodes that have ended; others are left in `begun`.

    Args:
        frames: Trajectory of arrays `[envs, steps, ...]`.
        begun: List `[envs]` of trajectories `[steps, ...]` or None, which is changed.
    """
    ended = []
    for row, earlier in enumerate(begun):
        episode = tf.nest.map_structure(lambda part, row=row: part[row], frames)
        if earlier is not None:
            episode = tf.nest.map_structure(
                lambda *parts: np.concatenate(parts), earlier, episode
            )
        steps = np.flatnonzero(episode.step_type != StepType.LAST)  # others are resets
        last = episode.next_step_type[steps] == StepType.LAST
        for chosen in np.split(steps, np.flatnonzero(last) + 1):
            ended.append(tf.nest.map_structure(lambda part, at=chosen: part[at], episode))
        begun[row] = ended.pop()
    return ended


def padded(episodes):
    """A trajectory `[episodes, steps, ...]`; the agent masks what follows an end."""
    longest = max(len(episode.reward) for episode in episodes)

    def pad(*parts):
        batch = np.zeros((len(parts), longest, *parts[0].shape[1:]), parts[0].dtype)
        for row, part in zip(batch, parts):
            row[: len(part)] = part
        return tf.constant(batch)

    return tf.nest.map_structure(pad, *episodes)


@functools.cache
def learner(*given):
    return Learner(*given)


def train(env, envs, steps, seed):
    """Learns from about so many steps, from scratch."""
    one = learner(env, envs, EPISODES, RATE)
    one.begin(seed)
    return protocol.trained(one.update, steps)


def solve(envs, seed, limit):
    one = learner("CartPole-v1", envs, SOLVE_EPISODES, SOLVE_RATE)
    one.begin(seed)
    return protocol.until_solved(one.update, one.greedy, limit)


def act(batch):
    """The policy as its driver asks it, in one call of a compiled function."""
    policy = agent_with(None).collect_policy
    seen = np.random.default_rng(0).normal(size=(batch, 4)).astype("float32")
    sample = common.function(lambda seen: policy.action(restart(seen, batch)).action)
    return protocol.latency(lambda: sample(tf.constant(seen)).numpy())


def learn(rows):
    """The time of an update from whole episodes of 500 steps."""
    rng = np.random.default_rng(0)
    one = learner("CartPole-v1", 1, EPISODES, RATE)
    one.begin(0)
    observations = rng.normal(size=(rows // PIECE, PIECE, 4)).astype("float32")
    actions = rng.integers(2, size=observations.shape[:2])
    episodes = [episode_of(*given) for given in zip(observations, actions)]
    return protocol.learned(lambda: one.learn(padded(episodes)).loss.numpy(), rows)


def episode_of(observations, actions):
    return from_episode(observations, actions, (), np.ones(len(actions), "float32"))


class Kept:
    """An optimizer that keeps the gradients it is given."""

    def apply_gradients(self, pairs):
        self.gradients = [gradient.numpy().tolist() for gradient, _ in pairs]


def gradient(weights, observations, actions, lengths):
    """The gradient its training has applied; it is a mean over episodes already."""
    kept = Kept()
    agent = agent_with(kept, normalize_returns=False)
    for variable, value in zip(weights_of(agent), weights, strict=True):
        variable.assign(value)
    observations, actions = np.array(observations, "float32"), np.array(actions)
    episodes = [
        episode_of(observations[:length, number], actions[:length, number])
        for number, length in enumerate(lengths)
    ]
    agent.train(padded(episodes))
    return {"gradients": kept.gradients}


if __name__ == "__main__":
    operations = {"train": train, "solve": solve, "act": act, "learn": learn}
    protocol.serve({**operations, "gradient": gradient})
