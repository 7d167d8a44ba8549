"""Slots of a fake trajectory queue: who holds them, and the arrays that look at them."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rlz.errors import ClosedError, LeaseLostError
from rlz.transport.fakes.handle import would_wait
from rlz.transport.fakes.rows import Layout, Row

COUNTERS = (
    *("committed", "consumed", "dropped_new", "dropped_oldest", "redelivered", "dropped_deliveries"),
    *("dropped_at_most_once", "reclaimed", "copied", "missed_wakeups"),
)


@dataclass(eq=False)
class Slot:
    """A slot that is not free: "writing", "full" or "reading".

    Attributes
    ----------
    content : None once the slot was given back while arrays look at it.
    viewed : the content then; the last array takes it along, and the slot is free.
    """

    state: str
    worker: int
    content: Row | None
    viewed: weakref.ref[Row] | None = None
    ticket: int = 0
    deliveries: int = 0
    note: int = 0
    committed_at: float = 0.0


@dataclass
class Slots:
    """All slots of a queue; those that are not in `taken` are free."""

    layout: Layout
    slots: int
    when_full: str
    redelivery: str
    max_deliveries: int
    taken: list[Slot] = field(default_factory=list)
    finished: bool = False
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def oldest(self) -> Slot | None:
        """The committed slot that waits longest."""
        full = [slot for slot in self.taken if slot.state == "full"]
        return min(full, key=lambda slot: slot.ticket, default=None)

    def claim(self, worker: int, timeout: float | None) -> Slot | None:
        """A slot to write; None when the new segment is dropped."""
        if self.finished:
            raise ClosedError("the trajectory queue was closed")
        if len(self.taken) >= self.slots:
            oldest = self.oldest()
            if self.when_full == "drop_new":
                self.counters["dropped_new"] += 1
                return None
            if self.when_full == "block" or oldest is None:
                raise would_wait("a free slot", timeout)
            self.taken.remove(oldest)
            self.counters["dropped_oldest"] += 1
        slot = Slot("writing", worker, np.zeros(self.layout.stride, np.uint8))
        self.taken.append(slot)
        return slot

    def commit(self, slot: Slot) -> int:
        """Hand a written slot to the consumers; its ticket."""
        self.check(slot)
        self.counters["committed"] += 1
        slot.state, slot.ticket, slot.committed_at = "full", self.counters["committed"], time.monotonic()
        assert slot.content is not None
        frozen(slot.content)
        return slot.ticket

    def pop(self, worker: int, timeout: float | None) -> Slot:
        """The oldest slot, to read."""
        slot = self.oldest()
        if slot is None:
            if self.finished:
                raise ClosedError("the trajectory queue was closed")
            raise would_wait("a segment", timeout)
        slot.state, slot.worker, slot.deliveries = "reading", worker, slot.deliveries + 1
        return slot

    def release(self, slot: Slot) -> None:
        """Make a slot free."""
        self.check(slot)
        self.taken.remove(slot)
        self.counters["consumed"] += slot.state == "reading"

    def release_later(self, slot: Slot) -> Callable[[], None]:
        """What frees a slot once, unless it was reaped meanwhile."""

        def release() -> None:
            if slot in self.taken:
                self.release(slot)

        return release

    def check(self, slot: Slot) -> None:
        """LeaseLostError for a slot that was reaped."""
        if slot not in self.taken:
            raise LeaseLostError(f"worker {slot.worker} no longer owns its slot: it was reaped")


def frozen(content: Row) -> Row:
    """Keep arrays on it from being made writable."""
    content.flags.writeable = False
    return content


def viewed(slot: Slot) -> bool:
    """Whether an array looks at the slot. Arrays on it keep its content, which nobody else does for long."""
    return slot.content is not None and sys.getrefcount(slot.content) > _UNSEEN


class _Unseen:
    content = np.zeros(1, np.uint8)


_UNSEEN = sys.getrefcount(_Unseen.content)
"""References to an array that only an attribute holds, as `sys.getrefcount` counts them."""
