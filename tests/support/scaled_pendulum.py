"""Pendulum whose observations are of no size that a network could use: shifted, and each scaled by another factor."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from numpy.typing import NDArray

SCALE = np.array([1000.0, 1000.0, 0.01], np.float32)
SHIFT = np.array([5000.0, -3000.0, 20.0], np.float32)


class ScaledPendulum(gymnasium.ObservationWrapper[Any, Any, Any]):
    """See the module's text."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(PendulumEnv(render_mode=render_mode))
        high = np.abs(SHIFT) + 10 * SCALE
        self.observation_space = gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return observation * SCALE + SHIFT


gymnasium.register("ScaledPendulum-v0", "support.scaled_pendulum:ScaledPendulum", max_episode_steps=200)
