"""Environments that are right, and need something."""

import socket
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class ArrayReward(gymnasium.Env[Any, Any]):
    """Rewards of 3 as arrays of one number; five steps an episode."""

    def __init__(self, shape: tuple[int, ...] = (1,)) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
        self.shape, self.steps = shape, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        done = np.full(self.shape, self.steps == 5)
        return np.zeros(2, np.float32), np.full(self.shape, 3.0), done, np.full(self.shape, False), {}


class Listening(ArrayReward):
    """Listens on a port, as a simulator in a process of its own does."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", port))
        self.socket.listen()

    def close(self) -> None:
        self.socket.close()

    def __del__(self) -> None:
        self.close()


class Needs(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Imports a package that is not installed."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        import not_there_at_all  # type: ignore[import-not-found]  # noqa: F401


gymnasium.register("ArrayReward-v0", entry_point=ArrayReward, max_episode_steps=10)
gymnasium.register("Listening-v0", entry_point=Listening, max_episode_steps=10)
