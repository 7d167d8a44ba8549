"""Stop signals in serial mode: a thread looks after them, because the main thread may be deep in an environment.

The limiter is stopped between two rounds, or while an evaluation plays, which then ends; the run comes to its end from
there. Where that takes too long the thread ends the run itself: it lets the sink write the last checkpoint, unless
it is the sink that does not come back, and leaves the main thread where it is.
"""

import os
import select
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rlz.records.run_directory import RunDirectory
from rlz.runtime.at_once import exit_now
from rlz.runtime.controller import CHECKPOINT_GRACE_S
from rlz.runtime.signals import StopSignals
from rlz.system.files import TEMPORARY

if TYPE_CHECKING:
    from rlz.runtime.serial import SerialRun
    from rlz.tracking import Tracker

STEP_GRACE_S = 2.0
"""Time for the worker whose turn it is to come back: one env step."""

LOOK_S = 0.02
"""Seconds between two looks, once a signal has come."""


class StopWatch:
    """Ends a serial run within its time after a stop signal, while it is entered.

    Parameters
    ----------
    run : the run, which the main thread drives.
    run_dir, tracker, signals : of the run.
    """

    def __init__(self, run: "SerialRun", run_dir: RunDirectory, tracker: "Tracker", signals: StopSignals) -> None:
        self._run = run
        self._run_dir = run_dir
        self._tracker = tracker
        self._signals = signals
        self._over = threading.Event()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name="rlz-stop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        os.write(self._writer, b"!")
        self._thread.join()
        os.close(self._writer)
        os.close(self._reader)

    def _work(self) -> None:
        poll = select.poll()
        poll.register(self._signals.fd, select.POLLIN)
        poll.register(self._reader, select.POLLIN)
        poll.poll()
        if self._signals.count == 0:
            return
        began = time.monotonic()
        self._tracker.note(self._signals.announcement)
        waiting_said = False
        while not self._over.wait(LOOK_S):
            run = self._run
            if run.between_rounds.acquire(blocking=False):
                run.stop()
                run.between_rounds.release()
            stopping = time.monotonic() - began
            if stopping >= STEP_GRACE_S and run.sink_started and not run.sink_free.locked():
                self._end(save=True)
            writing = any(self._run_dir.checkpoints.glob(f"{TEMPORARY}*"))
            if stopping >= (CHECKPOINT_GRACE_S if writing else run.sink_grace_s):
                self._end(save=False)
            if writing and stopping > run.sink_grace_s and not waiting_said:
                waiting_said = True
                self._tracker.note(
                    f"the {run.sink} is still writing its checkpoint; waiting up to {CHECKPOINT_GRACE_S:.0f} s"
                )

    def _end(self, *, save: bool) -> None:
        """End the run and the process; returns when the main thread was in the sink, which may come back."""
        culprit, error = self._run.current, ""
        if save:
            try:
                if not self._run.save(timeout=0.0):
                    return
            except Exception as problem:
                error = self._run.describe(self._run.sink, problem)
        self._tracker.note(f"{culprit} did not end in time: the run ends without it")
        self._tracker.finish("failed" if error else "stopped")
        if error:
            with suppress(OSError, ValueError):
                print(f"error: {error}\nlogs: {self._run_dir.logs}", file=sys.stderr, flush=True)
        exit_now(self._run_dir.path, self._tracker, 1 if error else self._signals.exit_status)
