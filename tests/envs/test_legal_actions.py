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
from tf_reinforce.data import action_masks
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.envs import legal_actions

PATH = "info/action_mask"


def masked_agent(env, path=PATH, **options):
    agent = tfr.Reinforce.for_env(env, hidden=(), seed=1, action_mask=path, **options)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


@pytest.mark.slow
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


@pytest.mark.slow
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


class Closed(envs.Corridor):
    """A corridor in which one of four cells, the second, has an invalid mask."""

    def __init__(self, mask, cell=1):
        super().__init__(4)
        self.mask, self.cell = mask, cell

    def action_mask(self, state):
        ones = tf.ones([state.shape[0], 2], tf.int32)
        return tf.where(state[:, None] == self.cell, tf.constant(self.mask), ones)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("env", [Closed([0, 0])], ids=repr)
def test_invalid_mask_raises_and_names_the_step(env, trains):
    agent = masked_agent(env)
    agent.build_for_env(env)
    before = agent.get_weights()
    message = r"(?s)^Episode \d+, step \d+: the action mask.*Received: \["
    with pytest.raises(host_loop.EnvironmentFault, match=message):
        if trains:
            agent.fit(env, epochs=1, episodes_per_epoch=8, verbose=0)
        else:
            agent.evaluate(env, episodes=8)
    for x, y in zip(before, agent.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_state_that_ends_an_episode_needs_no_legal_action():
    env = Closed([0, 0], cell=3)
    agent = masked_agent(env)
    for world in (env, env.as_gymnasium(3)):
        episodes = agent.collect(world, 8)
        assert len(set(episodes.lengths[episodes.terminated])) > 1
        is_step = np.arange(len(episodes.actions))[:, None] < episodes.lengths
        assert (episodes.masks[is_step] == 1).all()


@pytest.mark.parametrize("path", [PATH, "info/legal", "info/action_mask/way"])
def test_environment_without_mask_raises(path):
    env = envs.Corridor(3)
    with pytest.raises(ValueError, match=f"(?s)place of a mask.* in Corridor.*'{path}'"):
        masked_agent(env, path).collect(env, 2)


class Marked(envs.Corridor):
    """A corridor whose observation is a mask."""

    def __init__(self, mask):
        super().__init__(3)
        self._mask = mask

    def observation(self, state):
        return {"legal": keras.tree.map_structure(tf.constant, self._mask)}


@pytest.mark.parametrize(
    "mask", [np.ones([7, 4]), (np.ones([7, 2]), np.ones([7, 3]))], ids=len
)
def test_observed_mask_of_wrong_size_raises(mask):
    env, layout = Marked(mask), heads.MultiCategorical([2, 3]).mask_layout
    path = action_masks.MaskPath("observation/legal")
    reader = action_masks.MaskReader(path, layout)
    with pytest.raises(ValueError, match=r"parts of \[5\] entries.*Received: \["):
        legal_actions.flat_masks(reader, env, None, env.observation(None), 7)


@pytest.mark.parametrize(
    "head", [heads.Categorical(3), heads.Bernoulli(3)], ids=["categories", "flags"]
)
@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float32"])
def test_flat_masks_equal_those_of_the_host_engine(head, dtype):
    """An entry that the host engine does not accept becomes -1."""
    numbers = [0, 1] if dtype == "bool" else [0, 1, 2, 5, 254]
    if dtype == "int64":
        numbers += [256, -1]
    if dtype == "float32":
        numbers += [0.5]
    rows = np.array([[number, 1, 0] for number in numbers], dtype)
    env, path = Marked(rows), action_masks.MaskPath("observation/legal")
    reader = action_masks.MaskReader(path, head.mask_layout)
    inputs = env, None, env.observation(None), len(rows)
    flat = legal_actions.flat_masks(reader, *inputs).numpy()
    for row, ours in zip(rows, flat, strict=True):
        try:
            expected = head.flatten_mask(row).tolist()
        except ValueError:
            expected = [-1, 1, 0]
        assert ours.tolist() == expected


def test_part_without_mask_allows_all_its_actions():
    env = Gates()
    agent = masked_agent(env)
    masks = env.action_mask
    env.action_mask = lambda state: {**masks(state), "way": None, "lamps": None}
    record = agent.collect(env, 4)
    sizes = {"gear": 5, "lamps": 2, "push": 0, "way": 4}
    ends = np.cumsum(list(sizes.values()))
    _, lamps, _, way, _ = np.split(record.masks, ends, axis=-1)
    assert (lamps == 2).all() and (way == 1).all()


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
    ours = legal_actions.has_legal_action(head.mask_layout, tf.constant(masks))
    np.testing.assert_array_equal(ours, head.has_legal_action(masks))


def test_table_with_masks_offers_only_the_legal_actions():
    stay, leave = [(1.0, 0, -1.0, False)], [(1.0, 0, 1.0, True)]
    table = [[stay, leave, leave]]
    env = envs.Tabular(table, [1.0], max_episode_steps=3, action_masks=[[0, 1, 0]])
    assert masked_agent(env).collect(env, 9).actions.tolist() == [[1] * 9]
    for masks in ([[0, 0, 0]], [[0, 1]], [[0, 2, 1]]):
        with pytest.raises(ValueError, match=r"here \(1, 3\), with at least one legal"):
            envs.Tabular(table, [1.0], action_masks=masks)
