"""Collecting episodes and updating from them in one TensorFlow program."""

import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.update import train_step


def run_updates(
    rollout, step, keys, active, max_env_steps, *, load=None, store=None, set_rates=None
):
    """Makes up to U updates of each of K agents in the graph.

    All agents collect their episodes at once, in one XLA program. The updates end early
    when no agent is active any more.

    Args:
        rollout: `xla_rollout.Rollout` of K agents.
        step: `train_step.TrainStep` of the agent whose variables are in the graph.
        keys: `[U, K, 4, 2]` uint32, random keys from `seeding.rollout_keys` for each
            update of each agent.
        active: `[K]` bool, False for an agent that makes no updates. An agent becomes
            inactive when an update would not be finite.
        max_env_steps: Scalar int64, the environment steps after which no update starts.
        load, store: Functions of an agent's number that copy its weights to the variables
            of `step`, and back; `None` for a single agent.
        set_rates: Function that sets learning rates before each update but the first, or
            `None`.

    Returns:
        List of tensors `[U, K, …]`: the results of `step`, and the returns, the lengths
        and `terminated` of the episodes, zero for updates that did not start.
    """
    agents, count = rollout.num_agents, tf.shape(keys)[0]

    def update_agent(index, number, result, active, history):
        if load is not None:
            load(index)
        own = _result_of_agent(result, index, rollout)
        key = seeding.permutation_key(keys[number, index])
        metrics = _update(step, own, key, active[index])
        if store is not None:
            store(index)
        row = metrics, own.episode_returns, own.episodes.lengths, own.episodes.terminated
        active &= (tf.range(agents) != index) | (metrics[0] > 0)
        place = number * agents + index
        history = [array.write(place, x) for array, x in zip(history, row)]
        return index + 1, number, result, active, history

    def update(number, steps, active, history):
        if set_rates is not None:
            tf.cond(number > 0, set_rates, lambda: None)
        result = rollout(seeding.episode_keys(keys[number]))
        state = tf.constant(0), number, result, active, history
        if agents == 1:
            *_, active, history = update_agent(*state)
        else:
            *_, active, history = tf.while_loop(
                lambda index, *_: index < agents, update_agent, state, None, 1
            )
        steps += tf.reduce_sum(tf.cast(result.episodes.lengths, tf.int64))
        return number + 1, steps, active, history

    def goes_on(number, steps, active, _):
        return (number < count) & tf.reduce_any(active) & (steps < max_env_steps)

    specs = [(tf.float64, [1 + len(train_step.METRICS)]), (tf.float64, [rollout.count])]
    specs += [(dtype, [rollout.count]) for dtype in (tf.int32, tf.bool)]
    history = [tf.TensorArray(x, count * agents, element_shape=y) for x, y in specs]
    start = 0, tf.constant(0, tf.int64), active, history
    *_, history = tf.while_loop(goes_on, update, start, parallel_iterations=1)
    stacks = [array.stack() for array in history]
    return [tf.reshape(x, [count, agents, *x.shape[1:]]) for x in stacks]


def _result_of_agent(result, index, rollout):
    """Returns one agent's part of a `RolloutResult`."""
    if rollout.num_agents == 1:
        return result
    start = index * rollout.count
    stop = start + rollout.count
    return result._replace(
        episodes=records.select_episodes(result.episodes, start, stop),
        episode_returns=result.episode_returns[start:stop],
        valid=result.valid[start:stop],
    )


def _update(step, rollout_result, key, is_active):
    """Makes an update if the agent is active and all its episodes are valid.

    Args:
        step: `train_step.TrainStep`.
        rollout_result: `xla_rollout.RolloutResult`.
        key: `[2]` uint32, the key of the permutations, from `seeding.permutation_key`.
        is_active: Scalar bool.

    Returns:
        The result of `step`, or zeros.
    """
    episodes = records.trim(rollout_result.episodes)
    permutations = permutations_in_graph(key, step, episodes)
    return tf.cond(
        is_active & tf.reduce_all(rollout_result.valid),
        lambda: step(episodes, permutations),
        lambda: tf.zeros([1 + len(train_step.METRICS)], tf.float64),
    )


def permutations_in_graph(key, step, episodes):
    """Returns `[num_permutations, N]` int32, random orders of the N steps to train on."""
    if not step.num_permutations:
        return tf.zeros([0, 0], tf.int32)
    lengths = step.estimator.learned_lengths(episodes)
    steps, spec = tf.range(tf.reduce_sum(lengths)), [seeding.NoiseSpec("uniform", ())]

    def permutation(number):
        noise = tensor_noise.counter_noise(key, spec, steps, number, "float64")[0]
        return tf.argsort(noise)

    return tf.stack([*map(permutation, range(step.num_permutations))])
