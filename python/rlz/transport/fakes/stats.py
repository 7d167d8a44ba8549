"""Fake stats board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlz.transport.fakes.handle import Handle, no_descriptor
from rlz.transport.fakes.rows import Layout


@dataclass
class _Board:
    names: list[str]
    values: NDArray[np.float64]
    width: int
    capacity: int
    events: list[list[tuple[float, ...]]] = field(default_factory=list)

    def slot(self, slot: int) -> int:
        if not 0 <= slot < len(self.values):
            raise ValueError(f"slot: given {slot}, expected less than {len(self.values)}")
        return slot

    def place(self, slot: int, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self.names):
            raise ValueError(f"index: given {index}, expected less than {len(self.names)}")
        return self.slot(slot), index


class StatsBoard(Handle[_Board]):
    """As `rlz.transport.StatsBoard`."""

    @staticmethod
    def create(*, slots: int, names: Sequence[str], event_width: int, event_capacity: int, run_id: int) -> StatsBoard:
        """Make a board of zeros."""
        for what, given in (("slots", slots), ("event_width", event_width), ("event_capacity", event_capacity)):
            if given < 1:
                raise ValueError(f"{what}: given {given}, expected at least 1")
        Layout([(name, "f64", ()) for name in names])  # its checks of names
        board = _Board(list(names), np.zeros((slots, len(names))), event_width, event_capacity)
        board.events = [[] for _ in range(slots)]
        return StatsBoard("stats board", board)

    @staticmethod
    def attach(fd: int) -> StatsBoard:
        """Refused."""
        no_descriptor()

    @property
    def fd(self) -> int:
        """Refused."""
        no_descriptor()

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self._get().values.nbytes

    @property
    def names(self) -> list[str]:
        """As given to `create`."""
        return list(self._get().names)

    @property
    def slots(self) -> int:
        """Number of rows."""
        return len(self._get().values)

    def set(self, slot: int, index: int, value: float) -> None:
        """Set a number."""
        board = self._get()
        board.values[board.place(slot, index)] = value

    def add(self, slot: int, index: int, value: float) -> None:
        """Add to a number."""
        board = self._get()
        board.values[board.place(slot, index)] += value

    def read(self) -> NDArray[np.float64]:
        """Copy all numbers."""
        return self._get().values.copy()

    def push_event(self, slot: int, values: Sequence[float]) -> None:
        """Append an event."""
        board = self._get()
        if len(values) != board.width:
            raise ValueError(f"event: given {len(values)} values, expected {board.width} values")
        board.events[board.slot(slot)].append(tuple(float(value) for value in values))

    def events(self, slot: int, since: int) -> tuple[int, NDArray[np.float64]]:
        """Events from a number on."""
        board = self._get()
        events = board.events[board.slot(slot)]
        first = max(since, len(events) - (board.capacity - 1))  # of the ring one place is the writer's
        return len(events), np.array(events[first:], np.float64).reshape(-1, board.width)
