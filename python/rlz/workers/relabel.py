"""A worker between samplers and learner: follows the rows of one replay stream, changes them, gives them to another.

Derive from `Relabeller`, change the fields that `relabel` is given, and put the class into a graph with
`Graph.between` (docs/graph.md). Each row goes over exactly once and in its lane's order, also when the worker is killed
in between: its successor goes on after the newest row that it finds in the other stream.
"""

import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlz._native import RUNNING, Replay
from rlz.dtypes import numpy_dtype
from rlz.errors import GraphError, RlzError
from rlz.transport.stats import EVENT_CAPACITY, EVENT_WIDTH, Stat, at_end_names
from rlz.workers.base import WorkerSpec

if TYPE_CHECKING:
    from rlz.transport import Streams

CHUNK = 256
"""Rows that are copied at once."""

POLL_S = 0.001
"""Seconds between looks for new rows, where there were none."""

HEARTBEAT_S = 0.1
"""Seconds between signs of life on the stats board."""

MOST_LANES = EVENT_WIDTH * (EVENT_CAPACITY // 4)
"""A successor finds the places of so many lanes on the stats board."""


class Relabeller:
    """Gives each row of the replay stream that its node takes, changed, to the one that it gives.

    Both have the same lanes and fields. One worker does all lanes.

    Parameters
    ----------
    spec : names and the stats slot.
    streams : of its node.
    """

    def __init__(self, spec: WorkerSpec, streams: "Streams") -> None:
        node = spec.node()
        takes = streams.graph.of_kind("replay", node.takes)
        gives = streams.graph.of_kind("replay", node.gives)
        if len(takes) != 1 or len(gives) != 1:
            raise GraphError(f"node {spec.role!r} takes {len(takes)} replay streams and gives {len(gives)}; a "
                             "Relabeller needs one of each")  # fmt: skip
        self._spec = spec
        self._limiter = streams.limiter
        self._board = streams.stats
        self._event_width = EVENT_WIDTH + len(at_end_names(streams.graph.log_info))
        self._stats = streams.row(spec.slot)
        self._from, self._into = (cast("Replay", streams[name]) for name in (takes[0], gives[0]))
        if self._from.fields != self._into.fields:
            raise GraphError(f"streams {takes[0]!r} and {gives[0]!r} have other fields; rows are changed in place")
        lanes = self._from.lanes
        if lanes > MOST_LANES:
            raise GraphError(f"node {spec.role!r}: a Relabeller follows at most {MOST_LANES} environments, not {lanes}")
        self._tail = self._from.tail()
        self._writer = self._into.writer(range(lanes), worker=spec.worker_id)
        self._rows = np.zeros((CHUNK, self._from.stride), np.uint8)
        self._meta, self._tickets = np.zeros((2, CHUNK), np.uint64)
        self._offsets = [0] * lanes
        self._named = {name: self._view(dtype, shape, offset) for name, dtype, shape, offset in self._from.fields}
        self._ready = False
        self._seen_at = 0.0

    def relabel(self, rows: dict[str, NDArray[Any]]) -> None:
        """Change rows in place.

        Parameters
        ----------
        rows : by field [n, *shape], oldest first, of one environment.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Go on after the newest row that the other stream has."""
        done = self._into.committed()
        _, events = self._board.events(self._spec.slot, 0)
        count = -(-len(done) // EVENT_WIDTH)
        if self._spec.incarnation & 0xFFFFFFFF and len(events) >= count:
            self._offsets = [int(offset) for offset in events[-count:, :EVENT_WIDTH].reshape(-1)[: len(done)]]
        else:
            self._offsets = [-rows for rows in done]  # those that a resumed run began with came from no row of ours
            self._note_offsets()
        for lane, rows in enumerate(done):
            self._tail.seek(lane, rows + self._offsets[lane] + 1)

    def step(self, timeout: float | None) -> bool:
        """Relabel all rows that are there; False when the run has ended and none is left."""
        going = self._limiter.state == RUNNING  # before the look: rows of steps that are done are there
        count = sum(self._follow(lane) for lane in range(len(self._offsets)))
        now = time.monotonic()
        if now - self._seen_at >= HEARTBEAT_S:
            self._seen_at = now
            self._stats.set(Stat.HEARTBEAT, now)
        if count == 0 and not going:
            return False
        if count == 0 and timeout != 0.0:
            time.sleep(POLL_S if timeout is None else min(POLL_S, timeout))
        return True

    def close(self) -> None:
        """Give the lanes back."""
        self._writer.close()
        self._tail.close()

    def state(self) -> dict[str, Any]:
        """Nothing: whoever takes turns with others has no row under way between two rounds."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def _follow(self, lane: int) -> int:
        lapped = self._tail.lapped
        count = self._tail.read(lane, self._rows, self._meta, self._tickets)
        if self._tail.lapped > lapped:
            raise RlzError(
                f"{self._spec.name} fell behind: {self._tail.lapped - lapped} rows of environment {lane} were "
                "overwritten before it had seen them. Give the stream that it takes more rows, or do less with each"
            )
        if count == 0:
            return 0
        self.relabel({name: view[:count] for name, view in self._named.items()})
        done = self._into.committed()[lane]
        for row, meta, ticket in zip(self._rows[:count], self._meta.tolist(), self._tickets.tolist(), strict=False):
            done += 1
            if ticket - done != self._offsets[lane]:  # rows were lost with a sampler that was killed
                self._offsets[lane] = ticket - done
                self._note_offsets()
            self._writer.append_packed(lane, row, version=meta >> 32, flags=meta & 0xFFFF)
        self._stats.add(Stat.ROWS_WRITTEN, float(count))
        if not self._ready:
            self._ready = True
            self._stats.set(Stat.READY_S, time.monotonic())
        return count

    def _note_offsets(self) -> None:
        """Tell a successor which row of the one stream is which of the other, before the next row is written."""
        for first in range(0, len(self._offsets), EVENT_WIDTH):
            values = [float(offset) for offset in self._offsets[first : first + EVENT_WIDTH]]
            self._board.push_event(self._spec.slot, [*values, *[0.0] * (self._event_width - len(values))])

    def _view(self, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        kind = numpy_dtype(dtype)
        strides = (self._rows.strides[0], *np.zeros(shape, kind).strides)
        return np.ndarray((CHUNK, *shape), kind, self._rows.data, offset, strides)
