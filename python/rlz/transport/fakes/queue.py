"""Fake trajectory queue and its ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.transport.fakes.handle import Handle, check, check_worker, no_descriptor
from rlz.transport.fakes.rows import NUMPY, Layout
from rlz.transport.fakes.rows import Field as _Field
from rlz.transport.fakes.segments import ReadSegment, WriteSegment
from rlz.transport.fakes.slots import Slots, frozen

MOST_SLOTS = 1 << 16
MOST_DELIVERIES = 15


class TrajectoryQueue(Handle[Slots]):
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
        return TrajectoryQueue("trajectory queue", Slots(Layout(fields), slots, when_full, redelivery, max_deliveries))

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
                queue.taken.append(replace(slot, state="full", worker=0, content=frozen(content.copy()), viewed=None))
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


class _End(Handle[Slots]):
    def __init__(self, name: str, queue: Slots, worker: int) -> None:
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
