"""Tasks that need a memory, for a policy with attention over time or with a GRU.

    python examples/memory.py [--task TASK] [--memory attention | gru] [--seed SEED]
                              [--length LENGTH] [--updates UPDATES]

- `tmaze`: a sign in the first step of a corridor tells where to turn at its end, 200
  steps later (Bakker, 2002; Ni et al., 2023, When do transformers shine in RL?).
- `cartpole`: CartPole-v1 without the two velocities.
- `pendulum`: Pendulum-v1 without the velocity.
- `repeat`: name the card of four steps ago (Morad et al., 2023, POPGym).

All of them are tensor environments, so collecting and learning run in one XLA program.
"""

import argparse
import functools
import time

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

import tf_reinforce as tfr


class TMaze(tfr.envs.TensorEnv):
    """A corridor of `length` steps with a junction at its end, and a sign at its start.

    The observation is one of four signals, one-hot: the goal is up, or down (only in the
    first step); corridor; junction. The actions are right, up, left and down. An episode
    has `length + 1` steps, just enough to walk to the junction and to turn. The last
    reward is 1 at the goal and 0 elsewhere. Each earlier step that ends behind this
    schedule costs 1 / length. So the return is 1 with the goal, and at most 0 without it.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (4,))
    action_space = gym.spaces.Discrete(4)

    def __init__(self, length=200, dtype="float32"):
        super().__init__(dtype)
        self.length, self.max_episode_steps = length, length + 1

    def initial(self, noise):
        zeros = tf.zeros_like(noise, tf.int32)
        goal = tf.where(noise < 0.5, -1, 1)
        return {"goal": goal, "x": zeros, "y": zeros, "time": zeros}

    def observation(self, state):
        first, end = state["time"] == 0, state["x"] == self.length
        up, down = first & (state["goal"] == 1), first & (state["goal"] == -1)
        signals = tf.stack([up, down, ~first & ~end, ~first & end], axis=-1)
        return tf.cast(signals, self.dtype)

    def transition(self, state, action, noise):
        x, end = state["x"], state["x"] == self.length
        y = tf.where(end, tf.gather([0, 1, 0, -1], action), 0)
        x = tf.clip_by_value(x + tf.gather([1, 0, -1, 0], action), 0, self.length)
        return {"goal": state["goal"], "x": x, "y": y, "time": state["time"] + 1}

    def reward(self, state, action, next_state):
        is_right = tf.cast(next_state["y"] == next_state["goal"], self.dtype)
        is_late = tf.cast(next_state["x"] < next_state["time"], self.dtype)
        return tf.where(self.terminal(next_state), is_right, -is_late / self.length)

    def terminal(self, state):
        return state["time"] > self.length


class CartPole(tfr.envs.CartPole):
    """CartPole-v1 without velocities: the position of the cart and the pole's angle."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))

    def observation(self, state):
        return tf.stack([state[:, 0], state[:, 2]], axis=-1)


class Pendulum(tfr.envs.Pendulum):
    """Pendulum-v1 without velocity: cosine and sine of the angle."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def observation(self, state):
        return super().observation(state)[:, :2]


class RepeatPrevious(tfr.envs.TensorEnv):
    """Shows the suits of 52 shuffled cards, and asks for the suit `delay` steps ago.

    From step `delay` on, a right answer has the reward 1 / (52 - delay), and a wrong one
    the same with a minus sign.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (4,))
    action_space = gym.spaces.Discrete(4)
    max_episode_steps = 52
    initial_noise = tfr.envs.NoiseSpec("uniform", (52,))

    def __init__(self, delay=4, dtype="float32"):
        super().__init__(dtype)
        self.delay = delay

    def initial(self, noise):
        time = tf.zeros_like(noise[:, 0], tf.int32)
        return {"suits": tf.argsort(noise) % 4, "time": time}

    def observation(self, state):
        return tf.one_hot(self._suit(state, state["time"]), 4, dtype=self.dtype)

    def transition(self, state, action, noise):
        return {"suits": state["suits"], "time": state["time"] + 1}

    def reward(self, state, action, next_state):
        asked = state["time"] - self.delay
        is_right = tf.cast(action, tf.int32) == self._suit(state, asked)
        points = tf.where(asked < 0, 0.0, tf.where(is_right, 1.0, -1.0))
        return tf.cast(points, self.dtype) / (self.max_episode_steps - self.delay)

    def terminal(self, state):
        return state["time"] >= self.max_episode_steps

    def _suit(self, state, time):
        time = tf.clip_by_value(time, 0, self.max_episode_steps - 1)
        return tf.gather(state["suits"], time, batch_dims=1)


