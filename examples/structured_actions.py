"""Two tasks whose actions have structure: a pair of choices, and a choice among rows.

    python examples/structured_actions.py --task units [--head composite] [--seed SEED]
    python examples/structured_actions.py --task jobs [--updates UPDATES]

In `units`, independent parts cannot pass a bound, and the head `Autoregressive` does. In
`jobs`, the head `Pointer` learns from five to eight jobs, and then schedules twelve.

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
    """A machine processes jobs with durations dⱼ and weights wⱼ, one after the other.

    The cost is Σⱼ wⱼ Cⱼ, where Cⱼ is the time at which job j is complete. It is lowest if
    jobs run in the order of wⱼ / dⱼ, the highest first (Smith, 1956). The return is
    -cost / lowest cost, so the gap to the optimum is -1 - return.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (MAX_JOBS, 2))  # zeros: no such job
    action_space = gym.spaces.Discrete(MAX_JOBS)
    max_episode_steps = MAX_JOBS
    initial_noise = tfr.envs.NoiseSpec("uniform", (MAX_JOBS + 1, 2))

    def __init__(self, fewest, most, **kwargs):
        super().__init__(**kwargs)
        self.fewest, self.most = fewest, most

    def initial(self, noise):
        choices = self.most - self.fewest + 1
        count = self.fewest + tf.cast(choices * noise[:, -1, :1], tf.int32)
        exists = tf.range(MAX_JOBS) < count
        jobs = tf.where(exists[..., None], 0.1 + 0.9 * noise[:, :-1], 0.0)
        ratios = tf.math.divide_no_nan(jobs[..., 1], jobs[..., 0])
        order = tf.argsort(ratios, direction="DESCENDING")
        durations, weights = tf.unstack(tf.gather(jobs, order, batch_dims=1), axis=-1)
        lowest = tf.reduce_sum(tf.cumsum(durations, axis=1) * weights, axis=1)
        return {"jobs": jobs, "lowest": lowest}

    def observation(self, state):
        return state["jobs"]

    def action_mask(self, state):
        return state["jobs"][..., 0] > 0

    def transition(self, state, action, noise):
        is_chosen = tf.one_hot(action, MAX_JOBS, on_value=True, off_value=False)
        return {**state, "jobs": tf.where(is_chosen[..., None], 0.0, state["jobs"])}

    def reward(self, state, action, next_state):
        # The chosen job delays all that are left, itself included.
        duration = tf.gather(state["jobs"][..., 0], action, batch_dims=1)
        return -duration * tf.reduce_sum(state["jobs"][..., 1], axis=1) / state["lowest"]

    def terminal(self, state):
        return tf.reduce_all(state["jobs"][..., 0] == 0, axis=1)


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
    jobs = keras.Input((MAX_JOBS, 2))
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


def gap(agent, env, episodes=1000):
    """Returns how much an agent's cost exceeds the lowest cost, as a mean of shares."""
    return -1.0 - agent.evaluate(env, episodes=episodes)["episode_return"]


def random_gap(env, episodes=1000):
    """Returns the expected gap of jobs in random order, in which wⱼ waits for dₖ / 2."""
    noise = np.random.default_rng(0).random((episodes, *env.initial_noise.shape))
    state = env.initial(tf.constant(noise, env.dtype))
    durations, weights = np.moveaxis(state["jobs"].numpy(), -1, 0)
    waits = (durations + durations.sum(axis=1, keepdims=True)) / 2
    return float(np.mean((waits * weights).sum(axis=1) / state["lowest"]) - 1)


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
