"""`rlz trace`: the time line of every worker of a live run, for Perfetto (ui.perfetto.dev) or chrome://tracing.

Workers write it anyway, into a ring in shared memory (`rlz._native.PhaseClock`); this reads the rings.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlz.errors import CheckpointError
from rlz.records.runs import is_running
from rlz.runtime.live import Live
from rlz.system.files import replace_file
from rlz.tracking.reading import WAITS, WorkerInfo
from rlz.transport.stats import PHASES, Stat

PERIOD_S = 0.02
"""Between two looks at the rings: the fastest worker writes a ring in some 50 ms."""

_NAMES = {
    **{int(stat): phase for phase, stat in PHASES.items()},
    **{int(stat): f"wait: {reason}" for reason, (stat, _) in WAITS.items()},
    int(Stat.WAIT_LIMITER_S): "wait: replay ratio",
}


@dataclass(frozen=True)
class Traced:
    """A time line. `missed`: phases that a ring had lost before they were read; `phases`: those of the time line."""

    phases: int
    missed: int
    workers: int


def trace(run: Path, seconds: float, output: Path) -> Traced:
    """Follow a live run and write its time line as Chrome's trace events.

    Parameters
    ----------
    run : run folder.
    seconds : how long.
    output : JSON file, written whole.

    Raises
    ------
    CheckpointError
        It has ended.
    NotServedError, NoAnswerError, TransportError
        It is just starting or ending, does not answer, or is of another version of rlz.
    """
    if not is_running(run):
        raise CheckpointError(
            f"{run} has ended, and a time line is that of a live run. `rlz runs` says which ones live."
        )
    with Live(run) as live:
        begin = time.monotonic()
        until = begin + seconds
        cursors, missed = {}, 0
        lines: dict[int, list[NDArray[np.float64]]] = {}
        for slot in range(live.trace.slots):
            cursors[slot], _ = live.trace.events(slot, 2**62)  # what has ended before is not wanted
            lines[slot] = []
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(PERIOD_S, left))
            for slot, cursor in cursors.items():
                cursors[slot], records = live.trace.events(slot, cursor)
                missed += cursors[slot] - cursor - len(records)
                lines[slot].append(records)
        end = time.monotonic()
        still_open = live.trace.read()
        live.refresh()
        infos = live.workers()
        events = [
            event for info in infos for event in _events(info, lines[info.slot], still_open[info.slot], begin, end)
        ]
        phases = sum(event["ph"] == "X" for event in events)
    document = {"displayTimeUnit": "ns", "otherData": {"run": run.name}, "traceEvents": events}
    replace_file(output, json.dumps(document, separators=(",", ":")).encode())
    return Traced(phases, missed, len(infos))


def _events(
    info: WorkerInfo,
    line: list[NDArray[np.float64]],
    still_open: NDArray[np.float64],
    begin: float,
    end: float,
) -> Iterator[dict[str, Any]]:
    """A worker's part of the trace: its name, its phases, and the one that is open at the end."""
    # One process of the trace for each worker: in serial mode they all are one process, and would lie in one line.
    place = {"pid": info.slot + 1, "tid": 1}
    yield {"ph": "M", "name": "process_name", "args": {"name": f"{info.name} ({info.pid})"}, **place}
    yield {"ph": "M", "name": "thread_name", "args": {"name": info.role}, **place}
    records = [tuple(record) for records in line for record in records.tolist()]
    phase, since = still_open.tolist()
    if phase >= 0 and since > 0:
        records.append((phase, since, end))
    for index, first, last in records:
        if last > begin:
            # In whole nanoseconds, so that none ends after the next one has begun: viewers would nest it.
            since, until = (round(1e9 * (max(moment, begin) - begin)) for moment in (first, last))
            yield {
                "ph": "X",
                "name": _NAMES.get(int(index), Stat(int(index)).name.lower()),
                "ts": since / 1000,
                "dur": (until - since) / 1000,
                **place,
            }
