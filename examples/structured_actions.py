"""Two tasks whose actions have structure: a pair of choices, and a choice among rows.

    python examples/structured_actions.py --task units [--head composite] [--seed SEED]
    python examples/structured_actions.py --task jobs [--updates UPDATES]

In `units`, independent parts cannot pass a bound, and the head `Autoregressive` does. In
`jobs`, a job shop, the head `Pointer` learns from five to eight jobs, and then schedules
twelve.

If everything is observed, some best policy is deterministic, and independent parts can
represent it. They cannot if the best policy is random and its parts must match. In
`units`, a unit that has just acted misses, but the observation does not show which one
that was. A policy without memory is thus the same distribution π(u, v) over units and
targets in all T steps, with the marginals p(u) and q(v). If m(u) is the only target that
u can hit, the expected return is

    J = Σᵤ π(u, m(u)) [1 + (T - 1)(1 - p(u))]

With independent parts, π(u, m(u)) = p(u) q(m(u)). J is then a mean, with the weights q,
of the numbers p(u) [1 + (T - 1)(1 - p(u))]. Each of these is at most T² / (4 (T - 1)),
its value at p(u) = T / (2 (T - 1)): 25/16 if T = 5, for any number of units.

With dependent parts, π(u, m(u)) = p(u) is possible, and J = 1 + (T - 1)(1 - Σᵤ p(u)²).
The best of K units is a random one: J = 1 + (T - 1)(1 - 1/K), which is 4 if K = 4.
"""

import argparse
import itertools

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

import tf_reinforce as tfr

STEPS, UNITS = 5, 4
BOUND = STEPS**2 / (4 * (STEPS - 1))  # of independent parts
OPTIMUM = 1 + (STEPS - 1) * (1 - 1 / UNITS)
MAX_JOBS = 12


