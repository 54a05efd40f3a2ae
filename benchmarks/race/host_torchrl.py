"""TorchRL's REINFORCE, with its own collector of whole episodes, loss and estimator.

An update is one gradient step, of the policy and of a critic (two tanh layers of 64
each), on whole episodes with generalized advantages: 16 of CartPole-v1, or 4 of
HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard deviation).
"""

import gymnasium as gym
import numpy as np
import protocol
import torch
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torch.distributions import Distribution
from torchrl.collectors import Collector
from torchrl.envs import DoubleToFloat
from torchrl.envs import GymWrapper
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType
from torchrl.envs.utils import set_exploration_type
from torchrl.modules import MLP
from torchrl.modules import IndependentNormal
from torchrl.modules import ProbabilisticActor
from torchrl.modules import ValueOperator
from torchrl.objectives import ReinforceLoss
from torchrl.objectives.value import GAE
from torchrl.objectives.value.functional import reward2go

GAMMA = 0.99
EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
LEARNING_RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
# Steps between two checks for complete episodes.
FRAMES_PER_BATCH = {"CartPole-v1": 400, "HalfCheetah-v5": 4000}
# The fastest of rates from 3e-3 to 2e-2, and of 8 or 16 episodes.
SOLVE_EPISODES, SOLVE_LEARNING_RATE = 8, 1e-2
ESTIMATOR = dict(gamma=GAMMA, lmbda=0.95, average_gae=True, vectorized=True, time_dim=0)
torch.set_num_threads(1)  # faster than two for networks this small
Distribution.set_default_validate_args(False)  # faster


def make_vector_env(env, num_envs, seed):
    """Returns environments in one process, the fastest way for 8 of CartPole-v1."""
    vector_env = gym.vector.SyncVectorEnv(
        [lambda: gym.make(env, disable_env_checker=True)] * num_envs,
        autoreset_mode=gym.vector.AutoresetMode.DISABLED,
    )
    vector_env = GymWrapper(vector_env, categorical_action_encoding=True)
    if env != "CartPole-v1":  # CartPole's observations are float32
        vector_env = TransformedEnv(vector_env, DoubleToFloat(in_keys=["observation"]))
    vector_env.set_seed(seed)
    return vector_env


def layers(inputs, outputs):
    sizes = dict(in_features=inputs, out_features=outputs, num_cells=[64, 64])
    return MLP(**sizes, activation_class=torch.nn.Tanh)


def actor_for(env):
    spaces = gym.make(env)
    inputs, space = spaces.observation_space.shape[0], spaces.action_space
    if isinstance(space, gym.spaces.Discrete):
        net, keys, distribution = layers(inputs, int(space.n)), ["logits"], Categorical
    else:
        scale = AddStateIndependentNormalScale(space.shape)
        net = torch.nn.Sequential(layers(inputs, space.shape[0]), scale)
        keys, distribution = ["loc", "scale"], IndependentNormal
    module = TensorDictModule(net, in_keys=["observation"], out_keys=keys)
    return ProbabilisticActor(module, in_keys=keys, distribution_class=distribution)


def critic_for(inputs):
    return ValueOperator(layers(inputs, 1), in_keys=["observation"])


class Learner:
    """An untrained actor and critic, their loss and optimizer."""

    def __init__(self, env, learning_rate, seed=0):
        torch.manual_seed(seed)
        self.actor = actor_for(env)
        critic = critic_for(gym.make(env).observation_space.shape[0])
        self.estimator = GAE(**ESTIMATOR, value_network=critic)
        self.loss = ReinforceLoss(self.actor, critic)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), learning_rate)

    def learn(self, episodes):
        with torch.no_grad():
            self.estimator(episodes)
        losses = self.loss(episodes)
        self.optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_value"]).backward()
        self.optimizer.step()

    def make_update(self, env, num_envs, seed, num_episodes):
        """Returns a function that collects, makes one update, and returns its steps."""
        collector = Collector(
            make_vector_env(env, num_envs, seed),
            self.actor,
            frames_per_batch=FRAMES_PER_BATCH[env],
            total_frames=-1,
            trajs_per_batch=num_episodes,
            traj_format="cat",
        )
        batches = iter(collector)

        def update():
            episodes = next(batches)
            self.learn(episodes)
            return episodes.numel()

        return update

    def greedy(self, observations):
        return select_actions(self.actor, observations, ExplorationType.DETERMINISTIC)


def select_actions(actor, observations, exploration):
    inputs = TensorDict(
        {"observation": torch.from_numpy(observations)}, len(observations)
    )
    with torch.no_grad(), set_exploration_type(exploration):
        return actor(inputs)["action"].numpy()


def train(env, num_envs, steps, seed):
    update = Learner(env, LEARNING_RATES[env], seed).make_update(
        env, num_envs, seed, EPISODES[env]
    )
    return protocol.time_training(update, steps)


def solve(num_envs, seed, limit):
    learner = Learner("CartPole-v1", SOLVE_LEARNING_RATE, seed)
    update = learner.make_update("CartPole-v1", num_envs, seed, SOLVE_EPISODES)
    return protocol.train_until_solved(update, learner.greedy, limit)


def tensordict_of(observations, actions, rewards, lengths):
    """Returns the episodes in arrays `[T, E, ...]`, concatenated."""

    def concatenate(values):
        parts = [values[:length, e] for e, length in enumerate(lengths)]
        return torch.from_numpy(np.concatenate(parts))

    ends = concatenate(np.arange(len(rewards))[:, None] == np.array(lengths) - 1)[:, None]
    next_step = {
        "observation": concatenate(observations[1:]),
        "reward": concatenate(rewards)[:, None],
        "done": ends,
        "terminated": ends,
    }
    step = {"observation": concatenate(observations[:-1]), "action": concatenate(actions)}
    return TensorDict({**step, "next": next_step}, len(ends))


def gradient(weights, observations, actions, lengths):
    """Returns the gradient per episode, with returns to go instead of advantages."""
    actor = actor_for("CartPole-v1")
    parameters = list(actor.parameters())
    for parameter, weight in zip(parameters, weights, strict=True):
        parameter.data = torch.tensor(np.transpose(weight), dtype=torch.float32)
    observations, actions = np.array(observations, "float32"), np.array(actions)
    ones = np.ones(actions.shape, "float32")
    episodes = tensordict_of(observations, actions, ones, lengths)
    rewards, ends = episodes["next", "reward"], episodes["next", "done"]
    returns = reward2go(rewards, ends, GAMMA)
    episodes["advantage"] = episodes["value_target"] = returns
    loss = ReinforceLoss(actor, critic_for(4), reduction="sum")(episodes)["loss_actor"]
    (loss / len(lengths)).backward()
    return {"gradients": [parameter.grad.numpy().T.tolist() for parameter in parameters]}


if __name__ == "__main__":
    operations = train, solve, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
