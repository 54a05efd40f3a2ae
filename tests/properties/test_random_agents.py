"""Tests that random agents have the gradients and updates of a loop in NumPy."""

import inspect

import keras
import numpy as np
import oracle
import pairwise
import parts
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import baselines

RATE, CRITIC_RATE = 1 / 32, 1 / 8
FLOAT64 = {"dtype": "float64"}
SHAPES = {
    "dense": (None, 3),
    "nested": {"near": (None, 2), "far": (None, 1)},
    "gru": (None, None, 3),
}
OPTIONS = {
    "gamma": [1.0, 0.9, 0.5, 0.0],
    "gae_lambda": [1.0, 0.7, 0.0],
    "returns": ["to_go", "whole"],
    "discount_states": [False, True],
    "scale_advantages": [None, "batch", "running"],
    "scale_rewards": [False, True],
    "mean_over": ["episodes", "steps"],
    "on_truncation": ["bootstrap", "terminal", "drop"],
    "minibatch_size": [None, None, 4, 50],
    "passes": [1, 1, 2],
    "ratio_clip": [1.0, 1.25, 8.0, (0.2, 0.2), (0.1, 0.5)],
    "max_kl": [None, 1e-4, 1e-2],
    "entropy_coef": [0.0, 0.3],
    "normalize_observations": [False, True],
}
# Data, reports and budgets, and options that save time, which
# tests/properties/test_options_that_save.py compares.
NOT_DRAWN = {
    *("policy", "head", "baseline", "action_mask", "optimizer"),
    *("context", "context_inputs"),  # tests/policies/test_memory.py
    *("num_envs", "workers", "name", "env", "epochs", "steps", "episodes_per_epoch"),
    *("steps_per_epoch", "callbacks", "validation_env", "validation_freq"),
    "validation_deterministic",
    *("validation_episodes", "initial_epoch", "env_kwargs", "max_episode_steps"),
    *("resume", "on_bad_env", "on_env_error", "step_timeout", "verbose", "seed"),
    *("reset_options", "env_attrs", "info_keys"),
}


def test_every_option_of_an_agent_is_drawn_or_listed():
    """A new option has a definition in NumPy, or a reason why it needs none."""
    methods = tfr.Reinforce.__init__, tfr.Reinforce.compile, tfr.Reinforce.fit
    signatures = [inspect.signature(x) for x in methods]
    pairwise.expect_listed(signatures, [NOT_DRAWN, OPTIONS])


def dense(size, name=None, **options):
    return keras.layers.Dense(
        size, name=name, bias_initializer="normal", **options, **FLOAT64
    )


def network(policy, sizes):
    """Returns a model with one output for each name in `sizes`."""
    shapes = SHAPES[policy]
    inputs = (
        {k: keras.Input(shape[1:], name=k, **FLOAT64) for k, shape in shapes.items()}
        if isinstance(shapes, dict)
        else keras.Input(shapes[1:], **FLOAT64)
    )
    x = keras.tree.flatten(inputs)
    x = x[0] if len(x) == 1 else keras.layers.Concatenate(**FLOAT64)(x)
    if policy == "gru":
        x = keras.layers.GRU(3, return_sequences=True, **FLOAT64)(x)
    x = dense(3, activation="tanh", kernel_regularizer=keras.regularizers.L2(1 / 16))(x)
    outputs = {name: dense(size, name)(x) for name, size in sizes.items()}
    return keras.Model(inputs, outputs if len(outputs) > 1 else outputs["outputs"])


