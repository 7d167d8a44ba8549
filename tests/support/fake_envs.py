"""Environments whose every number is known, for tests in one process and in workers."""

import os
import random
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box


class Counting(gymnasium.Env[Any, Any]):
    """obs = (episode, step in the episode, first action component); reward = step in the episode.

    Parameters
    ----------
    terminate_after, truncate_after : length of an episode, by how it ends.
    fail_at, exit_at, nan_at, inf_reward_at, kill_at : total step at which it misbehaves.
    big_at, fine_at : total step with a number beyond the range, or the precision, of float32.
    fail_in_reset : number of the reset (1-based) that raises.
    sleep : seconds per step.
    hang_at : total step that does not end.
    slow : the first environment that comes to its fifth step makes this file; from there its steps take half a second.
    log : file that gets one line per step: "<reset seed> <action...>".
    spawn : start a child process that outlives a careless parent; its pid goes to this file.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        terminate_after: int = 0,
        truncate_after: int = 0,
        fail_at: int = 0,
        exit_at: int = 0,
        hard_exit_at: int = 0,
        nan_at: int = 0,
        big_at: int = 0,
        fine_at: int = 0,
        inf_reward_at: int = 0,
        fail_in_reset: int = 0,
        sleep: float = 0.0,
        hang_at: int = 0,
        slow: str = "",
        log: str = "",
        spawn: str = "",
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 10.0], np.float32))
        self.render_mode = render_mode
        self.options = locals()
        self.resets = self.step_in_episode = self.total = 0
        self.seed: int | None = None
        self.is_slow = False
        if spawn:
            import subprocess

            self.child = subprocess.Popen(["sleep", "600"])
            with open(spawn, "a") as file:  # noqa: PTH123
                file.write(f"{self.child.pid}\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed = seed
        self.resets += 1
        if self.resets == self.options["fail_in_reset"]:
            raise RuntimeError("the simulator said no")
        self.step_in_episode = 0
        return np.array([self.resets, 0.0, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        options = self.options
        self.total += 1
        self.step_in_episode += 1
        if options["sleep"]:
            time.sleep(options["sleep"])
        if options["slow"] and self.total == 5 and not os.path.exists(options["slow"]):  # noqa: PTH110
            with open(options["slow"], "x"):  # noqa: PTH123
                self.is_slow = True
        if self.is_slow:
            time.sleep(0.5)
        if self.total == options["hang_at"]:
            time.sleep(3600)
        if options["log"]:
            with open(options["log"], "a") as file:  # noqa: PTH123
                file.write(f"{self.seed} {' '.join(map(repr, action.tolist()))}\n")
        if self.total == options["fail_at"]:
            raise ValueError("a bug in the environment")
        if self.total == options["exit_at"]:
            raise SystemExit(3)
        if self.total == options["hard_exit_at"]:
            os._exit(0)
        obs = np.array([self.resets, float(self.step_in_episode), float(action[0])])
        reward = float(self.step_in_episode)
        if self.total == options["nan_at"]:
            obs[1] = np.nan
        if self.total == options["big_at"]:
            obs[2] = 1e300
        if self.total == options["fine_at"]:
            obs[2] = 2**24 + 1
        if self.total == options["inf_reward_at"]:
            reward = float("inf")
        return (
            obs,
            reward,
            self.step_in_episode == options["terminate_after"],
            self.step_in_episode == options["truncate_after"],
            {},
        )

    def close(self) -> None:
        if hasattr(self, "child"):
            self.child.kill()
            self.child.wait()

    def render(self) -> Any:
        frame = np.zeros((32, 32, 3), np.uint8)
        frame[: self.step_in_episode % 32] = 255
        return frame


class Pixels(gymnasium.Env[Any, Any]):
    """uint8 observations of shape (2, 3); one action component of shape (1, 1) as float64."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (2, 3), np.uint8)
        self.action_space = Box(-2.0, 2.0, (1, 1), np.float64)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.full((2, 3), 255, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (1, 1)
        assert action.dtype == np.float64
        self.steps += 1
        return np.full((2, 3), self.steps, np.uint8), 0.0, False, self.steps == 5, {}


class WrongShape(Counting):
    """Gives observations of another shape than its space says, from the third step on."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return (obs[:1] if self.total >= 3 else obs, *rest)


class Global(gymnasium.Env[Any, Any]):
    """Draws from the generators of the process, and from its own unseeded spaces."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.offset = random.random()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.left = 4
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.obs(), self.offset + random.random(), False, self.left == 0, {}

    def obs(self) -> Any:
        return np.array([np.random.uniform(-1, 1), self.action_space.sample()[0]], np.float32)


gymnasium.register("Counting-v0", entry_point=Counting)
gymnasium.register("Pixels-v0", entry_point=Pixels)
gymnasium.register("WrongShape-v0", entry_point=WrongShape)
gymnasium.register("Global-v0", entry_point=Global)
