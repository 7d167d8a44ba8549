"""Environments that change the working folder, or leave processes behind."""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

SLEEP = "import os, sys; print(os.getpid(), file=open(sys.argv[1], 'a')); os.execvp('sleep', ['sleep', '600'])"


def forget_three(path: Path) -> None:
    """Start three processes, and append their ids to a file once all of them run."""
    own = Path(f"{path}.{uuid.uuid4().hex}")
    own.touch()
    command = [sys.executable, "-S", "-c", SLEEP, str(own)]
    subprocess.Popen(command)
    subprocess.Popen(command, start_new_session=True)
    subprocess.run(["sh", "-c", 'setsid "$0" "$@" &', *command], check=True)
    while len(own.read_text().splitlines()) < 3:
        time.sleep(0.01)
    with path.open("a") as file:
        file.write(own.read_text())


class Wandering(gymnasium.Env[Any, Any]):
    """Works in a folder of its own, and finds its file there in each call.

    Parameters
    ----------
    when : "init", "reset" or "step": where it changes the folder.
    temporary : to a folder that `close` removes; else to one in the current folder.
    spawn : file that gets the process ids of processes that it starts and forgets: a child, a child with a session of
        its own, and an orphan.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, when: str = "init", temporary: bool = False, spawn: str = "", render_mode: Any = None) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (2,), np.float32), Box(-1, 1, (1,), np.float32)
        self.when, self.folder, self.render_mode = when, "", render_mode
        self.temporary = tempfile.TemporaryDirectory() if temporary else None
        self.steps = 0
        self.go("init")
        if spawn:
            forget_three(Path(spawn))

    def go(self, when: str) -> None:
        if when == self.when and not self.folder:
            self.folder = self.temporary.name if self.temporary else str(Path("own").absolute())
            os.makedirs(self.folder, exist_ok=True)  # noqa: PTH103
            os.chdir(self.folder)
            Path("here").touch()
        elif self.folder:
            assert Path("here").exists(), "not in its own folder"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.go("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.go("step")
        return np.zeros(2, np.float32), 1.0, False, self.steps == 10, {}

    def render(self) -> Any:
        self.go("render")
        return np.zeros((16, 16, 3), np.uint8)

    def close(self) -> None:
        if self.temporary:
            self.temporary.cleanup()


gymnasium.register("Wandering-v0", entry_point=Wandering)
