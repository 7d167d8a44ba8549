"""An environment whose episodes never end, and which is registered without a time limit."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Endless(gymnasium.Env[Any, Any]):
    """Constant observations; with `hang`, its step number `hang` takes an hour."""

    def __init__(self, hang: int = 0) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
        self.hang, self.steps = hang, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.hang:
            time.sleep(3600)
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Forever(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hides every end of an episode."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        obs, reward, _, _, info = self.env.step(action)
        return obs, float(reward), False, False, info


gymnasium.register("Endless-v0", entry_point=Endless)
