"""TorchRL's REINFORCE, with its own collector of whole episodes, loss and estimator.

An update is one gradient step, of the policy and of a critic (two tanh layers of 64
each), on whole episodes with generalised advantages: 16 of CartPole-v1, or 4 of
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
RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
POLL = {"CartPole-v1": 400, "HalfCheetah-v5": 4000}  # steps between looks for episodes
SOLVE_EPISODES, SOLVE_RATE = 8, 1e-2  # the fastest of 3e-3 to 2e-2, 8 or 16
ESTIMATOR = dict(gamma=GAMMA, lmbda=0.95, average_gae=True, vectorized=True, time_dim=0)
torch.set_num_threads(1)  # faster than two for networks this small
Distribution.set_default_validate_args(False)  # faster


def worlds_of(env, envs, seed):
    """Environments in one process: its fastest for 8 of CartPole-v1."""
    worlds = gym.vector.SyncVectorEnv(
        [lambda: gym.make(env, disable_env_checker=True)] * envs,
        autoreset_mode=gym.vector.AutoresetMode.DISABLED,
    )
    worlds = GymWrapper(worlds, categorical_action_encoding=True)
    if env != "CartPole-v1":  # whose observations are of 32 bits
        worlds = TransformedEnv(worlds, DoubleToFloat(in_keys=["observation"]))
    worlds.set_seed(seed)
    return worlds


def layers(inputs, outputs):
    sizes = dict(in_features=inputs, out_features=outputs, num_cells=[64, 64])
    return MLP(**sizes, activation_class=torch.nn.Tanh)


def actor_for(env):
    world = gym.make(env)
    inputs, space = world.observation_space.shape[0], world.action_space
    if isinstance(space, gym.spaces.Discrete):
        net, keys, kind = layers(inputs, int(space.n)), ["logits"], Categorical
    else:
        scale = AddStateIndependentNormalScale(space.shape)
        net = torch.nn.Sequential(layers(inputs, space.shape[0]), scale)
        keys, kind = ["loc", "scale"], IndependentNormal
    module = TensorDictModule(net, in_keys=["observation"], out_keys=keys)
    return ProbabilisticActor(module, in_keys=keys, distribution_class=kind)


def critic_for(inputs):
    return ValueOperator(layers(inputs, 1), in_keys=["observation"])


class Learner:
    """An actor and a critic from scratch, their loss and optimizer."""

    def __init__(self, env, rate, seed=0):
        torch.manual_seed(seed)
        self.actor = actor_for(env)
        critic = critic_for(gym.make(env).observation_space.shape[0])
        self.estimator = GAE(**ESTIMATOR, value_network=critic)
        self.loss = ReinforceLoss(self.actor, critic)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), rate)

    def learn(self, episodes):
        with torch.no_grad():
            self.estimator(episodes)
        losses = self.loss(episodes)
        self.optimizer.zero_grad()
        (losses["loss_actor"] + losses["loss_value"]).backward()
        self.optimizer.step()

    def collecting(self, env, envs, seed, count):
        """A function that plays and learns, and returns the number of steps."""
        collector = Collector(
            worlds_of(env, envs, seed),
            self.actor,
            frames_per_batch=POLL[env],
            total_frames=-1,
            trajs_per_batch=count,
            traj_format="cat",
        )
        batches = iter(collector)

        def update():
            episodes = next(batches)
            self.learn(episodes)
            return episodes.numel()

        return update

    def greedy(self, observations):
        return choose(self.actor, observations, ExplorationType.DETERMINISTIC)


def choose(actor, observations, how):
    seen = TensorDict({"observation": torch.from_numpy(observations)}, len(observations))
    with torch.no_grad(), set_exploration_type(how):
        return actor(seen)["action"].numpy()


def train(env, envs, steps, seed):
    update = Learner(env, RATES[env], seed).collecting(env, envs, seed, EPISODES[env])
    return protocol.trained(update, steps)


def solve(envs, seed, limit):
    learner = Learner("CartPole-v1", SOLVE_RATE, seed)
    update = learner.collecting("CartPole-v1", envs, seed, SOLVE_EPISODES)
    return protocol.until_solved(update, learner.greedy, limit)


def act(batch):
    actor = actor_for("CartPole-v1")
    observations = np.random.default_rng(0).normal(size=(batch, 4)).astype("float32")
    return protocol.latency(lambda: choose(actor, observations, ExplorationType.RANDOM))


def steps_of(observations, actions, rewards, lengths):
    """Episodes, from arrays `[T, E, ...]`, one after the other."""

    def joined(values):
        pieces = [values[:length, e] for e, length in enumerate(lengths)]
        return torch.from_numpy(np.concatenate(pieces))

    ends = joined(np.arange(len(rewards))[:, None] == np.array(lengths) - 1)[:, None]
    following = {
        "observation": joined(observations[1:]),
        "reward": joined(rewards)[:, None],
        "done": ends,
        "terminated": ends,
    }
    now = {"observation": joined(observations[:-1]), "action": joined(actions)}
    return TensorDict({**now, "next": following}, len(ends))


def learn(rows):
    shape, rng = (500, rows // 500), np.random.default_rng(0)
    observations = rng.normal(size=(501, shape[1], 4)).astype("float32")
    actions, rewards = rng.integers(2, size=shape), rng.normal(size=shape)
    lengths = [500] * shape[1]
    episodes = steps_of(observations, actions, rewards.astype("float32"), lengths)
    learner = Learner("CartPole-v1", 1e-2)
    return protocol.learned(learner.learn, rows, lambda: [episodes.clone()])


def gradient(weights, observations, actions, lengths):
    """The actor's loss for returns to go instead of advantages; a sum over episodes."""
    actor = actor_for("CartPole-v1")
    parameters = list(actor.parameters())
    for mine, given in zip(parameters, weights, strict=True):
        mine.data = torch.tensor(np.transpose(given), dtype=torch.float32)
    seen, done = np.array(observations, "float32"), np.array(actions)
    episodes = steps_of(seen, done, np.ones(done.shape, "float32"), lengths)
    rewards, ends = episodes["next", "reward"], episodes["next", "done"]
    returns = reward2go(rewards, ends, GAMMA)
    episodes["advantage"] = episodes["value_target"] = returns
    loss = ReinforceLoss(actor, critic_for(4), reduction="sum")(episodes)["loss_actor"]
    (loss / len(lengths)).backward()
    return {"gradients": [mine.grad.numpy().T.tolist() for mine in parameters]}


if __name__ == "__main__":
    operations = train, solve, act, learn, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
