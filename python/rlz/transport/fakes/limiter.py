"""Fake limiter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rlz._native import CLOSED, FINISHED, RUNNING, STOPPING
from rlz.errors import ClosedError
from rlz.transport.fakes.handle import Handle, check, check_worker, no_descriptor, would_wait

MOST_LANES = 65_535
MOST_COUNT = (1 << 47) - 2


@dataclass
class _Counts:
    total: int
    learning_starts: int
    ratio: Fraction | None
    slack: Fraction
    first_step: int
    granted: int
    updates: int
    done: list[int]
    open_index: list[int | None]
    active: int
    open_updates: int = 0
    state: int = RUNNING

    @property
    def steps(self) -> int:
        return self.first_step + sum(self.done)

    @property
    def target(self) -> int | None:
        return None if self.ratio is None else int(self.ratio * max(0, self.total - self.learning_starts))

    def may_step(self) -> bool:
        if self.granted >= self.total:
            return False
        due = 0 if self.ratio is None else self.ratio * max(0, self.granted + 1 - self.learning_starts)
        return self.ratio is None or due - self.updates <= self.slack

    def updates_allowed(self, most: int) -> int:
        """How many more updates may be granted now."""
        if self.ratio is None or self.target is None:
            return most if self.learning_starts < self.steps < self.total else 0
        if self.steps < max(1, self.learning_starts):
            return 0
        line = int(self.ratio * (self.steps - self.learning_starts) + self.slack)
        return max(0, min(most, min(line, self.target) - self.updates - self.open_updates))

    def lane(self, lane: int) -> int:
        return check("lane", lane, 0, len(self.done) - 1)


class Limiter(Handle[_Counts]):
    """As `rlz.transport.Limiter`."""

    @staticmethod
    def create(
        *,
        lanes: int,
        total_timesteps: int,
        learning_starts: int,
        ratio: tuple[int, int] | None,
        slack: float,
        run_id: int,
        env_steps: int = 0,
        updates: int = 0,
    ) -> Limiter:
        """Make a limiter."""
        check("lanes", lanes, 1, MOST_LANES)
        counts = {"total_timesteps": total_timesteps, "learning_starts": learning_starts, "env_steps": env_steps}
        for what, count in {**counts, "updates": updates}.items():
            check(what, count, 0, MOST_COUNT)
        if ratio is not None and min(ratio) < 1:
            raise ValueError(f"replay ratio: given {ratio[0]}/{ratio[1]}, expected a positive fraction")
        fraction = None if ratio is None else Fraction(*ratio)
        if fraction is not None and not slack >= max(1.0, float(fraction)):
            raise ValueError(f"ratio slack: given {slack}, expected at least max(1, replay ratio)")
        exact = Fraction(min(slack, float(MOST_COUNT))) if fraction is not None else Fraction(0)
        shared = _Counts(
            total_timesteps,
            learning_starts,
            fraction,
            exact,
            env_steps,
            env_steps,
            updates,
            [0] * lanes,
            [None] * lanes,
            lanes,
        )
        return Limiter("limiter", shared)

    @staticmethod
    def attach(fd: int) -> Limiter:
        """Refused."""
        no_descriptor()

    @property
    def fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def nbytes(self) -> int:
        """Bytes of the counts."""
        return 16 * len(self._get().done)

    @property
    def state(self) -> int:
        """RUNNING, STOPPING, FINISHED or CLOSED."""
        return self._get().state

    @property
    def total_timesteps(self) -> int:
        """Env steps after which the run is over."""
        return self._get().total

    @property
    def env_steps(self) -> int:
        """Completed env steps."""
        return self._get().steps

    @property
    def granted(self) -> int:
        """Step indices handed out."""
        return self._get().granted

    @property
    def updates(self) -> int:
        """Completed updates."""
        return self._get().updates

    @property
    def target_updates(self) -> int | None:
        """Updates of the whole run."""
        return self._get().target

    @property
    def missed_wakeups(self) -> int:
        """None is ever missed."""
        self._get()
        return 0

    @property
    def active_lanes(self) -> int:
        """Lanes that get new step indices."""
        return self._get().active

    def set_active_lanes(self, count: int) -> None:
        """Give new step indices to the first lanes only."""
        counts = self._get()
        counts.active = check("active lanes", count, 1, len(counts.done))

    def lane_steps(self) -> list[int]:
        """Completed env steps of each lane."""
        return list(self._get().done)

    def acquire_steps(
        self, lanes: Sequence[int], tickets: NDArray[np.int64], *, worker: int, timeout: float | None
    ) -> int:
        """Take step indices."""
        counts = self._get()
        check_worker(worker)
        if not lanes or len(lanes) != len(tickets):
            raise ValueError(f"lanes and tickets: given {len(lanes)} and {len(tickets)}, expected one ticket per lane")
        for lane in lanes:
            counts.lane(lane)
        if _ended(counts):
            tickets[:] = -1
            return 0
        over = False
        for i, lane in enumerate(lanes):
            if counts.open_index[lane] is None and lane < counts.active and counts.may_step():
                counts.open_index[lane] = counts.granted
                counts.granted += 1
            index = counts.open_index[lane]
            over = over or (index is None and counts.granted >= counts.total)
            tickets[i] = -1 if index is None else index
        granted = int((tickets >= 0).sum())
        if not granted and not over:
            raise would_wait("leave for an env step", timeout)
        return granted

    def complete_step(self, lane: int) -> None:
        """Count an env step."""
        counts = self._get()
        if counts.open_index[counts.lane(lane)] is None:
            raise ValueError(f"complete_step: given lane {lane}, expected a lane with an open step index")
        counts.open_index[lane] = None
        counts.done[lane] += 1

    def acquire_updates(self, most: int, *, worker: int, timeout: float | None) -> int:
        """Leave for updates."""
        counts = self._get()
        check_worker(worker)
        if most < 1:
            raise ValueError(f"most: given {most}, expected at least 1")
        if _ended(counts):
            return 0
        granted = counts.updates_allowed(most)
        if not granted and counts.steps < counts.total:
            raise would_wait("leave for an update", timeout)
        counts.open_updates += granted
        return granted

    def complete_updates(self, count: int) -> None:
        """Count updates."""
        counts = self._get()
        if count > counts.open_updates:
            raise ValueError(f"complete_updates: given {count}, expected at most the {counts.open_updates} open ones")
        counts.open_updates -= count
        counts.updates += count

    def stop(self) -> None:
        """-> STOPPING."""
        self._advance(STOPPING)

    def finish(self) -> None:
        """-> FINISHED."""
        self._advance(FINISHED)

    def cancel(self) -> None:
        """-> CLOSED."""
        self._advance(CLOSED)

    def reap(self, worker: int) -> None:
        """Forget a worker: nobody waits here."""
        self._get()
        check_worker(worker)

    def _advance(self, state: int) -> None:
        counts = self._get()
        counts.state = max(counts.state, state)


def _ended(counts: _Counts) -> bool:
    if counts.state == CLOSED:
        raise ClosedError("the limiter was closed")
    return counts.state != RUNNING
