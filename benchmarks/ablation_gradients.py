"""How much a gradient varies from batch to batch, for estimates at the same weights."""

import math

import keras
import numpy as np

from tf_reinforce.callbacks import learning_rate

BATCHES = 32
SHARE = 3  # the weights are those after a third of the budget


def train(agents, settings, steps):
    """Trains the preset's agent for a third of the budget; all others go along.

    They take the weights that act and make the same updates from the same batches with
    a step of zero: their baselines, normalizers and running scales learn from what the
    preset collected, and their policies are the preset's.

    Args:
        agents: Dict from names, one of them `"preset"`, to `Reinforce`.
        settings: Dict from the same names to the settings they were made with.
        steps: Int, the budget.
    """
    leader, rates = agents["preset"], {}
    for name, agent in agents.items():
        goals = agent._rates
        if agent is not leader:
            agent.compile(keras.optimizers.SGD(0.0))
            goals = [goal for goal in goals if goal[0] != "optimizer"]
        rates[name] = learning_rate.LinearLearningRate(goals, steps, None)
        rates[name].set_model(agent)
    while leader.env_steps < steps // SHARE:
        episodes = collected(leader, settings["preset"], seed=0)
        for agent in agents.values():
            follow(leader, agent)
        for name, agent in agents.items():
            rates[name].on_epoch_begin(0)
            agent.update(episodes)
    for agent in agents.values():
        follow(leader, agent)


def follow(leader, agent):
    """Gives an agent the weights of another one's policy."""
    for mine, its in zip(agent.policy_variables, leader.policy_variables, strict=True):
        mine.assign(its)


def collected(agent, settings, seed):
    """A batch as `fit` would learn from it."""
    fit = settings["fit"]
    return agent.collect(
        settings["env"],
        fit.get("episodes_per_epoch"),
        steps=fit.get("steps_per_epoch"),
        num_envs=fit.get("num_envs", 8),
        seed=seed,
        env_kwargs=settings["env_kwargs"],
        max_episode_steps=fit.get("max_episode_steps"),
    )


def measured(agents, settings):
    """`relative_variance` of each agent's gradient, by its name.

    All learn from the same batches; where a baseline needs groups of episodes that
    begin alike, from as many of its own, of the same policy.
    """
    seeds, found = range(1, BATCHES + 1), {}  # training had the seed 0
    batches = [collected(agents["preset"], settings["preset"], seed) for seed in seeds]
    for name, agent in agents.items():
        mine = batches
        if agent.baseline.reset_group_size > 1:
            mine = [collected(agent, settings[name], seed) for seed in seeds]
        found[name] = relative_variance([flat(agent.gradients(e)[0]) for e in mine])
        print(f"{settings[name]['env']}, {name}: {found[name]}", flush=True)
    return found


def flat(gradients):
    """`[D]` float64, of arrays of any shape."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients]).astype(float)


def relative_variance(gradients):
    """tr Cov(g) / |E g|², from independent gradients.

    E |g|² is estimated by the mean product of a gradient with itself, |E g|² by that of
    two different ones: both without bias, so that the ratio

        mean_i gᵢ·gᵢ / mean_{i≠j} gᵢ·gⱼ  -  1

    is the unbiased tr Cov(g) over the unbiased |E g|². A factor common to all gradients
    does not change it.

    Args:
        gradients: `[K, D]` floats, K > 2.

    Returns:
        The ratio and its standard error, by the jackknife over the K. Where the mean
        gradient drowns in the noise, which is where the mean product of different ones
        is less than four of its standard errors above zero: the least ratio within
        two of them, infinite if there is none, and `None`.
    """
    gradients = np.asarray(gradients, float)
    products, numbers = gradients @ gradients.T, range(len(gradients))
    without = [np.delete(np.delete(products, k, 0), k, 1) for k in numbers]
    square, crossed = _means(products)
    squares, crosses = np.transpose([_means(part) for part in without])
    error = _jackknife(crosses)
    if crossed <= 4 * error:
        most = crossed + 2 * error
        return square / most - 1 if most > 0 else math.inf, None
    return square / crossed - 1, _jackknife(squares / crosses)


def _means(products):
    """The mean product of a gradient with itself, and of two different ones."""
    count, squares = len(products), np.trace(products)
    crosses = products.sum() - squares
    return float(squares / count), float(crosses / (count * (count - 1)))


def _jackknife(estimates):
    """The standard error, from estimates without one sample each."""
    return math.sqrt((len(estimates) - 1) * np.var(estimates))
