"""Whether a run goes as its plan said: after the warm-up it is told once where it does not, with the slow side.

Everything is read from the kernel and from the tracker's snapshots; nothing is measured, and the run is not touched.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlz.planning.plan import Prediction
from rlz.system.cores import busy_s
from rlz.system.detect import Roots

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.tracking.snapshot import Snapshot

TOLERANCE = 0.2
"""Relative difference from the prediction that is worth a word."""

FOREIGN_CORES = 0.25
"""Cores in use by other processes that explain a slow run, where hardly any is left."""

FULL = 0.85
"""Part of the cores in use from which on one process takes from the other."""

SLOW = {
    "env steps/s": "the environment is slower than when it was measured: its steps, or its resets",
    "frames/s": "updates are slower than when they were measured: a lower clock, or memory that others use",
}

SETTLED_S = 10.0
"""Executor and threads have stood still for so long when the window begins."""

EAGER_LIMIT_S = 180.0
"""A learner that is not compiled so long after its first update is looked at as it is."""

WINDOW_S = 20.0

STATE = ("train/compiled", "train/threads", "train/batch_size", "train/row_uses", "train/trying")
"""What must stand still."""


class Verifier:
    """Compares a run with its prediction; call `look` with every snapshot of the log, in order.

    Parameters
    ----------
    prediction : of the run's plan.
    config : of the run.
    roots, cores, clock : where the machine is looked at; tests give their own.
    """

    def __init__(
        self,
        prediction: Prediction,
        config: "RunConfig",
        *,
        roots: Roots | None = None,
        cores: set[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prediction = prediction
        self._config = config
        self._roots = roots or Roots()
        self._cores = cores or set(os.sched_getaffinity(0))
        self._clock = clock
        self._state: tuple[float, ...] | None = None
        self._still_since = 0.0
        self._updating_since: float | None = None
        self._begin: tuple[float, float] | None = None
        self._window: list[Snapshot] = []
        self.done = False

    def look(self, snapshot: "Snapshot") -> str | None:
        """One line, once, when the run differs from its prediction or cannot be compared with it; else None."""
        if self.done:
            return None
        if self._begin is None:
            if self._warm(snapshot):
                self._begin, self._window = self._look_around(), [snapshot]
            return None
        self._window.append(snapshot)
        first = self._window[0]
        if any(snapshot.values.get(tag) != first.values.get(tag) for tag in STATE if tag != "train/threads"):
            self._begin = None  # executor, or batch size, changed after all
            return None
        if snapshot.wall_s - first.wall_s < WINDOW_S:
            return None
        self.done = True
        return self._compare(self._window, self._foreign_cores(self._begin))

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

    def _look_around(self) -> tuple[float, float]:
        """The time, and seconds for which cores were busy so far."""
        return self._clock(), busy_s(self._roots.proc, self._cores)

    def _foreign_cores(self, begin: tuple[float, float]) -> float:
        """Cores that other processes used since then; 0 where enough were left."""
        now = self._look_around()
        busy = (now[1] - begin[1]) / max(now[0] - begin[0], 1e-9)
        own = _mean(self._window, lambda one: sum(worker.cpu_percent or 0.0 for worker in one.workers) / 100)
        return busy - own if busy > FULL * len(self._cores) else 0.0

    def _compare(self, window: "list[Snapshot]", foreign_cores: float) -> str | None:
        first, last, config, wanted = window[0], window[-1], self._config, self._prediction
        planned = config.replay().batch, config.replay().row_uses
        now = last.values.get("train/batch_size", planned[0]), last.values.get("train/row_uses", planned[1])
        if now != planned and config.replay().ratio is None:
            # Throughput mode has found a better setting, and has said why.
            return (
                f"not compared with the plan: its prediction was for batch size {planned[0]:,} and {planned[1]:g} "
                f"uses of each row, the run works with batch size {now[0]:,.0f} and {now[1]:g} uses by now"
            )
        seconds = max(last.wall_s - first.wall_s, 1e-9)
        rates = {
            "env steps/s": ((last.env_steps - first.env_steps) / seconds, wanted.env_steps_per_s),
            "frames/s": ((last.frames - first.frames) / seconds, wanted.frames_per_s),
        }
        differ = {name: real / expected - 1 for name, (real, expected) in rates.items() if expected > 0}
        off = [
            f"{rates[name][0]:,.0f} {name} instead of {rates[name][1]:,.0f} ({by:+.0%})"
            for name, by in differ.items()
            if abs(by) > TOLERANCE
        ]
        if not off:
            return None
        if min(differ.values()) >= -TOLERANCE:
            why = "the machine has more time than when it was measured"
        elif foreign_cores > FOREIGN_CORES:
            why = f"other processes use {foreign_cores:.1f} of the {len(self._cores)} cores"
        elif config.compile and wanted.executor != "eager" and not last.values.get("train/compiled"):
            why = "updates are not compiled (logs/events.log says why)"
        else:
            slow = min(differ, key=lambda name: differ[name])
            if config.replay().ratio is not None:  # both rates are off alike: the side that does not wait is slow
                slow = "env steps/s" if _waits(window, "updates") > _waits(window, "env_steps") else "frames/s"
            why = SLOW[slow]
        return f"not as planned: {' and '.join(off)}. Probably: {why}. `rlz profile --fresh` measures again"


def _waits(window: "list[Snapshot]", progress: str) -> float:
    """Part of the time for which the workers of one progress wait for the replay ratio."""

    def mean(snapshot: "Snapshot") -> float:
        waits = [one.waits.get("limiter", 0.0) for one in snapshot.workers if one.progress == progress]
        return sum(waits) / max(1, len(waits))

    return _mean(window, mean)


def _mean(window: "list[Snapshot]", value: "Callable[[Snapshot], float]") -> float:
    # The rates of the first snapshot are of the time before the window.
    values = [value(snapshot) for snapshot in window[1:]]
    return sum(values) / max(1, len(values))