def make_agent(seed):
    """Returns a built agent, and the shapes of its observations."""
    rng = np.random.default_rng(seed)
    options = {
        name: values[rng.integers(len(values))] for name, values in OPTIONS.items()
    }
    policy = rng.choice([*SHAPES], p=[0.5, 0.3, 0.2])
    keras.utils.set_random_seed(seed)
    name, case = parts.HEAD_CASES[rng.integers(len(parts.HEAD_CASES))]
    head = parts.HEADS[name].make(case)  # gets the type of the policy
    kind = rng.integers(8)
    if options["gae_lambda"] < 1 or kind == 6:
        kind, options["returns"] = 6 + rng.integers(2), "to_go"
    sizes = {"outputs": head.outputs_size, **({"values": 1} if kind == 7 else {})}
    critic = network("dense" if policy == "gru" else policy, {"outputs": 1})
    baseline = [
        None,
        "leave_one_out",
        baselines.LeaveOneOut(group_size=2),
        "mean",
        baselines.MovingAverage(decay=0.5),
        baselines.TimeStep(horizon=2, decay=0.9),
        baselines.Value(
            critic,
            keras.optimizers.SGD(CRITIC_RATE),
            passes=int(rng.integers(1, 3)),
            minibatch_size=[None, 4][rng.integers(2)],
            scale=[1.0, 30.0][rng.integers(2)],
        ),
        baselines.Value(loss_weight=2.0),
    ][kind]
    if head.mask_size and rng.random() < 0.5:
        options["action_mask"] = "info/mask"
    agent = tfr.Reinforce(network(policy, sizes), head, baseline, **options)
    agent.compile(keras.optimizers.SGD(RATE))
    agent.build(SHAPES[policy])
    agent.optimizer.build(agent.policy_variables)
    return agent, SHAPES[policy]


def random_mask(head, rng):
    mask = rng.integers(0, 2, head.mask_size).astype("int8")
    return mask if head.has_legal_action(mask) else random_mask(head, rng)


def record(agent, shapes, seed, rows=4, count=4):
    """Returns episodes whose padding holds values that must not count."""
    rng, head = np.random.default_rng(seed), agent.head
    lengths = rng.integers(1, rows, count).astype("int32")
    padding = np.arange(rows + 1)[:, None] > lengths

    def random_rows(shape):
        array = rng.normal(size=(rows + 1, count, shape[-1]))
        array[padding] = np.nan
        return array

    masks, outputs = None, rng.normal(size=(rows, count, head.outputs_size))
    if agent.action_mask:
        masks = [[random_mask(head, rng) for _ in range(count)] for _ in range(rows)]
        masks = np.array(masks)
        outputs = head.mask_outputs(tf.constant(outputs), tf.constant(masks))
    noise = keras.tree.map_structure(
        lambda x: tf.reshape(x, [rows, count, *x.shape[1:]]),
        parts.noise_of(head, rows * count, seed=seed),
    )
    actions = head.sample(tf.constant(outputs), noise)
    rewards = rng.normal(size=(rows, count))
    rewards[padding[1:]] = np.nan
    return tfr.Episodes(
        keras.tree.map_shape_structure(random_rows, shapes),
        keras.tree.map_structure(np.array, actions),
        rewards,
        lengths,
        rng.random(count) < 0.6,
        masks,
    )


def assert_close(actual, expected):
    size = max((np.max(np.abs(x)) for x in expected), default=1.0) + 1.0
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11 * size)


@pytest.mark.parametrize("seed", sweeps.some(range(100), always=range(2)))
def test_gradient_and_updates_equal_a_loop_over_episodes_and_steps(seed):
    agent, shapes = make_agent(seed)
    truth = oracle.Oracle(make_agent(seed)[0].trainer.estimator)
    for number in range(2):
        episodes = record(agent, shapes, [seed, number])
        gradients, critic, _ = agent.gradients(episodes)
        expected, expected_critic = truth.gradients(episodes)
        assert_close(gradients, expected)
        assert_close(critic, expected_critic)
        checked = agent.trainer.check_episodes(episodes)
        permutations = agent.trainer.permutations(checked, seed=seed)
        step = agent.trainer.train_step()
        assert step(keras.tree.map_structure(tf.constant, checked), permutations)[0] == 1
        truth.update(episodes, permutations.numpy(), RATE, CRITIC_RATE)
        assert_close(agent.policy_variables, truth.variables())
        if truth.critic is not None:
            assert_close(agent.baseline.model.weights, truth.critic.weights)
