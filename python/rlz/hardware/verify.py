"""Whether a run goes as its plan said: after the warm-up once, with the likely cause where it does not.

Everything is read from the kernel and from the tracker's snapshots; nothing is measured, and the run is not touched.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlz.hardware.detect import Roots, cgroup_folders, throttled_s
from rlz.hardware.plan import Prediction

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.tracking.snapshot import Snapshot

TOLERANCE = 0.2
"""Relative difference from the prediction that is worth a word."""

SETTLED_S = 10.0
"""Executor and threads have stood still for so long when the window begins."""

EAGER_LIMIT_S = 180.0
"""A learner that is not compiled so long after its first update is looked at as it is."""

WINDOW_S = 20.0

STATE = ("train/compiled", "train/threads", "train/batch_size", "train/active_envs", "train/trying")
"""What must stand still."""

FOREIGN_CORES = 0.25
"""Cores in use by other processes that explain a slow run, where hardly any is left."""

FULL = 0.85
"""Part of the cores in use from which on one process takes from the other."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Neighbourhood:
    """Counters of the machine at one instant, in seconds: busy cores, pressure, pauses by a quota."""

    at: float
    busy_s: float
    pressure_s: float
    throttled_s: float
    throttled: int

    @classmethod
    def read(cls, roots: Roots, cores: set[int], now: float) -> "Neighbourhood":
        """Look at the cores that this process may use."""
        return cls(now, _busy_s(roots.proc, cores), _pressure_s(roots.proc), throttled_s(roots), _throttled(roots))


