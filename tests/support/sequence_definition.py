"""An update of `SequenceReinforce` and its logs by their definition, in float64."""

import numpy as np
import tensorflow as tf


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def scores(causal_lm, record, temperature):
    """Returns `[R, L]` log-probabilities and entropies, zero for tokens not sampled."""
    logits = np.array(causal_lm(record.inputs, training=False), np.float64) / temperature
    log_probs, tokens = log_softmax(logits[:, :-1]), np.array(record.token_ids)[:, 1:]
    entropies = -(np.exp(log_probs) * log_probs).sum(axis=-1)
    chosen = np.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    sampled = np.array(record.sampled)[:, 1:]
    return np.where(sampled, chosen, 0.0), np.where(sampled, entropies, 0.0)


def of_group(values, group_size, function):
    groups = np.reshape(values, [-1, group_size])
    return np.concatenate([function(group) for group in groups])


def means_of_others(group):
    return (group.sum() - group) / (len(group) - 1)


def minibatches(permutation, size):
    """Returns about N / size parts of nearly equal size."""
    rows = len(permutation)
    count = max((rows + size // 2) // size, 1)
    bounds = [n * rows // count for n in range(count + 1)]
    return [permutation[a:b] for a, b in zip(bounds, bounds[1:])]


def update(causal_lm, reference, record, rewards, permutations, rate, **options):
    """Makes one update of gradient descent; returns its logs.

    Args:
        causal_lm: The model that sampled the completions.
        reference: The model of the KL penalty.
        record: `Completions`.
        rewards: `[R]` floats.
        permutations: A permutation of the rows for each pass.
        rate: Float, the learning rate.
        **options: Those of `SequenceReinforce`.
    """
    get = {**DEFAULTS, **options}.get
    beta, group_size, temperature = get("kl_coef"), get("group_size"), get("temperature")
    old, entropies = scores(causal_lm, record, temperature)
    recorded = np.array(record.log_probs, np.float64)[:, 1:]
    lengths = np.array(record.sampled).sum(axis=1)
    old_rows, kl = old.sum(axis=1), np.zeros(len(rewards))
    if beta:
        kl = old_rows - scores(reference, record, temperature)[0].sum(axis=1)
    returns = np.asarray(rewards, np.float64) - beta * kl
    advantages = returns - of_group(returns, group_size, means_of_others)
    scales = np.ones(len(rewards))
    if get("scale_advantages"):
        scales = of_group(returns, group_size, lambda x: np.full(len(x), x.std() + 1e-4))
    has_steps = get("passes") > 1 or get("minibatch_size") is not None
    parts = [np.arange(len(rewards))]
    if has_steps:
        size = get("minibatch_size") or len(rewards)
        parts = [x for order in permutations for x in minibatches(order, size)]
    logs = {"loss": [], "gradient_norm": []}
    for rows in parts:
        log_ratios = scores(causal_lm, record, temperature)[0].sum(axis=1) - old_rows
        factors = advantages / scales
        if has_steps:
            factors = (advantages - beta * log_ratios) / scales
            factors *= np.minimum(np.exp(log_ratios), get("ratio_clip"))
        if get("length_normalization"):
            factors = factors / lengths
        factors = np.where(np.isin(np.arange(len(rewards)), rows), factors, 0.0)
        loss, norm = descend(causal_lm, record, factors / len(rows), temperature, rate)
        logs["loss"].append(loss)
        logs["gradient_norm"].append(norm)
    first = parts[0]  # entropy and difference are those of the first gradient step
    differences = abs(old - recorded).sum(axis=1) / lengths
    return {
        **{name: np.mean(values) for name, values in logs.items()},
        "kl": kl.mean(),
        "entropy": (entropies.sum(axis=1) / lengths)[first].mean(),
        "log_prob_difference": differences[first].mean(),
    }


DEFAULTS = {
    "group_size": 4,
    "kl_coef": 0.05,
    "temperature": 1.0,
    "passes": 1,
    "minibatch_size": None,
    "ratio_clip": 2.0,
    "scale_advantages": False,
    "length_normalization": False,
}


def descend(causal_lm, record, factors, temperature, rate):
    """Makes a step along the sum of weighted log-probabilities; returns loss and norm."""
    variables = causal_lm.trainable_variables
    with tf.GradientTape() as tape:
        logits = tf.cast(causal_lm(record.inputs, training=False), tf.float64)
        log_probs = tf.nn.log_softmax(logits[:, :-1] / temperature)
        log_probs = tf.gather(log_probs, record.token_ids[:, 1:], batch_dims=2)
        log_probs = tf.where(record.sampled[:, 1:], log_probs, 0.0)
        loss = -tf.reduce_sum(tf.reduce_sum(log_probs, axis=1) * factors)
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    squares = 0.0
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None:
            gradient = tf.convert_to_tensor(gradient)
            squares += np.sum(np.array(gradient, np.float64) ** 2)
            variable.assign_sub(tf.cast(rate * gradient, variable.dtype))
    return float(loss), np.sqrt(squares)
