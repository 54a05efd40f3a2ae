"""Tests the twin of Blackjack: both games are played with equal cards."""

import functools

import gymnasium as gym
import numpy as np
import tensorflow as tf
from gymnasium.envs.toy_text import blackjack

from tf_reinforce import envs
from tf_reinforce.envs import blackjack as twins


def noise_of(cards):
    """Returns noise that draws cards from 1 to 10."""
    return (np.asarray(cards) - 0.5) / 13


def play(cards, choices, monkeypatch):
    """Returns observations, rewards and ends of Gymnasium's game with given cards.

    Args:
        cards: `[4 + n * 10]` ints, those of the start and of each of n steps.
        choices: `[n]` ints, the actions.
    """
    deck = list(cards[:4])
    monkeypatch.setattr(blackjack, "draw_card", lambda rng: deck.pop(0))
    game = gym.make("Blackjack-v1").unwrapped
    found = [(*game.reset(seed=0)[0], 0.0, False)]
    for step, action in enumerate(choices):
        deck[:] = cards[4 + 10 * step : 14 + 10 * step]
        seen, reward, ended, *_ = game.step(int(action))
        found.append((*map(int, seen), float(reward), ended))
        if ended:
            break
    return found


def test_games_with_equal_cards_are_equal(monkeypatch):
    rng, twin, count, steps = np.random.default_rng(0), envs.Blackjack(), 3000, 6
    low = rng.random([count, 1]) < 0.5  # half of the games have many aces
    cards = np.minimum(rng.integers(1, 14, [count, 4 + 10 * steps]), 10)
    cards = np.where(low, np.minimum(cards, rng.integers(1, 11, cards.shape)), cards)
    choices = rng.random([count, steps]) < 0.4
    games = [play(*game, monkeypatch) for game in zip(cards, choices, strict=True)]
    noise = noise_of(cards)
    state = twin.initial(tf.constant(noise[:, :4], tf.float32))
    transition = tf.function(twin.transition, jit_compile=True, autograph=False)
    running = np.ones(count, bool)
    for step in range(steps + 1):
        seen = [np.array(x) for x in twin.observation(state)]
        mine = zip(*seen, state["reward"].numpy(), state["terminal"].numpy())
        for game, row in zip(games, mine, strict=True):
            assert step >= len(game) or game[step] == row
        running &= ~state["terminal"].numpy()
        if step < steps:
            part = tf.constant(noise[:, 4 + 10 * step : 14 + 10 * step], tf.float32)
            state = transition(state, tf.constant(choices[:, step], tf.int64), part)
    rewards = np.array([game[-1][-2] for game in games])
    assert running.sum() < count / 100
    assert all((rewards == value).sum() > 100 for value in (-1, 0, 1))


def test_dealer_draws_at_most_ten_cards():
    """The recursion follows every hand of the dealer."""

    @functools.cache
    def most_draws(total, has_ace):
        value = total + 10 * (has_ace and total <= 11)
        if value >= 17:
            return 0
        hands = ((total + card, has_ace or card == 1) for card in range(1, 11))
        return 1 + max(most_draws(*hand) for hand in hands)

    starts = [(a + b, 1 in (a, b)) for a in range(1, 11) for b in range(1, 11)]
    assert max(most_draws(*start) for start in starts) == twins.MAX_DEALER_DRAWS


def test_cards_have_the_probabilities_of_a_deck():
    noise = tf.constant((np.arange(13_000) + 0.5) / 13_000, tf.float64)
    counts = np.bincount(twins._cards(noise).numpy(), minlength=11)
    np.testing.assert_array_equal(counts, [0, *[1000] * 9, 4000])