class Verifier:
    """Compares a run with its prediction; call `look` with every snapshot of the log, in order.

    Parameters
    ----------
    prediction : of the run's plan.
    config : of the run.
    roots, cores, clock, foreign_gpu_users : where the machine is looked at; tests give their own.
    """

    def __init__(
        self,
        prediction: Prediction,
        config: "RunConfig",
        *,
        roots: Roots | None = None,
        cores: set[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        foreign_gpu_users: Callable[[set[int]], int] | None = None,
    ) -> None:
        self._prediction = prediction
        self._config = config
        self._roots = roots or Roots()
        self._cores = cores or set(os.sched_getaffinity(0))
        self._clock = clock
        self._gpu_users = foreign_gpu_users or gpu_users
        self._state: tuple[float, ...] | None = None
        self._still_since = 0.0
        self._updating_since: float | None = None
        self._begin: tuple[Snapshot, Neighbourhood] | None = None
        self._window: list[Snapshot] = []
        self.done = False

    def look(self, snapshot: "Snapshot") -> str | None:
        """One line, once, when the run differs from its prediction; else None."""
        if self.done:
            return None
        if self._begin is None:
            if self._warm(snapshot):
                self._begin = snapshot, self._look_around()
            return None
        self._window.append(snapshot)
        first, around = self._begin
        if any(snapshot.values.get(tag) != first.values.get(tag) for tag in STATE if tag != "train/threads"):
            self._begin, self._window = None, []  # executor, or batch size, changed after all
            return None
        if snapshot.wall_s - first.wall_s < WINDOW_S:
            return None
        self.done = True
        return self._compare(first, snapshot, around, self._look_around())

    def _warm(self, snapshot: "Snapshot") -> bool:
        if snapshot.updates_per_s <= 0:
            return False
        if self._updating_since is None:
            self._updating_since = snapshot.wall_s
        state = tuple(snapshot.values.get(tag, 0.0) for tag in STATE)
        if state != self._state:
            self._state, self._still_since = state, snapshot.wall_s
        waited = snapshot.wall_s - self._updating_since
        if self._config.compile and not snapshot.values.get("train/compiled") and waited < EAGER_LIMIT_S:
            return False
        # Throughput mode that tries other settings is not what was predicted, even where rates stand still meanwhile.
        return not snapshot.values.get("train/trying") and snapshot.wall_s - self._still_since >= SETTLED_S

    def _look_around(self) -> Neighbourhood:
        return Neighbourhood.read(self._roots, self._cores, self._clock())

    def _compare(self, first: "Snapshot", last: "Snapshot", before: Neighbourhood, after: Neighbourhood) -> str | None:
        seconds = last.wall_s - first.wall_s
        steps = (last.env_steps - first.env_steps) / seconds
        frames = (last.frames - first.frames) / seconds
        wanted = self._prediction
        if self._config.adapts() and last.values.get("train/batch_size") != self._config.first_batch_size():
            return None  # the run has found a better batch size, and has said why
        off = [
            (name, real, expected)
            for name, real, expected in (
                ("env steps/s", steps, wanted.env_steps_per_s),
                ("frames/s", frames, wanted.frames_per_s),
            )
            if expected > 0 and abs(real / expected - 1) > TOLERANCE
        ]
        if not off:
            return None
        text = " and ".join(
            f"{real:,.0f} {name} instead of {expected:,.0f} ({real / expected - 1:+.0%})"
            for name, real, expected in off
        )
        slower = any(real < expected for _, real, expected in off)
        cause = self._cause(first, last, before, after) if slower else self._faster(last)
        return f"not as planned: {text}. Likely cause: {cause}. `rlz profile --fresh` measures again"

    def _cause(self, first: "Snapshot", last: "Snapshot", before: Neighbourhood, after: Neighbourhood) -> str:
        seconds = max(after.at - before.at, 1e-9)
        pauses, paused = after.throttled - before.throttled, after.throttled_s - before.throttled_s
        if pauses > 0 and paused > 0.05 * seconds:
            return f"the CPU quota of this container paused it {pauses} times, {paused / seconds:.0%} of the time"
        if self._config.compile and not last.values.get("train/compiled"):
            return "updates are not compiled here (logs/events.log says why)"
        own = self._own_cores()
        busy = max(0.0, after.busy_s - before.busy_s) / seconds
        others, cores = busy - own, len(self._cores)
        if others > FOREIGN_CORES and busy > FULL * cores:
            waiting = max(0.0, after.pressure_s - before.pressure_s) / seconds
            also = f", and somebody waited for a core {waiting:.0%} of the time" if waiting > 0.1 else ""
            return f"other processes use {others:.1f} of the {cores} cores{also}"
        if self._config.device.startswith("cuda") or self._config.devices:
            pids = {worker.pid for worker in last.workers}
            if count := self._gpu_users(pids):
                return f"{count} other process{'es' * (count > 1)} use the GPU"
        if last.evaluations + last.evaluations_skipped > first.evaluations + first.evaluations_skipped:
            return "the evaluator was playing meanwhile (--eval-every)"
        samplers = [worker for worker in last.workers if worker.role == "sampler"]
        if samplers and all(worker.waits.get("limiter", 0.0) < 0.1 for worker in samplers):
            length = f"; episodes have {last.length_mean:,.0f} steps now" if last.length_mean else ""
            return f"the environment is slower than when it was measured: its steps, or its resets{length}"
        return "updates are slower than when they were measured: a lower clock, or memory that others use"

    def _faster(self, last: "Snapshot") -> str:
        if last.values.get("train/compiled") and self._prediction.executor == "eager":
            return "updates are compiled here, and were not when they were measured"
        return "the machine has more time than when it was measured"

    def _own_cores(self) -> float:
        """Cores that the run's processes used over the window."""
        sums = [sum(worker.cpu_percent or 0.0 for worker in snapshot.workers) / 100 for snapshot in self._window]
        return sum(sums) / max(1, len(sums))


def gpu_users(own: set[int]) -> int:
    """Processes that compute on the GPUs, without those given; 0 where nvidia-smi does not tell."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    command = [program, "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len({int(line) for line in done.stdout.split() if line.isdigit()} - own)


def _busy_s(proc: Path, cores: set[int]) -> float:
    """Seconds for which some cores were not idle (proc_stat(5): user, nice, system, irq, softirq, steal)."""
    busy = 0.0
    for line in _lines(proc / "stat"):
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores and len(fields) >= 8:
            busy += sum(int(fields[index]) for index in (0, 1, 2, 5, 6, 7)) / _TICKS
    return busy


def _pressure_s(proc: Path) -> float:
    """Seconds for which at least one process waited for a core; 0 where the kernel does not count them."""
    for line in _lines(proc / "pressure" / "cpu"):
        if line.startswith("some "):
            return int(line.rpartition("total=")[2] or 0) / 1e6
    return 0.0


def _throttled(roots: Roots) -> int:
    """How often a quota has paused this process's cgroup, or one above it."""
    most = 0
    for folder in cgroup_folders(roots, "cpu"):
        for line in _lines(folder / "cpu.stat"):
            name, _, value = line.partition(" ")
            if name == "nr_throttled" and value.strip().isdigit():
                most = max(most, int(value))
    return most


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
