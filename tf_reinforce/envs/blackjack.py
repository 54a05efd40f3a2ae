"""Blackjack against a dealer, with cards from an infinite deck."""

import gymnasium as gym
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

MAX_DEALER_DRAWS = 10  # A A, A A A A, 6, A A A A A: 17 after ten further cards


class Blackjack(base.TensorEnv):
    """Gymnasium's Blackjack-v1: draw a card (action 1), or let the dealer draw (0).

    The observation is the value of the player's hand, the dealer's visible card, and
    whether an ace of the player counts eleven. The reward is 1 if the player's hand is
    better than the dealer's, -1 if it is worse or its value is above 21, and 0 otherwise.
    If the player's first two cards are an ace and a ten, the player wins unless the
    dealer has the same.

    The rules are those of the reference, which `gymnasium.make("Blackjack-v1")` follows
    too. There is no time limit, because every episode ends.

    Reference:
        Sutton & Barto (2018), Reinforcement learning: an introduction, example 5.1.
    """

    observation_space = gym.spaces.Tuple(
        (gym.spaces.Discrete(32), gym.spaces.Discrete(11), gym.spaces.Discrete(2))
    )
    action_space = gym.spaces.Discrete(2)
    initial_noise = seeding.NoiseSpec("uniform", (4,))
    transition_noise = seeding.NoiseSpec("uniform", (MAX_DEALER_DRAWS,))

    def initial(self, noise):
        cards = _cards(noise)
        dealer, own = cards[:, :2], cards[:, 2:]
        zeros = tf.zeros_like(noise[:, 0])
        return {
            "own": _hand(own),
            "dealer": _hand(dealer),
            "visible": dealer[:, 0],
            "reward": zeros,
            "terminal": zeros > 0,
        }

    def observation(self, state):
        is_soft = tf.cast(_is_soft(state["own"]), tf.int64)
        return _value(state["own"]), state["visible"], is_soft

    def transition(self, state, action, noise):
        cards, draws = _cards(noise), tf.equal(action, 1)
        own = _draw(state["own"], cards[:, 0], draws)
        dealer = state["dealer"]
        for number in range(MAX_DEALER_DRAWS):
            dealer = _draw(dealer, cards[:, number], ~draws & (_value(dealer) < 17))
        busts = _busts(own)
        others = tf.where(_busts(dealer), tf.zeros_like(dealer["total"]), _value(dealer))
        difference = tf.sign(_value(own) - others)
        wins = _is_natural(own) & ~_is_natural(dealer)
        compared = tf.where(wins, tf.ones_like(difference), difference)
        reward = tf.where(draws, -tf.cast(busts, tf.int64), compared)
        return {
            "own": own,
            "dealer": dealer,
            "visible": state["visible"],
            "reward": tf.cast(reward, self.dtype),
            "terminal": ~draws | busts,
        }

    def reward(self, state, action, next_state):
        return next_state["reward"]

    def terminal(self, state):
        return state["terminal"]


def _cards(noise):
    """Returns cards from 1, the ace, to 10, the value of four cards in thirteen."""
    return tf.minimum(1 + tf.cast(13 * noise, tf.int64), 10)


def _hand(cards):
    """Returns hands of two cards `[B, 2]`: sum with aces as one, an ace, number."""
    total = tf.reduce_sum(cards, axis=1)
    has_ace = tf.reduce_any(tf.equal(cards, 1), axis=1)
    return {"total": total, "has_ace": has_ace, "count": tf.ones_like(total) * 2}


def _draw(hand, cards, draws):
    """Returns hands with one more card where `draws` is True."""
    return {
        "total": hand["total"] + tf.where(draws, cards, 0),
        "has_ace": hand["has_ace"] | (draws & tf.equal(cards, 1)),
        "count": hand["count"] + tf.cast(draws, tf.int64),
    }


def _is_soft(hand):
    """Returns whether an ace counts eleven."""
    return hand["has_ace"] & (hand["total"] <= 11)


def _value(hand):
    return hand["total"] + tf.where(_is_soft(hand), tf.constant(10, tf.int64), 0)


def _busts(hand):
    return hand["total"] > 21


def _is_natural(hand):
    """Returns whether a hand is an ace and a ten."""
    return tf.equal(hand["count"], 2) & tf.equal(_value(hand), 21)
