"""An environment that does one thing wrong, once, in `reset` or `step`."""

import os
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

OBS: dict[str, Any] = {
    "obs_nan": np.array([0.0, np.nan, 0.0]),
    "obs_inf": np.array([0.0, 0.0, np.inf]),
    "shape": np.zeros(4),
    "text": np.array(["a", "b", "c"]),
    "objects": np.array([None, 1, 2]),
    "ragged": [[1.0], [1.0, 2.0], 3.0],
    "dict": {"camera": np.zeros(3)},
    "none": None,
    "complex": np.zeros(3, np.complex128),
    "large": np.array([0, 256, 0], np.int64),
    "negative": np.array([0, 0, -1], np.int8),
    "half": np.array([0.5, 0.0, 0.0]),
    "nan_for_int": np.array([np.nan, 0.0, 0.0]),
    "fits": np.array([255, 0, 7], np.int64),
}
REWARDS: dict[str, Any] = {
    "reward_nan": float("nan"),
    "reward_inf": float("-inf"),
    "reward_none": None,
    "reward_text": "much",
    "reward_array": np.zeros(2),
}
RESULTS: dict[str, Any] = {
    "old_step": (np.zeros(3), 0.0, False, {}),
    "old_reset": np.zeros(3),
    "nothing": None,
}


class Misbehaving(gymnasium.Env[Any, Any]):
    """Observations [3] in `dtype`; on call number `when` of reset or step (`where`) it does `how`."""

    def __init__(self, how: str = "", where: str = "step", when: int = 5, dtype: str = "float64") -> None:
        self.observation_space = Box(0, 255, (3,), np.dtype(dtype).type)
        self.action_space = Box(-1.0, 1.0, (2,), np.float32)
        self.how, self.where, self.when = how, where, when
        self.calls = {"reset": 0, "step": 0, "init": 0}
        self.misbehave("init")

    def misbehave(self, where: str) -> bool:
        self.calls[where] += 1
        if where != self.where or self.calls[where] != self.when:
            return False
        if self.how == "raise":
            self.simulate()
        if self.how == "sys.exit":
            sys.exit(0)
        if self.how == "os._exit":
            os._exit(0)
        return True

    def simulate(self) -> None:
        raise RuntimeError("the simulator said no")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        zeros = np.zeros(3, self.observation_space.dtype)
        if not self.misbehave("reset"):
            return zeros, {}
        return RESULTS[self.how] if self.how in RESULTS else (OBS[self.how], {})

    def step(self, action: Any) -> Any:
        zeros = np.zeros(3, self.observation_space.dtype)
        if not self.misbehave("step"):
            return zeros, 0.0, False, self.calls["step"] % 10 == 0, {}
        if self.how in RESULTS:
            return RESULTS[self.how]
        return OBS.get(self.how, zeros), REWARDS.get(self.how, 0.0), False, False, {}


class NoSpaces(gymnasium.Env[Any, Any]):
    """Forgets to set its spaces."""


class ExitsWhenClosed(Misbehaving):
    """Calls exit in `close`, which changes no result."""

    def close(self) -> None:
        sys.exit(3)


def exiting_wrapper(env: Any) -> Any:
    sys.exit(4)


gymnasium.register("Misbehaving-v0", entry_point=Misbehaving)
gymnasium.register("NoSpaces-v0", entry_point=NoSpaces)
gymnasium.register("ExitsWhenClosed-v0", entry_point=ExitsWhenClosed)
