"""Learns tic-tac-toe against an opponent, through a single-agent view of PettingZoo.

    pip install pettingzoo pygame-ce
    python examples/pettingzoo_single.py [epochs]

The opponent first plays randomly. Then a new agent learns against the trained agent.
"""

import sys

import gymnasium as gym
import numpy as np
import pettingzoo

import tf_reinforce as tfr


class SinglePlayer(gym.Env):
    """One player of a PettingZoo game; the opponent's turns belong to the environment."""

    def __init__(self, opponent=None):
        self.game = pettingzoo.make("aec", "classic/tictactoe_v3")
        self.game.reset()
        self.players = self.game.possible_agents
        self.observation_space = self.game.observation_space(self.players[0])
        self.action_space = self.game.action_space(self.players[0])
        self.opponent = opponent or self.play_randomly

    def play_randomly(self, observation):
        return self.np_random.choice(np.flatnonzero(observation["action_mask"]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game.reset(seed=seed)
        self.player = self.players[self.np_random.integers(2)]
        return self._play_opponent()[0], {}

    def step(self, action):
        self.game.step(action)
        observation, reward, terminated, truncated = self._play_opponent()
        return observation, reward, terminated, truncated, {"is_success": reward > 0}

    def _play_opponent(self):
        """Plays until it is the player's turn; returns the player's view of the game."""
        while self.game.agent_selection != self.player and not any(
            self.game.terminations.values()
        ):
            self.game.step(self.opponent(self.game.last()[0]))
        ended = [x[self.player] for x in (self.game.terminations, self.game.truncations)]
        return self.game.observe(self.player), self.game.rewards[self.player], *ended


def train(env, epochs):
    agent = tfr.Reinforce.for_env(env, action_mask="observation/action_mask")
    agent.fit(env, epochs=epochs, episodes_per_epoch=32, verbose=0)
    return agent, agent.evaluate(env, episodes=1000)


def strongest(agent):
    """Returns an opponent that takes the most likely actions of a trained agent."""

    def play(observation):
        batch = {name: array[None] for name, array in observation.items()}
        return agent.act(batch, deterministic=True)[0]

    return play


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    agent, result = train(SinglePlayer, epochs)
    print("against a random opponent:", result["episode_return"])
    _, result = train(lambda: SinglePlayer(strongest(agent)), epochs)
    print("against the trained agent:", result["episode_return"])
