"""Tests the masks of legal actions in tensor environments, with both engines."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_worlds import Gates

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce import heads
from tf_reinforce.collect import results
from tf_reinforce.data import action_masks
from tf_reinforce.envs import legal_actions

PATH = "info/action_mask"


def masked_agent(env, path=PATH, **options):
    agent = tfr.Reinforce.for_env(env, hidden=(), seed=1, action_mask=path, **options)
    agent.compile(keras.optimizers.Adam(0.1))
    return agent


def test_twin_of_taxi_has_the_mask_of_gymnasium_in_every_state():
    task, cells = gym.make("Taxi-v4").unwrapped, tf.range(500, dtype=tf.int64)
    expected = [task.action_mask(state) for state in range(500)]
    masks = envs.make("Taxi-v4").action_mask({"cell": cells})
    assert masks.dtype == tf.int8
    np.testing.assert_array_equal(masks, expected)
    assert envs.make("FrozenLake-v1").action_mask({"cell": cells[:16]}) is None


def test_trained_taxi_agent_collects_legal_actions_only():
    env = envs.Taxi()
    agent = masked_agent(env)
    agent.fit(env, epochs=2, episodes_per_epoch=4, max_episode_steps=20, verbose=0)
    episodes = agent.collect(env, 40, max_episode_steps=30)
    is_step = np.arange(len(episodes.actions))[:, None] < episodes.lengths
    legal = np.take_along_axis(episodes.masks, episodes.actions[..., None], -1)[..., 0]
    assert legal[is_step].all() and not episodes.masks.all()
    assert (episodes.rewards[is_step] > -10).all()


def test_vector_env_returns_the_masks_of_its_observations():
    env = envs.Taxi().as_gymnasium(3)
    observations, infos = env.reset(seed=0)
    task = gym.make("Taxi-v4").unwrapped
    for _ in range(5):
        expected = [task.action_mask(int(state)) for state in observations]
        np.testing.assert_array_equal(infos["action_mask"], expected)
        assert infos["_action_mask"].all()
        observations, *_, infos = env.step(np.argmax(expected, axis=1))
    assert envs.Corridor(3).as_gymnasium(2).reset(seed=0)[1] == {}


def test_both_engines_record_the_same_masks_of_nested_actions():
    """The place in the observation determines the mask."""
    env = Gates()
    agent = masked_agent(env)
    ours = agent.collect(env, 12)
    theirs = agent.collect(env.as_gymnasium(3), 12)
    places, rows = ours.observations[:-1].ravel(), ours.masks.reshape(-1, 11)
    masks = {int(place): mask for place, mask in zip(places, rows, strict=True)}
    assert len(masks) == 4
    for record in (ours, theirs):
        for place, mask in masks.items():
            found = record.masks[record.observations[:-1] == place]
            assert len(found) and (found == mask).all()
        agent.head.check_actions(record.actions, record.lengths, record.masks)
    agent.fit(env, epochs=1, episodes_per_epoch=4, verbose=0)


def test_train_seeds_in_one_program_equals_separate_runs_with_masks():
    env, budget = Gates(), dict(epochs=2, episodes_per_epoch=3)

    def make(seed):
        agent = tfr.Reinforce.for_env(env, hidden=(), seed=seed, action_mask=PATH)
        agent.compile(keras.optimizers.Adam(0.1))
        return agent

    population = tfr.train_seeds(make, env, [1, 5], **budget)
    alone = make(5)
    alone.fit(env, seed=5, verbose=0, **budget)
    for x, y in zip(population.agent(5).get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


class Closed(envs.Corridor):
    """A corridor whose second cell has an invalid mask."""

    def __init__(self, mask):
        super().__init__(4)
        self.mask = mask

    def action_mask(self, state):
        ones = tf.ones([state.shape[0], 2], tf.int32)
        return tf.where(state[:, None] == 1, tf.constant(self.mask), ones)


@pytest.mark.parametrize("mask", [[0, 0], [3, 1], [-1, 1]])
@pytest.mark.parametrize("trains", [True, False])
def test_invalid_mask_raises_and_names_the_step(mask, trains):
    env = Closed(mask)
    agent = masked_agent(env)
    agent.build_for_env(env)
    before = agent.get_weights()
    message = r"(?s)step \d+: the action mask.*Received: \["
    with pytest.raises(results.EnvironmentFault, match=message):
        if trains:
            agent.fit(env, epochs=1, episodes_per_epoch=8, verbose=0)
        else:
            agent.evaluate(env, episodes=8)
    for x, y in zip(before, agent.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("path", [PATH, "info/legal", "info/action_mask/way"])
def test_environment_without_mask_raises(path):
    env = envs.Corridor(3)
    with pytest.raises(ValueError, match=f"(?s)place of a mask in Corridor.*'{path}'"):
        masked_agent(env, path).collect(env, 2)


class Wrong(envs.Corridor):
    def __init__(self, mask):
        super().__init__(3)
        self._mask = mask

    def action_mask(self, state):
        return self._mask(state)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: tf.ones([x.shape[0], 2]),
        lambda x: tf.ones_like(x),
        lambda x: {"a": tf.ones([x.shape[0], 2], tf.bool)},
        lambda x: tf.ones([2, 2], tf.bool),
    ],
)
def test_mask_of_invalid_shape_or_type_raises(mask):
    with pytest.raises(ValueError, match=r"`Wrong.action_mask` must return masks nested"):
        Wrong(mask).as_gymnasium(2)


def test_mask_of_wrong_size_raises():
    env = Wrong(lambda x: tf.ones([x.shape[0], 3], tf.bool))
    with pytest.raises(ValueError, match=r"must have 2 entries. Received: 3 entries"):
        masked_agent(env).collect(env, 2)


@pytest.mark.parametrize(
    "head",
    [
        heads.Categorical(3),
        heads.MultiCategorical([2, 1]),
        heads.Bernoulli(3),
        heads.Composite((heads.Bernoulli(1), heads.Categorical(2))),
        heads.Composite({"b": heads.MultiCategorical([1, 1]), "a": heads.Categorical(1)}),
    ],
    ids=repr,
)
def test_legality_in_the_graph_equals_the_numpy_definition(head):
    """Over all masks of three entries from 0 to 2."""
    masks = np.stack(np.meshgrid(*[[0, 1, 2]] * 3), -1).reshape(-1, 3).astype("int8")
    path = action_masks.MaskPath(PATH)
    in_graph = legal_actions.MaskInGraph(envs.Corridor(3), path, head.mask_layout)
    ours = in_graph.has_legal_action(tf.constant(masks))
    np.testing.assert_array_equal(ours, head.has_legal_action(masks))
    unknown = tf.constant([[3, 1, 1], [1, 1, -1]])
    assert not in_graph.has_legal_action(unknown).numpy().any()


def test_table_with_masks_offers_only_the_legal_actions():
    stay, leave = [(1.0, 0, -1.0, False)], [(1.0, 0, 1.0, True)]
    table = [[stay, leave, leave]]
    env = envs.Tabular(table, [1.0], max_episode_steps=3, action_masks=[[0, 1, 0]])
    assert masked_agent(env).collect(env, 9).actions.tolist() == [[1] * 9]
    for masks in ([[0, 0, 0]], [[0, 1]], [[0, 2, 1]]):
        with pytest.raises(ValueError, match=r"here \(1, 3\), with at least one legal"):
            envs.Tabular(table, [1.0], action_masks=masks)
