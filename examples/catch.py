"""Learns from images: a paddle at the bottom must catch a falling ball.

    python examples/catch.py [epochs]

An observation of the game Catch is an image of 84 x 84 bytes. The default policy for
images is convolutional and acts through LiteRT. The reward is +1 for a caught ball and -1
for a missed ball. A random policy for Catch has the expected return -5/7.
"""

import sys

import gymnasium as gym
import numpy as np

import tf_reinforce as tfr

CELL, CELLS = 12, 7  # each side has 7 cells of 12 pixels


class Catch(gym.Env):
    """A game in which a paddle must catch a falling ball.

    In each step the ball falls by one cell, and the paddle moves by at most one cell. The
    paddle is one cell wide and starts in the middle, as in bsuite's Catch. The ball falls
    for six steps, and the paddle needs at most three steps to reach the ball's column.
    """

    observation_space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = gym.spaces.Discrete(3, start=-1)  # left, stay, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [0, int(self.np_random.integers(CELLS))]
        self.paddle = CELLS // 2
        return self._image(), {}

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action), 0), CELLS - 1)
        self.ball[0] += 1
        landed = self.ball[0] == CELLS - 1
        caught = self.ball[1] == self.paddle
        reward = (1.0 if caught else -1.0) if landed else 0.0
        return self._image(), reward, landed, False, {"is_success": caught}

    def _image(self):
        image = np.zeros((84, 84, 1), np.uint8)
        row, column = (CELL * cell for cell in self.ball)
        left = CELL * self.paddle
        image[-CELL:, left : left + CELL] = 128
        image[row : row + CELL, column : column + CELL] = 255
        return image


gym.register("Catch-v0", Catch)  # python -m tf_reinforce train catch:Catch-v0


def make_agent(seed=0):
    """Returns an agent with the default policy for images, and settings for Catch."""
    return tfr.Reinforce.for_env(
        Catch, hidden=(64,), learning_rate=2e-3, entropy_coef=0.03, seed=seed
    )


if __name__ == "__main__":
    agent = make_agent()
    agent.policy.summary()
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 250
    agent.fit(Catch, epochs=epochs, episodes_per_epoch=32)
    print(agent.evaluate(Catch, episodes=100))
