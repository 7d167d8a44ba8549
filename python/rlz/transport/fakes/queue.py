"""Fake trajectory queue."""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlz.errors import ClosedError, LeaseLostError
from rlz.transport.fakes.handle import Handle, check, check_worker, no_descriptor, would_wait
from rlz.transport.fakes.rows import NUMPY, Layout, Row
from rlz.transport.fakes.rows import Field as _Field

MOST_SLOTS = 1 << 16
MOST_DELIVERIES = 15

COUNTERS = (
    *("committed", "consumed", "dropped_new", "dropped_oldest", "redelivered", "dropped_deliveries"),
    *("dropped_at_most_once", "reclaimed", "copied", "missed_wakeups"),
)


@dataclass(eq=False)
class _Slot:
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
class _Queue:
    layout: Layout
    slots: int
    when_full: str
    redelivery: str
    max_deliveries: int
    taken: list[_Slot] = field(default_factory=list)
    finished: bool = False
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))

    def oldest(self) -> _Slot | None:
        full = [slot for slot in self.taken if slot.state == "full"]
        return min(full, key=lambda slot: slot.ticket, default=None)

    def claim(self, worker: int, timeout: float | None) -> _Slot | None:
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
        slot = _Slot("writing", worker, np.zeros(self.layout.stride, np.uint8))
        self.taken.append(slot)
        return slot

    def commit(self, slot: _Slot) -> int:
        self.check(slot)
        self.counters["committed"] += 1
        slot.state, slot.ticket, slot.committed_at = "full", self.counters["committed"], time.monotonic()
        assert slot.content is not None
        _frozen(slot.content)
        return slot.ticket

    def pop(self, worker: int, timeout: float | None) -> _Slot:
        slot = self.oldest()
        if slot is None:
            if self.finished:
                raise ClosedError("the trajectory queue was closed")
            raise would_wait("a segment", timeout)
        slot.state, slot.worker, slot.deliveries = "reading", worker, slot.deliveries + 1
        return slot

    def release(self, slot: _Slot) -> None:
        self.check(slot)
        self.taken.remove(slot)
        self.counters["consumed"] += slot.state == "reading"

    def release_later(self, slot: _Slot) -> Callable[[], None]:
        """What frees a slot once, unless it was reaped meanwhile."""

        def release() -> None:
            if slot in self.taken:
                self.release(slot)

        return release

    def check(self, slot: _Slot) -> None:
        if slot not in self.taken:
            raise LeaseLostError(f"worker {slot.worker} no longer owns its slot: it was reaped")


