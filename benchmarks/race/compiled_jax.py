"""Trains in JAX: environment, policy, returns, baseline and Adam in one `jit`.

    python compiled_jax.py [while | scan]

`while` is a loop over steps that ends with the last episode. `scan` always loops over 500
steps. The gradient is a sum over blocks of rows; blocks without valid steps are not
computed.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import protocol
from jax import lax

LEARNING_RATE, GAMMA, HIDDEN, MAX_STEPS, ROWS = 1e-2, 0.99, 64, 500, 64


def initial_weights(key):
    shapes = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]
    weights = []
    for shape, kernel_key in zip(shapes, jax.random.split(key, 3), strict=True):
        limit = np.sqrt(6 / sum(shape))  # Glorot initialization, as in Keras
        kernel = jax.random.uniform(kernel_key, shape, minval=-limit, maxval=limit)
        weights += [kernel, jnp.zeros(shape[1])]
    return weights


def logits_of(weights, x):
    for i in range(2):
        x = jnp.tanh(x @ weights[2 * i] + weights[2 * i + 1])
    return x @ weights[4] + weights[5]


def transition(state, action):
    x, velocity, angle, angular_velocity = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    force_acceleration = (force + 0.05 * angular_velocity**2 * sine) / 1.1
    angular_acceleration = (9.8 * sine - cosine * force_acceleration) / (
        0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1)
    )
    acceleration = force_acceleration - 0.05 * angular_acceleration * cosine / 1.1
    return state + 0.02 * jnp.stack(
        [velocity, acceleration, angular_velocity, angular_acceleration], axis=1
    )


def terminal(state):
    return (jnp.abs(state[:, 0]) > 2.4) | (jnp.abs(state[:, 2]) > 12 * 2 * np.pi / 360)


def collect(weights, key, num_envs):
    """Returns observations and actions `[T, B]` and lengths `[B]` of whole episodes."""
    reset_key, key = jax.random.split(key)
    state = jax.random.uniform(reset_key, (num_envs, 4), minval=-0.05, maxval=0.05)
    observations = jnp.zeros((MAX_STEPS, num_envs, 4))
    actions = jnp.zeros((MAX_STEPS, num_envs), jnp.int32)

    def step(carry):
        t, state, active, lengths, key, observations, actions = carry
        key, step_key = jax.random.split(key)
        action = jax.random.categorical(step_key, logits_of(weights, state))
        next_state = transition(state, action)
        ended = terminal(next_state)
        observations = observations.at[t].set(state)
        actions = actions.at[t].set(action)
        lengths, active = lengths + active, active & ~ended
        return t + 1, next_state, active, lengths, key, observations, actions

    active, lengths = jnp.ones(num_envs, bool), jnp.zeros(num_envs, jnp.int32)
    carry = 0, state, active, lengths, key, observations, actions
    if LOOP == "scan":
        carry, _ = lax.scan(lambda carry, _: (step(carry), None), carry, length=MAX_STEPS)
    else:
        carry = lax.while_loop(
            lambda carry: (carry[0] < MAX_STEPS) & carry[2].any(), step, carry
        )
    return carry[5], carry[6], carry[3]


def advantages_of(lengths):
    """Returns the returns to go, minus the mean return of other episodes at that step."""
    valid = jnp.arange(MAX_STEPS)[:, None] < lengths
    remaining = (lengths - jnp.arange(MAX_STEPS)[:, None]) * valid
    returns = jnp.where(valid, (1 - GAMMA**remaining) / (1 - GAMMA), 0.0)
    num_others = valid.sum(1, keepdims=True) - 1
    mean = (returns.sum(1, keepdims=True) - returns) / jnp.maximum(num_others, 1)
    return jnp.where(valid, returns - jnp.where(num_others > 0, mean, 0.0), 0.0)


def gradient_of(weights, observations, actions, lengths):
    advantages = advantages_of(lengths) / len(lengths)

    def loss(weights, observations, actions, advantages):
        log_probs = jax.nn.log_softmax(logits_of(weights, observations))
        action_log_probs = jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[
            ..., 0
        ]
        return -(action_log_probs * advantages).sum()

    def add(block, total):
        rows = [
            lax.dynamic_slice_in_dim(x, block * ROWS, ROWS)
            for x in (observations, actions, advantages)
        ]
        block_gradient = jax.grad(loss)(weights, *rows)
        return [a + b for a, b in zip(total, block_gradient, strict=True)]

    blocks = -(-lengths.max() // ROWS)
    zeros = [jnp.zeros_like(w) for w in weights]
    pad = -MAX_STEPS % ROWS
    observations, actions, advantages = (
        jnp.pad(x, [(0, pad), *[(0, 0)] * (x.ndim - 1)])
        for x in (observations, actions, advantages)
    )
    return lax.fori_loop(0, blocks, add, zeros)


def adam(weights, gradients, moments, count):
    first, second = moments
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
    second = [0.999 * v + 0.001 * g**2 for v, g in zip(second, gradients, strict=True)]
    scale = LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    updates = zip(weights, first, second, strict=True)
    weights = [w - scale * m / (jnp.sqrt(v) + 1e-7) for w, m, v in updates]
    return weights, (first, second)


@functools.partial(jax.jit, static_argnums=(1, 2))
def training(key, num_envs, updates):
    weights_key, key = jax.random.split(key)
    weights = initial_weights(weights_key)
    zeros = [jnp.zeros_like(w) for w in weights]

    def update(carry, number):
        weights, moments, key = carry
        key, update_key = jax.random.split(key)
        observations, actions, lengths = collect(weights, update_key, num_envs)
        gradients = gradient_of(weights, observations, actions, lengths)
        weights, moments = adam(weights, gradients, moments, number + 1.0)
        return (weights, moments, key), (lengths.mean(), lengths.sum())

    carry = weights, (zeros, zeros), key
    _, (returns, steps) = lax.scan(update, carry, jnp.arange(updates))
    return returns, steps


def train(num_envs, updates, seed):
    start = time.perf_counter()
    returns, steps = training(jax.random.key(seed), num_envs, updates)
    steps = int(steps.sum())
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "steps": steps, "returns": np.array(returns).tolist()}


def gradient(weights, observations, actions, lengths):
    observations = np.array(observations, "float32")
    actions = np.array(actions, "int32")
    padding = [(0, MAX_STEPS - len(actions)), (0, 0)]
    observations = np.pad(observations[: len(actions)], [*padding, (0, 0)])
    weights = [jnp.array(w, jnp.float32) for w in weights]
    gradients = gradient_of(
        weights, observations, np.pad(actions, padding), jnp.array(lengths)
    )
    return {"gradients": [np.array(g).tolist() for g in gradients]}


LOOP = sys.argv[1] if len(sys.argv) > 1 else "while"

if __name__ == "__main__":
    protocol.serve({"train": train, "gradient": gradient})