class Units(tfr.envs.TensorEnv):
    """Each unit can hit one target, which the observation shows.

    The reward is 1 for a hit. A unit that also acted in the step before misses.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (UNITS * UNITS,))
    action_space = gym.spaces.Dict(
        unit=gym.spaces.Discrete(UNITS), target=gym.spaces.Discrete(UNITS)
    )
    max_episode_steps = STEPS
    initial_noise = tfr.envs.NoiseSpec("uniform", (UNITS,))

    def initial(self, noise):
        zeros = tf.zeros_like(noise[:, 0], tf.int64)
        targets = tf.argsort(noise, axis=1)  # `[B, K]`, the target of each unit
        return {"targets": targets, "last": zeros - 1, "time": zeros}

    def observation(self, state):
        table = tf.one_hot(state["targets"], UNITS, dtype=self.dtype)
        return tf.reshape(table, [-1, UNITS * UNITS])

    def transition(self, state, action, noise):
        return {**state, "last": action["unit"], "time": state["time"] + 1}

    def reward(self, state, action, next_state):
        target = tf.gather(state["targets"], action["unit"], batch_dims=1)
        is_own = action["target"] == tf.cast(target, tf.int64)
        return tf.cast(is_own & (action["unit"] != state["last"]), self.dtype)

    def terminal(self, state):
        return state["time"] == STEPS


class Jobs(tfr.envs.TensorEnv):
    """A job shop: each job visits two machines, some first the one, some the other.

    The next operation of the chosen job joins the queue of its machine. It starts as soon
    as this machine and the job are free. The return is -makespan / shortest makespan, so
    the gap to the optimum is -1 - return.
    """

    # The duration of a job's next operation, of the one after it, its machine, and the
    # time until it can start. A row of zeros is no job, or one that is complete.
    observation_space = gym.spaces.Box(0.0, np.inf, (MAX_JOBS, 4))
    action_space = gym.spaces.Discrete(MAX_JOBS)
    max_episode_steps = 2 * MAX_JOBS
    initial_noise = tfr.envs.NoiseSpec("uniform", (MAX_JOBS + 1, 3))

    def __init__(self, fewest, most, **kwargs):
        super().__init__(**kwargs)
        self.fewest, self.most = fewest, most

    def initial(self, noise):
        choices = self.most - self.fewest + 1
        count = self.fewest + tf.cast(choices * noise[:, -1, :1], tf.int32)
        exists = tf.range(MAX_JOBS) < count
        durations = tf.where(exists[..., None], 0.1 + 0.9 * noise[:, :-1, :2], 0.0)
        machine = tf.cast(noise[:, :-1, 2] < 0.5, tf.int32)  # of the first operation
        return {
            "durations": durations,  # zero for operations that are complete
            "machine": machine,
            "job_free": tf.zeros_like(durations[..., 0]),
            "machine_free": tf.zeros_like(durations[:, 0]),
            "shortest": shortest_makespan(durations, machine),
        }

    def _next(self, state):
        """Returns duration, machine and start of each job's next operation."""
        is_first = state["durations"][..., 0] > 0
        duration = tf.where(is_first, *tf.unstack(state["durations"], axis=-1))
        machine = tf.where(is_first, state["machine"], 1 - state["machine"])
        free = tf.gather(state["machine_free"], machine, batch_dims=1)
        return duration, machine, tf.maximum(free, state["job_free"])

    def observation(self, state):
        duration, machine, start = self._next(state)
        after = tf.reduce_sum(state["durations"], axis=-1) - duration
        wait = start - tf.reduce_min(state["machine_free"], axis=1, keepdims=True)
        rows = [duration, after, tf.cast(machine, self.dtype), wait]
        return tf.where(duration[..., None] > 0, tf.stack(rows, axis=-1), 0.0)

    def action_mask(self, state):
        return state["durations"][..., 1] > 0

    def transition(self, state, action, noise):
        duration, machine, start = self._next(state)
        end = start + duration
        is_job = tf.one_hot(action, MAX_JOBS, on_value=True, off_value=False)
        is_second = is_job & (state["durations"][..., 0] == 0)
        is_complete = tf.stack([is_job, is_second], axis=-1)
        place = tf.gather(machine, action, batch_dims=1)
        is_machine = tf.one_hot(place, 2, on_value=True, off_value=False)
        own_end = tf.gather(end, action, batch_dims=1)[:, None]
        return {
            **state,
            "durations": tf.where(is_complete, 0.0, state["durations"]),
            "job_free": tf.where(is_job, end, state["job_free"]),
            "machine_free": tf.where(is_machine, own_end, state["machine_free"]),
        }

    def reward(self, state, action, next_state):
        before, after = (
            tf.reduce_max(x["machine_free"], axis=1) for x in (state, next_state)
        )
        return (before - after) / state["shortest"]

    def terminal(self, state):
        return tf.reduce_all(state["durations"][..., 1] == 0, axis=1)


def shortest_makespan(durations, machine):
    """Returns the shortest makespan of job shops with two machines (Jackson, 1956).

    Each machine first processes the jobs that begin there, in the order of Johnson (1954)
    for two machines in series, and then those that come from the other machine.
    """
    first, second = tf.unstack(durations, axis=-1)
    order = tf.argsort(tf.where(first < second, first, 10.0 - second))
    ends = []
    for last in (0, 1):  # machine on which the jobs end that begin on the other
        arrives = machine != last
        busy = tf.reduce_sum(tf.where(arrives, 0.0, first), axis=1)
        before, own = (
            tf.gather(tf.where(arrives, x, 0.0), order, batch_dims=1)
            for x in (first, second)
        )
        left = tf.cumsum(own, axis=1, reverse=True)
        waits = tf.reduce_max(tf.cumsum(before, axis=1) + left, axis=1)
        ends.append(tf.maximum(busy + left[:, 0], waits))
    return tf.maximum(*ends)


