"""Fake replay buffer, its writer and its tail."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlz import _native as native
from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.errors import LeaseLostError, TransportError
from rlz.transport.fakes.handle import LAST_WORKER, Handle, check, check_worker, no_descriptor
from rlz.transport.fakes.rows import NUMPY, Layout, Row
from rlz.transport.fakes.rows import Field as _Field

if TYPE_CHECKING:
    from rlz.transport.fakes.samplers import PrioritizedSampler, ReplaySampler

MOST_LANES = 65_535
_Path = str | PathLike[str]
ENDED = FLAG_TERMINATED | FLAG_TRUNCATED
Stored = tuple[Row, int]


@dataclass
class Buffer:
    """Rows of all lanes, as long as their slots are not taken by newer ones.

    Attributes
    ----------
    rows : packed row and meta word, by lane and ticket.
    newest : (lane, ticket) of the newest `buffer_size` rows, oldest first.
    """

    layout: Layout
    buffer_size: int
    lanes: int
    committed: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    rows: list[dict[int, Stored]] = field(default_factory=list)
    newest: deque[tuple[int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.committed, self.owners = [0] * self.lanes, [0] * self.lanes
        self.rows = [{} for _ in range(self.lanes)]
        self.newest = deque(maxlen=self.buffer_size)

    @property
    def margin(self) -> int:
        """Slots of a lane that are not drawn from."""
        return min(max(-(-self.buffer_size // self.lanes) // 16, 2), 64)

    @property
    def capacity(self) -> int:
        """Slots of a lane."""
        return -(-self.buffer_size // self.lanes) + self.margin

    def lane(self, lane: int) -> int:
        """A lane that there is."""
        return check("lane", lane, 0, self.lanes - 1)

    def append(self, lane: int, row: Row, meta: int) -> None:
        """Append a row to a lane."""
        self.committed[lane] += 1
        ticket = self.committed[lane]
        self.rows[lane][ticket] = (row, meta)
        self.rows[lane].pop(ticket - self.capacity, None)
        self.newest.append((lane, ticket))

    def window(self) -> list[tuple[int, int]]:
        """Lane and ticket of the rows that can be drawn, oldest first."""
        most = max(1, self.capacity - self.margin)
        return [(lane, ticket) for lane, ticket in self.newest if ticket > self.committed[lane] - most]

    def check_rows(self, name: str, rows: NDArray[np.uint8]) -> None:
        """ValueError when rows are not [n, stride]."""
        if rows.ndim != 2 or rows.shape[1] != self.layout.stride or not rows.flags.c_contiguous:
            raise ValueError(f"{name}: given shape {rows.shape}, expected (n, {self.layout.stride})")

    def check_words(self, size: int, **words: NDArray[np.uint64] | None) -> None:
        """ValueError when an array has not one word per row."""
        for name, array in words.items():
            if array is not None and len(array) != size:
                raise ValueError(f"{name}: given {len(array)} words for {size} rows, expected one per row")


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
        from rlz.transport.fakes.samplers import ReplaySampler

        return ReplaySampler("replay sampler", self._get(), seed)

    def prioritized_sampler(
        self, *, seed: Sequence[int], alpha: float = 0.6, beta: float = 0.4, epsilon: float = 1e-6
    ) -> PrioritizedSampler:
        """A prioritised sampler."""
        from rlz.transport.fakes.samplers import PrioritizedSampler

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
        _own(buffer, lane, worker)
        for row, word in zip(rows, meta, strict=True):
            buffer.append(lane, row.copy(), int(word))
        buffer.owners[lane] = 0


class ReplayWriter(Handle[Buffer]):
    """As `rlz.transport.ReplayWriter`."""

    def __init__(self, buffer: Buffer, lanes: Sequence[int], worker: int, n_step: int) -> None:
        super().__init__("replay writer", buffer)
        self._worker = worker
        self._first: dict[int, bool] = {}
        if n_step < 1:
            raise ValueError(f"n: given {n_step}, expected at least 1 step")
        if n_step > 1:
            _check_foldable(buffer.layout)
        self._folds = {lane: _Fold(buffer.layout, n_step) for lane in lanes}
        try:
            for lane in lanes:
                _own(buffer, buffer.lane(lane), worker)
                self._first[lane] = True
        except BaseException:
            self._release()
            raise

    def append(self, lane: int, row: Sequence[Any], *, version: int, flags: int = 0) -> None:
        """Append one row."""
        self._push(lane, self._get().layout.pack(row), version, flags)

    def append_packed(self, lane: int, row: NDArray[np.uint8], *, version: int, flags: int = 0) -> None:
        """Append one packed row."""
        stride = self._get().layout.stride
        if row.shape != (stride,):
            raise ValueError(f"row: given {row.size} bytes, expected {stride} (stride)")
        self._push(lane, row.copy(), version, flags)

    def append_batch(
        self, lanes: Sequence[int], columns: Sequence[NDArray[Any]], *, version: int, flags: Sequence[int] | None = None
    ) -> None:
        """Append one row to each lane."""
        layout = self._get().layout
        if flags is not None and len(flags) != len(lanes):
            raise ValueError(f"flags: expected one for each of {len(lanes)} lanes")
        if len(columns) != len(layout.fields):
            raise ValueError(
                f"row: given {len(columns)} values, expected {len(layout.fields)}: {', '.join(layout.names)}"
            )
        for (name, dtype, shape, _), column in zip(layout.fields, columns, strict=True):
            fits = isinstance(column, np.ndarray) and column.flags.c_contiguous and column.dtype == NUMPY[dtype]
            if not fits or column.shape != (len(lanes), *shape):
                raise ValueError(f"{name!r}: expected a C-contiguous {dtype} array of shape {(len(lanes), *shape)}")
        for i, lane in enumerate(lanes):
            row = layout.pack([column[i, ...] for column in columns])
            self._push(lane, row, version, 0 if flags is None else flags[i])

    @property
    def pending(self) -> int:
        """Steps whose rows are not written yet."""
        self._get()
        return sum(len(fold.open) for fold in self._folds.values())

    def flush(self, lane: int | None = None) -> None:
        """Write what is pending as truncated."""
        self._get()
        for one in self._folds if lane is None else [self._owned(lane)]:
            self._write(one, self._folds[one].flush())

    def open_windows(self, lane: int) -> bytes:
        """State of a lane's open windows."""
        self._get()
        return self._folds[self._owned(lane)].state()

    def restore_open_windows(self, lane: int, state: bytes) -> None:
        """Go on with windows."""
        self._get()
        self._folds[self._owned(lane)].restore(state)

    def close(self) -> None:
        """Flush, then give the lanes back."""
        if self._shared is not None:
            self.flush()
            self._release()
        super().close()

    def __del__(self) -> None:
        if self._shared is not None:
            self._release()

    def _release(self) -> None:
        buffer = self._get()
        for lane in self._first:
            if buffer.owners[lane] == self._worker:
                buffer.owners[lane] = 0

    def _owned(self, lane: int) -> int:
        if lane not in self._folds:
            raise ValueError(f"lane: given {lane}, expected one of this writer's lanes {list(self._folds)}")
        return lane

    def _push(self, lane: int, row: Row, version: int, flags: int) -> None:
        self._write(lane, self._folds[self._owned(lane)].push(row, version, flags))

    def _write(self, lane: int, rows: Iterator[tuple[Row, int, int]]) -> None:
        buffer = self._get()
        for row, version, flags in rows:
            if buffer.owners[lane] != self._worker:
                raise LeaseLostError(f"worker {self._worker} no longer owns lane {lane}: it was reaped")
            flags |= FLAG_FIRST if self._first[lane] else 0
            buffer.append(lane, row, version << 32 | lane << 16 | flags)
            self._first[lane] = flags & ENDED != 0


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


