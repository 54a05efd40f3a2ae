"""Tests the example Catch: its optimal return, and training from pixels with LiteRT."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf
import toys
from gymnasium.utils.env_checker import check_env

from tf_reinforce import envs


@pytest.fixture(scope="module")
def catch():
    yield toys.example("catch")
    del gym.registry["Catch-v0"]


def play(env, choose, seed):
    """Returns the return of one episode, played from its images alone."""
    picture, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        picture, reward, over, cut, _ = env.step(choose(picture[..., 0]))
        assert env.observation_space.contains(picture) and not cut
        total += reward
    return total


def move_to_ball(picture):
    """Returns the action that moves the gray paddle towards the white ball."""
    ball, paddle = (np.argwhere(picture == shade)[0, 1] for shade in (255, 128))
    return int(np.sign(ball - paddle))


def test_catch_is_solved_from_its_images(catch):
    env = catch.Catch()
    check_env(env, skip_render_check=True)
    assert [play(env, move_to_ball, seed) for seed in range(50)] == 50 * [1.0]


def test_tensor_env_catch_equals_the_gymnasium_example(catch):
    theirs, ours = catch.Catch(), envs.Catch()
    theirs.reset(seed=0)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    state = ours.initial(tf.constant([theirs.ball[1] / catch.CELLS + 1e-3]))
    for action in (-1, 0, 1, 1, 1, 1):
        picture, reward, landed, *_ = theirs.step(action)
        before, state = state, ours.transition(state, tf.constant([action]), None)
        np.testing.assert_array_equal(ours.observation(state)[0], picture)
        assert ours.reward(before, tf.constant([action]), state)[0] == reward
        assert ours.terminal(state)[0] == landed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_agent_solves_catch_from_pixels_with_litert(seed, catch):
    """The settings are those of the example. The agent catches 1000 of 1000 balls."""
    agent = catch.make_agent(seed)
    agent.fit(catch.Catch, epochs=250, episodes_per_epoch=32, seed=seed, verbose=0)
    result = agent.evaluate(catch.Catch, episodes=1000)
    assert agent.trainer.programs["acting", False].runtime == "litert"
    assert result["episode_return"] == 1.0
