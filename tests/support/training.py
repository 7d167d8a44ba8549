"""A controller process with the fake learner, as tests drive it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


class Training:
    """A controller process and its workers."""

    def __init__(self, folder: Path, **values: Any) -> None:
        defaults: dict[str, Any] = {
            "env": "support.fake_envs:Counting-v0",
            "env_kwargs": {"truncate_after": 20},
            "total_timesteps": 2000,
            "learning_starts": 50,
            "buffer_size": 5000,
            "hidden": [8],
            "eval_every": 0,
            "runs_dir": str(folder),
            "name": "run",
            "log_every": 0.2,
        }
        self.config = {**defaults, **values}
        self.run_dir = folder / "run"
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.run_fake", json.dumps(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.seen: set[int] = set()

    def descendants(self) -> list[psutil.Process]:
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.seen.update(process.pid for process in found)
        return found

    def worker(self, role: str) -> psutil.Process:
        """Wait for a worker process."""
        names = {
            "sampler": "rlz.workers.sampler:Sampler",
            "evaluator": "rlz.workers.evaluator:Evaluator",
            "learner": "support.fake_learner:Learner",
            "grouped": "rlz.workers.grouped:GroupedSampler",
            "inference": "rlz.workers.inference:InferenceServer",
            "shaper": str(Path(__file__).parents[2] / "examples" / "reward_shaper.py:RewardShaper"),
        }

        def find() -> psutil.Process | None:
            for process in self.descendants():
                try:
                    if names[role] in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                        return process
                except psutil.NoSuchProcess:
                    continue
            return None

        return wait_for(find)

    def wait_for_steps(self, steps: int) -> None:
        """Wait until the log shows that many env steps."""

        def reached() -> bool:
            self.descendants()
            assert self.process.poll() is None, self.text()
            return any(line["env_steps"] >= steps for line in self.metrics())

        wait_for(reached)

    def metrics(self) -> list[dict[str, Any]]:
        path = self.run_dir / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait(self, timeout: float = 100.0) -> int:
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"the run hangs\n{self.text()}"
            self.descendants()
            time.sleep(0.02)
        return self.process.wait()

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found

    def left(self) -> list[int]:
        return [pid for pid in self.seen if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]

    def assert_no_process_is_left(self, within: float = 0.0) -> None:
        deadline = time.monotonic() + within
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not self.left(), "processes are left"

    def assert_nothing_is_left(self) -> None:
        self.assert_no_process_is_left()
        assert not [path for path in self.run_dir.rglob(".*") if path.name != ".lock"]


def wait_for(condition: Callable[[], Any], timeout: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
