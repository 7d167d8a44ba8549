"""Whether a run goes as its plan said: after the warm-up once, with the likely cause where it does not.

Everything is read from the kernel and from the tracker's snapshots; nothing is measured, and the run is not touched.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlz.planning.causes import TOLERANCE, Window, likely_cause
from rlz.planning.plan import Prediction
from rlz.system.cards import Cards, look_at_cards
from rlz.system.detect import Roots
from rlz.system.surroundings import Surroundings

if TYPE_CHECKING:
    from rlz.config import RunConfig
    from rlz.planning.profile_model import Sampling
    from rlz.tracking.snapshot import Snapshot

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
    sampling : figures of the environment in the profile, where there is one.
    roots, cores, clock, cards : where the machine is looked at; tests give their own.
    """

    def __init__(
        self,
        prediction: Prediction,
        config: "RunConfig",
        *,
        sampling: "Sampling | None" = None,
        roots: Roots | None = None,
        cores: set[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cards: Callable[[list[str], set[int]], Cards] = look_at_cards,
    ) -> None:
        self._prediction = prediction
        self._config = config
        self._sampling = sampling
        self._roots = roots or Roots()
        self._cores = cores or set(os.sched_getaffinity(0))
        self._clock = clock
        self._cards = cards
        self._state: tuple[float, ...] | None = None
        self._still_since = 0.0
        self._updating_since: float | None = None
        self._begin: Surroundings | None = None
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
        return self._compare(Window(tuple(self._window), self._begin, self._look_around(), len(self._cores)))

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

    def _look_around(self) -> Surroundings:
        return Surroundings.read(self._roots, self._cores, self._clock())

    def _compare(self, window: Window) -> str | None:
        last, config, wanted = window.last, self._config, self._prediction
        planned = config.replay().batch, config.replay().row_uses
        now = last.values.get("train/batch_size", planned[0]), last.values.get("train/row_uses", planned[1])
        if now != planned and config.replay().ratio is None:
            # Throughput mode has found a better setting, and has said why.
            return (
                f"not compared with the plan: its prediction was for batch size {planned[0]:,} and {planned[1]:g} "
                f"uses of each row, the run works with batch size {now[0]:,.0f} and {now[1]:g} uses by now"
            )
        rates = (
            ("env steps/s", window.env_steps_per_s, wanted.env_steps_per_s),
            ("frames/s", window.frames_per_s, wanted.frames_per_s),
        )
        off = [
            f"{real:,.0f} {name} instead of {expected:,.0f} ({real / expected - 1:+.0%})"
            for name, real, expected in rates
            if expected > 0 and abs(real / expected - 1) > TOLERANCE
        ]
        if not off:
            return None
        own = {worker.pid for worker in last.workers}
        cause = likely_cause(window, wanted, config, self._sampling, lambda names: self._cards(names, own))
        return f"not as planned: {' and '.join(off)}. Likely cause: {cause}. `rlz profile --fresh` measures again"
