"""The end of a run that may not wait, from any thread: all that it started is killed, nothing unfinished is left."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlz.runtime.live import SOCKET
from rlz.system.descendants import descendants, end
from rlz.system.files import freeze, remove_temporary

if TYPE_CHECKING:
    from rlz.tracking import Tracker

MAIN_THREAD_S = 0.3
"""Time that the main thread has to get out by itself, where it looks at signals."""

KILLED_S = 0.2
"""Time that killed processes have to be gone."""

DISPLAY_S = 0.2
"""Time to give the terminal back."""


def exit_now(run_dir: Path, tracker: "Tracker | None", status: int) -> NoReturn:
    """Leave nothing of a run, and end this process without waiting for its other threads.

    Parameters
    ----------
    run_dir : run folder, of which this process holds the lock.
    tracker : closed, to give the terminal back; not waited for beyond `DISPLAY_S`.
    status : exit status.
    """
    freeze()
    end(descendants(), timeout=KILLED_S)
    _clean(run_dir)
    if tracker is not None:
        closing = threading.Thread(target=tracker.close, daemon=True)
        closing.start()
        closing.join(DISPLAY_S)
    _clean(run_dir)  # what a thread was just beginning
    exit_process(status)


def exit_process(status: int) -> NoReturn:
    """End this process without the teardown of the interpreter, which can take longer than everything before it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _clean(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        remove_temporary(run_dir)
        (run_dir / SOCKET).unlink(missing_ok=True)
