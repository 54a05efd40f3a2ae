"""Measures the variance of gradients over batches, for variants at equal weights."""

import math

import keras
import numpy as np

from tf_reinforce.engine import linear_rates

BATCHES = 32
TRAINING_DIVISOR = 3  # the gradients are measured after a third of the budget


def train(agents, settings, steps):
    """Trains the agent of the preset, and the baselines of the agents of all variants.

    The training ends after a third of the budget in environment steps. Before each
    update, the agents of the variants receive the policy weights of the preset's agent.
    The agents of the variants update from the batch of the preset's agent, with a
    learning rate of zero. Such an update trains the baseline, the normalizer and the
    running scales of a variant. The policy of a variant stays equal to the policy of the
    preset.

    Args:
        agents: Dict from names of variants to `Reinforce`, with the name `"preset"`.
        settings: Dict from names of variants to the settings of the agents.
        steps: Int, the budget in environment steps.
    """
    leader, schedules = agents["preset"], {}
    for name, agent in agents.items():
        rates = agent._learning_rates
        if agent is not leader:
            agent.compile(keras.optimizers.SGD(0.0))
            rates = [rate for rate in rates if rate[0] != "optimizer"]
        schedules[name] = linear_rates.LinearRates(agent, rates, None)
    while leader.env_steps < steps // TRAINING_DIVISOR:
        episodes = collect(leader, settings["preset"], seed=0)
        for agent in agents.values():
            copy_policy(leader, agent)
        for name, agent in agents.items():
            schedules[name].set(0, steps)
            agent.update(episodes)
    for agent in agents.values():
        copy_policy(leader, agent)


def copy_policy(source, target):
    """Assigns the policy weights of one agent to another agent."""
    pairs = zip(target.policy_variables, source.policy_variables, strict=True)
    for target_variable, source_variable in pairs:
        target_variable.assign(source_variable)


def collect(agent, settings, seed):
    """Returns a batch of episodes of the size that `fit` uses with `settings`."""
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


def relative_variances(agents, settings):
    """Returns a dict from names of agents to the `relative_variance` of their gradients.

    All agents compute gradients from equal batches, except for agents whose baseline
    needs groups of episodes with equal reset seeds. Such an agent collects an equal
    number of batches of its own, with the policy of the preset.
    """
    seeds, variances = range(1, BATCHES + 1), {}  # seed 0 was used for training
    shared = [collect(agents["preset"], settings["preset"], seed) for seed in seeds]
    for name, agent in agents.items():
        batches = shared
        if agent.baseline.reset_group_size > 1:
            batches = [collect(agent, settings[name], seed) for seed in seeds]
        gradients = [flatten(agent.gradients(episodes)[0]) for episodes in batches]
        variances[name] = relative_variance(gradients)
        print(f"{settings[name]['env']}, {name}: {variances[name]}", flush=True)
    return variances


def flatten(gradients):
    """Returns arrays of any shapes, concatenated in one `[D]` float64 array."""
    return np.concatenate([np.ravel(gradient) for gradient in gradients]).astype(float)


def relative_variance(gradients):
    """Returns tr Cov(g) / |E g|² of independent gradients, and its standard error.

    The mean product of a gradient with itself is an unbiased estimate of E |g|². The mean
    product of two different gradients is an unbiased estimate of |E g|². The ratio of
    these two estimates, minus one, estimates tr Cov(g) / |E g|²:

        mean_i gᵢ·gᵢ / mean_{i≠j} gᵢ·gⱼ  -  1.

    Numerator and denominator of this ratio are unbiased. A factor common to all gradients
    does not change this ratio.

    Args:
        gradients: `[K, D]` floats, K > 2.

    Returns:
        The ratio and its standard error, by the jackknife over the K gradients. If the
        mean product of different gradients is less than four of its standard errors above
        zero, the mean gradient cannot be distinguished from zero. The result is then the
        smallest ratio within two standard errors, and `None` as the standard error. The
        smallest ratio is infinite if no mean product within two standard errors is
        positive.
    """
    gradients = np.asarray(gradients, float)
    products, indices = gradients @ gradients.T, range(len(gradients))
    leave_one_out = [np.delete(np.delete(products, k, 0), k, 1) for k in indices]
    diagonal, off_diagonal = _means(products)
    diagonals, off_diagonals = np.transpose([_means(part) for part in leave_one_out])
    error = _jackknife(off_diagonals)
    if off_diagonal <= 4 * error:
        upper = off_diagonal + 2 * error
        return diagonal / upper - 1 if upper > 0 else math.inf, None
    return diagonal / off_diagonal - 1, _jackknife(diagonals / off_diagonals)


def _means(products):
    """Returns the mean of the diagonal entries and the mean of all other entries."""
    count, diagonal = len(products), np.trace(products)
    off_diagonal = products.sum() - diagonal
    return float(diagonal / count), float(off_diagonal / (count * (count - 1)))


def _jackknife(estimates):
    """Returns the jackknife standard error of estimates that omit one sample each."""
    return math.sqrt((len(estimates) - 1) * np.var(estimates))
