"""Fake replay buffer and its tail."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from rlz import _native as native
from rlz.errors import TransportError
from rlz.transport.fakes.buffer import Buffer, own
from rlz.transport.fakes.handle import LAST_WORKER, Handle, check, check_worker, no_descriptor
from rlz.transport.fakes.rows import Field as _Field
from rlz.transport.fakes.rows import Layout
from rlz.transport.fakes.samplers import PrioritizedSampler, ReplaySampler
from rlz.transport.fakes.writer import ReplayWriter

MOST_LANES = 65_535
_Path = str | PathLike[str]


class Replay(Handle[Buffer]):
    """As `rlz.transport.Replay`."""

    @staticmethod
    def create(fields: Sequence[_Field], *, buffer_size: int, lanes: int, run_id: int) -> Replay:
        """Make a buffer."""
        check("lanes", lanes, 1, MOST_LANES)
        if buffer_size < lanes:
            raise ValueError(f"buffer_size: given {buffer_size}, expected at least one row per lane ({lanes})")
        return Replay("replay buffer", Buffer(Layout(fields), buffer_size, lanes))

    @staticmethod
    def attach(fd: int) -> Replay:
        """Refused."""
        no_descriptor()

    @property
    def fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self._get().lanes

    @property
    def lane_capacity(self) -> int:
        """Slots of a lane."""
        return self._get().capacity

    @property
    def buffer_size(self) -> int:
        """Rows that can be drawn at most."""
        return self._get().buffer_size

    @property
    def stride(self) -> int:
        """Bytes per row."""
        return self._get().layout.stride

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        buffer = self._get()
        return buffer.lanes * buffer.capacity * buffer.layout.stride

    @property
    def fields(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """(name, dtype, shape, byte offset in the row)."""
        return list(self._get().layout.fields)

    def committed(self) -> list[int]:
        """Rows ever committed, per lane."""
        return list(self._get().committed)

    def owners(self) -> list[int]:
        """Worker id that owns each lane."""
        return list(self._get().owners)

    def writer(self, lanes: Sequence[int], *, worker: int, n_step: int = 1) -> ReplayWriter:
        """Become the owner of lanes."""
        return ReplayWriter(self._get(), lanes, check_worker(worker), n_step)

    def sampler(self, *, seed: Sequence[int]) -> ReplaySampler:
        """A uniform sampler."""
        return ReplaySampler("replay sampler", self._get(), seed)

    def prioritized_sampler(
        self, *, seed: Sequence[int], alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6
    ) -> PrioritizedSampler:
        """A prioritised sampler."""
        return PrioritizedSampler(self._get(), seed, alpha, beta, epsilon)

    def tail(self) -> ReplayTail:
        """A reader that follows the lanes."""
        return ReplayTail(self._get())

    def reap(self, worker: int) -> int:
        """Release every lane of a worker."""
        buffer = self._get()
        check_worker(worker)
        owned = buffer.owners.count(worker)
        buffer.owners = [0 if owner == worker else owner for owner in buffer.owners]
        return owned

    def read_rows(self, lane: int, first_ticket: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64]) -> int:
        """Copy rows of a lane."""
        buffer = self._get()
        buffer.check_rows("rows", rows)
        buffer.lane(lane)
        buffer.check_words(len(rows), meta=meta)
        if first_ticket < 1:
            raise ValueError(f"first_ticket: given {first_ticket}, expected a ticket from 1 on")
        for i in range(len(rows)):
            stored = buffer.rows[lane].get(first_ticket + i)
            if stored is None:
                return i
            rows[i], meta[i] = stored
        return len(rows)

    def save(self, path: _Path, *, ranges: Sequence[tuple[int, int, int]] | None = None) -> int:
        """Save rows to a file, in which each lane's tickets count from 1."""
        buffer = self._get()
        every = [(lane, 1, last) for lane, last in enumerate(buffer.committed)]
        with self._real() as real:
            for lane, first, last in every if ranges is None else ranges:
                tickets = [t for t in sorted(buffer.rows[buffer.lane(lane)]) if first <= t <= last]
                if tickets:
                    rows, meta = zip(*(buffer.rows[lane][ticket] for ticket in tickets), strict=True)
                    real.restore_rows(lane, np.stack(rows), np.array(meta, np.uint64), worker=LAST_WORKER)
            return real.save(path)

    def load(self, path: _Path | Sequence[_Path], *, worker: int, open_episodes: bool = False) -> int:
        """Append the rows of saved files."""
        buffer = self._get()
        check_worker(worker)
        if any(buffer.owners):
            raise TransportError(f"lanes are owned by workers {buffer.owners}; reap or close those owners first")
        with self._real() as real:
            count = real.load(path, worker=worker, open_episodes=open_episodes)
            for lane, committed in enumerate(real.committed()):
                first = max(0, committed - buffer.capacity)
                rows = np.zeros((committed - first, buffer.layout.stride), np.uint8)
                meta = np.zeros(len(rows), np.uint64)
                real.read_rows(lane, first + 1, rows, meta)
                buffer.committed[lane] += first
                for row, word in zip(rows, meta, strict=True):
                    buffer.append(lane, row.copy(), int(word))
        return count

    def _real(self) -> native.Replay:
        """A real buffer of the same layout, which knows the format of files."""
        buffer = self._get()
        fields = [(name, dtype, shape) for name, dtype, shape, _ in buffer.layout.fields]
        return native.Replay.create(fields, buffer_size=buffer.buffer_size, lanes=buffer.lanes, run_id=0)

    def restore_rows(self, lane: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64], *, worker: int) -> None:
        """Append saved rows."""
        buffer = self._get()
        check_worker(worker)
        buffer.check_rows("rows", rows)
        buffer.lane(lane)
        buffer.check_words(len(rows), meta=meta)
        own(buffer, lane, worker)
        for row, word in zip(rows, meta, strict=True):
            buffer.append(lane, row.copy(), int(word))
        buffer.owners[lane] = 0


class ReplayTail(Handle[Buffer]):
    """As `rlz.transport.ReplayTail`."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__("replay tail", buffer)
        self._cursors = [1] * buffer.lanes
        self._lapped = 0

    def read(self, lane: int, rows: NDArray[np.uint8], meta: NDArray[np.uint64], tickets: NDArray[np.uint64]) -> int:
        """Copy a lane's next rows."""
        buffer = self._get()
        buffer.check_rows("rows", rows)
        buffer.lane(lane)
        buffer.check_words(len(rows), meta=meta, tickets=tickets)
        committed, cursor = buffer.committed[lane], self._cursors[lane]
        if cursor <= committed - buffer.capacity:
            oldest = committed - (buffer.capacity - buffer.margin) + 1
            self._lapped += oldest - cursor
            cursor = oldest
        count = max(0, min(len(rows), committed + 1 - cursor))
        for i in range(count):
            rows[i], meta[i] = buffer.rows[lane][cursor + i]
            tickets[i] = cursor + i
        self._cursors[lane] = cursor + count
        return count

    def seek(self, lane: int, ticket: int) -> None:
        """Go on from a ticket."""
        self._get().lane(lane)
        if ticket < 1:
            raise ValueError(f"ticket: given {ticket}, expected a ticket from 1 on")
        self._cursors[lane] = ticket

    @property
    def cursors(self) -> list[int]:
        """Next ticket of each lane."""
        self._get()
        return list(self._cursors)

    @property
    def lapped(self) -> int:
        """Rows skipped because the writers were a whole lane ahead."""
        self._get()
        return self._lapped

    @property
    def lost(self) -> int:
        """None is ever lost."""
        self._get()
        return 0
