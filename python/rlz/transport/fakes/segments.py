"""Segments of a fake trajectory queue."""

from __future__ import annotations

import time
import warnings
import weakref
from typing import Any, Self

from numpy.typing import NDArray

from rlz.errors import ClosedError
from rlz.transport.fakes.slots import Slot, Slots, viewed


class _Segment:
    """A slot that is held; it goes back when the last array on it is gone."""

    def __init__(self, queue: Slots, slot: Slot) -> None:
        self._queue = queue
        self._slot: Slot | None = slot

    def _held(self) -> Slot:
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
        if viewed(slot):
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

    def __init__(self, queue: Slots, slot: Slot, timeout: float | None) -> None:
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
        if not viewed(slot):
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
