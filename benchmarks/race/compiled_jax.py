"""The same training in JAX: environment, policy, returns, baseline, Adam in one jit.

    python compiled_jax.py [while | scan | gymnax]

A loop over steps that ends with the last episode (`scan`: one of 500 steps whatever
happens; `gymnax`: the first with the environment of that library), and a gradient summed
up in blocks of rows, of which only those are computed in which something happened.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import protocol
from jax import lax

RATE, GAMMA, HIDDEN, LIMIT, ROWS = 1e-2, 0.99, 64, 500, 64


def initial_weights(key):
    shapes = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]
    weights = []
    for shape, mine in zip(shapes, jax.random.split(key, 3), strict=True):
        most = np.sqrt(6 / sum(shape))  # Glorot's, as in Keras
        kernel = jax.random.uniform(mine, shape, minval=-most, maxval=most)
        weights += [kernel, jnp.zeros(shape[1])]
    return weights


def logits_of(weights, x):
    for i in range(2):
        x = jnp.tanh(x @ weights[2 * i] + weights[2 * i + 1])
    return x @ weights[4] + weights[5]


def transition(state, action):
    x, speed, angle, turning = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    push = (force + 0.05 * turning**2 * sine) / 1.1
    swing = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
    pull = push - 0.05 * swing * cosine / 1.1
    return state + 0.02 * jnp.stack([speed, pull, turning, swing], axis=1)


def terminal(state):
    return (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 12 * 2 * np.pi / 360)


class Twin:
    """CartPole-v1, written out."""

    def initial(self, key, envs):
        return jax.random.uniform(key, (envs, 4), minval=-0.05, maxval=0.05)

    def observation(self, state):
        return state

    def step(self, key, state, action):
        following = transition(state, action)
        return following, terminal(following)


class Gymnax:
    """That of gymnax, without its way of beginning anew at every step."""

    def __init__(self):
        import gymnax

        self.env, self.settings = gymnax.make("CartPole-v1")

    def initial(self, key, envs):
        keys = jax.random.split(key, envs)
        return jax.vmap(self.env.reset_env, (0, None))(keys, self.settings)[1]

    def observation(self, state):
        return jax.vmap(self.env.get_obs)(state)

    def step(self, key, state, action):
        step = jax.vmap(self.env.step_env, (None, 0, 0, None))
        _, state, _, over, *_ = step(key, state, action, self.settings)
        return state, over


def play(weights, key, envs):
    """Observations, actions `[T, B]` and lengths `[B]` of whole episodes."""
    first, key = jax.random.split(key)
    state = WORLD.initial(first, envs)
    seen = jnp.zeros((LIMIT, envs, 4))
    done = jnp.zeros((LIMIT, envs), jnp.int32)

    def step(now):
        t, state, alive, lengths, key, seen, done = now
        key, mine = jax.random.split(key)
        observation = WORLD.observation(state)
        action = jax.random.categorical(mine, logits_of(weights, observation))
        following, over = WORLD.step(mine, state, action)
        seen, done = seen.at[t].set(observation), done.at[t].set(action)
        lengths, alive = lengths + alive, alive & ~over
        return t + 1, following, alive, lengths, key, seen, done

    now = 0, state, jnp.ones(envs, bool), jnp.zeros(envs, jnp.int32), key, seen, done
    if LOOP == "scan":
        now, _ = lax.scan(lambda now, _: (step(now), None), now, length=LIMIT)
    else:
        now = lax.while_loop(lambda now: (now[0] < LIMIT) & now[2].any(), step, now)
    return now[5], now[6], now[3]


def advantages_of(lengths):
    """Returns to go less the mean return of the other episodes still running."""
    happened = jnp.arange(LIMIT)[:, None] < lengths
    left = (lengths - jnp.arange(LIMIT)[:, None]) * happened
    returns = jnp.where(happened, (1 - GAMMA**left) / (1 - GAMMA), 0.0)
    others = happened.sum(1, keepdims=True) - 1
    mean = (returns.sum(1, keepdims=True) - returns) / jnp.maximum(others, 1)
    return jnp.where(happened, returns - jnp.where(others > 0, mean, 0.0), 0.0)


def gradient_of(weights, seen, done, lengths):
    advantages = advantages_of(lengths) / len(lengths)

    def loss(weights, seen, done, advantages):
        log_probs = jax.nn.log_softmax(logits_of(weights, seen))
        taken = jnp.take_along_axis(log_probs, done[..., None], axis=-1)[..., 0]
        return -(taken * advantages).sum()

    def add(block, total):
        rows = [
            lax.dynamic_slice_in_dim(x, block * ROWS, ROWS)
            for x in (seen, done, advantages)
        ]
        more = jax.grad(loss)(weights, *rows)
        return [a + b for a, b in zip(total, more, strict=True)]

    blocks = -(-lengths.max() // ROWS)
    zeros = [jnp.zeros_like(w) for w in weights]
    pad = -LIMIT % ROWS
    seen, done, advantages = (
        jnp.pad(x, [(0, pad), *[(0, 0)] * (x.ndim - 1)]) for x in (seen, done, advantages)
    )
    return lax.fori_loop(0, blocks, add, zeros)


def adam(weights, gradients, moments, count):
    first, second = moments
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
    second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradients, strict=True)]
    rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    moved = zip(weights, first, second, strict=True)
    weights = [w - rate * m / (jnp.sqrt(v) + 1e-7) for w, m, v in moved]
    return weights, (first, second)


@functools.partial(jax.jit, static_argnums=(1, 2))
def training(key, envs, updates):
    begin, key = jax.random.split(key)
    weights = initial_weights(begin)
    zeros = [jnp.zeros_like(w) for w in weights]

    def update(now, number):
        weights, moments, key = now
        key, mine = jax.random.split(key)
        seen, done, lengths = play(weights, mine, envs)
        gradients = gradient_of(weights, seen, done, lengths)
        weights, moments = adam(weights, gradients, moments, number + 1.0)
        return (weights, moments, key), (lengths.mean(), lengths.sum())

    now = weights, (zeros, zeros), key
    _, (returns, steps) = lax.scan(update, now, jnp.arange(updates))
    return returns, steps


def train(envs, updates, seed):
    began = time.perf_counter()
    returns, steps = training(jax.random.key(seed), envs, updates)
    steps = int(steps.sum())
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "steps": steps, "returns": np.array(returns).tolist()}


def gradient(weights, observations, actions, lengths):
    seen, done = np.array(observations, "float32"), np.array(actions, "int32")
    rows = [(0, LIMIT - len(done)), (0, 0)]
    seen = np.pad(seen[: len(done)], [*rows, (0, 0)])
    weights = [jnp.array(w, jnp.float32) for w in weights]
    found = gradient_of(weights, seen, np.pad(done, rows), jnp.array(lengths))
    return {"gradients": [np.array(g).tolist() for g in found]}


LOOP = sys.argv[1] if len(sys.argv) > 1 else "while"
WORLD = Gymnax() if LOOP == "gymnax" else Twin()

if __name__ == "__main__":
    protocol.serve({"train": train, "gradient": gradient})
