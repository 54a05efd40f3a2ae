"""Pixels: a paddle at the bottom catches a falling ball, seen as 84 x 84 bytes.

    python examples/catch.py [epochs]

The default policy for images is convolutional and acts through LiteRT. One catch is
worth +1, one miss -1; a random policy gets -5/7.
"""

import sys

import gymnasium as gym
import numpy as np

import tf_reinforce as tfr

CELL, CELLS = 12, 7  # 7 cells of 12 pixels along each side


class Catch(gym.Env):
    """The ball falls one cell per step; the paddle, one cell wide, moves by one.

    As in bsuite's game of that name the paddle starts in the middle: perfect play
    catches every ball.
    """

    observation_space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = gym.spaces.Discrete(3, start=-1)  # left, stay, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [0, int(self.np_random.integers(CELLS))]
        self.paddle = CELLS // 2
        return self._picture(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action), 0), CELLS - 1)
        self.ball[0] += 1
        landed = self.ball[0] == CELLS - 1
        caught = self.ball[1] == self.paddle
        reward = (1.0 if caught else -1.0) if landed else 0.0
        return self._picture(), reward, landed, False, {"is_success": caught}

    def _picture(self):
        picture = np.zeros((84, 84, 1), np.uint8)
        row, column = (CELL * cell for cell in self.ball)
        left = CELL * self.paddle
        picture[-CELL:, left : left + CELL] = 128
        picture[row : row + CELL, column : column + CELL] = 255
        return picture


gym.register("Catch-v0", Catch)  # here also: python -m tf_reinforce train catch:Catch-v0


def agent(seed=0):
    """The default policy for images, with the settings that learn this game."""
    return tfr.Reinforce.for_env(
        Catch, hidden=(64,), learning_rate=2e-3, entropy_coef=0.03, seed=seed
    )


if __name__ == "__main__":
    player = agent()
    player.policy.summary()
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 250
    player.fit(Catch, epochs=epochs, episodes_per_epoch=32)
    print(player.evaluate(Catch, episodes=100))