def make_units_agent(head="autoregressive", seed=0):
    """Returns an agent whose parts depend on each other, or are independent."""
    dependent = {"kind": "autoregressive", "order": ["unit", "target"]}
    is_dependent = head == "autoregressive"
    return tfr.Reinforce.for_env(
        Units(),
        head=dependent if is_dependent else None,  # by default, it is `Composite`
        gamma=1.0,
        learning_rate=0.02,
        # The bonus keeps the unit random until the target has learned to follow it.
        # Independent parts come closest to their bound without one.
        entropy_coef=0.2 if is_dependent else 0.0,
        steps_per_execution=10,
        seed=seed,
    )


def expected_return(agent):
    """Returns the exact J of an agent for `units`, the mean over all m."""
    targets = np.array(list(itertools.permutations(range(UNITS))))
    states = {"targets": tf.repeat(targets, UNITS**2, axis=0)}
    pairs = np.array(list(itertools.product(range(UNITS), repeat=2)))
    unit, target = np.tile(pairs, (len(targets), 1)).T
    laws = agent.head.distribution(agent.policy(Units().observation(states)))
    log_probs = laws.log_prob({"unit": tf.constant(unit), "target": tf.constant(target)})
    probs = np.exp(log_probs).reshape(-1, UNITS, UNITS)
    p = probs.sum(axis=2)
    hits = np.take_along_axis(probs, targets[..., None], axis=2)[..., 0]
    return float((hits * (1 + (STEPS - 1) * (1 - p))).sum(axis=1).mean())


def make_jobs_agent(seed=0):
    """Returns an agent that treats all jobs alike, whatever their number and order."""
    keras.utils.set_random_seed(seed)
    jobs = keras.Input((MAX_JOBS, 4))
    encoded = keras.layers.Dense(32, "tanh")(keras.layers.Dense(32, "tanh")(jobs))
    query = keras.layers.Dense(8)(keras.layers.GlobalAveragePooling1D()(encoded))
    keys = keras.layers.Dense(8)(encoded)
    outputs = keras.layers.Concatenate()([query, keras.layers.Flatten()(keys)])
    agent = tfr.Reinforce(
        keras.Model(jobs, outputs),
        tfr.heads.Pointer(MAX_JOBS, key_dim=8),
        gamma=1.0,
        action_mask="info/action_mask",
    )
    agent.compile(keras.optimizers.Adam(3e-3))
    return agent


def gap(agent, env, episodes=1000, **kwargs):
    """Returns by which share an agent's makespan exceeds the shortest, as a mean."""
    return -1.0 - agent.evaluate(env, episodes=episodes, **kwargs)["episode_return"]


def random_gap(env, episodes=1000):
    """Returns the gap of operations in random order."""
    agent = make_jobs_agent()
    for weight in agent.policy.weights:
        weight.assign(tf.zeros_like(weight))
    return gap(agent, env, episodes, deterministic=False)


def train_units(head, seed, updates=500):
    agent = make_units_agent(head, seed)
    agent.fit(Units(), epochs=updates, episodes_per_epoch=128, seed=seed)
    result = f"{expected_return(agent):.2f}"
    print(f"{head}: {result}, bound {BOUND:.2f}, optimum {OPTIMUM:.2f}")


def train_jobs(seed, updates=80):
    agent = make_jobs_agent(seed)
    agent.fit(Jobs(5, 8), epochs=updates, episodes_per_epoch=64, seed=seed)
    for name, env in (("5 to 8", Jobs(5, 8)), ("12", Jobs(12, 12))):
        gaps = f"gap {gap(agent, env):.1%}, in random order {random_gap(env):.0%}"
        print(f"{name} jobs: {gaps}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("units", "jobs"), default="units")
    heads = ("autoregressive", "composite")
    parser.add_argument("--head", choices=heads, default=heads[0], help="for units")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, help="by default, 500 or 80")
    options = parser.parse_args()
    updates = {} if options.updates is None else {"updates": options.updates}
    if options.task == "units":
        train_units(options.head, options.seed, **updates)
    else:
        train_jobs(options.seed, **updates)
