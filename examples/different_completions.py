"""Trains a language model with completions that are all different.

    python examples/different_completions.py [--k 4] [--updates 600] [--independent]

A model that has learned something repeats itself: of k independent completions of a
prompt, several are the same, and tell nothing new. Stochastic beam search (Kool, van
Hoof & Welling, 2019) draws k different ones, exactly as if completions were drawn one
after the other without replacement. The unordered-set estimator (2020) makes an unbiased
gradient of the expected reward from them. `--independent` draws independent completions
instead, and subtracts the mean reward of the others.

The task is to write three digits in the reverse order. The reward is 1 for the right
answer, else 0.
"""

import argparse
import itertools

import keras
import numpy as np
import tensorflow as tf

import tf_reinforce as tfr

VOCABULARY, LENGTH = 5, 3


def make_model(width=64):
    """Returns a model from tokens `[N, T]` to logits of the next ones, `[N, T, V]`."""
    tokens = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, width)(tokens)
    hidden = keras.layers.GRU(width, return_sequences=True)(hidden)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY)(hidden))


def beam_search(model, prompts, k, length, uniform):
    """Draws k different completions of each prompt, by stochastic beam search.

    Args:
        model: Keras model as in `make_model`.
        prompts: `[N, P]` int32.
        k: Int; a prompt with fewer completions gets all of them.
        length: Int, L, the tokens of a completion.
        uniform: Function of a shape that returns uniform random numbers in (0, 1).

    Returns:
        Prompts and completions, `[N, k, P + L]` int32, in the order of the draws.
    """
    beams = tf.convert_to_tensor(prompts)[:, None]
    log_probs = perturbed = tf.zeros(tf.shape(beams)[:2], model.compute_dtype)
    for _ in range(length):
        count, size = beams.shape[1:]
        logits = model(tf.reshape(beams, [-1, size]))[:, -1]
        steps = tf.reshape(tf.nn.log_softmax(logits), [-1, count, logits.shape[-1]])
        each = log_probs[..., None] + steps
        # A beam's perturbed log-probability is the maximum of those of its continuations.
        gumbels = each - tf.math.log(-tf.math.log(uniform(each.shape)))
        largest = tf.reduce_max(gumbels, axis=-1, keepdims=True)
        gaps = perturbed[..., None] - gumbels + tf.math.log1p(-tf.exp(gumbels - largest))
        given = perturbed[..., None] - tf.nn.softplus(gaps)
        flat = [tf.reshape(x, [-1, count * each.shape[-1]]) for x in (given, each)]
        perturbed, best = tf.math.top_k(flat[0], min(k, count * each.shape[-1]))
        log_probs = tf.gather(flat[1], best, batch_dims=1)
        beams = tf.gather(beams, best // each.shape[-1], batch_dims=1)
        tokens = tf.cast(best % each.shape[-1], beams.dtype)
        beams = tf.concat([beams, tokens[..., None]], axis=-1)
    return beams


def log_probs_of(model, texts, length):
    """Returns the log-probabilities of the last `length` tokens, `[N, k]`."""
    rows = tf.reshape(texts, [-1, texts.shape[-1]])
    steps = tf.nn.log_softmax(model(rows[:, :-1])[:, -length:])
    chosen = tf.gather(steps, rows[:, -length:], batch_dims=2)
    return tf.reshape(tf.reduce_sum(chosen, axis=1), tf.shape(texts)[:2])


def surrogate(log_probs, rewards):
    """Returns a number for each prompt, whose gradient is that of the expected reward.

    Args:
        log_probs: `[N, k]` float, of different completions.
        rewards: `[N, k]` float.
    """
    probs = tf.stop_gradient(tf.exp(log_probs))
    outside = tf.maximum(1.0 - tf.reduce_sum(probs, axis=1), 0.0)
    weights, shares = tfr.estimators.unordered_set(probs, outside)
    advantages = rewards - tf.einsum("nsr,nr->ns", shares, rewards)
    return tf.reduce_sum(weights * advantages * log_probs, axis=1)


def independent_surrogate(log_probs, rewards):
    """Returns the same for independent completions (leave-one-out)."""
    count = log_probs.shape[1]
    others = (tf.reduce_sum(rewards, axis=1, keepdims=True) - rewards) / (count - 1)
    return tf.reduce_mean((rewards - others) * log_probs, axis=1)


def reward(texts):
    """Returns 1 for each right completion, else 0, `[N, k]`."""
    matches = texts[..., LENGTH:] == texts[..., LENGTH - 1 :: -1]
    return tf.cast(tf.reduce_all(matches, axis=-1), tf.float32)


def train(seed, k=4, updates=600, independent=False):
    """Trains, and returns the share of right answers, after each tenth of the updates."""
    keras.utils.set_random_seed(seed)
    model, optimizer = make_model(), keras.optimizers.Adam(3e-3)
    prompts = np.array(list(itertools.product(range(VOCABULARY), repeat=LENGTH)), "int32")

    def uniform(shape):
        return tf.random.uniform(shape, np.finfo("float32").tiny)

    @tf.function
    def update():
        if independent:
            repeated = tf.repeat(prompts, k, axis=0)
            texts = beam_search(model, repeated, 1, LENGTH, uniform)
            texts = tf.reshape(texts, [len(prompts), k, -1])
        else:
            texts = beam_search(model, prompts, k, LENGTH, uniform)
        rewards = reward(texts)
        with tf.GradientTape() as tape:
            log_probs = log_probs_of(model, texts, LENGTH)
            estimate = independent_surrogate if independent else surrogate
            loss = -tf.reduce_mean(estimate(log_probs, rewards))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    optimizer.build(model.trainable_variables)
    shares = []
    for number in range(1, updates + 1):
        update()
        if number % (updates // 10) == 0:
            texts = prompts
            for _ in range(LENGTH):
                best = tf.argmax(model(texts)[:, -1:], axis=-1, output_type=tf.int32)
                texts = tf.concat([texts, best], axis=1)
            shares.append(float(tf.reduce_mean(reward(texts[:, None]))))
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--independent", action="store_true")
    options = vars(parser.parse_args())
    for seed in range(5):
        shares = " ".join(f"{x:4.0%}" for x in train(seed, **options))
        print(f"seed {seed}: right answers {shares}", flush=True)
