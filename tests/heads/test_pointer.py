"""Tests `heads.Pointer`: a choice among the rows of an observation."""

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce import testing

MASK = np.int8([1, 0, 1, 1])


def split(row, size=4, dim=2):
    return row[:dim], row[dim:].reshape(size, dim)


def softmax(scores):
    odds = np.exp(scores - scores.max())
    return odds / odds.sum()


def rows(head, count=5, seed=0):
    return np.random.default_rng(seed).normal(size=(count, head.outputs_size))


def log_probs(head, outputs):
    """Returns the log-probabilities of all N entities, for one row of outputs."""
    count = keras.tree.flatten(head.noise)[-1].shape[0]
    repeated = tf.constant(np.tile(outputs, (count, 1)))
    return head.distribution(repeated).log_prob(np.arange(count)).numpy()


def test_scores_and_eligibility_equal_the_closed_forms():
    """d ln π / dq = Σ eₙ kₙ / √d and d ln π / dkₙ = eₙ q / √d, with e = one-hot - p."""
    head, root = heads.Pointer(4, key_dim=2), np.sqrt(2.0)
    for row in rows(head):
        query, keys = split(row)
        probs = softmax(keys @ query / root)
        np.testing.assert_allclose(log_probs(head, row), np.log(probs), rtol=1e-13)
        found = head.parameters(tf.constant(row[None]))["probs"]
        np.testing.assert_allclose(found[0], probs, rtol=1e-13)
        for action in range(4):
            errors = np.eye(4)[action] - probs
            expected = [errors @ keys / root, np.outer(errors, query / root).ravel()]
            slopes = head.eligibility(tf.constant(row[None]), [action])[0]
            np.testing.assert_allclose(slopes, np.concatenate(expected), rtol=1e-12)


def test_mask_leaves_the_distribution_over_the_entities_that_are_present():
    head, smaller = heads.Pointer(4, key_dim=2), heads.Pointer(3, key_dim=2)
    present = np.flatnonzero(MASK)
    for row in 1e3 * rows(head):
        masked = head.mask_outputs(tf.constant(row), tf.constant(MASK)).numpy()
        assert masked.shape == (head.outputs_size + 4,) and np.isfinite(masked).all()
        query, keys = split(row)
        expected = log_probs(smaller, np.concatenate([query, keys[present].ravel()]))
        found = log_probs(head, masked)
        np.testing.assert_allclose(found[present], expected, rtol=1e-12)
        assert found[1] < -1e300
        slopes = head.eligibility(tf.constant(masked[None]), [2])[0].numpy()
        assert not np.any(split(slopes[:10])[1][1]) and not np.any(slopes[10:])


def test_permuted_rows_give_permuted_probabilities_also_after_other_parts():
    leaves = heads.Categorical(3), heads.Pointer(4, key_dim=2)
    head = heads.Autoregressive(leaves, hidden=5, dtype="float64")
    head.build((None, head.outputs_size))
    parts.dependent(head)
    order = np.array([2, 0, 3, 1])
    for row in rows(head):
        first, (query, keys), context = row[:3], split(row[3:13]), row[13:]
        other = np.concatenate([first, query, keys[order].ravel(), context])
        for choice in range(3):
            actions = np.full(4, choice), np.arange(4)
            one, two = (
                head.distribution(tf.constant(np.tile(x, (4, 1)))).log_prob(actions)
                for x in (row, other)
            )
            np.testing.assert_allclose(one.numpy()[order], two, rtol=1e-12)


@pytest.mark.parametrize("masks", [None, [[1, 0, 1], [0, 1, 1]]])
def test_expected_update_is_the_exact_gradient(masks):
    report = testing.check_gradient(
        heads.Pointer(3, key_dim=2), None, batch_size=1, masks=masks, tolerance=1e-12
    )
    assert report.error < 1e-12


def test_pointer_in_a_composite_has_its_own_mask():
    leaves = {"a": heads.Pointer(4, key_dim=2), "b": heads.Categorical(2)}
    head = heads.Composite(leaves)
    mask = head.flatten_mask({"a": MASK, "b": np.int8([0, 1])})
    outputs = tf.constant(rows(head, 300))
    masked = head.mask_outputs(outputs, tf.constant(np.tile(mask, (300, 1))))
    assert masked.shape[-1] == head.outputs_size + head.appended_size == 16
    samples = head.sample(masked, parts.noise_of(head, 300))
    assert set(np.unique(samples["a"])) == {0, 2, 3} and np.all(samples["b"] == 1)
    assert testing.check_head(head, mask=mask)["legality"] == 0


class Jobs(gym.Env):
    """One step: the reward is that of the chosen job, of two to five jobs."""

    observation_space = gym.spaces.Dict(
        present=gym.spaces.MultiBinary(5), jobs=gym.spaces.Box(-1, 1, (5, 2), np.float32)
    )
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.present = np.zeros(5, "int8")
        chosen = self.np_random.permutation(5)[: self.np_random.integers(2, 6)]
        self.present[chosen] = 1
        jobs = self.np_random.uniform(-1, 1, (5, 2)).astype("float32")
        self.jobs = jobs * self.present[:, None]
        return self._observation(), {}

    def step(self, action):
        assert self.present[action]
        return self._observation(), float(self.jobs[action, 0]), True, False, {}

    def _observation(self):
        return {"present": self.present, "jobs": self.jobs}


def test_agent_learns_to_choose_among_a_changing_number_of_entities():
    present = keras.Input((5,), name="present")
    jobs = keras.Input((5, 2), name="jobs")
    seeds = map(keras.initializers.GlorotUniform, range(3))
    dense = [keras.layers.Dense(8, "tanh", kernel_initializer=next(seeds))]
    dense += [keras.layers.Dense(4, kernel_initializer=seed) for seed in seeds]
    encoded = dense[0](jobs)
    query = dense[1](keras.layers.GlobalAveragePooling1D()(encoded))
    outputs = keras.layers.Concatenate()(
        [query, keras.layers.Flatten()(dense[2](encoded))]
    )
    policy = keras.Model({"present": present, "jobs": jobs}, outputs)
    head = heads.Pointer(5, key_dim=4)
    agent = tfr.Reinforce(policy, head, action_mask="observation/present")
    agent.compile(keras.optimizers.Adam(0.03))
    fitting = dict(episodes_per_epoch=64, num_envs=8, seed=0, verbose=0)
    returns = agent.fit(Jobs, epochs=25, **fitting).history["episode_return"]
    assert np.mean(returns[:3]) < 0.2 < 0.35 < np.mean(returns[-5:])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: heads.Pointer(0, 2), "`size` must be"),
        (lambda: heads.Pointer(3, 0), "`key_dim` must be"),
        (lambda: heads.Pointer(3, 1.5), "`key_dim` must be"),
        (
            lambda: heads.Pointer(3, 2).check_space(gym.spaces.Discrete(4)),
            "`size` is the largest number of entities.*for the 4 entities",
        ),
        (
            lambda: heads.Pointer(3, 2).check_space(gym.spaces.MultiBinary(4)),
            "does not sample actions of the space",
        ),
        (
            lambda: heads.Pointer(3, 2).flatten_mask(np.ones(4)),
            r"Pointer\(size=3.* must have 3 entries",
        ),
        (
            lambda: heads.Pointer(3, 2).check_outputs((None, 3)),
            r"returns 8 numbers .*a query \[2\] and the flattened keys \[3, 2\]",
        ),
    ],
)
def test_wrong_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()
