"""A run as these scripts drive it: start it, look into it, kill parts of it, see what is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rlz.runtime.live import Live
from rlz.system.detect import detect
from rlz.transport.stats import Stat

ROOT = Path(__file__).parents[2]
ROLES = {
    ":learner": "learner",
    ":evaluator": "evaluator",
    ":sampler": "sampler",
    ":groupedsampler": "sampler",
    ":inferenceserver": "inference",
}
"""By the end of the name of a worker's class, in small letters."""


class Hang(AssertionError):
    """Something took longer than it may."""


class Job:
    """`rlz train` in a process, or, with `fake`, the tests' program with a learner that does nothing but count.

    Parameters
    ----------
    folder : for run folder ("run") and output.
    options : of `rlz train`, with underscores.
    algo : what is trained.
    resume : go on with the run in `folder` instead.
    """

    def __init__(
        self, folder: Path, options: dict[str, Any], *, algo: str = "sac", fake: bool = False, resume: bool = False
    ) -> None:
        self.run_dir = folder / "run"
        self.output = folder / "output"
        self.algo = algo
        fakes = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self._command(folder, options, fake, resume),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": fakes} if fake else None,
            )
        self.controller = psutil.Process(self.process.pid)
        self.seen: dict[int, psutil.Process] = {}

    def _command(self, folder: Path, options: dict[str, Any], fake: bool, resume: bool) -> list[str]:
        if fake:
            values = options if resume else {"runs_dir": str(folder), "name": "run", **options}
            return [
                sys.executable,
                "-m",
                "support.run_fake",
                json.dumps(values),
                *([str(self.run_dir)] if resume else []),
            ]
        given = {} if resume else {"runs_dir": str(folder), "name": "run"}
        command = [sys.executable, "-m", "rlz", "train", *(["--resume", str(self.run_dir)] if resume else [self.algo])]
        for name, value in {**options, **given}.items():
            option = "--" + name.replace("_", "-")
            command += ["--no-" + option[2:]] if value is False else [option] if value is True else [option, str(value)]
        return command

    # -- looking ---------------------------------------------------------------------------------------------------

    def workers(self) -> dict[str, list[psutil.Process]]:
        """Living processes by role; "other": what workers started themselves."""
        found: dict[str, list[psutil.Process]] = {role: [] for role in (*ROLES.values(), "other")}
        try:
            children = self.controller.children(recursive=True)
        except psutil.NoSuchProcess:
            return found
        for process in children:
            self.seen[process.pid] = process
            try:
                command = process.cmdline()
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
            except psutil.NoSuchProcess:
                continue
            parts = [part.lower() for part in command]
            role = next((role for end, role in ROLES.items() if any(part.endswith(end) for part in parts)), "other")
            found[role].append(process)
        return found

    def live(self, deadline: float = 60.0) -> Live:
        """Connect as soon as the run is served."""
        return wait_for(self._try_live, deadline, self.describe)

    def _try_live(self) -> Live | None:
        if self.process.poll() is not None:
            raise Hang(f"the run has ended\n{self.text()}")
        try:
            return Live(self.run_dir, timeout=60.0)  # the machine may be busy with other jobs
        except OSError:
            return None

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return found

    def events(self) -> str:
        path = self.run_dir / "logs" / "events.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def describe(self) -> str:
        """For the report of a hang: what `rlz runs show` says, and the output."""
        command = [sys.executable, "-m", "rlz", "runs", "show", str(self.run_dir)]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return f"{shown.stdout}{shown.stderr}\n{self.text()}"

    # -- ending ----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> int:
        """Wait for the end; Hang when it does not come."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise Hang(f"the run does not end\n{self.describe()}")
            self.workers()
            time.sleep(0.02)
        return self.process.wait()

    def left(self, within: float = 2.0) -> list[str]:
        """Everything that is left of a run that has ended: processes, after `within` seconds, and unfinished files."""
        deadline = time.monotonic() + within
        while (alive := [p for p in self.seen.values() if _runs(p)]) and time.monotonic() < deadline:
            time.sleep(0.005)
        return [f"process {process.pid}: {process}" for process in alive]

    def close(self) -> None:
        """Kill what still runs."""
        self.workers()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.left(within=10.0)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> bool:
    """SIGKILL, if it still lives."""
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True


def wait_for(find: Callable[[], Any], timeout: float, describe: Callable[[], str] = str, every: float = 0.02) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := find()):
        if time.monotonic() > deadline:
            raise Hang(f"waited {timeout:g} s in vain\n{describe()}")
        time.sleep(every)
    return found


def stat(live: Live, name: str, which: Stat) -> float:
    """A number of a worker from the board."""
    slot = next(worker.slot for worker in live.workers() if worker.name == name)
    return float(live.stats.read()[slot][which])


def shared_files() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm"))  # noqa: PTH208


def left_since(before: set[str]) -> set[str]:
    """Names that have come to /dev/shm and that no living process maps: those of other programs are in use."""
    names = shared_files() - before
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names -= {line.partition("/dev/shm/")[2] for line in maps.read_text().splitlines()}
    return names


def spread(values: list[float]) -> dict[str, Any]:
    """Median, range and number of some measurements."""
    if not values:
        return {"n": 0}
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {"n": len(ordered), "median": round(median, 4), "min": round(ordered[0], 4), "max": round(ordered[-1], 4)}


def write_result(name: str, settings: dict[str, Any], results: dict[str, Any], output: str | None) -> Path:
    """Write a result with machine, date and command; default place: benches/results/<name>.json."""
    command = ["python", str(Path(sys.argv[0]).name), *sys.argv[1:]]
    value = {
        "format": 1,
        "workload": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": " ".join(command).replace("python ", "python benches/reliability/", 1),
        "settings": settings,
        "machine": detect().to_json(),
        "load_before": list(LOAD),
        "results": results,
    }
    path = Path(output) if output else ROOT / "benches" / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    print(f"written: {path}")
    return path


LOAD = os.getloadavg()
"""Load of the machine when the script began: a figure taken on a busy one says little."""


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def generator(seed: int | None) -> tuple[random.Random, int]:
    """A generator, and its seed to be written down."""
    chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
    return random.Random(chosen), chosen