class TrajectoryQueue(Handle[_Queue]):
    """As `rlz.transport.TrajectoryQueue`."""

    @staticmethod
    def create(
        fields: Sequence[_Field],
        *,
        slots: int,
        run_id: int,
        when_full: str = "block",
        redelivery: str = "at_least_once",
        max_deliveries: int = 3,
    ) -> TrajectoryQueue:
        """Make a queue."""
        check("slots", slots, 1, MOST_SLOTS)
        check("max_deliveries", max_deliveries, 1, MOST_DELIVERIES)
        for what, given, choices in (
            ("when_full", when_full, ("block", "drop_new", "drop_oldest")),
            ("redelivery", redelivery, ("at_least_once", "at_most_once")),
        ):
            if given not in choices:
                raise ValueError(f'{what}: given "{given}", expected one of {", ".join(choices)}')
        return TrajectoryQueue("trajectory queue", _Queue(Layout(fields), slots, when_full, redelivery, max_deliveries))

    @staticmethod
    def attach(fd: int) -> TrajectoryQueue:
        """Refused."""
        no_descriptor()

    @property
    def fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def slots(self) -> int:
        """Segments that it holds."""
        return self._get().slots

    @property
    def when_full(self) -> str:
        """As given to `create`."""
        return self._get().when_full

    @property
    def redelivery(self) -> str:
        """As given to `create`."""
        return self._get().redelivery

    @property
    def max_deliveries(self) -> int:
        """As given to `create`."""
        return self._get().max_deliveries

    @property
    def stride(self) -> int:
        """Bytes per segment."""
        return self._get().layout.stride

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        queue = self._get()
        return queue.slots * queue.layout.stride

    @property
    def fields(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """(name, dtype, shape, byte offset in the segment)."""
        return list(self._get().layout.fields)

    def producer(self, *, worker: int) -> QueueProducer:
        """A writing end."""
        return QueueProducer("queue producer", self._get(), check_worker(worker))

    def consumer(self, *, worker: int) -> QueueConsumer:
        """A reading end."""
        return QueueConsumer("queue consumer", self._get(), check_worker(worker))

    def reap(self, worker: int) -> tuple[int, int, int]:
        """Take back what a worker held."""
        queue = self._get()
        check_worker(worker)
        freed = again = dropped = 0
        for slot in [slot for slot in queue.taken if slot.worker == worker and slot.state != "full"]:
            queue.taken.remove(slot)
            if slot.state == "writing":
                freed += 1
                queue.counters["reclaimed"] += 1
            elif queue.redelivery == "at_least_once" and slot.deliveries < queue.max_deliveries:
                again += 1
                queue.counters["redelivered"] += 1
                # A copy: the dead one's slot is no longer in the queue, but its arrays may still be looked at.
                content = slot.content if slot.viewed is None else slot.viewed()
                assert content is not None
                queue.taken.append(replace(slot, state="full", worker=0, content=_frozen(content.copy()), viewed=None))
            else:
                dropped += 1
                kind = "deliveries" if queue.redelivery == "at_least_once" else "at_most_once"
                queue.counters[f"dropped_{kind}"] += 1
        return freed, again, dropped

    def finish(self) -> None:
        """No more segments."""
        self._get().finished = True

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""
        return self._get().finished

    def occupancy(self) -> dict[str, int]:
        """Slots by state."""
        queue = self._get()
        states = [slot.state for slot in queue.taken]
        counts = {state: states.count(state) for state in ("full", "reading", "writing")}
        return {"free": queue.slots - len(states), **counts}

    def counters(self) -> dict[str, int]:
        """Counts since the creation."""
        return dict(self._get().counters)

    @property
    def oldest_age(self) -> float | None:
        """Seconds since the commit of the oldest segment that waits."""
        oldest = self._get().oldest()
        return None if oldest is None else time.monotonic() - oldest.committed_at


class _End(Handle[_Queue]):
    def __init__(self, name: str, queue: _Queue, worker: int) -> None:
        super().__init__(name, queue)
        self._worker = worker


class QueueProducer(_End):
    """As `rlz.transport.QueueProducer`."""

    def acquire(self, *, timeout: float | None) -> WriteSegment | None:
        """Take a slot to fill."""
        queue = self._get()
        slot = queue.claim(self._worker, timeout)
        return None if slot is None else WriteSegment(queue, slot, timeout)

    def put(self, *, timeout: float | None, note: int = 0, **fields: Any) -> int | None:
        """Copy a segment in and commit it."""
        queue = self._get()
        slot = queue.claim(self._worker, timeout)
        if slot is None:
            return None
        try:
            if set(fields) != set(queue.layout.names):
                raise _wrong_names(queue.layout, fields)
            slot.content = queue.layout.pack([fields[name] for name in queue.layout.names])
        except BaseException:
            queue.taken.remove(slot)
            raise
        slot.note = note
        return queue.commit(slot)


class QueueConsumer(_End):
    """As `rlz.transport.QueueConsumer`."""

    def pop(self, *, timeout: float | None) -> ReadSegment:
        """Take the oldest segment."""
        queue = self._get()
        return ReadSegment(queue, queue.pop(self._worker, timeout))

    def pop_batch(
        self,
        into: dict[str, NDArray[Any]],
        *,
        timeout: float | None,
        tickets: NDArray[np.uint64] | None = None,
        notes: NDArray[np.uint64] | None = None,
    ) -> int:
        """Copy the next segments."""
        queue = self._get()
        size = _check_batch(queue.layout, into)
        for name, words in (("tickets", tickets), ("notes", notes)):
            if words is not None and words.shape != (size,):
                raise ValueError(f"{name}: expected shape ({size},)")
        for number in range(size):
            if number and queue.oldest() is None:
                return number
            slot = queue.pop(self._worker, timeout)
            assert slot.content is not None
            for name, array in into.items():
                array[number] = queue.layout.view(slot.content, name)
            if tickets is not None:
                tickets[number] = slot.ticket
            if notes is not None:
                notes[number] = slot.note
            queue.release(slot)
        return size


class _Segment:
    """A slot that is held; it goes back when the last array on it is gone."""

    def __init__(self, queue: _Queue, slot: _Slot) -> None:
        self._queue = queue
        self._slot: _Slot | None = slot

    def _held(self) -> _Slot:
        if self._slot is None:
            raise ClosedError("the segment (it was committed, aborted or released) was closed")
        return self._slot

    def _view(self, name: str) -> NDArray[Any]:
        content = self._held().content
        assert content is not None
        return self._queue.layout.view(content, name)

    def keys(self) -> list[str]:
        """Names of the fields."""
        self._held()
        return self._queue.layout.names

    def _give_back(self) -> None:
        """Free the slot, or let the last of its arrays do so."""
        slot = self._held()
        self._slot = None
        if _viewed(slot):
            assert slot.content is not None
            weakref.finalize(slot.content, self._queue.release_later(slot))
            slot.viewed, slot.content = weakref.ref(slot.content), None
        else:
            self._queue.release(slot)

    def __del__(self) -> None:
        if self._slot in self._queue.taken:
            self._give_back()


class WriteSegment(_Segment):
    """As `rlz.transport.WriteSegment`."""

    def __init__(self, queue: _Queue, slot: _Slot, timeout: float | None) -> None:
        super().__init__(queue, slot)
        self._timeout = timeout

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """A field as a writable array."""
        return self._view(name)

    @property
    def note(self) -> int:
        """Write only."""
        raise AttributeError("the note of a segment that is being written cannot be read")

    @note.setter
    def note(self, value: int) -> None:
        self._held().note = value

    def commit(self) -> int | None:
        """Hand it to the consumers."""
        slot, queue = self._held(), self._queue
        queue.check(slot)
        if not _viewed(slot):
            self._slot = None
            return queue.commit(slot)
        warnings.warn("arrays of a queue segment outlive its block: it is copied", RuntimeWarning, stacklevel=2)
        assert slot.content is not None
        content, note = slot.content.copy(), slot.note
        self._give_back()
        copied = queue.claim(slot.worker, self._timeout)
        if copied is None:
            return None
        queue.counters["copied"] += 1
        copied.content, copied.note = content, note
        return queue.commit(copied)

    def abort(self) -> None:
        """Give the slot back unused."""
        if self._slot is not None:
            self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception and exception[0] is not None:
            self.abort()
        elif self._slot is not None:
            self.commit()


class ReadSegment(_Segment):
    """As `rlz.transport.ReadSegment`."""

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        """A field as a read-only array."""
        return self._view(name)

    @property
    def ticket(self) -> int:
        """Number of its commit."""
        return self._held().ticket

    @property
    def redeliveries(self) -> int:
        """Earlier deliveries."""
        return self._held().deliveries - 1

    @property
    def note(self) -> int:
        """The producer's word."""
        return self._held().note

    @property
    def age(self) -> float:
        """Seconds since its commit."""
        return time.monotonic() - self._held().committed_at

    def release(self) -> None:
        """Give the slot back."""
        if self._slot is not None:
            self._give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _frozen(content: Row) -> Row:
    """Keep arrays on it from being made writable."""
    content.flags.writeable = False
    return content


def _viewed(slot: _Slot) -> bool:
    """Whether an array looks at the slot. Arrays on it keep its content, which nobody else does for long."""
    return slot.content is not None and sys.getrefcount(slot.content) > _UNSEEN


class _Unseen:
    content = np.zeros(1, np.uint8)


_UNSEEN = sys.getrefcount(_Unseen.content)
"""References to an array that only an attribute holds, as `sys.getrefcount` counts them."""


def _check_batch(layout: Layout, into: dict[str, NDArray[Any]]) -> int:
    """Rows of a batch that fits; KeyError and ValueError else."""
    if not into:
        raise ValueError("into: expected at least one field of the queue")
    places = {name: (np.dtype(NUMPY[dtype]), shape) for name, dtype, shape, _ in layout.fields}
    size = None
    for name, array in into.items():
        if name not in places:
            raise _wrong_names(layout, into)
        kind, shape = places[name]
        fits = isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable
        size = len(array) if size is None and fits and array.ndim else size
        if not fits or not size or array.dtype != kind or array.shape != (size, *shape):
            raise ValueError(
                f"into[{name!r}]: expected a writable, C-contiguous {kind} array of shape (batch, *{shape})"
            )
    assert size is not None
    return size


def _wrong_names(layout: Layout, given: Iterable[str]) -> KeyError:
    return KeyError(f"given {list(given)}, expected the fields {', '.join(layout.names)}")