def make_policy(env, memory, window, outputs, is_signal):
    """Returns a policy of sequences, `[B, T, D]`, to outputs, `[B, T, outputs]`."""
    inputs = keras.Input((None, *env.observation_space.shape))
    if is_signal:
        # One-hot signals become orthogonal vectors. With attention, they are at first
        # larger than the memory that is added to them. Otherwise the junction looks like
        # the corridor, and the policy would go straight on there before it has ever been
        # there. From scaled inputs, the softmax of some heads is sharp from the start, so
        # one step does not vanish in the mean over all others.
        gain = 2.0 if memory == "gru" else 16.0
        orthogonal = keras.initializers.Orthogonal(gain)
        x = keras.layers.Dense(32, kernel_initializer=orthogonal)(inputs)
        heads, key_dim, scale = 8, 16, 2.0
    else:
        # Layer normalization loses the size of an input, but not that of a bias.
        bias = keras.initializers.RandomNormal(stddev=1.0)
        kwargs = {"kernel_initializer": "orthogonal", "bias_initializer": bias}
        x = keras.layers.Dense(32, "tanh", **kwargs)(inputs)
        heads, key_dim, scale = 4, 8, 1.0
    if memory == "gru":
        x = keras.layers.GRU(32, return_sequences=True)(x)
    else:
        gain = keras.initializers.Constant(scale)
        normal = keras.layers.LayerNormalization(gamma_initializer=gain)(x)
        layer = tfr.layers.CausalSelfAttention(heads, key_dim, window=window)
        x = keras.layers.Add()([x, layer(normal)])
        x = keras.layers.LayerNormalization()(x)
    last = "glorot_uniform"
    if is_signal and memory == "attention":
        x = keras.layers.Dense(64, "tanh")(x)  # to act otherwise on a memory of a signal
        last = keras.initializers.Orthogonal(0.01)  # all actions begin equally likely
    elif is_signal:
        x = keras.layers.Dense(64, "relu")(x)
    return keras.Model(inputs, keras.layers.Dense(outputs, kernel_initializer=last)(x))


decay = keras.optimizers.schedules.PolynomialDecay

TASKS = {
    "tmaze": dict(
        env=TMaze,
        policy=dict(window=202, outputs=4, is_signal=True),
        agent=dict(gamma=0.97, entropy_coef=0.05),
        # 16 episodes with one goal are compared with each other. With a baseline over
        # both goals, a policy that always turns up would have positive advantages at the
        # one goal and negative ones at the other, and their noise keeps it from learning.
        group_size=16,
        optimizer=dict(learning_rate=2e-3, beta_2=0.99),
        episodes=128,
        updates=200,
        targets=[0.98],  # training stops when an update and a validation reach it
    ),
    "cartpole": dict(
        env=CartPole,
        policy=dict(window=16, outputs=2, is_signal=False),
        agent=dict(gamma=0.99, normalize_observations=True),
        optimizer=dict(learning_rate=decay(3e-3, 250, 0.0)),
        episodes=16,
        updates=250,
        targets=[],
    ),
    "pendulum": dict(
        env=Pendulum,
        policy=dict(window=16, outputs=1, is_signal=False),
        agent=dict(gamma=0.9, mean_over="steps"),
        optimizer=dict(learning_rate=1e-3),
        episodes=32,
        updates=1000,
        targets=[],
    ),
    "repeat": dict(
        env=RepeatPrevious,
        policy=dict(window=16, outputs=4, is_signal=True),
        agent=dict(gamma=0.0, entropy_coef=0.01),
        optimizer=dict(learning_rate=3e-3),
        episodes=64,
        updates=300,
        targets=[0.98],
    ),
}


def make_agent(name, env, memory, seed):
    """Returns an agent that is not yet trained."""
    keras.utils.set_random_seed(seed)
    task = TASKS[name]
    policy = make_policy(env, memory, **task["policy"])
    size = task.get("group_size")
    baseline = tfr.baselines.LeaveOneOut(size) if size else "time_step"
    kwargs = {"baseline": baseline, "scale_advantages": "running", **task["agent"]}
    agent = tfr.Reinforce(policy, **kwargs)
    optimizer = keras.optimizers.Adam(**task["optimizer"], global_clipnorm=1.0)
    agent.compile(optimizer, steps_per_execution=10)
    return agent


def train(name, memory, seed, updates=None, **env_kwargs):
    """Returns a trained agent, its environment, and Keras' `History`."""
    task = TASKS[name]
    env = task["env"](**env_kwargs)
    agent = make_agent(name, env, memory, seed)
    updates = updates or task["updates"]
    stop = functools.partial(tfr.callbacks.StopAtReturn, monitor="val_episode_return")
    history = agent.fit(
        env,
        epochs=updates,
        episodes_per_epoch=task["episodes"],
        seed=seed,
        validation_env=env,
        validation_freq=updates,
        validation_episodes=100,
        callbacks=[stop(x) for x in task["targets"]],
        verbose=0,
    )
    return agent, env, history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="tmaze")
    parser.add_argument("--memory", choices=("attention", "gru"), default="attention")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, help="of the corridor of the T-maze")
    parser.add_argument("--updates", type=int)
    options = parser.parse_args()
    kwargs = {"length": options.length} if options.length else {}
    start = time.time()
    arguments = options.task, options.memory, options.seed, options.updates
    agent, env, _ = train(*arguments, **kwargs)
    result = agent.evaluate(env, episodes=100)
    print(
        f"{options.task}, {options.memory}: mean return {result['episode_return']:.3f} "
        f"after {agent.updates} updates and {time.time() - start:.0f} s"
    )
