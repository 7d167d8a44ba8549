"""An environment that tells of success, as those for goals and robots do; and one whose bounds are none."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Succeeding(gymnasium.Env[Any, Any]):
    """Episodes of five steps; every second one is a success. `info` has numbers, and things that are none."""

    def __init__(self, tells: bool = True, bound: float = 1.0) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-bound, bound, (1,), np.float32)
        self.episodes, self.steps, self.tells = 0, 0, tells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        self.steps = 0
        return np.zeros(2, np.float32), {"is_success": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        info: dict[str, Any] = {"fuel": np.array([self.steps / 2]), "name": "x", "camera": np.zeros((2, 2)), "no": None}
        if self.tells:
            info["is_success"] = np.bool_(self.steps == 5 and self.episodes % 2 == 0)
        return np.zeros(2, np.float32), 1.0, False, self.steps == 5, info


gymnasium.register("Succeeding-v0", entry_point=Succeeding, max_episode_steps=5)
