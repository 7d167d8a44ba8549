"""A process that appends rows to a replay buffer at a steady rate, while another one is measured sampling from it."""

import json
import subprocess
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlz._native import Replay

ROWS_PER_S = 10_000
"""Several times what samplers of a MuJoCo environment write on a small machine."""

BURST = 10
"""Rows between two sleeps."""


class Writing:
    """Context in which a child process writes to all lanes of a buffer, as worker 2.

    Parameters
    ----------
    replay : lanes must have no owner.
    rows_per_s : rate of the appends.
    """

    def __init__(self, replay: "Replay", rows_per_s: int = ROWS_PER_S) -> None:
        job = {"fd": replay.fd, "rows_per_s": rows_per_s}
        self._replay = replay
        self._before = replay.committed()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "rlz.bench.writer", json.dumps(job)], pass_fds=[replay.fd], stdin=subprocess.PIPE
        )

    def __enter__(self) -> "Writing":
        while self._replay.committed() == self._before:
            if self._child.poll() is not None:
                raise RuntimeError(f"the writer ended with status {self._child.returncode}")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.communicate()
        self._replay.reap(2)


def write(fd: int, rows_per_s: int) -> None:
    """Append rows, lane after lane, until this process is killed."""
    import numpy as np

    from rlz._native import Replay

    replay = Replay.attach(fd)
    lanes = list(range(replay.lanes))
    writer = replay.writer(lanes, worker=2)
    row = np.zeros(replay.stride, np.uint8)
    due = time.perf_counter()
    while True:
        for number in range(BURST):
            writer.append_packed(lanes[number % len(lanes)], row, version=1)
        due += BURST / rows_per_s
        time.sleep(max(0.0, due - time.perf_counter()))


if __name__ == "__main__":
    write(**json.loads(sys.argv[1]))