@dataclass
class _Open:
    row: Row
    version: int
    flags: int
    reward: float
    discount: float
    steps: int = 1


class _Fold:
    """Folds the steps of one lane over up to n steps."""

    WINDOW = struct.Struct("<3Q2d")

    def __init__(self, layout: Layout, n: int) -> None:
        self._layout = layout
        self._n = n
        self.open: deque[_Open] = deque()

    def push(self, row: Row, version: int, flags: int) -> Iterator[tuple[Row, int, int]]:
        """Take a step in; gives the rows that are ready."""
        if self._n == 1:
            yield row, version, flags
            return
        reward, discount = (float(self._layout.view(row, name)) for name in ("reward", "discount"))
        for step in self.open:
            step.reward += step.discount * reward
            step.discount *= discount
            step.steps += 1
        self.open.append(_Open(row, version, flags, reward, discount))
        while self.open and (flags & ENDED or self.open[0].steps == self._n):
            yield self._close_oldest(row)

    def flush(self) -> Iterator[tuple[Row, int, int]]:
        """End all windows as if the episode had been truncated."""
        if self.open:
            self.open[-1].flags |= FLAG_TRUNCATED
            last = self.open[-1].row.copy()
            while self.open:
                yield self._close_oldest(last)

    def state(self) -> bytes:
        """Open windows: five words and the row of each."""
        return b"".join(
            self.WINDOW.pack(step.version, step.flags, step.steps, step.reward, step.discount) + step.row.tobytes()
            for step in self.open
        )

    def restore(self, state: bytes) -> None:
        """Take windows back."""
        size = self.WINDOW.size + self._layout.stride
        if len(state) % size or (len(state) // size >= self._n):
            raise ValueError(f"n-step state: given {len(state)} bytes, expected a state of the same row layout and n")
        self.open.clear()
        for start in range(0, len(state), size):
            version, flags, steps, reward, discount = self.WINDOW.unpack_from(state, start)
            row = np.frombuffer(state, np.uint8, self._layout.stride, start + self.WINDOW.size).copy()
            self.open.append(_Open(row, version, flags, reward, discount, steps))

    def _close_oldest(self, last: Row) -> tuple[Row, int, int]:
        oldest = self.open.popleft()
        row = oldest.row.copy()
        self._layout.view(row, "reward")[...] = oldest.reward
        self._layout.view(row, "discount")[...] = oldest.discount
        self._layout.view(row, "next_obs")[...] = self._layout.view(last, "next_obs")
        return row, oldest.version, oldest.flags


def _check_foldable(layout: Layout) -> None:
    kinds = {name: (dtype, shape) for name, dtype, shape, _ in layout.fields}
    for name in ("reward", "discount", "next_obs"):
        if name not in kinds:
            raise ValueError(f"field: given {name!r}, expected one of {', '.join(kinds)}")
        if name != "next_obs" and (kinds[name][0] not in ("f32", "f64") or np.prod(kinds[name][1]) != 1):
            raise ValueError(f"field: given {name!r}, expected one f32 or f64 number")


def _own(buffer: Buffer, lane: int, worker: int) -> None:
    if buffer.owners[lane]:
        raise TransportError(f"lane {lane} is owned by worker {buffer.owners[lane]}; reap or close that owner first")
    buffer.owners[lane] = worker
