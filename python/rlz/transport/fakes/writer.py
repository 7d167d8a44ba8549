"""Fake writer of a replay buffer, with n-step returns."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz._native import FLAG_FIRST, FLAG_TERMINATED, FLAG_TRUNCATED
from rlz.errors import LeaseLostError
from rlz.transport.fakes.buffer import Buffer, own
from rlz.transport.fakes.handle import Handle
from rlz.transport.fakes.rows import NUMPY, Layout, Row

ENDED = FLAG_TERMINATED | FLAG_TRUNCATED


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
                own(buffer, buffer.lane(lane), worker)
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
