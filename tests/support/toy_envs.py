"""Small environments with known results, without TensorFlow."""

import copy
import warnings

import gymnasium as gym
import numpy as np


class Clock(gym.Env):
    """Observes the step number; reward t at step t, counted from 1.

    It terminates after `length` steps. Misaligned rows change its results.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._observation(), {}

    def step(self, action):
        self.now += 1
        ended = self.now == self.length
        return self._observation(), float(self.now), ended, False, {}

    def _observation(self):
        return np.array([self.now], np.float32)


class Bandit(gym.Env):
    """One step, in which action k has reward `values[k]`."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, values=(0.0, 1.0)):
        self.values = values
        self.action_space = gym.spaces.Discrete(len(values))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(self.values[action]), True, False, {}


class Corridor(gym.Env):
    """Cells 0 to `size`; action 1 moves to the goal; reward -1 per step.

    The best return is -size. With `random`, episodes start in a random cell.
    """

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size=4, random=False):
        self.size = size
        self.random = random
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size + 1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(self.size)) if self.random else 0
        return self._observation(), {}

    def step(self, action):
        self.cell = max(0, self.cell + (1 if action == 1 else -1))
        return self._observation(), -1.0, self.cell == self.size, False, {}

    def _observation(self):
        return np.eye(self.size + 1, dtype=np.float32)[self.cell]


class Lengths(gym.Env):
    """Episodes of 1 to 12 steps, chosen by the seed, with reward 1 per step.

    The observation is (step, length), so all episodes differ.
    """

    observation_space = gym.spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.length = 0, int(self.np_random.integers(1, 13))
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.now += 1
        return self._observation(), 1.0, self.now == self.length, False, {}

    def _observation(self):
        return np.array([self.now, self.length], np.float32)


class Reporting(Lengths):
    """Reports `cost`, a seventh of the length, and `late` unless the length is 3, 6, ….

    Only the last info counts: all others have a negative cost.
    """

    def step(self, action):
        *answer, _ = super().step(action)
        if not answer[2]:
            return *answer, {"cost": -1.0, "late": True}
        late = {"late": np.bool_(self.length > 6)} if self.length % 3 else {}
        return *answer, {"cost": self.length / 7, **late}


class OldModel(Clock):
    """A `Clock` whose constructor warns with a text, also after changed filters."""

    def __init__(self, text):
        super().__init__()
        with warnings.catch_warnings():
            pass  # makes Python forget which warnings it has shown
        warnings.warn(text, stacklevel=2)


class Misbehaving(Clock):
    """A `Clock` that returns `answer(observation, reward, …)` at step `at`."""

    def __init__(self, at, answer, length=60):
        super().__init__(length)
        self.at = at
        self.answer = answer

    def step(self, action):
        given = super().step(action)
        return self.answer(*given) if self.now == self.at else given


class Observing(gym.Env):
    """Five steps of reward 1, with observations drawn from any space."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, observation_space):
        # The space has a random generator, which environments must not share.
        self.observation_space = copy.deepcopy(observation_space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.now = 0
        return self._observation(), {}

    def step(self, action):
        self.now += 1
        return self._observation(), 1.0, self.now == 5, False, {}

    def _observation(self):
        return self.observation_space.sample()


class Recall(gym.Env):
    """Random observations; the reward is the action plus a random number.

    Episodes have 1 to 9 steps, chosen by the seed. The odd ones are truncated. Most raw
    actions are clipped.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-0.1, 0.1, (1,), np.float32)

    def __init__(self, longest=9):
        self.longest = longest

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.length = 0, int(self.np_random.integers(1, self.longest + 1))
        return self._observation(), {}

    def step(self, action):
        self.now += 1
        reward = float(action[0] + self.np_random.normal())
        ended, is_odd = self.now == self.length, self.length % 2 == 1
        return self._observation(), reward, ended and not is_odd, ended and is_odd, {}

    def _observation(self):
        return self.np_random.normal(size=2).astype(np.float32)
