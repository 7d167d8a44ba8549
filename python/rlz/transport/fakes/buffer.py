"""Rows of a fake replay buffer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlz.errors import TransportError
from rlz.transport.fakes.handle import check
from rlz.transport.fakes.rows import Layout, Row

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


def own(buffer: Buffer, lane: int, worker: int) -> None:
    """Make a worker the owner of a lane that has none."""
    if buffer.owners[lane]:
        raise TransportError(f"lane {lane} is owned by worker {buffer.owners[lane]}; reap or close that owner first")
    buffer.owners[lane] = worker
