"""A problem whose answer is known, with action bounds that are not symmetric and episodes that really end."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box

BEST = np.array([1.8, 3.0], np.float32)


class AsymmetricBounds(gymnasium.Env):
    """One step: the reward is minus the squared distance, in units of the range, of the action from `BEST`."""

    def __init__(self):
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        distance = (action - BEST) / (self.action_space.high - self.action_space.low)
        obs = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return obs, 1.0 - 10.0 * float((distance**2).sum()), True, False, {}


gymnasium.register("AsymmetricBounds-v0", entry_point=AsymmetricBounds)
